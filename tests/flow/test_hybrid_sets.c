// SPDX-License-Identifier: Apache-2.0
/*
 * What one process writes of one boundary, chunks and states, is published together or not
 * at all: whoever dies, whatever fails, whoever else writes the same.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define MIB   (UINT64_C(1) << 20)
#define CHUNK HYBRID_CHUNK_TOKENS
/* Objects of one boundary: two shards of chunk, window and state, and the indexer's one. */
#define N_MEMBERS 7u
#define SET       1000u

static struct daemon_fixture fixture;
static struct hybrid_engine writer, reader;
static struct hybrid_prompt prompt;
static struct kvt_object set[N_MEMBERS];

static void open_both(void)
{
        hybrid_open(&writer, fixture.socket, NULL);
        hybrid_open(&reader, fixture.socket, NULL);
        prompt = hybrid_prompt(&writer, 1, 2 * CHUNK + 1, NULL);
        ck_assert_uint_eq(hybrid_objects(&writer, &prompt, 1, HYBRID_ALL, set), N_MEMBERS);
}

static void start(const struct daemon_options *options)
{
        daemon_fixture_init(&fixture, options);
        open_both();
}

static void stop(void)
{
        hybrid_close(&writer);
        hybrid_close(&reader);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

/* Neither match nor an acquire of any single member finds a thing. */
static void expect_nothing(void)
{
        struct kvt_object object;
        uint64_t present;

        ck_assert_uint_eq(hybrid_match(&reader, &prompt).kv_boundaries, 0);
        ck_assert_int_eq(kvt_probe(reader.session, prompt.digests, 1, &present, NULL), KVT_OK);
        ck_assert_uint_eq(present, 0);
        for (unsigned i = 0; i < N_MEMBERS; i++) {
                object = set[i];
                ck_assert_uint_eq(hybrid_call(&reader, kvt_acquire, 0, &object, 1).status,
                                  KVT_MISS);
        }
}

static void expect_whole(uint64_t generation)
{
        uint64_t found;

        ck_assert_uint_eq(hybrid_match(&reader, &prompt).boundaries, 1);
        ck_assert_int_eq(hybrid_load_boundary(&reader, &prompt, 1, HYBRID_ALL, generation,
                                              generation, &found),
                         KVT_OK);
}

static void reserve_all(struct hybrid_engine *engine, struct kvt_object *objects,
                        uint64_t generation)
{
        ck_assert_uint_eq(hybrid_call(engine, kvt_reserve, SET, objects, N_MEMBERS).status, KVT_OK);
        hybrid_fill(objects, N_MEMBERS, generation);
}

START_TEST(nothing_of_a_set_shows_before_its_commit_and_all_of_it_after)
{
        start(NULL);
        reserve_all(&writer, set, 0);
        expect_nothing();
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_OK);
        expect_whole(0);
        stop();
}
END_TEST

START_TEST(the_abort_of_one_member_is_that_of_all)
{
        start(NULL);
        reserve_all(&writer, set, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_abort, SET, &set[3], 1).status, KVT_OK);
        expect_nothing();
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_GONE);
        expect_nothing();
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 0);
        stop();
}
END_TEST

START_TEST(a_commit_that_leaves_a_member_out_publishes_nothing)
{
        start(NULL);
        reserve_all(&writer, set, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS - 1).status,
                          KVT_INVALID);
        expect_nothing();
        /* Its leases go on: the whole set can still be committed. */
        ck_assert_uint_ne(set[0].lease, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_OK);
        expect_whole(0);
        stop();
}
END_TEST

/* Hangs up on every session; their leases are in quarantine until each says that it is done. */
static void kick_all(void)
{
        json_t *answer = daemon_ask(&fixture, "{\"command\":\"sessions\"}"), *session;
        char command[64];
        size_t i;

        json_array_foreach(json_object_get(answer, "sessions"), i, session)
        {
                snprintf(command, sizeof(command), "{\"command\":\"kick\",\"session\":%lld}",
                         json_integer_value(json_object_get(session, "session")));
                json_decref(daemon_ask(&fixture, command));
        }
        json_decref(answer);
}

