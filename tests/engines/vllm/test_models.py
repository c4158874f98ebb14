# SPDX-License-Identifier: Apache-2.0
"""Models whose caches are of other kinds: one round trip, engine and daemon restarted."""
import pytest
from conftest import Engine, prompt, same
from models import MODELS, OPTIONS, TOLERANCE, make


@pytest.mark.parametrize(
    "name, extra, found",
    [
        ("gemma3", {}, 3),
        ("nemotron_h", {}, 3),
        ("deepseek_v3", {}, 3),
        ("qwen3", {"blocks_per_chunk": 2}, 2),
    ],
)
def test_what_comes_back_is_what_was_computed(daemon, tmp_path, name, extra, found):
    make(tmp_path / name, MODELS[name])
    options = dict(
        OPTIONS.get(name, {}),
        model=str(tmp_path / name),
        extra=dict(extra, kvtier_socket=daemon.socket),
    )
    first = Engine(tmp_path / f"{name}.log", **options)
    ids = prompt(3 * first.block_tokens + 7, name)
    plain = first.generate(ids, skip=True)
    first.close()
    daemon.restart()
    second = Engine(tmp_path / f"{name}.log", **options)
    again = second.generate(ids)
    same(again, plain, TOLERANCE.get(name, 0.0))
    assert again[0]["found"] == found * second.block_tokens
    second.close()


def test_with_a_codec_the_states_are_exact_and_the_answer_is_close(daemon, tmp_path):
    name = "qwen3_next"
    make(tmp_path / name, MODELS[name])
    extra = dict(kvtier_socket=daemon.socket, kvtier_codec="fp8-tile128")
    options = dict(OPTIONS.get(name, {}), model=str(tmp_path / name), extra=extra)
    engine = Engine(tmp_path / f"{name}.log", **options)
    ids = prompt(3 * engine.block_tokens + 7, name)
    plain = engine.generate(ids, skip=True)
    engine.forget()
    again = engine.generate(ids)
    assert again[0]["found"] == 3 * engine.block_tokens
    same(again, plain, 0.05)
    assert again[0]["logprobs"] != plain[0]["logprobs"]
    engine.close()
