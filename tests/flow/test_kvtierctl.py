#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command of kvtierctl against a real daemon: tables, JSON and exit statuses.

KVTIERD and KVTIERCTL in the environment name the programs.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

KVTIERD = os.environ["KVTIERD"]
KVTIERCTL = os.environ["KVTIERCTL"]
ROOT = pathlib.Path(__file__).parents[2]
COMPLETION = ROOT / "deploy/completion/kvtierctl"
KNOWLEDGE = ROOT / "client/kvtierctl/knowledge"
MIB = 1 << 20
OBJECTS = 40
OBJECT_BYTES = 256 << 10
SUPERBLOCKS = 128 << 10  # at the start of the data file


def wait_for(what, seconds=20):
    """Asks until it is true; there is no event to wait for from outside the daemon."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it did not come true in time")
        time.sleep(0.02)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtierctl-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.socket = self.folder / "s"

    def ctl(self, *arguments, status=0):
        run = subprocess.run([KVTIERCTL, f"--socket={self.socket}", *arguments], text=True,
                             stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        self.assertEqual(run.returncode, status, f"{arguments}: {run.stdout}{run.stderr}")
        return run

    def ask(self, *arguments, status=0):
        return json.loads(self.ctl("--json", *arguments, status=status).stdout)


class WithoutDaemon(Folder):
    COMMANDS = (["status"], ["sessions"], ["layouts"], ["ls"], ["show", "0" * 64], ["top"],
                ["verify"], ["evict", "00"], ["clear", "00"], ["kick", "1"], ["bench"], ["doctor"],
                ["pin", "0" * 64], ["unpin", "0" * 64], ["reclaim", "--below", "0" * 64],
                ["pool"], ["pool", "gc"], ["pool", "gc", "00"])

    def test_every_command_says_where_it_looked_and_what_to_do(self):
        for command in self.COMMANDS:
            with self.subTest(command=command):
                run = self.ctl(*command, status=3)
                self.assertIn(f"kvtierd does not answer at {self.socket}", run.stderr)
                self.assertIn("systemctl start kvtierd", run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1)
                self.assertEqual(run.stdout, "")

    def test_wrong_usage_is_told_apart_from_failure(self):
        for command in ([], ["no-such"], ["status", "x"], ["show"], ["show", "a", "b"], ["kick"], ["why"],
                        ["why", "--session=1", "--layout=00"], ["why", "--digests=x"],
                        ["why", "--session=x"], ["why", "--tokens=x", "--layout=00", "--nth=1"],
                        ["kick", "x"], ["kick", "-1"], ["ls", "-n", "0"], ["top", "-i", "0"],
                        ["bench", "-b", "1X"], ["evict"], ["clear"], ["evict", "a", "b"],
                        ["evict", "00", "--group=1"], ["evict", "--digest=00", "--group=x"],
                        ["clear", "--digest=00", "--shard=65536"], ["clear", "00", "--tier=nvme"],
                        ["pin"], ["unpin", "a", "b"], ["reclaim", "a"], ["reclaim", "--below"],
                        ["pin", "--below", "a"], ["pool", "x"], ["pool", "gc", "a", "b"],
                        ["pool", "--older-than=0"], ["pool", "gc", "--older-than=x"],
                        ["plan"], ["plan", "a", "b"], ["plan", "a", "--tp=x"], ["plan", "a", "--tp=-1"],
                        ["plan", "a", "--host=1XB"], ["plan", "a", "--memory-share=2"],
                        ["plan", "a", "--prompts=1,2,3,4,5,6,7,8,9"],
                        ["--no-such", "status"]):
            with self.subTest(command=command):
                self.ctl(*command, status=2)

    def test_help_and_version_need_no_daemon(self):
        self.assertIn("doctor", self.ctl("--help").stdout)
        self.assertIn("--layout", self.ctl("ls", "--help").stdout)
        self.assertRegex(self.ctl("--version").stdout, r"^kvtierctl \d")


class Plan(Folder):
    MODEL = {"model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64,
             "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "dtype": "bfloat16"}
    PARTS = {"class", "page_tokens", "kv_bytes_per_token", "state_bytes", "groups", "chunk_tokens",
             "users", "parallelism", "flags", "unknown"}

    def setUp(self):
        super().setUp()
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(self.MODEL))

    def plan(self, *arguments, status=0):
        return self.ctl("plan", f"--knowledge={KNOWLEDGE}", *arguments, status=status)

    def test_a_plan_needs_no_daemon_and_tells_the_same_both_ways(self):
        text = self.plan(self.config, "--gpu=H200x4", "--tp=4", "--host=512GiB").stdout
        plan = json.loads(self.plan(self.config, "--gpu=H200x4", "--tp=4", "--host=512GiB",
                                    "--json").stdout)
        self.assertLessEqual(self.PARTS, plan.keys())
        self.assertEqual((plan["class"], plan["kv_bytes_per_token"]), ("gqa", 192512 // 4))
        self.assertIn("qwen3_moe: gqa", text)
        self.assertIn("48,128 bytes a token", text)
        self.assertRegex(text, rf"warm in host +{plan['users']['host']}\n")
        self.assertIn("4 x H200 (compute capability 90)", text)
        for entry in plan["unknown"]:
            self.assertIn(entry.split(" ")[0], text)

    def test_weights_are_read_beside_the_configuration(self):
        users = json.loads(self.plan(self.config, "--gpu=H200x4", "--tp=4", "--json").stdout)["users"]
        self.assertIsNone(users["gpu"])
        (self.folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 235 * 10**9}}))
        users = json.loads(self.plan(self.config, "--gpu=H200x4", "--tp=4", "--json").stdout)["users"]
        room = 141e9 * 0.9 - 235e9 / 4
        self.assertEqual(users["gpu"], int(room // (48128 * 32768)))

    def test_kvtierd_takes_the_keys_of_a_plan(self):
        keys = self.ask("plan", self.config, "--host=2100MiB", "--nvme=70000000")["kvtierd"]
        self.assertEqual(keys, {"host.bytes": 2 << 30, "nvme.bytes": 69996544, "chunk_tokens": 256})
        sets = [f"--set={key}={value}" for key, value in keys.items()]
        run = subprocess.run([KVTIERD, "-c", "/dev/null", "--check-config", *sets,
                              f"--set=socket.path={self.socket}", f"--set=nvme.paths={self.folder}"],
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_an_audit_with_faults_exits_with_1(self):
        good = "vllm serve M -tp 4 --enable-expert-parallel --reasoning-parser qwen3"
        self.assertIn("keep -tp 4", self.plan(self.config, "--gpu=H200x4", "--check", good).stdout)
        run = self.plan(self.config, "--gpu=H200x4", "--check", "vllm serve M -tp 4", status=1)
        self.assertIn("missing --enable-expert-parallel", run.stdout)

    def test_what_is_broken_is_told_in_one_line(self):
        for text, why in (("{", "line 1"), ("[]", "object"), ("{}", "num_hidden_layers is missing"),
                          ('{"num_hidden_layers": "x"}', "a whole number")):
            self.config.write_text(text)
            with self.subTest(text=text):
                run = self.plan(self.config, status=1)
                self.assertIn(why, run.stderr)
                self.assertIn(str(self.config), run.stderr)
                self.assertEqual((run.stdout, run.stderr.count("\n")), ("", 1))

    def test_what_is_no_file_of_json_is_refused_at_once(self):
        pipe, huge, zeros = (self.folder / name for name in ("pipe", "huge", "zeros"))
        os.mkfifo(pipe)
        with huge.open("wb") as file:
            file.truncate(100 * MIB)
        zeros.write_bytes(bytes(64))
        deep = self.folder / "deep"
        deep.write_text("[" * 100000)
        for path, why in ((pipe, "pipe"), (self.folder, "folder"), (huge, "64 MiB"),
                          (zeros, "no text"), (deep, "no JSON"), ("/dev/zero", "device"),
                          (self.folder / "nothing", "No such file")):
            with self.subTest(path=path):
                run = self.plan(path, status=1)
                self.assertIn(why, run.stderr)
                self.assertEqual((run.stdout, run.stderr.count("\n")), ("", 1))

    def test_the_tables_are_found_in_the_build_tree(self):
        self.assertEqual(self.ask("plan", self.config)["class"], "gqa")
        elsewhere = self.folder / "kvtierctl"
        shutil.copy(KVTIERCTL, elsewhere)
        shutil.copytree(KNOWLEDGE, self.folder / "knowledge")
        (self.folder / "knowledge/gpus.json").write_text("{")
        run = subprocess.run([elsewhere, "plan", self.config], capture_output=True, text=True)
        self.assertIn(f"{self.folder}/knowledge/gpus.json is no JSON", run.stderr)

    def test_tables_without_sources_are_refused(self):
        tables = self.folder / "tables"
        shutil.copytree(KNOWLEDGE, tables)
        gpus = json.loads((tables / "gpus.json").read_text())
        del gpus["gpus"][0]["source"]
        (tables / "gpus.json").write_text(json.dumps(gpus))
        run = self.ctl("plan", f"--knowledge={tables}", self.config, status=1)
        self.assertIn('row 1 of "gpus" has no source', run.stderr)

    def test_a_new_family_is_a_row(self):
        tables = self.folder / "tables"
        shutil.copytree(KNOWLEDGE, tables)
        known = json.loads((tables / "architectures.json").read_text())
        known["architectures"].append({"model_type": "brand_new", "family": "new", "name": "New",
                                       "class": "gqa", "source": "here"})
        known["fields"]["kv_heads"].append("number_of_pairs")
        (tables / "architectures.json").write_text(json.dumps(known))
        model = {**self.MODEL, "model_type": "brand_new", "number_of_pairs": 2}
        del model["num_key_value_heads"]
        self.config.write_text(json.dumps(model))
        plan = self.ask("plan", f"--knowledge={tables}", self.config)
        self.assertIsNone(plan["doubt"])
        self.assertEqual(plan["kv_bytes_per_token"], 94 * 2 * 256 * 2)


class WithDaemon(Folder):
    def setUp(self):
        super().setUp()
        self.start()

    def start(self, more=()):
        keys = {"socket.path": self.socket, "host.bytes": "64MiB", "host.piece_bytes": "32MiB",
                "nvme.paths": self.folder / "data", "nvme.bytes": "64MiB",
                "nvme.catalog": self.folder / "catalog", "nvme.write": "store",
                "metrics.listen": "off", "index.objects_max": "10000", **dict(more)}
        with open(self.folder / "log", "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(
                [KVTIERD, "-c", "/dev/null", *(f"--set={key}={keys[key]}" for key in keys)],
                stderr=log)
        self.addCleanup(self.stop)
        wait_for(self.answers)

    def answers(self):
        self.assertIsNone(self.daemon.poll(), (self.folder / "log").read_text())
        run = subprocess.run([KVTIERCTL, f"--socket={self.socket}", "--json", "status"],
                             capture_output=True, text=True)
        return run.returncode == 0 and json.loads(run.stdout)["tiers"][0]["ready_bytes"] == 64 * MIB

    def stop(self):
        if self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(30)

    def tier(self, name):
        return next(tier for tier in self.ask("status")["tiers"] if tier["name"] == name)

    def newest_session(self):
        opened = re.findall(r" session_opened session=(\d+) ", (self.folder / "log").read_text())
        return int(opened[-1])

    def fill(self):
        """Objects that stay; returns their layout."""
        self.ask("bench", "--keep", "-b", str(OBJECT_BYTES), "-n", str(OBJECTS))
        wait_for(lambda: self.tier("nvme")["objects"] == OBJECTS)
        layouts = self.ask("layouts")["layouts"]
        self.assertEqual(len(layouts), 1)
        return layouts[0]["layout"]

    def test_status_shows_tiers_and_counters(self):
        self.fill()
        text = self.ctl("status").stdout
        self.assertRegex(text, r"(?m)^host +10\.0 MiB +64\.0 MiB +\d+\.\d % +40 ")
        self.assertRegex(text, r"(?m)^nvme .* 40 .* ok$")
        status = self.ask("status")
        self.assertEqual(status["objects"], OBJECTS)
        self.assertEqual(status["stored_bytes"], OBJECTS * OBJECT_BYTES)
        self.assertEqual(status["hits"], OBJECTS)

    def test_status_tells_in_words_what_was_refused(self):
        self.assertNotIn("refused", self.ctl("status").stdout)
        self.stop()
        self.start({"session.bytes_max": "1MiB"})
        self.ctl("bench", "-b", "2MiB", "-n", "1", status=1)
        self.assertRegex(self.ctl("status").stdout,
                         r"(?m)^refused   1 objects of reserve: "
                         r"larger than a limit that waiting does not change \(TOO_LARGE\)$")

    def test_objects_are_listed_and_shown(self):
        layout = self.fill()
        objects = self.ask("ls")["objects"]
        self.assertEqual(len(objects), OBJECTS)
        self.assertEqual({item["layout"] for item in objects}, {layout})
        self.assertEqual(sum(item["parent"] == "" for item in objects), 1)
        key = objects[7]["digest"]
        self.assertIn(key, self.ctl("ls", f"--layout={layout[:8]}").stdout)
        self.assertIn("more", self.ctl("ls", "-n", "3").stdout)
        self.assertEqual(len(self.ask("ls", "-n", "3")["objects"]), 3)
        self.ctl("ls", "--layout=ffff", status=1)
        shown = self.ctl("show", key).stdout
        self.assertIn(f"{OBJECT_BYTES:,} (256 KiB)", shown)
        self.assertRegex(shown, "nvme +yes")
        self.assertEqual(self.ask("show", key)["objects"][0]["digest"], key)
        self.assertIn("nothing is stored", self.ctl("show", "0" * 64, status=1).stderr)
        self.assertIn("64 hex digits", self.ctl("show", "xyz", status=1).stderr)

    def test_layouts_tell_what_they_mean_and_how_they_differ_also_after_a_restart(self):
        first = self.fill()
        self.ask("bench", "--keep", "-b", "64KiB", "-n", "3")
        for _ in range(2):
            wait_for(lambda: self.tier("nvme")["objects"] == OBJECTS + 3)
            layouts = {item["layout"]: item for item in self.ask("layouts")["layouts"]}
            self.assertEqual(len(layouts), 2)
            self.assertEqual(layouts[first]["objects"], OBJECTS)
            self.assertEqual(layouts[first]["groups"][0]["codec"], "none")
            self.assertEqual(layouts[first]["groups"][0]["rows"][0]["page_bytes"], OBJECT_BYTES)
            differing = next(item for item in layouts.values() if "differs_from" in item)
            base = layouts[differing["differs_from"]]
            for difference in differing["differences"]:
                field = difference["field"].removeprefix("group bench ")
                self.assertIn(field, ("page_bytes", "padded_bytes"))
                self.assertEqual(difference["this"],
                                 str(differing["groups"][0]["rows"][0][field]))
                self.assertEqual(difference["other"], str(base["groups"][0]["rows"][0][field]))
            text = self.ctl("layouts").stdout
            self.assertRegex(text, r"(?m)^  group bench page_bytes: \d+, there \d+$")
            self.assertRegex(text, rf"(?m)^{first} +kvtierctl bench +\d+ +{OBJECTS} ")
            self.stop()
            self.start()

    def test_evict_keeps_what_is_below_and_clear_does_not(self):
        layout = self.fill()
        self.assertIn("40 objects", self.ctl("evict", layout).stdout)
        self.assertEqual(self.tier("host")["objects"], 0)
        self.assertEqual(self.tier("nvme")["objects"], OBJECTS)
        self.assertTrue(all(not item["in_host"] for item in self.ask("ls")["objects"]))
        self.ctl("evict", layout, "--tier=tape", status=1)
        self.assertEqual(self.ask("clear", layout[:10])["objects"], OBJECTS)
        self.assertEqual(self.ask("ls")["objects"], [])
        wait_for(lambda: self.tier("nvme")["used_bytes"] == 0)

    def test_evict_and_clear_of_one_boundary_leave_the_others(self):
        layout = self.fill()
        key, other = (item["digest"] for item in self.ask("ls")["objects"][:2])
        answer = self.ask("evict", f"--digest={key}")
        self.assertEqual((answer["objects"], answer["bytes"], answer["kept"]),
                         (1, OBJECT_BYTES, 0))
        self.assertEqual(self.tier("host")["objects"], OBJECTS - 1)
        shown = self.ask("show", key)["objects"][0]
        self.assertEqual((shown["in_host"], shown["in_nvme"]), (False, True))
        self.assertIn("nothing", self.ctl("evict", f"--digest={key}", status=1).stderr)
        # What is no part of it stays: another group, shard or layout.
        for part in ("--group=1", "--shard=1"):
            self.ctl("clear", f"--digest={key}", part, status=1)
        self.ctl("clear", f"--digest={key}", "ffff", status=1)
        self.assertIn("1 objects", self.ctl("clear", f"--digest={key}", "--group=0", "--shard=0",
                                            layout[:8]).stdout)
        self.ctl("show", key, status=1)
        # What is pinned stays, too.
        self.ctl("pin", other)
        for command in ("evict", "clear"):
            answer = self.ask(command, f"--digest={other}")
            self.assertEqual((answer["objects"], answer["kept"]), (0, 1))
        self.assertIn("kept 1 objects", self.ctl("evict", f"--digest={other}").stdout)
        self.ctl("unpin", other)
        self.assertEqual(self.ask("evict", f"--digest={other}", "--tier=nvme")["objects"], 1)
        shown = self.ask("show", other)["objects"][0]
        self.assertEqual((shown["in_host"], shown["in_nvme"]), (True, False))
        self.assertEqual(len(self.ask("ls")["objects"]), OBJECTS - 1)
        self.assertIn("64 hex digits", self.ctl("evict", "--digest=xyz", status=1).stderr)

    def test_show_tells_who_wrote_an_object_and_when_also_after_a_restart(self):
        before = time.time_ns()
        layout = self.fill()
        key = self.ask("ls")["objects"][3]["digest"]
        first = self.ask("show", key)
        shown = first["objects"][0]
        self.assertEqual(shown["layout"], layout)
        self.assertEqual(shown["writer_boot_id"], first["boot_id"])
        self.assertTrue(before <= shown["stored_ns"] <= time.time_ns())
        self.assertRegex(self.ctl("show", key).stdout, r"(?m)^  written +20.* UTC, to run "
                         rf"{first['boot_id']} \(this one\)$")
        self.stop()
        self.start()
        wait_for(lambda: self.tier("nvme")["objects"] == OBJECTS)
        later = self.ask("show", key)
        self.assertNotEqual(later["boot_id"], first["boot_id"])
        self.assertFalse(later["objects"][0]["in_host"])
        for field in ("writer_boot_id", "stored_ns", "generation", "layout"):
            self.assertEqual(later["objects"][0][field], shown[field])
        self.assertRegex(self.ctl("show", key).stdout, rf"(?m)to run {first['boot_id']}$")

    def chain(self):
        """Digests of what bench stored, from the root on."""
        objects = sorted(self.ask("ls")["objects"], key=lambda item: item["tokens"])
        return [item["digest"] for item in objects]

    def test_pins_keep_a_chain_until_they_end(self):
        layout = self.fill()
        keys = self.chain()
        self.ctl("pin", keys[9])
        self.assertIn("pins      1: 2.5 MiB of at most 12", self.ctl("status").stdout)
        self.assertRegex(self.ctl("show", keys[9]).stdout, r"(?m)^  pinned +in host\+nvme$")
        self.assertNotIn("pinned", self.ctl("show", keys[10]).stdout)
        self.assertEqual(self.ask("evict", layout)["kept"], 10)
        self.assertEqual(self.tier("host")["objects"], 10)
        refused = self.ctl("reclaim", "--prefix", keys[9], status=1).stderr
        self.assertEqual(refused, "kvtierctl: it stays: it is pinned\n")
        refused = self.ctl("reclaim", "--below", "--prefix", keys[5], status=1).stderr
        self.assertIn("it stays: it is pinned; dropped 30 objects below it", refused)
        self.assertEqual(self.chain(), keys[:10])
        self.ctl("unpin", keys[9])
        self.assertIn("not pinned", self.ctl("unpin", keys[9], status=1).stderr)
        self.assertEqual(self.ask("evict", layout)["kept"], 0)
        self.assertIn("nothing is known", self.ctl("pin", "0" * 64, status=1).stderr)

    def test_reclaim_drops_what_is_below_or_the_prefix(self):
        self.fill()
        keys = self.chain()
        self.assertIn("hangs on it", self.ctl("reclaim", "--prefix", keys[20], status=1).stderr)
        self.assertIn("dropped 19 objects", self.ctl("reclaim", "--below", keys[20]).stdout)
        self.assertEqual(self.chain(), keys[:21])
        self.assertEqual(self.tier("host")["reclaimed"], 19)
        answer = self.ask("reclaim", "--below", "--prefix", keys[5])
        self.assertEqual((answer["objects"], answer["kept"]), (21, 0))
        self.assertEqual(self.ask("ls")["objects"], [])
        wait_for(lambda: self.tier("nvme")["used_bytes"] == 0)

    def test_sessions_show_their_mode(self):
        self.fill()
        self.assertRegex(self.ctl("sessions").stdout, r"^SESSION .* MODE ")

    def test_verify_finds_flipped_bytes_and_drops_them(self):
        self.fill()
        self.assertIn("0 corrupt", self.ctl("verify").stdout)
        with open(self.folder / "data", "r+b") as data:
            data.seek(SUPERBLOCKS + MIB)
            data.write(b"\xff" * MIB)
            data.flush()
            os.fsync(data.fileno())
        run = self.ctl("--json", "verify", status=1)
        last = json.loads(run.stdout.splitlines()[-1])
        self.assertTrue(last["finished"])
        self.assertEqual(last["done"], OBJECTS)
        self.assertGreaterEqual(last["corrupt"], 3)
        self.assertIn("0 corrupt", self.ctl("verify").stdout)
        self.assertEqual(self.tier("nvme")["objects"], OBJECTS - last["corrupt"])

    def test_kick_ends_a_session(self):
        top = subprocess.Popen([KVTIERCTL, f"--socket={self.socket}", "--json", "top", "-i0.1"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.assertTrue(json.loads(top.stdout.readline())["status"]["ok"])
        sessions = self.ask("sessions")["sessions"]
        self.assertEqual(len(sessions), 1)  # not the one that asks
        victim = next(item["session"] for item in sessions if item["pid"] == top.pid)
        self.assertIn(str(top.pid), self.ctl("sessions").stdout)
        self.ctl("kick", str(victim))
        _, errors = top.communicate(timeout=20)
        self.assertEqual(top.returncode, 3)
        self.assertIn("kvtierd", errors)
        self.ctl("kick", str(victim), status=1)
        # The next session is the very one that asks.
        self.ctl("kick", str(self.newest_session() + 1), status=1)

    @unittest.skipIf(os.geteuid(), "only root can be somebody else")
    def test_who_is_refused_hears_why_however_early_the_hang_up_comes(self):
        self.folder.chmod(0o755)
        self.socket.chmod(0o666)
        program = self.folder / "kvtierctl"  # the build folder may be closed to others
        shutil.copy(KVTIERCTL, program)
        for _ in range(10):
            run = subprocess.run([program, f"--socket={self.socket}", "status"], text=True,
                                 stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                                 user=12345, group=12345, extra_groups=[])
            self.assertIn("uid 12345 may not use this socket", run.stderr)

    def test_top_prints_one_screen(self):
        text = self.ctl("top", "--once", "-i", "0.1").stdout
        self.assertRegex(text, r"(?m)^host +\.{20} ")
        self.assertNotIn("\033", text)
        self.assertIn("per_second", self.ask("top", "--once", "-i", "0.1"))

    def fill_by_tokens(self):
        """Objects of one prompt; returns their layout and digests, in its order."""
        layout = self.fill()
        objects = sorted(self.ask("ls")["objects"], key=lambda item: item["tokens"])
        return layout, [item["digest"] for item in objects]

    def test_why_explains_a_file_of_digests(self):
        layout, digests = self.fill_by_tokens()
        path = self.folder / "digests"
        for text in ("\n".join(digests), json.dumps(digests), ", ".join(digests)):
            path.write_text(text)
            answer = self.ask("why", f"--digests={path}", f"--layout={layout[:8]}")
            self.assertEqual(answer["usable_boundaries"], OBJECTS)
            self.assertEqual([(run["from"], run["to"]) for run in answer["runs"]], [(1, OBJECTS)])
        self.ctl("evict", f"--digest={digests[6]}")
        self.ctl("clear", f"--digest={digests[20]}")
        text = self.ctl("why", f"--digests={path}", f"--layout={layout}").stdout
        self.assertRegex(text, r"(?m)^boundary 7 .*: 0 in host memory, 1 on NVMe only, 0 missing")
        self.assertRegex(text, r"(?m)^    group bench shard 0: .*removed by kvtierctl, .* ago$")
        self.assertRegex(text.splitlines()[-1], r"boundary 21 .*the longest usable prefix is 320 ")

    def test_why_makes_the_digests_of_token_ids(self):
        layout, _ = self.fill_by_tokens()
        chunk = self.ask("layouts")["layouts"][0]["chunk_tokens"]
        tokens = list(range(1000, 1000 + 3 * chunk + 5))
        path = self.folder / "tokens"
        digest = hashlib.sha256(b"kvtier/root/1\0" + struct.pack("<II4sI", 2, 4, b"salt", 0))
        step = struct.pack(f"<{chunk}I", *tokens[:chunk])
        digest = hashlib.sha256(b"kvtier/step/1\0" + digest.digest() + step)
        path.write_text(" ".join(map(str, tokens)))
        answer = self.ask("why", f"--tokens={path}", f"--layout={layout}", "--salt=salt")
        self.assertEqual(answer["boundaries"], 3)
        self.assertEqual(answer["runs"][0]["digest"], digest.hexdigest())
        self.assertEqual(answer["runs"][0]["gaps"][0]["cause"], "never_stored")
        path.write_text(json.dumps(tokens[:chunk - 1]))
        self.assertIn("no whole chunk", self.ctl("why", f"--tokens={path}",
                                                 f"--layout={layout}").stdout)
        for text in ("1 2 x", '["1"]', "-1", "4294967296"):
            path.write_text(text)
            self.assertIn("is not a token id", self.ctl("why", f"--tokens={path}",
                                                        f"--layout={layout}", status=1).stderr)

    def test_why_takes_a_prompt_longer_than_a_message(self):
        layout, digests = self.fill_by_tokens()
        path = self.folder / "digests"
        path.write_text("\n".join(digests + ["ab" * 32] * 5000))
        run = self.ctl("--json", "why", f"--digests={path}", f"--layout={layout}")
        self.assertIn("first 4096 of", run.stderr)
        answer = json.loads(run.stdout)
        self.assertEqual(answer["usable_boundaries"], OBJECTS)
        self.assertEqual(answer["runs"][-1]["to"], 4096)

    def test_bench_measures_and_cleans_up(self):
        text = self.ctl("bench", "-b", "64KiB", "-n", "100").stdout
        for call in ("store", "load"):
            self.assertRegex(text, rf"(?m)^{call} +\d+\.\d\d ")
        self.assertRegex(text, r"(?m)^match +- ")
        self.assertEqual(self.ask("ls")["objects"], [])
        self.assertIn("piece_bytes", self.ctl("bench", "-b", "32M", status=1).stderr)

    def test_bench_lives_within_the_leases_of_a_session(self):
        self.stop()
        self.start({"session.leases_max": "2"})
        self.assertEqual(self.ask("bench", "-b", "64KiB", "-n", "16")["objects"], 16)

    def test_doctor_names_the_finding_and_the_remedy(self):
        text = self.ctl("doctor", status=1).stdout
        self.assertIn("huge pages", text)
        self.assertIn("remedy: reserve them", text)
        findings = self.ask("doctor", status=1)["findings"]
        self.assertIn("huge_pages", [finding["check"] for finding in findings])

    def test_completion_knows_commands_and_asks_the_daemon(self):
        layout = self.fill()

        def complete(*words):
            script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                      '_kvtierctl; printf "%s\\n" "${COMPREPLY[@]}"')
            run = subprocess.run(["bash", "-c", script, "bash", COMPLETION, KVTIERCTL, *words],
                                 capture_output=True, text=True, check=True)
            return run.stdout.split()

        here = ("--socket", "=", str(self.socket))
        self.assertEqual(complete("sta"), ["status"])
        self.assertEqual(complete("bench", "--k"), ["--keep"])
        self.assertEqual(complete("plan", "--kn"), ["--knowledge"])
        self.assertEqual(complete("doctor", "--kn"), ["--knowledge"])
        self.assertEqual(complete(*here, "clear", layout[:4]), [layout])
        self.assertEqual(len(complete(*here, "show", "")), OBJECTS)
        self.assertEqual(complete(*here, "ls", "--layout", "=", layout[:4]), [layout])
        self.assertEqual(complete(*here, "ls", "--layout", layout[:4]), [layout])
        self.assertEqual(complete(*here, "evict", "--tier", "="), ["host", "nvme", "remote"])
        self.assertEqual(len(complete(*here, "evict", "--digest", "=")), OBJECTS)
        self.assertEqual(complete("clear", "--d"), ["--digest"])
        self.assertEqual(complete(*here, "kick", ""), [])


if __name__ == "__main__":
    unittest.main()
