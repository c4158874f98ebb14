# SPDX-License-Identifier: Apache-2.0
"""What is refused at the start, and what vLLM's versions call."""
import inspect
from types import SimpleNamespace

import pytest
from vllm.config.attention import AttentionConfig
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingWorker

from kvtier.vllm.engine import Refused, check, kernel_layout, model_changes
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.worker import KvtierWorker


def configuration(
    algorithm="sha256",
    caching=True,
    pipeline=1,
    overrides=(),
    hf_config_path=None,
    load_format="auto",
    backend=None,
    **backend_per_kind,
):
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo=algorithm, enable_prefix_caching=caching
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
        model_config=SimpleNamespace(
            hf_overrides=overrides if callable(overrides) else dict(overrides),
            hf_config_path=hf_config_path,
            quantization=None,
        ),
        load_config=SimpleNamespace(load_format=load_format),
        attention_config=AttentionConfig(backend=backend, backend_per_kind=backend_per_kind),
        use_v2_model_runner=False,
    )


def offloading(canonical=False, replicated=False):
    return SimpleNamespace(
        canonical_layout=canonical, replicated_layout=replicated, kv_cache_layout=None
    )


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


def test_a_model_that_a_function_changes_has_to_be_named():
    with pytest.raises(Refused, match="kvtier_weights"):
        check(configuration(overrides=lambda config: config), offloading())
    check(configuration(overrides=lambda config: config), offloading(), weights="longer")


@pytest.mark.parametrize(
    "change",
    [
        dict(overrides=dict(rope_theta=5e5)),
        dict(hf_config_path="elsewhere"),
        dict(load_format="dummy"),
    ],
)
def test_a_model_that_is_changed_is_another(change):
    plain = model_changes(configuration())
    assert model_changes(configuration(**change)) != plain
    assert model_changes(configuration(**change)) == model_changes(configuration(**change))


@pytest.mark.parametrize(
    "change", [dict(backend="TRITON_ATTN"), dict(sliding_window="TRITON_ATTN")]
)
def test_attention_backends_are_told_apart(change):
    assert kernel_layout(configuration(**change), offloading()) != (
        kernel_layout(configuration(), offloading())
    )


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
