# SPDX-License-Identifier: Apache-2.0
"""Step two: what a hit saves, by the length of the context.

For each length new prompts are answered one after the other and then several at once, cold; the
same ones again, warm. Alone they tell the time to the first token and between tokens, together the
throughput. All figures are seen from here, HTTP included.
"""
from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .answer import Answer
from .caches import WARM_RUNS, Caches
from .engine import Engine
from .figures import median, percentile, ratio
from .prompts import Prompts


#: Of a prompt that is cold, what may be found: servers whose pages are single tokens find the first
#: few of others.
COLD_CACHED = 0.1


class PerformanceStep:
    name = "performance"

    def __init__(
        self,
        engine: Engine,
        caches: Caches,
        prompts: Prompts,
        *,
        contexts: list[int],
        output_tokens: int,
        repeats: int,
        concurrency: int,
    ) -> None:
        """contexts: lengths of prompts, in tokens."""
        self._engine, self._caches, self._prompts = engine, caches, prompts
        self._contexts, self._output = contexts, output_tokens
        self._repeats, self._concurrency = repeats, concurrency

    def parts(self) -> list[str]:
        return [str(tokens) for tokens in self._contexts]

    def run(self, part: str) -> dict[str, Any]:
        tokens = int(part)
        alone = [self._prompts.make(tokens, f"alone {tokens} {i}") for i in range(self._repeats)]
        together = [
            self._prompts.make(tokens, f"together {tokens} {i}") for i in range(self._concurrency)
        ]
        stored = self._caches.stored()
        cold, fresh = self._measure(alone, together)
        self._caches.settle(stored)
        for _ in range(WARM_RUNS):
            self._caches.evict()
            before = self._caches.mark()
            warm, answers = self._measure(alone, together)
            proof = self._caches.proof(before, answers)
            if proof.served is not False:
                break
        cached = max(one.cached_tokens or 0 for one in fresh)
        return {
            "part": part,
            "context_tokens": tokens,
            "cold": cold,
            "warm": warm,
            "ttft_ratio": ratio(cold["ttft_s"], warm["ttft_s"]),
            "was_cold": cached <= COLD_CACHED * tokens,
            "served": proof.served,
            "proof": proof.how,
        }

    def _measure(
        self, alone: list[list[int]], together: list[list[int]]
    ) -> tuple[dict[str, Any], list[Answer]]:
        """(figures, answers)"""
        answers = [self._engine.complete(prompt, self._output) for prompt in alone]
        began = time.monotonic()
        with ThreadPoolExecutor(max_workers=len(together)) as pool:
            crowd = list(pool.map(lambda p: self._engine.complete(p, self._output), together))
        seconds = time.monotonic() - began
        return {**_times(answers), **_rates(crowd, together, seconds)}, answers + crowd


def unserved(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose warm figures, or cold ones, nobody knows to be that."""
    return [one for one in results if one["served"] is not True or not one["was_cold"]]


def _times(answers: list[Answer]) -> dict[str, Any]:
    """In seconds; of prompts that were alone."""
    ttfts = [one.ttft_s for one in answers]
    gaps = [gap for one in answers for gap in one.gaps_s]
    cached = [one.cached_tokens for one in answers if one.cached_tokens is not None]
    return {
        "ttft_s": median(ttfts),
        "ttft_worst_s": max(ttfts),
        "gap_s": median(gaps),
        "gap_p99_s": percentile(gaps, 0.99),
        "cached_tokens": median(cached),
    }


def _rates(crowd: list[Answer], prompts: list[list[int]], seconds: float) -> dict[str, Any]:
    """Per second; of prompts that were there together."""
    return {
        "output_tokens_per_s": sum(len(one.tokens) for one in crowd) / seconds,
        "prompt_tokens_per_s": sum(len(prompt) for prompt in prompts) / seconds,
        "requests_per_s": len(crowd) / seconds,
    }
