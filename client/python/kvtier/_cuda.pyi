# SPDX-License-Identifier: Apache-2.0
"""What cffi makes of kvtier-cuda.h has no types of Python's."""
from typing import Any

ffi: Any
