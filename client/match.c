// SPDX-License-Identifier: Apache-2.0
/*
 * What the presence table says about many boundaries, in order.
 */
#include <string.h>

#include "client/joint.h"
#include "client/session.h"
#include "client/submit.h"

#define MATCH_FLAGS (KVT_MATCH_CHECKPOINT | KVT_MATCH_STATE | KVT_MATCH_BYPASS)

static bool is_query(const struct kvt_match_query *query)
{
        return query && query->size >= sizeof(*query) && !query->reserved &&
               (query->digests || !query->n_digests) && (query->usable || !query->n_usable);
}

enum kvt_status kvt_match(struct kvt_session *session, const struct kvt_match_query *query,
                          struct kvt_match *ret_match)
{
        struct kvt_match found = {0};
        struct kvt__table *table;

        if (!session || !is_query(query) || !ret_match || ret_match->size < sizeof(*ret_match))
                return KVT_INVALID;
        if (query->flags & ~MATCH_FLAGS)
                return KVT_UNSUPPORTED;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        found.size = ret_match->size;
        table = query->flags & KVT_MATCH_BYPASS ? NULL : kvt__table_enter(&session->tables);
        if (table) {
                if (kvt__table_is_serving(table)) {
                        kvt__joint_match(table, query, &found);
                        kvt__recent_note(&session->recent, table, query, &found);
                }
                kvt__table_leave(table);
        }
        *ret_match = found;
        return KVT_OK;
}

static void probe(const struct kvt__table *table, const struct digest *digests, size_t n,
                  uint64_t *ret_present, uint64_t *ret_resident)
{
        struct presence_block block;
        uint32_t length;

        for (size_t first = 0; first < n; first += length) {
                length = n - first < PRESENCE_BLOCK ? (uint32_t)(n - first) : PRESENCE_BLOCK;
                kvt__table_look_up(table, 0, 1, digests + first, length, &block);
                for (uint32_t i = 0; i < length; i++) {
                        if (ret_present)
                                ret_present[first + i] = block.bits[i].present;
                        if (ret_resident)
                                ret_resident[first + i] = block.bits[i].resident;
                }
        }
}

enum kvt_status kvt_probe(struct kvt_session *session, const struct kvt_digest *digests, size_t n,
                          uint64_t *ret_present, uint64_t *ret_resident)
{
        enum kvt_status status = KVT_OK;
        struct kvt__table *table;

        if (!session || (n && !digests) || n > SIZE_MAX / sizeof(uint64_t))
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        if (ret_present)
                memset(ret_present, 0, n * sizeof(*ret_present));
        if (ret_resident)
                memset(ret_resident, 0, n * sizeof(*ret_resident));
        table = kvt__table_enter(&session->tables);
        if (!table)
                return KVT_OK;
        if (table->needs.n_banks > 1)
                status = KVT_UNSUPPORTED;
        else if (kvt__table_is_serving(table))
                probe(table, (const void *)digests, n, ret_present, ret_resident);
        kvt__table_leave(table);
        return status;
}

enum kvt_status kvt_find(struct kvt_session *session, const struct kvt_call *options,
                         const struct kvt_digest *digests, size_t n, uint64_t *ret_call)
{
        if (!session || !n || !digests || n > KVT_OBJECTS_MAX)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        return kvt__submit_find(session, options, (const void *)digests, (uint32_t)n, ret_call);
}
