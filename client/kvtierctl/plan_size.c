// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "base/divisor.h"
#include "client/kvtierctl/plan_model.h"
#include "client/kvtierctl/plan_size.h"

#define KERNEL_TOKENS     16u   /* FlashAttention, Triton, FlashInfer */
#define MLA_HYBRID_TOKENS 128u  /* the least that a page of latent KV has in a hybrid */
#define SPARSE_TOKENS     64u   /* sparse MLA and its indexer */
#define CHUNK_TOKENS      2048u /* mode all, where the model names no chunk */

/* fp8_ds_mla: latent in fp8 with a scale of 4 bytes for each 128, rope in bf16. */
#define SCALE_ELEMENTS 128u
#define SCALE_BYTES    4u

/* DeepSeek-V4: slots of attention begin at multiples of this; 7 scales and a pad beside them. */
#define SLOT_ALIGN       576u
#define V4_SCALE_BYTES   8u
#define V4_BLOCK_TOKENS  256u
#define V4_WINDOW_TOKENS 64u

/*
 * With these, the bounds of plan_model.c, and as many ranks as a plan has at most, no product of
 * bytes overflows, but those of a layer that is itself beyond the first.
 */
#define TOKEN_BYTES_MAX   (UINT64_C(1) << 24)
#define SESSION_BYTES_MAX (UINT64_C(1) << 42)

uint64_t plan_round_up(uint64_t value, uint64_t multiple)
{
        return multiple ? (value + multiple - 1) / multiple * multiple : 0;
}

/* Of @elements; part of a byte counts as one. */
static uint64_t bytes_of(uint64_t elements, uint64_t sixteenths)
{
        return plan_round_up(elements * sixteenths, 16) / 16;
}

uint64_t plan_dtype_sixteenths(const char *dtype)
{
        static const struct {
                const char *name;
                uint64_t sixteenths;
        } dtypes[] = {
                {"float32", 64},    {"float", 64},    {"bfloat16", 32}, {"bf16", 32},
                {"float16", 32},    {"half", 32},     {"fp16", 32},     {"fp8", 16},
                {"fp8_e4m3", 16},   {"fp8_e5m2", 16}, {"int8", 16},     {"float8_e4m3fn", 16},
                {"fp8_ds_mla", 16}, {"fp8_inc", 16},  {"nvfp4", 9},
        };

        for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
                if (!strcmp(dtypes[i].name, dtype))
                        return dtypes[i].sixteenths;
        return 0;
}

/* What a formula needs, and under which name configurations have it. */
struct need {
        uint64_t value;
        const char *name;
        bool may_be_zero;
};

static int check_needs(const struct need *needs, size_t n, const char *what, struct why *why)
{
        for (size_t i = 0; i < n; i++) {
                if (needs[i].value != PLAN_ABSENT && (needs[i].value || needs[i].may_be_zero))
                        continue;
                why_set(why, "%s is missing: %s cannot be sized without it", needs[i].name, what);
                return err_raise(-EINVAL);
        }
        return 0;
}

static int check_division(uint64_t value, uint64_t parts, const char *what, struct why *why)
{
        if (value % parts == 0)
                return 0;
        why_set(why, "TP %llu does not divide %llu %s", (unsigned long long)parts,
                (unsigned long long)value, what);
        return err_raise(-EINVAL);
}

const char *plan_kv_dtype(const struct plan_model *model, const char *told)
{
        if (told && strcmp(told, "auto"))
                return told;
        return model->kv_dtype ? model->kv_dtype : model->dtype;
}

static int dtype_sixteenths(const char *dtype, const char *of, uint64_t *ret_sixteenths,
                            struct why *why)
{
        uint64_t sixteenths = plan_dtype_sixteenths(dtype);

        if (!sixteenths) {
                why_set(why,
                        "%s \"%s\" is not known: float32, bfloat16, float16, fp8, fp8_e4m3, "
                        "fp8_e5m2, fp8_ds_mla, int8 or nvfp4",
                        of, dtype);
                return err_raise(-EINVAL);
        }
        *ret_sixteenths = sixteenths;
        return 0;
}

