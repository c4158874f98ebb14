// SPDX-License-Identifier: Apache-2.0
/*
 * One layout with a group of each sort, encoded to the documented bytes; then the same
 * with one thing wrong. The id was computed apart from the library:
 *
 *   import hashlib, struct
 *   p = struct.pack
 *   def s(x): return p("<H", len(x)) + x.encode()
 *   def tensor(n, d, b): return s(n) + s(d) + p("<Q", b)
 *   def row(first, shards, page, padded, *t):
 *       return p("<HHQQH", first, shards, page, padded, len(t)) + b"".join(t)
 *   def group(n, kind, shards, tokens, window, *rows):
 *       return s(n) + p("<BBHIIH", kind, 0, shards, tokens, window, len(rows)) + b"".join(rows)
 *   e = b"KVTL" + p("<HH", 2, 0) + b"".join(map(s, ["org/model", "main", "bfloat16",
 *       "bfloat16", "engine", "1.2.3", "NHD", ""]))
 *   e += p("<IIHHHH", 1, 48, 2, 1, 1, 4)
 *   e += group("full", 1, 3, 16, 0,
 *              row(0, 2, 65536, 69632, tensor("k", "bf16", 32768), tensor("v", "bf16", 32768)),
 *              row(2, 1, 32768, 32768, tensor("k", "bf16", 32768)))
 *   e += group("window", 2, 2, 24, 1024, row(0, 2, 4096, 4096))
 *   e += group("scratch", 6, 2, 0, 0, row(0, 2, 100, 100))
 *   e += group("state", 5, 1, 0, 0, row(0, 1, 1000000, 1000000))
 *   print(len(e), hashlib.sha256(e).hexdigest())
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"

#define ENCODED_BYTES 330
#define ID            "e2d7ced20c79fea670265b8f439acf5d51386dc7fe4c5cb3bf7e6aca8ab6c0bd"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})

static struct layout layout;
static uint8_t tensors[256];
static size_t tensors_used;
static uint8_t encoding[LAYOUT_BYTES_MAX];

/* Rows are given their tensors one after another. */
static void add_tensor(struct layout_row *row, struct layout_string name, uint64_t bytes)
{
        int r = layout_tensor_encode(tensors + tensors_used, sizeof(tensors) - tensors_used, name,
                                     TEXT("bf16"), bytes);

        ck_assert_int_gt(r, 0);
        if (!row->n_tensors++)
                row->tensors = tensors + tensors_used;
        row->tensors_bytes += (uint32_t)r;
        tensors_used += (size_t)r;
}

static void setup(void)
{
        layout = (struct layout){
                .model = TEXT("org/model"),
                .revision = TEXT("main"),
                .model_dtype = TEXT("bfloat16"),
                .kv_dtype = TEXT("bfloat16"),
                .engine = TEXT("engine"),
                .engine_build = TEXT("1.2.3"),
                .kernel_layout = TEXT("NHD"),
                .draft_tokens = 1,
                .chunk_tokens = 48,
                .tp = 2,
                .pp = 1,
                .cp = 1,
                .n_groups = 4,
                .groups = {{.name = TEXT("full"),
                            .kind = LAYOUT_ATTENTION,
                            .n_shards = 3,
                            .page_tokens = 16},
                           {.name = TEXT("window"),
                            .kind = LAYOUT_WINDOW,
                            .n_shards = 2,
                            .page_tokens = 24,
                            .window_tokens = 1024},
                           {.name = TEXT("scratch"), .kind = LAYOUT_SCRATCH, .n_shards = 2},
                           {.name = TEXT("state"), .kind = LAYOUT_STATE, .n_shards = 1}},
        };
        struct layout_row rows[] = {
                {.n_shards = 2, .page_bytes = 65536, .padded_bytes = 69632},
                {.first_shard = 2, .n_shards = 1, .page_bytes = 32768, .padded_bytes = 32768},
                {.n_shards = 2, .page_bytes = 4096, .padded_bytes = 4096},
                {.n_shards = 2, .page_bytes = 100, .padded_bytes = 100},
                {.n_shards = 1, .page_bytes = 1000000, .padded_bytes = 1000000},
        };
        const uint16_t groups[] = {0, 0, 1, 2, 3};

        tensors_used = 0;
        add_tensor(&rows[0], TEXT("k"), 32768);
        add_tensor(&rows[0], TEXT("v"), 32768);
        add_tensor(&rows[1], TEXT("k"), 32768);
        for (size_t i = 0; i < 5; i++)
                ck_assert_int_eq(layout_add_row(&layout, groups[i], &rows[i]), 0);
}

