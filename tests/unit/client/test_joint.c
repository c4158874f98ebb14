// SPDX-License-Identifier: Apache-2.0
/*
 * The joint match: claims one by one, then random layouts with random holes against the
 * obvious answer. `test_joint N` tries N random cases.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "joint_world.h"

#define CHUNK 64u

static struct world world;
static uint32_t n_cases = 1000000;

/* Of the last group: @n_shards more shards, each with pages of @page_bytes. */
static void add_row(uint16_t first_shard, uint16_t n_shards, uint64_t page_bytes)
{
        struct layout_row row = {
                .first_shard = first_shard,
                .n_shards = n_shards,
                .page_bytes = page_bytes,
                .padded_bytes = page_bytes,
        };

        ck_assert_int_eq(layout_add_row(&world.layout, (uint16_t)(world.layout.n_groups - 1), &row),
                         0);
}

static struct layout_group *add_rowless(uint8_t kind, uint16_t n_shards)
{
        struct layout_group *group = &world.layout.groups[world.layout.n_groups++];

        *group = (struct layout_group){
                .kind = kind,
                .n_shards = n_shards,
                .page_tokens = kind == LAYOUT_STATE ? 0 : CHUNK / 4,
        };
        return group;
}

static struct layout_group *add_group(uint8_t kind, uint16_t n_shards, uint64_t page_bytes)
{
        struct layout_group *group = add_rowless(kind, n_shards);

        add_row(0, n_shards, page_bytes);
        return group;
}

static void begin_layout(void)
{
        memset(&world, 0, sizeof(world));
        world.layout.chunk_tokens = CHUNK;
}

/* @n boundaries of a layout with attention and a state. */
static void begin_hybrid(uint32_t n)
{
        begin_layout();
        add_group(LAYOUT_ATTENTION, 1, 100);
        add_group(LAYOUT_STATE, 1, 5000);
        world_init(&world, n);
}

static struct kvt_match match(uint32_t n)
{
        struct kvt_match_query query = {.n_digests = n};

        world_check(&world, query);
        return world_match(&world, &query);
}

START_TEST(windows_need_only_their_trailing_chunks)
{
        begin_layout();
        add_group(LAYOUT_ATTENTION, 1, 100);
        add_group(LAYOUT_WINDOW, 1, 10)->window_tokens = 2 * CHUNK;
        world_init(&world, 10);
        world_put_all(&world, 1, 10, true);
        world_drop(&world, 3, 1, 0);
        ck_assert_uint_eq(match(10).boundaries, 10);
        ck_assert_uint_eq(match(5).boundaries, 5);
        ck_assert_uint_eq(match(4).boundaries, 2);
        ck_assert_uint_eq(match(3).boundaries, 2);
        world_drop(&world, 9, 1, 0);
        ck_assert_uint_eq(match(10).boundaries, 8);
        world_deinit(&world);
}
END_TEST

START_TEST(a_window_that_ends_inside_a_chunk_needs_that_chunk)
{
        begin_layout();
        add_group(LAYOUT_WINDOW, 1, 10)->window_tokens = CHUNK + 1;
        world_init(&world, 10);
        world_put_all(&world, 4, 10, true);
        ck_assert_uint_eq(match(4).boundaries, 0);
        ck_assert_uint_eq(match(5).boundaries, 5);
        world_deinit(&world);

        begin_layout();
        add_group(LAYOUT_WINDOW, 1, 10)->window_tokens = CHUNK;
        world_init(&world, 10);
        world_put_all(&world, 4, 10, true);
        ck_assert_uint_eq(match(4).boundaries, 4);
        world_deinit(&world);
}
END_TEST

START_TEST(a_missing_shard_makes_a_boundary_unusable)
{
        begin_layout();
        add_group(LAYOUT_ATTENTION, 8, 100);
        add_group(LAYOUT_INDEX, 1, 10);
        world_init(&world, 10);
        world_put_all(&world, 1, 10, true);
        world_drop(&world, 7, 0, 5);
        ck_assert_uint_eq(match(10).boundaries, 6);
        world_drop(&world, 3, 1, 0);
        ck_assert_uint_eq(match(10).boundaries, 2);
        world_deinit(&world);
}
END_TEST

