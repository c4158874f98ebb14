// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "client/joint.h"
#include "client/recent.h"

/* Kept behind the first gap: enough to see what else is missing. */
#define BEHIND 32u

int kvt__recent_init(struct kvt__recent *recent)
{
        memset(recent, 0, sizeof(*recent));
        recent->entries = calloc(KVT__RECENT_MAX, sizeof(*recent->entries));
        return recent->entries ? 0 : err_raise(-ENOMEM);
}

void kvt__recent_deinit(struct kvt__recent *recent)
{
        free(recent->entries);
        recent->entries = NULL;
}

/* Digests name whole prefixes: the last one stands for the prompt. */
static uint64_t tag_of(const struct kvt_match_query *query)
{
        uint64_t tag;

        memcpy(&tag, query->digests[query->n_digests - 1].bytes, sizeof(tag));
        tag ^= (uint64_t)query->prompt_tokens << 32 ^ query->max_tokens;
        return tag ? tag : 1;
}

static bool is_repeated(struct kvt__recent *recent, uint64_t tag, uint64_t beat_ns)
{
        for (uint32_t i = 0; i < KVT__RECENT_MAX; i++) {
                struct kvt__recent_mark *mark = &recent->marks[i];

                if (atomic_load_explicit(&mark->tag, memory_order_relaxed) != tag)
                        continue;
                atomic_fetch_add_explicit(&mark->repeats, 1, memory_order_relaxed);
                atomic_store_explicit(&mark->beat_ns, beat_ns, memory_order_relaxed);
                return true;
        }
        return false;
}

static bool take(struct kvt__recent_mark *mark)
{
        uint32_t state = atomic_load_explicit(&mark->state, memory_order_relaxed);

        return state != KVT__RECENT_TAKEN &&
               atomic_compare_exchange_strong_explicit(&mark->state, &state, KVT__RECENT_TAKEN,
                                                       memory_order_acquire, memory_order_relaxed);
}

static void give_back(struct kvt__recent_mark *mark)
{
        atomic_store_explicit(&mark->state, KVT__RECENT_READY, memory_order_release);
}

static void fill(struct kvt__recent_entry *entry, const struct kvt_match_query *query,
                 const struct kvt_match *found)
{
        uint32_t end = found->kv_boundaries + BEHIND;

        if (end > query->n_digests)
                end = query->n_digests;
        entry->total = query->n_digests;
        entry->first = end > KVT__RECENT_DIGESTS ? end - KVT__RECENT_DIGESTS : 0;
        entry->n_digests = end - entry->first;
        entry->prompt_tokens = query->prompt_tokens;
        entry->max_tokens = query->max_tokens;
        entry->boundaries = found->boundaries;
        entry->kv_boundaries = found->kv_boundaries;
        memcpy(entry->digests, query->digests + entry->first,
               entry->n_digests * sizeof(entry->digests[0]));
}

void kvt__recent_note(struct kvt__recent *recent, const struct kvt__table *table,
                      const struct kvt_match_query *query, const struct kvt_match *found)
{
        struct kvt__recent_mark *mark;
        uint64_t tag, beat_ns, sequence;

        if (!query->n_digests || !recent->entries ||
            found->boundaries >= kvt__joint_limit(&table->needs, query))
                return;
        tag = tag_of(query);
        beat_ns = atomic_load_explicit(&table->view.header->heartbeat_ns, memory_order_relaxed);
        if (is_repeated(recent, tag, beat_ns))
                return;
        sequence = atomic_fetch_add_explicit(&recent->next, 1, memory_order_relaxed) + 1;
        mark = &recent->marks[sequence % KVT__RECENT_MAX];
        if (!take(mark))
                return;
        recent->entries[sequence % KVT__RECENT_MAX].sequence = sequence;
        fill(&recent->entries[sequence % KVT__RECENT_MAX], query, found);
        atomic_store_explicit(&mark->tag, tag, memory_order_relaxed);
        atomic_store_explicit(&mark->beat_ns, beat_ns, memory_order_relaxed);
        atomic_store_explicit(&mark->repeats, 1, memory_order_relaxed);
        give_back(mark);
}

/* ---- reading ---- */

static void copy(const struct kvt__recent_mark *mark, const struct kvt__recent_entry *entry,
                 struct wire_matches *ret_message, struct digest *ret_digests)
{
        ret_message->sequence = entry->sequence;
        ret_message->beat_ns = atomic_load_explicit(&mark->beat_ns, memory_order_relaxed);
        ret_message->repeats = atomic_load_explicit(&mark->repeats, memory_order_relaxed);
        ret_message->total = entry->total;
        ret_message->first = entry->first;
        ret_message->header.n_items = entry->n_digests;
        ret_message->prompt_tokens = entry->prompt_tokens;
        ret_message->max_tokens = entry->max_tokens;
        ret_message->boundaries = entry->boundaries;
        ret_message->kv_boundaries = entry->kv_boundaries;
        memcpy(ret_digests, entry->digests, entry->n_digests * sizeof(*ret_digests));
}

void kvt__recent_read(struct kvt__recent *recent, uint32_t nth, struct wire_matches *ret_message,
                      struct digest *ret_digests)
{
        uint64_t last = atomic_load_explicit(&recent->next, memory_order_relaxed);
        uint32_t n = 0;

        ret_message->nth = nth;
        for (uint64_t back = 0; back < KVT__RECENT_MAX && back < last; back++) {
                uint64_t sequence = last - back;
                struct kvt__recent_mark *mark = &recent->marks[sequence % KVT__RECENT_MAX];
                const struct kvt__recent_entry *entry =
                        &recent->entries[sequence % KVT__RECENT_MAX];

                /* One that is being written is newer than what was asked for. */
                if (!take(mark))
                        continue;
                if (entry->sequence == sequence && n++ == nth)
                        copy(mark, entry, ret_message, ret_digests);
                give_back(mark);
        }
        ret_message->n_recent = n;
}
