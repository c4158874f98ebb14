// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/rdma_memory.h"
#include "daemon/acquire.h"
#include "daemon/daemon.h"
#include "daemon/peers.h"
#include "daemon/rdma_port.h"

/* For the READs of one object: a peer that is gone is noticed much earlier. */
#define READ_NS UINT64_C(30000000000)
/* For answers, beside what the peer was told to wait. */
#define ANSWER_NS UINT64_C(30000000000)
/* Of one ASK: what is on the stack while it is put together. */
#define ASK_CELLS 4096u
/* All that may be under way. */
#define EXPECTED_MAX (1u << 20)

enum fetched_state {
        FETCHED_ASKED,
        FETCHED_READING,
        FETCHED_VERIFYING,
        FETCHED_ENDED,
};

struct fetched {
        RB_ENTRY(fetched) node; /* until it has ended */
        struct peer_fetch *fetch;
        void *user;
        uint64_t serial; /* tells those of one object apart */
        struct digest boundary;
        uint16_t group, shard, cell;
        enum fetched_state state;
        bool is_answered;
        bool is_replaced;        /* since it was asked for, ... */
        uint64_t replaced_total; /* ... as in struct cache_read */
        uint64_t layout_bytes;   /* that the layout demands; 0: any */
};

struct peer_fetch {
        LIST_ENTRY(peer_fetch) link;
        struct daemon *daemon;
        struct peer *peer; /* NULL: the connection has ended */
        uint64_t request;
        uint64_t timeout_ns;
        uint64_t give_up_ns;
        uint16_t layout;
        bool is_sent;
        bool is_cancelled;
        bool is_given_up; /* the peer knows; at give_up_ns it has to have answered */
        void (*on_end)(void *user, uint32_t status); /* NULL: cancelled */
        uint64_t bytes;                              /* of host memory, taken so far */
        uint32_t n_open;                             /* not ended */
        uint32_t n_unanswered;                       /* by the peer */
        uint32_t n;
        struct fetched items[];
};

/* What an object needs from its offer to its end. */
struct arrival {
        struct rdma_transfer transfer; /* first: the transport hands it back */
        uv_work_t work;
        struct fetched *fetched;
        struct host_copy *copy; /* NULL: none yet */
        struct cache_read read; /* with the copy */
        struct index_new_object entry;
        struct digest *covers;
        struct checksum_list checksums;
        struct checksum_segment segments[HOST_EXTENTS_MAX];
        uint32_t n_segments;
        uint64_t lease;
        uint64_t began_ns;
        double verify_seconds;
        bool is_good;
        struct rdma_piece pieces[RDMA_PIECES_MAX];
};

static int compare(const struct fetched *a, const struct fetched *b)
{
        int order = memcmp(&a->boundary, &b->boundary, sizeof(a->boundary));

        if (order)
                return order;
        if (a->fetch->layout != b->fetch->layout)
                return a->fetch->layout < b->fetch->layout ? -1 : 1;
        if (a->group != b->group)
                return a->group < b->group ? -1 : 1;
        if (a->shard != b->shard)
                return a->shard < b->shard ? -1 : 1;
        return a->serial < b->serial ? -1 : a->serial > b->serial;
}

TREE_GENERATE(fetched_tree, fetched, node, compare)

/* The first of them that is asked for. */
static struct fetched *find_expected(const struct daemon *daemon, uint16_t layout,
                                     const struct digest *boundary, uint16_t group, uint16_t shard)
{
        struct peer_fetch fetch = {.layout = layout};
        struct fetched wanted = {
                .fetch = &fetch, .boundary = *boundary, .group = group, .shard = shard};
        struct fetched *found;

        if (!daemon->peers || !daemon->peers->reads.n_expected)
                return NULL;
        found = RB_NFIND(fetched_tree, &daemon->peers->reads.expected, &wanted);
        return found && digest_equal(&found->boundary, boundary) &&
                               found->fetch->layout == layout && found->group == group &&
                               found->shard == shard
                       ? found
                       : NULL;
}

bool peer_reads_expect(const struct daemon *daemon, uint16_t layout, const struct digest *boundary,
                       uint16_t group, uint16_t shard)
{
        return find_expected(daemon, layout, boundary, group, shard);
}

