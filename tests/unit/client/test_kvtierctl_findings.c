// SPDX-License-Identifier: Apache-2.0
/* What kvtierctl doctor finds in a status, and what it passes over. */
#include <check.h>
#include <string.h>

#include "client/kvtierctl/findings.h"

static const struct findings_process free_process = {.memlock_bytes = UINT64_MAX};

/* A healthy daemon: huge pages, both tiers, nothing lost. */
static json_t *healthy(void)
{
        json_error_t error;
        json_t *status =
                json_loads("{\"ok\": true, \"uptime_seconds\": 3600, \"objects\": 1000,"
                           " \"objects_max\": 100000, \"unaligned_tokens\": 0, \"tiers\": ["
                           "{\"name\": \"host\", \"capacity_bytes\": 1073741824, \"objects\": 100,"
                           " \"page_bytes\": 2097152, \"quarantined_bytes\": 4096, \"evicted\": 50,"
                           " \"dropped_unwritten\": 0, \"degraded\": false},"
                           "{\"name\": \"nvme\", \"capacity_bytes\": 4294967296, \"objects\": 900,"
                           " \"write\": \"cold\", \"evicted\": 10, \"degraded\": false}]}",
                           0, &error);

        ck_assert_ptr_nonnull(status);
        return status;
}

static json_t *tier(json_t *status, size_t i)
{
        return json_array_get(json_object_get(status, "tiers"), i);
}

static void set(json_t *object, const char *name, json_int_t value)
{
        json_object_set_new(object, name, json_integer(value));
}

/* @status is freed. Exactly one finding, of @check, or none for NULL. */
static void assert_finding(json_t *status, const struct findings_process *process,
                           const char *check)
{
        json_t *list = findings_list(status, process), *finding = json_array_get(list, 0);

        ck_assert_uint_eq(json_array_size(list), check ? 1 : 0);
        if (check) {
                ck_assert_str_eq(json_string_value(json_object_get(finding, "check")), check);
                ck_assert(*json_string_value(json_object_get(finding, "finding")));
                ck_assert(*json_string_value(json_object_get(finding, "remedy")));
        }
        json_decref(list);
        json_decref(status);
}

START_TEST(a_healthy_daemon_has_no_findings)
{
        assert_finding(healthy(), &free_process, NULL);
}
END_TEST

START_TEST(small_pages_are_found)
{
        json_t *status = healthy();

        set(tier(status, 0), "page_bytes", 4096);
        assert_finding(status, &free_process, "huge_pages");
}
END_TEST

START_TEST(a_low_memlock_limit_is_found_unless_root_or_without_nvme)
{
        struct findings_process process = {.memlock_bytes = 8 << 20};
        json_t *status = healthy();

        assert_finding(healthy(), &process, "memlock");
        json_array_remove(json_object_get(status, "tiers"), 1);
        assert_finding(status, &process, NULL);
        process.is_root = true;
        assert_finding(healthy(), &process, NULL);
}
END_TEST

START_TEST(unaligned_tokens_are_found)
{
        json_t *status = healthy();

        set(status, "unaligned_tokens", 1);
        assert_finding(status, &free_process, "unaligned_tokens");
}
END_TEST

START_TEST(a_tier_that_thrashes_is_found_once_it_can_be_judged)
{
        json_t *status = healthy();

        /* 100 objects, 100,000 evicted in an hour: each stays 3.6 seconds. */
        set(tier(status, 0), "evicted", 100000);
        assert_finding(json_deep_copy(status), &free_process, "thrash");
        json_object_set_new(status, "uptime_seconds", json_real(5));
        assert_finding(json_deep_copy(status), &free_process, NULL);
        json_object_set_new(status, "uptime_seconds", json_real(360000));
        assert_finding(status, &free_process, NULL);
}
END_TEST

START_TEST(degraded_tiers_and_stalled_arenas_are_told_apart)
{
        for (size_t i = 0; i < 2; i++) {
                json_t *status = healthy();

                json_object_set_new(tier(status, i), "degraded", json_true());
                json_object_set_new(tier(status, i), "degraded_reason", json_string("why"));
                assert_finding(status, &free_process, i ? "degraded" : "stalled_arenas");
        }
}
END_TEST

START_TEST(each_cause_of_a_degraded_nvme_tier_has_its_own_remedy)
{
        json_t *status = healthy(), *found;
        const char *remedy;

        json_object_set_new(tier(status, 1), "degraded", json_true());
        json_object_set_new(tier(status, 1), "degraded_reason",
                            json_string("io_uring is not available, a thread pool is used; "
                                        "memory is not registered"));
        found = findings_list(status, &free_process);
        ck_assert_uint_eq(json_array_size(found), 2);
        remedy = json_string_value(json_object_get(json_array_get(found, 0), "remedy"));
        ck_assert_ptr_nonnull(strstr(remedy, "kvtier/seccomp.json"));
        remedy = json_string_value(json_object_get(json_array_get(found, 1), "remedy"));
        ck_assert_ptr_nonnull(strstr(remedy, "memlock"));
        json_decref(found);
        json_decref(status);
}
END_TEST

