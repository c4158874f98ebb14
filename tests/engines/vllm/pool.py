# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiering on a machine without a GPU: its own pool, spec and manager, with a worker that
copies between the pool and a KV cache in host memory. vLLM's worker is for devices only."""
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class PoolWorker(OffloadingWorker):
    """Each job is done when it is submitted. For chunks of one block."""

    def __init__(self, spec, kv_caches):
        assert spec.blocks_per_chunk == 1
        self.finished = []
        self.region = SharedOffloadRegion(
            engine_id=spec.config.engine_id,
            num_chunks=spec.num_chunks,
            rank=spec.config.parallel.rank,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk,
            cpu_page_size=spec.cpu_page_size_per_worker,
        )
        self.pages = [tensor.tensor for tensor in kv_caches.tensors]
        self.rows = [self.region.create_next_worker_view(page.shape[1]) for page in self.pages]
        self.tensors = [
            [ref.tensor_idx for ref in refs] for refs in kv_caches.group_data_refs
        ]

    def places(self, gpu, chunks):
        """(tensor, block, row) of each page of a job."""
        at = 0
        for tensors, n in zip(self.tensors, gpu.group_sizes):
            for block, row in zip(gpu.block_ids[at : at + n], chunks[at : at + n], strict=True):
                yield from ((tensor, int(block), int(row)) for tensor in tensors)
            at += n

    def submit_store(self, job_id, src_spec, dst_spec):
        for tensor, block, row in self.places(src_spec, dst_spec.chunk_ids):
            self.rows[tensor][row] = self.pages[tensor][block]
        self.finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id, src_spec, dst_spec):
        for tensor, block, row in self.places(dst_spec, src_spec.chunk_ids):
            self.pages[tensor][block] = self.rows[tensor][row]
        self.finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.rows.clear()
        self.region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        return PoolWorker(self, kv_caches)