static void wait_reconnected(struct hybrid_engine *engine)
{
        struct kvt_session_info info = {.size = sizeof(info)};

        do {
                daemon_pause();
                ck_assert_int_eq(kvt_session_info(engine->session, &info), KVT_OK);
        } while (!info.reconnects || !info.attached);
}

/*
 * After a hang-up a session says that its copies have ended when the caller has ended its
 * last lease. What a set only held is none of those.
 */
START_TEST(what_a_set_held_is_not_waited_for)
{
        struct kvt_object read, again[N_MEMBERS], part[N_MEMBERS];

        start(NULL);
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_KV, 0, 0), KVT_OK);
        /* A commit that names only what it writes. */
        memcpy(part, set, sizeof(part));
        reserve_all(&writer, part, 0);
        ck_assert_uint_eq(part[0].status, KVT_ALREADY_HAVE);
        ck_assert_uint_ne(part[0].lease, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, &part[N_MEMBERS - 2], 2).status,
                          KVT_OK);
        /* A set in which nothing is to be written. */
        memcpy(again, set, sizeof(again));
        ck_assert_uint_eq(hybrid_call(&writer, kvt_reserve, SET, again, N_MEMBERS).status, KVT_OK);
        for (unsigned i = 0; i < N_MEMBERS; i++) {
                ck_assert_uint_eq(again[i].status, KVT_ALREADY_HAVE);
                ck_assert_uint_eq(again[i].lease, 0);
        }
        /* A set that is open when the connection breaks. */
        hybrid_drop(&fixture, &prompt, 1, HYBRID_STATE, 0);
        memcpy(part, set, sizeof(part));
        reserve_all(&writer, part, 0);
        read = set[0];
        ck_assert_uint_eq(hybrid_call(&reader, kvt_acquire, 0, &read, 1).status, KVT_OK);

        kick_all();
        daemon_wait_number(&fixture, "quarantined", 2);
        wait_reconnected(&writer);
        wait_reconnected(&reader);
        ck_assert_uint_eq(hybrid_call(&reader, kvt_release, 0, &read, 1).status, KVT_GONE);
        for (unsigned i = 0; i < N_MEMBERS; i++)
                if (part[i].status == KVT_OK)
                        ck_assert_uint_eq(hybrid_call(&writer, kvt_abort, SET, &part[i], 1).status,
                                          KVT_GONE);
        daemon_wait_number(&fixture, "quarantined", 0);
        stop();
}
END_TEST

START_TEST(an_aborted_replacement_leaves_the_old_bytes)
{
        start(NULL);
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_ALL, 1, 0), KVT_OK);
        for (unsigned i = 0; i < N_MEMBERS; i++)
                set[i].flags = KVT_REPLACE;
        reserve_all(&writer, set, 2);
        expect_whole(1);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_abort, SET, set, N_MEMBERS).status, KVT_OK);
        expect_whole(1);
        stop();
}
END_TEST

START_TEST(sets_of_two_sessions_have_their_own_numbers)
{
        struct kvt_object other[N_MEMBERS];
        struct hybrid_prompt second;
        uint64_t found;

        start(NULL);
        second = hybrid_prompt(&reader, 2, 2 * CHUNK + 1, NULL);
        hybrid_objects(&reader, &second, 1, HYBRID_ALL, other);
        reserve_all(&writer, set, 0);
        reserve_all(&reader, other, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_abort, SET, set, N_MEMBERS).status, KVT_OK);
        ck_assert_uint_eq(hybrid_call(&reader, kvt_commit, SET, other, N_MEMBERS).status, KVT_OK);
        expect_nothing();
        ck_assert_int_eq(hybrid_load_boundary(&writer, &second, 1, HYBRID_ALL, 0, 0, &found),
                         KVT_OK);
        stop();
}
END_TEST

