# SPDX-License-Identifier: Apache-2.0
"""Calls over arrays of objects, against a real daemon."""
import gc
import os
import re
import select
import signal
import threading
import time
import weakref
from array import array
from pathlib import Path

import pytest

from conftest import eventually, layout
from kvtier import Objects, Session, Status, digest_array, ffi, lib
from paged import CHUNK, GROUPS, NBYTES, PAGE, chain, content, digest, store, to_load

def test_what_was_stored_as_an_array_loads_as_an_array(paged, fresh):
    objects = chain(fresh, 100)
    store(paged, objects)
    assert set(objects.statuses) == {Status.OK} and not any(objects.leases)
    loaded = to_load(objects)
    done = paged.acquire_objects(loaded, waited=True).wait()
    assert (done.status, done.more) == (Status.OK, False)
    assert done.n_granted == done.n_resident == len(loaded) == 200
    assert set(loaded.nbytes) == {NBYTES} and all(loaded.leases)
    for i in range(200):
        assert loaded.view(i) == content(i)
    assert time.time_ns() - max(loaded.stored_ns) < 60e9
    assert loaded.writer_boot_id(0) == paged.info().boot_id
    assert paged.release_objects(loaded, waited=True).wait().status is Status.OK
    assert not any(loaded.leases)


def test_prefetch_tells_what_is_here_and_leases_nothing(paged, fresh):
    objects = chain(fresh, 3)
    store(paged, objects)
    wanted = Objects.concat([to_load(objects), to_load(chain(fresh, 1))])
    done = paged.prefetch(wanted, waited=True).wait()
    assert done.status is Status.MISS
    assert list(wanted.statuses) == [Status.OK] * len(objects) + [Status.MISS] * 2
    assert not any(wanted.leases)
    done = paged.prefetch(wanted, "10.9.8.7:7428", wait=True, timeout=5, waited=True).wait()
    assert done.status is Status.UNSUPPORTED
    assert list(wanted.statuses[: len(objects)]) == [Status.OK] * len(objects)
    with pytest.raises(ValueError):
        paged.prefetch(wanted, wait=True, timeout=None)


def test_members_are_views_of_one_array(fresh):
    objects = chain(fresh, 3)
    assert objects.shards.tolist() == [0, 0, 0, 1, 1, 1]
    assert objects.boundary_tokens.tolist() == [16, 32, 48] * 2
    objects.groups[2] = 7
    objects[2:4].shards[1] = 9
    assert objects.groups.tolist() == [0, 0, 7, 0, 0, 0]
    assert objects.shards.tolist() == [0, 0, 0, 9, 1, 1]
    assert objects.digests.shape == (6, 32) and objects.digests[1, 0] == objects.digests[4, 0]
    assert objects.parents.tobytes()[:32] == bytes(32)
    assert objects.parents.tobytes()[32:64] == objects.digests.tobytes()[:32]


def test_members_outlive_their_objects(fresh):
    tokens = chain(fresh, 50).boundary_tokens
    gc.collect()
    assert tokens[99] == 800


def test_numbers_may_come_from_any_buffer_or_iterable(fresh):
    digests, _ = digest_array(fresh(3 * CHUNK), CHUNK)
    for group in ([1, 2, 3], array("H", [1, 2, 3]), array("q", [1, 2, 3]), range(1, 4)):
        assert Objects(digests, group=group).groups.tolist() == [1, 2, 3]
    assert Objects([bytes(32), b"x" * 32]).digests[1, 5] == ord("x")
    for wrong, error in [([1, 2], ValueError), (70000, OverflowError), (["a"] * 3, TypeError)]:
        with pytest.raises(error):
            Objects(digests, group=wrong)
    with pytest.raises(TypeError):
        Objects(digests, group=array("f", [1, 2, 3]))
    with pytest.raises(ValueError):
        Objects(b"short")
    with pytest.raises(ValueError):
        Objects(digests, parents=bytes(32))