START_TEST(scratch_groups_are_ignored)
{
        begin_layout();
        add_group(LAYOUT_SCRATCH, 4, 1000);
        add_group(LAYOUT_COMPRESSED, 2, 100);
        add_group(LAYOUT_SCRATCH, 4, 1000);
        world_init(&world, 4);
        ck_assert_uint_eq(world.table.needs.n_cells, 2);
        world_put_all(&world, 1, 4, true);
        ck_assert_uint_eq(match(4).boundaries, 4);
        world_deinit(&world);
}
END_TEST

START_TEST(kv_up_to_4_and_a_state_only_at_2_give_2)
{
        struct kvt_boundary usable[4];
        struct kvt_match_query query = {.n_digests = 4, .usable = usable, .n_usable = 4};
        struct kvt_match found;

        begin_layout();
        add_group(LAYOUT_ATTENTION, 2, 100);
        add_group(LAYOUT_STATE, 2, 5000);
        world_init(&world, 4);
        world_put_all(&world, 1, 4, true);
        for (uint32_t b = 1; b <= 4; b++)
                for (uint16_t s = 0; b != 2 && s < 2; s++)
                        world_drop(&world, b, 1, s);
        world_put(&world, 3, 1, 0, true); /* one shard is none */
        found = world_match(&world, &query);
        ck_assert_uint_eq(found.boundaries, 2);
        ck_assert_uint_eq(found.kv_boundaries, 4);
        ck_assert_uint_eq(found.n_usable, 1);
        ck_assert_uint_eq(usable[0].boundaries, 2);
        ck_assert_uint_eq(usable[0].n_objects, 2 * 2 + 2);
        ck_assert_uint_eq(usable[0].bytes, 2 * 2 * 400 + 2 * 5000);
        ck_assert_uint_eq(usable[0].flags, KVT_BOUNDARY_RESIDENT);
        world_deinit(&world);
}
END_TEST

START_TEST(usable_boundaries_come_longest_first_and_the_longest_stay)
{
        struct kvt_boundary usable[3];
        struct kvt_match_query query = {.n_digests = 10, .usable = usable, .n_usable = 3};

        begin_layout();
        add_group(LAYOUT_ATTENTION, 1, 100);
        world_init(&world, 10);
        world_put_all(&world, 1, 8, true);
        ck_assert_uint_eq(world_match(&world, &query).n_usable, 3);
        for (uint32_t i = 0; i < 3; i++)
                ck_assert_uint_eq(usable[i].boundaries, 8 - i);
        query.n_digests = 2;
        ck_assert_uint_eq(world_match(&world, &query).n_usable, 2);
        ck_assert_uint_eq(usable[0].boundaries, 2);
        ck_assert_uint_eq(usable[1].boundaries, 1);
        world_deinit(&world);
}
END_TEST

START_TEST(bytes_below_slide_with_the_window)
{
        struct kvt_boundary usable[10];
        struct kvt_match_query query = {.n_digests = 10, .usable = usable, .n_usable = 10};
        static const uint64_t below[] = {40, 80, 40, 0, 0, 0, 40, 40, 0, 0};

        begin_layout();
        add_group(LAYOUT_WINDOW, 1, 10)->window_tokens = 2 * CHUNK;
        world_init(&world, 10);
        world_put_all(&world, 1, 10, true);
        world_put(&world, 1, 0, 0, false);
        world_put(&world, 2, 0, 0, false);
        world_put(&world, 7, 0, 0, false);
        ck_assert_uint_eq(world_match(&world, &query).n_usable, 10);
        for (uint32_t b = 1; b <= 10; b++) {
                ck_assert_uint_eq(usable[10 - b].bytes, b == 1 ? 40 : 80);
                ck_assert_uint_eq(usable[10 - b].bytes_below, below[b - 1]);
                ck_assert_uint_eq(usable[10 - b].flags,
                                  below[b - 1] ? KVT_BOUNDARY_BELOW : KVT_BOUNDARY_RESIDENT);
        }
        world_deinit(&world);
}
END_TEST

