# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: what is stored, and leases on what is going to be loaded.

vLLM asks key by key. `match` lets it ask twice. First the presence table answers, without a
message: that gives the boundary that vLLM would choose, and the keys that it takes. Those are
acquired in one call. Then vLLM asks again, and only what was granted, all of it in host
memory, is a hit. The leases of a request are held until all workers have reported the load, or
until the request needs none. All in the scheduler's thread.
"""
from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Optional

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import DIGEST_BYTES, Call, Objects, Session, Status
from . import metrics
from .engine import Engine
from .options import Options
from .transfer import KeysSpec

logger = logging.getLogger("vllm.kvtier")

#: An answer that comes within this time spares the request a step.
ANSWER_WAIT_S = 100e-6
#: Acquires of one request, each without what the one before found missing.
ATTEMPTS = 3
LOOK_S = 1.0
ROOT = bytes(DIGEST_BYTES)
#: Objects of which just these are not there: what is shorter may still do.
LOST = (Status.MISS, Status.CORRUPT, Status.IO_ERROR)

Answer = tuple[Optional[int], bool]


@dataclass
class Lease:
    """What one acquire was granted; `keys` is empty while it is in flight."""

    call: Call
    asked: list[bytes]
    keys: frozenset[bytes] = frozenset()
    token: bytes = b""


@dataclass
class Plan:
    """One request."""

    context: Any  #: vLLM's ReqContext
    request: Any = None
    began: int = 0  #: tokens that need no prefill
    present: dict[bytes, int] = field(default_factory=dict)
    wanted: list[bytes] = field(default_factory=list)
    lost: set[bytes] = field(default_factory=set)
    closed: bool = False  #: finds nothing any more
    attempts: int = 0
    asked: Optional[Lease] = None
    held: Optional[Lease] = None
    loading: Optional[Lease] = None
    finished: bool = False
    mixed: bool = False  #: its pages were computed in part before a reset: not to be stored

    def position(self, key: bytes) -> int:
        """Tokens up to the key's boundary."""
        return self.context.get_offload_key_position(key) or 0


