// SPDX-License-Identifier: Apache-2.0
/*
 * Both sides of peers over a link that only keeps what is sent (--wrap): who asks and is not
 * answered, who is asked by many who wait, and a prefetch overtaken by what comes to be known.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rdma_connection.h"
#include "base/rdma_memory.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/peers.h"
#include "daemon/prefetch.h"
#include "daemon/rdma_port.h"
#include "daemon/session.h"

#define SECOND UINT64_C(1000000000)
#define LINK   ((struct remote_link *)&link_byte)

static char link_byte;
static struct daemon daemon_;
static struct peers peers;
static struct peer peer;
static struct session session;
static struct layout layout;
static uint16_t layout_number;
static const struct digest layout_name = {{9}};

/* What went over the link, and to the session. */
static uint32_t n_sent, last_kind, n_closes;
static uint64_t last_request;
static const struct remote_link_events *reader_events;
static void *reader_user;
static uint32_t n_ended, n_answers, last_status, n_promotions;
static struct assembly *request;
static struct cache_read *begun; /* by the last offer that is read */
static struct cache_read seen;   /* as it was when the READ was to start */
static struct host_copy copy;

int __wrap_remote_link_send(struct remote_link *link, const void *packet, uint32_t length);
void __wrap_remote_link_close(struct remote_link *link);
void __wrap_remote_link_hand_over(struct remote_link *link, const struct remote_link_events *events,
                                  void *user);
struct rdma_connection *__wrap_remote_link_connection(const struct remote_link *link);
void __wrap_rdma_connection_peer_address(const struct rdma_connection *connection, char *ret_text);
void __wrap_daemon_port_link_opened(struct daemon *daemon);
void __wrap_daemon_port_link_gone(struct daemon *daemon);
struct peer *__wrap_peers_find(struct daemon *daemon, const char *hint);
bool __wrap_assembly_add(struct session *from, const struct wire_batch *part,
                         struct assembly **ret_assembly);
void __wrap_assembly_free(struct assembly *assembly);
void __wrap_answer_begin(struct answer *answer, struct session *to, uint64_t number);
void __wrap_answer_status(struct answer *answer, uint32_t index, uint32_t status);
void __wrap_answer_end(struct answer *answer, bool more);
int __wrap_cache_new_copy(struct cache *cache, const struct object_key *key, uint64_t raw_bytes,
                          enum host_copy_state state, uint32_t numa_node, bool contiguous,
                          struct host_copy **ret_copy);
int __wrap_transfer_up(struct cache *cache, struct index_object *object, struct host_copy *to,
                       const struct piece_set *pieces);
void __wrap_host_copy_unuse(struct host_copies *copies, struct host_copy *of);

void __real_cache_read_begin(struct cache *cache, struct cache_read *read,
                             const struct object_key *key);
void __wrap_cache_read_begin(struct cache *cache, struct cache_read *read,
                             const struct object_key *key);
uint32_t __wrap_daemon_port_extents(const struct daemon *daemon, const struct host_copy *of,
                                    uint64_t offset, uint64_t length,
                                    struct rdma_extent ret_extents[WIRE_EXTENTS_MAX]);
uint32_t __wrap_host_copy_checksum_segments(const struct host_copies *copies,
                                            const struct host_copy *of,
                                            struct checksum_segment *ret_segments);
int __wrap_rdma_transfer_start(struct rdma_transfer *transfer);
const char *__wrap_daemon_port_domain(const struct daemon *daemon);

int __wrap_remote_link_send(struct remote_link *link, const void *packet, uint32_t length)
{
        const struct peer_header *header = packet;

        ck_assert_ptr_eq(link, LINK);
        ck_assert_uint_eq(header->length, length);
        n_sent++;
        last_kind = header->kind;
        last_request = header->request;
        return 0;
}

void __wrap_remote_link_close(struct remote_link *link)
{
        ck_assert_ptr_eq(link, LINK);
        n_closes++;
}

void __wrap_remote_link_hand_over(struct remote_link *link, const struct remote_link_events *events,
                                  void *user)
{
        reader_events = events;
        reader_user = user;
}

struct rdma_connection *__wrap_remote_link_connection(const struct remote_link *link)
{
        return NULL;
}

void __wrap_rdma_connection_peer_address(const struct rdma_connection *connection, char *ret_text)
{
        *ret_text = '\0';
}

void __wrap_daemon_port_link_opened(struct daemon *daemon)
{
}

void __wrap_daemon_port_link_gone(struct daemon *daemon)
{
}

struct peer *__wrap_peers_find(struct daemon *daemon, const char *hint)
{
        return &peer;
}