START_TEST(refused_pins_are_found)
{
        json_t *status = healthy();

        set(status, "pins_refused", 3);
        assert_finding(status, &free_process, "pins");
}
END_TEST

START_TEST(bad_bytes_quarantine_index_and_slow_devices_are_found)
{
        json_t *status = healthy();

        set(tier(status, 1), "corrupt", 1);
        assert_finding(status, &free_process, "bad_bytes");
        status = healthy();
        set(tier(status, 1), "io_errors", 1);
        assert_finding(status, &free_process, "bad_bytes");
        status = healthy();
        set(status, "pending", 2);
        assert_finding(status, &free_process, "pending");

        status = healthy();
        set(tier(status, 0), "quarantined_bytes", 1 << 29);
        assert_finding(status, &free_process, "quarantine");
        status = healthy();
        set(status, "objects", 95000);
        assert_finding(status, &free_process, "index");
        status = healthy();
        set(tier(status, 0), "dropped_unwritten", 20);
        assert_finding(json_deep_copy(status), &free_process, "unwritten");
        json_object_set_new(tier(status, 1), "write", json_string("off"));
        assert_finding(status, &free_process, NULL);
}
END_TEST

START_TEST(an_engine_that_was_turned_away_is_named_with_the_reason)
{
        json_t *status = healthy(), *list, *finding;
        json_t *refusals = json_pack("{s:I, s:f, s:s, s:s}", "number", (json_int_t)0, "age_seconds",
                                     12.0, "program", "vllm worker 1", "why",
                                     "layout: chunk_tokens 100: no multiple");
        const char *text;

        json_object_set_new(status, "layout_refusals", refusals);
        assert_finding(json_deep_copy(status), &free_process, NULL);
        set(refusals, "number", 3);
        list = findings_list(status, &free_process);
        finding = json_array_get(list, 0);
        text = json_string_value(json_object_get(finding, "finding"));
        ck_assert_ptr_nonnull(strstr(text, "3 times"));
        ck_assert_ptr_nonnull(strstr(text, "(vllm worker 1): layout: chunk_tokens 100"));
        text = json_string_value(json_object_get(finding, "remedy"));
        ck_assert_ptr_nonnull(strstr(text, "kvtierctl plan"));
        json_decref(list);
        assert_finding(status, &free_process, "layout_refused");
}
END_TEST

START_TEST(a_name_that_is_cut_within_a_character_hides_no_finding)
{
        json_t *list = json_array();
        const char *text;

        findings_add(list, "chunk", "none", "model %.6s", "caf\u00e9");
        findings_add(list, "chunk", "none", "model %.4s", "caf\u00e9");
        ck_assert_uint_eq(json_array_size(list), 2);
        text = json_string_value(json_object_get(json_array_get(list, 0), "finding"));
        ck_assert_str_eq(text, "model caf\u00e9");
        text = json_string_value(json_object_get(json_array_get(list, 1), "finding"));
        ck_assert_str_eq(text, "model caf?");
        json_decref(list);
}
END_TEST

START_TEST(what_the_status_does_not_say_is_no_finding)
{
        assert_finding(json_object(), &free_process, NULL);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("kvtierctl_findings");
        TCase *tcase = tcase_create("kvtierctl_findings");
        SRunner *runner;
        int n_failed;

        tcase_add_test(tcase, a_healthy_daemon_has_no_findings);
        tcase_add_test(tcase, refused_pins_are_found);
        tcase_add_test(tcase, an_engine_that_was_turned_away_is_named_with_the_reason);
        tcase_add_test(tcase, small_pages_are_found);
        tcase_add_test(tcase, a_low_memlock_limit_is_found_unless_root_or_without_nvme);
        tcase_add_test(tcase, unaligned_tokens_are_found);
        tcase_add_test(tcase, a_tier_that_thrashes_is_found_once_it_can_be_judged);
        tcase_add_test(tcase, degraded_tiers_and_stalled_arenas_are_told_apart);
        tcase_add_test(tcase, each_cause_of_a_degraded_nvme_tier_has_its_own_remedy);
        tcase_add_test(tcase, bad_bytes_quarantine_index_and_slow_devices_are_found);
        tcase_add_test(tcase, a_name_that_is_cut_within_a_character_hides_no_finding);
        tcase_add_test(tcase, what_the_status_does_not_say_is_no_finding);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
