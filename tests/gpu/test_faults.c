// SPDX-License-Identifier: Apache-2.0
/*
 * What goes wrong between a GPU and the arena, on the fake driver: a copy that fails is a failed
 * object, a lost context is a lost session, and in every case the daemon gets its memory back
 * and nobody sees half an object.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/gpu_engine.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB         UINT64_C(0x100000)
#define MPS_ENABLED 133 /* the driver's number */
#define SHAPE       "Qwen3-0.6B"

static struct daemon_fixture fixture;
static struct gpu gpu;
static struct gpu_engine engine;
static struct kvt_object objects[ENGINE_N_MAX];
static uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
static unsigned n_objects;

static struct kvt_cuda_options options_of(uint32_t strategies)
{
        return (struct kvt_cuda_options){.size = sizeof(struct kvt_cuda_options),
                                         .flags = KVT_CUDA_NO_MEASURE,
                                         .strategies = strategies,
                                         .piece_bytes = 4 * MIB};
}

/* With objects 1 and 2 in their slots, and not stored. */
static void begin_by(const struct daemon_options *daemon, enum kvt_cuda_strategy strategy)
{
        struct kvt_cuda_options options = options_of(1u << strategy);
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];

        daemon_fixture_init(&fixture, daemon);
        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], 1 + i);
        gpu_engine_push(&engine);
}

static void begin(enum kvt_cuda_strategy strategy)
{
        begin_by(NULL, strategy);
        gpu_engine_wait_registered(&engine);
}

static bool lacks_kernels(enum kvt_cuda_strategy strategy)
{
        if (strategy < KVT_CUDA_KERNEL || gpu_engine_info(&engine).has_kernels)
                return false;
        printf("skipped: this build has no kernels\n");
        return true;
}

/* Everything that was taken from the driver has been given back. */
static void expect_clean(void)
{
        struct fake_cuda_figures figures;

        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.registered_bytes, 0);
        ck_assert_uint_eq(figures.n_streams, 0);
        ck_assert_uint_eq(figures.n_events, 0);
        ck_assert_uint_eq(figures.n_modules, 0);
        ck_assert_uint_eq(figures.n_contexts, 0);
        ck_assert_uint_eq(figures.device_bytes, 0);
        ck_assert_uint_eq(figures.n_slow_hosts, 0);
}