static void encode(void)
{
        ck_assert_int_eq(layout_encode(&layout, encoding, sizeof(encoding)), ENCODED_BYTES);
}

/* From memory that ends with the encoding, so that ASan sees any read beyond. */
static int decode_exactly(size_t length, struct why *why)
{
        uint8_t *copy = malloc(length ? length : 1);
        struct layout decoded;
        int r;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, encoding, length);
        r = layout_decode(&decoded, copy, length, why);
        free(copy);
        return r;
}

static void assert_refused(const char *text)
{
        struct why why = {""};

        ck_assert_int_eq(layout_validate(&layout, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, text), "\"%s\" lacks \"%s\"", why.text, text);
        ck_assert_int_eq(layout_validate(&layout, NULL), -EINVAL);
}

START_TEST(a_layout_has_the_documented_bytes_and_id)
{
        char text[2 * DIGEST_BYTES + 1];
        struct digest id;

        encode();
        ck_assert_int_eq(layout_id(&id, encoding, ENCODED_BYTES), 0);
        for (int i = 0; i < DIGEST_BYTES; i++)
                snprintf(text + 2 * i, 3, "%02x", id.bytes[i]);
        ck_assert_str_eq(text, ID);
}
END_TEST

START_TEST(decoding_gives_the_same_bytes_again)
{
        uint8_t again[ENCODED_BYTES];
        struct layout decoded;
        struct why why = {""};

        encode();
        ck_assert_msg(!layout_decode(&decoded, encoding, ENCODED_BYTES, &why), "%s", why.text);
        ck_assert_uint_eq(decoded.n_groups, 4);
        ck_assert_uint_eq(decoded.groups[1].window_tokens, 1024);
        ck_assert_uint_eq(layout_row(&decoded, 0, 1)->padded_bytes, 69632);
        ck_assert_mem_eq(decoded.engine_build.bytes, "1.2.3", decoded.engine_build.length);
        ck_assert_int_eq(layout_encode(&decoded, again, sizeof(again)), ENCODED_BYTES);
        ck_assert_mem_eq(again, encoding, ENCODED_BYTES);
}
END_TEST

START_TEST(every_field_is_part_of_the_id)
{
        uint8_t other[ENCODED_BYTES];
        struct layout before = layout;

        encode();
#define DIFFERS(member, value)                                                                     \
        do {                                                                                       \
                layout = before;                                                                   \
                layout.member = (value);                                                           \
                ck_assert_int_eq(layout_encode(&layout, other, sizeof(other)), ENCODED_BYTES);     \
                ck_assert_msg(memcmp(other, encoding, sizeof(other)), #member);                    \
        } while (0)
        DIFFERS(model, TEXT("org/nodel"));
        DIFFERS(revision, TEXT("mail"));
        DIFFERS(model_dtype, TEXT("bfloat18"));
        DIFFERS(kv_dtype, TEXT("bfloat18"));
        DIFFERS(engine, TEXT("engina"));
        DIFFERS(engine_build, TEXT("1.2.4"));
        DIFFERS(kernel_layout, TEXT("HND"));
        DIFFERS(draft_tokens, 2);
        DIFFERS(chunk_tokens, 96);
        DIFFERS(tp, 3);
        DIFFERS(pp, 3);
        DIFFERS(cp, 3);
        DIFFERS(groups[0].name, TEXT("fall"));
        DIFFERS(groups[0].kind, LAYOUT_INDEX);
        DIFFERS(groups[0].n_shards, 1);
        DIFFERS(groups[0].codec, 1);
        DIFFERS(groups[0].page_tokens, 8);
        DIFFERS(rows[0].page_bytes, 65535);
        DIFFERS(rows[0].padded_bytes, 65536);
        DIFFERS(rows[0].first_shard, 1);
        DIFFERS(rows[0].n_shards, 1);
        DIFFERS(rows[1].tensors, layout.rows[0].tensors + 15);
        DIFFERS(is_partial, true);
        DIFFERS(groups[1].window_tokens, 1023);
}
END_TEST

START_TEST(no_encoding_passes_cut_short_or_with_bytes_behind)
{
        struct why why;

        encode();
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES, &why), 0);
        for (size_t length = 0; length < ENCODED_BYTES; length++)
                ck_assert_int_eq(decode_exactly(length, &why), -EINVAL);
        ck_assert_str_eq(why.text, "layout: the encoding ends too early");
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES + 1, &why), -EINVAL);
        ck_assert_str_eq(why.text, "layout: there are bytes behind the last group");
        ck_assert_int_eq(layout_decode(&layout, encoding, LAYOUT_BYTES_MAX + 1, &why), -EINVAL);
        ck_assert_str_eq(why.text, "layout: 32769 bytes, expected at most 32768");
}
END_TEST

