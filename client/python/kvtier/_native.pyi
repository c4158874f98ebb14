# SPDX-License-Identifier: Apache-2.0
"""What cffi compiles from kvtier.h has no types of Python's."""
from typing import Any

ffi: Any
lib: Any
