# SPDX-License-Identifier: Apache-2.0
"""SmolLM2: real weights, pure attention. A stored state serves any prefix of its tokens."""
import json
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import pytest

from conftest import LICENCE, continued
from kvtier import Identity, Status
from kvtier.lease import Lease

MODEL = "smollm2"
N = 321


def stored(engine, store, tokens):
    """Saves all but the last token; what an uninterrupted run goes on with."""
    engine.clear()
    engine.decode(tokens[:-1])
    assert store.save(tokens[:-1]) is Status.OK
    return continued(engine, tokens[-1:])


def run_first_engine(daemon, path, tmp_path):
    """Another process stores the state and is killed; its answer."""
    out = tmp_path / "answer.json"
    script = Path(__file__).with_name("first_engine.py")
    process = subprocess.Popen([sys.executable, script, path, daemon.socket, str(N), out])
    try:
        while not out.exists():
            assert process.poll() is None, "the first engine failed"
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    return tuple(json.loads(out.read_text()))


def test_a_new_process_continues_to_the_bit(daemon, engine_of, model_path, open_store, tmp_path):
    answer = run_first_engine(daemon, model_path(MODEL), tmp_path)
    engine = engine_of(MODEL)
    tokens = engine.tokenize(LICENCE, N)
    store = open_store(engine)
    assert store.load(tokens) == N - 1
    assert continued(engine, tokens[-1:]) == answer
    # After a restart nothing is in host memory: all of it comes from NVMe.
    daemon.restart()
    assert store.session.wait_attached(30) is Status.OK
    assert store.load(tokens) == N - 1
    assert continued(engine, tokens[-1:]) == answer


def test_any_prefix_of_a_stored_state_serves(engine_of, open_store, text):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, N)
    stored(engine, store, tokens)
    # 200 of 201 are asked for, and the boundary below is at 192.
    assert store.load(tokens[:201]) == 192 == engine.held()
    answer = continued(engine, tokens[192:201])
    engine.clear()
    engine.decode(tokens[:192])
    assert continued(engine, tokens[192:201]) == answer
    other = tokens[:130] + text(engine, 100)[50:]
    assert store.load(other) == 128
    assert store.load(tokens[:64]) == 0 == engine.held()
    assert store.load(tokens[:65]) == 64
    assert store.load(tokens[:0]) == 0


def test_prefill_decodes_only_what_is_not_stored(engine_of, open_store, text):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 200)
    decoded = []

    def decode(part):
        decoded.append(len(part))
        engine.decode(part)

    assert store.prefill(tokens[:150], decode) == 0
    assert store.prefill(tokens, decode) == 149
    assert store.prefill(tokens, decode) == 199
    assert decoded == [149, 1, 50, 1, 1]


