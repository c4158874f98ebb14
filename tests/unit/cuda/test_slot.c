// SPDX-License-Identifier: Apache-2.0
/* Over a driver that notes the copies it is asked for: what is merged, cut, batched, ordered. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/slot.h"

#define KIB     UINT64_C(1024)
#define MIB     (KIB * KIB)
#define CALLS   512u
#define PAGES   UINT64_C(0x100000000)
#define ARENA   UINT64_C(0x200000000)
#define STAGING UINT64_C(0x300000000)
#define COPIES  ((cu_stream)(pinned + 1))

enum call_kind { COPY = 1, BATCH_ENTRY, KERNEL, WAIT, RECORD };

struct call {
        enum call_kind kind;
        uint64_t to, from, bytes;
        cu_stream stream;
};

static struct call calls[CALLS];
static unsigned n_calls;
static cu_result launch_error;
static uint8_t pinned[SLOT_RUNS_MAX * sizeof(struct kvt_cuda_run)];

static void note(enum call_kind kind, uint64_t to, uint64_t from, uint64_t bytes, cu_stream stream)
{
        ck_assert_uint_lt(n_calls, CALLS);
        calls[n_calls++] = (struct call){kind, to, from, bytes, stream};
}

static cu_result copy(cu_address to, cu_address from, size_t bytes, cu_stream stream)
{
        note(COPY, to, from, bytes, stream);
        return 0;
}

static cu_result copy_batch(cu_address *to, cu_address *from, size_t *bytes, size_t n,
                            struct cu_copy_attributes *attributes, size_t *first_of,
                            size_t n_attributes, size_t *ret_failed, cu_stream stream)
{
        ck_assert_uint_eq(attributes->source_order, CU_SOURCE_ORDER_STREAM);
        for (size_t i = 0; i < n; i++)
                note(BATCH_ENTRY, to[i], from[i], bytes[i], stream);
        return 0;
}

static cu_result launch(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        cu_stream stream, void **arguments, void **extra)
{
        note(KERNEL, grid_x, block_x, *(uint32_t *)arguments[1], stream);
        return launch_error;
}

static cu_result stream_wait(cu_stream stream, cu_event event, unsigned flags)
{
        note(WAIT, 0, 0, 0, stream);
        return 0;
}

static cu_result event_record(cu_event event, cu_stream stream)
{
        note(RECORD, 0, 0, 0, stream);
        return 0;
}

static cu_result stream_create(cu_stream *ret_stream, unsigned flags, int priority)
{
        *ret_stream = (cu_stream)pinned;
        return 0;
}

static cu_result stream_destroy(cu_stream stream)
{
        return 0;
}

static cu_result event_create(cu_event *ret_event, unsigned flags)
{
        *ret_event = (cu_event)pinned;
        return 0;
}

static cu_result event_destroy(cu_event event)
{
        return 0;
}

static cu_result host_allocate(void **ret_base, size_t bytes, unsigned flags)
{
        ck_assert_uint_le(bytes, sizeof(pinned));
        *ret_base = pinned;
        return 0;
}

static cu_result host_free(void *base)
{
        return 0;
}

static cu_result host_address(cu_address *ret_address, void *base, unsigned flags)
{
        *ret_address = (uintptr_t)base;
        return 0;
}

static cu_result allocate(cu_address *ret_address, size_t bytes)
{
        *ret_address = STAGING;
        return bytes > 64 * MIB ? CU_E_OUT_OF_MEMORY : 0;
}

static cu_result release(cu_address address)
{
        return 0;
}

static const struct cuda_driver driver = {.copy = copy,
                                          .copy_batch = copy_batch,
                                          .launch = launch,
                                          .stream_wait = stream_wait,
                                          .event_record = event_record,
                                          .stream_create = stream_create,
                                          .stream_destroy = stream_destroy,
                                          .event_create = event_create,
                                          .event_destroy = event_destroy,
                                          .host_allocate = host_allocate,
                                          .host_free = host_free,
                                          .host_address = host_address,
                                          .allocate = allocate,
                                          .release = release};
static const struct slot_kit kit = {
        .driver = &driver, .move_runs = (cu_function)pinned, .blocks = 16};
static struct slot slot;

static void setup(void)
{
        ck_assert_int_eq(slot_init(&slot, &kit, COPIES, MIB), 0);
        n_calls = 0;
        launch_error = 0;
}

static void teardown(void)
{
        slot_deinit(&slot);
}

static uint64_t add_in(uint64_t extent, uint64_t page, uint64_t arena, uint64_t bytes)
{
        struct slot_pair pair = {.page = PAGES + page,
                                 .arena = ARENA + arena,
                                 .bytes = bytes,
                                 .extent = extent,
                                 .is_registered = true};

        return slot_add(&slot, &pair);
}

static uint64_t add(uint64_t page, uint64_t arena, uint64_t bytes)
{
        return add_in(1, page, arena, bytes);
}

static void expect(unsigned i, enum call_kind kind, uint64_t to, uint64_t from, uint64_t bytes)
{
        ck_assert_uint_lt(i, n_calls);
        ck_assert_int_eq(calls[i].kind, kind);
        ck_assert_uint_eq(calls[i].to, to);
        ck_assert_uint_eq(calls[i].from, from);
        ck_assert_uint_eq(calls[i].bytes, bytes);
}

/* What the second stream does next comes behind the first. */
static void expect_step(unsigned i, cu_stream from, cu_stream to)
{
        ck_assert_int_eq(calls[i].kind, RECORD);
        ck_assert_ptr_eq(calls[i].stream, from);
        ck_assert_int_eq(calls[i + 1].kind, WAIT);
        ck_assert_ptr_eq(calls[i + 1].stream, to);
}

