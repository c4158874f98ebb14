# SPDX-License-Identifier: Apache-2.0
"""A worker's side: moves pages between vLLM's tensors and the daemon's memory.

The library copies, in threads of its own, on a GPU behind what the model's stream has been given;
nothing here waits for it. Stores of a step are one call for all pages, and one set for the states
of each boundary, which are of use together only. A store that fails is dropped, a load that fails
is told. All in the worker's main thread.
"""
from __future__ import annotations

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Sequence

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

from .. import Call, Completion, Objects, PageGroup, PageMap, PageView, Session, Tensor
from ..cuda import Cuda, CudaError
from ..refusal import Refused
from ..status import STORED
from .engine import Engine
from .options import Options
from .transfer import OBJECTS_MAX, KeysSpec, Piece, pieces

logger = logging.getLogger("vllm.kvtier")

#: Calls have deadlines; this is how often a wait for them looks again.
WAIT_S = 1.0


@dataclass
class Job:
    """A job of vLLM's, which may take several calls."""

    number: int
    is_load: bool
    calls: int = 0
    success: bool = True
    nbytes: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass
class Item:
    """One object that a job stores or loads."""

    job: Job
    spec: KeysSpec
    piece: Piece

    @property
    def group(self) -> int:
        return self.spec.groups[self.piece.key]

    @property
    def digest(self) -> bytes:
        return self.spec.digest(self.piece.key)

    @property
    def end(self) -> int:
        return self.spec.ends[self.piece.key]


