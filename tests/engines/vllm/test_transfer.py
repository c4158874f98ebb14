# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's blocks belong to which key."""
import pytest
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from kvtier import Codec
from kvtier.vllm.options import Options
from kvtier.vllm.transfer import KeysSpec, pieces

PAGED, STATE = False, True


def split(groups, blocks, sizes, first, per_chunk=1, is_state=(PAGED, PAGED), whole=True):
    spec = KeysSpec(digests=bytes(32 * len(groups)), groups=list(groups))
    gpu = GPULoadStoreSpec(blocks, group_sizes=sizes, block_indices=first)
    return [tuple(piece) for piece in pieces(spec, gpu, per_chunk, is_state, whole)]


def test_a_block_for_each_key():
    assert split([0, 0, 1], [7, 5, 9], [2, 1], [3, 4]) == [
        (0, 0, [7]),
        (1, 0, [5]),
        (2, 0, [9]),
    ]


def test_groups_without_keys_are_passed_over():
    assert split([1], [9], [0, 1], [0, 4]) == [(0, 0, [9])]


def test_chunks_of_several_blocks():
    assert split([0, 0], [1, 2, 3, 4], [4, 0], [0, 0], per_chunk=2) == [
        (0, 0, [1, 2]),
        (1, 0, [3, 4]),
    ]


def test_a_load_begins_and_ends_within_chunks():
    assert split([0, 0], [1, 2], [2, 0], [1, 0], per_chunk=2, whole=False) == [
        (0, 1, [1]),
        (1, 0, [2]),
    ]


def test_a_store_of_chunks_with_holes_is_left_out():
    assert split([0, 0], [1, 2, 3], [3, 0], [0, 0], per_chunk=2) == []


def test_a_state_is_one_block_whatever_the_chunk():
    assert split([1], [6], [0, 1], [0, 5], per_chunk=4, is_state=(PAGED, STATE)) == [(0, 0, [6])]


def test_keys_that_are_not_in_order_of_groups_are_refused():
    with pytest.raises(ValueError, match="in order"):
        split([1, 0], [6, 7], [1, 1], [0, 0])


def test_options_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match="kvtier_sockett"):
        Options.of({"kvtier_sockett": "/run/x"})


def test_a_timeout_is_a_number():
    with pytest.raises(ValueError, match="load_timeout"):
        Options.of({"kvtier_load_timeout": "5"})


def test_a_codec_is_given_by_its_name():
    assert Options.of({"kvtier_codec": "mxfp8"}).codec is Codec.MXFP8
    with pytest.raises(ValueError, match="fp8-tile128"):
        Options.of({"kvtier_codec": "fp8"})


def test_options_of_vllm_are_left_alone():
    assert Options.of({"blocks_per_chunk": 2, "kvtier_socket": "/run/x"}).socket == "/run/x"