def test_damaged_bytes_on_nvme_are_a_miss(daemon, engine_of, open_store, text):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 200)
    engine.decode(tokens[:-1])
    assert store.save(tokens[:-1]) is Status.OK
    _, lease = store.session.acquire(tokens[:-1])
    with lease:
        needle = bytes(lease.view[lease.nbytes // 2 :][:64])
    daemon.stop()
    daemon.flip(needle)
    daemon.start()
    assert store.session.wait_attached(30) is Status.OK
    assert store.load(tokens) == 0 == engine.held()
    # And nothing is in the way of storing it again.
    answer = stored(engine, store, tokens)
    assert store.load(tokens) == 199
    assert continued(engine, tokens[-1:]) == answer


@pytest.mark.parametrize("damage", ["truncated", "longer", "foreign", "shorter sequence"])
def test_a_state_that_is_not_what_it_should_be_is_refused(engine_of, open_store, text, damage):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 100)
    engine.decode(tokens[:99])
    good = state_of(store, tokens[:99])
    if damage == "truncated":
        bad = good[:-1000]
    elif damage == "longer":
        bad = good + bytes(8)
    elif damage == "foreign":
        bad = state_of_gemma(engine_of, open_store, text)
    else:
        engine.clear()
        engine.decode(tokens[:70])
        bad = state_of(store, tokens[:70])
    assert store.session.put(tokens[:99], bad, croppable=True, replace=True) is Status.OK
    engine.clear()
    engine.decode(tokens[:5])
    assert store.load(tokens) in ((64, 70) if damage == "shorter sequence" else (0,))
    assert engine.held() in (0, 64, 70)
    # What was refused is replaced by the next one that is saved.
    answer = stored(engine, store, tokens)
    assert store.load(tokens) == 99
    assert continued(engine, tokens[-1:]) == answer


def state_of(store, tokens):
    """A copy of the state that is saved."""
    assert store.save(tokens) is Status.OK
    return bytes(store.session.get(tokens)[1])


def state_of_gemma(engine_of, open_store, text):
    gemma = engine_of("gemma3")
    tokens = text(gemma, 99)
    gemma.decode(tokens)
    return state_of(open_store(gemma), tokens)


def test_a_state_in_several_segments_is_copied(engine_of, open_store, text, monkeypatch):
    monkeypatch.setattr(Lease, "contiguous", False)
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 150)
    answer = stored(engine, store, tokens)
    assert store.load(tokens) == 149
    assert continued(engine, tokens[-1:]) == answer


def test_another_lora_or_salt_misses(engine_of, open_store, text):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 100)
    stored(engine, store, tokens)
    for other in (Identity(lora=b"adapter"), Identity(salt=b"tenant")):
        assert store.load(tokens, identity=other) == 0
        assert open_store(engine, identity=other).load(tokens) == 0
    assert store.load(tokens) == 99


def test_other_contexts_miss(engine_of, open_store, text):
    engine = engine_of(MODEL)
    tokens = text(engine, 100)
    stored(engine, open_store(engine), tokens)
    disabled = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for changes in ({"type_k": 8}, {"flash_attn_type": disabled}, {"n_ubatch": 256}):
        assert open_store(engine_of(MODEL, **changes)).load(tokens) == 0, changes
    # A capacity makes no difference.
    assert open_store(engine_of(MODEL, n_ctx=1024)).load(tokens) == 99


def test_another_build_misses(engine_of, open_store, text, monkeypatch):
    engine = engine_of(MODEL)
    tokens = text(engine, 100)
    stored(engine, open_store(engine), tokens)
    monkeypatch.setattr("kvtier.llama_layout.library_build", lambda: {"libraries": "other"})
    assert open_store(engine).load(tokens) == 0


def test_a_sequence_that_holds_something_else_is_not_saved(engine_of, open_store, text):
    engine = engine_of(MODEL)
    store = open_store(engine)
    tokens = text(engine, 100)
    engine.decode(tokens)
    with pytest.raises(ValueError, match="holds 100 tokens, not 99"):
        store.save(tokens[:99])
    llama_cpp.llama_memory_seq_rm(engine.memory, 0, 0, 10)
    with pytest.raises(ValueError, match="lost its beginning"):
        store.save(tokens)
    with pytest.raises(ValueError, match="sequence 1 of 1"):
        store.load(tokens, seq=1)


def test_pure_attention_needs_no_checkpoints(engine_of, open_store, text):
    engine = engine_of(MODEL)
    tokens = text(engine, 64)
    engine.decode(tokens)
    assert open_store(engine).checkpoint(tokens) is Status.UNSUPPORTED


def test_without_a_daemon_everything_misses(engine_of, text, tmp_path):
    engine = engine_of(MODEL)
    tokens = text(engine, 100)
    with engine.open_store(str(tmp_path / "nobody.sock"), connect_timeout=0.01) as store:
        assert store.prefill(tokens, engine.decode) == 0
        assert engine.held() == 100
        assert store.save(tokens) is Status.UNAVAILABLE
