// SPDX-License-Identifier: Apache-2.0
/*
 * What the presence table says about many boundaries, in order. The first bank, which is
 * all that most layouts have, is read in blocks with their cache misses overlapped.
 */
#include <string.h>

#include "client/session.h"

/* Boundaries of the first block: an early miss should not cost a whole one. */
#define FIRST_BLOCK 32u

_Static_assert(FIRST_BLOCK <= PRESENCE_BLOCK, "the first block is the smallest");

/* What the cells of one boundary say, over all banks. */
struct boundary {
        bool has_paged, has_state;
        bool paged_resident, state_resident;
};

static void add_bank(const struct kvt__table *table, uint32_t bank,
                     const struct presence_bits *bits, struct boundary *boundary)
{
        uint64_t absent = ~bits->present, away = ~bits->resident;

        boundary->has_paged &= !(table->paged[bank] & absent);
        boundary->has_state &= !(table->state[bank] & absent);
        boundary->paged_resident &= !(table->paged[bank] & away);
        boundary->state_resident &= !(table->state[bank] & away);
}

/* Layouts of more than 64 cells: the further banks of one boundary, one miss after another. */
static void add_further_banks(const struct kvt__table *table, const struct digest *digest,
                              struct boundary *boundary)
{
        for (uint32_t bank = 1; bank < table->n_banks && boundary->has_paged; bank++) {
                struct presence_bits bits = {0};
                uint64_t fingerprint = presence_fingerprint(table->seeds[bank], digest);

                if (!presence_lookup(&table->view, fingerprint, &bits))
                        bits = (struct presence_bits){0};
                add_bank(table, bank, &bits, boundary);
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

/* Counts boundary number @reached; false when its paged chunks end the run. */
static bool reach(struct kvt_match *match, const struct boundary *boundary, uint32_t reached,
                  bool *is_resident)
{
        if (!boundary->has_paged)
                return false;
        *is_resident = *is_resident && boundary->paged_resident;
        match->kv_boundaries = reached;
        if (!boundary->has_state)
                return true;
        match->boundaries = reached;
        if (*is_resident && boundary->state_resident)
                match->resident_boundaries = reached;
        return true;
}

static void match(const struct kvt__table *table, const struct kvt_match_query *query,
                  struct kvt_match *match)
{
        const struct digest *digests = (const void *)query->digests;
        uint32_t n = limit(table, query), size = FIRST_BLOCK, length;
        struct presence_block block;
        bool is_resident = true;

        for (uint32_t first = 0; first < n; first += length, size = PRESENCE_BLOCK) {
                length = n - first < size ? n - first : size;
                presence_lookup_block(&table->view, table->seeds[0], digests + first, length,
                                      &block);
                for (uint32_t i = 0; i < length; i++) {
                        struct boundary boundary = {true, true, true, true};

                        add_bank(table, 0, &block.bits[i], &boundary);
                        if (table->n_banks > 1)
                                add_further_banks(table, &digests[first + i], &boundary);
                        if (!reach(match, &boundary, first + i + 1, &is_resident))
                                return;
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
        struct presence_block block;
        uint32_t length;

        for (size_t first = 0; first < n; first += length) {
                length = n - first < PRESENCE_BLOCK ? (uint32_t)(n - first) : PRESENCE_BLOCK;
                presence_lookup_block(&table->view, table->seeds[0], digests + first, length,
                                      &block);
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
        if (table->n_banks > 1)
                status = KVT_UNSUPPORTED;
        else if (kvt__table_is_serving(table))
                probe(table, (const void *)digests, n, ret_present, ret_resident);
        kvt__table_leave(table);
        return status;
}
