# SPDX-License-Identifier: Apache-2.0
"""The objects of a call as arrays."""
from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NamedTuple, Sequence, Union

from ._native import ffi, lib
from .buffers import (
    DIGEST_BYTES,
    Digests,
    Numbers,
    digest_bytes,
    fill,
    flat_bytes,
    number_view,
    pointer,
)
from .memory import LeasedMemory
from .status import Status, checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .calls import Calls

C_BYTES = ffi.sizeof("struct kvt_object")


class _Kept(NamedTuple):
    """Numbers that objects `first` to `end` - 1 of an array point to."""

    first: int
    end: int
    numbers: memoryview


def _outside(kept: list[_Kept], first: int, end: int) -> Iterator[_Kept]:
    """What is kept for others than the objects `first` to `end` - 1."""
    for each in kept:
        if each.first < first:
            yield each._replace(end=min(each.end, first))
        if each.end > end:
            yield each._replace(first=max(each.first, end))


class _Home:
    """One `struct kvt_object[]`, what it points to, and which session has filled it in."""

    def __init__(self, n: int) -> None:
        self.array = ffi.new("struct kvt_object[]", n)
        self.buffer = ffi.buffer(self.array)
        self.session: Calls | None = None
        self.writable = False
        self.keep: dict[str, list[_Kept]] = {}  #: by member

    def take_over(self, other: _Home, first: int, end: int) -> None:
        """Objects `first` to `end` - 1 are copies of some of the other's."""
        if other.session is not None:
            if self.session is not None and (self.session, self.writable) != (
                other.session,
                other.writable,
            ):
                raise ValueError("objects of two sessions, or of a store and of a load")
            self.session, self.writable = other.session, other.writable
        for name, kept in other.keep.items():
            self.keep.setdefault(name, []).extend(_Kept(first, end, k.numbers) for k in kept)


