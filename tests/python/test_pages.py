# SPDX-License-Identifier: Apache-2.0
"""Page maps over an engine's tensors, against a real daemon."""
import asyncio
import gc
import signal
import threading
import time
import weakref

import pytest

from conftest import eventually, layout
from kvtier import (
    Codec,
    Group,
    GroupKind,
    Objects,
    PageGroup,
    PageMap,
    PageView,
    Session,
    Status,
    digest_array,
)

np = pytest.importorskip("numpy")

TOKENS = 16  # of a page
PAGES = 2  # of a chunk
CHUNK = TOKENS * PAGES
HEADS, WIDTH = 2, 8
N_PAGES = 64
LAYERS = 3
# Of all layers, keys and values, in float32.
PAGE_BYTES = LAYERS * 2 * TOKENS * HEADS * WIDTH * 4
STATE_BYTES = 1000
GROUPS = [
    Group("kv", GroupKind.ATTENTION, page_tokens=TOKENS, page_bytes=PAGE_BYTES),
    Group("state", GroupKind.STATE, page_bytes=STATE_BYTES),
]


class Engine:
    """Keys and values of each layer in one tensor of (2, pages, tokens, heads, width)."""

    def __init__(self, session, seed):
        random = np.random.default_rng(seed)
        shape = (2, N_PAGES, TOKENS, HEADS, WIDTH)
        self.session = session
        self.kv = [random.random(shape, dtype=np.float32) for _ in range(LAYERS)]
        # With the engine's padding behind each state.
        self.padded = np.zeros((8, 1024), dtype=np.uint8)
        self.states = self.padded[:, :STATE_BYTES]
        self.states[:] = random.integers(0, 255, self.states.shape)
        kv = PageGroup.of(self.kv, page_axis=1)
        self.map = PageMap(session, [kv, PageGroup.of([self.states], group=1)])

    def pages(self, slots):
        """The bytes of these pages, as the header says they lie in an object."""
        return b"".join(
            layer[half, slot].tobytes() for slot in slots for layer in self.kv for half in (0, 1)
        )


@pytest.fixture
def engine(daemon):
    with Session(layout("pages", chunk_tokens=CHUNK, groups=GROUPS), socket=daemon.socket) as s:
        yield Engine(s, 1)


@pytest.fixture
def other(engine):
    return Engine(engine.session, 2)


def chunks(fresh, n, slots):
    digests, _ = digest_array(fresh(n * CHUNK), CHUNK)
    data = digests.tobytes()
    tokens = range(CHUNK, (n + 1) * CHUNK, CHUNK)
    objects = Objects(data, parents=bytes(32) + data[:-32], boundary_tokens=tokens, hit_tokens=0)
    objects.set_slots(slots, PAGES)
    return objects


def loading(objects, slots, count=PAGES):
    loaded = Objects(objects.digests)
    loaded.set_slots(slots, count)
    return loaded


def test_pages_come_back_into_other_slots_bit_for_bit(engine, other, fresh):
    rng = np.random.default_rng(3)
    saved, restored = (rng.permutation(N_PAGES)[:40].astype(np.int32) for _ in range(2))
    objects = chunks(fresh, 20, saved)
    before = [layer.copy() for layer in other.kv]
    done = engine.session.store_pages(engine.map, objects, waited=True).wait()
    assert done.status is Status.OK and not any(objects.leases)
    loaded = loading(objects, restored)
    done = engine.session.load_pages(other.map, loaded, waited=True).wait()
    assert (done.status, done.n_granted, done.more) == (Status.OK, 20, False)
    assert other.pages(restored) == engine.pages(saved)
    untouched = sorted(set(range(N_PAGES)) - set(restored.tolist()))
    for old, new in zip(before, other.kv):
        assert (old[:, untouched] == new[:, untouched]).all()


def test_objects_hold_pages_as_the_header_says(engine, fresh):
    objects = chunks(fresh, 1, [5, 9])
    engine.session.store_pages(engine.map, objects, waited=True).wait()
    leased = Objects(objects.digests)
    engine.session.acquire_objects(leased, waited=True).wait()
    assert leased.view(0) == engine.pages([5, 9])
    engine.session.release_objects(leased, waited=True).wait()


