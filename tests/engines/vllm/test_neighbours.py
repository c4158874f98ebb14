# SPDX-License-Identifier: Apache-2.0
"""Engines of one model on one daemon that share some things and not others."""
import json
from pathlib import Path

import pytest
from conftest import Engine, found, prompt, same
from kvtierd import Daemon, eventually
from models import MODELS, make, make_adapter, make_tokenizer
from server import Server

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


def complete(server, street, ids, n):
    """The text, and how many tokens were found."""
    answer = json.loads(
        server.get(
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


@pytest.fixture
def server(street):
    server = Server(street.folder, street.model, street.daemon.socket)
    yield server
    server.close()


def test_a_server_finds_what_an_engine_stored(street, server):
    ids = street.prompt("server")
    [plain] = street.engine.generate(ids)
    is_found_by(street.engine, ids)
    eventually(server.is_up, seconds=300)
    words, cached = complete(server, street, ids, len(plain["tokens"]))
    assert words == [f"w{token}" for token in plain["tokens"]]
    assert cached == BLOCKS * street.engine.block_tokens
    page = server.get("/metrics")
    for metric, value in (("attached", 1), ("keys_loaded_total", BLOCKS)):
        [line] = [x for x in page.splitlines() if x.startswith(f"vllm:kvtier_{metric}{{")]
        assert float(line.split()[-1]) == value
