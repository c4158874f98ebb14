# SPDX-License-Identifier: Apache-2.0
"""A connector that spoils what it has loaded, below every checksum, while a file is there.

As if a copy had gone wrong: the numbers of each page that was loaded come in reverse.
"""
import os
from pathlib import Path

import torch

from kvtier.vllm import KvtierConnector

FILE = "KVTIER_TEST_DAMAGE"


class DamagingConnector(KvtierConnector):
    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker.worker
        self.worker, self.blocks, submit = worker, [], worker.submit_load

        def watched(job_id, src_spec, dst_spec, *more):
            self.blocks += [int(block) for block in dst_spec.block_ids]
            return submit(job_id, src_spec, dst_spec, *more)

        worker.submit_load = watched

    def get_transfer_results(self, finished_req_ids):
        results = super().get_transfer_results(finished_req_ids)
        if results.finished_recving:
            if Path(os.environ[FILE]).exists():
                self.damage()
            self.blocks = []
        return results

    def damage(self):
        """There is one group: every number of a block is of each of its tensors."""
        for view in self.worker._map.groups[0].views:
            for block in self.blocks:
                page = view.owner[block].view(torch.int16)
                page.copy_(page.flip(0))