static bool are_of_one_object(const struct fetched *a, const struct fetched *b)
{
        return digest_equal(&a->boundary, &b->boundary) && a->fetch->layout == b->fetch->layout &&
               a->group == b->group && a->shard == b->shard;
}

/* Of all. */
static void all_replaced(struct daemon *daemon)
{
        struct fetched *fetched;

        RB_FOREACH(fetched, fetched_tree, &daemon->peers->reads.expected) {
                fetched->is_replaced = true;
                fetched->replaced_total = 0;
        }
}

void peer_reads_replaced(struct daemon *daemon, const struct object_key *key, uint64_t total)
{
        struct fetched *first;
        uint16_t layout;

        if (!key) {
                all_replaced(daemon);
                return;
        }
        layout = index_find_layout(daemon->cache.index, key->domain, &key->layout);
        first = find_expected(daemon, layout, &key->boundary, key->group, key->shard);

        for (struct fetched *fetched = first; fetched && are_of_one_object(fetched, first);
             fetched = RB_NEXT(fetched_tree, &daemon->peers->reads.expected, fetched)) {
                fetched->is_replaced = true;
                fetched->replaced_total = total;
        }
}

/* ---- ends ---- */

static void free_when_over(struct peer_fetch *fetch)
{
        if (fetch->n_open || (fetch->peer && fetch->is_sent && fetch->n_unanswered))
                return;
        if (fetch->peer)
                LIST_REMOVE(fetch, link);
        free(fetch);
}

static void count_end(struct metrics *metrics, uint32_t status)
{
        if (status == KVT_WIRE_OK)
                metrics->peer_read_objects_total++;
        else if (status == KVT_WIRE_MISS)
                metrics->peer_read_misses_total++;
        else if (status == KVT_WIRE_CORRUPT)
                metrics->peer_read_corrupt_objects_total++;
        else
                metrics->peer_read_failures_total++;
}

/* The fetch may be gone when it returns. */
static void end_item(struct fetched *fetched, uint32_t status)
{
        struct peer_fetch *fetch = fetched->fetch;
        struct daemon *daemon = fetch->daemon;

        assert(fetched->state != FETCHED_ENDED);
        fetched->state = FETCHED_ENDED;
        RB_REMOVE(fetched_tree, &daemon->peers->reads.expected, fetched);
        daemon->peers->reads.n_expected--;
        fetch->n_open--;
        count_end(&daemon->metrics, status);
        if (fetch->on_end)
                fetch->on_end(fetched->user, status);
        acquires_reservation_ended(daemon);
        free_when_over(fetch);
}

/* ---- leases on the peer ---- */

void peer_reads_flush(struct peer *peer)
{
        struct peer_builder *builder = &peer->releases.builder;

        if (!builder->length)
                return;
        if (peer->is_open && remote_link_send(peer->remote, builder->buffer, builder->length))
                remote_link_close(peer->remote); /* no memory: it gets everything back this way */
        builder->length = 0;
}

static void release(struct peer *peer, uint64_t lease)
{
        static const struct peer_header fixed;
        struct peer_releases *releases = &peer->releases;

        if (!releases->buffer)
                releases->buffer = malloc(WIRE_MESSAGE_MAX);
        if (!releases->buffer) {
                remote_link_close(peer->remote);
                return;
        }
        if (releases->builder.length && peer_add_lease(&releases->builder, lease))
                peer_reads_flush(peer);
        else if (releases->builder.length)
                return;
        peer_builder_init(&releases->builder, releases->buffer, PEER_RELEASE, 0, &fixed,
                          sizeof(fixed));
        peer_add_lease(&releases->builder, lease);
        daemon_wake(peer->peers->daemon);
}

/* ---- verifying ---- */

static void arrival_free(struct arrival *arrival)
{
        if (arrival->copy)
                cache_read_end(&arrival->read);
        free(arrival->covers);
        free(arrival);
}

/* Worker. */
static void verify(uv_work_t *work)
{
        struct arrival *arrival = work->data;
        uint64_t began_ns = uv_hrtime();

        arrival->is_good = checksum_total(&arrival->checksums, &arrival->copy->key) ==
                                   arrival->checksums.total &&
                           checksum_first_mismatch(&arrival->checksums, arrival->segments,
                                                   arrival->n_segments) < 0;
        arrival->verify_seconds = (double)(uv_hrtime() - began_ns) / 1e9;
}

