// SPDX-License-Identifier: Apache-2.0
/* Page maps against a real daemon: what is moved where, what is not, what is refused. */
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/paged_engine.h"

#define MIB UINT64_C(0x100000)

static struct daemon_fixture fixture;

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

/* What an engine without a map would see. */
static struct kvt_completion run(struct kvt_session *session, submit_fn submit,
                                 struct kvt_object *objects, size_t n)
{
        struct kvt_call call = paged_options(0, 0);
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

/* ---- bytes ---- */

START_TEST(what_one_engine_stored_loads_into_other_pages_of_another)
{
        struct paged_engine writer, reader;
        struct kvt_object stored[N_GROUPS], loaded[N_GROUPS];
        uint32_t from[N_GROUPS][SLOTS_MAX], to[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        writer = paged_open(fixture.socket);
        reader = paged_open(fixture.socket);
        paged_boundary(1, stored, from, 3, 5);
        paged_boundary(1, loaded, to, 1021, -2);
        paged_fill(&writer, stored, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&writer, 7, stored, N_GROUPS), KVT_OK);
        for (unsigned i = 0; i < N_GROUPS; i++)
                ck_assert_int_eq(stored[i].status, KVT_OK);

        ck_assert_int_eq(paged_load(&reader, 0, NULL, loaded, N_GROUPS).status, KVT_OK);
        paged_expect(&reader, loaded, N_GROUPS, 0);
        for (unsigned i = 0; i < N_GROUPS; i++) {
                ck_assert_uint_eq(loaded[i].bytes, paged_bytes(&loaded[i]));
                ck_assert_uint_ne(loaded[i].stored_ns, 0);
        }
        /* The pages between them are as they were. */
        ck_assert_uint_eq(*paged_byte(&reader, FULL, 1020, 0), UNTOUCHED);
        ck_assert_uint_eq(reader.index[1021 * IDX_STEP + IDX_ROW], UNTOUCHED);
        expect_nothing_leased();
        paged_close(&writer);
        paged_close(&reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(the_bytes_of_an_object_are_its_pages_in_order_un_padded)
{
        struct paged_engine engine;
        struct kvt_object stored[N_GROUPS];
        uint32_t slots[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        paged_boundary(1, stored, slots, 40, 1);
        paged_fill(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&engine, 0, stored, N_GROUPS), KVT_OK);
        ck_assert_int_eq(run(engine.session, kvt_acquire, stored, N_GROUPS).status, KVT_OK);
        for (unsigned i = 0; i < N_GROUPS; i++) {
                uint8_t *content = paged_content(&stored[i], 0);
                uint8_t *bytes = calloc(1, stored[i].bytes);

                ck_assert_ptr_nonnull(bytes);
                ck_assert_uint_eq(stored[i].bytes, paged_bytes(&stored[i]));
                ck_assert_int_eq(kvt_read(&stored[i], 0, bytes, stored[i].bytes), KVT_OK);
                ck_assert(!memcmp(bytes, content, stored[i].bytes));
                free(bytes);
                free(content);
        }
        ck_assert_int_eq(run(engine.session, kvt_release, stored, N_GROUPS).status, KVT_OK);
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(many_objects_in_one_call_are_moved_all)
{
        enum { N = 64 };
        static struct kvt_object stored[N], loaded[N];
        static uint32_t from[N][SLOTS_MAX], to[N][SLOTS_MAX];
        struct paged_engine writer, reader;

        daemon_fixture_init(&fixture, NULL);
        writer = paged_open(fixture.socket);
        reader = paged_open(fixture.socket);
        for (uint32_t i = 0; i < N; i++) {
                stored[i] = paged_object(i, FULL, from[i], i, N);
                loaded[i] = paged_object(i, FULL, to[i], (N - 1 - i) * SLOTS_MAX, 1);
        }
        paged_fill(&writer, stored, N, 0);
        ck_assert_int_eq(paged_store(&writer, 0, stored, N), KVT_OK);
        ck_assert_int_eq(paged_load(&reader, 0, NULL, loaded, N).status, KVT_OK);
        paged_expect(&reader, loaded, N, 0);
        paged_close(&writer);
        paged_close(&reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(pages_of_a_chunk_load_alone)
{
        static const uint32_t pages[] = {0, 3, 4, 5, 15};
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct paged_engine engine;
        struct kvt_object whole, part;
        uint32_t from[SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, &with_nvme);
        engine = paged_open(fixture.socket);
        whole = paged_object(1, FULL, from, 100, 1);
        paged_fill(&engine, &whole, 1, 0);
        ck_assert_int_eq(paged_store(&engine, 0, &whole, 1), KVT_OK);
        part = paged_object(1, FULL, to, 7, 3);
        part.pages = pages;
        part.n_pages = part.n_slots = sizeof(pages) / sizeof(pages[0]);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &part, 1).status, KVT_OK);
        paged_expect(&engine, &part, 1, 0);

        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        memset(engine.keys_and_values, 0, 2 * (uint64_t)N_PAGES * KV_ROW);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &part, 1).status, KVT_OK);
        paged_expect(&engine, &part, 1, 0);
        expect_nothing_leased();
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(what_is_below_arrives_and_is_copied_as_it_arrives)
{
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct paged_engine engine;
        struct kvt_object stored[N_GROUPS], loaded[N_GROUPS];
        uint32_t from[N_GROUPS][SLOTS_MAX], to[N_GROUPS][SLOTS_MAX];

        daemon_fixture_init(&fixture, &with_nvme);
        engine = paged_open(fixture.socket);
        paged_boundary(1, stored, from, 8, 1);
        paged_fill(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&engine, 0, stored, N_GROUPS), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        paged_boundary(1, loaded, to, 301, 2);
        ck_assert_int_eq(paged_load(&engine, KVT_CALL_RESIDENT, NULL, loaded, N_GROUPS).status,
                         KVT_BUSY);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, loaded, N_GROUPS).status, KVT_OK);
        paged_expect(&engine, loaded, N_GROUPS, 0);
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- what is not copied ---- */

static enum kvt_status load_status(struct paged_engine *engine, uint32_t flags,
                                   struct kvt_object objects[N_GROUPS])
{
        enum kvt_status status = paged_load(engine, flags, NULL, objects, N_GROUPS).status;

        for (unsigned i = 0; i < N_GROUPS; i++)
                ck_assert_int_eq(objects[i].status, status);
        return status;
}

START_TEST(what_is_stored_already_is_not_copied)
{
        struct paged_engine engine;
        struct kvt_object stored, again, loaded;
        uint32_t from[SLOTS_MAX], other[SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        stored = paged_object(1, WINDOW, from, 0, 1);
        paged_fill(&engine, &stored, 1, 0);
        ck_assert_int_eq(paged_store(&engine, 0, &stored, 1), KVT_OK);
        again = paged_object(1, WINDOW, other, 500, 1);
        paged_fill(&engine, &again, 1, 1);
        ck_assert_int_eq(paged_store(&engine, 0, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_ALREADY_HAVE);
        ck_assert_int_eq(paged_store(&engine, 5, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_ALREADY_HAVE);
        loaded = paged_object(1, WINDOW, to, 900, 1);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        paged_expect(&engine, &loaded, 1, 0);

        again.flags |= KVT_REPLACE;
        ck_assert_int_eq(paged_store(&engine, 0, &again, 1), KVT_OK);
        ck_assert_int_eq(again.status, KVT_OK);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        paged_expect(&engine, &loaded, 1, 1);
        expect_nothing_leased();
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_miss_leaves_all_pages_alone)
{
        struct paged_engine engine;
        struct kvt_object stored, loaded[2];
        struct kvt_completion completion;
        uint32_t from[SLOTS_MAX], to[2][SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        stored = paged_object(1, FULL, from, 0, 1);
        paged_fill(&engine, &stored, 1, 0);
        ck_assert_int_eq(paged_store(&engine, 0, &stored, 1), KVT_OK);
        loaded[0] = paged_object(1, FULL, to[0], 64, 1);
        loaded[1] = paged_object(2, FULL, to[1], 128, 1);
        completion = paged_load(&engine, 0, NULL, loaded, 2);
        ck_assert_int_eq(completion.status, KVT_MISS);
        ck_assert_int_eq(loaded[0].status, KVT_MISS);
        ck_assert_uint_eq(*paged_byte(&engine, FULL, 64, 0), UNTOUCHED);

        /* The leading run alone, when that is what the engine wants. */
        completion = paged_load(&engine, KVT_CALL_PARTIAL, NULL, loaded, 2);
        ck_assert_int_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(completion.n_granted, 1);
        paged_expect(&engine, loaded, 1, 0);
        ck_assert_int_eq(loaded[1].status, KVT_MISS);
        expect_nothing_leased();
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- sets ---- */

START_TEST(of_a_set_with_a_member_that_finds_no_room_nothing_is_stored)
{
        struct daemon_options small = {.piece_bytes = 8 * MIB, .n_pieces = 1};
        struct paged_engine engine;
        struct kvt_object set[4], loaded;
        uint32_t slots[4][SLOTS_MAX], to[SLOTS_MAX];

        daemon_fixture_init(&fixture, &small);
        engine = paged_open(fixture.socket);
        set[0] = paged_object(1, FULL, slots[0], 0, 1);
        for (uint32_t i = 1; i < 4; i++)
                set[i] = paged_object(i, STATE, slots[i], i, 1);
        paged_fill(&engine, set, 4, 0);
        ck_assert_int_eq(paged_store(&engine, 3, set, 4), KVT_BUSY);
        for (unsigned i = 0; i < 4; i++)
                ck_assert_int_eq(set[i].status, KVT_BUSY);
        expect_nothing_leased();
        loaded = paged_object(1, FULL, to, 100, 1);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &loaded, 1).status, KVT_MISS);

        /* Without the set, what found room is stored. */
        ck_assert_int_eq(paged_store(&engine, 0, set, 4), KVT_BUSY);
        ck_assert_int_eq(set[0].status, KVT_OK);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, &loaded, 1).status, KVT_OK);
        paged_expect(&engine, &loaded, 1, 0);
        expect_nothing_leased();
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- refusals ---- */

static enum kvt_status try_load(struct paged_engine *engine, struct kvt_page_map *map,
                                struct kvt_object *loaded)
{
        struct kvt_call call = paged_options(0, 0);
        enum kvt_status status = kvt_load_pages(engine->session, &call, map, NULL, loaded, 1, NULL);

        ck_assert_int_eq(kvt_store_pages(engine->session, &call, map, loaded, 1, NULL), status);
        return status;
}

START_TEST(slots_that_do_not_exist_or_do_not_fit_refuse_the_call)
{
        struct paged_engine engine, other;
        struct kvt_object loaded;
        uint32_t slots[SLOTS_MAX];

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        other = paged_open(fixture.socket);
        loaded = paged_object(1, FULL, slots, 0, 1);
        slots[3] = N_PAGES;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        slots[3] = 3;
        loaded.n_slots--;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        loaded.n_slots = 0;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        loaded = paged_object(1, FULL, slots, 0, 1);
        ck_assert_int_eq(try_load(&engine, other.map, &loaded), KVT_INVALID);
        ck_assert_int_eq(try_load(&engine, NULL, &loaded), KVT_INVALID);
        loaded.group = N_GROUPS;
        ck_assert_int_eq(try_load(&engine, engine.map, &loaded), KVT_INVALID);
        paged_close(&engine);
        paged_close(&other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_map_that_is_not_the_layout_is_refused_by_name)
{
        struct kvt_page_view view = {.page_stride = 4096, .row_bytes = 4096};
        struct kvt_page_group group = {.group = WINDOW, .n_views = 1, .n_pages = 4, .views = &view};
        struct kvt_page_map *map = NULL;
        struct paged_engine engine;
        char why[256] = "";

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        view.base = engine.window;
        ck_assert_int_eq(kvt_page_map_new(engine.session, &group, 1, &map, why, sizeof(why)),
                         KVT_INVALID);
        ck_assert_ptr_null(map);
        ck_assert_ptr_nonnull(strstr(why, "window"));
        ck_assert_ptr_nonnull(strstr(why, "4096"));
        ck_assert_ptr_nonnull(strstr(why, "8192"));
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_call_that_bypasses_the_cache_moves_nothing)
{
        struct kvt_call call = paged_options(KVT_CALL_BYPASS, 3);
        struct kvt_object stored[N_GROUPS];
        uint32_t slots[N_GROUPS][SLOTS_MAX];
        struct paged_engine engine;
        uint64_t id;

        daemon_fixture_init(&fixture, NULL);
        engine = paged_open(fixture.socket);
        paged_boundary(1, stored, slots, 0, 1);
        ck_assert_int_eq(kvt_store_pages(engine.session, &call, engine.map, stored, N_GROUPS, &id),
                         KVT_OK);
        ck_assert_int_eq(paged_wait(&engine, id).status, KVT_REFUSED);
        for (unsigned i = 0; i < N_GROUPS; i++)
                ck_assert_int_eq(stored[i].status, KVT_REFUSED);
        ck_assert_int_eq(paged_store(&engine, 0, stored, N_GROUPS), KVT_OK);
        memset(engine.memory, 0, engine.memory_bytes);
        ck_assert_int_eq(load_status(&engine, KVT_CALL_BYPASS, stored), KVT_MISS);
        ck_assert_uint_eq(*paged_byte(&engine, FULL, 0, 0), 0);
        ck_assert_int_eq(load_status(&engine, 0, stored), KVT_OK);
        ck_assert_uint_eq(*paged_byte(&engine, FULL, 0, 0), UNTOUCHED);
        expect_nothing_leased();
        paged_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(while_rows_of_other_processes_are_missing_nothing_is_moved)
{
        static const struct kvt_row known = {.page_bytes = 4096};
        static const struct kvt_group group = {.name = "kv",
                                               .kind = KVT_GROUP_ATTENTION,
                                               .shards = 2,
                                               .page_tokens = 16,
                                               .rows = &known,
                                               .n_rows = 1};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "partial",
                                    .chunk_tokens = 16,
                                    .groups = &group,
                                    .n_groups = 1};
        struct kvt_options how = {.size = sizeof(how),
                                  .socket = fixture.socket,
                                  .layout = &layout,
                                  .flags = KVT_OPEN_PARTIAL_LAYOUT,
                                  .connect_timeout_ns = FLOW_TIMEOUT_NS};
        static const uint32_t slot = 0;
        static uint8_t page[4096];
        struct kvt_page_view view = {.base = page, .row_bytes = sizeof(page)};
        struct kvt_page_group pages = {.n_pages = 1, .n_views = 1, .views = &view};
        struct paged_engine engine = {0};
        struct kvt_object objects[2] = {{.slots = &slot, .n_slots = 1, .boundary_tokens = 16},
                                        {.slots = &slot, .n_slots = 1, .boundary_tokens = 16}};

        daemon_fixture_init(&fixture, NULL);
        objects[1].digest.bytes[0] = 1;
        ck_assert_int_eq(kvt_open(&engine.session, &how, NULL, 0), KVT_PENDING);
        ck_assert_int_eq(kvt_page_map_new(engine.session, &pages, 1, &engine.map, NULL, 0), KVT_OK);
        for (unsigned round = 0; round < 4; round++) {
                bool is_store = round % 2;

                objects[0].status = objects[1].status = KVT_OK;
                if (is_store)
                        ck_assert_int_eq(paged_store(&engine, round / 2, objects, 2), KVT_PENDING);
                else
                        ck_assert_int_eq(paged_load(&engine, 0, NULL, objects, 2).status,
                                         KVT_PENDING);
                ck_assert_int_eq(objects[0].status, KVT_PENDING);
                ck_assert_int_eq(objects[1].status, KVT_PENDING);
        }
        kvt_close(engine.session);
        kvt_page_map_free(engine.map);
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
                a_call_that_bypasses_the_cache_moves_nothing,
                while_rows_of_other_processes_are_missing_nothing_is_moved,
                NULL,
        };

        return flow_run("pages", tests, 120);
}
