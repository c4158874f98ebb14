# SPDX-License-Identifier: Apache-2.0
"""What the user may set in `--hicache-storage-backend-extra-config`."""
from __future__ import annotations

from ..engine_options import EngineOptions


class Options(EngineOptions):
    """A load or a store is one call of SGLang's, of at most 128 pages."""