static void end(void)
{
        gpu_engine_close(&engine);
        gpu_close(&gpu);
        expect_clean();
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

static uint64_t submit(bool is_store, void *after, void *done)
{
        struct kvt_call call = {.size = sizeof(call),
                                .flags = KVT_CALL_WAITED,
                                .timeout_ns = FLOW_TIMEOUT_NS,
                                .after = after,
                                .done = done};
        enum kvt_status status;
        uint64_t id;

        status = is_store ? kvt_store_pages(engine.session, &call, engine.map, objects, n_objects,
                                            &id)
                          : kvt_load_pages(engine.session, &call, engine.map, NULL, objects,
                                           n_objects, &id);
        ck_assert_int_eq(status, KVT_OK);
        return id;
}

static enum kvt_status finish(uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        return completion.status;
}

static void expect_round_trip(uint64_t first)
{
        struct kvt_object again[ENGINE_N_MAX];
        uint32_t to[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        unsigned n = gpu_engine_objects(&engine, first, again, to);

        gpu_engine_poison(&engine, 3);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(&engine, &again[i], first + i);
        gpu_engine_push(&engine);
        ck_assert_int_eq(gpu_engine_store(&engine, again, n), KVT_OK);
        gpu_engine_poison(&engine, 4);
        gpu_engine_push(&engine);
        ck_assert_int_eq(gpu_engine_load(&engine, again, n), KVT_OK);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(&engine, &again[i], first + i);
        ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
}

/* ---- what registering meets ---- */

START_TEST(a_map_of_a_gpu_that_is_not_in_use_any_more_fails_its_objects)
{
        struct kvt_cuda_options options = options_of(0);
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];
        uint32_t other = 0;

        gpu_daemon_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 1, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        options.devices = &other;
        options.n_devices = 1;
        ck_assert_int_eq(kvt_cuda_register(engine.session, &options, why, sizeof(why)), KVT_OK);
        ck_assert_int_eq(finish(submit(false, NULL, NULL)), KVT_IO_ERROR);
        end();
}
END_TEST

static enum kvt_status register_status(const struct kvt_cuda_options *options, char why[256])
{
        const struct shape *shape = shape_named(SHAPE);
        struct kvt_session *session;
        enum kvt_status status;

        daemon_fixture_init(&fixture, NULL);
        session = gpu_engine_session(shape, fixture.socket);
        status = kvt_cuda_register(session, options, why, 256);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
        return status;
}

START_TEST(without_a_driver_registering_says_so)
{
        struct kvt_cuda_options options = options_of(0);
        char why[256] = "";

        options.driver = "/nowhere/libcuda.so.1";
        ck_assert_int_eq(register_status(&options, why), KVT_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(why, "/nowhere/libcuda.so.1"));
}
END_TEST

START_TEST(without_a_gpu_registering_says_so)
{
        struct kvt_cuda_options options = options_of(0);
        char why[256] = "";

        fake_cuda_set_devices(0);
        ck_assert_int_eq(register_status(&options, why), KVT_UNAVAILABLE);
        ck_assert_str_ne(why, "");
        expect_clean();
}
END_TEST

START_TEST(where_another_process_does_the_copies_registering_is_refused)
{
        struct kvt_cuda_options options = options_of(0);
        char why[256] = "";

        fake_cuda_set_attribute(MPS_ENABLED, 1);
        ck_assert_int_eq(register_status(&options, why), KVT_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(why, "MPS"));
        expect_clean();
}
END_TEST

START_TEST(an_older_driver_says_by_its_pipe_that_another_process_does_the_copies)
{
        struct kvt_cuda_options options = options_of(0);
        char folder[] = "/tmp/kvtier-mps-XXXXXX", pipe[64], why[256] = "";

        ck_assert_ptr_nonnull(mkdtemp(folder));
        snprintf(pipe, sizeof(pipe), "%s/control", folder);
        ck_assert_int_eq(mkfifo(pipe, 0600), 0);
        ck_assert_int_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
        fake_cuda_fail("cuDeviceGetAttribute", FAKE_CUDA_INVALID_VALUE, 0, 1);
        ck_assert_int_eq(register_status(&options, why), KVT_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(why, "MPS"));
        ck_assert_int_eq(unlink(pipe), 0);
        fake_cuda_fail("cuDeviceGetAttribute", FAKE_CUDA_INVALID_VALUE, 0, 1);
        ck_assert_int_eq(register_status(&options, why), KVT_OK);
        ck_assert_int_eq(rmdir(folder), 0);
        expect_clean();
}
END_TEST

START_TEST(arenas_that_the_driver_refuses_half_way_are_copied_through_its_buffers)
{
        struct kvt_cuda_info info;

        fake_cuda_fail("cuMemHostRegister", FAKE_CUDA_OUT_OF_MEMORY, 1, 0);
        begin(KVT_CUDA_KERNEL);
        expect_round_trip(11);
        info = gpu_engine_info(&engine);
        ck_assert_uint_gt(info.registered_bytes, 0);
        ck_assert_uint_gt(info.refused_bytes, 0);
        end();
}
END_TEST

START_TEST(before_an_arena_is_registered_its_copies_are_right)
{
        struct kvt_cuda_options options = options_of(0);
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];
        struct kvt_cuda_info info;

        options.flags |= KVT_CUDA_NO_REGISTER;
        daemon_fixture_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        expect_round_trip(11);
        info = gpu_engine_info(&engine);
        ck_assert_uint_eq(info.registered_bytes, 0);
        /* There and back. */
        ck_assert_uint_eq(info.unregistered_bytes_moved,
                          2 * ENGINE_OBJECTS * shape_page_bytes(&shape->groups[0]) *
                                  shape_object_pages(shape, &shape->groups[0]));
        end();
}
END_TEST

START_TEST(a_driver_without_batches_copies_one_by_one)
{
        fake_cuda_hide("cuMemcpyBatchAsync");
        begin(KVT_CUDA_BATCH);
        ck_assert_uint_eq(gpu_engine_info(&engine).has_batch, 0);
        expect_round_trip(11);
        ck_assert_uint_gt(gpu_engine_info(&engine).moved[KVT_CUDA_STORE][KVT_CUDA_PLAIN].bytes, 0);
        end();
}
END_TEST

