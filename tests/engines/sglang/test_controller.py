# SPDX-License-Identifier: Apache-2.0
"""SGLang's own threads that back up and prefetch."""
import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from conftest import EXTRA
from controllers import Engine, N, ranks
from host_pools import PAGE, content, fill, indices_of, keys, wipe

RANK = Path(__file__).with_name("rank.py")


@pytest.fixture(scope="module")
def tp_group():
    with ranks(torch.distributed.HashStore()) as group:
        yield group


@pytest.fixture
def engine_of(request, tp_group):
    with ExitStack() as stack:

        def make(daemon, **options):
            engine = Engine(daemon.socket, tp_group, request.node.name, **options)
            stack.callback(engine.close)
            return engine

        yield make


def test_pages_are_backed_up_and_prefetched(shared_daemon, engine_of):
    engine = engine_of(shared_daemon)
    fill(engine.kv, 1)
    stored = content(engine.kv, indices_of(engine.kv, range(N)))
    assert engine.back_up(N) == N * PAGE
    other = engine_of(shared_daemon)
    assert other.query(8).storage_hit_count == 8 * PAGE
    found = other.query(N)
    assert found.storage_hit_count == N * PAGE
    assert found.hash_value == keys(N)
    wipe(other.kv)
    assert other.fetch(found, first_page=N)[0] == N * PAGE
    assert content(other.kv, indices_of(other.kv, range(N, 2 * N))) == stored


def test_what_is_not_stored_is_no_hit(shared_daemon, engine_of):
    engine = engine_of(shared_daemon)
    assert engine.query(8).storage_hit_count == 0
    engine.back_up(5)
    assert engine.query(8).storage_hit_count == 5 * PAGE


def test_calls_with_copies_serve_the_threads_too(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, interface_v1=0)
    fill(engine.kv, 2)
    stored = content(engine.kv, indices_of(engine.kv, range(8)))
    assert engine.back_up(8) == 8 * PAGE
    wipe(engine.kv)
    assert engine.fetch(engine.query(8), first_page=20)[0] == 8 * PAGE
    assert content(engine.kv, indices_of(engine.kv, range(20, 28))) == stored


def test_a_hybrid_goes_on_where_its_state_is(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, states=True)
    fill(engine.kv, 3)
    fill(engine.states, 4)
    stored = content(engine.kv, indices_of(engine.kv, range(6)))
    [state] = content(engine.states, torch.tensor([3]))
    assert engine.back_up(8, state_at=6) == 8 * PAGE
    other = engine_of(shared_daemon, states=True)
    wipe(other.kv)
    wipe(other.states)
    found = other.query(8, state_slot=9)
    assert found.storage_hit_count == 6 * PAGE
    completed, pools = other.fetch(found, first_page=30)
    assert (completed, pools["mamba"]) == (6 * PAGE, 1)
    assert content(other.kv, indices_of(other.kv, range(30, 36))) == stored
    assert content(other.states, torch.tensor([9])) == [state]


def test_a_clear_is_asked_of_the_backend(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, states=True)
    engine.back_up(4)
    assert engine.query(4).storage_hit_count == 4 * PAGE
    assert engine.controller.clear_storage_backend()
    assert engine.query(4).storage_hit_count == 0


def test_the_threads_outlive_the_daemon(daemon, engine_of):
    engine = engine_of(daemon, kvtier_load_timeout=0.5, kvtier_store_timeout=0.5)
    assert engine.back_up(8) == 8 * PAGE
    found = engine.query(8)
    daemon.stop(signal.SIGKILL)
    assert engine.fetch(found, first_page=20)[0] == 0
    assert engine.back_up(8) == 0
    assert engine.query(8).storage_hit_count == 0
    daemon.start()
    session = engine.controller.storage_backend._store._session
    session.wait_attached(20)
    assert engine.back_up(8) == 8 * PAGE
    assert engine.query(8).storage_hit_count == 8 * PAGE


def test_a_backend_can_be_attached_again(shared_daemon, engine_of, request):
    engine = engine_of(shared_daemon)
    engine.back_up(4)
    engine.controller.detach_storage_backend()
    engine.controller.attach_storage_backend(
        "dynamic",
        prefetch_threshold=PAGE,
        model_name="test/model",
        storage_backend_extra_config={
            **EXTRA,
            "kvtier_socket": shared_daemon.socket,
            "kvtier_weights": request.node.name,
        },
    )
    assert engine.query(4).storage_hit_count == 4 * PAGE


def test_a_refused_backend_is_not_attached(shared_daemon, engine_of):
    with pytest.raises(ValueError, match="no option kvtier_sockett"):
        engine_of(shared_daemon, kvtier_sockett="/run/x")


def test_two_ranks_go_on_where_both_have_a_state(shared_daemon, tmp_path):
    """By SGLang's own collective, over what each of them finds."""
    places = {0: [2, 6], 1: [2, 4]}
    processes = [
        subprocess.Popen(
            [sys.executable, RANK, str(rank), tmp_path / "ranks", shared_daemon.socket]
            + [str(place) for place in places[rank]],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in places
    ]
    answers = [json.loads(p.communicate(timeout=150)[0].splitlines()[-1]) for p in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [answer.pop("restorable") for answer in answers] == list(places.values())
    common = dict(hit_tokens=2 * PAGE, completed=2 * PAGE, states=1, equal=True)
    assert answers == [common, common]