static uint32_t publish(struct arrival *arrival)
{
        struct daemon *daemon = arrival->fetched->fetch->daemon;
        struct host_copy *copy = arrival->copy;
        int r;

        copy->state = HOST_COPY_READY;
        host_copy_set_checksums(copy, &arrival->checksums);
        r = cache_publish_read(&daemon->cache, copy, &arrival->entry, &arrival->read);
        /* Somebody else was first: it is there all the same. */
        if (r == CACHE_E_EXISTS)
                return KVT_WIRE_OK;
        if (r == CACHE_E_REPLACED)
                return KVT_WIRE_MISS;
        return !r ? KVT_WIRE_OK : r > 0 ? KVT_WIRE_BUSY : KVT_WIRE_NO_MEMORY;
}

static void count_read(struct arrival *arrival)
{
        struct peer_fetch *fetch = arrival->fetched->fetch;
        struct metrics *metrics = &fetch->daemon->metrics;

        metrics->peer_read_bytes_total += arrival->copy->raw_bytes;
        metrics_observe(&metrics->peer_read_seconds,
                        (double)(uv_hrtime() - arrival->began_ns) / 1e9);
        if (!fetch->peer)
                return;
        fetch->peer->read_objects++;
        fetch->peer->read_bytes += arrival->copy->raw_bytes;
}

static void on_verified(uv_work_t *work, int status)
{
        struct arrival *arrival = work->data;
        struct fetched *fetched = arrival->fetched;
        struct daemon *daemon = fetched->fetch->daemon;
        struct host_copy *copy = arrival->copy;
        uint32_t result = KVT_WIRE_CORRUPT;

        assert(!status);
        daemon->peers->n_working--;
        daemon->metrics.checksum_bytes_total += copy->raw_bytes;
        daemon->metrics.checksum_seconds_total += arrival->verify_seconds;
        if (arrival->is_good) {
                result = publish(arrival);
                count_read(arrival);
        }
        log_debug("peer_read", "bytes=%" PRIu64 " seconds=%.6f verify_seconds=%.6f status=%u",
                  copy->raw_bytes, (double)(uv_hrtime() - arrival->began_ns) / 1e9,
                  arrival->verify_seconds, result);
        arrival_free(arrival);
        host_copy_unuse(&daemon->cache.copies, copy);
        end_item(fetched, result);
        daemon_wake(daemon);
}

static uint32_t status_of(enum rdma_result result)
{
        switch (result) {
        case RDMA_RESULT_TIMEOUT:
                return KVT_WIRE_TIMEOUT;
        case RDMA_RESULT_BROKEN:
                return KVT_WIRE_UNAVAILABLE;
        default:
                return KVT_WIRE_IO_ERROR;
        }
}

static void on_read(struct rdma_transfer *transfer, enum rdma_result result)
{
        struct arrival *arrival = (struct arrival *)transfer;
        struct fetched *fetched = arrival->fetched;
        struct peer_fetch *fetch = fetched->fetch;
        struct daemon *daemon = fetch->daemon;
        struct host_copy *copy = arrival->copy;

        if (fetch->peer && fetch->peer->is_open)
                release(fetch->peer, arrival->lease);
        if (result == RDMA_RESULT_DONE) {
                fetched->state = FETCHED_VERIFYING;
                arrival->work.data = arrival;
                daemon->peers->n_working++;
                uv_queue_work(&daemon->loop, &arrival->work, verify, on_verified);
                return;
        }
        arrival_free(arrival);
        host_copy_unuse(&daemon->cache.copies, copy);
        end_item(fetched, status_of(result));
}

/* ---- reading ---- */

/* Cuts our extents and the peer's places where either ends. Returns how many pieces, or 0. */
static uint32_t cut(struct rdma_piece ret_pieces[RDMA_PIECES_MAX],
                    const struct rdma_extent *extents, uint32_t n_extents,
                    const struct peer_place *places, uint32_t n_places)
{
        uint64_t local = 0, remote = 0;
        uint32_t n = 0, i = 0, j = 0;

        while (i < n_extents && j < n_places && n < RDMA_PIECES_MAX) {
                uint64_t length = extents[i].length - local;

                if (places[j].length - remote < length)
                        length = places[j].length - remote;
                ret_pieces[n++] = (struct rdma_piece){
                        .local = {extents[i].region, (uint8_t *)extents[i].address + local, length},
                        .remote_address = places[j].address + remote,
                        .remote_key = places[j].key,
                };
                local += length;
                remote += length;
                if (local == extents[i].length) {
                        i++;
                        local = 0;
                }
                if (remote == places[j].length) {
                        j++;
                        remote = 0;
                }
        }
        return i == n_extents && j == n_places ? n : 0;
}

