# SPDX-License-Identifier: Apache-2.0
"""What the layout of llama.cpp's states tells apart, and what is refused."""
import ctypes
import hashlib
import os
import subprocess
import sys

import llama_cpp
import pytest

from kvtier import Session, llama_layout
from kvtier.llama_cpp import lora_identity, state_layout

CONTEXT_FIELDS = {
    "type_k": 8,
    "type_v": 8,
    "flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "kv_unified": True,
    "n_seq_max": 2,
    "swa_full": False,
    "attention_type": 1,
    "rope_scaling_type": 2,
    "rope_freq_base": 5e5,
    "rope_freq_scale": 0.5,
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 2.0,
    "yarn_beta_fast": 16.0,
    "yarn_beta_slow": 2.0,
    "yarn_orig_ctx": 2048,
}
ROUNDING_FIELDS = {"n_ubatch": 128, "n_threads": 1, "n_threads_batch": 1}


@pytest.fixture
def layout_of(engine_of):
    def make(name="smollm2", bit_exact=False, model_params=None, chunk_tokens=64, **changes):
        engine = engine_of(name, **changes)
        return state_layout(
            engine.model, engine.context, engine.params, engine.gguf,
            bit_exact=bit_exact, model_params=model_params, chunk_tokens=chunk_tokens,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("field", CONTEXT_FIELDS)
def test_each_field_that_changes_the_bytes_changes_the_layout(layout_of, field):
    changes = {field: CONTEXT_FIELDS[field]}
    if field == "n_seq_max":
        changes["n_ctx"] = 512
    assert layout_of(**changes) != layout_of()


@pytest.mark.parametrize("field", ROUNDING_FIELDS)
def test_what_changes_the_rounding_counts_for_bit_exactness_alone(layout_of, field):
    changes = {field: ROUNDING_FIELDS[field]}
    assert layout_of(**changes) == layout_of()
    assert layout_of(bit_exact=True, **changes) != layout_of(bit_exact=True)


def test_the_numbers_of_the_cache_are_named(layout_of):
    assert layout_of().kv_dtype == "ggml k f16 v f16"
    assert layout_of(type_k=8).kv_dtype == "ggml k type 8 v f16"


def test_capacities_do_not_count(layout_of):
    assert layout_of(n_ctx=512, n_batch=256, n_ubatch=256) == layout_of()


def test_models_builds_and_overrides_count(layout_of, monkeypatch):
    plain = layout_of()
    assert layout_of("gemma3").model != layout_of("hybrid").model != plain.model
    overrides = (llama_cpp.llama_model_kv_override * 2)()
    overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_FLOAT
    overrides[0].key = b"llama.rope.freq_base"
    seen = {plain.kernel_layout}
    for value in (1e4, 2e4):
        overrides[0].value.val_f64 = value
        params = llama_cpp.llama_model_default_params()
        params.kv_overrides = overrides
        seen.add(layout_of(model_params=params).kernel_layout)
    assert len(seen) == 3
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert layout_of().kernel_layout not in seen
    build = llama_layout.library_build()
    for name in build:
        monkeypatch.setattr(llama_layout, "library_build", lambda: {**build, name: "other"})
        assert layout_of().engine_build != plain.engine_build


def test_the_layout_is_the_same_in_every_process(layout_of, model_path):
    script = (
        "import sys; from llama import Engine; from kvtier.llama_cpp import state_layout\n"
        "e = Engine(sys.argv[1]); print(state_layout(e.model, e.context, e.params, e.gguf))"
    )
    command = [sys.executable, "-c", script, model_path("smollm2")]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert out.stdout.strip() == repr(layout_of())


def test_a_daemon_takes_the_longest_layout(layout_of, daemon):
    layout = layout_of("gemma3", bit_exact=True)
    assert len(layout.kernel_layout) < 1024
    with Session(layout, socket=daemon.socket) as session:
        assert session.wait_attached(30).name == "OK"


def test_snapshots_of_recurrent_states_are_refused(layout_of):
    with pytest.raises(ValueError, match="n_rs_seq = 0"):
        layout_of("hybrid", n_rs_seq=2)


def test_flash_attention_must_be_resolved(layout_of):
    auto = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
    with pytest.raises(ValueError, match="ENABLED or DISABLED"):
        layout_of(flash_attn_type=auto)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Counts the files that are read for their digest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reads = []
    digest = hashlib.file_digest

    def file_digest(file, name):
        reads.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    return reads


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path, cached):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    first = llama_layout.file_sha256(path)
    assert first == llama_layout.file_sha256(path) == hashlib.sha256(b"weights").hexdigest()
    assert len(cached) == 1
    path.write_bytes(b"other w")
    os.utime(path, ns=(1, 2))
    assert llama_layout.file_sha256(path) == hashlib.sha256(b"other w").hexdigest()
    assert len(cached) == 2


def test_all_parts_of_a_split_model_count(tmp_path, cached):
    parts = [tmp_path / f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    whole = llama_layout.model_sha256(parts[0])
    assert whole == llama_layout.model_sha256(parts[1])
    parts[1].write_bytes(b"other weights")
    assert llama_layout.model_sha256(parts[0]) != whole


def test_adapters_differ_by_bytes_and_scale_not_by_name(tmp_path, cached):
    a, b = tmp_path / "a.gguf", tmp_path / "b.gguf"
    a.write_bytes(b"adapter")
    b.write_bytes(b"adapter")
    assert lora_identity([(a, 1.0)]) == lora_identity([(b, 1.0)])
    assert lora_identity([(a, 1.0)]) != lora_identity([(a, 0.5)])
    b.write_bytes(b"another")
    assert lora_identity([(a, 1.0)]) != lora_identity([(b, 1.0)])
    assert lora_identity([]) == b""


def test_override_values_are_read_by_their_kind(layout_of):
    """The bytes of a union behind the value say nothing."""
    seen = set()
    for rest in (b"\0", b"\1"):
        overrides = (llama_cpp.llama_model_kv_override * 2)()
        overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_BOOL
        overrides[0].key = b"tokenizer.ggml.add_bos_token"
        ctypes.memset(ctypes.addressof(overrides[0].value), rest[0], 64)
        overrides[0].value.val_bool = True
        params = llama_cpp.llama_model_default_params()
        params.kv_overrides = overrides
        seen.add(layout_of(model_params=params).kernel_layout)
    assert len(seen) == 1
