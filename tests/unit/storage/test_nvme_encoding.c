// SPDX-License-Identifier: Apache-2.0
/* Objects that are stored encoded: in less room, and a miss when they are damaged. */
#include <check.h>
#include <string.h>

#include "storage/nvme_tier.h"
#include "tests/unit/storage/nvme_fixture.h"

#define RAW_BYTES (2u << 20)

static struct nvme_fixture fixture;

static void set_up(void)
{
        fixture_init(&fixture);
        fixture.driver.encoding = encoding_of(ENCODING_PLANES_ZSTD, 2);
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

static struct segment_header header_of(const struct driver_object *object)
{
        struct segment_header header;
        uint64_t offset;
        uint32_t member;

        fixture_locate(object, &member, &offset);
        fixture_peek(&fixture, member, offset, &header, sizeof(header));
        return header;
}

START_TEST(usage_tells_what_was_saved_and_what_it_cost)
{
        struct driver_object object;
        struct segment_header header;
        struct tier_usage usage;
        struct piece_set set = {{1u << 2}};

        fixture_open(&fixture);
        object = store(1, RAW_BYTES);
        header = header_of(&object);
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_lt(header.stored_bytes, RAW_BYTES * 7 / 10);
        ck_assert_uint_eq(usage.used_bytes, segment_units(header.stored_bytes) * 4096);
        ck_assert_uint_eq(usage.payload_bytes, usage.used_bytes - 4096);
        ck_assert_uint_eq(usage.written_bytes_total, usage.used_bytes);
        ck_assert_uint_eq(usage.encoded.raw_bytes_total, RAW_BYTES);
        ck_assert_uint_eq(usage.encoded.stored_bytes_total, header.stored_bytes);
        ck_assert(usage.encoded.seconds_total > 0);
        ck_assert_uint_eq(usage.decoded.raw_bytes_total, 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set), 0);
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_eq(usage.decoded.raw_bytes_total, RAW_BYTES + CHECKSUM_PIECE_BYTES);
        ck_assert_uint_eq(usage.decoded.stored_bytes_total,
                          header.stored_bytes + header.stored_lengths[2]);
        ck_assert(usage.decoded.seconds_total > 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(pieces_are_read_without_the_rest)
{
        struct driver_object object;
        struct piece_set set = {{1u << 0 | 1u << 5}};
        uint64_t before;

        fixture_open(&fixture);
        object = store(1, RAW_BYTES);
        before = driver_usage(&fixture.driver).read_bytes_total;
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set), 0);
        ck_assert_uint_lt(driver_usage(&fixture.driver).read_bytes_total - before,
                          2 * CHECKSUM_PIECE_BYTES);
        fixture_close(&fixture);
}
END_TEST

START_TEST(what_does_not_shrink_is_stored_raw)
{
        struct driver_object noise = driver_object(1, RAW_BYTES);
        struct driver_request request;
        struct tier_usage usage;

        fixture_open(&fixture);
        /* The driver's noise, under the driver's encoding. */
        fixture.driver.encoding = (struct encoding){0};
        ck_assert_int_eq(driver_submit_write(&fixture.driver, &request, &noise, 0), 0);
        ck_assert_int_eq(driver_wait(&request), 0);
        request.is_done = false;
        request.write.encoding = encoding_of(ENCODING_PLANES_LZ4, 2);
        ck_assert_int_eq(fixture.driver.tier->ops.write(fixture.driver.tier, &request.write), 0);
        ck_assert_int_eq(driver_wait(&request), 0);
        ck_assert_uint_eq(header_of(&noise).codec, 0);
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_eq(usage.used_bytes, 2 * segment_units(RAW_BYTES) * 4096);
        ck_assert_uint_eq(usage.encoded.raw_bytes_total, RAW_BYTES);
        ck_assert_uint_eq(usage.encoded.stored_bytes_total, RAW_BYTES);
        ck_assert_int_eq(driver_read(&fixture.driver, &noise), 0);

        fixture_close(&fixture);
}
END_TEST