/* Eight groups of 128 shards: more than one message holds, and sixteen banks of bits. */
START_TEST(a_set_of_a_thousand_members_is_published_whole)
{
        char names[8][8];
        struct kvt_group groups[8];
        struct kvt_layout layout = hybrid_layout();
        struct hybrid_engine wide;
        struct hybrid_prompt long_prompt;

        for (unsigned i = 0; i < 8; i++) {
                snprintf(names[i], sizeof(names[i]), "%u", i);
                groups[i] = (struct kvt_group){
                        .name = names[i],
                        .kind = i ? KVT_GROUP_STATE : KVT_GROUP_ATTENTION,
                        .shards = HYBRID_MEMBERS_MAX / 8,
                        .page_tokens = i ? 0 : CHUNK,
                        .page_bytes = i ? 0 : 100,
                };
        }
        layout.groups = groups;
        layout.n_groups = 8;
        start(NULL);
        hybrid_open(&wide, fixture.socket, &layout);
        wide.state_bytes = 50;
        long_prompt = hybrid_prompt(&wide, 1, 2 * CHUNK + 1, NULL);
        hybrid_store_run(&wide, &long_prompt, 1, 2, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_usable(&wide, &long_prompt), 2);
        hybrid_drop(&fixture, &long_prompt, 2, 7, HYBRID_MEMBERS_MAX / 8 - 1);
        ck_assert_uint_eq(hybrid_usable(&wide, &long_prompt), 1);
        /* The others of its boundary are held while the missing one is added. */
        ck_assert_int_eq(hybrid_store(&wide, &long_prompt, 2, HYBRID_ALL, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&wide, &long_prompt), 2);
        hybrid_close(&wide);
        stop();
}
END_TEST

/* Waits for the whole boundary; the caller finishes the call. */
static uint64_t begin_waiting(struct kvt_object *objects)
{
        struct kvt_call call = {.size = sizeof(call),
                                .flags = KVT_CALL_WAITED | KVT_CALL_WAIT,
                                .timeout_ns = FLOW_TIMEOUT_NS};
        uint64_t id;

        memcpy(objects, set, sizeof(set));
        ck_assert_int_eq(kvt_acquire(reader.session, &call, objects, N_MEMBERS, &id), KVT_OK);
        return id;
}

START_TEST(a_reader_that_waits_for_a_set_gets_all_of_it_or_hears_that_it_ended)
{
        struct kvt_object wanted[N_MEMBERS];
        struct kvt_completion completion;
        uint64_t id;

        start(NULL);
        reserve_all(&writer, set, 0);
        id = begin_waiting(wanted);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_abort, SET, set, N_MEMBERS).status, KVT_OK);
        ck_assert_int_eq(kvt_wait_call(reader.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_MISS);

        reserve_all(&writer, set, 0);
        id = begin_waiting(wanted);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_OK);
        ck_assert_int_eq(kvt_wait_call(reader.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
        for (unsigned i = 0; i < N_MEMBERS; i++)
                ck_assert(hybrid_holds(&wanted[i], 0));
        ck_assert_uint_eq(hybrid_call(&reader, kvt_release, 0, wanted, N_MEMBERS).status, KVT_OK);
        stop();
}
END_TEST

/* ---- a member that fails ---- */

START_TEST(a_member_that_finds_no_room_keeps_the_others_unseen)
{
        struct daemon_options options = {.piece_bytes = 8 * MIB, .n_pieces = 1};

        start(&options);
        set[N_MEMBERS - 1].bytes = 16 * MIB;
        ck_assert_uint_eq(hybrid_call(&writer, kvt_reserve, SET, set, N_MEMBERS).status,
                          KVT_TOO_LARGE);
        hybrid_fill(set, N_MEMBERS, 0);
        /* Even for an engine that commits without looking. */
        ck_assert_uint_ne(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_OK);
        expect_nothing();
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 0);
        stop();
}
END_TEST

