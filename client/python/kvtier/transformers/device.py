# SPDX-License-Identifier: Apache-2.0
"""Where a model's caches are, as far as the library can copy from and to it."""
from __future__ import annotations

import logging
from typing import Any, Collection, Mapping

import torch

from ..cuda import Cuda, CudaError
from ..session import Session

log = logging.getLogger("kvtier.transformers")

CPU = torch.device("cpu")


class Home:
    """The device that page maps are of. Caches that lie elsewhere, or on several devices, are
    copied through host memory.

    gpus: of the session, or None.
    """

    def __init__(
        self,
        session: Session,
        devices: Collection[torch.device],
        cuda_options: Mapping[str, Any] | None,
    ) -> None:
        self.device, self.gpus = CPU, None
        first = next(iter(devices), CPU)
        if len(devices) > 1 or first.type != "cuda":
            return
        try:
            self.gpus = Cuda(session, **{"devices": [first.index or 0], **(cuda_options or {})})
        except CudaError as why:
            log.warning("caches go through host memory, which is slow: %s", why)
            return
        self.device = first

    def event(self) -> Any:
        """Behind all that has been asked of the device so far in the caller's stream."""
        if self.gpus is None:
            return None
        return torch.cuda.current_stream(self.device).record_event()