def test_numpy_takes_members_without_a_copy(fresh):
    numpy = pytest.importorskip("numpy")
    objects = chain(fresh, 4)
    numpy.asarray(objects.shards)[:] = 5
    assert set(objects.shards) == {5}
    assert numpy.asarray(objects.digests).shape == (8, 32)


def test_taken_objects_are_copies(fresh):
    objects = chain(fresh, 3)
    part = objects.take(array("I", [5, 0]))
    assert part.shards.tolist() == [1, 0]
    part.shards[0] = 3
    assert objects.shards[5] == 1
    with pytest.raises(IndexError, match="object 6 of 6"):
        objects.take([1, 6])


def test_only_what_is_missing_is_leased_for_writing(paged, fresh):
    objects = chain(fresh, 4)
    store(paged, objects[:2])
    call = paged.reserve_objects(objects, waited=True)
    assert call.wait().status is Status.OK
    assert objects.which(Status.ALREADY_HAVE).tolist() == [0, 1]
    missing = objects.leased()
    assert len(missing) == 6 and missing.digests.tobytes() == objects[2:].digests.tobytes()
    for i in range(6):
        missing.write(i, content(i))
    assert paged.commit_objects(missing, waited=True).wait().status is Status.OK
    again = to_load(objects)
    assert paged.acquire_objects(again, waited=True).wait().status is Status.OK
    assert again.view(7) == content(5)


def test_acquire_is_all_or_nothing_unless_partial(paged, fresh):
    objects = chain(fresh, 4)
    store(paged, objects[:3])
    loaded = to_load(objects)
    assert paged.acquire_objects(loaded, waited=True).wait().status is Status.MISS
    assert not any(loaded.leases)
    done = paged.acquire_objects(loaded, partial=True, waited=True).wait()
    assert done.n_granted == 3
    assert [bool(lease) for lease in loaded.leases] == [True] * 3 + [False] * 5
    assert paged.release_objects(loaded.leased(), waited=True).wait().status is Status.OK


def test_another_session_of_the_engine_adopts(daemon, paged, fresh):
    objects = chain(fresh, 2)
    store(paged, objects)
    loaded = to_load(objects)
    token = paged.acquire_objects(loaded, waited=True).wait().token
    other_layout = layout("arrays", chunk_tokens=CHUNK, groups=GROUPS)
    with Session(other_layout, socket=daemon.socket, engine_id=b"engine of arrays") as worker:
        mine = to_load(objects)
        assert worker.adopt_objects(mine, token, waited=True).wait().status is Status.OK
        paged.release_objects(loaded, waited=True).wait()
        assert mine.view(3) == content(3)
        worker.release_objects(mine, waited=True).wait()
        late = worker.adopt_objects(to_load(objects), token, waited=True).wait()
        assert late.status is Status.GONE
        with pytest.raises(ValueError, match="16 bytes"):
            worker.adopt_objects(mine, b"token")


def test_poll_and_wait_report_each_call_once(paged, fresh):
    batches = [chain(fresh, 2) for _ in range(10)]
    calls = {paged.reserve_objects(objects): objects for objects in batches}
    seen = []
    while len(seen) < 10:
        found = paged.wait(10, max=3)
        assert 0 < len(found) <= 3
        seen += found
    assert {c.call for c in seen} == set(calls)
    assert all(c.call.done and c.call.objects is calls[c.call] for c in seen)
    assert paged.poll() == [] and paged.wait(0.01) == []
    for objects in batches:
        paged.abort_objects(objects, waited=True).wait()