START_TEST(another_version_or_flag_is_refused)
{
        struct why why;

        encode();
        encoding[0] = 'X';
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES, &why), -EINVAL);
        encoding[0] = 'K';
        encoding[4] = 1;
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES, &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "version 1, flags 0x0, expected version 2"));
        encoding[4] = 2;
        encoding[7] = 0x80;
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES, &why), -EINVAL);
}
END_TEST

START_TEST(more_groups_than_there_is_room_for_are_refused)
{
        const size_t n_groups_at = 8 + (2 + 9) + (2 + 4) + 2 * (2 + 8) + (2 + 6) + (2 + 5) +
                                   (2 + 3) + 2 + 4 + 4 + 3 * 2;
        struct why why;

        encode();
        ck_assert_uint_eq(encoding[n_groups_at], 4);
        encoding[n_groups_at] = LAYOUT_GROUPS_MAX + 1;
        ck_assert_int_eq(decode_exactly(ENCODED_BYTES, &why), -EINVAL);
        ck_assert_str_eq(why.text, "layout: 33 groups, expected 1 to 32");
}
END_TEST

START_TEST(a_refused_decode_leaves_the_layout_alone)
{
        struct layout before = layout;

        encode();
        ck_assert_int_eq(layout_decode(&layout, encoding, ENCODED_BYTES - 1, NULL), -EINVAL);
        ck_assert_mem_eq(&before, &layout, sizeof(layout));
}
END_TEST

START_TEST(a_buffer_too_small_is_said)
{
        uint8_t buffer[ENCODED_BYTES];

        for (size_t capacity = 0; capacity < ENCODED_BYTES; capacity++)
                ck_assert_int_eq(layout_encode(&layout, buffer, capacity), -ENOSPC);
        ck_assert_int_eq(layout_tensor_encode(buffer, 12, TEXT("k"), TEXT("d"), 1), -ENOSPC);
        ck_assert_int_eq(layout_tensor_encode(buffer, 14, TEXT("k"), TEXT("d"), 1), 14);
}
END_TEST

START_TEST(a_chunk_that_is_no_multiple_is_refused_with_one_that_is)
{
        layout.chunk_tokens = 64;
        assert_refused(
                "group 1 \"window\": chunk_tokens is 64, no multiple of this group's "
                "page_tokens 24; the smallest that suits every group is 48, the next above is 96");
        layout.chunk_tokens = 72;
        assert_refused("group 0 \"full\": chunk_tokens is 72, no multiple of this group's "
                       "page_tokens 16; the smallest that suits every group is 48");
        layout.chunk_tokens = 16;
        assert_refused("page_tokens 24; the smallest that suits every group is 48; or 0");
        layout.chunk_tokens = 0;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
}
END_TEST

START_TEST(pages_without_a_common_multiple_are_refused)
{
        layout.chunk_tokens = 0;
        layout.groups[0].page_tokens = 4099;
        layout.groups[1].page_tokens = 4111;
        assert_refused("no multiple of every group's page_tokens is at most 16777216");
}
END_TEST

