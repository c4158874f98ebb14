// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/content.h"
#include "tests/support/flow_session.h"
#include "tests/support/paged_engine.h"

static const uint32_t paged_pages_of_chunk[N_GROUPS] = {CHUNK_TOKENS / 16, CHUNK_TOKENS / 32, 1};
static const uint64_t paged_page_bytes[N_GROUPS] = {2 * KV_ROW + IDX_ROW, WIN_PAGE, STATE_BYTES};

static uint8_t *memory(uint64_t bytes, int value)
{
        uint8_t *p = malloc(bytes);

        ck_assert_ptr_nonnull(p);
        memset(p, value, bytes);
        return p;
}

/* ---- the engine ---- */

static struct kvt_session *open_session(const char *socket)
{
        static const uint8_t engine_id[16] = {9};
        struct kvt_group groups[] = {
                {.name = "full",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = 16,
                 .page_bytes = paged_page_bytes[FULL]},
                {.name = "window",
                 .kind = KVT_GROUP_WINDOW,
                 .page_tokens = 32,
                 .window_tokens = 512,
                 .page_bytes = WIN_PAGE},
                {.name = "state", .kind = KVT_GROUP_STATE, .page_bytes = STATE_BYTES},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "pages",
                                    .chunk_tokens = CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = N_GROUPS};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = socket,
                                      .program = "pages",
                                      .layout = &layout,
                                      .engine_id = engine_id,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";

        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

static void register_pages(struct paged_engine *engine)
{
        struct kvt_page_view full[] = {
                {.base = engine->keys_and_values,
                 .page_stride = KV_ROW,
                 .row_bytes = KV_ROW,
                 .row_stride = (uint64_t)N_PAGES * KV_ROW,
                 .n_rows = 2},
                {.base = engine->index, .page_stride = IDX_STEP, .row_bytes = IDX_ROW},
        };
        struct kvt_page_view window = {
                .base = engine->window, .page_stride = WIN_PAGE, .row_bytes = WIN_PAGE};
        struct kvt_page_view state = {
                .base = engine->states, .page_stride = STATE_STEP, .row_bytes = STATE_BYTES};
        struct kvt_page_group groups[] = {
                {.group = FULL, .n_views = 2, .n_pages = N_PAGES, .views = full},
                {.group = WINDOW, .n_views = 1, .n_pages = N_PAGES, .views = &window},
                {.group = STATE, .n_views = 1, .n_pages = N_STATES, .views = &state},
        };
        char why[256] = "";

        ck_assert_msg(kvt_page_map_new(engine->session, groups, N_GROUPS, &engine->map, why,
                                       sizeof(why)) == KVT_OK,
                      "%s", why);
}

struct paged_engine paged_open(const char *socket)
{
        uint64_t window = (uint64_t)N_PAGES * WIN_PAGE, index = (uint64_t)N_PAGES * IDX_STEP;
        uint64_t keys = 2 * (uint64_t)N_PAGES * KV_ROW;
        struct paged_engine engine = {
                .session = open_session(socket),
                .memory_bytes = window + index + keys + N_STATES * STATE_STEP,
        };

