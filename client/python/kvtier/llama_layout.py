# SPDX-License-Identifier: Apache-2.0
"""What the bytes of a llama.cpp state mean, as a layout; what adapters make of them.

llama.cpp checks little: it accepts the state of other weights of the same shape, of another
build, or of a cache that was rotated otherwise, and goes on with garbage. So all of that is in
the layout, and what a running context does not tell must be told by who made it.

Not in it: n_ctx and n_batch, which are capacities. With `bit_exact` also what changes only the
rounding: n_ubatch, the number of threads, the processor's instruction set.
"""
from __future__ import annotations

import ctypes
import enum
import hashlib
import json
import os
import re
import struct
from pathlib import Path
from typing import Any, Iterable, Optional, Union

import llama_cpp
from llama_cpp import llama_cpp as c

from .layout import Group, GroupKind, Layout

FilePath = Union[str, "os.PathLike[str]"]

#: Of ggml's types, those whose numbers kvtierd's encodings can take apart.
TYPE_NAMES = {0: "f32", 1: "f16", 30: "bf16"}

SPLIT_FILE = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")

# The groups of a layout. Models whose states cannot be taken apart have the first one only.
SEQUENCE = 0  # whole states; for pure attention they serve any prefix
COVER = 1  # whole states that lend their attention part to checkpoints before their end
CHECKPOINT = 2  # the window or the recurrent part alone


class Memory(enum.Enum):
    """How a model remembers: what a stored state of it can be used for."""

    ATTENTION = "attention"  # any prefix of the stored tokens
    WINDOW = "window"  # exactly the stored tokens
    HYBRID = "hybrid"  # exactly the stored tokens
    RECURRENT = "recurrent"  # exactly the stored tokens

    @staticmethod
    def of(model: Any) -> Memory:
        if c.llama_model_is_recurrent(model):
            return Memory.RECURRENT
        if c.llama_model_is_hybrid(model):
            return Memory.HYBRID
        # Also with swa_full: whether all of the window's layers were kept is not told.
        return Memory.WINDOW if c.llama_model_n_swa(model) > 0 else Memory.ATTENTION


def has_checkpoints(model: Any) -> bool:
    """Whether a partial state beside the attention part of a longer one is a whole one."""
    windowed = c.llama_model_n_swa(model) > 0
    memory = Memory.of(model)
    return memory is Memory.WINDOW or (memory is Memory.HYBRID and not windowed)


