// SPDX-License-Identifier: Apache-2.0
/*
 * Calls and sessions that end with copies in flight, and while the driver hangs.
 */
#include <pthread.h>
#include <stdlib.h>

#include "tests/gpu/fault_world.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"

START_TEST(a_cancelled_store_completes_when_its_copies_have_ended)
{
        struct kvt_completion completion;
        uint64_t id, cancel;

        world_begin(KVT_CUDA_KERNEL);
        fake_cuda_hold(true);
        id = world_submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        ck_assert_int_eq(kvt_cancel(engine.session, NULL, id, &cancel), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, 100000000), KVT_TIMEOUT);
        fake_cuda_hold(false);
        ck_assert_int_eq(world_finish(id), KVT_CANCELLED);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        world_expect_round_trip(11);
        world_end();
}
END_TEST

static void *release_soon(void *user)
{
        fake_cuda_wait_queued(1);
        fake_cuda_hold(false);
        return NULL;
}

START_TEST(a_session_may_be_closed_in_mid_copy)
{
        pthread_t thread;

        world_begin(KVT_CUDA_KERNEL);
        fake_cuda_hold(true);
        world_submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        ck_assert_int_eq(pthread_create(&thread, NULL, release_soon, NULL), 0);
        kvt_close(engine.session);
        pthread_join(thread, NULL);
        kvt_page_map_free(engine.map);
        gpu_release(&gpu, engine.memory);
        free(engine.is);
        free(engine.seen);
        gpu_close(&gpu);
        world_expect_clean();
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* Until @name has been called so often. */
static void wait_called(const char *name, uint64_t n)
{
        for (uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS; fake_cuda_calls(name) < n;
             daemon_pause())
                ck_assert_msg(daemon_now_ms() < deadline, "%s is called no more", name);
}

/* Where the driver is not just at the event, it may be destroyed once the call is over. */
static void close_while_hanging(const char *function, bool is_at_event)
{
        uint64_t n_left;
        cu_event done;

        world_begin(KVT_CUDA_PLAIN);
        done = gpu_event(&gpu);
        if (is_at_event)
                world_write_behind(done, 1);
        fake_cuda_hang(function);
        world_submit(true, done, done);
        ck_assert(fake_cuda_wait_hanging());
        kvt_close(engine.session);
        if (!is_at_event)
                world_destroy(done);
        n_left = fake_cuda_calls("cuCtxPopCurrent");
        fake_cuda_hang(NULL);
        wait_called("cuCtxPopCurrent", n_left + 1);
        daemon_wait_number(&fixture, "sessions", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        /* What has not begun is given back. */
        ck_assert_int_eq(daemon_number(&fixture, "host.quarantined_bytes") > 0, !is_at_event);
        daemon_fixture_deinit(&fixture);
}

START_TEST(a_driver_that_hangs_in_a_copy_does_not_hang_the_close)
{
        close_while_hanging("cuMemcpyAsync", false);
}
END_TEST

START_TEST(a_driver_that_hangs_in_a_query_does_not_hang_the_close)
{
        close_while_hanging("cuEventQuery", true);
}
END_TEST

START_TEST(a_driver_that_hangs_in_giving_back_does_not_hang_the_close)
{
        uint64_t n_released = fake_cuda_calls("cuDevicePrimaryCtxRelease");

        world_begin(KVT_CUDA_STAGED);
        fake_cuda_hang("cuMemFree");
        kvt_close(engine.session);
        fake_cuda_hang(NULL);
        /* It goes on behind: the registry's, and then that of the GPU. */
        wait_called("cuDevicePrimaryCtxRelease", n_released + 2);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_cancelled_store_completes_when_its_copies_have_ended,
                a_session_may_be_closed_in_mid_copy,
                a_driver_that_hangs_in_a_copy_does_not_hang_the_close,
                a_driver_that_hangs_in_a_query_does_not_hang_the_close,
                a_driver_that_hangs_in_giving_back_does_not_hang_the_close,
                NULL,
        };

        return flow_run("gpu closing", tests, 120);
}
