// SPDX-License-Identifier: Apache-2.0
/*
 * What there is beside calls over page maps: copies on the caller's stream, figures, the
 * crossover, taking the device away. Runs on a GPU, or with the fake driver where
 * KVT_CUDA_DRIVER names that.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_engine.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB            UINT64_C(0x100000)
#define MEASURE_MS_MAX 100000u         /* with a driver that is slow, and watched */
#define SHAPE          "DeepSeek-V3.2" /* latent vectors, and keys of an indexer */

static struct daemon_fixture fixture;
static struct gpu gpu;
static struct gpu_engine engine;
static struct kvt_object objects[ENGINE_N_MAX];
static uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
static unsigned n_objects;

static void begin(uint32_t flags)
{
        struct kvt_cuda_options options = {
                .size = sizeof(options), .flags = flags, .piece_bytes = 4 * MIB};
        const struct shape *shape = shape_named(SHAPE);
        char why[GPU_WHY_BYTES];

        gpu_daemon_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), &options);
        if (!(flags & KVT_CUDA_NO_REGISTER))
                gpu_engine_wait_registered(&engine);
}

static void end(void)
{
        gpu_engine_close(&engine);
        gpu_close(&gpu);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

/* ---- leases that the test holds itself ---- */

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static void call_all(submit_fn submit)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(engine.session, &call, objects, n_objects, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
}

static struct kvt_cuda_copy copy_of(const struct kvt_object *object, bool is_store,
                                    uint32_t strategy)
{
        return (struct kvt_cuda_copy){.size = sizeof(struct kvt_cuda_copy),
                                      .map = engine.map,
                                      .group = object->group,
                                      .shard = object->shard,
                                      .is_store = is_store,
                                      .slots = object->slots,
                                      .n_slots = object->n_slots,
                                      .n_segments = object->n_segments,
                                      .segments = object->segments,
                                      .strategy = strategy};
}

static void copy_all(bool is_store, uint32_t strategy)
{
        for (unsigned i = 0; i < n_objects; i++) {
                struct kvt_cuda_copy copy = copy_of(&objects[i], is_store, strategy);

                ck_assert_int_eq(kvt_cuda_copy(engine.session, &copy, gpu.stream), KVT_OK);
        }
        gpu_wait(&gpu);
}

static void place_all(uint64_t first)
{
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], first + i % ENGINE_OBJECTS);
}

/* Stores under leases of its own, and loads into other slots. */
static void copy_there_and_back(uint64_t first, uint32_t strategy)
{
        n_objects = gpu_engine_objects(&engine, first, objects, slots);
        gpu_engine_poison(&engine, 1);
        place_all(first);
        gpu_engine_push(&engine);
        for (unsigned i = 0; i < n_objects; i++)
                objects[i].bytes = objects[i].n_slots *
                                   shape_page_bytes(&engine.shape->groups[objects[i].group]);
        call_all(kvt_reserve);
        copy_all(true, strategy);
        call_all(kvt_commit);

        gpu_engine_poison(&engine, 2);
        gpu_engine_push(&engine);
        n_objects = gpu_engine_objects(&engine, first, objects, slots);
        call_all(kvt_acquire);
        copy_all(false, strategy);
        call_all(kvt_release);
        place_all(first);
        ck_assert_uint_eq(gpu_engine_difference(&engine), UINT64_MAX);
}

START_TEST(a_copy_on_the_callers_stream_moves_every_byte_by_each_strategy)
{
        begin(KVT_CUDA_NO_MEASURE);
        for (uint32_t strategy = 0; strategy <= KVT_CUDA_STRATEGIES; strategy++)
                copy_there_and_back(1 + 10 * strategy, strategy);
        ck_assert_uint_eq(gpu_engine_info(&engine).failed_jobs, 0);
        end();
}
END_TEST

