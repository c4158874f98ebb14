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
    def __init__(self, build, folder, host="64MiB", nvme="96MiB", piece="32MiB"):
        self.build, self.folder = Path(build), Path(folder)
        self.socket = str(self.folder / "kvtierd.sock")
        self.disk = self.folder / "nvme" / "data"
        self.process = None
        self.host, self.piece, self.nvme, self.port = host, piece, nvme, free_port()
        self.disk.parent.mkdir()

    def configure(self, host, piece):
        (self.folder / "kvtierd.conf").write_text(
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
            command = [self.build / "daemon/kvtierd", "--config", self.folder / "kvtierd.conf"]
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