START_TEST(a_restarted_daemon_with_fewer_arenas_leaves_none_of_the_old_registered)
{
        struct daemon_options more = {.n_pieces = 3}, *fewer = &fixture.options;
        static const char *const one_less[] = {"host.bytes=67108864", NULL};
        struct fake_cuda_figures figures;

        begin_by(&more, KVT_CUDA_KERNEL);
        gpu_engine_wait_registered(&engine);
        expect_round_trip(11);
        daemon_stop(&fixture);
        fewer->overrides = one_less;
        fewer->n_pieces = 2;
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
        for (uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;; daemon_pause()) {
                struct kvt_cuda_info info = gpu_engine_info(&engine);

                if (info.mapped_bytes == 64 * MIB && info.registered_bytes == 64 * MIB)
                        break;
                ck_assert_msg(daemon_now_ms() < deadline, "%llu of %llu bytes are registered",
                              (unsigned long long)info.registered_bytes,
                              (unsigned long long)info.mapped_bytes);
        }
        expect_round_trip(21);
        fake_cuda_figures(&figures);
        ck_assert_uint_lt(figures.registered_bytes, 96 * MIB);
        end();
}
END_TEST

/* ---- copies that fail ---- */

/* One call of @function fails, and with it the objects that it was about; how many. */
static unsigned move_with_fault(const char *function, bool is_store)
{
        unsigned n_failed = 0;

        fake_cuda_fail(function, FAKE_CUDA_INVALID_VALUE, 0, 1);
        finish(submit(is_store, NULL, NULL));
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

        begin(strategy);
        if (lacks_kernels(strategy)) {
                end();
                return;
        }
        n_failed = move_with_fault(function, true);
        ck_assert_uint_eq(gpu_engine_info(&engine).failed_jobs, n_failed);
        ck_assert_uint_eq(gpu_engine_info(&engine).is_lost, 0);
        ck_assert_str_ne(gpu_engine_info(&engine).last_error, "");
        daemon_wait_number(&fixture, "objects", n_objects - n_failed);

        /* The same again goes well; then the way back. */
        ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        move_with_fault(function, false);
        expect_round_trip(11);
        end();
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

        begin(KVT_CUDA_PLAIN);
        fake_cuda_fail("cuMemcpyAsync", FAKE_CUDA_INVALID_VALUE, 100, 1);
        ck_assert_int_eq(
                kvt_store_pages(engine.session, &call, engine.map, objects, n_objects, &id),
                KVT_OK);
        ck_assert_int_ne(finish(id), KVT_OK);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        end();
}
END_TEST

/* ---- order ---- */

#define A_MOMENT_NS UINT64_C(50000000)

/* The pages, as the stream will leave them; @after is recorded behind that. */
static void write_behind(cu_event after, uint64_t first)
{
        gpu_engine_poison(&engine, 9);
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], first + i);
        fake_cuda_hold_stream(gpu.stream, true);
        gpu_copy(&gpu, engine.memory, (uintptr_t)engine.is, engine.bytes, gpu.stream);
        gpu_enter(&gpu);
        gpu_check(&gpu, gpu.driver.event_record(after, gpu.stream), "cuEventRecord");
        gpu_leave(&gpu);
}

static void destroy(cu_event event)
{
        gpu_enter(&gpu);
        gpu_check(&gpu, gpu.driver.event_destroy(event), "cuEventDestroy");
        gpu_leave(&gpu);
}