START_TEST(a_chunk_has_a_limit_in_tokens)
{
        for (size_t i = 0; i < 3; i++) {
                layout.rows[i].n_tensors = layout.rows[i].tensors_bytes = 0;
                layout.rows[i].page_bytes = (uint64_t)i + 1;
        }
        layout.chunk_tokens = LAYOUT_CHUNK_MAX / 48 * 48;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        layout.chunk_tokens += 48;
        assert_refused("chunk_tokens is 16777248, expected at most 16777216");
        layout.chunk_tokens = 0;
        layout.groups[0].page_tokens = UINT32_MAX;
        assert_refused("no multiple");
}
END_TEST

START_TEST(a_chunk_above_the_limit_is_refused)
{
        layout.chunk_tokens = 48 * 16384;
        assert_refused("group 0 \"full\": a chunk is above 1073741824 bytes");
}
END_TEST

#define REFUSED(change, text)                                                                      \
        do {                                                                                       \
                struct layout before = layout;                                                     \
                size_t used = tensors_used;                                                        \
                change;                                                                            \
                assert_refused(text);                                                              \
                layout = before;                                                                   \
                tensors_used = used;                                                               \
        } while (0)

START_TEST(each_rule_of_a_group_is_kept)
{
        REFUSED(layout.groups[0].kind = 0, "group 0 \"full\": unknown kind");
        REFUSED(layout.groups[0].kind = 7, "unknown kind");
        REFUSED(layout.groups[0].codec = CODEC_COUNT,
                "unknown codec, expected none (0), fp8-tile128 (1) or mxfp8 (2)");
        REFUSED(layout.groups[0].n_shards = 0, "n_shards must be 1 to 1024");
        REFUSED(layout.groups[0].n_shards = 1025, "n_shards must be 1 to 1024");
        REFUSED(layout.groups[0].page_tokens = 0, "needs page_tokens");
        REFUSED(layout.groups[0].window_tokens = 1, "window_tokens");
        REFUSED(layout.groups[1].window_tokens = 0, "group 1 \"window\": window_tokens");
        REFUSED(layout.groups[3].page_tokens = 1, "group 3 \"state\": a state group has no pages");
        REFUSED(layout.groups[0].name = TEXT("a\nb"), "group 0: its name");
        REFUSED(layout.groups[2].name.length = 0,
                "layout: group 2: has no name, expected one that no other group has");
        REFUSED(layout.groups[3].name = TEXT("window"),
                "group 3 \"window\": has the name of group 1, expected one that no other group "
                "has");
        REFUSED(layout.groups[1].first_row = 1, "its rows do not follow those of the group before");
        REFUSED(layout.groups[3].n_rows = 2, "group 3 \"state\": has rows that the layout lacks");
        REFUSED(layout.n_rows = 6, "6 rows, of which the groups have 5");
        REFUSED(layout.n_rows = 1025, "1025 rows, expected at most 1024");
}
END_TEST

START_TEST(only_whole_tiles_of_bfloat16_in_pages_take_a_codec)
{
        static uint8_t half[64];
        int length = layout_tensor_encode(half, sizeof(half), TEXT("k"), TEXT("float16"), 4096);

        REFUSED(layout.groups[3].codec = CODEC_FP8_TILE128,
                "group 3 \"state\": has no pages, so it takes no codec: states are never "
                "quantised");
        REFUSED(layout.groups[2].codec = CODEC_MXFP8, "group 2 \"scratch\": has no pages");
        layout.groups[1].codec = CODEC_FP8_TILE128;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        REFUSED(layout.rows[2].page_bytes = 4096 - 128,
                "group 1 \"window\": shards 0 to 1: codec fp8-tile128 needs page_bytes to be a "
                "multiple of 256: tiles of 128 bfloat16");
        layout.groups[1].codec = CODEC_MXFP8;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        REFUSED(layout.rows[2].page_bytes = 4096 - 96,
                "codec mxfp8 needs page_bytes to be a multiple of 64: tiles of 32 bfloat16");
        layout.groups[0].codec = CODEC_FP8_TILE128;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        layout.rows[2].tensors = half;
        layout.rows[2].tensors_bytes = (uint32_t)length;
        layout.rows[2].n_tensors = 1;
        assert_refused(
                "group 1 \"window\": shards 0 to 1: a codec needs tensors of dtype bfloat16");
        layout.groups[1].codec = CODEC_NONE;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
}
END_TEST

