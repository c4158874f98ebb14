# SPDX-License-Identifier: Apache-2.0
"""Two engines on two nodes: what one has computed the other goes on from."""
import time
from pathlib import Path

import pytest
from conftest import Engine, found, models, prompt, same
from kvtierd import Node, eventually
from models import MODELS, OPTIONS, TOLERANCE, make

#: Of a prefill that is waited for.
PATIENCE_S = 600.0


class Street:
    """A prefill engine on one node and a decode engine on another."""

    def __init__(self, name, build, folder):
        self.name, self.folder = name, folder
        self.model = folder / name
        make(self.model, MODELS[name])
        for place in ("far", "near"):
            (folder / place).mkdir()
        self.far = Node(build, folder / "far")
        self.near = Node(build, folder / "near", peers=[self.far])

    def __enter__(self):
        self.far.start()
        self.near.start()
        self.prefill = self.start("prefill", self.far, kvtier_address=self.far.address)
        self.decode = self.start("decode", self.near, kvtier_peer_timeout=PATIENCE_S)
        self.block = self.decode.block_tokens
        return self

    def __exit__(self, *_):
        self.prefill.close()
        self.decode.close()
        self.near.stop()
        self.far.stop()

    def start(self, name, node, **extra):
        extra["kvtier_socket"] = node.socket
        options = dict(OPTIONS.get(self.name, {}), model=str(self.model), extra=extra)
        return Engine(self.folder / f"{name}.log", **options)

    def prompt(self, more):
        return prompt(4 * self.block + more, f"{self.name} {more}")

    def same(self, answers, references):
        same(answers, references, TOLERANCE.get(self.name, 0.0))


@pytest.fixture(scope="module", params=models("qwen3", "qwen3_next"))
def street(request, tmp_path_factory):
    build = Path(request.config.getoption("--build")).resolve()
    with Street(request.param, build, tmp_path_factory.mktemp("handover")) as street:
        yield street


def test_decode_goes_on_from_what_prefill_says(street):
    """A router passes the prefill's parameters on, and no more."""
    # More than one token behind a boundary: a single one is summed in another order.
    for more in (-1, 2, 3):
        ids = street.prompt(more)
        plain = street.prefill.generate(ids)
        params = plain[0]["params"]
        assert params == {"kvtier_peer": street.far.address, "kvtier_wait": True}
        began = time.monotonic()
        answers = street.decode.generate(ids, params=params)
        street.same(answers, plain)
        assert found(answers) == [len(ids) // street.block * street.block]
        # A state need not be behind every chunk: it is not waited for.
        assert time.monotonic() < began + PATIENCE_S / 2
    assert street.decode.metric("prefetches") == 3
    assert street.near.metric("peer_read_objects_total") > 0


def test_decode_may_ask_before_prefill_has_begun(street):
    ids = street.prompt(4)
    params = {"kvtier_peer": street.far.address, "kvtier_wait": True}
    street.decode.send(prompts=[ids], params=params)
    eventually(lambda: street.near.metric("peer_expected_objects") > 0, seconds=120)
    plain = street.prefill.generate(ids)
    answers = street.decode.answer()
    street.same(answers, plain)
    assert found(answers) == [4 * street.block]
    eventually(lambda: street.near.metric("peer_expected_objects") == 0)


def test_without_a_hint_nothing_is_fetched(street):
    ids = street.prompt(5)
    plain = street.prefill.generate(ids)
    answers = street.decode.generate(ids)
    street.same(answers, plain)
    assert found(answers) == [0]
    assert answers[0]["params"] is None


def test_a_prefill_node_that_has_gone_costs_a_prefill(street):
    ids = street.prompt(6)
    plain = street.prefill.generate(ids)
    street.far.stop()
    try:
        answers = street.decode.generate(ids, params=plain[0]["params"])
    finally:
        street.far.start()
    street.same(answers, plain)
    assert found(answers) == [0]
