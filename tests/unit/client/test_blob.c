// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"
#include "proto/digest.h"
#include "proto/message.h"

#define N_TOKENS 70u /* four chunks and six tokens */

static struct fake fake;
static struct kvt_session *session;
static uint32_t tokens[N_TOKENS];
static struct kvt_digest boundaries[N_TOKENS / FAKE_CHUNK];

static struct kvt_digest end_of(size_t n)
{
        struct kvt_digest end;

        ck_assert_int_eq(kvt_digest_chain(NULL, tokens, n, FAKE_CHUNK, NULL, &end), KVT_OK);
        return end;
}

static void setup(void)
{
        for (uint32_t i = 0; i < N_TOKENS; i++)
                tokens[i] = i * 1000 + 7;
        ck_assert_int_eq(kvt_digest_chain(NULL, tokens, N_TOKENS, FAKE_CHUNK, boundaries, NULL),
                         KVT_OK);
        fake_start(&fake, false);
        session = fake_open(&fake);
}

static void teardown(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}

static struct kvt_blob blob_of(size_t n, uint32_t flags)
{
        return (struct kvt_blob){
                .size = sizeof(struct kvt_blob),
                .tokens = tokens,
                .n_tokens = n,
                .flags = flags,
                .timeout_ns = UINT64_C(5000000000),
        };
}

static void put(struct kvt_digest digest)
{
        fake_put(&fake, &digest, 1, 1);
}

static size_t find(size_t n)
{
        struct kvt_blob blob = blob_of(n, 0);
        size_t found = 99;
        enum kvt_status status = kvt_blob_find(session, &blob, &found);

        ck_assert_int_eq(status, found ? KVT_OK : KVT_MISS);
        return found;
}

START_TEST(the_chain_is_the_one_of_the_documented_layout)
{
        struct digest_string strings[3] = {{"salt", 4}, {"lora", 4}, {"image", 5}};
        const char *image = "image";
        struct kvt_identity identity = {.size = sizeof(identity),
                                        .salt = "salt",
                                        .salt_bytes = 4,
                                        .lora = "lora",
                                        .lora_bytes = 4,
                                        .images = &image,
                                        .n_images = 1};
        struct kvt_digest steps[4], end;
        struct digest link;

        ck_assert_int_eq(kvt_digest_chain(&identity, tokens, N_TOKENS, FAKE_CHUNK, steps, &end),
                         KVT_OK);
        ck_assert_int_eq(digest_root(&link, strings, 3), 0);
        for (int i = 0; i < 4; i++) {
                ck_assert_int_eq(digest_step(&link, &link, tokens + i * 16, 16), 0);
                ck_assert_mem_eq(&steps[i], &link, 32);
        }
        ck_assert_int_eq(digest_end(&link, &link, tokens + 64, 6), 0);
        ck_assert_mem_eq(&end, &link, 32);
        /* Another identity is another chain. */
        ck_assert_int_ne(memcmp(&steps[0], &boundaries[0], 32), 0);
}
END_TEST

START_TEST(an_end_on_a_boundary_is_the_boundary)
{
        struct kvt_digest end = end_of(64);

        ck_assert_mem_eq(&end, &boundaries[3], 32);
}
END_TEST

START_TEST(find_is_the_longest_end_or_boundary_within_the_tokens)
{
        ck_assert_uint_eq(find(N_TOKENS), 0);
        put(boundaries[0]);
        ck_assert_uint_eq(find(N_TOKENS), 16);
        put(end_of(21));
        ck_assert_uint_eq(find(N_TOKENS), 21);
        put(boundaries[2]);
        ck_assert_uint_eq(find(N_TOKENS), 48);
        put(end_of(69));
        ck_assert_uint_eq(find(N_TOKENS), 69);
        ck_assert_uint_eq(find(68), 48);
        ck_assert_uint_eq(find(47), 21);
        ck_assert_uint_eq(find(21), 21);
        ck_assert_uint_eq(find(20), 16);
        ck_assert_uint_eq(find(15), 0);
}
END_TEST

