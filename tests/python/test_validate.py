# SPDX-License-Identifier: Apache-2.0
"""kvtier-validate against a server whose faults are known."""
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_server import MODEL, FakeServer
from kvtier.validate import answer, caches, record, stability
from kvtier.validate.chart import chart
from kvtier.validate.command import main
from kvtier.validate.counters import TIMEOUT_S, Counters
from kvtier.validate.engine import Engine, Timeouts
from kvtier.validate.figures import percentile
from kvtier.validate.prompts import Prompts
from kvtier.validate.stability import StabilityStep
from kvtier.validate.verdict import judge

FUNCTION = ("--steps", "function", "--prompts", "2", "--prompt-tokens", "64", "--output-tokens", "6")


@pytest.fixture(autouse=True)
def haste(monkeypatch):
    """This server stores at once, or never."""
    for name, seconds in (("FIRST_S", 0.3), ("BLIND_S", 0.0), ("POLL_S", 0.02)):
        monkeypatch.setattr(caches, name, seconds)


@pytest.fixture
def serve():
    servers = []

    def start(**faults):
        servers.append(FakeServer(**faults))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def validate(tmp_path, capsys):
    """Runs it; the exit status, standard error, and report.json if there is one."""

    def run(server, *arguments, counters=True):
        given = ["--engine", getattr(server, "url", server), "--out", str(tmp_path / "out")]
        if counters:
            given += ["--kvtierd", f"{server.url}/kvtierd"]
        status = main([*given, *arguments])
        path = tmp_path / "out" / "report.json"
        return status, capsys.readouterr().err, json.loads(path.read_text()) if path.exists() else {}

    return run


def causes(report):
    return [one["cause"] for one in report["steps"]["function"]]


def spoil(server, is_wrong):
    """Other tokens than the right ones, and sure of them, where is_wrong(place, cache, body)."""
    plain = server.answer

    def spoilt(body, where):
        for i, (token, likely) in enumerate(plain(body, where)):
            wrong = {f"token_id:{token + 5000}": -0.001, f"token_id:{token}": -12.0}
            yield (token + 5000, wrong) if is_wrong(i, where, body) else (token, likely)

    server.answer = spoilt


def when(server, n, happens):
    """Calls it once, at the nth answer."""
    plain, calls = server.answer, itertools.count(1)

    def counting(body, where):
        if next(calls) == n:
            happens()
        return plain(body, where)

    server.answer = counting


def served(report):
    return [one["served"] for one in report["steps"]["function"]]


# ---- function ----


def test_what_kvtier_serves_rightly_is_fine(serve, validate, tmp_path):
    server = serve()
    status, _, report = validate(server, *FUNCTION, "--require-proof")
    assert status == 0
    assert causes(report) == ["equal"] * 2 and served(report) == [True] * 2
    for one in report["steps"]["function"]:
        assert one["proof"] == "kvtierd: 1 objects found"
        assert {run: row["equal_tokens"] for run, row in one["compared"].items()} == {
            "again": 6, "own": 6, "cold": 6, "warm": 6
        }  # fmt: skip
    # What was to find nothing left nothing either.
    assert [salt for salt, _ in server.kvtier if salt] == []
    page = (tmp_path / "out" / "report.html").read_text()
    assert "function: fine: 2 of 2" in page and "<svg" in page
    assert "a &lt;b&gt;model" in page and MODEL not in page
    assert not re.search(r"(src|href)=", page)


def test_llama_server_that_goes_on_from_its_own_cache_is_not_accused(serve, validate):
    status, _, report = validate(serve(llama=True, recuts=True), *FUNCTION)
    assert status == 0 and causes(report) == ["equal"] * 2
    for one in report["steps"]["function"]:
        assert one["compared"]["cold"]["logprob_error"] == pytest.approx(0.25)
        assert one["proof"] == "kvtierd: 0 objects found" and one["served"] is False


def test_llama_server_whose_cache_is_never_empty_proves_nothing(serve, validate):
    status, _, report = validate(serve(llama=True), *FUNCTION, counters=False)
    assert status == 0 and served(report) == [None] * 2
    for one in report["steps"]["function"]:
        assert one["proof"].startswith("the engine's own cache had the prompt when it was cold")


def test_what_kvtier_spoils_in_llama_server_is_found(serve, validate):
    # Its own cache holds one prompt, and the fillers push it out.
    server = serve(llama=True, recuts=True, wrong_token=True, own_max=70)
    status, _, report = validate(server, *FUNCTION)
    assert status == 1 and causes(report) == ["cache"] * 2


