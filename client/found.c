// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "client/found.h"
#include "client/kvtier.h"

int kvt__found_new(struct kvt__found **ret_found, const struct layout *layout,
                   const struct layout_span *span)
{
        uint32_t n_banks = layout_n_cells(layout) / PRESENCE_CELLS_PER_BANK + 1;
        struct kvt__found *found = calloc(1, sizeof(*found));

        if (!found)
                return err_raise(-ENOMEM);
        if (presence_table_new_private(&found->table, (uint64_t)KVT_OBJECTS_MAX * n_banks)) {
                free(found);
                return err_raise(-ENOMEM);
        }
        layout_span_cells(span, layout, found->here);
        *ret_found = found;
        return 0;
}

struct kvt__found *kvt__found_free(struct kvt__found *found)
{
        if (found)
                presence_table_free(found->table);
        free(found);
        return NULL;
}

void kvt__found_set(struct kvt__found *found, const uint64_t *seeds, uint32_t n_banks,
                    const struct digest *boundary, const struct wire_found_bits *bits)
{
        for (uint32_t bank = 0; bank < n_banks; bank++) {
                uint64_t fingerprint = presence_fingerprint(seeds[bank], boundary);

                if (!presence_table_set(found->table, fingerprint, bits[bank].present,
                                        bits[bank].resident, 0))
                        continue;
                /* Hints of long ago make room. */
                presence_table_clear(found->table);
                presence_table_set(found->table, fingerprint, bits[bank].present,
                                   bits[bank].resident, 0);
        }
}

void kvt__found_forget(struct kvt__found *found)
{
        presence_table_clear(found->table);
}

void kvt__found_narrow(const struct kvt__found *found, uint32_t bank, uint32_t n_banks, uint32_t n,
                       struct presence_block *block)
{
        const struct presence_view *view = presence_table_view(found->table);

        for (uint32_t i = 0; i < n * n_banks; i++) {
                uint64_t elsewhere = ~found->here[bank + i % n_banks];
                struct presence_bits *bits = &block->bits[i];
                struct presence_bits all;

                if (!presence_lookup(view, block->fingerprints[i], &all))
                        all = (struct presence_bits){0};
                bits->present = all.present & (bits->present | elsewhere);
                bits->resident = all.resident & (bits->resident | elsewhere);
        }
}
