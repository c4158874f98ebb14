// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_handshake.h"

static const uint8_t any[RDMA_ID_BYTES];
static struct rdma_handshake client, server;
static struct rdma_handshake_answer from_client, from_server;

struct domain {
        const char *name;
        const char *secret;
};

static struct domain client_domain = {"prod", "sixteen bytes or more"};
static struct domain server_domain = {"prod", "sixteen bytes or more"};

static int find_secret(void *user, const char *name, struct rdma_secret *ret_secret)
{
        const struct domain *domain = user;

        if (strcmp(name, domain->name))
                return 1;
        ret_secret->length = strlen(domain->secret);
        memcpy(ret_secret->bytes, domain->secret, ret_secret->length);
        return 0;
}

static struct rdma_handshake_self make_self(struct domain *domain, uint8_t id)
{
        return (struct rdma_handshake_self){
                .identity = {.protocol = 7, .major = 1, .minor = 4, .id = {id}},
                .n_credits = 10u + id,
                .message_bytes = 1024u * id,
                .find_secret = find_secret,
                .user = domain,
        };
}

static void pass(struct rdma_handshake *to, const struct rdma_handshake_answer *frame,
                 struct rdma_handshake_answer *ret_answer)
{
        struct why why = {""};

        ck_assert_uint_gt(frame->length, 0);
        ck_assert_msg(!rdma_frame_check(frame->bytes, frame->length, &why), "%s", why.text);
        rdma_handshake_step(to, frame->bytes, ret_answer);
}

static void start_as(const struct rdma_handshake_self *own,
                     const struct rdma_handshake_self *theirs, const uint8_t *expected_id)
{
        rdma_handshake_await(&server, theirs);
        ck_assert_int_eq(rdma_handshake_start(&client, own, client_domain.name, expected_id,
                                              &from_client, NULL),
                         0);
}

static void start(const uint8_t *expected_id)
{
        struct rdma_handshake_self own = make_self(&client_domain, 1);
        struct rdma_handshake_self theirs = make_self(&server_domain, 2);

        start_as(&own, &theirs, expected_id);
}

/* Up to what the server says to the proof. */
static void run(void)
{
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &from_client);
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &from_client);
}

START_TEST(who_knows_the_secret_is_let_in_and_both_know_each_other)
{
        start(any);
        run();
        ck_assert_int_eq(client.state, RDMA_HANDSHAKE_DONE);
        ck_assert_int_eq(server.state, RDMA_HANDSHAKE_DONE);
        ck_assert_uint_eq(from_client.length, 0);
        ck_assert_uint_eq(client.peer_credits, 12);
        ck_assert_uint_eq(server.peer_credits, 11);
        ck_assert_uint_eq(client.peer_message_bytes, 2048);
        ck_assert_uint_eq(server.peer_message_bytes, 1024);
        ck_assert_uint_eq(client.peer_id[0], 2);
        ck_assert_uint_eq(server.peer_id[0], 1);
        ck_assert_str_eq(server.hello.domain, "prod");
}
END_TEST

START_TEST(the_secret_is_forgotten_when_it_is_over)
{
        static const struct rdma_secret nothing;

        start(any);
        ck_assert(memcmp(&client.secret, &nothing, sizeof(nothing)));
        run();
        ck_assert(!memcmp(&client.secret, &nothing, sizeof(nothing)));
        ck_assert(!memcmp(&server.secret, &nothing, sizeof(nothing)));
}
END_TEST

START_TEST(a_wrong_secret_is_refused_in_words)
{
        server_domain.secret = "another secret of the server";
        start(any);
        run();
        ck_assert_int_eq(server.state, RDMA_HANDSHAKE_FAILED);
        ck_assert_int_eq(server.end, RDMA_END_DENIED);
        ck_assert_int_eq(client.state, RDMA_HANDSHAKE_FAILED);
        ck_assert_int_eq(client.end, RDMA_END_DENIED);
        ck_assert_ptr_nonnull(strstr(client.why.text, "no domain \"prod\" here, or its secret"));
}
END_TEST

START_TEST(an_unknown_domain_looks_like_a_wrong_secret)
{
        char expected[sizeof(client.why.text)];

        server_domain.secret = "another secret of the server";
        start(any);
        run();
        strcpy(expected, client.why.text);
        server_domain.name = "test";
        start(any);
        pass(&server, &from_client, &from_server);
        ck_assert_int_eq(server.state, RDMA_HANDSHAKE_AWAITING_PROOF);
        pass(&client, &from_server, &from_client);
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &from_client);
        ck_assert_int_eq(server.end, RDMA_END_DENIED);
        ck_assert_str_eq(client.why.text, expected);
}
END_TEST

START_TEST(a_secret_that_is_short_is_none)
{
        struct rdma_handshake_self own = make_self(&client_domain, 1);
        struct why why = {""};

        client_domain.secret = "fifteen bytes..";
        ck_assert_int_eq(rdma_handshake_start(&client, &own, "prod", any, &from_client, &why),
                         RDMA_E_DENIED);
        ck_assert_ptr_nonnull(strstr(why.text, "no secret of at least 16 bytes"));
        client_domain.secret = server_domain.secret;
        server_domain.secret = "";
        client_domain.secret = "sixteen bytes or more";
        start(any);
        run();
        ck_assert_int_eq(server.end, RDMA_END_DENIED);
}
END_TEST

