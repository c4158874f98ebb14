// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/table.h"

/* Bounds with which no product of dimensions overflows. */
#define DIMENSION_MAX UINT64_C(65536)
#define LAYERS_MAX    UINT64_C(4096)
#define TOKENS_MAX    (UINT64_C(1) << 26)
#define COUNT_MAX     (UINT64_C(1) << 40)

struct reading {
        struct plan *plan;
        const json_t *config;
        const json_t *fields;
        json_t *decided_by;
        struct why *why;
};

#define NUMBER(name, max)                                                                          \
        {                                                                                          \
#name, offsetof(struct plan_model, name), (max)                                    \
        }

static const struct {
        const char *field;
        size_t offset;
        uint64_t max;
} numbers[] = {
        NUMBER(layers, LAYERS_MAX),
        NUMBER(heads, DIMENSION_MAX),
        NUMBER(kv_heads, DIMENSION_MAX),
        NUMBER(head_dim, DIMENSION_MAX),
        NUMBER(value_head_dim, DIMENSION_MAX),
        NUMBER(hidden, COUNT_MAX),
        NUMBER(latent_rank, DIMENSION_MAX),
        NUMBER(rope_dim, DIMENSION_MAX),
        NUMBER(index_dim, DIMENSION_MAX),
        NUMBER(index_topk, COUNT_MAX),
        NUMBER(index_kpool, DIMENSION_MAX),
        NUMBER(window, TOKENS_MAX),
        NUMBER(conv_kernel, 1024),
        NUMBER(gdn_key_heads, DIMENSION_MAX),
        NUMBER(gdn_value_heads, DIMENSION_MAX),
        NUMBER(gdn_key_dim, DIMENSION_MAX),
        NUMBER(gdn_value_dim, DIMENSION_MAX),
        NUMBER(kda_heads, DIMENSION_MAX),
        NUMBER(kda_dim, DIMENSION_MAX),
        NUMBER(mamba_heads, DIMENSION_MAX),
        NUMBER(mamba_head_dim, DIMENSION_MAX),
        NUMBER(mamba_state, DIMENSION_MAX),
        NUMBER(mamba_groups, DIMENSION_MAX),
        NUMBER(mamba_chunk, DIMENSION_MAX),
        NUMBER(experts, COUNT_MAX),
        NUMBER(active_experts, COUNT_MAX),
        NUMBER(mtp_layers, LAYERS_MAX),
        NUMBER(max_tokens, COUNT_MAX),
        NUMBER(full_interval, LAYERS_MAX),
};

/* ---- fields ---- */

/* "a.b" is nested. What is null counts as not there. */
static const json_t *member(const json_t *object, const char *path)
{
        char names[128], *state = NULL;

        snprintf(names, sizeof(names), "%s", path);
        for (const char *name = strtok_r(names, ".", &state); name && object;
             name = strtok_r(NULL, ".", &state))
                object = json_object_get(object, name);
        return json_is_null(object) ? NULL : object;
}

/* The text model of a multimodal one is nested; its fields count first. */
static const json_t *field(const struct reading *reading, const char *name, const char **ret_path)
{
        const json_t *text = json_object_get(reading->config, "text_config"), *path;
        size_t i;

        json_array_foreach(json_object_get(reading->fields, name), i, path)
        {
                const char *spelling = json_string_value(path);
                const json_t *value = spelling ? member(text, spelling) : NULL;

                if (!value && spelling)
                        value = member(reading->config, spelling);
                if (!value)
                        continue;
                if (ret_path)
                        *ret_path = spelling;
                return value;
        }
        return NULL;
}

