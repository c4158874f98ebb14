# SPDX-License-Identifier: Apache-2.0
"""kvtier under SGLang's HiCache: pages of its host pools kept by kvtierd.

    python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
        '{"backend_name": "kvtier", "module_path": "kvtier.sglang",
          "class_name": "KvtierHiCache", "interface_v1": 1}'

SGLang decides what is stored and when; this package names it and moves it. The pools are
mapped in SGLang's own process, so it is libkvtier that copies here, in a thread of its own,
straight between a pool and the daemon's memory: one copy each way, as it would be if the
daemon read and wrote the pools' descriptors. But it works with any allocator (shm, hugetlb,
pinned, plain), and the daemon touches no memory of its clients. See docs/sglang.md.

Needs torch and SGLang (0.5.23), which kvtier itself does not.
"""
try:
    import sglang as _sglang
    import torch as _torch
except ImportError as _why:
    raise ImportError(f"kvtier.sglang needs torch and sglang: {_why}") from _why

from ..refusal import Refused
from .backend import KvtierHiCache

__all__ = ["KvtierHiCache", "Refused"]
