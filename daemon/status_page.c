// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>
#include <stdint.h>
#include <time.h>

#include "daemon/admin_layouts.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/drop_ring.h"
#include "daemon/layout_table.h"
#include "daemon/status_page.h"
#include "daemon/status_page_html.h"

/* What fits a page, and bounds the time that the loop spends on one. */
#define SESSIONS_MAX 50
#define LAYOUTS_MAX  20
#define DROPS_MAX    20
/* Records that are looked at: the last ones. */
#define DROPS_SEEN 2048u

const struct status_page status_page = {
        .html = status_page_html,
        .length = sizeof(status_page_html),
        .policy = STATUS_PAGE_POLICY,
};

/* ---- sessions ---- */

static json_t *describe_session(const struct session *session)
{
        char layout[2 * DIGEST_BYTES + 1] = "";

        if (session->layout)
                admin_hex(layout, session->layout_id.bytes, DIGEST_BYTES);
        return json_pack("{s:I, s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "session",
                         (json_int_t)session->id, "program", session->program, "state",
                         admin_session_state(session), "layout", layout, "age_seconds",
                         (double)(uv_hrtime() - session->opened_ns) / 1e9, "rank",
                         (json_int_t)session->rank, "n_ranks", (json_int_t)session->n_ranks,
                         "leases", (json_int_t)session->n_leases, "leased_bytes",
                         (json_int_t)session->leased_bytes, "stored_bytes",
                         (json_int_t)session->stored_bytes, "loaded_bytes",
                         (json_int_t)session->loaded_bytes);
}

/* The engines': a kvtierctl that is connected is none. */
static json_t *describe_sessions(const struct daemon *daemon, json_int_t *ret_n)
{
        json_t *sessions = json_array();
        const struct session *session;

        *ret_n = 0;
        TAILQ_FOREACH(session, &daemon->sessions, link) {
                if (!session->wants_table)
                        continue;
                if (++*ret_n <= SESSIONS_MAX)
                        json_array_append_new(sessions, describe_session(session));
        }
        return sessions;
}

/* ---- layouts ---- */

/* Those with the most bytes. */
static json_t *describe_layouts(struct daemon *daemon)
{
        const struct index *index = daemon->cache.index;
        uint32_t n = index_n_layouts(index), n_chosen = 0, place;
        uint16_t chosen[LAYOUTS_MAX + 1];
        json_t *layouts = json_array();

        for (uint32_t number = 1; number <= n; number++) {
                uint64_t bytes = index_layout_at(index, (uint16_t)number)->bytes;

                for (place = n_chosen; place > 0; place--) {
                        if (index_layout_at(index, chosen[place - 1])->bytes >= bytes)
                                break;
                        chosen[place] = chosen[place - 1];
                }
                if (place == LAYOUTS_MAX)
                        continue;
                chosen[place] = (uint16_t)number;
                n_chosen += n_chosen < LAYOUTS_MAX;
        }
        for (uint32_t i = 0; i < n_chosen; i++)
                json_array_append_new(layouts, admin_layout_brief(daemon, chosen[i]));
        return layouts;
}

/* ---- drops ---- */

/* Drops of one tier for one reason. */
struct drop_sum {
        const struct drop *last;
        uint64_t objects;
};

static void add_drop(struct drop_sum *sums, size_t *n, const struct drop *drop)
{
        for (size_t i = 0; i < *n; i++)
                if (sums[i].last->reason == drop->reason && sums[i].last->tier == drop->tier &&
                    sums[i].last->rule == drop->rule) {
                        sums[i].objects += drop->count;
                        return;
                }
        if (*n < DROPS_MAX)
                sums[(*n)++] = (struct drop_sum){drop, drop->count};
}

static json_t *describe_drop(const struct drop_sum *sum, uint64_t now_ns)
{
        const struct drop *drop = sum->last;
        bool has_tier = drop->tier < METRICS_N_TIERS;

        return json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:f}", "name",
                         drop_reason_name(drop->reason), "reason", drop_reason_text(drop->reason),
                         "rule", drop_rule_text(drop->rule), "tier",
                         has_tier ? metrics_tier_name((enum metrics_tier)drop->tier) : "",
                         "refusal", (int)drop_reason_is_refusal(drop->reason), "objects",
                         (json_int_t)sum->objects, "seconds_ago",
                         now_ns > drop->wall_ns ? (double)(now_ns - drop->wall_ns) / 1e9 : 0.0);
}

static json_t *describe_drops(const struct daemon *daemon, json_int_t *ret_seen)
{
        const struct drop_ring *ring = &daemon->cache.drops;
        struct drop_sum sums[DROPS_MAX];
        json_t *drops = json_array();
        const struct drop *drop;
        uint64_t seen = 0;
        struct timespec now;
        size_t n = 0;

        clock_gettime(CLOCK_REALTIME, &now);
        for (; seen < DROPS_SEEN && (drop = drop_ring_recent(ring, seen)); seen++)
                add_drop(sums, &n, drop);
        for (size_t i = 0; i < n; i++)
                json_array_append_new(drops,
                                      describe_drop(&sums[i], (uint64_t)now.tv_sec * 1000000000u +
                                                                      (uint64_t)now.tv_nsec));
        *ret_seen = (json_int_t)seen;
        return drops;
}

static json_t *details(struct daemon *daemon)
{
        json_int_t n_sessions, n_drops;
        json_t *sessions = describe_sessions(daemon, &n_sessions);
        json_t *drops = describe_drops(daemon, &n_drops);

        return json_pack("{s:b, s:I, s:o, s:I, s:o, s:I, s:o}", "ok", 1, "n_sessions", n_sessions,
                         "sessions", sessions, "n_layouts",
                         (json_int_t)index_n_layouts(daemon->cache.index), "layouts",
                         describe_layouts(daemon), "n_drops", n_drops, "drops", drops);
}

static json_t *last_minutes(const struct daemon *daemon)
{
        const struct status_history *history = &daemon->history;
        char boot_id[2 * sizeof(daemon->boot_id) + 1];
        json_t *samples = json_array();

        for (uint32_t i = 0; i < status_history_count(history); i++) {
                const struct status_sample *sample = status_history_at(history, i);

                json_array_append_new(samples, json_pack("[f, I, I, I, I]", sample->seconds,
                                                         (json_int_t)sample->hits,
                                                         (json_int_t)sample->misses,
                                                         (json_int_t)sample->stored_bytes,
                                                         (json_int_t)sample->loaded_bytes));
        }
        admin_hex(boot_id, daemon->boot_id, sizeof(daemon->boot_id));
        return json_pack("{s:b, s:s, s:o}", "ok", 1, "boot_id", boot_id, "samples", samples);
}

char *status_document(struct daemon *daemon, enum status_document which)
{
        json_auto_t *document = which == STATUS_SUMMARY   ? admin_status(daemon, NULL)
                                : which == STATUS_DETAILS ? details(daemon)
                                                          : last_minutes(daemon);

        return document ? json_dumps(document, JSON_COMPACT) : NULL;
}
