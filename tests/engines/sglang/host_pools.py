# SPDX-License-Identifier: Apache-2.0
"""SGLang's own host pools, with some KiB of memory each."""
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool_host import (
    DeepSeekV4PagedHostPool,
    LogicalHostPool,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import (
    AsymmetricMHATokenToKVPoolHost,
    MHATokenToKVPoolHost,
)
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE, LAYERS, HEADS, DIM = 16, 3, 2, 8
TOKENS = 32 * PAGE
CPU = torch.device("cpu")
DTYPE = torch.bfloat16
LAYOUTS = ("layer_first", "page_first", "page_first_direct")


@contextmanager
def small():
    """SGLang leaves 10 GiB to others, which this machine may not have."""
    with host_memory_budget_scope(1 << 30):
        yield


def pointers(tensors):
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def mha_info(v_dim=DIM, dtype=DTYPE, tokens=TOKENS, layers=LAYERS):
    k = tuple(torch.zeros(tokens, HEADS, DIM, dtype=dtype) for _ in range(layers))
    v = tuple(torch.zeros(tokens, HEADS, v_dim, dtype=dtype) for _ in range(layers))
    buffers = KVBuffers(
        k=k,
        v=v,
        k_data_ptrs=pointers(k),
        v_data_ptrs=pointers(v),
        layout=KVBufferLayout.NHD,
    )
    return MHABufferInfo(
        buffers=buffers,
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=v_dim,
        dtype=dtype,
        device=CPU,
    )


def mha(
    layout="page_first",
    allocator="default",
    v_dim=DIM,
    dtype=DTYPE,
    tokens=TOKENS,
    layers=LAYERS,
    **more,
):
    kind = MHATokenToKVPoolHost if v_dim == DIM else AsymmetricMHATokenToKVPoolHost
    with small():
        return kind(
            mha_info(v_dim, dtype, tokens, layers),
            2.0,
            0,
            PAGE,
            layout,
            pin_memory=False,
            allocator_type=allocator,
            device_capacity_tokens=tokens,
            start_layer=0,
            end_layer=layers,
            **more,
        )


def mla(layout="page_first", allocator="default", **more):
    rows = tuple(torch.zeros(TOKENS, 1, 24, dtype=DTYPE) for _ in range(LAYERS))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=pointers(rows),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        kv_cache_dim=24,
        dtype=DTYPE,
        device=CPU,
    )
    with small():
        return MLATokenToKVPoolHost(
            info,
            2.0,
            0,
            PAGE,
            layout,
            pin_memory=False,
            allocator_type=allocator,
            device_capacity_tokens=TOKENS,
            start_layer=0,
            end_layer=LAYERS,
            target_layer_num=LAYERS,
            **more,
        )


def mamba(layout="page_first", allocator="default", temporal=(4, 8, 8), side=False, slots=16):
    """temporal: the shape of a layer's state; of a model that has none, (0,)."""
    extra = (torch.zeros(slots, 6, dtype=torch.int32),) if side else ()
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, slots, *temporal),
        conv=(
            torch.zeros(LAYERS, slots, 32, 3, dtype=DTYPE),
            torch.zeros(LAYERS, slots, 5, dtype=DTYPE),
        ),
        extra_checkpoint_buffers=extra,
    )
    with small():
        return MambaPoolHost(
            info,
            2.0,
            0,
            device_capacity=slots,
            pin_memory=False,
            allocator_type=allocator,
            layout=layout,
        )


def deepseek_v4(layout="page_first", allocator="default", name="deepseek_v4_c4"):
    with small():
        return DeepSeekV4PagedHostPool(
            name,
            [torch.zeros(64, 96, dtype=torch.uint8) for _ in range(LAYERS)],
            item_bytes=96,
            num_host_pages=64,
            slot_page_size=PAGE,
            layout=layout,
            pin_memory=False,
            allocator_type=allocator,
        )


def indexer(layout="page_first", allocator="default", anchor=None):
    """Keys of a sparse attention's indexer, which lie page by page as those of its anchor."""
    rows = [torch.zeros(TOKENS // PAGE, PAGE * 12, dtype=torch.uint8) for _ in range(LAYERS)]
    device_pool = SimpleNamespace(
        store_dtype=torch.uint8,
        start_layer=0,
        end_layer=LAYERS,
        layer_num=LAYERS,
        layer_shard_enabled=False,
        device="cpu",
        index_k_with_scale_buffer=rows,
    )
    decl = HostPoolDecl(
        pool_name=PoolName.INDEXER,
        device_pool=device_pool,
        indices_from_pool=PoolName.KV,
        layout_source=PoolName.KV,
        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=12, dtype=torch.uint8),
        host_pool_builder=None,
    )
    with small():
        return DSAIndexerPoolHost(
            decl, anchor or mla(layout), pin_memory=False, allocator_type=allocator
        )


def logical():
    return LogicalHostPool(TOKENS, PAGE)


KINDS = {
    **{f"mha {layout}": (mha, layout) for layout in (*LAYOUTS, "page_head")},
    **{f"mla {layout}": (mla, layout) for layout in LAYOUTS},
    **{f"indexer {layout}": (indexer, layout) for layout in LAYOUTS},
    **{f"v4 {layout}": (deepseek_v4, layout) for layout in LAYOUTS},
    **{f"mamba {layout}": (mamba, layout) for layout in ("page_first", "page_first_direct")},
}


def make(kind, allocator="default"):
    build, layout = KINDS[kind]
    return build(layout, allocator)


def buffers(pool):
    """All memory of a pool."""
    if isinstance(pool, MambaPoolHost):
        return [buffer for buffer in pool.get_hybrid_pool_buffer() if buffer.numel()]
    found = getattr(pool, "kv_buffer", None)
    if found is None:
        found = pool.index_k_with_scale_buffer
    return list(found) if isinstance(found, (list, tuple)) else [found]


def fill(pool, seed):
    """Random bytes, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    for buffer in buffers(pool):
        size = buffer.numel() * buffer.element_size()
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=random)
        buffer.view(torch.uint8).reshape(-1).copy_(data)


def wipe(pool):
    for buffer in buffers(pool):
        buffer.view(torch.uint8).zero_()


def content(pool, indices):
    """The bytes of each page, as SGLang copies them out."""
    pages = indices[:: pool.page_size]
    return [pool.get_data_page(int(i)).view(torch.uint8).numpy().tobytes() for i in pages]


def indices_of(pool, pages):
    """Host indices of these pages, in their order."""
    each = torch.arange(pool.page_size)
    return torch.cat([page * pool.page_size + each for page in pages])


def keys(n, seed="prompt"):
    """As SGLang names the n pages of a prompt."""
    from sglang.srt.mem_cache.utils import get_hash_str

    first = sum(seed.encode())
    return get_hash_str(list(range(first, first + n * PAGE)), None, PAGE)