static void a_call_waits(enum kvt_cuda_strategy strategy, bool is_store)
{
        struct kvt_completion completion;
        cu_event after;
        uint64_t id;

        begin(strategy);
        after = gpu_event(&gpu);
        if (!is_store)
                ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        write_behind(after, 51);
        id = submit(is_store, after, NULL);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, A_MOMENT_NS), KVT_TIMEOUT);
        fake_cuda_hold_stream(gpu.stream, false);
        ck_assert_int_eq(finish(id), KVT_OK);
        if (is_store) {
                gpu_engine_poison(&engine, 4);
                gpu_engine_push(&engine);
                ck_assert_int_eq(gpu_engine_load(&engine, objects, n_objects), KVT_OK);
        }
        /* A load overwrites what was written before it. */
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], (is_store ? 51 : 1) + i);
        ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
        destroy(after);
        end();
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

        begin_by(&more, strategy);
        gpu_engine_wait_registered(&engine);
        if (lacks_kernels(strategy)) {
                end();
                return;
        }
        fake_cuda_slow(20000000);
        gpu_enter(&gpu);
        for (unsigned i = 0; i < 50; i++)
                gpu_check(&gpu,
                          gpu.driver.copy(engine.memory, (uintptr_t)engine.is, 4096, gpu.stream),
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
        id = submit(true, NULL, NULL);
        ck_assert_int_eq(finish(id), KVT_OK);
        gpu_enter(&gpu);
        ck_assert_int_eq(gpu.driver.event_query(events[0]), CU_E_NOT_READY);
        /* One that still waits may be cancelled, and has not touched anything. */
        ck_assert_int_eq(kvt_cancel(engine.session, NULL, ids[N_WAITING - 1], NULL), KVT_OK);
        ck_assert_int_eq(finish(ids[N_WAITING - 1]), KVT_CANCELLED);
        ck_assert_int_eq(gpu.driver.event_query(events[0]), CU_E_NOT_READY);
        fake_cuda_slow(0);
        for (unsigned i = 0; i < N_WAITING - 1; i++)
                ck_assert_int_eq(finish(ids[i]), KVT_OK);
        for (unsigned i = 0; i < N_WAITING; i++)
                gpu_check(&gpu, gpu.driver.event_destroy(events[i]), "cuEventDestroy");
        gpu_leave(&gpu);
        end();
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

        begin(KVT_CUDA_KERNEL);
        done = gpu_event(&gpu);
        fake_cuda_hold(true);
        id = submit(true, NULL, done);
        gpu_enter(&gpu);
        /* One that was never recorded would be through. */
        while (gpu.driver.event_query(done) != CU_E_NOT_READY) {
                ck_assert_msg(daemon_now_ms() < deadline, "the event is not recorded");
                daemon_pause();
        }
        fake_cuda_hold(false);
        ck_assert_int_eq(finish(id), KVT_OK);
        gpu_check(&gpu, gpu.driver.stream_wait(gpu.stream, done, 0), "cuStreamWaitEvent");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.driver.event_query(done), "cuEventQuery");
        gpu_leave(&gpu);
        destroy(done);
        end();
}
END_TEST

START_TEST(a_kernel_takes_no_more_blocks_than_allowed)
{
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_KERNEL);
        const struct shape *shape = shape_named("Qwen3-Next-80B TP1");
        struct fake_cuda_figures figures;
        char why[GPU_WHY_BYTES];

        options.blocks = 5;
        daemon_fixture_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        gpu_engine_wait_registered(&engine);
        if (lacks_kernels(KVT_CUDA_KERNEL)) {
                end();
                return;
        }
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        fake_cuda_figures(&figures);
        ck_assert_uint_gt(figures.n_kernels, 0);
        ck_assert_uint_le(figures.blocks_max, 5);
        end();
}
END_TEST

/* ---- beside the application ---- */

/* Captured as engines do: by another thread, at a time that is none of kvtier's. */
START_TEST(a_graph_that_the_application_captures_is_not_spoilt)
{
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_PLAIN);
        struct kvt_cuda_measure measures[8];
        struct fake_cuda_figures figures;
        char why[256] = "";
        size_t n;

        options.flags = 0;
        begin(KVT_CUDA_KERNEL);
        fake_cuda_capture(true);
        ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        ck_assert_msg(kvt_cuda_register(engine.session, &options, why, sizeof(why)) == KVT_OK, "%s",
                      why);
        gpu_engine_wait_registered(&engine);
        while (kvt_cuda_measured(engine.session, 0, measures, 8, &n) == KVT_PENDING)
                daemon_pause();
        ck_assert_int_eq(finish(submit(false, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        fake_cuda_capture(false);
        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.n_spoilt, 0);
        end();
}
END_TEST

/* ---- calls that end early ---- */

START_TEST(a_cancelled_store_completes_when_its_copies_have_ended)
{
        struct kvt_completion completion;
        uint64_t id, cancel;

        begin(KVT_CUDA_KERNEL);
        fake_cuda_hold(true);
        id = submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        ck_assert_int_eq(kvt_cancel(engine.session, NULL, id, &cancel), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, 100000000), KVT_TIMEOUT);
        fake_cuda_hold(false);
        ck_assert_int_eq(finish(id), KVT_CANCELLED);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        expect_round_trip(11);
        end();
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

        begin(KVT_CUDA_KERNEL);
        fake_cuda_hold(true);
        submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        ck_assert_int_eq(pthread_create(&thread, NULL, release_soon, NULL), 0);
        kvt_close(engine.session);
        pthread_join(thread, NULL);
        kvt_page_map_free(engine.map);
        gpu_release(&gpu, engine.memory);
        free(engine.is);
        free(engine.seen);
        gpu_close(&gpu);
        expect_clean();
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

        begin(KVT_CUDA_PLAIN);
        done = gpu_event(&gpu);
        if (is_at_event)
                write_behind(done, 1);
        fake_cuda_hang(function);
        submit(true, done, done);
        ck_assert(fake_cuda_wait_hanging());
        kvt_close(engine.session);
        if (!is_at_event)
                destroy(done);
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

        begin(KVT_CUDA_STAGED);
        fake_cuda_hang("cuMemFree");
        kvt_close(engine.session);
        fake_cuda_hang(NULL);
        /* It goes on behind: the registry's, and then that of the GPU. */
        wait_called("cuDevicePrimaryCtxRelease", n_released + 2);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- contexts and processes that end ---- */

static void lose_context(struct child *self, void *argument)
{
        const uint64_t *in_mid_copy = argument;
        uint64_t id;
        char why[GPU_WHY_BYTES];
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_PLAIN);
        const struct shape *shape = shape_named(SHAPE);

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        gpu_engine_wait_registered(&engine);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(finish(submit(true, NULL, NULL)), KVT_OK);
        n_objects = gpu_engine_objects(&engine, 11, objects, slots);
        fake_cuda_lose(FAKE_CUDA_LAUNCH_FAILED, (unsigned)*in_mid_copy);
        id = submit(true, NULL, NULL);
        child_say(self, finish(id));
        child_hear(self);
        /* It does not come back, whatever is asked. */
        child_say(self, gpu_engine_info(&engine).is_lost);
        child_say(self,
                  kvt_load_pages(engine.session, NULL, engine.map, NULL, objects, n_objects, &id));
        child_hear(self);
        kvt_close(engine.session);
        child_say(self, 0);
        child_hear(self);
}

