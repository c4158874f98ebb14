# SPDX-License-Identifier: Apache-2.0
"""A tiny model of each family that keeps its cache in a way of its own.

Weights are random, and scaled so that what a layer computes depends on what it is given:
with the libraries' own small ones a lost state would hardly show in the logits.
"""
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()

VOCABULARY = 256
BASE = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
LOCAL_EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
ROUTED_EXPERTS = dict(
    moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1
)
LATENT = dict(kv_lora_rank=32, qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16)
DELTA_NET = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
MAMBA2 = dict(mamba_n_heads=8, mamba_d_state=16, mamba_chunk_size=32)
# At least as many as there are tokens: ties among fewer are broken by noise.
INDEXER = dict(index_topk=512, index_head_dim=32, index_n_heads=4)
WINDOW = dict(sliding_window=48)


def base(n_layers, **fields):
    """None takes a field out, which leaves the family's default."""
    fields = {**BASE, "num_hidden_layers": n_layers, **fields}
    return {name: value for name, value in fields.items() if value is not None}


def linear_and(full, n_linear=3):
    return ["linear_attention"] * n_linear + [full]


FAMILIES = {
    # ---- attention ----
    "qwen3": ("qwen3", base(3)),
    "qwen3_moe": ("qwen3_moe", base(2, **EXPERTS)),
    "minimax_m2": ("minimax_m2", base(2, **LOCAL_EXPERTS)),
    "deepseek_v3": (
        "deepseek_v3",
        base(
            2,
            **LATENT,
            **ROUTED_EXPERTS,
            q_lora_rank=48,
            n_shared_experts=1,
            num_key_value_heads=4,
            first_k_dense_replace=1,
            head_dim=None,
        ),
    ),
    # ---- with an indexer ----
    "deepseek_v32": (
        "deepseek_v32",
        base(
            2,
            **LATENT,
            **ROUTED_EXPERTS,
            **INDEXER,
            q_lora_rank=48,
            n_shared_experts=1,
            num_key_value_heads=4,
            first_k_dense_replace=1,
            mlp_layer_types=["dense", "sparse"],
        ),
    ),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        base(
            3,
            **LATENT,
            **ROUTED_EXPERTS,
            **INDEXER,
            q_lora_rank=48,
            n_shared_experts=1,
            num_key_value_heads=4,
            mlp_layer_types=["dense", "sparse", "sparse"],
            indexer_types=["full", "shared", "full"],
        ),
    ),
    "minimax_m3": (
        "minimax_m3_vl_text",
        base(
            2,
            **LOCAL_EXPERTS,
            dense_intermediate_size=96,
            shared_intermediate_size=32,
            rotary_dim=16,
            mlp_layer_types=["dense", "sparse"],
            index_n_heads=2,
            index_head_dim=16,
            index_block_size=16,
            index_topk_blocks=32,
            layer_types=["full_attention", "minimax_m3_sparse"],
        ),
    ),
    # ---- windows ----
    "gpt_oss": (
        "gpt_oss",
        base(
            4,
            **LOCAL_EXPERTS,
            **WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    ),
    "gemma3": (
        "gemma3_text",
        base(4, **WINDOW, layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    ),
    "gemma4": (
        "gemma4_text",
        base(
            4,
            **WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
        ),
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        base(
            3,
            **ROUTED_EXPERTS,
            **WINDOW,
            head_dim=24,
            v_head_dim=16,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            mlp_layer_types=["dense", "sparse", "sparse"],
        ),
    ),
    # ---- windows and compressed entries ----
    "deepseek_v4": (
        "deepseek_v4",
        base(
            3,
            **WINDOW,
            num_key_value_heads=1,
            head_dim=32,
            intermediate_size=None,
            moe_intermediate_size=32,
            q_lora_rank=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            layer_types=[
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
            ],
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
            mlp_layer_types=["hash_moe", "moe", "moe"],
            o_groups=2,
            o_lora_rank=16,
            index_n_heads=4,
            index_head_dim=16,
            index_topk=8,
        ),
    ),
    # ---- states ----
    "mamba": ("mamba", base(2, state_size=16, expand=2)),
    "falcon_mamba": ("falcon_mamba", base(2, state_size=16, expand=2)),
    "mamba2": (
        "mamba2",
        base(2, num_heads=8, state_size=16, n_groups=2, chunk_size=32, expand=2),
    ),
    # ---- attention and states ----
    "qwen3_next": (
        "qwen3_next",
        base(
            4,
            **DELTA_NET,
            **EXPERTS,
            shared_expert_intermediate_size=32,
            layer_types=linear_and("full_attention"),
        ),
    ),
    "qwen3_5": (
        "qwen3_5_text",
        base(4, **DELTA_NET, layer_types=linear_and("full_attention")),
    ),
    "olmo_hybrid": (
        "olmo_hybrid",
        base(
            4,
            **{**DELTA_NET, "linear_num_key_heads": 4},
            num_key_value_heads=4,
            head_dim=None,
            layer_types=linear_and("full_attention"),
        ),
    ),
    "kimi_linear": (
        "kimi_linear",
        base(
            4,
            **LATENT,
            num_key_value_heads=4,
            moe_intermediate_size=32,
            num_experts=4,
            num_experts_per_token=2,
            layer_types=linear_and("full_attention"),
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            linear_head_dim=16,
            linear_num_heads=4,
            head_dim=None,
        ),
    ),
    "bailing_hybrid": (
        "bailing_hybrid",
        base(
            4,
            **LATENT,
            num_key_value_heads=4,
            moe_intermediate_size=32,
            num_experts=4,
            num_experts_per_token=2,
            num_expert_group=1,
            topk_group=1,
            layer_types=linear_and("full_attention"),
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            linear_head_dim=16,
            linear_num_heads=4,
        ),
    ),
    "glm5_next": (
        "glm5_next_text",
        base(
            4,
            **{**LATENT, "qk_rope_head_dim": 0},
            **ROUTED_EXPERTS,
            **INDEXER,
            q_lora_rank=48,
            n_shared_experts=1,
            num_key_value_heads=4,
            head_dim=0,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            indexer_types=["full"] * 4,
            layer_types=linear_and("indexed_attention"),
            linear_head_dim=16,
            linear_num_heads=4,
            index_kpool=4,
        ),
    ),
    "minimax": (
        "minimax",
        base(
            4,
            num_local_experts=4,
            block_size=32,
            layer_types=["linear_attention", "full_attention"] * 2,
        ),
    ),
    "nemotron_h": (
        "nemotron_h",
        base(
            None,
            layers_block_type=[
                "linear_attention",
                "moe",
                "full_attention",
                "mlp",
                "linear_attention",
            ],
            ssm_state_size=16,
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=2,
            chunk_size=32,
            n_routed_experts=4,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=32,
        ),
    ),
    "falcon_h1": (
        "falcon_h1",
        base(2, **MAMBA2, mamba_d_ssm=64, mamba_d_head=8, head_dim=None),
    ),
    "jamba": (
        "jamba",
        base(
            4,
            num_experts=4,
            attn_layer_period=4,
            attn_layer_offset=2,
            mamba_d_state=16,
            mamba_dt_rank=8,
            use_mamba_kernels=False,
            head_dim=None,
        ),
    ),
    "bamba": (
        "bamba",
        base(3, **MAMBA2, mamba_d_head=16, attn_layer_indices=[1], head_dim=None),
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        base(
            3,
            **MAMBA2,
            mamba_d_head=16,
            num_local_experts=4,
            shared_intermediate_size=32,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            head_dim=None,
        ),
    ),
    "lfm2": (
        "lfm2",
        base(3, layer_types=["conv", "full_attention", "conv"], block_multiple_of=32, head_dim=None),
    ),
    "zamba2": (
        "zamba2",
        base(
            4,
            num_key_value_heads=4,
            layers_block_type=[
                "linear_attention",
                "hybrid",
                "linear_attention",
                "linear_attention",
            ],
            mamba_d_state=16,
            n_mamba_heads=8,
            mamba_headdim=16,
            chunk_size=32,
            attention_head_dim=32,
            kv_channels=16,
            head_dim=None,
        ),
    ),
}


class WithHead(torch.nn.Module):
    """For text models that are only reached through a larger one: logits by a head of ours."""

    def __init__(self, text, config, dtype):
        super().__init__()
        self.text, self.config = text, config
        self.head = torch.nn.Linear(config.hidden_size, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, ids, **arguments):
        output = self.text(ids, **arguments)
        output["logits"] = self.head(output.last_hidden_state)
        return output


def build(family, dtype=torch.float32, **changes):
    kind, fields = FAMILIES[family]
    config = AutoConfig.for_model(kind, **{**fields, **changes})
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except ValueError as why:
        if "Unrecognized configuration class" not in str(why):
            raise
        model = WithHead(AutoModel.from_config(config, dtype=dtype), config, dtype)
    scale_up(model)
    return model.eval()


def scale_up(model):
    random = torch.Generator().manual_seed(1)
    for name, weights in model.named_parameters():
        if weights.dim() >= 2 and not any(word in name for word in ("embed", "conv", "A_log")):
            values = torch.randn(weights.shape, generator=random) * weights.shape[-1] ** -0.5
            weights.data.copy_(values)
