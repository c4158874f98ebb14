# SPDX-License-Identifier: Apache-2.0
"""A daemon and vLLM processes around it, for each model.

A test, or a parameter of one, that is marked `long` is left out by `-m 'not long'`.
"""
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvtierd import Daemon  # noqa: E402
from models import (  # noqa: E402
    ATTENTION_ONLY,
    FEW_BLOCKS,
    MODELS,
    OPTIONS,
    TOLERANCE,
    make,
)

HERE = Path(__file__).parent
SALTS = ("tenant one", "tenant two")


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: of the full matrix")


def models(*always):
    """Parameters: these models, and with the long tests all of them."""
    return [
        name if name in always else pytest.param(name, marks=pytest.mark.long) for name in MODELS
    ]


def prompt(tokens, seed):
    source = random.Random(f"{tokens} {seed}")
    return [source.randrange(2, 500) for _ in range(tokens)]


def same(answers, references, tolerance=0.0):
    """Tokens, and log probabilities to the last bit unless there is a tolerance."""
    for answer, reference in zip(answers, references, strict=True):
        assert answer["tokens"] == reference["tokens"]
        assert answer["logprobs"] == pytest.approx(reference["logprobs"], rel=0, abs=tolerance)


def found(answers):
    return [answer["found"] for answer in answers]


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
        self.block_tokens = self.answer()["block_tokens"]

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the engine is gone:\n" + "\n".join(self.lines()[-40:])
        return json.loads(line)

    def lines(self):
        return Path(self.log).read_text().splitlines()

    def send(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def ask(self, **request):
        self.send(**request)
        return self.answer()

    def generate(self, *prompts, **options):
        return self.ask(prompts=prompts, **options)

    def forget(self):
        assert self.ask(forget=True)

    def metric(self, name):
        return self.ask(metrics=True).get("vllm:kvtier_" + name, 0)

    def lines_with(self, text):
        return [line for line in self.lines() if text in line]

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


class Case:
    """A model with prompts that the first of some engine processes has stored."""

    def __init__(self, name, daemon, folder):
        self.name, self.daemon, self.folder = name, daemon, folder
        self.attention_only = name in ATTENTION_ONLY
        model = folder / name
        make(model, MODELS[name])
        self.options = dict(
            OPTIONS.get(name, {}), model=str(model), extra=dict(kvtier_socket=daemon.socket)
        )
        first = self.start("first")
        self.block = first.block_tokens
        self.boundaries = [self.prompt(4, more) for more in (-1, 0, 1)]
        self.salted = self.prompt(3, 5)
        self.plain = self.uncached(first, self.boundaries)
        [self.plain_salted] = first.generate(self.salted, salts=SALTS[:1], skip=True)
        self.many = [self.prompt(6, 3 + i) for i in range(8)]
        self.plain_many = [self.uncached(first, [ids])[0] for ids in self.many]
        self.stored = first.ask(stored=True)
        first.close()
        self.engine = self.start("second")

    def start(self, which, **options):
        return Engine(self.folder / f"{which}.log", **{**self.options, **options})

    def same(self, answers, references, tolerances=TOLERANCE):
        same(answers, references, tolerances.get(self.name, 0.0))

    def prompt(self, blocks, more):
        return prompt(blocks * self.block + more, self.name)

    @staticmethod
    def uncached(engine, prompts):
        """Answers for which nothing is looked up; what they take is stored."""
        return engine.generate(*prompts, skip=True)


@pytest.fixture
def daemon(request, tmp_path):
    """For a test of its own."""
    with Daemon(Path(request.config.getoption("--build")).resolve(), tmp_path) as daemon:
        yield daemon


@pytest.fixture(scope="module", params=models("qwen3", "qwen3_next"))
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


@pytest.fixture(scope="module")
def neighbour(case):
    """A third process, beside the second, with few blocks; the daemon was restarted before."""
    case.daemon.restart()
    engine = case.start(
        "third", max_model_len=8 * case.block, num_gpu_blocks_override=FEW_BLOCKS[case.name]
    )
    yield engine
    engine.close()
