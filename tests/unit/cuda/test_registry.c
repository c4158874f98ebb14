// SPDX-License-Identifier: Apache-2.0
/* Over a driver of a few functions that note what they are asked, and hang where a test wants. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/registry.h"

#define MIB     UINT64_C(0x100000)
#define PIECE   (2 * MIB)
#define CALLS   64u
#define SECOND  UINT64_C(1000000000)
#define AT_BASE UINT64_C(0x10000000)

static struct {
        pthread_mutex_t lock;
        pthread_cond_t go;
        uint8_t *registered[CALLS]; /* in order */
        unsigned n_registered, n_unregistered, n_let_go, n_refused;
        unsigned n_held; /* that had to wait */
        unsigned unregistered_when_let_go;
        uint8_t *refuses; /* the piece there */
        bool is_held;
} driver;

static struct registry *registry;

static cu_result host_register(void *base, size_t bytes, unsigned flags)
{
        cu_result error = base == driver.refuses ? CU_E_OUT_OF_MEMORY : 0;

        pthread_mutex_lock(&driver.lock);
        ck_assert_uint_le(bytes, PIECE);
        driver.n_held += driver.is_held;
        while (driver.is_held)
                pthread_cond_wait(&driver.go, &driver.lock);
        ck_assert_uint_lt(driver.n_registered, CALLS);
        if (!error)
                driver.registered[driver.n_registered++] = base;
        pthread_mutex_unlock(&driver.lock);
        return error;
}

static cu_result host_unregister(void *base)
{
        pthread_mutex_lock(&driver.lock);
        driver.n_unregistered++;
        pthread_mutex_unlock(&driver.lock);
        return 0;
}

/* What the GPU calls it is something else, to see that it is asked. */
static cu_result host_address(cu_address *ret_address, void *base, unsigned flags)
{
        *ret_address = (uintptr_t)base + AT_BASE;
        return 0;
}

static cu_result retain(cu_context *ret_context, cu_device device)
{
        *ret_context = (cu_context)&driver;
        return 0;
}

static cu_result release(cu_device device)
{
        return 0;
}

static cu_result push(cu_context context)
{
        ck_assert_ptr_eq(context, &driver);
        return 0;
}

static cu_result pop(cu_context *ret_context)
{
        return 0;
}

static cu_result capture_mode(int *mode)
{
        return 0;
}

static void let_go(struct kvt__mapping *mapping)
{
        pthread_mutex_lock(&driver.lock);
        driver.n_let_go++;
        driver.unregistered_when_let_go = driver.n_unregistered;
        pthread_mutex_unlock(&driver.lock);
}

static void on_refused(void *context, cu_result error)
{
        ck_assert_int_eq(error, CU_E_OUT_OF_MEMORY);
        driver.n_refused++;
}

static const struct cuda_driver table = {.host_register = host_register,
                                         .host_unregister = host_unregister,
                                         .host_address = host_address,
                                         .primary_retain = retain,
                                         .primary_release = release,
                                         .capture_mode = capture_mode,
                                         .context_push = push,
                                         .context_pop = pop};

static void setup(void)
{
        struct registry_options options = {
                .driver = &table, .let_go = let_go, .on_refused = on_refused, .piece_bytes = PIECE};

        pthread_mutex_init(&driver.lock, NULL);
        pthread_cond_init(&driver.go, NULL);
        driver.n_registered = driver.n_unregistered = driver.n_let_go = driver.n_refused = 0;
        driver.n_held = 0;
        driver.refuses = NULL;
        driver.is_held = false;
        ck_assert_int_eq(registry_new(&registry, &options), 0);
}

static void hold(bool is_held)
{
        pthread_mutex_lock(&driver.lock);
        driver.is_held = is_held;
        pthread_cond_broadcast(&driver.go);
        pthread_mutex_unlock(&driver.lock);
}

/* No memory is touched: addresses are enough. */
static struct kvt__mapping mapping_at(uint64_t base, uint64_t bytes, uint32_t node)
{
        return (struct kvt__mapping){
                .base = (void *)(uintptr_t)base, .bytes = bytes, .numa_node = node};
}

static void wait_for(const unsigned *number, unsigned n)
{
        for (unsigned i = 0; i < 5000; i++) {
                unsigned now;

                pthread_mutex_lock(&driver.lock);
                now = *number;
                pthread_mutex_unlock(&driver.lock);
                if (now == n)
                        return;
                usleep(1000);
        }
        ck_abort_msg("it stays at %u", *number);
}

