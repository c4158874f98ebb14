// SPDX-License-Identifier: Apache-2.0
/*
 * Two daemons, one on each device of the guest that tests/rdma/guest boots: what one has, the
 * other reads; and nothing that happens to the wire or to either of them costs more than a miss.
 */
#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "proto/wire.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"

#define KIB        (UINT64_C(1) << 10)
#define MIB        (UINT64_C(1) << 20)
#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define N_MAX      64u
#define HINT_A     "10.1.0.1:7428"
#define HINT_B     "10.1.0.2:7428"
#define SECRET     "/tmp/secret"

/* One daemon and an engine on it. */
struct node {
        struct daemon_fixture fixture;
        struct kvt_session *session;
        struct kvt_object objects[N_MAX];
        uint8_t boot_id[16];
};

static struct node a, b;

static const char *const overrides_a[] = {"rdma.listen=10.1.0.1:7428", "rdma.secret=" SECRET,
                                          "rdma.allow=10.1.0.0/24",
                                          "rdma.peers=10.1.0.2,10.1.0.1:7999", NULL};
static const char *const overrides_b[] = {"rdma.listen=10.1.0.2:7428", "rdma.secret=" SECRET,
                                          "rdma.allow=10.1.0.0/24",
                                          "rdma.peers=10.1.0.1,10.1.0.2,10.1.0.1:7999", NULL};

static void wire(const char *arguments)
{
        char command[128];

        snprintf(command, sizeof(command), "wire %s", arguments);
        ck_assert_int_eq(system(command), 0);
}

static void write_secret(void)
{
        FILE *file = fopen(SECRET, "we");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
        fputs("default a-secret-of-the-two-nodes\n", file);
        ck_assert_int_eq(fclose(file), 0);
}

