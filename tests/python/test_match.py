# SPDX-License-Identifier: Apache-2.0
"""What the presence table shows, and what a boundary needs."""
import time

import pytest

from conftest import layout
from kvtier import Group, GroupKind, Objects, Session, Status, digest_array
from paged import CHUNK, chain, store, to_load

KV, STATE = range(2)
HYBRID = [
    Group("kv", GroupKind.ATTENTION, page_tokens=CHUNK, page_bytes=512, shards=2),
    Group("state", GroupKind.STATE, page_bytes=3000, shards=2),
]


@pytest.fixture
def hybrid(daemon):
    with Session(layout("h", chunk_tokens=CHUNK, groups=HYBRID), socket=daemon.socket) as session:
        yield session


def put(session, digests, group, which):
    """Both shards of these boundaries, numbered from 1."""
    data = digests.tobytes()
    picked = b"".join(data[32 * (b - 1) : 32 * b] for b in which)
    above = bytes(32) + data
    objects = Objects(
        picked * 2,
        group=group,
        shard=[0] * len(which) + [1] * len(which),
        parents=b"".join(above[32 * (b - 1) : 32 * b] for b in which) * 2,
        boundary_tokens=[b * CHUNK for b in which] * 2,
        nbytes=HYBRID[group].page_bytes,
    )
    assert session.reserve_objects(objects, waited=True).wait().status is Status.OK
    assert session.commit_objects(objects, waited=True).wait().status is Status.OK


@pytest.fixture
def stored(hybrid, fresh):
    """Eight chunks, states at 2 and 5; and a prompt that leaves it after 6."""
    tokens = fresh(8 * CHUNK)
    digests, _ = digest_array(tokens, CHUNK)
    put(hybrid, digests, KV, range(1, 9))
    put(hybrid, digests, STATE, (2, 5))
    return digests


def test_usable_boundaries_are_listed_longest_first(hybrid, stored):
    match = hybrid.match(stored, usable=8, state=True, checkpoint=True)
    assert (match.boundaries, match.tokens, match.kv_boundaries) == (5, 80, 8)
    assert [b.boundaries for b in match.usable] == [5, 2]
    longest = match.usable[0]
    assert (longest.n_objects, longest.nbytes) == (12, 10 * 512 + 2 * 3000)
    assert longest.resident and longest.exact and longest.nbytes_below == 0
    assert (match.state_boundaries, match.replay_tokens) == (5, 3 * CHUNK)
    assert hybrid.match(stored, usable=1).usable == match.usable[:1]
    assert hybrid.match(stored, max_tokens=79).boundaries == 2
    assert hybrid.match(stored, bypass=True).boundaries == 0


def test_a_checkpoint_is_wanted_where_prompts_branch(hybrid, stored, fresh):
    data = stored.tobytes()
    other, _ = digest_array(fresh(2 * CHUNK), CHUNK)
    branch = data[: 6 * 32] + other.tobytes()
    match = hybrid.match(branch, checkpoint=True)
    assert (match.boundaries, match.kv_boundaries, match.checkpoint_boundaries) == (5, 6, 6)


def test_probe_shows_cells_of_each_digest(hybrid, stored):
    present, resident = hybrid.probe(stored)
    assert present.tolist() == [0b11, 0b1111, 0b11, 0b11, 0b1111, 0b11, 0b11, 0b11]
    assert resident.tolist() == present.tolist()
    assert [v.tolist() for v in hybrid.probe(b"")] == [[], []]


def test_a_find_asks_nobody_when_the_table_is_here(hybrid, stored):
    assert hybrid.find_boundaries(stored, waited=True).wait().status is Status.OK
    assert hybrid.match(stored).boundaries == 5


def test_what_a_boundary_needs_is_acquired_as_it_is(hybrid, stored):
    status, objects = hybrid.boundary_objects(stored, 5)
    assert status is Status.OK and len(objects) == 12
    assert objects.groups.tolist() == [KV] * 10 + [STATE] * 2
    assert objects.shards.tolist() == [0, 1] * 6
    done = hybrid.acquire_objects(objects, waited=True).wait()
    assert done.status is Status.OK and objects.nbytes.tolist() == [512] * 10 + [3000] * 2
    assert hybrid.release_objects(objects, waited=True).wait().status is Status.OK
    _, mine = hybrid.boundary_objects(stored, 5, shards=[1])
    assert set(mine.shards) == {1} and len(mine) == 6
    for wrong in (0, 9):
        with pytest.raises(ValueError):
            hybrid.boundary_objects(stored, wrong)


def test_a_long_chain_needs_many_objects(paged, fresh):
    objects = chain(fresh, 1000)
    digests = objects[:1000].digests
    status, needed = paged.boundary_objects(digests, 1000)
    assert status is Status.OK and len(needed) == 2000
    assert needed[1998:].digests.tobytes() == digests.tobytes()[-32:] * 2


def test_without_a_daemon_no_boundary_can_be_named(tmp_path, fresh):
    options = dict(socket=str(tmp_path / "none"), connect_timeout=0)
    with Session(layout("h", chunk_tokens=CHUNK, groups=HYBRID), **options) as session:
        digests, _ = digest_array(fresh(CHUNK), CHUNK)
        assert session.boundary_objects(digests, 1) == (Status.UNAVAILABLE, None)


def test_marks_take_arrays_of_digests(paged, fresh):
    objects = chain(fresh, 3)
    store(paged, objects)
    last = objects[2:3].digests
    assert paged.pin(last) == [Status.OK]
    assert paged.unpin(objects[:3].digests) == [Status.MISS, Status.MISS, Status.OK]
    deepest_first = [bytes(row) for row in reversed(rows(objects[:3].digests))]
    assert paged.reclaim(deepest_first, prefix=True)[0] is Status.OK
    assert paged.acquire_objects(to_load(objects), waited=True).wait().status is Status.MISS


def rows(digests):
    data = digests.tobytes()
    return [data[i : i + 32] for i in range(0, len(data), 32)]


def test_a_match_of_a_thousand_chunks_is_a_matter_of_microseconds(paged, fresh):
    objects = chain(fresh, 1000)
    store(paged, objects)
    digests = objects[:1000].digests
    assert paged.match(digests).boundaries == 1000
    best = min(timed(lambda: paged.match(digests)) for _ in range(50))
    # No loop of Python's: some 1,000 of its steps would take longer than this.
    assert best < 1e-3


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
