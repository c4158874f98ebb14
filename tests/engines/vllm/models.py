# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights.

The weights are large enough that what a layer computes depends on what it is given: with the
libraries' own small ones a lost page would hardly show in the tokens.
"""
import json
from pathlib import Path

BASE = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
    torch_dtype="bfloat16",
)
QWEN3 = dict(
    BASE,
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    num_hidden_layers=2,
    attention_bias=False,
)
# Three layers with a recurrent state, then one of attention.
QWEN3_NEXT = dict(
    BASE,
    architectures=["Qwen3NextForCausalLM"],
    model_type="qwen3_next",
    num_hidden_layers=4,
    full_attention_interval=4,
    num_attention_heads=2,
    head_dim=256,
    partial_rotary_factor=0.25,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    num_experts=4,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    attention_bias=False,
)
# Three layers that see a window of 128 tokens, then one that sees all.
GEMMA3 = dict(
    BASE,
    architectures=["Gemma3ForCausalLM"],
    model_type="gemma3_text",
    num_hidden_layers=4,
    sliding_window=128,
    layer_types=["sliding_attention"] * 3 + ["full_attention"],
    query_pre_attn_scalar=32,
    hidden_activation="gelu_pytorch_tanh",
    rope_local_base_freq=10000.0,
)
# Mamba2 twice, each with a feed-forward layer of its own, then attention.
NEMOTRON_H = dict(
    BASE,
    architectures=["NemotronHForCausalLM"],
    model_type="nemotron_h",
    num_hidden_layers=4,
    hybrid_override_pattern="M-M*",
    attention_head_dim=32,
    mamba_num_heads=4,
    mamba_head_dim=32,
    ssm_state_size=32,
    n_groups=1,
    conv_kernel=4,
    chunk_size=64,
    expand=2,
    mamba_hidden_act="silu",
    mlp_hidden_act="relu2",
    mlp_bias=False,
    use_bias=False,
    use_conv_bias=True,
    mamba_proj_bias=False,
    attention_bias=False,
    layer_norm_epsilon=1e-5,
    residual_in_fp32=False,
    rescale_prenorm_residual=True,
    time_step_limit=[0.0, 1e9],
)
# Latent attention, of the only sizes that vLLM has a kernel for on the CPU.
DEEPSEEK_V3 = dict(
    {name: value for name, value in BASE.items() if name != "head_dim"},
    architectures=["DeepseekV3ForCausalLM"],
    model_type="deepseek_v3",
    num_hidden_layers=2,
    num_key_value_heads=4,
    kv_lora_rank=512,
    q_lora_rank=64,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    moe_layer_freq=1,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
    attention_bias=False,
)
MODELS = {
    "qwen3": QWEN3,
    "qwen3_next": QWEN3_NEXT,
    "gemma3": GEMMA3,
    "nemotron_h": NEMOTRON_H,
    "deepseek_v3": DEEPSEEK_V3,
}
#: How vLLM has to be started for them.
OPTIONS = {
    # This vLLM computes mamba2 on the CPU only a block at a time.
    "nemotron_h": {"max_num_batched_tokens": 128},
    # Of a prefix that is read, attention is summed in another order: not to be rounded to
    # bfloat16. This vLLM's kernel for the CPU turns parts of heads at the wrong strides.
    "deepseek_v3": {
        "dtype": "float32",
        "compilation_config": {"custom_ops": ["-rotary_embedding"]},
    },
}
#: The others keep states or windows too, of some boundaries.
ATTENTION_ONLY = ("qwen3", "deepseek_v3")
#: Of log probabilities; of the others nothing but equality will do.
TOLERANCE = {"deepseek_v3": 1e-3}
#: The same, where prompts share steps with others than before: what vLLM computes depends on it.
TOLERANCE_TOGETHER = dict(TOLERANCE, qwen3_next=1e-3, gemma3=0.1, nemotron_h=1e-3)
#: Blocks of a small cache: more than one prompt of 6 blocks takes, and less than two.
FEW_BLOCKS = {"qwen3": 12, "qwen3_next": 24, "gemma3": 40, "nemotron_h": 24, "deepseek_v3": 12}
STD = 0.25
#: Tokens of a block, as vLLM chooses it on the CPU, but for latent attention.
BLOCK = 128


def make(folder: Path, config: dict) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True)
    text = json.dumps(config, indent=1)
    (folder / "config.json").write_text(text)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, STD)
    model.save_pretrained(folder)
    # As it was: what transformers writes there is not what vLLM reads.
    (folder / "config.json").write_text(text)


def make_adapter(folder: Path, config: dict, seed: int) -> None:
    """A LoRA adapter of what attention asks for and answers with."""
    import torch
    from safetensors.torch import save_file

    rank, hidden = 8, config["hidden_size"]
    outputs = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "v_proj": config["num_key_value_heads"] * config["head_dim"],
    }
    source = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, output in outputs.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(rank, hidden, generator=source) * STD
            weights[f"{place}.lora_B.weight"] = torch.randn(output, rank, generator=source) * STD
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = dict(peft_type="LORA", r=rank, lora_alpha=rank, target_modules=list(outputs))
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


def make_tokenizer(folder: Path, config: dict) -> None:
    """A word for each token, for a server, which reads and writes text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{token}": token for token in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="w0", eos_token="w1", unk_token="w0"
    ).save_pretrained(folder)
