// SPDX-License-Identifier: Apache-2.0
/*
 * The vectors of kvtier(3), computed apart from the library:
 *
 *   import hashlib, struct
 *   def sha(b): return hashlib.sha256(b).digest()
 *   def u32(*v): return struct.pack("<%dI" % len(v), *v)
 *   def root(*s): return sha(b"kvtier/root/1\0" + u32(len(s)) +
 *                            b"".join(u32(len(x)) + x for x in s))
 *   def step(p, t): return sha(b"kvtier/step/1\0" + p + u32(*t))
 *   def end(p, t): return sha(b"kvtier/end/1\0\0" + p + u32(*t) + u32(len(t))) if t else p
 *   r0 = root(b"", b"")
 *   r1 = root(b"tenant-a", b"lora-7", b"img-1", b"img-2")
 *   b1 = step(r1, range(1, 5)); b2 = step(b1, range(5, 9))
 *   e1 = end(b2, [9]); e2 = end(b2, [9, 10]); e3 = end(b2, [9, 10, 11])
 *   for d in r0, r1, b1, b2, e1, e2, e3: print(d.hex())
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/digest.h"

#define R0 "bda0d50371c9da7e0a6496bf5b248a6875e5323f44920f7c9fff218669eb5fff"
#define R1 "33789a03d63b71b2105e85edeb60a5f1833f57ee2272404c24e7e67e8a397438"
#define B1 "85fa4e061b993bcac6e703c8fa1ec509e9eaaebe952f89b0e5d3369c1e9cbd3c"
#define B2 "3fbfa8116b79586211042a910ee776b47a7121bd616d60fbbcaf3a22c04d5add"
#define E1 "17f0633d4a7cad3564a0cc147e0303e1ca3254805d7d8a455c572fd7253bd65a"
#define E2 "3950944d18a463111eeefe712372ca0cc18be5ad9c31108a8a3698a24f2bc0d5"
#define E3 "4f061533b5cf2c4c563f0e2b012a63d5e204c6d74e053fdac5a467b0d83aa735"

static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static void assert_digest(const struct digest *digest, const char *expected)
{
        char text[2 * DIGEST_BYTES + 1];

        for (int i = 0; i < DIGEST_BYTES; i++)
                snprintf(text + 2 * i, 3, "%02x", digest->bytes[i]);
        ck_assert_str_eq(text, expected);
}

static struct digest second_boundary(void)
{
        const struct digest_string strings[] = {
                {"tenant-a", 8}, {"lora-7", 6}, {"img-1", 5}, {"img-2", 5}};
        struct digest digest;

        ck_assert_int_eq(digest_root(&digest, strings, 4), 0);
        assert_digest(&digest, R1);
        ck_assert_int_eq(digest_step(&digest, &digest, tokens, 4), 0);
        assert_digest(&digest, B1);
        ck_assert_int_eq(digest_step(&digest, &digest, tokens + 4, 4), 0);
        assert_digest(&digest, B2);
        return digest;
}

START_TEST(the_chain_has_the_documented_bytes)
{
        struct digest boundary = second_boundary(), digest;

        ck_assert_int_eq(digest_end(&digest, &boundary, tokens + 8, 1), 0);
        assert_digest(&digest, E1);
        ck_assert_int_eq(digest_end(&digest, &boundary, tokens + 8, 3), 0);
        assert_digest(&digest, E3);
}
END_TEST

START_TEST(empty_strings_make_a_root_too)
{
        const struct digest_string strings[] = {{NULL, 0}, {"", 0}};
        struct digest digest;

        ck_assert_int_eq(digest_root(&digest, strings, 2), 0);
        assert_digest(&digest, R0);
}
END_TEST

START_TEST(strings_are_not_joined)
{
        const struct digest_string a[] = {{"ab", 2}, {"c", 1}}, b[] = {{"a", 1}, {"bc", 2}};
        struct digest of_a, of_b;

        ck_assert_int_eq(digest_root(&of_a, a, 2), 0);
        ck_assert_int_eq(digest_root(&of_b, b, 2), 0);
        ck_assert(!digest_equal(&of_a, &of_b));
}
END_TEST

START_TEST(an_end_without_tokens_is_the_boundary)
{
        struct digest boundary = second_boundary(), digest;

        ck_assert_int_eq(digest_end(&digest, &boundary, NULL, 0), 0);
        assert_digest(&digest, B2);
}
END_TEST

START_TEST(a_step_and_an_end_over_the_same_tokens_differ)
{
        struct digest boundary = second_boundary(), step, end;

        ck_assert_int_eq(digest_step(&step, &boundary, tokens, 3), 0);
        ck_assert_int_eq(digest_end(&end, &boundary, tokens, 3), 0);
        ck_assert(!digest_equal(&step, &end));
}
END_TEST

START_TEST(one_pass_gives_every_end)
{
        struct digest boundary = second_boundary(), ends[3];

        ck_assert_int_eq(digest_ends(ends, &boundary, tokens + 8, 3), 0);
        assert_digest(&ends[0], E1);
        assert_digest(&ends[1], E2);
        assert_digest(&ends[2], E3);
        ck_assert_int_eq(digest_ends(NULL, &boundary, NULL, 0), 0);
}
END_TEST

START_TEST(bytes_hash_as_plain_sha256)
{
        struct digest digest;

        ck_assert_int_eq(digest_of_bytes(&digest, "abc", 3), 0);
        assert_digest(&digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        ck_assert_int_eq(digest_of_bytes(&digest, NULL, 0), 0);
        assert_digest(&digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
END_TEST

static void *hash_many(void *result)
{
        struct digest *digest = result;

        for (int i = 0; i < 1000; i++)
                if (digest_step(digest, digest, tokens, 11))
                        abort();
        return NULL;
}

START_TEST(threads_may_begin_at_the_same_time)
{
        struct digest digests[4] = {0};
        pthread_t threads[4];

        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, hash_many, &digests[i]), 0);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int i = 1; i < 4; i++)
                ck_assert(digest_equal(&digests[0], &digests[i]));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/digest");
        TCase *tcase = tcase_create("digest");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, the_chain_has_the_documented_bytes);
        tcase_add_test(tcase, empty_strings_make_a_root_too);
        tcase_add_test(tcase, strings_are_not_joined);
        tcase_add_test(tcase, an_end_without_tokens_is_the_boundary);
        tcase_add_test(tcase, a_step_and_an_end_over_the_same_tokens_differ);
        tcase_add_test(tcase, one_pass_gives_every_end);
        tcase_add_test(tcase, bytes_hash_as_plain_sha256);
        tcase_add_test(tcase, threads_may_begin_at_the_same_time);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