/* A quarter of 8 KiB can be saved, but what is left takes two units as well. */
START_TEST(what_saves_no_unit_is_stored_raw)
{
        struct driver_object object = driver_object(1, 8192), small;
        struct checksum_segment whole = {fixture.driver.arena, 8192};
        struct driver_request request;

        fixture_open(&fixture);
        fixture.driver.encoding = (struct encoding){0};
        ck_assert_int_eq(driver_submit_write(&fixture.driver, &request, &object, 0), 0);
        ck_assert_int_eq(driver_wait(&request), 0);
        memset(fixture.driver.arena + 6144, 0, 2048);
        checksum_compute(&request.checksums, &object.object.key, 8192, &whole, 1);
        request.is_done = false;
        request.write.encoding = encoding_of(ENCODING_LZ4, 1);
        ck_assert_int_eq(fixture.driver.tier->ops.write(fixture.driver.tier, &request.write), 0);
        ck_assert_int_eq(driver_wait(&request), 0);
        ck_assert_uint_eq(header_of(&object).codec, 0);
        ck_assert_int_eq(driver_submit_read(&fixture.driver, &request, &object, 0), 0);
        ck_assert_int_eq(driver_wait(&request), 0);

        fixture.driver.encoding = encoding_of(ENCODING_PLANES_ZSTD, 2);
        small = store(2, 4096);
        ck_assert_uint_eq(header_of(&small).codec, 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &small), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(flipped_bits_of_a_stored_form_read_as_corrupt)
{
        struct driver_object object;
        struct segment_header header;
        uint64_t offset;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, 700001);
        header = header_of(&object);
        fixture_locate(&object, &member, &offset);
        for (uint32_t i = 0; i < 12; i++) {
                /* In the header's table, then all over the stored form, its last byte too. */
                uint64_t at =
                        i < 2 ? 1592 + 1024 * i : 4096 + (header.stored_bytes - 1) * (i - 2) / 9;

                fixture_flip(&fixture, member, offset + at);
                ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
                fixture_flip(&fixture, member, offset + at);
        }
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).corrupt_total, 12);
        fixture_close(&fixture);
}
END_TEST

START_TEST(damage_concerns_only_those_who_ask_for_that_piece)
{
        struct piece_set bad = {{1u << 3}}, good = {{1u << 2 | 1u << 4}};
        struct driver_object object;
        struct segment_header header;
        uint64_t offset, at = 4096;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, RAW_BYTES);
        header = header_of(&object);
        fixture_locate(&object, &member, &offset);
        for (uint32_t i = 0; i < 3; i++)
                at += header.stored_lengths[i];
        fixture_flip(&fixture, member, offset + at);
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &good), 0);
        ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &bad), TIER_E_CORRUPT);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        fixture_close(&fixture);
}
END_TEST

/* A header whose own checksum is right, as somebody with the disk in hand can write it. */
START_TEST(forged_stored_forms_are_damage)
{
        struct driver_object object;
        struct segment_header header, forged;
        struct piece_set set = {{1u << 1}};
        uint64_t offset;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, RAW_BYTES);
        header = header_of(&object);
        fixture_locate(&object, &member, &offset);
        for (uint32_t i = 0; i < 3; i++) {
                forged = header;
                if (i == 0)
                        forged.codec = ENCODING_PLANES_LZ4 | 2u << 8;
                else if (i == 1)
                        forged.codec = ENCODING_PLANES_ZSTD | 4u << 8;
                else
                        forged.stored_lengths[0] -= 100, forged.stored_lengths[1] += 100;
                segment_seal(&forged);
                fixture_poke(&fixture, member, offset, &forged, sizeof(forged));
                ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
                ck_assert_int_eq(driver_read_pieces(&fixture.driver, &object, &set),
                                 TIER_E_CORRUPT);
        }
        fixture_poke(&fixture, member, offset, &header, sizeof(header));
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        fixture_close(&fixture);
}
END_TEST

static void store_three(struct nvme_fixture *pool, struct driver_object *objects)
{
        pool->driver.encoding = encoding_of(ENCODING_PLANES_ZSTD, 2);
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = driver_object(i, RAW_BYTES);
                ck_assert_int_eq(driver_write(&pool->driver, &objects[i]), 0);
        }
}

START_TEST(encoded_objects_survive_a_kill)
{
        struct driver_object objects[3];
        uint64_t units = 0;

        fixture_die_after(&fixture, store_three, objects, 3);
        ck_assert_uint_eq(fixture_open(&fixture), 3);
        for (uint32_t i = 0; i < 3; i++) {
                fixture_adopt(&fixture, &objects[i]);
                ck_assert_int_eq(driver_read(&fixture.driver, &objects[i]), 0);
                units += segment_units(header_of(&objects[i]).stored_bytes);
        }
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, units * 4096);
        ck_assert_uint_eq(driver_usage(&fixture.driver).payload_bytes, (units - 3) * 4096);
        ck_assert_uint_lt(units, 3 * segment_units(RAW_BYTES) * 7 / 10);
        fixture_close(&fixture);
}
END_TEST

