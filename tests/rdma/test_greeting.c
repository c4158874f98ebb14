// SPDX-License-Identifier: Apache-2.0
/*
 * Who is let in; and that nothing is left of those who come and go.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_port.h"
#include "tests/rdma/test_rdma.h"

#define MANY 1000

static void open_both(struct pair *pair, const char *allowed)
{
        side_open(&pair->server, 0);
        side_open(&pair->client, 0);
        side_listen(&pair->server, allowed);
}

/* The client is told why, and the server's owner hears nothing of it. */
static void check_refusal(struct pair *pair, enum rdma_end end, const char *words)
{
        ck_assert(pair_wait(pair, &pair->client.is_closed, 10 * SIDE_SECOND));
        ck_assert_msg(pair->client.end == end, "%s: %s", rdma_end_name(pair->client.end),
                      pair->client.why);
        ck_assert_msg(strstr(pair->client.why, words) != NULL, "%s", pair->client.why);
        ck_assert(!pair->client.is_open);
        ck_assert(!pair->server.is_open);
}

static uint64_t ended(const struct side *side, enum rdma_end end)
{
        struct rdma_port_stats stats;

        rdma_port_stats(side->port, &stats);
        return stats.ended[end];
}

START_TEST(both_know_each_other_when_it_is_open)
{
        struct pair pair;
        char text[RDMA_ADDRESS_TEXT_MAX];

        pair_init(&pair);
        pair.server.options.identity.minor = 2;
        pair_open(&pair, 0);
        ck_assert_str_eq(rdma_connection_domain(pair.server.connection), "here");
        ck_assert_str_eq(rdma_connection_domain(pair.client.connection), "here");
        ck_assert_uint_eq(rdma_connection_peer_id(pair.server.connection)[0], 0xb);
        ck_assert_uint_eq(rdma_connection_peer_id(pair.client.connection)[0], 0xa);
        ck_assert_uint_eq(rdma_connection_minor(pair.client.connection), 2);
        rdma_connection_peer_address(pair.server.connection, text);
        ck_assert_msg(!strncmp(text, SIDE_B ":", strlen(SIDE_B) + 1), "%s", text);
        ck_assert_ptr_null(rdma_port_warning(pair.server.port));
        pair_close(&pair);
}
END_TEST

START_TEST(a_wrong_secret_is_refused)
{
        struct pair pair;

        pair_init(&pair);
        pair.client.secret = "another secret, as long";
        open_both(&pair, "10.1.0.0/24");
        side_connect(&pair.client, pair.server.number, "here", NULL);
        check_refusal(&pair, RDMA_END_DENIED, "no domain \"here\" here, or its secret is another");
        for (int i = 0; i < 1000 && !ended(&pair.server, RDMA_END_DENIED); i++)
                pair_run(&pair, 10 * MS);
        ck_assert_uint_eq(ended(&pair.server, RDMA_END_DENIED), 1);
        pair_close(&pair);
}
END_TEST

START_TEST(a_domain_without_a_secret_of_ours_goes_nowhere)
{
        struct pair pair;

        pair_init(&pair);
        open_both(&pair, "10.1.0.0/24");
        side_connect(&pair.client, pair.server.number, "elsewhere", NULL);
        check_refusal(&pair, RDMA_END_DENIED, "no secret of at least 16 bytes for domain");
        pair_close(&pair);
}
END_TEST

START_TEST(a_stale_boot_id_is_refused)
{
        static const uint8_t earlier[RDMA_ID_BYTES] = {0x99}, current[RDMA_ID_BYTES] = {0xa};
        struct pair pair;

        pair_init(&pair);
        open_both(&pair, "10.1.0.0/24");
        side_connect(&pair.client, pair.server.number, "here", earlier);
        check_refusal(&pair, RDMA_END_STALE, "started anew since");
        side_connect(&pair.client, pair.server.number, "here", current);
        ck_assert(pair_wait(&pair, &pair.client.is_open, 10 * SIDE_SECOND));
        pair_close(&pair);
}
END_TEST

START_TEST(another_version_is_refused)
{
        struct pair pair;

        pair_init(&pair);
        pair.client.options.identity.major = 2;
        open_both(&pair, "10.1.0.0/24");
        side_connect(&pair.client, pair.server.number, "here", NULL);
        check_refusal(&pair, RDMA_END_UNSUPPORTED, "version 2 meets protocol 74657374 version 1");
        pair_close(&pair);
}
END_TEST

