// SPDX-License-Identifier: Apache-2.0
/*
 * Reclaim against an obvious reference, on random trees that change between the turns: all
 * that hung on a boundary goes, and nothing else does. Objects lie in a tier that forgets
 * when the test says so, so that a full queue is met as well.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/mark.h"
#include "daemon/session_socket.h"

#define N_NAMES 4000u

static struct daemon *daemon_;
static struct session *session;
static struct tier tier;
static struct tier_forget *forgets[4096];
static unsigned n_forgets;
static struct mark_result result;
static bool has_ended;

/* The reference: by name, as it was stored. Name 0 is no boundary. */
static uint32_t parents[N_NAMES];
static bool is_stored[N_NAMES];

static uint64_t footprint(struct tier *self, uint64_t raw_bytes, uint32_t n_covers)
{
        return raw_bytes;
}

static void forget(struct tier *self, struct tier_place place, const struct object_key *key,
                   bool sync, struct tier_forget *request)
{
        ck_assert_uint_lt(n_forgets, 4096);
        forgets[n_forgets++] = request;
}

static void usage(struct tier *self, struct tier_usage *ret_usage)
{
        *ret_usage = (struct tier_usage){0};
}

static void free_forgotten(void)
{
        while (n_forgets) {
                struct tier_forget *request = forgets[--n_forgets];

                request->on_freed(request, 0);
        }
}

static void setup(uint64_t objects_max)
{
        static const struct digest layout_id = {{42}};
        uint16_t layout;

        daemon_ = calloc(1, sizeof(*daemon_));
        session = calloc(1, sizeof(*session));
        ck_assert(daemon_ && session);
        session->carrier = &session_socket_carrier;
        session->fd = -1;
        daemon_->is_closing = true; /* there is no loop to wake */
        daemon_->recovered = true;
        TAILQ_INIT(&daemon_->sessions);
        marks_init(&daemon_->marks);
        ck_assert_int_eq(index_new(&daemon_->cache.index, objects_max, NULL), 0);
        ck_assert_int_eq(index_layout(daemon_->cache.index, 0, &layout_id, &layout), 0);
        index_pins(daemon_->cache.index)->bytes_max[INDEX_NVME] = UINT64_MAX;
        daemon_->cache.metrics = &daemon_->metrics;
        tier.ops.forget = forget;
        tier.ops.footprint = footprint;
        tier.ops.usage = usage;
        daemon_->cache.nvme = &tier;
        daemon_->cache.transfers.stopped = true;
        session->daemon = daemon_;
        memset(is_stored, 0, sizeof(is_stored));
        n_forgets = 0;
}

static void teardown(void)
{
        marks_deinit(daemon_);
        free_forgotten();
        index_free(daemon_->cache.index);
        free(session);
        free(daemon_);
}

static struct digest digest_of(uint32_t name)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &name, sizeof(name));
        return digest;
}

static struct index_boundary *find(uint32_t name)
{
        struct digest digest = digest_of(name);

        return index_find_boundary(daemon_->cache.index, 1, &digest);
}

/* A parent has a lower name than its children. */
static void store(uint32_t name, uint32_t parent)
{
        struct index_new_object object = {
                .layout = 1,
                .digest = digest_of(name),
                .parent = digest_of(parent),
                .boundary_tokens = name,
                .raw_bytes = 4096,
        };
        struct index_object *added;

        /* What the index does not know (any more) is a place without a parent. */
        if (!find(parent))
                parents[parent] = 0;
        ck_assert_int_eq(index_add(daemon_->cache.index, &object, &added), 0);
        index_set_place(daemon_->cache.index, added, (struct tier_place){name, name});
        parents[name] = parent;
        is_stored[name] = true;
}

static void evict(uint32_t name)
{
        struct index_object *object =
                index_object_at(daemon_->cache.index, find(name)->first_object);

        index_set_place(daemon_->cache.index, object, (struct tier_place){0});
        index_remove(daemon_->cache.index, object);
        is_stored[name] = false;
}

static bool is_in_index(uint32_t name)
{
        const struct index_boundary *boundary = find(name);

        return boundary && boundary->first_object;
}

static void on_end(struct session *by, uint64_t request, const struct mark_result *from)
{
        result = *from;
        has_ended = true;
}

static void begin(uint32_t name, uint32_t flags)
{
        struct digest digest = digest_of(name);

        has_ended = false;
        ck_assert_int_eq(mark_by_admin(session, 1, 1, &digest, flags, on_end), 0);
}

static uint32_t mark(uint32_t name, uint32_t flags)
{
        begin(name, flags);
        while (!has_ended) {
                marks_go_on(daemon_);
                free_forgotten();
        }
        return result.status;
}

static bool is_below(uint32_t name, uint32_t above)
{
        for (name = parents[name]; name; name = parents[name])
                if (name == above)
                        return true;
        return false;
}

static void forget_reference(uint32_t name)
{
        for (uint32_t i = 1; i < N_NAMES; i++)
                if (is_stored[i] && is_below(i, name))
                        is_stored[i] = false;
}

