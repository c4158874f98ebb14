// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "daemon/admin.h"
#include "daemon/admin_explain.h"
#include "daemon/admin_layouts.h"
#include "daemon/admin_objects.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/explain.h"
#include "daemon/explain_text.h"

/* Libraries that have been asked and have not answered yet. */
#define QUESTIONS_MAX 16u
#define ANSWER_NS_MAX UINT64_C(5000000000)

struct recent_question {
        TAILQ_ENTRY(recent_question) link;
        struct session *asker, *asked;
        uint64_t request; /* of the asker */
        uint64_t ticket;  /* request of the RECENT */
        uint64_t until_ns;
};

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- an explanation as JSON ---- */

static const char *cause_name(const struct explain_gap *gap)
{
        if (gap->cause == EXPLAIN_RESERVED)
                return "reserved";
        if (gap->cause == EXPLAIN_DROPPED)
                return drop_reason_is_refusal(gap->reason) ? "refused" : "dropped";
        return "never_stored";
}

static json_t *describe_gap(struct daemon *daemon, const struct layout *layout,
                            const struct explain_gap *gap)
{
        const struct layout_string *name = &layout->groups[gap->group].name;
        char text[EXPLAIN_TEXT_MAX];
        json_t *object;

        explain_gap_text(daemon, gap, text, sizeof(text));
        object = json_pack("{s:i, s:i, s:i, s:s, s:s}", "group", gap->group, "first_shard",
                           gap->first_shard, "shards", gap->n_shards, "cause", cause_name(gap),
                           "text", text);
        json_object_set_new(object, "name", json_stringn(name->bytes, name->length));
        if (gap->cause != EXPLAIN_DROPPED)
                return object;
        json_object_set_new(object, "reason", json_string(drop_reason_name(gap->reason)));
        if (gap->tier < METRICS_N_TIERS)
                json_object_set_new(object, "tier",
                                    json_string(metrics_tier_name((enum metrics_tier)gap->tier)));
        if (gap->rule)
                json_object_set_new(object, "rule", json_string(drop_rule_text(gap->rule)));
        json_object_set_new(object, "first_ns", json_integer((json_int_t)gap->first_ns));
        json_object_set_new(object, "last_ns", json_integer((json_int_t)gap->last_ns));
        json_object_set_new(object, "count", json_integer(gap->count));
        return object;
}

static void add_other_layout(json_t *object, struct daemon *daemon, uint16_t layout, uint16_t other)
{
        char id[2 * DIGEST_BYTES + 1];

        admin_hex(id, index_layout_id(daemon->cache.index, other)->bytes, DIGEST_BYTES);
        json_object_set_new(object, "other_layout", json_string(id));
        json_object_set_new(object, "differences", admin_layout_differences(daemon, layout, other));
}

static json_t *describe_run(struct daemon *daemon, const struct explanation *explanation,
                            const struct explain_run *run)
{
        char digest[2 * DIGEST_BYTES + 1];
        json_t *gaps = json_array(), *object;

        admin_hex(digest, run->digest.bytes, DIGEST_BYTES);
        for (uint32_t i = 0; i < run->n_gaps; i++)
                json_array_append_new(gaps,
                                      describe_gap(daemon, explanation->layout, &run->gaps[i]));
        object = json_pack("{s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:o, s:b}", "from",
                           (json_int_t)run->from, "to", (json_int_t)run->to, "digest", digest,
                           "in_host", (json_int_t)run->n_host, "in_nvme_only",
                           (json_int_t)run->n_nvme, "in_remote_only", (json_int_t)run->n_remote,
                           "missing", (json_int_t)run->n_missing, "usable", (int)run->is_usable,
                           "above_limit", (int)(run->from > explanation->limit), "gaps", gaps,
                           "more_gaps", (int)run->is_cut);
        if (object && run->other_layout)
                add_other_layout(object, daemon, explanation->layout_number, run->other_layout);
        return object;
}