/* The sum of windows is above what a match remembers: the second one does without. */
START_TEST(bytes_below_of_very_long_windows_are_an_upper_bound)
{
        struct kvt_boundary usable;
        struct kvt_match_query query = {.n_digests = 700, .usable = &usable, .n_usable = 1};

        begin_layout();
        add_group(LAYOUT_WINDOW, 1, 10)->window_tokens = (KVT__HISTORY_MAX - 1) * CHUNK;
        add_group(LAYOUT_WINDOW, 1, 1)->window_tokens = 3 * CHUNK;
        world_init(&world, 700);
        world_put_all(&world, 1, 700, true);
        for (uint32_t b = 600; b <= 698; b++)
                world_put(&world, b, 1, 0, false);
        world_match(&world, &query);
        ck_assert_uint_eq(usable.bytes_below, 3 * 4); /* in truth 1 chunk */
        query.n_digests = 598;
        world_match(&world, &query);
        ck_assert_uint_eq(usable.bytes_below, 0);
        query.n_digests = 600;
        world_match(&world, &query);
        ck_assert_uint_eq(usable.bytes_below, 4);
        world_put_all(&world, 699, 700, true);
        world_put(&world, 698, 1, 0, true);
        world_put(&world, 697, 1, 0, true);
        query.n_digests = 700;
        world_match(&world, &query);
        ck_assert_uint_eq(usable.bytes_below, 0);
        world_deinit(&world);
}
END_TEST

START_TEST(variable_states_leave_the_bytes_unknown)
{
        struct kvt_boundary usable;
        struct kvt_match_query query = {.n_digests = 2, .usable = &usable, .n_usable = 1};

        begin_layout();
        add_group(LAYOUT_ATTENTION, 1, 100);
        add_group(LAYOUT_STATE, 1, 0);
        world_init(&world, 2);
        world_put_all(&world, 1, 2, true);
        world_match(&world, &query);
        ck_assert_uint_eq(usable.flags, KVT_BOUNDARY_RESIDENT | KVT_BOUNDARY_BYTES_UNKNOWN);
        ck_assert_uint_eq(usable.bytes, 800);
        world_deinit(&world);
}
END_TEST

START_TEST(rows_of_other_lengths_add_up)
{
        struct kvt_boundary usable;
        struct kvt_match_query query = {.n_digests = 3, .usable = &usable, .n_usable = 1};

        begin_layout();
        add_rowless(LAYOUT_ATTENTION, 4);
        add_row(0, 2, 10);
        add_row(2, 2, 1);
        world_init(&world, 3);
        world_put_all(&world, 1, 3, true);
        world_put(&world, 3, 0, 1, false);
        world_put(&world, 3, 0, 2, false);
        world_match(&world, &query);
        ck_assert_uint_eq(usable.bytes, 3 * 4 * (10 + 10 + 1 + 1));
        ck_assert_uint_eq(usable.bytes_below, 4 * (10 + 1));
        world_deinit(&world);
}
END_TEST

START_TEST(layouts_above_64_cells_look_into_all_banks)
{
        begin_layout();
        for (int i = 0; i < 10; i++)
                add_group(LAYOUT_ATTENTION, 8, 100);
        world_init(&world, 700);
        ck_assert_uint_eq(world.table.needs.n_banks, 2);
        world_put_all(&world, 1, 600, true);
        ck_assert_uint_eq(match(700).boundaries, 600);
        world_drop(&world, 555, 9, 7);
        ck_assert_uint_eq(match(700).boundaries, 554);
        world_put(&world, 333, 8, 3, false);
        ck_assert_uint_eq(match(700).resident_boundaries, 332);
        world_deinit(&world);
}
END_TEST

START_TEST(the_nearest_state_is_found_where_kv_is_gone)
{
        struct kvt_match_query query = {.n_digests = 700, .flags = KVT_MATCH_STATE};
        struct kvt_match found;

        begin_hybrid(700);
        world_put_all(&world, 1, 2, true);
        world_put(&world, 300, 1, 0, false);
        found = world_match(&world, &query);
        ck_assert_uint_eq(found.boundaries, 2);
        ck_assert_uint_eq(found.state_boundaries, 300);
        ck_assert_uint_eq(found.replay_tokens, 400 * CHUNK);
        query.max_tokens = 310 * CHUNK + 7;
        ck_assert_uint_eq(world_match(&world, &query).replay_tokens, 10 * CHUNK + 7);
        query.prompt_tokens = 300 * CHUNK; /* its last token must be computed */
        found = world_match(&world, &query);
        ck_assert_uint_eq(found.state_boundaries, 2);
        ck_assert_uint_eq(found.replay_tokens, 298 * CHUNK - 1);
        query.flags = 0;
        ck_assert_uint_eq(world_match(&world, &query).state_boundaries, 0);
        world_deinit(&world);
}
END_TEST

