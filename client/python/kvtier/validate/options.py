# SPDX-License-Identifier: Apache-2.0
"""The command line, checked once: what comes out of here may be used as it is."""
from __future__ import annotations

import argparse
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional, Sequence
from urllib.parse import urlsplit

from .engine import DIALECTS, Timeouts
from .failure import UsageError

STEPS = ("function", "performance", "stability")
CONTEXTS = "512,1024,2048,4096,8192,16384,32768"
TOKENS_MAX, COUNT_MAX, SECONDS_MAX = 10_000_000, 10_000, 30 * 86400.0
#: That a resumed run may have otherwise: they change nothing that was measured.
FREE = ("engine", "kvtierd", "out", "resume", "require_proof", "api_key", "timeouts")


@dataclass(frozen=True)
class Options:
    engine: str
    kvtierd: Optional[str]
    out: Path
    resume: bool
    require_proof: bool
    api_key: str
    timeouts: Timeouts
    kind: str
    model: str
    steps: list[str]
    token_ids: Optional[tuple[int, int]]
    own_tokens: Optional[int]
    tolerance: float  #: nats
    prompts: int
    prompt_tokens: int
    output_tokens: int
    contexts: list[int]  #: tokens
    contexts_given: bool
    repeats: int
    concurrency: int
    duration: float  #: seconds
    working_set: int

    def settings(self) -> dict[str, Any]:
        """What a state belongs to, as JSON has it."""
        settings = {name: value for name, value in asdict(self).items() if name not in FREE}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in settings.items()
        }


def parse(arguments: Sequence[str]) -> Options:
    """UsageError: what is wrong, and where. --help ends the process."""
    given = vars(_parser().parse_args(arguments))
    timeouts = Timeouts(*(given.pop(f"{name}_timeout") for name in ("connect", "stall", "request")))
    variable = given.pop("api_key_env")
    if variable and variable not in os.environ:
        raise UsageError(f"--api-key-env: the environment has no {variable}")
    steps, duration = given.pop("steps"), given.pop("duration")
    if "stability" in steps and not duration:
        raise UsageError("--steps stability needs --duration SECONDS")
    if duration and "stability" not in steps:
        steps = [*steps, "stability"]
    contexts = given.pop("contexts")
    return Options(
        **given,
        timeouts=timeouts,
        api_key=os.environ[variable] if variable else "",
        steps=steps,
        duration=duration,
        contexts=contexts or _numbers("--contexts")(CONTEXTS),
        contexts_given=contexts is not None,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvtier-validate",
        description="Whether an engine with kvtier in it is right, fast and stable.",
        epilog="Exit status: 0 fine, 1 kvtier gave wrong bytes (or proof was required and there "
        "is none), 2 usage, 3 the engine cannot be reached or fails.",
    )
    add = parser.add_argument
    add("--engine", type=_url, required=True, metavar="URL", help="of the server, without /v1")
    add("--kvtierd", type=_url, metavar="URL", help="kvtierd's metrics port, which proves hits")
    add("--out", type=Path, default=Path("kvtier-validate"), metavar="DIR", help="of the report")
    add("--resume", action="store_true", help="go on with what --out has")
    add("--steps", type=_steps, default=["function", "performance"], metavar="NAMES",
        help="of function,performance,stability")  # fmt: skip
    add("--require-proof", action="store_true", help="exit 1 unless all hits are proven")
    add("--kind", choices=["auto", *DIALECTS], default="auto", help="of server")
    add("--model", default="", metavar="NAME", help="default: the first that is served")
    add("--api-key-env", metavar="VARIABLE", help="of the environment, that has the API key")
    add("--token-ids", type=_range, metavar="FIRST:LAST", help="that prompts are made of")
    add("--own-tokens", type=_count(1, 10**9), metavar="N",
        help="of the engine's own prefix cache, to fill it where it has no reset")  # fmt: skip
    add("--tolerance", type=_number(0.0, 100.0), default=0.05, metavar="NATS",
        help="of log probabilities (%(default)s)")  # fmt: skip
    _add_steps(parser)
    for name, seconds in (("connect", 5.0), ("stall", 60.0), ("request", 600.0)):
        add(f"--{name}-timeout", type=_number(0.001, SECONDS_MAX), default=seconds,
            metavar="SECONDS", help="(%(default)s)")  # fmt: skip
    return parser


def _add_steps(parser: argparse.ArgumentParser) -> None:
    """What the steps are to do."""
    for name, most, default, what in (
        ("prompts", COUNT_MAX, 4, "function: how many"),
        ("prompt-tokens", TOKENS_MAX, 1024, "function, stability: of a prompt"),
        ("output-tokens", TOKENS_MAX, 32, "of an answer"),
        ("repeats", COUNT_MAX, 3, "performance: prompts alone, of each length"),
        ("concurrency", COUNT_MAX, 4, "performance, stability: requests at once"),
        ("working-set", COUNT_MAX, 16, "stability: prompts that are asked for again"),
    ):
        help = f"{what} (%(default)s)"
        kind = _count(1, most)
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=help)
    parser.add_argument("--contexts", type=_numbers("--contexts"), metavar="N,N,...",
                        help=f"performance: tokens of prompts ({CONTEXTS}, what fits)")  # fmt: skip
    parser.add_argument("--duration", type=_number(1.0, SECONDS_MAX), default=0.0,
                        metavar="SECONDS", help="stability: of the load")  # fmt: skip


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    # The URL stands in the report, where no password belongs.
    if not good or re.search(r"[\s@]", text) or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1")


def _steps(text: str) -> list[str]:
    given = [name.strip() for name in text.split(",")]
    if unknown := [name for name in given if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"no step {unknown[0]!r}; there are {', '.join(STEPS)}")
    return [name for name in STEPS if name in given]


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if not match or int(match[2]) - int(match[1]) < 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:LAST with 64 tokens at least")
    return int(match[1]), int(match[2])


def _count(least: int, most: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return count


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not from {least:g} to {most:g}")
        return value

    return number


def _numbers(name: str) -> Callable[[str], list[int]]:
    one = _count(1, TOKENS_MAX)
    return lambda text: sorted({one(part.strip()) for part in text.split(",")})
