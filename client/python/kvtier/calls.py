# SPDX-License-Identifier: Apache-2.0
"""Calls over arrays of objects, and the three ways to hear of their completion."""
from __future__ import annotations

import asyncio
import itertools
import os
import select
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import Any, AsyncIterator, Iterator, NamedTuple

from ._native import ffi, lib
from .buffers import DIGEST_BYTES, Digests, digest_bytes, fill, nanoseconds, pointer
from .handle import Handle
from .memory import LeasedMemory
from .objects import Objects
from .status import Status, checked

BATCH = 64
#: A wait in C is cut into pieces, so that signals (Ctrl-C) are seen to.
PIECE_S = 0.25


class Completion(NamedTuple):
    """What a call has come to."""

    call: Call
    status: Status  #: of the call as a whole; each object has its own
    more: bool  #: acquire, adopt: granted, but objects are still PENDING; more will follow
    n_granted: int  #: acquire, adopt: leading objects that are leased
    n_resident: int  #: acquire: leading objects in host memory; BUSY names it
    n_fitting: int  #: acquire: TOO_LARGE names how many would fit
    token: bytes  #: acquire: 16 bytes for `adopt_objects` in other sessions of the engine


class Call:
    """A submitted call. It keeps its objects, and all memory they point to, until its end."""

    def __init__(self, calls: Calls, objects: Objects | None, waited: bool, keep: Any) -> None:
        self._calls = calls
        self._keep = keep
        self._mailbox: deque[Completion] | None = None
        self._waiter: _Waiter | None = None
        self.objects = objects
        self.waited = waited
        self.id = 0  #: as in kvtier.h, for `cancel`
        self._last: tuple[Any, ...] | None = None

    @property
    def completion(self) -> Completion | None:
        """The last one reported so far."""
        # Made anew: what refers to itself is freed late.
        return None if self._last is None else Completion(self, *self._last)

    @property
    def done(self) -> bool:
        """True once the last completion has been reported."""
        return self._last is not None and not self._last[1]

    def wait(self, timeout: float | None = None) -> Completion | None:
        """The last completion of a call submitted with waited=True; None: not in that time.

        timeout: seconds; None: until the call's own deadline. ValueError: another call.
        """
        return self._calls.wait_call(self, timeout)


