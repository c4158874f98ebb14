// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/page_copy.h"

#define MIB (UINT64_C(1) << 20)

/* Runs of a list, as many as there are. */
static uint32_t walk(const struct kvt__page_list *list, struct kvt__page_run *ret_runs,
                     uint32_t max)
{
        struct kvt__page_walk walk;
        struct kvt__page_run run;
        uint32_t n = 0;

        kvt__page_walk_init(&walk, list);
        while (kvt__page_walk_next(&walk, &run)) {
                ck_assert_uint_lt(n, max);
                ret_runs[n++] = run;
        }
        ck_assert(!kvt__page_walk_next(&walk, &run));
        return n;
}

static uint8_t pages[4 * MIB], arena[4 * MIB]; /* never touched but for their first bytes */

static struct kvt__page_view plain_view(uint64_t stride, uint64_t bytes)
{
        return (struct kvt__page_view){
                .base = pages, .page_stride = stride, .row_bytes = bytes, .n_rows = 1};
}

/* Pages of that view alone. */
static struct kvt__page_group group_of(struct kvt__page_view *view, uint64_t n_pages)
{
        return (struct kvt__page_group){
                .n_pages = n_pages, .page_bytes = view->row_bytes, .n_views = 1, .views = view};
}

static void expect_run(const struct kvt__page_run *run, const uint8_t *page, const uint8_t *object,
                       uint64_t bytes)
{
        ck_assert_ptr_eq(run->page, page);
        ck_assert_ptr_eq(run->arena, object);
        ck_assert_uint_eq(run->bytes, bytes);
}

/* ---- runs ---- */

START_TEST(neighbours_that_touch_make_one_run)
{
        static const uint32_t slots[] = {2, 3, 4, 7, 6, 7, 7};
        struct kvt__page_view view = plain_view(100, 100);
        struct kvt__page_group group = group_of(&view, 10);
        struct kvt_segment segment = {.address = arena, .bytes = 700};
        struct kvt__page_list list = {&group, slots, 7, &segment};
        struct kvt__page_run runs[8];

        ck_assert_uint_eq(walk(&list, runs, 8), 4);
        expect_run(&runs[0], pages + 200, arena, 300);
        expect_run(&runs[1], pages + 700, arena + 300, 100);
        expect_run(&runs[2], pages + 600, arena + 400, 200);
        expect_run(&runs[3], pages + 700, arena + 600, 100);
}
END_TEST

START_TEST(neighbours_with_padding_between_them_do_not)
{
        static const uint32_t slots[] = {2, 3};
        struct kvt__page_view view = plain_view(128, 100);
        struct kvt__page_group group = group_of(&view, 10);
        struct kvt_segment segment = {.address = arena, .bytes = 200};
        struct kvt__page_list list = {&group, slots, 2, &segment};
        struct kvt__page_run runs[2];

        ck_assert_uint_eq(walk(&list, runs, 2), 2);
        expect_run(&runs[0], pages + 256, arena, 100);
        expect_run(&runs[1], pages + 384, arena + 100, 100);
}
END_TEST

START_TEST(a_page_is_its_views_in_order_row_by_row)
{
        static const uint32_t slots[] = {1, 0};
        struct kvt__page_view views[] = {
                {.base = pages,
                 .page_stride = 16,
                 .row_bytes = 10,
                 .row_stride = 1000,
                 .n_rows = 2},
                {.base = pages + 4000, .page_stride = 7, .row_bytes = 7, .n_rows = 1},
        };
        struct kvt__page_group group = {
                .n_pages = 2, .page_bytes = 27, .n_views = 2, .views = views};
        struct kvt_segment segment = {.address = arena, .bytes = 54};
        struct kvt__page_list list = {&group, slots, 2, &segment};
        struct kvt__page_run runs[6];

        ck_assert_uint_eq(walk(&list, runs, 6), 6);
        expect_run(&runs[0], pages + 16, arena, 10);
        expect_run(&runs[1], pages + 1016, arena + 10, 10);
        expect_run(&runs[2], pages + 4007, arena + 20, 7);
        expect_run(&runs[3], pages, arena + 27, 10);
        expect_run(&runs[4], pages + 1000, arena + 37, 10);
        expect_run(&runs[5], pages + 4000, arena + 47, 7);
}
END_TEST

