# SPDX-License-Identifier: Apache-2.0
"""Page maps: where an engine keeps its pages, so that the library moves them."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence, Union

from ._native import ffi, lib
from .buffers import flat_bytes, pointer
from .calls import Call, Calls
from .handle import Handle
from .objects import Objects
from .status import Status, checked

#: Of host memory, what a call of `at_once` objects has leased.
LEASED_SHARE = 8


@dataclass(frozen=True)
class PageView:
    """What one tensor holds of each page.

    Row r of page p is the `row_bytes` from `address + p * page_stride + r * row_stride` on;
    strides are bytes. owner: whatever keeps the memory alive. on_gpu: the address is one of
    GPU memory.
    """

    address: int
    page_stride: int
    row_bytes: int
    row_stride: int = 0
    n_rows: int = 1
    owner: Any = field(default=None, repr=False)
    on_gpu: bool = False


@dataclass(frozen=True)
class PageGroup:
    """The pages that this process holds of one (group, shard) of the layout.

    The bytes of a page are those of its views in order, and together the layout's page_bytes
    (of a state group: the bytes of one state). Slots are numbers below n_pages.
    """

    views: Sequence[PageView]
    n_pages: int
    group: int = 0
    shard: int = 0

    @classmethod
    def of(
        cls,
        tensors: Sequence[Any],
        *,
        group: int = 0,
        shard: int = 0,
        page_axis: Union[int, Sequence[int]] = 0,
    ) -> PageGroup:
        """From tensors in host memory or on an NVIDIA GPU, in the order of their bytes within
        a page.

        Torch tensors, NumPy arrays and whatever else has `__array_interface__` or
        `__cuda_array_interface__`, writable buffers; any strides that are not negative.
        page_axis: the axis that counts pages, one for all tensors or one for each. ValueError:
        tensors that differ in their number of pages, that are read-only, or on another device.
        """
        axes = [page_axis] * len(tensors) if isinstance(page_axis, int) else list(page_axis)
        if not tensors or len(axes) != len(tensors):
            raise ValueError(f"{len(axes)} page axes for {len(tensors)} tensors")
        placed = [_place(tensor) for tensor in tensors]
        numbers = [place.shape[axis] for place, axis in zip(placed, axes)]
        if len(set(numbers)) != 1:
            raise ValueError(f"tensors with different numbers of pages: {numbers}")
        views = [view for place, axis in zip(placed, axes) for view in _views(place, axis)]
        return cls(views, numbers[0], group, shard)


@dataclass(frozen=True)
class _Place:
    """A tensor as it lies in memory; strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    owner: Any
    on_gpu: bool = False


def _place(tensor: Any) -> _Place:
    if hasattr(tensor, "data_ptr"):
        return _place_torch(tensor)
    if hasattr(tensor, "__cuda_array_interface__"):
        return _place_array(tensor, tensor.__cuda_array_interface__, on_gpu=True)
    if hasattr(tensor, "__array_interface__"):
        return _place_array(tensor, tensor.__array_interface__, on_gpu=False)
    view = memoryview(tensor)
    if view.readonly:
        raise ValueError("pages are written by loads: a read-only buffer will not do")
    address = int(ffi.cast("uintptr_t", pointer("void *", flat_bytes(view))))
    assert view.shape is not None and view.strides is not None
    # The view keeps the buffer where it is.
    return _Place(address, tuple(view.shape), tuple(view.strides), view.itemsize, view)


def _place_torch(tensor: Any) -> _Place:
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"pages on {tensor.device}: a page map is of host or CUDA memory")
    size = tensor.element_size()
    strides = tuple(size * stride for stride in tensor.stride())
    on_gpu = tensor.device.type == "cuda"
    return _Place(tensor.data_ptr(), tuple(tensor.shape), strides, size, tensor, on_gpu)


def _place_array(tensor: Any, interface: dict[str, Any], on_gpu: bool) -> _Place:
    address, readonly = interface["data"]
    if readonly:
        raise ValueError("pages are written by loads: a read-only array will not do")
    size = int(interface["typestr"][2:])
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or _contiguous(shape, size)
    return _Place(address, shape, tuple(strides), size, tensor, on_gpu)


def _contiguous(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    strides = []
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))


def _views(place: _Place, axis: int) -> Iterator[PageView]:
    """One view, or several where a page's rows do not lie at one distance."""
    axis %= len(place.shape)
    if min(place.strides) < 0 or 0 in place.shape:
        raise ValueError(f"pages of shape {place.shape}, strides {place.strides}")
    dims = [
        (n, stride)
        for i, (n, stride) in enumerate(zip(place.shape, place.strides))
        if i != axis and n != 1
    ]
    row_bytes = place.item_bytes
    while dims and dims[-1][1] == row_bytes:
        row_bytes *= dims.pop()[0]
    n_rows, row_stride = 1, 0
    if dims:
        n_rows, row_stride = dims.pop()
    while dims and dims[-1][1] == n_rows * row_stride:
        n_rows *= dims.pop()[0]
    for offset in _offsets(dims):
        yield PageView(
            place.address + offset,
            place.strides[axis],
            row_bytes,
            row_stride,
            n_rows,
            place.owner,
            place.on_gpu,
        )


def _offsets(dims: Sequence[tuple[int, int]]) -> list[int]:
    offsets = [0]
    for n, stride in dims:
        offsets = [offset + i * stride for offset in offsets for i in range(n)]
    return offsets