class _Waiter:
    """A coroutine that waits, in the event loop of whatever thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> None:
        if self.thread == threading.get_ident():
            self._set()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Calls(Handle):
    """Calls over `Objects`.

    Each submits and returns at once. It is reported exactly once (an acquire perhaps several
    times, the last one without `more`) in one of these ways:

      waited=True          `call.wait()`, in any thread
      awaited              `await session.completion(call)`, in a coroutine
      any other call       `poll()`, `wait()`, or `async for c in session.completions()`

    What could not be submitted (UNAVAILABLE, TOO_LARGE, REFUSED: too many calls in flight) is
    done at once, with nothing held: `call.done`, `call.completion` and each object's status
    say so, `call.wait()` and `await` return it, and nothing else reports it.

    timeout: seconds; None: no limit. set_id: a number of the caller's that ties the objects
    of one boundary, all or nothing. bypass: as if the session loaded and stored nothing.

    ValueError: bad arguments. RuntimeError: in a forked child.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._ready: deque[Completion] = deque()
        self._iterators: set[_Waiter] = set()
        self._readers: dict[asyncio.AbstractEventLoop, list[int]] = {}
        self._sleepers = 0
        self._wake_fd = -1
        self._memories: dict[int, LeasedMemory] = {}

    # ---- submitting ----

    def reserve_objects(
        self,
        objects: Objects,
        *,
        set_id: int = 0,
        timeout: float | None = 30.0,
        waited: bool = False,
        bypass: bool = False,
    ) -> Call:
        """Room for objects of `nbytes` each.

        Per object OK (write it, then commit or abort), ALREADY_HAVE, BUSY, TOO_LARGE,
        REFUSED, DRAINING. The call's status is the first that is neither of the first two.
        """
        self._fills(objects, True)
        flags = lib.KVT_CALL_BYPASS if bypass else 0
        return self._submit(lib.kvt_reserve, objects, flags, timeout, waited, set_id)

    def commit_objects(
        self,
        objects: Objects,
        *,
        set_id: int = 0,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Publishes what was written and ends the leases; `objects.leased()` has them.

        Per object OK, ALREADY_HAVE (another writer was first), STALE (set), GONE.
        BufferError: a view is alive.
        """
        self._ends(objects, "commit")
        return self._submit(lib.kvt_commit, objects, 0, timeout, waited, set_id)

    def abort_objects(
        self,
        objects: Objects,
        *,
        set_id: int = 0,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Gives reserved room back unwritten. BufferError: a view is alive."""
        self._ends(objects, "abort")
        return self._submit(lib.kvt_abort, objects, 0, timeout, waited, set_id)

    def acquire_objects(
        self,
        objects: Objects,
        *,
        wait: bool = False,
        partial: bool = False,
        resident: bool = False,
        checksums: bool = False,
        bypass: bool = False,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Leases objects for reading, all or nothing.

        wait: also for objects that are being stored now, until the timeout. partial: the
        leading run that exists. resident: only from host memory, else BUSY. checksums: for
        `verify`.
        Per object OK, PENDING (with `more`: on its way), MISS, CORRUPT, IO_ERROR.
        """
        flags = self._load_flags(wait, partial, resident, bypass, timeout)
        flags |= lib.KVT_CALL_CHECKSUMS if checksums else 0
        self._fills(objects, False)
        return self._submit(lib.kvt_acquire, objects, flags, timeout, waited)

    def adopt_objects(
        self,
        objects: Objects,
        token: bytes,
        *,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Leases of its own on what another session's acquire was granted; as acquire.

        token: 16 bytes of that acquire's completion. GONE: no lease of it is held any more.
        """
        if len(token) != 16:
            raise ValueError("a token has 16 bytes")
        self._fills(objects, False)
        extra = (ffi.new("uint8_t[]", token),)
        return self._submit(lib.kvt_adopt, objects, 0, timeout, waited, extra=extra)

    def prefetch(
        self,
        objects: Objects,
        hint: str | None = None,
        *,
        wait: bool = False,
        bypass: bool = False,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Brings objects into host memory while their request still waits in a queue.

        Nothing is leased: acquire them when it runs. hint: the peer that may have them, as the
        daemon's config names it. wait: also for those that the peer does not have yet.
        Per object OK, MISS, BUSY, TOO_LARGE, CORRUPT, IO_ERROR, TIMEOUT, UNAVAILABLE or
        UNSUPPORTED (no such peer).
        """
        flags = self._load_flags(wait, False, False, bypass, timeout)
        name = ffi.NULL if hint is None else ffi.new("char[]", hint.encode())
        return self._submit(lib.kvt_prefetch, objects, flags, timeout, waited, extra=(name,))

    def find_boundaries(
        self, digests: Digests, *, timeout: float | None = 30.0, waited: bool = False
    ) -> Call:
        """Asks the daemon of another node, or all of an engine's, which boundaries are there.

        When it has completed, `match` and `probe` show it. With a daemon on this node that has
        every shard they do so anyway, and it completes at once.
        """
        data = digest_bytes(digests)
        extra = (pointer("struct kvt_digest *", data), len(data) // DIGEST_BYTES)
        return self._submit(lib.kvt_find, None, 0, timeout, waited, extra=extra)

    def release_objects(
        self, objects: Objects, *, timeout: float | None = 30.0, waited: bool = False
    ) -> Call:
        """Ends read leases: the caller has finished copying. BufferError: a view is alive."""
        self._ends(objects, "release")
        return self._submit(lib.kvt_release, objects, 0, timeout, waited)

    def cancel(self, call: Call) -> Call:
        """Cancels; completes after the call, and then nothing can touch its memory."""
        return self._submit(_cancel, None, 0, None, False, extra=(call.id,))

    def verify(self, objects: Objects, i: int) -> Status:
        """Object i, acquired with checksums=True, against them: OK, CORRUPT, MISS (none)."""
        return checked(
            lib.kvt_verify(self._handle(), ffi.addressof(objects._leased(i))), "verify"
        )

    @staticmethod
    def _load_flags(
        wait: bool, partial: bool, resident: bool, bypass: bool, timeout: float | None
    ) -> int:
        if wait and timeout is None:
            raise ValueError("wait needs a timeout")
        flags: int = lib.KVT_CALL_WAIT if wait else 0
        flags |= lib.KVT_CALL_PARTIAL if partial else 0
        flags |= lib.KVT_CALL_RESIDENT if resident else 0
        flags |= lib.KVT_CALL_BYPASS if bypass else 0
        return flags

    def _fills(self, objects: Objects, writable: bool) -> None:
        objects._home.session, objects._home.writable = self, writable

    def _ends(self, objects: Objects, what: str) -> None:
        if not self._memories:
            return
        memories = {n: self._memories[n] for n in objects.leases if n in self._memories}
        for memory in memories.values():
            memory.check_unused(what)
        for number in memories:
            del self._memories[number]

    def _memory_of(self, c: Any, writable: bool) -> LeasedMemory:
        memory = self._memories.get(c.lease)
        if memory is None:
            memory = self._memories[c.lease] = LeasedMemory(c, writable)
        return memory

    def _submit(
        self,
        function: Any,
        objects: Objects | None,
        flags: int,
        timeout: float | None,
        waited: bool,
        set_id: int = 0,
        extra: tuple[Any, ...] = (),
        keep: Any = None,
        events: tuple[int, int] = (0, 0),
    ) -> Call:
        session = self._handle()
        call = Call(self, objects, waited, keep)
        options = ffi.new("struct kvt_call *")
        options.size = ffi.sizeof("struct kvt_call")
        options.flags = flags | (lib.KVT_CALL_WAITED if waited else 0)
        options.timeout_ns, options.set = nanoseconds(timeout), set_id
        options.after, options.done = (ffi.cast("void *", event) for event in events)
        number = next(self._numbers)
        options.user = ffi.cast("void *", number)
        ret_call = ffi.new("uint64_t *")
        # Known before it is submitted: another thread may be told of its end at once.
        self._calls[number] = call
        array = () if objects is None else (objects._c, len(objects))
        status = function(session, options, *extra, *array, ret_call)
        call.id = ret_call[0]
        if status != lib.KVT_OK:
            del self._calls[number]
            if objects is not None:  # not what an earlier call left there, or zeros: OK
                fill(objects.statuses, status)
            call._last = _ended(call, checked(status, function.__name__))[1:]
        return call

    # ---- reporting ----

    def poll(self, max: int | None = None) -> list[Completion]:
        """What has completed, at most `max`; never blocks."""
        self.fileno()  # raises in a forked child
        self._drain()
        return self._take(max)

    def wait(self, timeout: float | None = None, max: int | None = None) -> list[Completion]:
        """As `poll`, waiting up to `timeout` seconds (None: for ever) for the first one."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (found := self.poll(max)):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self._sleep(left)
        return found

    def wait_call(self, call: Call, timeout: float | None = None) -> Completion | None:
        """The last completion of a call submitted with waited=True; see `Call.wait`."""
        if call.done:
            return call.completion
        if not call.waited:
            raise ValueError("only a call submitted with waited=True can be waited for")
        end = None if timeout is None else time.monotonic() + timeout
        c = ffi.new("struct kvt_completion *")
        while True:
            left = PIECE_S if end is None else max(0.0, min(PIECE_S, end - time.monotonic()))
            status = lib.kvt_wait_call(self._handle(), call.id, c, int(left * 1e9))
            if status != lib.KVT_TIMEOUT:
                break
            if end is not None and time.monotonic() >= end:
                return None
        checked(status, "wait_call")
        self._route(c)
        return call.completion

    async def completion(self, call: Call) -> Completion:
        """The next completion of a call; after the last one, the last one again.

        One coroutine a call. When it is cancelled the call goes on; see `cancel`.
        """
        if call.waited:
            raise ValueError("a call submitted with waited=True is waited for, not awaited")
        with self._reading():
            while True:
                with self._lock:
                    if call._mailbox is None:
                        call._mailbox = deque(c for c in self._ready if c.call is call)
                        for c in call._mailbox:
                            self._ready.remove(c)
                self._drain()
                with self._lock:
                    if call._mailbox:
                        return call._mailbox.popleft()
                    if call._last is not None and call.done:
                        return Completion(call, *call._last)
                    if call._waiter is not None:
                        raise RuntimeError("another coroutine is waiting for this call")
                    call._waiter = waiter = _Waiter()
                try:
                    await waiter.future
                finally:
                    call._waiter = None

    async def completions(self) -> AsyncIterator[Completion]:
        """Completions of all calls that nobody awaits by name, until the session is closed."""
        with self._reading():
            while True:
                self._drain()
                if found := self._take(1):
                    yield found[0]
                    continue
                if self._session is None:
                    return
                waiter = _Waiter()
                self._iterators.add(waiter)
                try:
                    if not self._ready and self._session is not None:
                        await waiter.future
                finally:
                    self._iterators.discard(waiter)

    def _take(self, max: int | None) -> list[Completion]:
        with self._lock:
            n = len(self._ready) if max is None else min(max, len(self._ready))
            taken = [self._ready.popleft() for _ in range(n)]
            self._wake_sleepers()
        return taken

    def _drain(self) -> None:
        """Takes all that the library has to report to whoever it is for."""
        batch = ffi.new("struct kvt_completion[]", BATCH)
        n = BATCH
        # Under the lock, so that the completions of a call keep their order.
        with self._lock:
            while n == BATCH and self._session is not None:
                n = lib.kvt_poll(self._session, batch, BATCH)
                for i in range(n):
                    self._route(batch[i])
            self._wake_sleepers()

    def _route(self, c: Any) -> None:
        number = int(ffi.cast("uintptr_t", c.user))
        more = bool(c.flags & lib.KVT_COMPLETION_MORE)
        call = self._calls.get(number) if more else self._calls.pop(number, None)
        if call is not None:
            self._deliver(_completion(call, c))

    def _deliver(self, completion: Completion) -> None:
        call = completion.call
        call._last = completion[1:]
        if call.done:
            call._keep = None
        if call.waited:
            return
        if call._mailbox is None:
            self._ready.append(completion)
            for waiter in list(self._iterators):
                waiter.wake()
        else:
            call._mailbox.append(completion)
            if call._waiter is not None:
                call._waiter.wake()

    def _end_calls(self) -> None:
        """The session is closed, and with it every call."""
        with self._lock:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                self._deliver(_ended(call, Status.CANCELLED))
            for waiter in list(self._iterators):
                waiter.wake()

    # ---- what wakes those who wait ----

    def _sleep(self, seconds: float | None) -> None:
        """Until the library has something to report, or others have drained it for us."""
        with self._lock:
            if self._wake_fd < 0:
                self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._sleepers += 1
            poller = select.poll()
            poller.register(self.fileno(), select.POLLIN)
            poller.register(self._wake_fd, select.POLLIN)
            self._wake_sleepers()
        try:
            poller.poll(None if seconds is None else seconds * 1e3)
        finally:
            with self._lock:
                self._sleepers -= 1
                if not self._sleepers:
                    os.close(self._wake_fd)
                    self._wake_fd = -1
                self._wake_sleepers()

    def _wake_sleepers(self) -> None:
        """Makes the descriptor of those who sleep say whether there is something for them."""
        if self._sleepers and self._ready:
            os.eventfd_write(self._wake_fd, 1)
        elif self._sleepers:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The running event loop drains this session meanwhile."""
        loop = asyncio.get_running_loop()
        reader = self._readers.get(loop)
        if reader is None:
            # A descriptor of our own: the caller may watch fileno() in the same loop.
            reader = self._readers[loop] = [os.dup(self.fileno()), 0]
            loop.add_reader(reader[0], self._drain)
        reader[1] += 1
        try:
            yield
        finally:
            reader[1] -= 1
            if not reader[1]:
                del self._readers[loop]
                loop.remove_reader(reader[0])
                os.close(reader[0])


def _cancel(session: Any, options: Any, target: int, ret_call: Any) -> Any:
    return lib.kvt_cancel(session, options, target, ret_call)


def _completion(call: Call, c: Any) -> Completion:
    return Completion(
        call=call,
        status=Status(c.status),
        more=bool(c.flags & lib.KVT_COMPLETION_MORE),
        n_granted=c.n_granted,
        n_resident=c.n_resident,
        n_fitting=c.n_fitting,
        token=bytes(ffi.buffer(c.token)),
    )


def _ended(call: Call, status: Status) -> Completion:
    return Completion(call, status, False, 0, 0, 0, bytes(16))
