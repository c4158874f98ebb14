# SPDX-License-Identifier: Apache-2.0
"""kvtier under vLLM's own offloading: KV pages and states of prompts kept by kvtierd.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.vllm", "kv_role": "kv_both"}'

vLLM's offloading connector decides which boundaries, groups and masks there are; this
package gives it a manager, which runs in the scheduler and knows what is stored, and a
worker, which moves the bytes. `KvtierTieringConnector` keeps vLLM's own pool of host memory,
with `KvtierTier` as its secondary tier. Options (`kv_connector_extra_config`) are in `options.py`.
"""
from .connector import KvtierConnector, KvtierTieringConnector
from .spec import KvtierSpec
from .tier import KvtierTier

__all__ = ["KvtierConnector", "KvtierSpec", "KvtierTier", "KvtierTieringConnector"]