START_TEST(neighbours_are_one_copy_and_no_longer_than_what_was_registered_at_once)
{
        slot_begin(&slot, KVT_CUDA_PLAIN, true, 8 * MIB);
        ck_assert_uint_eq(add(0, 0, 4096), 4096);
        ck_assert_uint_eq(add(4096, 4096, 4096), 4096);
        ck_assert_uint_eq(add_in(2, 8192, 8192, 4096), 4096);
        ck_assert_uint_eq(add_in(2, 20480, 12288, 4096), 4096);
        ck_assert_int_eq(slot_issue(&slot, NULL), 0);
        ck_assert_uint_eq(n_calls, 4);
        expect(0, COPY, ARENA, PAGES, 8192);
        expect(1, COPY, ARENA + 8192, PAGES + 8192, 4096);
        expect(2, COPY, ARENA + 12288, PAGES + 20480, 4096);
        ck_assert_int_eq(calls[3].kind, RECORD);
}
END_TEST

START_TEST(plain_copies_leave_room_in_the_streams_queue)
{
        unsigned n = 0;

        slot_begin(&slot, KVT_CUDA_PLAIN, false, 8 * MIB);
        while (add(n * 8192, n * 4096, 4096))
                n++;
        ck_assert_uint_eq(n, SLOT_PLAIN_MAX);
}
END_TEST

START_TEST(a_batch_is_one_call)
{
        slot_begin(&slot, KVT_CUDA_BATCH, false, 8 * MIB);
        add(0, 0, 4096);
        add(8192, 4096, 4096);
        ck_assert_int_eq(slot_issue(&slot, (cu_event)pinned), 0);
        ck_assert_int_eq(calls[0].kind, WAIT);
        expect(1, BATCH_ENTRY, PAGES, ARENA, 4096);
        expect(2, BATCH_ENTRY, PAGES + 8192, ARENA + 4096, 4096);
}
END_TEST

START_TEST(a_kernel_gets_short_runs_and_no_more_blocks_than_allowed)
{
        uint64_t at = 0;

        slot_begin(&slot, KVT_CUDA_KERNEL, true, 8 * MIB);
        for (uint64_t taken = 1; taken && at < MIB; at += taken)
                taken = add(at, at, MIB - at);
        ck_assert_int_eq(slot_issue(&slot, NULL), 0);
        expect(0, KERNEL, 16, 512, MIB / KVT_CUDA_RUN_MAX);
        ck_assert_uint_eq(slot.runs[1].from, PAGES + KVT_CUDA_RUN_MAX);
        ck_assert_uint_eq(slot.runs[1].to, ARENA + KVT_CUDA_RUN_MAX);
        n_calls = 0;
        slot_begin(&slot, KVT_CUDA_KERNEL, true, 8 * MIB);
        add(0, 0, 100);
        ck_assert_int_eq(slot_issue(&slot, NULL), 0);
        expect(0, KERNEL, 1, 512, 1);
}
END_TEST

START_TEST(a_store_is_gathered_before_it_is_copied)
{
        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        add(0, 0, 4096);
        add(100000, 4096, 4096);
        ck_assert_int_eq(slot_issue(&slot, (cu_event)pinned), 0);
        ck_assert_int_eq(calls[0].kind, WAIT);
        expect(1, KERNEL, 2, 512, 2);
        expect_step(2, slot.stream, COPIES);
        expect(4, COPY, ARENA, STAGING, 8192);
        ck_assert_ptr_eq(calls[4].stream, COPIES);
        ck_assert_ptr_eq(calls[5].stream, COPIES);
        ck_assert_uint_eq(slot.runs[1].from, PAGES + 100000);
        ck_assert_uint_eq(slot.runs[1].to, STAGING + 4096);
        /* What was not registered at once is not copied at once. */
        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        add_in(1, 0, 0, 4096);
        add_in(2, 8192, 4096, 4096);
        ck_assert_uint_eq(slot.n_spans, 2);
}
END_TEST