def test_a_wrong_token_is_the_fault_of_the_cache(serve, validate):
    status, _, report = validate(serve(wrong_token=True), *FUNCTION)
    assert status == 1
    assert causes(report) == ["cache"] * 2
    [one, _] = report["steps"]["function"]
    assert one["position"] == 3 and one["compared"]["warm"]["equal_tokens"] == 3
    assert report["summary"][0] == "function: WRONG: kvtier spoilt 2 of 2 prompts"


def test_wrong_log_probabilities_are_too_though_tokens_are_equal(serve, validate):
    server = serve(wrong_logprob=True)
    status, _, report = validate(server, *FUNCTION)
    assert status == 1
    assert causes(report) == ["cache"] * 2
    assert report["steps"]["function"][0]["compared"]["warm"]["logprob_error"] == pytest.approx(1)


def test_they_may_be_tolerated(serve, validate):
    status, _, report = validate(serve(wrong_logprob=True), *FUNCTION, "--tolerance", "1.5")
    assert (status, causes(report)) == (0, ["equal"] * 2)


@pytest.mark.parametrize(
    "fault, cause", [("noisy", "engine"), ("cut", "prefix"), ("rounds", "rounding")]
)
def test_an_engine_that_differs_by_itself_is_told_from_the_cache(serve, validate, fault, cause):
    status, _, report = validate(serve(**{fault: True}), *FUNCTION)
    assert status == 0
    assert causes(report) == [cause] * 2
    assert report["steps"]["function"][0]["position"] == (2 if fault == "noisy" else 3)


def test_a_wrong_token_before_the_engines_own_noise_is_of_the_cache(serve, validate):
    """Token 2 differs from run to run, and so is no witness of what came with token 1."""
    server = serve(noisy=True)
    spoil(server, lambda i, where, body: i == 1 and where == "kvtier")
    status, _, report = validate(server, *FUNCTION)
    assert (status, causes(report)) == (1, ["cache"] * 2)


def test_the_engines_own_noise_excuses_no_wrong_token_behind_it(serve, validate):
    server = serve(noisy=True)
    spoil(server, lambda i, where, body: i >= 2 and where == "kvtier")
    status, _, report = validate(server, *FUNCTION)
    assert (status, causes(report)) == (1, ["cache"] * 2)


def test_an_engine_that_is_far_from_itself_proves_nothing(serve, validate):
    server = serve(wild=True)
    status, _, report = validate(server, *FUNCTION)
    assert (status, causes(report)) == (0, ["undecided"] * 2)
    assert "NOT PROVEN for 2 of 2" in report["summary"][0]
    assert validate(server, *FUNCTION, "--resume", "--require-proof")[0] == 1


def test_a_cold_answer_is_judged_too(serve, validate):
    """Bytes that are right when they are read, of an engine that is disturbed while it stores."""
    server = serve()
    spoil(server, lambda i, where, body: i >= 1 and not where and not body.get("cache_salt"))
    status, _, report = validate(server, *FUNCTION, "--require-proof")
    assert (status, causes(report)) == (1, ["cache"] * 2)
    [one, _] = report["steps"]["function"]
    assert (one["run"], one["position"]) == ("cold", 1) and one["text"].startswith("cold: token 1")
    assert one["compared"]["warm"]["equal_tokens"] == 6


# ---- verdicts ----


def said(*places):
    """An answer of (token, its log probability, the next likely one, that one's) for each place."""
    likely = [{str(token): lp, str(other): lp2} for token, lp, other, lp2 in places]
    return answer.Answer(tokens=[one[0] for one in places], likely=likely, finished=True)


def cause(bypass, again, own, warm, tolerance=0.05):
    return judge(bypass, again, own, warm, tolerance).cause


SURE = (1, -0.1, 2, -3.0)


def test_what_the_engines_own_prefix_differs_by_kvtiers_may_too():
    right = said((1, -1.0, 2, -3.0))
    own, warm, far = (said((1, lp, 2, -3.0)) for lp in (-1.2, -0.85, -0.5))
    assert cause(right, right, own, warm) == "equal"
    assert cause(right, right, None, warm) == "cache"
    assert cause(right, right, own, far) == "cache"