def file_sha256(path: FilePath) -> str:
    """SHA-256 of a file; remembered in the user's cache by path, time of change and size."""
    real = os.path.realpath(path)
    stat = os.stat(real)
    name = hashlib.sha256(f"{stat.st_mtime_ns} {stat.st_size} {real}".encode()).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    memo = Path(base) / "kvtier" / "sha256" / name
    try:
        known = memo.read_text()
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    except OSError:
        pass
    with open(real, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        scratch = memo.with_name(f"{name}.{os.getpid()}")
        scratch.write_text(digest)
        scratch.rename(memo)
    except OSError:
        pass  # it is only hashed again the next time
    return digest


def model_sha256(gguf: FilePath) -> str:
    """SHA-256 of a model; of one that is split into files, of their digests in order."""
    split = SPLIT_FILE.search(os.fspath(gguf))
    if not split:
        return file_sha256(gguf)
    n = int(split[1])
    stem = os.fspath(gguf)[: split.start()]
    parts = (file_sha256(f"{stem}-{i:05}-of-{n:05}.gguf") for i in range(1, n + 1))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def lora_identity(adapters: Iterable[tuple[FilePath, float]]) -> bytes:
    """`Identity.lora` of LoRA adapters (or control vectors) in use together: their bytes
    and scales."""
    return b"".join(
        bytes.fromhex(file_sha256(path)) + struct.pack("<f", scale) for path, scale in adapters
    )


def library_build() -> dict[str, Any]:
    """The libraries that are loaded. They do not tell their commit: their bytes stand for it."""
    folder = Path(c._lib._name).parent
    files = sorted({path.resolve() for path in folder.glob("lib*.so*")})
    digests = "".join(file_sha256(path) for path in files)
    return {
        "bindings": llama_cpp.__version__,
        "libraries": hashlib.sha256(digests.encode()).hexdigest()[:32],
        "session_version": c.LLAMA_SESSION_VERSION,
        "state_version": c.LLAMA_STATE_SEQ_VERSION,
    }


def _overrides(model_params: Any) -> str:
    """Digest of the metadata that was overridden when the model was loaded; "" for none."""
    if model_params is None or not model_params.kv_overrides:
        return ""
    digest, i = hashlib.sha256(), 0
    while (override := model_params.kv_overrides[i]).key:
        value = ctypes.string_at(ctypes.byref(override.value), ctypes.sizeof(override.value))
        if override.tag == c.LLAMA_KV_OVERRIDE_TYPE_STR:
            value = override.value.val_str
        elif override.tag == c.LLAMA_KV_OVERRIDE_TYPE_BOOL:
            value = bytes([override.value.val_bool])
        else:
            value = value[:8]
        digest.update(struct.pack("<iII", override.tag, len(override.key), len(value)))
        digest.update(override.key + value)
        i += 1
    return digest.hexdigest()[:16]


def _kernel(context: Any, params: Any, model_params: Any, bit_exact: bool) -> dict[str, Any]:
    kernel = {
        "flash_attn": params.flash_attn_type,
        "n_seq_max": c.llama_n_seq_max(context),
        "n_rs_seq": params.n_rs_seq,
        "kv_unified": params.kv_unified,
        "swa_full": params.swa_full,
        "attention": params.attention_type,
        "rope": [params.rope_scaling_type, params.rope_freq_base, params.rope_freq_scale],
        "yarn": [params.yarn_ext_factor, params.yarn_attn_factor, params.yarn_beta_fast,
                 params.yarn_beta_slow, params.yarn_orig_ctx],
        "attn_rot_disable": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),
        "kv_overrides": _overrides(model_params),
    }  # fmt: skip
    if bit_exact:
        kernel["n_ubatch"] = c.llama_n_ubatch(context)
        kernel["n_threads"] = [c.llama_n_threads(context), c.llama_n_threads_batch(context)]
        kernel["cpu"] = hashlib.sha256(c.llama_print_system_info()).hexdigest()[:16]
    return kernel


def check_params(params: Any) -> None:
    """ValueError, with the reason, for a context whose states could not be told apart."""
    if params.n_rs_seq:
        raise ValueError(
            f"n_rs_seq is {params.n_rs_seq}: with snapshots of recurrent states llama.cpp accepts"
            " crops after a restore and computes garbage; make the context with n_rs_seq = 0"
        )
    if params.flash_attn_type not in (
        c.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        c.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    ):
        raise ValueError(
            "flash_attn_type is AUTO and llama.cpp does not tell what it chose, but states"
            " differ by it; make the context with ENABLED or DISABLED"
        )


def _type_name(number: int) -> str:
    return TYPE_NAMES.get(number, f"type {number}")


def state_layout(
    model: Any,
    context: Any,
    params: Any,
    gguf: FilePath,
    *,
    model_params: Optional[Any] = None,
    chunk_tokens: int = 64,
    bit_exact: bool = False,
) -> Layout:
    """The layout of a context's sequence states; arguments as for `llama_cpp.StateStore`."""
    check_params(params)
    kernel = _kernel(context, params, model_params, bit_exact)
    groups = [Group("sequence", GroupKind.STATE)]  # one blob, its length varies
    if has_checkpoints(model):
        groups += [Group("cover", GroupKind.STATE), Group("checkpoint", GroupKind.STATE)]
    return Layout(
        model="gguf-sha256:" + model_sha256(gguf),
        model_dtype=f"ftype {c.llama_model_ftype(model)}",
        kv_dtype=f"ggml k {_type_name(params.type_k)} v {_type_name(params.type_v)}",
        engine="llama.cpp",
        engine_build=json.dumps(library_build(), sort_keys=True),
        kernel_layout=json.dumps(kernel, sort_keys=True),
        chunk_tokens=chunk_tokens,
        groups=groups,
    )