def test_the_descriptor_is_readable_while_there_is_something_to_poll(paged, fresh):
    poller = select.poll()
    poller.register(paged.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    objects = chain(fresh, 1)
    paged.reserve_objects(objects)
    assert poller.poll(10_000)
    assert len(paged.poll()) == 1
    assert poller.poll(0) == []
    paged.abort_objects(objects, waited=True).wait()


def test_several_threads_wait_and_each_completion_goes_to_one(paged, fresh):
    n, got, lock = 60, [], threading.Lock()

    def collect():
        while True:
            found = paged.wait(0.2)
            with lock:
                got.extend(found)
                if len(got) >= n:
                    return

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    batches = [chain(fresh, 1) for _ in range(n)]
    for objects in batches:
        paged.reserve_objects(objects)
    for thread in threads:
        thread.join(20)
    assert len(got) == len({c.call for c in got}) == n
    for objects in batches:
        paged.abort_objects(objects, waited=True).wait()


def test_a_call_keeps_its_objects_until_it_has_completed(paged, fresh):
    objects = chain(fresh, 500)
    home = weakref.ref(objects)
    paged.reserve_objects(objects)
    del objects
    gc.collect()
    assert home() is not None
    (done,) = paged.wait(10)
    assert done.status is Status.OK and all(done.call.objects.leases)
    paged.abort_objects(done.call.objects, waited=True).wait()
    del done
    gc.collect()
    assert home() is None


def test_a_lease_does_not_end_under_a_living_view(paged, fresh):
    objects = chain(fresh, 2)
    paged.reserve_objects(objects, waited=True).wait()
    part = objects.view(1)[10:20]
    for end in (paged.commit_objects, paged.abort_objects):
        with pytest.raises(BufferError):
            end(objects)
    with pytest.raises(BufferError):
        paged.close()
    part[:] = b"0123456789"
    assert bytes(objects.memory(1).segments[0][10:20]) == b"0123456789"
    # Others may end.
    assert paged.abort_objects(objects[2:], waited=True).wait().status is Status.OK
    del part
    assert paged.abort_objects(objects[:2], waited=True).wait().status is Status.OK
    with pytest.raises(ValueError, match="no lease"):
        objects.view(1)


def test_views_are_noticed_whoever_holds_them(paged, fresh):
    numpy = pytest.importorskip("numpy")
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, waited=True).wait()
    memory = objects.memory(0)
    for hold in (
        lambda: memoryview(objects.view(0)),
        lambda: objects.view(0).cast("H")[::2],
        lambda: numpy.asarray(objects.view(0)).reshape(2, -1)[1],
        lambda: ffi.from_buffer(objects.view(0)),
        lambda: [[memory.segments[0].toreadonly()]],
    ):
        held = hold()
        with pytest.raises(BufferError):
            paged.abort_objects(objects)
        del held
    # Nobody holds a view, whoever else knows the memory.
    assert paged.abort_objects(objects, waited=True).wait().status is Status.OK


def test_a_set_may_be_of_several_arrays(paged, fresh):
    parts = [chain(fresh, 1), chain(fresh, 2)]
    both = Objects.concat(parts)
    assert paged.reserve_objects(both, set_id=3, waited=True).wait().status is Status.OK
    for i in range(len(both)):
        both.write(i, content(i))
    with pytest.raises(ValueError, match="of a store and of a load"):
        Objects.concat([both, acquired(paged, fresh)])
    assert paged.commit_objects(both, set_id=3, waited=True).wait().status is Status.OK
    loaded = Objects.concat(to_load(part) for part in parts)
    paged.acquire_objects(loaded, waited=True).wait()
    again = Objects.concat([loaded[:2], loaded[2:]])
    assert [again.view(i) == content(i) for i in range(6)] == [True] * 6
    assert paged.release_objects(again, waited=True).wait().status is Status.OK


def acquired(paged, fresh):
    objects = chain(fresh, 1)
    paged.acquire_objects(objects, waited=True).wait()
    return objects


def test_what_is_loaded_is_not_writable(paged, fresh):
    objects = chain(fresh, 1)
    store(paged, objects)
    loaded = to_load(objects)
    paged.acquire_objects(loaded, waited=True).wait()
    assert loaded.view(0).readonly
    with pytest.raises(TypeError):
        loaded.write(0, b"x")
    part = bytearray(8)
    assert loaded.read_into(1, part, NBYTES - 4) == 4 and part[:4] == content(1)[:4]
    paged.release_objects(loaded, waited=True).wait()


