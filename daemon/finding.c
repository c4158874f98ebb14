// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/daemon.h"
#include "daemon/finding.h"
#include "daemon/peers.h"
#include "daemon/span_join.h"

/* For all answers to one question: less than a silent link takes to end. */
#define FIND_NS UINT64_C(2000000000)
/* Asked for by a session and not answered; boundaries, and parts. */
#define FIND_ITEMS_MAX WIRE_ITEMS_MAX
#define FIND_PARTS_MAX 1024u

struct finding_ask {
        LIST_ENTRY(finding_ask) link; /* of the peer's */
        struct finding *finding;
        struct peer *peer; /* NULL: in no list */
        uint64_t request;
        bool is_answered, has_told;
};

/* A part of a FIND, as long as its FOUND is not sent. */
struct finding {
        TAILQ_ENTRY(finding) link;
        struct session *session;
        uint64_t request; /* the session's */
        uint32_t first;
        bool has_more; /* parts behind it */
        bool is_done;
        bool is_void; /* an answer holds no more */
        uint64_t deadline_ns;
        struct digest *digests;
        struct span_join join;
        uint32_t n_waiting; /* asks without an answer */
        uint32_t n_asks;
        struct finding_ask asks[];
};

/* ---- the table of this node ---- */

struct lookup {
        const struct presence_view *view;
        uint64_t seeds[WIRE_BANKS_MAX];
        uint32_t n_banks;
};

static void lookup_init(struct lookup *ret_lookup, const struct session *session)
{
        const struct presence_view *view = presence_table_view(session->daemon->cache.presence);

        *ret_lookup = (struct lookup){
                .view = view,
                .n_banks = span_join_n_banks(session->description),
        };
        for (uint32_t bank = 0; bank < ret_lookup->n_banks; bank++)
                ret_lookup->seeds[bank] = presence_seed(view->header->hash_key, session->domain,
                                                        &session->layout_id, bank);
}

static struct wire_found_bits look_up(const struct lookup *lookup, const struct digest *digest,
                                      uint32_t bank)
{
        struct presence_bits bits = {0};

        presence_lookup(lookup->view, presence_fingerprint(lookup->seeds[bank], digest), &bits);
        return (struct wire_found_bits){
                .present = bits.present,
                .resident = bits.resident & bits.present,
                .flags = bits.flags & ((1u << PRESENCE_OVERFLOW_SHIFT) - 1),
        };
}

/* ---- answers ---- */

struct answered {
        struct session *session;
        uint64_t request;
        uint32_t first;
        bool has_more;
        uint32_t n;
        const struct digest *digests;
        const struct span_join *join; /* NULL: what this node has is all there is */
        bool is_nothing;
};

static void start_found(struct message_builder *builder, void *packet,
                        const struct answered *answered, uint32_t at, uint32_t n_banks)
{
        struct session *session = answered->session;
        struct wire_found found = {.first = answered->first + at, .n_banks = n_banks};

        message_header_init(&found.header, WIRE_FOUND, answered->request, session->id,
                            session->daemon->boot_id);
        message_builder_init(builder, packet, &found, sizeof(found));
}

/* What has gone from here meanwhile is not told. */
static struct wire_found_bits join_at(const struct answered *answered, uint32_t i, uint32_t bank,
                                      const uint64_t *here, struct wire_found_bits bits)
{
        const struct peer_found_bits *all = span_join_at(answered->join, i);

        if (!all)
                return (struct wire_found_bits){.flags = bits.flags};
        bits.present = all[bank].present & (bits.present | ~here[bank]);
        bits.resident = all[bank].resident & (bits.resident | ~here[bank]);
        return bits;
}

