// SPDX-License-Identifier: Apache-2.0
/*
 * The writer of the presence table: churn against a plain list, readers in threads that
 * would notice a torn entry, and every way in which a client may try to write.
 */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/presence_table.h"

DEFINE_CLEANUP(struct presence_table *, presence_table_free)

static const uint8_t boot_id[16] = {1, 2, 3};

static uint64_t mix(uint64_t value)
{
        value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
        value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9u;
        return (value ^ (value >> 32)) | 1;
}

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t limit)
{
        return (mix(random_state++) >> 8) % limit;
}

static struct presence_table *make(uint64_t objects_max)
{
        struct presence_table *table;

        ck_assert_int_eq(presence_table_new(&table, objects_max, boot_id, 5), 0);
        return table;
}

/* ---- churn ---- */

enum { OBJECTS_MAX = 30000, OPERATIONS = 3000000 };

static uint64_t present[OBJECTS_MAX]; /* by number; 0: not in the table */

/* Counted, not asserted one by one: Check writes to a pipe at each assertion. */
static uint64_t n_wrong;

static void check_lookup(const struct presence_table *table, uint32_t number)
{
        struct presence_bits bits = {0};
        bool found = presence_lookup(presence_table_view(table), mix(number), &bits);

        if (found != (present[number] != 0) ||
            (found && (bits.present != present[number] || bits.resident != present[number] / 2)))
                n_wrong++;
}

static void random_set(struct presence_table *table, uint32_t number)
{
        /* Two thirds removed, when it is in: so most of the numbers are in most of the time. */
        uint64_t value = present[number] && random_below(3) ? 0 : mix(random_state);
        int r = presence_table_set(table, mix(number), value, value / 2, 0);

        if (r != 0 && r != PRESENCE_TABLE_E_FULL)
                n_wrong++;
        present[number] = r ? 0 : value;
}

START_TEST(churn_at_two_thirds_keeps_every_answer_right)
{
        _cleanup_(presence_table_freep) struct presence_table *table = make(OBJECTS_MAX);
        struct presence_table_usage usage;
        uint64_t used = 0;

        for (uint32_t number = 0; number < OBJECTS_MAX; number++)
                random_set(table, number);
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.capacity, OBJECTS_MAX / 2 * 3);
        ck_assert_uint_ge(usage.used, OBJECTS_MAX - usage.refused_total);
        for (uint32_t i = 0; i < OPERATIONS; i++) {
                uint32_t number = (uint32_t)random_below(OBJECTS_MAX);

                if (present[number]) {
                        random_set(table, number);
                        /* And back at once, most times: the table stays full. */
                        if (random_below(8))
                                random_set(table, number);
                } else {
                        random_set(table, number);
                }
                check_lookup(table, number);
                check_lookup(table, (uint32_t)random_below(OBJECTS_MAX));
        }
        for (uint32_t number = 0; number < OBJECTS_MAX; number++) {
                check_lookup(table, number);
                used += present[number] != 0;
        }
        ck_assert_uint_eq(n_wrong, 0);
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, used);
        ck_assert_uint_gt(used, OBJECTS_MAX / 2);
        /* At this load about one insert in two thousand finds all its places taken. */
        ck_assert_uint_lt(usage.refused_total, OPERATIONS / 1000);
}
END_TEST

