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

`ffi` and `lib` are the C interface as `kvtier.h` documents it, for connectors that need the
batched object calls.
"""
from ._native import ffi, lib
from .digest import DIGEST_BYTES, Identity, digest_chain
from .layout import Group, GroupKind, Layout, Row, Tensor
from .lease import Lease
from .session import Boundary, Match, Session, SessionError, SessionInfo
from .status import Status

__version__ = ffi.string(lib.kvt_version()).decode()

__all__ = [
    "Boundary",
    "DIGEST_BYTES",
    "Group",
    "GroupKind",
    "Identity",
    "Layout",
    "Lease",
    "Match",
    "Row",
    "Session",
    "SessionError",
    "SessionInfo",
    "Status",
    "Tensor",
    "digest_chain",
    "ffi",
    "lib",
]
