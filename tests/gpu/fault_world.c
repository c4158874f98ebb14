// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/fault_world.h"

#include <check.h>

#include "tests/support/fake_cuda.h"
#include "tests/support/flow_session.h"

struct daemon_fixture fixture;
struct gpu gpu;
struct gpu_engine engine;
struct kvt_object objects[ENGINE_N_MAX];
uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
unsigned n_objects;

struct kvt_cuda_options world_options(uint32_t strategies)
{
        return (struct kvt_cuda_options){.size = sizeof(struct kvt_cuda_options),
                                         .flags = KVT_CUDA_NO_MEASURE,
                                         .strategies = strategies,
                                         .piece_bytes = 4 * MIB};
}

void world_open(const char *name, const struct kvt_cuda_options *options)
{
        const struct shape *shape = shape_named(name);
        char why[GPU_WHY_BYTES];

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        gpu_engine_open(&engine, shape, &gpu, gpu_engine_session(shape, fixture.socket), options);
}

void world_begin_by(const struct daemon_options *daemon, enum kvt_cuda_strategy strategy)
{
        struct kvt_cuda_options options = world_options(1u << strategy);

        daemon_fixture_init(&fixture, daemon);
        world_open(SHAPE, &options);
        n_objects = gpu_engine_objects(&engine, 1, objects, slots);
        for (unsigned i = 0; i < n_objects; i++)
                gpu_engine_place(&engine, &objects[i], 1 + i);
        gpu_engine_push(&engine);
}

void world_begin(enum kvt_cuda_strategy strategy)
{
        world_begin_by(NULL, strategy);
        gpu_engine_wait_registered(&engine);
}

void world_expect_clean(void)
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

void world_end(void)
{
        gpu_engine_close(&engine);
        gpu_close(&gpu);
        world_expect_clean();
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

uint64_t world_submit(bool is_store, void *after, void *done)
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

enum kvt_status world_finish(uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        return completion.status;
}

struct kvt_cuda_copy world_reserve(void)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_object *object = &objects[0];
        uint64_t id;

        object->bytes = object->n_slots * shape_page_bytes(&engine.shape->groups[object->group]);
        ck_assert_int_eq(kvt_reserve(engine.session, &call, object, 1, &id), KVT_OK);
        ck_assert_int_eq(world_finish(id), KVT_OK);
        return (struct kvt_cuda_copy){.size = sizeof(struct kvt_cuda_copy),
                                      .map = engine.map,
                                      .group = object->group,
                                      .shard = object->shard,
                                      .is_store = 1,
                                      .slots = object->slots,
                                      .n_slots = object->n_slots,
                                      .n_segments = object->n_segments,
                                      .segments = object->segments};
}

void world_abort(void)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        if (kvt_abort(engine.session, &call, objects, 1, &id) == KVT_OK)
                world_finish(id);
}

void world_expect_round_trip(uint64_t first)
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

void world_write_behind(cu_event after, uint64_t first)
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

void world_destroy(cu_event event)
{
        gpu_enter(&gpu);
        gpu_check(&gpu, gpu.driver.event_destroy(event), "cuEventDestroy");
        gpu_leave(&gpu);
}
