// SPDX-License-Identifier: Apache-2.0
/*
 * The codecs against float64: rounding by looking for the nearest of all e4m3 numbers, the
 * documented bounds over every bf16 number under many scales.
 */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/codec_number.h"

#define N_BF16     65536u
#define SLACK      (1.0 + 0x1p-20) /* of fp32 */
#define LEAST      0x1p-126
#define INFINITE   0x7f80u
#define LARGEST    0x7f7fu
#define SIGN       0x8000u
#define MARK       0xa5u
#define MAGNITUDES 36u

static double of_bf16(uint16_t bf16)
{
        return (double)codec_float((uint32_t)bf16 << 16);
}

static bool is_nan(uint16_t bf16)
{
        return (bf16 & 0x7fffu) > INFINITE;
}

/* By the definition of the format. */
static double of_e4m3(uint8_t code)
{
        int exponent = code >> 3 & 15, digits = code & 7;
        double number = exponent ? ldexp(8 + digits, exponent - 10) : ldexp(digits, -9);

        return code & 0x80 ? -number : number;
}

/* The nearest of 0 to 448, ties to the even code. */
static uint8_t nearest_e4m3(double number)
{
        uint8_t best = 0;

        for (uint8_t code = 1; code <= 0x7e; code++) {
                double now = fabs(of_e4m3(code) - number), before = fabs(of_e4m3(best) - number);

                if (now < before || (now == before && !(code & 1)))
                        best = code;
        }
        return best;
}

struct tile {
        uint16_t numbers[CODEC_TILE_MAX];
        uint8_t codes[CODEC_TILE_MAX];
        uint8_t scale[CODEC_SCALE_MAX];
        uint16_t back[CODEC_TILE_MAX];
};

static void go(struct tile *tile, uint8_t codec)
{
        codec_encode(codec, tile->numbers, 1, tile->codes, tile->scale);
        codec_decode(codec, tile->codes, tile->scale, 1, tile->back);
}

static double scale_of(const struct tile *tile, uint8_t codec)
{
        float scale;

        if (codec == CODEC_MXFP8)
                return ldexp(1, tile->scale[0] - 127);
        memcpy(&scale, tile->scale, sizeof(scale));
        return (double)scale;
}

/* Largest magnitudes of tiles: from nothing to the largest there is, all kinds of digits. */
static uint16_t magnitude(unsigned i)
{
        static const uint16_t some[] = {
                0,      1,      0x7f,   0x80,   0x81,   0x95f,  0x960,  0x961,  0x9e0,
                0x9e1,  0xa00,  0x1000, 0x2fff, 0x3e00, 0x3f7f, 0x3f80, 0x3f81, 0x3fe0,
                0x3fe1, 0x3fff, 0x4000, 0x4060, 0x4061, 0x42c5, 0x43df, 0x43e0, 0x43e1,
                0x5000, 0x6001, 0x7e80, 0x7f00, 0x7f60, 0x7f61, 0x7f7e, 0x7f7f, 0x3f33,
        };

        _Static_assert(sizeof(some) / sizeof(some[0]) == MAGNITUDES, "as many as are said");
        return some[i];
}

/* All numbers that are no larger than @most in tiles whose first is @most. */
static void for_all_numbers(uint8_t codec, uint16_t most,
                            void (*check)(const struct tile *tile, uint8_t codec, unsigned i))
{
        uint32_t n = codec_tile_numbers(codec);
        struct tile tile;

        for (uint32_t next = 0; next < N_BF16;) {
                tile.numbers[0] = most;
                for (uint32_t i = 1; i < n; next++) {
                        if (next >= N_BF16)
                                tile.numbers[i++] = 0;
                        else if ((next & 0x7fff) <= most || is_nan((uint16_t)next))
                                tile.numbers[i++] = (uint16_t)next;
                }
                go(&tile, codec);
                for (uint32_t i = 0; i < n; i++)
                        check(&tile, codec, i);
        }
}

/* ---- sizes ---- */