START_TEST(tensors_are_whole_tiles_where_there_is_a_codec)
{
        struct layout_row *row = &layout.rows[2];

        add_tensor(row, TEXT("k"), 2048 + 64);
        add_tensor(row, TEXT("v"), 2048 - 64);
        REFUSED(layout.groups[1].codec = CODEC_FP8_TILE128,
                "codec fp8-tile128 needs tensors of a multiple of 256 bytes");
        layout.groups[1].codec = CODEC_MXFP8;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        row->n_tensors = 0;
        row->tensors_bytes = 0;
        add_tensor(row, TEXT("k"), 2048 + 32);
        add_tensor(row, TEXT("v"), 2048 - 32);
        assert_refused("codec mxfp8 needs tensors of a multiple of 64 bytes");
}
END_TEST

START_TEST(a_codec_makes_objects_smaller)
{
        layout.groups[0].codec = CODEC_FP8_TILE128;
        layout.groups[1].codec = CODEC_MXFP8;
        ck_assert_uint_eq(layout_stored_page_bytes(&layout.groups[0], &layout.rows[0]), 256 * 132);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 1), 3 * 256 * 132);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 2), 3 * 128 * 132);
        ck_assert_uint_eq(layout_object_bytes(&layout, 1, 0), 2 * 64 * 33);
        ck_assert_uint_eq(layout_object_bytes(&layout, 3, 0), 1000000);
}
END_TEST

START_TEST(each_rule_of_a_row_is_kept)
{
        REFUSED(layout.rows[1].page_bytes = 0,
                "group 0 \"full\": shard 2: a paged group needs page_bytes");
        REFUSED(layout.rows[0].padded_bytes = 65535, "shards 0 to 1: padded_bytes is below");
        REFUSED(layout.rows[4].padded_bytes = layout.rows[4].page_bytes = (1u << 30) + 1,
                "page_bytes is above");
        REFUSED(layout.rows[0].n_tensors = 1, "n_tensors does not agree");
        REFUSED(layout.rows[0].n_tensors = 3, "n_tensors does not agree");
        REFUSED(layout.rows[0].n_tensors = 513, "more than 512 tensors");
        REFUSED(add_tensor(&layout.rows[1], TEXT("\x7f"), 1), "a tensor's name or dtype");
        REFUSED(add_tensor(&layout.rows[1], TEXT("v"), 1),
                "group 0 \"full\": shard 2: its tensors have 32769 bytes, expected page_bytes, "
                "32768");
        REFUSED(add_tensor(&layout.rows[1], TEXT("v"), UINT64_MAX), "18446744073709551615 bytes");
        REFUSED(layout.rows[0].n_shards = 0, "a row needs shards");
        REFUSED(layout.rows[1].n_shards = 2, "below the group's n_shards");
        REFUSED(layout.rows[1].first_shard = 1, "in the order of their shards and not overlap");
}
END_TEST

START_TEST(rows_cover_every_shard_unless_the_layout_is_partial)
{
        REFUSED(layout.rows[0].n_shards = 1, "shard 2: there is no row for the shards before");
        REFUSED(layout.groups[0].n_shards = 4, "no row for its last shards");
        ck_assert(layout_is_complete(&layout));
        layout.is_partial = true;
        layout.rows[0].n_shards = 1;
        layout.groups[0].n_shards = 4;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        ck_assert(!layout_is_complete(&layout));
        ck_assert_ptr_null(layout_row(&layout, 0, 1));
        ck_assert_ptr_eq(layout_row(&layout, 0, 2), &layout.rows[1]);
        ck_assert_ptr_null(layout_row(&layout, 0, 3));
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 3), 0);
}
END_TEST