/* Nobody but the caller knows of such a copy: its leases are not the library's. */
static void lose_context_in_own_copy(struct child *self, void *argument)
{
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_PLAIN);
        const struct shape *shape = shape_named(SHAPE);
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_cuda_copy copy;
        enum kvt_status status;
        char why[GPU_WHY_BYTES];
        uint64_t id;

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        gpu_engine_wait_registered(&engine);
        gpu_engine_objects(&engine, 1, objects, slots);
        objects[0].bytes = objects[0].n_slots * shape_page_bytes(&shape->groups[objects[0].group]);
        ck_assert_int_eq(kvt_reserve(engine.session, &call, objects, 1, &id), KVT_OK);
        ck_assert_int_eq(finish(id), KVT_OK);
        copy = (struct kvt_cuda_copy){.size = sizeof(copy),
                                      .map = engine.map,
                                      .group = objects[0].group,
                                      .shard = objects[0].shard,
                                      .is_store = 1,
                                      .slots = objects[0].slots,
                                      .n_slots = objects[0].n_slots,
                                      .n_segments = objects[0].n_segments,
                                      .segments = objects[0].segments};
        fake_cuda_lose(FAKE_CUDA_LAUNCH_FAILED, 1);
        do {
                status = kvt_cuda_copy(engine.session, &copy, gpu.stream);
        } while (status == KVT_OK);
        child_say(self, status);
        /* Nothing is given back, whoever tries. */
        if (kvt_abort(engine.session, &call, objects, 1, &id) == KVT_OK)
                finish(id);
        child_hear(self);
}

