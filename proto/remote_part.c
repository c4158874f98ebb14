// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "proto/remote_part.h"

static int check_part(const struct remote_join *join, const struct remote_part *part, size_t bytes,
                      struct why *why)
{
        if (part->service != REMOTE_SESSION && part->service != REMOTE_PEER) {
                why_set(why, "service is %u, expected %u or %u", part->service, REMOTE_SESSION,
                        REMOTE_PEER);
                return REMOTE_E_INVALID;
        }
        if (join->service && part->service != join->service) {
                why_set(why, "service is %u, and was %u before", part->service, join->service);
                return REMOTE_E_INVALID;
        }
        if (part->left > WIRE_MESSAGE_MAX || bytes + part->left > WIRE_MESSAGE_MAX) {
                why_set(why, "a message of %zu bytes or more, expected at most %u",
                        bytes + part->left, WIRE_MESSAGE_MAX);
                return REMOTE_E_INVALID;
        }
        if (join->total && bytes + part->left != join->total - join->length) {
                why_set(why, "left is %u behind %zu bytes, expected %u together", part->left, bytes,
                        join->total - join->length);
                return REMOTE_E_INVALID;
        }
        return 0;
}

int remote_join_add(struct remote_join *join, const void *part, size_t length, bool *ret_is_whole,
                    struct why *why)
{
        struct remote_part header;
        size_t bytes;
        int r;

        if (length <= sizeof(header)) {
                why_set(why, "a part of %zu bytes, expected more than %zu", length, sizeof(header));
                return REMOTE_E_INVALID;
        }
        memcpy(&header, part, sizeof(header));
        bytes = length - sizeof(header);
        r = check_part(join, &header, bytes, why);
        if (r)
                return r;
        if (!join->total) {
                join->service = header.service;
                join->length = 0;
                join->total = (uint32_t)bytes + header.left;
        }
        memcpy(join->bytes + join->length, (const uint8_t *)part + sizeof(header), bytes);
        join->length += (uint32_t)bytes;
        *ret_is_whole = !header.left;
        if (!header.left)
                join->total = 0;
        return 0;
}

size_t remote_cut(void *ret_part, size_t room, uint32_t service, const void *message,
                  uint32_t length, uint32_t *offset)
{
        struct remote_part header = {.service = service};
        size_t bytes = length - *offset;

        if (bytes > room - sizeof(header))
                bytes = room - sizeof(header);
        header.left = length - *offset - (uint32_t)bytes;
        memcpy(ret_part, &header, sizeof(header));
        memcpy((uint8_t *)ret_part + sizeof(header), (const uint8_t *)message + *offset, bytes);
        *offset += (uint32_t)bytes;
        return sizeof(header) + bytes;
}
