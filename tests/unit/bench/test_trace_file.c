// SPDX-License-Identifier: Apache-2.0
/* Readers of traces: each format gives the tree of its prompts, and what is wrong is named. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/bench/replay/trace_file.h"
#include "tests/support/scratch.h"

static char folder[64], path[96];
static struct trace trace;
static struct why why;

static void set_up(void)
{
        scratch_make(folder, sizeof(folder));
        snprintf(path, sizeof(path), "%s/trace", folder);
        trace_init(&trace, 512);
        why.text[0] = '\0';
}

static void tear_down(void)
{
        trace_deinit(&trace);
        scratch_remove(folder);
}

static void write_file(const char *text)
{
        FILE *file = fopen(path, "we");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_ne(fputs(text, file), EOF);
        ck_assert_int_eq(fclose(file), 0);
}

static void read_text(const char *text)
{
        write_file(text);
        ck_assert_msg(trace_file_read(&trace, path, &why) == 0, "%s", why.text);
}

static void refuses(const char *text, const char *reason)
{
        write_file(text);
        ck_assert_int_lt(trace_file_read(&trace, path, &why), 0);
        ck_assert_msg(strstr(why.text, reason) && strstr(why.text, path), "%s", why.text);
        trace_deinit(&trace);
        trace_init(&trace, 512);
}

/* The chunks of request @at are @n numbers. */
static void assert_chain(uint32_t at, uint32_t n, const uint32_t *chunks)
{
        uint32_t chain[16];

        ck_assert_uint_lt(at, trace.n_requests);
        ck_assert_uint_eq(trace.requests[at].n_chunks, n);
        trace_chain(&trace, &trace.requests[at], chain);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_uint_eq(chain[i], chunks[i]);
}
#define CHAIN(...) (sizeof((uint32_t[]){__VA_ARGS__}) / 4), (uint32_t[]){__VA_ARGS__}

static const char *const mooncake =
        "{\"timestamp\": 0, \"input_length\": 1100, \"hash_ids\": [7, 8, 9]}\n"
        "{\"timestamp\": 30, \"input_length\": 1024, \"hash_ids\": [7, 10]}\n"
        "{\"timestamp\": 20, \"input_length\": 100, \"hash_ids\": [11]}\n";

START_TEST(mooncake_drops_the_partial_block_and_sorts)
{
        read_text(mooncake);
        ck_assert_uint_eq(trace.n_requests, 3);
        ck_assert_uint_eq(trace.n_chunks, 3);
        ck_assert_uint_eq(trace.accesses, 4);
        ck_assert_uint_eq(trace.input_tokens, 2224);
        assert_chain(0, CHAIN(0, 1));
        assert_chain(2, CHAIN(0, 2));
        ck_assert_uint_eq(trace.requests[1].n_chunks, 0);
        ck_assert_uint_eq(trace.requests[1].last, TRACE_NONE);
        ck_assert_uint_eq(trace.requests[2].time_us, 30000);
}
END_TEST

START_TEST(gzipped_files_read_alike)
{
        gzFile file = gzopen(path, "wb");

        ck_assert_int_gt(gzputs(file, mooncake), 0);
        ck_assert_int_eq(gzclose(file), Z_OK);
        ck_assert_int_eq(trace_file_read(&trace, path, &why), 0);
        assert_chain(2, CHAIN(0, 2));
}
END_TEST

START_TEST(merged_groups_eight_blocks_of_64_tokens)
{
        /* Twelve shared blocks: the first chunk is shared, the second is not. */
        read_text("{\"timestamp\":5,\"session\":3,\"input_length\":1030,\"output_length\":1,"
                  "\"hash_ranges\":[[100,16]]}\n"
                  "{\"timestamp\":9,\"session\":4,\"input_length\":1100,\"output_length\":1,"
                  "\"hash_ranges\":[[100,12],[500,5]]}\n");
        assert_chain(0, CHAIN(0, 1));
        assert_chain(1, CHAIN(0, 2));
        ck_assert_uint_eq(trace.requests[1].session, 4);
}
END_TEST

START_TEST(ids_of_sessions_are_their_own)
{
        read_text("{\"id\":\"a\",\"block_size\":512,\"requests\":"
                  "[[0,1024,1,0.5,0,[[1,2]]],[2.5,1536,1,0.5,0,[[1,3]]]]}\n"
                  "{\"id\":\"b\",\"block_size\":512,\"requests\":[[1,512,1,0.5,0,[[1,1]]]]}\n");
        ck_assert_uint_eq(trace.n_chunks, 4);
        assert_chain(0, CHAIN(0, 1));
        assert_chain(1, CHAIN(3));
        assert_chain(2, CHAIN(0, 1, 2));
        ck_assert_uint_eq(trace.requests[2].time_us, 2500000);
}
END_TEST

