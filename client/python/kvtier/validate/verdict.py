# SPDX-License-Identifier: Apache-2.0
"""Answers to one prompt compared, and whose fault it is when they differ.

`bypass` and `again` were computed from nothing, `own` on the engine's own prefix cache, `warm` on
kvtier's; greedy, so that on deterministic kernels all are the same. Many kernels are not: what
they compute depends on how a prompt is cut and batched, and a prefix that is restored, states
above all, is then not equal to the bit by nature. That is no fault of a cache, and it shows:

  two bypassed runs differ there, or earlier     the engine is not deterministic: `engine`
  the engine's own prefix gives the same tokens  so it goes on from any prefix: `prefix`
  up to there log probabilities are within the tolerance of each other: `rounding`
  otherwise                                      kvtier's bytes were wrong: `cache`

Tokens that are all equal while log probabilities differ by more than the tolerance from both the
bypassed and the own run are wrong bytes too, which this prompt did not show.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from .answer import Answer

EQUAL, ENGINE, PREFIX, ROUNDING, CACHE = "equal", "engine", "prefix", "rounding", "cache"
UNDECIDED = "undecided"

CAUSES = {
    EQUAL: "all tokens are equal",
    ENGINE: "the engine itself answers differently when asked twice without any cache",
    PREFIX: "the engine's own prefix cache gives the same: kernels depend on how a prompt is cut",
    ROUNDING: "log probabilities agree within the tolerance up to there: batch-variant kernels",
    CACHE: "what was loaded is not what was stored",
    UNDECIDED: "this server cannot be told to bypass caches, so nobody knows which one is right",
}


@dataclass(frozen=True)
class Comparison:
    """Of an answer with the bypassed one. Positions count from 0; None: no difference."""

    equal_tokens: int  #: before the first that differs
    tokens: int
    position: Optional[int]
    #: In nats, largest difference of the same token's at the same place, up to the position; None:
    #: the server gives none.
    logprob_error: Optional[float]


@dataclass(frozen=True)
class Verdict:
    cause: str
    position: Optional[int]
    text: str

    @property
    def is_fault(self) -> bool:
        return self.cause == CACHE


def compare(reference: Answer, other: Answer) -> Comparison:
    n = min(len(reference.tokens), len(other.tokens))
    equal = next((i for i in range(n) if reference.tokens[i] != other.tokens[i]), n)
    longest = max(len(reference.tokens), len(other.tokens))
    position = equal if equal < longest else None
    return Comparison(equal, longest, position, _logprob_error(reference, other, equal + 1))


def _logprob_error(reference: Answer, other: Answer, n: int) -> Optional[float]:
    """Of the first n places, at which what came before was the same."""
    pairs = [(a, b) for a, b in zip(reference.likely[:n], other.likely[:n]) if a and b]
    if any(not a.keys() & b.keys() for a, b in pairs):
        return math.inf  # not one likely token in common
    errors = [
        abs(a[token] - b[token])
        for a, b in pairs
        for token in a.keys() & b.keys()
        if math.isfinite(a[token]) and math.isfinite(b[token])
    ]
    return max(errors) if errors else None


def judge(
    bypass: Answer, again: Answer, own: Optional[Answer], warm: Answer, tolerance: float
) -> Verdict:
    """tolerance: of log probabilities, in nats."""
    found = compare(bypass, warm)
    cause = _cause(found, compare(bypass, again), own, warm, tolerance)
    place = f"token {found.position}: " if found.position is not None else ""
    return Verdict(cause, found.position, place + _explained(cause, found))


def _cause(
    found: Comparison,
    bypasses: Comparison,
    own: Optional[Answer],
    warm: Answer,
    tolerance: float,
) -> str:
    like_own = compare(own, warm) if own else None
    if found.position is None:
        return EQUAL if not _is_off(found, bypasses, like_own, tolerance) else CACHE
    if bypasses.position is not None and bypasses.position <= found.position:
        return ENGINE
    if like_own and like_own.position is None and _within(like_own.logprob_error, tolerance):
        return PREFIX
    if found.logprob_error is not None and found.logprob_error <= tolerance:
        return ROUNDING
    return CACHE


def _is_off(
    found: Comparison,
    bypasses: Comparison,
    like_own: Optional[Comparison],
    tolerance: float,
) -> bool:
    """Log probabilities are further from every run that is right than these from each other."""
    if _within(found.logprob_error, max(tolerance, bypasses.logprob_error or 0.0)):
        return False
    return like_own is None or not _within(like_own.logprob_error, tolerance)


def _within(error: Optional[float], tolerance: float) -> bool:
    return error is None or error <= tolerance


def _explained(cause: str, found: Comparison) -> str:
    error = found.logprob_error
    off = f" (log probabilities differ by up to {error:.2g})" if error else ""
    if cause == CACHE and found.position is None:
        return f"tokens are equal, log probabilities are not: {CAUSES[cause]}{off}"
    return CAUSES[cause] + off
