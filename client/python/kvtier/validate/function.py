# SPDX-License-Identifier: Apache-2.0
"""Step one: the same prompt cold, warm and bypassed gives the same tokens.

Each prompt is new, so that no cache has it, and is answered up to five times: bypassed twice, which
tells what the engine does by itself; once more on its own prefix cache, of the first; cold, which
stores it; warm, with the engine's own cache emptied, from kvtier. `verdict` says what differs why,
of cold and of warm: the worse of both counts.
"""
from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Optional

from .answer import Answer
from .caches import WARM_RUNS, Caches, Proof
from .engine import Engine
from .prompts import Prompts
from .verdict import CAUSES, EQUAL, UNDECIDED, Comparison, Verdict, compare, judge, worse

class FunctionStep:
    name = "function"

    def __init__(
        self,
        engine: Engine,
        caches: Caches,
        prompts: Prompts,
        *,
        n_prompts: int,
        prompt_tokens: int,
        output_tokens: int,
        tolerance: float,
    ) -> None:
        """tolerance: of log probabilities, in nats."""
        self._engine, self._caches, self._prompts = engine, caches, prompts
        self._n, self._tokens, self._output = n_prompts, prompt_tokens, output_tokens
        self._tolerance = tolerance

    def parts(self) -> list[str]:
        return [f"prompt {i}" for i in range(self._n)]

    def run(self, part: str) -> dict[str, Any]:
        prompt = self._prompts.make(self._tokens, f"function {part}")
        bypass, again, own = self._bypassed(part, prompt)
        stored = self._caches.stored()
        cold = self._engine.complete(prompt, self._output)
        self._caches.settle(stored)
        warm, proof = self._warm(prompt)
        if proof.served is None and own and cold.cached_tokens:
            how = "the engine's own cache had the prompt when it was cold, too: it may have served"
            proof = Proof(None, how)
        reference = bypass or cold
        verdict = self._verdict(bypass, again, own, cold, warm)
        runs = {"again": again, "own": own, "cold": cold, "warm": warm}
        return {
            "part": part,
            "cause": verdict.cause,
            "run": verdict.run,
            "position": verdict.position,
            "text": verdict.text,
            "served": proof.served,
            "proof": proof.how,
            "prompt_tokens": warm.prompt_tokens or len(prompt),
            "cached_tokens": warm.cached_tokens,
            "eviction": self._caches.eviction,
            "tokens": {name: one.tokens for name, one in _made(bypass=bypass, **runs).items()},
            "compared": {name: _row(compare(reference, one)) for name, one in _made(**runs).items()},
        }

    def _bypassed(
        self, part: str, prompt: list[int]
    ) -> tuple[Optional[Answer], Optional[Answer], Optional[Answer]]:
        """(one, another, one on the engine's own cache); of a server that can be told so."""
        if not self._engine.dialect.bypass:
            return None, None, None
        one, other = (self._prompts.salt(f"{part} {i}") for i in range(2))
        bypass = self._engine.complete(prompt, self._output, bypass=one)
        again = self._engine.complete(prompt, self._output, bypass=other)
        if "cache_salt" in self._engine.dialect.bypass:
            return bypass, again, self._engine.complete(prompt, self._output, bypass=one)
        # What is bypassed is left in its own cache all the same, where cold must not find it.
        own = self._engine.complete(prompt, self._output)
        self._caches.evict()
        return bypass, again, own

    def _warm(self, prompt: list[int]) -> tuple[Answer, Proof]:
        for _ in range(WARM_RUNS):
            self._caches.evict()
            before = self._caches.mark()
            warm = self._engine.complete(prompt, self._output)
            proof = self._caches.proof(before, [warm])
            if proof.served is not False:
                break
        if proof.served is None and self._caches.eviction == "none":
            how = "the engine's own cache cannot be emptied: it may have served (--own-tokens)"
            proof = Proof(None, how)
        return warm, proof

    def _verdict(
        self,
        bypass: Optional[Answer],
        again: Optional[Answer],
        own: Optional[Answer],
        cold: Answer,
        warm: Answer,
    ) -> Verdict:
        if bypass and again:
            verdict = judge(bypass, again, own, warm, self._tolerance)
            of_cold = judge(bypass, again, own, cold, self._tolerance)
            of_cold = replace(of_cold, run="cold", text=f"cold: {of_cold.text}")
            return worse(verdict, of_cold)
        verdict = judge(cold, cold, None, warm, self._tolerance)
        if verdict.cause == EQUAL:
            return verdict
        place = f"token {verdict.position}: " if verdict.position is not None else ""
        return Verdict(UNDECIDED, verdict.position, place + CAUSES[UNDECIDED])


def _made(**runs: Optional[Answer]) -> dict[str, Answer]:
    return {name: one for name, one in runs.items() if one is not None}


def _row(comparison: Comparison) -> dict[str, Any]:
    row = asdict(comparison)
    error = row["logprob_error"]
    # JSON has no infinity.
    row["logprob_error"] = None if error is None else min(error, 1e9)
    return row


def faults(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of these prompts, those that kvtier has spoilt."""
    return [one for one in results if one["cause"] == "cache"]


def unproven(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of which nobody knows that kvtier served them and that they are right."""
    return [one for one in results if one["served"] is not True or one["cause"] == UNDECIDED]
