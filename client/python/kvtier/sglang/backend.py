# SPDX-License-Identifier: Apache-2.0
"""The HiCacheStorage that SGLang makes by its name.

SGLang calls it from the threads that prefetch and back up, and some of these die of an
exception; so after its start it raises none. Whatever fails is False, or 0, and then a page is
computed that might have been loaded.

Calls carry hashes, and nothing of the request or of what a router has said of it: so no peer is asked
for what another node has in memory (`Session.prefetch`).
"""
from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import Any, Callable, Optional, Sequence, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolName,
    PoolTransferResult,
)

from . import hits
from .identity import check, engine_nonce, is_sharded, layout_of
from .keys import Chain, digest_of, digests_of
from .options import Options
from .pools import HostPool, describe
from .stats import Stats
from .store import Closed, PageStore

logger = logging.getLogger("sglang.kvtier")

KV = str(PoolName.KV)
Result = TypeVar("Result")
Move = Callable[[PageStore, str, bytes, Sequence[int]], "list[bool]"]


class KvtierHiCache(HiCacheStorage):
    """Made for one rank; serves from `on_host_pools_registered` on. Raises Refused until then.

    A pool that comes later (a draft's) makes another layout, and with it another session: the
    same one in every run, since SGLang's pools come in the same order.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        check(storage_config)
        self._config = storage_config
        self._options = Options.of(storage_config.extra_config or {})
        self._nonce = engine_nonce()
        self._veil = b""
        self._n_clears = 0
        self._page_tokens = 0
        self._pools: dict[str, tuple[HostPool, bool]] = {}
        self._store: Optional[PageStore] = None
        self._opening = threading.Lock()
        self._stats = Stats(storage_config.enable_storage_metrics)
        self._told: set[str] = set()
        self.mem_pool_host: Any = None
        self.registered_pools: dict[Any, Any] = {}

    # ---- start and end ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._page_tokens = mem_pool_host.page_size
        self._add(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(str(host_pool_name), host_pool)
        if self._store is not None:
            self.on_host_pools_registered()

    def _add(self, name: str, pool: Any) -> None:
        if (described := describe(name, pool)) is not None:
            self._pools[name] = described, is_sharded(self._config, name, pool)

    def on_host_pools_registered(self) -> None:
        with self._opening:
            pools = [self._pools[name] for name in sorted(self._pools)]
            layout, places = layout_of(
                self._config, self._options.weights, self._page_tokens, pools
            )
            store = PageStore(layout, [pool for pool, _ in pools], places, self._options)
            self._store, earlier = store, self._store
        if earlier is not None:
            earlier.close()

    def close(self) -> None:
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def clear(self) -> bool:
        """What is stored so far is not found again by this run of the engine.

        It stays in the daemon for others, until it is evicted. Ranks of one node agree on the
        names that are used from here on, since they are cleared as often as each other.
        """
        self._n_clears += 1
        self._veil = hashlib.sha256(self._nonce + self._n_clears.to_bytes(8, "big")).digest()
        return True

    def get_stats(self) -> Any:
        return self._stats.take()

    # ---- KV pages ----

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._safely(lambda: self._kv_pages(keys), 0)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        return self._pages_v1(keys, host_indices, self._load, self._stats.loaded)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        return self._pages_v1(keys, host_indices, self._storing(extra_info), self._stats.stored)

    def _pages_v1(
        self, keys: list[str], host_indices: Any, move: Move, count: Callable[..., None]
    ) -> list[bool]:
        if self._is_logical:
            return [True] * len(keys)
        began = time.perf_counter()
        moved = self._safely(
            lambda: self._move(KV, keys, host_indices, move), [False] * len(keys)
        )
        if any(moved):
            count(sum(moved), self._pools[KV][0].page_bytes, time.perf_counter() - began)
        return moved

    @property
    def _is_logical(self) -> bool:
        """The KV pool has indices only: all there is to store is in side pools."""
        return self._store is not None and KV not in self._pools

    def _kv_pages(self, keys: Sequence[str]) -> int:
        if self._is_logical:
            return len(keys)
        return hits.leading(self._present(KV, keys))

    # ---- side pools ----

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        return self._safely(
            lambda: hits.fold(keys, self._kv_pages(keys), pool_transfers or (), self._present),
            PoolTransferResult(0, {}, []),
        )

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._pages_v2(transfers, self._load)

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._pages_v2(transfers, self._storing(extra_info))

    def _pages_v2(self, transfers: Any, move: Move) -> dict[Any, list[bool]]:
        return {transfer.name: self._transfer(transfer, move) for transfer in transfers}

    def _transfer(self, transfer: Any, move: Move) -> list[bool]:
        keys = transfer.keys or []
        return self._safely(
            lambda: self._move(str(transfer.name), keys, transfer.host_indices, move),
            [False] * len(keys),
        )

    # ---- single pages, with copies: without interface_v1 ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> Optional[torch.Tensor]:
        """target_location: a contiguous tensor of one page, which is filled and returned."""

        def read() -> Optional[torch.Tensor]:
            store = self._store
            if store is None or not target_location.is_contiguous():
                return None
            target = _bytes_of(target_location)
            if not self._is_page(target):
                return None
            is_read = store.read(KV, digest_of(key, self._veil), target)
            return target_location if is_read else None

        return self._safely(read, None)

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Optional[torch.Tensor]]:
        targets = target_locations or [None] * len(keys)
        return [self.get(key, target) for key, target in zip(keys, targets)]

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """value: a tensor of one page, as the pool's get_data_page() gives it."""

        def write() -> bool:
            store, data = self._store, _bytes_of(value)
            if store is None or not self._is_page(data):
                return False
            return store.write(KV, digest_of(key, self._veil), data)

        return self._safely(write, False)

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return all([self.set(key, value) for key, value in zip(keys, values or [])])

    def _is_page(self, data: memoryview) -> bool:
        return KV in self._pools and len(data) == self._pools[KV][0].page_bytes

    # ---- how ----

    def _present(self, name: Any, keys: Sequence[str]) -> list[bool]:
        store = self._store
        if store is None:
            return [False] * len(keys)
        return store.present(str(name), digests_of(keys, self._veil))

    def _move(self, name: str, keys: Sequence[str], host_indices: Any, move: Move) -> list[bool]:
        store = self._store
        pool = store.pool(name) if store else None
        slots = pool.slots(host_indices, len(keys)) if pool else None
        if store is None or slots is None:
            self._tell(f"pool {name}: no such pool, or not the indices of {len(keys)} pages")
            return [False] * len(keys)
        return move(store, name, digests_of(keys, self._veil), slots)

    @staticmethod
    def _load(store: PageStore, name: str, digests: bytes, slots: Sequence[int]) -> list[bool]:
        return store.load(name, digests, slots)

    def _storing(self, extra_info: Any) -> Move:
        chain = Chain(getattr(extra_info, "prefix_keys", None), self._page_tokens, self._veil)

        def move(
            store: PageStore, name: str, digests: bytes, slots: Sequence[int]
        ) -> list[bool]:
            return store.store(name, digests, slots, chain)

        return move

    def _safely(self, ask: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return ask()
        except Closed:
            return otherwise
        except Exception as why:
            self._tell(f"{type(why).__name__}: {why}", why)
            return otherwise

    def _tell(self, what: str, why: Optional[Exception] = None) -> None:
        """Once: what is wrong with one page tends to be wrong with all."""
        if len(self._told) < 32 and what not in self._told:
            self._told.add(what)
            logger.error("kvtier: %s. Logged once.", what, exc_info=why)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
    return memoryview(array)
