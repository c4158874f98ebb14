# SPDX-License-Identifier: Apache-2.0
"""kvtier, by its Python package and page maps: what its connectors use."""
import json
import os
import socket
import struct
import sys

import numpy as np

from kvtier import (
    Group, GroupKind, Layout, Objects, PageGroup, PageMap, Session, Status, digest_array,
)
from store import CAPACITY, CHUNK_TOKENS, DISK_CAPACITY, Server, Store, serve, tokens_of

MAGIC = 0x3154564B


def checked(call):
    """Waits for a call all of whose objects must have come out well."""
    done = call.wait()
    if done.status is not Status.OK or any(call.objects.statuses):
        raise RuntimeError(f"kvtier: {done}, {set(call.objects.statuses)}")


class KvtierStore(Store):
    def start(self, folder, disk):
        self.socket = os.path.join(folder, "kvtierd.sock")
        settings = {"socket.path": self.socket, "metrics.listen": "off", "log.level": "info",
                    "host.bytes": str(CAPACITY), "host.piece_bytes": str(CAPACITY)}
        if disk:
            settings |= {"nvme.paths": os.path.join(disk, "nvme"), "nvme.write": "store",
                         "nvme.bytes": str(DISK_CAPACITY)}
        command = [sys.argv[2], "--config", "/dev/null"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.server = Server(command, folder)
        self.server.wait_until(lambda: " info ready " in open(self.server.log).read())
        self.session = self.leased = None
        self.stored = []

    def prepare(self, pages):
        if self.session:
            self.map.close()
            self.session.close()
        self.n, self.chunk_bytes = pages.shape
        self.slots = np.arange(self.n, dtype=np.uint32)
        group = Group("kv", GroupKind.ATTENTION, page_tokens=CHUNK_TOKENS,
                      page_bytes=self.chunk_bytes)
        layout = Layout("bench", "peers", [group], chunk_tokens=CHUNK_TOKENS)
        self.session = Session(layout, socket=self.socket)
        self.map = PageMap(self.session, [PageGroup.of([pages])])

    def digests(self, round_number):
        return digest_array(tokens_of(self.chunk_bytes, round_number, self.n), CHUNK_TOKENS)[0]

    def store(self, round_number):
        data = self.digests(round_number).tobytes()
        self.stored.append(data[-32:])
        ends = range(CHUNK_TOKENS, (self.n + 1) * CHUNK_TOKENS, CHUNK_TOKENS)

        def run():
            objects = Objects(data, parents=bytes(32) + data[:-32], boundary_tokens=list(ends))
            objects.set_slots(self.slots, 1)
            checked(self.session.store_pages(self.map, objects, waited=True))
        return run

    def load(self, round_number):
        digests = self.digests(round_number)

        def run():
            objects = Objects(digests)
            objects.set_slots(self.slots, 1)
            checked(self.session.load_pages(self.map, objects, waited=True))
        return run

    def is_down(self, round_number):
        host, nvme = self.ask("status")["tiers"]
        return not host["unwritten_bytes"] and not nvme["queued_writes"]

    def drop_memory(self, round_number):
        layout = self.session.info().layout_id.hex()
        if self.ask("evict", layout=layout, tier="host")["kept"]:
            raise RuntimeError("kvtier: some objects cannot be evicted")

    def ask(self, command, **arguments):
        """An admin command over a connection of its own, spoken by hand."""
        header = struct.Struct("<IHHIIQQ16s")
        text = json.dumps({"command": command, **arguments}).encode()
        answer = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(self.socket)
            hello = struct.pack("<HHIQ64s", 1, 0, 1, 0, b"peers")
            peer.send(header.pack(MAGIC, 1, 0, header.size + len(hello), 0, 1, 0, bytes(16))
                      + hello)
            session, boot = header.unpack_from(peer.recv(65536))[6:]
            peer.send(header.pack(MAGIC, 16, 0, header.size + len(text), len(text), 2, session,
                                  boot) + text)
            more = True
            while more:
                part = peer.recv(65536)
                answer += part[header.size:]
                more = header.unpack_from(part)[2] & 1
        answer = json.loads(answer)
        if answer.get("ok") is False:
            raise RuntimeError(f"kvtier: {answer}")
        return answer

    def clear(self):
        self.session.reclaim(b"".join(self.stored), prefix=True)
        self.stored = []

    def lookups(self, round_number):
        tokens = tokens_of(self.chunk_bytes, round_number, self.n)
        digests = self.digests(round_number)

        def exist():
            return self.session.match(digests).boundaries

        def prefix():
            """From token ids to leases, with the bytes in host memory."""
            named = digest_array(tokens, CHUNK_TOKENS)[0]
            found = self.session.match(named).boundaries
            if found:
                self.leased = self.session.boundary_objects(named, found)[1]
                checked(self.session.acquire_objects(self.leased, waited=True))
            return found
        return {"exist": exist, "prefix": prefix}

    def after_lookup(self):
        if self.leased:
            self.session.release_objects(self.leased, waited=True).wait()
            self.leased = None

    def stop(self):
        self.session.close()
        self.server.stop()


serve(KvtierStore(), sys.argv[1])
