// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "storage/journal.h"
#include "storage/pool_name.h"
#include "storage/segment.h"

#define KIND "node"

void journal_node_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16])
{
        pool_name_node(ret_name, KIND, node);
}

bool journal_node_name_parse(const char *name, uint8_t ret_node[16])
{
        return pool_name_parse_node(name, KIND, ret_node);
}

static uint64_t block_checksum(const struct journal_node_block *block)
{
        return segment_checksum(block, sizeof(*block),
                                offsetof(struct journal_node_block, checksum));
}

void journal_node_encode(uint8_t ret_bytes[JOURNAL_NODE_BYTES], const struct journal_node *node)
{
        struct journal_node_block block = {
                .version = JOURNAL_VERSION,
                .length = JOURNAL_NODE_BYTES,
                .written_ns = node->written_ns,
                .first_segment = node->first_segment,
                .next_segment = node->next_segment,
                .bundles = node->bundles,
                .bytes = node->bytes,
                .bytes_max = node->bytes_max,
                .heartbeat_s = node->heartbeat_s,
        };

        memcpy(block.magic, JOURNAL_NODE_MAGIC, sizeof(block.magic));
        memcpy(block.node, node->node, sizeof(block.node));
        pool_host_put(block.host, node->host);
        block.checksum = block_checksum(&block);
        memcpy(ret_bytes, &block, sizeof(block));
}

static int check_node(const struct journal_node_block *block, struct why *why)
{
        if (memcmp(block->magic, JOURNAL_NODE_MAGIC, sizeof(block->magic))) {
                why_set(why, "not a node's block");
                return JOURNAL_E_DAMAGED;
        }
        if (block->version > JOURNAL_VERSION || block->refuse_flags) {
                why_set(why, "node format %u, flags %#x; this program knows up to %u, no flag",
                        block->version, block->refuse_flags, JOURNAL_VERSION);
                return JOURNAL_E_NEWER;
        }
        if (!block->version || block->length != sizeof(*block) ||
            block->checksum != block_checksum(block)) {
                why_set(why, "the checksum of a node's block does not match");
                return JOURNAL_E_DAMAGED;
        }
        if (!pool_host_is_sane(block->host) || block->first_segment > block->next_segment ||
            !segment_is_zero(block->reserved, sizeof(block->reserved))) {
                why_set(why, "a node's block has an impossible field");
                return JOURNAL_E_DAMAGED;
        }
        return 0;
}

int journal_node_decode(struct journal_node *ret_node, const void *bytes, size_t length,
                        struct why *why)
{
        struct journal_node_block block;
        int r;

        if (length != sizeof(block)) {
                why_set(why, "a node's block has %zu bytes, not %zu", length, sizeof(block));
                return JOURNAL_E_DAMAGED;
        }
        memcpy(&block, bytes, sizeof(block));
        r = check_node(&block, why);
        if (r)
                return r;
        *ret_node = (struct journal_node){
                .written_ns = block.written_ns,
                .first_segment = block.first_segment,
                .next_segment = block.next_segment,
                .bundles = block.bundles,
                .bytes = block.bytes,
                .bytes_max = block.bytes_max,
                .heartbeat_s = block.heartbeat_s,
        };
        memcpy(ret_node->node, block.node, sizeof(block.node));
        memcpy(ret_node->host, block.host, sizeof(block.host));
        return 0;
}
