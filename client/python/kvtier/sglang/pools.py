# SPDX-License-Identifier: Apache-2.0
"""SGLang's host pools as pages that libkvtier can move.

A pool says where its pages lie in one of three ways, which are tried in this order: tensors
that are views of its buffers (`_iter_page_tensors`, of states that consist of several;
`get_data_page`), or addresses and sizes (`get_page_buffer_meta`). Whichever it is, the first
two pages and the last one must lie at one distance: then all do, and a slot is the number of a
page. The bytes of a page are in the order of `get_data_page`, so that SGLang's calls with
copies and those without see the same objects. What fits in none of these is refused by name.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

import torch
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from .. import PageGroup, PageView, Tensor
from ..refusal import Refused

#: What pages of the same length may still differ in, as far as a pool has it.
GEOMETRY = (
    "layer_num", "target_layer_num", "num_mamba_layers", "start_layer", "end_layer",
    "head_num", "head_dim", "v_head_dim", "head_group_num",
    "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "index_head_dim", "item_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class HostPool:
    name: str
    kind: str  #: class, memory layout and geometry, for the layout id
    indices_per_page: int  #: of SGLang's host indices
    n_pages: int
    views: tuple[PageView, ...]
    tensors: tuple[Tensor, ...]

    @property
    def page_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def slots(self, host_indices: Any, n: int) -> Optional[list[int]]:
        """Of n pages; None: these indices are not n whole pages of this pool."""
        if host_indices is None or host_indices.numel() != n * self.indices_per_page:
            return None
        firsts = host_indices.reshape(-1)[:: self.indices_per_page]
        if bool((firsts % self.indices_per_page).any()):
            return None
        slots: list[int] = (firsts // self.indices_per_page).tolist()
        return slots if all(0 <= slot < self.n_pages for slot in slots) else None


def describe(name: str, pool: Any) -> Optional[HostPool]:
    """None: a logical anchor, which has indices and no memory. Raises Refused."""
    if isinstance(pool, LogicalHostPool):
        return None
    _check(name, pool)
    indices_per_page = int(getattr(pool, "page_size", 1) or 1)
    n_pages = pool.size // indices_per_page
    try:
        found = _from_tensors(pool, indices_per_page, n_pages)
    except Exception as why:  # whatever a pool says to a question that it does not know
        found = _from_addresses(name, pool, indices_per_page, n_pages, why)
    views, tensors = found
    if not views:
        raise Refused(f"pool {name}, {_kind(pool)}: its pages are empty")
    return HostPool(name, _kind(pool), indices_per_page, n_pages, tuple(views), tuple(tensors))


def _check(name: str, pool: Any) -> None:
    what = f"pool {name}, {type(pool).__name__}"
    if getattr(pool, "shared_allocation_domain", None) is not None or getattr(
        pool, "stores_page_envelope", False
    ):
        raise Refused(f"{what}: pages of a shared arena move about, so that no slot is one's own")
    if hasattr(pool, "placement"):
        raise Refused(f"{what}: pages are dealt out to the ranks, and its indices are not pages")
    if getattr(pool, "dcp_size", 1) != 1:
        raise Refused(f"{what}: decode context parallelism is not supported by dynamic backends")
    if getattr(pool, "_is_dummy", False):
        raise Refused(f"{what}: has no memory on this rank")
    device = str(getattr(pool, "device", "cpu"))
    if device != "cpu":
        raise Refused(f"{what}: on {device}; host pools are in host memory")


def _kind(pool: Any) -> str:
    facts = [type(pool).__name__, str(getattr(pool, "layout", "")), f"pages={pool.page_size}"]
    if tag := getattr(pool, "storage_format_tag", None):
        facts.append(f"format={tag}")
    for name in GEOMETRY:
        value = getattr(pool, name, None)
        if isinstance(value, int):
            facts.append(f"{name}={value}")
    return " ".join(facts)


# ---- views of tensors ----


def _page_tensors(pool: Any, index: int) -> list[torch.Tensor]:
    if hasattr(pool, "_iter_page_tensors"):
        return [tensor for tensor in pool._iter_page_tensors(index) if tensor.numel()]
    return [pool.get_data_page(index, flat=False)]


def _from_tensors(
    pool: Any, indices_per_page: int, n_pages: int
) -> tuple[list[PageView], list[Tensor]]:
    """ValueError, or whatever the pool raises: it has no views to give."""
    views: list[PageView] = []
    tensors: list[Tensor] = []
    # A pool of one page is looked at three times: copies lie elsewhere each time.
    numbers = (0, min(1, n_pages - 1), n_pages - 1)
    pages = [_page_tensors(pool, page * indices_per_page) for page in numbers]
    for number, (first, second, last) in enumerate(zip(*pages)):
        stride = second.data_ptr() - first.data_ptr() if n_pages > 1 else first.nbytes
        if not (
            _same_memory(first, second)
            and _same_memory(first, last)
            and stride > 0
            and stride % first.element_size() == 0
            and last.data_ptr() == first.data_ptr() + (n_pages - 1) * stride
        ):
            raise ValueError("its pages are no views at one distance")
        paged = first.as_strided(
            (n_pages, *first.shape),
            (stride // first.element_size(), *first.stride()),
            first.storage_offset(),
        )
        views += PageGroup.of([paged]).views
        shape = "x".join(map(str, first.shape))
        tensors.append(Tensor(f"{number}.{shape}", _dtype(first.dtype), first.nbytes))
    return views, tensors


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.device.type == "cpu"
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    )


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


# ---- addresses ----


def _addresses(pool: Any, page: int, indices_per_page: int) -> tuple[Sequence[int], Sequence[int]]:
    first = page * indices_per_page
    meta = pool.get_page_buffer_meta(torch.arange(first, first + indices_per_page))
    if meta is None or len(meta[0]) != len(meta[1]):
        raise ValueError("it tells no addresses")
    addresses, sizes = meta
    return addresses, sizes


def _from_addresses(
    name: str, pool: Any, indices_per_page: int, n_pages: int, no_views: Exception
) -> tuple[list[PageView], list[Tensor]]:
    what = f"pool {name}, {_kind(pool)}"
    try:
        numbers = (0, min(1, n_pages - 1), n_pages - 1)
        pages = [_addresses(pool, page, indices_per_page) for page in numbers]
    except Exception as why:
        raise Refused(f"{what}: {why}; {no_views}") from why
    addresses, sizes = pages[0]
    views, owner = [], _memory(pool)
    for i, (address, size) in enumerate(zip(addresses, sizes)):
        stride = pages[1][0][i] - address if n_pages > 1 else size
        if stride <= 0 or pages[2][0][i] != address + (n_pages - 1) * stride:
            raise Refused(f"{what}: piece {i} of its pages does not lie at one distance")
        if not size == pages[1][1][i] == pages[2][1][i]:
            raise Refused(f"{what}: piece {i} of its pages has several sizes")
        views.append(PageView(address, stride, size, owner=owner))
    return views, _runs(sizes, _dtype(pool.dtype))


def _runs(sizes: Sequence[int], dtype: str) -> list[Tensor]:
    """Pieces of one size are one tensor: a layout may have 512."""
    tensors: list[Tensor] = []
    first = 0
    for i in range(1, len(sizes) + 1):
        if i == len(sizes) or sizes[i] != sizes[first]:
            n = i - first
            tensors.append(Tensor(f"{len(tensors)}.{n}x{sizes[first]}", dtype, n * sizes[first]))
            first = i
    return tensors


def _memory(pool: Any) -> Any:
    """Whatever keeps the pool's memory mapped."""
    if hasattr(pool, "get_hybrid_pool_buffer"):
        return tuple(pool.get_hybrid_pool_buffer())
    return pool.kv_buffer
