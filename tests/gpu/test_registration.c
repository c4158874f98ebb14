// SPDX-License-Identifier: Apache-2.0
/*
 * What registering a GPU meets: a driver, a GPU or calls of it that are not there, arenas that it
 * refuses, and a daemon that comes back with others. It is said, or the copies go another way.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/fault_world.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MPS_ENABLED 133 /* the driver's number */

START_TEST(a_map_of_a_gpu_that_is_not_in_use_any_more_fails_its_objects)
{
        struct kvt_cuda_options options = world_options(0);
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];
        uint32_t other = 0;

        gpu_daemon_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 1, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        kvt_cuda_unregister(engine.session);
        options.devices = &other;
        options.n_devices = 1;
        ck_assert_int_eq(kvt_cuda_register(engine.session, &options, why, sizeof(why)), KVT_OK);
        ck_assert_int_eq(world_finish(world_submit(false, NULL, NULL)), KVT_IO_ERROR);
        world_end();
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
        struct kvt_cuda_options options = world_options(0);
        char why[256] = "";

        options.driver = "/nowhere/libcuda.so.1";
        ck_assert_int_eq(register_status(&options, why), KVT_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(why, "/nowhere/libcuda.so.1"));
}
END_TEST

START_TEST(without_a_gpu_registering_says_so)
{
        struct kvt_cuda_options options = world_options(0);
        char why[256] = "";

        fake_cuda_set_devices(0);
        ck_assert_int_eq(register_status(&options, why), KVT_UNAVAILABLE);
        ck_assert_str_ne(why, "");
        world_expect_clean();
}
END_TEST

START_TEST(where_another_process_does_the_copies_registering_is_refused)
{
        struct kvt_cuda_options options = world_options(0);
        char why[256] = "";

        fake_cuda_set_attribute(MPS_ENABLED, 1);
        ck_assert_int_eq(register_status(&options, why), KVT_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(why, "MPS"));
        world_expect_clean();
}
END_TEST

START_TEST(an_older_driver_says_by_its_pipe_that_another_process_does_the_copies)
{
        struct kvt_cuda_options options = world_options(0);
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
        world_expect_clean();
}
END_TEST

START_TEST(arenas_that_the_driver_refuses_half_way_are_copied_through_its_buffers)
{
        struct kvt_cuda_info info;

        fake_cuda_fail("cuMemHostRegister", FAKE_CUDA_OUT_OF_MEMORY, 1, 0);
        world_begin(KVT_CUDA_KERNEL);
        world_expect_round_trip(11);
        info = gpu_engine_info(&engine);
        ck_assert_uint_gt(info.registered_bytes, 0);
        ck_assert_uint_gt(info.refused_bytes, 0);
        world_end();
}
END_TEST

START_TEST(before_an_arena_is_registered_its_copies_are_right)
{
        struct kvt_cuda_options options = world_options(0);
        const struct shape *shape = shape_named(SHAPE);
        struct kvt_cuda_info info;

        options.flags |= KVT_CUDA_NO_REGISTER;
        daemon_fixture_init(&fixture, NULL);
        world_open(SHAPE, &options);
        world_expect_round_trip(11);
        info = gpu_engine_info(&engine);
        ck_assert_uint_eq(info.registered_bytes, 0);
        /* There and back. */
        ck_assert_uint_eq(info.unregistered_bytes_moved,
                          2 * ENGINE_OBJECTS * shape_page_bytes(&shape->groups[0]) *
                                  shape_object_pages(shape, &shape->groups[0]));
        world_end();
}
END_TEST

START_TEST(a_driver_without_batches_copies_one_by_one)
{
        fake_cuda_hide("cuMemcpyBatchAsync");
        world_begin(KVT_CUDA_BATCH);
        ck_assert_uint_eq(gpu_engine_info(&engine).has_batch, 0);
        world_expect_round_trip(11);
        ck_assert_uint_gt(gpu_engine_info(&engine).moved[KVT_CUDA_STORE][KVT_CUDA_PLAIN].bytes, 0);
        world_end();
}
END_TEST

START_TEST(a_restarted_daemon_with_fewer_arenas_leaves_none_of_the_old_registered)
{
        struct daemon_options more = {.n_pieces = 3}, *fewer = &fixture.options;
        static const char *const one_less[] = {"host.bytes=67108864", NULL};
        struct fake_cuda_figures figures;

        world_begin_by(&more, KVT_CUDA_KERNEL);
        gpu_engine_wait_registered(&engine);
        world_expect_round_trip(11);
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
        world_expect_round_trip(21);
        fake_cuda_figures(&figures);
        ck_assert_uint_lt(figures.registered_bytes, 96 * MIB);
        world_end();
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
                NULL,
        };

        return flow_run("gpu registration", tests, 120);
}
