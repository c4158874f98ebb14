# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a running kvtierd, and every documented metric is in it."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from daemon_process import PATIENCE_S, Daemon, free_port  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[2] / "deploy" / "METRICS.md"


def documented():
    """Name and type of each row of the table."""
    return re.findall(r"^\| `(kvtier_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.M)


class Prometheus:
    """One server with a configuration of its own, all of it in the daemon's folder."""

    def __init__(self, daemon):
        self.port = free_port()
        config = daemon.folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            "scrape_configs:\n"
            "- job_name: kvtier\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{daemon.port}']}}]\n"
        )
        self.log = open(daemon.folder / "prometheus.log", "w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={daemon.folder}/prometheus",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.log.close()

    def ask(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def wait_until(self, expression, holds):
        """Asks until `holds` is true of the values; there is no event to wait for."""
        end = time.monotonic() + PATIENCE_S
        values = []
        while time.monotonic() < end:
            try:
                result = self.ask("query", query=expression)["result"]
            except OSError:
                result = []
            values = [float(series["value"][1]) for series in result]
            if values and holds(values):
                return values
            time.sleep(0.1)
        raise AssertionError(f"{expression} stayed at {values}")


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
class Scrape(unittest.TestCase):
    def test_it_is_up_holds_every_documented_metric_and_goes_down(self):
        with Daemon() as daemon, Prometheus(daemon) as prometheus:
            prometheus.wait_until("up", lambda values: values == [1])
            prometheus.wait_until("kvtier_http_requests_total", lambda values: values[0] >= 3)
            names = set(prometheus.ask("label/__name__/values"))
            metadata = prometheus.ask("metadata")
            for name, kind in documented():
                with self.subTest(name):
                    self.assertIn(name + "_bucket" if kind == "histogram" else name, names)
                    self.assertEqual(metadata[name][0]["type"], kind)
            lag = prometheus.wait_until(
                "histogram_quantile(0.5, kvtier_loop_lag_seconds_bucket)", lambda values: True
            )
            self.assertLess(lag[0], 10)
            daemon.stop()
            prometheus.wait_until("up", lambda values: values == [0])


class Names(unittest.TestCase):
    def test_nothing_undocumented_is_there(self):
        known = {name for name, _ in documented()}
        with Daemon() as daemon:
            text = daemon.get("/metrics")[1]
        found = set(re.findall(r"^# TYPE (\w+)", text, re.M))
        self.assertEqual(found, known)


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
class Promtool(unittest.TestCase):
    def test_it_has_nothing_to_say(self):
        with Daemon() as daemon:
            text = daemon.get("/metrics")[1]
        result = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        self.assertEqual((result.stdout + result.stderr).strip(), "")
        self.assertEqual(result.returncode, 0)


if __name__ == "__main__":
    unittest.main()