START_TEST(a_page_is_codes_scales_and_padding)
{
        ck_assert_uint_eq(codec_stored_bytes(CODEC_NONE, 77), 77);
        ck_assert_uint_eq(codec_tile_bytes(CODEC_NONE), 1);
        ck_assert_uint_eq(codec_tile_bytes(CODEC_FP8_TILE128), 256);
        ck_assert_uint_eq(codec_tile_bytes(CODEC_MXFP8), 64);
        ck_assert_uint_eq(codec_stored_bytes(CODEC_FP8_TILE128, 256), 144);
        ck_assert_uint_eq(codec_stored_bytes(CODEC_FP8_TILE128, 4 * 256), 4 * 132);
        ck_assert_uint_eq(codec_stored_bytes(CODEC_MXFP8, 64), 48);
        ck_assert_uint_eq(codec_stored_bytes(CODEC_MXFP8, 16 * 64), 16 * 33);
        ck_assert_str_eq(codec_name(CODEC_NONE), "none");
        ck_assert_str_eq(codec_name(CODEC_FP8_TILE128), "fp8-tile128");
        ck_assert_str_eq(codec_name(CODEC_MXFP8), "mxfp8");
        ck_assert_str_eq(codec_name(CODEC_COUNT), "unknown");
}
END_TEST

/* ---- every number, many scales ---- */

/* Check's own claims take a system call each. */
static void expect(const struct tile *tile, uint8_t codec, unsigned i, bool is_right)
{
        if (!is_right)
                ck_abort_msg("%s, scale %a: %a, stored as %02x, came back as %a", codec_name(codec),
                             scale_of(tile, codec), of_bf16(tile->numbers[i]), tile->codes[i],
                             of_bf16(tile->back[i]));
}

/* The documented bounds. */
static void check_bound(const struct tile *tile, uint8_t codec, unsigned i)
{
        double x = of_bf16(tile->numbers[i]), back = of_bf16(tile->back[i]);
        double most = of_bf16(tile->numbers[0]), scale = scale_of(tile, codec), bound, whole;

        if (is_nan(tile->numbers[i])) {
                expect(tile, codec, i, is_nan(tile->back[i]));
                return;
        }
        bound = fmax(fmax(fabs(x) / 16, scale / 1024), LEAST);
        whole = most / 14;
        if (codec == CODEC_FP8_TILE128) {
                bound += fabs(back) / 256;
                whole = most * (1.0 / 28 + 1.0 / 256);
        }
        expect(tile, codec, i, fabs(back - x) <= bound * SLACK);
        expect(tile, codec, i, fabs(back - x) <= fmax(whole, LEAST) * SLACK);
        expect(tile, codec, i, signbit(back) == signbit(x));
}

START_TEST(every_number_comes_back_within_the_documented_bounds)
{
        for (unsigned i = 0; i < MAGNITUDES; i++)
                for_all_numbers((uint8_t)_i, magnitude(i), check_bound);
}
END_TEST

/* Codes from float64; but x / s is what fp32 makes of it, which is defined, too. */
static void check_code(const struct tile *tile, uint8_t codec, unsigned i)
{
        uint16_t bf16 = tile->numbers[i], most = tile->numbers[0];
        double x = (bf16 & 0x7fff) < 0x80 ? 0 : fabs(of_bf16(bf16)), scaled;
        uint8_t code = CODEC_E4M3_NAN;

        if (!is_nan(bf16)) {
                if (codec == CODEC_MXFP8) {
                        scaled = x / scale_of(tile, codec);
                } else {
                        float inverse = 448.0f / (float)fmax(of_bf16(most), 448 * 0x1p-117);
                        volatile float product = (float)x * inverse;

                        scaled = (double)product;
                }
                code = nearest_e4m3(scaled);
        }
        expect(tile, codec, i, tile->codes[i] == (code | (bf16 >> 8 & 0x80)));
}

START_TEST(every_number_gets_the_nearest_code)
{
        for (unsigned i = 0; i < MAGNITUDES; i += 3)
                for_all_numbers((uint8_t)_i, magnitude(i), check_code);
}
END_TEST

/* The plain functions, one number at a time, and the loops, which the compiler may widen. */
static void check_plain(const struct tile *tile, uint8_t codec, unsigned i)
{
        uint32_t largest = codec_magnitude(tile->numbers[0]);
        float inverse = codec == CODEC_MXFP8 ? codec_mxfp8_inverse(codec_mxfp8_scale(largest))
                                             : codec_fp8_inverse(largest);

        expect(tile, codec, i, tile->codes[i] == codec_encode_number(tile->numbers[i], inverse));
        expect(tile, codec, i,
               tile->back[i] == codec_decode_number(tile->codes[i], (float)scale_of(tile, codec)));
}

START_TEST(tiles_are_what_their_numbers_are)
{
        for (unsigned i = 0; i < MAGNITUDES; i++)
                for_all_numbers((uint8_t)_i, magnitude(i), check_plain);
}
END_TEST

