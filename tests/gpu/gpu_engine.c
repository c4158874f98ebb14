// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernel_image.h"
#include "tests/gpu/gpu_engine.h"
#include "tests/support/content.h"
#include "tests/support/flow_session.h"

#define POISON 0xa5
#define ALIGN  UINT64_C(256) /* of a group's memory */

/* ---- sessions ---- */

void gpu_daemon_init(struct daemon_fixture *fixture, const struct daemon_options *options)
{
        struct daemon_options own = options ? *options : (struct daemon_options){0};

        own.keeps_fds = !getenv(CUDA_DRIVER_VARIABLE);
        daemon_fixture_init(fixture, &own);
}

static unsigned count_groups(const struct shape *shape)
{
        unsigned n = 0;

        while (n < SHAPE_GROUPS_MAX && shape->groups[n].name)
                n++;
        return n;
}

enum kvt_status gpu_engine_remote_session(struct kvt_session **ret_session,
                                          const struct shape *shape, const char *address,
                                          const struct kvt_dmabuf *dmabuf, char *ret_why,
                                          size_t why_bytes)
{
        static const uint8_t engine_id[16] = {7};
        struct kvt_group groups[SHAPE_GROUPS_MAX] = {{0}};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = shape->name,
                                    .chunk_tokens = shape->chunk_tokens,
                                    .groups = groups,
                                    .n_groups = count_groups(shape)};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = address,
                                      .program = "gpu",
                                      .layout = &layout,
                                      .engine_id = engine_id,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS,
                                      .dmabuf = dmabuf};

        for (unsigned i = 0; i < layout.n_groups; i++) {
                const struct shape_group *group = &shape->groups[i];

                groups[i] = (struct kvt_group){.name = group->name,
                                               .kind = group->kind,
                                               .page_tokens = group->page_tokens,
                                               .window_tokens = group->window_tokens,
                                               .page_bytes = shape_page_bytes(group)};
        }
        return kvt_open(ret_session, &options, ret_why, why_bytes);
}

struct kvt_session *gpu_engine_session(const struct shape *shape, const char *socket)
{
        struct kvt_session *session = NULL;
        char why[256] = "";

        ck_assert_msg(gpu_engine_remote_session(&session, shape, socket, NULL, why, sizeof(why)) ==
                              KVT_OK,
                      "%s: %s", shape->name, why);
        return session;
}

/* ---- where bytes lie ---- */

/* One tensor of one layer: its first row of page 0, and from there on. */
struct place {
        uint64_t at, page_stride, row_stride, row_bytes;
        uint32_t n_rows;
};

static struct place place_of(const struct gpu_engine *engine, unsigned number, uint32_t layer,
                             unsigned tensor)
{
        const struct shape_group *group = &engine->shape->groups[number];
        uint64_t layer_bytes = shape_layer_bytes(group), before = 0;
        struct place place = {.row_bytes = group->tensors[tensor].row_bytes,
                              .n_rows = group->tensors[tensor].n_rows};

        for (unsigned i = 0; i < tensor; i++)
                before += group->tensors[i].row_bytes * group->tensors[i].n_rows;
        place.row_stride = place.row_bytes;
        switch (group->order) {
        case SHAPE_PAGES:
                place.at = layer * layer_bytes * engine->n_pages[number] + before;
                place.page_stride = layer_bytes;
                break;
        case SHAPE_HALVES:
                place.at = (layer * layer_bytes + before) * engine->n_pages[number];
                place.page_stride = place.row_bytes;
                place.row_stride = place.row_bytes * engine->n_pages[number];
                break;
        case SHAPE_PACKED:
                place.at = layer * layer_bytes + before;
                place.page_stride = group->n_layers * layer_bytes;
                break;
        }
        place.at += engine->group_at[number];
        return place;
}

static void register_pages(struct gpu_engine *engine)
{
        struct kvt_page_group groups[SHAPE_GROUPS_MAX];
        struct kvt_page_view *views[SHAPE_GROUPS_MAX];
        char why[256] = "";

        for (unsigned i = 0; i < engine->n_groups; i++) {
                const struct shape_group *group = &engine->shape->groups[i];
                uint32_t n = 0;

                views[i] = calloc(group->n_layers * SHAPE_TENSORS_MAX, sizeof(*views[i]));
                ck_assert_ptr_nonnull(views[i]);
                for (uint32_t layer = 0; layer < group->n_layers; layer++)
                        for (unsigned j = 0; j < SHAPE_TENSORS_MAX; j++) {
                                struct place place = place_of(engine, i, layer, j);

                                if (!place.row_bytes)
                                        continue;
                                views[i][n++] = (struct kvt_page_view){
                                        .base = (void *)(uintptr_t)(engine->memory + place.at),
                                        .page_stride = place.page_stride,
                                        .row_bytes = place.row_bytes,
                                        .row_stride = place.row_stride,
                                        .n_rows = place.n_rows};
                        }
                groups[i] = (struct kvt_page_group){.group = (uint16_t)i,
                                                    .n_views = n,
                                                    .n_pages = engine->n_pages[i],
                                                    .views = views[i]};
        }
        ck_assert_msg(kvt_page_map_new(engine->session, groups, engine->n_groups, &engine->map, why,
                                       sizeof(why)) == KVT_OK,
                      "%s: %s", engine->shape->name, why);
        for (unsigned i = 0; i < engine->n_groups; i++)
                free(views[i]);
}