static void expect_reference(void)
{
        for (uint32_t i = 1; i < N_NAMES; i++)
                ck_assert_msg(is_in_index(i) == is_stored[i], "boundary %u is %s", i,
                              is_stored[i] ? "gone" : "there");
}

START_TEST(all_that_hangs_on_a_boundary_goes_and_nothing_else)
{
        setup(N_NAMES);
        srand((unsigned)_i + 1);
        for (uint32_t i = 1; i < N_NAMES; i++)
                store(i, (uint32_t)rand() % (i < 50 ? i : 50 + (i - 50) / 2));
        for (unsigned round = 0; round < 60; round++) {
                uint32_t name = 1 + (uint32_t)rand() % (N_NAMES - 1);
                bool is_known = find(name);

                for (unsigned i = 0; i < 20; i++) {
                        uint32_t other = 1 + (uint32_t)rand() % (N_NAMES - 1);

                        if (is_stored[other] && other != name)
                                evict(other);
                        else if (!is_stored[other] && !find(other))
                                store(other, (uint32_t)rand() % other);
                }
                is_known = find(name);
                ck_assert_uint_eq(mark(name, WIRE_MARK_RECLAIM_BELOW),
                                  is_known ? KVT_WIRE_OK : KVT_WIRE_MISS);
                if (is_known)
                        forget_reference(name);
                expect_reference();
        }
        teardown();
}
END_TEST

/*
 * Ids are used again at once, those that the walk has passed and then those that are still
 * before it: what is new must not inherit what was found out of the old.
 */
START_TEST(what_is_stored_between_the_turns_is_not_taken_for_what_it_replaces)
{
        uint32_t n_turns = 0, next = 3000, last = 2;

        setup(N_NAMES);
        store(1, 0);
        store(2, 0);
        for (uint32_t i = 3; i < 300; i++)
                store(i, 2);
        for (uint32_t i = 300; i < 3000; i++)
                store(i, i % 2 ? 1 : 2);
        for (uint32_t i = 3; i < 300; i++)
                evict(i);
        for (begin(1, WIRE_MARK_RECLAIM_BELOW); !has_ended; n_turns++) {
                marks_go_on(daemon_);
                free_forgotten();
                for (unsigned i = 0; i < 800 && next < N_NAMES; i++, last = next++)
                        store(next, last);
        }
        ck_assert_uint_gt(n_turns, 2);
        forget_reference(1);
        expect_reference();
        ck_assert_uint_eq(result.objects, 1350);
        teardown();
}
END_TEST

START_TEST(no_more_is_forgotten_at_once_than_the_tier_is_asked_to_bear)
{
        setup(N_NAMES);
        store(1, 0);
        for (uint32_t i = 2; i < N_NAMES; i++)
                store(i, 1);
        begin(1, WIRE_MARK_RECLAIM_BELOW);
        for (unsigned i = 0; i < 50; i++)
                marks_go_on(daemon_);
        ck_assert(!has_ended);
        ck_assert_uint_le(n_forgets, 2048);
        while (!has_ended) {
                free_forgotten();
                marks_go_on(daemon_);
        }
        teardown();
}
END_TEST

START_TEST(a_prefix_ends_where_something_else_begins)
{
        setup(N_NAMES);
        for (uint32_t i = 1; i < 2000; i++)
                store(i, i - 1);
        store(2500, 700);
        /* A place in the tree without bytes is no reason to stop. */
        evict(900);
        evict(1800);
        ck_assert_uint_eq(mark(1999, WIRE_MARK_RECLAIM_PREFIX), KVT_WIRE_OK);
        for (uint32_t i = 701; i < 2000; i++)
                is_stored[i] = false;
        expect_reference();
        ck_assert_uint_eq(mark(700, WIRE_MARK_RECLAIM_PREFIX), KVT_WIRE_BUSY);
        expect_reference();
        ck_assert_uint_eq(mark(2500, WIRE_MARK_RECLAIM_PREFIX), KVT_WIRE_OK);
        memset(is_stored, 0, sizeof(is_stored));
        expect_reference();
        ck_assert_ptr_null(find(1));
        teardown();
}
END_TEST

START_TEST(a_pin_below_keeps_its_chain_and_lets_the_rest_go)
{
        setup(N_NAMES);
        for (uint32_t i = 1; i < 100; i++)
                store(i, i / 2);
        ck_assert_uint_eq(mark(21, WIRE_MARK_PIN), KVT_WIRE_OK);
        ck_assert_uint_eq(mark(1, WIRE_MARK_RECLAIM_BELOW), KVT_WIRE_OK);
        ck_assert_uint_eq(result.kept, 4);
        memset(is_stored, 0, sizeof(is_stored));
        is_stored[1] = is_stored[2] = is_stored[5] = is_stored[10] = is_stored[21] = true;
        expect_reference();
        teardown();
}
END_TEST