static int read_number(const struct reading *reading, size_t i)
{
        uint64_t *number = (uint64_t *)((char *)&reading->plan->model + numbers[i].offset);
        const char *path = "";
        const json_t *value = field(reading, numbers[i].field, &path);

        *number = PLAN_ABSENT;
        if (!value)
                return 0;
        if (json_is_array(value) || json_is_object(value)) {
                why_set(reading->why, "%s is %s: one whole number for all layers is needed", path,
                        json_is_array(value) ? "a list" : "an object");
                return err_raise(-EINVAL);
        }
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (uint64_t)json_integer_value(value) > numbers[i].max) {
                _cleanup_free_ char *text = json_dumps(value, JSON_ENCODE_ANY);

                why_set(reading->why, "%s is %s: a whole number from 0 to %llu is needed", path,
                        text ? text : "?", (unsigned long long)numbers[i].max);
                return err_raise(-EINVAL);
        }
        *number = (uint64_t)json_integer_value(value);
        return 0;
}

static int read_numbers(const struct reading *reading)
{
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
                int r = read_number(reading, i);

                if (r < 0)
                        return r;
        }
        return 0;
}

/* Fields that say "something is there": not null, not 0, not false, not empty. */
static bool says_yes(const json_t *value)
{
        if (json_is_integer(value))
                return json_integer_value(value) != 0;
        if (json_is_array(value))
                return json_array_size(value) > 0;
        if (json_is_object(value))
                return json_object_size(value) > 0;
        return value && !json_is_false(value);
}

/* ---- facts ---- */

static void decide(const struct reading *reading, const char *path, const json_t *value,
                   const json_t *because)
{
        json_t *shown = json_is_array(value) ? json_sprintf("%zu entries", json_array_size(value))
                        : json_is_object(value) ? json_sprintf("an object")
                                                : json_deep_copy(value);

        json_array_append_new(reading->decided_by,
                              json_pack("{s:s, s:o, s:s, s:s}", "field", path, "value", shown,
                                        "means", json_text(because, "means"), "source",
                                        json_text(because, "source")));
}

static void read_features(const struct reading *reading)
{
        const json_t *features = plan_table(reading->plan->knowledge, "architectures", "features");
        const json_t *feature;
        size_t i;

        json_array_foreach(features, i, feature)
        {
                const char *unless = json_text(feature, "unless"), *path = "";
                const json_t *value = field(reading, json_text(feature, "field"), &path);

                if (!says_yes(value) || json_object_get(reading->plan->facts, unless))
                        continue;
                plan_add_fact(reading->plan, "%s", json_text(feature, "fact"));
                decide(reading, path, value, feature);
        }
}

static bool is_fact(const struct reading *reading, const char *fact)
{
        return json_object_get(reading->plan->facts, fact) != NULL;
}

static void take_kinds(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;

        model->is_latent = is_fact(reading, "latent");
        model->has_index = is_fact(reading, "index");
        model->is_compressed = is_fact(reading, "compressed");
        model->state = is_fact(reading, "gdn")           ? PLAN_STATE_GDN
                       : is_fact(reading, "kda")         ? PLAN_STATE_KDA
                       : is_fact(reading, "mamba2")      ? PLAN_STATE_MAMBA2
                       : is_fact(reading, "other_state") ? PLAN_STATE_OTHER
                                                         : PLAN_STATE_NONE;
}

/* ---- layers ---- */

static bool count_layer(struct plan_model *model, const char *kind)
{
        if (!kind)
                return false;
        model->full_layers += !strcmp(kind, "full") || !strcmp(kind, "both");
        model->state_layers += !strcmp(kind, "state") || !strcmp(kind, "both");
        model->window_layers += !strcmp(kind, "window");
        model->ratio4_layers += !strcmp(kind, "ratio4");
        model->ratio128_layers += !strcmp(kind, "ratio128");
        return true;
}

static void count_word(const struct reading *reading, const char *word)
{
        const json_t *words = plan_table(reading->plan->knowledge, "architectures", "layer_words");

        if (count_layer(&reading->plan->model, json_string_value(json_object_get(words, word))))
                return;
        if (reading->plan->model.layers_known)
                plan_add_unknown(reading->plan,
                                 "layers: what a layer called \"%s\" keeps is not in the table "
                                 "(layer_words of architectures.json)",
                                 word);
        reading->plan->model.layers_known = false;
}

