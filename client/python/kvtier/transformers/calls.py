# SPDX-License-Identifier: Apache-2.0
"""Calls over the objects of a cache, to their end."""
from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from ..buffers import DIGEST_BYTES
from ..objects import Objects
from ..pages import PageMap
from ..session import Session
from ..status import STORED, Status

NO_PARENT = bytes(DIGEST_BYTES)


class Name(NamedTuple):
    """An object: of which boundary (from 1) and group, how long it is, which slot it has."""

    boundary: int
    group: int
    nbytes: int
    slot: int


class Outcome(NamedTuple):
    """status, why: OK, or of the first object that was not moved; nbytes: copied."""

    status: Status
    why: str
    nbytes: int


class Calls:
    """after: an event of the GPU that copies wait for, or None."""

    def __init__(self, session: Session, chunk_tokens: int, timeout: float) -> None:
        self._session, self._chunk_tokens, self._timeout = session, chunk_tokens, timeout

    def store(
        self,
        page_map: PageMap,
        names: Sequence[Name],
        digests: Sequence[bytes],
        set_id: int,
        after: Any,
    ) -> Outcome:
        objects = self._objects(names, digests)
        options = dict(set_id=set_id, after=after)
        return self._run(self._session.store_pages, page_map, names, objects, options)

    def load(
        self, page_map: PageMap, names: Sequence[Name], digests: Sequence[bytes], after: Any
    ) -> Outcome:
        objects = self._objects(names, digests)
        return self._run(self._session.load_pages, page_map, names, objects, dict(after=after))

    def _objects(self, names: Sequence[Name], digests: Sequence[bytes]) -> Objects:
        objects = Objects(
            [digests[name.boundary - 1] for name in names],
            group=[name.group for name in names],
            parents=[
                digests[name.boundary - 2] if name.boundary > 1 else NO_PARENT for name in names
            ],
            boundary_tokens=[name.boundary * self._chunk_tokens for name in names],
        )
        objects.set_slots([name.slot for name in names], 1)
        return objects

    def _run(
        self,
        submit: Any,
        page_map: PageMap,
        names: Sequence[Name],
        objects: Objects,
        options: Mapping[str, Any],
    ) -> Outcome:
        call = submit(page_map, objects, timeout=self._timeout, waited=True, **options)
        completion = call.wait()
        statuses = [Status(status) for status in objects.statuses]
        copied = sum(n.nbytes for n, each in zip(names, statuses) if each is Status.OK)
        for name, each, found in zip(names, statuses, objects.nbytes):
            if each is Status.INVALID and found != name.nbytes:
                why = f"an object has {found} bytes in place of {name.nbytes}"
                return Outcome(each, why, copied)
        status = next((each for each in (*statuses, completion.status) if each not in STORED), None)
        return Outcome(status or Status.OK, status.text if status else "", copied)