bool __wrap_assembly_add(struct session *from, const struct wire_batch *part,
                         struct assembly **ret_assembly)
{
        *ret_assembly = request;
        return true;
}

void __wrap_assembly_free(struct assembly *assembly)
{
}

void __wrap_answer_begin(struct answer *answer, struct session *to, uint64_t number)
{
}

void __wrap_answer_status(struct answer *answer, uint32_t index, uint32_t status)
{
        last_status = status;
}

void __wrap_answer_end(struct answer *answer, bool more)
{
        n_answers++;
}

int __wrap_cache_new_copy(struct cache *cache, const struct object_key *key, uint64_t raw_bytes,
                          enum host_copy_state state, uint32_t numa_node, bool contiguous,
                          struct host_copy **ret_copy)
{
        copy = (struct host_copy){.state = state, .raw_bytes = raw_bytes, .space_bytes = raw_bytes};
        TAILQ_INIT(&copy.waiters);
        *ret_copy = &copy;
        return 0;
}

int __wrap_transfer_up(struct cache *cache, struct index_object *object, struct host_copy *to,
                       const struct piece_set *pieces)
{
        n_promotions++;
        return 0;
}

void __wrap_host_copy_unuse(struct host_copies *copies, struct host_copy *of)
{
}

void __wrap_cache_read_begin(struct cache *cache, struct cache_read *read,
                             const struct object_key *key)
{
        begun = read;
        __real_cache_read_begin(cache, read, key);
}

uint32_t __wrap_daemon_port_extents(const struct daemon *daemon, const struct host_copy *of,
                                    uint64_t offset, uint64_t length,
                                    struct rdma_extent ret_extents[WIRE_EXTENTS_MAX])
{
        ret_extents[0] = (struct rdma_extent){.length = length};
        return 1;
}

uint32_t __wrap_host_copy_checksum_segments(const struct host_copies *copies,
                                            const struct host_copy *of,
                                            struct checksum_segment *ret_segments)
{
        return 0;
}

int __wrap_rdma_transfer_start(struct rdma_transfer *transfer)
{
        seen = *begun;
        return RDMA_E_CLOSED;
}

const char *__wrap_daemon_port_domain(const struct daemon *daemon)
{
        return "";
}

/* ---- both sides ---- */

static struct digest boundary(uint32_t number)
{
        struct digest digest = {{1}};

        memcpy(digest.bytes + 4, &number, sizeof(number));
        return digest;
}

static void setup(void)
{
        memset(&daemon_, 0, sizeof(daemon_));
        memset(&peers, 0, sizeof(peers));
        memset(&peer, 0, sizeof(peer));
        memset(&session, 0, sizeof(session));
        n_sent = n_closes = n_ended = n_answers = n_promotions = 0;
        ck_assert(!index_new(&daemon_.cache.index, 1000, NULL));
        ck_assert(!index_layout(daemon_.cache.index, DOMAIN_DEFAULT, &layout_name, &layout_number));
        layout.n_groups = 1;
        layout.groups[0] = (struct layout_group){.kind = LAYOUT_ATTENTION, .n_shards = 4};
        daemon_.is_closing = true; /* nothing runs a loop that could be woken */
        daemon_.recovered = true;
        daemon_.config.host.bytes = UINT64_C(1) << 30;
        daemon_.config.host.lease_share_percent = 50;
        daemon_.peers = &peers;
        prefetches_init(&daemon_.prefetches);
        peers.daemon = &daemon_;
        peer.peers = &peers;
        peer.remote = LINK;
        peer.is_open = true;
        session.daemon = &daemon_;
        session.layout = layout_number;
        session.description = &layout;
}

static void teardown(void)
{
        free(peer.releases.buffer);
        daemon_.cache.index = index_free(daemon_.cache.index);
}

/* ---- who asks ---- */

static void on_end(void *user, uint32_t status)
{
        (void)user;
        n_ended++;
        last_status = status;
}

static struct peer_fetch *ask(uint32_t n)
{
        struct peer_want wants[4];
        struct peer_fetch_options options = {
                .layout = layout_number,
                .description = &layout,
                .wants = wants,
                .n = n,
                .on_end = on_end,
        };
        struct peer_fetch *fetch = NULL;
        uint32_t n_asked;

        for (uint32_t i = 0; i < n; i++)
                wants[i] = (struct peer_want){boundary(1), 0, (uint16_t)i, NULL};
        ck_assert_uint_eq(peer_fetch_start(&peer, &options, &n_asked, &fetch), KVT_WIRE_OK);
        ck_assert_uint_eq(n_asked, n);
        if (peer.is_open)
                ck_assert_uint_eq(last_kind, PEER_ASK);
        return fetch;
}

