# SPDX-License-Identifier: Apache-2.0
"""What is refused at the start, and what vLLM's versions call."""
import inspect
from types import SimpleNamespace

import pytest
import torch
from vllm.config.attention import AttentionConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from kvtier import Codec
from kvtier.refusal import Refused
from kvtier.vllm.engine import (
    check,
    chosen_backends,
    group_facts,
    kernel_layout,
    model_changes,
)
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.searches import SEARCHES, Searches
from kvtier.vllm.tier import KvtierTier
from kvtier.vllm.worker import KvtierWorker, page_tensors


def configuration(
    algorithm="sha256",
    caching=True,
    pipeline=1,
    overrides=(),
    hf_config_path=None,
    load_format="auto",
    latent=False,
    backend=None,
    model=None,
    draft=None,
    interleave=1,
    **backend_per_kind,
):
    facts = dict(
        hf_config_path=hf_config_path,
        code_revision=None,
        model_class_overrides={},
        quantization=None,
        quantization_config=None,
        hf_text_config=SimpleNamespace(model_type="qwen3"),
        original_max_model_len=None,
        max_model_len=4096,
        override_generation_config={},
    )
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo=algorithm, enable_prefix_caching=caching
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=pipeline,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=2 if interleave > 1 else 1,
            cp_kv_cache_interleave_size=interleave,
        ),
        model_config=SimpleNamespace(
            hf_overrides=overrides if callable(overrides) else dict(overrides),
            use_mla=latent,
            **{**facts, **(model or {})},
        ),
        speculative_config=draft,
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


def test_latent_attention_goes_on_from_prefixes_that_vllm_does_not_keep():
    check(configuration(caching=False, latent=True), offloading())


def test_pages_of_all_ranks_together_are_refused():
    with pytest.raises(Refused, match="canonical_layout"):
        check(configuration(), offloading(canonical=True))


def test_a_model_that_a_function_changes_has_to_be_named():
    with pytest.raises(Refused, match="kvtier_weights"):
        check(configuration(overrides=lambda config: config), offloading())
    check(configuration(overrides=lambda config: config), offloading(), weights="longer")


def draft(method, model):
    return SimpleNamespace(method=method, model=model, revision=None, quantization=None)


@pytest.mark.parametrize(
    "change",
    [
        dict(overrides=dict(rope_theta=5e5)),
        dict(hf_config_path="elsewhere"),
        dict(load_format="dummy"),
        dict(model=dict(code_revision="abc")),
        dict(model=dict(model_class_overrides={"Qwen3ForCausalLM": "elsewhere:Model"})),
        dict(model=dict(quantization_config={"linear": "fp8"})),
        dict(draft=draft("eagle3", "/drafts/a")),
    ],
)
def test_a_model_that_is_changed_is_another(change):
    plain = model_changes(configuration())
    assert model_changes(configuration(**change)) != plain
    assert model_changes(configuration(**change)) == model_changes(configuration(**change))


def test_drafts_are_told_apart():
    one, other = (
        model_changes(configuration(draft=draft("eagle3", path))) for path in ("/a", "/b")
    )
    assert one != other


LONG_ROPE = SimpleNamespace(model_type="phi3", rope_parameters={"rope_type": "longrope"})
LLAMA_4 = SimpleNamespace(model_type="llama4_text", rope_parameters={"rope_type": "llama3"})
LLAMA_3 = SimpleNamespace(model_type="llama", rope_parameters={"rope_type": "llama3"})


@pytest.mark.parametrize("text, differs", [(LONG_ROPE, True), (LLAMA_4, True), (LLAMA_3, False)])
def test_a_length_that_the_model_goes_by_is_told_apart(text, differs):
    """Their keys are turned by other factors when longer prompts may come."""

    def changes(length, given=None):
        facts = dict(
            hf_text_config=text, max_model_len=length, original_max_model_len=given
        )
        return model_changes(configuration(model=facts))

    assert (changes(4096) != changes(131072)) == differs
    # Made for all of its length, whatever the memory has room for.
    assert changes(4096, -1) == changes(8192, -1)
    assert (changes(4096, -1) != changes(4096)) == differs


def test_ranks_that_deal_out_tokens_otherwise_are_told_apart():
    one, other = (kernel_layout(configuration(interleave=n), offloading()) for n in (2, 16))
    assert one != other


