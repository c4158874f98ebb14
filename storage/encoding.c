// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <endian.h>
#include <limits.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/error.h"
#include "storage/byte_planes.h"
#include "storage/encoding.h"

/*
 * Level 1, but for planes with next to no memory of what came before. Exponents are few and
 * in no order, so that matches are found everywhere and each costs more than the Huffman
 * code of its bytes: measured on bf16, this is 1 % smaller, and 1.8 times faster both ways.
 */
#define ZSTD_LEVEL            1
#define ZSTD_PLANES_HASH_LOG  6
#define ZSTD_PLANES_MIN_MATCH 7

/* A plane that does not shrink by this part of it is kept, and next tried so much later. */
#define PLANE_GAIN_MIN    64u
#define PLANE_SKIP_PIECES 3u

/* Memory of a thread that encodes or decodes; each part is made when first needed. */
struct encoding_scratch {
        uint8_t *piece;  /* a piece that lies in several segments */
        uint8_t *planes; /* the planes of a piece */
        size_t piece_bytes, planes_bytes;
        uint32_t n_skips[ENCODING_PLANES_MAX]; /* pieces to come in which a plane is kept */
        void *lz4;
        ZSTD_CCtx *compress;
        ZSTD_DCtx *decompress;
};

static const char *const names[ENCODING_KINDS] = {
        [ENCODING_RAW] = "off",
        [ENCODING_LZ4] = "lz4",
        [ENCODING_PLANES_LZ4] = "planes-lz4",
        [ENCODING_PLANES_ZSTD] = "planes-zstd",
};

const char *encoding_name(uint8_t kind)
{
        return kind < ENCODING_KINDS ? names[kind] : "unknown";
}

int encoding_kind_of(const char *name)
{
        for (int kind = 0; kind < ENCODING_KINDS; kind++)
                if (!strcmp(name, names[kind]))
                        return kind;
        return -1;
}

struct encoding encoding_of(enum encoding_kind kind, uint32_t number_bytes)
{
        if (kind == ENCODING_RAW)
                return (struct encoding){0};
        if (kind == ENCODING_LZ4 || (number_bytes != 2 && number_bytes != 4))
                number_bytes = 1;
        return (struct encoding){.kind = (uint8_t)kind, .element_bytes = (uint8_t)number_bytes};
}

bool encoding_is_known(struct encoding encoding)
{
        uint8_t n = encoding.element_bytes;

        switch (encoding.kind) {
        case ENCODING_RAW:
                return n == 0;
        case ENCODING_LZ4:
                return n == 1;
        case ENCODING_PLANES_LZ4:
        case ENCODING_PLANES_ZSTD:
                return n == 1 || n == 2 || n == 4;
        default:
                return false;
        }
}

/* ---- the table ---- */

/* Raw bytes of piece @index of an object. */
static uint32_t raw_piece_bytes(uint64_t raw_bytes, uint32_t index)
{
        uint32_t piece_bytes = checksum_piece_bytes(raw_bytes);
        uint64_t left = raw_bytes - (uint64_t)index * piece_bytes;

        return left < piece_bytes ? (uint32_t)left : piece_bytes;
}

/* Longer ones are stored raw. */
static uint64_t stored_max(uint64_t raw_bytes)
{
        return raw_bytes - (raw_bytes + ENCODING_GAIN_MIN - 1) / ENCODING_GAIN_MIN;
}

bool encoding_table_is_sane(const struct encoding_table *table, uint64_t raw_bytes)
{
        uint64_t stored = 0;

        if (!encoding_is_known(table->encoding) || !table->encoding.kind || !raw_bytes ||
            table->n_pieces != checksum_n_pieces(raw_bytes) ||
            table->n_pieces > CHECKSUM_PIECES_MAX)
                return false;
        for (uint32_t i = 0; i < table->n_pieces; i++) {
                if (!table->lengths[i] || table->lengths[i] > raw_piece_bytes(raw_bytes, i))
                        return false;
                stored += table->lengths[i];
        }
        return stored == table->stored_bytes && stored <= stored_max(raw_bytes);
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
        value = htole32(value);
        memcpy(bytes, &value, sizeof(value));
}

