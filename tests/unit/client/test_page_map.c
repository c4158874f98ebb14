// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/layout.h"
#include "client/page_device.h"
#include "client/page_map.h"

enum { FULL, SPLIT, STATE, ANY_STATE, SCRATCH, N_GROUPS };

static uint8_t memory[64 * 1024];
static struct kvt__layout_encoding encoding;
static struct layout layout;

/* SPLIT: two shards that hold different layers, of which this process knows the first. */
static void set_up(void)
{
        static const struct kvt_row known = {.page_bytes = 500}, any_length = {.page_bytes = 0};
        static const struct kvt_group groups[N_GROUPS] = {
                {.name = "full", .kind = KVT_GROUP_ATTENTION, .page_tokens = 16, .page_bytes = 300},
                {.name = "split",
                 .kind = KVT_GROUP_ATTENTION,
                 .shards = 2,
                 .page_tokens = 16,
                 .rows = &known,
                 .n_rows = 1},
                {.name = "state", .kind = KVT_GROUP_STATE, .page_bytes = 777},
                {.name = "any", .kind = KVT_GROUP_STATE, .rows = &any_length, .n_rows = 1},
                {.name = "tail", .kind = KVT_GROUP_SCRATCH},
        };
        static const struct kvt_layout told = {.size = sizeof(told),
                                               .model = "pages",
                                               .chunk_tokens = 64,
                                               .groups = groups,
                                               .n_groups = N_GROUPS};
        struct why why = {""};

        ck_assert_msg(!kvt__layout_encode(&encoding, &told, true, &why), "%s", why.text);
        ck_assert(!layout_decode_partial(&layout, encoding.bytes, encoding.length, &why));
}

static struct kvt_page_view view(uint64_t at, uint64_t stride, uint64_t bytes)
{
        return (struct kvt_page_view){
                .base = memory + at, .page_stride = stride, .row_bytes = bytes};
}

static struct kvt_page_group group(uint16_t number, uint32_t n_views,
                                   const struct kvt_page_view *views)
{
        return (struct kvt_page_group){
                .group = number, .n_views = n_views, .n_pages = 8, .views = views};
}

/* Refused with @text in the reason. */
static void expect_refusal(const struct kvt_page_group *groups, uint32_t n, const char *text)
{
        struct kvt_page_map *map = NULL;
        struct why why = {""};

        ck_assert_int_eq(kvt__page_map_build(&map, &layout, groups, n, &why), -EINVAL);
        ck_assert_ptr_null(map);
        ck_assert_msg(strstr(why.text, text) != NULL, "'%s' is not in '%s'", text, why.text);
}

static struct kvt_page_map *build(const struct kvt_page_group *groups, uint32_t n)
{
        struct kvt_page_map *map = NULL;
        struct why why = {""};

        ck_assert_msg(!kvt__page_map_build(&map, &layout, groups, n, &why), "%s", why.text);
        return map;
}

START_TEST(a_map_finds_its_groups_and_no_others)
{
        struct kvt_page_view full = view(0, 300, 300), state = view(9000, 800, 777);
        struct kvt_page_group groups[] = {group(FULL, 1, &full), group(STATE, 1, &state)};
        struct kvt_page_map *map = build(groups, 2);

        ck_assert_uint_eq(kvt__page_map_find(map, FULL, 0)->page_bytes, 300);
        ck_assert_uint_eq(kvt__page_map_find(map, FULL, 0)->page_tokens, 16);
        ck_assert_uint_eq(kvt__page_map_find(map, STATE, 0)->page_bytes, 777);
        ck_assert_uint_eq(kvt__page_map_find(map, STATE, 0)->page_tokens, 0);
        ck_assert_ptr_null(kvt__page_map_find(map, SPLIT, 0));
        ck_assert_ptr_null(kvt__page_map_find(map, FULL, 1));
        kvt__page_map_unref(map);
}
END_TEST

START_TEST(rows_and_views_that_touch_become_one)
{
        struct kvt_page_view views[] = {view(0, 300, 50), view(200, 300, 100)};
        struct kvt_page_group full = group(FULL, 2, views);
        struct kvt_page_map *map;

        views[0].n_rows = 4;
        views[0].row_stride = 50;
        map = build(&full, 1);
        ck_assert_uint_eq(map->groups[0].n_views, 1);
        ck_assert_uint_eq(map->groups[0].views[0].n_rows, 1);
        ck_assert_uint_eq(map->groups[0].views[0].row_bytes, 300);
        kvt__page_map_unref(map);
}
END_TEST