START_TEST(a_server_that_does_not_know_the_secret_is_found_out)
{
        struct rdma_frame_proof welcome = {0};

        start(any);
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &from_client);
        /* It lets everybody in, and says what it was told. */
        memcpy(&welcome, from_client.bytes, sizeof(welcome));
        rdma_frame_init(&welcome.frame, RDMA_FRAME_WELCOME, sizeof(welcome));
        rdma_handshake_step(&client, &welcome, &from_client);
        ck_assert_int_eq(client.state, RDMA_HANDSHAKE_FAILED);
        ck_assert_int_eq(client.end, RDMA_END_DENIED);
        ck_assert_uint_eq(from_client.length, 0);
}
END_TEST

START_TEST(a_proof_is_worth_nothing_to_another_challenge)
{
        struct rdma_handshake_answer hello, proof;

        start(any);
        hello = from_client;
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &proof);
        /* The same client's words, played to the server once more. */
        struct rdma_handshake_self theirs = make_self(&server_domain, 2);
        rdma_handshake_await(&server, &theirs);
        pass(&server, &hello, &from_server);
        pass(&server, &proof, &from_server);
        ck_assert_int_eq(server.end, RDMA_END_DENIED);
}
END_TEST

/* Each byte of what the proofs are about. */
START_TEST(nobody_in_between_can_change_what_was_said)
{
        const size_t header = sizeof(struct rdma_frame);

        for (size_t i = header; i < sizeof(struct rdma_frame_hello); i++) {
                struct why why = {""};

                start(any);
                from_client.bytes[i] ^= 1;
                if (rdma_frame_check(from_client.bytes, from_client.length, &why))
                        continue;
                rdma_handshake_step(&server, from_client.bytes, &from_server);
                if (server.state == RDMA_HANDSHAKE_AWAITING_PROOF) {
                        pass(&client, &from_server, &from_client);
                        pass(&server, &from_client, &from_server);
                }
                ck_assert_msg(server.state == RDMA_HANDSHAKE_FAILED, "byte %zu", i);
        }
        for (size_t i = header; i < sizeof(struct rdma_frame_challenge); i++) {
                struct why why = {""};

                start(any);
                pass(&server, &from_client, &from_server);
                from_server.bytes[i] ^= 1;
                if (rdma_frame_check(from_server.bytes, from_server.length, &why))
                        continue;
                rdma_handshake_step(&client, from_server.bytes, &from_client);
                if (client.state == RDMA_HANDSHAKE_AWAITING_WELCOME)
                        pass(&server, &from_client, &from_server);
                ck_assert_msg(server.state == RDMA_HANDSHAKE_FAILED ||
                                      client.state == RDMA_HANDSHAKE_FAILED,
                              "byte %zu", i);
        }
}
END_TEST

START_TEST(another_run_of_the_server_is_stale)
{
        static const uint8_t meant[RDMA_ID_BYTES] = {2}, earlier[RDMA_ID_BYTES] = {9};

        start(meant);
        run();
        ck_assert_int_eq(client.state, RDMA_HANDSHAKE_DONE);
        start(earlier);
        pass(&server, &from_client, &from_server);
        pass(&client, &from_server, &from_client);
        ck_assert_int_eq(client.end, RDMA_END_STALE);
        ck_assert_uint_eq(from_client.length, 0);
}
END_TEST

START_TEST(a_server_refuses_who_means_another_run)
{
        static const uint8_t earlier[RDMA_ID_BYTES] = {9};
        struct rdma_handshake_answer challenge;
        uint8_t *id;

        start(earlier);
        pass(&server, &from_client, &challenge);
        /* The client believes that it met the run it means; the server proves it wrong. */
        id = challenge.bytes + offsetof(struct rdma_frame_challenge, id);
        memcpy(id, earlier, sizeof(earlier));
        memcpy(server.challenge.id, earlier, sizeof(earlier));
        pass(&client, &challenge, &from_client);
        pass(&server, &from_client, &from_server);
        ck_assert_int_eq(server.end, RDMA_END_STALE);
        pass(&client, &from_server, &from_client);
        ck_assert_int_eq(client.end, RDMA_END_STALE);
}
END_TEST

START_TEST(majors_have_to_be_equal_and_the_lower_minor_holds)
{
        struct rdma_handshake_self own = make_self(&client_domain, 1);
        struct rdma_handshake_self theirs = make_self(&server_domain, 2);

        theirs.identity.minor = 2;
        start_as(&own, &theirs, any);
        run();
        ck_assert_uint_eq(client.minor, 2);
        ck_assert_uint_eq(server.minor, 2);
        theirs.identity.major = 2;
        start_as(&own, &theirs, any);
        pass(&server, &from_client, &from_server);
        ck_assert_int_eq(server.end, RDMA_END_UNSUPPORTED);
        pass(&client, &from_server, &from_client);
        ck_assert_int_eq(client.end, RDMA_END_UNSUPPORTED);
        ck_assert_ptr_nonnull(
                strstr(client.why.text, "version 1 meets protocol 00000007 version 2"));
}
END_TEST

