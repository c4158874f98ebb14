// SPDX-License-Identifier: Apache-2.0
/*
 * Pages on a GPU that go through a real daemon and come back: every shape, every strategy, from
 * host memory and from NVMe. Runs on a GPU, or with the fake driver where KVT_CUDA_DRIVER names
 * that: then everything but the kernels themselves is the same.
 */
#include <stdlib.h>

#include "tests/gpu/gpu_engine.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB UINT64_C(0x100000)

/* What threads do is the same for all shapes, and ThreadSanitizer takes minutes for them. */
#ifdef __SANITIZE_THREAD__
#define SHAPES_STEP 7
#else
#define SHAPES_STEP 1
#endif

static struct daemon_fixture fixture;
static struct gpu gpu;

static void open_gpu(int ordinal)
{
        char why[GPU_WHY_BYTES];

        ck_assert_msg(gpu_open(&gpu, ordinal, why), "%s", why);
}

static void open_engine(struct gpu_engine *ret_engine, const struct shape *shape,
                        uint32_t strategies)
{
        struct kvt_cuda_options options = {.size = sizeof(options),
                                           .flags = KVT_CUDA_NO_MEASURE,
                                           .strategies = strategies,
                                           .piece_bytes = 8 * MIB};

        gpu_engine_open(ret_engine, shape, &gpu, gpu_engine_session(shape, fixture.socket),
                        &options);
        gpu_engine_wait_registered(ret_engine);
}

static void stay(void *user)
{
}

static void move_to_nvme(void *user)
{
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
}

static void expect_nothing_leased(void)
{
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 0);
}

/* ---- shapes ---- */

