# SPDX-License-Identifier: Apache-2.0
"""Where the pages of SGLang's host pools lie, in every memory layout. No daemon."""
import ctypes

import pytest
import torch
from host_pools import (
    KINDS,
    PAGE,
    content,
    fill,
    indices_of,
    logical,
    make,
    mamba,
    mha,
    mla,
)

from kvtier.refusal import Refused
from kvtier.sglang.pools import describe


def read_views(pool, page):
    """The bytes of a page as libkvtier copies them."""
    return b"".join(
        ctypes.string_at(
            view.address + page * view.page_stride + row * view.row_stride, view.row_bytes
        )
        for view in pool.views
        for row in range(view.n_rows)
    )


@pytest.mark.parametrize("allocator", ["default", "shm"])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_what_sglang_copies_out(kind, allocator):
    pool = make(kind, allocator)
    fill(pool, 1)
    described = describe("pool", pool)
    for page in (0, 1, 5, described.n_pages - 1):
        [expected] = content(pool, indices_of(pool, [page]))
        assert read_views(described, page) == expected
    assert described.page_bytes == len(expected)


@pytest.mark.parametrize("side, temporal", [(False, (0,)), (True, (4, 8, 8)), (True, (0,))])
def test_states_without_a_part_or_with_another_one(side, temporal):
    pool = mamba(side=side, temporal=temporal)
    fill(pool, 2)
    described = describe("mamba", pool)
    for slot in (0, 3, described.n_pages - 1):
        assert [read_views(described, slot)] == content(pool, indices_of(pool, [slot]))


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_keys_and_values_of_different_sizes_lie_in_two_buffers(layout):
    pool = mha(layout, v_dim=4)
    pool.k_buffer.copy_(torch.randn_like(pool.k_buffer, dtype=torch.float32))
    pool.v_buffer.copy_(torch.randn_like(pool.v_buffer, dtype=torch.float32))
    described = describe("kv", pool)
    for page in (0, 2, described.n_pages - 1):
        if layout == "page_first":
            parts = [b[page * PAGE : (page + 1) * PAGE] for b in (pool.k_buffer, pool.v_buffer)]
        else:
            parts = [b[page] for b in (pool.k_buffer, pool.v_buffer)]
        expected = b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
        assert read_views(described, page) == expected


def test_a_layer_first_pool_is_one_view_of_rows():
    [view] = describe("kv", mha("layer_first")).views
    assert view.n_rows == 2 * 3


def test_memory_stays_when_the_pool_forgets_it():
    pool = mha("page_first", "shm")
    fill(pool, 3)
    described = describe("kv", pool)
    [expected] = content(pool, indices_of(pool, [4]))
    pool.destroy()
    assert read_views(described, 4) == expected


def test_slots_are_pages():
    described = describe("kv", mha())
    indices = indices_of(mha(), [3, 0, 7])
    assert described.slots(indices, 3) == [3, 0, 7]


@pytest.mark.parametrize(
    "indices",
    [
        None,
        torch.arange(PAGE - 1),
        torch.arange(2 * PAGE),
        torch.arange(1, PAGE + 1),
        torch.arange(1000 * PAGE, 1001 * PAGE),
        torch.arange(-PAGE, 0),
    ],
    ids=["none", "short", "long", "unaligned", "beyond", "negative"],
)
def test_indices_that_are_not_the_pages_of_the_keys_have_no_slots(indices):
    assert describe("kv", mha()).slots(indices, 1) is None


def test_a_logical_anchor_has_no_pages():
    assert describe("kv", logical()) is None


def changed(pool, **attributes):
    for name, value in attributes.items():
        setattr(pool, name, value)
    return pool


def without_pages(index, flat=True):
    raise NotImplementedError("scales live elsewhere")


@pytest.mark.parametrize(
    "pool, reason",
    [
        (lambda: changed(mha(), shared_allocation_domain=object()), "shared arena"),
        (lambda: changed(mha(), placement=object()), "dealt out"),
        (lambda: changed(mla(), dcp_size=2), "decode context"),
        (lambda: changed(mla(), _is_dummy=True), "no memory on this rank"),
        (lambda: changed(mha(), device="cuda:0"), "cuda:0"),
        (
            lambda: changed(
                mha("layer_first"),
                get_data_page=without_pages,
                get_page_buffer_meta=lambda indices: None,
            ),
            "scales live elsewhere",
        ),
        (
            lambda: changed(
                mha(),
                get_data_page=without_pages,
                get_page_buffer_meta=lambda indices: ([4096 + int(indices[0]) ** 2], [64]),
            ),
            "one distance",
        ),
        (
            lambda: changed(
                mha(),
                get_data_page=without_pages,
                get_page_buffer_meta=lambda i: ([4096 + int(i[0])], [64 + int(i[0])]),
            ),
            "several sizes",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_by_name(pool, reason):
    with pytest.raises(Refused, match=f"pool kv.*(MHA|MLA)TokenToKVPoolHost.*{reason}"):
        describe("kv", pool())