START_TEST(find_knows_the_ends_of_every_length)
{
        for (size_t n = 1; n <= N_TOKENS; n++) {
                put(end_of(n));
                ck_assert_uint_eq(find(N_TOKENS), n);
        }
}
END_TEST

START_TEST(find_minds_the_group)
{
        struct kvt_blob blob = blob_of(N_TOKENS, 0);
        size_t found;

        blob.group = 1;
        ck_assert_int_eq(kvt_blob_find(session, &blob, &found), KVT_INVALID);
}
END_TEST

/* Runs a blocking blob call while the test plays the daemon. */
struct errand {
        pthread_t thread;
        struct kvt_blob blob;
        char bytes[FAKE_OBJECT];
        uint64_t length;
        size_t tokens;
        enum kvt_status status;
};

static void *do_put(void *argument)
{
        struct errand *errand = argument;

        errand->status = kvt_blob_put(session, &errand->blob, errand->bytes, FAKE_OBJECT);
        return NULL;
}

static void *do_get(void *argument)
{
        struct errand *errand = argument;

        errand->status = kvt_blob_get(session, &errand->blob, errand->bytes, FAKE_OBJECT,
                                      &errand->length, &errand->tokens);
        return NULL;
}

static const struct fake_item grant = {.status = KVT_OK, .lease = 5, .bytes = FAKE_OBJECT};
static const struct fake_item done = {.status = KVT_OK};

START_TEST(put_names_the_end_its_parent_and_its_covers)
{
        struct errand errand = {.blob = blob_of(N_TOKENS, KVT_CROPPABLE)};
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;
        struct kvt_digest end = end_of(N_TOKENS);
        const struct wire_header *header;

        memset(errand.bytes, 7, FAKE_OBJECT);
        ck_assert_int_eq(pthread_create(&errand.thread, NULL, do_put, &errand), 0);
        header = fake_expect(&fake, WIRE_RESERVE);
        message_cursor_init(&cursor, header);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_mem_eq(&item.boundary, &end, 32);
        ck_assert_mem_eq(&item.parent, &boundaries[3], 32);
        ck_assert_uint_eq(item.boundary_tokens, N_TOKENS);
        ck_assert_uint_eq(item.flags, WIRE_RESERVE_CROPPABLE | WIRE_RESERVE_CONTIGUOUS);
        ck_assert_uint_eq(item.n_covers, 4);
        ck_assert_mem_eq(covers, boundaries, 4 * 32);
        fake_result(&fake, header->request, false, &grant, 1);
        header = fake_expect(&fake, WIRE_COMMIT);
        ck_assert_mem_eq(fake.arenas[0], errand.bytes, FAKE_OBJECT);
        fake_result(&fake, header->request, false, &done, 1);
        pthread_join(errand.thread, NULL);
        ck_assert_int_eq(errand.status, KVT_OK);
}
END_TEST

START_TEST(a_blob_on_a_boundary_does_not_cover_itself)
{
        struct errand errand = {.blob = blob_of(32, KVT_CROPPABLE)};
        struct fake_item have = {.status = KVT_ALREADY_HAVE};
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;
        const struct wire_header *header;

        ck_assert_int_eq(pthread_create(&errand.thread, NULL, do_put, &errand), 0);
        header = fake_expect(&fake, WIRE_RESERVE);
        message_cursor_init(&cursor, header);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_mem_eq(&item.boundary, &boundaries[1], 32);
        ck_assert_mem_eq(&item.parent, &boundaries[0], 32);
        ck_assert_uint_eq(item.n_covers, 1);
        fake_result(&fake, header->request, false, &have, 1);
        pthread_join(errand.thread, NULL);
        ck_assert_int_eq(errand.status, KVT_ALREADY_HAVE);
}
END_TEST

