# SPDX-License-Identifier: Apache-2.0
"""Completions in coroutines, over the session's eventfd."""
import asyncio
import signal
import threading

import pytest

from conftest import eventually, layout
from kvtier import Session, Status
from paged import CHUNK, GROUPS, chain, content, store, to_load


def test_calls_are_awaited_by_name(paged, fresh):
    async def engine():
        objects = chain(fresh, 8)
        call = paged.reserve_objects(objects)
        assert (await paged.completion(call)).status is Status.OK
        for i in range(len(objects)):
            objects.write(i, content(i))
        assert (await paged.completion(paged.commit_objects(objects))).status is Status.OK
        loaded = to_load(objects)
        done = await paged.completion(paged.acquire_objects(loaded))
        assert done.n_granted == 16 and loaded.view(9) == content(9)
        call = paged.release_objects(loaded)
        done = await paged.completion(call)
        # The last one again.
        assert await paged.completion(call) == done

    asyncio.run(asyncio.wait_for(engine(), 20))


def test_many_coroutines_each_get_their_own(paged, fresh):
    async def one(i):
        objects = chain(fresh, 1 + i % 3)
        call = paged.reserve_objects(objects)
        done = await paged.completion(call)
        assert done.call is call and done.status is Status.OK
        assert all(objects.leases)
        await paged.completion(paged.abort_objects(objects))

    async def all_of_them():
        await asyncio.gather(*(one(i) for i in range(100)))

    asyncio.run(asyncio.wait_for(all_of_them(), 20))
    assert paged.poll() == []


def test_async_for_yields_what_nobody_awaits(paged, fresh):
    async def engine():
        awaited = paged.reserve_objects(chain(fresh, 1))
        others = {paged.reserve_objects(chain(fresh, 1)) for _ in range(20)}
        mine = asyncio.create_task(paged.completion(awaited))
        await asyncio.sleep(0)
        seen = set()
        async for done in paged.completions():
            seen.add(done.call)
            if len(seen) == 20:
                break
        assert seen == others
        assert (await mine).call is awaited
        return [call.objects for call in (awaited, *others)]

    for objects in asyncio.run(asyncio.wait_for(engine(), 20)):
        paged.abort_objects(objects, waited=True).wait()


def test_a_cancelled_task_leaves_its_call_going(paged, fresh):
    async def engine():
        objects = chain(fresh, 1)
        await paged.completion(paged.reserve_objects(objects))
        call = paged.acquire_objects(to_load(objects), wait=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(paged.completion(call), 0.02)
        assert not call.done
        await paged.completion(paged.abort_objects(objects))
        assert (await paged.completion(call)).status is Status.MISS

    asyncio.run(asyncio.wait_for(engine(), 20))


def test_what_was_not_submitted_is_done_at_once(tmp_path, fresh):
    async def engine(session):
        call = session.reserve_objects(chain(fresh, 1))
        assert call.done
        assert (await session.completion(call)).status is Status.UNAVAILABLE

    options = dict(socket=str(tmp_path / "none"), connect_timeout=0)
    with Session(layout(chunk_tokens=CHUNK, groups=GROUPS), **options) as session:
        asyncio.run(engine(session))


def test_closing_the_session_ends_those_who_wait(daemon, fresh):
    session = Session(layout("arrays", chunk_tokens=CHUNK, groups=GROUPS), socket=daemon.socket)
    objects = chain(fresh, 1)
    session.reserve_objects(objects, waited=True).wait()

    async def iterate():
        return [done async for done in session.completions()]

    async def engine():
        call = session.acquire_objects(to_load(objects), wait=True)
        tasks = [asyncio.create_task(session.completion(call)), asyncio.create_task(iterate())]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(session.close)
        done, rest = await asyncio.gather(*tasks)
        assert done.status is Status.CANCELLED and rest == []

    asyncio.run(asyncio.wait_for(engine(), 20))


def test_a_thread_that_waits_and_a_loop_do_not_take_each_others(paged, fresh):
    stop, got = threading.Event(), []

    def collect():
        while not stop.is_set():
            got.extend(paged.wait(0.05))

    async def engine():
        for _ in range(30):
            call = paged.reserve_objects(chain(fresh, 1))
            plain = paged.reserve_objects(chain(fresh, 1))
            plains.append(plain)
            done = await paged.completion(call)
            assert done.call is call
            await paged.completion(paged.abort_objects(call.objects))

    plains = []
    thread = threading.Thread(target=collect)

    async def main():
        task = asyncio.create_task(engine())
        await asyncio.sleep(0)
        thread.start()
        await task

    # A call is claimed by the first await; until then whoever looks first may have it.
    call_of_all = asyncio.wait_for(main(), 20)
    asyncio.run(call_of_all)
    eventually(lambda: {c.call for c in got} >= set(plains))
    stop.set()
    thread.join()
    for plain in plains:
        paged.abort_objects(plain.objects, waited=True).wait()


def test_the_loop_serves_others_while_the_daemon_restarts(daemon, paged, fresh):
    async def engine():
        store(paged, objects)
        call = paged.acquire_objects(to_load(unwritten), wait=True)
        waiting = asyncio.create_task(paged.completion(call))
        await asyncio.sleep(0)
        await asyncio.to_thread(daemon.stop, signal.SIGKILL)
        assert (await waiting).status is Status.UNAVAILABLE
        await asyncio.to_thread(daemon.start)
        while not paged.info().attached:
            await asyncio.sleep(0.005)
        call = paged.reserve_objects(again)
        assert (await paged.completion(call)).status is Status.OK

    objects, unwritten, again = chain(fresh, 2), chain(fresh, 1), chain(fresh, 1)
    paged.reserve_objects(unwritten, waited=True).wait()
    asyncio.run(asyncio.wait_for(engine(), 30))
