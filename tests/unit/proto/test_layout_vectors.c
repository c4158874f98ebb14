// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of several architectures and their ids, which were computed apart from the
 * library. Layers and sizes are those of models in use, simplified.
 *
 *   import hashlib, struct
 *   p = struct.pack
 *   def s(x): return p("<H", len(x)) + x.encode()
 *   def tensors(pages, layers, bytes):
 *       return [s(f"layers.{i}.{pages}") + s("bf16") + p("<Q", bytes) for i in layers]
 *   def row(first, shards, page, padded, t=[]):
 *       return p("<HHQQH", first, shards, page, padded, len(t)) + b"".join(t)
 *   def group(n, kind, shards, tokens, window, *rows, codec=0):
 *       return s(n) + p("<BBHIIH", kind, codec, shards, tokens, window, len(rows)) + b"".join(rows)
 *   def show(model, draft, chunk, tp, pp, *groups):
 *       e = b"KVTL" + p("<HH", 2, 0) + b"".join(map(s, [model, "main", "bfloat16", "bfloat16",
 *           "vllm", "0.29.0", "NHD", ""]))
 *       e += p("<IIHHHH", draft, chunk, tp, pp, 1, len(groups)) + b"".join(groups)
 *       print(model, len(e), hashlib.sha256(e).hexdigest())
 *   show("dense", 0, 256, 4, 1, group("kv", 1, 4, 16, 0,
 *       row(0, 4, 80 * 16384, 80 * 16384, tensors("kv", range(80), 16384))))
 *   show("mla", 1, 256, 8, 1,
 *       group("mla", 1, 1, 64, 0,
 *           row(0, 1, 61 * 41984, 61 * 41984, tensors("mla", range(61), 41984))),
 *       group("index", 3, 1, 64, 0,
 *           row(0, 1, 61 * 8448, 61 * 8448, tensors("index", range(61), 8448))))
 *   show("compressed", 1, 256, 8, 1,
 *       group("c4", 4, 1, 256, 0, row(0, 1, 21 * 37440, 21 * 37440)),
 *       group("c4-index", 3, 1, 256, 0, row(0, 1, 21 * 8640, 21 * 8640)),
 *       group("c128", 4, 1, 256, 0, row(0, 1, 20 * 1728, 20 * 1728)),
 *       group("swa", 2, 1, 64, 128, row(0, 1, 43 * 37440, 43 * 37440)),
 *       group("c4-state", 5, 1, 0, 0, row(0, 1, 21 * 41472, 21 * 41472)),
 *       group("c128-state", 5, 1, 0, 0, row(0, 1, 20 * 32832, 20 * 32832)),
 *       group("cuda-graphs", 6, 1, 0, 0, row(0, 1, 4096, 4096)))
 *   show("hybrid", 0, 1088, 2, 2,
 *       group("kv", 1, 4, 544, 0,
 *           row(0, 2, 6 * 557056, 6 * 557056, tensors("kv", range(3, 24, 4), 557056)),
 *           row(2, 2, 6 * 557056, 6 * 557056, tensors("kv", range(27, 48, 4), 557056))),
 *       group("gdn", 5, 4, 0, 0,
 *           row(0, 2, 20 * 548864, 20 * 557056, tensors("gdn", range(20), 548864)),
 *           row(2, 2, 16 * 548864, 16 * 557056, tensors("gdn", range(20, 36), 548864))))
 *   show("many-cells", 0, 528, 8, 1,
 *       group("kv", 1, 8, 528, 0, row(0, 8, 4 * 135168, 4 * 135168)),
 *       *[group(f"mamba-{i}", 5, 8, 0, 0, row(0, 8, 537344, 4 * 135168)) for i in range(9)])
 *   for codec in 0, 1:
 *       show("quantised", 1, 256, 4, 1,
 *           group("kv", 1, 4, 64, 0,
 *               row(0, 4, 61 * 65536, 61 * 65536, tensors("kv", range(61), 65536)), codec=codec),
 *           group("index", 3, 1, 64, 0,
 *               row(0, 1, 61 * 16384, 61 * 16384, tensors("index", range(61), 16384)), codec=2),
 *           group("gdn", 5, 4, 0, 0, row(0, 4, 548864, 548864)))
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})

static struct layout layout;
static uint8_t tensors[LAYOUT_BYTES_MAX], encoding[LAYOUT_BYTES_MAX];
static size_t tensors_used;

static void begin(struct layout_string model, uint32_t draft, uint32_t chunk, uint16_t tp,
                  uint16_t pp)
{
        memset(&layout, 0, sizeof(layout));
        layout.model = model;
        layout.revision = TEXT("main");
        layout.model_dtype = layout.kv_dtype = TEXT("bfloat16");
        layout.engine = TEXT("vllm");
        layout.engine_build = TEXT("0.29.0");
        layout.kernel_layout = TEXT("NHD");
        layout.draft_tokens = draft;
        layout.chunk_tokens = chunk;
        layout.tp = tp;
        layout.pp = pp;
        layout.cp = 1;
        tensors_used = 0;
}

