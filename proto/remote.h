// SPDX-License-Identifier: Apache-2.0
/*
 * What kvtier speaks between nodes, over the connections of base/rdma.h: an identity for the
 * handshake, in which `id` is the boot id of the daemon, or of the client library's process.
 * Who holds a boot id from an earlier word of a node expects that one, and is refused by any
 * other: nothing of what it knew is true any more. The domain's name and secret are those of the
 * configuration.
 */
#pragma once

#include <string.h>

#include "base/rdma.h"

#define REMOTE_PROTOCOL 0x3152564bu /* "KVR1" */
#define REMOTE_MAJOR    1u
#define REMOTE_MINOR    0u
#define REMOTE_PORT     7428u /* where an address names none */

static inline struct rdma_identity remote_identity(const uint8_t boot_id[RDMA_ID_BYTES])
{
        struct rdma_identity identity = {
                .protocol = REMOTE_PROTOCOL,
                .major = REMOTE_MAJOR,
                .minor = REMOTE_MINOR,
        };

        memcpy(identity.id, boot_id, sizeof(identity.id));
        return identity;
}