static void send_found(const struct answered *answered)
{
        struct session *session = answered->session;
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        struct wire_found_bits bits[WIRE_BANKS_MAX];
        uint64_t here[LAYOUT_CELL_WORDS] = {0};
        struct message_builder builder;
        struct lookup lookup;

        lookup_init(&lookup, session);
        if (answered->join)
                layout_span_cells(&session->span, session->description, here);
        start_found(&builder, packet, answered, 0, lookup.n_banks);
        for (uint32_t i = 0; i < answered->n; i++) {
                memset(bits, 0, sizeof(bits));
                for (uint32_t bank = 0; !answered->is_nothing && bank < lookup.n_banks; bank++) {
                        bits[bank] = look_up(&lookup, &answered->digests[i], bank);
                        if (answered->join)
                                bits[bank] = join_at(answered, i, bank, here, bits[bank]);
                }
                if (!message_append(&builder, bits, lookup.n_banks * sizeof(bits[0]), 1))
                        continue;
                message_set_more(&builder, true);
                session_send_message(session, &builder);
                start_found(&builder, packet, answered, i, lookup.n_banks);
                message_append(&builder, bits, lookup.n_banks * sizeof(bits[0]), 1);
        }
        message_set_more(&builder, answered->has_more);
        session_send_message(session, &builder);
}

/* ---- findings ---- */

static void finding_free(struct finding *finding)
{
        for (uint32_t i = 0; i < finding->n_asks; i++)
                if (finding->asks[i].peer)
                        LIST_REMOVE(&finding->asks[i], link);
        finding->session->n_find_items -= finding->join.n;
        finding->session->n_find_parts--;
        TAILQ_REMOVE(&finding->session->daemon->peers->findings, finding, link);
        span_join_deinit(&finding->join);
        free(finding->digests);
        free(finding);
}

static void answer(const struct finding *finding)
{
        const struct answered answered = {
                .session = finding->session,
                .request = finding->request,
                .first = finding->first,
                .has_more = finding->has_more,
                .n = finding->join.n,
                .digests = finding->digests,
                .join = &finding->join,
                .is_nothing = finding->is_void,
        };

        send_found(&answered);
}

/* Parts of a request go in order. */
static void send_what_is_done(struct session *session, uint64_t request)
{
        struct finding *finding, *next;

        for (finding = TAILQ_FIRST(&session->daemon->peers->findings); finding; finding = next) {
                next = TAILQ_NEXT(finding, link);
                if (finding->session != session || finding->request != request)
                        continue;
                if (!finding->is_done)
                        return;
                answer(finding);
                finding_free(finding);
        }
}

/* It may be gone when it returns. */
static void end(struct finding *finding)
{
        finding->is_done = true;
        send_what_is_done(finding->session, finding->request);
}

static void end_if_settled(struct finding *finding)
{
        if (!finding->is_done &&
            (finding->is_void || !finding->n_waiting || span_join_is_whole(&finding->join)))
                end(finding);
}

/* ---- asking ---- */

static void send_ask(struct finding_ask *ask)
{
        const struct finding *finding = ask->finding;
        struct peer_find find = {.layout = finding->session->layout_id};
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        struct peer_builder builder;

        memcpy(find.engine_id, finding->session->engine_id, sizeof(find.engine_id));
        peer_builder_init(&builder, packet, PEER_FIND, ask->request, &find, sizeof(find));
        for (uint32_t i = 0; i < finding->join.n; i++)
                peer_add_digest(&builder, &finding->digests[i]);
        if (remote_link_send(ask->peer->remote, packet, builder.length))
                remote_link_close(ask->peer->remote);
}

static void ask_all(struct finding *finding)
{
        struct peers *peers = finding->session->daemon->peers;
        struct peer *peer;

        TAILQ_FOREACH(peer, &peers->list, link) {
                struct finding_ask *ask = &finding->asks[finding->n_asks];

                if (peer->is_self || !peer->is_listed || !peer_connect(peer))
                        continue;
                *ask = (struct finding_ask){
                        .finding = finding,
                        .peer = peer,
                        .request = ++peers->reads.last_request,
                };
                finding->n_asks++;
                finding->n_waiting++;
                LIST_INSERT_HEAD(&peer->asks, ask, link);
                peers->daemon->metrics.peer_finds_total++;
                if (peer->is_open)
                        send_ask(ask);
        }
}

static int add_own(struct finding *finding)
{
        struct span_join *join = &finding->join;
        _cleanup_free_ struct peer_found_bits *own =
                calloc(join->n ? join->n * join->n_banks : 1, sizeof(*own));
        struct lookup lookup;

        if (!own)
                return err_raise(-ENOMEM);
        lookup_init(&lookup, finding->session);
        for (uint32_t i = 0; i < join->n * join->n_banks; i++) {
                struct wire_found_bits bits =
                        look_up(&lookup, &finding->digests[i / join->n_banks], i % join->n_banks);

                own[i] = (struct peer_found_bits){bits.present, bits.resident};
        }
        span_join_add(join, &finding->session->span, own);
        return 0;
}

