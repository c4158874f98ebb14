// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/shapes.h"

#include <check.h>
#include <string.h>

/* Recurrent state beside attention of one page size: keys and values, or a latent. */
#define STATES(page, conv, ssm, layers)                                                            \
        {.name = "states", .kind = KVT_GROUP_STATE, .n_layers = layers, .padded_bytes = page,      \
         .tensors = {{conv, 1}, {ssm, 1}}}
#define HYBRID(title, tokens, page, conv, ssm, layers)                                             \
        {.name = title, .chunk_tokens = tokens,                                                    \
         .groups = {{.name = "full", .kind = KVT_GROUP_ATTENTION, .order = SHAPE_HALVES,           \
                     .page_tokens = tokens, .n_layers = layers, .tensors = {{(page) / 2, 2}}},     \
                    STATES(page, conv, ssm, layers)}}
#define HYBRID_LATENT(title, tokens, page, conv, ssm, layers)                                      \
        {.name = title, .chunk_tokens = tokens,                                                    \
         .groups = {{.name = "latent", .kind = KVT_GROUP_ATTENTION, .page_tokens = tokens,         \
                     .n_layers = layers, .tensors = {{page, 1}}},                                  \
                    STATES(page, conv, ssm, layers)}}
/* Pages of 16 tokens: heads * head_dim * bytes of an element make a row. */
#define DENSE(title, layers, row)                                                                  \
        {.name = title, .chunk_tokens = 64,                                                        \
         .groups = {{.name = "full", .kind = KVT_GROUP_ATTENTION, .order = SHAPE_HALVES,           \
                     .page_tokens = 16, .n_layers = layers, .tensors = {{16 * (row), 2}}}}}
/* A latent and the indexer's keys, of 64 tokens. */
#define SPARSE(title, latent, index, layers)                                                       \
        {.name = title, .chunk_tokens = 256,                                                       \
         .groups = {{.name = "latent", .kind = KVT_GROUP_ATTENTION, .page_tokens = 64,             \
                     .n_layers = layers, .tensors = {{64 * (latent), 1}}},                         \
                    {.name = "index", .kind = KVT_GROUP_INDEX, .page_tokens = 64,                  \
                     .n_layers = layers, .tensors = {{64 * (index), 1}}}}}