START_TEST(a_checkpoint_pays_where_prompts_branch_without_a_state)
{
        struct kvt_match_query query = {.n_digests = 10, .flags = KVT_MATCH_CHECKPOINT};

        begin_hybrid(10);
        for (uint32_t b = 1; b <= 6; b++)
                world_put(&world, b, 0, 0, true);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        world_set_flags(&world, 6, PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 6);
        query.n_digests = 6; /* this prompt adds nothing behind it */
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        query.n_digests = 10;
        query.flags = 0;
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        query.flags = KVT_MATCH_CHECKPOINT;
        world_put(&world, 6, 1, 0, false);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        world_deinit(&world);
}
END_TEST

START_TEST(a_branch_counts_when_its_kv_is_gone)
{
        struct kvt_match_query query = {.n_digests = 40, .flags = KVT_MATCH_CHECKPOINT};

        begin_hybrid(40);
        world_put(&world, 1, 0, 0, true);
        for (uint32_t b = 1; b <= 30; b++)
                world_set_flags(&world, b, PRESENCE_SEEN | PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(world_match(&world, &query).kv_boundaries, 1);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 30);
        /* It has a state already; or no prompt went on behind it. */
        world_put(&world, 30, 1, 0, true);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        world_set_flags(&world, 31, PRESENCE_SEEN);
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        query.n_digests = 20; /* the prompt adds nothing to what was seen */
        ck_assert_uint_eq(world_match(&world, &query).checkpoint_boundaries, 0);
        world_deinit(&world);
}
END_TEST

/* ---- random layouts and holes ---- */

static uint64_t random_state = UINT64_C(0x9e3779b97f4a7c15);

static uint32_t draw(uint32_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 32) * n >> 32);
}

