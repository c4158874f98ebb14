# SPDX-License-Identifier: Apache-2.0
"""HTTP with an end: each exchange has a deadline as a whole, and each body a size.

httpx bounds one read at a time, so that a peer that sends a byte now and then is never late. Here
no read or write, of headers and handshakes too, is given more time than its exchange has left: the
deadline is the calling thread's, and connections look at it. May be used by several threads.
"""
from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import httpcore
import httpx

from .failure import Broken, EngineError, Late, Unreachable

#: Of a body that is read as a whole: a page of metrics has one or two at most.
BODY_BYTES_MAX = 16 << 20
#: Of an error's text, that is shown.
ERROR_BYTES_MAX = 300
#: Of a write: the deadline is looked at between.
WRITE_BYTES = 64 << 10
KEEP_S = 5.0


@dataclass(frozen=True)
class Reply:
    status: int
    text: str


class Http:
    def __init__(
        self,
        url: str,
        *,
        connect_s: float,
        stall_s: float,
        headers: Optional[Mapping[str, str]] = None,
    ) -> None:
        """stall_s: without a byte from the peer."""
        self.url, self._stall_s = url, stall_s
        self._client = httpx.Client(
            base_url=url,
            transport=_Transport(),
            timeout=httpx.Timeout(stall_s, connect=connect_s),
            headers={**(headers or {}), "Accept-Encoding": "identity"},
        )

    def read(self, method: str, path: str, within_s: float, body: Any = None) -> Reply:
        """EngineError: no answer, or none that ends in time and size."""
        with self.stream(method, path, within_s, body) as response:
            data = b"".join(capped(response.iter_bytes(), BODY_BYTES_MAX, path))
        return Reply(response.status_code, data.decode(errors="replace"))

    @contextmanager
    def stream(
        self, method: str, path: str, within_s: float, body: Any = None
    ) -> Iterator[httpx.Response]:
        """The response, whose body is to be read inside; EngineError, from there too."""
        _clock.end = time.monotonic() + within_s
        try:
            with self._client.stream(method, path, json=body) as response:
                yield response
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as why:
            raise Unreachable(f"no connection to {self.url}: {why}") from why
        except httpcore.TimeoutException as why:
            if time.monotonic() >= _clock.end:
                raise Late(f"{self.url}{path}: took more than {within_s:g} s") from why
            raise Late(f"{self.url} sent nothing for {self._stall_s:g} s") from why
        except (httpcore.NetworkError, httpcore.ProtocolError, httpx.HTTPError) as why:
            raise Broken(f"the connection to {self.url} broke off: {why}") from why
        finally:
            _clock.end = math.inf

    def close(self) -> None:
        self._client.close()


def capped(chunks: Iterable[bytes], most: int, what: str) -> Iterator[bytes]:
    """EngineError: there are more than `most` bytes."""
    n = 0
    for chunk in chunks:
        n += len(chunk)
        if n > most:
            raise EngineError(f"{what} answers with more than {most} bytes")
        yield chunk


def error_text(response: httpx.Response) -> str:
    """The beginning of it."""
    text = b""
    for chunk in response.iter_bytes(ERROR_BYTES_MAX):
        text += chunk
        break
    return text.decode(errors="replace")


# ---- the deadline, below httpx ----


class _Clock(threading.local):
    end = math.inf  #: of this thread's exchange, monotonic


_clock = _Clock()


def _left(timeout: Optional[float]) -> float:
    left = _clock.end - time.monotonic()
    if left <= 0.0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return min(left, math.inf if timeout is None else timeout)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: Optional[float] = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: Optional[float] = None) -> None:
        for i in range(0, len(buffer), WRITE_BYTES):
            self._inner.write(buffer[i : i + WRITE_BYTES], _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Optional[float] = None,
        local_address: Optional[str] = None,
        socket_options: Optional[Iterable[Any]] = None,
    ) -> httpcore.NetworkStream:
        return _Stream(
            super().connect_tcp(host, port, _left(timeout), local_address, socket_options)
        )


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        return self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Transport(httpx.BaseTransport):
    """httpx's own, but for the connections. No proxy: what it adds is not what is measured. Trusted
    are the system's certificates, or those of SSL_CERT_FILE: few fleets have public ones."""

    def __init__(self) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,
            keepalive_expiry=KEEP_S,
            network_backend=_Backend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._pool.close()