static void add_group(struct layout_string name, uint8_t kind, uint16_t n_shards, uint32_t tokens,
                      uint32_t window)
{
        layout.groups[layout.n_groups++] = (struct layout_group){.name = name,
                                                                 .kind = kind,
                                                                 .n_shards = n_shards,
                                                                 .page_tokens = tokens,
                                                                 .window_tokens = window};
}

/* Every @step-th layer from @first on has a tensor called @what. */
struct layers {
        const char *what;
        unsigned first, end, step;
};

static void add_row(uint16_t first_shard, uint16_t n_shards, uint64_t n, uint64_t bytes,
                    uint64_t padded, struct layers layers)
{
        struct layout_row row = {.first_shard = first_shard,
                                 .n_shards = n_shards,
                                 .page_bytes = n * bytes,
                                 .padded_bytes = n * padded,
                                 .tensors = tensors + tensors_used};

        for (unsigned i = layers.first; i < layers.end; i += layers.step) {
                char name[32];
                int length = snprintf(name, sizeof(name), "layers.%u.%s", i, layers.what);
                int r = layout_tensor_encode(tensors + tensors_used, sizeof(tensors) - tensors_used,
                                             (struct layout_string){name, (uint16_t)length},
                                             TEXT("bf16"), bytes);

                ck_assert_int_gt(r, 0);
                tensors_used += (size_t)r;
                row.n_tensors++;
        }
        row.tensors_bytes = (uint32_t)(tensors + tensors_used - row.tensors);
        ck_assert_int_eq(layout_add_row(&layout, (uint16_t)(layout.n_groups - 1), &row), 0);
}

static void add_plain(struct layout_string name, uint8_t kind, uint32_t tokens, uint32_t window,
                      uint64_t bytes)
{
        add_group(name, kind, 1, tokens, window);
        add_row(0, 1, 1, bytes, bytes, (struct layers){0});
}

static void expect(size_t length, const char *id_text)
{
        char text[2 * DIGEST_BYTES + 1];
        struct layout decoded;
        struct why why = {""};
        struct digest id;

        ck_assert_msg(!layout_validate(&layout, &why), "%s", why.text);
        ck_assert_int_eq(layout_encode(&layout, encoding, sizeof(encoding)), (int)length);
        ck_assert_msg(!layout_decode(&decoded, encoding, length, &why), "%s", why.text);
        ck_assert_int_eq(layout_id(&id, encoding, length), 0);
        for (int i = 0; i < DIGEST_BYTES; i++)
                snprintf(text + 2 * i, 3, "%02x", id.bytes[i]);
        ck_assert_str_eq(text, id_text);
}

START_TEST(dense_attention_has_a_shard_per_rank)
{
        begin(TEXT("dense"), 0, 256, 4, 1);
        add_group(TEXT("kv"), LAYOUT_ATTENTION, 4, 16, 0);
        add_row(0, 4, 80, 16384, 16384, (struct layers){"kv", 0, 80, 1});
        expect(2348, "6d2f06e59eb6c8be85154eed346a0c09333823f4619914cca1c934ef92797f07");
        ck_assert_uint_eq(layout_n_cells(&layout), 4);
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 3), 16 * 80 * 16384);
}
END_TEST

START_TEST(latent_attention_is_replicated)
{
        begin(TEXT("mla"), 1, 256, 8, 1);
        add_group(TEXT("mla"), LAYOUT_ATTENTION, 1, 64, 0);
        add_row(0, 1, 61, 41984, 41984, (struct layers){"mla", 0, 61, 1});
        add_group(TEXT("index"), LAYOUT_INDEX, 1, 64, 0);
        add_row(0, 1, 61, 8448, 8448, (struct layers){"index", 0, 61, 1});
        expect(3800, "afed02029fa753cde7a039c58c74403e0c7a0dbd15faebd595c4ec9b274e2a21");
        ck_assert_uint_eq(layout_n_cells(&layout), 2);
}
END_TEST

START_TEST(compressed_attention_has_pages_of_several_sizes)
{
        begin(TEXT("compressed"), 1, 256, 8, 1);
        add_plain(TEXT("c4"), LAYOUT_COMPRESSED, 256, 0, 21 * 37440);
        add_plain(TEXT("c4-index"), LAYOUT_INDEX, 256, 0, 21 * 8640);
        add_plain(TEXT("c128"), LAYOUT_COMPRESSED, 256, 0, 20 * 1728);
        add_plain(TEXT("swa"), LAYOUT_WINDOW, 64, 128, 43 * 37440);
        add_plain(TEXT("c4-state"), LAYOUT_STATE, 0, 0, 21 * 41472);
        add_plain(TEXT("c128-state"), LAYOUT_STATE, 0, 0, 20 * 32832);
        add_plain(TEXT("cuda-graphs"), LAYOUT_SCRATCH, 0, 0, 4096);
        expect(395, "7761039c6b8ae19b11ebbd3ef8369770e70cfd163bb53b310a14a537e7e4f446");
        ck_assert_uint_eq(layout_n_cells(&layout), 6);
        ck_assert_uint_eq(layout_object_bytes(&layout, 3, 0), 4 * 43 * 37440);
}
END_TEST

