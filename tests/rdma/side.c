// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/rdma/side.h"

#define MS UINT64_C(1000000)

uint64_t side_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * SIDE_SECOND + (uint64_t)now.tv_nsec;
}

static _Atomic uint64_t withheld_ns;

/* Whoever wants to run every few milliseconds sees what it does not get. */
static void *watch(void *argument)
{
        const struct timespec tick = {.tv_nsec = 5 * MS};

        for (;;) {
                uint64_t start_ns = side_now_ns(), took_ns;

                nanosleep(&tick, NULL);
                took_ns = side_now_ns() - start_ns;
                if (took_ns > 15 * MS)
                        atomic_fetch_add(&withheld_ns, took_ns - 5 * MS);
        }
        return NULL;
}

static void start_watch(void)
{
        pthread_t thread;

        ck_assert_int_eq(pthread_create(&thread, NULL, watch, NULL), 0);
        pthread_detach(thread);
}

struct side_moment side_moment(void)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;

        pthread_once(&once, start_watch);
        return (struct side_moment){side_now_ns(), atomic_load(&withheld_ns)};
}

void side_expect_took(struct side_moment start, struct side_moment end, uint64_t least_ns,
                      uint64_t most_ns)
{
        uint64_t took_ns = end.ns - start.ns, lost_ns = end.withheld_ns - start.withheld_ns;

        ck_assert_uint_ge(took_ns, least_ns);
        ck_assert_msg(took_ns < most_ns + lost_ns, "%llu ms, of which %llu without a processor",
                      (unsigned long long)(took_ns / MS), (unsigned long long)(lost_ns / MS));
}

static int find_secret(void *user, const char *domain, struct rdma_secret *ret_secret)
{
        const struct side *side = user;

        if (strcmp(domain, "here"))
                return 1;
        ret_secret->length = strlen(side->secret);
        memcpy(ret_secret->bytes, side->secret, ret_secret->length);
        return 0;
}

static void on_open(void *user, struct rdma_connection *connection)
{
        struct side *side = user;

        side->connection = connection;
        side->is_open = true;
}

static void on_message(void *user, struct rdma_connection *connection, const void *bytes,
                       size_t length)
{
        struct side *side = user;

        side->n_messages++;
        side->last_bytes = length;
        memcpy(side->last, bytes, length);
        if (side->on_message)
                side->on_message(side, bytes, length);
}

static void on_room(void *user, struct rdma_connection *connection)
{
        ((struct side *)user)->n_rooms++;
}

static void on_closed(void *user, struct rdma_connection *connection, enum rdma_end end,
                      const char *why)
{
        struct side *side = user;

        /* One that another has taken the place of is not looked at. */
        if (connection != side->connection)
                return;
        ck_assert(!side->is_closed);
        side->connection = NULL;
        side->is_closed = true;
        side->end = end;
        side->closed = side_moment();
        snprintf(side->why, sizeof(side->why), "%s", why);
}

static const struct rdma_connection_events events = {
        .on_open = on_open,
        .on_message = on_message,
        .on_room = on_room,
        .on_closed = on_closed,
};

static void on_connection(void *user, struct rdma_connection *connection)
{
        struct side *side = user;

        side->is_closed = false;
        side->connection = connection;
        side->is_open = true;
        rdma_connection_adopt(connection, &events, side);
}

void side_init(struct side *side, const char *device)
{
        *side = (struct side){
                .secret = "a secret of the two sides",
                .options =
                        {
                                .device = device,
                                .identity = {.protocol = 0x74657374, .major = 1, .minor = 3},
                                .find_secret = find_secret,
                                .n_credits = 8,
                                .n_queued = 16,
                                .connections_max = 64,
                                /* The guest is slow, and a machine that is busy makes it slower. */
                                .handshake_ns = 20 * SIDE_SECOND,
                                .silence_ns = 20 * SIDE_SECOND,
                                /* As of the daemon: more than these devices move until they
                                   ask again is asked for twice, and a nudge waits behind it. */
                                .flight_bytes = UINT64_C(2) << 20,
                                .chunk_bytes = 512u << 10,
                        },
        };
        side->options.identity.id[0] = device[3] == 'a' ? 0xa : 0xb;
}

