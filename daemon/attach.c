// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/attach.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"
#include "daemon/layout_table.h"

/* The first of the layout's shards that is not here. */
static void name_absent(const struct session *session, const struct layout *layout, struct why *why)
{
        for (uint16_t g = 0; g < layout->n_groups; g++)
                for (uint16_t s = 0; s < layout->groups[g].n_shards; s++) {
                        if (layout_span_has(&session->span, layout, g, s))
                                continue;
                        why_set(why, "group %.*s: shard %u of %u is on another node",
                                layout->groups[g].name.length, layout->groups[g].name.bytes, s,
                                layout->groups[g].n_shards);
                        return;
                }
}

/* May the engine have shards on other nodes? */
static uint32_t check_elsewhere(const struct session *session, const struct layout *layout,
                                struct why *why)
{
        struct why absent = {""};

        name_absent(session, layout, &absent);
        if (!session->daemon->peers || !session->daemon->config.rdma.n_peers) {
                why_set(why,
                        "%s, and no peer can answer for it: name that node's daemon in "
                        "rdma.peers, or attach with every shard on this node",
                        absent.text);
                return KVT_WIRE_REFUSED;
        }
        if (layout->is_partial) {
                why_set(why,
                        "%s, and rows are not put together over nodes: attach with the whole "
                        "layout",
                        absent.text);
                return KVT_WIRE_REFUSED;
        }
        return KVT_WIRE_OK;
}

/* Which shards the engine has here: the layout's, by their numbers in the group with most. */
static uint32_t take_shards(struct session *session, const struct wire_attach *attach,
                            const struct layout *layout, struct why *why)
{
        const uint16_t *shards = message_attach_shards(attach);

        for (uint32_t i = 0; i < attach->header.n_items; i++) {
                if (shards[i] < LAYOUT_SHARDS_MAX)
                        continue;
                why_set(why, "shard %u: at most %u shards are supported", shards[i],
                        LAYOUT_SHARDS_MAX);
                return KVT_WIRE_INVALID;
        }
        layout_span_init(&session->span, layout, shards, attach->header.n_items);
        session->spans_nodes = !layout_span_is_whole(&session->span);
        if (layout_span_count(&session->span))
                return session->spans_nodes ? check_elsewhere(session, layout, why) : KVT_WIRE_OK;
        why_set(why, "shard %u: the layout has %u", shards[0], session->span.n_shards);
        return KVT_WIRE_INVALID;
}

static struct session *session_of(const struct layout_member *member)
{
        return (void *)((char *)(uintptr_t)member - offsetof(struct session, part));
}

/* 'session 7 (rank 2 of 4, pid 4711, vllm)', without the rank when it was not told. */
static void name_session(const struct session *session, struct why *ret_name)
{
        char rank[48] = "";

        if (session->n_ranks)
                snprintf(rank, sizeof(rank), "rank %u of %u, ", session->rank, session->n_ranks);
        why_set(ret_name, "session %" PRIu64 " (%spid %d, %s)", session->id, rank,
                (int)session->pid, session->program);
}

/* Who contradicts whom, and in what. */
static void explain(const struct session *session, const struct layout *asked,
                    const struct layout_refusal *refusal, struct why *why)
{
        struct why place, name, other;

        layout_conflict_place(&refusal->conflict, asked, &place);
        name_session(session, &name);
        if (refusal->other)
                name_session(session_of(refusal->other), &other);
        else
                why_set(&other, "the whole layout");
        why_set(why, "%s: %s says %s, %s of its engine says %s", place.text, name.text,
                refusal->conflict.ours, other.text, refusal->conflict.theirs);
}

/* Sessions of one engine say the same of where its shards are: others rely on any one of them. */
static uint32_t check_span(const struct session *session, const struct wire_attach *attach,
                           struct why *why)
{
        const struct session *other;
        struct why name;

        TAILQ_FOREACH(other, &session->daemon->sessions, link) {
                /* How many shards there are is for the layouts to tell apart, by name. */
                if (other->state != SESSION_ATTACHED || other->domain != session->domain ||
                    memcmp(other->engine_id, attach->engine_id, sizeof(other->engine_id)) != 0 ||
                    other->span.n_shards != session->span.n_shards ||
                    layout_spans_equal(&other->span, &session->span))
                        continue;
                name_session(other, &name);
                why_set(why,
                        "%s of the same engine has other shards on this node: name those of all "
                        "its processes here in each",
                        name.text);
                return KVT_WIRE_REFUSED;
        }
        return KVT_WIRE_OK;
}

/* The whole layout gets its number in the index. */
static uint32_t enter(struct session *session, struct layout_assembly *assembly, struct why *why)
{
        struct index *index = session->daemon->cache.index;

        if (assembly->number)
                return KVT_WIRE_OK;
        if (index_layout(index, session->domain, &assembly->id, &assembly->number)) {
                why_set(why,
                        "%u layouts have been seen since the start: restart the daemon, it "
                        "remembers only those of which objects are stored",
                        LAYOUT_TABLE_MAX);
                return KVT_WIRE_REFUSED;
        }
        /* Without room for it the layout is only not listed in full. */
        if (index_describe_layout(index, assembly->number, assembly->encoding,
                                  assembly->encoding_bytes) < 0)
                return KVT_WIRE_NO_MEMORY;
        return KVT_WIRE_OK;
}

static void use_layout(struct session *session)
{
        const struct layout_assembly *assembly = session->part.assembly;

        session->layout = assembly->number;
        session->layout_id = assembly->id;
        session->description = assembly->whole;
}