static uint32_t get_u32(const uint8_t *bytes)
{
        uint32_t value;

        memcpy(&value, bytes, sizeof(value));
        return le32toh(value);
}

size_t encoding_table_bytes(const struct encoding_table *table)
{
        return table->n_pieces * (sizeof(uint64_t) + sizeof(uint32_t));
}

void encoding_table_put(const struct encoding_table *table, uint8_t *bytes)
{
        for (uint32_t i = 0; i < table->n_pieces; i++) {
                uint64_t checksum = htole64(table->checksums[i]);

                memcpy(bytes + i * sizeof(checksum), &checksum, sizeof(checksum));
        }
        bytes += table->n_pieces * sizeof(uint64_t);
        for (uint32_t i = 0; i < table->n_pieces; i++)
                put_u32(bytes + i * sizeof(uint32_t), table->lengths[i]);
}

bool encoding_table_get(const uint8_t *bytes, size_t length, uint32_t encoding, uint64_t raw_bytes,
                        uint64_t stored_bytes, struct encoding_table *ret_table)
{
        struct encoding_table table = {.stored_bytes = stored_bytes};

        if (encoding > UINT16_MAX || !raw_bytes)
                return false;
        table.encoding = encoding_from_number((uint16_t)encoding);
        table.n_pieces = checksum_n_pieces(raw_bytes);
        if (table.n_pieces > CHECKSUM_PIECES_MAX || length != encoding_table_bytes(&table))
                return false;
        for (uint32_t i = 0; i < table.n_pieces; i++) {
                memcpy(&table.checksums[i], bytes + i * sizeof(uint64_t), sizeof(uint64_t));
                table.checksums[i] = le64toh(table.checksums[i]);
        }
        bytes += table.n_pieces * sizeof(uint64_t);
        for (uint32_t i = 0; i < table.n_pieces; i++)
                table.lengths[i] = get_u32(bytes + i * sizeof(uint32_t));
        if (!encoding_table_is_sane(&table, raw_bytes))
                return false;
        *ret_table = table;
        return true;
}

uint64_t encoding_offset(const struct encoding_table *table, uint32_t piece)
{
        uint64_t offset = 0;

        assert(piece <= table->n_pieces);
        for (uint32_t i = 0; i < piece; i++)
                offset += table->lengths[i];
        return offset;
}

bool encoding_next_run(const struct encoding_table *table, const struct piece_set *pieces,
                       uint64_t raw_bytes, uint64_t raw_from, struct piece_run *ret_raw,
                       struct piece_run *ret_stored)
{
        uint32_t piece_bytes = checksum_piece_bytes(raw_bytes);
        struct piece_run run;

        if (!piece_set_next(pieces, raw_bytes, raw_from, &run))
                return false;
        ret_stored->first = encoding_offset(table, (uint32_t)(run.first / piece_bytes));
        ret_stored->end =
                encoding_offset(table, (uint32_t)((run.end + piece_bytes - 1) / piece_bytes));
        *ret_raw = run;
        return true;
}

/* ---- scratch memory ---- */

struct encoding_scratch *encoding_scratch_new(void)
{
        return calloc(1, sizeof(struct encoding_scratch));
}

struct encoding_scratch *encoding_scratch_free(struct encoding_scratch *scratch)
{
        if (!scratch)
                return NULL;
        free(scratch->piece);
        free(scratch->planes);
        free(scratch->lz4);
        ZSTD_freeCCtx(scratch->compress);
        ZSTD_freeDCtx(scratch->decompress);
        free(scratch);
        return NULL;
}

static uint8_t *at_least(uint8_t **buffer, size_t *size, size_t want)
{
        if (*size >= want)
                return *buffer;
        free(*buffer);
        *buffer = malloc(want);
        *size = *buffer ? want : 0;
        return *buffer;
}