static uint64_t draw_bits(void)
{
        draw(1);
        return random_state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Each bit is 0 with about 1 in 2^@rarity; never for 8 and more. */
static uint64_t draw_holes(uint32_t rarity)
{
        uint64_t zeros = draw_bits();

        if (rarity >= 8)
                return UINT64_MAX;
        for (uint32_t i = 1; i < rarity; i++)
                zeros &= draw_bits();
        return ~zeros;
}

/* Ranks of a pipeline hold other layers: other bytes a page. */
static void draw_rows(uint8_t kind, uint16_t n_shards)
{
        for (uint16_t first = 0, n; first < n_shards; first = (uint16_t)(first + n)) {
                n = (uint16_t)(n_shards - first);
                if (draw(2))
                        n = (uint16_t)(1 + draw(n));
                add_row(first, n, kind == LAYOUT_STATE && !draw(3) ? 0 : 1 + draw(1000));
        }
}

static void draw_layout(bool is_large)
{
        uint32_t n_groups = 1 + draw(is_large ? 12 : 4), n_cells = 0;

        begin_layout();
        for (uint32_t i = 0; i < n_groups || !n_cells; i++) {
                uint8_t kind = (uint8_t)(LAYOUT_ATTENTION + draw(6));
                uint16_t n_shards = (uint16_t)(draw(3) ? 1 + draw(is_large ? 24 : 3) : 1);
                struct layout_group *group = add_rowless(kind, n_shards);

                draw_rows(kind, n_shards);

                if (kind == LAYOUT_WINDOW)
                        group->window_tokens = 1 + draw(draw(2) ? 3 * CHUNK : 12 * CHUNK);
                if (kind != LAYOUT_SCRATCH)
                        n_cells += n_shards;
        }
}

/* Most chunks are there, most states are not; sometimes whole boundaries lack. */
static void draw_contents(uint32_t n)
{
        uint32_t hole = 1 + draw(9), away = 1 + draw(9), states = draw(4), flags = 1 + draw(4);

        for (uint32_t b = 0; b < n; b++) {
                bool lacks_states = states && draw(states + 1), is_gone = !draw(64);

                for (uint32_t bank = 0; bank < world.table.needs.n_banks; bank++) {
                        struct presence_entry *entry = world.entries[b][bank];
                        uint64_t present = is_gone ? 0 : draw_holes(hole);

                        for (uint32_t i = 0; lacks_states && i < world.table.needs.n_parts; i++)
                                if (world.table.needs.parts[i].is_state)
                                        present &= ~world.table.needs.parts[i].cells[bank];
                        entry->present = present;
                        entry->resident = present & draw_holes(away);
                }
                world_set_flags(&world, b + 1, draw(flags) ? draw(4) : 0);
        }
}

static void try_case(uint32_t most)
{
        struct kvt_match_query query = {
                .n_digests = draw(most + 1),
                .prompt_tokens = draw(2) ? draw((most + 2) * CHUNK) : 0,
                .max_tokens = draw(4) ? 0 : draw((most + 2) * CHUNK),
                .flags = draw(4),
                .n_usable = draw(3) ? draw(12) : WORLD_USABLE,
        };

        /* Lengths at and around the whole chunks are where mistakes live. */
        if (draw(2))
                query.prompt_tokens = query.n_digests * CHUNK + draw(3) - (query.n_digests > 0);
        draw_contents(query.n_digests);
        world_check(&world, query);
}

static void try_layout(bool is_large, uint32_t n_boundaries, uint32_t n)
{
        draw_layout(is_large);
        world_init(&world, n_boundaries);
        for (uint32_t i = 0; i < n; i++)
                try_case(draw(4) ? n_boundaries : n_boundaries / 2);
        world_deinit(&world);
}

START_TEST(random_layouts_with_random_holes_match_as_is_obvious)
{
        for (uint32_t i = 0; i < n_cases; i += 1000)
                try_layout(false, 2 + draw(draw(4) ? 12 : 40), 1000);
}
END_TEST

START_TEST(random_layouts_of_many_cells_match_as_is_obvious)
{
        for (uint32_t i = 0; i < n_cases / 30; i += 100)
                try_layout(true, 2 + draw(14), 100);
}
END_TEST

/* More boundaries than a block has, and the first block's end. */
START_TEST(random_long_prompts_match_as_is_obvious)
{
        for (uint32_t i = 0; i < n_cases / 10000; i++)
                try_layout(!draw(8), 20 + draw(draw(4) ? 60 : 400), 2);
}
END_TEST

static Suite *joint_suite(void)
{
        Suite *suite = suite_create("client/joint");
        TCase *claims = tcase_create("claims"), *random = tcase_create("random");

        tcase_add_test(claims, windows_need_only_their_trailing_chunks);
        tcase_add_test(claims, a_window_that_ends_inside_a_chunk_needs_that_chunk);
        tcase_add_test(claims, a_missing_shard_makes_a_boundary_unusable);
        tcase_add_test(claims, scratch_groups_are_ignored);
        tcase_add_test(claims, kv_up_to_4_and_a_state_only_at_2_give_2);
        tcase_add_test(claims, usable_boundaries_come_longest_first_and_the_longest_stay);
        tcase_add_test(claims, bytes_below_slide_with_the_window);
        tcase_add_test(claims, bytes_below_of_very_long_windows_are_an_upper_bound);
        tcase_add_test(claims, variable_states_leave_the_bytes_unknown);
        tcase_add_test(claims, rows_of_other_lengths_add_up);
        tcase_add_test(claims, layouts_above_64_cells_look_into_all_banks);
        tcase_add_test(claims, the_nearest_state_is_found_where_kv_is_gone);
        tcase_add_test(claims, a_checkpoint_pays_where_prompts_branch_without_a_state);
        tcase_add_test(claims, a_branch_counts_when_its_kv_is_gone);
        suite_add_tcase(suite, claims);
        tcase_set_timeout(random, 1500);
        tcase_add_test(random, random_layouts_with_random_holes_match_as_is_obvious);
        tcase_add_test(random, random_layouts_of_many_cells_match_as_is_obvious);
        tcase_add_test(random, random_long_prompts_match_as_is_obvious);
        suite_add_tcase(suite, random);
        return suite;
}

int main(int argc, char **argv)
{
        SRunner *runner;
        int failed;

        if (argc > 1)
                n_cases = (uint32_t)strtoul(argv[1], NULL, 10);
        runner = srunner_create(joint_suite());
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
