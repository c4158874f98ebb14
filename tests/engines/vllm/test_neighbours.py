# SPDX-License-Identifier: Apache-2.0
"""Engines of one model on one daemon that share some things and not others."""
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import Engine, found, prompt, same
from kvtierd import Daemon, eventually, free_port
from models import MODELS, make, make_adapter, make_tokenizer

DOCUMENTATION = Path(__file__).parents[3] / "client/python/docs/vllm.md"
BLOCKS = 4


class Street:
    """A daemon, a model with two adapters, and an engine that may use them."""

    def __init__(self, daemon, folder):
        self.daemon, self.folder = daemon, folder
        self.model = folder / "qwen3"
        make(self.model, MODELS["qwen3"])
        make_tokenizer(self.model, MODELS["qwen3"])
        self.adapters = [[f"adapter{i}", i, str(folder / f"adapter{i}")] for i in (1, 2)]
        for _, number, path in self.adapters:
            make_adapter(Path(path), MODELS["qwen3"], seed=number)
        self.engine = self.start("plain", enable_lora=True, max_lora_rank=8, max_loras=2)

    def start(self, name, **options):
        options.update(model=str(self.model), extra=dict(kvtier_socket=self.daemon.socket))
        return Engine(self.folder / f"{name}.log", **options)

    def prompt(self, seed):
        return prompt(BLOCKS * self.engine.block_tokens + 3, seed)


@pytest.fixture(scope="module")
def street(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("street")
    with Daemon(Path(request.config.getoption("--build")).resolve(), folder) as daemon:
        street = Street(daemon, folder)
        yield street
        street.engine.close()


def is_found_by(engine, ids, **options):
    """That it is, once what another has stored is there; and the answer."""
    answers = []

    def whole():
        engine.forget()
        answers[:] = engine.generate(ids, **options)
        return found(answers) == [BLOCKS * engine.block_tokens]

    eventually(whole, seconds=60)
    return answers


def test_an_adapter_finds_only_its_own(street):
    engine, ids = street.engine, street.prompt("adapters")
    users = [None, *street.adapters]
    plain = []
    for user in users:
        engine.forget()
        answers = engine.generate(ids, adapters=[user])
        assert found(answers) == [0]
        is_found_by(engine, ids, adapters=[user])
        plain += answers
    for i, user in enumerate(users):
        same(is_found_by(engine, ids, adapters=[user]), [plain[i]])
    assert len({str(answer["logprobs"]) for answer in plain}) == len(users)


def test_pages_of_another_precision_are_not_found(street):
    """fp8 and bfloat16, of the same prompt."""
    ids = street.prompt("precisions")
    plain = street.engine.generate(ids)
    is_found_by(street.engine, ids)
    coarse = street.start("fp8", kv_cache_dtype="fp8")
    answers = coarse.generate(ids)
    assert found(answers) == [0]
    assert coarse.metric("attached") == 1
    same(is_found_by(coarse, ids), answers)
    coarse.close()
    assert answers[0]["logprobs"] != plain[0]["logprobs"]
    same(is_found_by(street.engine, ids), plain)


def documented():
    """The one line that a user adds."""
    [line, *_] = re.findall(r"--kv-transfer-config '(\{.*?\})'", DOCUMENTATION.read_text(), re.S)
    return line


class Server:
    """`vllm serve`, as a user starts it."""

    def __init__(self, street):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = street.folder / "server.log"
        command = [Path(sys.executable).with_name("vllm"), "serve", street.model]
        command += ["--kv-transfer-config", documented(), "--enable-prompt-tokens-details"]
        command += ["--port", self.url.rpartition(":")[2], "--max-model-len", "2048"]
        command += ["--enforce-eager"]
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env=self.environment(street)
            )

    @staticmethod
    def environment(street):
        # The rebuild of vLLM for CPUs has another name, and its command looks for this one.
        alias = street.folder / "alias" / "vllm-0.32.0.dist-info"
        alias.mkdir(parents=True)
        (alias / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
        return os.environ | {
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{alias.parent}",
            "KVTIER_SOCKET": street.daemon.socket,
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

    def complete(self, street, ids, n):
        """The text, and how many tokens were found."""
        answer = json.loads(
            self.get(
                "/v1/completions",
                dict(
                    model=str(street.model),
                    prompt=ids,
                    max_tokens=n,
                    temperature=0,
                    ignore_eos=True,
                ),
            )
        )
        details = answer["usage"]["prompt_tokens_details"] or {}
        return answer["choices"][0]["text"].split(), details.get("cached_tokens", 0)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


@pytest.fixture
def server(street):
    server = Server(street)
    yield server
    server.close()


def test_a_server_finds_what_an_engine_stored(street, server):
    ids = street.prompt("server")
    [plain] = street.engine.generate(ids)
    is_found_by(street.engine, ids)
    eventually(server.is_up, seconds=300)
    words, cached = server.complete(street, ids, len(plain["tokens"]))
    assert words == [f"w{token}" for token in plain["tokens"]]
    assert cached == BLOCKS * street.engine.block_tokens
    page = server.get("/metrics")
    for metric, value in (("attached", 1), ("keys_loaded_total", BLOCKS)):
        [line] = [x for x in page.splitlines() if x.startswith(f"vllm:kvtier_{metric}{{")]
        assert float(line.split()[-1]) == value
