// SPDX-License-Identifier: Apache-2.0
/* What this node says of itself, for people and for gc: the object "node/NODE". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/remote_tier.h"

struct beat {
        struct remote *remote;
        char name[POOL_NAME_MAX];
        uint8_t bytes[JOURNAL_NODE_BYTES];
        struct pool_buffer buffer;
        struct pool_put put;
};

static void on_put(struct pool_put *put, int result)
{
        struct beat *beat = put->user;
        struct remote *remote = beat->remote;

        free(beat);
        remote_note(remote, result);
        remote_idle(remote);
}

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void remote_beat(struct remote *remote)
{
        struct beat *beat = calloc(1, sizeof(*beat));
        struct journal_node node = {
                .written_ns = wall_clock_ns(),
                .first_segment =
                        remote->first_segment ? remote->first_segment : remote->next_segment,
                .next_segment = remote->next_segment,
                .bundles = remote->n_bundles,
                .bytes = remote->used_bytes,
                .bytes_max = remote->options.bytes,
                .heartbeat_s = remote->options.heartbeat_s,
        };

        remote->heartbeat_at = uv_now(remote->loop) + remote->options.heartbeat_s * UINT64_C(1000);
        remote_tell_positions(remote);
        if (!beat)
                return;
        memcpy(node.node, remote->own->id, sizeof(node.node));
        snprintf(node.host, sizeof(node.host), "%s", remote->host);
        journal_node_encode(beat->bytes, &node);
        journal_node_name(beat->name, remote->own->id);
        beat->remote = remote;
        beat->buffer = (struct pool_buffer){beat->bytes, sizeof(beat->bytes)};
        beat->put = (struct pool_put){
                .name = beat->name,
                .buffers = &beat->buffer,
                .n_buffers = 1,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_put,
                .user = beat,
        };
        if (remote->pool->ops.put(remote->pool, &beat->put))
                free(beat);
        else
                remote_busy(remote);
}
