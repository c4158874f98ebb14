# SPDX-License-Identifier: Apache-2.0
"""Models whose caches are of other kinds: one round trip, engine and daemon restarted."""
import pytest
from conftest import Engine, prompt
from models import BLOCK, MODELS, make
from test_engine import same


@pytest.mark.parametrize(
    "name, options, extra, found",
    [
        ("gemma3", {}, {}, 3 * BLOCK),
        # This vLLM computes mamba2 on the CPU only a block at a time.
        ("nemotron_h", {"max_num_batched_tokens": BLOCK}, {}, 3 * BLOCK),
        ("qwen3", {}, {"blocks_per_chunk": 2}, 2 * BLOCK),
    ],
)
def test_what_comes_back_is_what_was_computed(daemon, tmp_path, name, options, extra, found):
    make(tmp_path / name, MODELS[name])
    options = dict(
        options,
        model=str(tmp_path / name),
        extra=dict(extra, kvtier_socket=daemon.socket),
    )
    ids = prompt(3 * BLOCK + 7, name)
    first = Engine(tmp_path / f"{name}.log", **options)
    plain = first.generate(ids, skip=True)
    first.close()
    daemon.restart()
    second = Engine(tmp_path / f"{name}.log", **options)
    again = second.generate(ids)
    same(again, plain)
    assert again[0]["found"] == found
    second.close()