static uint32_t join(struct session *session, const struct wire_attach *attach,
                     const struct layout *asked, struct why *why)
{
        struct daemon *daemon = session->daemon;
        const struct layout_limits limits = {
                .chunk_tokens = daemon->config.chunk_tokens,
                .object_bytes = daemon->config.host.piece_bytes / 2,
        };
        struct layout_refusal refusal;
        int r;

        r = layout_assembly_join(&daemon->layouts, &session->part, session->domain,
                                 attach->engine_id, asked, &limits, &refusal, why);
        if (r == LAYOUT_ASSEMBLY_E_CONFLICT)
                explain(session, asked, &refusal, why);
        if (r)
                return r == -ENOMEM   ? KVT_WIRE_NO_MEMORY
                       : r == -EINVAL ? KVT_WIRE_INVALID
                                      : KVT_WIRE_REFUSED;
        return session->part.assembly->whole ? enter(session, session->part.assembly, why)
                                             : KVT_WIRE_OK;
}

/*
 * OK, PENDING (@why names a row that is missing), or why the session is refused.
 * @ret_knows_part: it has to be told the whole.
 */
static uint32_t take_layout(struct session *session, const struct wire_attach *attach,
                            bool *ret_knows_part, struct why *why)
{
        _cleanup_free_ struct layout *asked = malloc(sizeof(*asked));
        uint32_t status;

        if (!asked)
                return KVT_WIRE_NO_MEMORY;
        if (layout_decode_partial(asked, message_attach_layout(attach), attach->layout_bytes, why))
                return KVT_WIRE_INVALID;
        status = take_shards(session, attach, asked, why);
        if (!status)
                status = check_span(session, attach, why);
        if (!status)
                status = join(session, attach, asked, why);
        if (status)
                return status;
        *ret_knows_part = asked->is_partial;
        if (!session->part.assembly->whole)
                return KVT_WIRE_PENDING;
        use_layout(session);
        return KVT_WIRE_OK;
}

static void send_layout(struct session *session)
{
        const struct layout_assembly *assembly = session->part.assembly;
        struct wire_layout message = {
                .layout = assembly->number,
                .layout_bytes = (uint32_t)assembly->encoding_bytes,
                .layout_id = assembly->id,
        };
        struct message_builder builder;
        _Alignas(8) uint8_t packet[sizeof(message) + LAYOUT_BYTES_MAX];

        message_header_init(&message.header, WIRE_LAYOUT, 0, session->id, session->daemon->boot_id);
        message_builder_init(&builder, packet, &message, sizeof(message));
        message_append(&builder, assembly->encoding, assembly->encoding_bytes, 0);
        session_send_message(session, &builder);
}

/* Every row is in: those who wait for the others' learn the whole. */
static void tell_waiting(struct layout_assembly *assembly)
{
        struct layout_member *member;

        TAILQ_FOREACH(member, &assembly->members, link) {
                struct session *session = session_of(member);

                if (session->state != SESSION_ATTACHED || session->layout)
                        continue;
                use_layout(session);
                send_layout(session);
                log_info("layout_complete", "session=%" PRIu64 " program=%s layout=%u", session->id,
                         log_quoted(session->program).text, session->layout);
        }
}

void attach_end(struct session *session)
{
        session->description = NULL;
        layout_assembly_leave(&session->part);
}

static void refuse(struct session *session, uint32_t status, const struct why *why)
{
        struct attach_refusal *refusal = &session->daemon->refusal;

        session->daemon->metrics.attach_refused_total[METRICS_LAYOUT]++;
        refusal->at_ns = uv_hrtime();
        snprintf(refusal->program, sizeof(refusal->program), "%s", session->program);
        snprintf(refusal->why, sizeof(refusal->why), "%s", why->text);
        log_warning("attach_refused", "session=%" PRIu64 " status=%s reason=%s", session->id,
                    status_name(status), log_quoted(why->text).text);
        attach_end(session);
}

static void accept_session(struct session *session, const struct wire_attach *attach,
                           struct wire_attached *attached)
{
        memcpy(session->engine_id, attach->engine_id, sizeof(session->engine_id));
        session->no_loads = attach->flags & WIRE_ATTACH_NO_LOADS;
        session->no_stores = attach->flags & WIRE_ATTACH_NO_STORES;
        session->state = SESSION_ATTACHED;
        session->daemon->metrics.sessions_opened_total++;
        if (!session->layout) {
                log_info("layout_pending", "session=%" PRIu64 " program=%s missing=%s", session->id,
                         log_quoted(session->program).text, log_quoted(attached->why).text);
                return;
        }
        attached->layout = session->layout;
        attached->chunk_tokens = session->description->chunk_tokens;
        attached->n_cells = layout_n_cells(session->description);
        attached->layout_id = session->layout_id;
}

void attach_request(struct session *session, const struct wire_attach *attach)
{
        struct wire_attached attached = {0};
        struct why why = {""};
        bool knows_part = false;

        if (session->state != SESSION_WELCOMED || !session->wants_table) {
                session_close(session, METRICS_GARBAGE, "garbage", "ATTACH in the wrong state");
                return;
        }
        message_header_init(&attached.header, WIRE_ATTACHED, attach->header.request, session->id,
                            session->daemon->boot_id);
        attached.header.length = sizeof(attached);
        session->rank = attach->rank;
        session->n_ranks = attach->n_ranks;
        attached.status = take_layout(session, attach, &knows_part, &why);
        handshake_put_text(attached.why, sizeof(attached.why), why.text);
        if (attached.status && attached.status != KVT_WIRE_PENDING)
                refuse(session, attached.status, &why);
        else
                accept_session(session, attach, &attached);
        session_send(session, &attached, sizeof(attached), -1);
        if (!session->layout)
                return;
        if (knows_part)
                send_layout(session);
        tell_waiting(session->part.assembly);
}