START_TEST(runs_end_where_segments_end)
{
        static const uint32_t slots[] = {0, 1};
        struct kvt__page_view view = plain_view(100, 100);
        struct kvt__page_group group = group_of(&view, 2);
        struct kvt_segment segments[] = {{.address = arena, .bytes = 30},
                                         {.address = arena + 1000, .bytes = 70},
                                         {.address = arena + 2000, .bytes = 100}};
        struct kvt__page_list list = {&group, slots, 2, segments};
        struct kvt__page_run runs[3];

        ck_assert_uint_eq(walk(&list, runs, 3), 3);
        expect_run(&runs[0], pages, arena, 30);
        expect_run(&runs[1], pages + 30, arena + 1000, 70);
        expect_run(&runs[2], pages + 100, arena + 2000, 100);
}
END_TEST

START_TEST(long_pages_are_cut_so_that_a_copy_can_stop)
{
        static const uint32_t slot = 0;
        struct kvt__page_view view = plain_view(3 * MIB + 1, 3 * MIB + 1);
        struct kvt__page_group group = group_of(&view, 1);
        struct kvt_segment segment = {.address = arena, .bytes = 3 * MIB + 1};
        struct kvt__page_list list = {&group, &slot, 1, &segment};
        struct kvt__page_run runs[4];

        ck_assert_uint_eq(walk(&list, runs, 4), 4);
        for (unsigned i = 0; i < 3; i++)
                expect_run(&runs[i], pages + i * MIB, arena + i * MIB, MIB);
        expect_run(&runs[3], pages + 3 * MIB, arena + 3 * MIB, 1);
}
END_TEST

START_TEST(a_copy_that_is_told_to_stop_says_so)
{
        static const uint32_t slot = 0;
        struct kvt__page_view view = plain_view(100, 100);
        struct kvt__page_group group = group_of(&view, 1);
        struct kvt_segment segment = {.address = arena, .bytes = 100};
        struct kvt__page_list list = {&group, &slot, 1, &segment};
        atomic_bool stop = true;

        memset(pages, 7, 100);
        ck_assert(!kvt__page_copy(&list, true, &stop));
        ck_assert_uint_eq(arena[0], 0);
        stop = false;
        ck_assert(kvt__page_copy(&list, true, &stop));
        ck_assert(!memcmp(arena, pages, 100));
}
END_TEST

/* ---- random lists against a reference that moves byte by byte ---- */

#define VIEWS_MAX    4u
#define SLOTS_MAX    6u
#define SEGMENTS_MAX 64u
#define TENSOR       (256u * 1024u) /* room of each view */
#define OBJECT       (SLOTS_MAX * VIEWS_MAX * 3u * 3000u)

static uint64_t seed = 88172645463325252;

static uint32_t below(uint32_t limit)
{
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return (uint32_t)(seed >> 32) % limit;
}

struct world {
        struct kvt__page_view views[VIEWS_MAX];
        struct kvt__page_group group;
        uint32_t slots[SLOTS_MAX];
        struct kvt_segment segments[SEGMENTS_MAX];
        struct kvt__page_list list;
        uint8_t *tensors, *expected_tensors; /* VIEWS_MAX * TENSOR */
        uint8_t *object, *expected_object;   /* 2 * OBJECT: segments with gaps */
};

static void choose_views(struct world *world)
{
        world->group = (struct kvt__page_group){
                .n_pages = 1 + below(8), .n_views = 1 + below(VIEWS_MAX), .views = world->views};
        for (uint32_t i = 0; i < world->group.n_views; i++) {
                struct kvt__page_view *view = &world->views[i];

                view->row_bytes = 1 + below(below(2) ? 3000 : 40);
                view->n_rows = 1 + below(3);
                view->base = world->tensors + i * TENSOR + below(64);
                if (below(2)) { /* rows of a page together */
                        view->row_stride = view->row_bytes + below(2) * below(100);
                        view->page_stride = view->n_rows == 1 && below(2)
                                                    ? view->row_bytes
                                                    : view->n_rows * view->row_stride + below(100);
                } else { /* first rows of all pages, then second rows */
                        view->page_stride = view->row_bytes + below(2) * below(100);
                        view->row_stride = world->group.n_pages * view->page_stride;
                }
                world->group.page_bytes += view->n_rows * view->row_bytes;
        }
        world->group.stored_bytes = world->group.page_bytes;
}

