# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the caches of one model. See the package for how it is used."""
from __future__ import annotations

import itertools
import logging
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

import torch

from ..cuda import Cuda
from ..digest import Identity, digest_chain
from ..pages import PageMap, at_once
from ..session import Session
from ..status import Status
from .calls import Calls, Name
from .device import Home
from .model import layout_of, probe
from .packing import Packing
from .shape import Unusable, describe

log = logging.getLogger("kvtier.transformers")

NO_IDENTITY = Identity()
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
    cuda_options: of `kvtier.cuda.Cuda`, which copies where the model is on a GPU.
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
        cuda_options: Mapping[str, Any] | None = None,
        **session_options: Any,
    ) -> None:
        self.chunk_tokens = chunk_tokens
        self._template = probe(model, chunk_tokens)
        self.layout = layout_of(model, self._template, name, revision)
        #: groups of the layout; one of them may not exist
        self._pages, self._state = 0, len(self.layout.groups) - 1
        self._packing = Packing(self._template, self._pages, self._state)
        session_options.setdefault("program", "transformers")
        self.session = Session(self.layout, **session_options)
        self._home = Home(self.session, self._template.devices, cuda_options)
        self._calls = Calls(self.session, chunk_tokens, timeout)
        self._sets = itertools.count(1)

    def __enter__(self) -> CacheStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.session.close()

    @property
    def gpus(self) -> Cuda | None:
        """What copies from and to the model's GPU; None: its caches go through host memory."""
        return self._home.gpus

    @property
    def exact(self) -> bool:
        """The model keeps windows or states: a cache serves its own length and no other."""
        return self._template.has_state

    # ---- save ----

    def save(self, cache: Any, ids: Any, *, identity: Identity = NO_IDENTITY) -> Saved:
        """Stores a cache that holds exactly the tokens `ids` (a tensor, or numbers).

        With an `exact` model that has to be a multiple of chunk_tokens; of others all whole
        chunks are stored. Copies, and does not change the cache; on a GPU behind what the
        current stream has been given, and returns when it is done. A daemon that is away or
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
        with self._page_map(cache, boundary, is_load=False) as (page_map, after):
            for names in self._batches(boundary):
                # The last chunk and its state become visible together.
                number = next(self._sets) if names[-1].group != names[0].group else 0
                done = self._calls.store(page_map, names, digests, number, after)
                written += done.nbytes
                if done.status is not Status.OK:
                    log.info("a cache was not stored whole: %s", done.why)
                    stored = 0 if self.exact else stored
                    return Saved(stored * self.chunk_tokens, written, done.status, done.why)
                stored = names[-1].boundary
        return Saved(stored * self.chunk_tokens, written)

    @contextmanager
    def _page_map(
        self, cache: Any, boundary: int, is_load: bool
    ) -> Iterator[tuple[PageMap, Any]]:
        """The cache's pages, and the event that copies wait for: pages are written, or memory
        that was another tensor's is no longer read. A load has to fill them all: what it
        brought is checked at the end.
        """
        pages = self._packing.pages_of(cache, boundary, self._home.device, is_load)
        with PageMap(self.session, pages.groups) as page_map:
            yield page_map, self._home.event()
        if is_load:
            pages.finish_load()

    def _batches(self, boundary: int) -> Iterator[Sequence[Name]]:
        """All that a boundary needs, in order, for a call each."""
        page_bytes = self._template.page_bytes
        chunks = range(1, boundary + 1 if page_bytes else 1)
        names = [Name(i, self._pages, page_bytes, i - 1) for i in chunks]
        last = []
        if self.exact and boundary:
            state = Name(boundary, self._state, self._packing.state_bytes(boundary), 0)
            names, last = names[:-1], [*names[-1:], state]
        each = at_once(self.session, page_bytes)
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
            with self._page_map(cache, boundary, is_load=True) as (page_map, after):
                for names in self._batches(boundary):
                    done = self._calls.load(page_map, names, digests, after)
                    if done.status is not Status.OK:
                        raise Unusable(done.why)
                    nbytes += done.nbytes
        except Unusable as why:
            log.warning("a stored cache of %d tokens is not used: %s", tokens, why)
            return None
        return Loaded(cache, tokens, nbytes)


def _token_ids(ids: Any) -> array[int]:
    if not isinstance(ids, torch.Tensor):
        return array("I", ids)
    if ids.ndim > 1 and ids.shape[0] != 1:
        raise ValueError(f"one sequence at a time, not a batch of {ids.shape[0]}")
    # As numbers of Python's, long prompts would take longer than their caches.
    flat = ids.reshape(-1).cpu().numpy()
    if flat.size and not 0 <= flat.min() <= flat.max() < 1 << 32:
        raise OverflowError("token ids are numbers of 32 bits")
    return array("I", flat.astype("uint32").tobytes())