static uint32_t start_read(struct arrival *arrival, const struct peer_offer_item *item,
                           const struct peer_place *places)
{
        struct peer_fetch *fetch = arrival->fetched->fetch;
        struct daemon *daemon = fetch->daemon;
        struct rdma_extent extents[WIRE_EXTENTS_MAX];
        uint32_t n = daemon_port_extents(daemon, arrival->copy, 0, item->bytes, extents);

        arrival->n_segments = host_copy_checksum_segments(&daemon->cache.copies, arrival->copy,
                                                          arrival->segments);
        arrival->transfer = (struct rdma_transfer){
                .connection = remote_link_connection(fetch->peer->remote),
                .pieces = arrival->pieces,
                .n_pieces = n ? cut(arrival->pieces, extents, n, places, item->n_places) : 0,
                .timeout_ns = READ_NS,
                .on_done = on_read,
        };
        if (!arrival->transfer.n_pieces)
                return KVT_WIRE_IO_ERROR;
        switch (rdma_transfer_start(&arrival->transfer)) {
        case 0:
                return KVT_WIRE_OK;
        case RDMA_E_FULL:
                return KVT_WIRE_BUSY;
        case RDMA_E_CLOSED:
                return KVT_WIRE_UNAVAILABLE;
        default:
                return KVT_WIRE_IO_ERROR;
        }
}

static int describe(struct arrival *arrival, const struct peer_offer_item *item,
                    const uint64_t *pieces, const struct digest *covers)
{
        struct fetched *fetched = arrival->fetched;

        if (item->n_covers) {
                arrival->covers = malloc(item->n_covers * sizeof(*covers));
                if (!arrival->covers)
                        return err_raise(-ENOMEM);
                memcpy(arrival->covers, covers, item->n_covers * sizeof(*covers));
        }
        arrival->entry = (struct index_new_object){
                .layout = fetched->fetch->layout,
                .group = fetched->group,
                .shard = fetched->shard,
                .cell = fetched->cell,
                .digest = item->boundary,
                .parent = item->parent,
                .parent_unknown = item->flags & PEER_OFFER_PARENT_UNKNOWN,
                .croppable = item->flags & PEER_OFFER_CROPPABLE,
                .boundary_tokens = item->boundary_tokens,
                .raw_bytes = (uint32_t)item->bytes,
                .covers = arrival->covers,
                .n_covers = item->n_covers,
        };
        arrival->checksums.total = item->total;
        arrival->checksums.raw_bytes = item->bytes;
        arrival->checksums.piece_bytes = checksum_piece_bytes(item->bytes);
        arrival->checksums.n_pieces = item->n_pieces;
        memcpy(arrival->checksums.pieces, pieces, item->n_pieces * sizeof(*pieces));
        return 0;
}

/* Room for it, at once or never. */
static uint32_t make_room(struct arrival *arrival, const struct peer_offer_item *item)
{
        struct fetched *fetched = arrival->fetched;
        struct peer_fetch *fetch = fetched->fetch;
        struct cache *cache = &fetch->daemon->cache;
        uint64_t space = host_copy_space(item->bytes);
        struct object_key key = {
                .layout = *index_layout_id(cache->index, fetch->layout),
                .boundary = item->boundary,
                .domain = index_layout_domain(cache->index, fetch->layout),
                .group = fetched->group,
                .shard = fetched->shard,
        };
        int r;

        if (item->bytes > fetch->daemon->config.host.piece_bytes / 2 ||
            fetch->bytes + space > daemon_lease_limit_final(fetch->daemon))
                return KVT_WIRE_TOO_LARGE;
        r = cache_new_copy(cache, &key, item->bytes, HOST_COPY_ARRIVING, UINT32_MAX, false,
                           &arrival->copy);
        if (r)
                return r == CACHE_E_BUSY ? KVT_WIRE_BUSY : KVT_WIRE_NO_MEMORY;
        fetch->bytes += space;
        cache_read_begin(cache, &arrival->read, &key);
        arrival->read.is_replaced = fetched->is_replaced;
        arrival->read.total = fetched->replaced_total;
        arrival->copy->committed_ns = item->committed_ns;
        memcpy(arrival->copy->writer_boot_id, item->writer_boot_id,
               sizeof(arrival->copy->writer_boot_id));
        return KVT_WIRE_OK;
}