START_TEST(views_that_touch_in_the_first_page_alone_stay_apart)
{
        struct kvt_page_view views[] = {view(0, 200, 200), view(200, 100, 100)};
        struct kvt_page_group full = group(FULL, 2, views);
        struct kvt_page_map *map = build(&full, 1);

        ck_assert_uint_eq(map->groups[0].n_views, 2);
        kvt__page_map_unref(map);

        /* The second begins where the first has its second page. */
        views[1] = view(200, 200, 100);
        map = build(&full, 1);
        ck_assert_uint_eq(map->groups[0].n_views, 2);
        kvt__page_map_unref(map);
}
END_TEST

START_TEST(a_state_of_any_length_takes_the_length_of_its_views)
{
        struct kvt_page_view state = view(0, 800, 123);
        struct kvt_page_group any = group(ANY_STATE, 1, &state);
        struct kvt_page_map *map = build(&any, 1);

        ck_assert_uint_eq(map->groups[0].page_bytes, 123);
        kvt__page_map_unref(map);
}
END_TEST

/* FULL with pages of so many bytes. */
static void use_codec(uint8_t codec, uint64_t page_bytes)
{
        layout.groups[FULL].codec = codec;
        layout.rows[layout.groups[FULL].first_row].page_bytes = page_bytes;
}

START_TEST(pages_with_a_codec_are_smaller_in_objects)
{
        struct kvt_page_view views[] = {view(0, 512, 512), view(8192, 1024, 256)};
        struct kvt_page_group full = group(FULL, 2, views);
        struct kvt_page_map *map;

        use_codec(CODEC_NONE, 768);
        map = build(&full, 1);
        ck_assert_uint_eq(map->groups[0].stored_bytes, 768);
        kvt__page_map_unref(map);
        use_codec(CODEC_FP8_TILE128, 768);
        map = build(&full, 1);
        ck_assert_uint_eq(map->groups[0].page_bytes, 768);
        ck_assert_uint_eq(map->groups[0].stored_bytes, 3 * 132 + 4);
        ck_assert_uint_eq(map->groups[0].codec, CODEC_FP8_TILE128);
        kvt__page_map_unref(map);
}
END_TEST

START_TEST(rows_that_cut_tiles_or_numbers_are_refused)
{
        struct kvt_page_view rows = view(0, 1024, 384), odd = view(1, 768, 768);
        struct kvt_page_group full = group(FULL, 1, &rows), off = group(FULL, 1, &odd);
        struct kvt_page_map *map;

        use_codec(CODEC_FP8_TILE128, 768);
        rows.n_rows = 2;
        rows.row_stride = 400;
        expect_refusal(&full, 1,
                       "group 0 (full), shard 0: codec fp8-tile128 needs rows (those that "
                       "touch count as one) of a multiple of 256 bytes");
        use_codec(CODEC_MXFP8, 768);
        map = build(&full, 1);
        kvt__page_map_unref(map);
        rows.row_stride = 401;
        expect_refusal(&full, 1, "must lie at even addresses");
        expect_refusal(&off, 1, "must lie at even addresses");
        odd = view(0, 769, 768);
        expect_refusal(&off, 1, "must lie at even addresses");
        use_codec(CODEC_FP8_TILE128, 768);
        rows.row_stride = 384;
        map = build(&full, 1); /* one row of three tiles */
        kvt__page_map_unref(map);
        use_codec(CODEC_MXFP8, 768);
        rows = view(0, 1024, 96);
        rows.n_rows = 8;
        rows.row_stride = 100;
        expect_refusal(&full, 1,
                       "codec mxfp8 needs rows (those that touch count as one) of a "
                       "multiple of 64 bytes");
}
END_TEST

/* All memory is its own. */
static int place(void *context, const void *base, uint64_t bytes, uint32_t *ret_place,
                 struct why *why)
{
        *ret_place = 0;
        return 1;
}

