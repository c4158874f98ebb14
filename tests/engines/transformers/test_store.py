# SPDX-License-Identifier: Apache-2.0
"""What is a miss, what is refused, and with which words."""
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import CHUNK, TOKENS, eventually
from transformers import cache_utils

from kvtier import Identity, Status
from kvtier.transformers import CacheStore, fingerprint
from kvtier.transformers.layers import roles_of

HYBRID = "qwen3_next"


@pytest.fixture
def stored(model_of, prompt):
    """A hybrid model whose cache of TOKENS tokens is stored under a name of the test's own."""

    def make(name, family=HYBRID, **options):
        model = model_of(family, **options)
        model.options["name"] = name
        model.open()
        model.cache = model.prefill(prompt, TOKENS)
        assert model.store.save(model.cache, prompt[:, :TOKENS]).tokens == TOKENS
        return model

    return make


@pytest.mark.parametrize(
    "change",
    [dict(revision="2"), dict(name="other"), dict(chunk_tokens=CHUNK // 2)],
    ids=lambda change: next(iter(change)),
)
def test_other_weights_or_chunks_miss(stored, prompt, change):
    model = stored("changes")
    model.open(**change)
    assert model.store.load(prompt) is None
    model.open()
    assert model.store.load(prompt).tokens == TOKENS


def test_other_dtype_misses(stored, model_of, prompt):
    stored("dtypes")
    half = model_of(HYBRID, torch.bfloat16)
    half.open(name="dtypes")
    assert half.store.load(prompt) is None


def test_other_config_misses(stored, prompt):
    model = stored("configs")
    model.model.config.rms_norm_eps = 1e-3
    model.open()
    assert model.store.load(prompt) is None


def test_salts_and_adapters_do_not_meet(stored, prompt):
    model = stored("salts")
    for identity in (Identity(salt=b"tenant"), Identity(lora=b"adapter")):
        assert model.store.load(prompt, identity=identity) is None
        model.store.save(model.cache, prompt[:, :TOKENS], identity=identity)
        assert model.store.load(prompt, identity=identity).tokens == TOKENS


@pytest.mark.parametrize("family", ["qwen3", HYBRID])
def test_generate_goes_on_from_a_loaded_cache(stored, prompt, family):
    model = stored("generate", family=family)
    ids = prompt[:, : TOKENS + 1]
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
    expected = model.model.generate(ids, **options)
    loaded = model.store.load(ids)
    assert loaded.tokens == TOKENS
    assert torch.equal(model.model.generate(ids, cache=loaded.cache, **options), expected)


def test_other_tokens_miss(stored, prompt):
    model = stored("tokens")
    other = prompt.clone()
    other[0, 0] += 1
    assert model.store.load(other) is None


def test_one_token_is_left_to_compute(stored, prompt):
    model = stored("limits", family="qwen3")
    assert model.store.load(prompt[:, :TOKENS]).tokens == TOKENS - CHUNK
    assert model.store.load(prompt[:, :TOKENS], max_tokens=TOKENS).tokens == TOKENS
    assert model.store.load(prompt, max_tokens=CHUNK + 1).tokens == CHUNK
    assert model.store.load(prompt, max_tokens=CHUNK - 1) is None
    assert model.store.load(prompt[:, :1]) is None


def test_saving_twice_writes_once(stored, prompt):
    model = stored("twice")
    saved = model.store.save(model.cache, prompt[:, :TOKENS])
    assert (saved.status, saved.tokens, saved.nbytes) == (Status.OK, TOKENS, 0)


@pytest.mark.parametrize("family", [HYBRID, "deepseek_v4"])
def test_states_between_boundaries_are_not_stored(model_of, prompt, caplog, family):
    model = model_of(family)
    model.open(name="between")
    tokens = TOKENS + 1
    saved = model.store.save(model.prefill(prompt, tokens), prompt[:, :tokens])
    assert (saved.status, saved.tokens, saved.nbytes) == (Status.REFUSED, 0, 0)
    assert "1 tokens behind a boundary" in saved.why and saved.why in caplog.text
    assert model.store.find(prompt) == 0


def test_attention_between_boundaries_is_stored_up_to_one(model_of, prompt):
    model = model_of("qwen3")
    model.open(name="between")
    tokens = TOKENS + 1
    saved = model.store.save(model.prefill(prompt, tokens), prompt[:, :tokens])
    assert (saved.status, saved.tokens) == (Status.OK, TOKENS)


@pytest.mark.parametrize("family", ["qwen3", HYBRID, "gemma3"])
def test_cache_of_another_length_is_refused(model_of, prompt, family):
    model = model_of(family)
    model.open(name="lengths")
    saved = model.store.save(model.prefill(prompt, TOKENS), prompt[:, : TOKENS - CHUNK])
    assert (saved.status, saved.tokens) == (Status.REFUSED, 0)
    assert "in place of" in saved.why


def test_saved_cache_is_not_changed(model_of, prompt):
    model = model_of("deepseek_v4")
    model.open(name="unchanged")
    cache, twin = model.prefill(prompt, TOKENS), model.prefill(prompt, TOKENS)
    model.store.save(cache, prompt[:, :TOKENS])
    expected = model.go_on(twin, prompt, TOKENS)
    assert torch.equal(model.go_on(cache, prompt, TOKENS), expected)


def test_loaded_caches_do_not_share_memory(stored, prompt):
    """States are updated in place: going on with one must not show in the next."""
    model = stored("copies")
    first = model.go_on(model.store.load(prompt).cache, prompt, TOKENS)
    assert torch.equal(model.go_on(model.store.load(prompt).cache, prompt, TOKENS), first)


@pytest.mark.parametrize("family", ["qwen3", HYBRID])
def test_long_caches_move_in_batches(stored, prompt, monkeypatch, family):
    monkeypatch.setattr("kvtier.pages.LEASED_SHARE", 1 << 40)
    model = stored("batches", family=family)
    assert len(list(model.store._batches(3))) == 3
    loaded = model.store.load(prompt)
    expected = model.go_on(model.cache, prompt, TOKENS)
    assert torch.equal(model.go_on(loaded.cache, prompt, TOKENS), expected)


def test_save_that_breaks_off_leaves_nothing(model_of, prompt, monkeypatch):
    """A chunk is not visible without the state that is to come with it."""
    model = model_of(HYBRID)
    model.open(name="broken off")
    cache, ids = model.prefill(prompt, TOKENS), prompt[:, :TOKENS]

    store_pages = model.store.session.store_pages

    def fail_with_the_state(page_map, objects, **options):
        if options["set_id"]:
            raise KeyboardInterrupt
        return store_pages(page_map, objects, **options)

    with monkeypatch.context() as patch:
        patch.setattr(model.store.session, "store_pages", fail_with_the_state)
        with pytest.raises(KeyboardInterrupt):
            model.store.save(cache, ids)
    digests = model.store._digests(ids, TOKENS, Identity())
    match = model.store.session.match(b"".join(digests))
    assert (match.boundaries, match.kv_boundaries) == (0, 2)
    assert model.store.save(cache, ids).tokens == TOKENS
    assert model.store.load(prompt).tokens == TOKENS


OTHER_PROCESS = """
import sys, torch
sys.path[:0] = sys.argv[1:3]
from conftest import Model, TOKENS
prompt = torch.tensor([[int(word) for word in sys.argv[5].split(",")]])
daemon = type("Daemon", (), {"socket": sys.argv[3]})
model = Model(daemon, sys.argv[4])
model.open(name="processes")
loaded = model.store.load(prompt)
logits = model.go_on(loaded.cache, prompt, loaded.tokens)
print(model.store.session.info().layout_id.hex(), logits.numpy().tobytes().hex())
"""


def test_another_process_goes_on(stored, daemon, prompt):
    """Neither layout nor keys depend on the process or on the seed of its hashes."""
    model = stored("processes")
    daemon.restart()
    here = Path(__file__).parent
    ids = ",".join(map(str, prompt[0].tolist()))
    command = [sys.executable, "-c", OTHER_PROCESS, here, here.parent, daemon.socket, HYBRID, ids]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    layout_id, logits = done.stdout.split()
    assert layout_id == model.store.session.info().layout_id.hex()
    expected = model.go_on(model.cache, prompt, TOKENS)
    assert logits == expected.numpy().tobytes().hex()


# ---- refused by name ----


class OurLayer(cache_utils.DynamicLayer):
    pass


def test_unknown_layer_class_is_refused_by_name(model_of, prompt):
    model = model_of("qwen3")
    cache = model.prefill(prompt, TOKENS)
    cache.layers[1] = OurLayer()
    with pytest.raises(TypeError, match="test_store.OurLayer"):
        model.store.save(cache, prompt[:, :TOKENS])


@pytest.mark.parametrize("name", ["StaticLayer", "Fp8QuantizedLayer", "EncoderDecoderCache"])
def test_classes_of_the_library_that_are_not_known_are_refused(name):
    cls = getattr(cache_utils, name)
    with pytest.raises(TypeError, match=f"transformers.cache_utils.{name}"):
        roles_of(cls.__new__(cls))


def test_unknown_attribute_is_refused_by_name(model_of, prompt):
    model = model_of("qwen3")
    cache = model.prefill(prompt, TOKENS)
    cache.layers[0].scales = torch.ones(1)
    with pytest.raises(TypeError, match="DynamicLayer.scales"):
        model.store.save(cache, prompt[:, :TOKENS])


def test_recorded_past_is_refused(model_of, prompt):
    model = model_of("gemma3")
    cache = model.prefill(prompt, TOKENS)
    cache.layers[0].activate_past_recording()
    saved = model.store.save(cache, prompt[:, :TOKENS])
    assert saved.status is Status.REFUSED
    assert saved.why == "flags layers[0].record_past is True in place of False"


def test_batches_are_refused(model_of, prompt):
    model = model_of("qwen3")
    with pytest.raises(ValueError, match="batch of 2"):
        model.store.load(prompt.expand(2, -1))


def test_tokens_are_taken_of_any_kind(stored, prompt):
    model = stored("kinds", family="qwen3")
    for ids in (prompt.int(), prompt[0], prompt[0].tolist(), prompt.repeat(1, 2)[:, : prompt.shape[1]]):
        assert model.store.find(ids) == TOKENS
    for wrong in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            model.store.find(torch.full_like(prompt, wrong))


def test_models_without_identity_are_refused(daemon, model_of):
    model = model_of("qwen3").model
    with pytest.raises(ValueError, match="name="):
        CacheStore(model, revision="1", socket=daemon.socket)
    with pytest.raises(ValueError, match="revision="):
        CacheStore(model, name="qwen3", socket=daemon.socket)


def test_chunks_that_cut_compressed_rows_are_refused(daemon, model_of):
    model = model_of("deepseek_v4").model
    with pytest.raises(ValueError, match="multiple of 32"):
        CacheStore(model, name="m", revision="1", chunk_tokens=48, socket=daemon.socket)


def test_fingerprint_tells_weights_apart(model_of):
    model = model_of("qwen3").model
    before = fingerprint(model)
    assert before == fingerprint(model)
    next(model.parameters()).data.view(-1)[0] += 1
    assert before != fingerprint(model)


# ---- stored bytes that are not what they should be ----


def replace_state(model, prompt, edit):
    """Stores the state of the first TOKENS tokens again, as `edit` makes it from the bytes."""
    ids, store = prompt[0, :TOKENS].tolist(), model.store
    names = list(store._batches(TOKENS // CHUNK))[-1]
    group = names[-1].group
    status, lease = store.session.acquire(ids, group=group)
    assert status is Status.OK
    data = bytearray(lease.nbytes)
    lease.read_into(data)
    lease.release()
    status = store.session.put(ids, edit(bytes(data)), group=group, replace=True)
    assert status is Status.OK


def with_text(data, edit):
    """The header's text, edited as text; of the same length, padded with spaces."""
    length = int.from_bytes(data[8:16], "little")
    text = edit(data[16 : 16 + length].decode()).ljust(length).encode()
    assert len(text) == length
    return data[:16] + text + data[16 + length :]


def other_dtype(data):
    return with_text(data, lambda text: text.replace("torch.float32", "torch.int32", 1))


def other_shape(data):
    def edit(text):
        header = json.loads(text)
        next(iter(header["parts"].values()))[2][-1] += 1
        return json.dumps(header, separators=(",", ":"))

    return with_text(data, edit)


def lost_flag(data):
    flag = '"layers[0].has_previous_state":[[0,true]]'
    return with_text(data, lambda text: text.replace(flag, flag.replace("true", "null")))


EDITS = {
    "dtype": (other_dtype, "torch.int32"),
    "shape": (other_shape, "conv_states"),
    "flag": (lost_flag, "has_previous_state"),
    "shorter": (lambda data: data[:-64], "bytes in place of"),
    "no magic": (lambda data: b"x" + data[1:], "no header"),
    "length": (lambda data: data[:8] + b"\xff" * 8 + data[16:], "no header"),
    "no text": (lambda data: with_text(data, lambda text: "[" * len(text)), "cannot be read"),
}


@pytest.mark.parametrize("what", EDITS)
def test_state_that_does_not_fit_is_a_miss_with_a_reason(stored, prompt, caplog, what):
    edit, reason = EDITS[what]
    model = stored(f"edit {what}")
    replace_state(model, prompt, edit)
    with caplog.at_level(logging.WARNING):
        assert model.store.load(prompt) is None
    assert reason in caplog.text


def flip_stored_bytes(daemon, needle):
    """Where the daemon's disk has these bytes, one bit of them; how often that was."""
    data = bytearray(daemon.disk.read_bytes())
    found, position = 0, data.find(needle)
    while position >= 0:
        data[position + len(needle) // 2] ^= 1
        found, position = found + 1, data.find(needle, position + len(needle))
    daemon.disk.write_bytes(data)
    return found


@pytest.mark.parametrize("family, left", [("qwen3", CHUNK), (HYBRID, 0)])
def test_damaged_chunk_is_a_miss(stored, daemon, prompt, family, left):
    """Of attention what is above it still serves; a state needs all chunks."""
    model = stored("damaged", family=family)
    part = model.store._template.pages[0]
    second = part.get(model.cache).narrow(part.axis, CHUNK, CHUNK)
    model.store.close()
    daemon.stop()
    assert flip_stored_bytes(daemon, second.numpy().tobytes()[: 1 << 12])
    daemon.start()
    model.open()
    assert model.store.find(prompt) == TOKENS
    loaded = model.store.load(prompt)
    assert (loaded.tokens if loaded else 0) == left


# ---- a daemon that is not there ----


def test_dead_daemon_is_a_miss_and_comes_back(stored, daemon, prompt):
    model = stored("dead")
    daemon.stop(signal.SIGKILL)
    try:
        assert model.store.load(prompt) is None
        saved = model.store.save(model.cache, prompt[:, :TOKENS])
        assert (saved.tokens, saved.nbytes) == (0, 0) and saved.status is not Status.OK
    finally:
        daemon.start()
    eventually(lambda: model.store.session.info().attached)
    assert model.store.save(model.cache, prompt[:, :TOKENS]).tokens == TOKENS
    assert model.store.load(prompt).tokens == TOKENS
