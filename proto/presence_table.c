// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/presence_table.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define OVERFLOW_ONE (1u << PRESENCE_OVERFLOW_SHIFT)
#define FLAGS_MASK   (OVERFLOW_ONE - 1)

struct presence_table {
        struct presence_header *header;
        struct presence_entry *entries;
        struct presence_view view;
        int fd;
        uint64_t bytes;
        uint64_t used;
        uint64_t refused_total;
};

DEFINE_CLEANUP(struct presence_table *, presence_table_free)

static int create_memfd(void)
{
        unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        int fd = memfd_create("kvtier-presence", flags | MFD_NOEXEC_SEAL);

        /* Before Linux 6.3. */
        if (fd < 0 && errno == EINVAL)
                fd = memfd_create("kvtier-presence", flags);
        return fd < 0 ? err_raise(-errno) : fd;
}

static int map_table(struct presence_table *table, uint64_t objects_max)
{
        void *base;

        table->bytes = presence_table_bytes(objects_max);
        table->fd = create_memfd();
        if (table->fd < 0)
                return table->fd;
        if (ftruncate(table->fd, (off_t)table->bytes) < 0)
                return err_raise(-errno);
        base = mmap(NULL, table->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table->fd, 0);
        if (base == MAP_FAILED)
                return err_raise(-errno);
        table->header = base;
        table->entries = (void *)((uint8_t *)base + PRESENCE_HEADER_BYTES);
        /* After our own mapping: from here on nobody gets another one that can write. */
        if (fcntl(table->fd, F_ADD_SEALS,
                  F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return err_raise(-errno);
        return 0;
}

static int fill_header(struct presence_table *table, uint64_t objects_max,
                       const uint8_t boot_id[16], uint64_t heartbeat_period_ns)
{
        struct presence_header *header = table->header;

        if (getrandom(&header->hash_key, sizeof(header->hash_key), 0) != sizeof(header->hash_key))
                return err_raise(-EIO);
        header->magic = PRESENCE_MAGIC;
        header->version = PRESENCE_VERSION;
        header->header_bytes = PRESENCE_HEADER_BYTES;
        header->entry_bytes = sizeof(struct presence_entry);
        header->probe_buckets = PRESENCE_PROBE_BUCKETS;
        header->n_buckets = presence_n_buckets(objects_max);
        memcpy(header->boot_id, boot_id, sizeof(header->boot_id));
        header->heartbeat_period_ns = heartbeat_period_ns;
        atomic_store_explicit(&header->state, PRESENCE_STARTING, memory_order_release);
        return presence_view_init(&table->view, header, table->bytes);
}

int presence_table_new(struct presence_table **ret_table, uint64_t objects_max,
                       const uint8_t boot_id[16], uint64_t heartbeat_period_ns)
{
        _cleanup_(presence_table_freep) struct presence_table *table = NULL;
        int r;

        table = calloc(1, sizeof(*table));
        if (!table)
                return err_raise(-ENOMEM);
        table->fd = -1;
        r = map_table(table, objects_max);
        if (r < 0)
                return r;
        r = fill_header(table, objects_max, boot_id, heartbeat_period_ns);
        if (r < 0)
                return r;
        *ret_table = steal_ptr(table);
        return 0;
}

int presence_table_new_private(struct presence_table **ret_table, uint64_t objects_max)
{
        static const uint8_t no_boot_id[16];
        _cleanup_(presence_table_freep) struct presence_table *table = calloc(1, sizeof(*table));
        void *base;
        int r;

        if (!table)
                return err_raise(-ENOMEM);
        table->fd = -1;
        table->bytes = presence_table_bytes(objects_max);
        base = mmap(NULL, table->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
                return err_raise(-errno);
        table->header = base;
        table->entries = (void *)((uint8_t *)base + PRESENCE_HEADER_BYTES);
        r = fill_header(table, objects_max, no_boot_id, 0);
        if (r < 0)
                return r;
        *ret_table = steal_ptr(table);
        return 0;
}

struct presence_table *presence_table_free(struct presence_table *table)
{
        if (!table)
                return NULL;
        if (table->header) {
                presence_table_set_state(table, PRESENCE_STOPPED);
                munmap(table->header, table->bytes);
        }
        if (table->fd >= 0)
                close(table->fd);
        free(table);
        return NULL;
}

int presence_table_fd(const struct presence_table *table)
{
        return table->fd;
}

uint64_t presence_table_size(const struct presence_table *table)
{
        return table->bytes;
}

const struct presence_view *presence_table_view(const struct presence_table *table)
{
        return &table->view;
}

/* The loop thread alone writes, so it may read its own words without order. */
static uint64_t own_fingerprint(const struct presence_entry *entry)
{
        return atomic_load_explicit(&entry->fingerprint, memory_order_relaxed);
}

static uint32_t own_flags(const struct presence_entry *entry)
{
        return atomic_load_explicit(&entry->flags, memory_order_relaxed);
}

/* The overflow count is the bucket's, whoever has the entry. */
static void write_entry(struct presence_entry *entry, uint64_t fingerprint,
                        const struct presence_bits *bits)
{
        uint32_t sequence = atomic_load_explicit(&entry->sequence, memory_order_relaxed);
        uint32_t flags = (own_flags(entry) & ~FLAGS_MASK) | (bits->flags & FLAGS_MASK);

        atomic_store_explicit(&entry->sequence, sequence + 1, memory_order_relaxed);
        /*
         * Each release store comes after the odd sequence, so that a reader that acquires
         * one of the new words finds the sequence changed.
         */
        atomic_store_explicit(&entry->fingerprint, fingerprint, memory_order_release);
        atomic_store_explicit(&entry->present, bits->present, memory_order_release);
        atomic_store_explicit(&entry->resident, bits->resident, memory_order_release);
        atomic_store_explicit(&entry->flags, flags, memory_order_release);
        /* Pairs with the acquire load that begins a read. */
        atomic_store_explicit(&entry->sequence, sequence + 2, memory_order_release);
}

static void add_overflow(struct presence_entry *home, uint32_t difference)
{
        atomic_store_explicit(&home->flags, own_flags(home) + difference, memory_order_release);
}

/* Where the fingerprint is, and the first free place; NULL where there is none. */
struct probe {
        struct presence_entry *home; /* first entry of the home bucket */
        struct presence_entry *found;
        struct presence_entry *free;
        bool found_away, free_away; /* not in the home bucket */
};

static void probe_bucket(struct probe *probe, struct presence_entry *bucket, uint64_t fingerprint)
{
        for (unsigned i = 0; i < PRESENCE_BUCKET_ENTRIES; i++) {
                uint64_t found = own_fingerprint(&bucket[i]);

                if (found == fingerprint) {
                        probe->found = &bucket[i];
                        probe->found_away = bucket != probe->home;
                } else if (!found && !probe->free) {
                        probe->free = &bucket[i];
                        probe->free_away = bucket != probe->home;
                }
        }
}

static struct probe probe_table(struct presence_table *table, uint64_t fingerprint)
{
        uint64_t n_buckets = table->view.n_buckets;
        uint64_t bucket = presence_home(fingerprint, n_buckets);
        struct probe probe = {.home = &table->entries[bucket * PRESENCE_BUCKET_ENTRIES]};
        bool overflown = own_flags(probe.home) >= OVERFLOW_ONE;

        for (unsigned i = 0; i < PRESENCE_PROBE_BUCKETS && !probe.found; i++) {
                /* Without overflow it can only be at home. */
                if (i > 0 && !overflown && probe.free)
                        break;
                probe_bucket(&probe, &table->entries[bucket * PRESENCE_BUCKET_ENTRIES],
                             fingerprint);
                if (++bucket == n_buckets)
                        bucket = 0;
        }
        return probe;
}

static void remove_entry(struct presence_table *table, const struct probe *probe)
{
        write_entry(probe->found, 0, &(struct presence_bits){0});
        if (probe->found_away)
                add_overflow(probe->home, (uint32_t)-OVERFLOW_ONE);
        table->used--;
}

int presence_table_set(struct presence_table *table, uint64_t fingerprint, uint64_t present,
                       uint64_t resident, uint32_t flags)
{
        struct presence_bits bits = {present, resident, flags};
        struct probe probe = probe_table(table, fingerprint);
        bool stays = present || flags & PRESENCE_SEEN;

        assert(fingerprint);
        if (probe.found) {
                if (stays)
                        write_entry(probe.found, fingerprint, &bits);
                else
                        remove_entry(table, &probe);
                return 0;
        }
        if (!stays)
                return 0;
        if (!probe.free) {
                table->refused_total++;
                return PRESENCE_TABLE_E_FULL;
        }
        write_entry(probe.free, fingerprint, &bits);
        if (probe.free_away)
                add_overflow(probe.home, OVERFLOW_ONE);
        table->used++;
        return 0;
}

void presence_table_set_flags(struct presence_table *table, uint64_t fingerprint, uint32_t flags)
{
        struct probe probe = probe_table(table, fingerprint);
        struct presence_bits bits = {.flags = flags};

        if (!probe.found)
                return;
        bits.present = atomic_load_explicit(&probe.found->present, memory_order_relaxed);
        bits.resident = atomic_load_explicit(&probe.found->resident, memory_order_relaxed);
        write_entry(probe.found, fingerprint, &bits);
}

void presence_table_clear(struct presence_table *table)
{
        uint64_t n = table->view.n_buckets * PRESENCE_BUCKET_ENTRIES;

        for (uint64_t i = 0; i < n; i++) {
                struct presence_entry *entry = &table->entries[i];

                if (own_fingerprint(entry))
                        write_entry(entry, 0, &(struct presence_bits){0});
                if (own_flags(entry))
                        atomic_store_explicit(&entry->flags, 0, memory_order_release);
        }
        table->used = 0;
}

void presence_table_set_state(struct presence_table *table, enum presence_state state)
{
        atomic_store_explicit(&table->header->state, state, memory_order_release);
}

void presence_table_beat(struct presence_table *table, uint64_t now_ns)
{
        atomic_store_explicit(&table->header->heartbeat_ns, now_ns, memory_order_release);
}

void presence_table_usage(const struct presence_table *table,
                          struct presence_table_usage *ret_usage)
{
        *ret_usage = (struct presence_table_usage){
                .capacity = table->view.n_buckets * PRESENCE_BUCKET_ENTRIES,
                .used = table->used,
                .refused_total = table->refused_total,
        };
}
