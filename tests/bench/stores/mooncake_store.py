# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store by its Python client: batches from and into a registered buffer.

Client and segment are one process, in which it copies without the network (MC_STORE_MEMCPY): the
best that it does on one machine.
"""
import os
import socket
import sys
import time

os.environ.setdefault("MC_STORE_MEMCPY", "1")

from mooncake.store import MooncakeDistributedStore  # noqa: E402

from store import CAPACITY, Server, Store, free_port, serve  # noqa: E402

BUFFER = 128 << 20


def answers(port):
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0


class MooncakeStore(Store):
    def start(self, folder, disk):
        port = free_port()
        command = [os.path.join(os.path.dirname(sys.executable), "mooncake_master"),
                   f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        if disk:
            # The shortest lease and heartbeat; the other backends wait for whole buckets.
            command += ["--enable_offload=true", "--default_kv_lease_ttl=100"]
            os.environ |= {
                "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "file_per_key_storage_backend",
                "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": disk,
                "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1"}
        self.server = Server(command, folder)
        self.server.wait_until(lambda: answers(port))
        self.client = MooncakeDistributedStore()
        result = self.client.setup(f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", CAPACITY, BUFFER,
                                   "tcp", "", f"127.0.0.1:{port}", None, bool(disk), disk or "")
        if result != 0:
            raise RuntimeError(f"Mooncake: setup says {result}")
        self.address = None

    def prepare(self, pages):
        if self.address:
            self.client.unregister_buffer(self.address)
        self.pages = pages
        self.n, self.chunk_bytes = pages.shape
        self.address = pages.ctypes.data
        if self.client.register_buffer(self.address, pages.nbytes) != 0:
            raise RuntimeError("Mooncake: the buffer cannot be registered")
        self.addresses = [self.address + i * self.chunk_bytes for i in range(self.n)]
        self.sizes = [self.chunk_bytes] * self.n

    def keys(self, round_number):
        return [f"{self.chunk_bytes}-{round_number}-{i:032x}" for i in range(self.n)]

    def store(self, round_number):
        keys = self.keys(round_number)

        def run():
            results = self.client.batch_put_from(keys, self.addresses, self.sizes)
            if any(results):
                raise RuntimeError(f"Mooncake: put says {set(results)}")
        return run

    def load(self, round_number):
        keys = self.keys(round_number)

        def run():
            results = self.client.batch_get_into(keys, self.addresses, self.sizes)
            if results != self.sizes:
                raise RuntimeError(f"Mooncake: get says {set(results)}")
        return run

    def replicas(self, round_number):
        return self.client.batch_get_replica_desc(self.keys(round_number)).values()

    def is_down(self, round_number):
        return sum(any(replica.is_local_disk_replica() and replica.status.name == "COMPLETE"
                       for replica in of_one) for of_one in self.replicas(round_number)) == self.n

    def drop_memory(self, round_number):
        time.sleep(0.2)  # until nothing is leased
        self.client.batch_replica_clear(self.keys(round_number), self.client.get_hostname())
        if any(replica.is_memory_replica() for of_one in self.replicas(round_number)
               for replica in of_one):
            raise RuntimeError("Mooncake: some objects stay in memory")

    def clear(self):
        self.client.remove_all(True)

    def lookups(self, round_number):
        keys = self.keys(round_number)
        return {"exist": lambda: self.client.batch_is_exist(keys).count(1)}

    def stop(self):
        self.client.close()
        self.server.stop()


serve(MooncakeStore(), sys.argv[1])
