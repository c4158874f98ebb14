// SPDX-License-Identifier: Apache-2.0
/* Stored bytes that are not what was stored: always a miss, counted, never returned. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/segment.h"
#include "storage/superblock.h"
#include "tests/unit/storage/nvme_fixture.h"

static struct nvme_fixture fixture;

static void set_up(void)
{
        fixture_init(&fixture);
}

static void tear_down(void)
{
        fixture_deinit(&fixture);
}

static struct driver_object store(uint32_t n, uint64_t raw_bytes)
{
        struct driver_object object = driver_object(n, raw_bytes);

        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        return object;
}

START_TEST(flipped_bits_anywhere_read_as_corrupt)
{
        const uint64_t raw_bytes = 700001;
        const uint64_t at[] = {
                0,
                8,
                16,
                25,
                41,
                50,
                64,
                72,
                80,
                150,
                160,
                200,
                300,
                304,
                320,
                600,
                1000,
                2000,
                4095,
                4096,
                5000,
                4096 + 262144,
                4096 + raw_bytes - 1,
        };
        struct driver_object object;
        uint64_t offset;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, raw_bytes);
        fixture_locate(&object, &member, &offset);
        for (uint32_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
                fixture_flip(&fixture, member, offset + at[i]);
                ck_assert_int_eq(driver_read(&fixture.driver, &object),
                                 at[i] == 8 ? TIER_E_MISS : TIER_E_CORRUPT);
                fixture_flip(&fixture, member, offset + at[i]);
        }
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).corrupt_total,
                          sizeof(at) / sizeof(at[0]) - 1);
        fixture_close(&fixture);
}
END_TEST

/* What was not asked for is neither read nor judged; the header is, whatever is asked for. */
START_TEST(pieces_are_judged_by_themselves)
{
        const uint64_t raw_bytes = 6u << 20, piece = CHECKSUM_PIECE_BYTES;
        struct piece_set set = {{0}};
        struct driver_object object;
        uint64_t offset, before;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, raw_bytes);
        fixture_locate(&object, &member, &offset);
        piece_set_add(&set, raw_bytes, 2 * piece, 2 * piece);
        piece_set_add(&set, raw_bytes, 20 * piece, 1);

        before = driver_usage(&fixture.driver).read_bytes_total;
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).read_bytes_total - before,
                          SEGMENT_HEADER_BYTES + 3 * piece);
        for (uint32_t i = 0; i < 24; i++) {
                uint64_t at = offset + SEGMENT_HEADER_BYTES + i * piece + i;

                fixture_flip(&fixture, member, at);
                ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set),
                                 piece_set_has(&set, i) ? TIER_E_CORRUPT : 0);
                fixture_flip(&fixture, member, at);
        }
        fixture_flip(&fixture, member, offset + 600); /* the sum of a piece */
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set), TIER_E_CORRUPT);
        fixture_close(&fixture);
}
END_TEST

START_TEST(bytes_behind_the_end_do_not_matter)
{
        struct driver_object object;
        uint64_t offset;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, 5000);
        fixture_locate(&object, &member, &offset);
        fixture_flip(&fixture, member, offset + 4096 + 5000);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(swapped_objects_read_as_corrupt)
{
        struct driver_object first, second;
        uint64_t first_at, second_at;
        uint8_t *a = malloc(69632), *b = malloc(69632);
        uint32_t member;

        fixture_open(&fixture);
        first = store(1, 65536);
        second = store(2, 65536);
        fixture_locate(&first, &member, &first_at);
        fixture_locate(&second, &member, &second_at);
        fixture_peek(&fixture, 0, first_at, a, 69632);
        fixture_peek(&fixture, 0, second_at, b, 69632);
        fixture_poke(&fixture, 0, first_at, b, 69632);
        fixture_poke(&fixture, 0, second_at, a, 69632);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), TIER_E_CORRUPT);
        ck_assert_int_eq(driver_read(&fixture.driver, &second), TIER_E_CORRUPT);
        /* Bytes alone, each under the other's header. */
        fixture_poke(&fixture, 0, first_at, a, 4096);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), TIER_E_CORRUPT);
        free(a);
        free(b);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_older_write_of_the_same_object_is_not_returned)
{
        struct driver_object object;
        uint8_t *old = malloc(69632);
        uint64_t offset, again;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_locate(&object, &member, &offset);
        fixture_peek(&fixture, member, offset, old, 69632);
        ck_assert_int_eq(driver_forget(&fixture.driver, &object, false), 0);
        object = store(1, 65536);
        fixture_locate(&object, &member, &again);
        ck_assert_uint_eq(offset, again);
        /* As if the second write had been lost: all but the claim is right. */
        fixture_poke(&fixture, member, offset, old, 69632);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        free(old);
        fixture_close(&fixture);
}
END_TEST

