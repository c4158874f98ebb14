# SPDX-License-Identifier: Apache-2.0
"""Tiny models, what they compute, and stores of their caches."""
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from families import VOCABULARY, build  # noqa: E402
from kvtierd import Daemon, eventually  # noqa: E402

from kvtier.transformers import CacheStore  # noqa: E402

CHUNK = 64
TOKENS = 3 * CHUNK
STEPS, TAIL = 3, 5  # single tokens, then some at once
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")


@pytest.fixture(scope="session")
def daemon(request, tmp_path_factory):
    build_folder = Path(request.config.getoption("--build")).resolve()
    with Daemon(build_folder, tmp_path_factory.mktemp("kvtierd")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def prompt():
    random = torch.Generator().manual_seed(7)
    return torch.randint(3, VOCABULARY, (1, TOKENS + STEPS + TAIL), generator=random)


class Model:
    """A model and its store."""

    def __init__(self, daemon, family, dtype=torch.float32, **options):
        self.model = build(family, dtype)
        self.daemon, self.family = daemon, family
        self.options = dict(name=family, revision="1", chunk_tokens=CHUNK, **options)
        self.store = None
        self.open()

    def open(self, **changes):
        """Another store of the same model, as a process of its own would have."""
        if self.store:
            self.store.close()
        options = {**self.options, **changes}
        self.store = CacheStore(self.model, socket=self.daemon.socket, **options)
        assert self.store.session.info().attached

    def forward(self, ids, cache=None, begin=0):
        positions = torch.arange(begin, begin + ids.shape[1])[None]
        with torch.no_grad():
            return self.model(ids, cache=cache, position_ids=positions, use_cache=True)

    def prefill(self, prompt, tokens):
        return self.forward(prompt[:, :tokens]).cache

    def go_on(self, cache, prompt, begin):
        """The logits behind a cache of `begin` tokens, which it goes on to fill."""
        ends = [*range(begin, begin + STEPS), begin + STEPS, begin + STEPS + TAIL]
        outputs = [
            self.forward(prompt[:, first:end], cache, first).logits[0]
            for first, end in zip(ends, ends[1:])
            if end > first
        ]
        return torch.cat(outputs)


@pytest.fixture
def model_of(daemon):
    """Makes a Model, whose store is closed at the end of the test."""
    models = []

    def make(family, dtype=torch.float32, **options):
        models.append(Model(daemon, family, dtype, **options))
        return models[-1]

    yield make
    for model in models:
        model.store.close()


__all__ = ["eventually"]
