# SPDX-License-Identifier: Apache-2.0
"""vLLM's searches over the keys of a request, answered for all keys at once.

They are private methods of vLLM's scheduler. Where a version has others, or wants to be told
of each key that is found, it asks the manager key by key as it is made to, and gets the same
answers.
"""
from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import get_offload_group_idx

from .manager import KvtierManager


SEARCHES = ("_maximal_prefix_lookup", "_sliding_window_lookup")


class Searches:
    def __init__(self, manager: KvtierManager) -> None:
        self._manager = manager

    def _maximal_prefix_lookup(
        self,
        keys: Sequence[bytes],
        req_context: Any,
        req: Any,
        group_config: Any,
        start_chunk_idx: int,
    ) -> int:
        group = group_config.group_idx
        return self._manager.leading(req_context, group, start_chunk_idx, len(keys))

    def _sliding_window_lookup(
        self,
        keys: Sequence[Any],
        sliding_window_size: int,
        req_context: Any,
        initial_window_size: int | None = None,
    ) -> int:
        if not keys:
            return 0
        group = get_offload_group_idx(keys[0])
        hits = self._manager.hits(req_context, group, keys[0], len(keys))
        return last_window(hits, sliding_window_size, initial_window_size or sliding_window_size)


def last_window(hits: np.ndarray, window: int, last: int) -> int:
    """The end of the last run of `window` hits, or of `last` for the one at the very end; how
    many hits there are at the beginning when no run is as long."""
    end, needed = len(hits), last
    for miss in reversed(np.flatnonzero(~hits).tolist()):
        if end - miss - 1 >= needed:
            break
        end, needed = miss, window
    return end


def install(scheduler: Any, manager: KvtierManager) -> bool:
    """False: this vLLM goes key by key."""
    tracker = getattr(scheduler, "_events_tracker", None)
    if getattr(tracker, "self_describing_enabled", True):
        return False
    searches = Searches(manager)
    ours = {name: getattr(searches, name) for name in SEARCHES}
    if any(_parameters(getattr(scheduler, name, None)) != _parameters(ours[name]) for name in ours):
        return False
    for name, search in ours.items():
        setattr(scheduler, name, search)
    return True


def _parameters(method: Any) -> list[str] | None:
    return list(inspect.signature(method).parameters) if method else None
