// SPDX-License-Identifier: Apache-2.0
/*
 * Beside the application's own work on a GPU: what waits for its events and what does not, and
 * what it has to be spared.
 */
#include "tests/gpu/fault_world.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"

#define A_MOMENT_NS UINT64_C(50000000)

static void a_call_waits(enum kvt_cuda_strategy strategy, bool is_store)
{
        struct kvt_completion completion;
        cu_event after;
        uint64_t id;

        world_begin(strategy);
        after = gpu_event(&gpu);
        if (!is_store)
                ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        world_write_behind(after, 51);
        id = world_submit(is_store, after, NULL);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, A_MOMENT_NS), KVT_TIMEOUT);
        fake_cuda_hold_stream(gpu.stream, false);
        ck_assert_int_eq(world_finish(id), KVT_OK);
        if (is_store) {
                gpu_engine_poison(&engine, 4);
                gpu_engine_push(&engine);
                ck_assert_int_eq(gpu_engine_load(&engine, objects, n_objects), KVT_OK);
        }
        /* A load overwrites what was written before it. */
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], (is_store ? 51 : 1) + i);
        ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
        world_destroy(after);
        world_end();
}

START_TEST(a_store_waits_for_the_event_behind_the_writing_of_its_pages)
{
        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                a_call_waits((enum kvt_cuda_strategy)i, true);
}
END_TEST

START_TEST(a_load_waits_for_the_event_behind_the_last_use_of_its_pages)
{
        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                a_call_waits((enum kvt_cuda_strategy)i, false);
}
END_TEST

static void overtake(enum kvt_cuda_strategy strategy)
{
        enum { N_WAITING = 6 };
        struct daemon_options more = {.n_pieces = 6};
        static struct kvt_object waiting[N_WAITING][ENGINE_N_MAX];
        static uint32_t waiting_slots[N_WAITING][ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        cu_event events[N_WAITING];
        uint64_t ids[N_WAITING], id;
        struct kvt_completion completion;

        world_begin_by(&more, strategy);
        gpu_engine_wait_registered(&engine);
        if (!gpu_moves_by(engine.session, strategy)) {
                world_end();
                return;
        }
        fake_cuda_hold_stream(gpu.stream, true);
        gpu_enter(&gpu);
        gpu_check(&gpu, gpu.driver.copy(engine.memory, (uintptr_t)engine.is, 4096, gpu.stream),
                  "cuMemcpyAsync");
        for (unsigned i = 0; i < N_WAITING; i++) {
                struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};

                /* One of each, so that there is room for all. */
                gpu_engine_objects(&engine, 100 + 10 * i, waiting[i], waiting_slots[i]);
                call.after = events[i] = gpu_event(&gpu);
                gpu_check(&gpu, gpu.driver.event_record(events[i], gpu.stream), "cuEventRecord");
                ck_assert_int_eq(
                        kvt_store_pages(engine.session, &call, engine.map, waiting[i], 1, &ids[i]),
                        KVT_OK);
        }
        gpu_leave(&gpu);
        /* By then those that may wait on the GPU do. */
        ck_assert_int_eq(kvt_wait_call(engine.session, ids[0], &completion, A_MOMENT_NS),
                         KVT_TIMEOUT);
        id = world_submit(true, NULL, NULL);
        ck_assert_int_eq(world_finish(id), KVT_OK);
        gpu_enter(&gpu);
        ck_assert_int_eq(gpu.driver.event_query(events[0]), CU_E_NOT_READY);
        /* One that still waits may be cancelled, and has not touched anything. */
        ck_assert_int_eq(kvt_cancel(engine.session, NULL, ids[N_WAITING - 1], NULL), KVT_OK);
        ck_assert_int_eq(world_finish(ids[N_WAITING - 1]), KVT_CANCELLED);
        ck_assert_int_eq(gpu.driver.event_query(events[0]), CU_E_NOT_READY);
        fake_cuda_hold_stream(gpu.stream, false);
        for (unsigned i = 0; i < N_WAITING - 1; i++)
                ck_assert_int_eq(world_finish(ids[i]), KVT_OK);
        for (unsigned i = 0; i < N_WAITING; i++)
                gpu_check(&gpu, gpu.driver.event_destroy(events[i]), "cuEventDestroy");
        gpu_leave(&gpu);
        world_end();
}

START_TEST(what_waits_for_its_event_does_not_hold_up_what_does_not)
{
        overtake(KVT_CUDA_KERNEL);
}
END_TEST

