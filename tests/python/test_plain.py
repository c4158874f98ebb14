# SPDX-License-Identifier: Apache-2.0
"""What needs no daemon."""
import gc
import hashlib
import struct
import subprocess
import sys
import threading
import time
import weakref
from array import array

import pytest

import kvtier
from conftest import layout
from kvtier import Group, GroupKind, Identity, Layout, Session, Status, digest_chain, ffi, lib


def test_statuses_are_those_of_the_header():
    names = {status: ffi.string(lib.kvt_status_name(status)).decode() for status in Status}
    assert names == {status: status.name for status in Status}
    assert set(ffi.typeof("enum kvt_status").relements.values()) == set(Status)


def test_group_kinds_are_those_of_the_header():
    header = ffi.typeof("enum kvt_group_kind").relements
    assert {k.removeprefix("KVT_GROUP_"): v for k, v in header.items()} == {
        kind.name: kind.value for kind in GroupKind
    }


def test_import_needs_no_numpy():
    code = "import kvtier, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def chain(tokens, chunk, strings):
    """The byte layout of kvtier(3), once more and independently."""
    sha = lambda *parts: hashlib.sha256(b"".join(parts)).digest()  # noqa: E731
    count = struct.pack("<I", len(strings))
    body = b"".join(struct.pack("<I", len(s)) + s for s in strings)
    last, out = sha(b"kvtier/root/1\0", count, body), []
    pack = lambda ids: struct.pack(f"<{len(ids)}I", *ids)  # noqa: E731
    whole = len(tokens) // chunk
    for i in range(whole):
        last = sha(b"kvtier/step/1\0", last, pack(tokens[i * chunk : (i + 1) * chunk]))
        out.append(last)
    rest = tokens[whole * chunk :]
    end = last
    if rest:
        end = sha(b"kvtier/end/1\0\0", last, pack(rest), struct.pack("<I", len(rest)))
    return out, end


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 64, 100])
def test_digest_chain_has_the_documented_bytes(n):
    tokens = [7 * i + 3 for i in range(n)]
    identity = Identity(salt=b"salt", lora=b"adapter", images=["one", "two"])
    expected = chain(tokens, 16, [b"salt", b"adapter", b"one", b"two"])
    assert digest_chain(tokens, 16, identity) == expected


def test_tokens_may_be_any_buffer_of_four_byte_integers():
    tokens = [1, 2, 3, 4, 5]
    expected = digest_chain(tokens, 2)
    for kind in "Ii":
        assert digest_chain(array(kind, tokens), 2) == expected
        assert digest_chain(memoryview(array(kind, tokens)), 2) == expected


@pytest.mark.parametrize("tokens", [array("H", [1]), array("Q", [1]), array("f", [1]), b"abcd"])
def test_tokens_of_another_type_are_refused(tokens):
    with pytest.raises(TypeError):
        digest_chain(tokens, 2)


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["a"]])
def test_tokens_out_of_range_are_refused(tokens):
    with pytest.raises((OverflowError, TypeError)):
        digest_chain(tokens, 2)


def test_a_wrong_layout_is_a_value_error_with_the_reason(tmp_path):
    groups = [Group("a", GroupKind.ATTENTION, page_tokens=16, page_bytes=64)]
    wrong = Layout(model="m", engine="e", groups=groups, chunk_tokens=24)
    with pytest.raises(ValueError, match="(?i)chunk"):
        Session(wrong, socket=str(tmp_path / "none"), connect_timeout=0)
    with pytest.raises(ValueError, match="NUL"):
        Session(layout("a\0b"), socket=str(tmp_path / "none"))


def test_without_a_daemon_everything_misses(tmp_path):
    with Session(layout(), socket=str(tmp_path / "none"), connect_timeout=0) as session:
        assert not session.info().attached
        assert session.find([1, 2, 3]) == 0
        assert session.get([1, 2, 3]) is None
        assert session.put([1, 2, 3], b"x") is Status.UNAVAILABLE
        status, lease = session.acquire([1, 2, 3])
        assert lease is None and status in (Status.UNAVAILABLE, Status.MISS)
        assert session.match(bytes(64)) == kvtier.Match(0, 0, 0, 0)