static bool is_here(const struct fetched *fetched)
{
        struct index *index = fetched->fetch->daemon->cache.index;
        struct index_boundary *boundary =
                index_find_boundary(index, fetched->fetch->layout, &fetched->boundary);

        return boundary && index_find_serving(index, boundary, fetched->group, fetched->shard);
}

/* OK: it is being read, or is here already (then *@ret_ended). Else why not. */
static uint32_t take(struct fetched *fetched, const struct peer_offer_item *item,
                     const struct peer_place *places, const uint64_t *pieces,
                     const struct digest *covers, bool *ret_ended)
{
        struct arrival *arrival;
        uint32_t status;

        *ret_ended = true;
        if (is_here(fetched))
                return KVT_WIRE_OK;
        arrival = calloc(1, sizeof(*arrival));
        if (!arrival)
                return KVT_WIRE_NO_MEMORY;
        arrival->fetched = fetched;
        arrival->lease = item->lease;
        arrival->began_ns = uv_hrtime();
        status = describe(arrival, item, pieces, covers) ? KVT_WIRE_NO_MEMORY
                                                         : make_room(arrival, item);
        if (status == KVT_WIRE_OK) {
                status = start_read(arrival, item, places);
                if (status)
                        host_copy_unuse(&fetched->fetch->daemon->cache.copies, arrival->copy);
        }
        if (status) {
                arrival_free(arrival);
                return status;
        }
        fetched->state = FETCHED_READING;
        *ret_ended = false;
        return KVT_WIRE_OK;
}

/* Is it what was asked for? */
static bool fits(const struct fetched *fetched, const struct peer_offer_item *item,
                 const struct digest *covers)
{
        bool serves = digest_equal(&fetched->boundary, &item->boundary);

        for (uint32_t i = 0; !serves && i < item->n_covers; i++)
                serves = digest_equal(&fetched->boundary, &covers[i]);
        return serves && (!fetched->layout_bytes || fetched->layout_bytes == item->bytes);
}

/* ---- what the connection tells ---- */

static struct peer_fetch *find_fetch(const struct peer *peer, uint64_t request)
{
        struct peer_fetch *fetch;

        LIST_FOREACH(fetch, &peer->fetches, link)
                if (fetch->request == request)
                        return fetch;
        return NULL;
}

static bool breaks_rules(struct peer *peer, const char *why)
{
        log_warning("peer_protocol", "peer=%s detail=%s", peer->address_text, log_quoted(why).text);
        remote_link_close(peer->remote);
        return false;
}

/* False: the peer has broken the rules. The fetch may be gone. */
static bool take_offer(struct peer *peer, struct peer_fetch *fetch,
                       const struct peer_offer_item *item, const struct peer_place *places,
                       const uint64_t *pieces, const struct digest *covers)
{
        struct fetched *fetched = item->index < fetch->n ? &fetch->items[item->index] : NULL;
        uint32_t status = item->status;
        bool has_ended = true;

        if (!fetched || fetched->is_answered)
                return breaks_rules(peer, "an offer that was not asked for");
        if (!status && !fits(fetched, item, covers))
                return breaks_rules(peer, "an offer of something else");
        fetched->is_answered = true;
        fetch->n_unanswered--;
        if (fetched->state == FETCHED_ENDED || fetch->is_cancelled) {
                if (!status)
                        release(peer, item->lease);
                if (fetched->state != FETCHED_ENDED)
                        end_item(fetched, KVT_WIRE_CANCELLED);
                else
                        free_when_over(fetch);
                return true;
        }
        if (!status) {
                status = take(fetched, item, places, pieces, covers, &has_ended);
                if (has_ended)
                        release(peer, item->lease);
        }
        if (has_ended)
                end_item(fetched, status);
        return true;
}