/* A position in segments. */
struct cursor {
        const struct iovec *segments;
        size_t n_segments, segment, offset;
};

/*
 * Memory of the next @length bytes: theirs when they lie together, else that of the scratch,
 * and *ret_is_split. NULL: no memory, or no such bytes (which callers rule out).
 */
static uint8_t *piece_memory(struct cursor *cursor, struct encoding_scratch *scratch, size_t length,
                             bool *ret_is_split)
{
        const struct iovec *segment;

        while (cursor->segment < cursor->n_segments &&
               cursor->offset == cursor->segments[cursor->segment].iov_len) {
                cursor->segment++;
                cursor->offset = 0;
        }
        assert(cursor->segment < cursor->n_segments);
        segment = &cursor->segments[cursor->segment];
        *ret_is_split = segment->iov_len - cursor->offset < length;
        if (*ret_is_split)
                return at_least(&scratch->piece, &scratch->piece_bytes, length);
        return (uint8_t *)segment->iov_base + cursor->offset;
}

/* Moves on by @length bytes; copies them from or to @bytes unless it is NULL. */
static void walk(struct cursor *cursor, size_t length, uint8_t *bytes, bool is_write)
{
        while (length) {
                const struct iovec *segment = &cursor->segments[cursor->segment];
                size_t n = segment->iov_len - cursor->offset;
                uint8_t *at = (uint8_t *)segment->iov_base + cursor->offset;

                if (n > length)
                        n = length;
                if (bytes) {
                        memcpy(is_write ? at : bytes, is_write ? bytes : at, n);
                        bytes += n;
                }
                length -= n;
                cursor->offset += n;
                if (length) {
                        cursor->segment++;
                        cursor->offset = 0;
                        assert(cursor->segment < cursor->n_segments);
                }
        }
}

/* ---- encoding ---- */

/* The codes' own errors end in these two: the length, or 0 when it does not fit or fails. */
static size_t compress(struct encoding_scratch *scratch, uint8_t kind, const uint8_t *bytes,
                       size_t length, uint8_t *out, size_t room)
{
        size_t n;

        if (kind == ENCODING_PLANES_ZSTD) {
                n = ZSTD_compress2(scratch->compress, out, room, bytes, length);
                return ZSTD_isError(n) ? 0 : n;
        }
        if (length > LZ4_MAX_INPUT_SIZE || !room)
                return 0;
        return (size_t)LZ4_compress_fast_extState(scratch->lz4, (const char *)bytes, (char *)out,
                                                  (int)length, (int)room, 1);
}

static bool decompress(struct encoding_scratch *scratch, uint8_t kind, const uint8_t *bytes,
                       size_t length, uint8_t *out, size_t out_length)
{
        int n;

        if (kind == ENCODING_PLANES_ZSTD)
                return ZSTD_decompressDCtx(scratch->decompress, out, out_length, bytes, length) ==
                       out_length;
        if (length > INT_MAX || out_length > INT_MAX)
                return false;
        n = LZ4_decompress_safe((const char *)bytes, (char *)out, (int)length, (int)out_length);
        return n >= 0 && (size_t)n == out_length;
}

