# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the caches of one model. See the package for how it is used."""
from __future__ import annotations

import itertools
import logging
from array import array
from dataclasses import dataclass
from typing import Any, Iterator, Sequence

import torch

from ..digest import Identity, digest_chain
from ..session import Session
from ..status import Status
from .calls import Batch, Calls, Name
from .model import layout_of, probe
from .packing import Packing, memory_of
from .shape import Unusable, describe

log = logging.getLogger("kvtier.transformers")

NO_IDENTITY = Identity()
# Of host memory, what one call may have leased: others use it, too.
LEASED_SHARE = 8
MAX_TRIES = 8


@dataclass(frozen=True)
class Saved:
    """tokens: the prefix that is stored now, 0 for nothing; status, why: what kept the rest."""

    tokens: int
    nbytes: int  #: written; what was stored already is not counted
    status: Status = Status.OK
    why: str = ""


@dataclass(frozen=True)
class Loaded:
    """cache: of the first `tokens` tokens, to go on from there with position `tokens`."""

    cache: Any
    tokens: int
    nbytes: int


class CacheStore:
    """The caches of one model in a running kvtierd.

    model: a causal language model, or its text part; run once over `chunk_tokens` tokens, to
    see what its cache consists of. name, revision: which weights these are; by default those
    that it was loaded from, if from a hub with a commit. chunk_tokens: distance of the
    boundaries at which caches are kept. timeout: of each step of a call, in seconds.
    session_options: of `Session`, such as socket=.

    ValueError: name or revision are not known, or chunk_tokens does not fit the model.
    TypeError: the model's cache has a class that is not known; the text names it. A cache
    holds one sequence: rows of a batch are saved each on its own.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        revision: str | None = None,
        chunk_tokens: int = 64,
        timeout: float = 30.0,
        **session_options: Any,
    ) -> None:
        self.chunk_tokens = chunk_tokens
        self._template = probe(model, chunk_tokens)
        self.layout = layout_of(model, self._template, name, revision)
        self._packing = Packing(self._template)
        #: groups of the layout; one of them may not exist
        self._pages, self._state = 0, len(self.layout.groups) - 1
        session_options.setdefault("program", "transformers")
        self.session = Session(self.layout, **session_options)
        self._calls = Calls(self.session, chunk_tokens, timeout)
        self._sets = itertools.count(1)

    def __enter__(self) -> CacheStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.session.close()

    @property
    def exact(self) -> bool:
        """The model keeps windows or states: a cache serves its own length and no other."""
        return self._template.has_state

    # ---- save ----

    def save(self, cache: Any, ids: Any, *, identity: Identity = NO_IDENTITY) -> Saved:
        """Stores a cache that holds exactly the tokens `ids` (a tensor, or numbers).

        With an `exact` model that has to be a multiple of chunk_tokens; of others all whole
        chunks are stored. Copies, and does not change the cache. A daemon that is away or
        full is no exception: see `Saved`. TypeError: an unknown class, by name.
        """
        tokens = _token_ids(ids)
        boundary, beyond = divmod(len(tokens), self.chunk_tokens)
        found = describe(cache)
        if beyond and self.exact:
            why = f"it ends {beyond} tokens behind a boundary, where its state serves nobody"
        else:
            why = self._template.misfit(found, len(tokens)) or ""
        if why:
            log.warning("a cache was not stored: %s", why)
            return Saved(0, 0, Status.REFUSED, why)
        digests, _ = digest_chain(tokens, self.chunk_tokens, identity)
        return self._store(cache, digests, boundary)

    def _store(self, cache: Any, digests: list[bytes], boundary: int) -> Saved:
        stored = written = 0
        for names in self._batches(boundary):
            # The last chunk and its state become visible together.
            number = next(self._sets) if names[-1].group != names[0].group else 0
            with self._calls.reserved(names, digests, number) as batch:
                status = batch.status
                if status is Status.OK:
                    nbytes = self._write(cache, batch)
                    status = self._calls.commit(batch, number)
            if status is not Status.OK:
                log.info("a cache was not stored whole: %s", status.text)
                stored = 0 if self.exact else stored
                return Saved(stored * self.chunk_tokens, written, status, status.text)
            stored, written = names[-1].boundary, written + nbytes
        return Saved(stored * self.chunk_tokens, written)

    def _write(self, cache: Any, batch: Batch) -> int:
        """Fills in what has been reserved; returns how many bytes that was."""
        written = 0
        buffer = _buffer_for(batch)
        for i, name in enumerate(batch.names):
            if batch.objects.statuses[i] != Status.OK:
                continue
            data = buffer[: name.nbytes]
            if self._is_state(name):
                self._packing.pack_state(cache, name.boundary, data)
            else:
                self._packing.pack_chunk(cache, name.boundary, data)
            batch.objects.write(i, memory_of(data))
            written += name.nbytes
        return written

    def _is_state(self, name: Name) -> bool:
        return self.exact and name.group == self._state

    def _batches(self, boundary: int) -> Iterator[Sequence[Name]]:
        """All that a boundary needs, in order, as much at once as may be leased."""
        page_bytes = self._template.page_bytes
        names = [Name(i, self._pages, page_bytes) for i in range(1, boundary + 1) if page_bytes]
        last = []
        if self.exact and boundary:
            state = Name(boundary, self._state, self._packing.state_bytes(boundary))
            names, last = names[:-1], [*names[-1:], state]
        room = self.session.info().host_bytes // LEASED_SHARE
        each = max(1, room // max(1, page_bytes))
        for first in range(0, len(names), each):
            yield names[first : first + each]
        if last:
            yield last

    # ---- load ----

    def find(self, ids: Any, *, identity: Identity = NO_IDENTITY) -> int:
        """How many leading tokens a load would give now. A hint, and no system call."""
        return self._match(self._digests(ids, None, identity)) * self.chunk_tokens

    def load(
        self, ids: Any, *, identity: Identity = NO_IDENTITY, max_tokens: int | None = None
    ) -> Loaded | None:
        """A new cache of the longest prefix of `ids` that is stored, or None.

        max_tokens: of the prefix; by default one token of `ids` is left, since only a forward
        over something gives logits. None also when the daemon is away or slow, and when stored
        bytes are damaged or are not what this model's cache consists of: the log says why.
        """
        digests = self._digests(ids, max_tokens, identity)
        # What failed is not asked for again: each try is shorter than the one before.
        for _ in range(MAX_TRIES):
            boundary = self._match(digests)
            if not boundary:
                return None
            loaded = self._fetch(digests, boundary)
            if loaded:
                return loaded
            digests = digests[: boundary - 1]
        return None

    def _digests(self, ids: Any, max_tokens: int | None, identity: Identity) -> list[bytes]:
        tokens = _token_ids(ids)
        limit = len(tokens) - 1 if max_tokens is None else max_tokens
        return digest_chain(tokens[: max(0, limit)], self.chunk_tokens, identity)[0]

    def _match(self, digests: Sequence[bytes]) -> int:
        return self.session.match(b"".join(digests)).boundaries if digests else 0

    def _fetch(self, digests: list[bytes], boundary: int) -> Loaded | None:
        tokens, nbytes = boundary * self.chunk_tokens, 0
        try:
            cache = self._template.empty(tokens)
            for names in self._batches(boundary):
                with self._calls.acquired(names, digests) as batch:
                    if batch.status is not Status.OK:
                        raise Unusable(batch.status.text)
                    nbytes += self._read(cache, batch)
        except Unusable as why:
            log.warning("a stored cache of %d tokens is not used: %s", tokens, why)
            return None
        return Loaded(cache, tokens, nbytes)

    def _read(self, cache: Any, batch: Batch) -> int:
        """Copies, always: layers write into their tensors, and leased memory is others', too."""
        buffer = _buffer_for(batch)
        for i, name in enumerate(batch.names):
            if (found := batch.objects.nbytes[i]) != name.nbytes:
                raise Unusable(f"an object has {found} bytes in place of {name.nbytes}")
            data = buffer[: name.nbytes]
            batch.objects.read_into(i, memory_of(data))
            if self._is_state(name):
                self._packing.unpack_state(cache, name.boundary, data)
            else:
                self._packing.unpack_chunk(cache, name.boundary, data)
        return sum(name.nbytes for name in batch.names)


def _buffer_for(batch: Batch) -> torch.Tensor:
    """For one object of the batch after the other: fresh memory would cost more than a copy."""
    return torch.empty(max(name.nbytes for name in batch.names), dtype=torch.uint8)


def _token_ids(ids: Any) -> array[int]:
    if isinstance(ids, torch.Tensor):
        if ids.ndim > 1 and ids.shape[0] != 1:
            raise ValueError(f"one sequence at a time, not a batch of {ids.shape[0]}")
        ids = ids.reshape(-1).tolist()
    return array("I", ids)