START_TEST(stages_of_a_pipeline_hold_other_layers)
{
        begin(TEXT("hybrid"), 0, 1088, 2, 2);
        add_group(TEXT("kv"), LAYOUT_ATTENTION, 4, 544, 0);
        add_row(0, 2, 6, 557056, 557056, (struct layers){"kv", 3, 24, 4});
        add_row(2, 2, 6, 557056, 557056, (struct layers){"kv", 27, 48, 4});
        add_group(TEXT("gdn"), LAYOUT_STATE, 4, 0, 0);
        add_row(0, 2, 20, 548864, 557056, (struct layers){"gdn", 0, 20, 1});
        add_row(2, 2, 16, 548864, 557056, (struct layers){"gdn", 20, 36, 1});
        expect(1572, "c1749c4908d6eeeace4e04c6b88f68c183867d193644181a5175c78d72c1928e");
        ck_assert_uint_eq(layout.groups[0].n_rows, 2);
        ck_assert_uint_eq(layout_object_bytes(&layout, 1, 1), 20 * 548864);
        ck_assert_uint_eq(layout_object_bytes(&layout, 1, 2), 16 * 548864);
}
END_TEST

START_TEST(ten_groups_on_eight_ranks_need_more_than_one_bank)
{
        static char names[9][16];

        begin(TEXT("many-cells"), 0, 528, 8, 1);
        add_group(TEXT("kv"), LAYOUT_ATTENTION, 8, 528, 0);
        add_row(0, 8, 4, 135168, 135168, (struct layers){0});
        for (int i = 0; i < 9; i++) {
                int length = snprintf(names[i], sizeof(names[i]), "mamba-%d", i);

                add_group((struct layout_string){names[i], (uint16_t)length}, LAYOUT_STATE, 8, 0,
                          0);
                add_row(0, 8, 1, 537344, 4 * 135168, (struct layers){0});
        }
        expect(528, "fa95b6a1ca20550c6477d917cf6ab806490b7fa661b3c8f00477ca46b4f420a2");
        ck_assert_uint_eq(layout_n_cells(&layout), 80);
        ck_assert_int_eq(layout_cell(&layout, 9, 7), 79);
}
END_TEST

START_TEST(codecs_make_other_layouts_with_smaller_objects)
{
        begin(TEXT("quantised"), 1, 256, 4, 1);
        add_group(TEXT("kv"), LAYOUT_ATTENTION, 4, 64, 0);
        add_row(0, 4, 61, 65536, 65536, (struct layers){"kv", 0, 61, 1});
        add_group(TEXT("index"), LAYOUT_INDEX, 1, 64, 0);
        layout.groups[1].codec = CODEC_MXFP8;
        add_row(0, 1, 61, 16384, 16384, (struct layers){"index", 0, 61, 1});
        add_group(TEXT("gdn"), LAYOUT_STATE, 4, 0, 0);
        add_row(0, 4, 1, 548864, 548864, (struct layers){0});
        expect(3785, "4e6efdcd02ecd6d0c290e1d26e43584e0951eb054af1f0d5a979149603439c8c");
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 3), 4 * 61 * 65536);
        layout.groups[0].codec = CODEC_FP8_TILE128;
        expect(3785, "ec4845f35f0fc3e19c9b0f0a5b48a1ca9eefcc0b8a12a939f53e1c19ce4a2b07");
        ck_assert_uint_eq(layout_object_bytes(&layout, 0, 3), 4 * 61 * 256 * 132);
        ck_assert_uint_eq(layout_object_bytes(&layout, 1, 0), 4 * 61 * 256 * 33);
        ck_assert_uint_eq(layout_object_bytes(&layout, 2, 3), 548864);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/layout_vectors");
        TCase *tcase = tcase_create("vectors");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, dense_attention_has_a_shard_per_rank);
        tcase_add_test(tcase, latent_attention_is_replicated);
        tcase_add_test(tcase, compressed_attention_has_pages_of_several_sizes);
        tcase_add_test(tcase, stages_of_a_pipeline_hold_other_layers);
        tcase_add_test(tcase, ten_groups_on_eight_ranks_need_more_than_one_bank);
        tcase_add_test(tcase, codecs_make_other_layouts_with_smaller_objects);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
