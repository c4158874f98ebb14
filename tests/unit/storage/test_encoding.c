// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "storage/encoding.h"

#define GUARD 64u

static const struct encoding encodings[] = {
        {ENCODING_LZ4, 1},         {ENCODING_PLANES_LZ4, 1},  {ENCODING_PLANES_LZ4, 2},
        {ENCODING_PLANES_LZ4, 4},  {ENCODING_PLANES_ZSTD, 1}, {ENCODING_PLANES_ZSTD, 2},
        {ENCODING_PLANES_ZSTD, 4},
};
#define N_ENCODINGS ((int)(sizeof(encodings) / sizeof(encodings[0])))

static uint64_t state;

static uint32_t draw(void)
{
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33);
}

/* One byte of four is noise, one has few values, two are zero; each line comes twice. */
static uint8_t *make_bytes(size_t length)
{
        uint8_t *bytes = calloc(1, length);

        ck_assert_ptr_nonnull(bytes);
        state = length;
        for (size_t i = 0; i < length; i++) {
                bytes[i] = i % 4 == 0 ? (uint8_t)draw() : i % 4 == 1 ? (uint8_t)(draw() % 3) : 0;
                if (i / 64 % 2)
                        bytes[i] = bytes[i - 64];
        }
        return bytes;
}

static uint8_t *make_noise(size_t length)
{
        uint8_t *bytes = malloc(length);

        ck_assert_ptr_nonnull(bytes);
        state = length + 1;
        for (size_t i = 0; i < length; i++)
                bytes[i] = (uint8_t)draw();
        return bytes;
}

/* Cuts @bytes into at most 8 segments at awkward places. */
static size_t cut(uint8_t *bytes, size_t length, struct iovec segments[8])
{
        size_t n = 0;

        while (length && n < 7) {
                size_t part = 1 + draw() % length;

                segments[n++] = (struct iovec){.iov_base = bytes, .iov_len = part};
                bytes += part;
                length -= part;
        }
        if (length)
                segments[n++] = (struct iovec){.iov_base = bytes, .iov_len = length};
        return n;
}

struct stored {
        struct encoding_scratch *scratch;
        struct encoding_table table;
        uint8_t *raw, *bytes;
        size_t length;
};

static int encode(struct stored *stored, struct encoding encoding, uint8_t *raw, size_t length)
{
        struct iovec segments[8];
        size_t n_segments;

        *stored = (struct stored){.raw = raw, .length = length};
        stored->scratch = encoding_scratch_new();
        stored->bytes = malloc(length + GUARD);
        ck_assert(stored->scratch && stored->bytes);
        memset(stored->bytes, 0xaa, length + GUARD);
        n_segments = cut(raw, length, segments);
        return encoding_encode(stored->scratch, encoding, segments, n_segments, length,
                               stored->bytes, &stored->table);
}

static void end(struct stored *stored)
{
        encoding_scratch_free(stored->scratch);
        free(stored->raw);
        free(stored->bytes);
}

/* Decodes to a buffer with guards; the result, and the bytes at *@ret_bytes. */
static int decode(struct stored *stored, const struct piece_set *pieces, size_t length,
                  uint8_t **ret_bytes)
{
        uint8_t *bytes = malloc(length + 2 * GUARD);
        struct iovec segments[8];
        size_t n_segments;
        int r;

        ck_assert_ptr_nonnull(bytes);
        memset(bytes, 0xbb, length + 2 * GUARD);
        n_segments = cut(bytes + GUARD, length, segments);
        r = encoding_decode(stored->scratch, &stored->table, stored->length, pieces, stored->bytes,
                            segments, n_segments);
        for (size_t i = 0; i < GUARD; i++) {
                ck_assert_uint_eq(bytes[i], 0xbb);
                ck_assert_uint_eq(bytes[GUARD + length + i], 0xbb);
        }
        memmove(bytes, bytes + GUARD, length);
        *ret_bytes = bytes;
        return r;
}

START_TEST(objects_come_back_whole)
{
        static const size_t lengths[] = {
                200,
                4095,
                4096,
                4097,
                8190,
                CHECKSUM_PIECE_BYTES - 1,
                CHECKSUM_PIECE_BYTES,
                CHECKSUM_PIECE_BYTES + 1,
                3 * CHECKSUM_PIECE_BYTES + 5,
                (CHECKSUM_PIECES_MAX * CHECKSUM_PIECE_BYTES) + 3,
        };

        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                struct stored stored;
                uint8_t *back;

                ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(lengths[i]), lengths[i]),
                                 0);
                ck_assert_uint_lt(stored.table.stored_bytes, lengths[i]);
                ck_assert(encoding_table_is_sane(&stored.table, lengths[i]));
                for (size_t g = 0; g < GUARD; g++)
                        ck_assert_uint_eq(stored.bytes[lengths[i] + g], 0xaa);
                ck_assert_int_eq(decode(&stored, NULL, lengths[i], &back), 0);
                ck_assert_mem_eq(back, stored.raw, lengths[i]);
                free(back);
                end(&stored);
        }
}
END_TEST