def test_pages_of_a_chunk_load_alone(paged, fresh):
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, waited=True).wait()
    for i in range(2):
        objects.write(i, b"".join(bytes([10 * i + page]) * PAGE for page in range(4)))
    paged.commit_objects(objects, waited=True).wait()
    loaded = to_load(objects)
    loaded.set_pages([1, 3, 2], [2, 1])
    assert paged.acquire_objects(loaded, waited=True).wait().status is Status.OK
    assert loaded.nbytes.tolist() == [2 * PAGE, PAGE]
    data = bytearray(2 * PAGE)
    loaded.read_into(0, data)
    assert data == bytes([1]) * PAGE + bytes([3]) * PAGE
    assert loaded.view(1) == bytes([12]) * PAGE
    paged.release_objects(loaded, waited=True).wait()
    for pages, counts in [([1], 1), ([1, 2, 3], 1), ([1], [1])]:
        with pytest.raises(ValueError):
            loaded.set_pages(pages, counts)


def test_a_set_of_objects_is_all_or_nothing(paged, fresh):
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, set_id=5, waited=True).wait()
    for i in range(2):
        objects.write(i, content(i))
    # One member is given up: nothing of the set is stored.
    paged.abort_objects(objects[:1], set_id=5, waited=True).wait()
    paged.commit_objects(objects[1:], set_id=5, waited=True).wait()
    assert paged.match(digest(objects)).boundaries == 0
    assert paged.probe(digest(objects))[0].tolist() == [0]
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, set_id=6, waited=True).wait()
    for i in range(2):
        objects.write(i, content(i))
    done = paged.commit_objects(objects, set_id=6, waited=True).wait()
    assert done.status is Status.OK and paged.match(digest(objects)).boundaries == 1


def test_checksums_are_verified(paged, fresh):
    objects = chain(fresh, 1)
    store(paged, objects)
    loaded = to_load(objects)
    paged.acquire_objects(loaded, checksums=True, waited=True).wait()
    assert paged.verify(loaded, 0) in (Status.OK, Status.MISS)
    paged.release_objects(loaded, waited=True).wait()


def test_bypass_loads_and_stores_nothing(paged, fresh):
    objects = chain(fresh, 1)
    assert paged.reserve_objects(objects, bypass=True, waited=True).wait().status is Status.REFUSED
    store(paged, objects)
    loaded = to_load(objects)
    assert paged.acquire_objects(loaded, bypass=True, waited=True).wait().status is Status.MISS


def test_a_cancelled_call_holds_nothing(paged, fresh):
    objects = chain(fresh, 1)
    writer = paged.reserve_objects(objects, waited=True)
    writer.wait()
    waiting = paged.acquire_objects(to_load(objects), wait=True)
    cancel = paged.cancel(waiting)
    order = []
    while len(order) < 2:
        order += paged.wait(10)
    assert [c.call for c in order] == [waiting, cancel]
    assert order[0].status is Status.CANCELLED
    paged.abort_objects(objects, waited=True).wait()


def test_a_call_times_out(paged, fresh):
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, waited=True).wait()
    call = paged.acquire_objects(to_load(objects), wait=True, timeout=0.05, waited=True)
    assert call.wait(0) is None and not call.done
    assert call.wait(10).status in (Status.TIMEOUT, Status.MISS)
    for timeout in (-1, None):
        with pytest.raises(ValueError):
            paged.acquire_objects(to_load(objects), wait=True, timeout=timeout)
    paged.abort_objects(objects, waited=True).wait()


def test_waiting_for_a_call_lets_other_threads_run(paged, fresh):
    objects = chain(fresh, 1)
    paged.reserve_objects(objects, waited=True).wait()
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    call = paged.acquire_objects(to_load(objects), wait=True, timeout=0.4, waited=True)
    call.wait()
    done.set()
    thread.join()
    assert len(ticks) >= 5
    paged.abort_objects(objects, waited=True).wait()