def test_noise_elsewhere_excuses_nothing():
    right = said(SURE, SURE, (5, -0.70, 6, -0.90))
    again = said(SURE, SURE, (6, -0.70, 5, -1.00))
    wrong = said((1, -0.5, 2, -3.0), SURE, (6, -0.70, 5, -0.90))
    assert cause(right, again, None, wrong) == "cache"
    text = judge(right, again, None, wrong, 0.05).text
    assert "of token 0 differ by 0.4, in the engine's own runs by 0 up to there" in text
    assert cause(right, again, None, said(SURE, SURE, (6, -0.69, 5, -0.80))) == "engine"
    assert cause(right, again, None, said(SURE, SURE, (9, -0.01, 6, -5.0))) == "cache"


def test_what_goes_on_like_the_engines_own_prefix_up_to_there_is_prefix():
    right = said(SURE, (2, -0.70, 9, -0.75), SURE, SURE)
    own = said(SURE, (9, -0.62, 2, -0.80), (5, -0.69, 7, -0.71), SURE)
    warm = said(SURE, (9, -0.61, 2, -0.81), (7, -0.69, 5, -0.71), SURE)
    assert cause(right, right, own, warm) == "prefix"
    other = said(SURE, (3, -0.2, 2, -1.5), (7, -0.69, 5, -0.71), SURE)
    assert cause(right, right, own, other) == "cache"


def test_without_log_probabilities_noise_proves_nothing():
    right, again, wrong = (
        answer.Answer(tokens=tokens, finished=True) for tokens in ([1, 2, 3], [1, 2, 4], [1, 2, 5])
    )
    assert cause(right, again, None, wrong) == "undecided"
    assert cause(right, right, None, wrong) == "cache"
    assert cause(right, right, wrong, wrong) == "prefix"


def test_what_is_no_number_is_far():
    assert cause(said(SURE), said(SURE), None, said((1, math.nan, 2, -3.0))) == "cache"


def test_a_likely_token_that_the_other_run_does_not_list_is_far():
    assert cause(said((5, -0.7, 8, -2.0)), said((5, -0.7, 8, -2.0)), None,
                 said((9, -0.1, 8, -2.0))) == "cache"  # fmt: skip


def test_what_no_counter_shows_is_not_proven(serve, validate):
    server = serve(no_kvtier_metrics=True)
    status, _, report = validate(server, *FUNCTION, counters=False)
    assert status == 0 and served(report) == [None] * 2
    assert "NOT PROVEN for 2 of 2" in report["summary"][0]


def test_proof_may_be_required(serve, validate):
    server = serve(no_kvtier_metrics=True)
    assert validate(server, *FUNCTION, "--require-proof", counters=False)[0] == 1


def test_the_engines_own_counters_prove_it_too(serve, validate):
    _, _, report = validate(serve(), *FUNCTION, counters=False)
    assert served(report) == [True] * 2
    assert report["steps"]["function"][0]["proof"].startswith("the engine's connector")


def test_a_cache_that_keeps_nothing_has_not_served(serve, validate):
    status, _, report = validate(serve(forgets=True), *FUNCTION, "--require-proof")
    assert (status, served(report)) == (1, [False] * 2)


def test_without_a_reset_the_engines_own_cache_is_filled(serve, validate):
    server = serve(no_reset=True, own_max=10_000)
    status, _, report = validate(server, *FUNCTION)
    assert status == 0 and served(report) == [True] * 2
    assert re.fullmatch(r"\d filler prompts of 2048 tokens", report["steps"]["function"][0]["eviction"])


def test_what_the_engines_own_cache_may_have_served_is_not_proven(serve, validate):
    """It has no reset, and is too large to be filled: a clear error, not a false proof."""
    server = serve(no_reset=True)
    status, error, _ = validate(server, *FUNCTION)
    assert status == 3 and "let it have its reset call" in error


# ---- a server that fails ----


@pytest.mark.parametrize(
    "faults, options, error",
    [
        (dict(dies=2), (), "the stream ended after 2 tokens"),
        (dict(stalls=2), ("--stall-timeout", "0.5"), "sent nothing for 0.5 s"),
        (dict(drips=0.3), ("--request-timeout", "0.5"), "took more than 0.5 s"),
        (dict(fails=1), (), "HTTP 500: out of order"),
        (dict(error=1), (), "the server says in its stream: it broke"),
    ],
)
def test_a_server_that_fails_ends_it_soon(serve, validate, faults, options, error):
    began = time.monotonic()
    status, text, report = validate(serve(**faults), *FUNCTION, *options)
    assert (status, error in text) == (3, True), text
    assert time.monotonic() - began < 30  # a server that stalls does so for longer
    assert report["summary"] == ["nothing was done"]


