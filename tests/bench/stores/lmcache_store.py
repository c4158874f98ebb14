# SPDX-License-Identifier: Apache-2.0
"""LMCache's server, by the client that its engine connectors use, with a tensor in CPU memory.

The engine moves the bytes (engine_driven): the faster of its two ways without a GPU.
"""
import json
import os
import sys
import time
import urllib.request

import numpy as np
import torch
import zmq
from lmcache.utils import EngineType
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import EngineDrivenTransferContext
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

from store import CAPACITY, CHUNK_TOKENS, Server, Store, free_port, serve, tokens_of

SECONDS = 30.0


class LmcacheStore(Store):
    def start(self, folder, disk):
        self.disk = disk
        port, self.http = free_port(), free_port()
        command = [
            os.path.join(os.path.dirname(sys.executable), "lmcache"), "server",
            "--host", "127.0.0.1", "--port", str(port), "--transport", "zmq",
            "--http-host", "127.0.0.1", "--http-port", str(self.http),
            "--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", str(CAPACITY >> 30),
            "--no-l1-use-lazy", "--shm-name", f"peers{os.getpid()}",
            "--supported-transfer-mode", "auto", "--eviction-policy", "LRU",
            "--max-workers", "2", "--disable-observability"]
        if disk:
            adapter = {"type": "fs_native", "base_path": disk, "num_workers": 8,
                       "relative_tmp_dir": "tmp", "use_odirect": False}
            command += ["--l2-adapter", json.dumps(adapter)]
        self.server = Server(command, folder)
        self.server.wait_until(self.is_ready, 120)
        self.zmq = zmq.Context()
        self.zmq.setsockopt(zmq.LINGER, 0)
        self.client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}", context=self.zmq)
        self.instance, self.context, self.requests = 1000, None, 0
        self.n_files = 0  # before the last store

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/healthcheck", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def prepare(self, pages):
        self.unregister()
        self.n, self.chunk_bytes = pages.shape
        self.blocks = [list(range(self.n))]
        self.instance += 1
        tensor = torch.from_numpy(pages.view(np.float16)).view(self.n, CHUNK_TOKENS, -1)
        self.caches = {"layer.0": tensor}
        self.context = EngineDrivenTransferContext(self.instance, self.client)
        group = EngineGroupInfo(engine_group_id=0, layer_indices=(0,),
                                tokens_per_block=CHUNK_TOKENS)
        self.context.register(self.caches, self.model(), 1, 1, SECONDS,
                              layout_hints={"kv_layout": "NHD"}, engine_group_infos=[group],
                              engine_type=EngineType.VLLM)

    def unregister(self):
        if self.context:
            self.context.flush_inflight_stores()
            future = self.context.unregister()
            if future is not None:
                future.result(timeout=SECONDS)
            self.context.close()
            self.context = None

    def model(self):
        return f"bench-{self.chunk_bytes}"

    def tokens(self, round_number):
        return tuple(tokens_of(self.chunk_bytes, round_number, self.n).tolist())

    def key(self, tokens, worker=None):
        return IPCCacheServerKey(
            model_name=self.model(), world_size=1, num_kv_readers=1, worker_id=worker,
            token_ids=tokens, start=0, end=len(tokens), request_id=self.request)

    def begin(self, tokens):
        """A request begins with its lookup, which locks what it finds."""
        self.requests += 1
        self.request = f"request-{self.requests}"
        self.client.lookup(self.key(tokens), 1).result(timeout=SECONDS)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found = self.client.query_prefetch_status(self.request).result(timeout=SECONDS)
            if found is not None:
                return found
        raise RuntimeError("LMCache: the lookup does not end")

    def end(self):
        self.client.end_session(self.request).result(timeout=SECONDS)

    def moved(self, submit, key):
        event = self.context.create_recorded_event()
        if not submit(self.request, key, self.caches, self.blocks, event, 1).result(
                timeout=SECONDS):
            raise RuntimeError("LMCache: the transfer failed")

    def store(self, round_number):
        if self.disk:
            self.n_files = len(self.files())
        tokens = self.tokens(round_number)
        self.begin(tokens)
        key = self.key(tokens, worker=0)

        def run():
            self.moved(self.context.submit_store, key)
        return run

    def load(self, round_number):
        tokens = self.tokens(round_number)
        found = self.begin(tokens)
        if found != self.n:
            raise RuntimeError(f"LMCache: {found} of {self.n} chunks are left")
        key = self.key(tokens, worker=0)

        def run():
            self.moved(self.context.submit_retrieve, key)
        return run

    def after_load(self):
        self.end()

    def files(self):
        return [entry for entry in os.scandir(self.disk) if entry.is_file()]

    def is_down(self, round_number):
        """Each chunk is a file, which is written elsewhere and renamed."""
        return len(self.files()) - self.n_files == self.n

    def drop_memory(self, round_number):
        self.clear_memory()

    def load_cold(self, round_number):
        """The lookup is what reads from the disk."""
        tokens = self.tokens(round_number)

        def run():
            found = self.begin(tokens)
            if found != self.n:
                raise RuntimeError(f"LMCache: {found} of {self.n} chunks came back")
            self.moved(self.context.submit_retrieve, self.key(tokens, worker=0))
        return run

    def clear(self):
        self.clear_memory()
        if self.disk:
            for entry in self.files():
                os.unlink(entry)

    def clear_memory(self):
        self.context.flush_inflight_stores()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/cache/clear", method="POST",
            data=json.dumps({"tier": "l1", "force": True}).encode(),
            headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=SECONDS).close()

    def lookups(self, round_number):
        tokens = self.tokens(round_number)
        return {"prefix": lambda: self.begin(tokens)}

    def after_lookup(self):
        self.end()

    def stop(self):
        self.unregister()
        self.client.close()
        self.zmq.term()
        self.server.stop()


serve(LmcacheStore(), sys.argv[1])
