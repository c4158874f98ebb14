# SPDX-License-Identifier: Apache-2.0
"""Step three: a load for some time, and what grows, slows down or fails meanwhile.

Several workers send prompts one after the other, most of them from a working set that is asked for
again and again, so that kvtier both stores and serves. Between, the pages of the daemon and of the
engine are sampled. Slopes are of the second half, when caches have filled. A server that answers
nothing any more ends it.
"""
from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

from .counters import TIMEOUT_S, Counters, Page
from .engine import Engine
from .failure import EngineError
from .figures import percentile, ratio, slope
from .prompts import Prompts

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


@dataclass
class Log:
    """What came of requests; times in seconds since the beginning."""

    answers: list[tuple[float, float, float]] = field(default_factory=list)  #: when, ttft, gap
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)  #: the first of each kind
    tokens: int = 0
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


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
        return ["load"]

    def run(self, part: str) -> dict[str, Any]:
        self._log, self._numbers = Log(), itertools.count()
        self._began = time.monotonic()
        self._stop = threading.Event()
        leases = self._leases()
        samples: list[dict[str, float]] = []
        workers = [
            threading.Thread(target=self._work, args=(i,), daemon=True)
            for i in range(self._concurrency)
        ]
        for worker in workers:
            worker.start()
        try:
            self._watch(workers, samples)
        finally:
            self._stop.set()
        for worker in workers:
            worker.join()  # each waits for its answer at most, which has a deadline
        return {"part": part, **self._result(samples), "leases_left": self._left(leases)}

    # ---- load ----

    def _work(self, number: int) -> None:
        choice = random.Random(f"{number}")
        failures = 0
        while not self._stop.is_set() and failures < FAILURES_MAX:
            try:
                self._ask(choice)
                failures = 0
            # Of any kind: a worker that ended without a word would be a load without errors.
            except Exception as why:
                failures += 1
                kind = why.kind if isinstance(why, EngineError) else type(why).__name__
                with self._log.lock:
                    self._log.errors[kind] += 1
                    self._log.texts.setdefault(kind, str(why))
                self._stop.wait(FAILURE_PAUSE_S)
        if failures == FAILURES_MAX:
            self._log.dead = True
            self._stop.set()

    def _ask(self, choice: random.Random) -> None:
        if choice.random() < REPEATED:
            name = f"load {choice.randrange(self._working_set)}"
        else:
            name = f"load new {next(self._numbers)}"
        answer = self._engine.complete(self._prompts.make(self._tokens, name), self._output)
        gap = sum(answer.gaps_s) / len(answer.gaps_s) if answer.gaps_s else 0.0
        with self._log.lock:
            self._log.answers.append((time.monotonic() - self._began, answer.ttft_s, gap))
            self._log.tokens += len(answer.tokens)

    # ---- what is watched ----

    def _watch(self, workers: list[threading.Thread], samples: list[dict[str, float]]) -> None:
        pause = max(SAMPLE_S_MIN, self._duration / SAMPLES)
        while (age := time.monotonic() - self._began) < self._duration:
            samples.append(self._sample(age))
            self._on_progress(age)
            if self._stop.wait(min(pause, max(0.0, self._duration - age))):
                break
        self._on_progress(self._duration)

    def _sample(self, age: float) -> dict[str, float]:
        # A page that is late is not to make the load last longer.
        within_s = min(TIMEOUT_S, max(PAGE_S_MIN, self._duration - age))
        engine = self._engine.metrics(within_s)
        pages: dict[str, Optional[Page]] = {"daemon": None, "engine": engine}
        if self._counters:
            try:
                pages["daemon"] = self._counters.page(within_s)
            except EngineError as why:
                with self._log.lock:
                    self._log.errors["kvtierd"] += 1
                    self._log.texts.setdefault("kvtierd", str(why))
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

    # ---- the result ----

    def _result(self, samples: list[dict[str, float]]) -> dict[str, Any]:
        log, seconds = self._log, time.monotonic() - self._began
        return {
            "seconds": seconds,
            "concurrency": self._concurrency,
            "requests": len(log.answers),
            "requests_per_s": len(log.answers) / seconds,
            "output_tokens_per_s": log.tokens / seconds,
            "errors": dict(log.errors),
            "error_texts": log.texts,
            "dead": log.dead,
            "ttft": _drift([(s, ttft) for s, ttft, _ in log.answers], seconds),
            "gap": _drift([(s, gap) for s, _, gap in log.answers], seconds),
            "memory": _memory(samples, seconds),
            "samples": samples,
            "answers": [[round(value, 5) for value in one] for one in log.answers],
        }


def _drift(points: list[tuple[float, float]], seconds: float) -> dict[str, Any]:
    """p99 of the first and of the last third, in seconds, and how they compare."""
    third = seconds / 3
    first = percentile([y for x, y in points if x < third], 0.99)
    last = percentile([y for x, y in points if x >= seconds - third], 0.99)
    return {
        "p50_s": percentile([y for _, y in points], 0.5),
        "p99_s": percentile([y for _, y in points], 0.99),
        "p99_first_third_s": first,
        "p99_last_third_s": last,
        "drift": ratio(last, first),
    }


def _memory(samples: list[dict[str, float]], seconds: float) -> dict[str, Any]:
    """Of each gauge: bytes at the end, and bytes per hour in the second half."""
    memory = {}
    for name, *_ in GAUGES:
        points = [(one["s"], one[name]) for one in samples if name in one]
        if points:
            late = slope([point for point in points if point[0] >= seconds / 2])
            memory[name] = {
                "bytes": points[-1][1],
                "bytes_per_hour": None if late is None else late * 3600,
            }
    return memory
