# SPDX-License-Identifier: Apache-2.0
"""Blobs of token sequences through a real daemon."""
import ctypes
import os
import signal
import time

import pytest

from conftest import eventually, layout
from kvtier import Group, GroupKind, Identity, Session, Status

BYTES = bytes(range(256)) * 40 + b"tail"


def test_get_returns_the_bytes_that_were_put(session, fresh):
    for nbytes in (1, 4096, 4097, 1 << 20, 9 << 20):
        tokens, data = fresh(50), os.urandom(nbytes)
        assert session.put(tokens, data) is Status.OK
        assert session.get(tokens) == (50, data)


def test_a_blob_serves_its_own_end_only(session, fresh):
    tokens = fresh(100)
    session.put(tokens, BYTES)
    assert session.find(tokens + [1, 2, 3]) == 100
    assert session.find(tokens[:99]) == 0
    assert session.find(tokens[:96]) == 0


def test_a_croppable_blob_serves_every_boundary(session, fresh):
    tokens = fresh(100)
    session.put(tokens, BYTES, croppable=True)
    assert session.info().chunk_tokens == 16
    assert session.find(tokens + [1]) == 100
    assert session.find(tokens[:99]) == 96
    assert session.find(tokens[:50] + [1] * 50) == 48
    assert session.find(tokens[:15]) == 0
    assert session.get(tokens[:50]) == (48, BYTES)


def test_second_put_is_told_that_it_is_stored(session, fresh):
    tokens = fresh(20)
    assert session.put(tokens, b"first") is Status.OK
    assert session.put(tokens, b"other") is Status.ALREADY_HAVE
    assert session.get(tokens) == (20, b"first")
    assert session.put(tokens, b"other", replace=True) is Status.OK
    assert session.get(tokens) == (20, b"other")


def test_a_timeout_of_nothing_is_not_the_default(daemon, session, fresh):
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        assert session.put(fresh(20), BYTES, timeout=0) is Status.TIMEOUT
        assert time.monotonic() - begin < 5
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    with pytest.raises(ValueError):
        session.put(fresh(20), BYTES, timeout=-1)


def test_leased_memory_is_the_shared_memory_itself(session, fresh):
    tokens = fresh(20)
    status, lease = session.reserve(tokens, len(BYTES))
    assert status is Status.OK
    with lease:
        assert in_shared_memory(lease.address)
        ctypes.memmove(lease.address, BYTES, 100)
        lease.view[100:] = BYTES[100:]
        assert lease.commit() is Status.OK
    status, lease = session.acquire(tokens)
    with lease:
        assert in_shared_memory(lease.address)
        assert lease.nbytes == len(BYTES)
        assert b"".join(lease.segments) == BYTES
        assert lease.view.readonly


def in_shared_memory(address):
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if begin <= address < end:
                return " rw-s " in line and "memfd" in line
    return False


def test_write_and_read_into_copy_at_an_offset(session, fresh):
    tokens = fresh(20)
    _, lease = session.reserve(tokens, 10)
    lease.write(b"01234")
    lease.write(b"56789", offset=5)
    with pytest.raises(ValueError):
        lease.write(b"xx", offset=9)
    lease.commit()
    _, lease = session.acquire(tokens)
    with lease:
        part = bytearray(4)
        assert lease.read_into(part, offset=3) == 4 and part == b"3456"
        assert lease.read_into(part, offset=8) == 2 and part[:2] == b"89"
        with pytest.raises(TypeError):
            lease.write(b"x")


def test_a_lease_cannot_end_under_a_living_view(session, fresh):
    _, lease = session.reserve(fresh(20), 4096)
    view = lease.view
    part = view[10:20]
    view.release()
    for end in (lease.commit, lease.abort, session.close):
        with pytest.raises(BufferError):
            end()
    part[:] = b"0123456789"  # still ours
    del part
    foreign = (ctypes.c_char * 16).from_buffer(lease.view)
    with pytest.raises(BufferError):
        lease.abort()
    del foreign
    assert lease.abort() is Status.OK
    with pytest.raises(ValueError, match="ended"):
        lease.view