void gpu_engine_open(struct gpu_engine *ret_engine, const struct shape *shape, struct gpu *gpu,
                     struct kvt_session *session, const struct kvt_cuda_options *options)
{
        struct gpu_engine *engine = ret_engine;
        char why[256] = "";

        memset(engine, 0, sizeof(*engine));
        engine->shape = shape;
        engine->gpu = gpu;
        engine->session = session;
        engine->n_groups = count_groups(shape);
        engine->random = 1;
        for (unsigned i = 0; i < engine->n_groups; i++) {
                const struct shape_group *group = &shape->groups[i];

                /* Of what a call stores, one page more and a page in between. */
                engine->n_pages[i] = ENGINE_OBJECTS * shape_object_pages(shape, group) + 2;
                engine->group_at[i] = engine->bytes;
                engine->bytes += shape_memory_bytes(group, engine->n_pages[i]);
                engine->bytes = (engine->bytes + ALIGN - 1) / ALIGN * ALIGN;
        }
        engine->is = malloc(engine->bytes);
        engine->seen = malloc(engine->bytes);
        ck_assert(engine->is && engine->seen);
        engine->memory = gpu_allocate(gpu, engine->bytes);
        engine->is_guest = !options;
        if (options)
                ck_assert_msg(kvt_cuda_register(session, options, why, sizeof(why)) == KVT_OK, "%s",
                              why);
        register_pages(engine);
        gpu_engine_poison(engine, POISON);
        gpu_engine_push(engine);
}

void gpu_engine_close(struct gpu_engine *engine)
{
        if (!engine->is_guest)
                kvt_close(engine->session);
        kvt_page_map_free(engine->map);
        gpu_release(engine->gpu, engine->memory);
        free(engine->is);
        free(engine->seen);
}

/* ---- objects ---- */

static uint32_t draw(struct gpu_engine *engine, uint32_t below)
{
        engine->random = engine->random * 1664525u + 1013904223u;
        return (uint32_t)((uint64_t)engine->random * below >> 32);
}

static void shuffle(struct gpu_engine *engine, uint32_t *pages, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                pages[i] = i;
        for (uint32_t i = n - 1; i; i--) {
                uint32_t other = draw(engine, i + 1), page = pages[i];

                pages[i] = pages[other];
                pages[other] = page;
        }
}

unsigned gpu_engine_objects(struct gpu_engine *engine, uint64_t first,
                            struct kvt_object objects[ENGINE_N_MAX],
                            uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX])
{
        uint32_t pages[ENGINE_OBJECTS * ENGINE_SLOTS_MAX + 2];
        unsigned n = 0;

        for (unsigned i = 0; i < engine->n_groups; i++) {
                uint32_t each = shape_object_pages(engine->shape, &engine->shape->groups[i]);

                ck_assert_uint_le(each, ENGINE_SLOTS_MAX);
                shuffle(engine, pages, engine->n_pages[i]);
                for (unsigned j = 0; j < ENGINE_OBJECTS; j++, n++) {
                        struct digest digest;

                        memcpy(slots[n], pages + j * each, each * sizeof(pages[0]));
                        objects[n] = (struct kvt_object){
                                .group = (uint16_t)i,
                                .flags = KVT_PARENT_UNKNOWN,
                                .boundary_tokens = engine->shape->chunk_tokens,
                                .slots = slots[n],
                                .n_slots = each};
                        content_digest(&digest, first + j);
                        memcpy(objects[n].digest.bytes, digest.bytes, sizeof(digest.bytes));
                }
        }
        return n;
}

/* ---- the image ---- */

void gpu_engine_poison(struct gpu_engine *engine, uint8_t poison)
{
        memset(engine->is, poison, engine->bytes);
}