static void open_engine(struct node *node)
{
        static const struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {
                .size = sizeof(layout), .model = "peers", .groups = &group, .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = node->fixture.socket,
                                      .layout = &layout,
                                      .connect_timeout_ns = SECONDS(60)};
        struct kvt_session_info info = {.size = sizeof(info)};
        char why[256];

        ck_assert_msg(kvt_open(&node->session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        ck_assert_int_eq(kvt_session_info(node->session, &info), KVT_OK);
        memcpy(node->boot_id, info.boot_id, sizeof(info.boot_id));
}

/* Descriptors of b are counted when a has a session: those of a speak for both. */
static void start(struct node *node, const char *const *overrides, uint64_t piece_bytes)
{
        struct daemon_options options = {.overrides = overrides,
                                         .piece_bytes = piece_bytes,
                                         .n_pieces = piece_bytes ? 1 : 0,
                                         .keeps_fds = node != &a};

        daemon_fixture_init(&node->fixture, &options);
        open_engine(node);
}

static void start_both(uint64_t piece_bytes)
{
        write_secret();
        wire("up");
        wire("bad");
        start(&a, overrides_a, piece_bytes);
        start(&b, overrides_b, piece_bytes);
}

static void stop_both(void)
{
        kvt_close(b.session);
        kvt_close(a.session);
        if (b.fixture.pid)
                daemon_stop(&b.fixture);
        daemon_fixture_deinit(&a.fixture);
        daemon_fixture_deinit(&b.fixture);
}

/* Names @n objects of @bytes, the first with number @first. */
static void name(struct node *node, uint64_t first, unsigned n, uint64_t bytes)
{
        memset(node->objects, 0, sizeof(node->objects));
        for (unsigned i = 0; i < n; i++) {
                struct digest digest;

                content_digest(&digest, first + i);
                memcpy(&node->objects[i].digest, &digest, sizeof(digest));
                node->objects[i].bytes = bytes;
                node->objects[i].boundary_tokens = 64;
        }
}

static struct kvt_call waited(uint32_t flags, uint64_t timeout_ns)
{
        return (struct kvt_call){.size = sizeof(struct kvt_call),
                                 .flags = KVT_CALL_WAITED | flags,
                                 .timeout_ns = timeout_ns};
}

static uint32_t wait_for(struct node *node, uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(node->session, id, &completion, SECONDS(120)), KVT_OK);
        return completion.status;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static uint32_t run(struct node *node, submit_fn submit, unsigned n, uint32_t flags)
{
        struct kvt_call call = waited(flags, flags & KVT_CALL_WAIT ? SECONDS(60) : 0);
        uint64_t id;

        ck_assert_int_eq(submit(node->session, &call, node->objects, n, &id), KVT_OK);
        return wait_for(node, id);
}

static void fill(const struct kvt_object *object, uint64_t number)
{
        uint64_t offset = 0;

        for (uint32_t i = 0; i < object->n_segments; i++) {
                content_fill(object->segments[i].address, offset, object->segments[i].bytes, number,
                             0);
                offset += object->segments[i].bytes;
        }
}

static bool holds(const struct kvt_object *object, uint64_t number)
{
        uint64_t offset = 0;

        for (uint32_t i = 0; i < object->n_segments; i++) {
                if (!content_is(object->segments[i].address, offset, object->segments[i].bytes,
                                number, 0))
                        return false;
                offset += object->segments[i].bytes;
        }
        return offset == object->bytes;
}

static void store(struct node *node, uint64_t first, unsigned n, uint64_t bytes)
{
        name(node, first, n, bytes);
        ck_assert_uint_eq(run(node, kvt_reserve, n, 0), KVT_OK);
        for (unsigned i = 0; i < n; i++)
                fill(&node->objects[i], first + i);
        ck_assert_uint_eq(run(node, kvt_commit, n, 0), KVT_OK);
}

static uint64_t begin_prefetch(struct node *node, unsigned n, const char *hint, uint64_t timeout_ns)
{
        struct kvt_call call = waited(timeout_ns ? KVT_CALL_WAIT : 0, timeout_ns);
        uint64_t id;

        ck_assert_int_eq(kvt_prefetch(node->session, &call, hint, node->objects, n, &id), KVT_OK);
        return id;
}

static uint32_t prefetch(struct node *node, unsigned n, const char *hint)
{
        return wait_for(node, begin_prefetch(node, n, hint, 0));
}

/* Leases the objects, which must be in host memory, and looks at each byte. */
static void expect_bytes(struct node *node, uint64_t first, unsigned n)
{
        ck_assert_uint_eq(run(node, kvt_acquire, n, KVT_CALL_RESIDENT), KVT_OK);
        for (unsigned i = 0; i < n; i++)
                ck_assert_msg(holds(&node->objects[i], first + i), "object %u has other bytes", i);
        ck_assert_uint_eq(run(node, kvt_release, n, 0), KVT_OK);
}

static json_int_t number_of(struct node *node, const char *section, const char *key)
{
        json_t *status = daemon_ask(&node->fixture, "{\"command\":\"status\"}");
        json_int_t number;

        if (!status)
                daemon_expect_alive(&node->fixture);
        ck_assert_msg(status != NULL, "no answer to status");
        number = json_integer_value(json_object_get(json_object_get(status, section), key));
        json_decref(status);
        return number;
}

static void expect_soon(struct node *node, const char *section, const char *key, json_int_t value)
{
        uint64_t deadline = daemon_now_ms() + 60000; /* the guest's processor is emulated */

        while (number_of(node, section, key) != value) {
                ck_assert_msg(daemon_now_ms() < deadline, "%s.%s is %" PRId64 ", not %" PRId64,
                              section, key, (int64_t)number_of(node, section, key), (int64_t)value);
                daemon_pause();
        }
}

/* Nothing of what a peer was lent is left. */
static void expect_all_given_back(struct node *node)
{
        expect_soon(node, "rdma", "peer_leased_bytes", 0);
        expect_soon(node, "rdma", "windows_bound", 0);
        ck_assert_int_eq(number_of(node, "rdma", "peer_wanted_objects"), 0);
}

/* ---- reads ---- */

START_TEST(objects_of_every_size_come_from_a_peer)
{
        static const uint64_t sizes[] = {1, 4095, 4096, 4097, 256 * KIB, MIB + 1, 64 * MIB};

        start_both(160 * MIB);
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                store(&a, i, 1, sizes[i]);
                name(&b, i, 1, sizes[i]);
                ck_assert_uint_eq(prefetch(&b, 1, NULL), KVT_MISS);
                ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_OK);
                ck_assert_uint_eq(run(&b, kvt_acquire, 1, 0), KVT_OK);
                ck_assert(holds(&b.objects[0], i));
                ck_assert_uint_eq(b.objects[0].bytes, sizes[i]);
                ck_assert(!memcmp(b.objects[0].writer_boot_id, a.boot_id, 16));
                ck_assert_uint_ne(b.objects[0].stored_ns, 0);
                ck_assert_uint_eq(run(&b, kvt_release, 1, 0), KVT_OK);
        }
        /* The copies of the peer stay, its leases and windows do not. */
        ck_assert_uint_eq(daemon_number(&a.fixture, "host.objects"), 7);
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

/* More than what one reader holds at a time: it comes alone, and so does the other. */
START_TEST(a_quarter_of_a_gibibyte_comes_from_a_peer)
{
        static const uint64_t sizes[] = {64 * MIB + 1, 256 * MIB};

        start_both(512 * MIB);
        for (unsigned i = 0; i < 2; i++) {
                store(&a, i, 1, sizes[i]);
                name(&b, i, 1, sizes[i]);
                ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_OK);
                expect_bytes(&b, i, 1);
        }
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

START_TEST(what_no_peer_has_is_a_miss_and_a_dead_peer_is_told)
{
        start_both(0);
        store(&a, 0, 2, MIB);
        name(&b, 0, 3, MIB);
        ck_assert_uint_eq(prefetch(&b, 3, HINT_A), KVT_MISS);
        ck_assert_uint_eq(b.objects[0].status, KVT_OK);
        ck_assert_uint_eq(b.objects[1].status, KVT_OK);
        ck_assert_uint_eq(b.objects[2].status, KVT_MISS);
        expect_bytes(&b, 0, 2);
        name(&b, 10, 2, MIB);
        ck_assert_uint_eq(prefetch(&b, 2, "10.1.0.9:7428"), KVT_UNSUPPORTED);
        ck_assert_uint_eq(prefetch(&b, 2, "10.1.0.1:7999"), KVT_UNAVAILABLE);
        ck_assert_uint_eq(prefetch(&b, 2, HINT_B), KVT_UNAVAILABLE); /* itself */
        ck_assert_uint_eq(prefetch(&b, 2, HINT_B), KVT_UNSUPPORTED);
        /* The other way: each asks on a connection of its own. */
        store(&b, 20, 3, 3 * KIB);
        name(&a, 20, 3, 3 * KIB);
        ck_assert_uint_eq(prefetch(&a, 3, HINT_B), KVT_OK);
        expect_bytes(&a, 20, 3);
        expect_all_given_back(&a);
        expect_all_given_back(&b);
        stop_both();
}
END_TEST

START_TEST(what_does_not_fit_is_told_and_holds_nothing)
{
        start_both(0);
        store(&a, 0, 40, MIB);
        store(&b, 100, 50, MIB);
        name(&b, 100, 50, MIB);
        ck_assert_uint_eq(run(&b, kvt_acquire, 50, 0), KVT_OK);
        {
                struct kvt_object leased[N_MAX];

                memcpy(leased, b.objects, sizeof(leased));
                name(&b, 0, 40, MIB);
                ck_assert_uint_eq(prefetch(&b, 40, HINT_A), KVT_BUSY);
                memcpy(b.objects, leased, sizeof(leased));
        }
        ck_assert_uint_eq(run(&b, kvt_release, 50, 0), KVT_OK);
        expect_all_given_back(&a);
        name(&b, 0, 40, MIB);
        ck_assert_uint_eq(prefetch(&b, 40, HINT_A), KVT_OK);
        expect_bytes(&b, 0, 40);
        stop_both();
}
END_TEST

START_TEST(a_wait_ends_at_its_deadline_and_by_cancel)
{
        uint64_t id, cancel, began, took;
        struct kvt_call call = waited(0, 0);

        start_both(0);
        name(&b, 0, 3, MIB);
        began = daemon_now_ms();
        ck_assert_uint_eq(wait_for(&b, begin_prefetch(&b, 3, HINT_A, SECONDS(1))), KVT_TIMEOUT);
        took = daemon_now_ms() - began;
        ck_assert_uint_ge(took, 990); /* timers count whole milliseconds */
        ck_assert_uint_lt(took, 5000);
        id = begin_prefetch(&b, 3, HINT_A, SECONDS(60));
        expect_soon(&a, "rdma", "peer_wanted_objects", 3);
        ck_assert_int_eq(kvt_cancel(b.session, &call, id, &cancel), KVT_OK);
        ck_assert_uint_eq(wait_for(&b, cancel), KVT_OK);
        expect_soon(&a, "rdma", "peer_wanted_objects", 0);
        stop_both();
}
END_TEST

/* Asks for as much as one session may that will never be there; to be freed after it. */
static struct kvt_object *want_much(struct node *node, uint64_t first)
{
        struct kvt_call call = waited(KVT_CALL_WAIT, SECONDS(60));
        struct kvt_object *wanted = calloc(WIRE_ITEMS_MAX, sizeof(*wanted));
        uint64_t id;

        ck_assert_ptr_nonnull(wanted);
        for (uint32_t i = 0; i < WIRE_ITEMS_MAX; i++) {
                struct digest digest;

                content_digest(&digest, first + i);
                memcpy(&wanted[i].digest, &digest, sizeof(digest));
                wanted[i].bytes = KIB;
                wanted[i].boundary_tokens = 64;
        }
        ck_assert_int_eq(kvt_prefetch(node->session, &call, HINT_A, wanted, WIRE_ITEMS_MAX, &id),
                         KVT_OK);
        return wanted;
}

START_TEST(who_asks_for_too_much_is_told_and_stays_connected)
{
        struct kvt_object *wanted[2];
        struct kvt_session *mine;
        struct node others[2];

        start_both(0);
        store(&a, 0, 1, KIB);
        mine = b.session;
        for (unsigned i = 0; i < 2; i++) {
                open_engine(&b);
                others[i] = b;
                wanted[i] = want_much(&others[i], 1000000 * (i + 1));
        }
        b.session = mine;
        expect_soon(&a, "rdma", "peer_wanted_objects", 2 * (json_int_t)WIRE_ITEMS_MAX);
        name(&b, 0, 1, KIB);
        ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_BUSY);
        ck_assert_int_eq(number_of(&a, "rdma", "peer_wanted_objects"),
                         2 * (json_int_t)WIRE_ITEMS_MAX);
        for (unsigned i = 0; i < 2; i++) {
                kvt_close(others[i].session);
                free(wanted[i]);
        }
        expect_soon(&a, "rdma", "peer_wanted_objects", 0);
        ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_OK);
        expect_bytes(&b, 0, 1);
        stop_both();
}
END_TEST