static bool is_never_current(struct tier_write *write)
{
        return false;
}

START_TEST(a_write_that_is_outdated_gives_all_its_space_back)
{
        struct driver_object object = driver_object(1, RAW_BYTES);
        struct driver_request request;

        fixture_open(&fixture);
        ck_assert_int_eq(driver_submit_write(&fixture.driver, &request, &object, 0), 0);
        request.write.is_current = is_never_current;
        ck_assert_int_eq(driver_wait(&request), TIER_E_CANCELLED);
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).queued_writes, 0);
        fixture_close(&fixture);
}
END_TEST

#define N_MANY 16u

/* Room for two at a time, of the sixteen that are in flight. */
START_TEST(more_objects_than_there_is_memory_for_take_turns)
{
        static struct driver_object objects[N_MANY];
        static struct driver_request requests[N_MANY];
        struct piece_set set = {{1u << 1}};
        const struct nvme *nvme;

        fixture.options.encode_bytes = 2 << 20;
        fixture_open(&fixture);
        for (uint32_t i = 0; i < N_MANY; i++) {
                objects[i] = driver_object(i, 1000000 + i);
                ck_assert_int_eq(driver_submit_write(&fixture.driver, &requests[i], &objects[i],
                                                     (uint64_t)i << 20),
                                 0);
        }
        for (uint32_t i = 0; i < N_MANY; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        for (uint32_t i = 0; i < N_MANY; i++)
                ck_assert_int_eq(i % 2 ? driver_submit_read(&fixture.driver, &requests[i],
                                                            &objects[i], (uint64_t)i << 20)
                                       : driver_submit_read_pieces(&fixture.driver, &requests[i],
                                                                   &objects[i], &set,
                                                                   (uint64_t)i << 20),
                                 0);
        for (uint32_t i = 0; i < N_MANY; i++) {
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
                ck_assert(driver_holds(&requests[i]));
        }
        nvme = (const struct nvme *)fixture.driver.tier;
        ck_assert_uint_gt(nvme->encoding.most_bytes, 1000000);
        ck_assert_uint_le(nvme->encoding.most_bytes, 2 << 20);
        ck_assert_uint_gt(nvme->decoding.most_bytes, 0);
        ck_assert_uint_le(nvme->decoding.most_bytes, 2 << 20);
        fixture_close(&fixture);
}
END_TEST

START_TEST(what_is_larger_than_the_memory_is_stored_raw_but_read)
{
        struct driver_object large, encoded;

        fixture_open(&fixture);
        encoded = store(1, 4u << 20);
        ck_assert_uint_ne(header_of(&encoded).codec, 0);
        fixture_close(&fixture);
        fixture.options.encode_bytes = 1 << 20;
        fixture_open(&fixture);
        fixture_adopt(&fixture, &encoded);
        large = store(2, (1u << 20) + 1);
        ck_assert_uint_eq(header_of(&large).codec, 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &large), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &encoded), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_unknown_encoding_is_refused)
{
        struct driver_object object = driver_object(1, RAW_BYTES);
        struct driver_request request;

        fixture_open(&fixture);
        fixture.driver.encoding = (struct encoding){ENCODING_KINDS, 2};
        ck_assert_int_eq(driver_submit_write(&fixture.driver, &request, &object, 0), -EINVAL);
        fixture_close(&fixture);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme encoding");
        TCase *tcase = tcase_create("encoding");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 30);
        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, usage_tells_what_was_saved_and_what_it_cost);
        tcase_add_test(tcase, pieces_are_read_without_the_rest);
        tcase_add_test(tcase, what_does_not_shrink_is_stored_raw);
        tcase_add_test(tcase, what_saves_no_unit_is_stored_raw);
        tcase_add_test(tcase, flipped_bits_of_a_stored_form_read_as_corrupt);
        tcase_add_test(tcase, damage_concerns_only_those_who_ask_for_that_piece);
        tcase_add_test(tcase, forged_stored_forms_are_damage);
        tcase_add_test(tcase, encoded_objects_survive_a_kill);
        tcase_add_test(tcase, a_write_that_is_outdated_gives_all_its_space_back);
        tcase_add_test(tcase, more_objects_than_there_is_memory_for_take_turns);
        tcase_add_test(tcase, what_is_larger_than_the_memory_is_stored_raw_but_read);
        tcase_add_test(tcase, an_unknown_encoding_is_refused);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
