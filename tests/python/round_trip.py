# SPDX-License-Identifier: Apache-2.0
"""round_trip.py SOCKET: what an engine does, with nothing installed but the wheel."""
import asyncio
import sys

from kvtier import Group, GroupKind, Layout, Objects, Session, Status, digest_array

kv = Group("kv", GroupKind.ATTENTION, page_tokens=16, page_bytes=4096)
blob = Group("blob", GroupKind.STATE)
layout = Layout(model=sys.version, engine="round trip", chunk_tokens=16, groups=[kv, blob])


def run_objects(session: Session) -> None:
    digests, _ = digest_array(range(64), 16)
    objects = Objects(digests, parents=bytes(32) + bytes(digests)[:-32], nbytes=4096)
    assert session.reserve_objects(objects, waited=True).wait().status is Status.OK
    for i in range(4):
        objects.view(i)[:] = bytes([i]) * 4096
    assert session.commit_objects(objects, waited=True).wait().status is Status.OK

    async def load() -> None:
        loaded = Objects(digests)
        done = await session.completion(session.acquire_objects(loaded))
        assert done.n_granted == 4
        view = loaded.view(3)
        assert view == bytes([3]) * 4096
        try:
            session.release_objects(loaded)
            raise AssertionError("released under a living view")
        except BufferError:
            del view
        await session.completion(session.release_objects(loaded))

    asyncio.run(load())


def main() -> None:
    with Session(layout, socket=sys.argv[1]) as session:
        assert session.wait_attached() is Status.OK
        run_objects(session)
        assert session.put(list(range(100)), b"state" * 999, group=1) is Status.OK
        assert session.get(list(range(100)), group=1) == (100, b"state" * 999)
    print("ok", sys.version.split()[0])


main()
