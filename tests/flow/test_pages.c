// SPDX-License-Identifier: Apache-2.0
/*
 * Page maps against a real daemon. An engine has three groups: attention in a strided tensor
 * of keys and values and one of padded indexer keys, a window in pages that touch, and
 * states. What each object holds is a function of its number; where it lies is up to slots.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "tests/support/child.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB UINT64_C(0x100000)

#define CHUNK_TOKENS 256u
enum { FULL, WINDOW, STATE, N_GROUPS };

#define N_PAGES  1024u /* of both paged groups */
#define N_STATES 4u
#define KV_ROW   2048u
#define IDX_ROW  1000u
#define IDX_STEP 1024u
#define WIN_PAGE 8192u
#define STATE_BYTES (UINT64_C(3) * MIB + 1)
#define STATE_STEP  (UINT64_C(3) * MIB + 4096)

static const uint32_t pages_of_chunk[N_GROUPS] = {CHUNK_TOKENS / 16, CHUNK_TOKENS / 32, 1};
static const uint64_t page_bytes[N_GROUPS] = {2 * KV_ROW + IDX_ROW, WIN_PAGE, STATE_BYTES};
#define SLOTS_MAX (CHUNK_TOKENS / 16)

static struct daemon_fixture fixture;

struct engine {
        struct kvt_session *session;
        struct kvt_page_map *map;
        uint8_t *keys_and_values; /* [2][N_PAGES][KV_ROW] */
        uint8_t *index;           /* [N_PAGES][IDX_STEP] */
        uint8_t *window;          /* [N_PAGES][WIN_PAGE] */
        uint8_t *states;          /* [N_STATES][STATE_STEP] */
};

static uint8_t *memory(uint64_t bytes, int value)
{
        uint8_t *p = malloc(bytes);

        ck_assert_ptr_nonnull(p);
        memset(p, value, bytes);
        return p;
}

/* ---- the engine ---- */

static struct kvt_session *open_session(const char *model)
{
        static const uint8_t engine_id[16] = {9};
        struct kvt_group groups[] = {
                {.name = "full",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = 16,
                 .page_bytes = page_bytes[FULL]},
                {.name = "window",
                 .kind = KVT_GROUP_WINDOW,
                 .page_tokens = 32,
                 .window_tokens = 512,
                 .page_bytes = WIN_PAGE},
                {.name = "state", .kind = KVT_GROUP_STATE, .page_bytes = STATE_BYTES},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = model,
                                    .chunk_tokens = CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = N_GROUPS};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .program = "pages",
                                      .layout = &layout,
                                      .engine_id = engine_id,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";

        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

static void register_pages(struct engine *engine)
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

static struct engine engine_open(void)
{
        struct engine engine = {
                .session = open_session("pages"),
                .keys_and_values = memory(2 * (uint64_t)N_PAGES * KV_ROW, 0xee),
                .index = memory((uint64_t)N_PAGES * IDX_STEP, 0xee),
                .window = memory((uint64_t)N_PAGES * WIN_PAGE, 0xee),
                .states = memory(N_STATES * STATE_STEP, 0xee),
        };

