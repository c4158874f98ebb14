# SPDX-License-Identifier: Apache-2.0
"""kvtierd and llama.cpp engines with real and generated models.

An engine is made once for each model and set of context parameters; every test begins with an
empty sequence, and a text of its own, so that nothing is found that another has stored.
"""
import itertools
from pathlib import Path

import pytest

from kvtierd import Daemon
from llama import Engine

LICENCE = Path("/usr/share/common-licenses/GPL-3").read_bytes()
ANSWER = 32


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")
    parser.addoption("--models", required=True, help="folder with MODEL.gguf of each model")


class FlippableDaemon(Daemon):
    def flip(self, needle):
        """Changes one bit of the stored bytes that contain the needle."""
        at = self.disk.read_bytes().find(needle)
        assert at >= 0, "the stored bytes are not where they should be"
        with open(self.disk, "r+b") as file:
            file.seek(at)
            file.write(bytes([needle[0] ^ 1]))


@pytest.fixture(scope="session")
def daemon(request, tmp_path_factory):
    build = Path(request.config.getoption("--build")).resolve()
    folder = tmp_path_factory.mktemp("kvtierd")
    with FlippableDaemon(build, folder, "128MiB", "256MiB") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def model_path(request):
    """The file of a model by its name."""
    folder = Path(request.config.getoption("--models")).resolve()
    return lambda name: folder / f"{name}.gguf"


@pytest.fixture(scope="session")
def engine_of(model_path):
    """engine_of(model, **context parameters); the sequence is empty."""
    engines = {}

    def make(name, **changes):
        key = (name, *sorted(changes.items()))
        if key not in engines:
            engines[key] = Engine(model_path(name), **changes)
        engines[key].clear()
        return engines[key]

    yield make
    for engine in engines.values():
        engine.close()


@pytest.fixture
def open_store(daemon):
    """open_store(engine, **options): a store that is attached, closed after the test."""
    stores = []

    def make(engine, **options):
        stores.append(engine.open_store(daemon.socket, **options))
        assert stores[-1].session.wait_attached(30).name == "OK"
        return stores[-1]

    yield make
    for store in stores:
        store.close()


counter = itertools.count(1)


@pytest.fixture
def text():
    """text(engine, n): n tokens that no other test has."""
    salt = b"%d. " % next(counter)
    return lambda engine, n: engine.tokenize(salt + LICENCE, n)


def continued(engine, tokens):
    """32 tokens behind those that are decoded now, with the sums of their logits."""
    engine.decode(tokens)
    return engine.greedy(ANSWER)