static struct registry_extent find(uint64_t address)
{
        struct registry_extent extent;

        registry_find(registry, address, &extent);
        return extent;
}

START_TEST(the_node_next_to_the_gpu_comes_first_then_unbound_memory_then_the_rest)
{
        struct kvt__mapping far = mapping_at(1 << 24, PIECE, 0);
        struct kvt__mapping unbound = mapping_at(2 << 24, PIECE, UINT32_MAX);
        struct kvt__mapping near = mapping_at(3 << 24, 2 * PIECE, 1);

        registry_map(registry, &far);
        registry_map(registry, &unbound);
        registry_map(registry, &near);
        ck_assert_int_eq(registry_start(registry, 0, 1), 0);
        wait_for(&driver.n_registered, 4);
        ck_assert_ptr_eq(driver.registered[0], near.base);
        ck_assert_ptr_eq(driver.registered[1], near.base + PIECE);
        ck_assert_ptr_eq(driver.registered[2], unbound.base);
        ck_assert_ptr_eq(driver.registered[3], far.base);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_unregistered, 4);
        ck_assert_uint_eq(driver.n_let_go, 3);
}
END_TEST

START_TEST(a_piece_is_of_use_as_soon_as_it_is_registered)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, 2 * PIECE + 4096, UINT32_MAX);
        struct registry_counts counts;

        registry_map(registry, &mapping);
        ck_assert(!find((1 << 24) + 5).is_registered);
        ck_assert_uint_eq(find((1 << 24) + 5).end, (1 << 24) + PIECE);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_registered, 3);
        for (unsigned i = 0; i < 5000 && !find((1 << 24) + 2 * PIECE).is_registered; i++)
                usleep(1000);
        ck_assert_uint_eq(find((1 << 24) + PIECE + 5).start, (1 << 24) + PIECE);
        ck_assert_uint_eq(find((1 << 24) + PIECE + 5).there, (1 << 24) + PIECE + AT_BASE);
        ck_assert_uint_eq(find((1 << 24) + 2 * PIECE).end, (1 << 24) + 2 * PIECE + 4096);
        ck_assert(!find((1 << 24) + 2 * PIECE + 4096).is_registered);
        registry_count(registry, &counts);
        ck_assert_uint_eq(counts.mapped_bytes, mapping.bytes);
        ck_assert_uint_eq(counts.registered_bytes, mapping.bytes);
        registry_close(registry, SECOND);
}
END_TEST

START_TEST(a_refused_piece_is_told_counted_and_left_alone)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, 3 * PIECE, UINT32_MAX);
        struct registry_counts counts;

        driver.refuses = mapping.base + PIECE;
        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_registered, 2);
        for (unsigned i = 0; i < 5000 && !find((1 << 24) + 2 * PIECE).is_registered; i++)
                usleep(1000);
        ck_assert(!find((1 << 24) + PIECE).is_registered);
        registry_count(registry, &counts);
        ck_assert_uint_eq(counts.refused_bytes, PIECE);
        ck_assert_uint_eq(counts.registered_bytes, 2 * PIECE);
        ck_assert_uint_eq(driver.n_refused, 1);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_unregistered, 2);
}
END_TEST

START_TEST(an_arena_is_unregistered_before_it_is_let_go_of)
{
        struct kvt__mapping gone = mapping_at(1 << 24, 2 * PIECE, UINT32_MAX);
        struct kvt__mapping stays = mapping_at(2 << 24, PIECE, UINT32_MAX);

        registry_map(registry, &gone);
        registry_map(registry, &stays);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_registered, 3);
        registry_unmap(registry, &gone);
        wait_for(&driver.n_let_go, 1);
        ck_assert_uint_eq(driver.unregistered_when_let_go, 2);
        ck_assert(!find(1 << 24).is_registered);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_let_go, 2);
        ck_assert_uint_eq(driver.unregistered_when_let_go, 3);
}
END_TEST

START_TEST(an_arena_that_goes_while_a_piece_is_registered_is_let_go_of_after_it)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, 4 * PIECE, UINT32_MAX);

        hold(true);
        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_held, 1);
        registry_unmap(registry, &mapping);
        ck_assert_uint_eq(driver.n_let_go, 0);
        hold(false);
        wait_for(&driver.n_let_go, 1);
        ck_assert_uint_eq(driver.n_registered, 1);
        ck_assert_uint_eq(driver.n_unregistered, 1);
        registry_close(registry, SECOND);
}
END_TEST