static uint32_t count_peers(const struct peers *peers)
{
        const struct peer *peer;
        uint32_t n = 0;

        TAILQ_FOREACH(peer, &peers->list, link)
                n++;
        return n;
}

/* NULL: no memory. */
static struct finding *finding_new(struct session *session, const struct digest *digests,
                                   uint32_t n)
{
        struct peers *peers = session->daemon->peers;
        struct finding *finding =
                calloc(1, sizeof(*finding) + count_peers(peers) * sizeof(finding->asks[0]));

        if (!finding)
                return NULL;
        finding->session = session;
        finding->digests = calloc(n ? n : 1, sizeof(*digests));
        if (!finding->digests || span_join_init(&finding->join, session->description, n)) {
                free(finding->digests);
                free(finding);
                return NULL;
        }
        if (n)
                memcpy(finding->digests, digests, n * sizeof(*digests));
        session->n_find_items += n;
        session->n_find_parts++;
        TAILQ_INSERT_TAIL(&peers->findings, finding, link);
        if (add_own(finding)) {
                finding_free(finding);
                return NULL;
        }
        return finding;
}

static bool has_room(const struct session *session, uint32_t n)
{
        return session->n_find_items + n <= FIND_ITEMS_MAX &&
               session->n_find_parts < FIND_PARTS_MAX;
}

void finding_cancel(struct session *session, uint64_t target)
{
        struct finding *finding;

        if (!session->n_find_parts)
                return;
        TAILQ_FOREACH(finding, &session->daemon->peers->findings, link)
                if (finding->session == session && finding->request == target)
                        finding->is_void = finding->is_done = true;
        send_what_is_done(session, target);
}

/* Nothing is found: not by this part, and not by those of its request before it. */
static void answer_nothing(struct answered *answered)
{
        finding_cancel(answered->session, answered->request);
        answered->is_nothing = true;
        send_found(answered);
}

/* As many as one message to a peer and its answer hold. */
static void begin(struct answered *answered)
{
        struct finding *finding = NULL;

        if (has_room(answered->session, answered->n))
                finding = finding_new(answered->session, answered->digests, answered->n);
        if (!finding) {
                answer_nothing(answered);
                return;
        }
        finding->request = answered->request;
        finding->first = answered->first;
        finding->has_more = answered->has_more;
        finding->deadline_ns = uv_hrtime() + FIND_NS;
        if (answered->n)
                ask_all(finding);
        end_if_settled(finding);
}

void finding_request(struct session *session, const struct wire_batch *batch)
{
        struct answered answered = {
                .session = session,
                .request = batch->header.request,
                .digests = message_find_digests(batch),
                .is_nothing = session->no_loads,
        };
        uint32_t n = batch->header.n_items, at = 0;
        uint32_t most = n;

        if (session->spans_nodes && !session->no_loads)
                most = peer_find_max(span_join_n_banks(session->description));
        do {
                answered.n = n - at < most ? n - at : most;
                answered.first = batch->first + at;
                answered.digests = message_find_digests(batch) + at;
                answered.has_more = batch->header.flags & WIRE_MORE || at + answered.n < n;
                if (session->spans_nodes && !session->no_loads)
                        begin(&answered);
                else
                        send_found(&answered);
                at += answered.n;
        } while (at < n);
}

void findings_hang_up(struct session *session)
{
        struct finding *finding, *next;

        if (!session->n_find_parts)
                return;
        for (finding = TAILQ_FIRST(&session->daemon->peers->findings); finding; finding = next) {
                next = TAILQ_NEXT(finding, link);
                if (finding->session == session)
                        finding_free(finding);
        }
}

void findings_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct finding *finding;
        bool is_late = true;

        /* The oldest stand first. One that ends may take others with it. */
        while (is_late) {
                is_late = false;
                TAILQ_FOREACH(finding, &daemon->peers->findings, link) {
                        is_late = !finding->is_done && now_ns >= finding->deadline_ns;
                        if (is_late)
                                break;
                }
                if (!is_late)
                        return;
                daemon->metrics.peer_find_timeouts_total++;
                end(finding);
        }
}