START_TEST(a_frame_out_of_turn_fails)
{
        start(any);
        rdma_handshake_step(&client, from_client.bytes, &from_server);
        ck_assert_int_eq(client.end, RDMA_END_PROTOCOL);
        start(any);
        pass(&server, &from_client, &from_server);
        pass(&server, &from_client, &from_server);
        ck_assert_int_eq(server.end, RDMA_END_PROTOCOL);
        /* After its end it takes nothing, and tells nobody why. */
        rdma_handshake_step(&server, from_client.bytes, &from_server);
        ck_assert_uint_eq(from_server.length, 0);
}
END_TEST

/* What each frame's own fields may not be; the fuzz target has the rest. */
START_TEST(frames_that_are_not_as_they_should_be_are_refused)
{
        _Alignas(8) uint8_t bytes[256] = {0};
        struct rdma_frame *frame = (void *)bytes;
        struct rdma_frame_hello *hello = (void *)bytes;
        struct why why = {""};

        start(any);
#define REFUSED(change, length)                                                                    \
        do {                                                                                       \
                memcpy(bytes, from_client.bytes, sizeof(from_client.bytes));                       \
                change;                                                                            \
                ck_assert_int_eq(rdma_frame_check(bytes, length, &why), RDMA_FRAME_E_INVALID);     \
                ck_assert_ptr_nonnull(strstr(why.text, "a "));                                     \
        } while (0)
        REFUSED(frame->magic++, sizeof(*hello));
        REFUSED(frame->kind = 0, sizeof(*hello));
        REFUSED(frame->kind = 9, sizeof(*hello));
        REFUSED(frame->reserved = 1, sizeof(*hello));
        REFUSED(frame->length--, sizeof(*hello));
        REFUSED((void)0, sizeof(*hello) - 1);
        REFUSED((void)0, 15);
        REFUSED((void)0, 0);
        REFUSED(hello->reserved = 1, sizeof(*hello));
        REFUSED(hello->n_credits = 3, sizeof(*hello));
        REFUSED(hello->n_credits = 4097, sizeof(*hello));
        REFUSED(hello->message_bytes = 511, sizeof(*hello));
        REFUSED(hello->message_bytes = 65537, sizeof(*hello));
        REFUSED(hello->domain[63] = 'x', sizeof(*hello));
        REFUSED(hello->domain[0] = '\n', sizeof(*hello));
        REFUSED(memset(hello->domain, 'x', 64), sizeof(*hello));
        /* A message without bytes; a nudge with some. */
        rdma_frame_init(frame, RDMA_FRAME_MESSAGE, sizeof(*frame));
        ck_assert_int_eq(rdma_frame_check(bytes, sizeof(*frame), &why), RDMA_FRAME_E_INVALID);
        rdma_frame_init(frame, RDMA_FRAME_NUDGE, sizeof(*frame) + 1);
        ck_assert_int_eq(rdma_frame_check(bytes, sizeof(*frame) + 1, &why), RDMA_FRAME_E_INVALID);
        rdma_frame_init(frame, RDMA_FRAME_MESSAGE, sizeof(*frame) + 1);
        ck_assert_int_eq(rdma_frame_check(bytes, sizeof(*frame) + 1, &why), 0);
}
END_TEST

START_TEST(each_end_has_a_name)
{
        for (uint32_t i = 0; i < RDMA_N_ENDS; i++) {
                ck_assert_ptr_nonnull(rdma_end_name(i));
                ck_assert_str_ne(rdma_end_name(i), "unknown");
        }
        ck_assert_str_eq(rdma_end_name(RDMA_N_ENDS), "unknown");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_handshake");
        TCase *all = tcase_create("rdma_handshake");
        SRunner *runner;
        int failed;

        tcase_add_test(all, who_knows_the_secret_is_let_in_and_both_know_each_other);
        tcase_add_test(all, the_secret_is_forgotten_when_it_is_over);
        tcase_add_test(all, a_wrong_secret_is_refused_in_words);
        tcase_add_test(all, an_unknown_domain_looks_like_a_wrong_secret);
        tcase_add_test(all, a_secret_that_is_short_is_none);
        tcase_add_test(all, a_server_that_does_not_know_the_secret_is_found_out);
        tcase_add_test(all, a_proof_is_worth_nothing_to_another_challenge);
        tcase_add_test(all, nobody_in_between_can_change_what_was_said);
        tcase_add_test(all, another_run_of_the_server_is_stale);
        tcase_add_test(all, a_server_refuses_who_means_another_run);
        tcase_add_test(all, majors_have_to_be_equal_and_the_lower_minor_holds);
        tcase_add_test(all, a_frame_out_of_turn_fails);
        tcase_add_test(all, frames_that_are_not_as_they_should_be_are_refused);
        tcase_add_test(all, each_end_has_a_name);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
