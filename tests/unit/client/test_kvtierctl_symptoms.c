// SPDX-License-Identifier: Apache-2.0
/*
 * What kvtierctl doctor reads from layouts: a table of them, each with what is found, or that
 * nothing is. KVTIER_KNOWLEDGE is the folder of the tables in the source tree.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/sparse_model.h"
#include "client/kvtierctl/symptoms.h"

/* A hybrid model that is served well: its states are stored where chunks end, and loaded. */
static const char sound[] =
        "{'layout': '1111111111111111', 'known': true, 'domain': 1, 'model': 'Qwen/Qwen3-Next',"
        " 'revision': 'main', 'engine': 'vllm', 'engine_build': '0.29 cuda',"
        " 'model_dtype': 'bfloat16', 'kv_dtype': 'bfloat16', 'draft_tokens': 0,"
        " 'kernel_layout': 'layout=NHD quantization=None runner=1', 'chunk_tokens': 528,"
        " 'tp': 1, 'pp': 1, 'cp': 1, 'sessions': 2, 'objects': 400, 'bytes': 4000000,"
        " 'groups': [{'name': 'kv', 'kind': 'attention', 'page_tokens': 528, 'stored': 200,"
        "   'hits': 100, 'dtypes': ['bfloat16'], 'tensor_names': ['0.layers.3.attn'],"
        "   'index_tensors': 0},"
        "  {'name': 'states', 'kind': 'state', 'page_tokens': 0, 'stored': 200, 'hits': 50,"
        "   'states': 200, 'off_chunk': 0, 'spacing_tokens': 528, 'dtypes': ['float32'],"
        "   'tensor_names': ['0.layers.0.ssm'], 'index_tensors': 0}]}";