def test_what_is_stored_is_not_copied_again(engine, other, fresh):
    objects = chunks(fresh, 2, [0, 1, 2, 3])
    engine.session.store_pages(engine.map, objects[:1], waited=True).wait()
    again = chunks_like(objects, [0, 1, 2, 3])
    assert engine.session.store_pages(other.map, again, waited=True).wait().status is Status.OK
    assert [Status(s) for s in again.statuses] == [Status.ALREADY_HAVE, Status.OK]


def chunks_like(objects, slots):
    same = Objects(objects.digests, parents=objects.parents)
    same.set_slots(slots, PAGES)
    return same


def test_states_and_chunks_of_a_boundary_are_stored_as_a_set(engine, other, fresh):
    digests, _ = digest_array(fresh(CHUNK), CHUNK)
    both = Objects([bytes(digests)] * 2, group=[0, 1], parents=bytes(64))
    both.set_slots([7, 8, 3], [2, 1])
    call = engine.session.store_pages(engine.map, both, set_id=9, waited=True)
    assert call.wait().status is Status.OK
    assert engine.session.match(digests).boundaries == 1
    both.set_slots([1, 2, 6], [2, 1])
    assert engine.session.load_pages(other.map, both, waited=True).wait().status is Status.OK
    assert (other.states[6] == engine.states[3]).all() and not other.padded[6, STATE_BYTES:].any()
    assert other.pages([1, 2]) == engine.pages([7, 8])


def test_single_pages_of_chunks_load_into_their_slots(engine, other, fresh):
    objects = chunks(fresh, 2, [0, 1, 2, 3])
    engine.session.store_pages(engine.map, objects, waited=True).wait()
    loaded = loading(objects, [40, 41], 1)
    loaded.set_pages([1, 0], 1)
    assert engine.session.load_pages(other.map, loaded, waited=True).wait().status is Status.OK
    assert other.pages([40, 41]) == engine.pages([1, 2])


def test_a_worker_loads_with_the_schedulers_token(daemon, engine, fresh):
    one = dict(socket=daemon.socket, engine_id=b"scheduler, works")
    hybrid = layout("pages", chunk_tokens=CHUNK, groups=GROUPS)
    objects = chunks(fresh, 3, range(6))
    engine.session.store_pages(engine.map, objects, waited=True).wait()
    with Session(hybrid, **one) as scheduler, Session(hybrid, **one) as worker:
        leased = Objects(objects.digests)
        token = scheduler.acquire_objects(leased, waited=True).wait().token
        pages = Engine(worker, 5)
        loaded = loading(objects, range(10, 16))
        done = worker.load_pages(pages.map, loaded, token=token, waited=True).wait()
        assert done.status is Status.OK and pages.pages(range(10, 16)) == engine.pages(range(6))
        scheduler.release_objects(leased, waited=True).wait()
        late = worker.load_pages(pages.map, loaded, token=token, waited=True).wait()
        assert late.status is Status.GONE


