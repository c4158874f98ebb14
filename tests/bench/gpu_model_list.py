# SPDX-License-Identifier: Apache-2.0
"""The models of gpu_models.py: transformers' model type, tokens of a step of the prefill (0: all
at once), fields of the config, those of --small, and what is not as in the real model.

Steps where the library's own implementation keeps scores of all queries at once.
"""

VOCABULARY = 4096
TOKENS_MAX = 160 << 10
SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
BASE = dict(max_position_embeddings=TOKENS_MAX, **SPECIAL)
SMALL = dict(hidden_size=128, intermediate_size=192)
SMALL_HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32)
SMALL_LATENT = dict(
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=64,
    q_lora_rank=64,
    qk_rope_head_dim=32,
    qk_nope_head_dim=32,
    v_head_dim=32,
    moe_intermediate_size=64,
    index_n_heads=4,
    index_head_dim=64,
)
# Latent attention of which an indexer chooses the keys.
SPARSE = dict(
    BASE,
    num_hidden_layers=3,
    num_attention_heads=16,
    num_key_value_heads=16,
    index_n_heads=8,
    n_routed_experts=16,
    mlp_layer_types=["dense", "sparse", "sparse"],
)

MODELS = {
    "Qwen3": (
        "qwen3",
        0,
        dict(
            BASE,
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=6,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
        ),
        dict(SMALL, **SMALL_HEADS, num_hidden_layers=2),
        "8B, 6 of 36 layers",
    ),
    "Qwen3-Next": (
        "qwen3_next",
        32 << 10,
        dict(
            BASE,
            num_hidden_layers=8,
            num_experts=64,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        ),
        dict(
            SMALL,
            **SMALL_HEADS,
            num_hidden_layers=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
        ),
        "80B-A3B, 8 of 48 layers, 64 of 512 experts",
    ),
    "gpt-oss": (
        "gpt_oss",
        512,
        dict(
            BASE,
            num_hidden_layers=4,
            num_local_experts=32,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        dict(
            SMALL,
            **SMALL_HEADS,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
        "120b, 4 of 36 layers, 32 of 128 experts",
    ),
    "DeepSeek-V3.2": (
        "deepseek_v32",
        2048,
        dict(SPARSE, first_k_dense_replace=1),
        dict(SMALL, **SMALL_LATENT, n_group=1, topk_group=1, num_experts_per_tok=2),
        "3 of 61 layers, 16 of 128 heads, 8 of 64 indexer heads, 16 of 256 experts",
    ),
    "GLM-5": (
        "glm_moe_dsa",
        2048,
        dict(SPARSE, indexer_types=["full", "shared", "full"]),
        dict(SMALL, **SMALL_LATENT, num_experts_per_tok=2),
        "3 of 78 layers, 16 of 64 heads, 8 of 32 indexer heads, 16 of 256 experts",
    ),
    "DeepSeek-V4": (
        "deepseek_v4",
        2048,
        dict(
            BASE,
            num_hidden_layers=4,
            index_n_heads=16,
            n_routed_experts=32,
            layer_types=[
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        ),
        dict(
            hidden_size=128,
            num_attention_heads=4,
            head_dim=64,
            q_lora_rank=64,
            qk_rope_head_dim=32,
            moe_intermediate_size=64,
            n_routed_experts=4,
            num_experts_per_tok=2,
            o_groups=2,
            o_lora_rank=32,
            index_n_heads=4,
            index_head_dim=64,
            index_topk=32,
        ),
        "4 of 43 layers, 16 of 64 indexer heads, 32 of 256 experts",
    ),
    "Nemotron-H": (
        "nemotron_h",
        1024,
        dict(
            BASE,
            layers_block_type=[
                "linear_attention",
                "mlp",
                "linear_attention",
                "full_attention",
                "mlp",
                "linear_attention",
            ],
            use_mamba_kernels=False,
        ),
        dict(
            SMALL,
            **SMALL_HEADS,
            mamba_num_heads=8,
            mamba_head_dim=32,
            ssm_state_size=32,
            n_groups=2,
            chunk_size=64,
        ),
        "8B, 6 of 52 layers",
    ),
    "Falcon-H1": (
        "falcon_h1",
        1024,
        dict(
            BASE,
            num_hidden_layers=2,
            hidden_size=3072,
            intermediate_size=12288,
            num_attention_heads=12,
            num_key_value_heads=2,
            head_dim=128,
            mamba_d_ssm=3072,
            mamba_n_heads=24,
            mamba_d_head=128,
            mamba_n_groups=2,
            mamba_d_state=256,
            mamba_chunk_size=128,
        ),
        dict(
            SMALL,
            **SMALL_HEADS,
            mamba_d_ssm=128,
            mamba_n_heads=4,
            mamba_d_head=32,
            mamba_d_state=32,
            mamba_chunk_size=64,
        ),
        "7B, 2 of 44 layers",
    ),
}
