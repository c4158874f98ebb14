# SPDX-License-Identifier: Apache-2.0
"""A llama.cpp engine over the low-level bindings: one model, one context, one sequence.

`Engine.open_store` is all that connects it to kvtierd; see kvtier.llama_cpp.
"""
import ctypes
import hashlib
import os
from array import array

from llama_cpp import llama_cpp as c

from kvtier.llama_cpp import StateStore

N_CTX = 4096
N_BATCH = 512
SEQUENCE = 0
F16 = 1  # GGML_TYPE_F16


@c.llama_log_callback
def _quiet(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        os.write(2, text)


class Engine:
    """Times of its work are the caller's to take. `changes` are members of the context's
    parameters."""

    def __init__(self, gguf, **changes):
        c.llama_log_set(_quiet, None)
        c.llama_backend_init()
        self.gguf = str(gguf)
        model_params = c.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(self.gguf.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self.params = self._context_params(changes)
        self.context = c.llama_init_from_model(self.model, self.params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = c.llama_get_memory(self.context)
        self.vocab = c.llama_model_get_vocab(self.model)
        self.n_vocab = c.llama_vocab_n_tokens(self.vocab)

    @staticmethod
    def _context_params(changes):
        params = c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, N_BATCH, N_BATCH
        params.n_seq_max, params.n_rs_seq = 1, 0
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        params.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = F16
        for name, value in changes.items():
            setattr(params, name, value)
        return params

    def open_store(self, socket, **options):
        """Sessions of equal engines share states: a continued run is the same to the bit."""
        options = {"bit_exact": True, "socket": socket, **options}
        return StateStore(self.model, self.context, self.params, self.gguf, **options)

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
        return c.llama_state_seq_get_size_ext(
            self.context, SEQUENCE, c.LLAMA_STATE_SEQ_FLAGS_NONE
        )

    def held(self):
        """How many tokens the sequence holds."""
        return c.llama_memory_seq_pos_max(self.memory, SEQUENCE) + 1

    def clear(self):
        c.llama_memory_seq_rm(self.memory, SEQUENCE, -1, -1)

    def close(self):
        c.llama_free(self.context)
        c.llama_model_free(self.model)
