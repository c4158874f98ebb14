# SPDX-License-Identifier: Apache-2.0
"""Two ranks, each with a process of its own, as vLLM runs outside of these tests."""
from conftest import Engine, prompt, same
from models import MODELS, make


def test_each_rank_stores_and_loads_its_shard(daemon, tmp_path):
    make(tmp_path / "qwen3", MODELS["qwen3"])
    engine = Engine(
        tmp_path / "qwen3.log",
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        model=str(tmp_path / "qwen3"),
        extra=dict(kvtier_socket=daemon.socket),
        tensor_parallel_size=2,
    )
    ids = prompt(4 * engine.block_tokens + 1, "ranks")
    plain = engine.generate(ids, skip=True)
    engine.forget()
    again = engine.generate(ids)
    same(again, plain)
    assert again[0]["found"] == 4 * engine.block_tokens
    # Without the other one's shard a boundary is of no use: both had stored theirs.
    assert engine.metric("attached") == 1
    assert engine.metric("keys_loaded") == 4
    engine.close()