class Objects:
    """n objects for a call of a `Session`, and what the call says of each.

    One C array; the members below are views of it, of shape (n,), native unsigned integers
    with gaps in between (numpy.asarray takes them without a copy). Inputs are read when a
    call is submitted; outputs are valid once its completion is reported.

    digests: n x 32 bytes, each naming the prefix up to the object's boundary. group, shard:
    of the layout, one number for all or n of them. For storing: parents, n x 32 bytes, the
    boundary before each (32 zero bytes: a root; None: not known); boundary_tokens, tokens
    up to the boundary; nbytes, length of the object; hit_tokens, the boundary from which the
    prefill that computed the object went on (0: the start; None: not told); branch: a state
    where `match` wanted a checkpoint; replace: over what is stored already; contiguous: one
    segment, or refused.

    `objects[i:j]` are the same objects, not copies; `take` and `concat` copy. An array that stores and
    an array that loads are two arrays. At most 65,536 objects a call.

    ValueError: lengths that do not fit together. TypeError, OverflowError: wrong numbers.
    """

    def __init__(
        self,
        digests: Digests,
        *,
        group: Numbers = 0,
        shard: Numbers = 0,
        parents: Digests | None = None,
        boundary_tokens: Numbers = 0,
        nbytes: Numbers = 0,
        hit_tokens: Numbers | None = None,
        branch: bool = False,
        replace: bool = False,
        contiguous: bool = False,
    ) -> None:
        data = digest_bytes(digests)
        self._place(_Home(len(data) // DIGEST_BYTES), 0, len(data) // DIGEST_BYTES)
        self._scatter("digest", data)
        fill(self.groups, group)
        fill(self.shards, shard)
        fill(self.boundary_tokens, boundary_tokens)
        fill(self.nbytes, nbytes)
        flags = lib.KVT_REPLACE if replace else 0
        flags |= lib.KVT_CONTIGUOUS if contiguous else 0
        flags |= lib.KVT_BRANCH if branch else 0
        if hit_tokens is not None:
            flags |= lib.KVT_HIT
            fill(self.hit_tokens, hit_tokens)
        if parents is None:
            flags |= lib.KVT_PARENT_UNKNOWN
        else:
            self._scatter("parent", digest_bytes(parents))
        fill(self.flags, flags)

    @classmethod
    def _new(cls, n: int) -> Objects:
        objects = cls.__new__(cls)
        objects._place(_Home(n), 0, n)
        return objects

    def _place(self, home: _Home, first: int, n: int) -> None:
        self._home, self._first, self._n = home, first, n
        self._c = home.array + first
        self._bytes = memoryview(home.buffer)[first * C_BYTES : (first + n) * C_BYTES]

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, which: slice) -> Objects:
        first, end, step = which.indices(self._n)
        if step != 1:
            raise ValueError("objects are sliced in steps of 1; see take()")
        part = Objects.__new__(Objects)
        part._place(self._home, self._first + first, max(0, end - first))
        return part

    def take(self, which: Union[Buffer, Sequence[int]]) -> Objects:
        """Copies of the objects with these numbers (uint32), in an array of their own.

        Leases go along; each is ended once. IndexError: no such object.
        """
        numbers = number_view(which, "I")
        copy = Objects._new(len(numbers))
        source = pointer("uint32_t *", numbers)
        done = lib.python_take(self._c, self._n, source, len(numbers), copy._c)
        if done < len(numbers):
            raise IndexError(f"object {numbers[done]} of {self._n}")
        copy._home.take_over(self._home, 0, len(copy))
        return copy

    @classmethod
    def concat(cls, parts: Iterable[Objects]) -> Objects:
        """Copies of the objects of several arrays, one behind the other: for one call, or a set.

        Leases go along; each is ended once. ValueError: they were filled in by calls of two
        sessions, or some by a store and some by a load.
        """
        parts = list(parts)
        whole = Objects._new(sum(len(part) for part in parts))
        first = 0
        for part in parts:
            end = first + len(part)
            whole._home.take_over(part._home, first, end)
            whole._bytes[first * C_BYTES : end * C_BYTES] = part._bytes
            first = end
        return whole

    def which(self, status: Status) -> memoryview:
        """The numbers of the objects that have this status, uint32, shape (k,)."""
        return self._select(int(status), False)

    def leased(self) -> Objects:
        """Copies of those that have a lease: what is to be committed, aborted or released."""
        return self.take(self._select(0, True))

    def _select(self, status: int, leased: bool) -> memoryview:
        found = ffi.new("uint32_t[]", max(self._n, 1))
        n = lib.python_select(self._c, self._n, status, leased, found)
        return memoryview(ffi.buffer(found)).cast("I")[:n]

    # ---- members ----

    def _member(self, kind: str, name: str) -> memoryview:
        size = array(kind).itemsize
        offset = ffi.offsetof("struct kvt_object", name)
        if not self._n:
            return memoryview(array(kind))
        return self._bytes.cast(kind)[offset // size :: C_BYTES // size]  # type: ignore

    @property
    def groups(self) -> memoryview:
        """uint16, writable."""
        return self._member("H", "group")

    @property
    def shards(self) -> memoryview:
        """uint16, writable."""
        return self._member("H", "shard")

    @property
    def flags(self) -> memoryview:
        """uint32, writable: `lib.KVT_REPLACE` and its kin."""
        return self._member("I", "flags")

    @property
    def boundary_tokens(self) -> memoryview:
        """uint32, writable: tokens up to each boundary."""
        return self._member("I", "boundary_tokens")

    @property
    def hit_tokens(self) -> memoryview:
        """uint32, writable: told when `flags` has `lib.KVT_HIT`."""
        return self._member("I", "hit_tokens")

    @property
    def nbytes(self) -> memoryview:
        """uint64, writable: lengths; of acquired objects as the daemon says."""
        return self._member("Q", "bytes")

    @property
    def statuses(self) -> memoryview:
        """uint32: a `Status` each."""
        return self._member("I", "status")

    @property
    def leases(self) -> memoryview:
        """uint64; 0: none."""
        return self._member("Q", "lease")

    @property
    def generations(self) -> memoryview:
        """uint64: grows with each replacement."""
        return self._member("Q", "generation")

    @property
    def stored_ns(self) -> memoryview:
        """uint64: wall clock of each commit, ns since 1970; of acquired objects."""
        return self._member("Q", "stored_ns")

    def writer_boot_id(self, i: int) -> bytes:
        """16 bytes: the daemon's run that took acquired object i."""
        return bytes(ffi.buffer(self._object(i).writer_boot_id))

    @property
    def digests(self) -> memoryview:
        """uint8, shape (n, 32): a copy."""
        return self._gather("digest")

    @property
    def parents(self) -> memoryview:
        """uint8, shape (n, 32): a copy."""
        return self._gather("parent")

    def _gather(self, name: str) -> memoryview:
        copy = bytearray(self._n * DIGEST_BYTES)
        offset = ffi.offsetof("struct kvt_object", name)
        lib.python_gather(self._c, self._n, offset, DIGEST_BYTES, ffi.from_buffer(copy))
        view = memoryview(copy)
        return view.cast("B", (self._n, DIGEST_BYTES)) if self._n else view

    def _scatter(self, name: str, data: memoryview) -> None:
        if len(data) != self._n * DIGEST_BYTES:
            raise ValueError(f"{len(data) // DIGEST_BYTES} digests for {self._n} objects")
        offset = ffi.offsetof("struct kvt_object", name)
        lib.python_scatter(self._c, self._n, offset, DIGEST_BYTES, pointer("void *", data))

    def set_pages(
        self, pages: Union[Buffer, Sequence[int]], counts: Union[int, Buffer, Sequence[int]]
    ) -> None:
        """For an acquire of single pages of chunks: the pages' numbers within their chunk.

        pages: uint32, those of all objects one behind the other, ascending within each.
        counts: how many each object has (uint32, shape (n,)), or one number for all; of an
        object with 0 the whole chunk is acquired.
        ValueError: pages are missing or left over.
        """
        self._share_out("pages", "n_pages", pages, counts)

    def set_slots(
        self, slots: Union[Buffer, Sequence[int]], counts: Union[int, Buffer, Sequence[int]]
    ) -> None:
        """For a page map: the engine's pages that each object is stored from or loaded to.

        slots: uint32, one for each page of a chunk, or of `set_pages`, and one for a state;
        those of all objects one behind the other. counts: as in `set_pages`. The slots are
        read when a call is submitted; a buffer of uint32 is not copied before.
        """
        self._share_out("slots", "n_slots", slots, counts)

    def _share_out(self, name: str, n_name: str, values: Any, counts: Any) -> None:
        view = number_view(values, "I")
        each, per = (counts, None) if isinstance(counts, int) else (0, number_view(counts, "I"))
        if per is not None and len(per) != self._n:
            raise ValueError(f"{len(per)} counts for {self._n} objects")
        used = lib.python_share_out(
            self._c,
            self._n,
            ffi.offsetof("struct kvt_object", name),
            ffi.offsetof("struct kvt_object", n_name),
            pointer("uint32_t *", view),
            len(view),
            ffi.NULL if per is None else pointer("uint32_t *", per),
            each,
        )
        # Whatever happened, objects may point into it. Too few: some still point elsewhere.
        first, end = self._first, self._first + self._n
        kept = self._home.keep.get(name, [])
        if used <= len(view):
            kept = list(_outside(kept, first, end))
        self._home.keep[name] = [*kept, _Kept(first, end, view)]
        if used != len(view):
            what = "too few" if used > len(view) else f"only {used} used"
            raise ValueError(f"{len(view)} {name}: {what}")

    # ---- the bytes of leased objects ----

    def _object(self, i: int) -> Any:
        if not 0 <= i < self._n:
            raise IndexError(f"object {i} of {self._n}")
        return self._c[i]

    def _leased(self, i: int) -> Any:
        c = self._object(i)
        if not c.lease:
            raise ValueError(f"object {i} has no lease")
        return c

    def memory(self, i: int) -> LeasedMemory:
        """The shared memory of object i, which has a lease.

        Its lease cannot end while a view of it is alive (BufferError). ValueError: no lease.
        """
        c = self._leased(i)
        if self._home.session is None:
            raise ValueError("no call has filled these objects in")
        return self._home.session._memory_of(c, self._home.writable)

    def view(self, i: int) -> memoryview:
        """The bytes of object i, no copy. BufferError: several segments, see `memory`."""
        return self.memory(i).view

    def read_into(self, i: int, buffer: Buffer, offset: int = 0) -> int:
        """Copies from byte `offset` of object i into a writable buffer; returns how many."""
        c = self._leased(i)
        target = flat_bytes(buffer, writable=True)
        length: int = max(0, min(len(target), c.bytes - offset))
        c_target = pointer("void *", target)
        checked(lib.kvt_read(ffi.addressof(c), offset, c_target, length), "read_into")
        return length

    def write(self, i: int, data: Buffer, offset: int = 0) -> None:
        """Copies a buffer to byte `offset` of reserved object i. ValueError: it is too long."""
        c = self._leased(i)
        if not self._home.writable:
            raise TypeError("a read lease cannot be written")
        source = flat_bytes(data)
        c_source = pointer("void *", source)
        checked(lib.kvt_write(ffi.addressof(c), offset, c_source, len(source)), "write")
