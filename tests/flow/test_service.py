# SPDX-License-Identifier: Apache-2.0
"""How kvtierd behaves towards its administrator and its service manager."""

import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from daemon_process import BINARY, Daemon  # noqa: E402


def check(daemon, *arguments):
    return subprocess.run(
        [BINARY, "--config", daemon.config, "--check-config", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
    )


class CheckConfig(unittest.TestCase):
    def test_a_right_one_is_said_to_be_right(self):
        with Daemon(start=False) as daemon:
            result = check(daemon)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"{daemon.config}: ok", result.stdout)
            self.assertEqual(result.stderr, "")

    def test_a_wrong_one_is_refused_with_file_line_and_remedy(self):
        wrong = {
            "chunk_tokns: 5\n": "7: chunk_tokns: unknown key: did you mean chunk_tokens?",
            "chunk_tokens: many\n": '7: chunk_tokens: "many" is not a number from 1 to 1048576',
            "host: {}\n": "7: host: the section is there twice",
            "nvme: {paths: [/absent/x]}\n": "7: nvme.paths: ",
            "log: [\n": "8: not YAML: ",
        }
        for text, expected in wrong.items():
            with self.subTest(text), Daemon(text, start=False) as daemon:
                result = check(daemon)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"{daemon.config}:{expected}", result.stderr)
                self.assertEqual(result.stdout, "")

    def test_more_memory_than_the_machine_has_is_refused(self):
        with Daemon(start=False) as daemon:
            result = check(daemon, "--set", "host.bytes=64TiB")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("--set host.bytes: ", result.stderr)

    def test_it_changes_nothing(self):
        with Daemon(start=False) as daemon:
            before = sorted(daemon.folder.iterdir())
            result = check(
                daemon, "--set", f"nvme.paths={daemon.folder}/pool", "--set", "nvme.bytes=64MiB"
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(sorted(daemon.folder.iterdir()), before)

    def test_it_does_not_disturb_a_running_daemon(self):
        with Daemon("") as daemon:
            self.assertEqual(check(daemon).returncode, 0)
            self.assertEqual(daemon.get("/readyz")[0], 200)

    def test_a_wrong_one_does_not_start(self):
        with Daemon("sessions: {max: 0}\n", start=False) as daemon:
            daemon.start()
            self.assertEqual(daemon.process.wait(20), 2)
            self.assertIn(f"{daemon.config}:7: sessions.max: ", daemon.read_log())
            self.assertFalse((daemon.folder / "sock").exists())


class ServiceManager(unittest.TestCase):
    def test_ready_means_that_the_socket_listens(self):
        with Daemon() as daemon:
            self.assertTrue((daemon.folder / "sock").is_socket())
            self.assertEqual(daemon.get("/readyz"), (200, "ready\n"))
            self.assertEqual(daemon.get("/healthz"), (200, "ok\n"))

    def test_a_free_port_for_metrics_is_told(self):
        with Daemon(arguments=["--set=metrics.listen=127.0.0.1:0"]) as daemon:
            daemon.port = int(re.search(r" started .* metrics_port=(\d+)", daemon.read_log())[1])
            self.assertEqual(daemon.get("/healthz"), (200, "ok\n"))

    def test_the_watchdog_is_fed_and_the_status_is_told(self):
        environment = {"WATCHDOG_USEC": "600000"}
        with Daemon(environment=environment) as daemon:
            for _ in range(3):
                daemon.wait_for("WATCHDOG=1")
            self.assertIn("sessions", daemon.wait_for("STATUS="))

    def test_stop_says_so_and_ends_with_status_0(self):
        with Daemon() as daemon:
            self.assertEqual(daemon.stop(), 0)
            self.assertIn("EXTEND_TIMEOUT_USEC=", daemon.wait_for("STOPPING=1"))
            self.assertFalse((daemon.folder / "sock").exists())

    def test_a_stop_while_arenas_come_up_is_clean(self):
        for _ in range(15):
            with Daemon(start=False) as daemon:
                for override in [
                    "host.piece_bytes=4MiB",
                    f"nvme.paths={daemon.folder}/pool",
                    "nvme.bytes=64MiB",
                ]:
                    daemon.arguments += ["--set", override]
                daemon.start()
                daemon.wait_for("READY=1")
                self.assertEqual(daemon.stop(), 0, daemon.read_log())

    def test_the_status_is_told_without_a_watchdog(self):
        with Daemon() as daemon:
            self.assertIn("host memory", daemon.wait_for("STATUS="))

    def test_the_memory_of_the_process_is_told(self):
        with Daemon() as daemon:
            daemon.wait_for_arenas()
            told = daemon.metric("resident_bytes")
            status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
            kernel = int(status.split("VmRSS:")[1].split()[0]) * 1024
            self.assertAlmostEqual(told / kernel, 1, delta=0.1)

    def test_a_log_line_is_an_event_with_fields(self):
        with Daemon() as daemon:
            daemon.stop()
            for line in daemon.read_log().splitlines():
                self.assertRegex(
                    line, r"^\d{4}-\d\d-\d\dT[\d:.]+Z (error|warning|info|debug) [a-z_]+( |$)"
                )


class Reload(unittest.TestCase):
    def reload(self, daemon):
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("RELOADING=1")
        daemon.wait_for("READY=1")

    def test_reloadable_keys_are_taken(self):
        with Daemon() as daemon:
            daemon.write_config("log: {level: debug}\ndrain: {seconds: 3}\n")
            self.reload(daemon)
            self.assertIn('changed="drain.seconds, log.level"', daemon.read_log())
            self.assertEqual(daemon.metric("config_reloads_total"), 1)
            self.assertNotIn("restart_needed", daemon.read_log())

    def test_the_lease_share_is_taken_at_once(self):
        with Daemon() as daemon:
            daemon.wait_for_arenas()
            before = daemon.metric("leased_limit_bytes")
            daemon.config.write_text(
                daemon.config.read_text().replace(
                    "piece_bytes: 16MiB\n", "piece_bytes: 16MiB\n  lease_share_percent: 40\n"
                )
            )
            self.reload(daemon)
            self.assertAlmostEqual(daemon.metric("leased_limit_bytes") / before, 0.5, places=2)

    def test_other_keys_are_named_and_wait_for_a_restart(self):
        with Daemon() as daemon:
            daemon.write_config("chunk_tokens: 64\nsessions: {max: 3}\n")
            self.reload(daemon)
            self.assertIn('restart_needed keys="sessions.max, chunk_tokens"', daemon.read_log())
            self.assertEqual(daemon.metric("sessions_limit"), 256)

    def test_a_wrong_file_is_refused_and_the_daemon_serves_on(self):
        with Daemon() as daemon:
            daemon.write_config("drain: {seconds: soon}\n")
            self.reload(daemon)
            self.assertIn(f"{daemon.config}:7: drain.seconds: ", daemon.read_log())
            self.assertEqual(daemon.metric("config_reload_failures_total"), 1)
            self.assertEqual(daemon.metric("config_reloads_total"), 0)
            self.assertEqual(daemon.get("/readyz")[0], 200)

    def test_overrides_of_the_command_line_stay(self):
        with Daemon(arguments=["--log-level", "warning"]) as daemon:
            daemon.write_config("log: {level: debug}\n")
            self.reload(daemon)
            daemon.stop()
            self.assertNotRegex(daemon.read_log(), r" (debug|info) ")


if __name__ == "__main__":
    unittest.main()