START_TEST(an_address_that_is_not_in_the_list_is_refused)
{
        struct rdma_refusal refusal;
        struct pair pair;

        pair_init(&pair);
        open_both(&pair, "10.1.0.1/32");
        side_connect(&pair.client, pair.server.number, "here", NULL);
        check_refusal(&pair, RDMA_END_NOT_ALLOWED, "this address is not in the server's list");
        ck_assert_uint_eq(ended(&pair.server, RDMA_END_NOT_ALLOWED), 1);
        /* By its name. */
        rdma_port_last_refusal(pair.server.port, &refusal);
        ck_assert_uint_eq(refusal.n, 1);
        ck_assert_int_eq(refusal.end, RDMA_END_NOT_ALLOWED);
        ck_assert_ptr_nonnull(strstr(refusal.address, "10.1.0."));
        pair_close(&pair);
}
END_TEST

START_TEST(a_port_that_is_full_says_so)
{
        struct pair pair;
        struct side other;

        pair_init(&pair);
        pair.server.options.connections_max = 1;
        pair_open(&pair, 0);
        side_init(&other, "rxeb");
        side_open(&other, 0);
        side_connect(&other, pair.server.number, "here", NULL);
        ck_assert(side_wait(&other, &other.is_closed, 10 * SIDE_SECOND));
        ck_assert_int_eq(other.end, RDMA_END_FULL);
        side_close(&other);
        pair_close(&pair);
}
END_TEST

START_TEST(nobody_there_is_found_out_soon)
{
        struct pair pair;

        pair_init(&pair);
        open_both(&pair, "10.1.0.0/24");
        side_connect(&pair.client, (uint16_t)(pair.server.number ^ 1), "here", NULL);
        check_refusal(&pair, RDMA_END_UNREACHABLE, "nobody listens there");
        pair_close(&pair);
}
END_TEST

START_TEST(a_listener_that_is_closed_lets_nobody_in_and_keeps_who_is)
{
        struct pair pair;
        uint16_t number;

        pair_init(&pair);
        pair_open(&pair, 0);
        number = pair.server.number;
        rdma_listener_close(pair.server.listener);
        pair_run(&pair, 100 * MS);
        ck_assert_int_eq(rdma_connection_send(pair.client.connection, "still", 5), 0);
        ck_assert(pair_wait_for(&pair, &pair.server.n_messages, 1, 20 * SIDE_SECOND));
        rdma_connection_close(pair.client.connection);
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
        pair.server.is_open = false;
        side_connect(&pair.client, number, "here", NULL);
        check_refusal(&pair, RDMA_END_UNREACHABLE, "nobody listens there");
        pair_close(&pair);
}
END_TEST

START_TEST(closing_the_port_ends_what_is_open)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 0);
        rdma_port_close(pair.server.port);
        pair.server.port = NULL;
        ck_assert(pair.server.is_closed);
        ck_assert_int_eq(pair.server.end, RDMA_END_CLOSED);
        ck_assert(side_wait(&pair.client, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_PEER_CLOSED);
        pair_close(&pair);
}
END_TEST

/* The linker puts it in the way (--wrap). */
static bool hears_rejections;

int __real_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **ret_event);
int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **ret_event);

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **ret_event)
{
        int r = __real_rdma_get_cm_event(channel, ret_event);

        if (!r && hears_rejections && (*ret_event)->event == RDMA_CM_EVENT_DISCONNECTED)
                (*ret_event)->event = RDMA_CM_EVENT_REJECTED;
        return r;
}

/* So it does when it leaves before it has heard that the client is connected. */
START_TEST(a_server_that_rejects_what_is_open_has_closed_it)
{
        struct pair pair;

        hears_rejections = true;
        pair_init(&pair);
        pair_open(&pair, 0);
        rdma_connection_close(pair.server.connection);
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_msg(pair.client.end == RDMA_END_PEER_CLOSED, "%s: %s",
                      rdma_end_name(pair.client.end), pair.client.why);
        pair_close(&pair);
}
END_TEST

/* Of all ports. */
static _Atomic unsigned n_queues_destroyed;

int __real_ibv_destroy_cq(struct ibv_cq *cq);
int __wrap_ibv_destroy_cq(struct ibv_cq *cq);

int __wrap_ibv_destroy_cq(struct ibv_cq *cq)
{
        n_queues_destroyed++;
        return __real_ibv_destroy_cq(cq);
}

