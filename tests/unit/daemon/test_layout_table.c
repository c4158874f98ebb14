// SPDX-License-Identifier: Apache-2.0
/* What the table knows of a layout, and what the keeper has the tier below keep. */
#include <check.h>
#include <string.h>

#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})

static uint8_t encoding[LAYOUT_BYTES_MAX];
static size_t length;
static bool is_out_of_memory;

/* Linked in the place of malloc(). */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
        return is_out_of_memory ? NULL : __real_malloc(size);
}

/* A valid layout of about @bytes; @draft_tokens makes it another. */
static struct digest encode(uint32_t draft_tokens, uint16_t bytes)
{
        static char text[LAYOUT_STRING_MAX];
        struct layout layout = {
                .model = TEXT("org/model"),
                .draft_tokens = draft_tokens,
                .chunk_tokens = 32,
                .tp = 1,
                .pp = 1,
                .cp = 1,
                .n_groups = 3,
                .groups[0] = {.name = TEXT("full"),
                              .kind = LAYOUT_ATTENTION,
                              .n_shards = 1,
                              .page_tokens = 16,
                              .n_rows = 1},
                .groups[1] = {.name = TEXT("scratch"),
                              .kind = LAYOUT_SCRATCH,
                              .n_shards = 1,
                              .first_row = 1,
                              .n_rows = 1},
                .groups[2] = {.name = TEXT("state"),
                              .kind = LAYOUT_STATE,
                              .n_shards = 1,
                              .first_row = 2,
                              .n_rows = 1},
                .n_rows = 3,
                .rows = {{.n_shards = 1, .page_bytes = 64, .padded_bytes = 64},
                         {.n_shards = 1},
                         {.n_shards = 1}},
        };
        struct digest id;
        int r;

        memset(text, 'x', sizeof(text));
        layout.engine_build = (struct layout_string){text, bytes};
        r = layout_encode(&layout, encoding, sizeof(encoding));
        ck_assert_int_gt(r, 0);
        length = (size_t)r;
        ck_assert_int_eq(layout_id(&id, encoding, length), 0);
        return id;
}

static uint16_t number_of(struct layout_table *table, const struct digest *id)
{
        uint16_t number;

        ck_assert_int_eq(layout_table_number(table, 0, id, 1, &number), 0);
        return number;
}

START_TEST(a_described_layout_tells_its_states)
{
        struct layout_table table;
        struct layout_entry *entry;
        struct digest id = encode(0, 0);
        uint16_t number;

        ck_assert_int_eq(layout_table_init(&table, 5), 0);
        number = number_of(&table, &id);
        entry = layout_table_at(&table, number);
        ck_assert(!entry->is_known && !entry->encoding);
        ck_assert_int_eq(layout_table_describe(&table, number, encoding, length), 0);
        ck_assert(entry->is_known);
        ck_assert_uint_eq(entry->state_groups, 1u << 2);
        ck_assert_uint_eq(entry->group_kinds[0], LAYOUT_ATTENTION);
        ck_assert_uint_eq(entry->group_kinds[2], LAYOUT_STATE);
        ck_assert_uint_eq(entry->group_kinds[3], 0);
        ck_assert_uint_eq(entry->number_bytes[0], 1);
        ck_assert_uint_eq(entry->kv_tokens, 32);
        ck_assert_uint_eq(entry->encoding_bytes, length);
        ck_assert_mem_eq(entry->encoding, encoding, length);
        ck_assert_int_eq(layout_table_describe(&table, number, encoding, length), 0);
        ck_assert_uint_eq(table.encodings_bytes, length);
        layout_table_deinit(&table);
}
END_TEST

START_TEST(an_encoding_of_another_layout_is_refused)
{
        struct layout_table table;
        struct digest id = encode(0, 0);
        uint16_t number;

        ck_assert_int_eq(layout_table_init(&table, 5), 0);
        number = number_of(&table, &id);
        encode(1, 0);
        ck_assert_int_eq(layout_table_describe(&table, number, encoding, length), -EINVAL);
        ck_assert_int_eq(layout_table_describe(&table, number, encoding, length - 1), -EINVAL);
        ck_assert(!layout_table_at(&table, number)->is_known);
        layout_table_deinit(&table);
}
END_TEST