/* ---- attention ---- */

static int size_latent(const struct plan_model *model, const struct plan_shape *shape,
                       uint64_t sixteenths, struct plan_sizes *sizes, struct why *why)
{
        const struct need needs[] = {
                {model->latent_rank, "kv_lora_rank", false},
                {model->rope_dim, "qk_rope_head_dim", true},
        };
        const char *dtype = plan_kv_dtype(model, shape->kv_dtype);
        bool is_sparse = model->has_index && model->state == PLAN_STATE_NONE;
        int r = check_needs(needs, 2, "latent attention", why);

        if (r < 0)
                return r;
        sizes->attention_bytes = bytes_of(model->latent_rank + model->rope_dim, sixteenths);
        if (!strcmp(dtype, "fp8_ds_mla") || (is_sparse && sixteenths == 16))
                sizes->attention_bytes = model->latent_rank +
                                         model->latent_rank / SCALE_ELEMENTS * SCALE_BYTES +
                                         2 * model->rope_dim;
        sizes->kv_copies = shape->tp;
        return 0;
}

static int size_heads(const struct plan_model *model, const struct plan_shape *shape,
                      uint64_t sixteenths, struct plan_sizes *sizes, struct why *why)
{
        uint64_t local = model->kv_heads / shape->tp;
        int r = 0;

        if (local) {
                r = check_division(model->kv_heads, shape->tp, "KV heads", why);
        } else if (shape->tp % model->kv_heads) {
                why_set(why, "TP %llu is no multiple of %llu KV heads",
                        (unsigned long long)shape->tp, (unsigned long long)model->kv_heads);
                r = err_raise(-EINVAL);
        }
        if (r < 0)
                return r;
        local = local ? local : 1;
        sizes->attention_bytes =
                bytes_of(local * (model->head_dim + model->value_head_dim), sixteenths);
        sizes->kv_copies = shape->tp * local / model->kv_heads;
        return 0;
}

/* An indexer keeps keys in fp8 with their scales, whatever the KV has. */
static void size_index(const struct plan_model *model, struct plan_sizes *sizes)
{
        if (!model->has_index || !plan_has(model->index_dim))
                return;
        sizes->index_bytes = model->index_dim + plan_round_up(model->index_dim, SCALE_ELEMENTS) /
                                                        SCALE_ELEMENTS * SCALE_BYTES;
}

/* ---- states ---- */

struct state_shape {
        uint64_t conv_width; /* elements a row of the convolution, before TP */
        uint64_t ssm_elements;
        uint64_t heads; /* that TP must divide */
};

static int shape_gdn(const struct plan_model *model, struct state_shape *shape, struct why *why)
{
        const struct need needs[] = {
                {model->gdn_key_heads, "linear_num_key_heads", false},
                {model->gdn_value_heads, "linear_num_value_heads", false},
                {model->gdn_key_dim, "linear_key_head_dim", false},
                {model->gdn_value_dim, "linear_value_head_dim", false},
                {model->conv_kernel, "linear_conv_kernel_dim", false},
        };
        int r = check_needs(needs, 5, "a Gated DeltaNet state", why);

        if (r < 0)
                return r;
        shape->conv_width = 2 * model->gdn_key_heads * model->gdn_key_dim +
                            model->gdn_value_heads * model->gdn_value_dim;
        shape->ssm_elements = model->gdn_value_heads * model->gdn_value_dim * model->gdn_key_dim;
        shape->heads = greatest_divisor(model->gdn_value_heads, model->gdn_key_heads);
        return 0;
}

static int shape_kda(const struct plan_model *model, struct state_shape *shape, struct why *why)
{
        const struct need needs[] = {
                {model->kda_heads, "linear_attn_config.num_heads", false},
                {model->kda_dim, "linear_attn_config.head_dim", false},
                {model->conv_kernel, "linear_attn_config.short_conv_kernel_size", false},
        };
        int r = check_needs(needs, 3, "a Kimi Delta Attention state", why);

        if (r < 0)
                return r;
        shape->conv_width = 3 * model->kda_heads * model->kda_dim;
        shape->ssm_elements = model->kda_heads * model->kda_dim * model->kda_dim;
        shape->heads = model->kda_heads;
        return 0;
}

