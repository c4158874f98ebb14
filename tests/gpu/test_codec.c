// SPDX-License-Identifier: Apache-2.0
/*
 * Groups with codecs whose pages lie on a GPU: the bits that its kernels store and load are
 * those of the processor, through a real daemon. Runs on a GPU, or with the fake driver where
 * KVT_CUDA_DRIVER names that: then everything but the kernels themselves is the same.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/kvtier-cuda.h"
#include "tests/gpu/gpu_engine.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/quant_engine.h"

#define MIB UINT64_C(0x100000)

static struct daemon_fixture fixture;
static struct gpu gpu;
static cu_address memory; /* of the engine on the GPU */

/* Or says why not: kernels need a compiler of their own. */
static bool register_gpu(struct kvt_session *session, const struct kvt_cuda_options *options)
{
        char why[256] = "";

        ck_assert_msg(kvt_cuda_register(session, options, why, sizeof(why)) == KVT_OK, "%s", why);
        return gpu_moves_by(session, KVT_CUDA_KERNEL);
}

static void wait_registered(struct kvt_session *session)
{
        struct kvt_cuda_info info = {.size = sizeof(info)};
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        do {
                daemon_pause();
                ck_assert_int_eq(kvt_cuda_info(session, &info), KVT_OK);
                ck_assert_msg(daemon_now_ms() < deadline, "not registered: %s", info.last_error);
        } while (!info.mapped_bytes ||
                 info.registered_bytes + info.refused_bytes < info.mapped_bytes);
}

static struct kvt_cuda_options options_of(uint64_t staging_bytes)
{
        return (struct kvt_cuda_options){.size = sizeof(struct kvt_cuda_options),
                                         .flags = KVT_CUDA_NO_MEASURE,
                                         .staging_bytes = staging_bytes,
                                         .piece_bytes = 8 * MIB};
}

/* False: there are no kernels. */
static bool open_on_gpu(struct quant_engine *ret_engine, const struct kvt_cuda_options *options)
{
        char why[GPU_WHY_BYTES];

        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        memory = gpu_allocate(&gpu, quant_bytes());
        quant_open(ret_engine, fixture.socket, true);
        if (!register_gpu(ret_engine->session, options))
                return false;
        if (!(options->flags & KVT_CUDA_NO_REGISTER))
                wait_registered(ret_engine->session);
        quant_register(ret_engine, (void *)(uintptr_t)memory);
        return true;
}

static void close_on_gpu(struct quant_engine *engine)
{
        quant_close(engine);
        gpu_release(&gpu, memory);
        gpu_close(&gpu);
}

static void open_on_host(struct quant_engine *ret_engine)
{
        quant_open(ret_engine, fixture.socket, true);
        quant_register(ret_engine, ret_engine->image);
}

static void push(const struct quant_engine *engine)
{
        gpu_write(&gpu, memory, engine->image, quant_bytes());
}

static void pull(const struct quant_engine *engine)
{
        gpu_read(&gpu, engine->image, memory, quant_bytes());
}

/* All groups of boundary @number, out of slots of the engine; the image is untouched again. */
static void store(struct quant_engine *engine, uint64_t number, bool is_on_gpu)
{
        struct kvt_object objects[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];

        quant_boundary(number, objects, slots, (uint32_t)number, 5);
        for (unsigned i = 0; i < QUANT_GROUPS; i++)
                quant_fill(engine, &objects[i]);
        if (is_on_gpu)
                push(engine);
        ck_assert_int_eq(quant_store(engine, objects, QUANT_GROUPS), KVT_OK);
        for (unsigned i = 0; i < QUANT_GROUPS; i++)
                quant_clear(engine, &objects[i]);
}

/* Into others, and nothing else is touched. */
static void expect_loads(struct quant_engine *engine, uint64_t number, bool is_on_gpu)
{
        struct kvt_object objects[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];

        quant_boundary(number, objects, slots, 63 - (uint32_t)number, -2);
        if (is_on_gpu)
                push(engine);
        ck_assert_int_eq(quant_load(engine, objects, QUANT_GROUPS), KVT_OK);
        if (is_on_gpu)
                pull(engine);
        for (unsigned i = 0; i < QUANT_GROUPS; i++) {
                ck_assert_msg(quant_holds(engine, &objects[i]), "object %u, group %u",
                              (unsigned)number, i);
                quant_clear(engine, &objects[i]);
        }
        ck_assert(quant_is_untouched(engine));
}

