# SPDX-License-Identifier: Apache-2.0
"""A paged engine for the tests: two shards, four pages a chunk."""
from kvtier import Group, GroupKind, Objects, Status, digest_array

CHUNK = 16
PAGE = 1024
SHARDS = 2
GROUPS = [Group("kv", GroupKind.ATTENTION, page_tokens=4, page_bytes=PAGE, shards=SHARDS)]
NBYTES = CHUNK // 4 * PAGE


def chain(fresh, n):
    """The objects of n chunks, both shards, shard by shard."""
    digests, _ = digest_array(fresh(n * CHUNK), CHUNK)
    data = digests.tobytes()
    return Objects(
        data * SHARDS,
        shard=[shard for shard in range(SHARDS) for _ in range(n)],
        parents=(bytes(32) + data[:-32]) * SHARDS,
        boundary_tokens=list(range(CHUNK, (n + 1) * CHUNK, CHUNK)) * SHARDS,
        nbytes=NBYTES,
    )


def to_load(objects):
    return Objects(objects.digests, group=objects.groups, shard=objects.shards)


def content(i):
    return bytes([i & 0xFF, i >> 8]) * (NBYTES // 2)


def store(session, objects):
    assert session.reserve_objects(objects, waited=True).wait().status is Status.OK
    for i in range(len(objects)):
        objects.write(i, content(i))
    assert session.commit_objects(objects, waited=True).wait().status is Status.OK


def digest(objects):
    """Of the first object."""
    return objects.digests.tobytes()[:32]
