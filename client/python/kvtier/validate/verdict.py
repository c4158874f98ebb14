# SPDX-License-Identifier: Apache-2.0
"""Answers to one prompt compared, and whose fault it is when they differ.

`bypass` and `again` were computed from nothing, `own` on the engine's own prefix cache, `cold`
while kvtier stored it, `warm` on kvtier's cache; greedy, so that on deterministic kernels all are
the same. Many kernels are not: what they compute depends on how a prompt is cut and batched, and a
prefix that is restored, states above all, is then not equal to the bit by nature. How much of that
there is shows in the runs without kvtier: the log probabilities of `again` and `own` differ from
those of `bypass` by the engine's noise. By so much, seen at a place or before it, with a margin,
or by the tolerance, cold and warm may differ too. Beyond that noise is no excuse, and neither is
that the engine differs from itself elsewhere:

  within it, and two bypassed runs differ there, or earlier     `engine`
  near to `own`, with the same tokens up to there               `prefix`
  within it otherwise                                           `rounding`
  the engine is too far from itself there to tell               `undecided`
  else, also when all tokens are equal                          `cache`
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from .answer import Answer

EQUAL, ENGINE, PREFIX, ROUNDING, CACHE = "equal", "engine", "prefix", "rounding", "cache"
UNDECIDED = "undecided"
#: From the best to the worst.
ORDER = (EQUAL, ROUNDING, PREFIX, ENGINE, UNDECIDED, CACHE)
#: Two samples of the noise are not all there is of it.
MARGIN = 2.0
#: Nats. Who differs by more from itself tells nothing about others.
WILD = 1.0

CAUSES = {
    EQUAL: "all tokens are equal",
    ENGINE: "the engine itself answers differently when asked twice without any cache",
    PREFIX: "the engine's own prefix cache gives the same: kernels depend on how a prompt is cut",
    ROUNDING: "log probabilities agree within the tolerance, or the engine's noise, up to there",
    CACHE: "what kvtier loaded, or stored meanwhile, is not what the engine computes",
    UNDECIDED: "the engine differs too much from itself there, or cannot be told to bypass caches, "
    "so nobody knows which one is right",
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
    run: str = "warm"  #: whose

    @property
    def is_fault(self) -> bool:
        return self.cause == CACHE


class Distance(Enum):
    """Of log probabilities, as noise allows."""

    NEAR = "near"
    FAR = "far"
    WILD = "wild"  #: far, where the engine is so from itself too
    UNKNOWN = "unknown"  #: the server gives none


def compare(reference: Answer, other: Answer) -> Comparison:
    n = min(len(reference.tokens), len(other.tokens))
    equal = next((i for i in range(n) if reference.tokens[i] != other.tokens[i]), n)
    longest = max(len(reference.tokens), len(other.tokens))
    position = equal if equal < longest else None
    return Comparison(equal, longest, position, _worst(_errors(reference, other)))


def worse(one: Verdict, other: Verdict) -> Verdict:
    """The first, when they are alike."""
    return max(one, other, key=lambda verdict: ORDER.index(verdict.cause))


def judge(
    bypass: Answer, again: Answer, own: Optional[Answer], other: Answer, tolerance: float
) -> Verdict:
    """Of `other`, cold or warm. tolerance: of log probabilities, in nats."""
    found = compare(bypass, other)
    rights = [again] if own is None else [again, own]
    noise = _noise([_errors(bypass, right) for right in rights], len(_errors(bypass, other)))
    allowed = Allowance(noise, tolerance)
    cause = _cause(found, bypass, again, own, other, allowed)
    place = f"token {found.position}: " if found.position is not None else ""
    text = place + _explained(cause, found) + allowed.told(bypass, other)
    return Verdict(cause, found.position, text)


# ---- log probabilities ----


def _errors(reference: Answer, other: Answer) -> list[Optional[float]]:
    """In nats, of each place at which what came before was the same; None: unknown there."""
    errors: list[Optional[float]] = []
    for i in range(max(len(reference.tokens), len(other.tokens))):
        likely = [one.likely[i] if i < len(one.likely) else {} for one in (reference, other)]
        errors.append(_error(*likely))
        if reference.tokens[i : i + 1] != other.tokens[i : i + 1]:
            break
    return errors


def _error(one: Mapping[str, float], other: Mapping[str, float]) -> Optional[float]:
    """The least by which they must differ: what a list leaves out is no likelier than its last."""
    if not one or not other:
        return None
    common = one.keys() & other.keys()
    if not common or any(math.isnan(one[t]) != math.isnan(other[t]) for t in common):
        return math.inf
    errors = [abs(one[t] - other[t]) for t in common]
    for here, there in ((one, other), (other, one)):
        last = min(there.values())
        errors += [value - last for token, value in here.items() if token not in there]
    return max((error for error in errors if math.isfinite(error)), default=None)


def _worst(errors: Sequence[Optional[float]]) -> Optional[float]:
    return max((error for error in errors if error is not None), default=None)


def _noise(rows: Sequence[Sequence[Optional[float]]], n: int) -> list[float]:
    """The engine's, of each of n places: the largest of it and those before."""
    noise, largest = [], 0.0
    for i in range(n):
        largest = max(largest, _worst([row[i] for row in rows if i < len(row)]) or 0.0)
        noise.append(largest)
    return noise


