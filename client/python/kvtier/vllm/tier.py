# SPDX-License-Identifier: Apache-2.0
"""kvtier beneath vLLM's own pool of host memory: a secondary tier of its tiering.

vLLM copies between its pool and the device; this moves what it promotes and cascades between
the pool and the daemon. A row of the pool holds a chunk of all ranks: it is one page of a map
over the pool's memory, and one object. All in the scheduler's thread, which waits for nothing but
for jobs in flight before a reset and at the end: the library copies, and what has ended is
collected once a step.
"""
from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Optional, Sequence

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .. import DIGEST_BYTES, Call, Objects, PageGroup, PageMap, PageView, Session
from ..attachment import Attachment
from ..status import STORED
from . import metrics
from .engine import ENGINE_KEY, Engine
from .names import Names
from .options import Options
from .transfer import OBJECTS_MAX

logger = logging.getLogger("vllm.kvtier")

#: Calls have deadlines; this is how often a wait for them looks again.
WAIT_S = 1.0
ROOT = bytes(DIGEST_BYTES)


@dataclass
class Plan:
    """One request."""

    present: dict[bytes, bool] = field(default_factory=dict)
    looked_in: int = -1  #: the step of `present`
    lost: set[bytes] = field(default_factory=set)  #: keys whose load failed: not offered again
    ends: dict[int, bytes] = field(default_factory=dict)  #: tokens up to a boundary: its hash
    seen: int = 0  #: keys of the context that `ends` has
    mixed: bool = False  #: computed in part before a reset: not to be stored


@dataclass
class Job:
    """A job of vLLM's, which may take several calls."""

    number: int
    is_load: bool
    keys: list[bytes]
    plan: Optional[Plan]
    calls: int = 0
    done: list[bytes] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