/* Each goes up to the root before it knows that there is no room for it. */
START_TEST(long_chains_are_not_pinned_in_one_turn)
{
        unsigned n_turns = 0;

        setup(N_NAMES);
        for (uint32_t name = 1; name < 3000; name++)
                store(name, name - 1);
        for (unsigned i = 0; i < 20; i++)
                begin(2999, WIRE_MARK_PIN);
        index_pins(daemon_->cache.index)->bytes_max[INDEX_NVME] = 0;
        for (; daemon_->marks.n_items; n_turns++) {
                uint64_t before = index_pins(daemon_->cache.index)->n_steps;

                marks_go_on(daemon_);
                ck_assert_uint_le(index_pins(daemon_->cache.index)->n_steps - before, 2 * 8192);
        }
        ck_assert_uint_ge(n_turns, 10);
        ck_assert_uint_eq(result.status, KVT_WIRE_REFUSED);
        teardown();
}
END_TEST

START_TEST(marks_wait_for_the_end_of_recovery)
{
        setup(N_NAMES);
        daemon_->recovered = false;
        begin(1, WIRE_MARK_PIN);
        marks_go_on(daemon_);
        ck_assert(!has_ended);
        store(1, 0);
        daemon_->recovered = true;
        marks_go_on(daemon_);
        ck_assert(has_ended);
        ck_assert_uint_eq(result.status, KVT_WIRE_OK);
        teardown();
}
END_TEST

/* ---- how much may wait ---- */

/* The only status of the answer that has come; PENDING: none has. */
static uint32_t answered(int client)
{
        static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        ssize_t n = recv(client, packet, sizeof(packet), MSG_DONTWAIT);
        struct message_cursor cursor;
        struct wire_result_item item;
        const struct wire_extent *extents;
        const uint64_t *pieces;

        if (n < 0)
                return KVT_WIRE_PENDING;
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_result(&cursor, &item, &extents, &pieces), 0);
        return item.status;
}

/* One request of @n marks, as it comes from the socket. */
static void ask_for(uint32_t n)
{
        static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        const struct wire_mark_item item = {.flags = WIRE_MARK_PIN};
        struct wire_batch batch = {.total = n, .layout = 1};

        session->layout = 1;
        message_header_init(&batch.header, WIRE_MARK, 7, 1, daemon_->boot_id);
        while (batch.first < n) {
                struct message_builder builder;

                message_builder_init(&builder, packet, &batch, sizeof(batch));
                while (batch.first < n && !message_append(&builder, &item, sizeof(item), 1))
                        batch.first++;
                message_set_more(&builder, batch.first < n);
                mark_request(session, (const void *)packet);
        }
}

START_TEST(what_waits_is_bounded_for_a_session_and_in_all)
{
        int pair[2];

        setup(N_NAMES);
        ck_assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair));
        session->fd = pair[0];
        session->state = SESSION_ATTACHED;
        TAILQ_INIT(&session->output);
        daemon_->recovered = false;
        for (uint32_t i = 1; i <= 16; i++) {
                ask_for(WIRE_ITEMS_MAX - 1);
                ask_for(1);
                ck_assert_uint_eq(answered(pair[1]), KVT_WIRE_PENDING);
                ask_for(1);
                ck_assert_uint_eq(answered(pair[1]), KVT_WIRE_REFUSED);
                /* What it asked for is done all the same, and counts until then. */
                marks_hang_up(session);
                ck_assert_uint_eq(daemon_->marks.n_items, i * WIRE_ITEMS_MAX);
        }
        ask_for(1);
        ck_assert_uint_eq(answered(pair[1]), KVT_WIRE_REFUSED);
        ck_assert_int_eq(mark_by_admin(session, 8, 1, &(struct digest){{1}}, WIRE_MARK_PIN, NULL),
                         -EBUSY);
        daemon_->recovered = true;
        while (daemon_->marks.n_items)
                marks_go_on(daemon_);
        ask_for(1);
        marks_go_on(daemon_);
        ck_assert_uint_eq(answered(pair[1]), KVT_WIRE_MISS);
        ck_assert_uint_eq(session->n_mark_items, 0);
        close(pair[0]);
        close(pair[1]);
        teardown();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/mark");
        TCase *tcase = tcase_create("marks");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, all_that_hangs_on_a_boundary_goes_and_nothing_else, 0, 8);
        tcase_add_test(tcase, what_is_stored_between_the_turns_is_not_taken_for_what_it_replaces);
        tcase_add_test(tcase, no_more_is_forgotten_at_once_than_the_tier_is_asked_to_bear);
        tcase_add_test(tcase, a_prefix_ends_where_something_else_begins);
        tcase_add_test(tcase, a_pin_below_keeps_its_chain_and_lets_the_rest_go);
        tcase_add_test(tcase, long_chains_are_not_pinned_in_one_turn);
        tcase_add_test(tcase, marks_wait_for_the_end_of_recovery);
        tcase_add_test(tcase, what_waits_is_bounded_for_a_session_and_in_all);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