static void take_offers(struct peer *peer, const void *packet)
{
        const struct peer_header *header = packet;
        const struct peer_offer_item *item;
        const struct peer_place *places;
        const uint64_t *pieces;
        const struct digest *covers;
        struct peer_cursor cursor;
        bool good = true;

        peer_cursor_init(&cursor, packet);
        while (good && !peer_next_offer(&cursor, &item, &places, &pieces, &covers)) {
                struct peer_fetch *fetch = find_fetch(peer, header->request);

                good = fetch ? take_offer(peer, fetch, item, places, pieces, covers)
                             : breaks_rules(peer, "an offer for a request that is over");
        }
}

static void take_found(struct peer *peer, const void *packet)
{
        const char *breach = findings_take(peer, packet);

        if (breach)
                breaks_rules(peer, breach);
}

void peer_reads_message(struct peer *peer, const void *packet, size_t length)
{
        const struct peer_header *header = packet;
        struct why why = {""};

        if (peer_message_check(packet, length, &why))
                breaks_rules(peer, why.text);
        else if (header->kind == PEER_FOUND)
                take_found(peer, packet);
        else if (header->kind != PEER_OFFER)
                breaks_rules(peer, "a message that only the asking side sends");
        else
                take_offers(peer, packet);
}

/* Every neighbour with the same boundary goes into one record. */
static int add_wants(struct peer_builder *builder, const struct peer_fetch *fetch, uint32_t *ret_n)
{
        struct peer_cell cells[ASK_CELLS];
        uint32_t i = 0, n;

        for (; i < fetch->n; i += n) {
                for (n = 0; i + n < fetch->n && n < sizeof(cells) / sizeof(cells[0]) &&
                            digest_equal(&fetch->items[i + n].boundary, &fetch->items[i].boundary);
                     n++)
                        cells[n] = (struct peer_cell){fetch->items[i + n].group,
                                                      fetch->items[i + n].shard};
                if (peer_add_boundary(builder, &fetch->items[i].boundary, cells, n))
                        break;
        }
        *ret_n = i;
        return i ? 0 : PEER_MESSAGE_E_FULL;
}

static void send_ask(struct peer_fetch *fetch)
{
        struct peer *peer = fetch->peer;
        struct peer_ask ask = {.timeout_ns = fetch->timeout_ns};
        uint8_t *buffer = malloc(WIRE_MESSAGE_MAX);
        struct peer_builder builder;
        uint32_t n = 0;

        ask.layout = *index_layout_id(fetch->daemon->cache.index, fetch->layout);
        if (buffer) {
                peer_builder_init(&builder, buffer, PEER_ASK, fetch->request, &ask, sizeof(ask));
                add_wants(&builder, fetch, &n);
                assert(n == fetch->n);
        }
        fetch->is_sent = true;
        if (!buffer || remote_link_send(peer->remote, buffer, builder.length))
                remote_link_close(peer->remote);
        free(buffer);
}

static void give_up(struct peer_fetch *fetch)
{
        struct peer_header header = {
                .kind = PEER_CANCEL, .length = sizeof(header), .request = fetch->request};

        fetch->is_given_up = true;
        fetch->give_up_ns = uv_hrtime() + ANSWER_NS;
        if (fetch->is_sent && fetch->n_unanswered && fetch->peer->is_open &&
            remote_link_send(fetch->peer->remote, &header, sizeof(header)))
                remote_link_close(fetch->peer->remote);
}

void peer_reads_opened(struct peer *peer)
{
        struct peer_fetch *fetch;

        LIST_FOREACH(fetch, &peer->fetches, link)
                if (!fetch->is_sent)
                        send_ask(fetch);
}

/* Ends what is only asked for. The fetch may be gone. */
static void end_asked(struct peer_fetch *fetch, uint32_t status)
{
        fetch->n_open++; /* so that it stays */
        for (uint32_t i = 0; i < fetch->n; i++)
                if (fetch->items[i].state == FETCHED_ASKED)
                        end_item(&fetch->items[i], status);
        fetch->n_open--;
        free_when_over(fetch);
}

void peer_reads_closed(struct peer *peer)
{
        struct peer_fetch *fetch;

        while ((fetch = LIST_FIRST(&peer->fetches))) {
                LIST_REMOVE(fetch, link);
                fetch->peer = NULL;
                end_asked(fetch, KVT_WIRE_UNAVAILABLE);
        }
}