static void lost_context(uint64_t n_copies_before)
{
        struct child child;

        daemon_fixture_init(&fixture, NULL);
        child_start(&child, lose_context, &n_copies_before);
        ck_assert_uint_eq(child_hear(&child), KVT_UNAVAILABLE);
        daemon_wait_number(&fixture, "quarantined", 1);
        ck_assert_uint_gt(daemon_number(&fixture, "host.quarantined_bytes"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 2);
        child_say(&child, 0);
        ck_assert_uint_eq(child_hear(&child), 1);
        ck_assert_uint_eq(child_hear(&child), KVT_UNAVAILABLE);
        child_say(&child, 0);
        ck_assert_uint_eq(child_hear(&child), 0);
        /* Closed, but its GPU may still write. */
        ck_assert_uint_gt(daemon_number(&fixture, "host.quarantined_bytes"), 0);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

START_TEST(a_context_lost_in_mid_copy_quarantines_its_leases_until_the_process_is_gone)
{
        lost_context(200);
}
END_TEST

START_TEST(so_does_one_that_is_lost_in_a_copy_of_the_callers)
{
        struct child child;

        daemon_fixture_init(&fixture, NULL);
        child_start(&child, lose_context_in_own_copy, NULL);
        ck_assert_uint_eq(child_hear(&child), KVT_UNAVAILABLE);
        daemon_wait_number(&fixture, "quarantined", 1);
        ck_assert_uint_gt(daemon_number(&fixture, "host.quarantined_bytes"), 0);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void hold_and_wait(struct child *self, void *argument)
{
        char why[GPU_WHY_BYTES];
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_KERNEL);
        const struct shape *shape = shape_named(SHAPE);

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        gpu_engine_wait_registered(&engine);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        fake_cuda_hold(true);
        submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        child_say(self, 0);
        child_hear(self); /* is killed here */
}

static void close_while_it_hangs(struct child *self, void *argument)
{
        struct kvt_cuda_options options = options_of(1u << KVT_CUDA_KERNEL);
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];
        uint64_t began;

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        gpu_engine_wait_registered(&engine);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        fake_cuda_hold(true);
        submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
        began = daemon_now_ms();
        kvt_close(engine.session);
        child_say(self, daemon_now_ms() - began);
        child_hear(self); /* is killed here */
}

START_TEST(a_gpu_that_hangs_does_not_hang_the_close_and_keeps_its_leases)
{
        struct child child;

        gpu_daemon_init(&fixture, NULL);
        child_start(&child, close_while_it_hangs, NULL);
        ck_assert_uint_lt(child_hear(&child), 20000);
        daemon_wait_number(&fixture, "quarantined", 1);
        ck_assert_uint_gt(daemon_number(&fixture, "host.quarantined_bytes"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_process_killed_in_mid_copy_stores_nothing_and_keeps_nothing)
{
        struct child child;

        daemon_fixture_init(&fixture, NULL);
        child_start(&child, hold_and_wait, NULL);
        ck_assert_uint_eq(child_hear(&child), 0);
        ck_assert_uint_gt(daemon_number(&fixture, "host.leased_bytes"), 0);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_forked_child_may_not_use_the_parents_gpu)
{
        struct kvt_cuda_info info = {.size = sizeof(info)};
        int status;
        pid_t pid;

        begin(KVT_CUDA_KERNEL);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid)
                _exit(kvt_cuda_info(engine.session, &info) == KVT_FORKED ? 0 : 1);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        expect_round_trip(11);
        end();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                without_a_driver_registering_says_so,
                without_a_gpu_registering_says_so,
                a_map_of_a_gpu_that_is_not_in_use_any_more_fails_its_objects,
                where_another_process_does_the_copies_registering_is_refused,
                an_older_driver_says_by_its_pipe_that_another_process_does_the_copies,
                arenas_that_the_driver_refuses_half_way_are_copied_through_its_buffers,
                before_an_arena_is_registered_its_copies_are_right,
                a_driver_without_batches_copies_one_by_one,
                a_restarted_daemon_with_fewer_arenas_leaves_none_of_the_old_registered,
                a_plain_copy_that_fails_is_a_failed_object,
                a_batch_that_fails_is_a_failed_object,
                a_kernel_that_does_not_start_is_a_failed_object,
                of_a_set_with_a_copy_that_fails_nothing_is_stored,
                a_store_waits_for_the_event_behind_the_writing_of_its_pages,
                a_load_waits_for_the_event_behind_the_last_use_of_its_pages,
                what_waits_for_its_event_does_not_hold_up_what_does_not,
                nor_does_it_where_both_are_staged,
                the_event_behind_the_last_copy_is_recorded_before_the_completion,
                a_kernel_takes_no_more_blocks_than_allowed,
                a_graph_that_the_application_captures_is_not_spoilt,
                a_cancelled_store_completes_when_its_copies_have_ended,
                a_session_may_be_closed_in_mid_copy,
                a_driver_that_hangs_in_a_copy_does_not_hang_the_close,
                a_driver_that_hangs_in_a_query_does_not_hang_the_close,
                a_driver_that_hangs_in_giving_back_does_not_hang_the_close,
                a_context_lost_in_mid_copy_quarantines_its_leases_until_the_process_is_gone,
                so_does_one_that_is_lost_in_a_copy_of_the_callers,
                a_gpu_that_hangs_does_not_hang_the_close_and_keeps_its_leases,
                a_process_killed_in_mid_copy_stores_nothing_and_keeps_nothing,
                a_forked_child_may_not_use_the_parents_gpu,
                NULL,
        };

        return flow_run("gpu faults", tests, 120);
}
