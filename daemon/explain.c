// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/daemon.h"
#include "daemon/explain.h"
#include "daemon/layout_table.h"

/* Other layouts that are looked at for one digest. */
#define OTHERS_MAX 64u

enum { MISSING, IN_HOST, IN_NVME, IN_POOL };

struct explainer {
        struct daemon *daemon;
        const struct explain_query *query;
        const struct layout *layout;
        struct explanation *explanation;
        uint32_t n_cells;
        const struct digest *digest; /* of the boundary that is looked at */
        uint32_t boundary;           /* its number, from 1 */
        uint8_t *cells;
        const struct drop **drops; /* the newest of each cell */
        bool has_reservations;
        uint32_t first_cell[LAYOUT_GROUPS_MAX];        /* of the groups that are stored */
        uint32_t complete[LAYOUT_GROUPS_MAX];          /* boundaries in a row up to this one */
        struct explain_block lacks[LAYOUT_GROUPS_MAX]; /* the last chunk that did */
};

uint32_t explain_limit(const struct layout *layout)
{
        uint32_t n = EXPLAIN_CELLS_MAX / layout_n_cells(layout);

        return n < EXPLAIN_DIGESTS_MAX ? n : EXPLAIN_DIGESTS_MAX;
}

/* ---- one boundary ---- */

static uint8_t nearest(const struct index_object *object)
{
        if (object->host != INDEX_NONE)
                return IN_HOST;
        if (object->place.claim)
                return IN_NVME;
        return object->flags & INDEX_REMOTE_HERE ? IN_POOL : MISSING;
}

static void look_at_objects(struct explainer *explainer, const struct index_boundary *boundary)
{
        struct index *index = explainer->daemon->cache.index;

        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                id = object->next;
                if (object->cell >= explainer->n_cells)
                        continue;
                explainer->cells[object->cell] = nearest(object);
        }
}

/* Croppable blobs that end elsewhere and serve this boundary. */
static void look_at_covers(struct explainer *explainer, struct index_boundary *boundary)
{
        const struct layout *layout = explainer->layout;

        for (uint16_t g = 0; g < layout->n_groups; g++)
                for (uint16_t s = 0; s < layout->groups[g].n_shards; s++) {
                        const struct index_object *object;
                        int cell = layout_cell(layout, g, s);

                        if (cell < 0 || explainer->cells[cell] != MISSING)
                                continue;
                        object = index_find_serving(explainer->daemon->cache.index, boundary, g, s);
                        if (object)
                                explainer->cells[cell] = nearest(object);
                }
}

static void look_at_drops(struct explainer *explainer)
{
        const struct drop_ring *ring = &explainer->daemon->cache.drops;
        const struct drop *drop;
        uint64_t position = 0;

        while ((drop = drop_ring_next(ring, explainer->query->layout, explainer->digest,
                                      &position))) {
                int cell = layout_cell(explainer->layout, drop->group, drop->shard);

                if (cell >= 0 && !explainer->drops[cell])
                        explainer->drops[cell] = drop;
        }
}

static void look_at(struct explainer *explainer)
{
        struct index_boundary *boundary = index_find_boundary(
                explainer->daemon->cache.index, explainer->query->layout, explainer->digest);

        memset(explainer->cells, MISSING, explainer->n_cells);
        memset(explainer->drops, 0, explainer->n_cells * sizeof(explainer->drops[0]));
        if (boundary)
                look_at_objects(explainer, boundary);
        if (boundary && boundary->first_cover)
                look_at_covers(explainer, boundary);
        if (memchr(explainer->cells, MISSING, explainer->n_cells))
                look_at_drops(explainer);
}

static struct explain_gap gap_of(const struct explainer *explainer, uint16_t group, uint16_t shard)
{
        const struct drop *drop = explainer->drops[explainer->first_cell[group] + shard];
        struct explain_gap gap = {.group = group, .first_shard = shard, .n_shards = 1};

        if (explainer->has_reservations &&
            lease_is_reserved(&explainer->daemon->leases, explainer->query->layout,
                              explainer->digest, group, shard)) {
                gap.cause = EXPLAIN_RESERVED;
        } else if (drop) {
                gap.cause = EXPLAIN_DROPPED;
                gap.tier = drop->tier;
                gap.reason = drop->reason;
                gap.rule = drop->rule;
                gap.first_ns = gap.last_ns = drop->wall_ns;
                gap.count = drop->count;
        }
        return gap;
}

static bool causes_equal(const struct explain_gap *a, const struct explain_gap *b)
{
        return a->group == b->group && a->cause == b->cause && a->tier == b->tier &&
               a->reason == b->reason && a->rule == b->rule;
}

static void join_times(struct explain_gap *gap, const struct explain_gap *more)
{
        if (more->first_ns < gap->first_ns)
                gap->first_ns = more->first_ns;
        if (more->last_ns > gap->last_ns)
                gap->last_ns = more->last_ns;
        if (more->count > gap->count)
                gap->count = more->count;
}