        register_pages(&engine);
        return engine;
}

static void free_memory(struct engine *engine)
{
        free(engine->keys_and_values);
        free(engine->index);
        free(engine->window);
        free(engine->states);
}

static void engine_close(struct engine *engine)
{
        kvt_close(engine->session);
        kvt_page_map_free(engine->map);
        free_memory(engine);
}

/* Byte @at of a page, wherever it is. */
static uint8_t *byte_of(const struct engine *engine, uint16_t group, uint32_t slot, uint64_t at)
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

static uint64_t object_bytes(const struct kvt_object *object)
{
        return object->n_slots * page_bytes[object->group];
}

/* What the object holds, by its digest and @generation. */
static uint8_t *content_of(const struct kvt_object *object, uint64_t generation)
{
        uint64_t bytes = pages_of_chunk[object->group] * page_bytes[object->group], number;
        uint8_t *content = memory(bytes, 0);

        memcpy(&number, object->digest.bytes, sizeof(number));
        content_fill(content, 0, bytes, number * N_GROUPS + object->group, generation);
        return content;
}

static void fill_pages(const struct engine *engine, const struct kvt_object *objects, size_t n,
                       uint64_t generation)
{
        for (size_t i = 0; i < n; i++) {
                uint64_t page = page_bytes[objects[i].group];
                uint8_t *content = content_of(&objects[i], generation);

                for (uint64_t at = 0; at < object_bytes(&objects[i]); at++)
                        *byte_of(engine, objects[i].group, objects[i].slots[at / page], at % page) =
                                content[at];
                free(content);
        }
}

/* Do the slots hold the object, or those of its pages that were asked for? */
static bool pages_hold(const struct engine *engine, const struct kvt_object *object,
                       uint64_t generation)
{
        uint64_t page = page_bytes[object->group];
        uint8_t *content = content_of(object, generation);
        bool same = true;

        for (uint64_t at = 0; at < object_bytes(object) && same; at++) {
                uint64_t place = at / page;
                uint64_t in_chunk = object->pages ? object->pages[place] : place;

                same = *byte_of(engine, object->group, object->slots[place], at % page) ==
                       content[in_chunk * page + at % page];
        }
        free(content);
        return same;
}

static void expect_pages(const struct engine *engine, const struct kvt_object *objects, size_t n,
                         uint64_t generation)
{
        for (size_t i = 0; i < n; i++) {
                ck_assert_int_eq(objects[i].status, KVT_OK);
                ck_assert_uint_eq(objects[i].lease, 0);
                ck_assert_msg(pages_hold(engine, &objects[i], generation), "object %zu", i);
        }
}

/* ---- objects and calls ---- */

/* In slots @first, @first + @step, ... */
static struct kvt_object object(uint64_t number, uint16_t group, uint32_t *slots, uint32_t first,
                                int step)
{
        struct kvt_object made = {.group = group,
                                  .flags = KVT_PARENT_UNKNOWN,
                                  .boundary_tokens = CHUNK_TOKENS,
                                  .slots = slots,
                                  .n_slots = pages_of_chunk[group]};

        memcpy(made.digest.bytes, &number, sizeof(number));
        made.digest.bytes[31] = 1;
        for (uint32_t i = 0; i < made.n_slots; i++)
                slots[i] = first + (uint32_t)((int)i * step);
        return made;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static struct kvt_completion wait_for(struct engine *engine, uint64_t call)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine->session, call, &completion, 2 * FLOW_TIMEOUT_NS),
                         KVT_OK);
        ck_assert_uint_eq(completion.flags, 0);
        return completion;
}

static struct kvt_call options(uint32_t flags, uint64_t set)
{
        return (struct kvt_call){.size = sizeof(struct kvt_call),
                                 .flags = KVT_CALL_WAITED | flags,
                                 .timeout_ns = FLOW_TIMEOUT_NS,
                                 .set = set};
}

static enum kvt_status store(struct engine *engine, uint64_t set, struct kvt_object *objects,
                             size_t n)
{
        struct kvt_call call = options(0, set);
        uint64_t id;

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, engine->map, objects, n, &id),
                         KVT_OK);
        return wait_for(engine, id).status;
}

static struct kvt_completion load(struct engine *engine, uint32_t flags, const uint8_t *token,
                                  struct kvt_object *objects, size_t n)
{
        struct kvt_call call = options(flags, 0);
        uint64_t id;

        ck_assert_int_eq(
                kvt_load_pages(engine->session, &call, engine->map, token, objects, n, &id),
                KVT_OK);
        return wait_for(engine, id);
}

/* What an engine without a map would see. */
static struct kvt_completion run(struct kvt_session *session, submit_fn submit,
                                 struct kvt_object *objects, size_t n)
{
        struct kvt_call call = options(0, 0);
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(session, &call, objects, n, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        return completion;
}

static void expect_nothing_leased(void)
{
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 0);
}

