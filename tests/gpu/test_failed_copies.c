// SPDX-License-Identifier: Apache-2.0
/*
 * A copy that fails is a failed object, and nothing of it is to be seen; the next one goes well.
 */
#include "tests/gpu/fault_world.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"

/* One call of @function fails, and with it the objects that it was about; how many. */
static unsigned move_with_fault(const char *function, bool is_store)
{
        unsigned n_failed = 0;

        fake_cuda_fail(function, FAKE_CUDA_INVALID_VALUE, 0, 1);
        world_finish(world_submit(is_store, NULL, NULL));
        fake_cuda_fail(function, FAKE_CUDA_OK, 0, 0);
        for (unsigned i = 0; i < n_objects; i++) {
                ck_assert(objects[i].status == KVT_OK || objects[i].status == KVT_IO_ERROR);
                n_failed += objects[i].status == KVT_IO_ERROR;
        }
        ck_assert_uint_gt(n_failed, 0);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        return n_failed;
}

static void one_fails(enum kvt_cuda_strategy strategy, const char *function)
{
        unsigned n_failed;

        world_begin(strategy);
        if (!gpu_moves_by(engine.session, strategy)) {
                world_end();
                return;
        }
        n_failed = move_with_fault(function, true);
        ck_assert_uint_eq(gpu_engine_info(&engine).failed_jobs, n_failed);
        ck_assert_uint_eq(gpu_engine_info(&engine).is_lost, 0);
        ck_assert_str_ne(gpu_engine_info(&engine).last_error, "");
        daemon_wait_number(&fixture, "objects", n_objects - n_failed);

        /* The same again goes well; then the way back. */
        ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        move_with_fault(function, false);
        world_expect_round_trip(11);
        world_end();
}

START_TEST(a_plain_copy_that_fails_is_a_failed_object)
{
        one_fails(KVT_CUDA_PLAIN, "cuMemcpyAsync");
}
END_TEST

START_TEST(a_batch_that_fails_is_a_failed_object)
{
        one_fails(KVT_CUDA_BATCH, "cuMemcpyBatchAsync");
}
END_TEST

START_TEST(a_kernel_that_does_not_start_is_a_failed_object)
{
        one_fails(KVT_CUDA_KERNEL, "cuLaunchKernel");
}
END_TEST

START_TEST(of_a_set_with_a_copy_that_fails_nothing_is_stored)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED, .set = 5};
        uint64_t id;

        world_begin(KVT_CUDA_PLAIN);
        fake_cuda_fail("cuMemcpyAsync", FAKE_CUDA_INVALID_VALUE, 100, 1);
        ck_assert_int_eq(
                kvt_store_pages(engine.session, &call, engine.map, objects, n_objects, &id),
                KVT_OK);
        ck_assert_int_ne(world_finish(id), KVT_OK);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        world_end();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_plain_copy_that_fails_is_a_failed_object,
                a_batch_that_fails_is_a_failed_object,
                a_kernel_that_does_not_start_is_a_failed_object,
                of_a_set_with_a_copy_that_fails_nothing_is_stored,
                NULL,
        };

        return flow_run("gpu failed copies", tests, 120);
}
