# SPDX-License-Identifier: Apache-2.0
"""A hybrid model from Python: chunks and states through the object calls of `lib`."""
import pytest

from conftest import layout
from kvtier import (
    Group,
    GroupKind,
    Row,
    Session,
    SessionError,
    Status,
    digest_chain,
    ffi,
    lib,
)

CHUNK = 32
KV, WINDOW, STATE = range(3)
GROUPS = [
    Group("full", GroupKind.ATTENTION, page_tokens=16, page_bytes=2048, shards=2),
    Group("window", GroupKind.WINDOW, page_tokens=16, page_bytes=512, window_tokens=CHUNK),
    Group("state", GroupKind.STATE, shards=2),
    Group("tail", GroupKind.SCRATCH),
]
STATE_BYTES = 100_001


class Engine:
    """One process that stores and loads boundaries as sets."""

    def __init__(self, session, tokens):
        self.session, self.tokens = session, tokens
        self.digests, _ = digest_chain(tokens, CHUNK)

    def objects(self, boundary, groups):
        cells = [(g, s) for g in groups for s in range(GROUPS[g].shards)]
        objects = ffi.new("struct kvt_object[]", len(cells))
        for c, (group, shard) in zip(objects, cells):
            c.digest.bytes = self.digests[boundary - 1]
            if boundary > 1:
                c.parent.bytes = self.digests[boundary - 2]
            c.group, c.shard, c.boundary_tokens = group, shard, boundary * CHUNK
            pages = CHUNK // (GROUPS[group].page_tokens or CHUNK)
            c.bytes = pages * GROUPS[group].page_bytes or STATE_BYTES
        return objects

    def run(self, submit, objects, n, number=0):
        call = ffi.new("struct kvt_call *")
        call.size, call.flags = ffi.sizeof("struct kvt_call"), lib.KVT_CALL_WAITED
        call.set = number
        call_id, done = ffi.new("uint64_t *"), ffi.new("struct kvt_completion *")
        session = self.session.c_session
        assert submit(session, call, objects, n, call_id) == lib.KVT_OK
        assert lib.kvt_wait_call(session, call_id[0], done, 10**10) == lib.KVT_OK
        return Status(done.status)

    def store(self, boundary, groups):
        objects = self.objects(boundary, groups)
        assert self.run(lib.kvt_reserve, objects, len(objects), boundary) is Status.OK
        for c in objects:
            content = self.content(c)
            assert lib.kvt_write(ffi.addressof(c), 0, content, len(content)) == lib.KVT_OK
        assert self.run(lib.kvt_commit, objects, len(objects), boundary) is Status.OK

    @staticmethod
    def content(c):
        pattern = bytes(c.digest.bytes) + bytes([c.group, c.shard])
        return (pattern * (c.bytes // len(pattern) + 1))[: c.bytes]

    def match(self, **query):
        return self.session.match(b"".join(self.digests), **query)

    def load(self, boundary):
        """Everything that the boundary needs; the number of its objects."""
        query = ffi.new("struct kvt_boundary_query *")
        digests = ffi.from_buffer(b"".join(self.digests))
        query.size = ffi.sizeof("struct kvt_boundary_query")
        query.digests = ffi.cast("struct kvt_digest *", digests)
        query.boundaries = boundary
        objects, n = ffi.new("struct kvt_object[]", 64), ffi.new("size_t *")
        session = self.session.c_session
        assert lib.kvt_boundary_objects(session, query, objects, 64, n) == lib.KVT_OK
        assert self.run(lib.kvt_acquire, objects, n[0]) is Status.OK
        for c in objects[0 : n[0]]:
            data = bytearray(c.bytes)
            lib.kvt_read(ffi.addressof(c), 0, ffi.from_buffer(data), len(data))
            assert data == self.content(c)
        assert self.run(lib.kvt_release, objects, n[0]) is Status.OK
        return n[0]


@pytest.fixture
def engine(daemon, fresh):
    hybrid = layout("hybrid", chunk_tokens=CHUNK, groups=GROUPS)
    with Session(hybrid, socket=daemon.socket) as session:
        yield Engine(session, fresh(6 * CHUNK))


def test_a_boundary_is_usable_with_its_state_and_loads(engine):
    for boundary in (1, 2, 3, 4):
        engine.store(boundary, [KV, WINDOW])
    assert engine.match().boundaries == 0
    assert engine.match().kv_boundaries == 4
    engine.store(2, [STATE])
    match = engine.match(usable=4)
    assert (match.boundaries, match.tokens, match.resident_boundaries) == (2, 2 * CHUNK, 2)
    (usable,) = match.usable
    # Two chunks of both shards, the window's last one, both shards of the state.
    assert (usable.boundaries, usable.n_objects, usable.resident) == (2, 7, True)
    assert (usable.nbytes, usable.exact) == (4 * 4096 + 1024, False)
    assert engine.load(2) == usable.n_objects


def test_the_last_token_of_a_prompt_is_left_to_compute(engine):
    for boundary in (1, 2, 3):
        engine.store(boundary, [KV, WINDOW, STATE])
    assert engine.match(prompt_tokens=3 * CHUNK).boundaries == 2
    assert engine.match(prompt_tokens=3 * CHUNK + 1).boundaries == 3
    assert engine.match(prompt_tokens=3 * CHUNK - 1).boundaries == 2


def test_the_nearest_state_below_a_position_is_told(engine):
    engine.store(1, [STATE])
    engine.store(3, [STATE])
    match = engine.match(max_tokens=4 * CHUNK + 7, state=True)
    assert (match.state_boundaries, match.replay_tokens) == (3, CHUNK + 7)
    match = engine.match(max_tokens=2 * CHUNK, state=True)
    assert (match.state_boundaries, match.replay_tokens) == (1, CHUNK)
    assert match.boundaries == 0


def rows_of(*shards):
    rows = [Row(shard, page_bytes=1024 * (2 - shard)) for shard in shards]
    kv = Group("kv", GroupKind.ATTENTION, page_tokens=16, shards=2, rows=rows)
    return layout("rows", chunk_tokens=CHUNK, groups=[kv], pp=2)


def test_processes_of_an_engine_put_their_layout_together(daemon):
    one = dict(socket=daemon.socket, engine_id=b"engine with rows", n_ranks=2)
    with Session(rows_of(0), partial_layout=True, rank=0, **one) as first:
        assert first.wait_attached(0.05) is Status.PENDING
        with Session(rows_of(1), partial_layout=True, rank=1, **one) as second:
            assert first.wait_attached() is second.wait_attached() is Status.OK
            assert first.info().layout_id == second.info().layout_id
            with Session(rows_of(0, 1), socket=daemon.socket) as whole:
                assert whole.info().layout_id == first.info().layout_id
            assert [first.is_mine(0, shard, 1) for shard in (0, 1)] == [True, False]
            assert [second.is_mine(0, shard, 1) for shard in (0, 1)] == [False, True]
            with pytest.raises(SessionError, match="page_bytes"):
                contradicting = layout(
                    "rows",
                    chunk_tokens=CHUNK,
                    groups=[
                        Group("kv", GroupKind.ATTENTION, page_tokens=16, shards=2, page_bytes=77)
                    ],
                    pp=2,
                )
                Session(contradicting, partial_layout=True, **one)