START_TEST(a_copy_to_memory_that_is_not_registered_is_right)
{
        begin(KVT_CUDA_NO_MEASURE | KVT_CUDA_NO_REGISTER);
        copy_there_and_back(1, 0);
        copy_there_and_back(11, 1 + KVT_CUDA_KERNEL);
        end();
}
END_TEST

static enum kvt_status try_copy(struct kvt_cuda_copy copy)
{
        return kvt_cuda_copy(engine.session, &copy, gpu.stream);
}

START_TEST(a_copy_that_makes_no_sense_is_invalid)
{
        uint32_t beyond[ENGINE_SLOTS_MAX] = {1000000};
        struct kvt_cuda_copy right, wrong;

        begin(KVT_CUDA_NO_MEASURE);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        for (unsigned i = 0; i < n_objects; i++)
                objects[i].bytes = objects[i].n_slots *
                                   shape_page_bytes(&engine.shape->groups[objects[i].group]);
        call_all(kvt_reserve);
        right = copy_of(&objects[0], true, 0);
        ck_assert_int_eq(try_copy(right), KVT_OK);
        wrong = right;
        wrong.size--;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        wrong = right;
        wrong.group = 77;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        wrong = right;
        wrong.slots = beyond;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        wrong = right;
        wrong.n_slots = 0;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        wrong = right;
        wrong.n_segments = 0;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        wrong = right;
        wrong.strategy = 1 + KVT_CUDA_STRATEGIES;
        ck_assert_int_eq(try_copy(wrong), KVT_INVALID);
        ck_assert_int_eq(kvt_cuda_copy(engine.session, NULL, gpu.stream), KVT_INVALID);
        gpu_wait(&gpu);
        call_all(kvt_abort);
        end();
}
END_TEST

/* ---- figures ---- */

START_TEST(the_crossover_is_measured_and_can_be_seen)
{
        struct kvt_cuda_measure measures[16];
        uint64_t deadline = daemon_now_ms() + MEASURE_MS_MAX;
        enum kvt_status status;
        size_t n = 0, n_measured = 0;

        begin(0);
        while ((status = kvt_cuda_measured(engine.session, 0, measures, 16, &n)) == KVT_PENDING) {
                ck_assert_uint_lt(daemon_now_ms(), deadline);
                daemon_pause();
        }
        ck_assert_int_eq(status, KVT_OK);
        ck_assert_uint_gt(n, 1);
        /* On a busy machine some rounds take too long to count. */
        for (size_t i = 0; i < n; i++) {
                ck_assert(i == 0 || measures[i].run_bytes > measures[i - 1].run_bytes);
                for (unsigned way = 0; way < 2; way++) {
                        double *rates = measures[i].bytes_per_second[way];

                        n_measured += rates[KVT_CUDA_PLAIN] > 0;
                        ck_assert(rates[KVT_CUDA_PLAIN] <= 0 || rates[measures[i].chosen[way]] > 0);
                }
        }
        ck_assert_uint_gt(n_measured, 0);
        ck_assert_int_eq(kvt_cuda_measured(engine.session, 63, measures, 16, &n), KVT_MISS);
        gpu_engine_round_trip(&engine, 1, (void (*)(void *))daemon_pause, NULL);
        end();
}
END_TEST

START_TEST(what_is_not_measured_is_chosen_by_guess)
{
        struct kvt_cuda_measure measures[16];
        size_t n;

        begin(KVT_CUDA_NO_MEASURE);
        ck_assert_int_eq(kvt_cuda_measured(engine.session, 0, measures, 16, &n), KVT_PENDING);
        ck_assert(measures[0].bytes_per_second[KVT_CUDA_STORE][KVT_CUDA_PLAIN] == 0);
        end();
}
END_TEST

/* ---- the device, and the caller's context ---- */