/* One boundary: a chunk, a chunk of the window, a state. */
static void boundary(uint64_t number, struct kvt_object objects[N_GROUPS],
                     uint32_t slots[N_GROUPS][SLOTS_MAX], uint32_t first, int step)
{
        for (uint16_t group = 0; group < N_GROUPS; group++)
                objects[group] = object(number, group, slots[group],
                                        group == STATE ? first % N_STATES : first, step);
}

/* ---- bytes ---- */

START_TEST(what_one_engine_stored_loads_into_other_pages_of_another)
{
        struct engine writer, reader;
        struct kvt_object stored[N_GROUPS], loaded[N_GROUPS];
        uint32_t from[N_GROUPS][SLOTS_MAX], to[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        writer = engine_open();
        reader = engine_open();
        boundary(1, stored, from, 3, 5);
        boundary(1, loaded, to, 1021, -2);
        fill_pages(&writer, stored, N_GROUPS, 0);
        ck_assert_int_eq(store(&writer, 7, stored, N_GROUPS), KVT_OK);
        for (unsigned i = 0; i < N_GROUPS; i++)
                ck_assert_int_eq(stored[i].status, KVT_OK);

        ck_assert_int_eq(load(&reader, 0, NULL, loaded, N_GROUPS).status, KVT_OK);
        expect_pages(&reader, loaded, N_GROUPS, 0);
        for (unsigned i = 0; i < N_GROUPS; i++) {
                ck_assert_uint_eq(loaded[i].bytes, object_bytes(&loaded[i]));
                ck_assert_uint_ne(loaded[i].stored_ns, 0);
        }
        /* The pages between them are as they were. */
        ck_assert_uint_eq(*byte_of(&reader, FULL, 1020, 0), 0xee);
        ck_assert_uint_eq(reader.index[1021 * IDX_STEP + IDX_ROW], 0xee);
        expect_nothing_leased();
        engine_close(&writer);
        engine_close(&reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(the_bytes_of_an_object_are_its_pages_in_order_un_padded)
{
        struct engine engine;
        struct kvt_object stored[N_GROUPS];
        uint32_t slots[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = engine_open();
        boundary(1, stored, slots, 40, 1);
        fill_pages(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(store(&engine, 0, stored, N_GROUPS), KVT_OK);
        ck_assert_int_eq(run(engine.session, kvt_acquire, stored, N_GROUPS).status, KVT_OK);
        for (unsigned i = 0; i < N_GROUPS; i++) {
                uint8_t *content = content_of(&stored[i], 0);
                uint8_t *bytes = memory(stored[i].bytes, 0);

                ck_assert_uint_eq(stored[i].bytes, object_bytes(&stored[i]));
                ck_assert_int_eq(kvt_read(&stored[i], 0, bytes, stored[i].bytes), KVT_OK);
                ck_assert(!memcmp(bytes, content, stored[i].bytes));
                free(bytes);
                free(content);
        }
        ck_assert_int_eq(run(engine.session, kvt_release, stored, N_GROUPS).status, KVT_OK);
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(many_objects_in_one_call_are_moved_all)
{
        enum { N = 64 };
        static struct kvt_object stored[N], loaded[N];
        static uint32_t from[N][SLOTS_MAX], to[N][SLOTS_MAX];
        struct engine writer, reader;

        daemon_fixture_init(&fixture, NULL);
        writer = engine_open();
        reader = engine_open();
        for (uint32_t i = 0; i < N; i++) {
                stored[i] = object(i, FULL, from[i], i, N);
                loaded[i] = object(i, FULL, to[i], (N - 1 - i) * pages_of_chunk[FULL], 1);
        }
        fill_pages(&writer, stored, N, 0);
        ck_assert_int_eq(store(&writer, 0, stored, N), KVT_OK);
        ck_assert_int_eq(load(&reader, 0, NULL, loaded, N).status, KVT_OK);
        expect_pages(&reader, loaded, N, 0);
        engine_close(&writer);
        engine_close(&reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(pages_of_a_chunk_load_alone)
{
        static const uint32_t pages[] = {0, 3, 4, 5, 15};
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct engine engine;
        struct kvt_object whole, part;
        uint32_t from[SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, &with_nvme);
        engine = engine_open();
        whole = object(1, FULL, from, 100, 1);
        fill_pages(&engine, &whole, 1, 0);
        ck_assert_int_eq(store(&engine, 0, &whole, 1), KVT_OK);
        part = object(1, FULL, to, 7, 3);
        part.pages = pages;
        part.n_pages = part.n_slots = sizeof(pages) / sizeof(pages[0]);
        ck_assert_int_eq(load(&engine, 0, NULL, &part, 1).status, KVT_OK);
        expect_pages(&engine, &part, 1, 0);

        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        memset(engine.keys_and_values, 0, 2 * (uint64_t)N_PAGES * KV_ROW);
        ck_assert_int_eq(load(&engine, 0, NULL, &part, 1).status, KVT_OK);
        expect_pages(&engine, &part, 1, 0);
        expect_nothing_leased();
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(what_is_below_arrives_and_is_copied_as_it_arrives)
{
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct engine engine;
        struct kvt_object stored[N_GROUPS], loaded[N_GROUPS];
        uint32_t from[N_GROUPS][SLOTS_MAX], to[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, &with_nvme);
        engine = engine_open();
        boundary(1, stored, from, 8, 1);
        fill_pages(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(store(&engine, 0, stored, N_GROUPS), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        boundary(1, loaded, to, 301, 2);
        ck_assert_int_eq(load(&engine, KVT_CALL_RESIDENT, NULL, loaded, N_GROUPS).status, KVT_BUSY);
        ck_assert_int_eq(load(&engine, 0, NULL, loaded, N_GROUPS).status, KVT_OK);
        expect_pages(&engine, loaded, N_GROUPS, 0);
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- what is not copied ---- */

START_TEST(what_is_stored_already_is_not_copied)
{
        struct engine engine;
        struct kvt_object stored, again, loaded;
        uint32_t from[SLOTS_MAX], other[SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = engine_open();
        stored = object(1, WINDOW, from, 0, 1);
        fill_pages(&engine, &stored, 1, 0);
        ck_assert_int_eq(store(&engine, 0, &stored, 1), KVT_OK);
        again = object(1, WINDOW, other, 500, 1);
        fill_pages(&engine, &again, 1, 1);
        ck_assert_int_eq(store(&engine, 0, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_ALREADY_HAVE);
        ck_assert_int_eq(store(&engine, 5, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_ALREADY_HAVE);
        loaded = object(1, WINDOW, to, 900, 1);
        ck_assert_int_eq(load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        expect_pages(&engine, &loaded, 1, 0);

        again.flags |= KVT_REPLACE;
        ck_assert_int_eq(store(&engine, 0, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_OK);
        ck_assert_int_eq(load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        expect_pages(&engine, &loaded, 1, 1);
        expect_nothing_leased();
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_miss_leaves_all_pages_alone)
{
        struct engine engine;
        struct kvt_object stored, loaded[2];
        struct kvt_completion completion;
        uint32_t from[SLOTS_MAX], to[2][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = engine_open();
        stored = object(1, FULL, from, 0, 1);
        fill_pages(&engine, &stored, 1, 0);
        ck_assert_int_eq(store(&engine, 0, &stored, 1), KVT_OK);
        loaded[0] = object(1, FULL, to[0], 64, 1);
        loaded[1] = object(2, FULL, to[1], 128, 1);
        completion = load(&engine, 0, NULL, loaded, 2);
        ck_assert_int_eq(completion.status, KVT_MISS);
        ck_assert_int_eq(loaded[0].status, KVT_MISS);
        ck_assert_uint_eq(*byte_of(&engine, FULL, 64, 0), 0xee);

        /* The leading run alone, when that is what the engine wants. */
        completion = load(&engine, KVT_CALL_PARTIAL, NULL, loaded, 2);
        ck_assert_int_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(completion.n_granted, 1);
        expect_pages(&engine, loaded, 1, 0);
        ck_assert_int_eq(loaded[1].status, KVT_MISS);
        expect_nothing_leased();
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- sets ---- */

START_TEST(of_a_set_with_a_member_that_finds_no_room_nothing_is_stored)
{
        struct daemon_options small = {.piece_bytes = 8 * MIB, .n_pieces = 1};
        struct engine engine;
        struct kvt_object set[4], loaded;
        uint32_t slots[4][SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, &small);
        engine = engine_open();
        set[0] = object(1, FULL, slots[0], 0, 1);
        for (uint32_t i = 1; i < 4; i++)
                set[i] = object(i, STATE, slots[i], i, 1);
        fill_pages(&engine, set, 4, 0);
        ck_assert_int_eq(store(&engine, 3, set, 4), KVT_BUSY);
        for (unsigned i = 0; i < 4; i++)
                ck_assert_int_eq(set[i].status, KVT_BUSY);
        expect_nothing_leased();
        loaded = object(1, FULL, to, 100, 1);
        ck_assert_int_eq(load(&engine, 0, NULL, &loaded, 1).status, KVT_MISS);

        /* Without the set, what found room is stored. */
        ck_assert_int_eq(store(&engine, 0, set, 4), KVT_BUSY);
        ck_assert_int_eq(set[0].status, KVT_OK);
        ck_assert_int_eq(load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        expect_pages(&engine, &loaded, 1, 0);
        expect_nothing_leased();
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- refusals ---- */

static enum kvt_status try_load(struct engine *engine, struct kvt_page_map *map,
                                struct kvt_object *loaded)
{
        struct kvt_call call = options(0, 0);
        enum kvt_status status =
                kvt_load_pages(engine->session, &call, map, NULL, loaded, 1, NULL);

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, map, loaded, 1, NULL), status);
        return status;
}

START_TEST(slots_that_do_not_exist_or_do_not_fit_refuse_the_call)
{
        struct engine engine, other;
        struct kvt_object loaded;
        uint32_t slots[SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = engine_open();
        other = engine_open();
        loaded = object(1, FULL, slots, 0, 1);
        slots[3] = N_PAGES;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        slots[3] = 3;
        loaded.n_slots--;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        loaded.n_slots = 0;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        loaded = object(1, FULL, slots, 0, 1);
        ck_assert_int_eq(try_load(&engine, other.map, &loaded), KVT_INVALID);
        ck_assert_int_eq(try_load(&engine, NULL, &loaded), KVT_INVALID);
        loaded.group = N_GROUPS;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        engine_close(&engine);
        engine_close(&other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_map_that_is_not_the_layout_is_refused_by_name)
{
        struct kvt_page_view view = {.page_stride = 4096, .row_bytes = 4096};
        struct kvt_page_group group = {
                .group = WINDOW, .n_views = 1, .n_pages = 4, .views = &view};
        struct kvt_page_map *map = NULL;
        struct engine engine;
        char why[256] = "";

        daemon_fixture_init(&fixture, NULL);
        engine = engine_open();
        view.base = engine.window;
        ck_assert_int_eq(
                kvt_page_map_new(engine.session, &group, 1, &map, why, sizeof(why)),
                KVT_INVALID);
        ck_assert_ptr_null(map);
        ck_assert_ptr_nonnull(strstr(why, "window"));
        ck_assert_ptr_nonnull(strstr(why, "4096"));
        ck_assert_ptr_nonnull(strstr(why, "8192"));
        engine_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                what_one_engine_stored_loads_into_other_pages_of_another,
                the_bytes_of_an_object_are_its_pages_in_order_un_padded,
                many_objects_in_one_call_are_moved_all,
                pages_of_a_chunk_load_alone,
                what_is_below_arrives_and_is_copied_as_it_arrives,
                what_is_stored_already_is_not_copied,
                a_miss_leaves_all_pages_alone,
                of_a_set_with_a_member_that_finds_no_room_nothing_is_stored,
                slots_that_do_not_exist_or_do_not_fit_refuse_the_call,
                a_map_that_is_not_the_layout_is_refused_by_name,
                NULL,
        };

        return flow_run("pages", tests, 120);
}
