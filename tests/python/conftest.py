# SPDX-License-Identifier: Apache-2.0
"""A kvtierd of its own for each module of tests, with small arenas."""
import itertools
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kvtier import Group, GroupKind, Layout, Session
from paged import CHUNK, GROUPS


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")
    parser.addoption("--wheels", help="folder with the wheel; without it test_wheel.py skips")


class Daemon:
    """kvtierd with 64 MiB of host memory and 96 MiB of NVMe in a temporary folder."""

    def __init__(self, build: Path, folder: Path):
        self.build, self.folder = build, folder
        self.socket = str(folder / "kvtierd.sock")
        self.process = None
        (folder / "nvme").mkdir()
        (folder / "kvtierd.conf").write_text(
            f"socket:\n  path: {self.socket}\n"
            "host:\n  bytes: 64MiB\n  piece_bytes: 32MiB\n"
            f"nvme:\n  paths: [{folder}/nvme/data]\n  bytes: 96MiB\nmetrics:\n  listen: off\n"
        )

    def start(self):
        path = self.folder / "kvtierd.log"
        with open(path, "a") as log:
            begin = log.tell()
            command = [self.build / "daemon/kvtierd", "--config", self.folder / "kvtierd.conf"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

        def is_ready():
            text = path.read_text()[begin:]
            assert self.process.poll() is None, text
            return " info ready " in text

        eventually(is_ready, seconds=20)

    def stop(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            status = self.process.wait(timeout=30)
            self.process = None
            return status


def layout(model="m", **changes):
    fields = dict(
        model=model, engine="tests", chunk_tokens=16, groups=[Group("seq", GroupKind.STATE)]
    )
    return Layout(**{**fields, **changes})


@pytest.fixture(scope="module")
def daemon(request, tmp_path_factory):
    build = Path(request.config.getoption("--build")).resolve()
    daemon = Daemon(build, tmp_path_factory.mktemp("kvtierd"))
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def session(daemon):
    with Session(layout(), socket=daemon.socket, program="tests") as session:
        assert session.info().attached
        yield session


@pytest.fixture
def paged(daemon):
    """A session of the engine in paged.py."""
    options = dict(socket=daemon.socket, engine_id=b"engine of arrays")
    with Session(layout("arrays", chunk_tokens=CHUNK, groups=GROUPS), **options) as session:
        yield session


counter = itertools.count(1)


@pytest.fixture
def fresh():
    """Makes token sequences that no other test has: fresh(100)."""

    def make(n):
        first = next(counter) * 100_000
        return list(range(first, first + n))

    return make


def eventually(predicate, seconds=10.0):
    """For what the library hears of from its own thread: presence, reconnection."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)