/* The bytes of the objects are those that the processor would have stored. */
static void expect_stored(struct quant_engine *engine, uint64_t number)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_object objects[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];
        struct kvt_completion completion;
        uint64_t id;

        quant_boundary(number, objects, slots, 0, 1);
        ck_assert_int_eq(kvt_acquire(engine->session, &call, objects, QUANT_GROUPS, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine->session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        for (unsigned i = 0; i < QUANT_GROUPS; i++) {
                uint64_t n;
                uint8_t *expected = quant_stored(&objects[i], &n), *bytes = malloc(n);

                ck_assert_ptr_nonnull(bytes);
                ck_assert_uint_eq(objects[i].bytes, n);
                ck_assert_int_eq(kvt_read(&objects[i], 0, bytes, n), KVT_OK);
                ck_assert_msg(!memcmp(bytes, expected, n), "object %u, group %u", (unsigned)number,
                              i);
                free(bytes);
                free(expected);
        }
        ck_assert_int_eq(kvt_release(engine->session, &call, objects, QUANT_GROUPS, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine->session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
}

/* Both ways between a GPU and the processor, by slots of so much staging in all. */
static void go_both_ways(const struct kvt_cuda_options *options)
{
        struct quant_engine on_gpu, on_host;
        struct kvt_cuda_info info = {.size = sizeof(info)};

        gpu_daemon_init(&fixture, NULL);
        open_on_host(&on_host);
        if (open_on_gpu(&on_gpu, options)) {
                for (uint64_t number = 1; number <= 8; number++) {
                        store(&on_gpu, number, true);
                        expect_stored(&on_host, number);
                        expect_loads(&on_host, number, false);
                        expect_loads(&on_gpu, number, true);
                        store(&on_host, 100 + number, false);
                        expect_loads(&on_gpu, 100 + number, true);
                }
                ck_assert_int_eq(kvt_cuda_info(on_gpu.session, &info), KVT_OK);
                ck_assert_uint_gt(info.moved[KVT_CUDA_STORE][KVT_CUDA_STAGED].bytes, 0);
                ck_assert_uint_gt(info.moved[KVT_CUDA_LOAD][KVT_CUDA_STAGED].bytes, 0);
                ck_assert_uint_eq(info.failed_jobs, 0);
        }
        close_on_gpu(&on_gpu);
        quant_close(&on_host);
        daemon_fixture_deinit(&fixture);
}

START_TEST(the_gpu_stores_and_loads_the_bits_of_the_processor)
{
        struct kvt_cuda_options options = options_of(0);

        go_both_ways(&options);
}
END_TEST

/* A slot then has 128 KiB; a wide page takes three. */
START_TEST(pages_that_do_not_fit_the_staging_buffer_go_in_parts)
{
        struct kvt_cuda_options options = options_of(MIB);

        go_both_ways(&options);
}
END_TEST

START_TEST(memory_that_is_not_registered_gets_the_same_bits)
{
        struct kvt_cuda_options options = options_of(0);

        options.flags |= KVT_CUDA_NO_REGISTER;
        go_both_ways(&options);
}
END_TEST

START_TEST(pages_of_a_chunk_load_alone)
{
        static const uint32_t pages[] = {1, 2, 4, 7};
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct kvt_cuda_options options = options_of(0);
        uint32_t slots[QUANT_SLOTS];
        struct quant_engine engine;

        gpu_daemon_init(&fixture, &with_nvme);
        if (open_on_gpu(&engine, &options)) {
                store(&engine, 1, true);
                daemon_wait_written(&fixture);
                for (unsigned i = 0; i < 4; i++) {
                        struct kvt_object part =
                                quant_object(1, i % 2 ? QUANT_INDEX : QUANT_KV, slots, 40, 2);

                        part.pages = pages;
                        part.n_pages = part.n_slots = 4;
                        push(&engine);
                        ck_assert_int_eq(quant_load(&engine, &part, 1), KVT_OK);
                        pull(&engine);
                        ck_assert(quant_holds(&engine, &part));
                        quant_clear(&engine, &part);
                        ck_assert(quant_is_untouched(&engine));
                        if (i == 1)
                                daemon_evict(&fixture, "host");
                }
        }
        close_on_gpu(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(without_a_staging_buffer_a_codec_is_refused)
{
        struct kvt_cuda_options options = options_of(0);
        struct kvt_page_view view = {.page_stride = 64 * 65, .row_bytes = 64 * 65};
        struct kvt_page_group group = {
                .group = QUANT_INDEX, .n_views = 1, .n_pages = 1, .views = &view};
        char why[256] = "", gpu_why[GPU_WHY_BYTES];
        struct kvt_page_map *map = NULL;
        struct quant_engine engine;

        options.strategies = 1u << KVT_CUDA_PLAIN | 1u << KVT_CUDA_KERNEL;
        gpu_daemon_init(&fixture, NULL);
        ck_assert_msg(gpu_open(&gpu, 0, gpu_why), "%s", gpu_why);
        memory = gpu_allocate(&gpu, quant_bytes());
        view.base = (void *)(uintptr_t)memory;
        quant_open(&engine, fixture.socket, true);
        ck_assert_int_eq(kvt_cuda_register(engine.session, &options, why, sizeof(why)), KVT_OK);
        ck_assert_int_eq(kvt_page_map_new(engine.session, &group, 1, &map, why, sizeof(why)),
                         KVT_INVALID);
        ck_assert_str_eq(why, "group 1 (index), shard 0: it has a codec, by which the library of "
                              "its GPU cannot convert");
        close_on_gpu(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                the_gpu_stores_and_loads_the_bits_of_the_processor,
                pages_that_do_not_fit_the_staging_buffer_go_in_parts,
                memory_that_is_not_registered_gets_the_same_bits,
                pages_of_a_chunk_load_alone,
                without_a_staging_buffer_a_codec_is_refused,
                NULL,
        };

        return flow_run("gpu/codec", tests, 120);
}
