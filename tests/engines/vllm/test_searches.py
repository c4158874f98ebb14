# SPDX-License-Identifier: Apache-2.0
"""Searches over all keys at once find what vLLM's own, key by key, find."""
import random
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

from kvtier.vllm.plan import Plan
from kvtier.vllm.searches import Searches, install, last_window

CHUNK, GROUP, MASK = 16, 0, np.uint64(1)


def key(i):
    return make_offload_key(i.to_bytes(32, "big"), GROUP)


class Manager:
    """Chunks of one request, from the first on."""

    def __init__(self, hits):
        self.plan = Plan(None)
        self.plan.see(0, np.array(hits, np.uint64))

    def leading(self, req_context, group, first, n):
        return self.plan.leading(group, MASK, first, n)

    def hits(self, req_context, group, first_key, n):
        chunk = req_context.get_offload_key_position(first_key) // CHUNK - 1
        return self.plan.hits(group, MASK, chunk, n)

    def lookup(self, key, req_context):
        chunk = req_context.get_offload_key_position(key) // CHUNK - 1
        hit = self.plan.hits(GROUP, MASK, chunk, 1)[0]
        return LookupResult.HIT if hit else LookupResult.MISS


class Bed:
    def __init__(self, hits, first):
        self.context = ReqContext("request")
        for i in range(len(hits)):
            self.context.set_offload_key_position(key(i), (i + 1) * CHUNK)
        self.keys = [key(i) for i in range(first, len(hits))]
        self.first = first
        manager = Manager(hits)
        silent = SimpleNamespace(record_lookup=lambda *_: None)
        self.vllm = SimpleNamespace(manager=manager, _events_tracker=silent)
        self.ours = Searches(manager)

    def leading(self):
        group = SimpleNamespace(group_idx=GROUP)
        arguments = (self.keys, self.context, None, group, self.first)
        return (
            self.ours._maximal_prefix_lookup(*arguments),
            OffloadingConnectorScheduler._maximal_prefix_lookup(self.vllm, *arguments),
        )

    def window(self, *sizes):
        arguments = (self.keys, sizes[0], self.context, *sizes[1:])
        return (
            self.ours._sliding_window_lookup(*arguments),
            OffloadingConnectorScheduler._sliding_window_lookup(self.vllm, *arguments),
        )


def test_all_at_once_is_as_key_by_key():
    for seed in range(500):
        source = random.Random(seed)
        n, share = source.randrange(0, 30), source.choice([0, 0.5, 0.8, 0.95, 1])
        bed = Bed([source.random() < share for _ in range(n)], source.randrange(n + 1))
        ours, theirs = bed.leading()
        assert ours == theirs, seed
        window = source.randrange(1, 5)
        for sizes in [(window,), (window, window + source.randrange(3))]:
            ours, theirs = bed.window(*sizes)
            assert ours == theirs, seed


def test_the_last_window_may_have_to_be_longer():
    assert last_window(np.array([1, 1, 0, 1, 1], bool), 2, 3) == 2
    assert last_window(np.array([1, 1, 0, 1, 1], bool), 2, 2) == 5
    assert last_window(np.array([1, 0, 0], bool), 2, 2) == 1


@pytest.mark.parametrize(
    "scheduler",
    [
        SimpleNamespace(),
        SimpleNamespace(_events_tracker=SimpleNamespace(self_describing_enabled=True)),
        SimpleNamespace(
            _events_tracker=SimpleNamespace(self_describing_enabled=False),
            _maximal_prefix_lookup=lambda keys, req_context: None,
        ),
    ],
)
def test_another_scheduler_goes_key_by_key(scheduler):
    before = dict(vars(scheduler))
    assert not install(scheduler, None)
    assert vars(scheduler) == before