/* Somebody on the peer alters bytes that have been hashed: the reader sees it, keeps nothing. */
START_TEST(bytes_that_do_not_fit_their_checksum_are_not_published)
{
        start_both(0);
        store(&a, 0, 1, MIB);
        name(&b, 0, 1, MIB);
        ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_OK);
        daemon_evict(&b.fixture, NULL);
        ck_assert_uint_eq(run(&a, kvt_acquire, 1, 0), KVT_OK);
        ((uint8_t *)a.objects[0].segments[0].address)[300000] ^= 1;
        ck_assert_uint_eq(run(&a, kvt_release, 1, 0), KVT_OK);
        ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_CORRUPT);
        ck_assert_uint_eq(daemon_number(&b.fixture, "host.objects"), 0);
        ck_assert_uint_eq(daemon_number(&b.fixture, "host.used_bytes"), 0);
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

START_TEST(a_peer_promotes_what_it_has_on_nvme)
{
        static const char *const overrides[] = {
                "rdma.listen=10.1.0.1:7428", "rdma.secret=" SECRET,
                "rdma.allow=10.1.0.0/24", "nvme.paths=/dev/ram0,/dev/ram1,/dev/ram2,/dev/ram3",
                "nvme.bytes=64MiB", "nvme.catalog=/var/tmp/catalog", "nvme.write=store", NULL};

        write_secret();
        wire("up");
        wire("bad");
        start(&a, overrides, 0);
        start(&b, overrides_b, 0);
        store(&a, 0, 12, MIB);
        daemon_wait_written(&a.fixture);
        daemon_evict(&a.fixture, "host");
        daemon_wait_number(&a.fixture, "host.objects", 0);
        name(&b, 0, 12, MIB);
        ck_assert_uint_eq(prefetch(&b, 12, HINT_A), KVT_OK);
        expect_bytes(&b, 0, 12);
        ck_assert_uint_eq(daemon_number(&a.fixture, "host.objects"), 12);
        expect_all_given_back(&a);
        stop_both();
        ck_assert_int_eq(system("rm -rf /var/tmp/catalog"), 0);
}
END_TEST

