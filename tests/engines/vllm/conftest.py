# SPDX-License-Identifier: Apache-2.0
"""A daemon and two vLLM processes one after the other, for each model."""
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvtierd import Daemon  # noqa: E402
from models import BLOCK, MODELS, make  # noqa: E402

HERE = Path(__file__).parent
SALTS = ("tenant one", "tenant two")


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")


def prompt(tokens, seed):
    source = random.Random(f"{tokens} {seed}")
    return [source.randrange(2, 500) for _ in range(tokens)]


class Engine:
    """A vLLM process; what it prints goes to `log`."""

    def __init__(self, log, environment=None, **options):
        self.log = log
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "engine.py", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ | (environment or {}),
                text=True,
            )
        self.block_tokens = self._answer()["block_tokens"]

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, "the engine is gone:\n" + "\n".join(self.lines()[-40:])
        return json.loads(line)

    def lines(self):
        return Path(self.log).read_text().splitlines()

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def generate(self, *prompts, **options):
        return self.ask(prompts=prompts, **options)

    def forget(self):
        assert self.ask(forget=True)

    def metric(self, name):
        return self.ask(metrics=True).get("vllm:kvtier_" + name, 0)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


class Case:
    """A model with prompts that the first of two engine processes has stored."""

    def __init__(self, name, daemon, folder):
        self.name, self.daemon, self.folder = name, daemon, folder
        self.has_state = name != "qwen3"
        model = folder / name
        make(model, MODELS[name])
        self.options = dict(model=str(model), extra=dict(kvtier_socket=daemon.socket))
        self.boundaries = [prompt(4 * BLOCK + more, name) for more in (-1, 0, 1)]
        self.salted = prompt(3 * BLOCK + 5, name)
        first = self.start()
        self.plain = first.generate(*self.boundaries, skip=True)
        [self.plain_salted] = first.generate(self.salted, salts=SALTS[:1], skip=True)
        self.stored = first.ask(stored=True)
        first.close()
        self.engine = self.start()

    def start(self):
        return Engine(self.folder / f"{self.name}.log", **self.options)


@pytest.fixture
def daemon(request, tmp_path):
    """For a test of its own."""
    with Daemon(Path(request.config.getoption("--build")).resolve(), tmp_path) as daemon:
        yield daemon


@pytest.fixture(scope="module", params=["qwen3", "qwen3_next"])
def case(request, tmp_path_factory):
    build = Path(request.config.getoption("--build")).resolve()
    folder = tmp_path_factory.mktemp(request.param)
    with Daemon(build, folder) as daemon:
        case = Case(request.param, daemon, folder)
        yield case
        case.engine.close()


@pytest.fixture
def engine(case):
    """The second process, without a prefix cache of its own."""
    case.engine.forget()
    return case.engine