BOUNDS = ("--stall-timeout", "1", "--request-timeout", "1.5")


@pytest.mark.parametrize(
    "path, error",
    [
        ("/v1/models", "/v1/models: took more than 1 s"),
        ("/version", "/version: took more than 1 s"),
        ("/tokenize", "/tokenize: took more than 1 s"),
        ("/v1/completions", "/v1/completions: took more than 1.5 s"),
        ("/reset_prefix_cache", "/reset_prefix_cache: took more than 1 s"),
        ("/kvtierd/metrics", "/metrics: took more than 1 s"),
    ],
)
def test_a_byte_now_and_then_is_late_too(serve, validate, monkeypatch, path, error):
    """Of headers or of a body; each comes well within the time for one."""
    monkeypatch.setattr(Counters.page, "__defaults__", (1.0,))
    status, text, _ = validate(serve(trickles=path), *FUNCTION, *BOUNDS)
    assert status == 3 and error in text, text


def test_metrics_of_an_engine_that_trickle_are_none(serve, validate, monkeypatch):
    monkeypatch.setattr(Engine.metrics, "__defaults__", (0.3,))
    assert validate(serve(trickles="/metrics"), *FUNCTION, *BOUNDS)[0] == 0


def test_pages_that_are_late_do_not_stretch_a_load(serve, validate):
    _, _, report = validate(serve(trickles="/metrics", drips=0.002), *LOAD)
    [one] = report["steps"]["stability"]
    assert one["seconds"] < TIMEOUT_S  # of one page alone
    assert one["requests"] > 0 and "engine resident" not in one["memory"]


@pytest.mark.parametrize("path", ["/v1/models", "/kvtierd/metrics"])
def test_a_body_without_an_end_is_refused(serve, validate, path):
    status, text, _ = validate(serve(floods=path), *FUNCTION)
    assert status == 3 and "answers with more than 16777216 bytes" in text


NO_EVENTS = [
    {"choices": ["x"]},
    {"choices": 5},
    {"usage": 5},
    {"usage": {"prompt_tokens": "many"}},
    {"usage": {"prompt_tokens_details": 3}},
    {"choices": [{"logprobs": "x"}]},
    {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": ["x"]}}]},
    {"choices": [{"logprobs": {"content": ["x"]}}]},
    {"choices": [{"token_ids": 5}]},
    {"choices": [{"token_ids": [[1]]}]},
    {"choices": [{"text": 7}]},
    ["no object"],
]


@pytest.mark.parametrize("event", NO_EVENTS, ids=str)
def test_answers_of_no_form_are_the_servers_fault(serve, validate, event):
    status, text, _ = validate(serve(event=event), *FUNCTION)
    assert status == 3 and "the stream has what is no" in text, text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "models", [{"data": 5}, {"data": [{"id": 5}]}, {"data": {"a": 1}}, {"data": None}, [], 5], ids=str
)
def test_a_list_of_models_of_no_form_is_too(serve, validate, models):
    status, text, _ = validate(serve(models=models), *FUNCTION)
    assert status == 3 and "lists no model" in text


@pytest.mark.parametrize("length", [True, "4096", -1, 0, None])
def test_a_length_that_is_none_is_not_known(serve, validate, length):
    server = serve(models={"data": [{"id": MODEL, "max_model_len": length}]})
    assert validate(server, *FUNCTION)[0] == 0


def test_a_fault_of_its_own_is_not_called_wrong_bytes(serve, validate, monkeypatch):
    monkeypatch.setattr("kvtier.validate.run.token_pool", lambda *_: 1 / 0)
    status, text, _ = validate(serve(), *FUNCTION)
    assert status == 3 and "a fault of its own: ZeroDivisionError" in text


def test_nobody_there_is_said(serve, validate):
    server = serve()
    server.close()
    status, text, _ = validate(server, *FUNCTION)
    assert status == 3 and f"no connection to {server.url}" in text


def test_another_page_than_kvtierds_is_refused(serve, validate):
    server = serve()
    status, text, _ = validate(server, *FUNCTION, "--kvtierd", server.url, counters=False)
    assert status == 3 and "is no metrics page of kvtierd" in text


# ---- state ----


