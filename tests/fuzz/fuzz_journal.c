// SPDX-License-Identifier: Apache-2.0
/*
 * Any journal segment, any node block, any lease. Bit 0 of the first byte puts length and checksum
 * right first, bit 1 those of the parts in its records, bit 2 the ids of its layouts. What
 * is accepted encodes to the same bytes again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/journal.h"
#include "storage/pool_lease.h"
#include "storage/segment.h"
#include "tests/fuzz/pool_seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
        const uint8_t *bytes;
        size_t length;
        struct journal_segment again;
};

static bool see_record(void *user, const struct journal_record *record)
{
        struct seen *seen = user;

        REQUIRE(record->kind >= JOURNAL_STORED && record->kind <= JOURNAL_SNAPSHOT);
        REQUIRE(record->part < BUNDLE_PARTS_MAX);
        REQUIRE(record->layout.length <= LAYOUT_BYTES_MAX);
        if (record->kind == JOURNAL_STORED)
                pool_check_part(&record->stored, seen->bytes, seen->length);
        REQUIRE(!journal_segment_add(&seen->again, record));
        return true;
}

static void decode_segment(const uint8_t *bytes, size_t length)
{
        struct seen seen = {.bytes = bytes, .length = length};
        struct journal_head head = {.n_records = 0};
        struct why why = {""};
        int r;

        if (length >= sizeof(head))
                memcpy(&head, bytes, sizeof(head));
        journal_segment_init(&seen.again);
        r = journal_segment_decode(bytes, length, head.node, head.number, see_record, &seen, &why);
        REQUIRE(r == -ENOMEM || (r >= 0 && r <= JOURNAL_E_NEWER));
        if (r) {
                REQUIRE(*why.text && !seen.again.n_records);
        } else {
                REQUIRE(seen.again.n_records == head.n_records);
                journal_segment_seal(&seen.again, head.node, head.number);
                REQUIRE(seen.again.length == length);
                if (!head.ignore_flags && head.version == JOURNAL_VERSION)
                        REQUIRE(!memcmp(seen.again.bytes, bytes, length));
                head.number++;
                REQUIRE(journal_segment_decode(bytes, length, head.node, head.number, see_record,
                                               &seen, NULL) == -EINVAL);
        }
        journal_segment_deinit(&seen.again);
}

static void decode_node(const uint8_t *bytes, size_t length)
{
        struct journal_node_block block;
        uint8_t again[JOURNAL_NODE_BYTES];
        struct journal_node node;
        struct why why = {""};

        if (journal_node_decode(&node, bytes, length, &why)) {
                REQUIRE(*why.text);
                return;
        }
        REQUIRE(strnlen(node.host, sizeof(node.host)) < sizeof(node.host));
        memcpy(&block, bytes, sizeof(block));
        journal_node_encode(again, &node);
        if (!block.ignore_flags && block.version == JOURNAL_VERSION)
                REQUIRE(!memcmp(again, bytes, sizeof(again)));
}

static void decode_lease(const uint8_t *bytes, size_t length)
{
        struct pool_lease_block block;
        uint8_t again[POOL_LEASE_BYTES];
        struct pool_lease lease;
        struct why why = {""};

        if (pool_lease_decode(&lease, bytes, length, &why)) {
                REQUIRE(*why.text);
                return;
        }
        REQUIRE(strnlen(lease.host, sizeof(lease.host)) < sizeof(lease.host));
        REQUIRE(pool_lease_left_s(&lease, 0) <= POOL_LEASE_MAX_S + POOL_LEASE_MARGIN_S);
        memcpy(&block, bytes, sizeof(block));
        pool_lease_encode(again, &lease);
        if (!block.ignore_flags && block.version == POOL_LEASE_VERSION)
                REQUIRE(!memcmp(again, bytes, sizeof(again)));
}

static void seal_layout(uint8_t *body, size_t length)
{
        struct digest id;

        if (length >= 40 && !layout_id(&id, body + 40, length - 40))
                memcpy(body, &id, sizeof(id));
}

static void seal_records(uint8_t *bytes, size_t length, uint8_t how)
{
        size_t at = sizeof(struct journal_head);
        struct journal_record_head head;

        while (at + sizeof(head) <= length) {
                memcpy(&head, bytes + at, sizeof(head));
                if (head.bytes < sizeof(head) || head.bytes > length - at)
                        return;
                if (how & 2 && head.kind == JOURNAL_STORED && head.bytes > 40)
                        pool_seal_part(bytes + at + 40, head.bytes - 40, NULL);
                if (how & 4 && head.kind == JOURNAL_LAYOUT)
                        seal_layout(bytes + at + sizeof(head), head.bytes - sizeof(head));
                at += head.bytes;
        }
}

static void seal(uint8_t *bytes, size_t length, uint8_t how)
{
        uint32_t length32 = (uint32_t)length;

        if (length < sizeof(struct journal_head))
                return;
        seal_records(bytes, length, how);
        if (how & 1) {
                memcpy(bytes + 12, &length32, sizeof(length32));
                pool_seal(bytes, length);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        size_t length = size ? size - 1 : 0;
        uint8_t *bytes = malloc(length ? length : 1);

        REQUIRE(bytes);
        if (length)
                memcpy(bytes, data + 1, length);
        if (size)
                seal(bytes, length, data[0]);
        decode_segment(bytes, length);
        decode_node(bytes, length);
        decode_lease(bytes, length);
        free(bytes);
        return 0;
}
