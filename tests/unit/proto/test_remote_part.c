// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/remote_part.h"

static struct remote_join join;
static uint8_t message[WIRE_MESSAGE_MAX];
static struct why why;

static void setup(void)
{
        memset(&join, 0, sizeof(join));
        for (size_t i = 0; i < sizeof(message); i++)
                message[i] = (uint8_t)(i * 7 + i / 251);
}

/* Cuts and joins; returns how many parts it took. */
static unsigned carry(uint32_t length, size_t room)
{
        uint32_t offset = 0;
        unsigned n = 0;
        bool is_whole = false;

        while (offset < length) {
                uint8_t part[512];
                size_t bytes = remote_cut(part, room, REMOTE_SESSION, message, length, &offset);

                ck_assert(!is_whole);
                ck_assert_uint_le(bytes, room);
                ck_assert(!remote_join_add(&join, part, bytes, &is_whole, &why));
                n++;
        }
        ck_assert(is_whole);
        ck_assert_uint_eq(join.length, length);
        ck_assert_mem_eq(join.bytes, message, length);
        return n;
}

START_TEST(messages_come_together_as_they_were_cut)
{
        ck_assert_uint_eq(carry(1, 512), 1);
        ck_assert_uint_eq(carry(504, 512), 1);
        ck_assert_uint_eq(carry(505, 512), 2);
        ck_assert_uint_eq(carry(WIRE_MESSAGE_MAX, 512), 131);
        ck_assert_uint_eq(carry(20, 9), 20);
        ck_assert_uint_eq(join.service, REMOTE_SESSION);
}
END_TEST

static void refuse(uint32_t service, uint32_t left, size_t bytes, const char *text)
{
        struct remote_part header = {service, left};
        static uint8_t part[WIRE_MESSAGE_MAX + 64];
        bool is_whole;

        memcpy(part, &header, sizeof(header));
        ck_assert_int_eq(remote_join_add(&join, part, sizeof(header) + bytes, &is_whole, &why),
                         REMOTE_E_INVALID);
        ck_assert_msg(strstr(why.text, text), "%s", why.text);
}

START_TEST(parts_that_fit_no_message_are_refused)
{
        struct remote_part first = {REMOTE_PEER, 100};
        uint8_t part[sizeof(first) + 10] = {0};
        bool is_whole;

        refuse(REMOTE_SESSION, 0, 0, "more than 8");
        refuse(0, 0, 1, "service is 0");
        refuse(3, 0, 1, "service is 3");
        refuse(REMOTE_SESSION, UINT32_MAX, 1, "at most 65536");
        refuse(REMOTE_SESSION, WIRE_MESSAGE_MAX, 1, "at most 65536");
        refuse(REMOTE_SESSION, 0, WIRE_MESSAGE_MAX + 1, "at most 65536");

        memcpy(part, &first, sizeof(first));
        ck_assert(!remote_join_add(&join, part, sizeof(part), &is_whole, &why));
        ck_assert(!is_whole);
        refuse(REMOTE_SESSION, 90, 10, "was 2 before");
        refuse(REMOTE_PEER, 91, 10, "expected 100 together");
        refuse(REMOTE_PEER, 0, 99, "expected 100 together");
        refuse(REMOTE_PEER, 0, 101, "expected 100 together");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/remote_part");
        TCase *all = tcase_create("remote_part");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, NULL);
        tcase_add_test(all, messages_come_together_as_they_were_cut);
        tcase_add_test(all, parts_that_fit_no_message_are_refused);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