class KvtierTier(SecondaryTierManager):
    """`{"type": "KvtierTier", "module_path": "kvtier.vllm"}` of `secondary_tiers`."""

    medium = Medium.STORAGE

    @classmethod
    def build_metric_definitions(cls, extra_config: Any) -> dict[str, Any]:
        return dict(metrics.DEFINITIONS)

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: Optional[str] = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality else None
        self._options = Options.of(offloading_spec.extra_config)
        if self._options.codec:
            raise ValueError("kvtier: kvtier_codec is not for a tier beneath vLLM's pool")
        if self._options.peer or self._options.address:
            raise ValueError("kvtier: kvtier_peer and kvtier_address are for KvtierConnector")
        engine = offloading_spec.extra_config.get(ENGINE_KEY)
        if engine is None:
            raise ValueError(
                'kvtier: KvtierTier needs "kv_connector": "KvtierTieringConnector", '
                '"kv_connector_module_path": "kvtier.vllm"; '
                "vLLM's own connector does not tell what its bytes mean"
            )
        self._engine: Engine = engine
        self._numbers = np.zeros(1 + max(facts.group_id for facts in engine.groups), np.uint16)
        for i, facts in enumerate(engine.groups):
            self._numbers[facts.group_id] = i
        self._open(primary_kv_view)
        self._names = Names()
        self._metrics = metrics.Metrics()
        self._attached = Attachment(
            self._session, logger, partial(self._metrics.gauge, metrics.ATTACHED)
        )
        self._plans: dict[str, Plan] = {}
        self._jobs: dict[int, Job] = {}
        self._calls: dict[Call, tuple[Job, list[bytes]]] = {}
        self._early: list[Any] = []  #: completions of calls that could not be submitted
        self._finished: list[JobResult] = []
        self._sets = self._step = 0

    def _open(self, pool: memoryview) -> None:
        assert pool.shape is not None and pool.strides is not None
        n_rows, row_bytes = pool.shape
        engine = self._engine
        self._session = Session(
            engine.pool_layout(row_bytes),
            socket=self._options.socket,
            program="vllm tier",
            engine_id=engine.engine_id,
            connect_timeout=self._options.connect_timeout,
        )
        # No reference to the pool: vLLM releases it after this tier has been shut down.
        address = np.frombuffer(pool, np.uint8).ctypes.data
        view = PageView(address, pool.strides[0], row_bytes)
        self._map = PageMap(
            self._session, [PageGroup([view], n_rows, group=i) for i in range(len(engine.groups))]
        )

    # ---- what is stored ----

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        plan = self._plans.get(req_context.req_id)
        if plan is None or key in plan.lost:
            return LookupResult.MISS
        if plan.looked_in != self._step or key not in plan.present:
            self._look(plan, {**_positions(req_context), key: 0})
        return LookupResult.HIT if plan.present[key] else LookupResult.MISS

    def _look(self, plan: Plan, keys: Collection[bytes]) -> None:
        """At all keys of the request: vLLM asks for one after the other."""
        plan.present = dict(zip(keys, self._present(keys)))
        plan.looked_in = self._step

    def _present(self, keys: Collection[bytes]) -> list[bool]:
        digests, groups = self._names.of_keys(keys)
        present, _ = self._session.probe(digests)
        cells = self._numbers[groups].astype(np.uint64)
        found: list[bool] = (np.asarray(present) >> cells & np.uint64(1)).astype(bool).tolist()
        return found

    # ---- jobs ----

    def submit_store(self, job_metadata: Any) -> None:
        job = self._new_job(job_metadata, is_load=False)
        keys, slots = job.keys, job_metadata.chunk_ids.tolist()
        positions = _positions(job_metadata.req_context)
        new: list[int] = []
        if job.plan and not job.plan.mixed and self._attached:
            self._note_ends(job.plan, positions)
            present = self._present(keys)
            missing = [i for i, found in enumerate(present) if not found]
            new = [i for i in missing if self._is_end(positions, keys[i])]
            job.done += [key for key, found in zip(keys, present) if found]
            self._metrics.count(metrics.KEYS_OFFERED, len(keys))
            self._metrics.count(metrics.KEYS_STORED_ALREADY, len(job.done))
        sets: dict[bytes, list[int]] = defaultdict(list)
        for i in new:
            # The states of a boundary are of use together only.
            sets[keys[i][:DIGEST_BYTES] if self._is_state(keys[i]) else b""].append(i)
        for name, members in sets.items():
            for at in range(0, len(members), OBJECTS_MAX):
                which = members[at : at + OBJECTS_MAX]
                part = [keys[i] for i in which], [slots[i] for i in which]
                self._store(job, *part, positions, name)
        self._end_if_done(job)

    def _store(
        self,
        job: Job,
        keys: list[bytes],
        slots: Sequence[int],
        positions: dict[bytes, int],
        set_name: bytes,
    ) -> None:
        assert job.plan
        digests, groups = self._names.of_keys(keys)
        ends = [positions[key] for key in keys]
        chunk = self._engine.chunk_tokens
        parents = [job.plan.ends.get(end - chunk, ROOT) for end in ends]
        objects = Objects(
            digests,
            group=self._numbers[groups],
            parents=self._parents(parents),
            boundary_tokens=ends,
        )
        objects.set_slots(slots, 1)
        self._sets += bool(set_name)
        self._track(
            job,
            keys,
            self._session.store_pages(
                self._map,
                objects,
                set_id=self._sets if set_name else 0,
                timeout=self._options.store_timeout,
            ),
        )

    def _parents(self, hashes: list[bytes]) -> bytes:
        """A root keeps its name."""
        names = self._names.digests(hashes)
        return b"".join(
            ROOT if name == ROOT else names[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
            for i, name in enumerate(hashes)
        )

    def submit_load(self, job_metadata: Any) -> None:
        job = self._new_job(job_metadata, is_load=True)
        self._metrics.count(metrics.KEYS_LOADED, len(job.keys))
        slots = job_metadata.chunk_ids.astype(np.uint32)
        for at in range(0, len(job.keys), OBJECTS_MAX):
            end = at + OBJECTS_MAX
            self._load(job, job.keys[at:end], slots[at:end])
        self._end_if_done(job)

    def _load(self, job: Job, keys: list[bytes], slots: Any) -> None:
        digests, groups = self._names.of_keys(keys)
        objects = Objects(digests, group=self._numbers[groups])
        objects.set_slots(slots, 1)
        self._track(
            job,
            keys,
            self._session.load_pages(
                self._map, objects, partial=True, timeout=self._options.load_timeout
            ),
        )

    def _new_job(self, metadata: Any, is_load: bool) -> Job:
        plan = self._plans.get(metadata.req_context.req_id)
        job = Job(metadata.job_id, is_load, list(metadata.keys), plan)
        self._jobs[job.number] = job
        return job

    def _is_end(self, positions: dict[bytes, int], key: bytes) -> bool:
        """vLLM may also offer tails of less than a chunk."""
        tokens = positions.get(key, 0)
        return tokens > 0 and tokens % self._engine.chunk_tokens == 0

    def _is_state(self, key: bytes) -> bool:
        number = self._numbers[int.from_bytes(key[DIGEST_BYTES:], "big")]
        return bool(self._engine.groups[number].is_state)

    @staticmethod
    def _note_ends(plan: Plan, positions: dict[bytes, int]) -> None:
        for key, end in islice(positions.items(), plan.seen, None):
            plan.ends[end] = key[:DIGEST_BYTES]
        plan.seen = len(positions)

    # ---- calls ----

    def _track(self, job: Job, keys: list[bytes], call: Call) -> None:
        job.calls += 1
        self._calls[call] = job, keys
        if call.done:
            self._early.append(call.completion)

    def _take(self, completions: Iterable[Any]) -> None:
        for completion in completions:
            if completion.call not in self._calls:
                continue
            job, keys = self._calls.pop(completion.call)
            statuses = completion.call.objects.statuses if completion.call.id else ()
            job.done += [
                key for key, status in zip_longest(keys, statuses) if status in STORED
            ]
            job.calls -= 1
            self._end_if_done(job)

    def _end_if_done(self, job: Job) -> None:
        if job.calls:
            return
        del self._jobs[job.number]
        failed = len(job.done) < len(job.keys)
        if job.is_load and failed:
            self._metrics.count(metrics.LOADS_FAILED)
            if job.plan:
                job.plan.lost.update(set(job.keys).difference(job.done))
        self._finished.append(
            JobResult(
                job_id=job.number,
                success=not failed,
                successful_keys=job.done if job.is_load and failed else None,
                transfer_time=time.monotonic() - job.began,
                transfer_bytes=len(job.done) * self.block_size_bytes,
            )
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        early, self._early = self._early, []
        self._take(early)
        self._take(self._session.poll())
        finished, self._finished = self._finished, []
        return finished

    def drain_jobs(self) -> None:
        """Only called by a reset: what was stored so far is not found again by this engine.

        vLLM's weights may be others now; see `KvtierManager.reset_cache`.
        """
        self._wait()
        self._names.change()
        for plan in self._plans.values():
            plan.mixed = True
            plan.looked_in = -1

    def _wait(self) -> None:
        early, self._early = self._early, []
        self._take(early)
        while self._jobs:
            self._take(self._session.wait(WAIT_S))

    # ---- requests, steps, the end ----

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._plans[req_context.req_id] = Plan()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._plans.pop(req_context.req_id, None)

    def on_schedule_end(self, context: Any) -> None:
        self._step += 1
        self._attached.look()

    def get_stats(self) -> Any:
        return self._metrics.take()

    def shutdown(self) -> None:
        self._wait()
        self._map.close()
        self._session.close()


def _positions(req_context: Any) -> dict[bytes, int]:
    """Tokens up to the end of each key; vLLM's contexts know all keys of their requests."""
    positions: dict[bytes, int] = getattr(req_context, "_offload_key_positions", {})
    return positions