/* The second piece of four is noise, the rest zeros. */
START_TEST(piece_that_does_not_shrink_stays_raw)
{
        const size_t length = 4 * CHECKSUM_PIECE_BYTES;
        uint8_t *raw = calloc(1, length), *noise = make_noise(CHECKSUM_PIECE_BYTES), *back;
        struct stored stored;

        ck_assert_ptr_nonnull(raw);
        memcpy(raw + CHECKSUM_PIECE_BYTES, noise, CHECKSUM_PIECE_BYTES);
        ck_assert_int_eq(encode(&stored, encodings[_i], raw, length), 0);
        ck_assert_uint_eq(stored.table.lengths[1], CHECKSUM_PIECE_BYTES);
        ck_assert_mem_eq(stored.bytes + stored.table.lengths[0], noise, CHECKSUM_PIECE_BYTES);
        ck_assert_uint_lt(stored.table.lengths[0], CHECKSUM_PIECE_BYTES / 64);
        ck_assert_int_eq(decode(&stored, NULL, length, &back), 0);
        ck_assert_mem_eq(back, raw, length);
        free(back);
        free(noise);
        end(&stored);
}
END_TEST

/* Of planes, one is kept and the other shrinks: half the length and a little. */
START_TEST(plane_that_does_not_shrink_is_kept)
{
        const size_t length = 2 * CHECKSUM_PIECE_BYTES;
        uint8_t *raw = make_noise(length);
        struct stored stored;

        for (size_t i = 1; i < length; i += 2)
                raw[i] = 0x3f;
        ck_assert_int_eq(encode(&stored, (struct encoding){ENCODING_PLANES_LZ4, 2}, raw, length),
                         0);
        ck_assert_uint_gt(stored.table.stored_bytes, length / 2);
        ck_assert_uint_lt(stored.table.stored_bytes, length / 2 + length / 64);
        end(&stored);
}
END_TEST

/* Trying costs time: after a failure a plane is kept for some pieces without. */
START_TEST(kept_plane_is_tried_again_later)
{
        const size_t length = 6 * CHECKSUM_PIECE_BYTES;
        const struct encoding encoding = {ENCODING_PLANES_ZSTD, 2};
        uint8_t *raw = make_noise(length), *noise, *back;
        struct iovec segment;
        struct stored stored;

        for (size_t i = 0; i < length; i++)
                if (i % 2 || i >= CHECKSUM_PIECE_BYTES)
                        raw[i] = 0x3f;
        ck_assert_int_eq(encode(&stored, encoding, raw, length), 0);
        ck_assert_uint_gt(stored.table.lengths[0], CHECKSUM_PIECE_BYTES / 2);
        ck_assert_uint_gt(stored.table.lengths[1], CHECKSUM_PIECE_BYTES / 2);
        ck_assert_uint_lt(stored.table.lengths[4], CHECKSUM_PIECE_BYTES / 64);
        ck_assert_uint_lt(stored.table.lengths[5], CHECKSUM_PIECE_BYTES / 64);
        ck_assert_int_eq(decode(&stored, NULL, length, &back), 0);
        ck_assert_mem_eq(back, raw, length);
        free(back);

        /* The next object begins anew. */
        noise = make_noise(CHECKSUM_PIECE_BYTES);
        segment = (struct iovec){noise, CHECKSUM_PIECE_BYTES};
        ck_assert_int_eq(encoding_encode(stored.scratch, encoding, &segment, 1,
                                         CHECKSUM_PIECE_BYTES, stored.bytes, &stored.table),
                         ENCODING_E_RAW);
        memset(noise, 0, CHECKSUM_PIECE_BYTES);
        ck_assert_int_eq(encoding_encode(stored.scratch, encoding, &segment, 1,
                                         CHECKSUM_PIECE_BYTES, stored.bytes, &stored.table),
                         0);
        ck_assert_uint_lt(stored.table.stored_bytes, CHECKSUM_PIECE_BYTES / 64);
        free(noise);
        end(&stored);
}
END_TEST

