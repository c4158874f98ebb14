// SPDX-License-Identifier: Apache-2.0
/* Host memory on a real loop, with real memfds; how much memory there is comes from the test. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/extent.h"
#include "storage/host.h"
#include "tests/support/fds.h"

#define MIB      (1ull << 20)
#define PIECE    (16 * MIB)
#define ANY_NODE UINT32_MAX

static uv_loop_t loop;
static struct host_pool *pool;
static bool closed;
static unsigned n_fds_before;

static atomic_ullong free_memory = UINT64_MAX;
static atomic_uint n_looks;
static unsigned int n_arenas_seen, n_stalls;
static char last_stall[160];
static pthread_t loop_thread;
static void *last_prepared;
static unsigned int n_prepared;
static uint64_t memory_left_after_arena = UINT64_MAX;

static uint64_t tell_free_memory(void *user)
{
        (void)user;
        atomic_fetch_add(&n_looks, 1);
        return atomic_load(&free_memory);
}

static void prepare(void *user, void *base, uint64_t bytes)
{
        (void)user;
        ck_assert(!pthread_equal(pthread_self(), loop_thread));
        ck_assert_uint_eq(bytes, PIECE);
        last_prepared = base;
        n_prepared++;
}

static void on_arena(void *user, const struct host_arena *arena)
{
        struct stat status;

        (void)user;
        /* By the worker, before anybody uses it. */
        ck_assert_uint_eq(n_prepared, n_arenas_seen + 1);
        ck_assert_ptr_eq(last_prepared, arena->base);
        ck_assert_int_eq(fstat(arena->fd, &status), 0);
        ck_assert_uint_ge((uint64_t)status.st_blocks * 512, arena->bytes);
        n_arenas_seen++;
        atomic_store(&free_memory, memory_left_after_arena);
}

static void on_stalled(void *user, const char *reason)
{
        (void)user;
        n_stalls++;
        snprintf(last_stall, sizeof(last_stall), "%s", reason);
}

static struct host_options options_of(uint64_t n_pieces)
{
        return (struct host_options){
                .total_bytes = n_pieces * PIECE,
                .piece_bytes = PIECE,
                .page_bytes = HOST_UNIT_BYTES,
                .free_bytes = tell_free_memory,
                .retry_ms = 1,
                .prepare = prepare,
                .on_arena = on_arena,
                .on_stalled = on_stalled,
        };
}

