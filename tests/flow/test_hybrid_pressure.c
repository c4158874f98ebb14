// SPDX-License-Identifier: Apache-2.0
/*
 * A hybrid engine whose working set is several times what host memory and NVMe hold, so
 * that chunks and states of every age are evicted all the time: agents that share a system
 * prompt, branch, grow turn by turn and come back. What match calls usable must load, whole
 * and right.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define KIB    UINT64_C(1024)
#define MIB    (KIB * KIB)
#define CHUNK  HYBRID_CHUNK_TOKENS
#define AGENTS 40u
#define SHARED 3u /* chunks of the system prompt */

static struct daemon_fixture fixture;
static struct hybrid_engine engine;
static unsigned seed = 7;

/* Chunks of each agent's conversation so far. */
static uint32_t lengths[AGENTS];

struct tally {
        unsigned n_hits, n_reused_chunks, n_hints, n_refused;
};

static void start(uint64_t nvme_bytes)
{
        struct daemon_options options = {
                .piece_bytes = 4 * MIB, .n_pieces = 2, .nvme_bytes = nvme_bytes};

        daemon_fixture_init(&fixture, &options);
        hybrid_open(&engine, fixture.socket, NULL);
        /* As much as a dozen chunks, and odd. */
        engine.state_bytes = 200 * KIB + 3;
}

static void stop(void)
{
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "leases", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        ck_assert_uint_gt(daemon_number(&fixture, "host.evicted"), 0);
        daemon_fixture_deinit(&fixture);
}

static struct kvt_match look_up(const struct hybrid_prompt *prompt)
{
        return hybrid_query(&engine, prompt,
                            (struct kvt_match_query){.prompt_tokens = prompt->n_tokens,
                                                     .flags = KVT_MATCH_CHECKPOINT});
}

/* OK and ALREADY_HAVE are as good as each other; BUSY while too much waits to be written. */
static void store(const struct hybrid_prompt *prompt, uint32_t boundary, uint32_t groups,
                  struct tally *tally)
{
        enum kvt_status status = hybrid_store(&engine, prompt, boundary, groups, 0, 0);

        ck_assert_msg(status == KVT_OK || status == KVT_ALREADY_HAVE || status == KVT_BUSY,
                      "store: %s; groups %x at %u", kvt_status_name(status), groups, boundary);
        tally->n_refused += status == KVT_BUSY;
}

/*
 * Loads the longest usable prefix. A match is a hint: what is written down meanwhile may take
 * the place on NVMe of what was just matched; then there is another answer. Without NVMe
 * nothing goes unasked.
 */
static struct kvt_match restore(const struct hybrid_prompt *prompt, struct tally *tally)
{
        for (unsigned tries = 0;; tries++) {
                struct kvt_match match = look_up(prompt);
                enum kvt_status status;

                if (!match.boundaries)
                        return match;
                status = hybrid_load(&engine, prompt, match.boundaries);
                if (status == KVT_OK) {
                        tally->n_hits++;
                        tally->n_reused_chunks += match.boundaries;
                        return match;
                }
                ck_assert_msg(status == KVT_MISS && fixture.options.nvme_bytes && tries < 20,
                              "load: %s", kvt_status_name(status));
        }
}

/* A turn: restore what is there, compute the rest, store it. */
static void serve(const struct hybrid_prompt *prompt, struct tally *tally)
{
        struct kvt_match match = restore(prompt, tally);
        uint32_t last = (prompt->n_tokens - 1) / CHUNK;

        for (uint32_t boundary = match.boundaries + 1; boundary <= last; boundary++)
                store(prompt, boundary, HYBRID_KV, tally);
        if (match.checkpoint_boundaries) {
                store(prompt, match.checkpoint_boundaries, HYBRID_STATES, tally);
                tally->n_hints++;
        }
        store(prompt, last, HYBRID_ALL, tally);
}

/* An agent goes on where it was, or begins anew behind the system prompt. */
static void take_turn(struct tally *tally)
{
        uint32_t agent = (uint32_t)rand_r(&seed) % AGENTS;
        struct hybrid_prompt prompt;

        agent = rand_r(&seed) % 2 ? agent % (AGENTS / 8) : agent; /* some talk more than others */
        lengths[agent] += 1 + (uint32_t)rand_r(&seed) % 3;
        if (lengths[agent] <= SHARED || lengths[agent] > HYBRID_BOUNDARIES_MAX - 1)
                lengths[agent] = SHARED + 1;
        prompt = hybrid_branch(&engine, 1, SHARED, 100 + agent, lengths[agent] * CHUNK + 9);
        serve(&prompt, tally);
}

static struct tally run(unsigned turns)
{
        struct tally tally = {0};