START_TEST(noise_is_stored_raw)
{
        static const size_t lengths[] = {1, 3, 16, 17, 4096, 3 * CHECKSUM_PIECE_BYTES + 7};

        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                struct stored stored;

                ck_assert_int_eq(encode(&stored, encodings[_i], make_noise(lengths[i]), lengths[i]),
                                 ENCODING_E_RAW);
                ck_assert_uint_eq(stored.table.n_pieces, 0);
                for (size_t g = 0; g < GUARD; g++)
                        ck_assert_uint_eq(stored.bytes[lengths[i] + g], 0xaa);
                end(&stored);
        }
}
END_TEST

/* A twentieth of zeros behind noise: less than a sixteenth is gained. */
START_TEST(small_gain_is_not_taken)
{
        const size_t length = CHECKSUM_PIECE_BYTES;
        uint8_t *raw = make_noise(length);
        struct stored stored;

        memset(raw + length - length / 20, 0, length / 20);
        ck_assert_int_eq(encode(&stored, (struct encoding){ENCODING_LZ4, 1}, raw, length),
                         ENCODING_E_RAW);
        end(&stored);
        raw = make_noise(length);
        memset(raw + length - length / 14, 0, length / 14);
        ck_assert_int_eq(encode(&stored, (struct encoding){ENCODING_LZ4, 1}, raw, length), 0);
        end(&stored);
}
END_TEST

/* Other pieces are not looked at: their stored bytes may not have been read. */
START_TEST(some_pieces_decode_without_the_rest)
{
        const size_t length = 5 * CHECKSUM_PIECE_BYTES + 77;
        struct piece_set set = {.words = {1u << 1 | 1u << 2 | 1u << 5}};
        struct piece_run raw = {0, 0}, run;
        struct stored stored;
        uint8_t *back, *only;

        ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(length), length), 0);
        only = malloc(length);
        ck_assert_ptr_nonnull(only);
        memset(only, 0x77, length);
        while (encoding_next_run(&stored.table, &set, length, raw.end, &raw, &run))
                memcpy(only + run.first, stored.bytes + run.first, run.end - run.first);
        free(stored.bytes);
        stored.bytes = only;
        ck_assert_int_eq(decode(&stored, &set, 2 * CHECKSUM_PIECE_BYTES + 77, &back), 0);
        ck_assert_mem_eq(back, stored.raw + CHECKSUM_PIECE_BYTES, 2 * CHECKSUM_PIECE_BYTES);
        ck_assert_mem_eq(back + 2 * CHECKSUM_PIECE_BYTES, stored.raw + 5 * CHECKSUM_PIECE_BYTES,
                         77);
        free(back);
        end(&stored);
}
END_TEST

START_TEST(runs_lie_where_their_pieces_are_stored)
{
        const size_t length = 4 * CHECKSUM_PIECE_BYTES;
        struct encoding_table table = {.encoding = {ENCODING_LZ4, 1},
                                       .n_pieces = 4,
                                       .stored_bytes = 100,
                                       .lengths = {10, 20, 30, 40}};
        struct piece_set set = {.words = {1u << 0 | 1u << 2 | 1u << 3}};
        struct piece_run raw = {0, 0}, run;

        ck_assert(encoding_next_run(&table, &set, length, 0, &raw, &run));
        ck_assert(run.first == 0 && run.end == 10 && raw.end == CHECKSUM_PIECE_BYTES);
        ck_assert(encoding_next_run(&table, &set, length, raw.end, &raw, &run));
        ck_assert(run.first == 30 && run.end == 100 && raw.end == length);
        ck_assert(!encoding_next_run(&table, &set, length, raw.end, &raw, &run));
        ck_assert_uint_eq(encoding_offset(&table, 4), 100);
}
END_TEST

START_TEST(each_flipped_bit_of_a_stored_form_is_damage)
{
        const size_t length = 700;
        struct stored stored;
        uint8_t *back;

        ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(length), length), 0);
        for (size_t bit = 0; bit < 8 * stored.table.stored_bytes; bit++) {
                stored.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_eq(decode(&stored, NULL, length, &back), ENCODING_E_DAMAGED);
                free(back);
                stored.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        end(&stored);
}
END_TEST

/* A copy of @length bytes right before a page that nobody may touch. */
static uint8_t *at_the_edge(const uint8_t *bytes, size_t length, void **ret_map)
{
        size_t size = (length + 4095) / 4096 * 4096;
        uint8_t *map =
                mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_int_eq(mprotect(map + size, 4096, PROT_NONE), 0);
        memcpy(map + size - length, bytes, length);
        *ret_map = map;
        return map + size - length;
}