START_TEST(a_crowded_home_overflows_then_refuses_then_recovers)
{
        enum { PLACES = PRESENCE_PROBE_BUCKETS * PRESENCE_BUCKET_ENTRIES };
        _cleanup_(presence_table_freep) struct presence_table *table = make(1000);
        struct presence_table_usage usage;
        struct presence_bits bits;

        /* The high half is the same: one home for all. */
        for (uint64_t i = 1; i <= PLACES; i++)
                ck_assert_int_eq(presence_table_set(table, i, i, 0, 0), 0);
        ck_assert_int_eq(presence_table_set(table, PLACES + 1, 1, 0, 0), PRESENCE_TABLE_E_FULL);
        ck_assert(!presence_lookup(presence_table_view(table), PLACES + 1, &bits));
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.refused_total, 1);
        for (uint64_t i = 1; i <= PLACES; i++) {
                ck_assert(presence_lookup(presence_table_view(table), i, &bits));
                ck_assert_uint_eq(bits.present, i);
        }
        ck_assert_int_eq(presence_table_set(table, 2, 0, 0, 0), 0);
        ck_assert_int_eq(presence_table_set(table, PLACES + 1, 1, 0, 0), 0);
        for (uint64_t i = 1; i <= PLACES + 1; i++)
                presence_table_set(table, i, 0, 0, 0);
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, 0);
        /* Nothing overflows any more: the home says so again. */
        ck_assert_uint_eq(atomic_load(&presence_table_view(table)->entries[0].flags), 0);
}
END_TEST

/* ---- torn entries ---- */

enum { KEYS = 24, READERS = 3, WRITES = 6000000 };

static _Atomic bool writer_ended;

/*
 * All keys share a home, so that places change owners all the time; every other access is
 * to one of them, so that reader and writer meet in one cache line.
 */
static uint64_t key_of(uint64_t i)
{
        return i % 2 ? 1 : 1 + i / 2 % KEYS;
}

struct reader {
        pthread_t thread;
        const struct presence_view *view;
        uint64_t found;
        uint64_t torn;
};

static void *read_all(void *argument)
{
        struct reader *reader = argument;

        for (uint64_t i = 0; !atomic_load_explicit(&writer_ended, memory_order_relaxed); i++) {
                struct presence_bits bits;
                uint64_t key = key_of(i);

                if (!presence_lookup(reader->view, key, &bits))
                        continue;
                reader->found++;
                if (bits.resident != mix(bits.present ^ key) ||
                    (bits.flags & 0xffff) != (uint16_t)bits.present)
                        reader->torn++;
        }
        return NULL;
}

START_TEST(what_was_seen_stays_without_bits_until_it_is_forgotten)
{
        _cleanup_(presence_table_freep) struct presence_table *table = make(1000);
        struct presence_bits bits;

        ck_assert_int_eq(presence_table_set(table, 77, 5, 4, PRESENCE_SEEN), 0);
        ck_assert_int_eq(presence_table_set(table, 77, 0, 0, PRESENCE_SEEN), 0);
        ck_assert(presence_lookup(presence_table_view(table), 77, &bits));
        ck_assert(!bits.present && !bits.resident && bits.flags == PRESENCE_SEEN);
        ck_assert_int_eq(presence_table_set(table, 77, 0, 0, 0), 0);
        ck_assert(!presence_lookup(presence_table_view(table), 77, &bits));
}
END_TEST

START_TEST(readers_never_see_a_torn_entry)
{
        _cleanup_(presence_table_freep) struct presence_table *table = make(1000);
        struct reader readers[READERS] = {{0}};
        uint64_t found = 0;

        for (int i = 0; i < READERS; i++) {
                readers[i].view = presence_table_view(table);
                ck_assert_int_eq(pthread_create(&readers[i].thread, NULL, read_all, &readers[i]),
                                 0);
        }
        for (uint64_t i = 0; i < WRITES; i++) {
                uint64_t key = key_of(random_below(2 * KEYS));
                uint64_t value = random_below(8) ? mix(i) : 0;

                presence_table_set(table, key, value, mix(value ^ key), (uint16_t)value);
        }
        atomic_store(&writer_ended, true);
        for (int i = 0; i < READERS; i++) {
                pthread_join(readers[i].thread, NULL);
                ck_assert_uint_eq(readers[i].torn, 0);
                found += readers[i].found;
        }
        ck_assert_uint_gt(found, 1000);
}
END_TEST

/* ---- what a client may try ---- */

static bool can_map(int fd, int protection)
{
        void *base = mmap(NULL, 4096, protection, MAP_SHARED, fd, 0);

        if (base != MAP_FAILED)
                munmap(base, 4096);
        return base != MAP_FAILED;
}