START_TEST(a_set_that_the_index_cannot_hold_whole_leaves_nothing)
{
        static const char *const overrides[] = {"index.objects_max=16", NULL};
        struct daemon_options options = {.overrides = overrides};
        struct kvt_object held[2 * N_MEMBERS];
        struct hybrid_prompt other;

        start(&options);
        other = hybrid_prompt(&writer, 2, 2 * CHUNK + 1, NULL);
        hybrid_store_run(&writer, &other, 1, 2, HYBRID_ALL);
        hybrid_objects(&reader, &other, 1, HYBRID_ALL, held);
        hybrid_objects(&reader, &other, 2, HYBRID_ALL, held + N_MEMBERS);
        /* What is leased is not evicted to make room: two more find a place. */
        ck_assert_uint_eq(hybrid_call(&reader, kvt_acquire, 0, held, 2 * N_MEMBERS).status, KVT_OK);
        reserve_all(&writer, set, 0);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status,
                          KVT_REFUSED);
        expect_nothing();
        ck_assert_uint_eq(hybrid_call(&reader, kvt_release, 0, held, 2 * N_MEMBERS).status, KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&reader, &other), 2);
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_ALL, 0, 0), KVT_OK);
        expect_whole(0);
        stop();
}
END_TEST

START_TEST(a_stale_member_keeps_the_others_unseen)
{
        struct kvt_object missing;
        uint64_t generation;

        start(NULL);
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_KV, 0, 0), KVT_OK);
        reserve_all(&writer, set, 0);
        ck_assert_uint_eq(set[0].status, KVT_ALREADY_HAVE);
        ck_assert_uint_eq(set[N_MEMBERS - 1].status, KVT_OK);
        /* The chunks that its states belong to are replaced by others. */
        ck_assert_int_eq(hybrid_store(&reader, &prompt, 1, HYBRID_KV, 1, KVT_REPLACE), KVT_OK);
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_STALE);
        missing = set[N_MEMBERS - 1];
        ck_assert_uint_eq(hybrid_call(&reader, kvt_acquire, 0, &missing, 1).status, KVT_MISS);
        ck_assert_uint_eq(hybrid_match(&reader, &prompt).boundaries, 0);
        ck_assert_int_eq(hybrid_load_boundary(&reader, &prompt, 1, HYBRID_KV, 0, 1, &generation),
                         KVT_OK);
        ck_assert_uint_eq(generation, 1);
        stop();
}
END_TEST

START_TEST(members_that_are_only_on_nvme_are_members)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB};
        struct kvt_object missing;

        start(&options);
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_KV, 0, 0), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        /* What is dropped while the set relies on it makes it stale, as a replacement does. */
        reserve_all(&writer, set, 0);
        ck_assert_uint_eq(set[0].status, KVT_ALREADY_HAVE);
        ck_assert_uint_eq(set[0].bytes, 16000);
        hybrid_evict(&fixture, &prompt, 1, HYBRID_ATTENTION, 0, "nvme");
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_STALE);
        missing = set[N_MEMBERS - 1];
        ck_assert_uint_eq(hybrid_call(&reader, kvt_acquire, 0, &missing, 1).status, KVT_MISS);

        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_ALL, 0, 0), KVT_OK);
        expect_whole(0);
        stop();
}
END_TEST

/* ---- two writers ---- */

START_TEST(of_two_writers_of_a_boundary_the_first_one_wins_whole)
{
        struct kvt_object second[N_MEMBERS];

        start(NULL);
        memcpy(second, set, sizeof(second));
        reserve_all(&writer, set, 1);
        reserve_all(&reader, second, 2);
        ck_assert_uint_eq(hybrid_call(&reader, kvt_commit, SET, second, N_MEMBERS).status, KVT_OK);
        /* What lost to visible objects counts as committed. */
        ck_assert_uint_eq(hybrid_call(&writer, kvt_commit, SET, set, N_MEMBERS).status, KVT_OK);
        expect_whole(2);
        stop();
}
END_TEST

/* Shared by all processes of a test. */
struct shared {
        _Atomic uint64_t answered; /* generation whose commit was answered last */
        _Atomic uint64_t begun;
        _Atomic uint32_t pause;
        _Atomic uint32_t is_paused;
        _Atomic uint32_t stop;
};

static struct shared *shared;

static void map_shared(void)
{
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                      0);
        ck_assert_ptr_ne(shared, MAP_FAILED);
}

#define RACERS  2u
#define CHANGES 60u /* that the reader wants to see */
/* Commits that may happen while a reader is looking. */
#define AHEAD 1000u