START_TEST(a_device_that_is_taken_away_gives_all_back_and_may_come_again)
{
        struct kvt_cuda_options options = {
                .size = sizeof(options), .flags = KVT_CUDA_NO_MEASURE, .piece_bytes = 4 * MIB};
        struct kvt_cuda_info info = {.size = sizeof(info)};
        char why[256] = "";

        begin(KVT_CUDA_NO_MEASURE);
        ck_assert_int_eq(kvt_cuda_register(engine.session, &options, why, sizeof(why)),
                         KVT_REFUSED);
        kvt_cuda_unregister(engine.session);
        kvt_cuda_unregister(engine.session);
        ck_assert_int_eq(kvt_cuda_info(engine.session, &info), KVT_INVALID);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        ck_assert_int_eq(gpu_engine_store(&engine, objects, n_objects), KVT_UNSUPPORTED);
        ck_assert_int_eq(kvt_cuda_register(engine.session, &options, why, sizeof(why)), KVT_OK);
        gpu_engine_wait_registered(&engine);
        gpu_engine_round_trip(&engine, 11, (void (*)(void *))daemon_pause, NULL);
        end();
}
END_TEST

static void expect_current(cu_context context)
{
        cu_context current;

        gpu_check(&gpu, gpu.driver.context_current(&current), "cuCtxGetCurrent");
        ck_assert_ptr_eq(current, context);
}

START_TEST(the_callers_context_stays_what_it_was)
{
        begin(0);
        expect_current(NULL);
        copy_there_and_back(1, 0);
        expect_current(NULL);
        kvt_cuda_unregister(engine.session);
        expect_current(NULL);
        gpu_enter(&gpu);
        ck_assert_int_eq(kvt_cuda_register(engine.session, NULL, NULL, 0), KVT_OK);
        expect_current(gpu.context);
        copy_there_and_back(11, 0);
        kvt_cuda_unregister(engine.session);
        expect_current(gpu.context);
        gpu_leave(&gpu);
        end();
}
END_TEST

static enum kvt_status register_with(struct kvt_cuda_options options, char why[256])
{
        const struct shape *shape = shape_named(SHAPE);
        struct kvt_session *session = gpu_engine_session(shape, fixture.socket);
        enum kvt_status status = kvt_cuda_register(session, &options, why, 256);

        kvt_close(session);
        return status;
}

START_TEST(options_that_make_no_sense_are_refused_by_name)
{
        static const uint32_t devices[] = {0, 63};
        struct kvt_cuda_options options = {.size = sizeof(options)};
        char why[256] = "";

        gpu_daemon_init(&fixture, NULL);
        ck_assert_int_eq(kvt_cuda_register(NULL, &options, why, sizeof(why)), KVT_INVALID);
        options.size = 1;
        ck_assert_int_eq(register_with(options, why), KVT_INVALID);
        options = (struct kvt_cuda_options){.size = sizeof(options), .piece_bytes = MIB};
        ck_assert_int_eq(register_with(options, why), KVT_INVALID);
        ck_assert_ptr_nonnull(strstr(why, "piece_bytes"));
        options = (struct kvt_cuda_options){.size = sizeof(options), .strategies = 1u << 30};
        ck_assert_int_eq(register_with(options, why), KVT_INVALID);
        options = (struct kvt_cuda_options){
                .size = sizeof(options), .devices = devices, .n_devices = 2};
        ck_assert_int_eq(register_with(options, why), KVT_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(why, "63"));
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_copy_on_the_callers_stream_moves_every_byte_by_each_strategy,
                a_copy_to_memory_that_is_not_registered_is_right,
                a_copy_that_makes_no_sense_is_invalid,
                the_crossover_is_measured_and_can_be_seen,
                what_is_not_measured_is_chosen_by_guess,
                a_device_that_is_taken_away_gives_all_back_and_may_come_again,
                the_callers_context_stays_what_it_was,
                options_that_make_no_sense_are_refused_by_name,
                NULL,
        };

        return flow_run("gpu copy", tests, 120);
}
