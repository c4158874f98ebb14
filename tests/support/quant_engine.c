// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "tests/support/flow_session.h"
#include "tests/support/quant_engine.h"

#define VIEWS_MAX 2u

/* One view of a group, by offsets in the image. */
struct view {
        uint64_t at, page_stride, row_bytes, row_stride;
        uint32_t n_rows;
};

#define HALF        8192u       /* of keys, of values: 16 tokens, 2 heads of 128 */
#define EXTRA       (9u * 256u) /* 9 tiles */
#define EXTRA_STEP  (EXTRA + 34u)
#define INDEX       (65u * 64u) /* 65 tiles of 32 */
#define INDEX_STEP  (INDEX + 16u)
#define STATE       100001u
#define STATE_STEP  102400u
#define HALVES_AT   0u
#define EXTRA_AT    (HALVES_AT + 2u * QUANT_PAGES * HALF + 2u)
#define INDEX_AT    (EXTRA_AT - 2u + QUANT_PAGES * EXTRA_STEP + 64u)
#define WIDE_ROWS   2351u
#define WIDE_STEP   264u
#define WIDE_AT     (INDEX_AT + QUANT_PAGES * INDEX_STEP)
#define STATE_AT    (WIDE_AT + QUANT_WIDE_PAGES * WIDE_ROWS * WIDE_STEP)
#define IMAGE_BYTES (STATE_AT + QUANT_STATES * STATE_STEP)

static const struct group {
        const char *name;
        enum kvt_group_kind kind;
        enum kvt_codec codec;
        uint64_t page_bytes;
        uint32_t n_pages, n_views;
        struct view views[VIEWS_MAX];
} groups[QUANT_GROUPS] = {
        [QUANT_KV] = {"kv",
                      KVT_GROUP_ATTENTION,
                      KVT_CODEC_FP8_TILE128,
                      2 * HALF + EXTRA,
                      QUANT_PAGES,
                      2,
                      {{HALVES_AT, HALF, HALF, (uint64_t)QUANT_PAGES *HALF, 2},
                       {EXTRA_AT, EXTRA_STEP, EXTRA, 0, 1}}},
        [QUANT_INDEX] = {"index",
                         KVT_GROUP_INDEX,
                         KVT_CODEC_MXFP8,
                         INDEX,
                         QUANT_PAGES,
                         1,
                         {{INDEX_AT, INDEX_STEP, INDEX, 0, 1}}},
        [QUANT_WIDE] = {"wide",
                        KVT_GROUP_ATTENTION,
                        KVT_CODEC_FP8_TILE128,
                        WIDE_ROWS * 256u,
                        QUANT_WIDE_PAGES,
                        1,
                        {{WIDE_AT, WIDE_ROWS *WIDE_STEP, 256, WIDE_STEP, WIDE_ROWS}}},
        [QUANT_STATE] = {"state",
                         KVT_GROUP_STATE,
                         KVT_CODEC_NONE,
                         STATE,
                         QUANT_STATES,
                         1,
                         {{STATE_AT, STATE_STEP, STATE, 0, 1}}},
};

uint64_t quant_bytes(void)
{
        return IMAGE_BYTES;
}

static uint8_t *allocate(uint64_t bytes)
{
        uint8_t *memory = malloc(bytes);

        ck_assert_ptr_nonnull(memory);
        return memory;
}

/* ---- the engine ---- */

static struct kvt_session *open_session(const char *socket, bool has_codecs)
{
        static const uint8_t engine_id[2][16] = {{1}, {2}};
        struct kvt_group told[QUANT_GROUPS];
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "codecs",
                                    .chunk_tokens = QUANT_CHUNK_TOKENS,
                                    .groups = told,
                                    .n_groups = QUANT_GROUPS};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = socket,
                                      .program = "codecs",
                                      .layout = &layout,
                                      .engine_id = engine_id[has_codecs],
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";

        for (unsigned i = 0; i < QUANT_GROUPS; i++)
                told[i] = (struct kvt_group){
                        .name = groups[i].name,
                        .kind = groups[i].kind,
                        .page_tokens = i == QUANT_STATE ? 0 : QUANT_CHUNK_TOKENS / QUANT_SLOTS,
                        .page_bytes = groups[i].page_bytes,
                        .codec = has_codecs ? groups[i].codec : KVT_CODEC_NONE};
        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

