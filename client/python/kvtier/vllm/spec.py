# SPDX-License-Identifier: Apache-2.0
"""Opens the sessions: one for the scheduler, one for each worker."""
from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import OffloadingSpec

from .. import Layout, Session
from . import metrics
from .engine import ENGINE_KEY, Engine
from .manager import KvtierManager
from .options import Options
from .worker import KvtierWorker, page_tensors


class KvtierSpec(OffloadingSpec):
    """Made by vLLM's factory, for `KvtierConnector` only: any other dies of a failed load."""

    @classmethod
    def build_metric_definitions(cls, extra_config: Any) -> dict[str, Any]:
        return dict(metrics.DEFINITIONS)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if ENGINE_KEY not in self.extra_config:
            raise ValueError(
                'kvtier: KvtierSpec is for "kv_connector": "KvtierConnector", '
                '"kv_connector_module_path": "kvtier.vllm"'
            )
        self.engine: Engine = self.extra_config[ENGINE_KEY]
        self.options = Options.of(self.extra_config)
        #: Of each layer, told by the connector of a worker that has made its model.
        self.backends: dict[str, str] = {}

    def get_manager(self) -> KvtierManager:
        session = self._session(self.engine.layout(), "scheduler")
        return KvtierManager(session, self.engine, self.options)

    def get_worker(self, kv_caches: Any) -> KvtierWorker:
        engine = self.engine
        layout = engine.layout(page_tensors(engine, kv_caches, self.backends))
        session = self._session(layout, f"worker {engine.rank}")
        return KvtierWorker(session, engine, self.options, kv_caches)

    def _session(self, layout: Layout, role: str) -> Session:
        return Session(
            layout,
            socket=self.options.socket,
            program=f"vllm {role}",
            engine_id=self.engine.engine_id,
            connect_timeout=self.options.connect_timeout,
            partial_layout=True,
            rank=self.engine.rank,
            n_ranks=self.engine.n_ranks,
        )
