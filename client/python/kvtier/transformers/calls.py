# SPDX-License-Identifier: Apache-2.0
"""Objects of a cache as a batch that is reserved or acquired, and whose leases always end."""
from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Sequence

from ..buffers import DIGEST_BYTES
from ..objects import Objects
from ..session import Session
from ..status import Status

NO_PARENT = bytes(DIGEST_BYTES)
FINE = (Status.OK, Status.ALREADY_HAVE)


class Name(NamedTuple):
    """An object: of which boundary (from 1) and group, and how long it is."""

    boundary: int
    group: int
    nbytes: int


def first_fault(objects: Objects) -> Status:
    """The first status that means neither stored nor there; OK: there is none."""
    statuses = map(Status, objects.statuses)
    return next((status for status in statuses if status not in FINE), Status.OK)


class Batch:
    def __init__(self, names: Sequence[Name], digests: Sequence[bytes], chunk_tokens: int) -> None:
        self.names = names
        self.status = Status.OK
        self.objects = Objects(
            [digests[name.boundary - 1] for name in names],
            group=[name.group for name in names],
            parents=[
                digests[name.boundary - 2] if name.boundary > 1 else NO_PARENT for name in names
            ],
            boundary_tokens=[name.boundary * chunk_tokens for name in names],
            nbytes=[name.nbytes for name in names],
        )
        self.has_leases = False


class Calls:
    def __init__(self, session: Session, chunk_tokens: int, timeout: float) -> None:
        self._session, self._chunk_tokens, self._timeout = session, chunk_tokens, timeout

    def _run(self, submit: Any, objects: Objects, **options: Any) -> Status:
        """One call, to its end: its first object's fault, or its own, or OK."""
        completion = submit(objects, timeout=self._timeout, waited=True, **options).wait()
        fault = first_fault(objects)
        if fault is Status.OK and completion.status not in FINE:
            return Status(completion.status)
        return fault

    def _end(self, submit: Any, batch: Batch, **options: Any) -> Status:
        """Ends what leases there are, once."""
        leased = batch.objects.leased()
        if not batch.has_leases or not len(leased):
            return Status.OK
        batch.has_leases = False
        return self._run(submit, leased, **options)

    @contextmanager
    def acquired(self, names: Sequence[Name], digests: Sequence[bytes]) -> Iterator[Batch]:
        """All or nothing: `status` says which. Released at the end."""
        batch = Batch(names, digests, self._chunk_tokens)
        batch.status = self._run(self._session.acquire_objects, batch.objects)
        batch.has_leases = True
        try:
            yield batch
        finally:
            self._end(self._session.release_objects, batch)

    @contextmanager
    def reserved(
        self, names: Sequence[Name], digests: Sequence[bytes], set_id: int = 0
    ) -> Iterator[Batch]:
        """Room for those that are not stored yet: each object's status says which those are.

        What has not been committed by the end is given back.
        """
        batch = Batch(names, digests, self._chunk_tokens)
        batch.status = self._run(self._session.reserve_objects, batch.objects, set_id=set_id)
        batch.has_leases = True
        try:
            yield batch
        finally:
            self._end(self._session.abort_objects, batch, set_id=set_id)

    def commit(self, batch: Batch, set_id: int = 0) -> Status:
        return self._end(self._session.commit_objects, batch, set_id=set_id)