def test_a_run_goes_on_where_it_stopped(serve, validate):
    server = serve()
    complete = server.answer

    def once(body, where):
        if len(server.kvtier) == 2:
            server.faults["dies"] = 0
        return complete(body, where)

    server.answer = once
    status, _, report = validate(server, *FUNCTION)
    assert status == 3 and len(report["steps"]["function"]) == 1
    server.answer, seen = complete, len(server.requests)
    del server.faults["dies"]
    status, _, again = validate(server, *FUNCTION, "--resume")
    assert status == 0
    assert again["steps"]["function"][0] == report["steps"]["function"][0]
    first = tuple(server.requests[0]["prompt"])
    assert first not in [tuple(body["prompt"]) for body in server.requests[seen:]]


def test_a_finished_run_is_neither_written_over_nor_gone_on_from_differently(serve, validate):
    server = serve()
    assert validate(server, *FUNCTION)[0] == 0
    status, text, _ = validate(server, *FUNCTION)
    assert status == 2 and "is there already" in text
    status, text, _ = validate(server, *FUNCTION, "--resume", "--output-tokens", "7")
    assert status == 2 and "begun with another output_tokens: 6, now 7" in text
    seen = len(server.requests)
    assert validate(server, *FUNCTION, "--resume")[0] == 0
    assert len(server.requests) == seen


def test_what_is_resumed_asks_for_what_no_cache_has(serve, validate):
    """It broke off when all of it was stored."""
    server = serve()
    complete = server.answer

    def dying(body, where):
        server.faults.update(dies=0) if where == "kvtier" else None
        return complete(body, where)

    server.answer = dying
    options = ("--steps", "performance", "--contexts", "100", "--repeats", "2", "--output-tokens", "3")
    assert validate(server, *options)[0] == 3
    seen = len(server.requests)
    asked = {tuple(body["prompt"]) for body in server.requests}
    server.answer = complete
    del server.faults["dies"]
    status, _, report = validate(server, *options, "--resume", "--require-proof")
    assert status == 0
    [one] = report["steps"]["performance"]
    assert one["cold"]["cached_tokens"] == 0 and one["was_cold"] is True
    assert asked.isdisjoint(tuple(body["prompt"]) for body in server.requests[seen:])


def test_another_model_is_not_gone_on_with(serve, validate):
    assert validate(serve(), *FUNCTION)[0] == 0
    other = serve(models={"data": [{"id": "another", "max_model_len": 4096}]})
    status, text, _ = validate(other, *FUNCTION, "--resume")
    assert status == 2 and f"begun with another model: {MODEL!r}, now 'another'" in text
    status, text, _ = validate(serve(), *FUNCTION, "--resume", "--kind", "openai")
    assert status == 2 and "begun with another kind: 'vllm', now 'openai'" in text


# ---- performance ----


def test_performance_by_context_length(serve, validate, tmp_path):
    server = serve(prefill_s=1e-3)
    options = ("--steps", "performance", "--contexts", "100,300", "--repeats", "2")
    status, _, report = validate(server, *options, "--concurrency", "2", "--output-tokens", "5")
    assert status == 0
    short, long = report["steps"]["performance"]
    assert (short["context_tokens"], long["context_tokens"]) == (100, 300)
    for one, least in ((short, 0.1), (long, 0.3)):
        assert one["cold"]["ttft_s"] > least and one["cold"]["ttft_s"] > one["warm"]["ttft_s"] > 0
        assert one["served"] is True and one["warm"]["cached_tokens"] == one["context_tokens"]
        assert one["warm"]["output_tokens_per_s"] > one["cold"]["output_tokens_per_s"] > 0
        assert one["ttft_ratio"] == one["cold"]["ttft_s"] / one["warm"]["ttft_s"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 3


def test_usual_lengths_are_those_that_fit(serve, validate):
    options = ("--steps", "performance", "--repeats", "1", "--concurrency", "1")
    _, _, report = validate(serve(), *options, "--output-tokens", "2")
    lengths = [one["context_tokens"] for one in report["steps"]["performance"]]
    assert lengths == [512, 1024, 2048]


ONE_LENGTH = ("--steps", "performance", "--contexts", "100", "--repeats", "2", "--concurrency", "1")


@pytest.mark.parametrize(
    "says, how",
    [({}, "computed 1 of 3 prompts"), ({"no_usage": True}, "kvtierd: 2 objects found")],
)
def test_hits_of_some_prompts_are_no_proof_for_all(serve, validate, says, how):
    status, _, report = validate(serve(keeps=2, **says), *ONE_LENGTH)
    [one] = report["steps"]["performance"]
    assert (status, one["served"]) == (0, False) and how in one["proof"]
    assert "NOT all served by kvtier" in report["summary"][0]
    assert validate(serve(), *ONE_LENGTH, "--resume", "--require-proof")[0] == 1


def test_warm_figures_are_taken_again_when_stores_were_late(serve, validate):
    server = serve(keeps=0)
    # Three cold answers, the step that stores, three in vain.
    when(server, 7, lambda: server.faults.pop("keeps"))
    status, _, report = validate(server, *ONE_LENGTH, "--require-proof")
    [one] = report["steps"]["performance"]
    assert (status, one["served"], one["warm"]["cached_tokens"]) == (0, True, 100)


def test_what_a_cache_had_is_not_called_cold(serve, validate, monkeypatch):
    monkeypatch.setattr(Prompts, "make", lambda self, tokens, name: list(range(2, tokens + 2)))
    status, _, report = validate(serve(), *ONE_LENGTH, "--require-proof")
    assert status == 1 and report["steps"]["performance"][0]["was_cold"] is False
    assert "a cache had some of what was to be COLD" in report["summary"][0]


def test_usual_lengths_need_the_servers(serve, validate):
    server = serve(models={"data": [{"id": MODEL}]})
    status, text, _ = validate(server, "--steps", "performance")
    assert status == 2 and "say --contexts" in text
    assert validate(server, *ONE_LENGTH)[0] == 0


def test_certificates_are_those_of_the_system_or_of_a_file(serve, validate, tmp_path, monkeypatch):
    pem = tmp_path / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=kvtier", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem,
         "-out", tmp_path / "certificate.pem"],
        check=True, capture_output=True)  # fmt: skip
    with pem.open("a") as file:
        file.write((tmp_path / "certificate.pem").read_text())
    server = serve(tls=pem)
    status, text, _ = validate(server, *FUNCTION)
    assert status == 3 and "certificate verify failed" in text
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    status, _, report = validate(server, *FUNCTION, "--require-proof")
    assert status == 0 and served(report) == [True] * 2