@pytest.mark.parametrize(
    "change", [dict(backend="TRITON_ATTN"), dict(sliding_window="TRITON_ATTN")]
)
def test_attention_backends_that_are_chosen_are_told_apart(change):
    assert chosen_backends(configuration(**change)) != chosen_backends(configuration())


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (KvtierManager, OffloadingManager),
        (KvtierWorker, OffloadingWorker),
        (KvtierTier, SecondaryTierManager),
    ],
)
def test_methods_take_what_this_vllm_gives_them(ours, theirs):
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        given = list(inspect.signature(method).parameters)
        taken = list(inspect.signature(getattr(ours, name)).parameters)
        assert taken[: len(given)] == given or name == "__init__"


def test_a_load_may_be_expedited_as_in_vllm_0_33():
    assert inspect.signature(KvtierWorker.submit_load).parameters["expedited"].default is False


#: Of vLLM 0.33: what its managers, workers and tiers may be asked for besides.
ADDED_IN_0_33 = (
    "lock", "on_reset_flushed", "sleep", "wake_up", "prepare_sleep", "on_sleep", "on_wake_up",
)  # fmt: skip


@pytest.mark.parametrize("ours", [KvtierManager, KvtierWorker, KvtierTier])
def test_what_vllm_0_33_adds_is_left_to_its_own_classes(ours):
    """They have answers for those who do not care: nothing of ours may stand in their way."""
    assert [name for name in ADDED_IN_0_33 if name in vars(ours)] == []
    base = ours.__mro__[1]
    assert base.__module__.startswith("vllm.")


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_take_what_this_vllm_gives_them(name):
    """Otherwise lookups go key by key."""
    given, taken = (
        list(inspect.signature(getattr(side, name)).parameters)
        for side in (OffloadingConnectorScheduler, Searches)
    )
    assert taken == given


def cache_group(*specs):
    """Of a worker, which keeps the spec of every layer."""
    specs = {f"layer {i}": spec for i, spec in enumerate(specs)}
    return SimpleNamespace(
        kv_cache_spec=UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=specs)
    )


def attention(dtype=torch.bfloat16, window=0):
    facts = dict(block_size=16, num_kv_heads=1, head_size=64, dtype=dtype)
    return (
        SlidingWindowSpec(sliding_window=window, **facts) if window else FullAttentionSpec(**facts)
    )


def facts_of(*specs, **options):
    group = SimpleNamespace(group_id=3, tokens_per_block=16, layer_names=["a", "b"])
    return group_facts(group, cache_group(*specs), **options)


def test_layers_of_one_group_have_one_dtype():
    assert facts_of(attention(), attention()).dtype == "bfloat16"
    with pytest.raises(Refused, match="cache group 3 has layers of dtypes bfloat16 and float32"):
        facts_of(attention(), attention(torch.float32))


def test_layers_of_one_group_have_one_kind():
    with pytest.raises(Refused, match="cache group 3 has layers of kinds attention and window 64"):
        facts_of(attention(), attention(window=64))


def test_a_codec_is_for_bfloat16_and_never_for_states():
    state = MambaSpec(block_size=16, shapes=((2, 64),), dtypes=(torch.float32,))
    assert facts_of(attention(), codec=Codec.MXFP8).codec is Codec.MXFP8
    assert facts_of(state, codec=Codec.MXFP8).codec is Codec.NONE
    with pytest.raises(Refused, match="kvtier_codec is for bfloat16: cache group 3 holds float16"):
        facts_of(attention(torch.float16), codec=Codec.MXFP8)


def test_pages_name_the_backend_that_lays_them_out():
    engine = SimpleNamespace(
        groups=[SimpleNamespace(layers=("a", "b"), dtype="bfloat16")],
    )
    tensor = torch.zeros((4, 64), dtype=torch.int8)

    def names(backends, refs=2):
        ref = SimpleNamespace(tensor_idx=0, page_size_bytes=64)
        caches = SimpleNamespace(
            tensors=[SimpleNamespace(tensor=tensor)], group_data_refs=[[ref] * refs]
        )
        return [page.name for page in page_tensors(engine, caches, backends)[0]]

    assert names(dict(a="FLASH", b="TRITON")) == ["0.a (FLASH)", "1.b (TRITON)"]
    assert names(dict(a="FLASH", b="TRITON"), refs=1) == ["0.packed (FLASH,TRITON)"]
    assert names({}) == ["0.a", "1.b"]
