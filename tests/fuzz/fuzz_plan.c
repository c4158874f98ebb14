// SPDX-License-Identifier: Apache-2.0
/*
 * A model's configuration that anyone may have written, and behind a line of its own, "#", an
 * engine's command line. What is accepted gives a plan without a negative or endless number; what
 * is refused has a reason.
 */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"

static json_t *knowledge;

static void require(bool condition)
{
        if (!condition)
                abort();
}

static void require_sane(json_t *value)
{
        const char *key;
        json_t *member;
        size_t i;

        if (json_is_integer(value))
                require(json_integer_value(value) >= 0);
        if (json_is_real(value))
                require(isfinite(json_real_value(value)) && json_real_value(value) >= 0);
        json_array_foreach(value, i, member)
        {
                require_sane(member);
        }
        json_object_foreach(value, key, member)
        {
                /* What decided shows what the configuration says. */
                if (strcmp(key, "decided_by"))
                        require_sane(member);
        }
}

/* Options that reach other formulas, chosen by the length of the text. */
static struct plan_options options_by(size_t size)
{
        static const char *const dtypes[] = {NULL, "fp8", "nvfp4", "float32"};
        static const char *const modes[] = {NULL, "all"};
        static const char *const gpus[] = {NULL, "H200x8", "RTX4090"};

        return (struct plan_options){
                .gpu = gpus[size % 3],
                .kv_dtype = dtypes[size % 4],
                .cache_mode = modes[size % 2],
                .tp = size % 5,
                .pp = size % 7 == 0 ? 4096 : 0,
                .draft_tokens = size % 11,
                .block_size = size % 13 == 0 ? 65536 : 0,
                .context_tokens = size % 2 ? UINT64_C(1) << 26 : 0,
                .host_bytes = UINT64_C(1) << 40,
                .weight_bytes = size % 17 == 0 ? UINT64_MAX : 0,
        };
}

static void try_plan(const json_t *config, const struct plan_options *options, const char *command)
{
        struct plan *plan = NULL;
        struct why why = {""};
        int r = command ? plan_audit(knowledge, config, options, command, &plan, &why)
                        : plan_new(knowledge, config, options, &plan, &why);

        require(r < 0 ? !plan && why.text[0] : plan != NULL);
        if (plan)
                require_sane(plan->document);
        plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        _cleanup_free_ char *text = strndup((const char *)data, size);
        struct plan_options options = options_by(size);
        json_auto_t *config = NULL;
        struct why why = {""};
        char *command;

        if (!knowledge)
                require(!plan_knowledge_load(KVTIER_KNOWLEDGE, &knowledge, &why));
        command = strstr(text, "\n#\n");
        if (command) {
                *command = '\0';
                command += strlen("\n#\n");
        }
        if (plan_parse_json("fuzz", text, &config, &why) < 0) {
                require(why.text[0]);
                return 0;
        }
        try_plan(config, &options, NULL);
        if (command)
                try_plan(config, &options, command);
        return 0;
}
