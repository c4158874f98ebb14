// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "daemon/layout_table.h"
#include "daemon/layout_use.h"

struct layout_group_use *layout_use_group(struct layout_entry *entry, uint16_t group)
{
        if (group >= LAYOUT_GROUPS_MAX)
                return NULL;
        if (!entry->use)
                entry->use = calloc(1, sizeof(*entry->use));
        return entry->use ? &entry->use->groups[group] : NULL;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
        while (b) {
                uint32_t rest = a % b;

                a = b;
                b = rest;
        }
        return a;
}

void layout_use_note_state(struct layout_entry *entry, uint16_t group, uint32_t boundary_tokens)
{
        struct layout_group_use *use = layout_use_group(entry, group);

        /* Without KV beside it a state is a blob, which is found at any boundary. */
        if (!use || !entry->kv_tokens)
                return;
        use->states++;
        use->off_chunk += boundary_tokens % entry->kv_tokens != 0;
        use->spacing = common_divisor(boundary_tokens, use->spacing);
}
