# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the daemon or the bytes: answers in time, never an exception, and what
is not right is not said to be there."""
import logging
import signal
import threading
import time

import pytest
from conftest import EXTRA, config_of, create, eventually, transfer
from host_pools import PAGE, content, fill, indices_of, keys, mha, wipe
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName

from kvtier import Group, GroupKind, Layout, Objects, Session, Status

N = 4
CHAIN = keys(N)


class Case:
    """A pool of which the first N pages are stored."""

    def __init__(self, daemon, open_backend, **options):
        self.daemon, self.pool = daemon, mha(layers=16)
        options = {"kvtier_" + name: value for name, value in options.items()}
        self.backend = open_backend(daemon, self.pool, options=options)
        self.indices = indices_of(self.pool, range(N))
        fill(self.pool, 1)
        self.stored = content(self.pool, self.indices)
        assert self.backend.batch_set_v1(CHAIN, self.indices) == [True] * N

    def read(self):
        """(which were loaded, which of these have the stored bytes)"""
        wipe(self.pool)
        done = self.backend.batch_get_v1(CHAIN, self.indices)
        found = content(self.pool, self.indices)
        assert all(found[i] == self.stored[i] for i in range(N) if done[i])
        return done

    def comes_back(self):
        eventually(lambda: self.backend.batch_exists(CHAIN) == N)
        assert self.read() == [True] * N


@pytest.fixture
def case(daemon, open_backend):
    return Case(daemon, open_backend)


def lines(caplog, text):
    return [record for record in caplog.records if text in record.getMessage()]


def test_a_daemon_that_is_not_there_is_waited_for_once(build, tmp_path, open_backend, caplog):
    class Nobody:
        socket = str(tmp_path / "nobody.sock")

    pool = mha()
    with caplog.at_level(logging.WARNING, "sglang.kvtier"):
        began = time.monotonic()
        backend = open_backend(Nobody, pool, options={"kvtier_connect_timeout": 0.2})
        indices = indices_of(pool, range(N))
        assert backend.batch_set_v1(CHAIN, indices) == [False] * N
        assert backend.batch_get_v1(CHAIN, indices) == [False] * N
        assert backend.batch_exists(CHAIN) == 0
        assert backend.batch_exists_v2(CHAIN, None).restorable_prefix_pages == []
        assert backend.set(CHAIN[0], pool.get_data_page(0)) is False
        assert backend.get(CHAIN[0], pool.get_dummy_flat_data_page()) is None
        assert time.monotonic() - began < 5
    assert len(lines(caplog, "no daemon")) == 1


def test_a_restarted_daemon_has_it_on_disk(case):
    case.daemon.restart()
    case.comes_back()


def test_a_killed_daemon_is_a_miss_and_comes_back(case, caplog):
    with caplog.at_level(logging.WARNING, "sglang.kvtier"):
        case.daemon.stop(signal.SIGKILL)
        eventually(lambda: case.backend.batch_exists(CHAIN) == 0)
        assert case.read() == [False] * N
        assert case.backend.batch_set_v1(CHAIN, case.indices) == [False] * N
        eventually(lambda: lines(caplog, "no daemon") or case.backend.batch_exists(CHAIN))
        case.daemon.start()
        eventually(lambda: case.backend._store._session.info().attached)
        fill(case.pool, 1)
        assert case.backend.batch_set_v1(CHAIN, case.indices) == [True] * N
        case.comes_back()
    assert len(lines(caplog, "no daemon")) == 1


@pytest.mark.parametrize("what", ["load", "store"])
def test_a_daemon_killed_during_a_call_ends_it(case, what):
    """The daemon stands still, so that the call is in flight when it dies."""
    case.daemon.process.send_signal(signal.SIGSTOP)
    chain = CHAIN if what == "load" else keys(N, "others")
    call = case.backend.batch_get_v1 if what == "load" else case.backend.batch_set_v1
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call(chain, case.indices)))
    thread.start()
    eventually(lambda: case.backend._store._session._calls)
    began = time.monotonic()
    case.daemon.stop(signal.SIGKILL)
    thread.join(timeout=8)
    assert not thread.is_alive() and time.monotonic() - began < 8
    assert answers == [[False] * N]


@pytest.mark.parametrize("what", ["load", "store"])
def test_a_daemon_that_stands_still_costs_the_timeout(daemon, open_backend, caplog, what):
    case = Case(daemon, open_backend, load_timeout=0.3, store_timeout=0.3)
    chain = CHAIN if what == "load" else keys(N, "others")
    call = case.backend.batch_get_v1 if what == "load" else case.backend.batch_set_v1
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        with caplog.at_level(logging.WARNING, "sglang.kvtier"):
            began = time.monotonic()
            for _ in range(2):
                assert call(chain, case.indices) == [False] * N
            assert 0.3 < time.monotonic() - began < 5
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert len(lines(caplog, "could not be " + ("loaded" if what == "load" else "stored"))) == 1
    fill(case.pool, 1)
    eventually(lambda: call(chain, case.indices) == [True] * N)


def test_damaged_bytes_end_the_prefix(case):
    case.daemon.stop()
    data = bytearray(case.daemon.disk.read_bytes())
    place = data.find(case.stored[2][:512])
    assert place >= 0
    data[place] ^= 1
    case.daemon.disk.write_bytes(data)
    case.daemon.start()
    eventually(lambda: case.backend.batch_exists(CHAIN) == N)
    assert case.read() == [True, True, False, True]
    # It is not asked for again, and may be stored anew.
    eventually(lambda: case.backend.batch_exists(CHAIN) == 2)
    fill(case.pool, 1)
    assert case.backend.batch_set_v1(CHAIN, case.indices) == [True] * N
    assert case.read() == [True] * N


def lease_all(session):
    """All that the daemon lets anybody hold at once."""
    held, room = [], 1 << 20
    while room >= 1 << 12:
        objects = Objects(len(held).to_bytes(32, "big"), nbytes=room)
        session.reserve_objects(objects, waited=True).wait()
        if objects.statuses[0] == Status.OK:
            held.append(objects)
        else:
            room //= 2
    return held


def test_a_full_daemon_stores_nothing_and_says_it_once(daemon, open_backend, caplog):
    pool = mha(layers=16)
    backend = open_backend(daemon, pool)
    indices = indices_of(pool, range(N))
    layout = Layout("other", "test", [Group("blob", GroupKind.STATE)])
    with Session(layout, socket=daemon.socket) as session:
        held = lease_all(session)
        with caplog.at_level(logging.WARNING, "sglang.kvtier"):
            for _ in range(2):
                assert backend.batch_set_v1(CHAIN, indices) == [False] * N
        assert len(lines(caplog, "could not be stored")) == 1
        for objects in held:
            session.abort_objects(objects, waited=True).wait()
    assert backend.batch_set_v1(CHAIN, indices) == [True] * N


def test_a_page_that_cannot_be_copied_leaves_no_room_reserved(daemon, open_backend, monkeypatch):
    def write(objects, i, data):
        raise ValueError("write: broken")

    pool = mha()
    backend = open_backend(daemon, pool)
    page = pool.get_data_page(0)
    with monkeypatch.context() as broken:
        broken.setattr(Objects, "write", write)
        assert backend.set(CHAIN[0], page) is False
    assert daemon.metric("leases") == 0
    assert backend.exists(CHAIN[0]) is False
    assert backend.set(CHAIN[0], page) is True


def test_a_cleared_storage_finds_nothing_of_before(daemon, open_backend):
    case = Case(daemon, open_backend)
    other = open_backend(daemon, mha(layers=16))
    assert case.backend.clear() is True
    assert case.backend.batch_exists(CHAIN) == 0
    assert case.read() == [False] * N
    fill(case.pool, 1)
    assert case.backend.batch_set_v1(CHAIN, case.indices) == [True] * N
    assert case.read() == [True] * N
    # Another rank of this run that was cleared, too, has the same names; one that was not, others.
    assert other.batch_exists(CHAIN) == N
    other.clear()
    assert other.batch_exists(CHAIN) == N
    other.clear()
    assert other.batch_exists(CHAIN) == 0


def test_the_names_of_a_run_are_its_own(monkeypatch):
    from kvtier.sglang import identity

    ours = identity.engine_nonce()
    assert identity.engine_nonce() == ours and len(ours) == 32
    monkeypatch.setattr(identity.os, "getppid", lambda: 1)
    assert identity.engine_nonce() != ours
    # Of a parent outside of the container there is nothing to be seen.
    monkeypatch.setattr(identity.os, "getppid", lambda: 0)
    assert len({identity.engine_nonce() for _ in range(2)}) == 2


def test_a_closed_backend_answers(daemon, open_backend):
    case = Case(daemon, open_backend)
    case.backend.close()
    case.backend.close()
    assert case.backend.batch_exists(CHAIN) == 0
    assert case.read() == [False] * N
    assert case.backend.batch_set_v1(CHAIN, case.indices) == [False] * N
    case.backend.register_mem_host_pool_v2(case.pool, PoolName.KV)
    assert case.backend.batch_exists(CHAIN) == 0


def test_close_waits_for_calls(daemon, open_backend):
    """Until then their memory is the library's."""
    case = Case(daemon, open_backend, load_timeout=0.5)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(case.read()))
        thread.start()
        session, in_flight = case.backend._store._session, []
        eventually(lambda: session._calls)
        close = session.close
        session.close = lambda: in_flight.append(dict(session._calls)) or close()
        case.backend.close()
        assert in_flight == [{}]
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    thread.join(5)
    assert answers == [[False] * N]