START_TEST(rows_that_hold_the_same_are_one)
{
        struct layout_row row = layout.rows[4];

        REFUSED(layout.rows[1].page_bytes = 65536; layout.rows[1].padded_bytes = 69632;
                layout.rows[1].tensors = layout.rows[0].tensors;
                layout.rows[1].tensors_bytes = layout.rows[0].tensors_bytes;
                layout.rows[1].n_tensors = 2, "holds the same as the row before");
        layout.groups[3].n_shards = 4;
        row.first_shard = 1;
        ck_assert_int_eq(layout_add_row(&layout, 3, &row), 0);
        ck_assert_uint_eq(layout.n_rows, 5);
        ck_assert_uint_eq(layout.rows[4].n_shards, 2);
        row.first_shard = 3;
        ck_assert_int_eq(layout_add_row(&layout, 3, &row), 0);
        ck_assert_uint_eq(layout.n_rows, 6);
        layout.is_partial = true;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
}
END_TEST

START_TEST(only_who_asks_for_it_decodes_a_partial_layout)
{
        uint8_t again[ENCODED_BYTES];
        struct layout decoded;
        struct why why = {""};
        int length;

        layout.is_partial = true;
        layout.n_rows = 1;
        layout.groups[0].n_rows = 1;
        for (uint16_t i = 1; i < 4; i++)
                layout.groups[i].n_rows = 0;
        length = layout_encode(&layout, encoding, sizeof(encoding));
        ck_assert_int_gt(length, 0);
        ck_assert_int_eq(layout_decode(&decoded, encoding, (size_t)length, &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "flags 0x1, expected version 2, flags 0"));
        ck_assert_int_eq(layout_decode_partial(&decoded, encoding, (size_t)length, &why), 0);
        ck_assert(decoded.is_partial);
        ck_assert_uint_eq(decoded.groups[3].n_rows, 0);
        ck_assert_uint_eq(layout_object_bytes(&decoded, 0, 1), 3 * 65536);
        ck_assert_int_eq(layout_encode(&decoded, again, sizeof(again)), length);
        ck_assert_mem_eq(again, encoding, (size_t)length);
}
END_TEST

START_TEST(tensors_are_read_one_after_another)
{
        struct layout_tensor tensor;
        uint32_t position = 0;

        ck_assert(layout_tensor_next(&layout.rows[0], &position, &tensor));
        ck_assert_mem_eq(tensor.name.bytes, "k", 1);
        ck_assert(layout_tensor_next(&layout.rows[0], &position, &tensor));
        ck_assert_mem_eq(tensor.name.bytes, "v", 1);
        ck_assert_mem_eq(tensor.dtype.bytes, "bf16", 4);
        ck_assert_uint_eq(tensor.bytes, 32768);
        ck_assert(!layout_tensor_next(&layout.rows[0], &position, &tensor));
        position = 0;
        ck_assert(!layout_tensor_next(&layout.rows[4], &position, &tensor));
}
END_TEST

START_TEST(each_rule_of_a_layout_is_kept)
{
        static char longest[LAYOUT_STRING_MAX + 1];

        memset(longest, 'x', sizeof(longest));
        REFUSED(layout.tp = 0, "tp 0");
        REFUSED(layout.pp = 0, "pp 0");
        REFUSED(layout.cp = 0, "cp 0");
        REFUSED(layout.n_groups = 0, "0 groups");
        REFUSED(layout.n_groups = 33, "33 groups, expected 1 to 32");
        REFUSED(layout.kv_dtype = TEXT("\x1b[31m"), "kv_dtype is longer");
        REFUSED(layout.model = ((struct layout_string){longest, sizeof(longest)}), "model is");
        layout.model = (struct layout_string){longest, LAYOUT_STRING_MAX};
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
}
END_TEST

START_TEST(a_layout_stores_something_and_not_too_many_cells)
{
        layout.groups[0].n_shards = 1021;
        layout.rows[1].n_shards = 1019;
        ck_assert_int_eq(layout_validate(&layout, NULL), 0);
        layout.groups[0].n_shards = 1022;
        layout.rows[1].n_shards = 1020;
        assert_refused("1025 (group, shard) cells");
        layout.groups[0] = layout.groups[2];
        layout.groups[0].first_row = 0;
        layout.rows[0] = layout.rows[3];
        layout.n_groups = layout.n_rows = 1;
        assert_refused("0 (group, shard) cells");
}
END_TEST