/* What is staged shares a stream for its copies. */
START_TEST(nor_does_it_where_both_are_staged)
{
        overtake(KVT_CUDA_STAGED);
}
END_TEST

START_TEST(the_event_behind_the_last_copy_is_recorded_before_the_completion)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS, id;
        cu_event done;

        world_begin(KVT_CUDA_KERNEL);
        done = gpu_event(&gpu);
        fake_cuda_hold(true);
        id = world_submit(true, NULL, done);
        gpu_enter(&gpu);
        /* One that was never recorded would be through. */
        while (gpu.driver.event_query(done) != CU_E_NOT_READY) {
                ck_assert_msg(daemon_now_ms() < deadline, "the event is not recorded");
                daemon_pause();
        }
        fake_cuda_hold(false);
        ck_assert_int_eq(world_finish(id), KVT_OK);
        gpu_check(&gpu, gpu.driver.stream_wait(gpu.stream, done, 0), "cuStreamWaitEvent");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.driver.event_query(done), "cuEventQuery");
        gpu_leave(&gpu);
        world_destroy(done);
        world_end();
}
END_TEST

START_TEST(a_kernel_takes_no_more_blocks_than_allowed)
{
        struct kvt_cuda_options options = world_options(1u << KVT_CUDA_KERNEL);
        struct fake_cuda_figures figures;

        options.blocks = 5;
        daemon_fixture_init(&fixture, NULL);
        world_open("Qwen3-Next-80B TP1", &options);
        gpu_engine_wait_registered(&engine);
        if (!gpu_moves_by(engine.session, KVT_CUDA_KERNEL)) {
                world_end();
                return;
        }
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        fake_cuda_figures(&figures);
        ck_assert_uint_gt(figures.n_kernels, 0);
        ck_assert_uint_le(figures.blocks_max, 5);
        world_end();
}
END_TEST

START_TEST(a_copy_of_the_callers_goes_as_it_says)
{
        static const char *const functions[] = {"cuMemcpyAsync", "cuMemcpyBatchAsync",
                                                "cuLaunchKernel"};
        static const unsigned used[KVT_CUDA_STRATEGIES] = {0, 1, 2, 2};
        struct kvt_cuda_copy copy;

        world_begin(KVT_CUDA_PLAIN);
        copy = world_reserve();
        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++) {
                uint64_t before[3];

                if (!gpu_moves_by(engine.session, (enum kvt_cuda_strategy)i))
                        break;
                for (unsigned k = 0; k < 3; k++)
                        before[k] = fake_cuda_calls(functions[k]);
                copy.strategy = 1 + i;
                ck_assert_int_eq(kvt_cuda_copy(engine.session, &copy, gpu.stream), KVT_OK);
                for (unsigned k = 0; k < 3; k++)
                        ck_assert_msg((fake_cuda_calls(functions[k]) > before[k]) == (k == used[i]),
                                      "strategy %u, %s", i, functions[k]);
        }
        gpu_wait(&gpu);
        world_abort();
        world_end();
}
END_TEST

/* Captured as engines do: by another thread, at a time that is none of kvtier's. */
START_TEST(a_graph_that_the_application_captures_is_not_spoilt)
{
        struct kvt_cuda_options options = world_options(1u << KVT_CUDA_PLAIN);
        struct kvt_cuda_measure measures[8];
        struct fake_cuda_figures figures;
        char why[256] = "";
        size_t n;

        options.flags = 0;
        world_begin(KVT_CUDA_KERNEL);
        fake_cuda_capture(true);
        ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        ck_assert_msg(kvt_cuda_register(engine.session, &options, why, sizeof(why)) == KVT_OK, "%s",
                      why);
        gpu_engine_wait_registered(&engine);
        while (kvt_cuda_measured(engine.session, 0, measures, 8, &n) == KVT_PENDING)
                daemon_pause();
        ck_assert_int_eq(world_finish(world_submit(false, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        fake_cuda_capture(false);
        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.n_spoilt, 0);
        world_end();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_store_waits_for_the_event_behind_the_writing_of_its_pages,
                a_load_waits_for_the_event_behind_the_last_use_of_its_pages,
                what_waits_for_its_event_does_not_hold_up_what_does_not,
                nor_does_it_where_both_are_staged,
                the_event_behind_the_last_copy_is_recorded_before_the_completion,
                a_kernel_takes_no_more_blocks_than_allowed,
                a_copy_of_the_callers_goes_as_it_says,
                a_graph_that_the_application_captures_is_not_spoilt,
                NULL,
        };

        return flow_run("gpu events", tests, 120);
}
