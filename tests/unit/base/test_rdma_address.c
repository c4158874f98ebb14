// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_address.h"

static bool is_in(const char *network, const char *address)
{
        struct sockaddr_storage parsed;
        struct rdma_network one;

        ck_assert_int_eq(rdma_network_parse(&one, network, NULL), 0);
        ck_assert_int_eq(rdma_address_parse(&parsed, address, 1, NULL), 0);
        return rdma_networks_contain(&one, 1, (struct sockaddr *)&parsed);
}

static void check_round_trip(const char *text, const char *expected)
{
        struct sockaddr_storage address;
        char written[RDMA_ADDRESS_TEXT_MAX];

        ck_assert_int_eq(rdma_address_parse(&address, text, 7428, NULL), 0);
        rdma_address_format((struct sockaddr *)&address, written);
        ck_assert_str_eq(written, expected);
}

START_TEST(addresses_are_read_as_they_are_written)
{
        check_round_trip("10.0.0.1:80", "10.0.0.1:80");
        check_round_trip("10.0.0.1", "10.0.0.1:7428");
        check_round_trip("[fd00::1]:65535", "[fd00::1]:65535");
        check_round_trip("[fd00::1]", "[fd00::1]:7428");
        check_round_trip("fd00::1", "[fd00::1]:7428");
}
END_TEST

START_TEST(what_is_no_address_is_refused_in_words)
{
        static const char *const texts[] = {
                "",
                "node7:80",
                "10.0.0.1:",
                "10.0.0.1:65536",
                "10.0.0.1:-1",
                "10.0.0.1:+1",
                "10.0.0.1:8 ",
                "10.0.0.1:000080",
                "[fd00::1]80",
                "[fd00::1",
                "10.0.0:80",
                "10.0.0.1.5:80",
                "[10.0.0.1",
                "1111111111111111111111111111111111111111111111111111111111111111111111111:1"};
        struct sockaddr_storage address;

        for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
                struct why why = {""};

                ck_assert_msg(rdma_address_parse(&address, texts[i], 1, &why) ==
                                      RDMA_ADDRESS_E_INVALID,
                              "%s", texts[i]);
                ck_assert_ptr_nonnull(strstr(why.text, "is not an address such as"));
        }
}
END_TEST

START_TEST(a_network_has_those_that_share_its_prefix)
{
        ck_assert(is_in("10.0.0.0/8", "10.255.0.1"));
        ck_assert(!is_in("10.0.0.0/8", "11.0.0.1"));
        ck_assert(is_in("10.1.0.128/25", "10.1.0.128"));
        ck_assert(!is_in("10.1.0.128/25", "10.1.0.127"));
        ck_assert(is_in("10.1.0.7", "10.1.0.7"));
        ck_assert(!is_in("10.1.0.7", "10.1.0.6"));
        ck_assert(is_in("0.0.0.0/0", "203.0.113.9"));
        ck_assert(!is_in("0.0.0.0/0", "fd00::1"));
        ck_assert(is_in("fd00::/8", "fdff::1"));
        ck_assert(!is_in("fd00::/8", "fe00::1"));
        ck_assert(is_in("::/0", "10.0.0.1"));
        ck_assert(is_in("10.0.0.0/8", "::ffff:10.0.0.1"));
}
END_TEST

START_TEST(an_empty_list_has_nobody)
{
        struct sockaddr_storage address;

        ck_assert_int_eq(rdma_address_parse(&address, "10.0.0.1:1", 1, NULL), 0);
        ck_assert(!rdma_networks_contain(NULL, 0, (struct sockaddr *)&address));
}
END_TEST

START_TEST(what_is_no_network_is_refused_in_words)
{
        static const char *const texts[] = {"",     "10.0.0.0/33", "fd00::/129", "10.0.0.0/",
                                            "10/8", "10.0.0.0/8x", "any",        "10.0.0.0/-1"};
        struct rdma_network network;

        for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
                struct why why = {""};

                ck_assert_msg(rdma_network_parse(&network, texts[i], &why) ==
                                      RDMA_ADDRESS_E_INVALID,
                              "%s", texts[i]);
                ck_assert_ptr_nonnull(strstr(why.text, "is not a network such as"));
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_address");
        TCase *all = tcase_create("rdma_address");
        SRunner *runner;
        int failed;

        tcase_add_test(all, addresses_are_read_as_they_are_written);
        tcase_add_test(all, what_is_no_address_is_refused_in_words);
        tcase_add_test(all, a_network_has_those_that_share_its_prefix);
        tcase_add_test(all, an_empty_list_has_nobody);
        tcase_add_test(all, what_is_no_network_is_refused_in_words);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
