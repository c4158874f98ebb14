// SPDX-License-Identifier: Apache-2.0
/*
 * Both commands walk over the nodes of the pool first. pool answers with what it has seen;
 * pool gc then goes through those that are meant, one after another.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/admin.h"
#include "daemon/admin_pool.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "storage/pool_name.h"
#include "storage/remote.h"
#include "storage/remote_gc.h"
#include "storage/remote_nodes.h"

#define NODES_MAX 4096u /* in one answer */
#define NS_PER_S  UINT64_C(1000000000)

struct pool_question {
        struct daemon *daemon;
        struct session *session; /* NULL: nobody is told any more */
        uint64_t request;
        bool is_gc;
        uint64_t limit_s;
        char wanted[POOL_HOST_MAX]; /* gc: digits that a node begins with, or a host; "": all */
        struct remote_usage own;
        struct remote_nodes *walk;
        struct remote_gc *gc;
        json_t *nodes; /* pool: described */
        uint8_t (*chosen)[16];
        uint32_t n_chosen, n_dead, n_seen, at;
        uint64_t bundles, bytes;
        uint32_t n_collected, n_alive;
};

static void finish(struct pool_question *question)
{
        struct daemon *daemon = question->daemon;

        daemon->pool_questions[question->is_gc] = NULL;
        json_decref(question->nodes);
        free(question->chosen);
        free(question);
        daemon_wake(daemon);
}

static void reply(struct pool_question *question, json_t *answer, bool more)
{
        if (question->session)
                admin_reply(question->session, question->request, answer, more);
        else
                json_decref(answer);
}

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t age_s(const struct journal_node *node)
{
        uint64_t now = now_ns();

        return now > node->written_ns ? (now - node->written_ns) / NS_PER_S : 0;
}

/* ---- pool ---- */

static const char *state_of(const struct pool_question *question, const struct journal_node *node,
                            int result)
{
        uint64_t limit_s = question->limit_s;

        if (result == -ENOENT)
                return "silent";
        if (result)
                return result == JOURNAL_E_NEWER ? "newer" : result < 0 ? "unread" : "damaged";
        if (limit_s < 2 * (uint64_t)node->heartbeat_s)
                limit_s = 2 * (uint64_t)node->heartbeat_s;
        return age_s(node) > limit_s ? "dead" : "alive";
}

static bool is_own(const struct pool_question *question, const uint8_t node[16])
{
        return !memcmp(question->own.node, node, sizeof(question->own.node));
}

static json_t *describe_node(const struct pool_question *question, const struct journal_node *node,
                             int result)
{
        char id[33];

        admin_hex(id, node->node, sizeof(node->node));
        return json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "node", id, "own",
                         is_own(question, node->node), "state", state_of(question, node, result),
                         "host", node->host, "age_seconds", (json_int_t)(result ? 0 : age_s(node)),
                         "bundles", (json_int_t)node->bundles, "bytes", (json_int_t)node->bytes,
                         "bytes_max", (json_int_t)node->bytes_max, "segments",
                         (json_int_t)(node->next_segment - node->first_segment));
}

static void see_node(struct pool_question *question, const struct journal_node *node, int result)
{
        question->n_seen++;
        question->n_dead += !strcmp(state_of(question, node, result), "dead");
        question->bundles += node->bundles;
        question->bytes += node->bytes;
        if (question->n_seen <= NODES_MAX)
                json_array_append_new(question->nodes, describe_node(question, node, result));
}

static json_t *describe_own(const struct pool_question *question)
{
        const struct remote_usage *own = &question->own;
        struct tier *tier = question->daemon->cache.remote;
        struct tier_usage usage = {0};

        tier->ops.usage(tier, &usage);
        return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "bundles",
                         (json_int_t)own->own_bundles, "bytes", (json_int_t)own->own_bytes,
                         "bytes_max", (json_int_t)usage.capacity_bytes, "dead_bytes",
                         (json_int_t)own->dead_bytes, "entries", (json_int_t)own->entries,
                         "segments_read", (json_int_t)own->journal_segments_read,
                         "segments_written", (json_int_t)own->journal_segments_written,
                         "segments_damaged", (json_int_t)own->journal_damaged, "stale_entries",
                         (json_int_t)own->stale_entries, "timeouts", (json_int_t)own->timeouts,
                         "caught_up", (int)own->caught_up);
}

static json_t *describe_pool(struct pool_question *question, const char *trouble)
{
        const struct pool *pool = remote_pool(question->daemon->cache.remote);
        char id[33];

        admin_hex(id, question->own.node, sizeof(question->own.node));
        return json_pack("{s:b, s:s, s:s, s:s, s:b, s:I, s:s, s:o, s:O, s:s?, s:I, s:I, s:I, s:I}",
                         "ok", 1, "backend", pool->ops.name, "node", id, "breaker",
                         question->own.breaker_open ? "open" : "closed", "is_open",
                         (int)question->own.breaker_open, "opened",
                         (json_int_t)question->own.breaker_opened, "last_failure",
                         pool->ops.last_failure(pool), "own", describe_own(question), "nodes",
                         question->nodes, "trouble", trouble, "nodes_total",
                         (json_int_t)question->n_seen, "nodes_dead", (json_int_t)question->n_dead,
                         "bundles_total", (json_int_t)question->bundles, "bytes_total",
                         (json_int_t)question->bytes);
}