/* It may, late, and whoever reads of it looks into the queue (base/rdma_device.h). */
START_TEST(no_queue_that_may_still_ring_is_destroyed)
{
        struct rdma_port_stats stats;
        struct pair pair;
        unsigned n;

        pair_init(&pair);
        pair_open(&pair, 0);
        for (int i = 0; i < 20; i++) {
                rdma_connection_close(pair.client.connection);
                ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
                ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
                pair.server.is_open = false;
                side_connect(&pair.client, pair.server.number, "here", NULL);
                ck_assert(pair_wait(&pair, &pair.client.is_open, 20 * SIDE_SECOND));
                ck_assert(pair_wait(&pair, &pair.server.is_open, 20 * SIDE_SECOND));
        }
        ck_assert_uint_eq(n_queues_destroyed, 0);
        rdma_port_stats(pair.client.port, &stats);
        n = (unsigned)stats.completion_queues;
        ck_assert_uint_eq(n, 1);
        rdma_port_stats(pair.server.port, &stats);
        n += (unsigned)stats.completion_queues;
        pair_close(&pair);
        ck_assert_uint_eq(n_queues_destroyed, n);
}
END_TEST

/* What the kernel holds for anybody, as people see it; but completion queues, which are kept. */
static void read_resources(char text[1024])
{
        FILE *pipe = popen("rdma resource show", "r");
        size_t n;

        ck_assert_ptr_nonnull(pipe);
        n = fread(text, 1, 1023, pipe);
        ck_assert_uint_gt(n, 10);
        text[n] = '\0';
        ck_assert_int_eq(pclose(pipe), 0);
        for (char *at = text; (at = strstr(at, " cq "));) {
                at += strlen(" cq ");
                n = strspn(at, "0123456789");
                memmove(at, at + n, strlen(at + n) + 1);
        }
}

/*
 * Eight at a time: the server grants each a page and says so, upon which the client leaves. The
 * grant ends with the connection.
 */
struct crowd {
        struct side server;
        struct side client;
        int n_started;
        int n_client_closed;
        int n_server_closed;
        int n_reusable;
        bool is_over;
};

static void note_end(struct crowd *crowd)
{
        crowd->is_over = crowd->n_client_closed == crowd->n_started &&
                         crowd->n_server_closed == crowd->n_started;
}

static void let_one_come(struct crowd *crowd);

static void leave(void *user, struct rdma_connection *connection, const void *bytes, size_t length)
{
        rdma_connection_close(connection);
}

static void client_closed(void *user, struct rdma_connection *connection, enum rdma_end end,
                          const char *why)
{
        struct crowd *crowd = user;

        ck_assert_msg(end == RDMA_END_CLOSED, "%s", why);
        crowd->n_client_closed++;
        if (crowd->n_started < MANY)
                let_one_come(crowd);
        note_end(crowd);
}

static void let_one_come(struct crowd *crowd)
{
        static const struct rdma_connection_events events = {
                .on_message = leave,
                .on_closed = client_closed,
        };
        struct rdma_target target = {.domain = "here", .timeout_ns = 20 * SIDE_SECOND};
        struct rdma_connection *connection;

        ck_assert_int_eq(rdma_address_parse(&target.address, SIDE_A, crowd->server.number, NULL),
                         0);
        ck_assert_int_eq(rdma_address_parse(&target.source, SIDE_B, 0, NULL), 0);
        ck_assert_int_eq(
                rdma_connection_open(&connection, crowd->client.port, &target, &events, crowd), 0);
        crowd->n_started++;
}

static void server_closed(void *user, struct rdma_connection *connection, enum rdma_end end,
                          const char *why)
{
        struct crowd *crowd = user;

        ck_assert_msg(end == RDMA_END_PEER_CLOSED, "%s: %s", rdma_end_name(end), why);
        crowd->n_server_closed++;
        note_end(crowd);
}

static void never_called(void *user, struct rdma_connection *connection, const void *bytes,
                         size_t length)
{
        ck_abort();
}

struct page_of_one {
        struct crowd *crowd;
        struct rdma_connection *connection;
};

static void page_granted(void *user, struct rdma_grant *grant, enum rdma_result result,
                         const struct rdma_place *places)
{
        struct page_of_one *page = user;

        ck_assert_int_eq(result, RDMA_RESULT_DONE);
        ck_assert_int_eq(rdma_connection_send(page->connection, "x", 1), 0);
}

static void page_reusable(void *user, struct rdma_grant *grant)
{
        struct page_of_one *page = user;

        page->crowd->n_reusable++;
        free(page);
}

