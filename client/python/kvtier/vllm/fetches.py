# SPDX-License-Identifier: Apache-2.0
"""Prompts that were computed on another node: their objects are brought here before the search.

Who routes a request says with `kv_transfer_params` where its prompt was computed:

    kvtier_peer   "HOST:PORT", a daemon that this engine's daemon has among its `rdma.peers`
    kvtier_wait   true: also wait for what is still to be stored there (prefill and decode)

A prefill engine with `kvtier_address` answers with just that. A request is fetched for once, with
one call, and waits outside of the batch for `kvtier_peer_timeout` at most. Nothing is held for
it: whatever has come until then is found like anything else, and whatever has not is computed.
All in the scheduler's thread, which waits for nothing.
"""
from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Mapping, Optional

import numpy as np

from .. import Call, Objects, Session, Status
from . import metrics
from .options import Options, is_peer_name
from .transfer import OBJECTS_MAX

logger = logging.getLogger("vllm.kvtier")

PEER_KEY, WAIT_KEY = "kvtier_peer", "kvtier_wait"
#: Between two looks at whether what is waited for may do already.
LOOK_S = 2e-3


@dataclass(frozen=True)
class Peer:
    name: str
    waits: bool = False  #: for what it has not stored yet


@dataclass
class Fetch:
    """One prefetch under way."""

    call: Call
    until: float  #: monotonic
    look_at: float = 0.0


class Fetches:
    def __init__(self, session: Session, options: Options, counts: metrics.Metrics) -> None:
        self._session, self._options, self._metrics = session, options, counts
        self._told: set[str] = set()
        self._off = False

    def turn_off(self) -> None:
        """This engine's names are its own from here on: no peer knows them."""
        self._off = True

    @property
    def answer(self) -> dict[str, Any]:
        """What the answer to a prompt says to who goes on with it elsewhere."""
        if self._off or not self._options.address:
            return {}
        return {PEER_KEY: self._options.address, WAIT_KEY: True}

    def peer(self, params: Optional[Mapping[str, Any]]) -> Optional[Peer]:
        """That a request with these parameters is to be fetched from."""
        params = params or {}
        name = params.get(PEER_KEY, self._options.peer)
        if self._off or not name:
            return None
        if not is_peer_name(name):
            self._tell(f"a request's {PEER_KEY} is not HOST:PORT: {str(name)[:80]!r}")
            return None
        return Peer(name, params.get(WAIT_KEY) is True)

    def begin(
        self, peer: Peer, digests: np.ndarray, missing: np.ndarray, shards: int
    ) -> Optional[Fetch]:
        """missing: which cells of these chunks, shape (n, groups x shards). None: none of them."""
        places: Any = np.nonzero(missing)
        chunks, cells = places
        if not 0 < len(chunks) <= OBJECTS_MAX:
            return None
        objects = Objects(
            digests[chunks],
            group=(cells // shards).astype(np.uint16),
            shard=(cells % shards).astype(np.uint16),
        )
        timeout = self._options.peer_timeout
        call = self._session.prefetch(objects, peer.name, wait=peer.waits, timeout=timeout)
        return Fetch(call, time.monotonic() + timeout)

    def is_over(self, fetch: Fetch) -> bool:
        """It has been answered, or has taken too long."""
        self._session.poll()
        return fetch.call.done or time.monotonic() >= fetch.until

    @staticmethod
    def may_look(fetch: Fetch) -> bool:
        now = time.monotonic()
        if now < fetch.look_at:
            return False
        fetch.look_at = now + LOOK_S
        return True

    def end(self, fetch: Fetch, peer: Peer, is_enough: bool = False) -> None:
        """is_enough: whatever else it might bring is not needed."""
        completion = fetch.call.completion
        status = completion.status if completion else Status.TIMEOUT
        if is_enough:
            status = Status.OK
        self._metrics.count(metrics.PREFETCHES, 1, status.name)
        if status is Status.UNSUPPORTED:
            self._tell(f"the daemon's rdma.peers do not name {peer.name!r}")
        self.cancel(fetch)

    def cancel(self, fetch: Fetch) -> None:
        if not fetch.call.done:
            self._session.cancel(fetch.call)

    def _tell(self, what: str) -> None:
        """Requests come from outside: each kind once."""
        kind = what.partition(":")[0] if PEER_KEY in what else "unsupported"
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("kvtier: %s. Logged once.", what)
