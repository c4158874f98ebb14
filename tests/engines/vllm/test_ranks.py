# SPDX-License-Identifier: Apache-2.0
"""Two ranks, each with a process of its own, as vLLM runs outside of these tests."""
from pathlib import Path

import pytest
from conftest import Engine, prompt, same
from models import MODELS, make


@pytest.fixture
def ranks_memory():
    """vLLM kills ranks that are slow to end, as on a busy machine: what they shared stays."""
    folder = Path("/dev/shm")
    before = set(folder.glob("vllm_dist_*"))
    yield
    for path in set(folder.glob("vllm_dist_*")) - before:
        path.unlink(missing_ok=True)


def test_each_rank_stores_and_loads_its_shard(daemon, tmp_path, ranks_memory):
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