def test_stores_and_loads_are_awaited(engine, other, fresh):
    async def request(i):
        slots = range(2 * i, 2 * i + 2)
        objects = chunks(fresh, 1, slots)
        call = engine.session.store_pages(engine.map, objects)
        assert (await engine.session.completion(call)).status is Status.OK
        call = engine.session.load_pages(other.map, loading(objects, slots))
        assert (await engine.session.completion(call)).status is Status.OK

    async def requests():
        await asyncio.gather(*(request(i) for i in range(N_PAGES // 2)))

    asyncio.run(asyncio.wait_for(requests(), 30))
    assert other.pages(range(N_PAGES)) == engine.pages(range(N_PAGES))


def test_memory_stays_alive_until_the_completion(engine, fresh):
    worker = Engine(engine.session, 7)
    objects = chunks(fresh, 10, range(20))
    tensor = weakref.ref(worker.kv[0])
    expected = worker.pages(range(20))
    worker.session.store_pages(worker.map, objects)
    del worker
    gc.collect()
    assert tensor() is not None
    (done,) = engine.session.wait(10)
    assert done.status is Status.OK
    del done
    gc.collect()
    assert tensor() is None
    loaded = loading(objects, range(20))
    engine.session.load_pages(engine.map, loaded, waited=True).wait()
    assert engine.pages(range(20)) == expected


@pytest.mark.parametrize(
    "slots, counts",
    [([N_PAGES, 0], 2), ([0], 1), ([0, 1, 2], 3), ([-1, 0], 2)],
    ids=["too high", "too few", "too many", "negative"],
)
def test_wrong_slots_are_refused_at_once(engine, fresh, slots, counts):
    objects = chunks(fresh, 1, [0, 1])
    objects.set_slots(np.array(slots, dtype=np.int32), counts)
    with pytest.raises(ValueError):
        engine.session.store_pages(engine.map, objects)


def test_pages_that_are_not_the_layouts_are_refused_by_name(engine):
    short = PageGroup.of(engine.kv[:2], page_axis=1)
    with pytest.raises(ValueError, match="kv"):
        PageMap(engine.session, [short])
    with pytest.raises(ValueError, match="group 5|group"):
        PageMap(engine.session, [PageGroup.of(engine.kv, page_axis=1, group=5)])


def test_a_closed_map_takes_no_calls(engine, fresh):
    with PageMap(engine.session, [PageGroup.of(engine.kv, page_axis=1)]) as pages:
        pass
    with pytest.raises(ValueError, match="closed"):
        engine.session.store_pages(pages, chunks(fresh, 1, [0, 1]))


def views(tensor, page_axis=0):
    """As (offset from the first byte, page_stride, row_bytes, row_stride, n_rows)."""
    first = tensor.__array_interface__["data"][0]
    return [
        (v.address - first, v.page_stride, v.row_bytes, v.row_stride, v.n_rows)
        for v in PageGroup.of([tensor], page_axis=page_axis).views
    ]


def test_strides_become_rows():
    blocks = np.zeros((10, 4, 8), dtype=np.uint16)
    assert views(blocks) == [(0, 64, 64, 0, 1)]
    assert views(blocks, 1) == [(0, 16, 16, 64, 10)]
    assert views(blocks, -1) == [(0, 2, 2, 16, 40)]
    assert views(blocks[:, :, :5]) == [(0, 64, 10, 16, 4)]
    assert views(blocks[2:, 1:3]) == [(0, 64, 32, 0, 1)]
    kv = np.zeros((2, 10, 4, 8), dtype=np.uint16)
    assert views(kv, 1) == [(0, 64, 64, 640, 2)]
    # Rows at two distances: a view for each of the outer ones.
    assert views(kv[:, :, ::2, :5], 1) == [(0, 64, 10, 32, 2), (640, 64, 10, 32, 2)]
    with pytest.raises(ValueError):
        views(kv[::-1], 1)


def test_tensors_of_other_kinds_are_taken(engine):
    memory = bytearray(64)
    (view,) = PageGroup.of([memoryview(memory).cast("B", (4, 16))]).views
    assert (view.page_stride, view.row_bytes, view.n_rows) == (16, 16, 1)
    assert PageGroup.of([memoryview(memory).cast("B", (4, 16))]).n_pages == 4
    with pytest.raises(BufferError):
        memory.extend(b"x")  # held
    array = np.zeros((4, 3), dtype=np.float32)
    (view,) = PageGroup.of([Torch(array)]).views
    assert view.address == array.__array_interface__["data"][0]
    assert (view.page_stride, view.row_bytes) == (12, 12)
    assert not view.on_gpu
    with pytest.raises(ValueError, match="mps:0"):
        PageGroup.of([Torch(array, "mps:0")])
    array.flags.writeable = False
    for readonly in (array, bytes(16)):
        with pytest.raises(ValueError, match="read-only"):
            PageGroup.of([readonly])
    with pytest.raises(ValueError, match="numbers of pages"):
        PageGroup.of([np.zeros((4, 2)), np.zeros((3, 2))])


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_pages_on_a_gpu_are_refused_without_cuda(engine, kind):
    array = np.zeros((4, PAGE_BYTES), dtype=np.uint8)
    interface = {"data": (array.ctypes.data, False), "shape": array.shape, "typestr": "|u1"}
    cupy = type("Cupy", (), {"__cuda_array_interface__": interface})()
    group = PageGroup.of([Torch(array, "cuda:1") if kind == "torch" else cupy])
    assert [view.on_gpu for view in group.views] == [True]
    with pytest.raises(ValueError, match="kvtier.cuda.Cuda"):
        PageMap(engine.session, [group])


def test_events_that_do_not_exist_yet_are_refused(engine, fresh):
    event = type("Event", (), {"cuda_event": 0})()
    with pytest.raises(ValueError, match="recorded"):
        engine.session.store_pages(engine.map, chunks(fresh, 1, [0, 1]), after=event)


class Torch:
    """As much of a torch tensor as is looked at."""

    def __init__(self, array, device="cpu"):
        self.array, self.shape = array, array.shape
        self.device = type("device", (str,), {"type": device.split(":")[0]})(device)

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self):
        return self.array.itemsize


def test_addresses_may_be_given_as_they_are(engine, fresh):
    first = [layer.__array_interface__["data"][0] for layer in engine.kv]
    size = TOKENS * HEADS * WIDTH * 4
    by_hand = [PageView(address, size, size, N_PAGES * size, 2, engine.kv) for address in first]
    pages = PageMap(engine.session, [PageGroup(by_hand, N_PAGES)])
    objects = chunks(fresh, 1, [3, 4])
    assert engine.session.store_pages(pages, objects, waited=True).wait().status is Status.OK
    engine.session.load_pages(engine.map, loading(objects, [8, 9]), waited=True).wait()
    assert engine.pages([8, 9]) == engine.pages([3, 4])


def test_a_load_while_the_daemon_dies_ends(daemon, engine, other, fresh):
    objects = chunks(fresh, 30, [i % N_PAGES for i in range(60)])
    engine.session.store_pages(engine.map, objects, waited=True).wait()
    calls = [
        engine.session.load_pages(other.map, loading(objects, range(60)), waited=True)
        for _ in range(20)
    ]
    killer = threading.Thread(target=daemon.stop, args=(signal.SIGKILL,))
    killer.start()
    for call in calls:
        done = call.wait(20)
        assert done.status in (Status.OK, Status.UNAVAILABLE)
        for i, status in enumerate(call.objects.statuses):
            assert status in (Status.OK, Status.UNAVAILABLE) or not call.id
    killer.join()
    began = time.monotonic()
    call = engine.session.store_pages(engine.map, objects)
    assert call.done and call.completion.status is Status.UNAVAILABLE
    assert time.monotonic() - began < 1
    daemon.start()
    eventually(lambda: engine.session.info().attached)
    call = engine.session.store_pages(engine.map, chunks(fresh, 1, [0, 1]), waited=True)
    assert call.wait().status is Status.OK


def test_groups_with_a_codec_take_half_of_the_bytes_within_the_bounds(daemon):
    shape = (N_PAGES, TOKENS, HEADS, 128)
    page_bytes = TOKENS * HEADS * 128 * 2
    random = np.random.default_rng(2)
    floats = random.standard_normal(shape, dtype=np.float32)
    numbers = (floats.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    kv = Group(
        "kv", GroupKind.ATTENTION, page_tokens=TOKENS, page_bytes=page_bytes, codec=Codec.FP8_TILE128
    )
    what = layout("quantised", chunk_tokens=CHUNK, groups=[kv], kv_dtype="bfloat16")
    digests, _ = digest_array(range(CHUNK), CHUNK)
    with Session(what, socket=daemon.socket) as session:
        pages = PageMap(session, [PageGroup.of([numbers])])
        objects = Objects(digests, boundary_tokens=CHUNK)
        objects.set_slots([1, 2], PAGES)
        assert session.store_pages(pages, objects, waited=True).wait().status is Status.OK
        objects = Objects(digests)
        objects.set_slots([8, 5], PAGES)
        assert session.load_pages(pages, objects, waited=True).wait().status is Status.OK
    assert list(objects.nbytes) == [PAGES * page_bytes * 132 // 256]
    back = (numbers[[8, 5]].astype(np.uint32) << 16).view(np.float32)
    sent = (numbers[[1, 2]].astype(np.uint32) << 16).view(np.float32)
    largest = np.abs(sent).max(axis=-1, keepdims=True)
    assert (np.abs(back - sent) <= largest / 25).all()
    assert not (back == sent).all()


def test_a_codec_for_states_is_refused_by_the_groups_name(daemon):
    state = Group("mamba", GroupKind.STATE, page_bytes=256, codec=Codec.MXFP8)
    with pytest.raises(ValueError, match='"mamba": has no pages, so it takes no codec'):
        Session(layout("quantised", groups=[state]), socket=daemon.socket)