        for (unsigned i = 0; i < turns; i++)
                take_turn(&tally);
        return tally;
}

START_TEST(what_is_matched_under_pressure_loads_whole)
{
        struct tally tally;

        start(0);
        tally = run(400);
        ck_assert_uint_gt(tally.n_hits, 100);
        ck_assert_uint_gt(tally.n_reused_chunks, tally.n_hits * SHARED);
        ck_assert_uint_gt(tally.n_hints, 0);
        ck_assert_uint_eq(tally.n_refused, 0);
        stop();
}
END_TEST

START_TEST(what_is_matched_under_pressure_loads_whole_from_nvme_and_after_kills)
{
        uint64_t n_evicted = 0;
        struct tally tally;

        start(24 * MIB);
        for (unsigned i = 0; i < 3; i++) {
                tally = run(150);
                ck_assert_uint_gt(tally.n_hits, 40);
                n_evicted += daemon_number(&fixture, "nvme.evicted");
                daemon_kill(&fixture);
                daemon_start(&fixture);
                flow_wait_attached(engine.session);
        }
        tally = run(150);
        ck_assert_uint_gt(tally.n_hits, 40);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        ck_assert_uint_gt(n_evicted, 0);
        ck_assert_uint_le(daemon_number(&fixture, "nvme.used_bytes"), 24 * MIB);
        stop();
}
END_TEST

/* ---- and nobody is safe ---- */

#define ENGINES 3u

/* Whatever the daemon's death may answer, but nothing that is not so. */
static void serve_through_deaths(const struct hybrid_prompt *prompt)
{
        struct kvt_match match = look_up(prompt);
        uint32_t last = (prompt->n_tokens - 1) / CHUNK;

        if (match.boundaries)
                hybrid_load(&engine, prompt, match.boundaries);
        for (uint32_t boundary = match.boundaries + 1; boundary <= last; boundary++)
                hybrid_store(&engine, prompt, boundary, HYBRID_KV, 0, 0);
        if (match.checkpoint_boundaries)
                hybrid_store(&engine, prompt, match.checkpoint_boundaries, HYBRID_STATES, 0, 0);
        hybrid_store(&engine, prompt, last, HYBRID_ALL, 0, 0);
}

static void run_engine(struct child *self, void *argument)
{
        seed = *(const unsigned *)argument;
        hybrid_open_early(&engine, fixture.socket);
        engine.state_bytes = 200 * KIB + 3;
        for (;;) {
                struct pollfd asked = {.fd = self->in, .events = POLLIN};
                struct hybrid_prompt prompt =
                        hybrid_branch(&engine, 1, SHARED, 100 + (uint32_t)rand_r(&seed) % AGENTS,
                                      (SHARED + 1 + (uint32_t)rand_r(&seed) % 12) * CHUNK + 9);

                serve_through_deaths(&prompt);
                if (poll(&asked, 1, 0))
                        break; /* to end */
        }
        hybrid_close(&engine);
}

START_TEST(engines_and_daemon_die_at_any_time_and_bytes_stay_right)
{
        struct daemon_options options = {
                .piece_bytes = 4 * MIB, .n_pieces = 2, .nvme_bytes = 24 * MIB};
        unsigned seeds[] = {11, 12, 13, 14};
        struct child engines[ENGINES], mortal;
        uint64_t end;

        daemon_fixture_init(&fixture, &options);
        for (unsigned i = 0; i < ENGINES; i++)
                child_start(&engines[i], run_engine, &seeds[i]);
        for (end = daemon_now_ms() + 60000; daemon_now_ms() < end; seeds[ENGINES]++) {
                uint64_t until = daemon_now_ms() + (uint64_t)rand_r(&seed) % 1500;

                child_start(&mortal, run_engine, &seeds[ENGINES]);
                while (daemon_now_ms() < until) {
                        daemon_expect_alive(&fixture);
                        daemon_pause();
                }
                child_kill(&mortal);
                if (rand_r(&seed) % 2)
                        continue;
                daemon_kill(&fixture);
                daemon_start(&fixture);
        }
        for (unsigned i = 0; i < ENGINES; i++)
                child_say(&engines[i], 1);
        for (unsigned i = 0; i < ENGINES; i++)
                child_join(&engines[i]);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                what_is_matched_under_pressure_loads_whole,
                what_is_matched_under_pressure_loads_whole_from_nvme_and_after_kills,
                NULL,
        };

        const TTest *const long_tests[] = {engines_and_daemon_die_at_any_time_and_bytes_stay_right,
                                           NULL};

        return argc > 1 ? flow_run("hybrid_pressure", long_tests, 300)
                        : flow_run("hybrid_pressure", tests, 120);
}
