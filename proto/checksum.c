// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "proto/checksum.h"
#include "proto/piece_set.h"

uint32_t checksum_piece_bytes(uint64_t raw_bytes)
{
        const uint64_t unit = (uint64_t)CHECKSUM_PIECE_BYTES * CHECKSUM_PIECES_MAX;
        const uint64_t units_max = UINT32_MAX / CHECKSUM_PIECE_BYTES;
        uint64_t units = raw_bytes ? (raw_bytes - 1) / unit + 1 : 1;

        /* Beyond half a TiB there are more pieces than may be, and nothing overflows. */
        return (uint32_t)(units < units_max ? units : units_max) * CHECKSUM_PIECE_BYTES;
}

uint32_t checksum_n_pieces(uint64_t raw_bytes)
{
        uint64_t n = raw_bytes ? (raw_bytes - 1) / checksum_piece_bytes(raw_bytes) + 1 : 0;

        return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Walks segments as one run of bytes. */
struct cursor {
        const struct checksum_segment *segment;
        const struct checksum_segment *end;
        uint64_t offset;
};

static uint64_t hash_next(struct cursor *cursor, uint64_t length)
{
        XXH3_state_t state;

        /* The usual case: the piece lies in one segment. */
        if (cursor->segment < cursor->end && cursor->segment->length - cursor->offset >= length) {
                const uint8_t *bytes = (const uint8_t *)cursor->segment->bytes + cursor->offset;

                cursor->offset += length;
                if (cursor->offset == cursor->segment->length) {
                        cursor->segment++;
                        cursor->offset = 0;
                }
                return XXH3_64bits(bytes, length);
        }

        XXH3_64bits_reset(&state);
        while (length) {
                uint64_t run;

                assert(cursor->segment < cursor->end);
                run = cursor->segment->length - cursor->offset;
                if (run > length)
                        run = length;
                XXH3_64bits_update(&state, (const uint8_t *)cursor->segment->bytes + cursor->offset,
                                   run);
                length -= run;
                cursor->offset += run;
                if (cursor->offset == cursor->segment->length) {
                        cursor->segment++;
                        cursor->offset = 0;
                }
        }
        return XXH3_64bits_digest(&state);
}

static uint64_t piece_length(const struct checksum_list *list, uint32_t index)
{
        uint64_t start = (uint64_t)index * list->piece_bytes;
        uint64_t rest = list->raw_bytes - start;

        return rest < list->piece_bytes ? rest : list->piece_bytes;
}

uint64_t checksum_total(const struct checksum_list *list, const struct object_key *key)
{
        XXH3_state_t state;

        /* Little-endian words, as on disk; the byte order is asserted in wire.h. */
        XXH3_64bits_reset(&state);
        XXH3_64bits_update(&state, list->pieces, (size_t)list->n_pieces * sizeof(list->pieces[0]));
        XXH3_64bits_update(&state, key, sizeof(*key));
        XXH3_64bits_update(&state, &list->raw_bytes, sizeof(list->raw_bytes));
        return XXH3_64bits_digest(&state);
}

void checksum_compute(struct checksum_list *ret_list, const struct object_key *key,
                      uint64_t raw_bytes, const struct checksum_segment *segments,
                      size_t n_segments)
{
        struct cursor cursor = {segments, segments + n_segments, 0};

        ret_list->raw_bytes = raw_bytes;
        ret_list->piece_bytes = checksum_piece_bytes(raw_bytes);
        ret_list->n_pieces = checksum_n_pieces(raw_bytes);
        for (uint32_t i = 0; i < ret_list->n_pieces; i++)
                ret_list->pieces[i] = hash_next(&cursor, piece_length(ret_list, i));
        ret_list->total = checksum_total(ret_list, key);
}

int checksum_first_mismatch(const struct checksum_list *list,
                            const struct checksum_segment *segments, size_t n_segments)
{
        struct cursor cursor = {segments, segments + n_segments, 0};

        for (uint32_t i = 0; i < list->n_pieces; i++)
                if (hash_next(&cursor, piece_length(list, i)) != list->pieces[i])
                        return (int)i;
        return -1;
}

int checksum_first_mismatch_in(const struct checksum_list *list, const struct piece_set *set,
                               const struct checksum_segment *segments, size_t n_segments)
{
        struct cursor cursor = {segments, segments + n_segments, 0};

        for (uint32_t i = 0; i < list->n_pieces; i++)
                if (piece_set_has(set, i) &&
                    hash_next(&cursor, piece_length(list, i)) != list->pieces[i])
                        return (int)i;
        return -1;
}

int checksum_list_is_sane(const struct checksum_list *list)
{
        return list->raw_bytes && list->piece_bytes == checksum_piece_bytes(list->raw_bytes) &&
               list->n_pieces == checksum_n_pieces(list->raw_bytes) &&
               list->n_pieces <= CHECKSUM_PIECES_MAX;
}