START_TEST(layouts_without_objects_make_way_and_keep_what_placement_needs)
{
        struct layout_table table;
        struct digest id = encode(0, 1000);
        uint32_t n = (uint32_t)(LAYOUT_TABLE_ENCODINGS_MAX / length) + 10;
        uint16_t first = 0, number = 0;

        ck_assert_int_eq(layout_table_init(&table, 5), 0);
        for (uint32_t i = 0; i < n && i < LAYOUT_TABLE_MAX; i++) {
                id = encode(i, 1000);
                number = number_of(&table, &id);
                if (!first)
                        first = number;
                /* The second one is in use. */
                layout_table_at(&table, number)->objects = i == 1;
                ck_assert_int_eq(layout_table_describe(&table, number, encoding, length), 0);
                ck_assert_uint_le(table.encodings_bytes, LAYOUT_TABLE_ENCODINGS_MAX);
        }
        ck_assert_ptr_null(layout_table_at(&table, first)->encoding);
        ck_assert(layout_table_at(&table, first)->is_known);
        ck_assert_uint_eq(layout_table_at(&table, first)->state_groups, 1u << 2);
        ck_assert_ptr_nonnull(layout_table_at(&table, (uint16_t)(first + 1))->encoding);
        ck_assert_ptr_nonnull(layout_table_at(&table, number)->encoding);
        layout_table_deinit(&table);
}
END_TEST

/* ---- a tier that keeps two layouts ---- */

static struct tier tier;
static struct digest kept[2];
static unsigned n_kept;

static int keep(struct tier *of, const struct tier_layout *layout)
{
        (void)of;
        if (n_kept == 2)
                return TIER_E_FULL;
        kept[n_kept++] = layout->id;
        return 0;
}

static void forget(struct tier *of, const struct tier_layout *layout)
{
        (void)of;
        ck_assert_uint_ge(n_kept, 1);
        if (digest_equal(&kept[0], &layout->id))
                kept[0] = kept[1];
        else
                ck_assert(digest_equal(&kept[1], &layout->id));
        n_kept--;
}

static uint16_t enter(struct cache *cache, uint32_t draft_tokens, uint64_t objects)
{
        struct digest id = encode(draft_tokens, 0);
        uint16_t number;

        ck_assert_int_eq(index_layout(cache->index, 0, &id, &number), 0);
        ck_assert_int_eq(index_describe_layout(cache->index, number, encoding, length), 0);
        index_layout_at(cache->index, number)->objects = objects;
        return number;
}

static void begin(struct cache *cache)
{
        static const struct tier_ops ops = {.keep_layout = keep, .forget_layout = forget};

        n_kept = 0;
        memset(cache, 0, sizeof(*cache));
        tier_init(&tier, &ops);
        cache->nvme = &tier;
        ck_assert_int_eq(index_new(&cache->index, 100, NULL), 0);
}

START_TEST(a_layout_is_kept_once_and_unused_ones_make_way)
{
        struct cache cache;
        uint16_t used, unused, next, last;

        begin(&cache);
        unused = enter(&cache, 1, 0);
        used = enter(&cache, 2, 1);
        next = enter(&cache, 3, 1);
        last = enter(&cache, 4, 1);
        layout_keeper_keep(&cache, INDEX_NVME, unused);
        layout_keeper_keep(&cache, INDEX_NVME, unused);
        ck_assert_uint_eq(n_kept, 1);
        layout_keeper_keep(&cache, INDEX_NVME, used);
        layout_keeper_keep(&cache, INDEX_NVME, next);
        ck_assert_uint_eq(n_kept, 2);
        ck_assert(digest_equal(&kept[1], index_layout_id(cache.index, next)));
        ck_assert_uint_eq(index_layout_at(cache.index, unused)->kept_bytes, 0);
        /* All in use: it is not kept, and nothing else goes. */
        layout_keeper_keep(&cache, INDEX_NVME, last);
        ck_assert_uint_eq(n_kept, 2);
        ck_assert_uint_eq(index_layout_at(cache.index, last)->kept_bytes, 0);
        index_free(cache.index);
}
END_TEST

