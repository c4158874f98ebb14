// SPDX-License-Identifier: Apache-2.0
/* Engines of two ranks, rank 0 with shard 0 and rank 1 with shard 1, and what can go wrong. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/layout_assembly.h"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})

static const uint8_t engine[16] = {1}, other_engine[16] = {2};
static struct layout_assembly_list assemblies;
static struct layout_member members[4];
static struct layout asked;
static struct layout_limits limits;
static struct layout_refusal refusal;
static struct why why;
static char long_tensor[LAYOUT_STRING_MAX];

static void setup(void)
{
        memset(members, 0, sizeof(members));
        LIST_INIT(&assemblies);
        limits = (struct layout_limits){.chunk_tokens = 100, .object_bytes = 1 << 20};
        why.text[0] = '\0';
}

static void teardown(void)
{
        for (size_t i = 0; i < 4; i++)
                layout_assembly_leave(&members[i]);
        ck_assert(LIST_EMPTY(&assemblies));
}

/* What a process says that knows the rows of the shards in @shards (bits). */
static void ask(unsigned shards, uint64_t page_bytes)
{
        memset(&asked, 0, sizeof(asked));
        asked.model = TEXT("model");
        asked.tp = 2;
        asked.pp = asked.cp = 1;
        asked.n_groups = 1;
        asked.groups[0] = (struct layout_group){
                .name = TEXT("kv"), .kind = LAYOUT_ATTENTION, .n_shards = 2, .page_tokens = 16};
        asked.is_partial = shards != 3;
        for (uint16_t shard = 0; shard < 2; shard++) {
                struct layout_row row = {.first_shard = shard,
                                         .n_shards = 1,
                                         .page_bytes = page_bytes + shard,
                                         .padded_bytes = page_bytes + shard};

                if (shards >> shard & 1)
                        ck_assert_int_eq(layout_add_row(&asked, 0, &row), 0);
        }
}

static int join(unsigned number, const uint8_t engine_id[16])
{
        return layout_assembly_join(&assemblies, &members[number], 0, engine_id, &asked, &limits,
                                    &refusal, &why);
}

static void expect_joined(unsigned number, unsigned shards)
{
        ask(shards, 4096);
        ck_assert_msg(!join(number, engine), "%s", why.text);
        ck_assert_ptr_nonnull(members[number].assembly);
}

static void expect_refused(unsigned number, int error)
{
        ck_assert_int_eq(join(number, engine), error);
        ck_assert_ptr_null(members[number].assembly);
        ck_assert_ptr_null(members[number].asked);
}

START_TEST(an_assembly_is_whole_when_the_last_row_is_in)
{
        const struct layout_assembly *assembly;
        struct digest id;

        expect_joined(0, 0);
        ck_assert_str_eq(why.text, "group 0 \"kv\": no session of the engine has told yet what "
                                   "shard 0 holds");
        expect_joined(1, 1);
        ck_assert_ptr_nonnull(strstr(why.text, "shard 1 holds"));
        assembly = members[0].assembly;
        ck_assert_ptr_null(assembly->whole);
        expect_joined(2, 2);
        ck_assert_ptr_eq(members[2].assembly, assembly);
        ck_assert_ptr_nonnull(assembly->whole);
        ck_assert(!assembly->whole->is_partial);
        ck_assert_uint_eq(assembly->whole->chunk_tokens, 112);
        ck_assert_uint_eq(layout_object_bytes(assembly->whole, 0, 1), 7 * 4097);
        ck_assert_int_eq(layout_id(&id, assembly->encoding, assembly->encoding_bytes), 0);
        ck_assert(digest_equal(&id, &assembly->id));
}
END_TEST

START_TEST(the_order_of_joining_does_not_matter)
{
        static const uint8_t orders[][3] = {{0, 1, 2}, {1, 2, 0}, {2, 1, 0}, {2, 0, 1}};
        struct digest id;

        for (size_t i = 0; i < 4; i++) {
                for (unsigned j = 0; j < 3; j++)
                        expect_joined(j, orders[i][j]);
                ck_assert_ptr_nonnull(members[0].assembly->whole);
                if (!i)
                        id = members[0].assembly->id;
                ck_assert(digest_equal(&id, &members[0].assembly->id));
                for (unsigned j = 0; j < 3; j++)
                        layout_assembly_leave(&members[j]);
                ck_assert(LIST_EMPTY(&assemblies));
        }
}
END_TEST

