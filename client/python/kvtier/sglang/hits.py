# SPDX-License-Identifier: Apache-2.0
"""Which prefixes can be restored, given which pages of which pools there are. Pure."""
from __future__ import annotations

from typing import Any, Callable, Sequence

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransferResult

#: Of a pool and keys: which of them are stored.
Present = Callable[[Any, Sequence[str]], Sequence[bool]]


def leading(present: Sequence[bool]) -> int:
    """How many are there before the first one that is not."""
    for i, there in enumerate(present):
        if not there:
            return i
    return len(present)


def fold(
    keys: Sequence[str], kv_pages: int, transfers: Sequence[Any], present: Present
) -> PoolTransferResult:
    """Every length up to kv_pages that all pools can serve, as SGLang's policies have it.

    A pool that holds trailing pages only leaves holes between these lengths, so that ranks
    intersect the sets, not their maxima.
    """
    hits: dict[Any, int] = {PoolName.KV: kv_pages} if kv_pages else {}
    restorable = list(range(1, kv_pages + 1))
    for transfer in transfers:
        if not restorable:
            break
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            longest = _block_groups(transfer, present)
        else:
            usable = _usable(transfer, present(transfer.name, keys[:kv_pages]))
            longest = max(usable, default=0)
            restorable = [length for length in restorable if length in usable]
        if longest:
            hits[transfer.name] = longest
    return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)


def _usable(transfer: Any, there: Sequence[bool]) -> set[int]:
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, leading(there) + 1))
    if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
        raise ValueError(f"kvtier: hit policy {transfer.hit_policy} of pool {transfer.name}")
    needed = max(1, len(transfer.keys or ()))
    usable, run = set(), 0
    for length, page in enumerate(there, 1):
        run = run + 1 if page else 0
        if run >= min(needed, length):
            usable.add(length)
    return usable


def _block_groups(transfer: Any, present: Present) -> int:
    """Pages that the leading whole groups cover: another form of the KV, which gates nothing."""
    if not transfer.keys or transfer.group_pages < 1:
        return 0
    pages = leading(present(transfer.name, transfer.keys))
    return int(pages // transfer.group_pages * transfer.block_pages)
