# SPDX-License-Identifier: Apache-2.0
"""The two caches between a prompt and its second answer: the engine's own, and kvtier's.

The engine's own must be empty for kvtier to be asked at all, and what was stored must have
arrived. Whether kvtier then served is told by counters, of the daemon or of the engine's
connector; they count for all users, so that others at the same time blur it.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from .answer import Answer
from .counters import Counters, Page
from .engine import Engine
from .failure import EngineError
from .prompts import Prompts

#: Seconds until the first bytes of what was computed arrive, until all have; without the daemon's
#: counters, that are waited in any case.
FIRST_S, STORE_S, BLIND_S = 5.0, 15.0, 1.0
POLL_S = 0.1
#: Polls without change after which stores are over.
QUIET = 4
#: Tokens of a prompt that just makes the engine take a step, in which it stores.
NUDGE_TOKENS = 8
#: A warm run that found nothing, since its stores were still under way, is made again.
WARM_RUNS = 3
#: Of the engine's own cache, what fillers have to be.
FILL = 1.1
FILLER_TOKENS = 2048
FILLERS_MAX = 4096


@dataclass(frozen=True)
class Proof:
    """That kvtier served: True, False, or None for not proven; and how that is known."""

    served: Optional[bool]
    how: str


@dataclass
class Mark:
    """The counters at one time; None where there are none."""

    daemon: Optional[float]
    engine: Optional[float]


class Caches:
    def __init__(
        self,
        engine: Engine,
        counters: Optional[Counters],
        prompts: Prompts,
        own_tokens: Optional[int] = None,
    ) -> None:
        """own_tokens: of the engine's own cache, for who knows them."""
        self._engine, self._counters, self._prompts = engine, counters, prompts
        self._own_tokens, self._made = own_tokens, 0
        self.eviction = ""  #: how the engine's own cache is emptied

    # ---- the engine's own ----

    def evict(self) -> None:
        """Empties the engine's own cache, as far as that can be done."""
        if self._engine.reset():
            self.eviction = f"POST {self._engine.dialect.reset}"
            return
        n, tokens = self._fillers()
        for _ in range(n):
            self._fill(tokens)
        self.eviction = f"{n} filler prompts of {tokens} tokens" if n else "none"

    def _fillers(self) -> tuple[int, int]:
        """(prompts, tokens of each) that fill it; (0, 0): its size is not known."""
        longest = (self._engine.tokens_max or FILLER_TOKENS + 1) - 1
        if self._engine.dialect.name == "llama":
            return self._engine.slots(), min(longest, NUDGE_TOKENS)
        if self._own_tokens is None:
            self._own_tokens = own_tokens(self._engine.metrics())
        if not self._own_tokens:
            return 0, 0
        tokens = min(longest, max(FILLER_TOKENS, int(self._own_tokens * FILL) // FILLERS_MAX + 1))
        n = int(self._own_tokens * FILL) // tokens + 1
        if n > FILLERS_MAX:
            raise EngineError(
                f"{self._own_tokens} tokens of the engine's own cache take {n} prompts to fill: "
                "let it have its reset call (vLLM: VLLM_SERVER_DEV_MODE=1)"
            )
        return n, tokens

    def _fill(self, tokens: int) -> None:
        self._made += 1
        name = f"filler {self._made} {time.monotonic_ns()}"
        prompt = self._prompts.make(tokens, name)
        # Not to fill the daemon too, where that can be said.
        salt = self._prompts.salt(name) if self._engine.dialect.bypass else None
        self._engine.complete(prompt, 1, bypass=salt)

    # ---- kvtier's ----

    def mark(self) -> Mark:
        engine = self._engine.metrics() if self._engine.dialect.loads else None
        return Mark(
            self._counters.page().sum("kvtier_hits_total") if self._counters else None,
            engine.sum(self._engine.dialect.loads) if engine else None,
        )

    def stored(self) -> Optional[float]:
        """Bytes that the daemon was given so far."""
        if self._counters is None:
            return None
        return self._counters.page().sum("kvtier_stored_bytes_total")

    def settle(self, before: Optional[float]) -> None:
        """Until what was computed is stored. before: `stored` from before that."""
        self._fill(NUDGE_TOKENS)
        if before is None:
            time.sleep(BLIND_S)
            return
        began, last, quiet = time.monotonic(), before, 0
        while quiet < QUIET:
            time.sleep(POLL_S)
            now = self.stored() or 0.0
            # Before anything has come, nothing is over.
            quiet = quiet + 1 if now == last and now > before else 0
            last = now
            if time.monotonic() - began > (STORE_S if now > before else FIRST_S):
                break

    def proof(self, before: Mark, answers: Sequence[Answer]) -> Proof:
        """Whether kvtier served all these answers, by the counters of before and now."""
        now, n = self.mark(), len(answers)
        computed = sum(answer.cached_tokens == 0 for answer in answers)
        if computed:
            of = f"{computed} of {n} prompts" if n > 1 else "all of the prompt"
            return Proof(False, f"the engine says that it computed {of}")
        for what, unit, old, new in (
            ("kvtierd", "objects found", before.daemon, now.daemon),
            ("the engine's connector", "blocks loaded", before.engine, now.engine),
        ):
            if old is not None and new is not None:
                # Each takes one at least.
                return Proof(new - old >= n, f"{what}: {new - old:g} {unit}")
        return Proof(None, "no counters: neither --kvtierd nor metrics of kvtier in the engine")


def own_tokens(page: Optional[Page]) -> Optional[int]:
    """Of the engine's own cache, as vLLM's metrics tell."""
    labels = page.labels("vllm:cache_config_info") if page else {}
    try:
        return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    except (KeyError, ValueError):
        return None