static void offer(const struct peer_offer_item *items, uint32_t n)
{
        static _Alignas(8) uint8_t buffer[WIRE_MESSAGE_MAX];
        static const struct peer_header fixed;
        struct peer_place place = {.address = 4096, .key = 1};
        struct peer_builder builder;
        uint64_t piece = 0;

        peer_builder_init(&builder, buffer, PEER_OFFER, last_request, &fixed, sizeof(fixed));
        for (uint32_t i = 0; i < n; i++) {
                place.length = items[i].bytes;
                ck_assert(!peer_add_offer(&builder, &items[i], &place, &piece, NULL));
        }
        peer_reads_message(&peer, buffer, builder.length);
}

/* When 30 s have gone by without an answer to the cancel that was sent at @since_ns; once. */
static void expect_link_ends(uint64_t since_ns)
{
        ck_assert_uint_eq(last_kind, PEER_CANCEL);
        peer_reads_expire(&peer, since_ns + 29 * SECOND);
        ck_assert_uint_eq(n_closes, 0);
        peer_reads_expire(&peer, uv_hrtime() + 31 * SECOND);
        ck_assert_uint_eq(n_closes, 1);
        peer_reads_expire(&peer, uv_hrtime() + 62 * SECOND);
        ck_assert_uint_eq(n_closes, 1);
        peer_reads_closed(&peer);
        ck_assert(LIST_EMPTY(&peer.fetches));
}

START_TEST(a_cancel_that_is_not_answered_ends_the_link)
{
        uint64_t now_ns = uv_hrtime();

        peer_fetch_cancel(ask(2));
        ck_assert_uint_eq(n_ended, 0); /* nobody is told any more */
        ck_assert_uint_eq(peers.reads.n_expected, 0);
        expect_link_ends(now_ns);
}
END_TEST

START_TEST(a_request_that_is_late_is_cancelled_then_ends_the_link)
{
        uint64_t now_ns;

        ask(2);
        now_ns = uv_hrtime();
        peer_reads_expire(&peer, now_ns + 31 * SECOND);
        ck_assert_uint_eq(n_ended, 2);
        ck_assert_uint_eq(last_status, KVT_WIRE_TIMEOUT);
        expect_link_ends(now_ns);
}
END_TEST

START_TEST(a_cancel_that_is_answered_leaves_the_link)
{
        struct peer_offer_item ends[2] = {{.index = 0, .status = KVT_WIRE_CANCELLED},
                                          {.index = 1, .status = KVT_WIRE_MISS}};

        peer_fetch_cancel(ask(2));
        offer(ends, 1);
        ck_assert(!LIST_EMPTY(&peer.fetches));
        offer(ends + 1, 1);
        ck_assert(LIST_EMPTY(&peer.fetches));
        peer_reads_expire(&peer, uv_hrtime() + 62 * SECOND);
        ck_assert_uint_eq(n_closes, 0);
}
END_TEST

START_TEST(what_was_not_sent_is_over_when_it_is_cancelled)
{
        struct peer_fetch *fetch;

        peer.is_open = false;
        fetch = ask(2);
        ck_assert_uint_eq(n_sent, 0);
        peer_fetch_cancel(fetch);
        ck_assert(LIST_EMPTY(&peer.fetches));
        peer.is_open = true;
        peer_reads_opened(&peer);
        ck_assert_uint_eq(n_sent, 0);
}
END_TEST

/* The peer may have looked before: its offer is of bytes that hold no more. */
START_TEST(what_is_replaced_while_it_is_asked_for_is_known_to_its_read)
{
        struct peer_offer_item item = {
                .lease = 1,
                .boundary = boundary(1),
                .bytes = 4096,
                .n_places = 1,
                .n_pieces = 1,
                .boundary_tokens = 256,
                .flags = PEER_OFFER_PARENT_UNKNOWN,
        };
        struct object_key key = {.layout = layout_name, .boundary = boundary(1)};

        daemon_.config.host.piece_bytes = 1u << 20;
        LIST_INIT(&daemon_.cache.reads);
        ask(2);
        peer_reads_replaced(&daemon_, &key, 4711);
        key.shard = 2; /* nobody asks for it */
        peer_reads_replaced(&daemon_, &key, 4712);
        offer(&item, 1);
        ck_assert_uint_eq(last_status, KVT_WIRE_UNAVAILABLE);
        ck_assert(seen.is_replaced);
        ck_assert_uint_eq(seen.total, 4711);
        item.index = 1;
        offer(&item, 1);
        ck_assert_uint_eq(n_ended, 2);
        ck_assert(!seen.is_replaced);
        ck_assert(LIST_EMPTY(&daemon_.cache.reads));
        ask(1);
        peer_reads_replaced(&daemon_, NULL, 0); /* it may have been this one */
        item.index = 0;
        offer(&item, 1);
        ck_assert_uint_eq(n_ended, 3);
        ck_assert(seen.is_replaced);
        ck_assert_uint_eq(seen.total, 0);
}
END_TEST

