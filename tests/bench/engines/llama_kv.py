#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV of a trained model, as bytes in a file: what bench_encoding is to be measured on.

usage: llama_kv.py MODEL.gguf f16|bf16|f32 TOKENS OUT TEXT-FILE...

Runs the first TOKENS tokens of the texts through llama.cpp and writes the sequence's state: for
each layer the keys of all tokens, then their values, token after token.
"""

import ctypes
import pathlib
import sys

import llama_cpp

TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # of ggml


def main(model, dtype, n_tokens, out, *texts):
    llama = llama_cpp.Llama(
        model, n_ctx=int(n_tokens), n_batch=512, type_k=TYPES[dtype], type_v=TYPES[dtype],
        flash_attn=True, swa_full=True, verbose=False)
    text = "\n".join(pathlib.Path(path).read_text() for path in texts)
    tokens = llama.tokenize(text.encode())[:int(n_tokens)]
    llama.eval(tokens)
    context = llama._ctx.ctx
    size = llama_cpp.llama_state_seq_get_size(context, 0)
    buffer = (ctypes.c_uint8 * size)()
    if llama_cpp.llama_state_seq_get_data(context, buffer, size, 0) != size:
        sys.exit("llama.cpp gives no state")
    pathlib.Path(out).write_bytes(bytes(buffer))
    print(f"{len(tokens)} tokens, {size} bytes", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
