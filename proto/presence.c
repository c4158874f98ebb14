// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL /* 32-byte inputs: the call would cost more than the hash */
#include <xxhash.h>

#include <errno.h>

#include "base/error.h"
#include "proto/presence.h"

/* Enough for any writer that runs; a dead one is not waited for. */
#define PRESENCE_TRIES 32
/* Buckets behind their homes that a block looks at together; few entries lie further. */
#define BLOCK_ROUNDS   4

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
            header->version != PRESENCE_VERSION || header->header_bytes != PRESENCE_HEADER_BYTES ||
            header->entry_bytes != sizeof(struct presence_entry) ||
            header->probe_buckets != PRESENCE_PROBE_BUCKETS ||
            header->n_buckets < PRESENCE_PROBE_BUCKETS ||
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

static const struct presence_entry *bucket_at(const struct presence_view *view,
                                              uint64_t fingerprint, unsigned distance)
{
        uint64_t bucket = presence_home(fingerprint, view->n_buckets) + distance;

        if (bucket >= view->n_buckets)
                bucket -= view->n_buckets;
        return &view->entries[bucket * PRESENCE_BUCKET_ENTRIES];
}

/*
 * One try at reading the entry of @bucket that has @fingerprint; zeros and false when there
 * is none, or when it is being written. Without a branch on what the table holds: a wrong
 * guess would throw away the work on all buckets behind, whose misses then come one by one.
 */
static bool read_once(const struct presence_entry *bucket, uint64_t fingerprint,
                      struct presence_bits *ret_bits)
{
        _Static_assert(PRESENCE_BUCKET_ENTRIES == 2, "two entries to pick from");
        const struct presence_entry *entry =
                bucket +
                (atomic_load_explicit(&bucket[1].fingerprint, memory_order_relaxed) == fingerprint);
        /* Ordered and paired as in probe_entry(). */
        uint32_t before = atomic_load_explicit(&entry->sequence, memory_order_acquire);
        uint64_t found = atomic_load_explicit(&entry->fingerprint, memory_order_acquire);
        uint64_t present = atomic_load_explicit(&entry->present, memory_order_acquire);
        uint64_t resident = atomic_load_explicit(&entry->resident, memory_order_acquire);
        uint32_t flags = atomic_load_explicit(&entry->flags, memory_order_acquire);
        uint32_t after = atomic_load_explicit(&entry->sequence, memory_order_relaxed);
        bool is_read = (found == fingerprint) & !(before & 1) & (before == after);
        uint64_t mask = -(uint64_t)is_read;

        ret_bits->present = present & mask;
        ret_bits->resident = resident & mask;
        ret_bits->flags = flags & (uint32_t)mask;
        return is_read;
}

/*
 * Loads in a loop as short as can be, so that as many as possible are under way at once.
 * Where address translation misses too, as in a large table it does, prefetches help less.
 */
static void touch_homes(const struct presence_view *view, uint32_t n,
                        const struct presence_block *block)
{
        uint64_t sum = 0;

        for (uint32_t i = 0; i < n; i++) {
                const struct presence_entry *bucket = bucket_at(view, block->fingerprints[i], 0);

                sum += atomic_load_explicit(&bucket->fingerprint, memory_order_relaxed);
        }
        __asm__ volatile("" : : "r"(sum)); /* the loads are what is wanted */
}

static uint32_t look_home(const struct presence_view *view, uint32_t n,
                          struct presence_block *block)
{
        uint32_t n_elsewhere = 0;

        touch_homes(view, n, block);
        for (uint32_t i = 0; i < n; i++) {
                const struct presence_entry *bucket = bucket_at(view, block->fingerprints[i], 0);
                bool is_read, overflows;

                is_read = read_once(bucket, block->fingerprints[i], &block->bits[i]);
                /* What is being written now counts as elsewhere: it is read again there. */
                overflows = (atomic_load_explicit(&bucket->flags, memory_order_relaxed) >>
                             PRESENCE_OVERFLOW_SHIFT) |
                            (atomic_load_explicit(&bucket[0].sequence, memory_order_relaxed) & 1) |
                            (atomic_load_explicit(&bucket[1].sequence, memory_order_relaxed) & 1);
                block->elsewhere[n_elsewhere] = (uint16_t)i;
                n_elsewhere += !is_read & overflows;
                /* At home this asks for what is there already. */
                __builtin_prefetch(bucket + PRESENCE_BUCKET_ENTRIES * !is_read);
        }
        return n_elsewhere;
}

/* One bucket further for all that are not found yet. Returns how many are left. */
static uint32_t look_further(const struct presence_view *view, unsigned distance,
                             uint32_t n_elsewhere, struct presence_block *block)
{
        uint32_t n_left = 0;

        for (uint32_t j = 0; j < n_elsewhere; j++) {
                uint16_t i = block->elsewhere[j];
                const struct presence_entry *bucket =
                        bucket_at(view, block->fingerprints[i], distance);
                bool is_read = read_once(bucket, block->fingerprints[i], &block->bits[i]);

                block->elsewhere[n_left] = i;
                n_left += !is_read;
                __builtin_prefetch(bucket + PRESENCE_BUCKET_ENTRIES * !is_read);
        }
        return n_left;
}

void presence_lookup_block(const struct presence_view *view, const uint64_t *seeds,
                           uint32_t n_banks, const struct digest *boundaries, uint32_t n,
                           struct presence_block *ret_block)
{
        uint32_t n_lookups = 0, left;

        for (uint32_t i = 0; i < n; i++)
                for (uint32_t bank = 0; bank < n_banks; bank++)
                        ret_block->fingerprints[n_lookups++] =
                                presence_fingerprint(seeds[bank], &boundaries[i]);
        left = look_home(view, n_lookups, ret_block);
        for (unsigned distance = 1; left && distance <= BLOCK_ROUNDS; distance++)
                left = look_further(view, distance, left, ret_block);
        /* The last few, and those that were being written. */
        for (uint32_t j = 0; j < left; j++) {
                uint16_t i = ret_block->elsewhere[j];

                if (!presence_lookup(view, ret_block->fingerprints[i], &ret_block->bits[i]))
                        ret_block->bits[i] = (struct presence_bits){0};
        }
}