void side_open(struct side *side, size_t memory_bytes)
{
        struct why why = {""};

        side->options.user = side;
        ck_assert_msg(!rdma_port_open(&side->port, &side->options, &why), "%s", why.text);
        if (!memory_bytes)
                return;
        side->memory_bytes = memory_bytes;
        side->memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        ck_assert(side->memory != MAP_FAILED);
        ck_assert_int_eq(
                rdma_region_new(&side->region, side->port, side->memory, side->memory_bytes), 0);
}

/* The second may be absent. */
static void run_until(struct side *a, struct side *b, uint64_t until_ns)
{
        struct side *sides[2] = {a, b};
        struct pollfd fds[2];
        uint64_t now_ns = side_now_ns();

        for (int i = 0; i < 2; i++)
                fds[i] = (struct pollfd){
                        .fd = sides[i] && sides[i]->port ? rdma_port_fd(sides[i]->port) : -1,
                        .events = POLLIN,
                };
        poll(fds, 2, until_ns > now_ns ? (int)((until_ns - now_ns) / MS) + 1 : 0);
        for (int i = 0; i < 2; i++)
                if (fds[i].revents)
                        rdma_port_run(sides[i]->port);
}

void side_close(struct side *side)
{
        struct rdma_port_stats stats;

        if (side->connection)
                rdma_connection_close(side->connection);
        while (side->connection)
                side_wait(side, &side->is_closed, SIDE_SECOND);
        ck_assert_int_eq(rdma_region_free(side->region), 0);
        if (side->memory)
                munmap(side->memory, side->memory_bytes);
        /* Those that are not let in go without a word. */
        for (int i = 0; i < 1000; i++) {
                rdma_port_stats(side->port, &stats);
                if (!stats.connections)
                        break;
                run_until(side, NULL, side_now_ns() + 10 * MS);
        }
        ck_assert_uint_eq(stats.windows_bound, 0);
        ck_assert_uint_eq(stats.regions, 0);
        ck_assert_uint_eq(stats.queue_pairs, 0);
        rdma_port_close(side->port);
        side->port = NULL;
}

void side_listen(struct side *side, const char *allowed)
{
        struct rdma_listener_options options = {.on_connection = on_connection, .user = side};
        struct rdma_network network;
        struct why why = {""};

        ck_assert_int_eq(rdma_address_parse(&options.address, SIDE_A ":0", 0, NULL), 0);
        ck_assert_int_eq(rdma_network_parse(&network, allowed, NULL), 0);
        options.allowed = &network;
        options.n_allowed = 1;
        ck_assert_msg(!rdma_listener_open(&side->listener, side->port, &options, &why), "%s",
                      why.text);
        side->number = rdma_listener_port(side->listener);
}

void side_connect(struct side *side, uint16_t number, const char *domain,
                  const uint8_t expected_id[RDMA_ID_BYTES])
{
        struct rdma_target target = {.domain = domain};

        ck_assert_int_eq(rdma_address_parse(&target.address, SIDE_A, number, NULL), 0);
        ck_assert_int_eq(rdma_address_parse(&target.source, SIDE_B, 0, NULL), 0);
        if (expected_id)
                memcpy(target.expected_id, expected_id, RDMA_ID_BYTES);
        side->is_open = side->is_closed = false;
        ck_assert_int_eq(
                rdma_connection_open(&side->connection, side->port, &target, &events, side), 0);
}

void pair_init(struct pair *pair)
{
        side_init(&pair->server, "rxea");
        side_init(&pair->client, "rxeb");
}