def test_llama_server_tells_its_length_with_its_properties(serve):
    props = {"total_slots": 2, "default_generation_settings": {"n_ctx": 777}}
    models = {"data": [{"id": MODEL}]}
    engine = Engine(serve(models=models, props=props).url, Timeouts())
    engine.meet("llama", "")
    assert engine.tokens_max == 777 and engine.slots() == 2
    engine.close()


# ---- stability ----

LOAD = ("--steps", "stability", "--duration", "2", "--prompt-tokens", "32", "--output-tokens", "3")


def test_a_load_is_watched(serve, validate):
    status, _, report = validate(serve(drips=0.002), *LOAD, "--concurrency", "3")
    [one] = report["steps"]["stability"]
    assert status == 0
    assert one["errors"] == {} and one["requests"] > 3 and one["seconds"] > 1.9
    assert one["ttft"]["drift"] > 0 and one["leases_left"] == 0
    assert one["memory"]["kvtierd host tier"]["bytes_per_hour"] > 0
    assert one["memory"]["engine resident"]["bytes_per_hour"] == 0


def test_a_load_goes_on_where_it_stopped(serve, validate, monkeypatch):
    monkeypatch.setattr(stability, "SLICE_S", 1.0)
    server, run = serve(drips=0.002), StabilityStep.run

    def interrupted(step, part):
        if part != "load":
            raise KeyboardInterrupt
        return run(step, part)

    with monkeypatch.context() as patch:
        patch.setattr(StabilityStep, "run", interrupted)
        status, text, report = validate(server, *LOAD)
    [first] = report["steps"]["stability"]
    assert status == 130 and "--resume goes on" in text
    assert first["slices"] == 1 and first["requests"] > 0
    status, _, report = validate(server, *LOAD, "--resume")
    [one] = report["steps"]["stability"]
    assert status == 0 and one["slices"] == 2 and one["seconds"] > first["seconds"] + 0.9
    assert one["requests"] > first["requests"] and one["answers"][:10] == first["answers"][:10]
    times = [sample["s"] for sample in one["samples"]]
    assert times == sorted(times) and times[-1] > first["seconds"]


def test_a_load_takes_no_more_room_the_longer_it_is():
    times = [1e-3 * (1 + i % 100) for i in range(20_000)]
    load = record.Record(seconds=10.0, points_max=50)
    for i, ttft in enumerate(times):
        load.answer(10.0 * i / len(times), ttft, 0.0, tokens=2)
    made = json.loads(json.dumps(load.slice(10.0)))
    assert len(made["answers"]) == 50 and len(json.dumps(made)) < 12_000
    assert statistics.mean(when for when, *_ in made["answers"]) == pytest.approx(5.0, abs=2.0)
    one = record.whole([{**made, "concurrency": 1, "leases_left": 0}])
    assert (one["requests"], one["output_tokens_per_s"]) == (20_000, 4000)
    for share, name in ((0.5, "p50_s"), (0.99, "p99_s")):
        assert one["ttft"][name] == pytest.approx(percentile(times, share), rel=0.011)
    assert one["ttft"]["drift"] == pytest.approx(1, rel=0.03) and one["gap"]["p99_s"] == 0