def test_calls_go_on_while_pools_come_late(daemon, open_backend, caplog):
    """Each makes another session, under calls of the two storage threads."""
    case = Case(daemon, open_backend)
    stop, answers = threading.Event(), []

    def work(call, indices):
        while not stop.is_set():
            answers.append(call(CHAIN, indices))

    calls = (case.backend.batch_set_v1, 0), (case.backend.batch_get_v1, N)
    threads = [
        threading.Thread(target=work, args=(call, indices_of(case.pool, range(first, first + N))))
        for call, first in calls
    ]
    for thread in threads:
        thread.start()
    for name in (PoolName.DRAFT, PoolName.SWA, PoolName.INDEXER) * 3:
        case.backend.register_mem_host_pool_v2(mha(), name)
        n = len(answers)
        eventually(lambda n=n: len(answers) > n + 4)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert all(len(answer) == N for answer in answers)
    assert not caplog.records
    case.comes_back()


def test_no_call_raises(daemon, open_backend, caplog):
    case = Case(daemon, open_backend)

    def explode(*arguments, **options):
        raise OSError("made up")

    case.backend._store._session.probe = explode
    with caplog.at_level(logging.ERROR, "sglang.kvtier"):
        for _ in range(2):
            assert case.backend.batch_exists(CHAIN) == 0
            assert case.backend.batch_exists_v2(CHAIN, None).kv_hit_pages == 0
            assert case.read() == [False] * N
            assert case.backend.batch_set_v1(CHAIN, case.indices) == [False] * N
            wanted = [transfer(PoolName.KV, CHAIN, case.indices)]
            assert case.backend.batch_get_v2(wanted) == {PoolName.KV: [False] * N}
            assert case.backend.batch_set_v2(wanted) == {PoolName.KV: [False] * N}
            assert case.backend.exists(CHAIN[0]) is False
    assert len(lines(caplog, "OSError: made up")) == 1


