# SPDX-License-Identifier: Apache-2.0
"""What the user may set in `kv_connector_extra_config`."""
from __future__ import annotations

from ..engine_options import EngineOptions


class Options(EngineOptions):
    """A load is one request's, a store one step's."""
