# SPDX-License-Identifier: Apache-2.0
"""vLLM over kvtierd: what comes back from a store is what would have been computed."""
import re
import signal

from conftest import SALTS
from kvtierd import eventually
from models import BLOCK


def same(answers, references):
    """Tokens and log probabilities, to the last bit."""
    for answer, reference in zip(answers, references, strict=True):
        assert answer["tokens"] == reference["tokens"]
        assert answer["logprobs"] == reference["logprobs"]


def found(answers):
    return [answer["found"] for answer in answers]


def expected(case):
    """Of prompts of 4 blocks less a token, exactly, and one more. The last token of a prompt
    is computed in any case: what holds a state of the whole prompt is of no use for it."""
    whole = 3 * BLOCK if case.has_state else 4 * BLOCK
    return [3 * BLOCK, whole, 4 * BLOCK]


def find_again(case, engine):
    """Once the engine's session has heard of the daemon."""

    def all_found():
        engine.forget()
        answers = engine.generate(*case.boundaries)
        same(answers, case.plain)
        return found(answers) == expected(case)

    eventually(all_found, seconds=60)


def test_blocks_are_as_the_tests_take_them(case, engine):
    assert engine.block_tokens == BLOCK


def test_another_process_finds_what_the_first_stored(case, engine):
    acquires = engine.metric("acquires")
    answers = engine.generate(*case.boundaries)
    same(answers, case.plain)
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
    assert tenant["found"] == 3 * BLOCK
    same([tenant], [case.plain_salted])


def test_a_daemon_that_was_restarted_has_it_on_disk(case, engine):
    case.daemon.restart()
    find_again(case, engine)


def test_corrupted_pages_are_computed_again(case, engine):
    """The second chunk of all prompts, as it lies on disk."""
    case.daemon.stop()
    needles = {first for group, end, first in case.stored if end == 2 * BLOCK}
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
        same(answers, case.plain)
        return found(answers) == [0 if case.has_state else BLOCK] * 3

    eventually(some_found, seconds=60)
    # They have been stored anew.
    find_again(case, engine)


def test_a_daemon_that_dies_before_the_load_costs_a_prefill(case, engine):
    find_again(case, engine)
    engine.forget()
    failed = engine.metric("loads_failed")
    engine.ask(kill_at_load=case.daemon.process.pid)
    answers = engine.generate(case.boundaries[2])
    same(answers, case.plain[2:])
    assert found(answers) == [0]
    assert engine.metric("loads_failed") == failed + 1
    assert case.daemon.process.wait() == -signal.SIGKILL


def test_without_a_daemon_the_engine_goes_on(case, engine):
    case.daemon.stop(signal.SIGKILL)
    answers = engine.generate(*case.boundaries)
    same(answers, case.plain)
    assert found(answers) == [0] * 3
    [stranger] = engine.generate(case.salted, salts=[SALTS[0]])
    same([stranger], [case.plain_salted])
    complaints = [line for line in engine.lines() if "kvtier: no daemon" in line]
    case.daemon.start()
    find_again(case, engine)
    assert len([line for line in engine.lines() if "kvtier: no daemon" in line]) <= (
        len(complaints) + 1
    )


def test_a_reset_finds_nothing_of_before(case, engine):
    """Weights may have been loaded anew."""
    find_again(case, engine)
    assert engine.ask(reset=True)
    answers = engine.generate(*case.boundaries)
    same(answers, case.plain)
    assert found(answers) == [0] * 3
    find_again(case, engine)
