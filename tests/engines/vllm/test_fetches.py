# SPDX-License-Identifier: Apache-2.0
"""Requests whose prompts are on another node, each side without an engine around it."""
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from kvtier import Status
from kvtier.vllm.options import Options
from kvtierd import Node, eventually
from sides import PAGE_TOKENS, Prompt, Side, blocks, store

#: Of what is not about deadlines: nothing waits that long.
PATIENCE_S = 600.0


class Pair:
    """A node that has prompts, and one that is told of it by its requests."""

    def __init__(self, build, folder):
        self.sides = []
        for name in ("far", "near"):
            (folder / name).mkdir()
        self.far = Node(build, folder / "far")
        self.near = Node(build, folder / "near", peers=[self.far])

    def side(self, node, **options):
        self.sides.append(Side(node, **options))
        return self.sides[-1]

    def stored(self, n):
        """By the far node's engine."""
        one = self.side(self.far)
        store(one, n)
        return one

    def prompt(self, wait=False, peer=None, skip=False, params=None, **options):
        """Four chunks that the near node's engine is asked for."""
        given = {"kvtier_peer": peer or self.far.address}
        if wait:
            given["kvtier_wait"] = True
        one = self.side(self.near, **{"peer_timeout": PATIENCE_S, **options})
        return Prompt(one, n_stored=0, params=given if params is None else params, skip=skip)


@pytest.fixture
def pair(request, tmp_path):
    made = Pair(Path(request.config.getoption("--build")).resolve(), tmp_path)
    with made.far, made.near:
        yield made
        for side in made.sides:
            side.close()