START_TEST(the_largest_number_of_an_fp8_tile_comes_back_as_it_was)
{
        for (uint32_t most = 0x960; most <= LARGEST; most++) {
                struct tile tile = {.numbers = {[5] = (uint16_t)most, [127] = 0x80}};

                tile.numbers[8] = (uint16_t)(SIGN | most);
                go(&tile, CODEC_FP8_TILE128);
                expect(&tile, CODEC_FP8_TILE128, 5, tile.back[5] == most);
                expect(&tile, CODEC_FP8_TILE128, 8, tile.back[8] == (SIGN | most));
        }
}
END_TEST

START_TEST(the_scale_of_an_mxfp8_tile_is_the_smallest_that_serves)
{
        for (uint32_t most = 0x80; most <= LARGEST; most++) {
                struct tile tile = {.numbers = {[31] = (uint16_t)most}};
                double number = of_bf16((uint16_t)most), scale;

                go(&tile, CODEC_MXFP8);
                scale = scale_of(&tile, CODEC_MXFP8);
                expect(&tile, CODEC_MXFP8, 31, number <= 448 * scale);
                expect(&tile, CODEC_MXFP8, 31,
                       number > 224 * scale || tile.scale[0] == CODEC_E8M0_LEAST);
                expect(&tile, CODEC_MXFP8, 31, tile.scale[0] < 255); /* which would be NaN */
        }
}
END_TEST

static void fill_at_random(struct tile *tile, uint64_t *seed, unsigned exponents)
{
        for (unsigned i = 0; i < CODEC_TILE_MAX; i++) {
                *seed = *seed * 6364136223846793005u + 1442695040888963407u;
                tile->numbers[i] =
                        (uint16_t)((*seed >> 33 & 0x807f) | (128 - (*seed >> 50) % exponents) << 7);
        }
}

START_TEST(what_came_back_goes_and_comes_back_as_it_is)
{
        uint64_t seed = 1;

        for (unsigned round = 0; round < 5000; round++) {
                struct tile tile, again;

                fill_at_random(&tile, &seed, 1 + round % 24);
                go(&tile, (uint8_t)_i);
                memcpy(again.numbers, tile.back, sizeof(again.numbers));
                go(&again, (uint8_t)_i);
                ck_assert_mem_eq(again.back, tile.back,
                                 codec_tile_numbers((uint8_t)_i) * sizeof(tile.back[0]));
        }
}
END_TEST

/* ---- what is no ordinary number ---- */

START_TEST(a_tile_of_zeros_keeps_their_signs)
{
        struct tile tile = {.numbers = {[3] = SIGN}};

        go(&tile, (uint8_t)_i);
        for (unsigned i = 0; i < codec_tile_numbers((uint8_t)_i); i++)
                ck_assert_uint_eq(tile.back[i], tile.numbers[i]);
        ck_assert(scale_of(&tile, (uint8_t)_i) == 0x1p-117);
}
END_TEST

START_TEST(subnormal_numbers_come_back_as_zero)
{
        for (uint16_t number = 1; number < 0x80; number++) {
                struct tile tile = {.numbers = {[1] = number, [2] = SIGN | number}};

                go(&tile, (uint8_t)_i);
                expect(&tile, (uint8_t)_i, 1, tile.back[1] == 0);
                expect(&tile, (uint8_t)_i, 2, tile.back[2] == SIGN);
        }
}
END_TEST

START_TEST(infinity_is_the_largest_finite_number)
{
        struct tile infinite = {.numbers = {[1] = INFINITE, [2] = SIGN | INFINITE, [3] = 0x3f80}};
        struct tile largest = {.numbers = {[1] = LARGEST, [2] = SIGN | LARGEST, [3] = 0x3f80}};

        go(&infinite, (uint8_t)_i);
        go(&largest, (uint8_t)_i);
        ck_assert_mem_eq(infinite.codes, largest.codes, codec_tile_numbers((uint8_t)_i));
        ck_assert_mem_eq(infinite.scale, largest.scale, codec_scale_bytes((uint8_t)_i));
        ck_assert_uint_eq(infinite.back[1], LARGEST);
        ck_assert_uint_eq(infinite.back[2], SIGN | LARGEST);
        ck_assert_uint_eq(infinite.back[3], 0);
}
END_TEST