/* Whoever can write the stored form can write its checksum as well. */
START_TEST(hostile_bytes_stay_within_the_buffers)
{
        const size_t length = CHECKSUM_PIECE_BYTES + 333;
        struct stored stored;
        uint8_t *good, *back, *own;
        void *map;

        ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(length), length), 0);
        good = malloc(stored.table.stored_bytes);
        ck_assert_ptr_nonnull(good);
        memcpy(good, stored.bytes, stored.table.stored_bytes);
        own = stored.bytes;
        stored.bytes = at_the_edge(good, stored.table.stored_bytes, &map);
        for (int round = 0; round < 300; round++) {
                struct encoding_table *table = &stored.table;
                uint32_t n_changes = 1 + draw() % 8;
                int r;

                memcpy(stored.bytes, good, table->stored_bytes);
                for (uint32_t i = 0; i < n_changes; i++) {
                        /* Half of them where the lengths of planes are. */
                        size_t at = draw() % (draw() % 2 ? 16 : table->stored_bytes);

                        stored.bytes[at] = (uint8_t)draw();
                }
                table->checksums[0] = XXH3_64bits(stored.bytes, table->lengths[0]);
                table->checksums[1] =
                        XXH3_64bits(stored.bytes + table->lengths[0], table->lengths[1]);
                r = decode(&stored, NULL, length, &back);
                ck_assert(r == 0 || r == ENCODING_E_DAMAGED);
                free(back);
        }
        /* The planes of the last piece, which is at the edge, are said to be longer. */
        memcpy(stored.bytes, good, stored.table.stored_bytes);
        for (uint32_t i = 0; i < encodings[_i].element_bytes; i++)
                stored.bytes[stored.table.lengths[0] + 4 * i + 1]++;
        stored.table.checksums[1] =
                XXH3_64bits(stored.bytes + stored.table.lengths[0], stored.table.lengths[1]);
        ck_assert_int_eq(decode(&stored, NULL, length, &back), ENCODING_E_DAMAGED);
        free(back);
        munmap(map, (stored.table.stored_bytes + 4095) / 4096 * 4096 + 4096);
        stored.bytes = own;
        free(good);
        end(&stored);
}
END_TEST

START_TEST(bytes_behind_the_planes_are_damage)
{
        const size_t length = 700;
        struct stored stored;
        uint8_t *back;

        ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(length), length), 0);
        stored.table.stored_bytes = ++stored.table.lengths[0];
        stored.table.checksums[0] = XXH3_64bits(stored.bytes, stored.table.lengths[0]);
        ck_assert_int_eq(decode(&stored, NULL, length, &back), ENCODING_E_DAMAGED);
        free(back);
        end(&stored);
}
END_TEST

START_TEST(tables_that_cannot_be_are_refused)
{
        const uint64_t raw = 2 * CHECKSUM_PIECE_BYTES;
        struct encoding_table good = {.encoding = {ENCODING_PLANES_ZSTD, 2},
                                      .n_pieces = 2,
                                      .stored_bytes = 300,
                                      .lengths = {100, 200}};
        struct encoding_table bad = good;

        ck_assert(encoding_table_is_sane(&good, raw));
        ck_assert(!encoding_table_is_sane(&good, raw + 1));
        ck_assert(!encoding_table_is_sane(&good, 0));
        bad.encoding.element_bytes = 3;
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad.encoding = (struct encoding){ENCODING_KINDS, 2};
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad.encoding = (struct encoding){0};
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad = good;
        bad.stored_bytes++;
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad = good;
        bad.lengths[0] = 0;
        bad.stored_bytes = 200;
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad = good;
        bad.lengths[0] = CHECKSUM_PIECE_BYTES + 1;
        bad.stored_bytes = CHECKSUM_PIECE_BYTES + 201;
        ck_assert(!encoding_table_is_sane(&bad, raw));
        bad = good;
        bad.lengths[0] = bad.lengths[1] = CHECKSUM_PIECE_BYTES;
        bad.stored_bytes = raw;
        ck_assert(!encoding_table_is_sane(&bad, raw));
}
END_TEST