/* Different slots, with runs of neighbours in them; segments cut anywhere. */
static void choose_list(struct world *world)
{
        uint32_t n = 1 + below(world->group.n_pages < SLOTS_MAX ? (uint32_t)world->group.n_pages
                                                                : SLOTS_MAX);
        uint32_t first = below((uint32_t)world->group.n_pages);
        uint64_t left = n * world->group.stored_bytes, at = 0;
        uint32_t n_segments = 0;

        for (uint32_t i = 0; i < n; i++)
                world->slots[i] = (first + i) % world->group.n_pages;
        if (below(2) && n > 1) {
                uint32_t swap = world->slots[0];

                world->slots[0] = world->slots[n - 1];
                world->slots[n - 1] = swap;
        }
        while (left) {
                uint64_t bytes = n_segments + 1 < SEGMENTS_MAX ? 1 + below((uint32_t)left) : left;

                at += below(50);
                world->segments[n_segments++] =
                        (struct kvt_segment){.address = world->object + at, .bytes = bytes};
                at += bytes;
                left -= bytes;
        }
        ck_assert_uint_le(at, 2 * OBJECT);
        world->list = (struct kvt__page_list){&world->group, world->slots, n, world->segments};
}

/* The place of byte @at of the object, in its segments. */
static uint64_t place_in_object(const struct world *world, uint64_t at)
{
        const struct kvt_segment *segment = world->segments;

        for (; at >= segment->bytes; segment++)
                at -= segment->bytes;
        return (uint64_t)((uint8_t *)segment->address - world->object) + at;
}

/* Byte by byte, by what kvtier.h says a view is. */
static void move_obviously(struct world *world, bool is_store)
{
        uint64_t at = 0;

        for (uint32_t i = 0; i < world->list.n_slots; i++)
                for (uint32_t v = 0; v < world->group.n_views; v++)
                        for (uint32_t r = 0; r < world->views[v].n_rows; r++)
                                for (uint64_t b = 0; b < world->views[v].row_bytes; b++, at++) {
                                        const struct kvt__page_view *view = &world->views[v];
                                        uint8_t *byte = view->base +
                                                        world->slots[i] * view->page_stride +
                                                        r * view->row_stride + b;
                                        uint64_t tensor = (uint64_t)(byte - world->tensors);
                                        uint64_t place = place_in_object(world, at);

                                        if (is_store)
                                                world->expected_object[place] = *byte;
                                        else
                                                world->expected_tensors[tensor] =
                                                        world->object[place];
                                }
}

static void scramble(uint8_t *bytes, uint8_t *copy, size_t n)
{
        for (size_t i = 0; i < n; i += 8) {
                below(2);
                memcpy(bytes + i, &seed, 8);
        }
        memcpy(copy, bytes, n);
}

static void make_world(struct world *world)
{
        world->tensors = malloc(VIEWS_MAX * TENSOR);
        world->expected_tensors = malloc(VIEWS_MAX * TENSOR);
        world->object = malloc(2 * OBJECT);
        world->expected_object = malloc(2 * OBJECT);
        ck_assert(world->tensors && world->expected_tensors && world->object &&
                  world->expected_object);
}

static void free_world(struct world *world)
{
        free(world->tensors);
        free(world->expected_tensors);
        free(world->object);
        free(world->expected_object);
}

static void expect_world(const struct world *world, unsigned round)
{
        ck_assert_msg(!memcmp(world->tensors, world->expected_tensors, VIEWS_MAX * TENSOR),
                      "round %u: tensors", round);
        ck_assert_msg(!memcmp(world->object, world->expected_object, 2 * OBJECT),
                      "round %u: object", round);
}

/* ---- groups with a codec ---- */

/* Rows of whole tiles, at even places. */
static void choose_tiles(struct world *world, uint8_t codec)
{
        uint64_t tile = codec_tile_bytes(codec);

        world->group.codec = codec;
        world->group.page_bytes = 0;
        for (uint32_t i = 0; i < world->group.n_views; i++) {
                struct kvt__page_view *view = &world->views[i];

                /* Now and then more than what is converted at a time. */
                view->row_bytes = tile * (1 + below(below(4) ? 4 : 9000 / (uint32_t)tile));
                view->row_stride = view->row_bytes + 2 * below(50);
                view->page_stride = view->n_rows * view->row_stride + 2 * below(50);
                view->base = world->tensors + i * TENSOR + 2 * below(32);
                world->group.page_bytes += view->n_rows * view->row_bytes;
        }
        world->group.stored_bytes = codec_stored_bytes(codec, world->group.page_bytes);
}