START_TEST(text_takes_four_bytes_for_a_token_and_sessions_one_after_another)
{
        read_text("{\"set\":\"s\",\"session\":\"a\",\"us\":0,\"in_bytes\":2100,\"out_bytes\":1,"
                  "\"hash_ranges\":[[0,8]]}\n"
                  "{\"set\":\"s\",\"session\":\"a\",\"us\":70,\"in_bytes\":4096,\"out_bytes\":1,"
                  "\"hash_ranges\":[[0,8],[20,8]]}\n"
                  "{\"set\":\"s\",\"session\":\"b\",\"us\":5,\"in_bytes\":2048,\"out_bytes\":1,"
                  "\"hash_ranges\":[[0,8]]}\n");
        assert_chain(1, CHAIN(0, 1));
        assert_chain(2, CHAIN(0));
        ck_assert_uint_eq(trace.requests[2].time_us, 75);
        ck_assert_uint_eq(trace.requests[1].input_tokens, 1024);
}
END_TEST

START_TEST(azure_prompts_share_nothing)
{
        read_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                  "2023-11-16 18:17:03.9799600,1100,10\r\n"
                  "2023-11-16 18:17:04.0319600,600,8\r\n");
        ck_assert_uint_eq(trace.n_chunks, 3);
        assert_chain(0, CHAIN(0, 1));
        assert_chain(1, CHAIN(2));
        ck_assert_uint_eq(trace.requests[1].time_us, 52000);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
        refuses("", "no requests");
        refuses("hello\n", "line 1: no known format");
        refuses("{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [1]\n", "line 1: not JSON");
        refuses("{\"timestamp\": 0, \"input_length\": 600, \"hash_ids\": [1]}\n",
                "1 ids where the length needs 2");
        refuses("{\"timestamp\": 0, \"input_length\": 600, \"hash_ids\": [-1, 2]}\n",
                "must be from 0");
        refuses("{\"timestamp\": 0, \"input_length\": -5, \"hash_ids\": []}\n",
                "\"input_length\" must be a number");
        refuses("{\"timestamp\":0,\"session\":1,\"input_length\":128,\"hash_ranges\":[[0,9]]}\n",
                "9 ids where the length needs 2");
        refuses("{\"id\":\"a\",\"block_size\":100,\"requests\":[[0,512,1,0,0,[[1,5]]]]}\n",
                "request 1: blocks of 100 tokens do not fill chunks");
        refuses("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2: a line must");
        refuses("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,1\n",
                "line 2: ContextTokens");
}
END_TEST

/* A gzipped file that ends @cut bytes early, or whose byte @flip from its end is another. */
static void write_damaged(size_t cut, size_t flip)
{
        unsigned char bytes[4096];
        gzFile out = gzopen(path, "wb");
        FILE *file;
        size_t n;

        for (int i = 0; i < 50; i++)
                ck_assert_int_gt(gzputs(out, mooncake), 0);
        ck_assert_int_eq(gzclose(out), Z_OK);
        file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        n = fread(bytes, 1, sizeof(bytes), file);
        ck_assert_uint_lt(n, sizeof(bytes));
        fclose(file);
        if (flip)
                bytes[n - flip] ^= 1;
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(bytes, 1, n - cut, file), n - cut);
        ck_assert_int_eq(fclose(file), 0);
}

START_TEST(a_damaged_file_is_refused)
{
        /* Cut short in the middle; then a wrong checksum, which is in the last eight bytes. */
        write_damaged(20, 0);
        ck_assert_int_lt(trace_file_read(&trace, path, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "cut short"));
        trace_deinit(&trace);
        trace_init(&trace, 512);
        write_damaged(0, 8);
        ck_assert_int_lt(trace_file_read(&trace, path, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "damaged"));
        ck_assert_int_eq(trace_file_read(&trace, "/nonexistent", &why), -ENOENT);
}
END_TEST

START_TEST(squeezing_moves_starts_and_keeps_gaps)
{
        read_text("{\"timestamp\":1000,\"session\":0,\"input_length\":1,\"hash_ranges\":[]}\n"
                  "{\"timestamp\":9000,\"session\":1,\"input_length\":2,\"hash_ranges\":[]}\n"
                  "{\"timestamp\":9001,\"session\":0,\"input_length\":3,\"hash_ranges\":[]}\n");
        ck_assert_int_eq(trace_squeeze(&trace, 10), 0);
        ck_assert_uint_eq(trace.requests[0].time_us, 100000);
        ck_assert_uint_eq(trace.requests[1].input_tokens, 2);
        ck_assert_uint_eq(trace.requests[1].time_us, 900000);
        ck_assert_uint_eq(trace.requests[2].time_us, 8101000);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("trace_file");
        TCase *tcase = tcase_create("trace_file");
        SRunner *runner;
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, mooncake_drops_the_partial_block_and_sorts);
        tcase_add_test(tcase, gzipped_files_read_alike);
        tcase_add_test(tcase, merged_groups_eight_blocks_of_64_tokens);
        tcase_add_test(tcase, ids_of_sessions_are_their_own);
        tcase_add_test(tcase, text_takes_four_bytes_for_a_token_and_sessions_one_after_another);
        tcase_add_test(tcase, azure_prompts_share_nothing);
        tcase_add_test(tcase, what_is_wrong_is_named);
        tcase_add_test(tcase, a_damaged_file_is_refused);
        tcase_add_test(tcase, squeezing_moves_starts_and_keeps_gaps);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