def test_policies_that_are_not_known_find_nothing(daemon, open_backend):
    case = Case(daemon, open_backend)
    asked = transfer(PoolName.KV, CHAIN, policy="of a later version")
    assert case.backend.batch_exists_v2(CHAIN, [asked]).kv_hit_pages == 0
    asked = transfer(PoolName.KV, CHAIN[-1:], policy=PoolHitPolicy.TRAILING_PAGES)
    assert case.backend.batch_exists_v2(CHAIN, [asked]).kv_hit_pages == N


def test_calls_before_the_pools_are_known_find_nothing(shared_daemon):
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    config = config_of({**EXTRA, "kvtier_socket": shared_daemon.socket})
    pool = mha()
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    assert backend.batch_exists(CHAIN) == 0
    backend.register_mem_pool_host(pool)
    assert backend.batch_set_v1(CHAIN, indices_of(pool, range(N))) == [False] * N
    backend.close()


# ---- refusals at the start ----


def refusal(daemon, pool=None, side=None, options=None, **changes):
    with pytest.raises(ValueError) as caught:
        extra = {**EXTRA, "kvtier_socket": daemon.socket, **(options or {})}
        create(pool or mha(), config_of(extra, **changes), side)
    return str(caught.value)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"kvtier_sockett": "/run/x"}, "no option kvtier_sockett"),
        ({"kvtier_timeout": 5}, "kvtier_socket, kvtier_store_timeout"),
        ({"kvtier_load_timeout": "5"}, "kvtier_load_timeout is '5'"),
        ({"kvtier_store_timeout": 0}, "kvtier_store_timeout is 0"),
        ({"kvtier_store_timeout": float("nan")}, "kvtier_store_timeout is nan"),
        ({"kvtier_load_timeout": float("inf")}, "kvtier_load_timeout is inf"),
        ({"kvtier_connect_timeout": True}, "kvtier_connect_timeout is True"),
        ({"kvtier_weights": 7}, "kvtier_weights is 7"),
        ({"kvtier_socket": 7}, "kvtier_socket is 7"),
    ],
)
def test_wrong_options_are_named(shared_daemon, options, reason):
    assert reason in refusal(shared_daemon, options=options)


def test_sglangs_own_options_are_left_alone(shared_daemon, open_backend):
    open_backend(shared_daemon, mha(), options={"allocator": "shm", "prefetch_threshold": 16})


def test_engines_that_cannot_be_served_are_refused(shared_daemon):
    why = refusal(
        shared_daemon, is_mla_model=True, tp_size=2, dcp_size=2, logical_page_size=PAGE
    )
    assert "decode context parallelism" in why
    moving = mha()
    moving.shared_allocation_domain = object()
    assert "shared arena" in refusal(shared_daemon, side={PoolName.SWA: moving})
    many = {name: mha() for name in (PoolName.SWA, PoolName.DRAFT)}
    assert "more than 64 cells" in refusal(shared_daemon, side=many, tp_size=32)
