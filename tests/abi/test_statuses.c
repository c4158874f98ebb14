// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "client/kvtier.h"
#include "proto/status.h"
#include "tests/abi/test_statuses.h"

/* Frozen here as well: a status that is renumbered on both sides is an ABI break too. */
static const char *const frozen[] = {
        "OK",        "ALREADY_HAVE", "MISS",        "PENDING", "BUSY",
        "TOO_LARGE", "REFUSED",      "STALE",       "GONE",    "UNAVAILABLE",
        "TIMEOUT",   "CANCELLED",    "UNSUPPORTED", "INVALID", "CORRUPT",
        "DENIED",    "IO_ERROR",     "NO_MEMORY",   "FORKED",  "DRAINING",
};

#define N_FROZEN (sizeof(frozen) / sizeof(frozen[0]))

/*
 * The compiler refuses this switch when kvtier.h has a status that the wire lacks, and
 * the case when it is the other way round.
 */
static int public_number(enum kvt_status status)
{
        switch (status) {
#define PUBLIC_CASE(number, name, text)                                                            \
        case KVT_##name:                                                                           \
                return number;
                KVT_STATUS_LIST(PUBLIC_CASE)
#undef PUBLIC_CASE
        }
        return -1;
}

START_TEST(public_statuses_equal_those_of_the_wire)
{
        for (int i = 0; i < KVT_WIRE_STATUS_COUNT; i++)
                ck_assert_int_eq(public_number((enum kvt_status)i), i);
}
END_TEST

START_TEST(statuses_keep_their_numbers_and_names)
{
        ck_assert_int_ge(KVT_WIRE_STATUS_COUNT, (int)N_FROZEN);
        for (uint32_t i = 0; i < N_FROZEN; i++)
                ck_assert_str_eq(status_name(i), frozen[i]);
}
END_TEST

START_TEST(every_status_has_a_text)
{
        for (uint32_t i = 0; i < KVT_WIRE_STATUS_COUNT; i++) {
                ck_assert_uint_gt(strlen(status_text(i)), 1);
                ck_assert_str_ne(status_text(i), status_text(KVT_WIRE_STATUS_COUNT));
        }
        ck_assert_str_eq(status_name(KVT_WIRE_STATUS_COUNT), "UNKNOWN");
}
END_TEST

TCase *statuses_case(void)
{
        TCase *statuses = tcase_create("statuses");

        tcase_add_test(statuses, public_statuses_equal_those_of_the_wire);
        tcase_add_test(statuses, statuses_keep_their_numbers_and_names);
        tcase_add_test(statuses, every_status_has_a_text);
        return statuses;
}
