// SPDX-License-Identifier: Apache-2.0
/*
 * Contexts and processes that end in mid copy: the session is lost with them, what a GPU may still
 * write stays in quarantine until its process is gone, and nobody sees half an object.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/fault_world.h"
#include "tests/support/child.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/flow.h"

static void lose_context(struct child *self, void *argument)
{
        const uint64_t *in_mid_copy = argument;
        uint64_t id;
        struct kvt_cuda_options options = world_options(1u << KVT_CUDA_PLAIN);

        world_open(SHAPE, &options);
        gpu_engine_wait_registered(&engine);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(world_finish(world_submit(true, NULL, NULL)), KVT_OK);
        n_objects = gpu_engine_objects(&engine, 11, objects, slots);
        fake_cuda_lose(FAKE_CUDA_LAUNCH_FAILED, (unsigned)*in_mid_copy);
        id = world_submit(true, NULL, NULL);
        child_say(self, world_finish(id));
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
        struct kvt_cuda_options options = world_options(1u << KVT_CUDA_PLAIN);
        struct kvt_cuda_copy copy;
        enum kvt_status status;

        world_open(SHAPE, &options);
        gpu_engine_wait_registered(&engine);
        gpu_engine_objects(&engine, 1, objects, slots);
        copy = world_reserve();
        fake_cuda_lose(FAKE_CUDA_LAUNCH_FAILED, 1);
        do {
                status = kvt_cuda_copy(engine.session, &copy, gpu.stream);
        } while (status == KVT_OK);
        child_say(self, status);
        /* Nothing is given back, whoever tries. */
        world_abort();
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

static void store_and_hang(void)
{
        struct kvt_cuda_options options = world_options(1u << KVT_CUDA_KERNEL);

        world_open(SHAPE, &options);
        gpu_engine_wait_registered(&engine);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        fake_cuda_hold(true);
        world_submit(true, NULL, NULL);
        ck_assert(fake_cuda_wait_queued(1));
}

static void hold_and_wait(struct child *self, void *argument)
{
        store_and_hang();
        child_say(self, 0);
        child_hear(self); /* is killed here */
}

static void close_while_it_hangs(struct child *self, void *argument)
{
        uint64_t began;

        store_and_hang();
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

        world_begin(KVT_CUDA_KERNEL);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid)
                _exit(kvt_cuda_info(engine.session, &info) == KVT_FORKED ? 0 : 1);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        world_expect_round_trip(11);
        world_end();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_context_lost_in_mid_copy_quarantines_its_leases_until_the_process_is_gone,
                so_does_one_that_is_lost_in_a_copy_of_the_callers,
                a_gpu_that_hangs_does_not_hang_the_close_and_keeps_its_leases,
                a_process_killed_in_mid_copy_stores_nothing_and_keeps_nothing,
                a_forked_child_may_not_use_the_parents_gpu,
                NULL,
        };

        return flow_run("gpu lost contexts", tests, 120);
}
