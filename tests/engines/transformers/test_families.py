# SPDX-License-Identifier: Apache-2.0
"""A model goes on from a stored cache as if it had never been away, bit for bit."""
import pytest
import torch
from conftest import CHUNK, TOKENS
from families import FAMILIES

from kvtier import Status

DTYPES = (torch.float32, torch.bfloat16)
# One of each way in which caches are kept.
RESTARTED = ("qwen3", "deepseek_v32", "gemma3", "mamba2", "qwen3_next", "deepseek_v4")
SHORT = 2 * CHUNK


def test_all_families_are_there():
    assert len(FAMILIES) == 29


def check_same(model, cache, loaded, prompt, tokens):
    """What is loaded computes what `cache` does, which has never left the process."""
    assert loaded is not None and loaded.tokens == tokens
    expected = model.go_on(cache, prompt, tokens)
    found = model.go_on(loaded.cache, prompt, tokens)
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_cache_goes_on_bit_for_bit(model_of, daemon, prompt, family, dtype):
    model = model_of(family, dtype)
    cache = model.prefill(prompt, TOKENS)
    assert model.store.load(prompt) is None
    saved = model.store.save(cache, prompt[:, :TOKENS])
    assert (saved.status, saved.why, saved.tokens) == (Status.OK, "", TOKENS)
    if family in RESTARTED:
        daemon.restart()
    model.open()  # with nothing that the first store has seen
    assert model.store.find(prompt) == TOKENS
    loaded = model.store.load(prompt)
    assert loaded.nbytes == saved.nbytes
    check_same(model, cache, loaded, prompt, TOKENS)

    shorter = prompt[:, :TOKENS]
    if model.store.exact:
        check_states_serve_their_own_length(model, prompt, shorter, dtype)
    else:
        check_prefix(model, prompt, shorter)


def check_states_serve_their_own_length(model, prompt, shorter, dtype):
    """The chunks up to it are there, but a boundary without a state of its own is a miss."""
    assert model.store.find(shorter) == 0
    assert model.store.load(shorter) is None
    cache = model.prefill(prompt, SHORT)
    saved = model.store.save(cache, prompt[:, :SHORT])
    assert (saved.status, saved.tokens) == (Status.OK, SHORT)
    loaded = model.store.load(shorter)
    assert loaded is not None and loaded.tokens == SHORT
    # Its chunks are those of the longer prefill, whose sums are rounded otherwise.
    expected = model.go_on(cache, prompt, SHORT)
    found = model.go_on(loaded.cache, prompt, SHORT)
    if dtype is torch.float32:
        assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)


def check_prefix(model, prompt, shorter):
    """Rows of a longer cache are those of a shorter one."""
    loaded = model.store.load(shorter)
    assert loaded is not None and loaded.tokens == SHORT
    whole = model.store.load(prompt).cache
    whole.crop(SHORT - TOKENS)
    check_same(model, whole, loaded, prompt, SHORT)