/* The bf16 numbers of a page together, as kvtier.h orders them. */
static void move_page(const struct world *world, uint32_t slot, uint8_t *numbers, bool is_store,
                      uint8_t *tensors)
{
        for (uint32_t v = 0; v < world->group.n_views; v++)
                for (uint32_t r = 0; r < world->views[v].n_rows; r++) {
                        const struct kvt__page_view *view = &world->views[v];
                        uint8_t *row = tensors + (view->base - world->tensors) +
                                       slot * view->page_stride + r * view->row_stride;

                        memcpy(is_store ? numbers : row, is_store ? row : numbers, view->row_bytes);
                        numbers += view->row_bytes;
                }
}

/* Page by page: codes, scales, padding. */
static void convert_obviously(struct world *world, bool is_store)
{
        uint8_t codec = world->group.codec;
        uint64_t n = world->group.page_bytes / codec_tile_bytes(codec), at = 0;
        uint8_t *numbers = malloc(world->group.page_bytes);
        uint8_t *page = calloc(1, world->group.stored_bytes);

        ck_assert(numbers && page);
        for (uint32_t i = 0; i < world->list.n_slots; i++) {
                if (is_store) {
                        move_page(world, world->slots[i], numbers, true, world->tensors);
                        codec_encode(codec, numbers, n, page, page + n * codec_tile_numbers(codec));
                }
                for (uint64_t b = 0; b < world->group.stored_bytes; b++, at++) {
                        uint64_t place = place_in_object(world, at);

                        if (is_store)
                                world->expected_object[place] = page[b];
                        else
                                page[b] = world->object[place];
                }
                if (!is_store) {
                        codec_decode(codec, page, page + n * codec_tile_numbers(codec), n, numbers);
                        move_page(world, world->slots[i], numbers, false, world->expected_tensors);
                }
        }
        free(numbers);
        free(page);
}

/* ---- against the reference ---- */

static void compare(unsigned rounds, bool has_codec)
{
        static struct world world;
        atomic_bool stop = false;

        make_world(&world);
        for (unsigned round = 0; round < rounds; round++) {
                bool is_store = round % 2;

                scramble(world.tensors, world.expected_tensors, VIEWS_MAX * TENSOR);
                scramble(world.object, world.expected_object, 2 * OBJECT);
                choose_views(&world);
                if (has_codec)
                        choose_tiles(&world, round % 3 ? CODEC_FP8_TILE128 : CODEC_MXFP8);
                choose_list(&world);
                (has_codec ? convert_obviously : move_obviously)(&world, is_store);
                ck_assert(kvt__page_copy(&world.list, is_store, &stop));
                expect_world(&world, round);
        }
        free_world(&world);
}

START_TEST(random_lists_are_copied_like_the_reference_and_nothing_else_is)
{
        compare(400, false);
}
END_TEST

START_TEST(random_lists_are_encoded_and_decoded_like_the_reference)
{
        compare(300, true);
}
END_TEST

START_TEST(a_conversion_that_is_told_to_stop_says_so)
{
        static const uint32_t slot = 0;
        struct kvt__page_view view = plain_view(256, 256);
        struct kvt__page_group group = group_of(&view, 1);
        struct kvt_segment segment = {.address = arena, .bytes = 144};
        struct kvt__page_list list = {&group, &slot, 1, &segment};
        atomic_bool stop = true;

        group.codec = CODEC_FP8_TILE128;
        group.stored_bytes = 144;
        memset(pages, 0x3f, 256);
        ck_assert(!kvt__page_copy(&list, true, &stop));
        ck_assert_uint_eq(arena[0], 0);
        stop = false;
        ck_assert(kvt__page_copy(&list, true, &stop));
        ck_assert_uint_eq(arena[0], 0x7e);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/page_copy");
        TCase *runs = tcase_create("page_copy");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(runs, 60);
        tcase_add_test(runs, neighbours_that_touch_make_one_run);
        tcase_add_test(runs, neighbours_with_padding_between_them_do_not);
        tcase_add_test(runs, a_page_is_its_views_in_order_row_by_row);
        tcase_add_test(runs, runs_end_where_segments_end);
        tcase_add_test(runs, long_pages_are_cut_so_that_a_copy_can_stop);
        tcase_add_test(runs, a_copy_that_is_told_to_stop_says_so);
        tcase_add_test(runs, random_lists_are_copied_like_the_reference_and_nothing_else_is);
        tcase_add_test(runs, random_lists_are_encoded_and_decoded_like_the_reference);
        tcase_add_test(runs, a_conversion_that_is_told_to_stop_says_so);
        suite_add_tcase(suite, runs);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