START_TEST(a_load_fills_the_staging_buffer_before_it_waits_for_the_pages)
{
        slot_begin(&slot, KVT_CUDA_STAGED, false, 8 * MIB);
        add(0, 0, 4096);
        ck_assert_int_eq(slot_issue(&slot, (cu_event)pinned), 0);
        expect(0, COPY, STAGING, ARENA, 4096);
        ck_assert_ptr_eq(calls[0].stream, COPIES);
        expect_step(1, COPIES, slot.stream);
        ck_assert_int_eq(calls[3].kind, WAIT);
        expect(4, KERNEL, 1, 512, 1);
        ck_assert_ptr_eq(calls[5].stream, slot.stream);
        ck_assert_uint_eq(slot.runs[0].from, STAGING);
        ck_assert_uint_eq(slot.runs[0].to, PAGES);
}
END_TEST

START_TEST(several_places_of_the_arena_are_one_batch_if_they_are_registered)
{
        struct slot_pair elsewhere = {
                .page = PAGES, .arena = ARENA + MIB, .bytes = 4096, .extent = 9};

        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        add(0, 0, 4096);
        add(8192, 500000, 4096);
        ck_assert_int_eq(slot_issue(&slot, NULL), 0);
        expect(3, BATCH_ENTRY, ARENA, STAGING, 4096);
        expect(4, BATCH_ENTRY, ARENA + 500000, STAGING + 4096, 4096);
        n_calls = 0;
        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        add(0, 0, 4096);
        ck_assert_uint_eq(slot_add(&slot, &elsewhere), 4096);
        ck_assert_int_eq(slot_issue(&slot, NULL), 0);
        expect(3, COPY, ARENA, STAGING, 4096);
        expect(4, COPY, ARENA + MIB, STAGING + 4096, 4096);
}
END_TEST

START_TEST(a_slot_takes_what_its_staging_buffer_holds)
{
        uint64_t at = 0, taken;

        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        while ((taken = add(at, at, 3000)))
                at += taken;
        ck_assert_uint_eq(at, MIB);
        ck_assert_uint_eq(slot.n_spans, 1);
}
END_TEST

START_TEST(spans_and_runs_stay_in_step_when_one_of_them_is_full)
{
        unsigned n = 0;

        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        while (add(n * 4096, n * 4096, 16))
                n++;
        ck_assert_uint_eq(n, SLOT_SPANS_MAX);
        ck_assert_uint_eq(slot.n_spans, slot.n_runs);
        ck_assert_uint_eq(slot.bytes, n * 16);
        n = 0;
        slot_begin(&slot, KVT_CUDA_STAGED, true, 8 * MIB);
        while (add(n * 4096, n * 16, 16))
                n++;
        ck_assert_uint_eq(n, SLOT_RUNS_MAX);
        ck_assert_uint_eq(slot.spans[0].bytes, n * 16);
}
END_TEST

START_TEST(a_slot_that_fails_half_way_is_done_when_both_streams_are)
{
        slot_begin(&slot, KVT_CUDA_STAGED, false, 8 * MIB);
        add(0, 0, 4096);
        launch_error = CU_E_INVALID_VALUE;
        ck_assert_int_eq(slot_issue(&slot, NULL), CU_E_INVALID_VALUE);
        ck_assert(slot.is_recorded);
        ck_assert_uint_eq(n_calls, 7);
        expect_step(4, COPIES, slot.stream);
        ck_assert_int_eq(calls[6].kind, RECORD);
        ck_assert_ptr_eq(calls[6].stream, slot.stream);
}
END_TEST

START_TEST(a_gpu_without_room_to_stage_has_slots_all_the_same)
{
        struct slot other;

        ck_assert_int_eq(slot_init(&other, &kit, COPIES, 65 * MIB), 0);
        ck_assert_uint_eq(other.staging_bytes, 0);
        slot_deinit(&other);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("cuda/slot");
        TCase *tcase = tcase_create("slot");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase,
                       neighbours_are_one_copy_and_no_longer_than_what_was_registered_at_once);
        tcase_add_test(tcase, plain_copies_leave_room_in_the_streams_queue);
        tcase_add_test(tcase, a_batch_is_one_call);
        tcase_add_test(tcase, a_kernel_gets_short_runs_and_no_more_blocks_than_allowed);
        tcase_add_test(tcase, a_store_is_gathered_before_it_is_copied);
        tcase_add_test(tcase, a_load_fills_the_staging_buffer_before_it_waits_for_the_pages);
        tcase_add_test(tcase, several_places_of_the_arena_are_one_batch_if_they_are_registered);
        tcase_add_test(tcase, a_slot_takes_what_its_staging_buffer_holds);
        tcase_add_test(tcase, spans_and_runs_stay_in_step_when_one_of_them_is_full);
        tcase_add_test(tcase, a_slot_that_fails_half_way_is_done_when_both_streams_are);
        tcase_add_test(tcase, a_gpu_without_room_to_stage_has_slots_all_the_same);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
