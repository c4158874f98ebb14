# SPDX-License-Identifier: Apache-2.0
"""What is refused at the start, and what vLLM's versions call."""
import inspect
from types import SimpleNamespace

import pytest
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingWorker

from kvtier.vllm.engine import Refused, check
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.worker import KvtierWorker


def configuration(algorithm="sha256", caching=True, pipeline=1):
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo=algorithm, enable_prefix_caching=caching
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
    )


def offloading(canonical=False, replicated=False):
    return SimpleNamespace(canonical_layout=canonical, replicated_layout=replicated)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_hashes_that_are_the_same_everywhere_will_do(algorithm):
    check(configuration(algorithm), offloading())


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_that_differ_between_processes_are_refused(algorithm):
    with pytest.raises(Refused, match=algorithm + ".*use sha256"):
        check(configuration(algorithm), offloading())


def test_engines_that_cannot_go_on_from_a_prefix_are_refused():
    with pytest.raises(Refused, match="prefix caching is off"):
        check(configuration(caching=False), offloading())


def test_pages_of_all_ranks_together_are_refused():
    with pytest.raises(Refused, match="canonical_layout"):
        check(configuration(), offloading(canonical=True))


@pytest.mark.parametrize(
    "ours, theirs", [(KvtierManager, OffloadingManager), (KvtierWorker, OffloadingWorker)]
)
def test_methods_take_what_this_vllm_gives_them(ours, theirs):
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        given = list(inspect.signature(method).parameters)
        taken = list(inspect.signature(getattr(ours, name)).parameters)
        assert taken[: len(given)] == given or name == "__init__"


def test_a_load_may_be_expedited_as_in_vllm_0_33():
    assert inspect.signature(KvtierWorker.submit_load).parameters["expedited"].default is False
