# SPDX-License-Identifier: Apache-2.0
"""What the user may set in `kv_connector_extra_config`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engine_options import PREFIX, EngineOptions
from ..layout import Codec

#: Bytes that the hint of a prefetch may have.
PEER_NAME_MAX = 63


@dataclass(frozen=True)
class Options(EngineOptions):
    """A load is one request's, a store one step's."""

    #: MiB of GPU memory that copies may be staged in; 0: the default of `kvtier.cuda.Cuda`.
    gpu_staging_mib: int = 0
    #: Of 512 threads each, of a copying kernel: what the model may lose; 0: the default.
    gpu_blocks: int = 0
    #: How keys and values of bfloat16 are stored; given by its name.
    codec: Codec = Codec.NONE
    #: Of the daemon's peers, the one to ask for requests that name none (`fetches.py`).
    peer: str = ""
    #: Seconds that a request waits for its peer.
    peer_timeout: float = 1.0
    #: Of this daemon, as other daemons' `rdma.peers` name it: told with each answer.
    address: str = ""

    def __post_init__(self) -> None:
        for name in ("peer", "address"):
            value = getattr(self, name)
            if value and not is_peer_name(value):
                raise ValueError(f"kvtier: {PREFIX}{name} is {value!r}, not HOST:PORT "
                                 f"in at most {PEER_NAME_MAX} printable characters")


def is_peer_name(value: Any) -> bool:
    """Whether a daemon may be asked whether it knows this peer."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and (
        0 < len(value) <= PEER_NAME_MAX
    )
