# SPDX-License-Identifier: Apache-2.0
"""Page maps over torch's tensors on a real GPU, with torch's streams. By tests/gpu/run."""
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))

from kvtierd import Daemon  # noqa: E402

from kvtier import (  # noqa: E402
    Group,
    GroupKind,
    Layout,
    Objects,
    PageGroup,
    PageMap,
    Session,
    Status,
    digest_array,
)
from kvtier.cuda import Cuda, Direction  # noqa: E402

PAGE_TOKENS, HEADS, WIDTH = 16, 8, 128
N_PAGES, LAYERS = 512, 4
PAGE_BYTES = LAYERS * 2 * PAGE_TOKENS * HEADS * WIDTH * 2
#: Of the GPU's clock: long enough for the library to overtake, if it did not wait.
LONG = 1_000_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    build = Path(os.environ["KVTIERD"]).parents[1]
    with Daemon(build, tmp_path_factory.mktemp("kvtierd"), host="512MiB") as daemon:
        yield daemon


@pytest.fixture
def session(daemon, request):
    group = Group("kv", GroupKind.ATTENTION, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES)
    layout = Layout(
        model=request.node.name, engine="torch", groups=[group], chunk_tokens=PAGE_TOKENS
    )
    with Session(layout, socket=daemon.socket) as session, Cuda(session) as cuda:
        session.cuda = cuda
        yield session


class Pages:
    """Keys and values of each layer in one tensor of (2, pages, tokens, heads, width)."""

    def __init__(self, session):
        shape = (2, N_PAGES, PAGE_TOKENS, HEADS, WIDTH)
        self.layers = [torch.randn(shape, device="cuda").bfloat16() for _ in range(LAYERS)]
        self.map = PageMap(session, [PageGroup.of(self.layers, page_axis=1)])

    def at(self, slots):
        return torch.stack([layer[:, slots] for layer in self.layers])


@pytest.fixture
def pages(session):
    return Pages(session), Pages(session)


def objects(first, slots):
    """The chunks of a prompt that begins with the token `first`."""
    n = len(slots)
    digests, _ = digest_array(list(range(first, first + n * PAGE_TOKENS)), PAGE_TOKENS)
    data = digests.tobytes()
    ends = range(PAGE_TOKENS, (n + 1) * PAGE_TOKENS, PAGE_TOKENS)
    made = Objects(data, parents=bytes(32) + data[:-32], boundary_tokens=ends)
    made.set_slots(slots.tolist(), 1)
    return made


def move(submit, page_map, of, **options):
    assert submit(page_map, of, waited=True, **options).wait().status is Status.OK


def some_slots():
    return torch.randperm(N_PAGES)[: N_PAGES // 2]


def test_random_pages_come_back_bit_for_bit(session, pages):
    first, second = pages
    saved, restored = some_slots(), some_slots()
    before = [layer.clone() for layer in second.layers]
    move(session.store_pages, first.map, objects(0, saved))
    move(session.load_pages, second.map, objects(0, restored))
    assert torch.equal(second.at(restored), first.at(saved))
    others = torch.ones(N_PAGES, dtype=torch.bool)
    others[restored] = False
    for old, new in zip(before, second.layers):
        assert torch.equal(old[:, others], new[:, others])
    moved = session.cuda.info().moved
    for direction in Direction:
        counts = [c.nbytes for (way, _), c in moved.items() if way is direction]
        assert sum(counts) == len(saved) * PAGE_BYTES


def test_a_store_waits_for_what_writes_the_pages(session, pages):
    first, second = pages
    slots = some_slots()
    written = [torch.randn_like(layer) for layer in first.layers]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        for layer, new in zip(first.layers, written):
            layer.copy_(new)
        after = stream.record_event()
    assert not after.query()
    move(session.store_pages, first.map, objects(0, slots), after=after)
    assert after.query()
    move(session.load_pages, second.map, objects(0, slots))
    assert torch.equal(second.at(slots), torch.stack([new[:, slots] for new in written]))


def test_a_load_waits_for_what_reads_the_pages(session, pages):
    first, second = pages
    slots = some_slots()
    move(session.store_pages, first.map, objects(0, slots))
    old = second.at(slots)
    read = [torch.empty_like(layer) for layer in second.layers]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        for copy, layer in zip(read, second.layers):
            copy.copy_(layer)
        after = stream.record_event()
    assert not after.query()
    move(session.load_pages, second.map, objects(0, slots), after=after)
    stream.synchronize()
    assert torch.equal(torch.stack([copy[:, slots] for copy in read]), old)
    assert torch.equal(second.at(slots), first.at(slots))


def test_pages_are_in_place_for_every_stream_when_a_load_is_reported(session, pages):
    first, second = pages
    slots = some_slots()
    move(session.store_pages, first.map, objects(0, slots))
    torch.cuda.synchronize()
    move(session.load_pages, second.map, objects(0, slots))
    with torch.cuda.stream(torch.cuda.Stream()):
        found = second.at(slots)
    torch.cuda.synchronize()
    assert torch.equal(found, first.at(slots))


def test_copies_do_not_change_the_current_device_or_stream(session, pages):
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()
    move(session.store_pages, pages[0].map, objects(0, some_slots()))
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (device, stream)