START_TEST(put_takes_pieces_when_no_whole_is_left)
{
        struct errand errand = {.blob = blob_of(N_TOKENS, 0)};
        struct fake_item refused = {.status = KVT_REFUSED};
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;
        const struct wire_header *header;

        ck_assert_int_eq(pthread_create(&errand.thread, NULL, do_put, &errand), 0);
        header = fake_expect(&fake, WIRE_RESERVE);
        fake_result(&fake, header->request, false, &refused, 1);
        header = fake_expect(&fake, WIRE_RESERVE);
        message_cursor_init(&cursor, header);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_uint_eq(item.flags, 0);
        fake_result(&fake, header->request, false, &grant, 1);
        header = fake_expect(&fake, WIRE_COMMIT);
        fake_result(&fake, header->request, false, &done, 1);
        pthread_join(errand.thread, NULL);
        ck_assert_int_eq(errand.status, KVT_OK);
}
END_TEST

static void answer_acquire(uint32_t status)
{
        const struct wire_header *header = fake_expect(&fake, WIRE_ACQUIRE);
        uint64_t request = header->request;

        fake_granted(&fake, request, status, status == KVT_OK);
        fake_result(&fake, request, false, &grant, status == KVT_OK);
}

START_TEST(get_copies_the_longest_and_gives_it_back)
{
        struct errand errand = {.blob = blob_of(N_TOKENS, 0)};
        const struct wire_header *header;

        put(end_of(69));
        memset(fake.arenas[0], 3, FAKE_OBJECT);
        ck_assert_int_eq(pthread_create(&errand.thread, NULL, do_get, &errand), 0);
        answer_acquire(KVT_OK);
        header = fake_expect(&fake, WIRE_RELEASE);
        fake_result(&fake, header->request, false, &done, 1);
        pthread_join(errand.thread, NULL);
        ck_assert_int_eq(errand.status, KVT_OK);
        ck_assert_uint_eq(errand.tokens, 69);
        ck_assert_uint_eq(errand.length, FAKE_OBJECT);
        ck_assert_mem_eq(errand.bytes, fake.arenas[0], FAKE_OBJECT);
}
END_TEST

START_TEST(get_tries_a_shorter_blob_when_the_table_was_wrong)
{
        struct errand errand = {.blob = blob_of(N_TOKENS, 0)};
        const struct wire_header *header;

        put(end_of(69));
        put(boundaries[1]);
        ck_assert_int_eq(pthread_create(&errand.thread, NULL, do_get, &errand), 0);
        answer_acquire(KVT_MISS);
        answer_acquire(KVT_OK);
        header = fake_expect(&fake, WIRE_RELEASE);
        fake_result(&fake, header->request, false, &done, 1);
        pthread_join(errand.thread, NULL);
        ck_assert_int_eq(errand.status, KVT_OK);
        ck_assert_uint_eq(errand.tokens, 32);
}
END_TEST

START_TEST(too_many_boundaries_are_too_large)
{
        size_t n = (WIRE_COVERS_MAX + 2) * FAKE_CHUNK;
        struct kvt_blob blob = blob_of(n, KVT_CROPPABLE);
        struct kvt_object object;

        blob.tokens = calloc(n, sizeof(uint32_t));
        ck_assert_int_eq(kvt_blob_reserve(session, &blob, 1, &object), KVT_TOO_LARGE);
        free((void *)(uintptr_t)blob.tokens);
}
END_TEST

static Suite *blob_suite(void)
{
        Suite *suite = suite_create("client/blob");
        TCase *tests = tcase_create("blob");

        tcase_set_timeout(tests, 20);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_test(tests, the_chain_is_the_one_of_the_documented_layout);
        tcase_add_test(tests, an_end_on_a_boundary_is_the_boundary);
        tcase_add_test(tests, find_is_the_longest_end_or_boundary_within_the_tokens);
        tcase_add_test(tests, find_knows_the_ends_of_every_length);
        tcase_add_test(tests, find_minds_the_group);
        tcase_add_test(tests, put_names_the_end_its_parent_and_its_covers);
        tcase_add_test(tests, a_blob_on_a_boundary_does_not_cover_itself);
        tcase_add_test(tests, put_takes_pieces_when_no_whole_is_left);
        tcase_add_test(tests, get_copies_the_longest_and_gives_it_back);
        tcase_add_test(tests, get_tries_a_shorter_blob_when_the_table_was_wrong);
        tcase_add_test(tests, too_many_boundaries_are_too_large);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(blob_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
