// SPDX-License-Identifier: Apache-2.0
/* From options, configuration and tables to the plan's document. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"

#define GPUS_MAX       UINT64_C(4096)
#define DRAFT_MAX      UINT64_C(64)
#define BLOCK_MAX      UINT64_C(65536)
#define CONTEXT_MAX    (UINT64_C(1) << 26) /* with it and plan_size.h's no product overflows */
#define BYTES_MAX      (UINT64_C(1) << 55)
#define MEMORY_SHARE   0.9
#define CONTEXT_TOKENS UINT64_C(32768)
/* Above this many requests at once, attention by request pays (engines.json, parallelism). */
#define BUSY_REQUESTS 128u

void plan_add_fact(struct plan *plan, const char *format, ...)
{
        char fact[128];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(fact, sizeof(fact), format, arguments);
        va_end(arguments);
        json_object_set_new(plan->facts, fact, json_true());
}

void plan_add_unknown(struct plan *plan, const char *format, ...)
{
        char text[512];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        json_array_append_new(plan->unknown, json_string(text));
}

/* ---- hardware ---- */

/* "RTX 4090", "rtx-4090" and "RTX4090" are the same. */
static void plain_name(const char *name, char *ret_plain, size_t size)
{
        size_t n = 0;

        for (; *name && n + 1 < size; name++)
                if (*name != ' ' && *name != '-' && *name != '_')
                        ret_plain[n++] = (char)(*name >= 'a' && *name <= 'z' ? *name - 32 : *name);
        ret_plain[n] = '\0';
}

/* The row of "NAME", "NAMExN" or "NxNAME"; *@ret_n is then set. */
static const json_t *find_gpu(const json_t *table, const char *text, uint64_t *ret_n)
{
        char plain[64], *x, *end;
        const json_t *row;

        plain_name(text, plain, sizeof(plain));
        *ret_n = 1;
        row = plan_row(table, "name", plain);
        if (row)
                return row;
        x = strrchr(plain, 'X');
        if (x && x != plain && x[1] >= '0' && x[1] <= '9') {
                *ret_n = strtoull(x + 1, &end, 10);
                *x = '\0';
                return *end ? NULL : plan_row(table, "name", plain);
        }
        *ret_n = strtoull(plain, &end, 10);
        return end != plain && *end == 'X' ? plan_row(table, "name", end + 1) : NULL;
}

static void list_gpus(const json_t *table, char *text, size_t size)
{
        size_t i, used = 0;
        const json_t *row;

        text[0] = '\0';
        json_array_foreach(table, i, row)
        {
                int n = snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 json_text(row, "name"));

                used += n > 0 ? (size_t)n : 0;
                if (used >= size)
                        return;
        }
}

static int read_gpu(struct plan *plan, struct why *why)
{
        const json_t *table = plan_table(plan->knowledge, "gpus", "gpus"), *format;
        char names[256];
        size_t i;

        if (!plan->options.gpu) {
                plan_add_unknown(plan, "GPU: not told (--gpu), so neither what its hardware can "
                                       "nor users are known");
                return 0;
        }
        plan->gpu = find_gpu(table, plan->options.gpu, &plan->n_gpus);
        if (!plan->gpu || !plan->n_gpus || plan->n_gpus > GPUS_MAX) {
                list_gpus(table, names, sizeof(names));
                why_set(why, "--gpu %s is not in the table: NAME or NAMExNUMBER, of %s",
                        plan->options.gpu, names);
                return err_raise(-EINVAL);
        }
        if (*json_text(plan->gpu, "also"))
                plan_add_unknown(plan, "GPU: %s; %s", json_text(plan->gpu, "name"),
                                 json_text(plan->gpu, "also"));
        plan_add_fact(plan, "gpu");
        plan_add_fact(plan, "vendor:%s", json_text(plan->gpu, "vendor"));
        if (json_u64(plan->gpu, "kernels"))
                plan_add_fact(plan, "kernels:%" PRIu64, json_u64(plan->gpu, "kernels"));
        json_array_foreach(json_object_get(plan->gpu, "formats"), i, format)
                plan_add_fact(plan, "format:%s", json_string_value(format));
        return 0;
}

/* ---- options ---- */

static int check_option(uint64_t value, uint64_t max, const char *name, struct why *why)
{
        if (value <= max)
                return 0;
        why_set(why, "%s %" PRIu64 " is above %" PRIu64, name, value, max);
        return err_raise(-EINVAL);
}

bool plan_is_cache_mode(const char *mode)
{
        return !strcmp(mode, "align") || !strcmp(mode, "all") || !strcmp(mode, "none");
}

