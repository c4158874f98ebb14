// SPDX-License-Identifier: Apache-2.0
/*
 * Assembly of a request that must be seen whole before it can be decided: an acquire, an
 * adopt, a prefetch, marks, and the commit of a set. Its parts come one after another on the
 * socket; another request in between is a breach of the protocol.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

/*
 * Checksums of one request: as many as 16,384 of the largest objects have. A client that
 * names more objects than that, and such lists for all, is disconnected.
 */
#define ASSEMBLY_PIECES_MAX (UINT32_C(1) << 21)

struct session;

struct assembly_commit {
        uint64_t lease;
        uint64_t *pieces; /* checksums of the writer's list, or NULL; owned */
        uint32_t n_pieces;
};

struct assembly {
        uint64_t request;
        uint16_t kind;
        struct wire_batch batch;      /* of the first part */
        uint8_t token[16];            /* ADOPT */
        char hint[WIRE_HINT_MAX];     /* PREFETCH */
        uint32_t n;                   /* items so far */
        uint32_t n_pieces;            /* COMMIT: checksums so far */
        struct wire_mark_item *marks; /* MARK */
        struct wire_key_item *keys;   /* ACQUIRE, ADOPT, PREFETCH */
        struct wire_page_run *runs;   /* ACQUIRE: those of all keys, in order; or NULL */
        uint32_t n_runs;
        uint32_t room_for_runs;
        struct assembly_commit *commits; /* COMMIT */
};

/*
 * Adds one part to the session's assembly. True when the request is complete: then the
 * caller takes *@ret_assembly (to be freed by assembly_free()). False: more parts are to
 * come, or the session has been closed because the parts do not fit together, carry more
 * than ASSEMBLY_PIECES_MAX checksums, or memory ran out.
 */
bool assembly_add(struct session *session, const struct wire_batch *part,
                  struct assembly **ret_assembly);

/* NULL is fine. */
void assembly_free(struct assembly *assembly);