def test_an_exception_while_writing_stores_nothing(session, fresh):
    tokens = fresh(20)
    with pytest.raises(KeyError):
        with session.reserve(tokens, 4096)[1] as lease:
            lease.write(b"half")
            raise KeyError
    assert session.find(tokens) == 0
    assert session.acquire(tokens) == (Status.MISS, None)


def test_close_gives_forgotten_leases_back(daemon, fresh):
    for _ in range(8):  # 8 x 16 MiB through 64 MiB of host memory
        session = Session(layout(), socket=daemon.socket)
        status, _ = session.reserve(fresh(20), 16 << 20)
        assert status is Status.OK
        session.close()


def test_too_large_is_an_outcome(session, fresh):
    status, lease = session.reserve(fresh(20), 48 << 20)
    assert lease is None and status in (Status.TOO_LARGE, Status.BUSY, Status.REFUSED)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"revision": "2"},
        {"model_dtype": "bf16"},
        {"kv_dtype": "fp8"},
        {"engine": "other"},
        {"engine_build": "2"},
        {"kernel_layout": "hnd"},
        {"replay_mode": "r"},
        {"draft_tokens": 1},
        {"chunk_tokens": 32},
        {"tp": 2},
        {"groups": [Group("seq", GroupKind.STATE, page_bytes=len(BYTES))]},
        {"groups": [Group("other", GroupKind.STATE)]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_layout_misses(daemon, session, fresh, change):
    tokens = fresh(64)
    session.put(tokens, BYTES, croppable=True)
    with Session(layout(**change), socket=daemon.socket) as other:
        assert other.find(tokens) == 0
        assert other.get(tokens) is None
    with Session(layout(), socket=daemon.socket) as same:
        assert same.get(tokens) == (64, BYTES)


@pytest.mark.parametrize(
    "identity", [Identity(salt=b"s"), Identity(lora=b"s"), Identity(images=["s"])]
)
def test_another_identity_misses(session, fresh, identity):
    tokens = fresh(20)
    session.put(tokens, BYTES)
    assert session.find(tokens, identity=identity) == 0
    session.put(tokens, b"mine", identity=identity)
    assert session.get(tokens, identity=identity) == (20, b"mine")
    assert session.get(tokens) == (20, BYTES)


def test_a_forked_child_gets_a_clear_error(session):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            session.find([1])
            answer = b"no error"
        except RuntimeError as error:
            answer = str(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"child" in os.read(reader, 4096)
    os.close(reader)
    os.close(writer)


def test_a_forked_child_closes_whatever_the_parents_threads_were_at(session):
    with session._lock:
        child = os.fork()
        if not child:
            # As it is left by a thread that was in a call.
            signal.alarm(5)
            session.close()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_blobs_survive_a_restart_and_the_session_reconnects(daemon, session, fresh):
    tokens, data = fresh(40), os.urandom(3 << 20)
    assert session.put(tokens, data) is Status.OK
    boot = session.info().boot_id
    assert daemon.stop() == 0
    began = time.monotonic()
    eventually(lambda: session.find(tokens) == 0)
    assert session.acquire(tokens)[1] is None
    assert session.put(fresh(5), b"x") is Status.UNAVAILABLE
    assert time.monotonic() - began < 5, "an engine never waits for a daemon that is away"
    daemon.start()
    eventually(lambda: session.info().attached and session.info().boot_id != boot)
    assert session.get(tokens) == (40, data)


def test_kill_9_is_a_miss_and_a_lease_stays_readable(daemon, session, fresh):
    tokens = fresh(40)
    session.put(tokens, BYTES)
    _, lease = session.acquire(tokens)
    daemon.stop(signal.SIGKILL)
    assert bytes(lease.view) == BYTES
    lease.release()
    eventually(lambda: session.find(tokens) == 0)
    daemon.start()
    eventually(lambda: session.info().attached)
    assert session.put(fresh(5), BYTES) is Status.OK