/* ---- a prefetch ---- */

/* While the peer looks for it, it comes to be known on NVMe: it is brought up from there. */
START_TEST(a_prefetch_brings_up_what_came_below_meanwhile)
{
        static struct wire_key_item key;
        static struct assembly assembly = {.hint = "peer", .n = 1, .keys = &key};
        struct index_new_object entry = {
                .layout = layout_number,
                .digest = boundary(1),
                .parent_unknown = true,
                .boundary_tokens = 256,
                .raw_bytes = 4096,
        };
        struct peer_offer_item item = {
                .lease = 1,
                .boundary = boundary(1),
                .bytes = 4096,
                .n_places = 1,
                .n_pieces = 1,
                .boundary_tokens = 256,
                .flags = PEER_OFFER_PARENT_UNKNOWN,
        };
        struct index_object *object;
        struct host_copy_waiter *waiter;

        key = (struct wire_key_item){.boundary = boundary(1)};
        request = &assembly;
        prefetch_request(&session, NULL);
        ck_assert_uint_eq(last_kind, PEER_ASK);
        ck_assert(!index_add(daemon_.cache.index, &entry, &object));
        index_set_place(daemon_.cache.index, object, (struct tier_place){1, 1});
        offer(&item, 1);
        ck_assert_uint_eq(n_closes, 0);
        prefetches_go_on(&daemon_);
        ck_assert_uint_eq(n_promotions, 1);
        ck_assert_uint_eq(n_answers, 0); /* not before it is in host memory */
        copy.state = HOST_COPY_READY;
        waiter = TAILQ_FIRST(&copy.waiters);
        ck_assert_ptr_nonnull(waiter);
        TAILQ_REMOVE(&copy.waiters, waiter, link);
        waiter->on_ready(waiter);
        ck_assert_uint_eq(n_answers, 1);
        ck_assert_uint_eq(last_status, KVT_WIRE_OK);
        ck_assert(TAILQ_EMPTY(&daemon_.prefetches.list));
        index_set_place(daemon_.cache.index, object, (struct tier_place){0, 0});
        index_remove(daemon_.cache.index, object);
}
END_TEST

/* ---- who is asked ---- */

static uint32_t build_ask(uint8_t *buffer, uint32_t number)
{
        struct peer_ask fixed = {.timeout_ns = 60 * SECOND, .layout = layout_name};
        struct digest digest = boundary(number);
        struct peer_cell cell = {0, 0};
        struct peer_builder builder;

        peer_builder_init(&builder, buffer, PEER_ASK, number, &fixed, sizeof(fixed));
        ck_assert(!peer_add_boundary(&builder, &digest, &cell, 1));
        return builder.length;
}

/* Processor time of looking at @n requests, one object each, that all wait. */
static double seconds_of(uint32_t n)
{
        static _Alignas(8) uint8_t buffer[WIRE_MESSAGE_MAX];
        struct timespec begin, end;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        peer_serve_accept(&daemon_, LINK, buffer, build_ask(buffer, 1));
        for (uint32_t i = 2; i <= n; i++)
                reader_events->on_message(reader_user, LINK, buffer, build_ask(buffer, i));
        while (peers.serving.n_wanted < n)
                peer_serve_go_on(&daemon_);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        reader_events->on_closed(reader_user, LINK, RDMA_END_CLOSED, "");
        ck_assert_uint_eq(peers.serving.n_wanted, 0);
        return (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
}

/* Eight times as many take some ten times as long; with a walk over all for each, 64 times. */
START_TEST(requests_that_wait_are_not_walked_over_for_each)
{
        double few = seconds_of(8000), many = seconds_of(64000);

        ck_assert_double_lt(many, 30 * few);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/peers");
        TCase *tcase = tcase_create("peers");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_cancel_that_is_not_answered_ends_the_link);
        tcase_add_test(tcase, a_request_that_is_late_is_cancelled_then_ends_the_link);
        tcase_add_test(tcase, a_cancel_that_is_answered_leaves_the_link);
        tcase_add_test(tcase, what_was_not_sent_is_over_when_it_is_cancelled);
        tcase_add_test(tcase, what_is_replaced_while_it_is_asked_for_is_known_to_its_read);
        tcase_add_test(tcase, a_prefetch_brings_up_what_came_below_meanwhile);
        tcase_add_test(tcase, requests_that_wait_are_not_walked_over_for_each);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
