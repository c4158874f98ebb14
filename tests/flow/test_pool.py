#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvtierctl pool and pool gc: real daemons that share a pool, an S3 service in this process.

KVTIERD and KVTIERCTL in the environment name the programs.
"""
import ctypes
import ctypes.util
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from daemon_process import Daemon  # noqa: E402
from fake_s3 import FakeS3  # noqa: E402

KVTIERD = os.environ["KVTIERD"]
KVTIERCTL = os.environ["KVTIERCTL"]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
HEARTBEAT_S = 60
WRITTEN_AT, CHECKSUM_AT = 104, 16  # in a node's block


def wait_for(what, seconds=20):
    """Asks until it is true; there is no event to wait for from outside the daemon."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it did not come true in time")
        time.sleep(0.02)


def xxh3(data):
    library = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    library.XXH3_64bits.restype = ctypes.c_uint64
    return library.XXH3_64bits(ctypes.c_char_p(bytes(data)), ctypes.c_size_t(len(data)))


class Pool(unittest.TestCase):
    def setUp(self):
        if "this build has no S3" in self.check_config():
            self.skipTest("this build has no S3")
        self.s3 = self.enterContext(FakeS3())

    def check_config(self):
        keys = ("pool.backend=s3", "s3.endpoint=https://localhost", "s3.bucket=bucket")
        return subprocess.run([KVTIERD, "-c", "/dev/null", "--check-config",
                               *(f"--set={key}" for key in keys)], env=os.environ | CREDENTIALS,
                              capture_output=True, text=True, timeout=60).stderr

    def start(self):
        """A daemon that stores at once in the pool."""
        config = ("pool: {backend: s3, bytes: 64MiB, index: %s, write: store, admit: all, "
                  "deadline_ms: 2000, linger_ms: 10}\n"
                  "s3: {endpoint: '%s', bucket: bucket, path_style: on, allow_http: on}\n")
        daemon = Daemon(start=False, environment=CREDENTIALS)
        daemon.write_config(config % (daemon.folder / "index", self.s3.endpoint))
        self.enterContext(daemon)
        daemon.start()
        daemon.wait_for("READY=1")
        daemon.wait_for_arenas()
        return daemon

    def ctl(self, daemon, *arguments, status=0):
        run = subprocess.run([KVTIERCTL, f"--socket={daemon.folder}/sock", *arguments], text=True,
                             stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        self.assertEqual(run.returncode, status, f"{arguments}: {run.stdout}{run.stderr}")
        return run

    def ask(self, daemon, *arguments, status=0):
        return json.loads(self.ctl(daemon, "--json", *arguments, status=status).stdout)

    def fill(self, daemon, n=20):
        """Objects in the pool; returns the bundles that hold them."""
        before = set(self.s3.names("kvtier/bundle/"))
        self.ask(daemon, "bench", "--keep", "-b", "64KiB", "-n", str(n))
        wait_for(lambda: self.ask(daemon, "pool")["own"]["entries"] >= n)
        return set(self.s3.names("kvtier/bundle/")) - before

    def node_of(self, daemon):
        return self.ask(daemon, "pool")["node"]

    def make_older(self, node, seconds):
        """The node was last heard of so much earlier."""
        name = f"kvtier/node/{node}"
        with self.s3.lock:
            block = bytearray(self.s3.objects[name])
            written, = struct.unpack_from("<Q", block, WRITTEN_AT)
            struct.pack_into("<Q", block, WRITTEN_AT, written - seconds * 10**9)
            struct.pack_into("<Q", block, CHECKSUM_AT, 0)
            struct.pack_into("<Q", block, CHECKSUM_AT, xxh3(block))
            self.s3.objects[name] = bytes(block)

    def kill(self, daemon):
        daemon.signal(signal.SIGKILL)
        daemon.process.wait()

    def of_node(self, node):
        return [name for name in self.s3.names("kvtier/") if node in name]

    def test_pool_shows_who_shares_it(self):
        one, two = self.start(), self.start()
        bundles = self.fill(one)
        nodes = {self.node_of(one), self.node_of(two)}
        self.assertEqual(len(nodes), 2)
        wait_for(lambda: {node["node"] for node in self.ask(one, "pool")["nodes"]} == nodes)
        pool = self.ask(one, "pool")
        self.assertEqual((pool["backend"], pool["breaker"]), ("s3", "closed"))
        self.assertEqual(pool["own"]["bundles"], len(bundles))
        self.assertEqual([node["state"] for node in pool["nodes"]], ["alive", "alive"])
        self.assertEqual([node["own"] for node in pool["nodes"]],
                         [node["node"] == pool["node"] for node in pool["nodes"]])
        text = self.ctl(one, "pool").stdout
        self.assertRegex(text, r"(?m)^NODE +HOST +STATE +HEARD +BUNDLES +BYTES +CAP +SEGMENTS$")
        self.assertRegex(text, rf"(?m)^{pool['node'][:12]} .* alive \(this\) ")
        self.assertIn("2 nodes, 0 of them dead", text)

    def test_gc_takes_over_what_a_dead_node_left(self):
        dead, taker = self.start(), self.start()
        bundles = self.fill(dead)
        node = self.node_of(dead)
        self.assertTrue(bundles and self.of_node(node))
        wait_for(lambda: self.ask(taker, "pool")["own"]["entries"] >= 20)
        self.kill(dead)
        self.make_older(node, 2 * HEARTBEAT_S + 10)

        self.assertIn("1 of them dead", self.ctl(taker, "pool", "--older-than=1").stdout)
        text = self.ctl(taker, "pool", "gc", "--older-than=1").stdout
        self.assertRegex(text, rf"(?m)^{node[:12]} \(.*\): not heard of for 2 min.*, more than 2 min.*"
                               rf"removed .* in {len(bundles)} bundles")
        self.assertIn("1 collected", text)
        self.assertEqual(self.of_node(node), [])
        # The taker's matches do not find what is gone.
        wait_for(lambda: self.ask(taker, "pool")["own"]["entries"] == 0)
        self.assertIn("0 collected", self.ctl(taker, "pool", "gc", "--older-than=1").stdout)

    def test_gc_leaves_the_living_alone(self):
        one, two = self.start(), self.start()
        self.fill(one)
        node = self.node_of(one)
        before = self.of_node(node)
        run = self.ctl(two, "pool", "gc", "--older-than=1", node[:10], status=1)
        self.assertIn("alive", run.stdout)
        self.assertIn("120 s", run.stdout)
        self.assertEqual(self.of_node(node), before)
        self.assertIn("the node that was asked",
                      self.ctl(one, "pool", "gc", node, status=1).stdout)
        self.assertIn("no node", self.ctl(one, "pool", "gc", "abc", status=1).stderr)

    def test_gc_finds_who_has_no_word_of_its_own(self):
        dead, taker = self.start(), self.start()
        self.fill(dead)
        node = self.node_of(dead)
        self.kill(dead)
        with self.s3.lock:
            del self.s3.objects[f"kvtier/node/{node}"]
        self.assertRegex(self.ctl(taker, "pool").stdout, rf"(?m)^{node[:12]} +- +silent +- ")
        run = self.ctl(taker, "pool", "gc", "--older-than=1", status=1)
        self.assertIn("counts as dead in 1 s", run.stdout)
        self.make_older(node, 10)
        self.ctl(taker, "pool", "gc", "--older-than=1")
        self.assertEqual(self.of_node(node), [])

    def leave_many(self, node, n=300):
        with self.s3.lock:
            self.s3.objects.update({f"kvtier/bundle/{node}/{i + 1000:016x}": b"x" for i in range(n)})

    def begin_gc(self, daemon):
        """One that cannot remove anything; returns kvtierctl when it has begun to."""
        self.s3.may_delete.clear()
        gc = subprocess.Popen([KVTIERCTL, f"--socket={daemon.folder}/sock", "pool", "gc",
                               "--older-than=1"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        self.addCleanup(gc.wait)
        self.addCleanup(gc.kill)
        wait_for(lambda: self.s3.names("kvtier/lease/"))
        return gc

    def test_gc_ends_with_who_asked_and_with_the_daemon(self):
        dead, taker, next_taker = self.start(), self.start(), self.start()
        node = self.node_of(dead)
        wait_for(lambda: self.of_node(node))
        self.kill(dead)
        self.leave_many(node)
        self.make_older(node, 1000)
        gc = self.begin_gc(taker)
        self.assertIn("another", self.ctl(taker, "pool", "gc", status=1).stderr)
        gc.kill()
        gc.wait()
        self.s3.may_delete.set()
        wait_for(lambda: "another" not in subprocess.run(
            [KVTIERCTL, f"--socket={taker.folder}/sock", "pool", "gc", "nobody"],
            capture_output=True, text=True).stderr)
        self.assertTrue(self.s3.names(f"kvtier/bundle/{node}"))

        self.begin_gc(taker)
        self.assertEqual(taker.stop(), 0)
        self.s3.may_delete.set()
        self.assertTrue(self.s3.names(f"kvtier/bundle/{node}"))
        # Its lease is still held; who has it goes on at once.
        self.assertIn("is taking it over",
                      self.ctl(next_taker, "pool", "gc", "--older-than=1", node, status=1).stdout)
        taker.start()
        taker.wait_for("READY=1")
        self.ctl(taker, "pool", "gc", "--older-than=1", node)
        self.assertEqual(self.of_node(node), [])

    def test_gc_by_two_at_once_leaves_nothing(self):
        dead, one, two = self.start(), self.start(), self.start()
        self.fill(dead)
        node = self.node_of(dead)
        self.kill(dead)
        self.make_older(node, 1000)
        runs = [subprocess.Popen([KVTIERCTL, f"--socket={daemon.folder}/sock", "--json", "pool",
                                  "gc", node, "--older-than=1"], text=True, stdout=subprocess.PIPE)
                for daemon in (one, two)]
        outcomes = [json.loads(run.communicate(timeout=60)[0].splitlines()[0]).get("outcome")
                    for run in runs]
        self.assertIn("collected", outcomes)
        self.assertLessEqual(set(outcomes), {"collected", "busy", "unknown"})
        wait_for(lambda: self.of_node(node) == [])

    def test_pool_that_is_down_is_said(self):
        daemon = self.start()
        self.fill(daemon)
        self.s3.is_down = True
        wait_for(lambda: "breaker open" in self.ctl(daemon, "pool", status=1).stdout, 30)
        run = self.ctl(daemon, "pool", status=1)
        self.assertIn("breaker open", run.stdout)
        self.assertIn("out of reach", run.stderr)
        self.assertIn("out of reach", self.ctl(daemon, "pool", "gc", status=1).stderr)

    def test_without_a_pool_the_key_is_named(self):
        with Daemon() as daemon:
            self.assertIn("pool.backend", self.ctl(daemon, "pool", status=1).stderr)
            self.assertIn("pool.backend", self.ctl(daemon, "pool", "gc", status=1).stderr)


if __name__ == "__main__":
    unittest.main()