void quant_open(struct quant_engine *ret_engine, const char *socket, bool has_codecs)
{
        *ret_engine = (struct quant_engine){.session = open_session(socket, has_codecs),
                                            .image = allocate(IMAGE_BYTES)};
        memset(ret_engine->image, QUANT_UNTOUCHED, IMAGE_BYTES);
}

void quant_register(struct quant_engine *engine, void *base)
{
        struct kvt_page_view views[QUANT_GROUPS][VIEWS_MAX];
        struct kvt_page_group told[QUANT_GROUPS];
        char why[256] = "";

        for (uint16_t i = 0; i < QUANT_GROUPS; i++) {
                for (uint32_t v = 0; v < groups[i].n_views; v++) {
                        const struct view *view = &groups[i].views[v];

                        views[i][v] = (struct kvt_page_view){.base = (uint8_t *)base + view->at,
                                                             .page_stride = view->page_stride,
                                                             .row_bytes = view->row_bytes,
                                                             .row_stride = view->row_stride,
                                                             .n_rows = view->n_rows};
                }
                told[i] = (struct kvt_page_group){.group = i,
                                                  .n_views = groups[i].n_views,
                                                  .n_pages = groups[i].n_pages,
                                                  .views = views[i]};
        }
        ck_assert_msg(kvt_page_map_new(engine->session, told, QUANT_GROUPS, &engine->map, why,
                                       sizeof(why)) == KVT_OK,
                      "%s", why);
}

void quant_close(struct quant_engine *engine)
{
        kvt_close(engine->session);
        kvt_page_map_free(engine->map);
        free(engine->image);
}

/* ---- objects ---- */

struct kvt_object quant_object(uint64_t number, uint16_t group, uint32_t *slots, uint32_t first,
                               int step)
{
        uint32_t n = group == QUANT_STATE ? 1 : QUANT_SLOTS;
        struct kvt_object object = {.group = group,
                                    .boundary_tokens = QUANT_CHUNK_TOKENS,
                                    .slots = slots,
                                    .n_slots = n};

        memcpy(object.digest.bytes, &number, sizeof(number));
        for (uint32_t i = 0; i < n; i++)
                slots[i] = (uint32_t)((int)first + (int)i * step) % groups[group].n_pages;
        return object;
}

void quant_boundary(uint64_t number, struct kvt_object objects[QUANT_GROUPS],
                    uint32_t slots[QUANT_GROUPS][QUANT_SLOTS], uint32_t first, int step)
{
        for (uint16_t i = 0; i < QUANT_GROUPS; i++)
                objects[i] = quant_object(number, i, slots[i], first, step);
}

/* Some tiles have numbers of one order, some of all, with infinities and NaN among them. */
static void choose_page(const struct kvt_object *object, uint32_t page, uint8_t *bytes)
{
        uint64_t n = groups[object->group].page_bytes, number, seed;

        memcpy(&number, object->digest.bytes, sizeof(number));
        seed = (number * QUANT_GROUPS + object->group) * QUANT_SLOTS + page + 1;
        for (uint64_t at = 0; at < n; at += 2) {
                uint16_t bf16;

                seed = seed * 6364136223846793005u + 1442695040888963407u;
                bf16 = (uint16_t)(seed >> 40);
                if (at / 512 % 4)
                        bf16 = (uint16_t)((bf16 & 0x83ff) | 0x3c00);
                memcpy(bytes + at, &bf16, n - at < 2 ? 1 : 2);
        }
}

/* Of a page with a codec: as it is stored, and as it comes back. */
static void convert(uint8_t codec, uint64_t page_bytes, const uint8_t *page, uint8_t *ret_stored,
                    uint8_t *ret_back)
{
        uint64_t n_tiles = page_bytes / codec_tile_bytes(codec);
        uint8_t *scales = ret_stored + n_tiles * codec_tile_numbers(codec);

        codec_encode(codec, page, n_tiles, ret_stored, scales);
        codec_decode(codec, ret_stored, scales, n_tiles, ret_back);
}

