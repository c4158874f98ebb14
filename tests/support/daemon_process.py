# SPDX-License-Identifier: Apache-2.0
"""A real kvtierd in a scratch folder, for tests that look at it from outside.

The test is its service manager: it owns the notify socket, so that it waits for events
and never for time to pass.
"""

import http.client
import os
import pathlib
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATIENCE_S = 20
BINARY = os.environ.get("KVTIERD", "build/daemon/kvtierd")


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    """Use as a context: starts on entry unless told otherwise, is killed on exit."""

    def __init__(self, config="", start=True, environment=None, arguments=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/var/tmp"))
        self.config = self.folder / "kvtierd.conf"
        self.port = free_port()
        self.write_config(config)
        self.environment = environment or {}
        self.arguments = list(arguments)
        self.process = None
        self.messages = []
        self.begin = start

    def write_config(self, more=""):
        self.config.write_text(
            f"socket: {{path: {self.folder}/sock}}\n"
            "host:\n  bytes: 32MiB\n  piece_bytes: 16MiB\n"
            "index: {objects_max: 10000}\n"
            f"metrics: {{listen: '127.0.0.1:{self.port}'}}\n"
            f"{more}"
        )

    def __enter__(self):
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(self.folder / "notify"))
        self.log = open(self.folder / "log", "w+")
        if self.begin:
            self.start()
            self.wait_for("READY=1")
        return self

    def __exit__(self, *exception):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.manager.close()
        self.log.close()
        shutil.rmtree(self.folder)

    def start(self):
        self.process = subprocess.Popen(
            [BINARY, "--config", self.config, *self.arguments],
            stderr=self.log,
            env=os.environ | {"NOTIFY_SOCKET": str(self.folder / "notify")} | self.environment,
        )

    def wait_for(self, state):
        """Reads what the daemon tells its manager until a message holds `state`."""
        end = time.monotonic() + PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.manager, selectors.EVENT_READ)
            while time.monotonic() < end:
                if not selector.select(0.1):
                    if self.process.poll() is not None:
                        raise AssertionError(f"it ended before {state}:\n{self.read_log()}")
                    continue
                message = self.manager.recv(4096).decode()
                self.messages.append(message)
                if state in message:
                    return message
        raise AssertionError(f"no {state} in {PATIENCE_S} s, but {self.messages}")

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """SIGTERM, then the exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def read_log(self):
        return (self.folder / "log").read_text()

    def get(self, path, method="GET"):
        """Status and body of a request to the metrics address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def metric(self, series):
        """The value of one series, written as in the exposition without the prefix."""
        match = re.search(rf"^kvtier_{re.escape(series)} (\S+)$", self.get("/metrics")[1], re.M)
        assert match, f"no {series}"
        return float(match.group(1))

    def wait_for_arenas(self):
        """READY needs one arena; this waits for all of them."""
        end = time.monotonic() + PATIENCE_S
        while self.metric("host_arenas") < self.metric("host_arenas_configured"):
            assert time.monotonic() < end, "arenas are missing"
            time.sleep(0.01)