/* Replaces the boundary again and again, each time by another generation. */
static void race(struct child *self, void *argument)
{
        struct hybrid_engine engine;
        struct hybrid_prompt mine;

        (void)self;
        (void)argument;
        hybrid_open(&engine, fixture.socket, NULL);
        mine = hybrid_prompt(&engine, 1, 2 * CHUNK + 1, NULL);
        while (!atomic_load(&shared->stop)) {
                ck_assert_int_eq(hybrid_store(&engine, &mine, 1, HYBRID_ALL,
                                              atomic_fetch_add(&shared->begun, 1) + 1, KVT_REPLACE),
                                 KVT_OK);
                atomic_store(&shared->answered, 1);
        }
        hybrid_close(&engine);
}

START_TEST(a_reader_between_two_writers_never_sees_a_mixture)
{
        struct child racers[RACERS];
        uint64_t last = 0, found;
        unsigned n_changes = 0;

        map_shared();
        daemon_fixture_init(&fixture, NULL);
        for (unsigned i = 0; i < RACERS; i++)
                child_start(&racers[i], race, NULL);
        while (!atomic_load(&shared->answered))
                daemon_pause();
        open_both();
        while (n_changes < CHANGES) {
                ck_assert_int_eq(hybrid_load_boundary(&reader, &prompt, 1, HYBRID_ALL, 1,
                                                      atomic_load(&shared->begun) + AHEAD, &found),
                                 KVT_OK);
                n_changes += found != last;
                last = found;
        }
        atomic_store(&shared->stop, 1);
        for (unsigned i = 0; i < RACERS; i++)
                child_join(&racers[i]);
        stop();
}
END_TEST

/* ---- deaths ---- */

static void die_in_mid_set(struct child *self, void *argument)
{
        struct kvt_object objects[N_MEMBERS];
        struct hybrid_engine engine;
        struct hybrid_prompt mine;

        (void)argument;
        hybrid_open(&engine, fixture.socket, NULL);
        mine = hybrid_prompt(&engine, 1, 2 * CHUNK + 1, NULL);
        hybrid_objects(&engine, &mine, 1, HYBRID_ALL, objects);
        reserve_all(&engine, objects, 0);
        child_say(self, 1);
        child_hear(self);
}

START_TEST(an_engine_that_dies_in_mid_set_leaves_nothing)
{
        struct child engine;

        daemon_fixture_init(&fixture, NULL);
        child_start(&engine, die_in_mid_set, NULL);
        child_hear(&engine);
        open_both();
        expect_nothing();
        ck_assert_uint_gt(daemon_number(&fixture, "host.leased_bytes"), 0);
        child_kill(&engine);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        expect_nothing();
        /* Nor does it stand in the way. */
        ck_assert_int_eq(hybrid_store(&writer, &prompt, 1, HYBRID_ALL, 0, 0), KVT_OK);
        expect_whole(0);
        stop();
}
END_TEST

static void nap(unsigned us)
{
        struct timespec pause = {.tv_nsec = us * 1000};

        nanosleep(&pause, NULL);
}

/* Replaces the boundary, generation after generation, whatever becomes of the daemon. */
static void replace_for_ever(struct child *self, void *argument)
{
        struct hybrid_engine engine;
        struct hybrid_prompt mine;

        (void)argument;
        hybrid_open_early(&engine, fixture.socket);
        mine = hybrid_prompt(&engine, 1, 2 * CHUNK + 1, NULL);
        child_say(self, 1);
        while (!atomic_load(&shared->stop)) {
                uint64_t generation = atomic_load(&shared->begun) + 1;

                while (atomic_load(&shared->pause) && !atomic_load(&shared->stop)) {
                        atomic_store(&shared->is_paused, 1);
                        nap(1000);
                }
                atomic_store(&shared->is_paused, 0);
                atomic_store(&shared->begun, generation);
                if (hybrid_store(&engine, &mine, 1, HYBRID_ALL, generation, KVT_REPLACE) == KVT_OK)
                        atomic_store(&shared->answered, generation);
                else
                        nap(2000);
        }
        hybrid_close(&engine);
}