@pytest.fixture
def warnings(caplog, monkeypatch):
    """vLLM keeps its log to itself."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return lambda text: [line for line in caplog.messages if text in line]


def outcomes(prompt):
    """How often each prefetch came to what, since the last call."""
    stats = prompt.manager.get_stats()
    reduced = stats.reduce() if stats else {}
    return {
        name.split("'")[1]: int(n)
        for name, n in reduced.items()
        if name.startswith("vllm:kvtier_prefetches")
    }


def test_what_a_peer_has_is_found_and_loaded(pair):
    far = pair.stored(4)
    prompt = pair.prompt()
    assert prompt.found() == 4
    assert outcomes(prompt) == {"OK": 1}
    spec = prompt.manager.prepare_load(prompt.keys, prompt.context)
    worker = prompt.one.worker()
    worker.submit_load(7, spec, blocks([7, 6, 5, 4]))
    worker.wait({7})
    assert (prompt.one.pages[[7, 6, 5, 4]] == far.pages[:4]).all()


def test_who_names_no_peer_finds_what_is_here(pair):
    pair.stored(4)
    prompt = pair.prompt(params={})
    assert prompt.found() == 0
    assert outcomes(prompt) == {}


def test_a_peer_of_all_requests_is_asked_for_those_that_name_none(pair):
    pair.stored(4)
    prompt = pair.prompt(params={})
    prompt.finish()
    given = dict(peer=pair.far.address, peer_timeout=PATIENCE_S)
    prompt.manager = pair.side(pair.near, **given).manager()
    prompt.ask("two", params=None)
    assert prompt.found() == 4


def test_only_what_is_missing_is_asked_for_and_only_once(pair, monkeypatch):
    pair.stored(4)
    prompt = pair.prompt()
    asked, prefetch = [], prompt.one.scheduler.prefetch
    store(prompt.one, 1)

    def watched(objects, *arguments, **options):
        asked.append(len(objects))
        return prefetch(objects, *arguments, **options)

    monkeypatch.setattr(prompt.one.scheduler, "prefetch", watched)
    assert prompt.found(local=1) == 3
    assert asked == [3]
    # vLLM has preempted it, and asks again.
    assert prompt.found(local=0) == 4
    prompt.finish()
    prompt.ask("two", params={"kvtier_peer": pair.far.address})
    assert prompt.found() == 4
    assert asked == [3]


def test_what_is_still_to_be_stored_is_waited_for(pair):
    far = pair.stored(2)
    prompt = pair.prompt(wait=True)
    for _ in range(3):
        assert prompt.match() == (None, False)
    fetch = prompt.manager._plans["one"].fetch
    # The peer has been asked: it sends what it has.
    table, names = prompt.one.scheduler, b"".join(prompt.digests)
    eventually(lambda: list(table.probe(names)[0]) == [1, 1, 0, 0])
    assert prompt.match() == (None, False) and not fetch.call.done
    store(far, 4)
    assert prompt.found() == 4
    assert outcomes(prompt) == {"OK": 1}


def test_who_does_not_wait_finds_what_there_is(pair):
    pair.stored(2)
    prompt = pair.prompt()
    assert prompt.found() == 2
    assert outcomes(prompt) == {"MISS": 1}


def test_a_wait_ends_with_what_has_come_until_then(pair):
    pair.stored(2)
    prompt = pair.prompt(wait=True)
    assert prompt.match() == (None, False)
    table, names = prompt.one.scheduler, b"".join(prompt.digests)
    eventually(lambda: list(table.probe(names)[0]) == [1, 1, 0, 0])
    fetch = prompt.manager._plans["one"].fetch
    fetch.until = time.monotonic()
    assert prompt.found() == 2
    assert outcomes(prompt) == {"TIMEOUT": 1}
    # Nor does it go on for nobody.
    eventually(lambda: prompt.manager.on_schedule_end(None) or fetch.call.done)


def test_a_search_that_finds_all_ends_the_wait(pair):
    """Of what has been asked for, some will never be: a state is not behind every chunk."""
    pair.stored(3)
    prompt = pair.prompt(wait=True)
    assert prompt.match() == (None, False)
    prompt.request.num_tokens -= 1
    assert prompt.found() == 3
    assert outcomes(prompt) == {"OK": 1}


def test_a_daemon_that_stands_still_costs_no_more_than_the_time_for_it(pair):
    pair.stored(4)
    prompt = pair.prompt(peer_timeout=0.4)
    pair.near.process.send_signal(signal.SIGSTOP)
    try:
        os.waitpid(pair.near.process.pid, os.WUNTRACED)
        began = time.monotonic()
        assert prompt.match() == (None, False)
        assert prompt.match() == (None, False)
        assert prompt.found() == 0
        # A busy machine has its seconds too.
        assert 0.4 <= time.monotonic() - began < 5
    finally:
        pair.near.process.send_signal(signal.SIGCONT)
    assert outcomes(prompt) == {"TIMEOUT": 1}


def test_a_peer_that_is_not_there_is_a_miss(pair):
    pair.stored(4)
    assert pair.far.stop() == 0
    prompt = pair.prompt()
    assert prompt.found() == 0
    assert outcomes(prompt) == {"UNAVAILABLE": 1}


def test_without_a_daemon_nothing_is_waited_for(pair):
    prompt = pair.prompt()
    pair.near.stop()
    eventually(lambda: not prompt.one.scheduler.info().attached)
    assert prompt.match() == (0, False)


def test_a_peer_that_the_daemon_does_not_know_is_a_miss_and_logged_once(pair, warnings):
    prompt = pair.prompt(peer="10.9.8.7:1")
    for name in ("two", "three"):
        assert prompt.found() == 0
        prompt.finish()
        prompt.ask(name, params={"kvtier_peer": "10.9.8.7:2"})
    assert outcomes(prompt) == {"UNSUPPORTED": 2}
    assert len(warnings("do not name '10.9.8.7:1'")) == len(warnings("do not name")) == 1


@pytest.mark.parametrize("wrong", [7, ["a"], {"a": 1}, "x" * 64, "a\nb", "é:1"])
def test_a_name_that_is_none_is_ignored_and_logged_once(pair, warnings, wrong):
    pair.stored(4)
    prompt = pair.prompt(params={"kvtier_peer": wrong})
    assert prompt.found() == 0
    prompt.finish()
    prompt.ask("two", params={"kvtier_peer": wrong, "kvtier_wait": "yes"})
    assert prompt.found() == 0
    assert outcomes(prompt) == {}
    assert len(warnings("is not HOST:PORT")) == 1


def test_a_request_that_is_to_find_nothing_asks_nobody(pair):
    pair.stored(4)
    prompt = pair.prompt(skip=True)
    assert prompt.found() == 0
    assert outcomes(prompt) == {}


def test_a_request_that_goes_takes_its_prefetch_with_it(pair):
    pair.stored(2)
    prompt = pair.prompt(wait=True)
    assert prompt.match() == (None, False)
    call = prompt.manager._plans["one"].fetch.call
    prompt.finish()
    eventually(lambda: prompt.manager.on_schedule_end(None) or call.done)
    assert call.completion.status is Status.CANCELLED


def test_after_a_reset_no_peer_is_asked_or_named(pair):
    """Names are this engine's own then."""
    pair.stored(2)
    prompt = pair.prompt(wait=True, address="here:1")
    fetches = prompt.manager.fetches
    assert fetches.answer == {"kvtier_peer": "here:1", "kvtier_wait": True}
    assert prompt.match() == (None, False)
    prompt.manager.reset_cache()
    assert prompt.match() == (0, False)
    prompt.finish()
    prompt.ask("two", params={"kvtier_peer": pair.far.address, "kvtier_wait": True})
    assert prompt.match() == (0, False)
    assert fetches.answer == {}


def test_prompts_too_long_for_one_call_are_not_asked_for(pair, monkeypatch):
    monkeypatch.setattr("kvtier.vllm.fetches.OBJECTS_MAX", 3)
    pair.stored(4)
    prompt = pair.prompt()
    assert prompt.found() == 0
    assert outcomes(prompt) == {}


def test_an_engine_without_an_address_says_nothing(pair):
    assert pair.prompt(params={}).manager.fetches.answer == {}


def test_names_of_peers_are_checked_at_the_start():
    given = {"kvtier_peer": "a:1", "kvtier_address": "b:2", "kvtier_peer_timeout": 3}
    options = Options.of(given)
    assert (options.peer, options.address, options.peer_timeout) == ("a:1", "b:2", 3.0)
    for wrong in ("x" * 64, "a\tb", 7):
        for name in ("kvtier_peer", "kvtier_address"):
            with pytest.raises(ValueError, match=name):
                Options.of({name: wrong})
