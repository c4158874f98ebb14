// SPDX-License-Identifier: Apache-2.0
/*
 * Probing the presence table, a window of digests at a time: all home buckets of a window
 * are asked for before the first is read, so that their cache misses overlap.
 */
#include <string.h>

#include "client/session.h"

#define WINDOW 32u

struct probe {
        bool present; /* every cell of the kind asked about */
        bool resident;
};

/* What the cells of one boundary say, over all banks. */
struct boundary {
        struct probe paged;
        struct probe state;
};

static struct probe test(uint64_t mask, const struct presence_bits *bits, struct probe so_far)
{
        so_far.present = so_far.present && !(mask & ~bits->present);
        so_far.resident = so_far.resident && !(mask & ~bits->resident);
        return so_far;
}

static struct presence_bits lookup(const struct kvt__table *table, uint64_t fingerprint)
{
        struct presence_bits bits;

        return presence_lookup(&table->view, fingerprint, &bits) ? bits : (struct presence_bits){0};
}

static void probe_window(const struct kvt__table *table, const struct digest *digests, uint32_t n,
                         struct boundary *ret_boundaries)
{
        uint64_t fingerprints[WINDOW];

        for (uint32_t i = 0; i < n; i++)
                ret_boundaries[i] = (struct boundary){{true, true}, {true, true}};
        for (uint32_t bank = 0; bank < table->n_banks; bank++) {
                presence_fingerprints(table->seeds[bank], digests, n, fingerprints);
                for (uint32_t i = 0; i < n; i++)
                        presence_prefetch(&table->view, fingerprints[i]);
                for (uint32_t i = 0; i < n; i++) {
                        struct presence_bits bits = lookup(table, fingerprints[i]);

                        ret_boundaries[i].paged = test(table->paged[bank], &bits,
                                                       ret_boundaries[i].paged);
                        ret_boundaries[i].state = test(table->state[bank], &bits,
                                                       ret_boundaries[i].state);
                }
        }
}

/* Digests that may be looked at, by the limits of the query. */
static uint32_t limit(const struct kvt__table *table, const struct kvt_match_query *query)
{
        uint32_t n = query->n_digests;
        uint32_t chunk = table->chunk_tokens;

        if (!chunk)
                return n;
        if (query->max_tokens && query->max_tokens / chunk < n)
                n = query->max_tokens / chunk;
        /* The last token must be computed: a state after it has already consumed it. */
        if (query->prompt_tokens && table->has_state && (query->prompt_tokens - 1) / chunk < n)
                n = (query->prompt_tokens - 1) / chunk;
        return n;
}

static void match(const struct kvt__table *table, const struct kvt_match_query *query,
                  struct kvt_match *match)
{
        const struct digest *digests = (const void *)query->digests;
        uint32_t n = limit(table, query);
        struct boundary boundaries[WINDOW];
        bool resident = true;

        for (uint32_t first = 0; first < n; first += WINDOW) {
                uint32_t window = n - first < WINDOW ? n - first : WINDOW;

                probe_window(table, digests + first, window, boundaries);
                for (uint32_t i = 0; i < window; i++) {
                        const struct boundary *b = &boundaries[i];

                        if (!b->paged.present)
                                return;
                        resident = resident && b->paged.resident;
                        match->kv_boundaries = first + i + 1;
                        if (!b->state.present)
                                continue;
                        match->boundaries = first + i + 1;
                        if (resident && b->state.resident)
                                match->resident_boundaries = first + i + 1;
                }
        }
}

enum kvt_status kvt_match(struct kvt_session *session, const struct kvt_match_query *query,
                          struct kvt_match *ret_match)
{
        struct kvt_match found = {0};
        struct kvt__table *table;

        if (!session || !query || !ret_match || query->size < sizeof(*query) ||
            ret_match->size < sizeof(*ret_match) || (query->n_digests && !query->digests))
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        found.size = ret_match->size;
        table = kvt__table_enter(&session->tables);
        if (table) {
                if (kvt__table_is_serving(table))
                        match(table, query, &found);
                if (!table->has_paged)
                        found.kv_boundaries = found.boundaries;
                found.tokens = found.boundaries * table->chunk_tokens;
                kvt__table_leave(table);
        }
        *ret_match = found;
        return KVT_OK;
}

static void probe(const struct kvt__table *table, const struct digest *digests, size_t n,
                  uint64_t *ret_present, uint64_t *ret_resident)
{
        uint64_t fingerprints[WINDOW];

        for (size_t first = 0; first < n; first += WINDOW) {
                size_t window = n - first < WINDOW ? n - first : WINDOW;

                presence_fingerprints(table->seeds[0], digests + first, window, fingerprints);
                for (size_t i = 0; i < window; i++)
                        presence_prefetch(&table->view, fingerprints[i]);
                for (size_t i = 0; i < window; i++) {
                        struct presence_bits bits = lookup(table, fingerprints[i]);

                        if (ret_present)
                                ret_present[first + i] = bits.present;
                        if (ret_resident)
                                ret_resident[first + i] = bits.resident;
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
        if (table->n_banks > 1)
                status = KVT_UNSUPPORTED;
        else if (kvt__table_is_serving(table))
                probe(table, (const void *)digests, n, ret_present, ret_resident);
        kvt__table_leave(table);
        return status;
}
