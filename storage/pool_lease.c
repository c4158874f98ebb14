// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "storage/pool_lease.h"
#include "storage/segment.h"

#define NS_PER_S UINT64_C(1000000000)

static uint64_t block_checksum(const struct pool_lease_block *block)
{
        return segment_checksum(block, sizeof(*block), offsetof(struct pool_lease_block, checksum));
}

void pool_lease_encode(uint8_t ret_bytes[POOL_LEASE_BYTES], const struct pool_lease *lease)
{
        struct pool_lease_block block = {
                .version = POOL_LEASE_VERSION,
                .length = POOL_LEASE_BYTES,
                .epoch = lease->epoch,
                .written_ns = lease->written_ns,
                .seconds = lease->seconds,
        };

        memcpy(block.magic, POOL_LEASE_MAGIC, sizeof(block.magic));
        memcpy(block.node, lease->node, sizeof(block.node));
        memcpy(block.holder, lease->holder, sizeof(block.holder));
        pool_host_put(block.host, lease->host);
        block.checksum = block_checksum(&block);
        memcpy(ret_bytes, &block, sizeof(block));
}

static int check_block(const struct pool_lease_block *block, struct why *why)
{
        if (memcmp(block->magic, POOL_LEASE_MAGIC, sizeof(block->magic))) {
                why_set(why, "not a lease");
                return POOL_LEASE_E_DAMAGED;
        }
        if (block->version > POOL_LEASE_VERSION || block->refuse_flags) {
                why_set(why, "lease format %u, flags %#x; this program knows up to %u, no flag",
                        block->version, block->refuse_flags, POOL_LEASE_VERSION);
                return POOL_LEASE_E_NEWER;
        }
        if (!block->version || block->length != sizeof(*block) ||
            block->checksum != block_checksum(block)) {
                why_set(why, "the checksum of a lease does not match");
                return POOL_LEASE_E_DAMAGED;
        }
        if (!pool_host_is_sane(block->host) || block->seconds > POOL_LEASE_MAX_S ||
            !segment_is_zero(block->reserved, sizeof(block->reserved)) ||
            !segment_is_zero(block->reserved2, sizeof(block->reserved2))) {
                why_set(why, "a lease has an impossible field");
                return POOL_LEASE_E_DAMAGED;
        }
        return 0;
}

int pool_lease_decode(struct pool_lease *ret_lease, const void *bytes, size_t length,
                      struct why *why)
{
        struct pool_lease_block block;
        int r;

        if (length != sizeof(block)) {
                why_set(why, "a lease has %zu bytes, not %zu", length, sizeof(block));
                return POOL_LEASE_E_DAMAGED;
        }
        memcpy(&block, bytes, sizeof(block));
        r = check_block(&block, why);
        if (r)
                return r;
        *ret_lease = (struct pool_lease){
                .epoch = block.epoch,
                .written_ns = block.written_ns,
                .seconds = block.seconds,
        };
        memcpy(ret_lease->node, block.node, sizeof(block.node));
        memcpy(ret_lease->holder, block.holder, sizeof(block.holder));
        memcpy(ret_lease->host, block.host, sizeof(block.host));
        return 0;
}

uint64_t pool_lease_left_s(const struct pool_lease *lease, uint64_t now_ns)
{
        uint64_t held_s = (uint64_t)lease->seconds + POOL_LEASE_MARGIN_S;
        uint64_t age_s = now_ns > lease->written_ns ? (now_ns - lease->written_ns) / NS_PER_S : 0;

        if (lease->written_ns > now_ns &&
            lease->written_ns - now_ns > POOL_LEASE_MARGIN_S * NS_PER_S)
                return 0;
        return age_s < held_s ? held_s - age_s : 0;
}
