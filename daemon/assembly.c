// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/assembly.h"
#include "daemon/session.h"

void assembly_free(struct assembly *assembly)
{
        if (!assembly)
                return;
        for (uint32_t i = 0; assembly->commits && i < assembly->n; i++)
                free(assembly->commits[i].pieces);
        free(assembly->commits);
        free(assembly->marks);
        free(assembly->keys);
        free(assembly->runs);
        free(assembly);
}

static struct assembly *begin(const struct wire_batch *part)
{
        struct assembly *assembly = calloc(1, sizeof(*assembly));
        uint32_t total = part->total ? part->total : 1;

        if (!assembly)
                return NULL;
        assembly->request = part->header.request;
        assembly->kind = part->header.kind;
        assembly->batch = *part;
        if (part->header.kind == WIRE_COMMIT)
                assembly->commits = calloc(total, sizeof(*assembly->commits));
        else if (part->header.kind == WIRE_MARK)
                assembly->marks = calloc(total, sizeof(*assembly->marks));
        else
                assembly->keys = calloc(total, sizeof(*assembly->keys));
        if (!assembly->commits && !assembly->marks && !assembly->keys) {
                free(assembly);
                return NULL;
        }
        if (part->header.kind == WIRE_ADOPT)
                memcpy(assembly->token, ((const struct wire_adopt *)part)->token,
                       sizeof(assembly->token));
        else if (part->header.kind == WIRE_PREFETCH)
                memcpy(assembly->hint, ((const struct wire_prefetch *)part)->hint,
                       sizeof(assembly->hint));
        return assembly;
}

static bool fits(const struct assembly *assembly, const struct wire_batch *part)
{
        return part->header.request == assembly->request && part->header.kind == assembly->kind &&
               part->first == assembly->n && part->total == assembly->batch.total &&
               part->layout == assembly->batch.layout && part->set == assembly->batch.set &&
               part->flags == assembly->batch.flags;
}

/* The list's shape is checked against the object when its length is known. */
static int keep_checksums(struct assembly_commit *commit, const struct wire_commit_item *item,
                          const uint64_t *pieces)
{
        commit->lease = item->lease;
        commit->n_pieces = item->n_pieces;
        if (!item->n_pieces)
                return 0;
        commit->pieces = malloc(item->n_pieces * sizeof(*pieces));
        if (!commit->pieces)
                return err_raise(-ENOMEM);
        memcpy(commit->pieces, pieces, item->n_pieces * sizeof(*pieces));
        return 0;
}

enum {
        ASSEMBLY_E_CHECKSUMS = 1, /* more than ASSEMBLY_PIECES_MAX */
        ASSEMBLY_E_RUNS,          /* more than WIRE_RUNS_TOTAL */
};

static const char *const breaches[] = {
        [ASSEMBLY_E_CHECKSUMS] = "a request has too many checksums",
        [ASSEMBLY_E_RUNS] = "a request names too many runs of pages",
};

static int keep_runs(struct assembly *assembly, const struct wire_page_run *runs, uint32_t n)
{
        if (assembly->n_runs + n > WIRE_RUNS_TOTAL)
                return ASSEMBLY_E_RUNS;
        if (assembly->n_runs + n > assembly->room_for_runs) {
                uint32_t room = 2 * assembly->room_for_runs + WIRE_RUNS_MAX;
                void *more = reallocarray(assembly->runs, room, sizeof(*runs));

                if (!more)
                        return err_raise(-ENOMEM);
                assembly->runs = more;
                assembly->room_for_runs = room;
        }
        memcpy(assembly->runs + assembly->n_runs, runs, n * sizeof(*runs));
        assembly->n_runs += n;
        return 0;
}

static int take_items(struct assembly *assembly, const struct wire_batch *part)
{
        struct message_cursor cursor;

        message_cursor_init(&cursor, part);
        if (assembly->commits) {
                struct wire_commit_item item;
                const uint64_t *pieces;

                while (!message_next_commit(&cursor, &item, &pieces)) {
                        int r;

                        if (item.n_pieces > ASSEMBLY_PIECES_MAX - assembly->n_pieces)
                                return ASSEMBLY_E_CHECKSUMS;
                        assembly->n_pieces += item.n_pieces;
                        r = keep_checksums(&assembly->commits[assembly->n], &item, pieces);
                        if (r)
                                return r;
                        assembly->n++;
                }
        } else if (assembly->marks) {
                while (!message_next_mark(&cursor, &assembly->marks[assembly->n]))
                        assembly->n++;
        } else {
                struct wire_key_item item;
                const struct wire_page_run *runs;

                while (!message_next_key(&cursor, &item, &runs)) {
                        int r = item.n_runs ? keep_runs(assembly, runs, item.n_runs) : 0;

                        if (r)
                                return r;
                        assembly->keys[assembly->n++] = item;
                }
        }
        return 0;
}

/* @breach: what the client did wrong, or NULL when it is our memory that ran out. */
static void give_up(struct session *session, struct assembly *assembly, const char *breach)
{
        assembly_free(assembly);
        session->assembly = NULL;
        if (breach)
                session_close(session, METRICS_GARBAGE, "garbage", breach);
        else
                session_close(session, METRICS_SOCKET_ERROR, "no_memory", NULL);
}

bool assembly_add(struct session *session, const struct wire_batch *part,
                  struct assembly **ret_assembly)
{
        struct assembly *assembly = session->assembly;
        bool more = part->header.flags & WIRE_MORE;
        int r;

        if (!assembly) {
                assembly = begin(part);
                if (!assembly) {
                        give_up(session, NULL, NULL);
                        return false;
                }
        }
        if (!fits(assembly, part) || (!more && part->first + part->header.n_items != part->total)) {
                give_up(session, assembly, "the parts of a request do not follow one another");
                return false;
        }
        r = take_items(assembly, part);
        if (r) {
                give_up(session, assembly, r > 0 ? breaches[r] : NULL);
                return false;
        }
        session->assembly = more ? assembly : NULL;
        if (!more)
                *ret_assembly = assembly;
        return !more;
}
