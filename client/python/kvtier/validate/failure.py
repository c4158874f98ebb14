# SPDX-License-Identifier: Apache-2.0
"""What may go wrong, by who has to do something about it."""
from __future__ import annotations


class UsageError(Exception):
    """Of the user: what was given, where, and what would be right."""


class EngineError(Exception):
    """The engine, or the daemon, does not answer as it should. `kind` is for counting."""

    kind = "answer"


class Unreachable(EngineError):
    """No connection."""

    kind = "unreachable"


class Late(EngineError):
    """Nothing came for too long, or the answer took too long as a whole."""

    kind = "timeout"


class Broken(EngineError):
    """The connection, or the stream on it, ended before the answer did."""

    kind = "broken stream"


class Denied(EngineError):
    """An HTTP status other than 200."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"{path}: HTTP {status}: {text[:300]}")
        self.status = status
        self.kind = f"status {status}"