static json_t *describe(struct daemon *daemon, const struct explanation *explanation)
{
        char id[2 * DIGEST_BYTES + 1], sentence[EXPLAIN_TEXT_MAX];
        uint32_t chunk = explanation->layout->chunk_tokens;
        json_t *runs = json_array();

        admin_hex(id, index_layout_id(daemon->cache.index, explanation->layout_number)->bytes,
                  DIGEST_BYTES);
        explain_sentence(daemon, explanation, wall_clock_ns(), sentence, sizeof(sentence));
        for (uint32_t i = 0; i < explanation->n_runs; i++)
                json_array_append_new(runs,
                                      describe_run(daemon, explanation, &explanation->runs[i]));
        return json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s}", "ok", 1,
                         "layout", id, "chunk_tokens", (json_int_t)chunk, "cells",
                         (json_int_t)layout_n_cells(explanation->layout), "first",
                         (json_int_t)explanation->first, "boundaries", (json_int_t)explanation->n,
                         "limit", (json_int_t)explanation->limit, "usable_boundaries",
                         (json_int_t)explanation->usable, "usable_tokens",
                         (json_int_t)explanation->usable * chunk, "kv_boundaries",
                         (json_int_t)explanation->kv, "runs", runs, "why", sentence);
}

static json_t *answer(struct daemon *daemon, const struct explain_query *query)
{
        struct explanation explanation;
        int r = explain(daemon, query, &explanation);
        json_t *result;

        if (r == -ENOENT)
                result = admin_error("why: what this layout means is not known until an engine "
                                     "attaches with it");
        else
                result = r ? NULL : describe(daemon, &explanation);
        explanation_deinit(&explanation);
        return result;
}

/* ---- digests that are given ---- */

/* Digests in hex, one behind the other. False: they are not. */
static bool parse_digests(const json_t *text, struct digest **ret_digests, uint32_t *ret_n)
{
        const char *hex = json_string_value(text);
        size_t length = json_string_length(text);
        struct digest *digests;

        if (!hex || length % (2 * DIGEST_BYTES) ||
            length / (2 * DIGEST_BYTES) > EXPLAIN_DIGESTS_MAX ||
            strspn(hex, "0123456789abcdefABCDEF") != length)
                return false;
        *ret_n = (uint32_t)(length / (2 * DIGEST_BYTES));
        digests = calloc(*ret_n + 1, sizeof(*digests));
        if (!digests)
                return false;
        for (size_t i = 0; i < length; i += 2)
                digests[i / (2 * DIGEST_BYTES)].bytes[i / 2 % DIGEST_BYTES] =
                        (uint8_t)(admin_nibble(hex[i]) << 4 | admin_nibble(hex[i + 1]));
        *ret_digests = digests;
        return true;
}

/* A member that is absent or a number up to UINT32_MAX. */
static bool parse_number(const json_t *arguments, const char *name, uint32_t *ret_number)
{
        const json_t *value = json_object_get(arguments, name);
        json_int_t number = json_integer_value(value);

        *ret_number = (uint32_t)number;
        return !value || (json_is_integer(value) && number >= 0 && number <= UINT32_MAX);
}

static json_t *explain_digests(struct daemon *daemon, const json_t *arguments)
{
        struct explain_query query = {0};
        _cleanup_free_ struct digest *digests = NULL;
        json_t *error = NULL;

        if (admin_find_layout(daemon, arguments, false, &query.layout, &error))
                return error;
        if (!parse_digests(json_object_get(arguments, "digests"), &digests, &query.n_digests))
                return admin_error("why: \"digests\" must be at most %u digests of 64 hex digits, "
                                   "one behind the other",
                                   EXPLAIN_DIGESTS_MAX);
        if (!parse_number(arguments, "first", &query.first) ||
            !parse_number(arguments, "prompt_tokens", &query.prompt_tokens) ||
            !parse_number(arguments, "max_tokens", &query.max_tokens) ||
            query.first > UINT32_MAX / 2)
                return admin_error("why: \"first\", \"prompt_tokens\" and \"max_tokens\" must be "
                                   "numbers");
        query.digests = digests;
        return answer(daemon, &query);
}

/* ---- a recent match of a session ---- */

static void end_question(struct daemon *daemon, struct recent_question *question, json_t *result)
{
        TAILQ_REMOVE(&daemon->questions, question, link);
        daemon->n_questions--;
        if (question->asker)
                admin_reply(question->asker, question->request, result, false);
        else
                json_decref(result);
        free(question);
}

