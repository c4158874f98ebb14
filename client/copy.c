// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/session.h"
#include "proto/checksum.h"

/* The part of a segment that a copy of [offset, offset + length) touches. */
struct part {
        uint8_t *address;
        uint64_t bytes;
};

/* Steps over @segment. @offset counts from its start and goes down as segments pass. */
static struct part next_part(const struct kvt_segment *segment, uint64_t *offset, uint64_t left)
{
        struct part part = {segment->address, segment->bytes};

        if (*offset >= part.bytes) {
                *offset -= part.bytes;
                return (struct part){NULL, 0};
        }
        part.address += *offset;
        part.bytes -= *offset;
        *offset = 0;
        if (part.bytes > left)
                part.bytes = left;
        return part;
}

static enum kvt_status check(const struct kvt_object *object, uint64_t offset, uint64_t length)
{
        uint64_t total = 0;

        if (!object || !object->lease || !object->segments)
                return KVT_INVALID;
        for (uint32_t i = 0; i < object->n_segments; i++)
                total += object->segments[i].bytes;
        return offset > total || length > total - offset ? KVT_INVALID : KVT_OK;
}

enum kvt_status kvt_write(const struct kvt_object *object, uint64_t offset, const void *bytes,
                          uint64_t length)
{
        enum kvt_status status = check(object, offset, length);
        const uint8_t *from = bytes;

        if (status != KVT_OK || (length && !bytes))
                return KVT_INVALID;
        for (uint32_t i = 0; length; i++) {
                struct part part = next_part(&object->segments[i], &offset, length);

                if (!part.bytes)
                        continue;
                memcpy(part.address, from, part.bytes);
                from += part.bytes;
                length -= part.bytes;
        }
        return KVT_OK;
}

enum kvt_status kvt_read(const struct kvt_object *object, uint64_t offset, void *bytes,
                         uint64_t length)
{
        enum kvt_status status = check(object, offset, length);
        uint8_t *to = bytes;

        if (status != KVT_OK || (length && !bytes))
                return KVT_INVALID;
        for (uint32_t i = 0; length; i++) {
                struct part part = next_part(&object->segments[i], &offset, length);

                if (!part.bytes)
                        continue;
                memcpy(to, part.address, part.bytes);
                to += part.bytes;
                length -= part.bytes;
        }
        return KVT_OK;
}

/* Copies what came with the lease; the bytes themselves stay as long as the lease is held. */
static enum kvt_status get_checksums(struct kvt_session *session, uint64_t id,
                                     struct checksum_list *ret_list)
{
        enum kvt_status status = KVT_OK;
        struct kvt__lease *lease;

        pthread_mutex_lock(&session->lock);
        lease = kvt__lease_find(&session->leases, id);
        if (!lease || lease->ending) {
                status = KVT_GONE;
        } else if (!lease->n_pieces || lease->n_pieces > CHECKSUM_PIECES_MAX) {
                status = KVT_MISS;
        } else {
                ret_list->raw_bytes = lease->bytes;
                ret_list->piece_bytes = checksum_piece_bytes(lease->bytes);
                ret_list->n_pieces = lease->n_pieces;
                memcpy(ret_list->pieces, lease->pieces, lease->n_pieces * sizeof(lease->pieces[0]));
        }
        pthread_mutex_unlock(&session->lock);
        return status;
}

enum kvt_status kvt_verify(struct kvt_session *session, const struct kvt_object *object)
{
        _cleanup_free_ struct checksum_segment *segments = NULL;
        struct checksum_list list = {0};
        enum kvt_status status;

        if (!session || !object || !object->segments)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        if (session->arenas.foreign)
                return KVT_UNSUPPORTED;
        status = get_checksums(session, object->lease, &list);
        if (status != KVT_OK)
                return status;
        segments = calloc(object->n_segments, sizeof(segments[0]));
        if (!segments)
                return KVT_NO_MEMORY;
        for (uint32_t i = 0; i < object->n_segments; i++)
                segments[i] = (struct checksum_segment){object->segments[i].address,
                                                        object->segments[i].bytes};
        if (!checksum_list_is_sane(&list) ||
            checksum_first_mismatch(&list, segments, object->n_segments) >= 0)
                return KVT_CORRUPT;
        return KVT_OK;
}