/* Copies between a slot and @page; or compares. */
enum move { INTO_SLOT, EQUAL };

static bool move_page(const struct quant_engine *engine, uint16_t group, uint32_t slot,
                      const uint8_t *page, enum move move)
{
        bool is_equal = true;

        for (uint32_t v = 0; v < groups[group].n_views; v++)
                for (uint32_t r = 0; r < groups[group].views[v].n_rows; r++) {
                        const struct view *view = &groups[group].views[v];
                        uint8_t *row = engine->image + view->at + slot * view->page_stride +
                                       r * view->row_stride;

                        if (move == INTO_SLOT)
                                memcpy(row, page, view->row_bytes);
                        else
                                is_equal = is_equal && !memcmp(row, page, view->row_bytes);
                        page += view->row_bytes;
                }
        return is_equal;
}

void quant_fill(const struct quant_engine *engine, const struct kvt_object *object)
{
        uint8_t *page = allocate(groups[object->group].page_bytes);

        for (uint32_t i = 0; i < object->n_slots; i++) {
                choose_page(object, i, page);
                move_page(engine, object->group, object->slots[i], page, INTO_SLOT);
        }
        free(page);
}

bool quant_holds(const struct quant_engine *engine, const struct kvt_object *object)
{
        const struct group *group = &groups[object->group];
        uint8_t *page = allocate(group->page_bytes), *stored = allocate(group->page_bytes);
        bool is_equal = true;

        for (uint32_t i = 0; i < object->n_slots; i++) {
                choose_page(object, object->pages ? object->pages[i] : i, page);
                if (group->codec)
                        convert((uint8_t)group->codec, group->page_bytes, page, stored, page);
                is_equal =
                        is_equal && move_page(engine, object->group, object->slots[i], page, EQUAL);
        }
        free(page);
        free(stored);
        return is_equal;
}

void quant_clear(const struct quant_engine *engine, const struct kvt_object *object)
{
        uint8_t *page = allocate(groups[object->group].page_bytes);

        memset(page, QUANT_UNTOUCHED, groups[object->group].page_bytes);
        for (uint32_t i = 0; i < object->n_slots; i++)
                move_page(engine, object->group, object->slots[i], page, INTO_SLOT);
        free(page);
}

bool quant_is_untouched(const struct quant_engine *engine)
{
        for (uint64_t i = 0; i < IMAGE_BYTES; i++)
                if (engine->image[i] != QUANT_UNTOUCHED)
                        return false;
        return true;
}

uint8_t *quant_stored(const struct kvt_object *object, uint64_t *ret_bytes)
{
        const struct group *group = &groups[object->group];
        uint64_t page_bytes = codec_stored_bytes((uint8_t)group->codec, group->page_bytes);
        uint8_t *bytes = calloc(object->n_slots, page_bytes);
        uint8_t *page = allocate(group->page_bytes);

        ck_assert_ptr_nonnull(bytes);
        for (uint32_t i = 0; i < object->n_slots; i++) {
                choose_page(object, i, page);
                if (group->codec)
                        convert((uint8_t)group->codec, group->page_bytes, page,
                                bytes + i * page_bytes, page);
                else
                        memcpy(bytes + i * page_bytes, page, page_bytes);
        }
        free(page);
        *ret_bytes = object->n_slots * page_bytes;
        return bytes;
}

/* ---- calls ---- */

static enum kvt_status wait_for(struct quant_engine *engine, uint64_t call)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine->session, call, &completion, FLOW_TIMEOUT_NS),
                         KVT_OK);
        return completion.status;
}

enum kvt_status quant_store(struct quant_engine *engine, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, engine->map, objects, n, &id),
                         KVT_OK);
        return wait_for(engine, id);
}

enum kvt_status quant_load(struct quant_engine *engine, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_load_pages(engine->session, &call, engine->map, NULL, objects, n, &id),
                         KVT_OK);
        return wait_for(engine, id);
}
