# SPDX-License-Identifier: Apache-2.0
"""vLLM over kvtierd: what comes back from a store is what would have been computed."""
import re
import signal

import pytest
from conftest import SALTS, found
from kvtierd import eventually
from models import TOLERANCE_TOGETHER


def expected(case):
    """Of prompts of 4 blocks less a token, exactly, and one more. The last token of a prompt
    is computed in any case: a state or a window of the whole prompt is of no use for it."""
    whole = 4 if case.attention_only else 3
    return [blocks * case.block for blocks in (3, whole, 4)]


def find_again(case, engine):
    """Once the engine's session has heard of the daemon."""

    def all_found():
        engine.forget()
        answers = engine.generate(*case.boundaries)
        case.same(answers, case.plain)
        return found(answers) == expected(case)

    eventually(all_found, seconds=60)


def finds(case, engine, prompt, plain):
    """Whether it is all found, whatever is; the answer has to be right in any case."""
    engine.forget()
    answers = engine.generate(prompt)
    case.same(answers, [plain])
    return found(answers) == [len(prompt) // case.block * case.block]


def find_each(case, engine):
    """The working set, a prompt at a time."""
    for prompt, plain in zip(case.many, case.plain_many):
        assert finds(case, engine, prompt, plain)


def test_another_process_finds_what_the_first_stored(case, engine):
    acquires = engine.metric("acquires")
    answers = engine.generate(*case.boundaries)
    case.same(answers, case.plain)
    assert found(answers) == expected(case)
    assert engine.metric("attached") == 1
    # One message for each request, however often it was looked up.
    assert engine.metric("acquires") == acquires + len(answers)


def test_metrics_are_on_the_prometheus_page_of_vllm(case, engine):
    engine.generate(*case.boundaries)
    page = engine.ask(page=True)
    for pattern in (
        r"vllm:kvtier_attached\{.*\} 1\.0",
        r'vllm:kvtier_acquires_total\{.*status="OK".*\} [1-9]',
        r"vllm:kvtier_keys_loaded_total\{.*\} [1-9]",
        r"# HELP vllm:kvtier_loads_failed_total .*recomputed",
    ):
        assert [line for line in page if re.match(pattern, line)], pattern


def test_every_layer_names_the_backend_that_vllm_chose(engine):
    backends = engine.ask(backends=True)
    assert backends and all(name and name != "auto" for name in backends.values())


def test_what_is_stored_is_not_stored_again(case, engine):
    engine.generate(*case.boundaries)
    assert engine.ask(stored=True) == []


def test_a_salt_finds_only_its_own(case, engine):
    [stranger] = engine.generate(case.salted)
    assert stranger["found"] == 0
    [stranger] = engine.generate(case.salted, salts=[SALTS[1]])
    assert stranger["found"] == 0
    [tenant] = engine.generate(case.salted, salts=[SALTS[0]])
    assert tenant["found"] == 3 * case.block
    case.same([tenant], [case.plain_salted])


def test_a_daemon_that_was_restarted_has_it_on_disk(case, engine):
    case.daemon.restart()
    find_again(case, engine)
    assert case.daemon.metric('hits_total{tier="nvme"}') > 0
    assert case.daemon.metric('hits_total{tier="host"}') == 0


def test_an_arena_that_holds_a_part_is_filled_from_disk(case, engine):
    """Everything is found again, although there is never room for all of it."""
    first = case.many[0], case.plain_many[0]
    case.daemon.restart()
    eventually(lambda: finds(case, engine, *first), seconds=60)
    find_each(case, engine)
    needed = case.daemon.metric('tier_read_bytes_total{tier="nvme"}')
    case.daemon.restart(arena=f"{max(1, int(needed) >> 21)}MiB")
    eventually(lambda: finds(case, engine, *first), seconds=60)
    find_each(case, engine)
    read = case.daemon.metric('tier_read_bytes_total{tier="nvme"}')
    find_each(case, engine)
    assert case.daemon.metric('tier_read_bytes_total{tier="nvme"}') > read
    # All at once they do not fit: who is told so computes.
    engine.forget()
    case.same(engine.generate(*case.many), case.plain_many, TOLERANCE_TOGETHER)
    case.daemon.restart()
    find_again(case, engine)


def test_corrupted_pages_are_computed_again(case, engine):
    """The second chunk of all prompts, as it lies on disk."""
    case.daemon.stop()
    needles = {first for group, end, first in case.stored if end == 2 * case.block}
    data = bytearray(case.daemon.disk.read_bytes())
    for needle in needles:
        places = [place.start() for place in re.finditer(re.escape(bytes.fromhex(needle)), data)]
        for place in places:
            data[place] ^= 1
        assert places
    case.daemon.disk.write_bytes(data)
    case.daemon.start()

    def some_found():
        engine.forget()
        answers = engine.generate(*case.boundaries)
        case.same(answers, case.plain)
        return found(answers) == [case.block if case.attention_only else 0] * 3

    eventually(some_found, seconds=60)
    # They have been stored anew.
    find_again(case, engine)


@pytest.mark.parametrize("when", ["kill_before_load", "kill_amid_load"])
def test_a_daemon_that_dies_costs_a_prefill(case, engine, when):
    case.daemon.restart()
    find_again(case, engine)
    engine.forget()
    failed = engine.metric("loads_failed")
    engine.ask(**{when: case.daemon.process.pid})
    answers = engine.generate(case.boundaries[2])
    case.same(answers, case.plain[2:])
    assert found(answers) == [0]
    assert engine.metric("loads_failed") == failed + 1
    assert case.daemon.stop() == -signal.SIGKILL


def test_without_a_daemon_the_engine_goes_on(case, engine):
    case.daemon.stop(signal.SIGKILL)
    answers = engine.generate(*case.boundaries)
    case.same(answers, case.plain)
    assert found(answers) == [0] * 3
    [stranger] = engine.generate(case.salted, salts=[SALTS[0]])
    case.same([stranger], [case.plain_salted])
    complaints = len(engine.lines_with("kvtier: no daemon"))
    case.daemon.start()
    find_again(case, engine)
    assert len(engine.lines_with("kvtier: no daemon")) <= complaints + 1


def test_a_reset_finds_nothing_of_before(case, engine):
    """Weights may have been loaded anew."""
    find_again(case, engine)
    assert engine.ask(reset=True)
    answers = engine.generate(*case.boundaries)
    case.same(answers, case.plain)
    assert found(answers) == [0] * 3
    find_again(case, engine)


def test_an_engine_that_comes_after_restarts_of_both_finds_it(case, neighbour):
    answers = neighbour.generate(*case.boundaries)
    case.same(answers, case.plain)
    assert found(answers) == expected(case)


def test_prompts_that_were_evicted_are_found_again(case, neighbour):
    """Of eight prompts the engine itself keeps one."""
    neighbour.generate(*case.many)
    loaded = neighbour.metric("keys_loaded")
    for prompt, plain in zip(case.many, case.plain_many):
        answers = neighbour.generate(prompt)
        case.same(answers, [plain])
        assert found(answers) == [6 * case.block]
    assert neighbour.metric("keys_loaded") >= loaded + 6 * 6


def test_prompts_that_do_not_fit_together_are_computed_all_the_same(case, neighbour):
    neighbour.forget()
    case.same(neighbour.generate(*case.many), case.plain_many, TOLERANCE_TOGETHER)


def test_two_engines_at_once_find_what_the_other_stores(case, engine, neighbour):
    pair = [case.prompt(5, 3), case.prompt(5, 4)]
    for one, other, prompt in zip((engine, neighbour), (neighbour, engine), pair):
        [plain] = case.uncached(one, [prompt])
        # vLLM stores with the step that follows.
        eventually(lambda: one.generate(prompt) and finds(case, other, prompt, plain))
    # Both load, and compute, the same at the same time.
    fresh = case.prompt(5, 6)
    for one in (engine, neighbour):
        one.forget()
        one.send(prompts=[*pair, fresh])
    answers = [one.answer() for one in (engine, neighbour)]
    case.same(*answers, TOLERANCE_TOGETHER)
    for answer in answers:
        assert found(answer)[:2] == [5 * case.block] * 2