def test_a_blocking_call_lets_other_threads_run(tmp_path):
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    Session(layout(), socket=str(tmp_path / "none"), connect_timeout=0.5).close()
    after = len(ticks)
    done.set()
    thread.join()
    assert after - before >= 5


def test_a_closed_session_is_a_value_error(tmp_path):
    session = Session(layout(), socket=str(tmp_path / "none"), connect_timeout=0)
    session.close()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.find([1])


class Numbers:
    """Buffers of numbers for `set_slots`, and which of them somebody still has."""

    def __init__(self):
        self.alive = []

    def new(self, *values):
        numbers = array("I", values)
        self.alive.append(weakref.ref(numbers))
        return numbers

    def __call__(self):
        gc.collect()
        return [known() is not None for known in self.alive]


def test_numbers_live_as_long_as_objects_point_to_them():
    numbers = Numbers()
    objects = kvtier.Objects(bytes(4 * 32))
    objects.set_slots(numbers.new(0, 1, 2, 3), 1)
    objects[0:3].set_slots(numbers.new(4, 5, 6), 1)
    for _ in range(2):
        objects[3:4].set_slots(numbers.new(7), 1)
    assert numbers() == [False, True, False, True]
    objects[1:1].set_slots([], 1)
    with pytest.raises(ValueError, match="too few"):
        objects.set_slots(numbers.new(8), 1)
    # The first object's; the others have what they had.
    assert numbers() == [False, True, False, True, True]
    copy = objects.take([3, 0])
    objects.set_slots(numbers.new(9, 9, 9, 9), 1)
    assert numbers() == [False, True, False, True, True, True]
    assert [c.slots[0] for c in (copy._c[0], copy._c[1])] == [7, 8]
    del copy
    assert numbers() == [False, False, False, False, False, True]
    del objects
    assert not any(numbers())


def test_objects_of_several_arrays_become_one():
    numbers = Numbers()
    parts = [
        kvtier.Objects(bytes([i]) * 32 * n, group=i, boundary_tokens=16 * (i + 1))
        for i, n in enumerate([2, 0, 3])
    ]
    parts[0].set_slots(numbers.new(1, 2), 1)
    parts[2].set_slots(numbers.new(3, 4, 5), 1)
    whole = kvtier.Objects.concat([parts[0], parts[1], parts[2][1:]])
    assert whole.groups.tolist() == [0, 0, 2, 2]
    assert whole.digests.tobytes() == bytes(64) + b"\2" * 64
    whole.boundary_tokens[0] = 7
    assert parts[0].boundary_tokens.tolist() == [16, 16]
    del parts
    assert numbers() == [True, True]
    assert [whole._c[i].slots[0] for i in range(4)] == [1, 2, 4, 5]
    whole.set_slots([0, 0, 0, 0], 1)
    assert numbers() == [False, False]
    assert len(kvtier.Objects.concat([])) == 0


def test_no_cffi_buffer_is_kept():
    """Python 3.11 crashes when it finds one over a memoryview in a cycle of garbage."""
    objects = kvtier.Objects(memoryview(bytes(64)).cast("B", (2, 32)))
    objects.set_slots(memoryview(array("i", [1, 2])), 1)
    objects.set_pages(memoryview(array("I", [1, 2])), memoryview(array("I", [1, 1])))
    with pytest.raises(ValueError) as caught:
        objects.set_pages(memoryview(array("I", [1, 2, 3])), 1)
    group = kvtier.PageGroup.of([memoryview(bytearray(8))])
    kind = type(ffi.from_buffer(b""))
    kept = [x for x in gc.get_objects() if type(x) is kind and len(x) > 0]
    assert kept == [] and caught and group