/* ---- pool gc ---- */

/* Is it meant: by its first digits, by its host's name, or as one that seems dead? */
static bool is_meant(const struct pool_question *question, const struct journal_node *node,
                     int result)
{
        char id[33];

        if (!*question->wanted)
                return !is_own(question, node->node) &&
                       strcmp(state_of(question, node, result), "alive") != 0;
        admin_hex(id, node->node, sizeof(node->node));
        return !strncmp(id, question->wanted, strlen(question->wanted)) ||
               !strcmp(node->host, question->wanted);
}

static void choose_node(struct pool_question *question, const struct journal_node *node, int result)
{
        question->n_seen++;
        if (question->n_chosen == NODES_MAX || !is_meant(question, node, result))
                return;
        memcpy(question->chosen[question->n_chosen++], node->node, sizeof(node->node));
}

static const char *word_of(int outcome)
{
        static const char *const words[] = {"collected",    "alive", "busy", "unknown",
                                            "no_heartbeat", "newer", "own"};

        return outcome < 0 ? "failed" : words[outcome];
}

static void tell_gc(struct pool_question *question, const struct remote_gc_result *result)
{
        char id[33];

        admin_hex(id, question->chosen[question->at], sizeof(question->chosen[0]));
        question->n_collected += !result->outcome;
        question->n_alive += result->outcome == REMOTE_GC_E_ALIVE;
        reply(question,
              json_pack("{s:b, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "ok", 1, "node",
                        id, "host", result->host, "outcome", word_of(result->outcome), "why",
                        result->why.text, "bundles", (json_int_t)result->bundles, "bytes",
                        (json_int_t)result->bytes, "segments", (json_int_t)result->segments,
                        "damaged", (json_int_t)result->damaged, "age_seconds",
                        (json_int_t)result->age_s, "limit_seconds", (json_int_t)result->limit_s),
              true);
}

static void collect(struct pool_question *question);

static void on_collected(void *user, const struct remote_gc_result *result)
{
        struct pool_question *question = user;

        question->gc = NULL;
        tell_gc(question, result);
        question->at++;
        collect(question);
}

static int append(void *user, const struct journal_record *records, uint32_t n_records,
                  void (*on_done)(void *user, int result), void *on_done_user)
{
        struct pool_question *question = user;

        return remote_append(question->daemon->cache.remote, records, n_records, on_done,
                             on_done_user);
}

static int start_gc(struct pool_question *question)
{
        static char host[POOL_HOST_MAX]; /* the same for all */
        struct remote_gc_options options = {
                .loop = &question->daemon->loop,
                .pool = remote_pool(question->daemon->cache.remote),
                .host = host,
                .older_than_s = (uint32_t)question->limit_s,
                .append = append,
                .on_end = on_collected,
                .user = question,
        };

        if (gethostname(host, sizeof(host)))
                *host = '\0';
        host[sizeof(host) - 1] = '\0';
        memcpy(options.own, question->own.node, sizeof(options.own));
        memcpy(options.node, question->chosen[question->at], sizeof(options.node));
        return remote_gc_start(&question->gc, &options);
}

/* The next that was chosen, and the sum behind the last. */
static void collect(struct pool_question *question)
{
        while (question->session && question->at < question->n_chosen) {
                struct remote_gc_result result = {.limit_s = question->limit_s};

                result.outcome = start_gc(question);
                if (!result.outcome)
                        return;
                why_set(&result.why, "%s",
                        result.outcome < 0 ? strerror(-result.outcome)
                                           : "it is the node that was asked");
                tell_gc(question, &result);
                question->at++;
        }
        reply(question,
              json_pack("{s:b, s:b, s:I, s:I, s:I, s:I}", "ok", 1, "finished", 1, "nodes",
                        (json_int_t)question->n_seen, "chosen", (json_int_t)question->n_chosen,
                        "collected", (json_int_t)question->n_collected, "alive",
                        (json_int_t)question->n_alive),
              false);
        finish(question);
}

static void begin_gc(struct pool_question *question)
{
        uint8_t node[16];

        /* One whose object is gone may have left more than that. */
        if (*question->wanted && !question->n_chosen && pool_name_parse_hex(question->wanted, node))
                memcpy(question->chosen[question->n_chosen++], node, sizeof(node));
        if (*question->wanted && question->n_chosen != 1) {
                reply(question,
                      question->n_chosen
                              ? admin_error("pool gc: more than one node begins with or is called "
                                            "\"%s\"",
                                            question->wanted)
                              : admin_error("pool gc: no node begins with or is called \"%s\": see "
                                            "kvtierctl pool",
                                            question->wanted),
                      false);
                finish(question);
                return;
        }
        collect(question);
}

