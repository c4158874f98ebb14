# SPDX-License-Identifier: Apache-2.0
"""What a run has shown: a summary in words, report.json, and report.html with all in one file."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import jinja2
from markupsafe import Markup

from .chart import chart
from .function import faults, unproven
from .record import whole
from .state import write_whole
from .verdict import CAUSES

Results = list[dict[str, Any]]


def line(step: str, result: dict[str, Any]) -> str:
    """One part of a step, when it is done."""
    if step == "stability":
        return _stability_line(whole([result]))
    return {"function": _function_line, "performance": _performance_line}[step](result)


def shown(state: dict[str, Any]) -> dict[str, Any]:
    """As the reports have it: the slices of a load put together."""
    steps = dict(state.get("steps", {}))
    if slices := steps.get("stability"):
        steps["stability"] = [whole(slices)]
    return {**state, "steps": steps}


def summary(data: dict[str, Any]) -> list[str]:
    """A line for each step, the worst of it first. data: as `shown`."""
    steps = data.get("steps", {})
    lines = []
    if results := steps.get("function"):
        lines += _function_summary(results)
    for result in steps.get("performance", []):
        lines.append("performance: " + _performance_line(result))
    for result in steps.get("stability", []):
        lines.append("stability: " + _stability_line(result))
    return lines or ["nothing was done"]


def write(folder: Path, data: dict[str, Any]) -> Path:
    """Both reports, of data as `shown`; the path of the one for people."""
    lines = summary(data)
    write_whole(folder / "report.json", json.dumps({"summary": lines, **data}, indent=1))
    page = folder / "report.html"
    write_whole(page, _html(data, lines))
    return page


# ---- in words ----


def _function_line(one: dict[str, Any]) -> str:
    warm = one["compared"]["warm"]
    served = {True: "served by kvtier", False: "NOT served by kvtier", None: "not proven"}
    text = f"{warm['equal_tokens']} of {warm['tokens']} tokens equal"
    if one["cause"] != "equal":
        text += f"; {one['cause']}: {one['text']}"
    return f"{one['part']}: {text}; {served[one['served']]} ({one['proof']})"


def _function_summary(results: Results) -> list[str]:
    wrong, loose = faults(results), unproven(results)
    n = len(results)
    if wrong:
        lines = [f"function: WRONG: kvtier spoilt {len(wrong)} of {n} prompts"]
    elif loose:
        lines = [f"function: NOT PROVEN for {len(loose)} of {n} prompts; no fault of kvtier's seen"]
    else:
        lines = [f"function: fine: {n} of {n} prompts served by kvtier"]
    return lines + ["  " + _function_line(one) for one in results]


def _performance_line(one: dict[str, Any]) -> str:
    cold, warm = one["cold"], one["warm"]
    served = {True: "", False: f"; NOT all served by kvtier ({one['proof']})"}.get(
        one["served"], "; hits are not proven"
    )
    if not one["was_cold"]:
        served += "; a cache had some of what was to be COLD"
    return (
        f"{one['context_tokens']} tokens: to the first token {cold['ttft_s'] * 1e3:.1f} ms cold, "
        f"{warm['ttft_s'] * 1e3:.1f} ms warm{served}"
    )


def _stability_line(one: dict[str, Any]) -> str:
    n_errors = sum(one["errors"].values())
    drift = one["ttft"]["drift"]
    left = one.get("leases_left")
    parts = [
        f"{one['requests']} answers in {one['seconds']:.0f} s, {n_errors} errors",
        "p99 to the first token " + (f"drifted x{drift:.2f}" if drift else "has no drift to tell"),
    ]
    for name in ("kvtierd resident", "engine resident"):
        grows = one["memory"].get(name, {}).get("bytes_per_hour")
        if grows is not None:
            parts.append(f"{name} {grows / (1 << 20):+.1f} MiB an hour")
    if left:
        parts.append(f"{left:g} leases left behind")
    state = "DEAD: " if one["dead"] else "" if one["requests"] else "FAILED: no answers: "
    return state + "; ".join(parts)


# ---- as HTML ----


def _html(data: dict[str, Any], lines: list[str]) -> str:
    loader = jinja2.PackageLoader("kvtier.validate", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters.update(ms=_scaled(1e3), rounded=_scaled(1.0), mib=_scaled(1 / (1 << 20)))
    steps = data.get("steps", {})
    return environment.get_template("report.html").render(
        facts=data.get("facts", {}),
        settings=data.get("settings", {}),
        began=time.strftime("%F %T UTC", time.gmtime(data.get("facts", {}).get("began", 0))),
        summary=lines,
        is_wrong=bool(faults(steps.get("function", []))),
        causes=CAUSES,
        steps=steps,
        charts=_charts(steps),
    )


def _scaled(factor: float) -> Callable[[Optional[float]], str]:
    return lambda value: "–" if value is None else f"{value * factor:.4g}"


def _charts(steps: dict[str, Results]) -> dict[str, list[str]]:
    made = {
        "function": _function_charts(steps.get("function", [])),
        "performance": _performance_charts(steps.get("performance", [])),
        "stability": [
            one for result in steps.get("stability", []) for one in _stability_charts(result)
        ],
    }
    # Each escapes what it was given.
    return {step: [Markup(one) for one in all if one] for step, all in made.items()}


def _function_charts(results: Results) -> list[str]:
    """Divergence by position."""
    lines = {}
    for name in ("warm", "again"):
        ends = [one["compared"][name]["equal_tokens"] for one in results if name in one["compared"]]
        if ends:
            tokens = max(one["compared"][name]["tokens"] for one in results)
            lines[{"warm": "warm", "again": "bypassed twice"}[name]] = [
                (i, sum(end >= i for end in ends) / len(ends)) for i in range(tokens + 1)
            ]
    return [chart("Prompts whose answers are still equal", lines, "position, tokens", "share")]


def _performance_charts(results: Results) -> list[str]:
    def both(name: str, factor: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        return {
            heat: [
                (one["context_tokens"], one[heat][name] * factor)
                for one in results
                if one[heat][name] is not None
            ]
            for heat in ("cold", "warm")
        }

    x = "context, tokens"
    return [
        chart("Time to the first token", both("ttft_s", 1e3), x, "ms", True),
        chart("Time between tokens, median", both("gap_s", 1e3), x, "ms", True),
        chart("Output together", both("output_tokens_per_s"), x, "tokens/s", True),
    ]


def _stability_charts(one: dict[str, Any]) -> list[str]:
    memory = {
        name: [(s["s"], s[name] / (1 << 20)) for s in one["samples"] if name in s]
        for name in one["memory"]
    }
    ttft = [(s, value * 1e3) for s, value, _ in one["answers"]]
    return [
        chart("Time to the first token", {"each answer": ttft}, "time, s", "ms"),
        *(chart(name, {name: points}, "time, s", "MiB") for name, points in memory.items()),
    ]
