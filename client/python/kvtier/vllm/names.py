# SPDX-License-Identifier: Apache-2.0
"""Names of what is stored: vLLM's block hashes, as many at once as there are."""
from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import numpy as np

from .. import DIGEST_BYTES

#: Of vLLM's OffloadKey: a block hash, and the number of its cache group in big endian.
KEY_BYTES = DIGEST_BYTES + 4


class Names:
    """Digests of block hashes. In any thread's hands, but one at a time."""

    def __init__(self) -> None:
        self._veil: np.ndarray | None = None

    def change(self) -> None:
        """From here on no digest is one of before, or of another process."""
        self._veil = np.frombuffer(os.urandom(DIGEST_BYTES), np.uint8)

    def digests(self, hashes: Sequence[bytes]) -> bytes:
        """n x 32 bytes. ValueError: hashes of another length."""
        return self._veiled(_joined(hashes, DIGEST_BYTES))

    def of_keys(self, keys: Collection[bytes]) -> tuple[bytes, np.ndarray]:
        """(n x 32 bytes, vLLM's group numbers). ValueError: hashes of another length."""
        table = _joined(keys, KEY_BYTES)
        groups = np.ascontiguousarray(table[:, DIGEST_BYTES:]).view(">u4").reshape(-1)
        return self._veiled(table[:, :DIGEST_BYTES]), groups.astype(np.intp)

    def _veiled(self, table: np.ndarray) -> bytes:
        return (table if self._veil is None else table ^ self._veil).tobytes()


def _joined(parts: Collection[bytes], length: int) -> np.ndarray:
    """A row of bytes for each part."""
    data = b"".join(parts)
    if len(data) != len(parts) * length:
        n = len(data) // max(len(parts), 1) - (length - DIGEST_BYTES)
        raise ValueError(f"kvtier: a block hash of {n} bytes")
    return np.frombuffer(data, np.uint8).reshape(len(parts), length)