static int shape_mamba2(const struct plan_model *model, uint64_t tp, struct state_shape *shape,
                        struct why *why)
{
        const struct need needs[] = {
                {model->mamba_heads, "mamba_num_heads", false},
                {model->mamba_head_dim, "mamba_head_dim", false},
                {model->mamba_state, "ssm_state_size", false},
                {model->mamba_groups, "n_groups", false},
                {model->conv_kernel, "conv_kernel", false},
        };
        uint64_t groups = model->mamba_groups;
        int r = check_needs(needs, 5, "a Mamba-2 state", why);

        if (r < 0)
                return r;
        /* Groups that TP does not divide are copied, so that each rank has one. */
        if (groups % tp)
                groups = groups > tp ? plan_round_up(groups, tp) : tp;
        shape->conv_width =
                model->mamba_heads * model->mamba_head_dim + 2 * groups * model->mamba_state;
        shape->ssm_elements = model->mamba_heads * model->mamba_head_dim * model->mamba_state;
        shape->heads = model->mamba_heads;
        return 0;
}

static int size_state(const struct plan_model *model, const struct plan_shape *shape,
                      struct plan_sizes *sizes, struct why *why)
{
        const char *dtype = shape->state_dtype ? shape->state_dtype : model->state_dtype;
        struct state_shape state = {0};
        uint64_t conv_sixteenths = 0, ssm_sixteenths = 0;
        int r;

        if (model->state == PLAN_STATE_KDA)
                dtype = "float32";
        if (!dtype || !strcmp(dtype, "auto"))
                dtype = model->dtype;
        r = model->state == PLAN_STATE_GDN   ? shape_gdn(model, &state, why)
            : model->state == PLAN_STATE_KDA ? shape_kda(model, &state, why)
                                             : shape_mamba2(model, shape->tp, &state, why);
        if (r == 0)
                r = check_division(state.heads, shape->tp, "heads of the recurrent layers", why);
        if (r == 0)
                r = dtype_sixteenths(model->dtype, "dtype", &conv_sixteenths, why);
        if (r == 0)
                r = dtype_sixteenths(dtype, "the state's dtype", &ssm_sixteenths, why);
        if (r < 0)
                return r;
        sizes->conv_bytes = bytes_of((model->conv_kernel - 1 + shape->draft_tokens) *
                                             state.conv_width / shape->tp,
                                     conv_sixteenths);
        sizes->ssm_bytes = bytes_of(state.ssm_elements / shape->tp, ssm_sixteenths);
        sizes->layer_state_bytes = sizes->conv_bytes + sizes->ssm_bytes;
        return 0;
}

/* ---- pages ---- */

static void size_page(const struct plan_model *model, const struct plan_shape *shape,
                      struct plan_sizes *sizes)
{
        uint64_t kernel = shape->block_size > KERNEL_TOKENS ? shape->block_size : KERNEL_TOKENS;
        uint64_t tokens, chunk;

        if (model->is_latent && kernel < MLA_HYBRID_TOKENS)
                kernel = MLA_HYBRID_TOKENS;
        sizes->kernel_tokens = kernel;
        tokens = plan_round_up(sizes->layer_state_bytes, kernel * sizes->attention_bytes) /
                 sizes->attention_bytes;
        if (shape->cache_mode == PLAN_CACHE_ALL) {
                chunk = plan_has(model->mamba_chunk) ? model->mamba_chunk : CHUNK_TOKENS;
                chunk = chunk / greatest_divisor(chunk, kernel) * kernel;
                tokens = plan_round_up(
                        plan_round_up(sizes->layer_state_bytes, sizes->attention_bytes) /
                                sizes->attention_bytes,
                        chunk);
        }
        sizes->page_tokens = tokens > shape->block_size ? tokens : shape->block_size;
        sizes->page_bytes = sizes->page_tokens * sizes->attention_bytes;
}