static int check_length(const struct reading *reading, const char *path, size_t n)
{
        struct plan_model *model = &reading->plan->model;

        if (!plan_has(model->layers))
                model->layers = n;
        if (n >= model->layers && n <= LAYERS_MAX)
                return 0;
        why_set(reading->why, "%s tells of %zu layers, and the model has %llu", path, n,
                (unsigned long long)model->layers);
        return err_raise(-EINVAL);
}

/* One word a layer, or one letter. Behind the layers there may be those of the draft model. */
static int count_words(const struct reading *reading, const char *path, const json_t *words)
{
        const char *letters = json_string_value(words);
        size_t n = letters ? strlen(letters) : json_array_size(words);
        int r = check_length(reading, path, n);

        for (size_t i = 0; r == 0 && i < reading->plan->model.layers; i++) {
                char letter[2] = {letters ? letters[i] : '\0', '\0'};
                const char *word = letters ? letter : json_string_value(json_array_get(words, i));

                if (!word) {
                        why_set(reading->why, "%s: entry %zu is no text", path, i + 1);
                        return err_raise(-EINVAL);
                }
                count_word(reading, word);
        }
        return r;
}

static int count_ratios(const struct reading *reading, const json_t *ratios)
{
        struct plan_model *model = &reading->plan->model;
        int r = check_length(reading, "compress_ratios", json_array_size(ratios));

        for (size_t i = 0; r == 0 && i < model->layers; i++) {
                json_int_t ratio = json_integer_value(json_array_get(ratios, i));

                model->ratio4_layers += ratio == 4;
                model->ratio128_layers += ratio == 128;
                if (ratio == 0 || ratio == 4 || ratio == 128)
                        continue;
                why_set(reading->why, "compress_ratios: entry %zu is %lld: 0, 4 and 128 are known",
                        i + 1, (long long)ratio);
                return err_raise(-EINVAL);
        }
        return r;
}

/* Without a list: all layers alike, or one of so many is full attention. */
static int count_alike(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;
        const json_t *listed = field(reading, "full_layers", NULL);
        const json_t *use_window = member(reading->config, "use_sliding_window");

        if (json_array_size(listed) > model->layers) {
                why_set(reading->why, "full_attn_layers lists %zu layers, and the model has %llu",
                        json_array_size(listed), (unsigned long long)model->layers);
                return err_raise(-EINVAL);
        }
        if (!strcmp(json_text(model->row, "every_layer"), "both")) {
                model->full_layers = model->state_layers = model->layers;
        } else if (json_is_array(listed)) {
                model->full_layers = json_array_size(listed);
                model->state_layers = model->layers - model->full_layers;
        } else if (plan_has(model->full_interval)) {
                model->full_layers = model->layers / model->full_interval;
                model->state_layers = model->layers - model->full_layers;
        } else if (model->state != PLAN_STATE_NONE || model->is_compressed) {
                model->layers_known = false;
                plan_add_unknown(reading->plan, "layers: the configuration does not say which are "
                                                "recurrent and which attention (layer_types)");
        } else {
                model->full_layers = model->layers;
                if (plan_has(model->window) && !json_is_false(use_window))
                        plan_add_unknown(reading->plan,
                                         "window: sliding_window is %llu, but not which layers "
                                         "have it: all are counted as full attention",
                                         (unsigned long long)model->window);
        }
        return 0;
}

/* An indexer may stand in some layers only, whose word is "full"; the others share its choice. */
static void count_indexers(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;
        const json_t *words = field(reading, "index_words", NULL), *word;
        size_t i;

        if (!model->has_index || model->is_compressed)
                return;
        model->index_layers = model->full_layers;
        if (json_is_array(words)) {
                model->index_layers = 0;
                json_array_foreach(words, i, word)
                {
                        const char *text = json_string_value(word);

                        model->index_layers += i < model->layers && text && !strcmp(text, "full");
                }
        } else if (json_is_true(json_object_get(model->row, "index_words_needed"))) {
                plan_add_unknown(reading->plan, "indexer layers: some models of this family keep "
                                                "an index in some layers only; all are counted, "
                                                "the engine's layer list decides");
        }
}