def test_mistakes_are_value_errors(paged, fresh):
    objects = chain(fresh, 1)
    with pytest.raises(ValueError):
        paged.reserve_objects(Objects(b""))
    with pytest.raises(ValueError):
        paged.reserve_objects(Objects(bytes(32)))  # no length
    with pytest.raises(ValueError, match="waited"):
        paged.reserve_objects(objects).wait()
    (done,) = paged.wait(10)
    with pytest.raises(IndexError):
        objects.view(2)
    with pytest.raises(ValueError, match="steps"):
        objects[::2]
    paged.abort_objects(objects, waited=True).wait()
    with pytest.raises(ValueError, match="no lease"):
        objects.write(0, b"x")


def test_close_cancels_what_is_in_flight(daemon, fresh):
    session = Session(layout("arrays", chunk_tokens=CHUNK, groups=GROUPS), socket=daemon.socket)
    objects = chain(fresh, 1)
    session.reserve_objects(objects, waited=True).wait()
    call = session.acquire_objects(to_load(objects), wait=True)
    session.close()
    assert call.done and call.completion.status is Status.CANCELLED
    with pytest.raises(ValueError, match="closed"):
        session.poll()


def test_a_forked_child_gets_a_clear_error_from_object_calls(paged, fresh):
    objects = chain(fresh, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        answers = []
        for attempt in (
            lambda: paged.reserve_objects(objects),
            lambda: paged.poll(),
            lambda: paged.wait(1),
            lambda: paged.fileno(),
            lambda: paged.probe(bytes(32)),
        ):
            try:
                attempt()
                answers.append("none")
            except RuntimeError as error:
                answers.append("child" if "child" in str(error) else "other")
        os.write(writer, ",".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4096) == b",".join([b"child"] * 5)
    os.close(reader)
    os.close(writer)


def test_killed_daemon_ends_calls_and_leaves_leases_readable(daemon, paged, fresh):
    objects = chain(fresh, 2)
    store(paged, objects)
    loaded = to_load(objects)
    paged.acquire_objects(loaded, waited=True).wait()
    unwritten = chain(fresh, 1)
    paged.reserve_objects(unwritten, waited=True).wait()
    waiting = paged.acquire_objects(to_load(unwritten), wait=True)
    daemon.stop(signal.SIGKILL)
    (done,) = paged.wait(10)
    assert done.call is waiting and done.status is Status.UNAVAILABLE
    assert loaded.view(0) == content(0)
    unheard = chain(fresh, 1)
    refused = paged.reserve_objects(unheard)
    assert refused.done and refused.completion.status is Status.UNAVAILABLE
    assert set(unheard.statuses) == {Status.UNAVAILABLE}
    assert paged.poll() == []
    assert paged.release_objects(loaded, waited=True).wait().status in (Status.OK, Status.GONE)
    assert paged.commit_objects(unwritten, waited=True).wait().status is Status.GONE
    daemon.start()
    eventually(lambda: paged.info().attached)
    store(paged, chain(fresh, 2))


def test_every_public_function_is_there():
    source = Path(__file__).parents[2] / "client"
    header = re.sub(r"/\*.*?\*/", "", (source / "kvtier.h").read_text(), flags=re.S)
    functions = re.findall(r"KVT_API [^;(]*?(kvt_\w+)\(", header)
    exported = re.findall(r"\b(kvt_\w+);", (source / "kvtier.map").read_text())
    assert len(functions) >= 30 and set(functions) == set(exported)
    assert [name for name in functions if not hasattr(lib, name)] == []
    macros = re.findall(r"^#define (KVT_\w+)\s+(?:\(1u|\d)", header, flags=re.M)
    assert len(macros) > 20 and [name for name in macros if not hasattr(lib, name)] == []
    structs = re.findall(r"^struct (kvt_\w+) \{", header, flags=re.M)
    assert all(ffi.sizeof(f"struct {name}") for name in structs)
