# SPDX-License-Identifier: Apache-2.0
"""kvtier: KV caches and recurrent states kept by kvtierd, outside the GPU.

    layout = Layout(model="...", engine="...", groups=[Group("seq", GroupKind.STATE)])
    with Session(layout, socket="/run/kvtier/kvtierd.sock") as session:
        n = session.find(tokens)                    # longest stored prefix, in tokens
        status, lease = session.acquire(tokens[:n])
        if lease:
            with lease:
                engine_restore(lease.view)          # the daemon's memory, no copy

A failure of the daemon is a miss, never an exception and never a stall: `find` says 0,
`acquire` and `reserve` give no lease and a `Status` that says why. Exceptions are for
mistakes of the caller (`ValueError`, `TypeError`, `BufferError`, `SessionError`). Every call
that may block releases the GIL and has a deadline. Sizes are bytes, times seconds, lengths
of sequences tokens.

Engines with paged memory use arrays of objects (`Objects`) and calls that do not block:

    digests, _ = digest_array(tokens, chunk_tokens)
    match = session.match(digests, len(tokens))
    status, objects = session.boundary_objects(digests, match.boundaries)
    call = session.acquire_objects(objects)         # await session.completion(call), or poll()

`ffi` and `lib` are the C interface as `kvtier.h` documents it.
"""
from ._native import ffi, lib
from .buffers import DIGEST_BYTES
from .calls import Call, Completion
from .digest import Identity, digest_array, digest_chain
from .handle import SessionError, SessionInfo
from .layout import Codec, Group, GroupKind, Layout, Row, Tensor
from .lease import Lease
from .matching import Boundary, Match
from .memory import LeasedMemory
from .objects import Objects
from .pages import PageGroup, PageMap, PageView
from .session import Session
from .status import Status

__version__ = ffi.string(lib.kvt_version()).decode()

__all__ = [
    "Boundary",
    "Call",
    "Codec",
    "Completion",
    "DIGEST_BYTES",
    "Group",
    "GroupKind",
    "Identity",
    "Layout",
    "Lease",
    "LeasedMemory",
    "Match",
    "Objects",
    "PageGroup",
    "PageMap",
    "PageView",
    "Row",
    "Session",
    "SessionError",
    "SessionInfo",
    "Status",
    "Tensor",
    "digest_array",
    "digest_chain",
    "ffi",
    "lib",
]
