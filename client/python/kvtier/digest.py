# SPDX-License-Identifier: Apache-2.0
"""Token sequences and the digests that name their prefixes."""
from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence, Union

from ._native import ffi, lib
from .buffers import DIGEST_BYTES, pointer
from .status import checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Any buffer of 4-byte integers (array('I'), a NumPy array of int32 ...), or any iterable.
Tokens = Union["Buffer", Sequence[int]]


@dataclass(frozen=True)
class Identity:
    """What a sequence is beyond its token ids: another identity, another digest."""

    salt: bytes = b""
    lora: bytes = b""
    images: Sequence[str] = ()


def token_view(tokens: Tokens) -> memoryview:
    """The caller's buffer as it is, without a copy; a copy of any other iterable."""
    source: Any = tokens
    try:
        view = memoryview(source)
    except TypeError:
        view = memoryview(array("I", source))
    if view.itemsize != 4 or view.format.lstrip("@=<") not in ("I", "i", "L", "l"):
        raise TypeError(f"token ids are 4-byte integers, not {view.format!r}")
    if view.ndim != 1 or not view.c_contiguous:
        raise TypeError("token ids are one contiguous dimension")
    return view


class CIdentity:
    """A struct kvt_identity, and what it points to."""

    def __init__(self, identity: Identity) -> None:
        self.salt = ffi.from_buffer(identity.salt)
        self.lora = ffi.from_buffer(identity.lora)
        self.names = [ffi.new("char[]", image.encode()) for image in identity.images]
        self.images = ffi.new("char *[]", self.names)
        self.c = ffi.new("struct kvt_identity *")
        self.c.size = ffi.sizeof("struct kvt_identity")
        self.c.salt, self.c.salt_bytes = self.salt, len(identity.salt)
        self.c.lora, self.c.lora_bytes = self.lora, len(identity.lora)
        self.c.images, self.c.n_images = self.images, len(self.names)


def digest_array(
    tokens: Tokens, chunk_tokens: int, identity: Identity = Identity()
) -> tuple[memoryview, bytes]:
    """The digests of all whole chunks' boundaries as bytes of shape (n, 32), read-only, for
    `Objects` and `Session.match`; and the digest of the very end, 32 bytes.

    ValueError: chunk_tokens is not positive. TypeError: see `Tokens`.
    """
    if chunk_tokens < 1:
        raise ValueError("chunk_tokens is at least 1")
    ids = token_view(tokens)
    n = len(ids) // chunk_tokens
    boundaries = ffi.new("struct kvt_digest[]", max(n, 1))
    end = ffi.new("struct kvt_digest *")
    c_identity = CIdentity(identity)
    checked(
        lib.kvt_digest_chain(
            c_identity.c, pointer("uint32_t *", ids), len(ids), chunk_tokens, boundaries, end
        ),
        "digest_chain",
    )
    view = memoryview(ffi.buffer(boundaries)).toreadonly()[: n * DIGEST_BYTES]
    # A view of no items cannot be given a shape.
    shaped = view.cast("B", (n, DIGEST_BYTES)) if n else view
    return shaped, bytes(ffi.buffer(end))


def digest_chain(
    tokens: Tokens, chunk_tokens: int, identity: Identity = Identity()
) -> tuple[list[bytes], bytes]:
    """As `digest_array`, an object of 32 bytes for each boundary."""
    boundaries, end = digest_array(tokens, chunk_tokens, identity)
    data = boundaries.tobytes()
    return [data[i : i + DIGEST_BYTES] for i in range(0, len(data), DIGEST_BYTES)], end
