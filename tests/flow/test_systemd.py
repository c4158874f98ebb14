# SPDX-License-Identifier: Apache-2.0
"""The unit under a real systemd: kvtierd as a service, hardening and all.

systemd boots in a container made of this machine's /usr, so nothing is downloaded. The
story runs inside as a unit of its own and writes what it saw; the assertions are out here.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
BINARY = pathlib.Path(os.environ.get("KVTIERD", "build/daemon/kvtierd"))
SKIPPED = 77

CONFIG = """\
host: {bytes: 32MiB, piece_bytes: 16MiB}
index: {objects_max: 10000}
nvme: {paths: [/var/lib/kvtier/pool], bytes: 64MiB, write: store}
"""

STORY_UNIT = """\
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/opt/kvtier/story
StandardOutput=file:/out/seen
StandardError=file:/out/errors
"""

STORY = r"""#!/bin/bash
say() { echo "$1=${*:2}"; }
of() { systemctl show kvtierd -p "$1" --value; }

systemd-sysusers /opt/kvtier/kvtier.sysusers
systemctl start kvtierd
say started "$?" "$(of ActiveState)"
say status "$(of StatusText)"
say ready "$(curl -s http://127.0.0.1:9464/readyz)"
say engine "$(grep '^kvtier_tier_recovered{tier="nvme"}' <(curl -s http://127.0.0.1:9464/metrics))"
uid=$(stat -c %u "/proc/$(of MainPID)")
say user "$(stat -c %U "/proc/$(of MainPID)")"
say socket "$(stat -c '%F %a %u' /run/kvtier/kvtierd.sock | sed "s/ $uid\$/ own/")"
say pool "$(stat -Lc '%s %a %u' /var/lib/kvtier/pool | sed "s/ $uid\$/ own/")"
say capabilities "$(grep CapEff "/proc/$(of MainPID)/status" | cut -f 2)"
say seccomp "$(grep '^Seccomp:' "/proc/$(of MainPID)/status" | cut -f 2)"

echo 'log: {level: debug}' >>/etc/kvtier/kvtierd.conf
systemctl reload kvtierd
say reloaded "$?"

kill -9 "$(of MainPID)"
until [ "$(of NRestarts) $(of SubState)" = "1 running" ]; do sleep 0.1; done
say after_kill "$(of NRestarts)" "$(curl -s http://127.0.0.1:9464/readyz)"

# A hung daemon: the manager ends and restarts it.
kill -STOP "$(of MainPID)"
until [ "$(of NRestarts) $(of SubState)" = "2 running" ]; do sleep 0.1; done
say after_hang "$(of NRestarts)" "$(curl -s http://127.0.0.1:9464/readyz)"

systemctl stop kvtierd
say stopped "$?" "$(of Result)" "$(of ExecMainStatus)"
say left "$(find /run/kvtier -mindepth 1 2>/dev/null)"

echo 'nonsense: 1' >>/etc/kvtier/kvtierd.conf
systemctl start kvtierd 2>/dev/null
say refused "$(of ActiveState)" "$(of ExecMainStatus)" "$(of NRestarts)"
journalctl -u kvtierd --no-pager -o cat >/out/journal
systemctl poweroff --no-block 2>/dev/null
"""


def container_can_run():
    return os.geteuid() == 0 and shutil.which("systemd-nspawn") and shutil.which("curl")


class Service(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/var/tmp"))
        cls.addClassCleanup(cls.clean_up)
        for name in ["units", "opt", "etc", "out"]:
            (cls.folder / name).mkdir()
        unit = (ROOT / "deploy/kvtierd.service").read_text()
        unit = unit.replace("/usr/sbin/kvtierd", "/opt/kvtier/kvtierd")
        unit = re.sub("^WatchdogSec=.*$", "WatchdogSec=2", unit, flags=re.M)
        unit = re.sub("^TimeoutAbortSec=.*$", "TimeoutAbortSec=1", unit, flags=re.M)
        (cls.folder / "units/kvtierd.service").write_text(unit)
        (cls.folder / "units/story.service").write_text(STORY_UNIT)
        (cls.folder / "units/story.target").write_text("[Unit]\nRequires=story.service\n")
        (cls.folder / "etc/kvtierd.conf").write_text(CONFIG)
        shutil.copy(BINARY, cls.folder / "opt/kvtierd")
        shutil.copy(ROOT / "deploy/kvtier.sysusers", cls.folder / "opt")
        (cls.folder / "opt/story").write_text(STORY)
        (cls.folder / "opt/story").chmod(0o755)
        cls.boot()
        seen = (cls.folder / "out/seen").read_text()
        cls.seen = dict(line.split("=", 1) for line in seen.splitlines())
        cls.journal = (cls.folder / "out/journal").read_text()

    @classmethod
    def clean_up(cls):
        shutil.rmtree(cls.folder)
        for hierarchy in ["unified", "systemd"]:
            for name in ["payload", "supervisor"]:
                path = pathlib.Path("/sys/fs/cgroup", hierarchy, name)
                if path.is_dir():
                    subprocess.run(["rmdir", path], stderr=subprocess.DEVNULL)

    @classmethod
    def boot(cls):
        subprocess.run(
            ["systemd-nspawn", "--directory=/", "--volatile=yes", "--register=no", "--keep-unit",
             "--private-network", "--capability=all", "--console=pipe",
             f"--bind-ro={cls.folder}/units:/etc/systemd/system",
             f"--bind-ro={cls.folder}/opt:/opt/kvtier",
             f"--bind={cls.folder}/etc:/etc/kvtier",
             f"--bind={cls.folder}/out:/out",
             "--boot", "systemd.unit=story.target"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )  # fmt: skip

    def test_it_starts_and_tells_its_state(self):
        self.assertEqual(self.seen["started"], "0 active")
        self.assertEqual(self.seen["ready"], "ready")
        self.assertIn("sessions", self.seen["status"])

    def test_it_works_under_the_hardening(self):
        self.assertEqual(self.seen["capabilities"], "0" * 16)
        self.assertEqual(self.seen["seccomp"], "2")
        self.assertEqual(self.seen["engine"], 'kvtier_tier_recovered{tier="nvme"} 1')
        self.assertNotIn("io_uring is", self.journal)

    def test_its_files_are_its_own(self):
        self.assertEqual(self.seen["user"], "kvtier")
        self.assertEqual(self.seen["socket"], "socket 660 own")
        self.assertEqual(self.seen["pool"], f"{64 << 20} 600 own")

    def test_reload_is_taken(self):
        self.assertEqual(self.seen["reloaded"], "0")
        self.assertIn('reloaded changed="log.level"', self.journal)

    def test_a_killed_daemon_is_started_again(self):
        self.assertEqual(self.seen["after_kill"], "1 ready")

    def test_a_hung_daemon_is_ended_by_the_watchdog(self):
        self.assertEqual(self.seen["after_hang"], "2 ready")

    def test_a_stop_drains_and_leaves_nothing(self):
        self.assertEqual(self.seen["stopped"], "0 success 0")
        self.assertEqual(self.seen["left"], "")
        self.assertIn("draining reason=SIGTERM", self.journal)

    def test_a_wrong_configuration_is_not_tried_again(self):
        self.assertEqual(self.seen["refused"], "failed 2 0")
        self.assertIn("/etc/kvtier/kvtierd.conf:5: nonsense: unknown key", self.journal)


if __name__ == "__main__":
    if not container_can_run():
        print("needs root, systemd-nspawn and curl")
        sys.exit(SKIPPED)
    unittest.main()
