# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side and a worker's, each without an engine around it."""
import hashlib
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_offload.base import ReqContext, make_offload_key

from kvtier import Codec, Status
from kvtier.refusal import Refused
from kvtier.vllm.options import Options
from fake_gpu import Driver
from kvtierd import eventually
from sides import PAGE_BYTES, PAGE_TOKENS, PAGES, Prompt, Side, blocks, digest


@pytest.fixture
def side(daemon):
    """side(...): a Side of the daemon, closed after the test."""
    sides = []

    def make(**options):
        sides.append(Side(daemon, **options))
        return sides[-1]

    yield make
    for made in sides:
        made.close()


def test_a_job_ends_with_the_last_of_its_calls(daemon, side):
    """A load that begins within a chunk takes two, and here neither can be submitted."""
    one = side(per_chunk=2)
    worker = one.worker()
    spec, _ = one.chain(2)
    daemon.stop()
    eventually(lambda: not one.session.info().attached)
    worker.submit_load(1, spec, blocks([1, 2, 3], first=1))
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (1, False)
    worker.submit_load(2, spec, blocks([1, 2, 3], first=1))
    worker.wait({2})
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (2, False)


def test_keys_out_of_order_cost_their_jobs_and_are_logged_once(side, caplog, monkeypatch):
    """vLLM keeps its log to itself."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    one = side()
    worker = one.worker()
    spec, digests = one.chain(2)
    mixed = replace(spec, groups=[1, 0])
    assert worker.submit_store(1, blocks([1, 2]), mixed)
    assert worker.submit_load(2, mixed, blocks([3, 4]))
    worker.wait({1, 2})
    results = {result.job_id: result for result in worker.get_finished()}
    assert (results[1].transfer_size, results[2].success) == (0, False)
    assert len([line for line in caplog.messages if "in order of their groups" in line]) == 1
    worker.submit_store(3, blocks([1, 2]), spec)
    worker.wait({3})
    present, _ = one.session.probe(b"".join(digests))
    assert list(present) == [1, 1]


def test_one_rank_stores_all_of_what_every_rank_holds(side):
    """vLLM tells the first rank alone to store it."""
    one = side(n_ranks=2)
    worker = one.worker()
    spec, digests = one.chain(4)
    worker.submit_store(1, blocks([1, 2, 3, 4]), spec)
    worker.wait({1})
    present, _ = one.session.probe(b"".join(digests))
    assert list(present) == [1, 1, 1, 1]


def test_stores_of_a_step_may_be_more_than_a_call_takes(side, monkeypatch):
    monkeypatch.setattr("kvtier.vllm.worker.OBJECTS_MAX", 2)
    one = side()
    worker = one.worker()
    spec, digests = one.chain(5)
    worker.submit_store(1, blocks([1, 2, 3, 4, 5]), spec)
    worker.flush()
    assert [len(items) for items in worker._calls.values()] == [2, 2, 1]
    worker.wait({1})
    [result] = worker.get_finished()
    assert (result.job_id, result.success, result.transfer_size) == (1, True, 5 * PAGE_BYTES)
    present, _ = one.session.probe(b"".join(digests))
    assert list(present) == [1] * 5


def test_pages_with_a_codec_come_back_within_its_bounds(side):
    numbers = torch.randn(PAGES, PAGE_BYTES // 2).to(torch.bfloat16)
    one = side(pages=numbers.view(torch.int8), codec=Codec.FP8_TILE128)
    assert one.engine.layout().groups[0].codec is Codec.FP8_TILE128
    sent = numbers[[1, 2]].float()
    worker = one.worker()
    spec, digests = one.chain(2)
    worker.submit_store(1, blocks([1, 2]), spec)
    worker.wait({1})
    worker.submit_load(2, spec, blocks([5, 4]))
    worker.wait({2})
    assert all(result.success for result in worker.get_finished())
    back = numbers[[5, 4]].float()
    largest = sent.view(-1, 128).abs().amax(1, keepdim=True)
    assert ((back - sent).view(-1, 128).abs() <= largest / 25).all()
    assert not torch.equal(back, sent)


def test_pages_on_a_gpu_are_moved_behind_the_models_stream(side, request, monkeypatch):
    build = Path(request.config.getoption("--build")).resolve()
    driver = Driver(build / "tests/support/libfake_cuda.so")
    monkeypatch.setenv("KVT_CUDA_DRIVER", driver.path)
    asked = []

    class Stream:
        def __init__(self, device):
            assert device.type == "cuda"

        def record_event(self):
            asked.append(driver.event())
            return SimpleNamespace(cuda_event=asked[-1])

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    one = side(pages=driver.tensor((PAGES, PAGE_BYTES), 1), gpu_staging_mib=1)
    worker = one.worker()
    spec, _ = one.chain(3)
    worker.submit_store(1, blocks([1, 2, 3]), spec)
    worker.wait({1})
    worker.submit_load(2, spec, blocks([5, 7, 6]))
    worker.wait({2})
    assert all(result.success for result in worker.get_finished())
    assert (one.pages.host[[5, 7, 6]] == one.pages.host[[1, 2, 3]]).all()
    assert len(asked) == 2


def test_what_copies_may_take_of_a_gpu_is_a_number():
    given = {"kvtier_gpu_staging_mib": 32, "kvtier_gpu_blocks": 8}
    options = Options.of(given)
    assert (options.gpu_staging_mib, options.gpu_blocks) == (32, 8)
    for wrong in (-1, 1.5, True, "64"):
        with pytest.raises(ValueError, match="kvtier_gpu_blocks"):
            Options.of({"kvtier_gpu_blocks": wrong})


def test_pages_on_a_gpu_without_a_driver_are_refused(side, monkeypatch):
    monkeypatch.setenv("KVT_CUDA_DRIVER", "/none")
    device = torch.device("cuda", 0)
    pages = SimpleNamespace(device=device, shape=(PAGES, PAGE_BYTES))
    with pytest.raises(Refused, match="UNAVAILABLE"):
        side(pages=pages).worker()


def request_of(manager, name, computed):
    """Its context; of one chunk."""
    context = ReqContext(name)
    context._offload_key_positions[key(name)] = PAGE_TOKENS
    manager.on_new_request(context)
    manager.watch(
        SimpleNamespace(
            request_id=name,
            num_computed_tokens=computed,
            block_hashes=[key(name)[:-4]],
            skip_reading_prefix_cache=False,
        )
    )
    return context


def key(name):
    return make_offload_key(hashlib.sha256(name.encode()).digest(), 0)


def test_what_was_computed_before_a_reset_is_not_stored_after_it(side):
    manager = side().manager()
    running, waiting = request_of(manager, "running", 16), request_of(manager, "waiting", 0)
    assert manager.prepare_store([key("running")], running).keys_to_store == [key("running")]
    manager.reset_cache()
    assert manager.prepare_store([key("running")], running).keys_to_store == []
    assert manager.prepare_store([key("waiting")], waiting).keys_to_store == [key("waiting")]


@pytest.mark.parametrize("value, bypasses", [(True, True), (False, False), ("yes", False)])
def test_a_request_that_bypasses_finds_nothing_and_leaves_nothing(side, value, bypasses):
    prompt = Prompt(side(), n_stored=3)
    prompt.ask("two", params={"kvtier_bypass": value})
    assert prompt.found() == (0 if bypasses else 3)
    stored = prompt.manager.prepare_store(prompt.keys, prompt.context).keys_to_store
    assert stored == ([] if bypasses else prompt.keys[3:])
    prompt.finish()


def test_a_granted_lease_waits_no_longer_than_a_load(side):
    """vLLM has no room for the request."""
    prompt = Prompt(side(load_timeout=0.5))
    assert prompt.found() == 4
    assert prompt.leases()
    eventually(lambda: not prompt.leases())
    # Not even what has been stored since.
    assert prompt.found() == 0
    prompt.finish()


def test_a_lease_ends_with_its_request(side):
    prompt = Prompt(side())
    assert prompt.found() == 4
    assert prompt.leases()
    prompt.finish()
    eventually(lambda: not prompt.leases())


@pytest.mark.parametrize("answered", [True, False])
def test_an_acquire_whose_request_has_gone_holds_nothing(side, daemon, answered):
    """Its answer is on its way, or has come and nobody has looked."""
    prompt = Prompt(side())
    manager = prompt.manager
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        # Until it stands still: it could answer before that.
        os.waitpid(daemon.process.pid, os.WUNTRACED)
        asked = manager.match(prompt.request, 0, lambda: prompt.search(0))
        assert asked == (None, False)
        if not answered:
            prompt.finish()
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    if answered:
        eventually(lambda: daemon.metric("leases") == prompt.n)
        prompt.finish()
    assert manager.has_pending_work()
    eventually(lambda: manager.on_schedule_end(None) or not manager.has_pending_work())
    eventually(lambda: daemon.metric("leases") == 0)


def test_a_release_that_was_refused_is_made_again(side, monkeypatch):
    """The library takes only so many calls at a time."""
    one = side()
    prompt = Prompt(one)
    assert prompt.found() == 4
    release = one.scheduler.release_objects
    refused = SimpleNamespace(done=True, completion=SimpleNamespace(status=Status.REFUSED))
    monkeypatch.setattr(one.scheduler, "release_objects", lambda *_, **__: refused)
    prompt.finish()
    assert prompt.leases() and prompt.manager.has_pending_work()
    monkeypatch.setattr(one.scheduler, "release_objects", release)
    eventually(lambda: not prompt.leases())
    assert not prompt.manager.has_pending_work()


def test_a_local_prefix_that_shrinks_is_leased_as_well(side):
    prompt = Prompt(side())
    assert prompt.found(local=2) == 2
    assert prompt.found(local=1) == 3
    spec = prompt.manager.prepare_load(prompt.keys[1:], prompt.context)
    worker = prompt.one.worker()
    worker.submit_load(7, spec, blocks([5, 6, 7], first=1), expedited=True)
    worker.wait({7})
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (7, True)
    assert (prompt.one.pages[5:] == prompt.one.pages[1:4]).all()
    prompt.manager.complete_load(prompt.keys[1:], prompt.context)
    prompt.finish()
    eventually(lambda: not prompt.leases())


def test_what_a_search_found_is_told_once(side, daemon):
    """A prompt of four chunks and a half, of which three are stored and one is vLLM's own."""

    def told():
        names = ("prompts", *(f"prompt_{part}tokens" for part in ("", "tail_", "kv_", "hit_")))
        return [daemon.metric(f"{name}_total") for name in names]

    prompt = Prompt(side(), n=4, n_stored=3)
    prompt.request.num_tokens += PAGE_TOKENS // 2
    assert prompt.found(local=1) == prompt.found(local=1) == 2
    tokens = [3.5, 0.5, 2, 2]
    eventually(lambda: told() == [1, *(n * PAGE_TOKENS for n in tokens)])
    prompt.finish()

    prompt.ask("two")
    assert prompt.found(local=4) == 0
    tokens = [3.5, 0.5, 2, 2]
    eventually(lambda: told() == [2, *(n * PAGE_TOKENS for n in tokens)])
    prompt.finish()

    # What bypasses was not looked for.
    for name, bypasses in (("three", True), ("four", False)):
        prompt.ask(name, params={"kvtier_bypass": bypasses})
        assert prompt.found(local=0 if bypasses else 4) == 0
        prompt.finish()
    eventually(lambda: told() == [3, *(n * PAGE_TOKENS for n in tokens)])


def test_what_is_lost_of_a_prompt_costs_what_comes_after_it(side):
    prompt = Prompt(side())
    prompt.finish()
    plan_of = prompt.manager._plans
    prompt.ask("two")
    scheduler = prompt.one.scheduler
    table = scheduler.probe
    everything = memoryview(bytearray(b"\1" + bytes(7)) * 5).cast("Q")
    prompt.digests.append(digest(99))
    prompt.n = 5
    scheduler.probe = lambda _: (everything, everything)
    assert prompt.found() == 4
    scheduler.probe = table
    assert plan_of["two"].lost == [(4, 1)]
    prompt.finish()