static int check_words(const struct plan_options *options, struct why *why)
{
        if (options->cache_mode && !plan_is_cache_mode(options->cache_mode)) {
                why_set(why, "cache mode \"%s\" is not known: align, all or none",
                        options->cache_mode);
                return err_raise(-EINVAL);
        }
        if (options->kv_dtype && strcmp(options->kv_dtype, "auto") &&
            !plan_dtype_sixteenths(options->kv_dtype)) {
                why_set(why,
                        "KV dtype \"%s\" is not known: auto, bfloat16, fp8, fp8_e4m3, "
                        "fp8_e5m2, fp8_ds_mla or nvfp4",
                        options->kv_dtype);
                return err_raise(-EINVAL);
        }
        return 0;
}

static int check_gpus(struct plan *plan, struct why *why)
{
        const struct plan_options *options = &plan->options;
        uint64_t ranks = options->tp * options->dp * options->pp;

        if (!plan->n_gpus || ranks == plan->n_gpus)
                return 0;
        if (ranks < plan->n_gpus) {
                plan_add_unknown(plan,
                                 "GPUs: TP x DP x PP is %" PRIu64 ", so %" PRIu64 " of %" PRIu64
                                 " are not used; sessions are those of the GPUs that are",
                                 ranks, plan->n_gpus - ranks, plan->n_gpus);
                return 0;
        }
        why_set(why,
                "TP %" PRIu64 " x DP %" PRIu64 " x PP %" PRIu64 " needs %" PRIu64 " GPUs, %s is "
                "%" PRIu64,
                options->tp, options->dp, options->pp, ranks, options->gpu, plan->n_gpus);
        return err_raise(-EINVAL);
}

static int check_options(struct plan *plan, struct why *why)
{
        struct plan_options *options = &plan->options;
        int r = check_option(options->tp, GPUS_MAX, "tp", why);

        r = r ? r : check_option(options->dp, GPUS_MAX, "dp", why);
        r = r ? r : check_option(options->pp, GPUS_MAX, "pp", why);
        r = r ? r : check_option(options->ep, GPUS_MAX, "ep", why);
        r = r ? r : check_option(options->draft_tokens, DRAFT_MAX, "draft tokens", why);
        r = r ? r : check_option(options->block_size, BLOCK_MAX, "block size", why);
        r = r ? r : check_option(options->context_tokens, CONTEXT_MAX, "context", why);
        r = r ? r : check_option(options->weight_bytes, BYTES_MAX, "weights", why);
        r = r ? r : check_option(options->host_bytes, BYTES_MAX, "host memory", why);
        r = r ? r : check_option(options->nvme_bytes, BYTES_MAX, "NVMe", why);
        if (r < 0)
                return r;
        if (!options->tp && plan->n_gpus > 1)
                plan_add_unknown(plan, "TP: not told; 1 is reckoned with, the engines' default");
        options->tp = options->tp ? options->tp : 1;
        options->dp = options->dp ? options->dp : 1;
        options->pp = options->pp ? options->pp : 1;
        options->memory_share = options->memory_share > 0 ? options->memory_share : MEMORY_SHARE;
        r = check_option(options->tp * options->pp, GPUS_MAX, "tp x pp", why);
        r = r ? r : check_gpus(plan, why);
        if (r < 0)
                return r;
        return check_words(options, why);
}

const char *plan_cache_mode(const struct plan *plan)
{
        const char *mode = plan->options.cache_mode;

        if (!mode)
                mode = json_string_value(json_object_get(plan->model.row, "cache_mode"));
        return mode ? mode : "align";
}

static int compute_sizes(struct plan *plan, struct why *why)
{
        const struct plan_shape shape = {
                .tp = plan->options.tp,
                .pp = plan->options.pp,
                .kv_dtype = plan->options.kv_dtype,
                .state_dtype = plan->options.state_dtype,
                .cache_mode =
                        strcmp(plan_cache_mode(plan), "all") ? PLAN_CACHE_ALIGN : PLAN_CACHE_ALL,
                .draft_tokens = plan->options.draft_tokens,
                .block_size = plan->options.block_size,
                .mla_block = json_u64(plan->gpu, "mla_block"),
        };

        return plan_size_compute(&plan->model, &shape, &plan->sizes, why);
}

static void add_plan_facts(struct plan *plan)
{
        const struct plan_options *options = &plan->options;
        uint64_t gpus = plan->n_gpus ? plan->n_gpus : options->tp * options->dp * options->pp;

        if (gpus > 1)
                plan_add_fact(plan, "many_gpus");
        if (plan->sizes.is_replicated || (plan->n_gpus && plan->model.kv_heads < plan->n_gpus) ||
            plan->model.is_latent)
                plan_add_fact(plan, "replicated_kv");
        if (options->dp > 1)
                plan_add_fact(plan, "dp");
        if (options->ep > 1)
                plan_add_fact(plan, "ep");
        plan_add_fact(plan, "kv:%s", plan_kv_dtype(&plan->model, options->kv_dtype));
        if (options->draft_tokens)
                plan_add_fact(plan, "draft");
        if (options->text_only)
                plan_add_fact(plan, "text_only");
        if (options->concurrency)
                plan_add_fact(plan, "concurrency");
        if (options->concurrency > BUSY_REQUESTS)
                plan_add_fact(plan, "busy");
        if (plan->sizes.page_tokens > 2048)
                plan_add_fact(plan, "page_over_2048");
}

