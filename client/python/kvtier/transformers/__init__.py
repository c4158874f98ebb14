# SPDX-License-Identifier: Apache-2.0
"""Caches of Hugging Face transformers models, kept by kvtierd.

    with CacheStore(model, socket="/run/kvtier/kvtierd.sock") as store:
        loaded = store.load(ids)                    # longest stored prefix, or None
        cache, n = (loaded.cache, loaded.tokens) if loaded else (None, 0)
        positions = torch.arange(n, ids.shape[1])[None]
        output = model(ids[:, n:], cache=cache, position_ids=positions, use_cache=True)
        store.save(output.cache, ids)

Any cache whose classes are known serves: attention of all kinds, windows, indexers,
compressed entries, convolution and recurrent states. What grows with the tokens is stored
in chunks that all longer prompts share; windows and states are stored at boundaries, together
with what they need to be of use. See docs/transformers.md.

Needs torch and transformers (5.24), which kvtier itself does not.
"""
try:
    import torch as _torch
    import transformers as _transformers
except ImportError as _why:
    raise ImportError(f"kvtier.transformers needs torch and transformers: {_why}") from _why

from .model import fingerprint, layout_of
from .store import CacheStore, Loaded, Saved

__all__ = ["CacheStore", "Loaded", "Saved", "fingerprint", "layout_of"]