/* The number of the attack that went through, or 0. */
static int attack_fd(int fd, off_t bytes)
{
        uint64_t word = 1;

        if (can_map(fd, PROT_READ | PROT_WRITE) || can_map(fd, PROT_WRITE))
                return 1;
        if (pwrite(fd, &word, sizeof(word), PRESENCE_HEADER_BYTES) >= 0)
                return 2;
        if (ftruncate(fd, bytes / 2) == 0 || ftruncate(fd, 0) == 0)
                return 3;
        if (ftruncate(fd, bytes * 2) == 0 || fallocate(fd, 0, bytes, 4096) == 0)
                return 4;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 ||
            fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096) == 0)
                return 5;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
                return 6;
        return 0;
}

static int attack(int fd, off_t bytes)
{
        char path[64];
        void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
        int r = attack_fd(fd, bytes), again;

        if (r)
                return r;
        if (base == MAP_FAILED)
                return 10; /* reading must work */
        if (mprotect(base, 4096, PROT_READ | PROT_WRITE) == 0)
                return 11;
        if (madvise(base, 4096, MADV_REMOVE) == 0)
                return 12;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        again = open(path, O_RDWR);
        if (again >= 0 && (r = attack_fd(again, bytes)))
                return 20 + r;
        again = open(path, O_RDWR | O_TRUNC);
        if (again >= 0 && lseek(again, 0, SEEK_END) != bytes)
                return 30;
        return 0;
}

START_TEST(no_client_can_write_shrink_grow_or_punch)
{
        _cleanup_(presence_table_freep) struct presence_table *table = make(1000);
        struct presence_bits bits;
        int status;
        pid_t child;

        ck_assert_int_eq(presence_table_set(table, 77, 5, 4, 0), 0);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0)
                _exit(attack(presence_table_fd(table), (off_t)presence_table_size(table)));
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 0);
        /* And the daemon still can. */
        ck_assert_int_eq(presence_table_set(table, 77, 7, 4, 0), 0);
        ck_assert(presence_lookup(presence_table_view(table), 77, &bits));
        ck_assert_uint_eq(bits.present, 7);
}
END_TEST

START_TEST(clients_see_state_and_heartbeat_and_the_end)
{
        struct presence_table *table = make(1000);
        uint64_t bytes = presence_table_size(table);
        const struct presence_header *header =
                mmap(NULL, bytes, PROT_READ, MAP_SHARED, presence_table_fd(table), 0);
        struct presence_view view;

        ck_assert_ptr_ne(header, MAP_FAILED);
        ck_assert_int_eq(presence_view_init(&view, header, bytes), 0);
        ck_assert_mem_eq(header->boot_id, boot_id, sizeof(boot_id));
        ck_assert_uint_eq(header->heartbeat_period_ns, 5);
        ck_assert_uint_eq(atomic_load(&header->state), PRESENCE_STARTING);
        presence_table_set_state(table, PRESENCE_SERVING);
        presence_table_beat(table, 123);
        ck_assert_uint_eq(atomic_load(&header->state), PRESENCE_SERVING);
        ck_assert_uint_eq(atomic_load(&header->heartbeat_ns), 123);
        presence_table_free(table);
        ck_assert_uint_eq(atomic_load(&header->state), PRESENCE_STOPPED);
        munmap((void *)(uintptr_t)header, bytes);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("presence_table");
        TCase *tcase = tcase_create("presence_table");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 50);
        tcase_add_test(tcase, churn_at_two_thirds_keeps_every_answer_right);
        tcase_add_test(tcase, a_crowded_home_overflows_then_refuses_then_recovers);
        tcase_add_test(tcase, what_was_seen_stays_without_bits_until_it_is_forgotten);
        tcase_add_test(tcase, readers_never_see_a_torn_entry);
        tcase_add_test(tcase, no_client_can_write_shrink_grow_or_punch);
        tcase_add_test(tcase, clients_see_state_and_heartbeat_and_the_end);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
