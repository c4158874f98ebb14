// SPDX-License-Identifier: Apache-2.0
/*
 * Answers: RESULT messages of one request, built item by item and sent as they fill up.
 * Meant to live on the stack. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host_copy.h"
#include "daemon/lease.h"
#include "daemon/pages.h"
#include "daemon/session.h"
#include "proto/message.h"

struct answer {
        struct session *session;
        uint64_t request;
        struct message_builder builder;
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
};

void answer_begin(struct answer *answer, struct session *session, uint64_t request);

/* An item without extents. */
void answer_status(struct answer *answer, uint32_t index, uint32_t status);

/* A leased copy: with its extents and, if asked for, its piece checksums. */
void answer_copy(struct answer *answer, uint32_t index, uint32_t status, uint64_t lease,
                 const struct host_copy *copy, bool with_extents, bool with_checksums);

/* A lease on an object that has no copy in host memory: a set relies on it. */
void answer_held(struct answer *answer, uint32_t index, uint32_t status, const struct lease *lease);

/* The same as answer_copy() of @pages, which are ranges of the copy's bytes: their bytes, no
 * checksums. False: out of memory, which is the answer; the caller ends the lease. */
bool answer_pages(struct answer *answer, uint32_t index, uint32_t status, uint64_t lease,
                  const struct host_copy *copy, const struct pages *pages, bool with_extents);

/* Sends what is left; @more: further messages of this request follow later. */
void answer_end(struct answer *answer, bool more);

/* A whole answer of one item of index 0: CANCEL, COPIES_ENDED. */
void answer_once(struct session *session, uint64_t request, uint32_t status);

/* All objects of a part that is not looked into. */
void answer_part(struct session *session, const struct wire_batch *part, uint32_t status);