class PageMap:
    """Pages that are registered with a session: see `Session.store_pages`.

    The memory is kept alive while the map or a call over it is. ValueError: the pages are not
    what the layout says, or on a GPU of a session without `kvtier.cuda.Cuda`; the text names the
    group and the reason.
    """

    def __init__(self, session: Calls, groups: Sequence[PageGroup]) -> None:
        self._c: Any = None
        self.session = session
        self.groups = tuple(groups)
        for group in self.groups:
            if not session._has_gpus and any(view.on_gpu for view in group.views):
                raise ValueError(f"group {group.group}: on a GPU; make a kvtier.cuda.Cuda first")
        keep = [_c_views(group.views) for group in self.groups]
        c_groups = ffi.new("struct kvt_page_group[]", max(len(keep), 1))
        for c, group, views in zip(c_groups, self.groups, keep):
            c.group, c.shard, c.n_pages = group.group, group.shard, group.n_pages
            c.views, c.n_views = views, len(group.views)
        result, why = ffi.new("struct kvt_page_map **"), ffi.new("char[512]")
        with session._gpu_lock:
            made = lib.kvt_page_map_new(
                session._handle(), c_groups, len(self.groups), result, why, len(why)
            )
        status = Status(made)
        if status is Status.INVALID:
            raise ValueError(ffi.string(why).decode(errors="replace") or status.text)
        checked(status, "page_map")
        self._c = result[0]

    def _handle(self) -> Any:
        if self._c is None:
            raise ValueError("the page map is closed")
        return self._c

    def close(self) -> None:
        """Calls in flight go on; none can be submitted any more."""
        c, self._c = self._c, None
        if c is not None:
            lib.kvt_page_map_free(c)

    def __enter__(self) -> PageMap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_c", None) is not None:
            self.close()


def _c_views(views: Sequence[PageView]) -> Any:
    c_views = ffi.new("struct kvt_page_view[]", max(len(views), 1))
    for c, view in zip(c_views, views):
        c.base = ffi.cast("void *", view.address)
        c.page_stride, c.row_bytes = view.page_stride, view.row_bytes
        c.row_stride, c.n_rows = view.row_stride, view.n_rows
    return c_views


class Pages(Calls):
    """Calls that move pages between an engine's memory and the daemon's.

    Objects need their `set_slots`; there are no leases to end. Pages must not change, and
    what is being loaded must not be used, until the completion: the last moment in which the
    library touches them, also with CANCELLED, TIMEOUT and UNAVAILABLE. ValueError: a slot
    that does not exist, a wrong number of slots, a (group, shard) that the map lacks.

    after, done: of pages on a GPU, an event that the copies wait for, of a store that the pages
    are written, of a load that nobody reads what it overwrites; and one that is recorded behind
    the last copy. `torch.cuda.Event` that has been recorded once (only then does it exist), or
    the number of a CUevent. Neither may be recorded again before the completion.
    """

    def store_pages(
        self,
        page_map: PageMap,
        objects: Objects,
        *,
        set_id: int = 0,
        bypass: bool = False,
        after: Any = None,
        done: Any = None,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Reserve, copy, commit. `nbytes` may be left 0.

        Per object OK, ALREADY_HAVE (not copied), or as `reserve_objects` and
        `commit_objects`.
        """
        flags = lib.KVT_CALL_BYPASS if bypass else 0
        events = (after, done)
        return self._move(
            lib.kvt_store_pages, page_map, objects, flags, timeout, waited, events, set_id
        )

    def load_pages(
        self,
        page_map: PageMap,
        objects: Objects,
        *,
        token: bytes | None = None,
        wait: bool = False,
        partial: bool = False,
        resident: bool = False,
        bypass: bool = False,
        after: Any = None,
        done: Any = None,
        timeout: float | None = 30.0,
        waited: bool = False,
    ) -> Call:
        """Acquire (or adopt, with the token of an acquire), copy, release; no `more`.

        OK for an object: its slots hold its bytes. Any other status: the bytes in its slots
        are undefined. Options as of `acquire_objects`.
        """
        if token is not None and len(token) != 16:
            raise ValueError("a token has 16 bytes")
        flags = self._load_flags(wait, partial, resident, bypass, timeout)
        c_token = ffi.NULL if token is None else ffi.new("uint8_t[]", token)
        events = (after, done)
        return self._move(
            lib.kvt_load_pages, page_map, objects, flags, timeout, waited, events, 0, (c_token,)
        )

    def _move(
        self,
        function: Any,
        page_map: PageMap,
        objects: Objects,
        flags: int,
        timeout: float | None,
        waited: bool,
        events: tuple[Any, Any],
        set_id: int,
        extra: tuple[Any, ...] = (),
    ) -> Call:
        extra = (page_map._handle(), *extra)
        keep = (page_map.groups, events)
        handles = (_event(events[0]), _event(events[1]))
        return self._submit(
            function, objects, flags, timeout, waited, set_id, extra, keep, handles
        )


def at_once(session: Handle, nbytes: int) -> int:
    """How many objects of so many bytes one call should move: others use host memory, too."""
    return max(1, session.info().host_bytes // LEASED_SHARE // max(1, nbytes))


def _event(event: Any) -> int:
    """The CUevent, 0 for none. ValueError: torch has not made it yet."""
    if event is None:
        return 0
    number = int(getattr(event, "cuda_event", event) or 0)
    if not number:
        raise ValueError("an event that has never been recorded")
    return number
