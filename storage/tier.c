// SPDX-License-Identifier: Apache-2.0
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
        if (!tier->ops.sync)
                tier->ops.sync = sync_nothing;
        if (!tier->ops.keep_layout)
                tier->ops.keep_layout = keep_no_layout;
        if (!tier->ops.forget_layout)
                tier->ops.forget_layout = forget_no_layout;
}