/* Attention alone: the block of its kernels, unless the user forces another. */
static void size_block(const struct plan_model *model, const struct plan_shape *shape,
                       struct plan_sizes *sizes)
{
        uint64_t kernel = !model->is_latent  ? KERNEL_TOKENS
                          : model->has_index ? SPARSE_TOKENS
                                             : shape->mla_block;

        sizes->kernel_tokens = kernel;
        sizes->page_tokens = kernel > shape->block_size ? kernel : shape->block_size;
        sizes->page_bytes = sizes->page_tokens * sizes->attention_bytes;
}

/* ---- groups ---- */

static void add_group(struct plan_sizes *sizes, const struct plan_group *group)
{
        if (group->layers && sizes->n_groups < PLAN_GROUPS_MAX)
                sizes->groups[sizes->n_groups++] = *group;
}

static uint64_t group_count(uint64_t layers, uint64_t size)
{
        return size ? plan_round_up(layers, size) / size : 0;
}

/*
 * Kinds of layers are dealt out into groups of one size, so that a block means as many bytes in
 * each: the smaller kind's number, or the larger's when it is not half as many more.
 */
static void pack_groups(const struct plan_model *model, struct plan_sizes *sizes)
{
        const uint64_t kinds[] = {model->full_layers, model->window_layers, model->state_layers};
        uint64_t least = UINT64_MAX, most = 0;

        for (size_t i = 0; i < 3; i++) {
                least = kinds[i] && kinds[i] < least ? kinds[i] : least;
                most = kinds[i] > most ? kinds[i] : most;
        }
        if (!most)
                return;
        sizes->packed_layers = 2 * most < 3 * least ? most : least;
        for (size_t i = 0; i < 3; i++)
                sizes->n_packed += group_count(kinds[i], sizes->packed_layers);
}

/* A window needs the blocks that its tokens reach into. */
static uint64_t window_blocks(uint64_t window, uint64_t block)
{
        return block && window > 1 ? (window - 2 + block) / block + 1 : 1;
}

static void list_groups(const struct plan_model *model, struct plan_sizes *sizes)
{
        uint64_t pool = plan_has(model->index_kpool) ? model->index_kpool : 1;
        uint64_t block = sizes->page_tokens;

        add_group(sizes, &(struct plan_group){.name = model->is_latent ? "latent" : "attention",
                                              .kind = "attention",
                                              .layers = model->full_layers,
                                              .block_tokens = block,
                                              .page_bytes = sizes->page_bytes});
        add_group(sizes,
                  &(struct plan_group){.name = "index",
                                       .kind = "index",
                                       .layers = sizes->index_bytes ? model->index_layers : 0,
                                       .block_tokens = block,
                                       .page_bytes = block / pool * sizes->index_bytes});
        add_group(sizes, &(struct plan_group){.name = "index tail",
                                              .kind = "scratch",
                                              .layers = pool > 1 ? model->index_layers : 0,
                                              .block_tokens = pool,
                                              .is_scratch = true});
        add_group(sizes, &(struct plan_group){.name = "window",
                                              .kind = "window",
                                              .layers = model->window_layers,
                                              .block_tokens = block,
                                              .page_bytes = sizes->page_bytes,
                                              .window_tokens =
                                                      plan_has(model->window) ? model->window : 0});
        add_group(sizes, &(struct plan_group){.name = "state",
                                              .kind = "state",
                                              .layers = model->state_layers,
                                              .block_tokens = block,
                                              .page_bytes = model->full_layers
                                                                    ? sizes->page_bytes
                                                                    : sizes->layer_state_bytes});
        pack_groups(model, sizes);
}

/* Over all layers of a rank's pipeline stage. */
static void sum_up(const struct plan_model *model, const struct plan_shape *shape,
                   struct plan_sizes *sizes)
{
        uint64_t pool = plan_has(model->index_kpool) ? model->index_kpool : 1;
        uint64_t window = plan_has(model->window) ? model->window : 0;

