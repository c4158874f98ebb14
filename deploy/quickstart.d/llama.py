# SPDX-License-Identifier: Apache-2.0
"""A llama.cpp engine whose sequence state is saved straight into, and restored straight
out of, memory that kvtierd leases: the only copy is the engine's own.

What llama.cpp does not check must be in the layout: it accepts the state of other weights of
the same shape, of another build, of another cache type, without a word.
"""
import ctypes
import hashlib
import json
import os
from array import array
from pathlib import Path

import llama_cpp
from llama_cpp import llama_cpp as c

from kvtier import Group, GroupKind, Layout

N_CTX = 4096
N_BATCH = 512
SEQUENCE = 0
WHOLE = c.LLAMA_STATE_SEQ_FLAGS_NONE
F16 = 1  # GGML_TYPE_F16


@c.llama_log_callback
def _quiet(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        os.write(2, text)


def file_sha256(*paths):
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class Engine:
    """One model, one context, one sequence. Times of its work are the caller's to take."""

    def __init__(self, gguf):
        c.llama_log_set(_quiet, None)
        c.llama_backend_init()
        self.gguf = str(gguf)
        model_params = c.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(self.gguf.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self.params = self._context_params()
        self.context = c.llama_init_from_model(self.model, self.params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = c.llama_get_memory(self.context)
        self.vocab = c.llama_model_get_vocab(self.model)
        self.n_vocab = c.llama_vocab_n_tokens(self.vocab)

    @staticmethod
    def _context_params():
        params = c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, N_BATCH, N_BATCH
        params.n_seq_max, params.n_rs_seq = 1, 0
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        params.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = F16
        return params

    @property
    def croppable(self):
        """Pure attention: a state serves any prefix of its tokens."""
        windowed = c.llama_model_n_swa(self.model) > 0
        recurrent = c.llama_model_is_recurrent(self.model) or c.llama_model_is_hybrid(self.model)
        return not windowed and not recurrent

    def layout(self):
        """Everything that decides what the bytes of a state mean, and to the bit."""
        p = self.params
        libraries = sorted(Path(llama_cpp.__file__).parent.glob("lib/*.so"))
        build = {
            "bindings": llama_cpp.__version__,
            "libraries": file_sha256(*libraries),
            "session_version": c.LLAMA_SESSION_VERSION,
            "sequence_version": c.LLAMA_STATE_SEQ_VERSION,
            "cpu": hashlib.sha256(c.llama_print_system_info()).hexdigest()[:16],
        }
        kernel = {
            "flash_attn": p.flash_attn_type,
            "n_ubatch": p.n_ubatch,
            "n_threads": [p.n_threads, p.n_threads_batch],
            "n_seq_max": p.n_seq_max,
            "n_rs_seq": p.n_rs_seq,
            "kv_unified": p.kv_unified,
            "swa_full": p.swa_full,
            "rope": [p.rope_scaling_type, p.rope_freq_base, p.rope_freq_scale],
            "yarn": [p.yarn_ext_factor, p.yarn_attn_factor, p.yarn_beta_fast, p.yarn_beta_slow,
                     p.yarn_orig_ctx],
            "attn_rot_disable": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),
            "state_flags": WHOLE,
        }  # fmt: skip
        return Layout(
            model="gguf-sha256:" + file_sha256(self.gguf),
            model_dtype=f"ftype {c.llama_model_ftype(self.model)}",
            kv_dtype=f"ggml k {p.type_k} v {p.type_v}",
            engine="llama.cpp",
            engine_build=json.dumps(build, sort_keys=True),
            kernel_layout=json.dumps(kernel, sort_keys=True),
            chunk_tokens=64,
            groups=[Group("sequence", GroupKind.STATE)],  # one blob, its length varies
        )

    def tokenize(self, text, n_tokens):
        """The first n_tokens token ids of a text (bytes), as array('i')."""
        tokens = (c.llama_token * (len(text) + 8))()
        n = c.llama_tokenize(self.vocab, text, len(text), tokens, len(tokens), True, False)
        if n < n_tokens:
            raise RuntimeError(f"the text has only {n} tokens")
        return array("i", tokens[:n_tokens])

    def decode(self, tokens):
        """Runs token ids through the model, behind what the sequence holds already."""
        for at in range(0, len(tokens), N_BATCH):
            ids = tokens[at : at + N_BATCH]
            part = (c.llama_token * len(ids))(*ids)  # the batch only points to it
            if c.llama_decode(self.context, c.llama_batch_get_one(part, len(part))):
                raise RuntimeError("llama_decode failed")
        c.llama_synchronize(self.context)

    def logits(self):
        """float32[n_vocab] behind the last token, in the engine's memory."""
        pointer = c.llama_get_logits_ith(self.context, -1)
        return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self.n_vocab)).contents

    def greedy(self, n_tokens):
        """n_tokens more tokens, each with the SHA-256 of the logits it was taken from."""
        tokens, sums = [], []
        for _ in range(n_tokens):
            logits = self.logits()
            sums.append(hashlib.sha256(logits).hexdigest())
            values = logits[:]
            tokens.append(values.index(max(values)))
            self.decode(tokens[-1:])
        return tokens, sums

    def state_bytes(self):
        return c.llama_state_seq_get_size_ext(self.context, SEQUENCE, WHOLE)

    def save(self, address, nbytes):
        """Writes the state to `address`; False when llama.cpp wrote another length."""
        target = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
        return nbytes == c.llama_state_seq_get_data_ext(
            self.context, target, nbytes, SEQUENCE, WHOLE
        )

    def restore(self, address, nbytes, n_tokens):
        """Reads a state of at least n_tokens tokens and crops it to them.

        False leaves the sequence empty. The bytes must have been verified: llama.cpp has no
        checksum, and a damaged state may be accepted.
        """
        source = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
        read = c.llama_state_seq_set_data_ext(self.context, source, nbytes, SEQUENCE, WHOLE)
        held = c.llama_memory_seq_pos_max(self.memory, SEQUENCE) + 1
        good = read == nbytes and held >= n_tokens
        if good and held > n_tokens:
            good = self.croppable and c.llama_memory_seq_rm(
                self.memory, SEQUENCE, n_tokens, -1
            )
        if not good:
            self.clear()
        return good

    def clear(self):
        c.llama_memory_seq_rm(self.memory, SEQUENCE, -1, -1)
