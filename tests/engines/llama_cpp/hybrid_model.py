# SPDX-License-Identifier: Apache-2.0
"""A small hybrid model with random weights: six gated delta net layers and two of attention.

    hybrid_model.py TOKENIZER.gguf OUT.gguf     takes the tokenizer from another model

llama.cpp's architecture qwen35. No hybrid model with real weights can be had by pip; random
ones show a lost or a foreign state just as well, as long as the logits are far from uniform:
hence the scales.
"""
import sys
from dataclasses import dataclass

import gguf
import numpy as np

ARCHITECTURE = "qwen35"
EMBEDDING, LAYERS, FEED_FORWARD = 512, 8, 1024
HEADS, KV_HEADS, HEAD = 8, 2, 64
STATE, STATE_GROUPS, STATE_HEADS, CONVOLUTION = 128, 8, 8, 4
ATTENTION_EVERY = 4
STATE_KEYS, STATE_VALUES = STATE * STATE_GROUPS, STATE * STATE_HEADS


@dataclass
class Weights:
    """Writes tensors of random numbers."""

    writer: gguf.GGUFWriter
    random: np.random.Generator

    def matrix(self, name, rows, columns, scale=None, dtype=np.float16):
        values = self.random.standard_normal((rows, columns), dtype=np.float32)
        values *= columns**-0.5 if scale is None else scale
        self.writer.add_tensor(f"{name}.weight", values.astype(dtype))

    def vector(self, name, values):
        self.writer.add_tensor(name, np.asarray(values, dtype=np.float32))

    def norm(self, name, n, value=1.0):
        self.vector(f"{name}.weight", np.full(n, value))

    def attention(self, block):
        self.matrix(f"{block}.attn_q", 2 * HEADS * HEAD, EMBEDDING)  # with a gate
        self.matrix(f"{block}.attn_k", KV_HEADS * HEAD, EMBEDDING)
        self.matrix(f"{block}.attn_v", KV_HEADS * HEAD, EMBEDDING)
        self.matrix(f"{block}.attn_output", EMBEDDING, HEADS * HEAD)
        self.norm(f"{block}.attn_q_norm", HEAD, 2.0)
        self.norm(f"{block}.attn_k_norm", HEAD, 2.0)

    def delta_net(self, block):
        mixed = 2 * STATE_KEYS + STATE_VALUES
        self.matrix(f"{block}.attn_qkv", mixed, EMBEDDING)
        self.matrix(f"{block}.attn_gate", STATE_VALUES, EMBEDDING)
        self.matrix(f"{block}.ssm_conv1d", mixed, CONVOLUTION, 0.5, np.float32)
        self.matrix(f"{block}.ssm_beta", STATE_HEADS, EMBEDDING)
        self.matrix(f"{block}.ssm_alpha", STATE_HEADS, EMBEDDING)
        self.matrix(f"{block}.ssm_out", EMBEDDING, STATE_VALUES)
        # Slow decay: what was read long ago still shows.
        self.vector(f"{block}.ssm_dt.bias", self.random.uniform(-6, -3, STATE_HEADS))
        self.vector(f"{block}.ssm_a", -self.random.uniform(0.5, 2, STATE_HEADS))
        self.norm(f"{block}.ssm_norm", STATE)

    def layer(self, i):
        block = f"blk.{i}"
        self.norm(f"{block}.attn_norm", EMBEDDING)
        self.norm(f"{block}.post_attention_norm", EMBEDDING)
        (self.delta_net if (i + 1) % ATTENTION_EVERY else self.attention)(block)
        self.matrix(f"{block}.ffn_gate", FEED_FORWARD, EMBEDDING)
        self.matrix(f"{block}.ffn_up", FEED_FORWARD, EMBEDDING)
        self.matrix(f"{block}.ffn_down", EMBEDDING, FEED_FORWARD)


def add_shape(writer):
    writer.add_context_length(32768)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_dimension_count(HEAD // 4)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(STATE_VALUES)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(STATE_HEADS)
    writer.add_ssm_group_count(STATE_GROUPS)
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", ATTENTION_EVERY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer, source):
    """Copies another file's tokenizer; the size of its vocabulary."""
    fields = gguf.GGUFReader(source).fields
    for key, field in fields.items():
        if key.startswith("tokenizer."):
            kind, value = field.types[0], field.contents()
            if kind is gguf.GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, kind)
    return len(fields["tokenizer.ggml.tokens"].data)


def write_model(tokenizer, path, seed=1):
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name("random hybrid")
    add_shape(writer)
    n_vocab = add_tokenizer(writer, tokenizer)
    weights = Weights(writer, np.random.default_rng(seed))
    weights.matrix("token_embd", n_vocab, EMBEDDING, 1.0)
    weights.matrix("output", n_vocab, EMBEDDING, 3 * EMBEDDING**-0.5)
    weights.norm("output_norm", EMBEDDING)
    for i in range(LAYERS):
        weights.layer(i)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_model(*sys.argv[1:3])