static int prepare_zstd(struct encoding_scratch *scratch, bool is_plain)
{
        ZSTD_CCtx *compressor = scratch->compress;
        size_t r;

        if (!compressor)
                compressor = scratch->compress = ZSTD_createCCtx();
        if (!compressor)
                return err_raise(-ENOMEM);
        ZSTD_CCtx_reset(compressor, ZSTD_reset_session_and_parameters);
        r = ZSTD_CCtx_setParameter(compressor, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        if (!is_plain && !ZSTD_isError(r))
                r = ZSTD_CCtx_setParameter(compressor, ZSTD_c_hashLog, ZSTD_PLANES_HASH_LOG);
        if (!is_plain && !ZSTD_isError(r))
                r = ZSTD_CCtx_setParameter(compressor, ZSTD_c_minMatch, ZSTD_PLANES_MIN_MATCH);
        return ZSTD_isError(r) ? err_raise(-EINVAL) : 0;
}

static int prepare_encode(struct encoding_scratch *scratch, struct encoding encoding)
{
        memset(scratch->n_skips, 0, sizeof(scratch->n_skips));
        if (encoding.kind == ENCODING_PLANES_ZSTD)
                return prepare_zstd(scratch, encoding.element_bytes == 1);
        if (!scratch->lz4)
                scratch->lz4 = malloc((size_t)LZ4_sizeofState());
        return scratch->lz4 ? 0 : err_raise(-ENOMEM);
}

/* The next plane, which is to shrink enough and to fit @room: its length, or 0. */
static size_t encode_plane(struct encoding_scratch *scratch, uint8_t kind, uint32_t plane,
                           const uint8_t *bytes, size_t length, uint8_t *out, size_t room)
{
        size_t want = length - length / PLANE_GAIN_MIN - (length > 0), n;

        if (scratch->n_skips[plane]) {
                scratch->n_skips[plane]--;
                return 0;
        }
        n = want ? compress(scratch, kind, bytes, length, out, room < want ? room : want) : 0;
        if (!n)
                scratch->n_skips[plane] = PLANE_SKIP_PIECES;
        return n;
}

/* One piece, from @planes to @out; its stored length, or 0 when it is not below @length. */
static size_t encode_planes(struct encoding_scratch *scratch, struct encoding encoding,
                            const uint8_t *planes, size_t length, uint8_t *out)
{
        uint32_t n_planes = encoding.element_bytes;
        size_t at = n_planes * sizeof(uint32_t);

        if (at >= length)
                return 0;
        for (uint32_t i = 0; i < n_planes; i++) {
                size_t n_raw = byte_planes_length(length, n_planes, i);
                size_t room = length - 1 - at, n;

                n = encode_plane(scratch, encoding.kind, i, planes, n_raw, out + at, room);
                if (!n) {
                        if (n_raw > room)
                                return 0;
                        memcpy(out + at, planes, n_raw);
                        n = n_raw;
                }
                put_u32(out + i * sizeof(uint32_t), (uint32_t)n);
                planes += n_raw;
                at += n;
        }
        return at;
}

/*
 * Encodes the next piece to @out; its stored length, or 0 without memory. What is compressed
 * is always a copy: clients can write to the object while this runs, and no compressor
 * promises to withstand that.
 */
static size_t encode_piece(struct encoding_scratch *scratch, struct encoding encoding,
                           struct cursor *cursor, size_t length, uint8_t *out)
{
        bool is_split;
        const uint8_t *bytes = piece_memory(cursor, scratch, length, &is_split);
        uint8_t *planes = at_least(&scratch->planes, &scratch->planes_bytes, length);
        size_t n;

        if (!bytes || !planes)
                return 0;
        walk(cursor, length, is_split ? scratch->piece : NULL, false);
        byte_planes_split(bytes, length, encoding.element_bytes, planes);
        n = encode_planes(scratch, encoding, planes, length, out);
        if (!n) {
                memcpy(out, bytes, length);
                n = length;
        }
        return n;
}

int encoding_encode(struct encoding_scratch *scratch, struct encoding encoding,
                    const struct iovec *segments, size_t n_segments, uint64_t raw_bytes,
                    uint8_t *stored, struct encoding_table *ret_table)
{
        struct cursor cursor = {.segments = segments, .n_segments = n_segments};
        struct encoding_table table = {.encoding = encoding,
                                       .n_pieces = checksum_n_pieces(raw_bytes)};
        int r = prepare_encode(scratch, encoding);

        assert(encoding.kind && encoding_is_known(encoding));
        if (r)
                return r;
        for (uint32_t i = 0; i < table.n_pieces; i++) {
                uint8_t *out = stored + table.stored_bytes;
                size_t n = encode_piece(scratch, encoding, &cursor, raw_piece_bytes(raw_bytes, i),
                                        out);

                if (!n)
                        return err_raise(-ENOMEM);
                table.lengths[i] = (uint32_t)n;
                table.checksums[i] = XXH3_64bits(out, n);
                table.stored_bytes += n;
        }
        if (table.stored_bytes > stored_max(raw_bytes))
                return ENCODING_E_RAW;
        *ret_table = table;
        return 0;
}

/* ---- decoding ---- */

/* The planes of a piece: where each lies when decoded. Untrusted bytes. */
static bool decode_planes(struct encoding_scratch *scratch, struct encoding encoding,
                          const uint8_t *stored, size_t n_stored, size_t length, uint8_t *room,
                          const uint8_t *ret_planes[ENCODING_PLANES_MAX])
{
        uint32_t n_planes = encoding.element_bytes;
        size_t at = n_planes * sizeof(uint32_t);

        if (n_stored < at)
                return false;
        for (uint32_t i = 0; i < n_planes; i++) {
                size_t n_raw = byte_planes_length(length, n_planes, i);
                size_t n = get_u32(stored + i * sizeof(uint32_t));

                if (n > n_raw || n > n_stored - at)
                        return false;
                ret_planes[i] = n == n_raw ? stored + at : room;
                if (n < n_raw && !decompress(scratch, encoding.kind, stored + at, n, room, n_raw))
                        return false;
                room += n_raw;
                at += n;
        }
        return at == n_stored;
}

static int decode_to(struct encoding_scratch *scratch, struct encoding encoding,
                     const uint8_t *stored, size_t n_stored, size_t length, uint8_t *bytes)
{
        const uint8_t *planes[ENCODING_PLANES_MAX];
        bool is_plain = encoding.element_bytes == 1;
        uint8_t *room = bytes;

        if (n_stored == length) {
                memcpy(bytes, stored, length);
                return 0;
        }
        if (!is_plain)
                room = at_least(&scratch->planes, &scratch->planes_bytes, length);
        if (!room)
                return err_raise(-ENOMEM);
        if (!decode_planes(scratch, encoding, stored, n_stored, length, room, planes))
                return ENCODING_E_DAMAGED;
        if (!is_plain || planes[0] != bytes)
                byte_planes_join(planes, length, encoding.element_bytes, bytes);
        return 0;
}

static int decode_piece(struct encoding_scratch *scratch, struct encoding encoding,
                        const uint8_t *stored, size_t n_stored, size_t length,
                        struct cursor *cursor)
{
        bool is_split;
        uint8_t *bytes = piece_memory(cursor, scratch, length, &is_split);
        int r = bytes ? 0 : err_raise(-ENOMEM);

        if (!r)
                r = decode_to(scratch, encoding, stored, n_stored, length, bytes);
        if (!r)
                walk(cursor, length, is_split ? bytes : NULL, true);
        return r;
}

int encoding_decode(struct encoding_scratch *scratch, const struct encoding_table *table,
                    uint64_t raw_bytes, const struct piece_set *pieces, const uint8_t *stored,
                    const struct iovec *segments, size_t n_segments)
{
        struct cursor cursor = {.segments = segments, .n_segments = n_segments};

        if (table->encoding.kind == ENCODING_PLANES_ZSTD && !scratch->decompress)
                scratch->decompress = ZSTD_createDCtx();
        if (table->encoding.kind == ENCODING_PLANES_ZSTD && !scratch->decompress)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < table->n_pieces; i++) {
                uint32_t n = table->lengths[i];
                int r;

                if (!pieces || piece_set_has(pieces, i)) {
                        if (XXH3_64bits(stored, n) != table->checksums[i])
                                return ENCODING_E_DAMAGED;
                        r = decode_piece(scratch, table->encoding, stored, n,
                                         raw_piece_bytes(raw_bytes, i), &cursor);
                        if (r)
                                return r;
                }
                stored += n;
        }
        return 0;
}
