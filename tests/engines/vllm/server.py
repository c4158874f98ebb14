# SPDX-License-Identifier: Apache-2.0
"""`vllm serve`, as a user starts it."""
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from kvtierd import free_port

DOCUMENTATION = Path(__file__).parents[3] / "client/python/docs/vllm.md"


def documented():
    """The one line that a user adds."""
    [line, *_] = re.findall(r"--kv-transfer-config '(\{.*?\})'", DOCUMENTATION.read_text(), re.S)
    return line


class Server:
    def __init__(self, folder, model, socket, connector=None, **environment):
        """connector: another configuration than the documented one."""
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "server.log"
        command = [Path(sys.executable).with_name("vllm"), "serve", model]
        command += ["--kv-transfer-config", connector or documented()]
        command += ["--enable-prompt-tokens-details", "--enforce-eager"]
        command += ["--port", self.url.rpartition(":")[2], "--max-model-len", "2048"]
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                env=self.environment(folder, socket) | environment,
                start_new_session=True,
            )

    @staticmethod
    def environment(folder, socket):
        # The rebuild of vLLM for CPUs has another name, and its command looks for this one.
        alias = folder / "alias" / "vllm-0.32.0.dist-info"
        alias.mkdir(parents=True)
        (alias / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
        here = Path(__file__).parent
        return os.environ | {
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{alias.parent}:{here}",
            "KVTIER_SOCKET": socket,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "passive",
        }

    def get(self, path, body=None):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def is_up(self):
        assert self.process.poll() is None, self.log.read_text()[-6000:]
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            # One that has not come up yet does not listen; its engine's processes go with it.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=60)