/* Changes to the one above. Its groups are changed by their members. */
static const struct {
        const char *claim;
        const char *layout, *kv, *states; /* NULL: as above */
        const char *other;                /* a second layout of the same make; NULL: none */
        const char *other_states;
        const char *check;    /* NULL: nothing is found */
        const char *texts[3]; /* parts of the finding, or of the remedy */
} cases[] = {
        {.claim = "a sound layout"},

        /* chunks and states */
        {.claim = "states between the ends of chunks",
         .layout = "{'chunk_tokens': 512}",
         .states = "{'off_chunk': 190}",
         .check = "chunk",
         .texts = {"190 of 200 states of group states", "chunk of 512 tokens",
                   "multiples of 528 tokens"}},
        {.claim = "states anywhere: no spacing is told",
         .states = "{'off_chunk': 190, 'spacing_tokens': 1}",
         .check = "chunk",
         .texts = {"190 of 200 states", "ends: no prompt finds them"}},
        {.claim = "some states at the ends of prompts", .states = "{'off_chunk': 100}"},
        {.claim = "too few states to judge", .states = "{'states': 15, 'off_chunk': 15}"},

        /* states that are not stored */
        {.claim = "KV without states",
         .states = "{'stored': 0, 'hits': 0, 'states': 0}",
         .check = "states",
         .texts = {"200 objects of KV were stored", "no state", "kvtierctl why"}},
        {.claim = "states that were here already", .states = "{'stored': 0, 'hits': 0}"},
        {.claim = "states that were here already, and are hit",
         .states = "{'stored': 0, 'states': 0}"},
        {.claim = "little KV without states",
         .kv = "{'stored': 15}",
         .states = "{'stored': 0, 'hits': 0, 'states': 0}"},
        {.claim = "KV without states of a model that has none",
         .states = "{'kind': 'attention', 'stored': 0, 'hits': 0}"},
        {.claim = "states without KV, as of blobs",
         .kv = "{'kind': 'scratch'}",
         .states = "{'hits': 0}"},

        /* states that are not hit */
        {.claim = "KV that is hit without states",
         .states = "{'hits': 0}",
         .check = "states",
         .texts = {"100 objects of KV were loaded", "none of the 200 states", "host.bytes"}},
        {.claim = "nothing that is hit at all", .kv = "{'hits': 0}", .states = "{'hits': 0}"},

        {.claim = "KV that was there for prompts, without states",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 9000, 'kv_tokens': 5280}}",
         .kv = "{'hits': 0}",
         .states = "{'hits': 0}",
         .check = "states",
         .texts = {"5,280 tokens of prompts had their KV here", "none of the 200 states"}},
        {.claim = "KV that was there for too few prompts to judge",
         .layout = "{'told': {'prompts': 15, 'prompt_tokens': 9000, 'kv_tokens': 5280}}",
         .kv = "{'hits': 0}",
         .states = "{'hits': 0}"},
        {.claim = "prompts that were not there at all",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 9000, 'kv_tokens': 0}}",
         .kv = "{'hits': 0}",
         .states = "{'hits': 0}"},

        /* tokens of a step */
        {.claim = "steps shorter than a page",
         .layout = "{'batch_tokens': 512}",
         .check = "batch_tokens",
         .texts = {"at most 512 tokens in a step", "N, has 528", "--max-num-batched-tokens"}},
        {.claim = "steps of a page", .layout = "{'batch_tokens': 528}"},
        {.claim = "steps that nobody told of", .layout = "{'batch_tokens': 0}"},
        {.claim = "short steps of a model without states",
         .layout = "{'batch_tokens': 512}",
         .states = "{'kind': 'attention'}"},

        /* tails of prompts */
        {.claim = "tails that cost much, of chunks of a page",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 16000, 'tail_tokens': 4000,"
                   " 'kv_tokens': 8000, 'hit_tokens': 8000}}",
         .check = "tails",
         .texts = {"lacked 50.0 % were hits, 66.7 % without", "25.0 % of the tokens, 250",
                   "what lowers N"}},
        {.claim = "tails that cost much, of chunks of several pages",
         .layout = "{'chunk_tokens': 1056, 'told': {'prompts': 16, 'prompt_tokens': 16000,"
                   " 'tail_tokens': 4000, 'kv_tokens': 8000, 'hit_tokens': 8000}}",
         .check = "tails",
         .texts = {"chunk of 1,056 tokens", "blocks_per_chunk"}},
        {.claim = "tails that cost little",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 16000, 'tail_tokens': 1000,"
                   " 'kv_tokens': 8000, 'hit_tokens': 8000}}"},
        {.claim = "tails of prompts that are never hits",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 16000, 'tail_tokens': 9000}}"},
        {.claim = "prompts that are nothing but tails",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 16000, 'tail_tokens': 16000}}"},
        {.claim = "more hits than there can be",
         .layout = "{'told': {'prompts': 16, 'prompt_tokens': 16000, 'tail_tokens': 4000,"
                   " 'kv_tokens': 13000, 'hit_tokens': 13000}}"},
        {.claim = "too few prompts to judge",
         .layout = "{'told': {'prompts': 15, 'prompt_tokens': 16000, 'tail_tokens': 4000,"
                   " 'kv_tokens': 8000, 'hit_tokens': 8000}}"},

        /* dtype, draft tokens, version */
        {.claim = "another KV dtype before",
         .other = "{'sessions': 0, 'kv_dtype': 'fp8'}",
         .check = "other_layout",
         .texts = {"kv_dtype bfloat16, there fp8", "222222222222 has left", "400 objects"}},
        {.claim = "draft tokens before, and what follows from them",
         .layout = "{'draft_tokens': 2, 'revision': 'main;draft=ab', 'chunk_tokens': 560}",
         .other = "{'sessions': 0, 'draft_tokens': 0, 'revision': 'main', 'chunk_tokens': 528}",
         .check = "other_layout",
         .texts = {"draft_tokens 2, there 0", "clear"}},
        {.claim = "an upgrade of the engine",
         .other = "{'sessions': 0, 'engine_build': '0.28 cuda',"
                  " 'kernel_layout': 'layout=HND quantization=None runner=1'}",
         .check = "other_layout",
         .texts = {"engine_build 0.29 cuda, there 0.28 cuda"}},
        {.claim = "another dtype of the states alone",
         .other = "{'sessions': 0}",
         .other_states = "{'dtypes': ['bfloat16']}",
         .check = "other_layout",
         .texts = {"dtype of group states float32, there bfloat16"}},
        {.claim = "both in use: told once",
         .other = "{'kv_dtype': 'fp8'}",
         .check = "other_layout",
         .texts = {"stores, in use, too", "same setting"}},
        {.claim = "none in use",
         .layout = "{'sessions': 0}",
         .other = "{'sessions': 0, 'kv_dtype': 'fp8'}"},
        {.claim = "nothing left of the other",
         .other = "{'sessions': 0, 'objects': 0, 'kv_dtype': 'fp8'}"},
        {.claim = "another model", .other = "{'model': 'other', 'kv_dtype': 'fp8'}"},
        {.claim = "other weights", .other = "{'revision': 'v2', 'kv_dtype': 'fp8'}"},
        {.claim = "quantized weights",
         .other = "{'kernel_layout': 'layout=NHD quantization=fp8 runner=1', 'kv_dtype': 'fp8'}"},
        {.claim = "another engine", .other = "{'engine': 'sglang', 'kv_dtype': 'fp8'}"},
        {.claim = "another place of the shards", .other = "{'tp': 2, 'kv_dtype': 'fp8'}"},
        {.claim = "another domain", .other = "{'domain': 2, 'kv_dtype': 'fp8'}"},
        {.claim = "another chunk alone", .other = "{'chunk_tokens': 1056}"},
        {.claim = "what is not known", .other = "{'known': false, 'kv_dtype': 'fp8'}"},

        /* indexer keys */
        {.claim = "a sparse model without an indexer",
         .layout = "{'model': 'deepseek-ai/DeepSeek-V3.2-Exp'}",
         .check = "indexer",
         .texts = {"no indexer keys", "DeepSeek-V3.2, as it is called"}},
        {.claim = "a later one of a family",
         .layout = "{'model': '/models/GLM-5.2-FP8'}",
         .check = "indexer",
         .texts = {"GLM-5"}},
        {.claim = "an indexer among the tensors",
         .layout = "{'model': 'deepseek-ai/DeepSeek-V3.2'}",
         .kv = "{'index_tensors': 61}"},
        {.claim = "an indexer of its own",
         .layout = "{'model': 'deepseek-ai/DeepSeek-V3.2'}",
         .states = "{'kind': 'index'}"},
        {.claim = "tensors whose names do not tell",
         .layout = "{'model': 'deepseek-ai/DeepSeek-V3.2'}",
         .kv = "{'tensor_names': ['0.packed (FLASHMLA)']}"},
        {.claim = "SGLang's pool of both",
         .layout = "{'model': 'deepseek-ai/DeepSeek-V3.2',"
                   " 'kernel_layout': 'kv: Pool index_head_dim=128'}"},
        {.claim = "the model before", .layout = "{'model': 'deepseek-ai/DeepSeek-V3'}"},
        {.claim = "a number that goes on", .layout = "{'model': 'x/GLM-51'}"},
        {.claim = "a dense model that learned from it",
         .layout = "{'model': 'x/DeepSeek-V3.2-Distill-Qwen-7B'}"},
};

