// SPDX-License-Identifier: Apache-2.0
/*
 * match_512: kvt_match() of 512 digests among a million boundaries, against 512 prefetched
 * probes of a bare table of 32-byte entries of the same size in the same run.
 *
 *   bench_match [RUNS]
 *
 * The table is the daemon's own, filled by the daemon's code and handed over by a scripted
 * handshake. Digests are random. Before each measurement a buffer larger than the caches is
 * read, so that both tables are equally cold. Value and limit are medians in microseconds.
 */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "daemon/presence_table.h"
#include "tests/unit/client/fake_daemon.h"

#define BOUNDARIES 1000000u
#define QUERY      512u
#define AHEAD      32u
#define COLD_BYTES (UINT64_C(64) << 20)
#define RUNS_MAX   10001u

/* What a probe costs at the least: the fingerprint is the digest's own first bytes. */
struct bare_entry {
        uint64_t fingerprint;
        uint64_t present;
        uint64_t resident;
        uint64_t rest;
};

static struct fake fake;
static struct presence_table *table;
static struct bare_entry *bare;
static uint64_t n_bare;
static struct kvt_digest *all;
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static void die(const char *what)
{
        fprintf(stderr, "bench_match: %s\n", what);
        exit(1);
}

static uint64_t next_random(void)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state;
}

static double now_us(void)
{
        struct timespec time;

        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* The daemon's table in place of the fake's small one. */
static void use_large_table(void)
{
        if (presence_table_new(&table, BOUNDARIES, fake.boot_id, 100000000))
                die("no table");
        presence_table_set_state(table, PRESENCE_SERVING);
        presence_table_beat(table, UINT64_MAX);
        close(fake.table_fd);
        munmap(fake.table, fake.table_bytes);
        fake.table_fd = presence_table_fd(table);
        fake.table_bytes = presence_table_size(table);
        fake.table = (void *)(uintptr_t)presence_table_view(table)->header;
}

static struct bare_entry *bare_home(const struct kvt_digest *digest)
{
        uint64_t fingerprint;

        memcpy(&fingerprint, digest->bytes, sizeof(fingerprint));
        return &bare[((fingerprint >> 32) * n_bare) >> 32];
}

/* Memory of the same kind as the table's: a mapped memfd. */
static void make_bare(void)
{
        uint64_t bytes = presence_table_size(table);
        int fd = memfd_create("bare", MFD_CLOEXEC);

        if (fd < 0 || ftruncate(fd, (off_t)bytes))
                die("memfd");
        bare = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (bare == MAP_FAILED)
                die("mmap");
        close(fd);
        n_bare = bytes / sizeof(*bare);
}

static void fill(void)
{
        all = malloc(BOUNDARIES * sizeof(*all));
        if (!all)
                die("no memory");
        for (uint32_t i = 0; i < BOUNDARIES; i++) {
                uint64_t words[4] = {next_random(), next_random(), next_random(), next_random()};
                uint64_t fingerprint;

                memcpy(&all[i], words, sizeof(words));
                fingerprint = presence_fingerprint(fake.seed, (const void *)&all[i]);
                /* A few find no place; they are not asked for. */
                if (presence_table_set(table, fingerprint, 1, 1, 0)) {
                        i--;
                        continue;
                }
                memcpy(&bare_home(&all[i])->fingerprint, &all[i], sizeof(uint64_t));
                bare_home(&all[i])->present = 1;
        }
}

/* The compiler must not find out that nobody wants the value. */
static void use(uint64_t value)
{
        __asm__ volatile("" : : "r"(value));
}

static void make_cold(void)
{
        static uint8_t *buffer;
        uint64_t sum = 0;

        if (!buffer) {
                buffer = malloc(COLD_BYTES);
                if (!buffer)
                        die("no memory");
                memset(buffer, 1, COLD_BYTES);
        }
        for (uint64_t i = 0; i < COLD_BYTES; i += 64)
                sum += buffer[i];
        use(sum);
}

static uint64_t probe_bare(const struct kvt_digest *digests)
{
        uint64_t found = 0;

        for (uint32_t i = 0; i < AHEAD; i++)
                __builtin_prefetch(bare_home(&digests[i]));
        for (uint32_t i = 0; i < QUERY; i++) {
                const struct bare_entry *entry = bare_home(&digests[i]);
                uint64_t fingerprint;

                if (i + AHEAD < QUERY)
                        __builtin_prefetch(bare_home(&digests[i + AHEAD]));
                memcpy(&fingerprint, digests[i].bytes, sizeof(fingerprint));
                found += entry->fingerprint == fingerprint && entry->present & 1;
        }
        return found;
}

static double measure_match(struct kvt_session *session, const struct kvt_digest *digests)
{
        struct kvt_match_query query = {
                .size = sizeof(query), .digests = digests, .n_digests = QUERY};
        struct kvt_match match = {.size = sizeof(match)};
        double begin = now_us(), end;

        kvt_match(session, &query, &match);
        end = now_us();
        if (match.boundaries != QUERY)
                die("a boundary was not found");
        return end - begin;
}

static double measure_bare(const struct kvt_digest *digests)
{
        double begin = now_us();

        use(probe_bare(digests));
        return now_us() - begin;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t n)
{
        qsort(values, n, sizeof(values[0]), compare);
        return values[n / 2];
}

static void draw(struct kvt_digest *digests)
{
        for (uint32_t i = 0; i < QUERY; i++)
                digests[i] = all[next_random() % BOUNDARIES];
}

/*
 * Random boundaries, and caches that hold neither table. A scheduler asks all the time, so
 * the code of both is warm: both are asked for other boundaries first.
 */
static void prepare(struct kvt_session *session, struct kvt_digest *digests)
{
        draw(digests);
        make_cold();
        measure_match(session, digests);
        measure_bare(digests);
        draw(digests);
}

static uint32_t n_runs = 301;

/* The fake's handshake speaks through Check, so the whole bench is one of its tests. */
START_TEST(match_512)
{
        static double matches[RUNS_MAX], limits[RUNS_MAX];
        static struct kvt_digest digests[QUERY];
        struct kvt_session *session;
        double value, limit;

        fake_start(&fake, false);
        use_large_table();
        session = fake_open(&fake);
        make_bare();
        fill();
        for (uint32_t i = 0; i < n_runs; i++) {
                prepare(session, digests);
                matches[i] = measure_match(session, digests);
                prepare(session, digests);
                limits[i] = measure_bare(digests);
        }
        value = median(matches, n_runs);
        limit = median(limits, n_runs);
        printf("{\"name\": \"match_512\", \"value\": %.2f, \"unit\": \"us\", \"limit\": %.2f, "
               "\"ratio\": %.3f, \"runs\": %u}\n",
               value, limit, value / limit, n_runs);
        fake_hang_up(&fake);
        kvt_close(session);
        unlink(fake.path);
        rmdir(fake.folder);
}
END_TEST

int main(int argc, char **argv)
{
        Suite *suite = suite_create("bench_match");
        TCase *tests = tcase_create("bench_match");
        SRunner *runner = srunner_create(suite);
        int failed;

        if (argc > 1)
                n_runs = (uint32_t)atoi(argv[1]);
        if (!n_runs || n_runs > RUNS_MAX)
                die("usage: bench_match [RUNS]");
        tcase_add_test(tests, match_512);
        suite_add_tcase(suite, tests);
        srunner_set_fork_status(runner, CK_NOFORK);
        srunner_run_all(runner, CK_SILENT);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