START_TEST(cells_count_groups_then_shards_without_scratch)
{
        ck_assert_uint_eq(layout_n_cells(&layout), 6);
        ck_assert_int_eq(layout_cell(&layout, 0, 0), 0);
        ck_assert_int_eq(layout_cell(&layout, 0, 1), 1);
        ck_assert_int_eq(layout_cell(&layout, 1, 0), 3);
        ck_assert_int_eq(layout_cell(&layout, 3, 0), 5);
        ck_assert_int_eq(layout_cell(&layout, 2, 0), -1);
        ck_assert_int_eq(layout_cell(&layout, 0, 3), -1);
        ck_assert_int_eq(layout_cell(&layout, 4, 0), -1);
}
END_TEST

START_TEST(sizes_come_from_chunks_and_pages)
{
        uint16_t group;

        ck_assert_uint_eq(layout_page_lcm(&layout), 48);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 1), 3 * 65536);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 2), 3 * 32768);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 3), 0);
        ck_assert_uint_eq(layout_object_bytes(&layout, 1, 0), 2 * 4096);
        ck_assert_uint_eq(layout_object_bytes(&layout, 2, 0), 0);
        ck_assert_uint_eq(layout_object_bytes(&layout, 3, 0), 1000000);
        ck_assert_uint_eq(layout_object_bytes(&layout, 4, 0), 0);
        ck_assert_uint_eq(layout_largest_object(&layout, NULL), 1000000);
        layout.chunk_tokens = 480;
        ck_assert_uint_eq(layout_largest_object(&layout, &group), 30 * 65536);
        ck_assert_uint_eq(group, 0);
        layout.groups[0] = layout.groups[3];
        layout.n_groups = 1;
        ck_assert_uint_eq(layout_page_lcm(&layout), 1);
}
END_TEST

static void add_rules(TCase *tcase)
{
        tcase_add_test(tcase, a_chunk_that_is_no_multiple_is_refused_with_one_that_is);
        tcase_add_test(tcase, pages_without_a_common_multiple_are_refused);
        tcase_add_test(tcase, a_chunk_has_a_limit_in_tokens);
        tcase_add_test(tcase, a_chunk_above_the_limit_is_refused);
        tcase_add_test(tcase, each_rule_of_a_group_is_kept);
        tcase_add_test(tcase, only_whole_tiles_of_bfloat16_in_pages_take_a_codec);
        tcase_add_test(tcase, tensors_are_whole_tiles_where_there_is_a_codec);
        tcase_add_test(tcase, a_codec_makes_objects_smaller);
        tcase_add_test(tcase, each_rule_of_a_row_is_kept);
        tcase_add_test(tcase, rows_cover_every_shard_unless_the_layout_is_partial);
        tcase_add_test(tcase, rows_that_hold_the_same_are_one);
        tcase_add_test(tcase, each_rule_of_a_layout_is_kept);
        tcase_add_test(tcase, a_layout_stores_something_and_not_too_many_cells);
}

int main(void)
{
        Suite *suite = suite_create("proto/layout");
        TCase *tcase = tcase_create("layout");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, a_layout_has_the_documented_bytes_and_id);
        tcase_add_test(tcase, decoding_gives_the_same_bytes_again);
        tcase_add_test(tcase, every_field_is_part_of_the_id);
        tcase_add_test(tcase, no_encoding_passes_cut_short_or_with_bytes_behind);
        tcase_add_test(tcase, another_version_or_flag_is_refused);
        tcase_add_test(tcase, more_groups_than_there_is_room_for_are_refused);
        tcase_add_test(tcase, only_who_asks_for_it_decodes_a_partial_layout);
        tcase_add_test(tcase, tensors_are_read_one_after_another);
        tcase_add_test(tcase, a_refused_decode_leaves_the_layout_alone);
        tcase_add_test(tcase, a_buffer_too_small_is_said);
        add_rules(tcase);
        tcase_add_test(tcase, cells_count_groups_then_shards_without_scratch);
        tcase_add_test(tcase, sizes_come_from_chunks_and_pages);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