/* The next gap of @group from shard *@position on, which moves behind it. */
static bool next_gap(const struct explainer *explainer, uint16_t group, uint16_t *position,
                     struct explain_gap *ret_gap)
{
        uint16_t n_shards = explainer->layout->groups[group].n_shards, shard = *position;
        const uint8_t *cells = explainer->cells;
        struct explain_gap more;

        if (explainer->layout->groups[group].kind == LAYOUT_SCRATCH)
                return false;
        cells += explainer->first_cell[group];
        while (shard < n_shards && cells[shard] != MISSING)
                shard++;
        if (shard == n_shards)
                return false;
        *ret_gap = gap_of(explainer, group, shard);
        while (++shard < n_shards && cells[shard] == MISSING) {
                more = gap_of(explainer, group, shard);
                if (!causes_equal(ret_gap, &more))
                        break;
                ret_gap->n_shards++;
                join_times(ret_gap, &more);
        }
        *position = shard;
        return true;
}

/* ---- runs ---- */

/* Another layout of the domain with objects at this digest, or 0. */
static uint16_t find_other_layout(const struct explainer *explainer)
{
        struct index *index = explainer->daemon->cache.index;
        uint32_t domain = index_layout_domain(index, explainer->query->layout), n_looked = 0;

        for (uint32_t i = 1; i <= index_n_layouts(index) && n_looked < OTHERS_MAX; i++) {
                const struct index_boundary *boundary;

                if (i == explainer->query->layout ||
                    !index_layout_at(index, (uint16_t)i)->objects ||
                    index_layout_domain(index, (uint16_t)i) != domain)
                        continue;
                n_looked++;
                boundary = index_find_boundary(index, (uint16_t)i, explainer->digest);
                if (boundary && (boundary->first_object || boundary->first_cover))
                        return (uint16_t)i;
        }
        return 0;
}

static void describe(const struct explainer *explainer, struct explain_run *ret_run)
{
        *ret_run = (struct explain_run){.from = explainer->boundary,
                                        .to = explainer->boundary,
                                        .digest = *explainer->digest};
        for (uint32_t i = 0; i < explainer->n_cells; i++) {
                ret_run->n_host += explainer->cells[i] == IN_HOST;
                ret_run->n_nvme += explainer->cells[i] == IN_NVME;
                ret_run->n_remote += explainer->cells[i] == IN_POOL;
                ret_run->n_missing += explainer->cells[i] == MISSING;
        }
        for (uint16_t g = 0; g < explainer->layout->n_groups && ret_run->n_missing; g++) {
                struct explain_gap gap;
                uint16_t position = 0;

                while (next_gap(explainer, g, &position, &gap)) {
                        if (ret_run->n_gaps == EXPLAIN_GAPS_MAX) {
                                ret_run->is_cut = true;
                                return;
                        }
                        ret_run->gaps[ret_run->n_gaps++] = gap;
                }
        }
}

static bool runs_equal(const struct explain_run *a, const struct explain_run *b)
{
        if (a->n_host != b->n_host || a->n_nvme != b->n_nvme || a->n_remote != b->n_remote ||
            a->n_missing != b->n_missing || a->is_usable != b->is_usable ||
            a->other_layout != b->other_layout || a->n_gaps != b->n_gaps)
                return false;
        for (uint32_t i = 0; i < a->n_gaps; i++)
                if (!causes_equal(&a->gaps[i], &b->gaps[i]) ||
                    a->gaps[i].first_shard != b->gaps[i].first_shard ||
                    a->gaps[i].n_shards != b->gaps[i].n_shards)
                        return false;
        return true;
}

static int append(struct explanation *explanation, const struct explain_run *run)
{
        struct explain_run *last =
                explanation->n_runs ? &explanation->runs[explanation->n_runs - 1] : NULL;

        if (last && last->to != explanation->limit && runs_equal(last, run)) {
                last->to = run->to;
                for (uint32_t i = 0; i < run->n_gaps; i++)
                        join_times(&last->gaps[i], &run->gaps[i]);
                return 0;
        }
        if (explanation->n_runs == explanation->capacity) {
                uint32_t capacity = 2 * explanation->capacity + 16;
                struct explain_run *runs = reallocarray(explanation->runs, capacity, sizeof(*runs));

                if (!runs)
                        return err_raise(-ENOMEM);
                explanation->runs = runs;
                explanation->capacity = capacity;
        }
        explanation->runs[explanation->n_runs++] = *run;
        return 0;
}

/* ---- the joint match ---- */

/* Trailing chunks of a group that a boundary needs; UINT32_MAX: all of them. */
static uint32_t needed(const struct layout *layout, uint16_t group)
{
        const struct layout_group *g = &layout->groups[group];

        switch (g->kind) {
        case LAYOUT_SCRATCH:
                return 0;
        case LAYOUT_STATE:
                return 1;
        case LAYOUT_WINDOW:
                return (g->window_tokens - 1) / layout->chunk_tokens + 1;
        default:
                return UINT32_MAX;
        }
}

static bool group_suffices(const struct explainer *explainer, uint16_t group)
{
        uint32_t n = needed(explainer->layout, group);

        return explainer->complete[group] >= (n < explainer->boundary ? n : explainer->boundary);
}

