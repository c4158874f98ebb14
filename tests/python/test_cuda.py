# SPDX-License-Identifier: Apache-2.0
"""Pages on a GPU, against a real daemon and a driver that needs no GPU.

That driver's device memory cannot be touched by the host at its addresses.
"""
import sys
import threading
from pathlib import Path

import kvtier.cuda
import kvtier.pages
import pytest
from conftest import layout
from kvtier import Group, GroupKind, Objects, PageGroup, PageMap, Session, Status, digest_array
from kvtier.cuda import Cuda, CudaError, Direction, Strategy

np = pytest.importorskip("numpy")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))
from fake_gpu import Driver  # noqa: E402

PAGE_TOKENS = 16
PAGES = 2  # of a chunk
CHUNK = PAGE_TOKENS * PAGES
LAYERS, N_PAGES, ROW = 3, 32, 4096
PAGE_BYTES, STATE_BYTES = LAYERS * ROW, 1000
GROUPS = [
    Group("kv", GroupKind.ATTENTION, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES),
    Group("state", GroupKind.STATE, page_bytes=STATE_BYTES),
]


@pytest.fixture(scope="module")
def driver(request):
    return Driver(Path(request.config.getoption("--build")) / "tests/support/libfake_cuda.so")


@pytest.fixture
def session(daemon):
    with Session(layout("gpu", chunk_tokens=CHUNK, groups=GROUPS), socket=daemon.socket) as s:
        yield s


@pytest.fixture
def cuda(driver, session):
    with Cuda(session, driver=driver.path, measure=False, staging_bytes=1 << 20) as cuda:
        yield cuda


class Engine:
    """Pages on the GPU, states in host memory."""

    def __init__(self, session, driver, seed):
        self.kv = [driver.array((N_PAGES, ROW), seed + i) for i in range(LAYERS)]
        self.states = np.random.default_rng(seed).integers(0, 256, (4, STATE_BYTES), dtype=np.uint8)
        pages, states = PageGroup.of(self.kv), PageGroup.of([self.states], group=1)
        self.map = PageMap(session, [pages, states])

    def pages(self, slots):
        return np.stack([layer.host[list(slots)] for layer in self.kv])


@pytest.fixture
def engines(session, cuda, driver):
    return Engine(session, driver, 1), Engine(session, driver, 100)


def chunks(fresh, n, slots):
    digests, _ = digest_array(fresh(n * CHUNK), CHUNK)
    data = digests.tobytes()
    ends = range(CHUNK, (n + 1) * CHUNK, CHUNK)
    objects = Objects(data, parents=bytes(32) + data[:-32], boundary_tokens=ends)
    objects.set_slots(slots, PAGES)
    return objects


def loading(objects, slots):
    loaded = Objects(objects.digests)
    loaded.set_slots(slots, PAGES)
    return loaded


def test_pages_on_a_gpu_come_back_into_other_slots(session, cuda, driver, engines, fresh):
    first, second = engines
    saved, restored = (np.random.default_rng(i).permutation(N_PAGES)[:20] for i in range(2))
    before = second.pages(range(N_PAGES))
    written, read = driver.event(), driver.event()
    objects = chunks(fresh, 10, saved.tolist())
    call = session.store_pages(first.map, objects, after=written, waited=True)
    assert call.wait().status is Status.OK
    loaded = loading(objects, restored.tolist())
    call = session.load_pages(second.map, loaded, after=read, done=driver.event(), waited=True)
    assert call.wait().status is Status.OK
    assert (second.pages(restored) == first.pages(saved)).all()
    others = sorted(set(range(N_PAGES)) - set(restored.tolist()))
    assert (second.pages(others) == before[:, others]).all()
    info = cuda.info()
    for direction in Direction:
        moved = [info.moved[direction, strategy].nbytes for strategy in Strategy]
        assert sum(moved) == 20 * PAGE_BYTES
    assert not info.is_lost and not info.failed_jobs and info.n_devices >= 1


def test_copies_wait_for_the_event_that_is_given(session, driver, engines, fresh):
    def waits(submit, of, **options):
        before = driver.calls("cuStreamWaitEvent")
        assert submit(engines[0].map, of, waited=True, **options).wait().status is Status.OK
        return driver.calls("cuStreamWaitEvent") - before

    objects = [chunks(fresh, 1, [0, 1]) for _ in range(2)]
    event = driver.event()
    without = waits(session.store_pages, objects[0])
    assert waits(session.store_pages, objects[1], after=event) > without
    without = waits(session.load_pages, loading(objects[0], [0, 1]))
    assert waits(session.load_pages, loading(objects[0], [0, 1]), after=event) > without