START_TEST(engines_and_domains_do_not_meet)
{
        expect_joined(0, 1);
        ask(2, 8192);
        ck_assert_int_eq(join(1, other_engine), 0);
        ck_assert_int_eq(layout_assembly_join(&assemblies, &members[2], 1, engine, &asked, &limits,
                                              &refusal, &why),
                         0);
        ck_assert_ptr_ne(members[0].assembly, members[1].assembly);
        ck_assert_ptr_ne(members[0].assembly, members[2].assembly);
        ck_assert_ptr_ne(members[1].assembly, members[2].assembly);
        ck_assert_ptr_null(members[0].assembly->whole);
}
END_TEST

START_TEST(who_contradicts_a_member_is_told_which)
{
        expect_joined(0, 0);
        expect_joined(1, 1);
        ask(1, 8192);
        expect_refused(2, LAYOUT_ASSEMBLY_E_CONFLICT);
        ck_assert_ptr_eq(refusal.other, &members[1]);
        ck_assert_str_eq(refusal.conflict.field, "page_bytes");
        ck_assert_str_eq(refusal.conflict.ours, "8192");
        ck_assert_str_eq(refusal.conflict.theirs, "4096");
        layout_assembly_leave(&members[1]);
        ck_assert_int_eq(join(2, engine), 0);
}
END_TEST

START_TEST(rows_of_who_leaves_too_early_are_forgotten)
{
        expect_joined(0, 1);
        expect_joined(1, 0);
        layout_assembly_leave(&members[0]);
        expect_joined(2, 2);
        ck_assert_ptr_null(members[2].assembly->whole);
        expect_joined(3, 1);
        ck_assert_ptr_nonnull(members[2].assembly->whole);
}
END_TEST

START_TEST(a_whole_layout_stays_until_the_last_has_left)
{
        const struct layout *whole;

        expect_joined(0, 1);
        expect_joined(1, 2);
        whole = members[1].assembly->whole;
        layout_assembly_leave(&members[0]);
        ask(1, 8192);
        expect_refused(2, LAYOUT_ASSEMBLY_E_CONFLICT);
        ck_assert_ptr_null(refusal.other);
        ck_assert_str_eq(refusal.conflict.theirs, "4096");
        ask(3, 4096);
        asked.chunk_tokens = 16;
        expect_refused(2, LAYOUT_ASSEMBLY_E_CONFLICT);
        ck_assert_str_eq(refusal.conflict.field, "chunk_tokens");
        expect_joined(2, 3);
        layout_assembly_leave(&members[1]);
        ck_assert_ptr_eq(members[2].assembly->whole, whole);
        layout_assembly_leave(&members[2]);
        ask(3, 8192);
        ck_assert_int_eq(join(0, engine), 0);
}
END_TEST

START_TEST(a_chunk_that_one_asks_for_holds_for_all)
{
        expect_joined(0, 1);
        ask(0, 0);
        asked.chunk_tokens = 48;
        ck_assert_int_eq(join(1, engine), 0);
        expect_joined(2, 2);
        ck_assert_uint_eq(members[2].assembly->whole->chunk_tokens, 48);
}
END_TEST

