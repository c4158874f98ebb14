# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side and a worker's, each without an engine around it."""
import hashlib
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec, ReqContext, make_offload_key

from kvtier import GroupKind, Session
from kvtier.vllm.engine import Engine, GroupFacts
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.options import Options
from kvtier.vllm.transfer import KeysSpec
from kvtier.vllm.worker import KvtierWorker, page_tensors
from kvtierd import eventually

PAGE_TOKENS, PAGE_BYTES, PAGES = 16, 4096, 8


def digest(number):
    return hashlib.sha256(b"%d" % number).digest()


class Side:
    """What one rank's worker has, for a model with a single group."""

    def __init__(self, daemon, per_chunk=1, n_ranks=1):
        facts = GroupFacts(0, GroupKind.ATTENTION, PAGE_TOKENS, 0, "bfloat16", ("layer",))
        self.engine = Engine(
            identity=dict(model="sides", engine="vllm"),
            engine_id=bytes(16),
            groups=(facts,),
            chunk_tokens=PAGE_TOKENS * per_chunk,
            tokens_per_hash=PAGE_TOKENS,
            blocks_per_chunk=per_chunk,
            rank=0,
            n_ranks=n_ranks,
            replicated=n_ranks > 1,
        )
        self.options = Options(socket=daemon.socket)
        self.pages = torch.arange(PAGES * PAGE_BYTES).to(torch.int8).reshape(PAGES, PAGE_BYTES)
        self.caches = SimpleNamespace(
            tensors=[SimpleNamespace(tensor=self.pages)],
            group_data_refs=[[SimpleNamespace(tensor_idx=0, page_size_bytes=PAGE_BYTES)]],
        )
        self.session = Session(
            self.engine.layout(page_tensors(self.engine, self.caches)),
            socket=daemon.socket,
            partial_layout=True,
            rank=0,
            n_ranks=n_ranks,
        )
        assert self.session.wait_attached(20).name == "OK"

    def worker(self):
        return KvtierWorker(self.session, self.engine, self.options, self.caches)

    def manager(self):
        return KvtierManager(self.session, self.engine, self.options)

    def chain(self, n):
        """(spec of n chunks to be stored, their digests)."""
        digests = [digest(i) for i in range(n + 1)]
        spec = KeysSpec(
            digests=b"".join(digests[1:]),
            groups=[0] * n,
            parents=bytes(32) + b"".join(digests[1:n]),
            ends=[(i + 1) * self.engine.chunk_tokens for i in range(n)],
        )
        return spec, digests[1:]

    def close(self):
        self.session.close()


@pytest.fixture
def side(daemon):
    """side(...): a Side of the daemon, closed after the test."""
    sides = []

    def make(**options):
        sides.append(Side(daemon, **options))
        return sides[-1]

    yield make
    for made in sides:
        made.close()


def blocks(numbers, first=0):
    return GPULoadStoreSpec(numbers, group_sizes=[len(numbers)], block_indices=[first])


def test_a_job_ends_with_the_last_of_its_calls(daemon, side):
    """A load that begins within a chunk takes two, and here neither can be submitted."""
    one = side(per_chunk=2)
    worker = one.worker()
    spec, _ = one.chain(2)
    daemon.stop()
    eventually(lambda: not one.session.info().attached)
    worker.submit_load(1, spec, blocks([1, 2, 3], first=1))
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (1, False)
    worker.submit_load(2, spec, blocks([1, 2, 3], first=1))
    worker.wait({2})
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (2, False)


def test_one_rank_stores_all_of_what_every_rank_holds(side):
    """vLLM tells the first rank alone to store it."""
    one = side(n_ranks=2)
    worker = one.worker()
    spec, digests = one.chain(4)
    worker.submit_store(1, blocks([1, 2, 3, 4]), spec)
    worker.wait({1})
    present, _ = one.session.probe(b"".join(digests))
    assert list(present) == [1, 1, 1, 1]


def request(manager, name, computed):
    """Its context; of one chunk."""
    context = ReqContext(name)
    context._offload_key_positions[key(name)] = PAGE_TOKENS
    manager.on_new_request(context)
    manager.watch(
        SimpleNamespace(
            request_id=name, num_computed_tokens=computed, block_hashes=[key(name)[:-4]]
        )
    )
    return context


def key(name):
    return make_offload_key(hashlib.sha256(name.encode()).digest(), 0)


def test_what_was_computed_before_a_reset_is_not_stored_after_it(side):
    manager = side().manager()
    running, waiting = request(manager, "running", 16), request(manager, "waiting", 0)
    assert manager.prepare_store([key("running")], running).keys_to_store == [key("running")]
    manager.reset_cache()
    assert manager.prepare_store([key("running")], running).keys_to_store == []
    assert manager.prepare_store([key("waiting")], waiting).keys_to_store == [key("waiting")]