START_TEST(every_address_of_a_name_is_a_peer)
{
        static const char *const overrides[] = {"rdma.listen=10.1.0.2:7428", "rdma.secret=" SECRET,
                                                "rdma.allow=10.1.0.0/24",
                                                "rdma.peers=node-a,nobody", NULL};
        uint64_t deadline = daemon_now_ms() + 20000;

        ck_assert_int_eq(system("echo 10.1.0.1 node-a >/etc/hosts"), 0);
        write_secret();
        wire("up");
        wire("bad");
        start(&a, overrides_a, 0);
        start(&b, overrides, 0);
        store(&a, 0, 2, MIB);
        name(&b, 0, 2, MIB);
        while (prefetch(&b, 2, "node-a") == KVT_UNSUPPORTED) { /* until it is looked up */
                ck_assert_uint_lt(daemon_now_ms(), deadline);
                daemon_pause();
        }
        expect_bytes(&b, 0, 2);
        name(&b, 5, 1, MIB);
        ck_assert_uint_eq(prefetch(&b, 1, HINT_A), KVT_MISS);
        ck_assert_uint_eq(prefetch(&b, 1, "nobody"), KVT_UNSUPPORTED);
        stop_both();
}
END_TEST

/* ---- hand-over ---- */

#define N_CHUNKS 16u

