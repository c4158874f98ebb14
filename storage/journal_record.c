// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/journal_record.h"
#include "storage/segment.h"

/* Bodies of records: as drawn in the header. */
struct bundle_body {
        uint8_t node[16];
        uint64_t number;
};

struct part_body {
        uint8_t node[16];
        uint64_t number;
        uint32_t part;
        uint32_t reserved;
};

struct replaced_body {
        struct object_key key;
        uint64_t checksum_total;
};

struct layout_body {
        struct digest id;
        uint32_t domain;
        uint32_t length;
};

_Static_assert(sizeof(struct bundle_body) == 24, "it is in the pool");
_Static_assert(sizeof(struct part_body) == 32, "it is in the pool");
_Static_assert(sizeof(struct replaced_body) == 80, "it is in the pool");
_Static_assert(sizeof(struct layout_body) == 40, "it is in the pool");

/* 0: no such kind. */
static size_t body_bytes(const struct journal_record *record)
{
        switch (record->kind) {
        case JOURNAL_STORED:
                return sizeof(struct part_body) + bundle_part_bytes(&record->stored);
        case JOURNAL_DELETED:
        case JOURNAL_READ:
                return sizeof(struct bundle_body);
        case JOURNAL_DROPPED:
                return sizeof(struct part_body);
        case JOURNAL_REPLACED:
                return sizeof(struct replaced_body);
        case JOURNAL_LAYOUT:
                return sizeof(struct layout_body) + record->layout.length;
        case JOURNAL_SNAPSHOT:
                return 0;
        }
        return 0;
}

size_t journal_record_bytes(const struct journal_record *record)
{
        return (sizeof(struct journal_record_head) + body_bytes(record) + 7) & ~(size_t)7;
}

static void put_part(uint8_t *at, const struct journal_record *record)
{
        struct part_body body = {.number = record->bundle.number, .part = record->part};

        memcpy(body.node, record->bundle.node, sizeof(body.node));
        memcpy(at, &body, sizeof(body));
        if (record->kind == JOURNAL_STORED)
                bundle_part_encode(at + sizeof(body), &record->stored);
}

static void put_bundle(uint8_t *at, const uint8_t node[16], uint64_t number)
{
        struct bundle_body body = {.number = number};

        memcpy(body.node, node, sizeof(body.node));
        memcpy(at, &body, sizeof(body));
}

static void put_replaced(uint8_t *at, const struct journal_record *record)
{
        struct replaced_body body = {record->key, record->checksum_total};

        memcpy(at, &body, sizeof(body));
}

static void put_layout(uint8_t *at, const struct tier_layout *layout)
{
        struct layout_body body = {layout->id, layout->domain, layout->length};

        memcpy(at, &body, sizeof(body));
        memcpy(at + sizeof(body), layout->encoding, layout->length);
}

static void put_body(uint8_t *at, const struct journal_record *record)
{
        switch (record->kind) {
        case JOURNAL_STORED:
        case JOURNAL_DROPPED:
                put_part(at, record);
                break;
        case JOURNAL_DELETED:
                put_bundle(at, record->bundle.node, record->bundle.number);
                break;
        case JOURNAL_READ:
                put_bundle(at, record->node, record->number);
                break;
        case JOURNAL_REPLACED:
                put_replaced(at, record);
                break;
        case JOURNAL_LAYOUT:
                put_layout(at, &record->layout);
                break;
        case JOURNAL_SNAPSHOT:
                break;
        }
}

void journal_record_encode(void *bytes, const struct journal_record *record)
{
        struct journal_record_head head = {
                .kind = record->kind,
                .bytes = (uint32_t)journal_record_bytes(record),
        };

        memset(bytes, 0, head.bytes);
        memcpy(bytes, &head, sizeof(head));
        put_body((uint8_t *)bytes + sizeof(head), record);
}

/* Takes the body of a record apart. @ret_used: its bytes, at most @length. */
static int take_part(struct journal_record *record, const uint8_t *at, size_t length,
                     size_t *ret_used, struct why *why)
{
        struct part_body body;
        size_t bytes = 0;
        int r;

        if (length < sizeof(body))
                return JOURNAL_E_DAMAGED;
        memcpy(&body, at, sizeof(body));
        if (body.reserved || body.part >= BUNDLE_PARTS_MAX || body.number > POOL_NAME_NUMBER_MAX)
                return JOURNAL_E_DAMAGED;
        memcpy(record->bundle.node, body.node, sizeof(body.node));
        record->bundle.number = body.number;
        record->part = body.part;
        if (record->kind == JOURNAL_STORED) {
                r = bundle_part_decode(&record->stored, at + sizeof(body), length - sizeof(body),
                                       &bytes, why);
                if (r)
                        return JOURNAL_E_DAMAGED;
        }
        *ret_used = sizeof(body) + bytes;
        return 0;
}

