// SPDX-License-Identifier: Apache-2.0
/*
 * Any stored form, under a table that fits it: checksums are those of the bytes, as if their
 * writer meant harm. Buffers are exact, so that the sanitizer sees a step beyond. Bytes that
 * decode are encoded again and must come back.
 *
 *   kind u8 | choice of element bytes u8 | raw length u24 | where memory is cut u24
 *   | stored length of each piece, u24 | the stored pieces
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "storage/encoding.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

#define HEAD_BYTES 8u
#define RAW_MAX    (3 * CHECKSUM_PIECE_BYTES)

static uint32_t u24(const uint8_t *bytes)
{
        return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16;
}

/* A buffer of @size bytes in two parts, each a block of its own. */
static void take_memory(struct iovec parts[2], size_t size, size_t cut)
{
        parts[0].iov_len = cut % (size + 1);
        parts[1].iov_len = size - parts[0].iov_len;
        for (int i = 0; i < 2; i++) {
                parts[i].iov_base = malloc(parts[i].iov_len + 1);
                REQUIRE(parts[i].iov_base);
                parts[i].iov_base =
                        realloc(parts[i].iov_base, parts[i].iov_len ? parts[i].iov_len : 1);
        }
}

static void give_memory(struct iovec parts[2])
{
        free(parts[0].iov_base);
        free(parts[1].iov_base);
}

static void encode_again(struct encoding_scratch *scratch, struct encoding encoding,
                         const struct iovec parts[2], uint64_t raw_bytes)
{
        uint8_t *stored = malloc(raw_bytes), *back = malloc(raw_bytes);
        struct encoding_table table;
        struct iovec whole = {back, raw_bytes};
        int r;

        REQUIRE(stored && back);
        r = encoding_encode(scratch, encoding, parts, 2, raw_bytes, stored, &table);
        REQUIRE(r == 0 || r == ENCODING_E_RAW);
        if (!r) {
                REQUIRE(encoding_table_is_sane(&table, raw_bytes));
                REQUIRE(!encoding_decode(scratch, &table, raw_bytes, NULL, stored, &whole, 1));
                REQUIRE(!memcmp(back, parts[0].iov_base, parts[0].iov_len));
                REQUIRE(!memcmp(back + parts[0].iov_len, parts[1].iov_base, parts[1].iov_len));
        }
        free(stored);
        free(back);
}

/* Fills the table from the input; where the stored pieces begin, or NULL. */
static const uint8_t *read_table(const uint8_t *data, size_t size, uint64_t raw_bytes,
                                 struct encoding_table *table)
{
        const uint8_t *lengths = data + HEAD_BYTES, *stored;
        size_t left;

        table->encoding.kind = data[0];
        table->encoding.element_bytes = data[1];
        table->n_pieces = checksum_n_pieces(raw_bytes);
        if (size < HEAD_BYTES + 3 * table->n_pieces)
                return NULL;
        left = size - HEAD_BYTES - 3 * table->n_pieces;
        stored = lengths + 3 * table->n_pieces;
        for (uint32_t i = 0; i < table->n_pieces; i++) {
                table->lengths[i] = u24(lengths + 3 * i);
                if (table->lengths[i] > left)
                        return NULL;
                table->checksums[i] = XXH3_64bits(stored + table->stored_bytes, table->lengths[i]);
                table->stored_bytes += table->lengths[i];
                left -= table->lengths[i];
        }
        return stored;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct encoding_table table = {.stored_bytes = 0};
        struct encoding_scratch *scratch;
        uint64_t raw_bytes;
        const uint8_t *at;
        uint8_t *stored;
        struct iovec parts[2];
        int r;

        if (size < HEAD_BYTES)
                return 0;
        raw_bytes = u24(data + 2) % RAW_MAX + 1;
        at = read_table(data, size, raw_bytes, &table);
        if (!at || !encoding_table_is_sane(&table, raw_bytes))
                return 0;
        stored = malloc(table.stored_bytes);
        scratch = encoding_scratch_new();
        REQUIRE(stored && scratch);
        memcpy(stored, at, table.stored_bytes);
        take_memory(parts, raw_bytes, u24(data + 5));
        r = encoding_decode(scratch, &table, raw_bytes, NULL, stored, parts, 2);
        REQUIRE(r == 0 || r == ENCODING_E_DAMAGED);
        if (!r)
                encode_again(scratch, table.encoding, parts, raw_bytes);
        give_memory(parts);
        encoding_scratch_free(scratch);
        free(stored);
        return 0;
}