START_TEST(nan_stays_nan_and_harms_no_neighbour)
{
        for (uint32_t nan = INFINITE + 1; nan < SIGN; nan++) {
                struct tile tile = {.numbers = {[0] = (uint16_t)nan, [7] = 0x3f80, [9] = 0x3e00}};
                struct tile clean = {.numbers = {[7] = 0x3f80, [9] = 0x3e00}};

                tile.numbers[20] = (uint16_t)(SIGN | nan);
                go(&tile, (uint8_t)_i);
                go(&clean, (uint8_t)_i);
                expect(&tile, (uint8_t)_i, 0, tile.back[0] == 0x7fc0);
                expect(&tile, (uint8_t)_i, 20, tile.back[20] == 0xffc0);
                expect(&tile, (uint8_t)_i, 7, tile.back[7] == clean.back[7]);
                expect(&tile, (uint8_t)_i, 9, tile.back[9] == clean.back[9]);
        }
}
END_TEST

/* ---- memory ---- */

START_TEST(many_tiles_are_each_their_own_and_nothing_else_is_touched)
{
        enum { N = 5 };
        uint8_t codec = (uint8_t)_i;
        uint32_t n = codec_tile_numbers(codec), scale = codec_scale_bytes(codec);
        /* One byte off: nothing is aligned. */
        uint8_t numbers[N * 256 + 2], codes[N * 128 + 2], scales[N * 4 + 2], back[N * 256 + 2];
        uint64_t seed = 7;
        struct tile tiles[N];

        memset(codes, MARK, sizeof(codes));
        memset(scales, MARK, sizeof(scales));
        memset(back, MARK, sizeof(back));
        for (unsigned i = 0; i < N; i++) {
                fill_at_random(&tiles[i], &seed, 3 + 4 * i);
                go(&tiles[i], codec);
                memcpy(numbers + 1 + i * n * 2, tiles[i].numbers, n * 2);
        }
        codec_encode(codec, numbers + 1, N, codes + 1, scales + 1);
        codec_decode(codec, codes + 1, scales + 1, N, back + 1);
        for (unsigned i = 0; i < N; i++) {
                ck_assert_mem_eq(codes + 1 + i * n, tiles[i].codes, n);
                ck_assert_mem_eq(scales + 1 + i * scale, tiles[i].scale, scale);
                ck_assert_mem_eq(back + 1 + i * n * 2, tiles[i].back, n * 2);
        }
        ck_assert(codes[0] == MARK && codes[1 + N * n] == MARK);
        ck_assert(scales[0] == MARK && scales[1 + N * scale] == MARK);
        ck_assert(back[0] == MARK && back[1 + N * n * 2] == MARK);
}
END_TEST

/* Whatever bytes an object holds: numbers, and no trap. */
START_TEST(any_codes_and_scales_decode)
{
        for (unsigned round = 0; round < 256; round++) {
                struct tile tile;

                for (unsigned i = 0; i < CODEC_TILE_MAX; i++)
                        tile.codes[i] = (uint8_t)(i + round);
                memset(tile.scale, (int)round, sizeof(tile.scale));
                codec_decode((uint8_t)_i, tile.codes, tile.scale, 1, tile.back);
                for (unsigned i = 0; i < codec_tile_numbers((uint8_t)_i); i++)
                        ck_assert(is_nan(tile.back[i]) ==
                                  ((tile.codes[i] & 0x7f) == CODEC_E4M3_NAN));
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/codec");
        TCase *tcase = tcase_create("codec");
        SRunner *runner = srunner_create(suite);
        int n_failed;

#define FOR_EACH_CODEC(test) tcase_add_loop_test(tcase, test, CODEC_FP8_TILE128, CODEC_COUNT)
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_page_is_codes_scales_and_padding);
        FOR_EACH_CODEC(every_number_comes_back_within_the_documented_bounds);
        FOR_EACH_CODEC(every_number_gets_the_nearest_code);
        FOR_EACH_CODEC(tiles_are_what_their_numbers_are);
        tcase_add_test(tcase, the_largest_number_of_an_fp8_tile_comes_back_as_it_was);
        tcase_add_test(tcase, the_scale_of_an_mxfp8_tile_is_the_smallest_that_serves);
        FOR_EACH_CODEC(what_came_back_goes_and_comes_back_as_it_is);
        FOR_EACH_CODEC(a_tile_of_zeros_keeps_their_signs);
        FOR_EACH_CODEC(subnormal_numbers_come_back_as_zero);
        FOR_EACH_CODEC(infinity_is_the_largest_finite_number);
        FOR_EACH_CODEC(nan_stays_nan_and_harms_no_neighbour);
        FOR_EACH_CODEC(many_tiles_are_each_their_own_and_nothing_else_is_touched);
        FOR_EACH_CODEC(any_codes_and_scales_decode);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