static int take_bundle(struct journal_record *record, const uint8_t *at, size_t length,
                       size_t *ret_used)
{
        bool is_read = record->kind == JOURNAL_READ;
        struct bundle_body body;

        if (length < sizeof(body))
                return JOURNAL_E_DAMAGED;
        memcpy(&body, at, sizeof(body));
        if (body.number > POOL_NAME_NUMBER_MAX)
                return JOURNAL_E_DAMAGED;
        memcpy(is_read ? record->node : record->bundle.node, body.node, sizeof(body.node));
        *(is_read ? &record->number : &record->bundle.number) = body.number;
        *ret_used = sizeof(body);
        return 0;
}

static int take_replaced(struct journal_record *record, const uint8_t *at, size_t length,
                         size_t *ret_used)
{
        struct replaced_body body;

        if (length < sizeof(body))
                return JOURNAL_E_DAMAGED;
        memcpy(&body, at, sizeof(body));
        if (body.key.group >= LAYOUT_GROUPS_MAX || body.key.shard >= LAYOUT_SHARDS_MAX)
                return JOURNAL_E_DAMAGED;
        record->key = body.key;
        record->checksum_total = body.checksum_total;
        *ret_used = sizeof(body);
        return 0;
}

static int take_layout(struct journal_record *record, const uint8_t *at, size_t length,
                       size_t *ret_used)
{
        struct layout_body body;

        if (length < sizeof(body))
                return JOURNAL_E_DAMAGED;
        memcpy(&body, at, sizeof(body));
        if (!body.length || body.length > LAYOUT_BYTES_MAX || body.length > length - sizeof(body))
                return JOURNAL_E_DAMAGED;
        record->layout.id = body.id;
        record->layout.domain = body.domain;
        record->layout.length = body.length;
        record->layout.encoding = at + sizeof(body);
        *ret_used = sizeof(body) + body.length;
        return 0;
}

static int take_body(struct journal_record *record, const uint8_t *at, size_t length,
                     size_t *ret_used, struct why *why)
{
        switch (record->kind) {
        case JOURNAL_STORED:
        case JOURNAL_DROPPED:
                return take_part(record, at, length, ret_used, why);
        case JOURNAL_DELETED:
        case JOURNAL_READ:
                return take_bundle(record, at, length, ret_used);
        case JOURNAL_REPLACED:
                return take_replaced(record, at, length, ret_used);
        case JOURNAL_LAYOUT:
                return take_layout(record, at, length, ret_used);
        case JOURNAL_SNAPSHOT:
                *ret_used = 0;
                return 0;
        }
        why_set(why, "the record is of kind %u, which this program does not know",
                (unsigned)record->kind);
        return JOURNAL_E_NEWER;
}

int journal_record_decode(struct journal_record *ret_record, const uint8_t *at, size_t length,
                          size_t *ret_bytes, struct why *why)
{
        struct journal_record_head head;
        struct why inner = {"its body is cut short, or a field of it is impossible"};
        size_t used = 0, body;
        int r;

        if (length < sizeof(head)) {
                why_set(why, "it is cut short");
                return JOURNAL_E_DAMAGED;
        }
        memcpy(&head, at, sizeof(head));
        if (head.bytes < sizeof(head) || head.bytes > length || head.bytes % 8) {
                why_set(why, "its length is impossible");
                return JOURNAL_E_DAMAGED;
        }
        memset(ret_record, 0, sizeof(*ret_record));
        ret_record->kind = head.kind;
        at += sizeof(head);
        body = head.bytes - sizeof(head);
        r = take_body(ret_record, at, body, &used, &inner);
        if (!r && (body - used >= 8 || !segment_is_zero(at + used, body - used)))
                r = JOURNAL_E_DAMAGED;
        if (r)
                why_set(why, "%s", inner.text);
        *ret_bytes = head.bytes;
        return r;
}
