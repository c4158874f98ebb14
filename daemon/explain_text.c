// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/explain_text.h"
#include "daemon/layout_table.h"
#include "proto/layout_diff.h"

/* Appends as long as there is room. */
struct text {
        char *bytes;
        size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
        va_list arguments;
        int n;

        if (text->used + 1 >= text->size)
                return;
        va_start(arguments, format);
        n = vsnprintf(text->bytes + text->used, text->size - text->used, format, arguments);
        va_end(arguments);
        text->used += n > 0 ? (size_t)n : 0;
        if (text->used >= text->size)
                text->used = text->size - 1;
}

static void add_ago(struct text *text, uint64_t now_ns, uint64_t then_ns)
{
        uint64_t seconds = now_ns > then_ns ? (now_ns - then_ns) / UINT64_C(1000000000) : 0;

        if (!seconds)
                add(text, ", less than 1 s ago");
        else if (seconds < 120)
                add(text, ", %" PRIu64 " s ago", seconds);
        else if (seconds < 7200)
                add(text, ", %" PRIu64 " min ago", seconds / 60);
        else if (seconds < 172800)
                add(text, ", %" PRIu64 " h ago", seconds / 3600);
        else
                add(text, ", %" PRIu64 " days ago", seconds / 86400);
}

static const char *tier_text(uint8_t tier)
{
        static const char *const texts[METRICS_N_TIERS] = {
                "in host memory: ", "on NVMe: ", "in the pool: "};

        return tier < METRICS_N_TIERS ? texts[tier] : "";
}

static void add_cause(struct text *text, const struct daemon *daemon, const struct explain_gap *gap)
{
        const char *rule = drop_rule_text(gap->rule);

        switch (gap->cause) {
        case EXPLAIN_RESERVED:
                add(text, "reserved by its writer, not committed yet");
                return;
        case EXPLAIN_DROPPED:
                add(text, "%s%s", tier_text(gap->tier), drop_reason_text(gap->reason));
                if (rule[0])
                        add(text, " (%s)", rule);
                if (gap->count > 1)
                        add(text, ", %" PRIu32 " times", gap->count);
                return;
        default:
                add(text, daemon->cache.nvme
                                  ? "never stored, as far as is known (what was not on NVMe when "
                                    "the daemon started is forgotten)"
                                  : "never stored since the daemon started, as far as is known");
        }
}

void explain_gap_text(const struct daemon *daemon, const struct explain_gap *gap, char *ret_text,
                      size_t size)
{
        struct text text = {.bytes = ret_text, .size = size};

        ret_text[0] = '\0';
        add_cause(&text, daemon, gap);
}

/* ---- the sentence ---- */

static uint32_t tokens_of(const struct explanation *explanation, uint32_t boundary)
{
        return boundary * explanation->layout->chunk_tokens;
}

static void add_part(struct text *text, const struct explanation *explanation,
                     const struct explain_gap *gap)
{
        const struct layout_group *group = &explanation->layout->groups[gap->group];

        add(text, "group %.*s", group->name.length < 60 ? group->name.length : 60,
            group->name.bytes);
        if (group->n_shards > 1 && gap->n_shards == group->n_shards)
                add(text, ", every shard");
        else if (gap->n_shards > 1)
                add(text, ", shards %u to %u", gap->first_shard,
                    gap->first_shard + gap->n_shards - 1u);
        else if (group->n_shards > 1)
                add(text, ", shard %u", gap->first_shard);
}

/* The whole of boundary @at is missing here, but another layout has it. */
static uint16_t other_layout_of(const struct explanation *explanation, uint32_t at)
{
        for (uint32_t i = 0; i < explanation->n_runs; i++)
                if (explanation->runs[i].from <= at && at <= explanation->runs[i].to)
                        return explanation->runs[i].other_layout;
        return 0;
}

static bool add_difference(void *user, const struct layout_difference *difference)
{
        struct text *text = user;

        add(text, "%s%s (%s here, %s there)", text->bytes[text->used - 1] == ')' ? ", " : " ",
            difference->field, difference->a, difference->b);
        return text->used < text->size / 2;
}

