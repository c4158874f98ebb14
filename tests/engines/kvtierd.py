# SPDX-License-Identifier: Apache-2.0
"""A kvtierd for tests of engines, with small tiers in a folder of its own."""
import signal
import subprocess
import time
from pathlib import Path


def eventually(predicate, seconds=20.0):
    """For what is heard of from another thread or process."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


class Daemon:
    def __init__(self, build, folder, host="64MiB", nvme="96MiB", piece="32MiB"):
        self.build, self.folder = Path(build), Path(folder)
        self.socket = str(self.folder / "kvtierd.sock")
        self.disk = self.folder / "nvme" / "data"
        self.process = None
        self.disk.parent.mkdir()
        (self.folder / "kvtierd.conf").write_text(
            f"socket:\n  path: {self.socket}\n"
            f"host:\n  bytes: {host}\n  piece_bytes: {piece}\n"
            f"nvme:\n  paths: [{self.disk}]\n  bytes: {nvme}\nmetrics:\n  listen: off\n"
        )

    def start(self):
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

    def restart(self):
        self.stop()
        self.start()

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(self, *_):
        assert self.stop() in (None, 0, -signal.SIGKILL)  # the last is a test's own doing
