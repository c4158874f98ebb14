// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "base/divisor.h"
#include "daemon/daemon.h"
#include "daemon/layout_table.h"
#include "daemon/layout_use.h"

static struct layout_use *use_of(struct layout_entry *entry)
{
        if (!entry->use)
                entry->use = calloc(1, sizeof(*entry->use));
        return entry->use;
}

struct layout_group_use *layout_use_group(struct layout_entry *entry, uint16_t group)
{
        struct layout_use *use = group < LAYOUT_GROUPS_MAX ? use_of(entry) : NULL;

        return use ? &use->groups[group] : NULL;
}

static void count(struct layout_told *told, const struct wire_tell *tell)
{
        told->prompts += tell->prompts;
        told->prompt_tokens += tell->prompt_tokens;
        told->tail_tokens += tell->tail_tokens;
        told->kv_tokens += tell->kv_tokens;
        told->hit_tokens += tell->hit_tokens;
}

void layout_use_tell(struct session *session, const struct wire_tell *tell)
{
        struct metrics *metrics = &session->daemon->metrics;
        struct layout_use *use;

        session->batch_tokens = tell->batch_tokens;
        metrics->prompts_total += tell->prompts;
        metrics->prompt_tokens_total += tell->prompt_tokens;
        metrics->prompt_tail_tokens_total += tell->tail_tokens;
        metrics->prompt_kv_tokens_total += tell->kv_tokens;
        metrics->prompt_hit_tokens_total += tell->hit_tokens;
        use = session->layout
                      ? use_of(index_layout_at(session->daemon->cache.index, session->layout))
                      : NULL;
        if (use)
                count(&use->told, tell);
}

void layout_use_note_state(struct layout_entry *entry, uint16_t group, uint32_t boundary_tokens)
{
        struct layout_group_use *use = layout_use_group(entry, group);

        /* Without KV beside it a state is a blob, which is found at any boundary. */
        if (!use || !entry->kv_tokens)
                return;
        use->states++;
        use->off_chunk += boundary_tokens % entry->kv_tokens != 0;
        use->spacing = (uint32_t)greatest_divisor(boundary_tokens, use->spacing);
}
