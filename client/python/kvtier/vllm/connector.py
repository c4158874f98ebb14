# SPDX-License-Identifier: Apache-2.0
"""vLLM's OffloadingConnector over kvtier, and over vLLM's own pool with kvtier beneath it."""
from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
    build_offloading_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
    OffloadingConnector,
)

from . import searches
from .engine import ENGINE_KEY, backends_in_use, describe
from .manager import KvtierManager
from .options import Options

TIERING = "TieringOffloadingSpec"
TIER = {"type": "KvtierTier", "module_path": "kvtier.vllm"}
SPEC = {"spec_name": "KvtierSpec", "spec_module_path": "kvtier.vllm.spec"}


class DescribedConnector(OffloadingConnector):
    """Tells what it makes by name, its spec and the tiers of that, what the engine is."""

    @staticmethod
    def complete(extra: dict[str, Any]) -> None:
        """Fills in what users need not write."""
        raise NotImplementedError

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        options = Options.of(extra)
        self.complete(extra)
        offloading = build_offloading_config(vllm_config, kv_cache_config)
        extra[ENGINE_KEY] = describe(
            vllm_config, kv_cache_config, offloading, options.weights, options.codec
        )
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            # The configuration travels between processes; this is not part of it.
            del extra[ENGINE_KEY]

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *arguments: Any) -> Any:
        # In the front end, where no connector is made.
        cls.complete(vllm_config.kv_transfer_config.kv_connector_extra_config)
        return super().build_prom_metrics(vllm_config, *arguments)


class KvtierTieringConnector(DescribedConnector):
    """vLLM's pool of host memory (`cpu_bytes_to_use`), with kvtier as the tier beneath it."""

    @staticmethod
    def complete(extra: dict[str, Any]) -> None:
        extra.setdefault("spec_name", TIERING)
        extra.setdefault("secondary_tiers", [dict(TIER)])


class KvtierConnector(DescribedConnector):
    """kvtier in place of a pool; a failed load is a recomputed request."""

    @staticmethod
    def complete(extra: dict[str, Any]) -> None:
        extra.update(SPEC)

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        # A cache that lost something is no reason to fail a request.
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            searches.install(self.scheduler, self._manager)

    # ---- scheduler ----

    @property
    def _manager(self) -> KvtierManager:
        manager = self.scheduler.manager
        assert isinstance(manager, KvtierManager)
        return manager

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        self._manager.watch(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        ask, manager = super().get_num_new_matched_tokens, self._manager
        return manager.match(
            request, num_computed_tokens, lambda: ask(request, num_computed_tokens)
        )

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._with_address(super().request_finished(request, block_ids))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._with_address(super().request_finished_all_groups(request, block_ids))

    def _with_address(
        self, answer: tuple[bool, dict[str, Any] | None]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Where a decode engine may find what this request has stored."""
        is_delayed, params = answer
        return is_delayed, {**(params or {}), **self._manager.fetches.answer} or None

    def update_connector_output(self, connector_output: Any) -> None:
        for req_id in connector_output.failed_recving or ():
            self._manager.load_failed(req_id)
        super().update_connector_output(connector_output)

    # ---- worker ----

    def register_kv_caches(self, kv_caches: Any) -> None:
        self.connector_worker.spec.backends = backends_in_use(self._vllm_config)
        super().register_kv_caches(kv_caches)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """As vLLM's own, which asserts that all went well."""
        side, results = self.connector_worker, KVConnectorTransferResults()
        meta = side._connector_worker_meta
        for result in side.worker.get_finished():
            req_id = side._load_jobs.pop(result.job_id, None)
            if result.success and result.transfer_size:
                stats = meta.transfer_stats.store if req_id is None else meta.transfer_stats.load
                stats.record(result.transfer_size, result.transfer_time)
            meta.mark_completed(result.job_id)
            if req_id is not None:
                results.finished_recving.add(req_id)
                if not result.success:
                    results.failed_recving.add(req_id)
        return results

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self.connector_worker.worker.flush()

    def shutdown(self) -> None:
        """Stores that vLLM has put off to a next step are made first."""
        side = self.connector_worker
        if side is not None and side.worker is not None:
            for job_id, src_spec, dst_spec in side._unsubmitted_store_jobs:
                side.worker.submit_store(job_id, src_spec, dst_spec)
            side._unsubmitted_store_jobs.clear()
        super().shutdown()