@dataclass(frozen=True)
class Allowance:
    """What log probabilities may differ by."""

    noise: Sequence[float]  #: by place
    tolerance: float

    def distance(self, one: Answer, other: Answer) -> Distance:
        """Over the places that there is an allowance for."""
        errors = _errors(one, other)[: len(self.noise)]
        i = self._beyond(errors)
        if i is not None:
            return Distance.WILD if self.noise[i] > WILD else Distance.FAR
        return Distance.UNKNOWN if _worst(errors) is None else Distance.NEAR

    def _beyond(self, errors: Sequence[Optional[float]]) -> Optional[int]:
        """The first place that noise does not excuse, or where it would excuse all."""
        for i, (error, noise) in enumerate(zip(errors, self.noise)):
            is_excused = noise <= WILD and (error or 0.0) <= MARGIN * noise
            if error is not None and error > self.tolerance and not is_excused:
                return i
        return None

    def told(self, bypass: Answer, other: Answer) -> str:
        """Where log probabilities are too far apart, or else most so; "": they are not."""
        errors = _errors(bypass, other)
        worst = _worst(errors)
        if not worst:
            return ""
        i = self._beyond(errors)
        i = errors.index(worst) if i is None else i
        return (
            f" (log probabilities of token {i} differ by {errors[i]:.2g}, "
            f"in the engine's own runs by {self.noise[i]:.2g} up to there)"
        )


# ---- causes ----


def _cause(
    found: Comparison,
    bypass: Answer,
    again: Answer,
    own: Optional[Answer],
    other: Answer,
    allowed: Allowance,
) -> str:
    distance = allowed.distance(bypass, other)
    n = found.equal_tokens + 1
    is_like_own = own is not None and own.tokens[:n] == other.tokens[:n] and (
        allowed.distance(own, other) in (Distance.NEAR, Distance.UNKNOWN)
    )  # fmt: skip
    if found.position is None:
        if distance in (Distance.NEAR, Distance.UNKNOWN) or is_like_own:
            return EQUAL
        return UNDECIDED if distance is Distance.WILD else CACHE
    differs = compare(bypass, again).position
    is_noisy = differs is not None and differs < n
    if distance is Distance.NEAR and is_noisy:
        return ENGINE
    if is_like_own:
        return PREFIX
    if distance is Distance.NEAR:
        return ROUNDING
    # Without log probabilities noise excuses any token: that proves nothing.
    is_unknown = distance is Distance.UNKNOWN and is_noisy
    return UNDECIDED if distance is Distance.WILD or is_unknown else CACHE


def _explained(cause: str, found: Comparison) -> str:
    if cause == CACHE and found.position is None:
        return f"tokens are equal, log probabilities are not: {CAUSES[cause]}"
    return CAUSES[cause]