static int count_layers(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;
        const json_t *ratios = field(reading, "compress_ratios", NULL);
        const char *path = "";
        const json_t *words = field(reading, "layer_words", &path);
        int r = 0;

        model->layers_known = true;
        if (json_is_array(ratios))
                r = count_ratios(reading, ratios);
        else if (words && strcmp(json_text(model->row, "every_layer"), "both"))
                r = count_words(reading, path, words);
        else if (plan_has(model->layers))
                r = count_alike(reading);
        if (r < 0)
                return r;
        if (!plan_has(model->layers)) {
                why_set(reading->why, "num_hidden_layers is missing: without the number of layers "
                                      "nothing can be sized");
                return err_raise(-EINVAL);
        }
        /* Beside what is compressed every layer keeps a window as it is. */
        if (model->is_compressed)
                model->window_layers = model->layers;
        count_indexers(reading);
        return 0;
}

/* ---- dimensions that follow from others ---- */

static int derive_heads(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;

        if (!plan_has(model->heads) && !plan_has(model->kv_heads)) {
                why_set(reading->why,
                        "num_attention_heads and num_key_value_heads are missing, and "
                        "kv_lora_rank too: this is no configuration of a language "
                        "model, or only a part of one; a model without attention (Mamba) has no "
                        "plan here");
                return err_raise(-EINVAL);
        }
        /* Falcon's new decoder names its KV heads, and the flag says nothing then. */
        if (json_is_true(field(reading, "multi_query", NULL)) &&
            !json_is_true(field(reading, "new_decoder", NULL)))
                model->kv_heads = 1;
        if (!plan_has(model->kv_heads)) {
                model->kv_heads = model->heads;
                plan_add_unknown(reading->plan, "num_key_value_heads: not in the configuration; as "
                                                "many as query heads, transformers' default");
        }
        if (!plan_has(model->head_dim) && plan_has(model->heads) && plan_has(model->hidden) &&
            model->hidden % model->heads == 0 && model->hidden / model->heads <= DIMENSION_MAX)
                model->head_dim = model->hidden / model->heads;
        if (!plan_has(model->head_dim)) {
                why_set(reading->why, "head_dim is missing, and hidden_size with "
                                      "num_attention_heads does not give it");
                return err_raise(-EINVAL);
        }
        if (!plan_has(model->value_head_dim))
                model->value_head_dim = model->head_dim;
        plan_add_fact(reading->plan, "heads");
        if (model->kv_heads == 1)
                plan_add_fact(reading->plan, "one_kv_head");
        else if (model->kv_heads == model->heads)
                plan_add_fact(reading->plan, "all_kv_heads");
        return 0;
}

static const char *text_field(const struct reading *reading, const char *name)
{
        const json_t *text = member(reading->config, "text_config");
        const json_t *value = name && *name ? member(text, name) : NULL;

        if (!value && name && *name)
                value = member(reading->config, name);
        return json_string_value(value);
}

static void read_dtypes(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;

        model->dtype = json_string_value(field(reading, "dtype", NULL));
        if (!model->dtype) {
                model->dtype = "bfloat16";
                plan_add_unknown(reading->plan,
                                 "dtype: not in the configuration; bfloat16 is reckoned with");
        }
        if (!strncmp(model->dtype, "torch.", 6))
                model->dtype += 6;
        model->state_dtype = text_field(reading, json_text(model->row, "state_dtype_field"));
        if (model->state_dtype && !strcmp(model->state_dtype, "auto"))
                model->state_dtype = NULL;
}

/* ---- the KV's type, which a quantized checkpoint may ask for ---- */