static void set_up(void)
{
        /* The first loop of a process opens descriptors that libuv keeps. */
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        n_fds_before = count_fds();
        loop_thread = pthread_self();
        ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void on_closed(void *user)
{
        (void)user;
        closed = true;
}

static void tear_down(void)
{
        if (pool) {
                host_pool_close(pool, on_closed, NULL);
                ck_assert(!closed);
                while (!closed)
                        uv_run(&loop, UV_RUN_ONCE);
        }
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        ck_assert_uint_eq(count_fds(), n_fds_before);
}

static void wait_for_arenas(size_t n)
{
        while (host_n_arenas(pool) < n)
                uv_run(&loop, UV_RUN_ONCE);
}

static void start(const struct host_options *options, size_t n_arenas)
{
        ck_assert_int_eq(host_pool_new(&pool, &loop, options), 0);
        wait_for_arenas(n_arenas);
}

static void start_pieces(uint64_t n_pieces)
{
        struct host_options options = options_of(n_pieces);

        start(&options, n_pieces);
}

START_TEST(arenas_come_up_one_by_one_to_the_cap)
{
        struct host_usage usage;

        start_pieces(2);
        ck_assert_uint_eq(n_arenas_seen, 2);
        ck_assert_uint_eq(host_arena_at(pool, 1)->id, host_arena_at(pool, 0)->id + 1);
        ck_assert_ptr_eq(host_arena_by_id(pool, host_arena_at(pool, 1)->id),
                         host_arena_at(pool, 1));
        ck_assert_ptr_null(host_arena_by_id(pool, host_arena_at(pool, 1)->id + 1));
        ck_assert_ptr_null(host_arena_by_id(pool, host_arena_at(pool, 0)->id - 1));
        ck_assert_ptr_null(host_arena_at(pool, 2));
        host_usage(pool, &usage);
        ck_assert_uint_eq(usage.ready_bytes, 2 * PIECE);
        ck_assert_uint_eq(usage.configured_bytes, 2 * PIECE);
        ck_assert_uint_eq(usage.used_bytes, 0);
        ck_assert(!usage.stalled);
}
END_TEST

START_TEST(an_arena_never_changes_its_size)
{
        char path[64];
        int fd, reopened;

        start_pieces(1);
        fd = host_arena_at(pool, 0)->fd;
        ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        ck_assert_int_eq(ftruncate(fd, 0), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_eq(ftruncate(fd, 2 * PIECE), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_eq(fallocate(fd, 0, PIECE, HOST_UNIT_BYTES), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
        ck_assert_int_eq(errno, EPERM);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        reopened = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(reopened, 0);
        ck_assert_int_eq(ftruncate(reopened, 0), -1);
        ck_assert_int_eq(errno, EPERM);
        close(reopened);
}
END_TEST

START_TEST(a_hole_that_a_client_punches_reads_as_zeros)
{
        const struct host_arena *arena;
        unsigned char *bytes;

        start_pieces(1);
        arena = host_arena_at(pool, 0);
        bytes = arena->base;
        memset(bytes, 0xaa, 2 * HOST_UNIT_BYTES);
        ck_assert_int_eq(fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                   HOST_UNIT_BYTES),
                         0);
        ck_assert_uint_eq(bytes[0], 0);
        ck_assert_uint_eq(bytes[HOST_UNIT_BYTES], 0xaa);
}
END_TEST

START_TEST(every_page_is_there_before_use)
{
        static unsigned char residency[PIECE / HOST_UNIT_BYTES];

        start_pieces(1);
        ck_assert_int_eq(mincore(host_arena_at(pool, 0)->base, PIECE, residency), 0);
        for (size_t i = 0; i < sizeof(residency); i++)
                ck_assert_uint_eq(residency[i] & 1, 1);
}
END_TEST

START_TEST(a_child_does_not_inherit_the_mappings)
{
        int status;
        pid_t child;

        start_pieces(1);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
                unsigned char residency;
                int r = mincore(host_arena_at(pool, 0)->base, HOST_UNIT_BYTES, &residency);

                _exit(r == -1 && errno == ENOMEM ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
}
END_TEST

static void wait_for_looks(unsigned int n)
{
        unsigned int before = atomic_load(&n_looks);

        while (atomic_load(&n_looks) < before + n)
                uv_run(&loop, UV_RUN_ONCE);
}

START_TEST(a_shortage_is_told_once_and_waited_out)
{
        struct host_options options = options_of(3);
        struct host_usage usage;

        atomic_store(&free_memory, PIECE);
        memory_left_after_arena = PIECE - 1;
        start(&options, 1);
        wait_for_looks(4);
        ck_assert_uint_eq(host_n_arenas(pool), 1);
        ck_assert_uint_eq(n_stalls, 1);
        ck_assert_ptr_nonnull(strstr(last_stall, "15 MiB free"));
        host_usage(pool, &usage);
        ck_assert(usage.stalled);
        ck_assert_str_eq(usage.stall_reason, last_stall);

        atomic_store(&free_memory, PIECE);
        wait_for_arenas(2);
        wait_for_looks(4);
        ck_assert_uint_eq(n_stalls, 2);
        memory_left_after_arena = UINT64_MAX;
        atomic_store(&free_memory, PIECE);
        wait_for_arenas(3);
        host_usage(pool, &usage);
        ck_assert(!usage.stalled);
        ck_assert_uint_eq(usage.ready_bytes, 3 * PIECE);
}
END_TEST

/* A piece of three slices, for which memory runs out after the first. */
static uint64_t run_out(void *user)
{
        (void)user;
        return atomic_fetch_add(&n_looks, 1) < 2 ? UINT64_MAX : 50 * MIB;
}

START_TEST(a_piece_that_memory_runs_out_for_is_given_back)
{
        struct host_options options = options_of(1);
        struct host_usage usage;

        options.piece_bytes = options.total_bytes = 160 * MIB;
        options.free_bytes = run_out;
        start(&options, 0);
        while (n_stalls == 0 && n_arenas_seen == 0)
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_uint_eq(n_arenas_seen, 0);
        host_usage(pool, &usage);
        ck_assert_uint_eq(usage.ready_bytes, 0);
        ck_assert(usage.stalled);
        /* The descriptor count of tear_down() proves that its memfd is gone. */
        wait_for_looks(2);
        ck_assert_uint_eq(host_n_arenas(pool), 0);
}
END_TEST

static sem_t worker_is_there, worker_may_go;

static uint64_t hold_the_worker(void *user)
{
        (void)user;
        if (atomic_fetch_add(&n_looks, 1) == 1) {
                sem_post(&worker_is_there);
                sem_wait(&worker_may_go);
        }
        return UINT64_MAX;
}

START_TEST(closing_does_not_wait_for_a_whole_piece)
{
        struct host_options options = options_of(1);

        options.piece_bytes = options.total_bytes = 512 * MIB;
        options.free_bytes = hold_the_worker;
        sem_init(&worker_is_there, 0, 0);
        sem_init(&worker_may_go, 0, 0);
        start(&options, 0);
        sem_wait(&worker_is_there);
        host_pool_close(pool, on_closed, NULL);
        sem_post(&worker_may_go);
        while (!closed)
                uv_run(&loop, UV_RUN_ONCE);
        pool = NULL;
        /* One look before the piece and one before its first slice: the second never came. */
        ck_assert_uint_eq(atomic_load(&n_looks), 2);
        ck_assert_uint_eq(n_arenas_seen, 0);
}
END_TEST

START_TEST(closing_at_once_is_fine)
{
        struct host_options options = options_of(2);

        start(&options, 0);
}
END_TEST

/* Space. */

START_TEST(space_is_never_handed_out_twice_nor_beyond_the_cap)
{
        static struct {
                struct host_extent extents[HOST_EXTENTS_MAX];
                uint32_t n;
        } held[64];
        struct host_usage usage;
        uint64_t used = 0;

        start_pieces(2);
        srandom(1);
        for (int step = 0; step < 50000; step++) {
                size_t i = (size_t)random() % 64;
                uint64_t bytes = 1 + (uint64_t)random() % (MIB << random() % 4), sum = 0;
                uint32_t max = 1 + (uint32_t)random() % HOST_EXTENTS_MAX;
                int r;

                for (uint32_t k = 0; k < held[i].n; k++)
                        used -= held[i].extents[k].length;
                host_release(pool, held[i].extents, held[i].n);
                held[i].n = 0;
                r = host_alloc(pool, bytes, ANY_NODE, max, held[i].extents, &held[i].n);
                ck_assert(r == 0 || (r == HOST_E_FULL && held[i].n == 0));
                ck_assert_uint_le(held[i].n, max);
                for (uint32_t k = 0; k < held[i].n; k++) {
                        const struct host_extent *extent = &held[i].extents[k];

                        /* host_release() asserts that it was taken, and so that it was once. */
                        ck_assert_uint_le(extent->offset + extent->length, PIECE);
                        sum += extent->length;
                }
                if (r == 0)
                        ck_assert_uint_eq(sum, (bytes + 4095) / 4096 * 4096);
                used += sum;
                host_usage(pool, &usage);
                ck_assert_uint_eq(usage.used_bytes, used);
                ck_assert_uint_le(used, 2 * PIECE);
        }
        for (size_t i = 0; i < 64; i++)
                host_release(pool, held[i].extents, held[i].n);
        ck_assert_uint_eq(extent_map_largest(host_arena_at(pool, 0)->extents),
                          PIECE / HOST_UNIT_BYTES);
        ck_assert_uint_eq(extent_map_largest(host_arena_at(pool, 1)->extents),
                          PIECE / HOST_UNIT_BYTES);
}
END_TEST

static uint32_t alloc_in(uint64_t bytes, uint32_t node, uint32_t *ret_n)
{
        struct host_extent extents[HOST_EXTENTS_MAX];

        ck_assert_int_eq(host_alloc(pool, bytes, node, HOST_EXTENTS_MAX, extents, ret_n), 0);
        return extents[0].arena_id - host_arena_at(pool, 0)->id;
}

START_TEST(the_hinted_node_comes_first)
{
        static const uint32_t nodes[] = {ANY_NODE, 0};
        struct host_options options = options_of(2);
        uint32_t n;

        if (syscall(SYS_mbind, NULL, 0, MPOL_DEFAULT, NULL, 0, 0) < 0)
                return; /* a kernel or a container without NUMA calls */
        options.numa_nodes = nodes;
        options.n_numa_nodes = 2;
        start(&options, 2);
        ck_assert_uint_eq(alloc_in(MIB, ANY_NODE, &n), 0);
        ck_assert_uint_eq(alloc_in(MIB, 0, &n), 1);
        ck_assert_uint_eq(alloc_in(MIB, 7, &n), 0);
        ck_assert_uint_eq(alloc_in(14 * MIB, 0, &n), 1);
        ck_assert_uint_eq(alloc_in(2 * MIB, 0, &n), 0); /* node 0 has 1 MiB left */
        ck_assert_uint_eq(n, 1);
}
END_TEST

START_TEST(one_extent_is_taken_where_there_is_one)
{
        struct host_extent pieces[16], extent;
        uint32_t n;

        start_pieces(2);
        for (int i = 0; i < 16; i++)
                ck_assert_int_eq(host_alloc(pool, MIB, ANY_NODE, 1, &pieces[i], &n), 0);
        for (int i = 0; i < 16; i += 2)
                host_release(pool, &pieces[i], 1);
        ck_assert_int_eq(host_alloc(pool, 2 * MIB, ANY_NODE, 1, &extent, &n), 0);
        ck_assert_uint_eq(extent.arena_id, host_arena_at(pool, 1)->id);
        ck_assert_int_eq(host_alloc(pool, MIB, ANY_NODE, 1, &extent, &n), 0);
        ck_assert_uint_eq(extent.arena_id, host_arena_at(pool, 0)->id);
}
END_TEST

START_TEST(an_object_spreads_over_arenas_before_it_is_refused)
{
        struct host_extent filler[2], tail[2], extents[HOST_EXTENTS_MAX];
        struct host_usage usage;
        uint32_t n = 99;

        start_pieces(2);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(host_alloc(pool, 10 * MIB, ANY_NODE, 1, &filler[i], &n), 0);
                ck_assert_int_eq(host_alloc(pool, 6 * MIB, ANY_NODE, 1, &tail[i], &n), 0);
        }
        host_release(pool, tail, 2);
        n = 99;
        ck_assert_int_eq(host_alloc(pool, 10 * MIB, ANY_NODE, 1, extents, &n), HOST_E_FULL);
        ck_assert_uint_eq(n, 99);
        host_usage(pool, &usage);
        ck_assert_uint_eq(usage.used_bytes, 20 * MIB);
        ck_assert_int_eq(host_alloc(pool, 10 * MIB, ANY_NODE, 2, extents, &n), 0);
        ck_assert_uint_eq(n, 2);
        ck_assert_uint_ne(extents[0].arena_id, extents[1].arena_id);
        ck_assert_int_eq(host_alloc(pool, 3 * MIB, ANY_NODE, 64, extents, &n), HOST_E_FULL);
}
END_TEST

START_TEST(an_address_lies_in_the_mapping_that_clients_see)
{
        struct host_extent extent;
        unsigned char *seen;
        uint32_t n;

        start_pieces(2);
        ck_assert_int_eq(host_alloc(pool, PIECE, ANY_NODE, 1, &extent, &n), 0);
        ck_assert_int_eq(host_alloc(pool, 5000, ANY_NODE, 1, &extent, &n), 0);
        ck_assert_uint_eq(extent.length, 8192);
        memset(host_address(pool, &extent), 0x5c, 5000);
        seen = mmap(NULL, PIECE, PROT_READ, MAP_SHARED, host_arena_by_id(pool, extent.arena_id)->fd,
                    0);
        ck_assert_ptr_ne(seen, MAP_FAILED);
        ck_assert_uint_eq(seen[extent.offset + 4999], 0x5c);
        munmap(seen, PIECE);
}
END_TEST

START_TEST(impossible_sizes_are_refused_with_what_would_do)
{
        static const struct {
                uint64_t total, piece, page;
                const char *says;
        } cases[] = {
                {PIECE, PIECE, 8192, "4096, 2 MiB and 1 GiB"},
                {PIECE, 5000, 4096, "8192 would do"},
                {PIECE, 0, 4096, "4096 would do"},
                {0, PIECE, 4096, "16777216 would do"},
                {PIECE + 4096, PIECE, 4096, "33554432 would do"},
                {1ull << 50, 1ull << 30, 4096, "MemTotal"},
                {1ull << 50, 1ull << 30, 2 * MIB, "hugepages-2048kB"},
                {1ull << 50, 1ull << 30, 2 * MIB, "set nr_hugepages there to 536870912 first"},
                {1ull << 50, 1ull << 50, 4096, "not even one piece fits"},
        };
        struct host_options options = options_of(2);
        struct why why = {""};

        ck_assert_int_eq(host_check(&options, &why), 0);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                options.total_bytes = cases[i].total;
                options.piece_bytes = cases[i].piece;
                options.page_bytes = cases[i].page;
                ck_assert_int_eq(host_check(&options, &why), -EINVAL);
                ck_assert_msg(strstr(why.text, cases[i].says), "%s", why.text);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/host");
        TCase *tcase = tcase_create("host");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, arenas_come_up_one_by_one_to_the_cap);
        tcase_add_test(tcase, an_arena_never_changes_its_size);
        tcase_add_test(tcase, a_hole_that_a_client_punches_reads_as_zeros);
        tcase_add_test(tcase, every_page_is_there_before_use);
        tcase_add_test(tcase, a_child_does_not_inherit_the_mappings);
        tcase_add_test(tcase, a_shortage_is_told_once_and_waited_out);
        tcase_add_test(tcase, a_piece_that_memory_runs_out_for_is_given_back);
        tcase_add_test(tcase, closing_does_not_wait_for_a_whole_piece);
        tcase_add_test(tcase, closing_at_once_is_fine);
        tcase_add_test(tcase, space_is_never_handed_out_twice_nor_beyond_the_cap);
        tcase_add_test(tcase, the_hinted_node_comes_first);
        tcase_add_test(tcase, one_extent_is_taken_where_there_is_one);
        tcase_add_test(tcase, an_object_spreads_over_arenas_before_it_is_refused);
        tcase_add_test(tcase, an_address_lies_in_the_mapping_that_clients_see);
        tcase_add_test(tcase, impossible_sizes_are_refused_with_what_would_do);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