/* ---- what the connection to a peer tells ---- */

void findings_opened(struct peer *peer)
{
        struct finding_ask *ask;

        LIST_FOREACH(ask, &peer->asks, link)
                send_ask(ask);
}

const char *findings_take(struct peer *peer, const struct peer_found *found)
{
        struct layout_span span = {.n_shards = (uint16_t)found->n_shards};
        uint64_t request = found->header.request;
        struct finding_ask *ask;
        struct finding *finding;

        LIST_FOREACH(ask, &peer->asks, link)
                if (ask->request == request)
                        break;
        /* It may be late. */
        if (!ask)
                return request <= peer->peers->reads.last_request ? NULL
                                                                  : "an answer to no question";
        finding = ask->finding;
        if (ask->is_answered)
                return "a second answer to a question";
        if (found->header.n_items &&
            (found->header.n_items != finding->join.n || found->n_banks != finding->join.n_banks ||
             found->n_shards != finding->join.known.n_shards))
                return "an answer for another layout";
        ask->is_answered = true;
        finding->n_waiting--;
        memcpy(span.shards, found->shards, sizeof(span.shards));
        if (found->header.n_items)
                ask->has_told = peer->has_told = true;
        if (found->header.n_items && !finding->is_done)
                span_join_add(&finding->join, &span, peer_found_bits(found));
        end_if_settled(finding);
        return NULL;
}

/* What sessions were told may have come from there. */
static void tell_forget(struct daemon *daemon)
{
        struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link) {
                struct wire_header forget;

                if (session->state != SESSION_ATTACHED || !session->spans_nodes)
                        continue;
                message_header_init(&forget, WIRE_FORGET, 0, session->id, daemon->boot_id);
                forget.length = sizeof(forget);
                session_send(session, &forget, sizeof(forget), -1);
        }
}

void findings_closed(struct peer *peer, bool was_open)
{
        struct finding_ask *ask;

        while ((ask = LIST_FIRST(&peer->asks))) {
                LIST_REMOVE(ask, link);
                ask->peer = NULL;
                if (ask->has_told)
                        ask->finding->is_void = true;
                if (!ask->is_answered)
                        ask->finding->n_waiting--;
                end_if_settled(ask->finding);
        }
        if (was_open && peer->has_told)
                tell_forget(peer->peers->daemon);
        peer->has_told = false;
}

/* ---- the other side ---- */

/* Any session of that engine here with that layout: all say the same of where its shards are. */
static const struct session *find_engine(const struct daemon *daemon, const struct peer_find *find)
{
        const struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link)
                if (session->state == SESSION_ATTACHED && session->layout &&
                    session->domain == DOMAIN_DEFAULT &&
                    !memcmp(session->engine_id, find->engine_id, sizeof(find->engine_id)) &&
                    digest_equal(&session->layout_id, &find->layout))
                        return session;
        return NULL;
}

uint32_t finding_answer(struct daemon *daemon, const struct peer_find *find, void *buffer)
{
        const struct session *session = find_engine(daemon, find);
        const struct digest *digests = peer_find_digests(find);
        struct peer_found_bits bits[PEER_BANKS_MAX];
        struct peer_found found = {0};
        struct peer_builder builder;
        struct lookup lookup = {0};

        if (session)
                lookup_init(&lookup, session);
        /* Its answer would not fit: who asks so has another layout in mind. */
        if (session && find->header.n_items > peer_find_max(lookup.n_banks))
                session = NULL;
        if (session) {
                found.n_banks = lookup.n_banks;
                found.n_shards = session->span.n_shards;
                memcpy(found.shards, session->span.shards, sizeof(found.shards));
        }
        peer_builder_init(&builder, buffer, PEER_FOUND, find->header.request, &found,
                          sizeof(found));
        for (uint32_t i = 0; session && i < find->header.n_items; i++) {
                for (uint32_t bank = 0; bank < lookup.n_banks; bank++) {
                        struct wire_found_bits there = look_up(&lookup, &digests[i], bank);

                        bits[bank] = (struct peer_found_bits){there.present, there.resident};
                }
                peer_add_found(&builder, bits, lookup.n_banks);
        }
        return builder.length;
}