static json_t *ask_session(struct session *asker, uint64_t request, struct session *asked,
                           uint32_t nth, bool *ret_waits)
{
        struct daemon *daemon = asker->daemon;
        struct wire_recent message = {.nth = nth};
        struct recent_question *question;

        if (daemon->n_questions >= QUESTIONS_MAX)
                return admin_error("why: too many questions are waiting for their answers");
        question = calloc(1, sizeof(*question));
        if (!question)
                return NULL;
        *question = (struct recent_question){
                .asker = asker,
                .asked = asked,
                .request = request,
                .ticket = ++daemon->last_ticket,
                .until_ns = uv_hrtime() + ANSWER_NS_MAX,
        };
        TAILQ_INSERT_TAIL(&daemon->questions, question, link);
        daemon->n_questions++;
        message_header_init(&message.header, WIRE_RECENT, question->ticket, asked->id,
                            daemon->boot_id);
        message.header.length = sizeof(message);
        session_send(asked, &message, sizeof(message), -1);
        *ret_waits = true;
        return NULL;
}

json_t *admin_explain(struct session *asker, uint64_t request, const json_t *arguments,
                      bool *ret_waits)
{
        const json_t *id = json_object_get(arguments, "session");
        struct session *asked;
        uint32_t nth;

        *ret_waits = false;
        if (!id)
                return explain_digests(asker->daemon, arguments);
        if (!json_is_integer(id) || !parse_number(arguments, "nth", &nth))
                return admin_error("why: \"session\" and \"nth\" must be numbers: see kvtierctl "
                                   "sessions");
        asked = session_by_id(asker->daemon, (uint64_t)json_integer_value(id));
        if (!asked || asked->state != SESSION_ATTACHED || !asked->layout)
                return admin_error("why: there is no attached session %" JSON_INTEGER_FORMAT,
                                   json_integer_value(id));
        return ask_session(asker, request, asked, nth, ret_waits);
}

static void add_match(json_t *object, const struct wire_matches *matches)
{
        uint64_t now_ns = uv_hrtime();

        json_object_set_new(object, "match",
                            json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "nth",
                                      (json_int_t)matches->nth, "of", (json_int_t)matches->n_recent,
                                      "age_ms",
                                      now_ns > matches->beat_ns
                                              ? (json_int_t)((now_ns - matches->beat_ns) / 1000000)
                                              : 0,
                                      "times", (json_int_t)matches->repeats, "digests",
                                      (json_int_t)matches->total, "prompt_tokens",
                                      (json_int_t)matches->prompt_tokens, "max_tokens",
                                      (json_int_t)matches->max_tokens, "boundaries",
                                      (json_int_t)matches->boundaries, "kv_boundaries",
                                      (json_int_t)matches->kv_boundaries));
}

static json_t *explain_match(struct session *session, const struct wire_matches *matches)
{
        struct explain_query query = {
                .layout = session->layout,
                .digests = message_match_digests(matches),
                .n_digests = matches->header.n_items,
                .first = matches->first,
                .prompt_tokens = matches->prompt_tokens,
                .max_tokens = matches->max_tokens,
        };
        json_t *result;

        if (!matches->sequence)
                return admin_error(matches->n_recent
                                           ? "why: the session remembers only %u matches"
                                           : "why: every match of the session so far was a full "
                                             "hit, or it has made none",
                                   matches->n_recent);
        result = answer(session->daemon, &query);
        if (json_is_true(json_object_get(result, "ok")))
                add_match(result, matches);
        return result;
}

void admin_explain_matches(struct session *session, const struct wire_matches *matches)
{
        struct daemon *daemon = session->daemon;
        struct recent_question *question;

        TAILQ_FOREACH(question, &daemon->questions, link)
                if (question->asked == session && question->ticket == matches->header.request)
                        break;
        /* Else nobody waits for it any more. */
        if (question && session->layout)
                end_question(daemon, question, explain_match(session, matches));
}

void admin_explain_session_gone(struct session *session)
{
        struct daemon *daemon = session->daemon;
        struct recent_question *question, *next;

        for (question = TAILQ_FIRST(&daemon->questions); question; question = next) {
                next = TAILQ_NEXT(question, link);
                if (question->asker == session)
                        question->asker = NULL;
                if (!question->asker || question->asked == session)
                        end_question(daemon, question,
                                     admin_error("why: the session has ended before it answered"));
        }
}

void admin_explain_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct recent_question *question;

        /* Each has the same time: the first is the oldest. */
        while ((question = TAILQ_FIRST(&daemon->questions)) && question->until_ns < now_ns)
                end_question(daemon, question,
                             admin_error("why: the session's library did not answer in time"));
}