/* What ModelOpt or compressed-tensors say of the KV: a name, or bits and type. */
static const json_t *kv_scheme(const json_t *quantization)
{
        static const char *const paths[] = {"quantization.kv_cache_scheme", "kv_cache_scheme",
                                            "quantization.kv_cache_quant_algo",
                                            "kv_cache_quant_algo"};

        for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
                const json_t *scheme = member(quantization, paths[i]);

                if (says_yes(scheme))
                        return scheme;
        }
        return NULL;
}

/* As vLLM reads it (utils/torch_utils.py, get_kv_cache_quant_algo_string); NULL: not at all. */
static const char *dtype_of_scheme(const char *method, const json_t *scheme)
{
        bool is_float = !strcmp(json_text(scheme, "type"), "float");
        uint64_t bits = json_u64(scheme, "num_bits");
        const char *name = json_string_value(scheme);

        if (!strcmp(method, "compressed-tensors"))
                return is_float && bits == 8 ? "fp8" : NULL;
        if (strncmp(method, "modelopt", 8))
                return NULL;
        if (name && !strcasecmp(name, "fp8"))
                return "fp8_e4m3";
        if (name && !strcasecmp(name, "nvfp4"))
                return "nvfp4";
        if (is_float && bits == 8 && json_is_false(json_object_get(scheme, "dynamic")))
                return "fp8_e4m3";
        return is_float && bits == 4 ? "nvfp4" : NULL;
}