START_TEST(zeroed_objects_read_as_corrupt)
{
        uint8_t zeros[4096] = {0};
        struct driver_object object;
        uint64_t offset;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_locate(&object, &member, &offset);
        fixture_poke(&fixture, member, offset + 4096, zeros, sizeof(zeros));
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        fixture_poke(&fixture, member, offset, zeros, sizeof(zeros));
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_file_cut_short_under_the_tier_fails_the_one_read)
{
        struct driver_object first, last;
        struct tier_usage usage;

        fixture_open(&fixture);
        first = store(1, 65536);
        store(2, 8u << 20);
        last = store(3, 8u << 20);
        ck_assert_int_eq(truncate(fixture.paths[0], 12 << 20), 0);
        ck_assert_int_lt(driver_read(&fixture.driver, &last), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), 0);
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_ge(usage.io_errors_total, 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_file_cut_short_between_runs_is_a_miss)
{
        struct driver_object first, last;

        fixture_open(&fixture);
        first = store(1, 65536);
        store(2, 8u << 20);
        last = store(3, 8u << 20);
        fixture_close(&fixture);
        ck_assert_int_eq(truncate(fixture.paths[0], 12 << 20), 0);
        ck_assert_uint_eq(fixture_open(&fixture), 3);
        fixture_adopt(&fixture, &first);
        fixture_adopt(&fixture, &last);
        ck_assert_int_eq(driver_read(&fixture.driver, &last), TIER_E_CORRUPT);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_object_of_a_newer_format_is_a_miss)
{
        struct driver_object object;
        uint32_t member, version = 9;
        uint64_t offset;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_locate(&object, &member, &offset);
        fixture_poke(&fixture, member, offset + 8, &version, sizeof(version));
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_MISS);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_imitated_header_in_the_payload_is_not_believed)
{
        struct segment_header header;
        struct driver_object object, fake;
        uint64_t offset;
        uint32_t member;

        /* A sealed header of the same pool and claim that lies in another object's bytes. */
        fixture_open(&fixture);
        object = store(1, 1u << 20);
        fixture_locate(&object, &member, &offset);
        fixture_peek(&fixture, member, offset, &header, sizeof(header));
        fixture_poke(&fixture, member, offset + 8192, &header, sizeof(header));
        fake = object;
        fake.place.where += 2; /* the same place, two units on */
        ck_assert_int_eq(driver_read(&fixture.driver, &fake), TIER_E_CORRUPT);
        fixture_close(&fixture);
}
END_TEST

static void write_boot_id(const char *path, const char *id)
{
        int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, id, strlen(id)), (ssize_t)strlen(id));
        close(fd);
}

static void store_two(struct nvme_fixture *of, struct driver_object *objects)
{
        ck_assert_int_eq(driver_write(&of->driver, &objects[0]), 0);
        ck_assert_int_eq(driver_write(&of->driver, &objects[1]), 0);
}

/* Two objects, an end without close, then a start in another run of the machine, or not. */
static void mismatch_after_death(const char *next_boot, int expected)
{
        struct driver_object objects[2] = {driver_object(1, 65536), driver_object(2, 65536)};
        struct driver_object fresh = driver_object(3, 65536);
        char path[96];
        uint64_t offset;
        uint32_t member;

        snprintf(path, sizeof(path), "%s/boot_id", fixture.folder);
        fixture.options.boot_id_path = path;
        write_boot_id(path, "00000000-0000-0000-0000-000000000001\n");
        fixture_die_after(&fixture, store_two, objects, 2);
        write_boot_id(path, next_boot);
        ck_assert_uint_eq(fixture_open(&fixture), 2);
        fixture_adopt(&fixture, &objects[0]);
        fixture_adopt(&fixture, &objects[1]);
        ck_assert_int_eq(driver_write(&fixture.driver, &fresh), 0);
        fixture_locate(&objects[0], &member, &offset);
        fixture_flip(&fixture, member, offset + 5000);
        fixture_locate(&fresh, &member, &offset);
        fixture_flip(&fixture, member, offset + 5000);
        ck_assert_int_eq(driver_read(&fixture.driver, &objects[0]), expected);
        ck_assert_int_eq(driver_read(&fixture.driver, &objects[1]), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &fresh), TIER_E_CORRUPT);
        ck_assert_uint_eq(driver_usage(&fixture.driver).stale_total, expected == TIER_E_STALE);
        fixture_close(&fixture);

        /* A clean restart forgets neither who went through the power loss nor who did not. */
        fixture_open(&fixture);
        fixture_adopt(&fixture, &objects[0]);
        fixture_adopt(&fixture, &fresh);
        ck_assert_int_eq(driver_read(&fixture.driver, &objects[0]), expected);
        ck_assert_int_eq(driver_read(&fixture.driver, &fresh), TIER_E_CORRUPT);
        fixture_close(&fixture);
}

START_TEST(after_a_power_loss_a_mismatch_is_stale)
{
        mismatch_after_death("00000000-0000-0000-0000-000000000002\n", TIER_E_STALE);
}
END_TEST

START_TEST(after_a_mere_kill_a_mismatch_is_corrupt)
{
        mismatch_after_death("00000000-0000-0000-0000-000000000001\n", TIER_E_CORRUPT);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme damage");
        TCase *tcase = tcase_create("damage");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, flipped_bits_anywhere_read_as_corrupt);
        tcase_add_test(tcase, pieces_are_judged_by_themselves);
        tcase_add_test(tcase, bytes_behind_the_end_do_not_matter);
        tcase_add_test(tcase, swapped_objects_read_as_corrupt);
        tcase_add_test(tcase, an_older_write_of_the_same_object_is_not_returned);
        tcase_add_test(tcase, zeroed_objects_read_as_corrupt);
        tcase_add_test(tcase, a_file_cut_short_under_the_tier_fails_the_one_read);
        tcase_add_test(tcase, a_file_cut_short_between_runs_is_a_miss);
        tcase_add_test(tcase, an_object_of_a_newer_format_is_a_miss);
        tcase_add_test(tcase, an_imitated_header_in_the_payload_is_not_believed);
        tcase_add_test(tcase, after_a_power_loss_a_mismatch_is_stale);
        tcase_add_test(tcase, after_a_mere_kill_a_mismatch_is_corrupt);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
