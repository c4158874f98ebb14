// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/daemon.h"

static void start_message(struct answer *answer)
{
        struct wire_header header;

        message_header_init(&header, WIRE_RESULT, answer->request, answer->session->id,
                            answer->session->daemon->boot_id);
        message_builder_init(&answer->builder, answer->packet, &header, sizeof(header));
}

void answer_begin(struct answer *answer, struct session *session, uint64_t request)
{
        answer->session = session;
        answer->request = request;
        start_message(answer);
}

static void add(struct answer *answer, const struct wire_result_item *item,
                const struct wire_extent *extents, const uint64_t *pieces)
{
        int r = message_append_result(&answer->builder, item, extents, pieces);

        if (!r)
                return;
        message_set_more(&answer->builder, true);
        session_send_message(answer->session, &answer->builder);
        start_message(answer);
        r = message_append_result(&answer->builder, item, extents, pieces);
        assert(!r);
}

void answer_status(struct answer *answer, uint32_t index, uint32_t status)
{
        struct wire_result_item item = {.index = index, .status = status};

        add(answer, &item, NULL, NULL);
}

static struct wire_result_item describe(uint32_t index, uint32_t status, uint64_t lease,
                                        const struct host_copy *copy)
{
        struct wire_result_item item = {
                .index = index,
                .status = status,
                .lease = lease,
                .generation = copy->generation,
                .bytes = copy->raw_bytes,
                .stored_ns = copy->committed_ns,
        };

        memcpy(item.writer_boot_id, copy->writer_boot_id, sizeof(item.writer_boot_id));
        return item;
}

/* Who maps no arena gets no extents. */
static bool shows_extents(const struct answer *answer)
{
        return answer->session->carrier->shares_memory;
}

void answer_copy(struct answer *answer, uint32_t index, uint32_t status, uint64_t lease,
                 const struct host_copy *copy, bool with_extents, bool with_checksums)
{
        struct wire_result_item item = describe(index, status, lease, copy);
        struct wire_extent extents[HOST_EXTENTS_MAX];

        if (with_extents && shows_extents(answer)) {
                item.n_extents = copy->n_extents;
                for (uint32_t i = 0; i < copy->n_extents; i++)
                        extents[i] = (struct wire_extent){
                                .arena_id = copy->extents[i].arena_id,
                                .offset = copy->extents[i].offset,
                                .length = copy->extents[i].length,
                        };
        }
        if (with_checksums && copy->checksums)
                item.n_pieces = copy->checksums->n_pieces;
        add(answer, &item, extents, copy->checksums ? copy->checksums->pieces : NULL);
}

void answer_held(struct answer *answer, uint32_t index, uint32_t status, const struct lease *lease)
{
        struct wire_result_item item = {
                .index = index,
                .status = status,
                .lease = lease->id,
                .generation = lease->have_generation,
                .bytes = lease->entry.raw_bytes,
        };

        add(answer, &item, NULL, NULL);
}

/* A remote session's lease keeps what it is for until the bytes are fetched. */
static bool keep_pages(struct answer *answer, uint64_t id, uint64_t bytes,
                       const struct wire_extent *extents, uint32_t n)
{
        struct lease *lease = lease_find(&answer->session->daemon->leases, answer->session, id);

        assert(lease && !lease->pages);
        lease->pages = malloc(sizeof(*lease->pages) + n * sizeof(extents[0]));
        if (!lease->pages)
                return false;
        lease->pages->n = n;
        lease->pages->bytes = bytes;
        memcpy(lease->pages->extents, extents, n * sizeof(extents[0]));
        return true;
}

bool answer_pages(struct answer *answer, uint32_t index, uint32_t status, uint64_t lease,
                  const struct host_copy *copy, const struct pages *pages, bool with_extents)
{
        struct wire_result_item item = describe(index, status, lease, copy);
        struct wire_extent extents[WIRE_EXTENTS_MAX];
        uint32_t n = with_extents ? pages_extents(pages, copy, extents) : 0;

        item.bytes = pages_bytes(pages);
        if (shows_extents(answer)) {
                item.n_extents = n;
        } else if (n && !keep_pages(answer, lease, item.bytes, extents, n)) {
                answer_status(answer, index, KVT_WIRE_NO_MEMORY);
                return false;
        }
        add(answer, &item, extents, NULL);
        return true;
}

void answer_end(struct answer *answer, bool more)
{
        message_set_more(&answer->builder, more);
        session_send_message(answer->session, &answer->builder);
}

void answer_once(struct session *session, uint64_t request, uint32_t status)
{
        struct answer answer;

        answer_begin(&answer, session, request);
        answer_status(&answer, 0, status);
        answer_end(&answer, false);
}

void answer_part(struct session *session, const struct wire_batch *part, uint32_t status)
{
        struct answer answer;

        answer_begin(&answer, session, part->header.request);
        for (uint32_t i = 0; i < part->header.n_items; i++)
                answer_status(&answer, part->first + i, status);
        answer_end(&answer, part->header.flags & WIRE_MORE);
}