START_TEST(what_came_back_is_known_and_goes_when_nothing_needs_it)
{
        struct cache cache;
        struct tier_layout layout = {.encoding = encoding};
        uint16_t number;

        begin(&cache);
        layout.id = encode(1, 0);
        layout.length = (uint32_t)length;
        ck_assert_int_eq(keep(&tier, &layout), 0);
        layout_keeper_on_layout(&cache, &layout);
        ck_assert_int_eq(index_layout(cache.index, 0, &layout.id, &number), 0);
        ck_assert_uint_eq(index_layout_at(cache.index, number)->state_groups, 1u << 2);
        layout_keeper_keep(&cache, INDEX_NVME, number);
        ck_assert_uint_eq(n_kept, 1);
        layout_keeper_forget_unused(&cache);
        ck_assert_uint_eq(n_kept, 0);
        /* An encoding that this daemon does not understand. */
        layout.id = encode(2, 0);
        ck_assert_int_eq(keep(&tier, &layout), 0);
        encoding[0] ^= 1;
        layout_keeper_on_layout(&cache, &layout);
        ck_assert_uint_eq(n_kept, 0);
        index_free(cache.index);
}
END_TEST

START_TEST(what_finds_no_memory_is_kept_for_the_next_start)
{
        struct cache cache;
        struct tier_layout layout = {.encoding = encoding};
        uint16_t number;

        begin(&cache);
        layout.id = encode(1, 0);
        layout.length = (uint32_t)length;
        ck_assert_int_eq(keep(&tier, &layout), 0);
        is_out_of_memory = true;
        layout_keeper_on_layout(&cache, &layout);
        is_out_of_memory = false;
        ck_assert_int_eq(index_layout(cache.index, 0, &layout.id, &number), 0);
        ck_assert_ptr_null(index_layout_at(cache.index, number)->encoding);
        ck_assert_uint_eq(n_kept, 1);
        /* An engine tells what it means: it need not be kept again. */
        ck_assert_int_eq(index_describe_layout(cache.index, number, encoding, length), 0);
        layout_keeper_keep(&cache, INDEX_NVME, number);
        ck_assert_uint_eq(n_kept, 1);
        layout_keeper_forget_unused(&cache);
        ck_assert_uint_eq(n_kept, 0);
        index_free(cache.index);
}
END_TEST

START_TEST(layouts_without_a_number_are_kept_for_the_next_start)
{
        struct cache cache;
        struct tier_layout layout = {.encoding = encoding};
        struct digest id = {{0}};
        uint16_t number;

        begin(&cache);
        for (uint32_t i = 1; i <= LAYOUT_TABLE_MAX; i++) {
                memcpy(id.bytes, &i, sizeof(i));
                ck_assert_int_eq(index_layout(cache.index, 0, &id, &number), 0);
        }
        layout.id = encode(1, 0);
        layout.length = (uint32_t)length;
        ck_assert_int_eq(keep(&tier, &layout), 0);
        layout_keeper_on_layout(&cache, &layout);
        ck_assert_uint_eq(n_kept, 1);
        index_free(cache.index);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("layout_table");
        TCase *tcase = tcase_create("layout_table");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 50);
        tcase_add_test(tcase, a_described_layout_tells_its_states);
        tcase_add_test(tcase, an_encoding_of_another_layout_is_refused);
        tcase_add_test(tcase, layouts_without_objects_make_way_and_keep_what_placement_needs);
        tcase_add_test(tcase, a_layout_is_kept_once_and_unused_ones_make_way);
        tcase_add_test(tcase, what_came_back_is_known_and_goes_when_nothing_needs_it);
        tcase_add_test(tcase, what_finds_no_memory_is_kept_for_the_next_start);
        tcase_add_test(tcase, layouts_without_a_number_are_kept_for_the_next_start);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