        engine.memory = memory(engine.memory_bytes, UNTOUCHED);
        engine.window = engine.memory;
        engine.index = engine.window + window;
        engine.keys_and_values = engine.index + index;
        engine.states = engine.keys_and_values + keys;
        register_pages(&engine);
        return engine;
}

void paged_close(struct paged_engine *engine)
{
        kvt_close(engine->session);
        kvt_page_map_free(engine->map);
        free(engine->memory);
}

uint8_t *paged_byte(const struct paged_engine *engine, uint16_t group, uint32_t slot, uint64_t at)
{
        if (group == WINDOW)
                return engine->window + (uint64_t)slot * WIN_PAGE + at;
        if (group == STATE)
                return engine->states + slot * STATE_STEP + at;
        if (at < 2 * KV_ROW)
                return engine->keys_and_values + at / KV_ROW * N_PAGES * KV_ROW +
                       (uint64_t)slot * KV_ROW + at % KV_ROW;
        return engine->index + (uint64_t)slot * IDX_STEP + at - 2 * KV_ROW;
}

uint64_t paged_bytes(const struct kvt_object *object)
{
        return object->n_slots * paged_page_bytes[object->group];
}

uint8_t *paged_content(const struct kvt_object *object, uint64_t generation)
{
        uint64_t bytes = paged_pages_of_chunk[object->group] * paged_page_bytes[object->group],
                 number;
        uint8_t *content = memory(bytes, 0);

        memcpy(&number, object->digest.bytes, sizeof(number));
        content_fill(content, 0, bytes, number * N_GROUPS + object->group, generation);
        return content;
}

/* How many bytes lie together from byte @at of a page on. */
static uint64_t together(uint16_t group, uint64_t at)
{
        if (group != FULL)
                return paged_page_bytes[group] - at;
        return at < 2 * KV_ROW ? KV_ROW - at % KV_ROW : IDX_ROW - (at - 2 * KV_ROW);
}

void paged_fill(const struct paged_engine *engine, const struct kvt_object *objects, size_t n,
                uint64_t generation)
{
        for (size_t i = 0; i < n; i++) {
                uint16_t group = objects[i].group;
                uint64_t page = paged_page_bytes[group], bytes;
                uint8_t *content = paged_content(&objects[i], generation);

                for (uint64_t at = 0; at < paged_bytes(&objects[i]); at += bytes) {
                        bytes = together(group, at % page);
                        memcpy(paged_byte(engine, group, objects[i].slots[at / page], at % page),
                               content + at, bytes);
                }
                free(content);
        }
}

bool paged_holds(const struct paged_engine *engine, const struct kvt_object *object,
                 uint64_t generation)
{
        uint64_t page = paged_page_bytes[object->group], bytes;
        uint8_t *content = paged_content(object, generation);
        bool same = true;

        for (uint64_t at = 0; at < paged_bytes(object) && same; at += bytes) {
                uint64_t place = at / page;
                uint64_t in_chunk = object->pages ? object->pages[place] : place;

                bytes = together(object->group, at % page);
                same = !memcmp(paged_byte(engine, object->group, object->slots[place], at % page),
                               content + in_chunk * page + at % page, bytes);
        }
        free(content);
        return same;
}

void paged_expect(const struct paged_engine *engine, const struct kvt_object *objects, size_t n,
                  uint64_t generation)
{
        for (size_t i = 0; i < n; i++) {
                ck_assert_int_eq(objects[i].status, KVT_OK);
                ck_assert_uint_eq(objects[i].lease, 0);
                ck_assert_msg(paged_holds(engine, &objects[i], generation), "object %zu", i);
        }
}

/* ---- objects and calls ---- */

struct kvt_object paged_object(uint64_t number, uint16_t group, uint32_t *slots, uint32_t first,
                               int step)
{
        struct kvt_object made = {.group = group,
                                  .flags = KVT_PARENT_UNKNOWN,
                                  .boundary_tokens = CHUNK_TOKENS,
                                  .slots = slots,
                                  .n_slots = paged_pages_of_chunk[group]};

        memcpy(made.digest.bytes, &number, sizeof(number));
        made.digest.bytes[31] = 1;
        for (uint32_t i = 0; i < made.n_slots; i++)
                slots[i] = first + (uint32_t)((int)i * step);
        return made;
}

struct kvt_completion paged_wait(struct paged_engine *engine, uint64_t call)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine->session, call, &completion, 2 * FLOW_TIMEOUT_NS),
                         KVT_OK);
        ck_assert_uint_eq(completion.flags, 0);
        return completion;
}

struct kvt_call paged_options(uint32_t flags, uint64_t set)
{
        return (struct kvt_call){.size = sizeof(struct kvt_call),
                                 .flags = KVT_CALL_WAITED | flags,
                                 .timeout_ns = FLOW_TIMEOUT_NS,
                                 .set = set};
}

enum kvt_status paged_store(struct paged_engine *engine, uint64_t set, struct kvt_object *objects,
                            size_t n)
{
        struct kvt_call call = paged_options(0, set);
        uint64_t id;

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, engine->map, objects, n, &id),
                         KVT_OK);
        return paged_wait(engine, id).status;
}

struct kvt_completion paged_load(struct paged_engine *engine, uint32_t flags, const uint8_t *token,
                                 struct kvt_object *objects, size_t n)
{
        struct kvt_call call = paged_options(flags, 0);
        uint64_t id;

        ck_assert_int_eq(
                kvt_load_pages(engine->session, &call, engine->map, token, objects, n, &id),
                KVT_OK);
        return paged_wait(engine, id);
}

void paged_boundary(uint64_t number, struct kvt_object objects[N_GROUPS],
                    uint32_t slots[N_GROUPS][SLOTS_MAX], uint32_t first, int step)
{
        for (uint16_t group = 0; group < N_GROUPS; group++)
                objects[group] = paged_object(number, group, slots[group],
                                              group == STATE ? first % N_STATES : first, step);
}
