# SPDX-License-Identifier: Apache-2.0
"""Pages of the host pools in a running kvtierd: a session, and a page map over the pools.

Calls block until they are done or their time is over, without the GIL; any thread may make
them. Pages that could not be stored or loaded are False, and why is logged once for each
reason. `close` waits for the calls that are being made.
"""
from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import Iterator, Optional, Sequence

from .. import DIGEST_BYTES, Layout, Objects, PageGroup, PageMap, Session, Status
from ..attachment import Attachment
from ..pages import at_once
from ..status import STORED
from .identity import Place, batch_tokens
from .keys import Chain
from .options import Options
from .pools import HostPool

logger = logging.getLogger("sglang.kvtier")


class Closed(Exception):
    """The store has been closed, or replaced by another one."""


class PageStore:
    def __init__(
        self,
        layout: Layout,
        pools: Sequence[HostPool],
        places: dict[str, Place],
        options: Options,
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._places, self._options = places, options
        first = places[pools[0].name]
        self._session = Session(
            layout,
            socket=options.socket,
            program=f"sglang rank {first.shard}",
            connect_timeout=options.connect_timeout,
            rank=first.shard,
            n_ranks=layout.groups[0].shards,
        )
        self._session.tell(batch_tokens=batch_tokens())
        try:
            self._map = PageMap(self._session, [self._page_group(pool) for pool in pools])
        except BaseException:
            self._session.close()
            raise
        self._idle = threading.Condition()
        self._users: Optional[int] = 0  #: None: closed
        self._told: set[str] = set()
        self._attached = Attachment(self._session, logger)

    def _page_group(self, pool: HostPool) -> PageGroup:
        place = self._places[pool.name]
        return PageGroup(pool.views, pool.n_pages, place.group, place.shard)

    def close(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._users)
            if self._users is None:
                return
            self._users = None
        self._map.close()
        self._session.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._idle:
            if self._users is None:
                raise Closed
            self._users += 1
        try:
            self._attached.look()
            yield
        finally:
            with self._idle:
                assert self._users
                self._users -= 1
                self._idle.notify_all()

    # ---- questions: no system call ----

    def pool(self, name: str) -> Optional[HostPool]:
        return self._pools.get(name)

    def present(self, name: str, digests: bytes) -> list[bool]:
        """What the presence table shows of this rank's part."""
        place = self._places.get(name)
        if place is None or not digests:
            return [False] * (len(digests) // DIGEST_BYTES)
        with self._using():
            words, _ = self._session.probe(digests)
        return [bool(word & place.bit) for word in words]

    # ---- pages ----

    def load(self, name: str, digests: bytes, slots: Sequence[int]) -> list[bool]:
        """Into these pages of the pool. False: what a page holds then is undefined."""
        there = self.present(name, digests)
        end = time.monotonic() + self._options.load_timeout
        results = [False] * len(slots)
        for part in self._parts(name, [i for i, page in enumerate(there) if page]):
            objects = self._objects(name, digests, slots, part)
            with self._using():
                done = self._session.load_pages(
                    self._map, objects, partial=True, timeout=self._left(end), waited=True
                ).wait()
            statuses = list(objects.statuses)
            for i, status in zip(part, statuses):
                results[i] = status == Status.OK
            if not all(results[i] for i in part):
                # What is behind it would be of no use.
                self._tell("loaded", statuses, done.status if done else Status.TIMEOUT)
                break
        return results

    def store(
        self, name: str, digests: bytes, slots: Sequence[int], chain: Chain
    ) -> list[bool]:
        """From these pages of the pool. What is stored already is not written again."""
        results = self.present(name, digests)
        end = time.monotonic() + self._options.store_timeout
        parents, ends = chain.parents(digests), chain.ends(len(slots))
        for part in self._parts(name, [i for i, page in enumerate(results) if not page]):
            objects = self._objects(name, digests, slots, part, parents, ends)
            with self._using():
                done = self._session.store_pages(
                    self._map, objects, timeout=self._left(end), waited=True
                ).wait()
            statuses = list(objects.statuses)
            for i, status in zip(part, statuses):
                results[i] = status in STORED
            if not all(results[i] for i in part):
                self._tell("stored", statuses, done.status if done else Status.TIMEOUT)
                break
        return results

    def _parts(self, name: str, which: list[int]) -> Iterator[list[int]]:
        if not which:
            return
        with self._using():
            each = at_once(self._session, self._pools[name].page_bytes)
        for first in range(0, len(which), each):
            yield which[first : first + each]

    def _objects(
        self,
        name: str,
        digests: bytes,
        slots: Sequence[int],
        part: Sequence[int],
        parents: Optional[bytes] = None,
        ends: Optional[Sequence[int]] = None,
    ) -> Objects:
        place = self._places[name]
        objects = Objects(
            _take(digests, part),
            group=place.group,
            shard=place.shard,
            parents=None if parents is None else _take(parents, part),
            boundary_tokens=0 if ends is None else [ends[i] for i in part],
        )
        objects.set_slots([slots[i] for i in part], 1)
        return objects

    @staticmethod
    def _left(end: float) -> float:
        return max(0.001, end - time.monotonic())

    # ---- single pages as bytes, for SGLang's calls with copies ----

    def read(self, name: str, digest: bytes, target: memoryview) -> bool:
        place, timeout = self._places[name], self._options.load_timeout
        objects = Objects(digest, group=place.group, shard=place.shard)
        with self._using():
            self._session.acquire_objects(objects, timeout=timeout, waited=True).wait()
            if objects.statuses[0] != Status.OK:
                return False
            try:
                return objects.read_into(0, target) == len(target) == objects.nbytes[0]
            finally:
                self._session.release_objects(objects, waited=True).wait()

    def write(self, name: str, digest: bytes, data: memoryview) -> bool:
        place, timeout = self._places[name], self._options.store_timeout
        objects = Objects(digest, group=place.group, shard=place.shard, nbytes=len(data))
        with self._using():
            self._session.reserve_objects(objects, timeout=timeout, waited=True).wait()
            if objects.statuses[0] == Status.OK:
                try:
                    objects.write(0, data)
                except BaseException:
                    self._session.abort_objects(objects, timeout=timeout, waited=True).wait()
                    raise
                self._session.commit_objects(objects, timeout=timeout, waited=True).wait()
            if objects.statuses[0] not in STORED:
                self._tell("stored", [objects.statuses[0]], Status.OK)
            return objects.statuses[0] in STORED

    # ---- the log ----

    def _tell(self, what: str, statuses: Sequence[int], whole: Status) -> None:
        """Once for each reason. Pages that are simply not there are no reason."""
        of_pages = (Status(status) for status in statuses if status not in STORED)
        status = next(of_pages, whole)
        if status in (Status.MISS, Status.GONE) and what == "loaded":
            return
        if f"{what} {status}" not in self._told:
            self._told.add(f"{what} {status}")
            logger.warning(
                "kvtier: pages could not be %s: %s. Logged once.", what, status.text
            )


def _take(digests: bytes, which: Sequence[int]) -> bytes:
    if len(which) * DIGEST_BYTES == len(digests):
        return digests
    return b"".join(digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES] for i in which)
