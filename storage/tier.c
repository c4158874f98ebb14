// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "storage/tier.h"

static void recover_nothing(struct tier *tier,
                            void (*on_object)(void *user, const struct tier_object *object,
                                              struct tier_place place),
                            void (*on_end)(void *user, int result), void *user)
{
        (void)tier;
        (void)on_object;
        on_end(user, 0);
}

static int add_memory_unregistered(struct tier *tier, uint32_t arena_id, void *base,
                                   uint64_t length)
{
        (void)tier;
        (void)arena_id;
        (void)base;
        (void)length;
        return 0;
}

static void remove_memory_unregistered(struct tier *tier, uint32_t arena_id)
{
        (void)tier;
        (void)arena_id;
}

static void sync_nothing(struct tier *tier, void (*on_synced)(void *user, int result), void *user)
{
        (void)tier;
        on_synced(user, 0);
}

static void vouched_for_nobody(struct tier *tier)
{
        (void)tier;
}

static int keep_no_layout(struct tier *tier, const struct tier_layout *layout)
{
        (void)tier;
        (void)layout;
        return 0;
}

static void forget_no_layout(struct tier *tier, const struct tier_layout *layout)
{
        (void)tier;
        (void)layout;
}

static bool is_always_own(const struct tier *tier, struct tier_place place)
{
        (void)tier;
        (void)place;
        return true;
}

static void replaced_for_nobody(struct tier *tier, const struct object_key *key,
                                uint64_t checksum_total)
{
        (void)tier;
        (void)key;
        (void)checksum_total;
}

static bool is_never_replaced(const struct tier *tier, const struct object_key *key,
                              uint64_t checksum_total)
{
        (void)tier;
        (void)key;
        (void)checksum_total;
        return false;
}

/* A read of a whole object on behalf of somebody who wants pieces of it. */
struct whole_read {
        struct tier_read read; /* first */
        struct tier_read *wanted;
        struct tier_segment segment;
};

static void copy_pieces(const uint8_t *bytes, const struct tier_read *wanted)
{
        const struct tier_segment *segment = wanted->segments;
        struct piece_run run = {0, 0};
        uint64_t at = 0; /* in the segment */

        while (piece_set_next(&wanted->pieces, wanted->raw_bytes, run.end, &run)) {
                for (uint64_t done = run.first, n; done < run.end; done += n) {
                        n = segment->length - at;
                        if (n > run.end - done)
                                n = run.end - done;
                        memcpy((uint8_t *)segment->bytes + at, bytes + done, n);
                        at += n;
                        if (at == segment->length) {
                                segment++;
                                at = 0;
                        }
                }
        }
}

static void on_whole_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct whole_read *whole = (struct whole_read *)read;
        struct tier_read *wanted = whole->wanted;

        if (!result)
                copy_pieces(whole->segment.bytes, wanted);
        wanted->committed_ns = read->committed_ns;
        memcpy(wanted->writer_boot_id, read->writer_boot_id, sizeof(wanted->writer_boot_id));
        wanted->on_done(wanted, result, checksums);
        free(whole->segment.bytes);
        free(whole);
}

static int read_pieces_of_whole(struct tier *tier, struct tier_read *wanted)
{
        struct whole_read *whole = malloc(sizeof(*whole));
        int r;

        if (!whole ||
            posix_memalign(&whole->segment.bytes, 4096, (wanted->raw_bytes + 4095) / 4096 * 4096)) {
                free(whole);
                return err_raise(-ENOMEM);
        }
        whole->segment.length = wanted->raw_bytes;
        whole->segment.arena_id = TIER_MEMORY_UNREGISTERED;
        whole->wanted = wanted;
        whole->read = (struct tier_read){
                .place = wanted->place,
                .key = wanted->key,
                .generation = wanted->generation,
                .raw_bytes = wanted->raw_bytes,
                .segments = &whole->segment,
                .n_segments = 1,
                .on_done = on_whole_read,
        };
        r = tier->ops.read(tier, &whole->read);
        if (r) {
                free(whole->segment.bytes);
                free(whole);
        }
        return r;
}

void tier_init(struct tier *tier, const struct tier_ops *ops)
{
        memset(tier, 0, sizeof(*tier));
        tier->ops = *ops;
        if (!tier->ops.recover)
                tier->ops.recover = recover_nothing;
        if (!tier->ops.add_memory)
                tier->ops.add_memory = add_memory_unregistered;
        if (!tier->ops.remove_memory)
                tier->ops.remove_memory = remove_memory_unregistered;
        if (!tier->ops.read_pieces)
                tier->ops.read_pieces = read_pieces_of_whole;
        if (!tier->ops.is_own)
                tier->ops.is_own = is_always_own;
        if (!tier->ops.replaced)
                tier->ops.replaced = replaced_for_nobody;
        if (!tier->ops.is_replaced)
                tier->ops.is_replaced = is_never_replaced;
        if (!tier->ops.vouched)
                tier->ops.vouched = vouched_for_nobody;
        if (!tier->ops.sync)
                tier->ops.sync = sync_nothing;
        if (!tier->ops.keep_layout)
                tier->ops.keep_layout = keep_no_layout;
        if (!tier->ops.forget_layout)
                tier->ops.forget_layout = forget_no_layout;
}