void gpu_engine_place(struct gpu_engine *engine, const struct kvt_object *object, uint64_t number)
{
        const struct shape_group *group = &engine->shape->groups[object->group];
        uint64_t page_bytes = shape_page_bytes(group), bytes, from = 0;
        uint8_t *content;

        bytes = shape_object_pages(engine->shape, group) * page_bytes;
        content = malloc(bytes);
        ck_assert_ptr_nonnull(content);
        content_fill(content, 0, bytes, number * SHAPE_GROUPS_MAX + object->group, 0);
        for (uint32_t i = 0; i < object->n_slots; i++) {
                from = (object->pages ? object->pages[i] : i) * page_bytes;
                for (uint32_t layer = 0; layer < group->n_layers; layer++)
                        for (unsigned j = 0; j < SHAPE_TENSORS_MAX; j++) {
                                struct place place =
                                        place_of(engine, object->group, layer, j);
                                uint8_t *to = engine->is + place.at +
                                              object->slots[i] * place.page_stride;

                                for (uint32_t row = 0; row < place.n_rows; row++) {
                                        memcpy(to + row * place.row_stride, content + from,
                                               place.row_bytes);
                                        from += place.row_bytes;
                                }
                        }
        }
        free(content);
}

void gpu_engine_push(struct gpu_engine *engine)
{
        gpu_write(engine->gpu, engine->memory, engine->is, engine->bytes);
}

uint64_t gpu_engine_difference(struct gpu_engine *engine)
{
        gpu_read(engine->gpu, engine->seen, engine->memory, engine->bytes);
        if (!memcmp(engine->is, engine->seen, engine->bytes))
                return UINT64_MAX;
        for (uint64_t i = 0;; i++)
                if (engine->is[i] != engine->seen[i])
                        return i;
}

/* ---- calls ---- */

struct kvt_cuda_info gpu_engine_info(struct gpu_engine *engine)
{
        struct kvt_cuda_info info = {.size = sizeof(info)};

        ck_assert_int_eq(kvt_cuda_info(engine->session, &info), KVT_OK);
        return info;
}

bool gpu_moves_by(struct kvt_session *session, enum kvt_cuda_strategy strategy)
{
        struct kvt_cuda_info info = {.size = sizeof(info)};

        ck_assert_int_eq(kvt_cuda_info(session, &info), KVT_OK);
        if (strategy >= KVT_CUDA_KERNEL && !info.has_kernels) {
                ck_assert_msg(!kernel_image(), "kernels were built, and do not run here");
                printf("skipped: this build has no kernels\n");
                return false;
        }
        if (strategy == KVT_CUDA_BATCH && !info.has_batch) {
                printf("skipped: this driver has no batches\n");
                return false;
        }
        return true;
}

void gpu_engine_wait_registered(struct gpu_engine *engine)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        for (;;) {
                struct kvt_cuda_info info = gpu_engine_info(engine);

                if (info.mapped_bytes &&
                    info.registered_bytes + info.refused_bytes == info.mapped_bytes)
                        return;
                ck_assert_msg(daemon_now_ms() < deadline, "not registered: %s", info.last_error);
                daemon_pause();
        }
}

static enum kvt_status wait_call(struct gpu_engine *engine, uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine->session, id, &completion, 2 * FLOW_TIMEOUT_NS),
                         KVT_OK);
        return completion.status;
}

enum kvt_status gpu_engine_store(struct gpu_engine *engine, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        uint64_t id;

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, engine->map, objects, n, &id),
                         KVT_OK);
        return wait_call(engine, id);
}

enum kvt_status gpu_engine_load(struct gpu_engine *engine, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        uint64_t id;

        ck_assert_int_eq(
                kvt_load_pages(engine->session, &call, engine->map, NULL, objects, n, &id),
                KVT_OK);
        return wait_call(engine, id);
}

void gpu_engine_round_trip(struct gpu_engine *engine, uint64_t first, void (*between)(void *user),
                           void *user)
{
        struct kvt_object objects[ENGINE_N_MAX];
        uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        unsigned n = gpu_engine_objects(engine, first, objects, slots);
        uint64_t difference;

        gpu_engine_poison(engine, POISON);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(engine, &objects[i], first + i % ENGINE_OBJECTS);
        gpu_engine_push(engine);
        ck_assert_msg(gpu_engine_store(engine, objects, n) == KVT_OK, "%s: not stored",
                      engine->shape->name);
        between(user);
        gpu_engine_poison(engine, (uint8_t)~POISON);
        gpu_engine_push(engine);
        n = gpu_engine_objects(engine, first, objects, slots);
        ck_assert_msg(gpu_engine_load(engine, objects, n) == KVT_OK, "%s: not loaded",
                      engine->shape->name);
        for (unsigned i = 0; i < n; i++)
                gpu_engine_place(engine, &objects[i], first + i % ENGINE_OBJECTS);
        difference = gpu_engine_difference(engine);
        ck_assert_msg(difference == UINT64_MAX, "%s: byte %llu of %llu is wrong",
                      engine->shape->name, (unsigned long long)difference,
                      (unsigned long long)engine->bytes);
}
