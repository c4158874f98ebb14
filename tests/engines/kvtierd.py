# SPDX-License-Identifier: Apache-2.0
"""A kvtierd for tests of engines, with small tiers in a folder of its own."""
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path


def eventually(predicate, seconds=20.0):
    """For what is heard of from another thread or process."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    program = "daemon/kvtierd"

    def __init__(self, build, folder, host="64MiB", nvme="96MiB", piece="32MiB"):
        self.build, self.folder = Path(build), Path(folder)
        self.socket = str(self.folder / "kvtierd.sock")
        self.disk = self.folder / "nvme" / "data"
        self.process = None
        self.host, self.piece, self.nvme, self.port = host, piece, nvme, free_port()
        self.config = self.folder / "kvtierd.conf"
        self.disk.parent.mkdir()

    def configure(self, host, piece):
        self.config.write_text(
            f"socket:\n  path: {self.socket}\n"
            f"host:\n  bytes: {host}\n  piece_bytes: {piece}\n"
            f"nvme:\n  paths: [{self.disk}]\n  bytes: {self.nvme}\n"
            f"metrics:\n  listen: 127.0.0.1:{self.port}\n"
        )

    def start(self, arena=None):
        """arena: of this size instead of the usual host tier."""
        self.configure(arena or self.host, arena or self.piece)
        log = self.folder / "kvtierd.log"
        with open(log, "a") as file:
            begin = file.tell()
            command = [self.build / self.program, "--config", self.config]
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

        def is_ready():
            text = log.read_text()[begin:]
            assert self.process.poll() is None, text
            return " info ready " in text

        eventually(is_ready)

    def stop(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            status = self.process.wait(timeout=30)
            self.process = None
            return status

    def restart(self, arena=None):
        self.stop()
        self.start(arena)

    def metric(self, series):
        """The value of one series, written as in the exposition without its prefix."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
        return float(re.search(rf"^kvtier_{re.escape(series)} (\S+)$", text, re.M).group(1))

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(self, *_):
        assert self.stop() in (None, 0, -signal.SIGKILL)  # the last is a test's own doing


class Node(Daemon):
    """One that knows others, by tests/support/loopback_rdma.c, which needs no device."""

    program = "tests/support/kvtierd-loopback"

    def __init__(self, build, folder, peers=(), **sizes):
        super().__init__(build, folder, **sizes)
        self.address = f"127.0.0.1:{free_port()}"
        self.peers = ", ".join(peer.address for peer in peers)
        self.secret = self.folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_text("default of-nobody-elses-business\n")

    def configure(self, host, piece):
        super().configure(host, piece)
        with open(self.config, "a") as file:
            file.write(
                f"rdma:\n  listen: {self.address}\n  secret: {self.secret}\n"
                f'  allow: 127.0.0.1\n  peers: "{self.peers}"\n'
            )
