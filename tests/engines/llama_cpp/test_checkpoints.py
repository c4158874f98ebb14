# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 (window of 512 tokens) and a hybrid: a state serves exactly its own tokens."""
import pytest

from conftest import continued
from kvtier import Status
from kvtier.llama_layout import CHECKPOINT, COVER, SEQUENCE

# Checkpoints behind the first window; END is no multiple of chunk_tokens.
FIRST, SECOND, END = 576, 640, 660
MODELS = ["gemma3", "hybrid"]


@pytest.fixture(params=MODELS)
def engine(request, engine_of):
    return engine_of(request.param)


def answer_behind(engine, store, prompt, n):
    """Restores n tokens of a prompt and continues."""
    assert store.load(prompt) == n == engine.held()
    return continued(engine, prompt[n:])


def test_only_the_exact_prefix_is_served(engine, open_store, text):
    store = open_store(engine)
    tokens = text(engine, END + 1)
    engine.decode(tokens[:SECOND])
    assert store.save(tokens[:SECOND]) is Status.OK
    uninterrupted = continued(engine, tokens[SECOND:])
    restored = answer_behind(engine, store, tokens, SECOND)
    assert answer_behind(engine, store, tokens, SECOND) == restored
    if store.memory.value == "hybrid":
        assert restored == uninterrupted  # window cells lie elsewhere: sums are rounded otherwise
    # A prefix, even one at a boundary, and a text that goes on otherwise have no checkpoint.
    for prompt in (tokens[: FIRST + 1], tokens[:SECOND], tokens[:FIRST] + tokens[:100]):
        engine.decode(tokens[:5])
        assert store.load(prompt) == 0 == engine.held()


def test_a_checkpoint_is_served_with_the_state_saved_behind_it(engine, open_store, text, daemon):
    store = open_store(engine)
    tokens = text(engine, END)
    engine.decode(tokens[:FIRST])
    assert store.checkpoint(tokens[:FIRST]) is Status.OK
    engine.decode(tokens[FIRST:SECOND])
    assert store.checkpoint(tokens[:SECOND]) is Status.OK
    whole_bytes = engine.state_bytes()
    # Alone it would be accepted, and be garbage.
    assert store.load(tokens) == 0 == engine.held()
    engine.decode(tokens)
    assert store.save(tokens) is Status.OK
    engine.clear()
    first = answer_behind(engine, store, tokens[: FIRST + 9], FIRST)
    second = answer_behind(engine, store, tokens[: SECOND + 9], SECOND)
    behind = tokens + tokens[:3]
    end = answer_behind(engine, store, behind, END)
    assert store.load(tokens[:FIRST]) == 0 == engine.held()

    # The same as what a state of its own gives, in fewer bytes.
    other = open_store(engine, chunk_tokens=32)
    for n, answer, prompt in ((FIRST, first, tokens[: FIRST + 9]), (END, end, behind)):
        assert store.load(prompt) == n
        assert other.save(tokens[:n]) is Status.OK
        assert answer_behind(engine, other, prompt, n) == answer
    assert size(store, tokens[:FIRST], CHECKPOINT) < whole_bytes

    daemon.restart()
    assert store.session.wait_attached(30) is Status.OK
    assert answer_behind(engine, store, tokens[: SECOND + 9], SECOND) == second
    assert size(store, tokens[:FIRST], COVER) > whole_bytes


def size(store, tokens, group):
    status, lease = store.session.acquire(tokens, group=group)
    assert status is Status.OK
    with lease:
        return lease.nbytes


def test_a_state_saved_without_checkpoints_is_stored_once(engine, open_store, text):
    store = open_store(engine)
    tokens = text(engine, 90)
    store.prefill(tokens, engine.decode)
    assert store.session.find(tokens, group=SEQUENCE) == 89
    assert store.session.find(tokens, group=COVER) == 0
    assert store.session.find(tokens, group=CHECKPOINT) == 0


def test_prefill_stores_checkpoints_on_its_way(engine, open_store, text):
    store = open_store(engine)
    tokens = text(engine, 200)
    assert store.prefill(tokens, engine.decode, checkpoints=(64, 128)) == 0
    assert engine.held() == 200
    for end, n in ((200, 199), (190, 128), (128, 64), (64, 0)):
        assert store.load(tokens[:end]) == n == engine.held()
    # Its checkpoints have what they need: the next turn is one whole state.
    longer = tokens + tokens[:20]
    assert store.prefill(longer, engine.decode) == 199
    assert store.session.find(longer, group=SEQUENCE) == 219
    assert store.session.find(longer, group=CHECKPOINT) == 199


def test_a_checkpoint_lies_at_a_boundary(engine, open_store, text):
    store = open_store(engine)
    tokens = text(engine, 70)
    engine.decode(tokens)
    with pytest.raises(ValueError, match="multiple of 64 tokens, not 70"):
        store.checkpoint(tokens)


@pytest.mark.parametrize("bad", ["whole", "truncated", "of other tokens"])
def test_a_checkpoint_that_is_not_what_it_should_be_is_refused(engine, open_store, text, bad):
    store = open_store(engine)
    tokens = text(engine, 200)
    store.prefill(tokens, engine.decode, checkpoints=(64, 128))
    if bad == "whole":
        _, lease = store.session.acquire(tokens[:128], group=COVER)
    else:
        n = 128 if bad == "truncated" else 64
        _, lease = store.session.acquire(tokens[:n], group=CHECKPOINT)
    with lease:
        data = bytearray(lease.nbytes)
        lease.read_into(data)
    if bad == "truncated":
        del data[-999:]
    assert store.session.put(tokens[:128], data, group=CHECKPOINT, replace=True) is Status.OK
    # The checkpoint before it still is what it should be.
    assert store.load(tokens[:190]) == 64 == engine.held()
    engine.decode(tokens[64:128])
    assert store.checkpoint(tokens[:128]) is Status.OK
    assert store.load(tokens[:190]) == 128 == engine.held()


def test_a_state_of_more_tokens_is_never_cropped(engine, open_store, text):
    store = open_store(engine)
    tokens = text(engine, 100)
    store.prefill(tokens, engine.decode)
    n, data = store.session.get(tokens)
    assert n == 99
    assert store.session.put(tokens[:64], data) is Status.OK
    assert store.load(tokens[:80]) == 0 == engine.held()
    assert store.load(tokens) == 99
