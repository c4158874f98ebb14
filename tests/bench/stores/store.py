# SPDX-License-Identifier: Apache-2.0
"""One store of tests/bench/peers, in a process and a virtual environment of its own.

    NAME_store.py FOLDER KVTIERD [DISK]

DISK is a folder: the store keeps there what it is given, below its memory. Each makes the same
bytes (from a seed) in memory of its own, one page for each chunk, and does what a JSON line on
standard input tells it; the answer is a JSON line. Times are taken here, around the call alone.
Before a load the pages are zeroed, after it they are compared.
"""
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np

CHUNK_TOKENS = 16
CAPACITY = 1 << 30  # of each store: more than all that is written
DISK_CAPACITY = 2 << 30
TOUCHED = 0.75  # of that, before anything is timed


def tokens_of(chunk_bytes, round_number, n):
    """Another prompt of n chunks for each size of chunk and each round."""
    first = (chunk_bytes >> 12) * 1_000_003 + round_number * 10_007
    return np.arange(first, first + n * CHUNK_TOKENS, dtype=np.uint32) & 0x3FFFFFFF


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """The server that belongs to a store; its output is in a file of the folder."""

    def __init__(self, command, folder, environment=None):
        self.log = os.path.join(folder, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})

    def wait_until(self, is_ready, seconds=60):
        end = time.monotonic() + seconds
        while not is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit("the server did not start: " + open(self.log).read()[-2000:])
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Store:
    """What a store does; one prompt of chunks at a time."""

    def start(self, folder, disk):
        raise NotImplementedError

    def prepare(self, pages):
        """pages: uint8 (chunks, bytes of a chunk), from now on the engine's memory."""
        raise NotImplementedError

    def store(self, round_number):
        """A function that stores all pages under new keys: what is timed."""
        raise NotImplementedError

    def load(self, round_number):
        """A function that loads them again."""
        raise NotImplementedError

    def after_load(self):
        """Not timed."""

    def is_down(self, round_number):
        """Is each chunk of the round in files of the disk tier? Told often."""
        raise NotImplementedError

    def drop_memory(self, round_number):
        """The round is on disk alone."""
        raise NotImplementedError

    def load_cold(self, round_number):
        """As load(), from the request for what is on disk to the bytes in the pages."""
        return self.load(round_number)

    def clear(self):
        """Forgets all that is stored."""

    def lookups(self, round_number):
        """{row: function that gives the number of chunks found} for the prompt of a round."""
        raise NotImplementedError

    def after_lookup(self):
        """Not timed."""

    def stop(self):
        raise NotImplementedError


def timed(function):
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


class Disk:
    """The folder of a store's files."""

    def __init__(self, folder):
        self.folder = folder
        self.c = ctypes.CDLL(None, use_errno=True)

    def sync(self):
        """All of the file system: what is written is durable then, whoever wrote it."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            if self.c.syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def drop_cache(self):
        """Reads come from the disk, not from the page cache. Everything is synced."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


class Worker:
    def __init__(self, store, disk):
        self.store, self.disk = store, disk
        self.pages = self.expected = None

    def prepare(self, chunk_bytes, n):
        if self.pages is not None:
            self.store.clear()
        self.expected = np.random.default_rng(chunk_bytes).integers(
            0, 256, (n, chunk_bytes), dtype=np.uint8)
        self.pages = self.expected.copy()
        self.store.prepare(self.pages)
        return {}

    def touch(self):
        """Most of the store's memory is written once: what is first touched is slow, and an
        engine's process lives for days."""
        for i in range(int(CAPACITY * TOUCHED) // self.pages.nbytes):
            self.store.store(-1 - i)()
            if self.disk:
                self.wait_down(-1 - i)
        self.store.clear()
        return {}

    def save(self, round):
        return {"seconds": timed(self.store.store(round))[0]}

    def load(self, round):
        return self.loaded(self.store.load(round))

    def loaded(self, load):
        self.pages[:] = 0
        seconds, _ = timed(load)
        self.store.after_load()
        right = bool((self.pages == self.expected).all())
        self.pages[:] = self.expected  # for the next round, also where they were wrong
        return {"seconds": seconds, "right": right}

    def save_down(self, round):
        """Until a loss of power would cost nothing."""
        store = self.store.store(round)

        def run():
            store()
            self.wait_down(round)
            self.disk.sync()
        return {"seconds": timed(run)[0]}

    def wait_down(self, round):
        end = time.monotonic() + 60
        while not self.store.is_down(round):
            if time.monotonic() > end:
                sys.exit("the bytes do not reach the disk tier")
            time.sleep(0.005)

    def load_cold(self, round):
        self.store.drop_memory(round)
        self.disk.drop_cache()
        return self.loaded(self.store.load_cold(round))

    def lookup(self, round, expect):
        rows, right = {}, True
        for name, function in self.store.lookups(round).items():
            rows[name], found = timed(function)
            right = right and found == expect
            self.store.after_lookup()
        return {"rows": rows, "right": right}


def serve(store, folder):
    """Answers on the standard output that was; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    disk = sys.argv[3] if len(sys.argv) > 3 else None
    store.start(folder, disk)
    worker = Worker(store, Disk(disk) if disk else None)
    try:
        print(json.dumps({}), file=answers)
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(worker, command.pop("do"))(**command)
            print(json.dumps(answer), file=answers)
    finally:
        store.stop()
