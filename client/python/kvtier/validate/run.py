# SPDX-License-Identifier: Apache-2.0
"""One run: its steps in order, part by part, with the state kept after each; then the report."""
from __future__ import annotations

import time
from typing import Any, Optional, Protocol

from . import report
from .caches import Caches
from .counters import Counters
from .engine import Engine
from .failure import EngineError, UsageError
from .function import FunctionStep, faults, unproven
from .options import Options
from .performance import PerformanceStep, unserved
from .progress import Bars
from .prompts import Prompts, token_pool
from .stability import StabilityStep
from .state import State

FINE, WRONG, FAILED = 0, 1, 3


class Step(Protocol):
    name: str

    def parts(self) -> list[str]: ...

    def run(self, part: str) -> dict[str, Any]: ...


def run(options: Options) -> int:
    """The exit status. UsageError, EngineError: it could not be finished; the state stays."""
    engine = Engine(options.engine, options.timeouts, options.api_key)
    counters = Counters(options.kvtierd) if options.kvtierd else None
    try:
        engine.meet(options.kind, options.model)
        if counters:
            counters.page()
        return _run(options, engine, counters)
    finally:
        engine.close()
        if counters:
            counters.close()


def _run(options: Options, engine: Engine, counters: Optional[Counters]) -> int:
    _check_lengths(options, engine)
    pool = token_pool(engine, options.token_ids)
    # As settled: what `auto` and no name at all stand for may be others next time.
    settled = {"kind": engine.dialect.name, "model": engine.model}
    state = State.open(options.out, {**options.settings(), **settled}, options.resume)
    prompts = Prompts(pool, state.seed)
    state.note(engine=engine.url, kind=engine.dialect.name, model=engine.model)
    state.note(kvtierd=options.kvtierd, began=state.all.get("facts", {}).get("began", time.time()))
    with Bars() as bars:
        try:
            for step in _steps(options, engine, counters, prompts, bars):
                _do(step, state, prompts, bars, options.duration)
        finally:
            state.save()
            shown = report.shown(state.all)
            written = report.write(options.out, shown)
    summary = report.summary(shown)
    print("\n".join([*summary, f"report: {written}"]))
    return _status(state, options.require_proof)


def _do(step: Step, state: State, prompts: Prompts, bars: Bars, duration_s: float) -> None:
    parts, is_timed = step.parts(), step.name == StabilityStep.name
    part_s = duration_s / len(parts)
    results = state.done(step.name)
    results[:] = [one for one in results if not one.get("dead")]
    done = {one["part"] for one in results}
    if is_timed:
        bars.begin(step.name, duration_s, len(done) * part_s)
    else:
        bars.begin(step.name, len(parts), len(done))
    for i, part in enumerate(parts):
        if part in done:
            continue
        if not is_timed:
            bars.reach(step.name, i, part)
        prompts.attempt = state.attempt(step.name, part)
        result = step.run(part)
        state.add(step.name, result)
        bars.say(report.line(step.name, result))
        if not is_timed:
            bars.reach(step.name, i + 1)
        if result.get("dead"):
            texts = "; ".join(result["error_texts"].values())
            raise EngineError(f"the engine answers no more: {texts}")


def _steps(
    options: Options,
    engine: Engine,
    counters: Optional[Counters],
    prompts: Prompts,
    bars: Bars,
) -> list[Step]:
    caches = Caches(engine, counters, prompts, options.own_tokens)
    steps: list[Step] = []
    if "function" in options.steps:
        steps.append(
            FunctionStep(
                engine,
                caches,
                prompts,
                n_prompts=options.prompts,
                prompt_tokens=options.prompt_tokens,
                output_tokens=options.output_tokens,
                tolerance=options.tolerance,
            )
        )
    if "performance" in options.steps:
        steps.append(
            PerformanceStep(
                engine,
                caches,
                prompts,
                contexts=_contexts(options, engine),
                output_tokens=options.output_tokens,
                repeats=options.repeats,
                concurrency=options.concurrency,
            )
        )
    if "stability" in options.steps:
        steps.append(
            StabilityStep(
                engine,
                counters,
                prompts,
                duration_s=options.duration,
                concurrency=options.concurrency,
                prompt_tokens=options.prompt_tokens,
                output_tokens=options.output_tokens,
                working_set=options.working_set,
                on_progress=lambda seconds: bars.reach("stability", round(seconds)),
            )
        )
    return steps


def _contexts(options: Options, engine: Engine) -> list[int]:
    """Those given, or of the usual ones those that fit."""
    if options.contexts_given or engine.tokens_max is None:
        return options.contexts
    room = engine.tokens_max - options.output_tokens
    return [tokens for tokens in options.contexts if tokens <= room] or [max(1, room)]


def _check_lengths(options: Options, engine: Engine) -> None:
    """UsageError: the model is not made for prompts as long, or nobody knows for which."""
    if "performance" in options.steps and not options.contexts_given and engine.tokens_max is None:
        raise UsageError(
            f"{engine.url} does not tell how many tokens {engine.model} takes: say --contexts"
        )
    longest = {"--prompt-tokens": options.prompt_tokens}
    if options.contexts_given:
        longest["--contexts"] = max(options.contexts)
    for name, tokens in longest.items():
        needed = tokens + options.output_tokens
        if engine.tokens_max is not None and needed > engine.tokens_max:
            raise UsageError(
                f"{name} and --output-tokens are {needed} tokens together, "
                f"{engine.model} takes {engine.tokens_max}"
            )


def _status(state: State, require_proof: bool) -> int:
    function, load = state.done("function"), state.done("stability")
    if faults(function):
        return WRONG
    # A load without an answer has shown nothing.
    if any(one["errors"] or not one["requests"] or one["leases_left"] for one in load):
        return FAILED
    performance = state.done("performance")
    is_proven = (function or performance) and not unproven(function) and not unserved(performance)
    return FINE if is_proven or not require_proof else WRONG