def test_slices_are_compared_with_each_other():
    slices = []
    for i in range(3):
        load = record.Record(seconds=60.0, points_max=9)
        load.answer(30.0, 0.1 * (i + 1), 0.01, tokens=1)
        load.error("timeout", f"late in slice {i}") if i else None
        load.samples = [{"s": s, "kvtierd resident": 1e6 * (60 * i + s)} for s in (0.0, 59.0)]
        slices.append({**load.slice(60.0), "concurrency": 1, "leases_left": i})
    one = record.whole(slices)
    assert one["ttft"]["drift"] == pytest.approx(3, rel=0.03)
    assert [round(when) for when, *_ in one["answers"]] == [30, 90, 150]
    assert one["memory"]["kvtierd resident"] == {
        "bytes": 179e6, "bytes_per_hour": pytest.approx(3600e6)
    }  # fmt: skip
    assert one["errors"] == {"timeout": 2} and one["error_texts"] == {"timeout": "late in slice 1"}
    assert (one["seconds"], one["leases_left"], one["dead"]) == (180, 3, False)


def test_errors_of_a_load_are_counted(serve, validate):
    status, _, report = validate(serve(fails=3, drips=0.002), *LOAD)
    assert status == 3
    assert report["steps"]["stability"][0]["errors"] == {"status 500": 3}


def test_answers_of_no_form_are_errors_of_a_load(serve, validate):
    status, text, report = validate(serve(event={"choices": ["x"]}), *LOAD)
    assert status == 3 and "the engine answers no more" in text
    [one] = report["steps"]["stability"]
    assert one["requests"] == 0 and one["errors"]["answer"] >= 5


def test_a_load_without_an_answer_has_failed(serve, validate, monkeypatch):
    monkeypatch.setattr(StabilityStep, "_ask", lambda step, *_: step._stop.wait(0.1))
    status, _, report = validate(serve(), *LOAD, "--duration", "1")
    assert status == 3 and "FAILED: no answers" in report["summary"][0]


def test_leases_that_a_load_leaves_behind_are_told(serve, validate, monkeypatch):
    monkeypatch.setattr("kvtier.validate.stability.QUIET_S", 0.5)
    server = serve(drips=0.002)
    when(server, 5, lambda: setattr(server, "leases", 7))
    status, _, report = validate(server, *LOAD)
    assert (status, report["steps"]["stability"][0]["leases_left"]) == (3, 7)
    assert "7 leases left behind" in report["summary"][0]


def test_a_server_that_dies_under_load_ends_it(serve, validate):
    server = serve(drips=0.002)
    when(server, 20, server.close)
    status, text, report = validate(server, *LOAD, "--duration", "60", counters=False)
    assert status == 3 and "the engine answers no more" in text
    [one] = report["steps"]["stability"]
    assert one["dead"] and sum(one["errors"].values()) >= 5 and one["seconds"] < 50


# ---- usage ----


def test_the_command_is_installed_with_the_package():
    command = Path(sys.executable).with_name("kvtier-validate")
    done = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--engine URL" in done.stdout


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((), "--engine"),
        (("--engine", "localhost:8000"), "'localhost:8000' is not http://HOST:PORT"),
        (("--engine", "http://h:99999"), "is not http://HOST:PORT"),
        (("--engine", "http://me:secret@h"), "is not http://HOST:PORT"),
        (("--engine", "http://h", "--steps", "function,speed"), "no step 'speed'"),
        (("--engine", "http://h", "--token-ids", "5:9"), "is not FIRST:LAST with 64 tokens"),
        (("--engine", "http://h", "--prompts", "0"), "'0' is not a number from 1 to 10000"),
        (("--engine", "http://h", "--contexts", "1,,2"), "'' is not a number"),
        (("--engine", "http://h", "--tolerance", "nan"), "'nan' is not from 0 to 100"),
        (("--engine", "http://h", "--steps", "stability"), "needs --duration"),
        (("--engine", "http://h", "--api-key-env", "NO_SUCH"), "the environment has no NO_SUCH"),
    ],
)
def test_what_cannot_be_is_refused(capsys, arguments, error):
    assert main(arguments) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, error",
    [
        (("--prompt-tokens", "5000"), "--prompt-tokens and --output-tokens are 5006 tokens"),
        (("--contexts", "9,4091"), "--contexts and --output-tokens are 4097 tokens"),
    ],
)
def test_prompts_that_the_model_does_not_take_are_refused(serve, validate, options, error):
    status, text, _ = validate(serve(), *FUNCTION, *options)
    assert status == 2 and error in text