START_TEST(an_object_above_the_limit_is_refused_by_the_rows_known_so_far)
{
        ask(0, 0);
        asked.chunk_tokens = 16 * 256;
        ck_assert_int_eq(join(0, engine), 0);
        ask(1, 4097);
        expect_refused(1, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert_str_eq(why.text, "group 0 \"kv\": the layout's largest object has 1048832 bytes, "
                                   "half an arena piece is 1048576: raise host.piece_bytes to "
                                   "2097664 or more, or lower chunk_tokens from 4096 to 4080");
        ask(1, 4096);
        ck_assert_int_eq(join(1, engine), 0);
}
END_TEST

START_TEST(the_limit_is_of_objects_as_they_are_stored)
{
        ask(1, 8192);
        asked.chunk_tokens = 16 * 256;
        expect_refused(0, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        asked.groups[0].codec = CODEC_MXFP8;
        asked.chunk_tokens = 16 * 249;
        expect_refused(0, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert_ptr_nonnull(strstr(why.text, "has 1051776 bytes"));
        ck_assert_ptr_nonnull(strstr(why.text, "lower chunk_tokens from 3984 to 3968"));
        asked.chunk_tokens = 16 * 248;
        ck_assert_int_eq(join(0, engine), 0);
}
END_TEST

START_TEST(no_chunk_is_named_when_none_would_do)
{
        ask(1, (1 << 20) + 1);
        expect_refused(0, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert_ptr_nonnull(strstr(why.text, "host.piece_bytes to"));
        ck_assert_ptr_null(strstr(why.text, "lower chunk_tokens"));

        ask(1, 4096);
        asked.groups[1] =
                (struct layout_group){.name = TEXT("state"), .kind = LAYOUT_STATE, .n_shards = 1};
        asked.n_groups = 2;
        ck_assert_int_eq(layout_add_row(&asked, 1,
                                        &(struct layout_row){.n_shards = 1,
                                                             .page_bytes = (1 << 20) + 1,
                                                             .padded_bytes = (1 << 20) + 1}),
                         0);
        expect_refused(0, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert_ptr_nonnull(strstr(why.text, "group 1 \"state\""));
        ck_assert_ptr_null(strstr(why.text, "lower chunk_tokens"));
}
END_TEST

START_TEST(a_whole_layout_too_large_to_be_told_is_refused)
{
        static uint8_t tensors[2][LAYOUT_BYTES_MAX];
        struct layout_string name = {long_tensor, sizeof(long_tensor)};

        memset(long_tensor, 'x', sizeof(long_tensor));
        for (uint16_t shard = 0; shard < 2; shard++) {
                ask(1u << shard, 4096);
                for (uint16_t i = 0; i < 20; i++) {
                        struct layout_row *row = &asked.rows[0];
                        int r = layout_tensor_encode(tensors[shard] + row->tensors_bytes,
                                                     sizeof(tensors[0]) - row->tensors_bytes, name,
                                                     TEXT("bf16"), i ? 0 : row->page_bytes);

                        ck_assert_int_gt(r, 0);
                        row->tensors = tensors[shard];
                        row->tensors_bytes += (uint32_t)r;
                        row->n_tensors++;
                }
                if (!shard)
                        ck_assert_int_eq(join(0, engine), 0);
        }
        expect_refused(1, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert_str_eq(why.text, "the engine's whole layout is larger than 32768 bytes");
        ck_assert_ptr_null(members[0].assembly->whole);
}
END_TEST

START_TEST(there_are_never_more_assemblies_than_members)
{
        const struct layout_assembly *assembly;
        unsigned n = 0;

        ask(1, 1 << 20);
        expect_refused(0, LAYOUT_ASSEMBLY_E_TOO_LARGE);
        ck_assert(LIST_EMPTY(&assemblies));
        expect_joined(0, 1);
        expect_joined(1, 2);
        LIST_FOREACH(assembly, &assemblies, link)
                n++;
        ck_assert_uint_eq(n, 1);
        layout_assembly_leave(&members[0]);
        layout_assembly_leave(&members[0]);
        ck_assert(!LIST_EMPTY(&assemblies));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/layout_assembly");
        TCase *tcase = tcase_create("assembly");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, an_assembly_is_whole_when_the_last_row_is_in);
        tcase_add_test(tcase, the_order_of_joining_does_not_matter);
        tcase_add_test(tcase, engines_and_domains_do_not_meet);
        tcase_add_test(tcase, who_contradicts_a_member_is_told_which);
        tcase_add_test(tcase, rows_of_who_leaves_too_early_are_forgotten);
        tcase_add_test(tcase, a_whole_layout_stays_until_the_last_has_left);
        tcase_add_test(tcase, a_chunk_that_one_asks_for_holds_for_all);
        tcase_add_test(tcase, an_object_above_the_limit_is_refused_by_the_rows_known_so_far);
        tcase_add_test(tcase, the_limit_is_of_objects_as_they_are_stored);
        tcase_add_test(tcase, no_chunk_is_named_when_none_would_do);
        tcase_add_test(tcase, a_whole_layout_too_large_to_be_told_is_refused);
        tcase_add_test(tcase, there_are_never_more_assemblies_than_members);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