void pair_open(struct pair *pair, size_t memory_bytes)
{
        side_open(&pair->server, memory_bytes);
        side_open(&pair->client, memory_bytes);
        side_listen(&pair->server, "10.1.0.0/24");
        side_connect(&pair->client, pair->server.number, "here", NULL);
        ck_assert_msg(pair_wait(pair, &pair->client.is_open, 30 * SIDE_SECOND), "%s",
                      pair->client.why);
        ck_assert(pair_wait(pair, &pair->server.is_open, 30 * SIDE_SECOND));
}

void pair_close(struct pair *pair)
{
        if (pair->client.port)
                side_close(&pair->client);
        if (pair->server.port)
                side_close(&pair->server);
}

bool pair_wait(struct pair *pair, const bool *flag, uint64_t timeout_ns)
{
        uint64_t until_ns = side_now_ns() + timeout_ns;

        while (!*flag && side_now_ns() < until_ns)
                run_until(&pair->server, &pair->client, until_ns);
        return *flag;
}

bool side_wait(struct side *side, const bool *flag, uint64_t timeout_ns)
{
        uint64_t until_ns = side_now_ns() + timeout_ns;

        while (!*flag && side_now_ns() < until_ns)
                run_until(side, NULL, until_ns);
        return *flag;
}

bool pair_wait_for(struct pair *pair, const uint32_t *counter, uint32_t value, uint64_t timeout_ns)
{
        uint64_t until_ns = side_now_ns() + timeout_ns;

        while (*counter != value && side_now_ns() < until_ns)
                run_until(&pair->server, &pair->client, until_ns);
        return *counter == value;
}

void pair_run(struct pair *pair, uint64_t duration_ns)
{
        const bool never = false;

        pair_wait(pair, &never, duration_ns);
}

static void on_granted(void *user, struct rdma_grant *grant, enum rdma_result result,
                       const struct rdma_place *places)
{
        struct side *side = user;

        side->is_granted = true;
        side->granted = result;
        if (result)
                return;
        side->offer.n_places = 1;
        side->offer.places[0] = *places;
}

static void on_reusable(void *user, struct rdma_grant *grant)
{
        struct side *side = user;

        ck_assert(!side->is_reusable);
        side->is_reusable = true;
        side->grant = NULL;
}

void side_grant(struct side *side, size_t offset, size_t length, bool is_writable)
{
        struct rdma_extent extent = {side->region, side->memory + offset, length};
        struct rdma_grant_options options = {
                .extents = &extent,
                .n_extents = 1,
                .is_writable = is_writable,
                .timeout_ns = 10 * SIDE_SECOND,
                .on_granted = on_granted,
                .on_reusable = on_reusable,
                .user = side,
        };

        side->is_granted = side->is_reusable = false;
        ck_assert_int_eq(rdma_grant_new(&side->grant, side->connection, &options), 0);
}

static void on_done(struct rdma_transfer *transfer, enum rdma_result result)
{
        struct side_transfer *own = transfer->user;

        ck_assert(!own->is_done);
        own->is_done = true;
        own->result = result;
        own->done = side_moment();
}

void side_start(struct side *side, struct side_transfer *transfer, size_t offset, size_t length,
                uint64_t remote_address, uint32_t key, bool is_write, uint64_t timeout_ns)
{
        *transfer = (struct side_transfer){
                .piece =
                        {
                                .local = {side->region, side->memory + offset, length},
                                .remote_address = remote_address,
                                .remote_key = key,
                        },
                .transfer =
                        {
                                .connection = side->connection,
                                .n_pieces = 1,
                                .is_write = is_write,
                                .timeout_ns = timeout_ns,
                                .on_done = on_done,
                        },
        };
        transfer->transfer.pieces = &transfer->piece;
        transfer->transfer.user = transfer;
        ck_assert_int_eq(rdma_transfer_start(&transfer->transfer), 0);
}