def test_a_server_that_does_not_tell_its_tokens_asks_for_them(serve, validate):
    server = serve(no_tokenize=True)
    status, text, _ = validate(server, *FUNCTION)
    assert status == 2 and "say --token-ids" in text
    assert validate(server, *FUNCTION, "--token-ids", "10:500")[0] == 0
    assert all(10 <= token <= 500 for body in server.requests for token in body["prompt"])


def test_a_model_that_is_not_served_is_told(serve, validate):
    status, text, _ = validate(serve(), *FUNCTION, "--model", "other")
    assert status == 3 and "not other" in text


@pytest.mark.parametrize("missing", ["httpcore", "httpx", "jinja2", "rich", "prometheus_client"])
def test_without_the_extra_it_is_named(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from kvtier.validate.command import main; sys.exit(main(['--engine', 'http://h']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{missing} is missing: pip install 'kvtier[validate]'" in done.stderr


# ---- streams ----


def read(*events):
    reader = answer.Reader(0.0)
    for i, event in enumerate(events):
        reader.take(f"data: {json.dumps(event)}", float(i + 1))
    return reader.end()


def test_llama_server_names_tokens_within_log_probabilities():
    def event(token, **more):
        top = [{"id": token, "logprob": -0.1}, {"id": 9, "logprob": -2.0}]
        content = [{"id": token, "token": "x", "logprob": -0.1, "top_logprobs": top}]
        return {"choices": [{"text": "x", "logprobs": {"content": content}, **more}]}

    got = read(event(4), event(5, finish_reason="length"))
    assert got.tokens == [4, 5] and got.likely[0] == {"4": -0.1, "9": -2.0}
    assert (got.ttft_s, got.gaps_s) == (1.0, [1.0])


def test_sglang_names_them_by_strings_when_it_has_no_numbers():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [None, None]}
    got = read({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})
    assert got.tokens == ["a", "b"] and got.likely == [{"a": -1.0}, {"b": -2.0}]


def test_others_have_text_alone():
    got = read({"choices": [{"text": "ab"}]}, {"choices": [{"text": "c", "finish_reason": "stop"}]})
    assert got.tokens == ["ab", "c"] and got.likely == []


def test_a_token_without_log_probabilities_moves_no_others():
    one = {"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": [None]}
    got = read({"choices": [{"text": "a"}]},
               {"choices": [{"text": "b", "logprobs": one, "finish_reason": "stop"}]})  # fmt: skip
    assert got.tokens == ["a", "b"] and got.likely == [{}, {"b": -2.0}]


def test_lines_that_come_in_pieces_are_put_together():
    assert list(answer.lines([b"da", b"ta: 1\r\nda", b"ta: 2\n\n"])) == ["data: 1", "data: 2", ""]


# ---- charts ----


@pytest.mark.parametrize(
    ("high", "numbers"),
    [
        (0.0, ["0", "0.25"]),
        (1.0, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.00013, ["0", "0.00005", "0.0001", "0.00015"]),
        (101.0, ["0", "50", "100", "150"]),
        (1234567.0, ["0", "500,000", "1,000,000", "1,500,000"]),
    ],
)
def test_the_axes_have_round_numbers_up_to_above_the_highest_point(high, numbers):
    svg = chart("title", {"line": [(4096, high), (131072, 0)]}, "x", "y", log_x=True)
    assert re.findall(r'text-anchor="end">([\d,.]+)<', svg) == numbers
    assert re.findall(r'text-anchor="middle">([\d,.]+)<', svg) == ["4,096", "131,072"]


def test_numbers_below_a_chart_do_not_touch():
    points = [(16 + i, 1.0) for i in range(100)]
    svg = chart("title", {"line": points}, "x", "y", log_x=True)
    places = [float(x) for x in re.findall(r'x="([\d.]+)" y="\d+" text-anchor="middle"', svg)]
    assert len(places) > 4
    assert min(b - a for a, b in itertools.pairwise(places)) >= 55