/* Generation of what is stored of one member, 0: nothing. */
static uint64_t look_at(const struct kvt_object *member, uint64_t oldest, uint64_t newest)
{
        struct kvt_object object = *member;
        uint64_t generation = newest;

        if (hybrid_call(&reader, kvt_acquire, 0, &object, 1).status != KVT_OK)
                return 0;
        while (!hybrid_holds(&object, generation)) {
                ck_assert_msg(generation > oldest, "a member is older than what was answered");
                generation--;
        }
        hybrid_call(&reader, kvt_release, 0, &object, 1);
        return generation;
}

/* After a kill, while the writer rests: the members that are there are of one generation. */
static bool check_survivors(void)
{
        uint64_t oldest = atomic_load(&shared->answered), newest = atomic_load(&shared->begun);
        uint64_t first = 0;
        unsigned n = 0;

        for (unsigned i = 0; i < N_MEMBERS; i++) {
                uint64_t generation = look_at(&set[i], oldest, newest);

                if (!generation)
                        continue;
                n++;
                first = first ? first : generation;
                ck_assert_msg(first == generation, "generations %llu and %llu of one set",
                              (unsigned long long)first, (unsigned long long)generation);
        }
        ck_assert_uint_eq(hybrid_match(&reader, &prompt).boundaries, n == N_MEMBERS);
        return n == N_MEMBERS;
}

static void kill_in_mid_set(unsigned rounds)
{
        struct daemon_options options = {.piece_bytes = 16 * MIB, .nvme_bytes = 64 * MIB};
        unsigned n_whole = 0, seed = 1;
        struct child child;

        map_shared();
        daemon_fixture_init(&fixture, &options);
        child_start(&child, replace_for_ever, NULL);
        child_hear(&child);
        open_both();
        for (unsigned i = 0; i < rounds; i++) {
                nap(5000 + (unsigned)rand_r(&seed) % 60000);
                /* Every second time its last set has gone down when the daemon dies. */
                atomic_store(&shared->pause, 1);
                if (i % 2) {
                        while (!atomic_load(&shared->is_paused))
                                nap(1000);
                        nap((unsigned)rand_r(&seed) % 20000);
                }
                daemon_kill(&fixture);
                while (!atomic_load(&shared->is_paused))
                        nap(1000);
                daemon_start(&fixture);
                flow_wait_attached(reader.session);
                n_whole += check_survivors();
                atomic_store(&shared->pause, 0);
        }
        /* Else the test has looked at nothing. */
        ck_assert_uint_gt(n_whole, 0);
        ck_assert_uint_gt(atomic_load(&shared->answered), rounds);
        atomic_store(&shared->stop, 1);
        child_join(&child);
        flow_wait_attached(writer.session);
        stop();
}

START_TEST(a_daemon_killed_in_mid_set_never_shows_half_of_it)
{
        kill_in_mid_set(16);
}
END_TEST

START_TEST(a_daemon_killed_in_mid_set_never_shows_half_of_it_long)
{
        kill_in_mid_set(200);
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                nothing_of_a_set_shows_before_its_commit_and_all_of_it_after,
                the_abort_of_one_member_is_that_of_all,
                a_commit_that_leaves_a_member_out_publishes_nothing,
                what_a_set_held_is_not_waited_for,
                a_reader_that_waits_for_a_set_gets_all_of_it_or_hears_that_it_ended,
                an_aborted_replacement_leaves_the_old_bytes,
                sets_of_two_sessions_have_their_own_numbers,
                a_set_of_a_thousand_members_is_published_whole,
                a_member_that_finds_no_room_keeps_the_others_unseen,
                a_set_that_the_index_cannot_hold_whole_leaves_nothing,
                a_stale_member_keeps_the_others_unseen,
                members_that_are_only_on_nvme_are_members,
                of_two_writers_of_a_boundary_the_first_one_wins_whole,
                a_reader_between_two_writers_never_sees_a_mixture,
                an_engine_that_dies_in_mid_set_leaves_nothing,
                a_daemon_killed_in_mid_set_never_shows_half_of_it,
                NULL,
        };
        const TTest *const long_tests[] = {a_daemon_killed_in_mid_set_never_shows_half_of_it_long,
                                           NULL};

        return argc > 1 ? flow_run("hybrid_sets", long_tests, 600)
                        : flow_run("hybrid_sets", tests, 120);
}