static void count_group(struct explainer *explainer, uint16_t group)
{
        struct explain_block *lacks = &explainer->lacks[group];
        uint16_t position = 0;

        if (next_gap(explainer, group, &position, &lacks->gap)) {
                lacks->chunk = explainer->boundary;
                explainer->complete[group] = 0;
        } else {
                explainer->complete[group]++;
        }
}

/* The first group that keeps the boundary from being usable; @whole: only of those that
 * every prefix needs whole. */
static bool find_block(const struct explainer *explainer, bool whole,
                       struct explain_block *ret_block)
{
        for (uint16_t g = 0; g < explainer->layout->n_groups; g++) {
                if ((whole && needed(explainer->layout, g) != UINT32_MAX) ||
                    group_suffices(explainer, g))
                        continue;
                *ret_block = explainer->lacks[g];
                ret_block->at = explainer->boundary;
                return true;
        }
        return false;
}

static bool judge(struct explainer *explainer)
{
        struct explanation *explanation = explainer->explanation;
        struct explain_block block;

        for (uint16_t g = 0; g < explainer->layout->n_groups; g++)
                count_group(explainer, g);
        if (explainer->boundary > explanation->limit || explanation->kv != explainer->boundary - 1)
                return false;
        if (find_block(explainer, true, &explanation->kv_block))
                return false;
        explanation->kv = explainer->boundary;
        explanation->best_block = (struct explain_block){0};
        if (find_block(explainer, false, &block)) {
                explanation->best_block = block;
                return false;
        }
        explanation->usable = explainer->boundary;
        return true;
}

/* ---- all of them ---- */

static uint32_t limit_of(const struct layout *layout, const struct explain_query *query)
{
        uint32_t limit = query->first + query->n_digests, tokens = UINT32_MAX;
        bool has_state = false;

        for (uint16_t g = 0; g < layout->n_groups; g++)
                has_state |= layout->groups[g].kind == LAYOUT_STATE;
        if (query->max_tokens)
                tokens = query->max_tokens;
        /* A state after the last token has consumed it, and that one must be computed. */
        if (query->prompt_tokens && has_state && query->prompt_tokens - 1 < tokens)
                tokens = query->prompt_tokens - 1;
        if (layout->chunk_tokens && tokens / layout->chunk_tokens < limit)
                limit = tokens / layout->chunk_tokens;
        return limit;
}

static int walk(struct explainer *explainer)
{
        const struct explain_query *query = explainer->query;
        uint32_t most = explain_limit(explainer->layout);
        int r = 0;

        for (uint32_t i = 0; !r && i < query->n_digests && i < most; i++) {
                struct explain_run run;

                explainer->digest = &query->digests[i];
                explainer->boundary = query->first + i + 1;
                look_at(explainer);
                describe(explainer, &run);
                run.is_usable = judge(explainer);
                if (run.n_missing == explainer->n_cells)
                        run.other_layout = find_other_layout(explainer);
                r = append(explainer->explanation, &run);
                explainer->explanation->n = explainer->boundary;
        }
        return r;
}

static int decode(struct daemon *daemon, uint16_t number, struct layout **ret_layout)
{
        const struct layout_entry *entry = index_layout_at(daemon->cache.index, number);
        _cleanup_free_ struct layout *layout = NULL;
        struct why why;

        if (!entry->encoding)
                return err_raise(-ENOENT);
        layout = malloc(sizeof(*layout));
        if (!layout)
                return err_raise(-ENOMEM);
        if (layout_decode(layout, entry->encoding, entry->encoding_bytes, &why))
                return err_raise(-ENOENT);
        *ret_layout = steal_ptr(layout);
        return 0;
}

int explain(struct daemon *daemon, const struct explain_query *query,
            struct explanation *ret_explanation)
{
        struct explainer explainer = {
                .daemon = daemon,
                .query = query,
                .explanation = ret_explanation,
                .has_reservations = !RB_EMPTY(&daemon->leases.reservations),
        };
        int r;

        *ret_explanation = (struct explanation){.layout_number = query->layout,
                                                .first = query->first,
                                                .n = query->first,
                                                .usable = query->first,
                                                .kv = query->first};
        r = decode(daemon, query->layout, &ret_explanation->layout);
        if (r)
                return r;
        explainer.layout = ret_explanation->layout;
        explainer.n_cells = layout_n_cells(explainer.layout);
        ret_explanation->limit = limit_of(explainer.layout, query);
        for (uint16_t g = 0; g < explainer.layout->n_groups; g++) {
                int cell = layout_cell(explainer.layout, g, 0);

                explainer.first_cell[g] = cell < 0 ? 0 : (uint32_t)cell;
                explainer.complete[g] = query->first;
        }
        explainer.cells = calloc(explainer.n_cells, 1);
        explainer.drops = calloc(explainer.n_cells, sizeof(explainer.drops[0]));
        r = explainer.cells && explainer.drops ? walk(&explainer) : err_raise(-ENOMEM);
        free(explainer.cells);
        free(explainer.drops);
        return r;
}

void explanation_deinit(struct explanation *explanation)
{
        free(explanation->layout);
        free(explanation->runs);
        *explanation = (struct explanation){0};
}