static void one_came(void *user, struct rdma_connection *connection)
{
        static const struct rdma_connection_events events = {
                .on_message = never_called,
                .on_closed = server_closed,
        };
        struct crowd *crowd = user;
        struct page_of_one *page = malloc(sizeof(*page));
        struct rdma_extent extent = {crowd->server.region, crowd->server.memory, 4096};
        struct rdma_grant_options options = {
                .extents = &extent,
                .n_extents = 1,
                .timeout_ns = 10 * SIDE_SECOND,
                .on_granted = page_granted,
                .on_reusable = page_reusable,
                .user = page,
        };
        struct rdma_grant *grant;

        ck_assert_ptr_nonnull(page);
        *page = (struct page_of_one){crowd, connection};
        rdma_connection_adopt(connection, &events, crowd);
        ck_assert_int_eq(rdma_grant_new(&grant, connection, &options), 0);
}

static void check_nothing_is_left(const struct side *side, uint64_t n_regions)
{
        struct rdma_port_stats stats;

        rdma_port_stats(side->port, &stats);
        ck_assert_uint_eq(stats.opened, MANY);
        ck_assert_uint_eq(stats.queue_pairs, 0);
        /* As many as connections at a time, at the most. */
        ck_assert_uint_le(stats.completion_queues, side->options.connections_max);
        ck_assert_uint_eq(stats.connections, 0);
        ck_assert_uint_eq(stats.windows, 0);
        ck_assert_uint_eq(stats.windows_bound, 0);
        ck_assert_uint_eq(stats.regions, n_regions);
}

START_TEST(a_thousand_come_and_go_and_leave_nothing)
{
        struct crowd crowd = {0};
        struct pair *pair = (struct pair *)(void *)&crowd; /* its sides come first */
        struct rdma_listener_options options = {.on_connection = one_came, .user = &crowd};
        struct rdma_network all = {.prefix = 0};
        char before[1024], after[1024];

        side_init(&crowd.server, "rxea");
        side_init(&crowd.client, "rxeb");
        side_open(&crowd.server, 4096);
        side_open(&crowd.client, 0);
        options.allowed = &all;
        options.n_allowed = 1;
        ck_assert_int_eq(rdma_address_parse(&options.address, SIDE_A ":0", 0, NULL), 0);
        ck_assert_int_eq(
                rdma_listener_open(&crowd.server.listener, crowd.server.port, &options, NULL), 0);
        crowd.server.number = rdma_listener_port(crowd.server.listener);
        read_resources(before);
        for (int i = 0; i < 8; i++)
                let_one_come(&crowd);
        ck_assert_msg(pair_wait(pair, &crowd.is_over, 400 * SIDE_SECOND),
                      "%d came, %d and %d left", crowd.n_started, crowd.n_client_closed,
                      crowd.n_server_closed);
        read_resources(after);
        ck_assert_str_eq(before, after);
        ck_assert_int_eq(crowd.n_started, MANY);
        ck_assert_int_eq(crowd.n_reusable, MANY);
        ck_assert_uint_eq(ended(&crowd.client, RDMA_END_CLOSED), MANY);
        ck_assert_uint_eq(ended(&crowd.server, RDMA_END_PEER_CLOSED), MANY);
        check_nothing_is_left(&crowd.server, 1);
        check_nothing_is_left(&crowd.client, 0);
        pair_close(pair);
}
END_TEST

TCase *greeting_case(void)
{
        TCase *greeting = tcase_create("greeting");

        tcase_set_timeout(greeting, 420);
        tcase_add_test(greeting, both_know_each_other_when_it_is_open);
        tcase_add_test(greeting, a_wrong_secret_is_refused);
        tcase_add_test(greeting, a_domain_without_a_secret_of_ours_goes_nowhere);
        tcase_add_test(greeting, a_stale_boot_id_is_refused);
        tcase_add_test(greeting, another_version_is_refused);
        tcase_add_test(greeting, an_address_that_is_not_in_the_list_is_refused);
        tcase_add_test(greeting, a_port_that_is_full_says_so);
        tcase_add_test(greeting, nobody_there_is_found_out_soon);
        tcase_add_test(greeting, a_listener_that_is_closed_lets_nobody_in_and_keeps_who_is);
        tcase_add_test(greeting, closing_the_port_ends_what_is_open);
        tcase_add_test(greeting, a_server_that_rejects_what_is_open_has_closed_it);
        tcase_add_test(greeting, no_queue_that_may_still_ring_is_destroyed);
        tcase_add_test(greeting, a_thousand_come_and_go_and_leave_nothing);
        return greeting;
}
