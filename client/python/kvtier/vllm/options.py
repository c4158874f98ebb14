# SPDX-License-Identifier: Apache-2.0
"""What the user may set in `kv_connector_extra_config`."""
from __future__ import annotations

from dataclasses import dataclass

from ..engine_options import EngineOptions
from ..layout import Codec


@dataclass(frozen=True)
class Options(EngineOptions):
    """A load is one request's, a store one step's."""

    #: MiB of GPU memory that copies may be staged in; 0: the default of `kvtier.cuda.Cuda`.
    gpu_staging_mib: int = 0
    #: Of 512 threads each, of a copying kernel: what the model may lose; 0: the default.
    gpu_blocks: int = 0
    #: How keys and values of bfloat16 are stored; given by its name.
    codec: Codec = Codec.NONE
