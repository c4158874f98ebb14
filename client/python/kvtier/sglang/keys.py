# SPDX-License-Identifier: Apache-2.0
"""SGLang's page hashes as kvtier's digests."""
from __future__ import annotations

import hashlib
from typing import Optional, Sequence

from .. import DIGEST_BYTES

ROOT = bytes(DIGEST_BYTES)


def digest_of(key: str, veil: bytes = b"") -> bytes:
    """32 bytes. SGLang's keys are SHA-256 in hexadecimal and taken as they are; any other
    string is hashed. veil: 32 bytes; digests under another veil are other names."""
    digest = b""
    if len(key) == 2 * DIGEST_BYTES and key == key.lower():
        try:
            digest = bytes.fromhex(key)
        except ValueError:
            pass
    if len(digest) != DIGEST_BYTES:
        digest = hashlib.sha256(b"kvtier sglang key\0" + key.encode()).digest()
    if not veil:
        return digest
    mixed = int.from_bytes(digest, "big") ^ int.from_bytes(veil, "big")
    return mixed.to_bytes(DIGEST_BYTES, "big")


def digests_of(keys: Sequence[str], veil: bytes = b"") -> bytes:
    """n x 32 bytes."""
    text = "".join(keys)
    if not veil and text == text.lower() and all(len(key) == 2 * DIGEST_BYTES for key in keys):
        try:
            digests = bytes.fromhex(text)
        except ValueError:
            digests = b""
        # Not all of them are digits where fewer bytes come out.
        if len(digests) == len(keys) * DIGEST_BYTES:
            return digests
    return b"".join(digest_of(key, veil) for key in keys)


class Chain:
    """Where pages stand in their prompt: known when SGLang passes the hashes before them
    (`hicache_storage_pass_prefix_keys`), and good for what the daemon evicts first."""

    def __init__(
        self, prefix_keys: Optional[Sequence[str]], page_tokens: int, veil: bytes = b""
    ) -> None:
        self._before = None if prefix_keys is None else len(prefix_keys)
        self._last = digest_of(prefix_keys[-1], veil) if prefix_keys else ROOT
        self._page_tokens = page_tokens

    def parents(self, digests: bytes) -> Optional[bytes]:
        """n x 32 bytes: of each page the one before it; None: not known."""
        return None if self._before is None else self._last + digests[:-DIGEST_BYTES]

    def ends(self, n: int) -> list[int]:
        """Tokens up to the end of each page; 0: not known."""
        if self._before is None:
            return [0] * n
        return [(self._before + i + 1) * self._page_tokens for i in range(n)]