/* ---- both ---- */

static void on_node(void *user, const struct journal_node *node, int result)
{
        struct pool_question *question = user;

        if (question->is_gc)
                choose_node(question, node, result);
        else
                see_node(question, node, result);
}

static void on_walked(void *user, int result)
{
        struct pool_question *question = user;

        question->walk = NULL;
        if (!question->session) {
                finish(question);
        } else if (!question->is_gc) {
                reply(question, describe_pool(question, result ? strerror(-result) : NULL), false);
                finish(question);
        } else if (result) {
                reply(question, admin_error("pool gc: cannot list nodes: %s", strerror(-result)),
                      false);
                finish(question);
        } else {
                begin_gc(question);
        }
}

static int start_walk(struct pool_question *question)
{
        struct remote_nodes_options options = {
                .pool = remote_pool(question->daemon->cache.remote),
                .on_node = on_node,
                .on_end = on_walked,
                .user = question,
        };

        return remote_nodes_start(&question->walk, &options);
}

static json_t *take_arguments(struct pool_question *question, const json_t *arguments)
{
        const json_t *node = json_object_get(arguments, "node");
        const json_t *older = json_object_get(arguments, "older_than");

        question->limit_s = REMOTE_GC_OLDER_S_DEFAULT;
        if (older && (!json_is_integer(older) || json_integer_value(older) < 1 ||
                      json_integer_value(older) > UINT32_MAX))
                return admin_error("pool: \"older_than\" must be 1 to %u seconds", UINT32_MAX);
        if (older)
                question->limit_s = (uint64_t)json_integer_value(older);
        if (node && (!json_is_string(node) || !json_string_length(node) ||
                     json_string_length(node) >= sizeof(question->wanted)))
                return admin_error("pool gc: \"node\" must be the first digits of a node or the "
                                   "name of its host: see kvtierctl pool");
        if (node)
                strcpy(question->wanted, json_string_value(node));
        return NULL;
}

static struct pool_question *new_question(struct session *session, uint64_t request, bool is_gc)
{
        struct pool_question *question = calloc(1, sizeof(*question));

        if (!question)
                return NULL;
        question->daemon = session->daemon;
        question->session = session;
        question->request = request;
        question->is_gc = is_gc;
        question->nodes = json_array();
        question->chosen = is_gc ? calloc(NODES_MAX, sizeof(*question->chosen)) : NULL;
        remote_usage(session->daemon->cache.remote, &question->own);
        session->daemon->pool_questions[is_gc] = question;
        return question;
}

static void begin(struct pool_question *question, const json_t *arguments)
{
        json_t *error = take_arguments(question, arguments);
        int r = 0;

        /* Out of reach: what this node knows, at once. */
        if (!error && question->own.breaker_open && !question->is_gc)
                error = describe_pool(question, "the pool is out of reach");
        else if (!error && question->own.breaker_open)
                error = admin_error("pool gc: the pool is out of reach: see kvtierctl pool");
        if (!error && (!question->nodes || (question->is_gc && !question->chosen)))
                r = -ENOMEM;
        if (!error && !r)
                r = start_walk(question);
        if (!error && !r)
                return;
        reply(question, r ? admin_error("pool: %s", strerror(-r)) : error, false);
        finish(question);
}

bool admin_is_pool(const char *name)
{
        return !strcmp(name, "pool") || !strcmp(name, "pool gc");
}

void admin_pool(struct session *session, uint64_t request, const char *name,
                const json_t *arguments)
{
        bool is_gc = !strcmp(name, "pool gc");
        struct daemon *daemon = session->daemon;
        struct pool_question *question = NULL;
        json_t *error = NULL;

        if (!daemon->cache.remote)
                error = admin_error("there is no remote pool: see pool.backend in kvtierd.conf");
        else if (daemon->pool_questions[is_gc])
                error = admin_error("another kvtierctl %s is running", name);
        else
                question = new_question(session, request, is_gc);
        if (question)
                begin(question, arguments);
        else
                admin_reply(session, request, error, false);
}

void admin_pool_cancel(struct daemon *daemon, const struct session *session)
{
        for (int i = 0; i < 2; i++) {
                struct pool_question *question = daemon->pool_questions[i];

                if (!question || !question->session || (session && question->session != session))
                        continue;
                question->session = NULL;
                if (question->walk)
                        remote_nodes_cancel(question->walk);
                if (question->gc)
                        remote_gc_cancel(question->gc);
        }
}

bool admin_pool_is_quiet(const struct daemon *daemon)
{
        return !daemon->pool_questions[0] && !daemon->pool_questions[1];
}
