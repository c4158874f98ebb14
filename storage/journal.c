// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/journal.h"
#include "storage/journal_record.h"
#include "storage/pool_name.h"
#include "storage/segment.h"

#define KIND "journal"

void journal_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16], uint64_t number)
{
        pool_name_number(ret_name, KIND, node, number);
}

bool journal_name_parse(const char *name, uint8_t ret_node[16], uint64_t *ret_number)
{
        return pool_name_parse_number(name, KIND, ret_node, ret_number);
}

void journal_segment_init(struct journal_segment *segment)
{
        memset(segment, 0, sizeof(*segment));
}

void journal_segment_deinit(struct journal_segment *segment)
{
        free(segment->bytes);
        memset(segment, 0, sizeof(*segment));
}

static int make_room(struct journal_segment *segment, size_t bytes)
{
        size_t length = segment->length ? segment->length : sizeof(struct journal_head);
        size_t capacity = segment->capacity ? segment->capacity : 4096;
        uint8_t *grown;

        if (bytes > JOURNAL_SEGMENT_BYTES - length)
                return JOURNAL_E_FULL;
        while (capacity < length + bytes)
                capacity *= 2;
        if (capacity != segment->capacity) {
                grown = realloc(segment->bytes, capacity);
                if (!grown)
                        return err_raise(-ENOMEM);
                segment->bytes = grown;
                segment->capacity = capacity;
        }
        if (!segment->length) {
                memset(segment->bytes, 0, sizeof(struct journal_head));
                segment->length = length;
        }
        return 0;
}

int journal_segment_add(struct journal_segment *segment, const struct journal_record *record)
{
        size_t bytes = journal_record_bytes(record);
        uint8_t *at;
        int r;

        assert(record->kind >= JOURNAL_STORED && record->kind <= JOURNAL_SNAPSHOT);
        assert(record->kind != JOURNAL_SNAPSHOT || !segment->n_records);
        assert(record->kind != JOURNAL_LAYOUT || record->layout.length <= LAYOUT_BYTES_MAX);
        r = make_room(segment, bytes);
        if (r)
                return r;
        at = segment->bytes + segment->length;
        journal_record_encode(at, record);
        segment->length += bytes;
        segment->n_records++;
        return 0;
}

void journal_segment_seal(struct journal_segment *segment, const uint8_t node[16], uint64_t number)
{
        struct journal_head head = {
                .version = JOURNAL_VERSION,
                .length = (uint32_t)segment->length,
                .number = number,
                .n_records = segment->n_records,
        };

        assert(segment->n_records);
        memcpy(head.magic, JOURNAL_MAGIC, sizeof(head.magic));
        memcpy(head.node, node, sizeof(head.node));
        memcpy(segment->bytes, &head, sizeof(head));
        head.checksum = segment_checksum(segment->bytes, segment->length,
                                         offsetof(struct journal_head, checksum));
        memcpy(segment->bytes, &head, sizeof(head));
}

/* A layout is never believed to be another. */
static int check_layout(const struct tier_layout *layout, struct why *why)
{
        struct digest id;

        if (layout_id(&id, layout->encoding, layout->length))
                return err_raise(-ENOMEM);
        if (digest_equal(&id, &layout->id))
                return 0;
        why_set(why, "the layout's id is not the SHA-256 of its encoding");
        return JOURNAL_E_DAMAGED;
}

static int check_record(const struct journal_record *record, uint32_t i, struct why *why)
{
        if (record->kind == JOURNAL_LAYOUT)
                return check_layout(&record->layout, why);
        if (record->kind != JOURNAL_SNAPSHOT || !i)
                return 0;
        why_set(why, "a snapshot begins a segment or is nowhere");
        return JOURNAL_E_DAMAGED;
}

static int check_records(const uint8_t *bytes, const struct journal_head *head, struct why *why)
{
        size_t at = sizeof(*head), used = 0;
        struct journal_record record;
        int r;

        for (uint32_t i = 0; i < head->n_records; i++, at += used) {
                r = journal_record_decode(&record, bytes + at, head->length - at, &used, why);
                if (!r)
                        r = check_record(&record, i, why);
                if (r) {
                        why_prefix(why, "record %u of a journal segment", i);
                        return r;
                }
        }
        if (at != head->length) {
                why_set(why, "a journal segment goes on behind its last record");
                return JOURNAL_E_DAMAGED;
        }
        return 0;
}

static int check_head(const struct journal_head *head, const uint8_t *bytes, size_t length,
                      struct why *why)
{
        if (memcmp(head->magic, JOURNAL_MAGIC, sizeof(head->magic))) {
                why_set(why, "not a journal segment");
                return JOURNAL_E_DAMAGED;
        }
        if (head->version > JOURNAL_VERSION) {
                why_set(why, "journal format %u; this program knows up to %u", head->version,
                        JOURNAL_VERSION);
                return JOURNAL_E_NEWER;
        }
        if (!head->version || head->length != length || length > JOURNAL_SEGMENT_BYTES ||
            head->checksum !=
                    segment_checksum(bytes, length, offsetof(struct journal_head, checksum))) {
                why_set(why, "a journal segment is cut short, or its checksum does not match");
                return JOURNAL_E_DAMAGED;
        }
        if (head->refuse_flags) {
                why_set(why, "the journal segment uses features that this program does not know");
                return JOURNAL_E_NEWER;
        }
        if (!head->n_records || head->reserved) {
                why_set(why, "a journal segment's head has an impossible field");
                return JOURNAL_E_DAMAGED;
        }
        return 0;
}

static void give_records(const uint8_t *bytes, const struct journal_head *head,
                         bool (*on_record)(void *user, const struct journal_record *record),
                         void *user)
{
        size_t at = sizeof(*head), used = 0;
        struct journal_record record;
        int r;

        for (uint32_t i = 0; i < head->n_records; i++, at += used) {
                r = journal_record_decode(&record, bytes + at, head->length - at, &used, NULL);
                assert(!r);
                if (r || !on_record(user, &record))
                        return;
        }
}

int journal_segment_decode(const void *bytes, size_t length, const uint8_t node[16],
                           uint64_t number,
                           bool (*on_record)(void *user, const struct journal_record *record),
                           void *user, struct why *why)
{
        struct journal_head head;
        int r;

        if (length < sizeof(head)) {
                why_set(why, "a journal segment is cut short");
                return JOURNAL_E_DAMAGED;
        }
        memcpy(&head, bytes, sizeof(head));
        r = check_head(&head, bytes, length, why);
        if (!r)
                r = check_records(bytes, &head, why);
        if (r)
                return r;
        if (memcmp(head.node, node, sizeof(head.node)) || head.number != number) {
                why_set(why, "the journal segment is of another node or number than its name");
                return -EINVAL;
        }
        give_records(bytes, &head, on_record, user);
        return 0;
}
