# SPDX-License-Identifier: Apache-2.0
"""The server: its dialect of the API, streamed completions, and its own prefix cache.

Nothing here waits without an end: a connection has `connect_s`, each piece of a stream `stall_s`,
an answer as a whole `request_s`, all else `stall_s` as a whole; and nothing is read without one,
see `http`. May be used by several threads.
"""
from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from .answer import Answer, Reader, lines
from .counters import TIMEOUT_S, Page
from .failure import Denied, EngineError
from .http import Http, capped, error_text

#: Likeliest tokens asked for beside the one that is taken.
LIKELY = 2
#: Seconds for an engine that still holds pages of its prefix cache to let go of them.
RESET_S = 30.0
RESET_PAUSE_S = 0.2
#: Of a stream: of any, and of each of its tokens.
STREAM_BYTES, TOKEN_BYTES = 16 << 20, 16 << 10


@dataclass(frozen=True)
class Dialect:
    """What a server understands beyond OpenAI's API."""

    name: str
    #: GET that only this server answers, and the key that is in its answer.
    known_by: tuple[str, str] = ("", "")
    #: Of every request.
    asks: Mapping[str, Any] = field(default_factory=dict)
    #: Of a request that is to find nothing; "SALT" stands for a text nobody else has.
    bypass: Optional[Mapping[str, Any]] = None
    #: POST that empties its own prefix cache, and only that.
    reset: Optional[str] = None
    #: Metrics that count what kvtier's connector in it has loaded.
    loads: str = ""


DIALECTS = {
    one.name: one
    for one in (
        Dialect(
            "vllm",
            ("/version", "version"),
            {"return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True},
            {"cache_salt": "SALT", "kv_transfer_params": {"kvtier_bypass": True}},
            "/reset_prefix_cache",
            "vllm:kvtier_keys_loaded_total",
        ),
        Dialect(
            "sglang",
            ("/get_model_info", "model_path"),
            {"return_token_ids": True, "ignore_eos": True},
            {"cache_salt": "SALT"},
            "/flush_cache",
        ),
        Dialect(
            "llama",
            ("/props", "total_slots"),
            {"return_tokens": True, "ignore_eos": True},
            {"cache_prompt": False},
        ),
        Dialect("openai"),
    )
}


def _count(value: Any) -> Optional[int]:
    """None: no number that counts anything."""
    return value if type(value) is int and value > 0 else None


@dataclass(frozen=True)
class Timeouts:
    """In seconds."""

    connect_s: float = 5.0
    stall_s: float = 60.0
    request_s: float = 600.0


class Engine:
    def __init__(self, url: str, timeouts: Timeouts, api_key: str = "") -> None:
        self.url, self._timeouts = url.rstrip("/"), timeouts
        self._http = Http(
            self.url,
            connect_s=timeouts.connect_s,
            stall_s=timeouts.stall_s,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        )
        self.dialect, self.model = DIALECTS["openai"], ""
        self.tokens_max: Optional[int] = None  #: of prompt and answer together

    # ---- who it is ----

    def meet(self, kind: str, model: str) -> None:
        """Which dialect and which model. EngineError: nobody, or another model."""
        served = self._served()
        if model and model not in served:
            raise EngineError(f"{self.url} serves {', '.join(served)}, not {model}")
        self.model = model or next(iter(served))
        self.dialect = self._heard() if kind == "auto" else DIALECTS[kind]
        self.tokens_max = _count(served[self.model].get("max_model_len")) or self._slot_tokens()

    def _served(self) -> dict[str, dict[str, Any]]:
        """Models by name."""
        answer = self._json("GET", "/v1/models")
        entries = answer.get("data")
        served = {
            one["id"]: one
            for one in (entries if isinstance(entries, list) else ())
            if isinstance(one, dict) and isinstance(one.get("id"), str) and one["id"]
        }
        if not served:
            raise EngineError(f"{self.url}/v1/models lists no model")
        return served

    def _heard(self) -> Dialect:
        for dialect in DIALECTS.values():
            path, key = dialect.known_by
            if not path:
                continue
            try:
                if key in self._json("GET", path):
                    return dialect
            except Denied:
                pass
        return DIALECTS["openai"]

    def tokenize(self, text: str) -> list[int]:
        """Its tokens; [] when the server does not tell."""
        body = {"model": self.model, "prompt": text, "content": text}
        try:
            tokens = self._json("POST", "/tokenize", body).get("tokens")
        except Denied:
            return []
        return [one for one in tokens if type(one) is int] if isinstance(tokens, list) else []

    def _slot_tokens(self) -> Optional[int]:
        """llama-server: what each of its slots has room for."""
        if self.dialect.name != "llama":
            return None
        settings = self._json("GET", "/props").get("default_generation_settings")
        return _count(settings.get("n_ctx")) if isinstance(settings, dict) else None

    def slots(self) -> int:
        """llama-server: prompts that it keeps."""
        return _count(self._json("GET", "/props").get("total_slots")) or 1

    def metrics(self, within_s: float = TIMEOUT_S) -> Optional[Page]:
        """None: it has none, or is late with them."""
        try:
            reply = self._http.read("GET", "/metrics", within_s)
            return Page(reply.text) if reply.status == 200 else None
        except EngineError:
            return None

    # ---- completions ----

    def complete(
        self, prompt: Sequence[int], tokens: int, bypass: Optional[str] = None
    ) -> Answer:
        """The likeliest `tokens` tokens. bypass: nobody's cache but that of this name is read."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": LIKELY,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.dialect.asks,
            **(self._bypass(bypass) if bypass else {}),
        }
        path, within_s = "/v1/completions", self._timeouts.request_s
        reader = Reader(time.monotonic())
        with self._http.stream("POST", path, within_s, body) as response:
            if response.status_code != 200:
                raise Denied(path, response.status_code, error_text(response))
            most = STREAM_BYTES + tokens * TOKEN_BYTES
            for line in lines(capped(response.iter_bytes(), most, path)):
                if reader.take(line, time.monotonic()):
                    break
        answer = reader.end()
        if len(answer.tokens) == 0:
            raise EngineError("the server answered with no token")
        return answer

    def _bypass(self, name: str) -> dict[str, Any]:
        fields = self.dialect.bypass or {}
        return {key: name if value == "SALT" else value for key, value in fields.items()}

    # ---- its own prefix cache ----

    def reset(self) -> bool:
        """Empties it. False: this server has no call for that."""
        if not self.dialect.reset:
            return False
        end = time.monotonic() + RESET_S
        while True:
            reply = self._http.read("POST", self.dialect.reset, self._timeouts.stall_s)
            if reply.status in (404, 405, 501):
                return False
            # While requests or transfers hold pages it says no.
            if reply.status == 200 and '"success":false' not in reply.text:
                return True
            if time.monotonic() > end:
                raise EngineError(f"{self.dialect.reset} did not succeed within {RESET_S:g} s")
            time.sleep(RESET_PAUSE_S)

    # ---- small calls ----

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        reply = self._http.read(method, path, self._timeouts.stall_s, body)
        if reply.status != 200:
            raise Denied(path, reply.status, reply.text)
        try:
            answer = json.loads(reply.text)
        except (ValueError, RecursionError) as why:
            raise EngineError(f"{self.url}{path} answers with what is no JSON") from why
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        self._http.close()
