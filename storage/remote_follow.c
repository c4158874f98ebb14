// SPDX-License-Identifier: Apache-2.0
/* Reading the journals of others: so far this node knows its own alone. */
#include "storage/remote_tier.h"
int remote_follow_init(struct remote *remote)
{
        return 0;
}
void remote_follow_deinit(struct remote *remote)
{
}
void remote_begin_following(struct remote *remote)
{
        remote->is_own_read = true;
}
void remote_follow_poll(struct remote *remote)
{
}
void remote_compact(struct remote *remote)
{
}
void remote_replaced(struct tier *tier, const struct object_key *key, uint64_t checksum_total)
{
}
void remote_replaced_sealed(struct remote *remote, uint64_t number)
{
}
void remote_replaced_deinit(struct remote *remote)
{
}
int remote_replaced_restore(struct remote *remote, const void *key, size_t key_bytes,
                            const void *value, size_t value_bytes)
{
        return 0;
}