static void read_kv_dtype(const struct reading *reading)
{
        const json_t *quantization = member(reading->config, "quantization_config");
        const json_t *scheme = kv_scheme(quantization);
        const char *method = json_text(quantization, "quant_method");
        struct plan_model *model = &reading->plan->model;

        if (!scheme)
                return;
        model->kv_dtype = dtype_of_scheme(method, scheme);
        if (!model->kv_dtype) {
                _cleanup_free_ char *text = json_dumps(scheme, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

                plan_add_unknown(reading->plan,
                                 "KV dtype: the checkpoint asks for %.200s, which vLLM 0.32 does "
                                 "not heed so; %s is reckoned with, --kv-dtype tells another",
                                 text ? text : "?", model->dtype);
                return;
        }
        json_array_append_new(reading->decided_by,
                              json_pack("{s:s, s:s, s:s, s:s}", "field", "quantization_config",
                                        "value", model->kv_dtype, "means",
                                        "the type of the KV, unless another is told", "source",
                                        "vLLM 0.32 utils/torch_utils.py, "
                                        "resolve_kv_cache_dtype_string"));
}

/* ---- class ---- */

static const char *type_of(const json_t *config)
{
        return json_string_value(json_object_get(config, "model_type"));
}

static void find_row(const struct reading *reading)
{
        const json_t *table =
                plan_table(reading->plan->knowledge, "architectures", "architectures");
        const json_t *text = json_object_get(reading->config, "text_config");
        struct plan_model *model = &reading->plan->model;

        model->model_type = type_of(reading->config) ?: "";
        model->row = plan_row(table, "model_type", model->model_type);
        if (!model->row && type_of(text))
                model->row = plan_row(table, "model_type", type_of(text));
        if (model->row)
                plan_add_fact(reading->plan, "family:%s", json_text(model->row, "family"));
}

/* What the fields say counts; where the table says otherwise, that is a doubt. */
static int classify(const struct reading *reading)
{
        const json_t *classes = plan_table(reading->plan->knowledge, "architectures", "classes");
        json_t *document = reading->plan->document;
        struct plan_model *model = &reading->plan->model;
        const json_t *rule;
        size_t i;

        model->class = NULL;
        json_array_foreach(classes, i, rule)
        {
                if (!plan_holds(reading->plan->facts, json_object_get(rule, "when")))
                        continue;
                model->class = json_text(rule, "class");
                json_object_set_new(document, "means", json_string(json_text(rule, "means")));
                break;
        }
        if (!model->class) {
                why_set(reading->why,
                        "no class of the table fits the fields of this configuration");
                return err_raise(-EINVAL);
        }
        json_object_set_new(document, "class", json_string(model->class));
        plan_add_fact(reading->plan, "class:%s", model->class);
        if (!model->row)
                json_object_set_new(document, "doubt",
                                    json_sprintf("model_type \"%s\" is not in the table: the class "
                                                 "comes from its fields alone",
                                                 model->model_type));
        else if (strcmp(json_text(model->row, "class"), model->class))
                json_object_set_new(document, "doubt",
                                    json_sprintf("the table has %s as %s, its fields say %s",
                                                 json_text(model->row, "name"),
                                                 json_text(model->row, "class"), model->class));
        else
                json_object_set_new(document, "doubt", json_null());
        return 0;
}

static void show_layers(const struct reading *reading)
{
        const struct plan_model *model = &reading->plan->model;
        const struct {
                const char *what;
                uint64_t n;
        } kinds[] = {
                {"full attention", model->full_layers},
                {"window", model->window_layers},
                {"recurrent", model->state_layers},
                {"compressed by 4", model->ratio4_layers},
                {"compressed by 128", model->ratio128_layers},
        };
        char text[256];
        size_t used = 0;

        text_append(text, sizeof(text), &used, "%llu:", (unsigned long long)model->layers);
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
                if (kinds[i].n)
                        text_append(text, sizeof(text), &used, " %llu %s",
                                    (unsigned long long)kinds[i].n, kinds[i].what);
        json_array_append_new(reading->decided_by,
                              json_pack("{s:s, s:s, s:s, s:s}", "field", "layers", "value", text,
                                        "means", "what each kind keeps is under groups", "source",
                                        "the configuration"));
}

static void add_layer_facts(const struct reading *reading)
{
        struct plan_model *model = &reading->plan->model;

        /* A family may have models without any recurrent layer. */
        if (model->layers_known && !model->state_layers)
                model->state = PLAN_STATE_NONE;
        else if (model->state_layers && model->state == PLAN_STATE_NONE)
                model->state = PLAN_STATE_OTHER;
        if (model->state != PLAN_STATE_NONE)
                plan_add_fact(reading->plan, "state");
        if (model->window_layers)
                plan_add_fact(reading->plan, "window");
        if (model->layers_known)
                show_layers(reading);
}

static void add_weight_fact(const struct reading *reading)
{
        const json_t *quantization = member(reading->config, "quantization_config");
        const char *method = json_text(quantization, "quant_algo");

        if (!*method)
                method = json_text(quantization, "quant_method");
        if (!*method || strcasestr(method, "compressed"))
                method = json_text(quantization, "format");
        /* MXFP4 and the like are other formats. */
        if (strcasestr(method, "nvfp4") || strcasestr(method, "modelopt_fp4"))
                plan_add_fact(reading->plan, "weights:nvfp4");
        else if (strcasestr(method, "fp8"))
                plan_add_fact(reading->plan, "weights:fp8");
}

int plan_model_read(struct plan *plan, const json_t *config, struct why *why)
{
        struct reading reading = {
                .plan = plan,
                .config = config,
                .fields = plan_table(plan->knowledge, "architectures", "fields"),
                .decided_by = json_array(),
                .why = why,
        };
        int r;

        json_object_set_new(plan->document, "decided_by", reading.decided_by);
        find_row(&reading);
        r = read_numbers(&reading);
        if (r < 0)
                return r;
        read_features(&reading);
        take_kinds(&reading);
        r = count_layers(&reading);
        if (r < 0)
                return r;
        add_layer_facts(&reading);
        if (!plan->model.is_latent && !plan->model.is_compressed)
                r = derive_heads(&reading);
        if (r < 0)
                return r;
        read_dtypes(&reading);
        read_kv_dtype(&reading);
        add_weight_fact(&reading);
        return classify(&reading);
}
