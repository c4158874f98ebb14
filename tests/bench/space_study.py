#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How should an NVMe tier lay out its space: in place by extent, or in sequential regions?

Replays traces of real prompts through a small DRAM tier (LRU, tail first) above an NVMe tier
that gets what DRAM evicts. What is read back stays on NVMe, so evicting it again costs no
write. Three layouts of the same capacity:

  in place         LRU; a new object takes the slot of the one that was evicted for it
  log              regions written one after the other; the oldest is dropped whole
  log + reinsert   as log, but objects that were read since they were written are written again

`hit %` is of all chunks asked for, counting only the unbroken run from the front. `written` is
what the tier writes, in % of the unique bytes of the trace. `inside` is what the device writes
for each byte written to it: a flash translation layer with greedy collection over superblocks
of 1/256 of its capacity and 7 % spare space, no discard. `device` is both multiplied.

A second table puts objects of unequal size (64 KiB, 1.5 MiB and a 39 MiB state) through the
policy of storage/extent.c in the order of a trace, and shows what its runs look like.

Standard library only; about two minutes on one core.
"""
import argparse
import bisect
import gzip
import json
import pathlib
import sys
import time
from array import array
from collections import OrderedDict

CHUNK_TOKENS = 512
DRAM_SHARE = {"conversation": 0.03, "synthetic": 0.03, "agentic": 0.002}
NVME_SHARES = {"conversation": (0.05, 0.1, 0.3), "synthetic": (0.05, 0.1, 0.3),
               "agentic": (0.005, 0.01, 0.03)}
FILES = {"conversation": "mooncake_conversation_512tok.jsonl.gz",
         "synthetic": "mooncake_synthetic_512tok.jsonl.gz",
         "agentic": "agentic_coding_64tok_merged.jsonl.gz"}
N_REGIONS = 64
N_SUPERBLOCKS = 256
SPARE = 0.07


# Traces.

def chunks_of_ranges(ranges, blocks_a_chunk):
    """Ids are chained, so a chunk is named by its last block."""
    chunks, position = [], 0
    for first, count in ranges:
        skip = (blocks_a_chunk - 1 - position) % blocks_a_chunk
        chunks.extend(range(first + skip, first + count, blocks_a_chunk))
        position += count
    return chunks


def read_trace(path):
    """Yields the list of chunks of each request, in time order."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            request = json.loads(line)
            if "hash_ids" in request:
                yield request["hash_ids"][:request["input_length"] // CHUNK_TOKENS]
            else:
                yield chunks_of_ranges(request["hash_ranges"], CHUNK_TOKENS // 64)


class DramEvents:
    """What DRAM asks of the tier below; the same whatever that tier does."""

    def __init__(self, path, share):
        unique = set()
        for chunks in read_trace(path):
            unique.update(chunks)
        self.n_unique = len(unique)
        self.n_chunks = 0
        self.lengths = array("L")
        self.missing = []   # per request: positions and ids that DRAM does not have
        self.evicted = []   # per request: ids that leave DRAM after it
        self.replay(path, int(share * self.n_unique))

    def replay(self, path, capacity):
        dram = OrderedDict()
        for chunks in read_trace(path):
            self.n_chunks += len(chunks)
            self.lengths.append(len(chunks))
            missing = array("L")
            for position, chunk in enumerate(chunks):
                if chunk not in dram:
                    missing.append(position)
                    missing.append(chunk)
            for chunk in reversed(chunks):  # the front is the last to go
                dram[chunk] = None
                dram.move_to_end(chunk)
            evicted = array("L")
            while len(dram) > capacity:
                evicted.append(dram.popitem(last=False)[0])
            self.missing.append(missing)
            self.evicted.append(evicted)


# The device.

class Flash:
    """Greedy collection, new and moved data in superblocks of their own."""

    def __init__(self, n_slots):
        self.per_superblock = max(1, n_slots // N_SUPERBLOCKS)
        n_superblocks = int(n_slots * (1 + SPARE) / self.per_superblock) + 3
        self.valid = [set() for _ in range(n_superblocks)]
        self.filled = [0] * n_superblocks
        self.where = {}
        self.free = list(range(n_superblocks))
        self.full = set()
        self.open = {"new": self.free.pop(), "moved": self.free.pop()}
        self.n_asked = self.n_written = 0

    def write(self, slot):
        self.n_asked += 1
        old = self.where.get(slot)
        if old is not None:
            self.valid[old].discard(slot)
        self.append("new", slot)
        while len(self.free) < 1:
            self.collect()

    def append(self, stream, slot):
        superblock = self.open[stream]
        if self.filled[superblock] == self.per_superblock:
            self.full.add(superblock)
            superblock = self.open[stream] = self.free.pop()
        self.filled[superblock] += 1
        self.valid[superblock].add(slot)
        self.where[slot] = superblock
        self.n_written += 1

    def collect(self):
        victim = min(self.full, key=lambda superblock: len(self.valid[superblock]))
        self.full.remove(victim)
        moved, self.valid[victim] = self.valid[victim], set()
        self.filled[victim] = 0
        self.free.append(victim)
        for slot in moved:
            self.append("moved", slot)

    def amplification(self):
        return self.n_written / max(1, self.n_asked)


# Layouts: holds(), read() and store() of a chunk.

class InPlace:
    def __init__(self, n_slots):
        self.flash = Flash(n_slots)
        self.slots = OrderedDict()  # chunk -> slot, least recently used first
        self.n_slots = n_slots

    def holds(self, chunk):
        return chunk in self.slots

    def read(self, chunk):
        self.slots.move_to_end(chunk)

    def store(self, chunk):
        if chunk in self.slots:
            self.slots.move_to_end(chunk)
            return
        slot = len(self.slots)
        if slot == self.n_slots:
            slot = self.slots.popitem(last=False)[1]
        self.slots[chunk] = slot
        self.flash.write(slot)


class Log:
    reinserts = False

    def __init__(self, n_slots):
        self.per_region = max(1, n_slots // N_REGIONS)
        self.n_slots = self.per_region * N_REGIONS
        self.flash = Flash(self.n_slots)
        self.content = [None] * self.n_slots
        self.slots = {}
        self.was_read = set()
        self.head = 0
        self.waiting = []

    def holds(self, chunk):
        return chunk in self.slots

    def read(self, chunk):
        self.was_read.add(chunk)

    def store(self, chunk):
        self.waiting.append(chunk)
        while self.waiting:
            self.append(self.waiting.pop())

    def append(self, chunk):
        if chunk in self.slots:
            return
        if self.head % self.per_region == 0:
            self.drop_region(self.head)
        self.content[self.head] = chunk
        self.slots[chunk] = self.head
        self.flash.write(self.head)
        self.head = (self.head + 1) % self.n_slots

    def drop_region(self, first):
        for slot in range(first, first + self.per_region):
            chunk = self.content[slot]
            if chunk is None:
                continue
            del self.slots[chunk]
            self.content[slot] = None
            if chunk in self.was_read:
                self.was_read.discard(chunk)
                if self.reinserts:
                    self.waiting.append(chunk)


class LogReinsert(Log):
    reinserts = True


LAYOUTS = (("in place", InPlace), ("log", Log), ("log + reinsert", LogReinsert))


def replay_below(events, layout):
    """Returns how many chunks were hits, in either tier."""
    n_hits = 0
    for length, missing, evicted in zip(events.lengths, events.missing, events.evicted):
        to_read = []
        for i in range(0, len(missing), 2):
            if not layout.holds(missing[i + 1]):
                length = missing[i]
                break
            to_read.append(missing[i + 1])
        n_hits += length
        for chunk in reversed(to_read):
            layout.read(chunk)
        for chunk in evicted:
            layout.store(chunk)
    return n_hits


def print_layouts(folder):
    print("| trace | NVMe, % of unique | layout | hit % | written % | inside | device % |")
    print("|---|---|---|---|---|---|---|")
    for trace, name in FILES.items():
        events = DramEvents(folder / name, DRAM_SHARE[trace])
        for share in NVME_SHARES[trace]:
            for title, layout_of in LAYOUTS:
                layout = layout_of(int(share * events.n_unique))
                n_hits = replay_below(events, layout)
                written = 100 * layout.flash.n_asked / events.n_unique
                inside = layout.flash.amplification()
                print(f"| {trace} | {100 * share:g} | {title} | "
                      f"{100 * n_hits / events.n_chunks:.1f} | {written:.0f} | {inside:.2f} | "
                      f"{written * inside:.0f} |", flush=True)


# Unequal sizes in place: the policy of storage/extent.c.

class Extents:
    RUNS_GOOD, RUNS_MAX, SLACK = 4, 64, 32

    def __init__(self, n_units):
        self.n_units = self.n_free = n_units
        self.starts = [0]          # sorted
        self.count_at = {0: n_units}
        self.sizes = [(n_units, 0)]  # sorted

    def remove(self, first):
        count = self.count_at.pop(first)
        del self.starts[bisect.bisect_left(self.starts, first)]
        del self.sizes[bisect.bisect_left(self.sizes, (count, first))]
        return count

    def insert(self, first, count):
        bisect.insort(self.starts, first)
        self.count_at[first] = count
        bisect.insort(self.sizes, (count, first))

    def alloc(self, count):
        """A list of (first, count), or None: full."""
        runs, rest = [], count
        if count > self.n_free:
            return None
        for size, first in reversed(self.sizes):
            if len(runs) == self.RUNS_MAX:
                return None
            if size >= rest:
                first = self.sizes[bisect.bisect_left(self.sizes, (rest, 0))][1]
                runs.append((first, rest))
                break
            runs.append((first, size))
            rest -= size
        if len(runs) > self.RUNS_GOOD and self.n_free - count < self.n_units // self.SLACK:
            return None
        for first, taken in runs:
            size = self.remove(first)
            if size > taken:
                self.insert(first + taken, size - taken)
        self.n_free -= count
        return runs

    def release(self, first, count):
        self.n_free += count
        at = bisect.bisect_left(self.starts, first)
        if at < len(self.starts) and self.starts[at] == first + count:
            count += self.remove(first + count)
        if at > 0:
            before = self.starts[at - 1]
            if before + self.count_at[before] == first:
                count += self.remove(before)
                first = before
        self.insert(first, count)


CHUNK_UNITS, INDEX_UNITS, STATE_UNITS = 385, 17, 9985  # each with its 4 KiB header


class Mixed:
    """Chunks of two groups, and the state at the end of each prompt: LRU over objects."""

    def __init__(self, n_units):
        self.extents = Extents(n_units)
        self.objects = OrderedDict()
        self.n_large = self.n_large_runs = self.lost = self.n_stored = 0
        self.filled = 0.0
        self.is_aged = False

    def touch(self, name, units):
        if name in self.objects:
            self.objects.move_to_end(name)
            return
        runs = self.extents.alloc(units)
        while runs is None:
            self.is_aged = True
            self.lost = max(self.lost, self.extents.n_free - units)
            for first, count in self.objects.popitem(last=False)[1]:
                self.extents.release(first, count)
            runs = self.extents.alloc(units)
        self.objects[name] = runs
        if self.is_aged:
            self.n_stored += 1
            self.filled += 1 - self.extents.n_free / self.extents.n_units
            if units >= 256:
                self.n_large += 1
                self.n_large_runs += len(runs)

    def store(self, chunks):
        if chunks:
            self.touch(("state", chunks[-1]), STATE_UNITS)
        for chunk in reversed(chunks):
            self.touch(("index", chunk), INDEX_UNITS)
            self.touch(("attention", chunk), CHUNK_UNITS)


def print_mixed(folder):
    print("\n| trace | capacity | extents an object >= 1 MiB | most space lost % | filled % |")
    print("|---|---|---|---|---|")
    for trace in ("conversation", "synthetic"):
        for gib in (16, 64):
            mixed = Mixed(gib << 18)
            for chunks in read_trace(folder / FILES[trace]):
                mixed.store(chunks)
            print(f"| {trace} | {gib} GiB | {mixed.n_large_runs / max(1, mixed.n_large):.2f} | "
                  f"{100 * mixed.lost / mixed.extents.n_units:.1f} | "
                  f"{100 * mixed.filled / max(1, mixed.n_stored):.1f} |", flush=True)


def find_traces(given):
    here = pathlib.Path(__file__).resolve()
    tried = [pathlib.Path(given)] if given else [
        folder / "shared" / "traces" for folder in here.parents]
    for folder in tried:
        if all((folder / name).is_file() for name in FILES.values()):
            return folder
    sys.exit("space_study: no traces: give the folder that holds " + ", ".join(FILES.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("traces", nargs="?", help="folder of the traces")
    folder = find_traces(parser.parse_args().traces)
    started = time.monotonic()
    print_layouts(folder)
    print_mixed(folder)
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
