// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL /* 32-byte inputs: the call would cost more than the hash */
#include <xxhash.h>

#include <errno.h>

#include "base/error.h"
#include "proto/presence.h"

/* Enough for any writer that runs; a dead one is not waited for. */
#define PRESENCE_TRIES 32

uint64_t presence_n_buckets(uint64_t objects_max)
{
        uint64_t buckets = objects_max - objects_max / 4;

        return buckets < PRESENCE_PROBE_BUCKETS ? PRESENCE_PROBE_BUCKETS : buckets;
}

uint64_t presence_table_bytes(uint64_t objects_max)
{
        return PRESENCE_HEADER_BYTES + presence_n_buckets(objects_max) * PRESENCE_BUCKET_ENTRIES *
                                               sizeof(struct presence_entry);
}

int presence_view_init(struct presence_view *ret_view, const void *base, uint64_t bytes)
{
        const struct presence_header *header = base;
        uint64_t bucket_bytes = PRESENCE_BUCKET_ENTRIES * sizeof(struct presence_entry);

        if (bytes < PRESENCE_HEADER_BYTES || header->magic != PRESENCE_MAGIC ||
            header->version != PRESENCE_VERSION ||
            header->header_bytes != PRESENCE_HEADER_BYTES ||
            header->entry_bytes != sizeof(struct presence_entry) ||
            header->probe_buckets != PRESENCE_PROBE_BUCKETS || !header->n_buckets ||
            header->n_buckets > UINT32_MAX ||
            header->n_buckets > (bytes - PRESENCE_HEADER_BYTES) / bucket_bytes)
                return err_raise(-EPROTO);

        ret_view->header = header;
        ret_view->entries = (const void *)((const uint8_t *)base + PRESENCE_HEADER_BYTES);
        ret_view->n_buckets = header->n_buckets;
        return 0;
}

uint64_t presence_seed(uint64_t hash_key, uint32_t domain, const struct digest *layout,
                       uint32_t bank)
{
        struct {
                struct digest layout;
                uint32_t domain;
                uint32_t bank;
        } input = {*layout, domain, bank};

        return XXH3_64bits_withSeed(&input, sizeof(input), hash_key);
}

uint64_t presence_fingerprint(uint64_t seed, const struct digest *boundary)
{
        uint64_t fingerprint = XXH3_64bits_withSeed(boundary->bytes, DIGEST_BYTES, seed);

        return fingerprint ? fingerprint : 1;
}

void presence_fingerprints(uint64_t seed, const struct digest *boundaries, size_t n,
                           uint64_t *ret_fingerprints)
{
        for (size_t i = 0; i < n; i++)
                ret_fingerprints[i] = presence_fingerprint(seed, &boundaries[i]);
}

enum probe_result {
        PROBE_OTHER,
        PROBE_MATCH,
        PROBE_TORN,
};

static enum probe_result probe_entry(const struct presence_entry *entry, uint64_t fingerprint,
                                     struct presence_bits *ret_bits)
{
        uint32_t before, after;

        /* Most probes of the wrong entry end here, without the sequence. */
        if (atomic_load_explicit(&entry->fingerprint, memory_order_relaxed) != fingerprint)
                return PROBE_OTHER;

        for (unsigned try = 0; try < PRESENCE_TRIES; try++) {
                uint64_t found;

                /* Pairs with the writer's release store that ends its write. */
                before = atomic_load_explicit(&entry->sequence, memory_order_acquire);
                if (before & 1)
                        continue;
                /*
                 * Each pairs with the writer's release store of the same word, which comes
                 * after it made the sequence odd; and none can move below the last load.
                 */
                found = atomic_load_explicit(&entry->fingerprint, memory_order_acquire);
                ret_bits->present = atomic_load_explicit(&entry->present, memory_order_acquire);
                ret_bits->resident = atomic_load_explicit(&entry->resident, memory_order_acquire);
                ret_bits->flags = atomic_load_explicit(&entry->flags, memory_order_acquire);
                after = atomic_load_explicit(&entry->sequence, memory_order_relaxed);
                if (before == after)
                        return found == fingerprint ? PROBE_MATCH : PROBE_OTHER;
        }
        return PROBE_TORN;
}

bool presence_lookup(const struct presence_view *view, uint64_t fingerprint,
                     struct presence_bits *ret_bits)
{
        uint64_t bucket = presence_home(fingerprint, view->n_buckets);

        for (unsigned i = 0; i < PRESENCE_PROBE_BUCKETS; i++) {
                const struct presence_entry *entries =
                        &view->entries[bucket * PRESENCE_BUCKET_ENTRIES];

                for (unsigned j = 0; j < PRESENCE_BUCKET_ENTRIES; j++) {
                        enum probe_result result = probe_entry(&entries[j], fingerprint, ret_bits);

                        if (result != PROBE_OTHER)
                                return result == PROBE_MATCH;
                }
                if (i == 0 && !(atomic_load_explicit(&entries[0].flags, memory_order_relaxed) >>
                                PRESENCE_OVERFLOW_SHIFT))
                        return false;
                if (++bucket == view->n_buckets)
                        bucket = 0;
        }
        return false;
}