START_TEST(pages_of_every_shape_come_back_from_host_memory_and_nvme)
{
        struct daemon_options options = {.nvme_bytes = 128 * MIB};
        struct gpu_engine engine;

        gpu_daemon_init(&fixture, &options);
        open_gpu(0);
        for (unsigned i = 0; i < n_shapes; i += SHAPES_STEP) {
                open_engine(&engine, &shapes[i], 0);
                gpu_engine_round_trip(&engine, 1, stay, NULL);
                gpu_engine_round_trip(&engine, 101, move_to_nvme, NULL);
                gpu_engine_close(&engine);
                daemon_evict(&fixture, NULL);
        }
        expect_nothing_leased();
        gpu_close(&gpu);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void expect_moved_by(struct gpu_engine *engine, enum kvt_cuda_strategy strategy)
{
        struct kvt_cuda_info info = gpu_engine_info(engine);

        for (unsigned direction = 0; direction < 2; direction++) {
                ck_assert_uint_gt(info.moved[direction][strategy].bytes, 0);
                for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                        ck_assert_msg(i == strategy || !info.moved[direction][i].bytes,
                                      "strategy %u was not allowed", i);
        }
        ck_assert_uint_eq(info.unregistered_bytes_moved, 0);
        ck_assert_uint_eq(info.failed_jobs, 0);
}

/* False: the rest would be skipped, too. */
static bool round_trip_by(const char *name, enum kvt_cuda_strategy strategy)
{
        struct gpu_engine engine;
        bool is_possible;

        open_engine(&engine, shape_named(name), 1u << strategy);
        is_possible = gpu_moves_by(engine.session, strategy);
        if (is_possible) {
                gpu_engine_round_trip(&engine, 1, stay, NULL);
                expect_moved_by(&engine, strategy);
        }
        gpu_engine_close(&engine);
        daemon_evict(&fixture, NULL);
        return is_possible;
}

static void every_byte_by(enum kvt_cuda_strategy strategy)
{
        static const char *const names[] = {"Qwen3-Next-80B TP8", "Qwen3-0.6B",
                                            "Llama-3-70B TP8, fp8", "DeepSeek-V3.2",
                                            "DeepSeek-V4-Flash", "unaligned"};

        gpu_daemon_init(&fixture, NULL);
        open_gpu(0);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                if (!round_trip_by(names[i], strategy))
                        break;
        expect_nothing_leased();
        gpu_close(&gpu);
        daemon_fixture_deinit(&fixture);
}

START_TEST(plain_copies_move_every_byte)
{
        every_byte_by(KVT_CUDA_PLAIN);
}
END_TEST

START_TEST(batched_copies_move_every_byte)
{
        every_byte_by(KVT_CUDA_BATCH);
}
END_TEST

START_TEST(a_kernel_moves_every_byte)
{
        every_byte_by(KVT_CUDA_KERNEL);
}
END_TEST

START_TEST(a_kernel_and_a_copy_of_what_it_staged_move_every_byte)
{
        every_byte_by(KVT_CUDA_STAGED);
}
END_TEST

START_TEST(pages_of_a_chunk_load_alone)
{
        static const uint32_t pages[] = {0, 2, 3};
        struct kvt_object objects[ENGINE_N_MAX], part;
        uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        struct gpu_engine engine;
        unsigned n;

        gpu_daemon_init(&fixture, NULL);
        open_gpu(0);
        open_engine(&engine, shape_named("Qwen3-0.6B"), 0);
        n = gpu_engine_objects(&engine, 1, objects, slots);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(&engine, &objects[i], 1 + i);
        gpu_engine_push(&engine);
        ck_assert_int_eq(gpu_engine_store(&engine, objects, n), KVT_OK);
        part = objects[1];
        part.pages = pages;
        part.n_pages = part.n_slots = sizeof(pages) / sizeof(pages[0]);
        gpu_engine_poison(&engine, 0);
        gpu_engine_push(&engine);
        ck_assert_int_eq(gpu_engine_load(&engine, &part, 1), KVT_OK);
        gpu_engine_place(&engine, &part, 2);
        ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
        gpu_engine_close(&engine);
        gpu_close(&gpu);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(memory_of_the_virtual_memory_calls_is_memory_like_any_other)
{
        struct gpu_engine engine;

        gpu_daemon_init(&fixture, NULL);
        open_gpu(0);
        gpu.maps = true;
        open_engine(&engine, shape_named("Qwen3-Next-80B TP2"), 0);
        gpu_engine_round_trip(&engine, 1, stay, NULL);
        gpu_engine_close(&engine);
        gpu_close(&gpu);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- GPUs ---- */

/* What one engine has stored is loaded by the other, both in one session. */
static void store_and_load(struct gpu_engine *from, struct gpu_engine *to, uint64_t first)
{
        struct kvt_object objects[ENGINE_N_MAX];
        uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        unsigned n = gpu_engine_objects(from, first, objects, slots);

        gpu_engine_poison(from, 1);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(from, &objects[i], first + i % ENGINE_OBJECTS);
        gpu_engine_push(from);
        ck_assert_int_eq(gpu_engine_store(from, objects, n), KVT_OK);
        gpu_engine_poison(to, 2);
        gpu_engine_push(to);
        n = gpu_engine_objects(to, first, objects, slots);
        ck_assert_int_eq(gpu_engine_load(to, objects, n), KVT_OK);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(to, &objects[i], first + i % ENGINE_OBJECTS);
        ck_assert_uint_eq(gpu_engine_difference(to), UINT64_MAX);
        ck_assert_uint_eq(gpu_engine_difference(from), UINT64_MAX);
}

START_TEST(one_session_moves_pages_of_two_gpus)
{
        const struct shape *shape = shape_named("DeepSeek-V3.2");
        struct gpu_engine engine, other_engine;
        char why[GPU_WHY_BYTES];
        struct gpu other;

        if (!gpu_open(&other, 1, why)) {
                printf("skipped: %s\n", why);
                return;
        }
        gpu_daemon_init(&fixture, NULL);
        open_gpu(0);
        open_engine(&engine, shape, 0);
        gpu_engine_open(&other_engine, shape, &other, engine.session, NULL);
        store_and_load(&engine, &other_engine, 1);
        store_and_load(&other_engine, &engine, 11);
        ck_assert_uint_eq(gpu_engine_info(&engine).n_devices, 2);
        gpu_engine_close(&engine);
        gpu_engine_close(&other_engine);
        gpu_close(&gpu);
        gpu_close(&other);
        expect_nothing_leased();
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- processes ---- */

#define ROUNDS 6u

/* @argument: the number of the process. Its own objects, over and over, and those of the other. */
static void play(struct child *self, void *argument)
{
        uint64_t own = *(const uint64_t *)argument, other = 3 - own;
        struct kvt_object objects[ENGINE_N_MAX];
        uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        struct gpu_engine engine;
        unsigned n;

        open_gpu(0);
        open_engine(&engine, shape_named("Qwen3-Next-80B TP8"), 0);
        gpu_engine_round_trip(&engine, own * 1000, stay, NULL);
        child_say(self, 0);
        child_hear(self);
        for (uint64_t round = 1; round <= ROUNDS; round++) {
                gpu_engine_round_trip(&engine, own * 1000 + round * 10, stay, NULL);
                gpu_engine_poison(&engine, (uint8_t)round);
                gpu_engine_push(&engine);
                n = gpu_engine_objects(&engine, other * 1000, objects, slots);
                ck_assert_int_eq(gpu_engine_load(&engine, objects, n), KVT_OK);
                for (unsigned i = 0; i < n; i++)
                        gpu_engine_place(&engine, &objects[i], other * 1000 + i % ENGINE_OBJECTS);
                ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
        }
        gpu_engine_close(&engine);
        gpu_close(&gpu);
}

START_TEST(two_processes_at_once_see_their_own_bytes_and_each_others)
{
        static const uint64_t numbers[] = {1, 2};
        struct child children[2];

        gpu_daemon_init(&fixture, NULL);
        for (unsigned i = 0; i < 2; i++)
                child_start(&children[i], play, (void *)(uintptr_t)&numbers[i]);
        for (unsigned i = 0; i < 2; i++)
                ck_assert_uint_eq(child_hear(&children[i]), 0);
        for (unsigned i = 0; i < 2; i++)
                child_say(&children[i], 0);
        for (unsigned i = 0; i < 2; i++)
                child_join(&children[i]);
        expect_nothing_leased();
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                pages_of_every_shape_come_back_from_host_memory_and_nvme,
                plain_copies_move_every_byte,
                batched_copies_move_every_byte,
                a_kernel_moves_every_byte,
                a_kernel_and_a_copy_of_what_it_staged_move_every_byte,
                pages_of_a_chunk_load_alone,
                memory_of_the_virtual_memory_calls_is_memory_like_any_other,
                one_session_moves_pages_of_two_gpus,
                two_processes_at_once_see_their_own_bytes_and_each_others,
                NULL,
        };

        return flow_run("gpu pages", tests, 240);
}