static json_t *parse(const char *text)
{
        char *json = strdup(text);
        json_error_t error;
        json_t *value;

        for (char *c = json; *c; c++)
                if (*c == '\'')
                        *c = '"';
        value = json_loads(json, 0, &error);
        ck_assert_msg(value != NULL, "%s: %s", json, error.text);
        free(json);
        return value;
}

static void change(json_t *object, const char *changes)
{
        json_t *members;

        if (!changes)
                return;
        members = parse(changes);
        json_object_update(object, members);
        json_decref(members);
}

static json_t *group_of(json_t *layout, size_t i)
{
        return json_array_get(json_object_get(layout, "groups"), i);
}

static json_t *layouts_of(int i)
{
        json_t *layouts = json_array(), *layout = parse(sound), *other;

        change(layout, cases[i].layout);
        change(group_of(layout, 0), cases[i].kv);
        change(group_of(layout, 1), cases[i].states);
        json_array_append_new(layouts, layout);
        if (cases[i].other) {
                other = parse(sound);
                json_object_set_new(other, "layout", json_string("2222222222222222"));
                change(other, cases[i].other);
                change(group_of(other, 1), cases[i].other_states);
                json_array_append_new(layouts, other);
        }
        return layouts;
}

static json_t *knowledge_of_the_tree(void)
{
        json_t *knowledge = NULL;
        struct why why = {""};

        ck_assert_msg(!plan_knowledge_load(KVTIER_KNOWLEDGE, &knowledge, &why), "%s", why.text);
        return knowledge;
}

