// SPDX-License-Identifier: Apache-2.0
/*
 * Any bundle header. Bit 0 of the first byte puts its checksum right first, bit 1 those of
 * its records, bit 2 its length and its parts' offsets. What is accepted encodes to the same bytes
 * again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/bundle.h"
#include "tests/fuzz/pool_seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
        const uint8_t *bytes;
        size_t length;
        uint64_t offset; /* where the next part begins */
        uint32_t n_parts, n_max;
        struct bundle_part *parts;
};

static bool see_part(void *user, const struct bundle_part *part)
{
        struct seen *seen = user;

        REQUIRE(seen->n_parts < seen->n_max && part->offset == seen->offset);
        pool_check_part(part, seen->bytes, seen->length);
        seen->parts[seen->n_parts++] = *part;
        seen->offset += part->stored_bytes;
        return true;
}

static void check_accepted(const uint8_t *bytes, const struct bundle_id *id,
                           const struct seen *seen)
{
        size_t length = bundle_header_bytes(seen->parts, seen->n_parts);
        uint8_t *again = malloc(length);
        struct bundle_head head;

        REQUIRE(again);
        bundle_header_encode(again, id, seen->parts, seen->n_parts);
        memcpy(&head, bytes, sizeof(head));
        REQUIRE(head.header_bytes == length);
        if (!head.ignore_flags && head.version == BUNDLE_VERSION)
                REQUIRE(!memcmp(again, bytes, length));
        free(again);
}

static void decode(const uint8_t *bytes, size_t length)
{
        struct seen seen = {.bytes = bytes, .length = length};
        uint32_t n_parts = 0, header_bytes = 0;
        struct bundle_id id = {{0}};
        struct why why = {""};
        int r, whole;

        r = bundle_head_decode(bytes, length, &id, &n_parts, &header_bytes, &why);
        REQUIRE(r >= 0 && r <= BUNDLE_E_NEWER);
        REQUIRE(r ? *why.text
                  : n_parts && n_parts <= BUNDLE_PARTS_MAX && header_bytes <= BUNDLE_HEADER_MAX);
        seen.n_max = (uint32_t)(length / sizeof(struct bundle_part_head));
        seen.parts = calloc(seen.n_max ? seen.n_max : 1, sizeof(*seen.parts));
        REQUIRE(seen.parts);
        seen.offset = header_bytes;
        whole = bundle_header_decode(bytes, length, see_part, &seen, &why);
        REQUIRE(whole >= 0 && whole <= BUNDLE_E_NEWER && (!r || whole == r));
        if (whole)
                REQUIRE(*why.text && !seen.n_parts);
        else
                REQUIRE(seen.n_parts == n_parts);
        if (!whole)
                check_accepted(bytes, &id, &seen);
        free(seen.parts);
}

static void seal(uint8_t *bytes, size_t length, uint8_t how)
{
        struct bundle_head head;
        size_t at = sizeof(head), used = 0;
        uint64_t offset;

        if (length < sizeof(head))
                return;
        memcpy(&head, bytes, sizeof(head));
        if (how & 4)
                head.header_bytes = (uint32_t)length;
        memcpy(bytes, &head, sizeof(head));
        offset = head.header_bytes;
        for (; how & 2; at += used) {
                used = pool_seal_part(bytes + at, length - at, how & 4 ? &offset : NULL);
                if (!used)
                        break;
        }
        if (how & 1 && head.header_bytes <= length)
                pool_seal(bytes, head.header_bytes);
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
        decode(bytes, length);
        free(bytes);
        return 0;
}