class KvtierManager(OffloadingManager):
    def __init__(self, session: Session, engine: Engine, options: Options) -> None:
        self._session, self._engine, self._options = session, engine, options
        self._metrics = metrics.Metrics()
        self._plans: dict[str, Plan] = {}
        self._storing: set[bytes] = set()
        self._abandoned: list[Lease] = []  #: cancelled; a grant may still be on its way
        # Cells are (group, shard) in order; layouts without scratch have one for each.
        shards = (1 << engine.shards) - 1
        self._masks = {
            facts.group_id: shards << i * engine.shards for i, facts in enumerate(engine.groups)
        }
        self._numbers = {facts.group_id: i for i, facts in enumerate(engine.groups)}
        self._veil = b""  #: see reset_cache()
        self._attached: Optional[bool] = None
        self._looked_at = 0.0
        self._look_at_daemon()

    # ---- loads ----

    def match(self, request: Any, n_local: int, ask: Callable[[], Answer]) -> Answer:
        """The answer of vLLM's own search, `ask`, for as much as is leased."""
        plan, patience = self._plans[request.request_id], 0.0
        while True:
            if plan.asked and not self._settle(plan, patience):
                return None, False
            if not plan.held:
                self._look(plan, n_local)
            tokens, is_async = ask()
            if plan.held:
                break
            if not tokens:
                plan.began = n_local
                return tokens, is_async
            self._acquire(plan, n_local + tokens)
            patience = ANSWER_WAIT_S
        if tokens == 0:
            self._drop(plan.held)
            plan.held = None
        plan.began = n_local + (tokens or 0)
        return tokens, is_async

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        plan = self._plans.get(req_context.req_id)
        if plan is None:
            return LookupResult.MISS
        if plan.held:
            return LookupResult.HIT if key in plan.held.keys else LookupResult.MISS
        mask = self._masks[get_offload_group_idx(key)]
        if plan.present.get(get_offload_block_hash(key), 0) & mask != mask or key in plan.lost:
            return LookupResult.MISS
        plan.wanted.append(key)
        return LookupResult.HIT

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> KeysSpec:
        plan = self._plans[req_context.req_id]
        plan.loading, plan.held = plan.held, None
        plan.attempts = 0
        self._metrics.count(metrics.KEYS_LOADED, len(keys))
        return KeysSpec(
            digests=b"".join(self._digest(get_offload_block_hash(key)) for key in keys),
            groups=[self._numbers[get_offload_group_idx(key)] for key in keys],
            token=plan.loading.token if plan.loading else b"",
        )

    def get_load_source(self, key: Any, req_context: Any) -> CacheHitSource:
        return CacheHitSource.HOST

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        plan = self._plans.get(req_context.req_id)
        if plan is None:
            return
        self._drop(plan.loading)
        plan.loading = None
        if plan.finished:
            del self._plans[req_context.req_id]

    def load_failed(self, req_id: str) -> None:
        """Some worker could not: what is computed again now is not offered again."""
        self._metrics.count(metrics.LOADS_FAILED)
        if plan := self._plans.get(req_id):
            plan.closed = True

    def _look(self, plan: Plan, n_local: int) -> None:
        """What the table shows of the request's blocks, from the local prefix on."""
        plan.wanted.clear()
        plan.present = {}
        if plan.closed:
            return
        hashes = plan.request.block_hashes[n_local // self._engine.tokens_per_hash :]
        if hashes:
            plan.present = dict(zip(hashes, self._present(hashes)))

    def _present(self, hashes: Any) -> Any:
        present, _ = self._session.probe(b"".join(map(self._digest, hashes)))
        return present

    def _acquire(self, plan: Plan, boundary: int) -> None:
        keys = self._needed(plan, boundary)
        n = self._engine.shards
        plan.attempts += 1
        if plan.attempts > ATTEMPTS or len(keys) * n > 65536:
            plan.closed = True
            return
        digests = b"".join(self._digest(get_offload_block_hash(key)) * n for key in keys)
        groups = [self._numbers[get_offload_group_idx(key)] for key in keys for _ in range(n)]
        objects = Objects(digests, group=groups, shard=list(range(n)) * len(keys))
        call = self._session.acquire_objects(
            objects, timeout=self._options.load_timeout, waited=True
        )
        plan.asked = Lease(call, keys)

    def _needed(self, plan: Plan, boundary: int) -> list[bytes]:
        """Of the keys that vLLM found, those that it loads for this boundary, or some more."""
        chunk = self._engine.chunk_tokens
        end = -(-boundary // chunk) * chunk
        firsts = {facts.group_id: 0 for facts in self._engine.groups}
        for facts in self._engine.groups:
            if facts.is_state:
                firsts[facts.group_id] = end - chunk
            elif facts.window_tokens:
                firsts[facts.group_id] = boundary - facts.window_tokens - chunk
        return [
            key
            for key in dict.fromkeys(plan.wanted)
            if firsts[get_offload_group_idx(key)] < plan.position(key) <= end
        ]

    def _settle(self, plan: Plan, seconds: float) -> bool:
        """True when the acquire has been answered, to the end."""
        lease = plan.asked
        assert lease
        done = lease.call.wait(seconds)
        if done is None:
            return False
        plan.asked = None
        self._metrics.count(metrics.ACQUIRES, 1, done.status.name)
        if done.status is Status.OK:
            lease.keys, lease.token = frozenset(lease.asked), done.token
            plan.held = lease
            return True
        if done.status in LOST:
            plan.lost.update(self._lost(lease))
        # Anything else is as true of any shorter prefix, or does not get better by asking.
        plan.closed = done.status not in LOST or not plan.lost
        self._drop(lease)
        return True

    def _lost(self, lease: Lease) -> list[bytes]:
        assert lease.call.objects
        shards = self._engine.shards
        statuses = enumerate(lease.call.objects.statuses)
        return [lease.asked[i // shards] for i, status in statuses if status in LOST]

    def _drop(self, lease: Optional[Lease]) -> None:
        if lease is None or lease.call.objects is None:
            return
        leased = lease.call.objects.leased()
        if len(leased):
            self._session.release_objects(leased, timeout=None)

    # ---- stores ----

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> PrepareStoreOutput:
        plan = self._plans.get(req_context.req_id)
        new: list[Any] = []
        if plan is not None and not plan.mixed and self._attached:
            new = self._not_stored(plan, list(keys))
            self._metrics.count(metrics.KEYS_OFFERED, len(keys))
            self._metrics.count(metrics.KEYS_STORED_ALREADY, len(keys) - len(new))
        self._storing.update(new)
        spec = self._store_spec(plan, new) if plan and new else KeysSpec()
        return PrepareStoreOutput(keys_to_store=new, store_spec=spec, evicted_keys=[])

    def complete_store(
        self, keys: Collection[Any], req_context: Any, success: bool = True
    ) -> None:
        self._storing.difference_update(keys)

    def _not_stored(self, plan: Plan, keys: list[Any]) -> list[Any]:
        present = self._present([get_offload_block_hash(key) for key in keys])
        masks = (self._masks[get_offload_group_idx(key)] for key in keys)
        return [
            key
            for key, bits, mask in zip(keys, present, masks)
            if bits & mask != mask
            and key not in self._storing
            and self._is_chunk_end(plan.position(key))
        ]

    def _is_chunk_end(self, tokens: int) -> bool:
        """vLLM may also offer tails of less than a chunk."""
        return tokens > 0 and tokens % self._engine.chunk_tokens == 0

    def _store_spec(self, plan: Plan, keys: list[Any]) -> KeysSpec:
        ends = [plan.position(key) for key in keys]
        return KeysSpec(
            digests=b"".join(self._digest(get_offload_block_hash(key)) for key in keys),
            groups=[self._numbers[get_offload_group_idx(key)] for key in keys],
            parents=b"".join(self._boundary(plan, end - self._engine.chunk_tokens) for end in ends),
            ends=ends,
            hit_tokens=plan.began,
        )

    def _boundary(self, plan: Plan, tokens: int) -> bytes:
        if tokens <= 0:
            return ROOT
        return self._digest(plan.request.block_hashes[tokens // self._engine.tokens_per_hash - 1])

    def _digest(self, block_hash: bytes) -> bytes:
        if len(block_hash) != DIGEST_BYTES:
            raise ValueError(f"kvtier: a block hash of {len(block_hash)} bytes")
        if not self._veil:
            return block_hash
        mixed = int.from_bytes(block_hash, "big") ^ int.from_bytes(self._veil, "big")
        return mixed.to_bytes(DIGEST_BYTES, "big")

    # ---- requests, steps, the end ----

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._plans[req_context.req_id] = Plan(req_context)
        return RequestOffloadingContext()

    def watch(self, request: Any) -> None:
        """The request of a new plan: its block hashes grow with it."""
        self._plans[request.request_id].request = request

    def on_request_finished(self, req_context: Any) -> None:
        plan = self._plans.get(req_context.req_id)
        if plan is None:
            return
        self._give_up(plan)
        plan.finished = True
        if plan.loading is None:
            del self._plans[req_context.req_id]

    def _give_up(self, plan: Plan) -> None:
        if plan.asked:
            self._session.cancel(plan.asked.call)
            self._abandoned.append(plan.asked)
            plan.asked = None
        self._drop(plan.held)
        plan.held = None

    def on_schedule_end(self, context: Any) -> None:
        self._session.poll()
        for lease in list(self._abandoned):
            if lease.call.wait(0.0):
                self._drop(lease)
                self._abandoned.remove(lease)
        self._look_at_daemon()

    def has_pending_work(self) -> bool:
        return bool(self._abandoned)

    def reset_cache(self) -> None:
        """vLLM's weights may be others now: what was stored so far is not found again.

        It stays in the daemon for engines that still want it; this one uses names of its own
        from here on, until it is started anew.
        """
        self._veil = os.urandom(DIGEST_BYTES)
        self._storing.clear()
        for req_id, plan in list(self._plans.items()):
            self._give_up(plan)
            # vLLM goes on with what a running request has, and offers it once more.
            plan.mixed |= bool(plan.loading or plan.request.num_computed_tokens)
            # It will not say when workers have reported: they hold leases of their own, or fail.
            self._drop(plan.loading)
            plan.loading = None
            if plan.finished:
                del self._plans[req_id]

    def get_stats(self) -> Any:
        return self._metrics.take()

    def shutdown(self) -> None:
        self._session.close()

    def _look_at_daemon(self) -> None:
        """Notices, and logs once, that the daemon has come or gone."""
        now = time.monotonic()
        if self._attached and now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        info = self._session.info()
        attached = info.attached and not info.pending
        if attached == self._attached:
            return
        if attached:
            logger.info("kvtier: attached, layout %s", info.layout_id.hex()[:16])
        elif not info.pending or self._attached:
            logger.warning(
                "kvtier: no daemon, nothing is stored or found: %s", info.last_error or "no answer"
            )
        self._attached = attached
        self._metrics.gauge(metrics.ATTACHED, attached)