class KvtierWorker(OffloadingWorker):
    def __init__(
        self, session: Session, engine: Engine, options: Options, kv_caches: Any
    ) -> None:
        self._session, self._engine, self._options = session, engine, options
        self._is_state = [facts.is_state for facts in engine.groups]
        self._page_bytes = [sum(ref.page_size_bytes for ref in refs) for refs in refs_of(kv_caches)]
        self._device = device_of(kv_caches)
        if self._device.type == "cuda":
            _use_gpu(session, self._device, options)
        self._map = PageMap(session, page_groups(engine, kv_caches))
        self._jobs: dict[int, Job] = {}
        self._queue: list[Item] = []
        self._calls: dict[Call, list[Item]] = {}
        self._early: list[Completion] = []  #: of calls that could not be submitted
        self._finished: list[TransferResult] = []
        self._sets = itertools.count(1)
        self._told = False

    # ---- what vLLM calls ----

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Queues; `flush` submits what a step has to store."""
        job = self._jobs[job_id] = Job(job_id, is_load=False)
        items = self._items(job, dst_spec, src_spec)
        self._queue += items
        if not items:
            self._finish(job)
        return True

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        """expedited: of vLLM 0.33; loads do not wait for stores here anyway."""
        job = self._jobs[job_id] = Job(job_id, is_load=True)
        items = self._items(job, src_spec, dst_spec)
        if len(items) != len(src_spec):
            job.success = False
            self._finish(job)
            return True
        whole = [item for item in items if self._is_whole(item)]
        self._load(whole, src_spec.token or None)
        # Pages of a chunk are nobody's to adopt, but the scheduler's lease keeps them there.
        self._load([item for item in items if not self._is_whole(item)], None)
        return True

    def get_finished(self) -> list[TransferResult]:
        self.flush()
        self._take_early()
        self._take(self._session.poll())
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Until none of them touches vLLM's memory any more."""
        self.flush()
        self._take_early()
        while not self._jobs.keys().isdisjoint(job_ids):
            self._take(self._session.wait(WAIT_S))

    def shutdown(self) -> None:
        self.wait(set(self._jobs))
        self._map.close()
        self._session.close()

    def _items(self, job: Job, spec: KeysSpec, gpu: Any) -> list[Item]:
        """None, logged once, of keys that no blocks can be told for."""
        per_chunk, whole = self._engine.blocks_per_chunk, not job.is_load
        try:
            found = list(pieces(spec, gpu, per_chunk, self._is_state, whole))
        except ValueError as why:
            if not self._told:
                logger.error("kvtier: a job of vLLM's is dropped: %s. Logged once.", why)
            self._told = True
            return []
        return [Item(job, spec, piece) for piece in found]

    # ---- stores ----

    def flush(self) -> None:
        """Submits the stores that are queued."""
        queue, self._queue = self._queue, []
        pages = [item for item in queue if not self._is_state[item.group]]
        for first in range(0, len(pages), OBJECTS_MAX):
            self._store(pages[first : first + OBJECTS_MAX], 0)
        states: dict[bytes, list[Item]] = defaultdict(list)
        for item in queue:
            if self._is_state[item.group]:
                states[item.digest].append(item)
        for items in states.values():
            self._store(items, next(self._sets))

    def _store(self, items: list[Item], set_id: int) -> None:
        if not items:
            return
        objects = Objects(
            b"".join(item.digest for item in items),
            group=[item.group for item in items],
            shard=self._engine.shard,
            parents=b"".join(item.spec.parent(item.piece.key) for item in items),
            boundary_tokens=[item.end for item in items],
            hit_tokens=[min(item.spec.hit_tokens, item.end) for item in items],
        )
        self._set_slots(objects, items)
        call = self._session.store_pages(
            self._map,
            objects,
            set_id=set_id,
            after=self._event(),
            timeout=self._options.store_timeout,
        )
        self._track(call, items)

    # ---- loads ----

    def _is_whole(self, item: Item) -> bool:
        per_chunk = self._engine.blocks_per_chunk
        return self._is_state[item.group] or len(item.piece.blocks) == per_chunk

    def _load(self, items: list[Item], token: bytes | None) -> None:
        if not items:
            return
        objects = Objects(
            b"".join(item.digest for item in items),
            group=[item.group for item in items],
            shard=self._engine.shard,
        )
        if not self._is_whole(items[0]):
            pages = [item.piece.first + i for item in items for i in range(len(item.piece.blocks))]
            objects.set_pages(pages, [len(item.piece.blocks) for item in items])
        self._set_slots(objects, items)
        call = self._session.load_pages(
            self._map,
            objects,
            token=token,
            after=self._event(),
            timeout=self._options.load_timeout,
        )
        self._track(call, items)

    # ---- calls ----

    def _event(self) -> Any:
        """On a GPU copies wait for the model: it writes what is stored, and may still read, for
        another request, what a load overwrites."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.current_stream(self._device).record_event()

    @staticmethod
    def _set_slots(objects: Objects, items: Sequence[Item]) -> None:
        slots = [block for item in items for block in item.piece.blocks]
        objects.set_slots(slots, [len(item.piece.blocks) for item in items])

    def _track(self, call: Call, items: list[Item]) -> None:
        for job in {id(item.job): item.job for item in items}.values():
            job.calls += 1
        self._calls[call] = items
        if call.done:
            assert call.completion
            # Not taken now: its jobs may have more calls to make, and end with the last.
            self._early.append(call.completion)

    def _take_early(self) -> None:
        early, self._early = self._early, []
        self._take(early)

    def _take(self, completions: Iterable[Any]) -> None:
        for completion in completions:
            items = self._calls.pop(completion.call)
            reached = completion.call.id != 0
            statuses = completion.call.objects.statuses if reached else ()
            for item, status in itertools.zip_longest(items, statuses):
                if status in STORED:
                    item.job.nbytes += len(item.piece.blocks) * self._page_bytes[item.group]
                else:
                    item.job.success = False
            for job in {id(item.job): item.job for item in items}.values():
                job.calls -= 1
                if not job.calls:
                    self._finish(job)

    def _finish(self, job: Job) -> None:
        del self._jobs[job.number]
        self._finished.append(
            TransferResult(
                job_id=job.number,
                success=job.success or not job.is_load,
                transfer_size=job.nbytes,
                transfer_time=time.monotonic() - job.began,
            )
        )


# ---- vLLM's tensors ----


def refs_of(kv_caches: Any) -> Any:
    return kv_caches.group_data_refs


def page_tensors(
    engine: Engine, kv_caches: Any, backends: Mapping[str, str] = MappingProxyType({})
) -> list[list[Tensor]]:
    """What a page of each group is made of, for the layout. Raises Refused.

    backends: the attention backend of each layer, which lays out its pages.
    """
    return [
        [
            Tensor(f"{i}.{_layer(facts.layers, i, refs, backends)}", facts.dtype, page_bytes)
            for i, page_bytes in enumerate(ref.page_size_bytes for ref in refs)
        ]
        for facts, refs in zip(engine.groups, _checked(kv_caches))
    ]


def page_groups(engine: Engine, kv_caches: Any) -> list[PageGroup]:
    return [
        PageGroup(
            [_view(kv_caches.tensors[ref.tensor_idx].tensor, ref.page_size_bytes) for ref in refs],
            n_pages=kv_caches.tensors[refs[0].tensor_idx].tensor.shape[0],
            group=i,
            shard=engine.shard,
        )
        for i, refs in enumerate(_checked(kv_caches))
    ]


def device_of(kv_caches: Any) -> Any:
    """Raises Refused: it is none that pages can be copied from."""
    devices = {tensor.tensor.device for tensor in kv_caches.tensors}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        names = ", ".join(sorted(map(str, devices)))
        raise Refused(f"the KV cache is on {names}; page maps are of the CPU or one NVIDIA GPU")
    return devices.pop()


def _use_gpu(session: Session, device: Any, options: Options) -> None:
    try:
        Cuda(
            session,
            devices=[device.index],
            staging_bytes=options.gpu_staging_mib << 20,
            blocks=options.gpu_blocks,
        )
    except CudaError as why:
        raise Refused(f"the KV cache is on {device}: {why}") from why


def _checked(kv_caches: Any) -> Any:
    device_of(kv_caches)
    if not all(kv_caches.group_data_refs):
        raise Refused("this rank holds no layer of some cache group")
    return kv_caches.group_data_refs


def _layer(
    layers: Sequence[str], i: int, refs: Sequence[Any], backends: Mapping[str, str]
) -> str:
    if len(layers) == len(refs):
        name, layers = layers[i], layers[i : i + 1]
    else:
        name = "packed"
    used = sorted({backends[layer] for layer in layers if layer in backends})
    return f"{name} ({','.join(used)})" if used else name


def _view(tensor: Any, page_bytes: int) -> PageView:
    size = tensor.element_size()
    stride, on_gpu = tensor.stride(0) * size, tensor.device.type == "cuda"
    return PageView(tensor.data_ptr(), stride, page_bytes, owner=tensor, on_gpu=on_gpu)