        sizes->kv_bytes_per_token = model->full_layers * sizes->attention_bytes +
                                    model->index_layers * sizes->index_bytes / pool;
        sizes->state_bytes = model->state_layers * sizes->layer_state_bytes;
        sizes->window_bytes = model->window_layers * sizes->page_bytes *
                              window_blocks(window, sizes->page_tokens);
        sizes->kv_bytes_per_token = plan_round_up(sizes->kv_bytes_per_token, shape->pp) / shape->pp;
        sizes->state_bytes = plan_round_up(sizes->state_bytes, shape->pp) / shape->pp;
        sizes->window_bytes = plan_round_up(sizes->window_bytes, shape->pp) / shape->pp;
        sizes->is_replicated = sizes->kv_copies > 1;
}

/* ---- DeepSeek-V4: compressed attention ---- */

/* K and V shared: fp8 but for the rope part in bf16, and the scales. */
static uint64_t v4_slot(const struct plan_model *model)
{
        return model->head_dim - model->rope_dim + 2 * model->rope_dim + V4_SCALE_BYTES;
}

static void list_v4(const struct plan_model *model, struct plan_sizes *sizes)
{
        uint64_t slot = v4_slot(model), index = sizes->index_bytes;
        uint64_t c4 = model->ratio4_layers, c128 = model->ratio128_layers;
        /* What a compressor has not finished: K and its weight in fp32; ratio 4 overlaps. */
        uint64_t state4 = 4 * 2 * 2 * 4 * model->head_dim;
        uint64_t index_state4 = 4 * 2 * 2 * 4 * model->index_dim;
        uint64_t state128 = UINT64_C(8) * 2 * 4 * model->head_dim;

        add_group(sizes,
                  &(struct plan_group){"compressed by 4", "compressed", c4, 256,
                                       plan_round_up(V4_BLOCK_TOKENS / 4 * slot, SLOT_ALIGN)});
        add_group(sizes,
                  &(struct plan_group){"index", "index", c4, 256,
                                       plan_round_up(V4_BLOCK_TOKENS / 4 * index, SLOT_ALIGN)});
        add_group(sizes,
                  &(struct plan_group){"compressed by 128", "compressed", c128, 256,
                                       plan_round_up(V4_BLOCK_TOKENS / 128 * slot, SLOT_ALIGN)});
        add_group(sizes,
                  &(struct plan_group){"window", "window", model->window_layers, V4_WINDOW_TOKENS,
                                       plan_round_up(V4_WINDOW_TOKENS * slot, SLOT_ALIGN),
                                       model->window});
        add_group(sizes, &(struct plan_group){"compressor by 4", "window", c4, 4,
                                              plan_round_up(state4, SLOT_ALIGN), 8});
        add_group(sizes, &(struct plan_group){"index compressor", "window", c4, 4,
                                              plan_round_up(index_state4, SLOT_ALIGN), 8});
        add_group(sizes, &(struct plan_group){"compressor by 128", "window", c128, 8,
                                              plan_round_up(state128, SLOT_ALIGN), 128});
}

/* A block of the packed pool has room for the full group; windows are dealt out into it. */
static void sum_v4(const struct plan_shape *shape, struct plan_sizes *sizes)
{
        uint64_t windows = 0;

        for (size_t i = 0; i < sizes->n_groups; i++) {
                const struct plan_group *group = &sizes->groups[i];

                if (!group->window_tokens)
                        sizes->stride_bytes += group->layers * group->page_bytes;
                else
                        windows += group->layers * group->page_bytes *
                                   window_blocks(group->window_tokens, group->block_tokens);
        }
        sizes->page_tokens = V4_BLOCK_TOKENS;
        sizes->page_bytes = sizes->stride_bytes;
        sizes->kv_bytes_per_token =
                plan_round_up(plan_round_up(sizes->stride_bytes, V4_BLOCK_TOKENS) / V4_BLOCK_TOKENS,
                              shape->pp) /
                shape->pp;
        sizes->window_bytes = plan_round_up(windows, shape->pp) / shape->pp;
        sizes->kv_copies = shape->tp;
        sizes->is_replicated = shape->tp > 1;
}