START_TEST(a_device_gets_no_codec_that_it_lacks)
{
        struct kvt__page_device device = {.place = place, .codecs = 1u << CODEC_MXFP8};
        struct kvt_page_view view_of_all = view(0, 768, 768);
        struct kvt_page_group full = group(FULL, 1, &view_of_all);
        struct kvt_page_map *map;
        struct why why = {""};

        use_codec(CODEC_FP8_TILE128, 768);
        map = build(&full, 1);
        ck_assert_int_eq(kvt__page_map_place(map, &layout, &device, &why), -EINVAL);
        ck_assert_str_eq(why.text, "group 0 (full), shard 0: it has a codec, by which the library "
                                   "of its GPU cannot convert");
        ck_assert_int_eq(kvt__page_map_place(map, &layout, NULL, &why), 0);
        device.codecs |= 1u << CODEC_FP8_TILE128;
        ck_assert_int_eq(kvt__page_map_place(map, &layout, &device, &why), 0);
        ck_assert_uint_eq(map->groups[0].place, 0);
        kvt__page_map_unref(map);
}
END_TEST

START_TEST(what_contradicts_the_layout_is_refused_by_name)
{
        struct kvt_page_view short_view = view(0, 300, 299), state = view(0, 800, 778);
        struct kvt_page_view right = view(0, 300, 300), split = view(0, 500, 500);
        struct kvt_page_group groups[2] = {group(FULL, 1, &short_view)};

        expect_refusal(groups, 1, "group 0 (full), shard 0: the views make up 299 bytes");
        groups[0] = group(STATE, 1, &state);
        expect_refusal(groups, 1, "(state), shard 0: the views make up 778");
        groups[0] = groups[1] = group(FULL, 1, &right);
        expect_refusal(groups, 2, "(full), shard 0: is named twice");
        groups[0] = group(SPLIT, 1, &split);
        groups[0].shard = 1;
        expect_refusal(groups, 1, "(split), shard 1: the layout of this session does not say");
        groups[0] = group(SCRATCH, 1, &right);
        expect_refusal(groups, 1, "(tail), shard 0: scratch");
        groups[0] = group(N_GROUPS, 1, &right);
        expect_refusal(groups, 1, "group 5 does not exist");
        expect_refusal(groups, 0, "1 to");
}
END_TEST

START_TEST(views_that_cannot_be_are_refused)
{
        struct kvt_page_view wrong = view(0, 300, 300);
        struct kvt_page_group full = group(FULL, 1, &wrong);

        wrong.base = NULL;
        expect_refusal(&full, 1, "no base");
        wrong = view(0, 300, 0);
        expect_refusal(&full, 1, "no row_bytes");
        wrong = view(0, 299, 300);
        expect_refusal(&full, 1, "pages overlap");
        wrong = view(0, 300, 150);
        wrong.n_rows = 2;
        wrong.row_stride = 149;
        expect_refusal(&full, 1, "rows overlap");
        wrong = view(0, UINT64_MAX / 2, 300);
        expect_refusal(&full, 1, "beyond the address space");
        wrong = view(0, UINT64_MAX, UINT64_MAX);
        full.n_pages = 1;
        expect_refusal(&full, 1, "full");
        wrong = view(0, 300, 300);
        full.n_pages = 0;
        expect_refusal(&full, 1, "n_pages");
        full.n_pages = 8;
        full.n_views = 0;
        expect_refusal(&full, 1, "no views");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/page_map");
        TCase *maps = tcase_create("page_map");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(maps, set_up, NULL);
        tcase_add_test(maps, a_map_finds_its_groups_and_no_others);
        tcase_add_test(maps, rows_and_views_that_touch_become_one);
        tcase_add_test(maps, views_that_touch_in_the_first_page_alone_stay_apart);
        tcase_add_test(maps, a_state_of_any_length_takes_the_length_of_its_views);
        tcase_add_test(maps, pages_with_a_codec_are_smaller_in_objects);
        tcase_add_test(maps, rows_that_cut_tiles_or_numbers_are_refused);
        tcase_add_test(maps, a_device_gets_no_codec_that_it_lacks);
        tcase_add_test(maps, what_contradicts_the_layout_is_refused_by_name);
        tcase_add_test(maps, views_that_cannot_be_are_refused);
        suite_add_tcase(suite, maps);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
