// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "proto/piece_set.h"

void piece_set_add(struct piece_set *set, uint64_t raw_bytes, uint64_t offset, uint64_t length)
{
        uint32_t piece_bytes = checksum_piece_bytes(raw_bytes);

        assert(length && offset < raw_bytes && length <= raw_bytes - offset);
        for (uint64_t i = offset / piece_bytes; i <= (offset + length - 1) / piece_bytes; i++)
                set->words[i / 64] |= UINT64_C(1) << i % 64;
}

bool piece_set_fits(const struct piece_set *set, uint64_t raw_bytes)
{
        uint32_t n_pieces = checksum_n_pieces(raw_bytes), n = 0;

        for (uint32_t i = 0; i < CHECKSUM_PIECES_MAX; i++) {
                if (!piece_set_has(set, i))
                        continue;
                if (i >= n_pieces)
                        return false;
                n++;
        }
        return n > 0;
}

uint64_t piece_set_bytes(const struct piece_set *set, uint64_t raw_bytes)
{
        struct piece_run run = {0, 0};
        uint64_t bytes = 0;

        while (piece_set_next(set, raw_bytes, run.end, &run))
                bytes += run.end - run.first;
        return bytes;
}

uint64_t piece_set_position(const struct piece_set *set, uint64_t raw_bytes, uint64_t offset)
{
        uint32_t piece_bytes = checksum_piece_bytes(raw_bytes);
        uint64_t position = offset % piece_bytes;

        for (uint64_t i = 0; i < offset / piece_bytes; i++)
                position += piece_set_has(set, (uint32_t)i) ? piece_bytes : 0;
        return position;
}

bool piece_set_next(const struct piece_set *set, uint64_t raw_bytes, uint64_t from,
                    struct piece_run *ret_run)
{
        uint32_t piece_bytes = checksum_piece_bytes(raw_bytes);
        uint32_t n_pieces = checksum_n_pieces(raw_bytes);
        uint32_t first = (uint32_t)((from + piece_bytes - 1) / piece_bytes), end;

        while (first < n_pieces && !piece_set_has(set, first))
                first++;
        if (first >= n_pieces)
                return false;
        end = first;
        while (end < n_pieces && piece_set_has(set, end))
                end++;
        ret_run->first = (uint64_t)first * piece_bytes;
        ret_run->end = end == n_pieces ? raw_bytes : (uint64_t)end * piece_bytes;
        return true;
}