const struct shape shapes[] = {
        HYBRID("Qwen3-Next-80B TP1", 544, 1114112, 49152, 1048576, 1),
        HYBRID("Qwen3-Next-80B TP2", 544, 557056, 24576, 524288, 2),
        HYBRID("Qwen3-Next-80B TP4", 272, 278528, 12288, 262144, 2),
        HYBRID("Qwen3-Next-80B TP8", 144, 147456, 6144, 131072, 2),
        HYBRID("Qwen3-Next-80B TP1, fp32 states", 1056, 2162688, 49152, 2097152, 1),
        HYBRID("Qwen3-Next-80B TP1, 1 draft token", 544, 1114112, 65536, 1048576, 1),
        HYBRID("Qwen3-Next-80B TP1, 2 draft tokens", 560, 1146880, 81920, 1048576, 1),
        HYBRID("Qwen3-Next-80B TP1, 4 draft tokens", 576, 1179648, 114688, 1048576, 1),
        HYBRID("Qwen3.5-397B-A17B TP1", 2096, 4292608, 73728, 4194304, 1),
        HYBRID("Qwen3.5-397B-A17B TP1, fp8", 4176, 4276224, 73728, 4194304, 1),
        HYBRID("Qwen3.5-397B-A17B TP2", 2096, 2146304, 36864, 2097152, 1),
        HYBRID("Qwen3.5-397B-A17B TP4", 1056, 1081344, 18432, 1048576, 1),
        HYBRID("Qwen3.5-397B-A17B TP8", 528, 540672, 9216, 524288, 2),
        HYBRID("Qwen3.5-397B-A17B TP1, 1 draft token", 2096, 4292608, 98304, 4194304, 1),
        HYBRID("Qwen3.5-397B-A17B TP1, 2 draft tokens", 2112, 4325376, 122880, 4194304, 1),
        HYBRID("Qwen3.5-35B-A3B TP1", 1056, 2162688, 49152, 2097152, 1),
        HYBRID("Qwen3.5-27B TP1", 784, 3211264, 61440, 3145728, 1),
        HYBRID_LATENT("Kimi-Linear-48B TP1", 1920, 2211840, 73728, 2097152, 1),
        HYBRID_LATENT("Kimi-Linear-48B TP2", 1024, 1179648, 36864, 1048576, 1),
        HYBRID_LATENT("Kimi-Linear-48B TP4", 512, 589824, 18432, 524288, 2),
        HYBRID_LATENT("Kimi-Linear-48B TP8", 256, 294912, 9216, 262144, 2),
        HYBRID_LATENT("Kimi-Linear-48B TP1, fp8", 3840, 2211840, 73728, 2097152, 1),
        HYBRID("Nemotron-3-Nano-30B TP1", 2096, 2146304, 36864, 2097152, 1),
        HYBRID("Nemotron-3-Nano-30B TP1, all states", 2176, 2228224, 36864, 2097152, 1),
        HYBRID("Nemotron-3-Nano-30B TP4", 1056, 540672, 9216, 524288, 2),
        HYBRID("Nemotron-3-Nano-30B TP8", 528, 270336, 4608, 262144, 2),
        HYBRID("Nemotron-Nano-9B-v2 TP1", 1312, 5373952, 73728, 5242880, 1),
        HYBRID("Nemotron-Nano-9B-v2 TP1, all states", 1408, 5767168, 73728, 5242880, 1),
        HYBRID("Granite-4.0-H-Micro TP1", 528, 1081344, 26112, 1048576, 1),
        HYBRID("Granite-4.0-H-Micro TP1, chunks of 256", 768, 1572864, 26112, 1048576, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP1", 4352, 4456448, 147456, 4194304, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP1, 3 draft tokens", 4480, 4587520, 294912, 4194304, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP1, fp8", 8576, 4390912, 147456, 4194304, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP1, fp8, 2 draft tokens", 8704, 4456448, 245760, 4194304, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP1, fp8, 4 draft tokens", 8960, 4587520, 344064, 4194304, 1),
        HYBRID_LATENT("GLM-5.3-Flash TP4", 1152, 1179648, 36864, 1048576, 1),
        DENSE("Qwen3-0.6B", 28, 8 * 128 * 2),
        DENSE("Qwen3-8B, fp8", 36, 8 * 128),
        DENSE("Qwen3-32B TP8", 64, 128 * 2),
        DENSE("Llama-3-70B TP8, fp8", 80, 128),
        SPARSE("DeepSeek-V3.2", 656, 132, 4),
        SPARSE("DeepSeek-V3.2, bf16", 1152, 132, 4),
        SPARSE("GLM-5, bf16", 1152, 132, 6),
        {.name = "DeepSeek-V3",
         .chunk_tokens = 256,
         .groups = {{.name = "latent",
                     .kind = KVT_GROUP_ATTENTION,
                     .page_tokens = 64,
                     .n_layers = 8,
                     .tensors = {{64 * 656, 1}}}}},
        {.name = "gpt-oss",
         .chunk_tokens = 128,
         .groups = {{.name = "full",
                     .kind = KVT_GROUP_ATTENTION,
                     .order = SHAPE_HALVES,
                     .page_tokens = 16,
                     .n_layers = 6,
                     .tensors = {{16 * 8 * 64 * 2, 2}}},
                    {.name = "window",
                     .kind = KVT_GROUP_WINDOW,
                     .order = SHAPE_HALVES,
                     .page_tokens = 16,
                     .window_tokens = 128,
                     .n_layers = 6,
                     .tensors = {{16 * 8 * 64 * 2, 2}}}}},
        /* Slots of 584 bytes in pages rounded to 576; one packed page for the full group. */
        {.name = "DeepSeek-V4-Flash",
         .chunk_tokens = 256,
         .groups = {{.name = "full",
                     .kind = KVT_GROUP_COMPRESSED,
                     .order = SHAPE_PACKED,
                     .page_tokens = 256,
                     .n_layers = 1, /* all: 21 of two kinds, 20 of the third */
                     .tensors = {{37440, 21}, {8640, 21}, {1728, 20}}},
                    {.name = "window",
                     .kind = KVT_GROUP_WINDOW,
                     .page_tokens = 64,
                     .window_tokens = 128,
                     .n_layers = 4,
                     .tensors = {{37440, 1}}},
                    {.name = "c4 compressor",
                     .kind = KVT_GROUP_WINDOW,
                     .order = SHAPE_PACKED,
                     .page_tokens = 4,
                     .window_tokens = 8,
                     .n_layers = 2,
                     .tensors = {{32832, 1}, {8640, 1}}},
                    {.name = "c128 compressor",
                     .kind = KVT_GROUP_WINDOW,
                     .page_tokens = 8,
                     .window_tokens = 128,
                     .n_layers = 2,
                     .tensors = {{32832, 1}}}}},
        {.name = "DeepSeek-V4-Pro",
         .chunk_tokens = 256,
         .groups = {{.name = "full",
                     .kind = KVT_GROUP_COMPRESSED,
                     .order = SHAPE_PACKED,
                     .page_tokens = 256,
                     .n_layers = 1,
                     .tensors = {{37440, 30}, {8640, 30}, {1728, 31}}}}},
        /* Odd lengths, odd strides, and a page that is nothing but a few bytes. */
        {.name = "unaligned",
         .chunk_tokens = 64,
         .groups = {{.name = "odd",
                     .kind = KVT_GROUP_ATTENTION,
                     .page_tokens = 16,
                     .n_layers = 3,
                     .padded_bytes = 4099,
                     .tensors = {{1021, 3}, {7, 1}}},
                    {.name = "few",
                     .kind = KVT_GROUP_INDEX,
                     .order = SHAPE_PACKED,
                     .page_tokens = 4,
                     .n_layers = 1,
                     .tensors = {{33, 1}}},
                    {.name = "state",
                     .kind = KVT_GROUP_STATE,
                     .n_layers = 2,
                     .padded_bytes = 262151,
                     .tensors = {{262147, 1}}}}},
};
const unsigned n_shapes = sizeof(shapes) / sizeof(shapes[0]);

static uint64_t tensors_bytes(const struct shape_group *group)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < SHAPE_TENSORS_MAX; i++)
                bytes += group->tensors[i].row_bytes * group->tensors[i].n_rows;
        return bytes;
}

const struct shape *shape_named(const char *name)
{
        for (unsigned i = 0; i < n_shapes; i++)
                if (!strcmp(shapes[i].name, name))
                        return &shapes[i];
        ck_abort_msg("no shape is called %s", name);
}

uint64_t shape_layer_bytes(const struct shape_group *group)
{
        return group->padded_bytes ? group->padded_bytes : tensors_bytes(group);
}

uint64_t shape_page_bytes(const struct shape_group *group)
{
        return group->n_layers * tensors_bytes(group);
}

uint32_t shape_object_pages(const struct shape *shape, const struct shape_group *group)
{
        return group->page_tokens ? shape->chunk_tokens / group->page_tokens : 1;
}

uint64_t shape_memory_bytes(const struct shape_group *group, uint32_t n_pages)
{
        return n_pages * group->n_layers * shape_layer_bytes(group);
}