void peer_reads_expire(struct peer *peer, uint64_t now_ns)
{
        struct peer_fetch *fetch, *next;

        for (fetch = LIST_FIRST(&peer->fetches); fetch; fetch = next) {
                next = LIST_NEXT(fetch, link);
                if (now_ns < fetch->give_up_ns)
                        continue;
                if (!fetch->is_given_up) {
                        give_up(fetch);
                        end_asked(fetch, KVT_WIRE_TIMEOUT);
                } else if (fetch->n_unanswered) {
                        /* It would keep all that it never answers, for as long as it lives. */
                        fetch->give_up_ns = UINT64_MAX;
                        breaks_rules(peer, "a request that was cancelled is not answered");
                        return;
                }
        }
}

/* ---- asking ---- */

static bool enter(struct peer_fetch *fetch, const struct peer_fetch_options *options, uint32_t i)
{
        struct peer_reads *reads = &fetch->daemon->peers->reads;
        const struct peer_want *want = &options->wants[i];
        struct fetched *fetched = &fetch->items[i];
        int cell = layout_cell(options->description, want->group, want->shard);

        if (cell < 0 || reads->n_expected >= EXPECTED_MAX)
                return false;
        *fetched = (struct fetched){
                .fetch = fetch,
                .user = want->user,
                .serial = ++reads->last_serial,
                .boundary = want->boundary,
                .group = want->group,
                .shard = want->shard,
                .cell = (uint16_t)cell,
                .layout_bytes = layout_object_bytes(options->description, want->group, want->shard),
        };
        RB_INSERT(fetched_tree, &reads->expected, fetched);
        reads->n_expected++;
        return true;
}

/* How many leading wants one message holds. */
static uint32_t n_that_fit(const struct peer_fetch_options *options)
{
        uint32_t bytes = sizeof(struct peer_ask), n;

        for (n = 0; n < options->n && n < ASK_CELLS; n++) {
                bool is_new = !n || !digest_equal(&options->wants[n].boundary,
                                                  &options->wants[n - 1].boundary);

                bytes += (uint32_t)sizeof(struct peer_cell);
                bytes += is_new ? (uint32_t)sizeof(struct peer_boundary) : 0;
                if (bytes > WIRE_MESSAGE_MAX)
                        break;
        }
        return n;
}

static uint64_t later(uint64_t now_ns, uint64_t span_ns)
{
        return span_ns < UINT64_MAX - now_ns ? now_ns + span_ns : UINT64_MAX - 1;
}

uint32_t peer_fetch_start(struct peer *peer, const struct peer_fetch_options *options,
                          uint32_t *ret_n, struct peer_fetch **ret_fetch)
{
        struct daemon *daemon = peer->peers->daemon;
        uint32_t n = n_that_fit(options);
        struct peer_fetch *fetch;

        if (!peer_connect(peer))
                return KVT_WIRE_UNAVAILABLE;
        fetch = calloc(1, sizeof(*fetch) + n * sizeof(fetch->items[0]));
        if (!fetch)
                return KVT_WIRE_NO_MEMORY;
        fetch->daemon = daemon;
        fetch->peer = peer;
        fetch->request = ++daemon->peers->reads.last_request;
        fetch->layout = options->layout;
        fetch->timeout_ns = options->timeout_ns;
        fetch->give_up_ns = later(later(uv_hrtime(), options->timeout_ns), ANSWER_NS);
        fetch->on_end = options->on_end;
        while (fetch->n < n && enter(fetch, options, fetch->n))
                fetch->n++;
        if (!fetch->n) {
                free(fetch);
                return daemon->peers->reads.n_expected >= EXPECTED_MAX ? KVT_WIRE_BUSY
                                                                       : KVT_WIRE_INVALID;
        }
        fetch->n_open = fetch->n_unanswered = *ret_n = fetch->n;
        daemon->metrics.peer_asked_objects_total += fetch->n;
        LIST_INSERT_HEAD(&peer->fetches, fetch, link);
        if (peer->is_open)
                send_ask(fetch);
        *ret_fetch = fetch;
        return KVT_WIRE_OK;
}

void peer_fetch_cancel(struct peer_fetch *fetch)
{
        fetch->on_end = NULL;
        fetch->is_cancelled = true;
        if (fetch->peer && !fetch->is_given_up)
                give_up(fetch);
        end_asked(fetch, KVT_WIRE_CANCELLED);
}