static double since(uint64_t began_ns)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)((uint64_t)now.tv_sec * SECONDS(1) + (uint64_t)now.tv_nsec - began_ns) / 1e6;
}

static void take_arrived(double arrived[N_CHUNKS], uint64_t began_ns, uint64_t timeout_ns,
                         unsigned *n_arrived)
{
        struct kvt_completion done[N_CHUNKS];
        size_t n = kvt_wait(b.session, done, N_CHUNKS, timeout_ns);

        for (size_t i = 0; i < n; i++) {
                unsigned chunk = (unsigned)(uintptr_t)done[i].user;

                ck_assert_uint_eq(done[i].status, KVT_OK);
                arrived[chunk] = since(began_ns);
                ck_assert(holds(&b.objects[chunk], chunk));
                (*n_arrived)++;
        }
}

static double checksum_ms(struct node *node)
{
        json_t *status = daemon_ask(&node->fixture, "{\"command\":\"status\"}");
        double seconds =
                json_real_value(json_object_get(json_object_get(status, "checksums"), "seconds"));

        json_decref(status);
        return seconds * 1e3;
}

/* Prefill stores on A, chunk by chunk; decode has asked before, and loads on B as they come. */
START_TEST(a_prefill_is_handed_over_chunk_by_chunk)
{
        double committed[N_CHUNKS], arrived[N_CHUNKS] = {0};
        struct kvt_object expected[N_CHUNKS];
        unsigned n_arrived = 0;
        uint64_t began_ns = 0, id;

        start_both(0);
        name(&b, 0, N_CHUNKS, MIB);
        memcpy(expected, b.objects, sizeof(expected));
        {
                struct kvt_call call = waited(KVT_CALL_WAIT, SECONDS(60));

                ck_assert_int_eq(
                        kvt_prefetch(b.session, &call, HINT_A, expected, N_CHUNKS, &id), KVT_OK);
        }
        for (uintptr_t i = 0; i < N_CHUNKS; i++) {
                struct kvt_call call = {.size = sizeof(call),
                                        .flags = KVT_CALL_WAIT,
                                        .timeout_ns = SECONDS(60),
                                        .user = (void *)i};

                ck_assert_int_eq(kvt_acquire(b.session, &call, &b.objects[i], 1, NULL), KVT_OK);
        }
        expect_soon(&a, "rdma", "peer_wanted_objects", N_CHUNKS);
        began_ns = (uint64_t)(since(0) * 1e6);
        for (unsigned i = 0; i < N_CHUNKS; i++) {
                store(&a, i, 1, MIB);
                committed[i] = since(began_ns);
                /* Decode has each chunk while prefill computes the next but one. */
                while (i && !arrived[i - 1])
                        take_arrived(arrived, began_ns, SECONDS(60), &n_arrived);
        }
        while (n_arrived < N_CHUNKS)
                take_arrived(arrived, began_ns, SECONDS(60), &n_arrived);
        ck_assert_uint_eq(wait_for(&b, id), KVT_OK);
        printf("| hand-over of %u chunks of 1 MiB, milliseconds since prefill began:\n", N_CHUNKS);
        printf("|   chunk committed on A  loaded on B  between\n");
        for (unsigned i = 0; i < N_CHUNKS; i++)
                printf("|   %5u %14.1f %12.1f %8.1f\n", i, committed[i], arrived[i],
                       arrived[i] - committed[i]);
        printf("|   checksums: %.2f ms on A (computed), %.2f ms on B (verified)\n", checksum_ms(&a),
               checksum_ms(&b));
        ck_assert_uint_eq(run(&b, kvt_release, N_CHUNKS, 0), KVT_OK);
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

/* ---- trouble ---- */

START_TEST(loss_and_delay_cost_time_and_no_byte)
{
        start_both(0);
        store(&a, 0, 16, 256 * KIB);
        wire("bad loss 1% delay 5ms");
        name(&b, 0, 16, 256 * KIB);
        ck_assert_uint_eq(prefetch(&b, 16, HINT_A), KVT_OK);
        wire("bad");
        expect_bytes(&b, 0, 16);
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

/* Slow enough to be met in the middle; returns once something has arrived. */
static uint64_t begin_slowly(unsigned n)
{
        uint64_t id;

        store(&a, 0, n, MIB);
        wire("bad rate 50mbit");
        name(&b, 0, n, MIB);
        id = begin_prefetch(&b, n, HINT_A, 0);
        while (!daemon_number(&b.fixture, "host.objects"))
                daemon_pause();
        return id;
}

static void expect_a_break(uint64_t id, unsigned n)
{
        uint64_t began = daemon_now_ms();
        unsigned n_here = 0;

        ck_assert_uint_eq(wait_for(&b, id), KVT_UNAVAILABLE);
        ck_assert_uint_lt(daemon_now_ms() - began, 8000);
        for (unsigned i = 0; i < n; i++) {
                ck_assert(b.objects[i].status == KVT_OK ||
                          b.objects[i].status == KVT_UNAVAILABLE);
                n_here += b.objects[i].status == KVT_OK;
        }
        ck_assert_uint_gt(n_here, 0);
        ck_assert_uint_lt(n_here, n);
        ck_assert_uint_eq(daemon_number(&b.fixture, "host.objects"), n_here);
        ck_assert_uint_eq(daemon_number(&b.fixture, "host.leased_bytes"), 0);
        for (unsigned i = 0; i < n; i++) {
                if (b.objects[i].status != KVT_OK)
                        continue;
                b.objects[0] = b.objects[i];
                expect_bytes(&b, i, 1);
                break;
        }
}

START_TEST(a_peer_that_is_killed_is_a_miss_and_is_fresh_when_it_is_back)
{
        uint64_t id, deadline;

        start_both(0);
        id = begin_slowly(32);
        daemon_kill(&a.fixture);
        expect_a_break(id, 32);
        wire("bad");
        daemon_start(&a.fixture);
        name(&b, 100, 1, MIB);
        deadline = daemon_now_ms() + 20000;
        while (prefetch(&b, 1, HINT_A) != KVT_MISS) /* back-off */
                ck_assert_uint_lt(daemon_now_ms(), deadline);
        stop_both();
}
END_TEST

START_TEST(a_wire_that_dies_is_a_miss_and_serves_when_it_is_back)
{
        uint64_t id, deadline;

        start_both(0);
        id = begin_slowly(32);
        wire("bad loss 100%");
        expect_a_break(id, 32);
        expect_all_given_back(&a);
        wire("bad");
        name(&b, 0, 32, MIB);
        deadline = daemon_now_ms() + 60000;
        while (prefetch(&b, 32, HINT_A) != KVT_OK) {
                ck_assert_uint_lt(daemon_now_ms(), deadline);
                daemon_pause();
        }
        expect_bytes(&b, 0, 32);
        stop_both();
}
END_TEST

START_TEST(a_link_that_goes_down_is_a_miss_and_gives_everything_back)
{
        uint64_t id;

        start_both(0);
        id = begin_slowly(32);
        wire("down");
        expect_a_break(id, 32);
        expect_all_given_back(&a);
        stop_both();
}
END_TEST

START_TEST(a_reader_that_dies_leaves_no_lease_and_no_window)
{
        start_both(0);
        begin_slowly(32);
        ck_assert_int_gt(number_of(&a, "rdma", "peer_leased_bytes"), 0);
        daemon_kill(&b.fixture);
        expect_all_given_back(&a);
        wire("bad");
        stop_both();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                objects_of_every_size_come_from_a_peer,
                a_quarter_of_a_gibibyte_comes_from_a_peer,
                what_no_peer_has_is_a_miss_and_a_dead_peer_is_told,
                what_does_not_fit_is_told_and_holds_nothing,
                a_wait_ends_at_its_deadline_and_by_cancel,
                who_asks_for_too_much_is_told_and_stays_connected,
                bytes_that_do_not_fit_their_checksum_are_not_published,
                a_peer_promotes_what_it_has_on_nvme,
                every_address_of_a_name_is_a_peer,
                a_prefill_is_handed_over_chunk_by_chunk,
                loss_and_delay_cost_time_and_no_byte,
                a_peer_that_is_killed_is_a_miss_and_is_fresh_when_it_is_back,
                a_wire_that_dies_is_a_miss_and_serves_when_it_is_back,
                a_reader_that_dies_leaves_no_lease_and_no_window,
                a_link_that_goes_down_is_a_miss_and_gives_everything_back, /* last: it stays */
        };
        Suite *suite = suite_create("rdma/peers");
        SRunner *runner;
        int n_run, n_failed;

        for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
                TCase *tcase = tcase_create(tests[i]->name);

                tcase_set_timeout(tcase, 120);
                tcase_add_test(tcase, tests[i]);
                suite_add_tcase(suite, tcase);
        }
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_run = srunner_ntests_run(runner);
        n_failed = srunner_ntests_failed(runner);
        printf("%d passed, %d failed, 0 skipped\n", n_run - n_failed, n_failed);
        srunner_free(runner);
        return n_failed != 0;
}
