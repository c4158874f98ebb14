# SPDX-License-Identifier: Apache-2.0
"""What `meson install` puts where, and what systemd thinks of the unit."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["BUILD_ROOT"])
THRESHOLD = 25  # tenths of the exposure that systemd-analyze prints


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/var/tmp"))
        cls.install()
        cls.unit = cls.only("kvtierd.service")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    @classmethod
    def install(cls):
        result = run(
            "meson", "install", "-C", BUILD, "--no-rebuild", env=os.environ | {"DESTDIR": cls.root}
        )
        assert result.returncode == 0, result.stdout + result.stderr

    @classmethod
    def only(cls, name):
        (path,) = cls.root.rglob(name)
        return path

    def settings(self, key):
        return [
            line.split("=", 1)[1]
            for line in self.unit.read_text().splitlines()
            if line.startswith(f"{key}=")
        ]

    def test_the_unit_starts_what_was_installed(self):
        (command,) = self.settings("ExecStart")
        words = command.split()
        for path in [word for word in words if word.startswith("/")]:
            self.assertTrue((self.root / path[1:]).is_file(), path)
        self.assertTrue(os.access(self.root / words[0][1:], os.X_OK))

    def test_the_tables_of_plan_are_where_kvtierctl_looks(self):
        folder = self.only("engines.json").parent
        self.assertLessEqual({"architectures.json", "gpus.json"}, set(os.listdir(folder)))
        (kvtierctl,) = self.root.rglob("bin/kvtierctl")
        # They are not there, unless kvtier is installed on this machine too.
        result = run(kvtierctl, "plan", "/dev/null")
        if "/dev/null" not in result.stderr:
            self.assertIn(f" /{folder.relative_to(self.root)}/", result.stderr)

    def test_the_unit_passes_verification_without_a_word(self):
        # The root has to hold what the unit names, so it gets the rest of its commands too.
        kill = self.root / "bin/kill"
        kill.parent.mkdir(exist_ok=True)
        kill.touch(mode=0o755)
        for target in ["multi-user.target", "sysinit.target", "basic.target", "shutdown.target"]:
            path = self.root / "usr/lib/systemd/system" / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("[Unit]\nDescription=Stand-in\nDefaultDependencies=no\n")
        result = run("systemd-analyze", "verify", "--man=no", f"--root={self.root}", self.unit.name)
        self.assertEqual(result.stderr, "")
        self.assertEqual(result.returncode, 0)

    def test_verification_would_notice_an_unknown_key(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "kvtierd.service"
            path.write_text("[Service]\nExecStart=/bin/true\nProtectEverything=yes\n")
            self.assertIn("ProtectEverything", run("systemd-analyze", "verify", path).stderr)

    def test_the_unit_is_hardened(self):
        result = run(
            "systemd-analyze", "security", "--offline=true", f"--threshold={THRESHOLD}", self.unit
        )
        self.assertEqual(result.returncode, 0, result.stdout[-300:])

    def test_the_unit_gives_what_the_daemon_needs(self):
        expected = {
            "Type": ["notify"],
            "LimitMEMLOCK": ["infinity"],
            "StateDirectory": ["kvtier"],
            "RuntimeDirectory": ["kvtier"],
            "ExecReload": ["/bin/kill -HUP $MAINPID"],
        }
        for key, value in expected.items():
            self.assertEqual(self.settings(key), value)
        self.assertTrue(self.settings("WatchdogSec"))
        for key in ["PrivateUsers", "ProtectProc", "ProcSubset"]:
            self.assertEqual(self.settings(key), [], f"{key} hides clients from the daemon")

    def test_the_manual_is_complete(self):
        for page in ["kvtierd.8", "kvtierctl.1", "kvtier.3", "kvtierd.conf.5"]:
            self.only(page)

    def test_commands_library_and_completion_are_there(self):
        for name in ["kvtierd", "kvtier.h", "kvtier.pc", "libkvtier.a", "kvtier-cuda.h",
                     "kvtier-cuda.pc", "METRICS.md", "OPERATIONS.md", "kvtier.rules.yml",
                     "kvtier.json"]:
            self.only(name)
        self.assertEqual(
            {path.parent.name for path in self.root.rglob("kvtierctl")}, {"bin", "completions"}
        )

    def test_an_edited_configuration_survives_an_upgrade(self):
        config = self.only("kvtierd.conf")
        original = config.read_text()
        config.write_text("chunk_tokens: 64\n")
        self.install()
        self.assertEqual(config.read_text(), "chunk_tokens: 64\n")
        self.assertEqual(config.with_name("kvtierd.conf.new").read_text(), original)

    def test_the_user_can_be_made(self):
        sysusers = [path for path in self.root.rglob("kvtier.conf") if "sysusers.d" in str(path)]
        result = run("systemd-sysusers", "--dry-run", *sysusers)
        if "dry-run" in result.stderr and "unrecognized" in result.stderr:
            self.skipTest("systemd-sysusers has no --dry-run")
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