static void add_other_layout(struct text *text, struct daemon *daemon,
                             const struct explanation *explanation, uint16_t other)
{
        const struct layout_entry *entry = index_layout_at(daemon->cache.index, other);
        static struct layout layout; /* of the loop's thread; too large for a stack */
        char id[2 * DIGEST_BYTES + 1];
        struct why why;

        admin_hex(id, entry->id.bytes, DIGEST_BYTES);
        add(text, ". Layout %.12s has it", id);
        if (!entry->encoding ||
            layout_decode(&layout, entry->encoding, entry->encoding_bytes, &why))
                return;
        add(text, ", which differs in");
        layout_diff(explanation->layout, &layout, add_difference, text);
}

static void add_block(struct text *text, struct daemon *daemon,
                      const struct explanation *explanation, const struct explain_block *block,
                      uint64_t now_ns)
{
        uint16_t other = other_layout_of(explanation, block->chunk);

        add_part(text, explanation, &block->gap);
        add(text, ": ");
        add_cause(text, daemon, &block->gap);
        if (block->gap.cause == EXPLAIN_DROPPED)
                add_ago(text, now_ns, block->gap.last_ns);
        if (other)
                add_other_layout(text, daemon, explanation, other);
}

/* "boundary 5 (tokens 1,025 to 1,280)" without the commas. */
static void add_chunk(struct text *text, const struct explanation *explanation, uint32_t boundary)
{
        add(text, "boundary %" PRIu32 " (tokens %" PRIu32 " to %" PRIu32 ")", boundary,
            tokens_of(explanation, boundary - 1) + 1, tokens_of(explanation, boundary));
}

static void add_longest(struct text *text, const struct explanation *explanation)
{
        if (explanation->usable)
                add(text, "the longest usable prefix is %" PRIu32 " tokens (boundary %" PRIu32 ")",
                    tokens_of(explanation, explanation->usable), explanation->usable);
        else
                add(text, "no prefix is usable");
}

static void add_nothing(struct text *text, const struct explanation *explanation)
{
        uint32_t chunk = explanation->layout->chunk_tokens;

        if (explanation->n)
                add(text,
                    "No hit is possible: below the limit of the request (a layout with states "
                    "leaves at least the last token to compute) there is no whole chunk of %" PRIu32
                    " tokens.",
                    chunk);
        else
                add(text,
                    "No hit is possible: the prompt has no whole chunk of %" PRIu32 " tokens.",
                    chunk);
}

static void add_hit(struct text *text, const struct explanation *explanation)
{
        if (explanation->limit < explanation->n)
                add(text,
                    "It is a hit now: all %" PRIu32 " tokens that the request may use (boundary "
                    "%" PRIu32 "; a layout with states leaves at least the last token to compute).",
                    tokens_of(explanation, explanation->usable), explanation->usable);
        else
                add(text, "It is a hit now: all %" PRIu32 " tokens (boundary %" PRIu32 ").",
                    tokens_of(explanation, explanation->usable), explanation->usable);
}

void explain_sentence(struct daemon *daemon, const struct explanation *explanation, uint64_t now_ns,
                      char *ret_text, size_t size)
{
        struct text text = {.bytes = ret_text, .size = size};
        const struct explain_block *kv = &explanation->kv_block, *best = &explanation->best_block;

        ret_text[0] = '\0';
        if (explanation->limit <= explanation->first) {
                add_nothing(&text, explanation);
                return;
        }
        if (!kv->at && !best->at) {
                add_hit(&text, explanation);
                return;
        }
        if (best->at) {
                add(&text, "The chunks reach up to boundary %" PRIu32 " (%" PRIu32 " tokens), but ",
                    best->at, tokens_of(explanation, best->at));
                if (best->chunk != best->at)
                        add(&text, "it needs a window in which ");
                add_chunk(&text, explanation, best->chunk);
                add(&text, " lacks ");
                add_block(&text, daemon, explanation, best, now_ns);
        } else {
                add(&text, "The chunk of ");
                add_chunk(&text, explanation, kv->chunk);
                add(&text, " lacks ");
                add_block(&text, daemon, explanation, kv, now_ns);
        }
        add(&text, "; ");
        add_longest(&text, explanation);
        add(&text, ".");
}