static int size_v4(const struct plan_model *model, const struct plan_shape *shape,
                   struct plan_sizes *sizes, struct why *why)
{
        const struct need needs[] = {
                {model->head_dim, "head_dim", false},
                {model->rope_dim, "qk_rope_head_dim", false},
                {model->index_dim, "index_head_dim", false},
                {model->window, "sliding_window", false},
                {model->ratio4_layers + model->ratio128_layers, "compress_ratios", false},
        };
        int r = check_needs(needs, 5, "compressed attention", why);

        if (r < 0)
                return r;
        if (model->rope_dim >= model->head_dim) {
                why_set(why, "qk_rope_head_dim is not below head_dim");
                return err_raise(-EINVAL);
        }
        sizes->attention_bytes = v4_slot(model);
        sizes->kernel_tokens = V4_BLOCK_TOKENS;
        size_index(model, sizes);
        list_v4(model, sizes);
        sum_v4(shape, sizes);
        /* The full group, both compressors, and windows over as many groups as they fill. */
        sizes->n_packed = 3 + group_count(model->window_layers *
                                                  plan_round_up(V4_WINDOW_TOKENS * v4_slot(model),
                                                                SLOT_ALIGN),
                                          sizes->stride_bytes);
        return 0;
}

static int check_limits(const struct plan_sizes *sizes, struct why *why)
{
        if (sizes->attention_bytes <= TOKEN_BYTES_MAX &&
            sizes->kv_bytes_per_token <= TOKEN_BYTES_MAX &&
            sizes->page_bytes <= SESSION_BYTES_MAX && sizes->state_bytes <= SESSION_BYTES_MAX &&
            sizes->window_bytes <= SESSION_BYTES_MAX)
                return 0;
        why_set(why,
                "the dimensions are beyond any model: %llu bytes a token, %llu of states, %llu of "
                "windows",
                (unsigned long long)sizes->kv_bytes_per_token,
                (unsigned long long)sizes->state_bytes, (unsigned long long)sizes->window_bytes);
        return err_raise(-EINVAL);
}

/* The engine refuses what leaves ranks with parts of heads, however little KV they have. */
static int check_heads(const struct plan_model *model, const struct plan_shape *shape,
                       struct why *why)
{
        return plan_has(model->heads)
                       ? check_division(model->heads, shape->tp, "attention heads", why)
                       : 0;
}

int plan_size_compute(const struct plan_model *model, const struct plan_shape *shape,
                      struct plan_sizes *ret_sizes, struct why *why)
{
        struct plan_sizes sizes = {.kv_copies = 1};
        bool has_state = model->state != PLAN_STATE_NONE;
        uint64_t sixteenths = 0;
        int r;

        if (!model->layers_known || model->state == PLAN_STATE_OTHER) {
                *ret_sizes = sizes;
                return check_heads(model, shape, why);
        }
        sizes.is_known = true;
        r = model->is_compressed ? size_v4(model, shape, &sizes, why) : 0;
        if (r < 0)
                return r;
        if (!model->is_compressed) {
                r = dtype_sixteenths(plan_kv_dtype(model, shape->kv_dtype), "the KV dtype",
                                     &sixteenths, why);
                if (r == 0)
                        r = model->is_latent ? size_latent(model, shape, sixteenths, &sizes, why)
                                             : size_heads(model, shape, sixteenths, &sizes, why);
                if (r == 0 && has_state)
                        r = size_state(model, shape, &sizes, why);
                if (r < 0)
                        return r;
                size_index(model, &sizes);
                /* Without attention no page has to fit anything. */
                if (has_state && model->full_layers)
                        size_page(model, shape, &sizes);
                else if (!has_state)
                        size_block(model, shape, &sizes);
                list_groups(model, &sizes);
                sum_up(model, shape, &sizes);
        }
        r = check_limits(&sizes, why);
        r = r ? r : check_heads(model, shape, why);
        if (r < 0)
                return r;
        *ret_sizes = sizes;
        return 0;
}
