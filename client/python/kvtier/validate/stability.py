# SPDX-License-Identifier: Apache-2.0
"""Step three: a load for some time, and what grows, slows down or fails meanwhile.

Several workers send prompts one after the other, most of them from a working set that is asked for
again and again, so that kvtier both stores and serves. Between, the pages of the daemon and of the
engine are sampled. It is cut into slices, after each of which the state is kept, and all is quiet
for a moment. A server that answers nothing any more ends it.
"""
from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

from .counters import TIMEOUT_S, Counters, Page
from .engine import Engine
from .failure import EngineError
from .prompts import Prompts
from .record import Record

#: Of a slice, at most: what a run that breaks off has lost.
SLICE_S = 1800.0
#: Of answers, that are drawn.
POINTS = 3000
#: Of prompts, that are of the working set.
REPEATED = 0.8
#: Failures of a worker, one after the other, after which the server is taken for dead; seconds
#: between.
FAILURES_MAX, FAILURE_PAUSE_S = 5, 0.2
SAMPLES, SAMPLE_S_MIN = 120, 0.5
#: Of a page, when the load is about to end.
PAGE_S_MIN = 1.0
#: Seconds for leases to end when nobody asks any more.
QUIET_S = 15.0
#: What memory is told by: (name here, page, series, labels).
GAUGES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("kvtierd resident", "daemon", "kvtier_resident_bytes", {}),
    ("kvtierd host tier", "daemon", "kvtier_tier_used_bytes", {"tier": "host"}),
    ("kvtierd leased", "daemon", "kvtier_leased_bytes", {}),
    ("kvtierd quarantined", "daemon", "kvtier_quarantined_bytes", {}),
    ("engine resident", "engine", "process_resident_memory_bytes", {}),
)


class StabilityStep:
    name = "stability"

    def __init__(
        self,
        engine: Engine,
        counters: Optional[Counters],
        prompts: Prompts,
        *,
        duration_s: float,
        concurrency: int,
        prompt_tokens: int,
        output_tokens: int,
        working_set: int,
        on_progress: Callable[[float], None],
    ) -> None:
        """working_set: prompts that are asked for again."""
        self._engine, self._counters, self._prompts = engine, counters, prompts
        self._duration, self._concurrency = duration_s, concurrency
        self._tokens, self._output = prompt_tokens, output_tokens
        self._working_set, self._on_progress = working_set, on_progress

    def parts(self) -> list[str]:
        n = math.ceil(self._duration / SLICE_S)
        return ["load", *(f"load, slice {i + 1}" for i in range(1, n))]

    def run(self, part: str) -> dict[str, Any]:
        parts = self.parts()
        self._slice = self._duration / len(parts)
        self._record = Record(self._slice, max(1, POINTS // len(parts)))
        self._numbers, self._stop = itertools.count(), threading.Event()
        self._before = parts.index(part) * self._slice
        self._began = time.monotonic()
        leases = self._leases()
        workers = [
            threading.Thread(target=self._work, args=(part, i), daemon=True)
            for i in range(self._concurrency)
        ]
        for worker in workers:
            worker.start()
        try:
            self._watch()
        finally:
            self._stop.set()
        for worker in workers:
            worker.join()  # each waits for its answer at most, which has a deadline
        seconds = time.monotonic() - self._began
        return {
            "part": part,
            "concurrency": self._concurrency,
            **self._record.slice(seconds),
            "leases_left": self._left(leases),
        }

    # ---- load ----

    def _work(self, part: str, number: int) -> None:
        choice = random.Random(f"{part} {number}")
        failures = 0
        while not self._stop.is_set() and failures < FAILURES_MAX:
            try:
                self._ask(part, choice)
                failures = 0
            # Of any kind: a worker that ended without a word would be a load without errors.
            except Exception as why:
                failures += 1
                kind = why.kind if isinstance(why, EngineError) else type(why).__name__
                self._record.error(kind, str(why))
                self._stop.wait(FAILURE_PAUSE_S)
        if failures == FAILURES_MAX:
            self._record.dead = True
            self._stop.set()

    def _ask(self, part: str, choice: random.Random) -> None:
        if choice.random() < REPEATED:
            name = f"load {choice.randrange(self._working_set)}"
        else:
            name = f"{part}, new {next(self._numbers)}"
        answer = self._engine.complete(self._prompts.make(self._tokens, name), self._output)
        gap = sum(answer.gaps_s) / len(answer.gaps_s) if answer.gaps_s else 0.0
        age = time.monotonic() - self._began
        self._record.answer(age, answer.ttft_s, gap, len(answer.tokens))

    # ---- what is watched ----

    def _watch(self) -> None:
        pause = max(SAMPLE_S_MIN, self._duration / SAMPLES)
        while (age := time.monotonic() - self._began) < self._slice:
            self._record.samples.append(self._sample(age))
            self._on_progress(self._before + age)
            if self._stop.wait(min(pause, max(0.0, self._slice - age))):
                break
        self._on_progress(self._before + self._slice)

    def _sample(self, age: float) -> dict[str, float]:
        # A page that is late is not to make the load last longer.
        within_s = min(TIMEOUT_S, max(PAGE_S_MIN, self._slice - age))
        engine = self._engine.metrics(within_s)
        pages: dict[str, Optional[Page]] = {"daemon": None, "engine": engine}
        if self._counters:
            try:
                pages["daemon"] = self._counters.page(within_s)
            except EngineError as why:
                self._record.error("kvtierd", str(why))
        sample = {"s": age}
        for name, where, series, labels in GAUGES:
            page = pages[where]
            value = page.sum(series, **labels) if page else None
            if value is not None:
                sample[name] = value
        return sample

    def _leases(self) -> Optional[float]:
        return self._counters.page().sum("kvtier_leases") if self._counters else None

    def _left(self, before: Optional[float]) -> Optional[float]:
        """Leases more than before the load, once all is quiet; None: nobody knows."""
        if before is None:
            return None
        end, left = time.monotonic() + QUIET_S, None
        while time.monotonic() < end and left != 0:
            if left is not None:
                time.sleep(SAMPLE_S_MIN)
            try:
                left = max(0.0, (self._leases() or 0.0) - before)
            except EngineError:
                return None
        return left
