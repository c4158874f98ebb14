# SPDX-License-Identifier: Apache-2.0
"""One streamed completion: what came, token by token, and when.

Servers name tokens differently: numbers (`token_ids` of vLLM and SGLang, `tokens` or `id` of
llama-server), strings beside the log probabilities, or nothing but text. The first of these that
a chunk has is taken.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from .failure import Broken, EngineError

Token = Union[int, str]
#: Of a line of the stream. More is no server of completions.
LINE_BYTES_MAX = 8 << 20
DONE = "[DONE]"


@dataclass
class Answer:
    tokens: list[Token] = field(default_factory=list)
    #: By token, in nats: of the few likeliest tokens at its place, the one taken among them. Empty
    #: when the server gives none.
    likely: list[dict[str, float]] = field(default_factory=list)
    prompt_tokens: Optional[int] = None
    #: Of the prompt, not computed anew, wherever they came from; None: the server does not say.
    cached_tokens: Optional[int] = None
    ttft_s: float = 0.0  #: from the request to the first token
    gaps_s: list[float] = field(default_factory=list)  #: between tokens
    total_s: float = 0.0
    finished: bool = False


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Of a stream of bytes. EngineError: a line without end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        if len(rest) > LINE_BYTES_MAX:
            raise EngineError(f"a line of the stream has more than {LINE_BYTES_MAX} bytes")


class Reader:
    """Makes an Answer of the lines of a stream. Times are seconds of a monotonic clock."""

    def __init__(self, began: float) -> None:
        self.answer = Answer()
        self._began, self._last = began, began

    def take(self, line: str, now: float) -> bool:
        """True: that was the end. EngineError: the server tells of an error, or of no tokens."""
        if not line.startswith("data:"):
            return False
        data = line[len("data:") :].strip()
        if data == DONE:
            self.answer.total_s = now - self._began
            return True
        event = _parsed(data)
        try:
            self._take_event(event, now)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as why:
            text = f"the stream has what is no event of a completion: {data[:100]!r}"
            raise EngineError(text) from why
        return False

    def end(self) -> Answer:
        """Broken: what ended was the stream, and not the answer."""
        if not self.answer.finished:
            raise Broken(f"the stream ended after {len(self.answer.tokens)} tokens")
        if not any(self.answer.likely):
            self.answer.likely = []
        return self.answer

    def _take_event(self, event: Mapping[str, Any], now: float) -> None:
        if error := event.get("error"):
            text = error.get("message", error) if isinstance(error, dict) else error
            raise EngineError(f"the server says in its stream: {str(text)[:300]}")
        if usage := event.get("usage"):
            self._take_usage(usage)
        for choice in event.get("choices") or ():
            self._take_tokens(choice, now)
            if choice.get("finish_reason"):
                self.answer.finished = True
                self.answer.total_s = now - self._began

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        details = usage.get("prompt_tokens_details") or {}
        for name, count in (
            ("prompt_tokens", usage.get("prompt_tokens")),
            ("cached_tokens", details.get("cached_tokens")),
        ):
            if count is not None:
                setattr(self.answer, name, _checked(count, int))

    def _take_tokens(self, choice: Mapping[str, Any], now: float) -> None:
        tokens, likely = _tokens(choice)
        if not tokens:
            return
        if self.answer.tokens:
            # Of several in a chunk nobody knows when each was made.
            self.answer.gaps_s += [(now - self._last) / len(tokens)] * len(tokens)
        else:
            self.answer.ttft_s = now - self._began
        self._last = now
        self.answer.tokens += tokens
        self.answer.likely += likely or [{} for _ in tokens]


def _parsed(data: str) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as why:
        raise EngineError(f"the stream has what is no JSON: {data[:100]!r}") from why
    if not isinstance(event, dict):
        raise EngineError(f"the stream has what is no JSON object: {data[:100]!r}")
    return event


def _checked(value: Any, *kinds: type) -> Any:
    """TypeError: it is of another kind."""
    # type(): True is no number here.
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is no {kinds[0].__name__}")
    return value


def _tokens(choice: Mapping[str, Any]) -> tuple[list[Token], list[dict[str, float]]]:
    """Of one chunk; the second is empty, or as long as the first."""
    beside = choice.get("logprobs") or {}
    if isinstance(beside.get("content"), list):
        named, likely = _of_content(beside["content"])
    else:
        named, likely = _of_lists(beside)
    numbers = choice.get("token_ids") or choice.get("tokens")
    text = _checked(choice.get("text") or "", str)
    if numbers is not None:
        _checked(numbers, list)
    tokens = [_checked(one, int, str) for one in numbers or named or ([text] if text else [])]
    return tokens, likely if len(likely) == len(tokens) else []


def _of_content(content: list[dict[str, Any]]) -> tuple[list[Token], list[dict[str, float]]]:
    """llama-server: a list of tokens, each with those that were likely too."""
    tokens: list[Token] = [entry.get("id", entry.get("token", "")) for entry in content]
    likely = [
        {
            str(one.get("id", one.get("token"))): float(one["logprob"])
            for one in [entry, *(entry.get("top_logprobs") or ())]
            if one.get("logprob") is not None
        }
        for entry in content
    ]
    return tokens, likely


def _of_lists(beside: Mapping[str, Any]) -> tuple[list[Token], list[dict[str, float]]]:
    """OpenAI's: lists side by side."""
    tokens, own = beside.get("tokens") or [], beside.get("token_logprobs") or []
    tops = beside.get("top_logprobs") or [None] * len(tokens)
    likely = []
    for token, logprob, top in zip(tokens, own, tops):
        here = {str(name): float(value) for name, value in (top or {}).items()}
        if logprob is not None:
            here[str(token)] = float(logprob)
        likely.append(here)
    return list(tokens), likely