START_TEST(table_comes_back_from_its_bytes)
{
        const size_t length = 3 * CHECKSUM_PIECE_BYTES + 9;
        uint8_t bytes[ENCODING_TABLE_BYTES_MAX];
        struct encoding_table table;
        struct stored stored;
        uint32_t number;
        size_t n;

        ck_assert_int_eq(encode(&stored, encodings[_i], make_bytes(length), length), 0);
        number = encoding_number(stored.table.encoding);
        n = encoding_table_bytes(&stored.table);
        ck_assert_uint_eq(n, 4 * 12);
        encoding_table_put(&stored.table, bytes);
        ck_assert_uint_eq(bytes[4 * 8] | bytes[4 * 8 + 1] << 8 | bytes[4 * 8 + 2] << 16,
                          stored.table.lengths[0]);
        ck_assert(encoding_table_get(bytes, n, number, length, stored.table.stored_bytes, &table));
        ck_assert_mem_eq(&table, &stored.table, sizeof(table));
        ck_assert(!encoding_table_get(bytes, n - 1, number, length, table.stored_bytes, &table));
        ck_assert(!encoding_table_get(bytes, n, 0, length, table.stored_bytes, &table));
        ck_assert(!encoding_table_get(bytes, n, number | 1u << 16, length, table.stored_bytes,
                                      &table));
        ck_assert(!encoding_table_get(bytes, n, number, length, table.stored_bytes - 1, &table));
        ck_assert(!encoding_table_get(bytes, n, number, 0, table.stored_bytes, &table));
        ck_assert(!encoding_table_get(bytes, n, number, UINT64_MAX, table.stored_bytes, &table));
        end(&stored);
}
END_TEST

START_TEST(planes_follow_the_length_of_numbers)
{
        ck_assert_uint_eq(encoding_of(ENCODING_PLANES_ZSTD, 2).element_bytes, 2);
        ck_assert_uint_eq(encoding_of(ENCODING_PLANES_LZ4, 4).element_bytes, 4);
        ck_assert_uint_eq(encoding_of(ENCODING_PLANES_LZ4, 0).element_bytes, 1);
        ck_assert_uint_eq(encoding_of(ENCODING_PLANES_LZ4, 8).element_bytes, 1);
        ck_assert_uint_eq(encoding_of(ENCODING_LZ4, 2).element_bytes, 1);
        ck_assert_uint_eq(encoding_number(encoding_of(ENCODING_RAW, 2)), 0);
        for (int i = 0; i < N_ENCODINGS; i++) {
                struct encoding back = encoding_from_number(encoding_number(encodings[i]));

                ck_assert(encoding_is_known(back));
                ck_assert_mem_eq(&back, &encodings[i], sizeof(back));
        }
        ck_assert_uint_eq(encoding_number((struct encoding){ENCODING_PLANES_ZSTD, 2}), 0x203);
}
END_TEST

START_TEST(kinds_have_names)
{
        for (uint8_t kind = 0; kind < ENCODING_KINDS; kind++)
                ck_assert_int_eq(encoding_kind_of(encoding_name(kind)), kind);
        ck_assert_int_eq(encoding_kind_of("planes-zstd"), ENCODING_PLANES_ZSTD);
        ck_assert_int_eq(encoding_kind_of("zip"), -1);
        ck_assert_str_eq(encoding_name(ENCODING_KINDS), "unknown");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/encoding");
        TCase *tcase = tcase_create("encoding");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, objects_come_back_whole, 0, N_ENCODINGS);
        tcase_add_loop_test(tcase, piece_that_does_not_shrink_stays_raw, 0, N_ENCODINGS);
        tcase_add_test(tcase, plane_that_does_not_shrink_is_kept);
        tcase_add_test(tcase, kept_plane_is_tried_again_later);
        tcase_add_loop_test(tcase, noise_is_stored_raw, 0, N_ENCODINGS);
        tcase_add_test(tcase, small_gain_is_not_taken);
        tcase_add_loop_test(tcase, some_pieces_decode_without_the_rest, 0, N_ENCODINGS);
        tcase_add_test(tcase, runs_lie_where_their_pieces_are_stored);
        tcase_add_loop_test(tcase, each_flipped_bit_of_a_stored_form_is_damage, 0, N_ENCODINGS);
        tcase_add_loop_test(tcase, hostile_bytes_stay_within_the_buffers, 0, N_ENCODINGS);
        tcase_add_loop_test(tcase, bytes_behind_the_planes_are_damage, 0, N_ENCODINGS);
        tcase_add_test(tcase, tables_that_cannot_be_are_refused);
        tcase_add_loop_test(tcase, table_comes_back_from_its_bytes, 0, N_ENCODINGS);
        tcase_add_test(tcase, planes_follow_the_length_of_numbers);
        tcase_add_test(tcase, kinds_have_names);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