START_TEST(a_driver_that_hangs_does_not_hang_the_close)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, 4 * PIECE, UINT32_MAX);

        hold(true);
        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_held, 1);
        registry_close(registry, SECOND / 50);
        ck_assert_uint_eq(driver.n_let_go, 0);
        /* It goes on behind. */
        hold(false);
        wait_for(&driver.n_let_go, 1);
        ck_assert_uint_eq(driver.unregistered_when_let_go, 1);
}
END_TEST

START_TEST(after_a_loss_nothing_is_given_back)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, PIECE, UINT32_MAX);

        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_registered, 1);
        registry_lose(registry);
        registry_unmap(registry, &mapping);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_unregistered, 0);
        ck_assert_uint_eq(driver.n_let_go, 0);
}
END_TEST

START_TEST(what_never_began_lets_go_of_all)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, PIECE, UINT32_MAX);

        registry_map(registry, &mapping);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_registered, 0);
        ck_assert_uint_eq(driver.n_let_go, 1);
}
END_TEST

START_TEST(memory_of_a_gpu_counts_as_registered_and_the_driver_is_not_asked)
{
        struct kvt__mapping mapping = mapping_at(1 << 24, 2 * PIECE, UINT32_MAX);
        struct registry_counts counts;

        mapping.is_foreign = true;
        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        for (uint64_t at = 1 << 24; at < (1 << 24) + 2 * PIECE; at += PIECE) {
                struct registry_extent extent = find(at);

                ck_assert(extent.is_registered && extent.is_foreign);
                ck_assert_uint_eq(extent.there, at);
        }
        registry_count(registry, &counts);
        ck_assert_uint_eq(counts.registered_bytes, 2 * PIECE);
        registry_unmap(registry, &mapping);
        wait_for(&driver.n_let_go, 1);
        registry_count(registry, &counts);
        ck_assert_uint_eq(counts.registered_bytes, 0);
        registry_close(registry, SECOND);
        ck_assert_uint_eq(driver.n_registered, 0);
        ck_assert_uint_eq(driver.n_unregistered, 0);
}
END_TEST

START_TEST(a_list_is_covered_when_all_of_its_segments_are)
{
        static struct kvt__page_group group = {.page_bytes = MIB, .stored_bytes = MIB};
        struct kvt__mapping mapping = mapping_at(1 << 24, 3 * PIECE, UINT32_MAX);
        struct kvt_segment segments[] = {{.address = mapping.base, .bytes = MIB},
                                         {.address = mapping.base + MIB, .bytes = 2 * MIB}};
        struct kvt__page_list list = {.group = &group, .n_slots = 3, .segments = segments};

        driver.refuses = mapping.base + PIECE;
        registry_map(registry, &mapping);
        ck_assert_int_eq(registry_start(registry, 0, -1), 0);
        wait_for(&driver.n_registered, 2);
        for (unsigned i = 0; i < 5000 && !find((1 << 24) + 2 * PIECE).is_registered; i++)
                usleep(1000);
        ck_assert(!registry_covers(registry, &list));
        segments[1].bytes = MIB;
        list.n_slots = 2;
        ck_assert(registry_covers(registry, &list));
        segments[1].address = mapping.base + 2 * PIECE;
        ck_assert(registry_covers(registry, &list));
        registry_close(registry, SECOND);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("cuda/registry");
        TCase *tcase = tcase_create("registry");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase,
                       the_node_next_to_the_gpu_comes_first_then_unbound_memory_then_the_rest);
        tcase_add_test(tcase, a_piece_is_of_use_as_soon_as_it_is_registered);
        tcase_add_test(tcase, a_refused_piece_is_told_counted_and_left_alone);
        tcase_add_test(tcase, an_arena_is_unregistered_before_it_is_let_go_of);
        tcase_add_test(tcase, an_arena_that_goes_while_a_piece_is_registered_is_let_go_of_after_it);
        tcase_add_test(tcase, a_driver_that_hangs_does_not_hang_the_close);
        tcase_add_test(tcase, after_a_loss_nothing_is_given_back);
        tcase_add_test(tcase, what_never_began_lets_go_of_all);
        tcase_add_test(tcase, memory_of_a_gpu_counts_as_registered_and_the_driver_is_not_asked);
        tcase_add_test(tcase, a_list_is_covered_when_all_of_its_segments_are);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