static void add_size_unknowns(struct plan *plan)
{
        const struct plan_model *model = &plan->model;
        const char *dtype = plan_kv_dtype(model, plan->options.kv_dtype);

        if (!plan->sizes.is_known)
                plan_add_unknown(plan, "sizes: no formula for these layers; take page and bytes "
                                       "from the engine's log");
        else if (!plan->sizes.page_tokens)
                plan_add_unknown(plan, "page: it is that of the attention kernels, which the GPU "
                                       "(--gpu) or --block-size tells");
        if (model->is_latent && !model->has_index && model->state == PLAN_STATE_NONE &&
            plan->sizes.page_tokens && !plan->options.block_size)
                plan_add_unknown(plan,
                                 "page: %" PRIu64 " is that of one of this GPU's MLA kernels; "
                                 "others have 16 to 128, the engine's log tells; the chunks fit "
                                 "them all",
                                 plan->sizes.page_tokens);
        if (model->has_index && model->index_kpool != PLAN_ABSENT && model->index_kpool > 1)
                plan_add_unknown(plan,
                                 "index: its bytes are inferred from one key for %" PRIu64
                                 " tokens; the tail of as many is scratch",
                                 model->index_kpool);
        if (model->has_index && !plan->options.kv_dtype)
                plan_add_unknown(plan,
                                 "KV dtype: the engine chooses it for sparse attention (SGLang: "
                                 "bf16 on Hopper, fp8_e4m3 on Blackwell); %s is reckoned with, "
                                 "--kv-dtype tells another",
                                 model->is_compressed ? "fp8" : dtype);
        if (!strcmp(dtype, "nvfp4"))
                plan_add_unknown(plan, "nvfp4: reckoned as 4.5 bits with scales; the engine's "
                                       "layout may pad them");
        if (plan->options.pp > 1)
                plan_add_unknown(plan, "PP: layers are reckoned as spread evenly over the stages");
        if (model->state != PLAN_STATE_NONE)
                plan_add_unknown(plan, "SGLang's page: the one here is vLLM's; SGLang keeps states "
                                       "in a pool of their own");
        if (model->state != PLAN_STATE_NONE && !strcmp(plan_cache_mode(plan), "all"))
                plan_add_unknown(plan, "states: in mode all, an older vLLM's, a session may keep "
                                       "one for each page; users are reckoned with one");
}

/* ---- document ---- */

static json_t *known_number(const struct plan *plan, uint64_t number)
{
        return plan->sizes.is_known && number ? json_integer((json_int_t)number) : json_null();
}

static json_t *describe_group(const struct plan_group *group)
{
        return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:b}", "name", group->name, "kind",
                         group->kind, "layers", (json_int_t)group->layers, "block_tokens",
                         (json_int_t)group->block_tokens, "page_bytes",
                         (json_int_t)group->page_bytes, "window_tokens",
                         (json_int_t)group->window_tokens, "scratch", (int)group->is_scratch);
}

static json_t *describe_page(const struct plan *plan)
{
        const struct plan_sizes *sizes = &plan->sizes;
        uint64_t padding = sizes->layer_state_bytes && sizes->page_bytes > sizes->layer_state_bytes
                                   ? sizes->page_bytes - sizes->layer_state_bytes
                                   : 0;

        return json_pack(
                "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "attention_bytes",
                (json_int_t)sizes->attention_bytes, "index_bytes", (json_int_t)sizes->index_bytes,
                "conv_bytes", (json_int_t)sizes->conv_bytes, "ssm_bytes",
                (json_int_t)sizes->ssm_bytes, "state_bytes", (json_int_t)sizes->layer_state_bytes,
                "kernel_tokens", (json_int_t)sizes->kernel_tokens, "page_bytes",
                (json_int_t)sizes->page_bytes, "padding_bytes", (json_int_t)padding, "cache_mode",
                plan->model.state == PLAN_STATE_NONE ? "" : plan_cache_mode(plan));
}

static void describe_gpu(struct plan *plan)
{
        uint64_t sm = json_u64(plan->gpu, "sm");
        json_t *gpu = json_null();

        if (plan->gpu)
                gpu = json_pack("{s:s, s:I, s:o, s:I, s:O, s:s, s:s}", "name",
                                json_text(plan->gpu, "name"), "number", (json_int_t)plan->n_gpus,
                                "sm", sm ? json_integer((json_int_t)sm) : json_null(),
                                "memory_bytes", (json_int_t)json_u64(plan->gpu, "memory_bytes"),
                                "formats", json_object_get(plan->gpu, "formats"), "link",
                                json_text(plan->gpu, "link"), "source",
                                json_text(plan->gpu, "source"));
        json_object_set_new(plan->document, "gpu", gpu);
}

