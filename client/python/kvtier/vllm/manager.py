# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: what is stored, and leases on what is going to be loaded.

`match` lets vLLM search twice. First the presence table answers, without a message: that gives
the boundary that vLLM would choose, and with it what it takes. That is acquired in one call.
Then only what was granted, all of it in host memory, is a hit. The leases of a request are held
until all workers have reported the load, or until the request needs none, or for as long as a
load may take when vLLM finds no room for it. What a peer has is brought here before all that, once
for a request (`fetches.py`). All in the scheduler's thread.
"""
from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Optional

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import DIGEST_BYTES, Objects, Session, Status
from ..attachment import Attachment
from . import metrics
from .engine import Engine
from .fetches import Fetch, Fetches
from .names import Names
from .options import Options
from .plan import Lease, Plan, Span
from .transfer import OBJECTS_MAX, KeysSpec

logger = logging.getLogger("vllm.kvtier")

#: Of a request's kv_transfer_params; true: it finds nothing here, and nothing of it is stored.
BYPASS_KEY = "kvtier_bypass"
#: An answer that comes within this time spares the request a step.
ANSWER_WAIT_S = 100e-6
#: Acquires of one request, each without what the one before found missing.
ATTEMPTS = 3
#: Objects of which just these are not there: what is shorter may still do.
LOST = (Status.MISS, Status.CORRUPT, Status.IO_ERROR)

Answer = tuple[Optional[int], bool]


class KvtierManager(OffloadingManager):
    def __init__(self, session: Session, engine: Engine, options: Options) -> None:
        self._session, self._engine, self._options = session, engine, options
        self._metrics = metrics.Metrics()
        self._plans: dict[str, Plan] = {}
        self._storing: set[bytes] = set()
        self._abandoned: list[Lease] = []  #: cancelled; a grant may still be on its way
        self._granted: deque[tuple[Lease, Plan]] = deque()  #: by the time that they may be held
        self._unreleased: list[Objects] = []  #: the library had no room for the call
        self._names = Names()
        # By vLLM's group numbers. Cells are (group, shard) in order; layouts without scratch
        # have one for each.
        n_groups = 1 + max(facts.group_id for facts in engine.groups)
        self._masks, self._numbers = np.zeros(n_groups, np.uint64), np.zeros(n_groups, np.uint16)
        for i, facts in enumerate(engine.groups):
            self._masks[facts.group_id] = (1 << engine.shards) - 1 << i * engine.shards
            self._numbers[facts.group_id] = i
        #: Cells that a prefix needs of every chunk.
        self._kv_mask = np.bitwise_or.reduce(
            [
                self._masks[facts.group_id]
                for facts in engine.groups
                if not facts.is_state and not facts.window_tokens
            ],
            initial=np.uint64(0),
        )
        self.fetches = Fetches(session, options, self._metrics)
        session.tell(batch_tokens=engine.batch_tokens)
        self._attached = Attachment(
            session, logger, partial(self._metrics.gauge, metrics.ATTACHED)
        )

    # ---- loads ----

    def match(self, request: Any, n_local: int, ask: Callable[[], Answer]) -> Answer:
        """The answer of vLLM's own search, `ask`, for as much as is leased."""
        answer = self._match(request, n_local, ask)
        if answer[0] is not None:
            self._tell(self._plans[request.request_id], n_local, answer[0])
        return answer

    def _match(self, request: Any, n_local: int, ask: Callable[[], Answer]) -> Answer:
        plan, patience = self._plans[request.request_id], 0.0
        first = n_local // self._engine.chunk_tokens
        answer: Answer = None, False
        if plan.peer and not self._is_fetched(plan, n_local, ask):
            return answer
        while True:
            if plan.asked and not self._settle(plan, patience):
                return None, False
            if plan.held and first < plan.first:
                # vLLM has lost some of its own prefix since.
                self._let_go(plan)
            if plan.held and patience:
                break  # just granted: vLLM would find the same once more
            if not plan.held:
                self._look(plan, first)
            answer = tokens, _ = ask()
            if plan.held:
                break
            if not tokens:
                plan.began = n_local
                return answer
            self._acquire(plan, n_local + tokens)
            patience = ANSWER_WAIT_S
        if answer[0] == 0:
            self._let_go(plan)
        plan.began = n_local + (answer[0] or 0)
        return answer

    def _tell(self, plan: Plan, n_local: int, n_hit: int) -> None:
        """Of each request once: preempted, it asks for more than its prompt."""
        if plan.told:
            return
        plan.told = True
        tokens = max(0, plan.request.num_tokens - n_local)
        misses = np.flatnonzero(plan.present & self._kv_mask != self._kv_mask)
        kv_chunks = plan.first + (int(misses[0]) if len(misses) else len(plan.present))
        n_kv = min(tokens, max(n_hit, kv_chunks * self._engine.chunk_tokens - n_local))
        self._session.tell(
            prompts=1,
            prompt_tokens=tokens,
            tail_tokens=min(tokens, plan.request.num_tokens % self._engine.chunk_tokens),
            kv_tokens=n_kv,
            hit_tokens=min(tokens, n_hit),
        )

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        plan = self._plans.get(req_context.req_id)
        if plan is None:
            return LookupResult.MISS
        tokens = req_context.get_offload_key_position(key) or 0
        if not self._is_chunk_end(tokens):
            return LookupResult.MISS
        group, chunk = get_offload_group_idx(key), tokens // self._engine.chunk_tokens - 1
        found = plan.hits(group, self._masks[group], chunk, 1)[0]
        return LookupResult.HIT if found else LookupResult.MISS

    def leading(self, req_context: Any, group: int, first: int, n: int) -> int:
        """How many of n chunks of vLLM's group can be had, from the first on."""
        plan = self._plans.get(req_context.req_id)
        return plan.leading(group, self._masks[group], first, n) if plan else 0

    def hits(self, req_context: Any, group: int, key: Any, n: int) -> np.ndarray:
        """Which of n chunks of vLLM's group, from the key's on; shape (n,), bool."""
        plan = self._plans.get(req_context.req_id)
        tokens = req_context.get_offload_key_position(key) or 0
        if plan is None or not self._is_chunk_end(tokens):
            return np.zeros(n, bool)
        return plan.hits(group, self._masks[group], tokens // self._engine.chunk_tokens - 1, n)

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> KeysSpec:
        plan = self._plans[req_context.req_id]
        plan.loading, plan.held = plan.held, None
        plan.attempts = 0
        self._metrics.count(metrics.KEYS_LOADED, len(keys))
        digests, groups = self._names.of_keys(keys)
        return KeysSpec(
            digests=digests,
            groups=self._numbers[groups].tolist(),
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

    def _look(self, plan: Plan, first: int) -> None:
        """What the table shows of the request's chunks, from the local prefix on."""
        if plan.closed:
            plan.see(first, np.zeros(0, np.uint64))
            return
        self._name_chunks(plan)
        present, _ = self._session.probe(memoryview(plan.digests)[first * DIGEST_BYTES :])
        plan.see(first, np.asarray(present))

    def _name_chunks(self, plan: Plan) -> None:
        """Those that are complete by now."""
        hashes = self._engine.chunk_tokens // self._engine.tokens_per_hash
        named = len(plan.digests) // DIGEST_BYTES
        new = plan.request.block_hashes[(named + 1) * hashes - 1 :: hashes]
        if new:
            plan.digests += self._names.digests(new)

    # ---- what a peer has ----

    def _is_fetched(self, plan: Plan, n_local: int, ask: Callable[[], Answer]) -> bool:
        """False: something may still come. Once True, the plan has no peer any more."""
        peer, fetch, first = plan.peer, plan.fetch, n_local // self._engine.chunk_tokens
        assert peer
        if fetch is None:
            self._look(plan, first)
            fetch = plan.fetch = self._begin_fetch(plan)
        is_enough = False
        if fetch and not self.fetches.is_over(fetch):
            if not peer.waits or not self.fetches.may_look(fetch):
                return False
            # Not all that there might be is needed, or exists.
            self._look(plan, first)
            is_enough = n_local + (ask()[0] or 0) >= self._reach(plan) * self._engine.chunk_tokens
            if not is_enough:
                return False
        if fetch:
            self.fetches.end(fetch, peer, is_enough)
        plan.peer = plan.fetch = None
        return True

    def _begin_fetch(self, plan: Plan) -> Optional[Fetch]:
        assert plan.peer
        n = max(0, self._reach(plan) - plan.first)
        shards = self._engine.shards
        cells = np.arange(len(self._engine.groups) * shards, dtype=np.uint64)
        present = plan.present[:n, None] >> cells & np.uint64(1)
        digests = plan.digest_table()[plan.first : plan.first + n]
        return self.fetches.begin(plan.peer, digests, present == 0, shards)

    def _reach(self, plan: Plan) -> int:
        """Chunks of the longest prefix that vLLM may find."""
        # What is not attention serves just the token behind it, which has to be computed.
        needs_end = any(facts.is_state or facts.window_tokens for facts in self._engine.groups)
        tokens = plan.request.num_tokens - needs_end
        return int(min(tokens // self._engine.chunk_tokens, len(plan.digests) // DIGEST_BYTES))

    # ---- leases ----

    def _acquire(self, plan: Plan, boundary: int) -> None:
        spans, n = self._needed(plan, boundary), self._engine.shards
        plan.attempts += 1
        n_objects = n * sum(end - first for first, end in spans.values())
        if plan.attempts > ATTEMPTS or not 0 < n_objects <= OBJECTS_MAX:
            plan.closed = True
            return
        lease = Lease(None, spans)  # type: ignore[arg-type]
        chunks, groups = lease.objects(n)
        shards: Any = np.tile(np.arange(n, dtype=np.uint16), n_objects // n)
        objects = Objects(
            plan.digest_table()[chunks], group=self._numbers[groups], shard=shards
        )
        lease.call = self._session.acquire_objects(
            objects, partial=True, timeout=self._options.load_timeout, waited=True
        )
        plan.asked = lease

    def _needed(self, plan: Plan, boundary: int) -> dict[int, Span]:
        """Of what vLLM found, that which it loads for this boundary, or some more."""
        chunk = self._engine.chunk_tokens
        end = -(-boundary // chunk)
        spans: dict[int, Span] = {}
        for facts in self._engine.groups:
            group, first = facts.group_id, plan.first
            if facts.is_state:
                first = end - 1
            elif facts.window_tokens:
                first = (boundary - facts.window_tokens) // chunk - 1
            spans[group] = plan.run_to(end, group, self._masks[group], first), end
        return spans

    def _settle(self, plan: Plan, seconds: float) -> bool:
        """True when the acquire has been answered, to the end."""
        lease = plan.asked
        assert lease
        done = lease.call.wait(seconds)
        if done is None:
            return False
        plan.asked = None
        assert lease.call.objects
        short = done.status is Status.OK and done.n_granted < len(lease.call.objects)
        status = Status.MISS if short else done.status
        self._metrics.count(metrics.ACQUIRES, 1, status.name)
        if status is Status.OK:
            lease.token, lease.until = done.token, time.monotonic() + self._options.load_timeout
            plan.held = lease
            self._granted.append((lease, plan))
            return True
        lost = self._lost(lease, done.n_granted) if status in LOST else []
        plan.lost += lost
        # Anything else is as true of any shorter prefix, or does not get better by asking.
        plan.closed = not lost
        self._drop(lease)
        return True

    def _lost(self, lease: Lease, n_granted: int) -> list[tuple[int, int]]:
        """The (chunk, mask) that failed; behind the first missing one nothing was looked at."""
        assert lease.call.objects
        statuses = np.asarray(lease.call.objects.statuses)[: n_granted + 1]
        which = np.flatnonzero(np.isin(statuses, LOST))
        chunks, groups = (part[which] for part in lease.objects(self._engine.shards))
        return list(zip(chunks.tolist(), self._masks[groups].tolist()))

    def _let_go(self, plan: Plan) -> None:
        self._drop(plan.held)
        plan.held = None

    def _drop(self, lease: Optional[Lease]) -> None:
        if lease is None or lease.call.objects is None:
            return
        leased = lease.call.objects.leased()
        if len(leased):
            self._release(leased)

    def _release(self, leased: Objects) -> None:
        call = self._session.release_objects(leased, timeout=None)
        # Without a session there is nothing to release either.
        if call.done and call.completion and call.completion.status is Status.REFUSED:
            self._unreleased.append(leased)

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
        digests, groups = self._names.of_keys(keys)
        present, _ = self._session.probe(digests)
        masks = self._masks[groups]
        return [
            keys[i]
            for i in np.flatnonzero(np.asarray(present) & masks != masks).tolist()
            if keys[i] not in self._storing and self._is_chunk_end(self._position(plan, keys[i]))
        ]

    @staticmethod
    def _position(plan: Plan, key: Any) -> int:
        """Tokens up to the key's boundary."""
        return plan.context.get_offload_key_position(key) or 0

    def _is_chunk_end(self, tokens: int) -> bool:
        """vLLM may also offer tails of less than a chunk."""
        return tokens > 0 and tokens % self._engine.chunk_tokens == 0

    def _store_spec(self, plan: Plan, keys: list[Any]) -> KeysSpec:
        self._name_chunks(plan)
        ends = [self._position(plan, key) for key in keys]
        digests, groups = self._names.of_keys(keys)
        chunk = self._engine.chunk_tokens
        return KeysSpec(
            digests=digests,
            groups=self._numbers[groups].tolist(),
            parents=b"".join(plan.digest(end // chunk - 2) for end in ends),
            ends=ends,
            hit_tokens=plan.began,
        )

    # ---- requests, steps, the end ----

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        params = req_context.kv_transfer_params
        plan = Plan(req_context, peer=self.fetches.peer(params))
        if (params or {}).get(BYPASS_KEY) is True:
            plan.bypass()
        self._plans[req_context.req_id] = plan
        return RequestOffloadingContext()

    def watch(self, request: Any) -> None:
        """The request of a new plan: its block hashes grow with it."""
        plan = self._plans[request.request_id]
        plan.request = request
        if request.skip_reading_prefix_cache:
            plan.peer = None

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
        if plan.fetch:
            self.fetches.cancel(plan.fetch)
        plan.peer = plan.fetch = None
        self._let_go(plan)

    def on_schedule_end(self, context: Any) -> None:
        self._session.poll()
        self._release_late()
        self._attached.look()

    def _release_late(self) -> None:
        """What could not be before, or nobody has come for."""
        unreleased, self._unreleased = self._unreleased, []
        for leased in unreleased:
            self._release(leased)
        for lease in list(self._abandoned):
            if lease.call.wait(0.0):
                self._drop(lease)
                self._abandoned.remove(lease)
        now = time.monotonic()
        while self._granted and self._granted[0][0].until <= now:
            lease, plan = self._granted.popleft()
            if plan.held is lease:
                self._let_go(plan)
                plan.closed = True

    def has_pending_work(self) -> bool:
        return bool(self._abandoned or self._unreleased)

    def reset_cache(self) -> None:
        """vLLM's weights may be others now: what was stored so far is not found again.

        It stays in the daemon for engines that still want it; this one uses names of its own
        from here on, until it is started anew.
        """
        self._names.change()
        self.fetches.turn_off()
        self._storing.clear()
        for req_id, plan in list(self._plans.items()):
            self._give_up(plan)
            plan.digests = b""
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
