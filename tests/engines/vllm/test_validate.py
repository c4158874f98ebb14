# SPDX-License-Identifier: Apache-2.0
"""kvtier-validate against a server of vLLM, whose cache is right, and wrong."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from damage import FILE
from kvtierd import Daemon, eventually
from models import BLOCK, MODELS, make, make_tokenizer
from server import Server

CONNECTOR = dict(
    kv_connector="DamagingConnector", kv_connector_module_path="damage", kv_role="kv_both"
)
#: Four blocks, and some of a fifth.
TOKENS = 4 * BLOCK + 30


class Site:
    def __init__(self, daemon, folder):
        self.daemon, self.folder, self.damage = daemon, folder, folder / "damage"
        model = folder / "qwen3"
        make(model, MODELS["qwen3"])
        make_tokenizer(model, MODELS["qwen3"])
        self.server = Server(
            folder,
            model,
            daemon.socket,
            json.dumps(CONNECTOR),
            VLLM_SERVER_DEV_MODE="1",
            # The engine's worker in the process of the engine: one less to start.
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            **{FILE: str(self.damage)},
        )

    def validate(self, name, *arguments):
        """The exit status, and the report."""
        out = self.folder / name
        command = [sys.executable, "-m", "kvtier.validate", "--engine", self.server.url]
        command += ["--kvtierd", f"http://127.0.0.1:{self.daemon.port}", "--out", out]
        command += ["--token-ids", "2:499", "--output-tokens", "8"]
        command += ["--prompt-tokens", str(TOKENS), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads((out / "report.json").read_text())


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with Daemon(Path(request.config.getoption("--build")).resolve(), folder) as daemon:
        site = Site(daemon, folder)
        try:
            eventually(site.server.is_up, seconds=600)
            yield site
        finally:
            site.server.close()


def test_what_is_right_is_found_right(site):
    commits = 'operation_objects_total{operation="commit",status="ok"}'
    stored = site.daemon.metric(commits)
    steps = ("--steps", "function", "--prompts", "2")
    status, report = site.validate("right", *steps, "--require-proof")
    assert status == 0
    for one in report["steps"]["function"]:
        assert (one["cause"], one["served"]) == ("equal", True)
        assert one["proof"] == "kvtierd: 4 objects found"
        assert one["cached_tokens"] == 4 * BLOCK
        assert one["eviction"] == "POST /reset_prefix_cache"
        assert one["compared"]["warm"]["logprob_error"] == 0
        assert one["compared"]["own"]["logprob_error"] == 0
    # Two prompts of four blocks, and nothing of what was bypassed.
    assert site.daemon.metric(commits) == stored + 8


def test_pages_that_are_damaged_below_the_checksums_are_found_wrong(site):
    site.damage.touch()
    try:
        status, report = site.validate("wrong", "--steps", "function", "--prompts", "2")
    finally:
        site.damage.unlink()
    assert status == 1
    for one in report["steps"]["function"]:
        assert (one["cause"], one["served"]) == ("cache", True)
        assert one["compared"]["again"]["logprob_error"] == 0
        assert one["compared"]["own"]["logprob_error"] == 0
        assert one["compared"]["warm"]["logprob_error"] > 0.05


def test_figures_by_context_and_under_load(site):
    steps = ("--steps", "performance,stability", "--duration", "3", "--concurrency", "2")
    sizes = ("--contexts", f"{2 * BLOCK + 1},{10 * BLOCK + 1}", "--repeats", "2")
    status, report = site.validate("figures", *steps, *sizes)
    assert status == 0
    short, long = report["steps"]["performance"]
    assert long["warm"]["cached_tokens"] == 10 * BLOCK and long["cold"]["cached_tokens"] == 0
    assert long["served"] and long["warm"]["ttft_s"] > 0 and short["cold"]["gap_s"] > 0
    [load] = report["steps"]["stability"]
    assert load["requests"] > 0 and load["errors"] == {} and load["leases_left"] == 0
    gauges = {"kvtierd resident", "kvtierd host tier", "kvtierd leased", "engine resident"}
    assert gauges <= load["memory"].keys()
    assert load["memory"]["kvtierd resident"]["bytes"] > 1 << 20