static bool says(const json_t *finding, const char *text)
{
        return strstr(json_string_value(json_object_get(finding, "finding")), text) ||
               strstr(json_string_value(json_object_get(finding, "remedy")), text);
}

START_TEST(symptoms_are_found_and_nothing_else)
{
        json_t *layouts = layouts_of(_i), *list = json_array(), *knowledge, *finding;
        char *found;

        knowledge = knowledge_of_the_tree();
        sparse_model_mark(layouts, knowledge);
        symptoms_append(list, layouts);
        found = json_dumps(list, 0);
        finding = json_array_get(list, 0);
        ck_assert_msg(json_array_size(list) == (cases[_i].check ? 1 : 0), "%s: %s", cases[_i].claim,
                      found);
        if (cases[_i].check)
                ck_assert_str_eq(json_string_value(json_object_get(finding, "check")),
                                 cases[_i].check);
        for (size_t t = 0; t < 3 && cases[_i].texts[t]; t++)
                ck_assert_msg(says(finding, cases[_i].texts[t]), "%s: no \"%s\" in %s",
                              cases[_i].claim, cases[_i].texts[t], found);
        free(found);
        json_decref(knowledge);
        json_decref(list);
        json_decref(layouts);
}
END_TEST

/* What the folder's configuration says, whatever the folder is called. */
static size_t n_found_in(const char *folder, const char *config)
{
        json_t *layouts = json_array(), *list = json_array(), *layout = parse(sound), *knowledge;
        char path[128];
        FILE *file;
        size_t n;

        snprintf(path, sizeof(path), "%s/config.json", folder);
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(config, file), 0);
        ck_assert_int_eq(fclose(file), 0);
        json_object_set_new(layout, "model", json_string(folder));
        json_array_append_new(layouts, layout);
        knowledge = knowledge_of_the_tree();
        sparse_model_mark(layouts, knowledge);
        symptoms_append(list, layouts);
        n = json_array_size(list);
        json_decref(knowledge);
        json_decref(list);
        json_decref(layouts);
        ck_assert_int_eq(unlink(path), 0);
        return n;
}

START_TEST(a_folder_is_judged_by_its_configuration)
{
        char folder[] = "/tmp/symptoms-XXXXXX";

        ck_assert_ptr_nonnull(mkdtemp(folder));
        ck_assert_uint_eq(n_found_in(folder, "{\"index_topk\": 2048}"), 1);
        ck_assert_uint_eq(n_found_in(folder, "{\"text_config\": {\"index_head_dim\": 128}}"), 1);
        ck_assert_uint_eq(n_found_in(folder, "{\"kv_lora_rank\": 512}"), 0);
        ck_assert_uint_eq(n_found_in(folder, "no JSON"), 0);
        ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(every_check_has_a_name)
{
        size_t n = 0;

        while (symptoms_check_name(n))
                ck_assert_str_ne(symptoms_check_name(n++), "");
        ck_assert_uint_gt(n, 4);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("kvtierctl_symptoms");
        TCase *tcase = tcase_create("kvtierctl_symptoms");
        SRunner *runner;
        int n_failed;

        tcase_add_loop_test(tcase, symptoms_are_found_and_nothing_else, 0,
                            sizeof(cases) / sizeof(cases[0]));
        tcase_add_test(tcase, a_folder_is_judged_by_its_configuration);
        tcase_add_test(tcase, every_check_has_a_name);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