static void describe_model(struct plan *plan)
{
        const struct plan_model *model = &plan->model;
        json_t *experts = json_null();

        if (json_object_get(plan->facts, "moe"))
                experts = json_pack("{s:I, s:o}", "experts", (json_int_t)model->experts, "active",
                                    model->active_experts == PLAN_ABSENT
                                            ? json_null()
                                            : json_integer((json_int_t)model->active_experts));
        json_object_set_new(plan->document, "model",
                            json_pack("{s:s, s:s, s:I, s:o, s:s}", "model_type", model->model_type,
                                      "name", json_text(model->row, "name"), "layers",
                                      (json_int_t)model->layers, "moe", experts, "dtype",
                                      model->dtype));
}

static void describe_sizes(struct plan *plan)
{
        const struct plan_sizes *sizes = &plan->sizes;
        json_t *document = plan->document, *groups = json_array();

        json_object_set_new(document, "page_tokens", known_number(plan, sizes->page_tokens));
        json_object_set_new(document, "kv_bytes_per_token",
                            sizes->is_known ? json_integer((json_int_t)sizes->kv_bytes_per_token)
                                            : json_null());
        json_object_set_new(document, "state_bytes",
                            sizes->is_known ? json_integer((json_int_t)sizes->state_bytes)
                                            : json_null());
        json_object_set_new(document, "state_worth_tokens",
                            sizes->kv_bytes_per_token
                                    ? json_integer((json_int_t)((sizes->state_bytes +
                                                                 sizes->kv_bytes_per_token / 2) /
                                                                sizes->kv_bytes_per_token))
                                    : json_null());
        json_object_set_new(document, "window_bytes",
                            sizes->is_known ? json_integer((json_int_t)sizes->window_bytes)
                                            : json_null());
        json_object_set_new(document, "page", describe_page(plan));
        for (size_t i = 0; i < sizes->n_groups; i++)
                json_array_append_new(groups, describe_group(&sizes->groups[i]));
        json_object_set_new(document, "groups", groups);
        json_object_set_new(document, "packed",
                            json_pack("{s:I, s:I, s:I}", "groups", (json_int_t)sizes->n_packed,
                                      "layers", (json_int_t)sizes->packed_layers, "stride_bytes",
                                      (json_int_t)sizes->stride_bytes));
}

struct plan *plan_free(struct plan *plan)
{
        if (!plan)
                return NULL;
        json_decref(plan->facts);
        json_decref(plan->unknown);
        json_decref(plan->document);
        free(plan);
        return NULL;
}

/* A part that is not there could not be allocated. */
static int check_parts(const struct plan *plan, struct why *why)
{
        static const char *const parts[] = {
                "class",   "decided_by",   "doubt",  "gpu",   "model",       "page_tokens",
                "page",    "groups",       "packed", "users", "parallelism", "hardware",
                "parsers", "chunk_tokens", "tails",  "flags", "kvtierd",     "unknown",
        };

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
                if (json_object_get(plan->document, parts[i]))
                        continue;
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        return 0;
}

int plan_new(const json_t *knowledge, const json_t *config, const struct plan_options *options,
             struct plan **ret_plan, struct why *why)
{
        _cleanup_(plan_freep) struct plan *plan = calloc(1, sizeof(*plan));
        int r;

        if (plan) {
                plan->facts = json_object();
                plan->unknown = json_array();
                plan->document = json_object();
        }
        if (!plan || !plan->facts || !plan->unknown || !plan->document) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        plan->knowledge = knowledge;
        plan->options = *options;
        json_object_set_new(plan->document, "ok", json_true());
        r = plan_model_read(plan, config, why);
        r = r ? r : read_gpu(plan, why);
        r = r ? r : check_options(plan, why);
        r = r ? r : compute_sizes(plan, why);
        if (r < 0)
                return r;
        if (!plan->options.context_tokens) {
                plan->options.context_tokens = CONTEXT_TOKENS;
                plan_add_unknown(plan, "context: not told (--context); 32768 tokens are reckoned "
                                       "with");
        }
        add_plan_facts(plan);
        add_size_unknowns(plan);
        describe_gpu(plan);
        describe_model(plan);
        describe_sizes(plan);
        plan_fit(plan);
        plan_advise(plan);
        json_object_set(plan->document, "unknown", plan->unknown);
        r = check_parts(plan, why);
        if (r < 0)
                return r;
        *ret_plan = steal_ptr(plan);
        return 0;
}