def test_one_set_takes_pages_from_the_gpu_and_states_from_the_host(session, engines, fresh):
    first, second = engines
    digests, _ = digest_array(fresh(CHUNK), CHUNK)
    both = Objects([bytes(digests)] * 2, group=[0, 1], parents=bytes(64))
    both.set_slots([7, 8, 3], [2, 1])
    call = session.store_pages(first.map, both, set_id=9, waited=True)
    assert call.wait().status is Status.OK
    both.set_slots([1, 2, 0], [2, 1])
    assert session.load_pages(second.map, both, waited=True).wait().status is Status.OK
    assert (second.pages([1, 2]) == first.pages([7, 8])).all()
    assert (second.states[0] == first.states[3]).all()


def test_memory_of_the_daemon_is_registered_in_the_background(cuda):
    assert cuda.wait_registered(timeout=20)
    info = cuda.info()
    assert info.mapped_bytes and info.registered_bytes == info.mapped_bytes


def test_a_copy_that_fails_is_a_failed_object(session, cuda, driver, engines, fresh):
    objects = chunks(fresh, 1, [0, 1])
    names = ("cuMemcpyAsync", "cuMemcpyBatchAsync", "cuLaunchKernel")
    for name in names:
        driver.fail(name, 1)
    try:
        session.store_pages(engines[0].map, objects, waited=True).wait()
    finally:
        for name in names:
            driver.fail(name, 0)
    assert Status(objects.statuses[0]) is Status.IO_ERROR
    assert cuda.info().failed_jobs == 1 and cuda.info().last_error


def test_without_its_gpus_a_session_takes_no_pages_on_them(session, driver, fresh):
    cuda = Cuda(session, driver=driver.path, measure=False)
    with pytest.raises(CudaError, match="REFUSED"):
        Cuda(session, driver=driver.path)
    engine = Engine(session, driver, 1)
    cuda.close()
    objects = chunks(fresh, 1, [0, 1])
    session.store_pages(engine.map, objects, waited=True).wait()
    assert Status(objects.statuses[0]) is Status.UNSUPPORTED
    with pytest.raises(ValueError, match="kvtier.cuda.Cuda"):
        Engine(session, driver, 1)
    with pytest.raises(ValueError, match="given up"):
        cuda.info()


def test_no_driver_is_told_in_words(session):
    with pytest.raises(CudaError, match="UNAVAILABLE: .*no-such-driver") as error:
        Cuda(session, driver="/no-such-driver.so")
    assert error.value.status is Status.UNAVAILABLE


def test_what_is_chosen_by_size_alone_is_told(cuda, engines):
    rows = cuda.measured(0)
    assert [row.run_bytes for row in rows] == sorted(row.run_bytes for row in rows) and rows
    assert all(set(row.chosen) == set(Direction) for row in rows)
    assert cuda.measured(7) == []


class Slow:
    """Both libraries; one function takes until the GPUs are given up, or a moment."""

    def __init__(self, slow):
        self.libraries = [kvtier.pages.lib, kvtier.cuda._library()]
        self.slow, self.events = slow, []
        self.begun, self.given_up = threading.Event(), threading.Event()

    def __getattr__(self, name):
        function = next(getattr(of, name) for of in self.libraries if hasattr(of, name))
        if name not in (self.slow, "kvt_cuda_unregister"):
            return function

        def noted(*arguments):
            if name == self.slow:
                self.begun.set()
                self.given_up.wait(0.2)
            result = function(*arguments)
            self.events.append(name)
            if name != self.slow:
                self.given_up.set()
            return result

        return noted


LOOKS = {
    "kvt_cuda_info": lambda cuda, *_: cuda.info(),
    "kvt_cuda_measured": lambda cuda, *_: cuda.measured(0),
    "kvt_page_map_new": lambda _, *engine: Engine(*engine, 1),
}


@pytest.mark.parametrize("name", LOOKS)
def test_gpus_are_not_given_up_beneath_who_looks_at_them(session, driver, monkeypatch, name):
    cuda, slow = Cuda(session, driver=driver.path, measure=False), Slow(name)
    monkeypatch.setattr(kvtier.pages, "lib", slow)
    monkeypatch.setattr(kvtier.cuda, "_library", lambda: slow)
    looking = threading.Thread(target=LOOKS[name], args=(cuda, session, driver))
    looking.start()
    assert slow.begun.wait(20)
    cuda.close()
    looking.join()
    assert slow.events == [name, "kvt_cuda_unregister"]


def test_session_may_be_closed_first(daemon, driver):
    session = Session(layout("gpu", chunk_tokens=CHUNK, groups=GROUPS), socket=daemon.socket)
    with Cuda(session, driver=driver.path, measure=False):
        session.close()
