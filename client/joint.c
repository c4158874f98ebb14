// SPDX-License-Identifier: Apache-2.0
/*
 * The walk reads the presence table in blocks, all banks of a boundary together, with their
 * cache misses overlapped, and keeps for each part (client/need.h) the last boundary that
 * lacks one of its cells: a boundary is usable when that lies before the part's stretch.
 * What is not in host memory is kept likewise, with a sliding sum of its bytes.
 *
 * Of most boundaries either nothing or everything is missing: what the walk does for each
 * is little more than to compare words. No allocation; some 45 KiB of stack, of which it
 * touches what the windows need.
 */
#include <string.h>

#include "client/joint.h"

/* Lookups of the first block: an early miss should not cost a whole one. */
#define FIRST_BLOCK 32u

_Static_assert(FIRST_BLOCK <= PRESENCE_BLOCK, "the first block is the smallest");

/* Of one part, up to the boundary that the walk has reached. Boundaries count from 1. */
struct stretch {
        uint32_t gap;    /* the last one with a cell that is nowhere, or 0 */
        uint32_t away;   /* ... that is not in host memory */
        uint32_t remote; /* ... and perhaps in the remote tier only */
        uint32_t begin;  /* from here on the history holds what was added */
        uint32_t cursor; /* the history's oldest word */
        uint64_t below;  /* bytes not in host memory, over the part's stretch */
};

struct walk {
        const struct kvt__table *table;
        const struct kvt__needs *needs;
        const struct kvt_match_query *query;
        struct kvt_match *match;
        uint32_t next_usable; /* where the next one goes, round and round */
        uint32_t n_usable;    /* found, as many as there is room for */
        uint32_t last_state;  /* last boundary with its states */
        bool is_below;        /* some stretch has bytes that are not in host memory */
        bool wants_state;     /* at kv_boundaries: others hang on it, and it has no state */
        struct stretch stretches[LAYOUT_GROUPS_MAX];
        struct presence_block block;
        uint64_t history[KVT__HISTORY_MAX];
};

/* What the cells of a part say at one boundary. */
struct look {
        uint64_t absent, away, home;
        bool is_remote;
};

static struct look look_at(const struct kvt__needs *needs, const struct kvt__part *part,
                           const struct presence_bits *bits)
{
        struct look look = {0};

        for (uint32_t bank = 0; bank < needs->n_banks; bank++) {
                uint64_t cells = part->cells[bank], away = cells & ~bits[bank].resident;

                look.absent |= cells & ~bits[bank].present;
                look.away |= away;
                look.home |= cells & bits[bank].resident;
                look.is_remote |= away && bits[bank].flags & PRESENCE_REMOTE_ONLY;
        }
        return look;
}

static uint64_t bytes_away(const struct kvt__needs *needs, const struct kvt__part *part,
                           const struct presence_bits *bits)
{
        const struct kvt__cost *costs = &needs->costs[part->first_cost];
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < part->n_costs; i++)
                bytes += costs[i].bytes *
                         (uint64_t)__builtin_popcountll(costs[i].cells &
                                                        ~bits[costs[i].bank].resident);
        return bytes;
}

/*
 * Moves the sum of a stretch on to @position, where @bytes are not in host memory. While the
 * sum is 0 the history is not kept: all of it would be zeros.
 */
static void slide(struct walk *walk, const struct kvt__part *part, struct stretch *stretch,
                  uint32_t position, uint64_t bytes)
{
        uint64_t *oldest;

        if (part->history == KVT__NO_HISTORY) {
                stretch->below += bytes;
                return;
        }
        if (!stretch->below && !bytes)
                return;
        if (!stretch->below) {
                stretch->begin = position;
                stretch->cursor = 0;
        }
        oldest = &walk->history[part->history + stretch->cursor];
        if (position - stretch->begin >= part->n_chunks)
                stretch->below -= *oldest;
        stretch->below += bytes;
        *oldest = bytes;
        if (++stretch->cursor == part->n_chunks)
                stretch->cursor = 0;
}

static void reach_part(struct walk *walk, uint32_t part_number, uint32_t position,
                       const struct presence_bits *bits)
{
        const struct kvt__part *part = &walk->needs->parts[part_number];
        struct stretch *stretch = &walk->stretches[part_number];
        struct look look = look_at(walk->needs, part, bits);
        uint64_t bytes = 0;

        if (look.absent)
                stretch->gap = position;
        if (look.away)
                stretch->away = position;
        if (look.is_remote)
                stretch->remote = position;
        if (!walk->query->n_usable)
                return;
        if (look.away)
                bytes = look.home ? bytes_away(walk->needs, part, bits) : part->bytes;
        slide(walk, part, stretch, position, bytes);
        walk->is_below |= stretch->below != 0;
}

static void reach(struct walk *walk, uint32_t position, const struct presence_bits *bits)
{
        const struct kvt__needs *needs = walk->needs;
        uint64_t missing = 0;

        for (uint32_t bank = 0; bank < needs->n_banks; bank++)
                missing |= needs->cells[bank] & ~(bits[bank].present & bits[bank].resident);
        if (!missing && !walk->is_below)
                return;
        walk->is_below = false;
        for (uint32_t i = 0; i < needs->n_parts; i++)
                reach_part(walk, i, position, bits);
}

/* Lies @flaw, a boundary or 0 for none, before the stretch that @position needs? */
static bool is_past(const struct kvt__part *part, uint32_t flaw, uint32_t position)
{
        return !flaw || position - flaw >= part->n_chunks;
}

static uint64_t bytes_below(const struct kvt__part *part, const struct stretch *stretch)
{
        uint64_t most = part->bytes * part->n_chunks;

        /* Without a history nothing is taken off. */
        return part->history == KVT__NO_HISTORY && part->n_chunks != KVT__ALL_CHUNKS &&
                               stretch->below > most
                       ? most
                       : stretch->below;
}

static void describe(const struct walk *walk, uint32_t position, struct kvt_boundary *ret_boundary)
{
        struct kvt_boundary boundary = {
                .boundaries = position,
                .tokens = position * walk->needs->chunk_tokens,
                .flags = KVT_BOUNDARY_RESIDENT,
        };

        for (uint32_t i = 0; i < walk->needs->n_parts; i++) {
                const struct kvt__part *part = &walk->needs->parts[i];
                const struct stretch *stretch = &walk->stretches[i];
                uint32_t n = part->n_chunks < position ? part->n_chunks : position;

                boundary.n_objects += n * part->n_cells;
                boundary.bytes += n * part->bytes;
                if (part->is_variable)
                        boundary.flags |= KVT_BOUNDARY_BYTES_UNKNOWN;
                if (is_past(part, stretch->away, position))
                        continue;
                boundary.bytes_below += bytes_below(part, stretch);
                boundary.flags &= ~KVT_BOUNDARY_RESIDENT;
                boundary.flags |= KVT_BOUNDARY_BELOW;
                if (!is_past(part, stretch->remote, position))
                        boundary.flags |= KVT_BOUNDARY_REMOTE;
        }
        *ret_boundary = boundary;
}

/* The last ones stay, where there is not room for all. */
static void add_usable(struct walk *walk, uint32_t position)
{
        const struct kvt_match_query *query = walk->query;

        if (!query->n_usable)
                return;
        describe(walk, position, &query->usable[walk->next_usable]);
        if (++walk->next_usable == query->n_usable)
                walk->next_usable = 0;
        if (walk->n_usable < query->n_usable)
                walk->n_usable++;
}

/* What boundary @position is good for. False: nor is any that follows. */
static bool judge(struct walk *walk, uint32_t position, const struct presence_bits *bits)
{
        const struct kvt__needs *needs = walk->needs;
        bool has_kv = true, has_state = true, is_resident = true;

        for (uint32_t i = 0; i < needs->n_parts; i++) {
                const struct kvt__part *part = &needs->parts[i];
                const struct stretch *stretch = &walk->stretches[i];
                bool is_whole = is_past(part, stretch->gap, position);

                if (!is_whole && part->n_chunks == KVT__ALL_CHUNKS)
                        return false;
                if (part->is_state)
                        has_state = is_whole;
                else
                        has_kv &= is_whole;
                is_resident &= is_past(part, stretch->away, position);
        }
        if (needs->has_state && has_state)
                walk->last_state = position;
        if (!has_kv)
                return true;
        walk->match->kv_boundaries = position;
        walk->wants_state = false;
        for (uint32_t bank = 0; bank < needs->n_banks; bank++)
                walk->wants_state |= !has_state && bits[bank].flags & PRESENCE_HAS_CHILD;
        if (!has_state)
                return true;
        walk->match->boundaries = position;
        if (is_resident)
                walk->match->resident_boundaries = position;
        add_usable(walk, position);
        return true;
}

/* Boundaries of a block whose first may be @size lookups. */
static uint32_t block_length(const struct kvt__needs *needs, uint32_t size)
{
        return size > needs->n_banks ? size / needs->n_banks : 1;
}

static void look_up(struct walk *walk, uint32_t first, uint32_t n)
{
        const struct digest *digests = (const void *)walk->query->digests;

        kvt__table_look_up(walk->table, 0, walk->needs->n_banks, digests + first, n,
                           &walk->block);
}

/* Walks from the first boundary on, at most to @limit. Returns how many were judged. */
static uint32_t walk_up(struct walk *walk, uint32_t limit)
{
        uint32_t size = FIRST_BLOCK, length;

        for (uint32_t first = 0; first < limit; first += length, size = PRESENCE_BLOCK) {
                length = block_length(walk->needs, size);
                if (length > limit - first)
                        length = limit - first;
                look_up(walk, first, length);
                for (uint32_t i = 0; i < length; i++) {
                        const struct presence_bits *bits =
                                &walk->block.bits[i * walk->needs->n_banks];

                        reach(walk, first + i + 1, bits);
                        if (!judge(walk, first + i + 1, bits))
                                return first + i;
                }
        }
        return limit;
}

static bool has_states(const struct kvt__needs *needs, const struct presence_bits *bits)
{
        for (uint32_t i = 0; i < needs->n_parts; i++)
                if (needs->parts[i].is_state)
                        return !look_at(needs, &needs->parts[i], bits).absent;
        return false;
}

/* The longest boundary with its states, of those behind @walked up to @limit; 0: none. */
static uint32_t find_state(struct walk *walk, uint32_t walked, uint32_t limit)
{
        uint32_t size = FIRST_BLOCK, length;

        for (uint32_t end = limit; end > walked; end -= length, size = PRESENCE_BLOCK) {
                length = block_length(walk->needs, size);
                if (length > end - walked)
                        length = end - walked;
                look_up(walk, end - length, length);
                for (uint32_t i = length; i-- > 0;)
                        if (has_states(walk->needs, &walk->block.bits[i * walk->needs->n_banks]))
                                return end - length + i + 1;
        }
        return 0;
}

/* Tokens that the caller may use, as far as the query says: UINT32_MAX when it does not. */
static uint32_t tokens_asked(const struct kvt__needs *needs, const struct kvt_match_query *query)
{
        uint32_t tokens = query->max_tokens ? query->max_tokens : UINT32_MAX;

        /* The last token must be computed: a state after it has already consumed it. */
        if (query->prompt_tokens && needs->has_state && query->prompt_tokens - 1 < tokens)
                tokens = query->prompt_tokens - 1;
        return tokens;
}

uint32_t kvt__joint_limit(const struct kvt__needs *needs, const struct kvt_match_query *query)
{
        uint32_t tokens = tokens_asked(needs, query);

        if (!needs->chunk_tokens || tokens == UINT32_MAX ||
            tokens / needs->chunk_tokens >= query->n_digests)
                return query->n_digests;
        return tokens / needs->chunk_tokens;
}

static void tell_state(struct walk *walk, uint32_t walked, uint32_t limit)
{
        uint32_t tokens = tokens_asked(walk->needs, walk->query);
        uint32_t chunk = walk->needs->chunk_tokens;
        uint32_t found = find_state(walk, walked, limit);

        if (tokens == UINT32_MAX)
                tokens = limit * chunk;
        walk->match->state_boundaries = found ? found : walk->last_state;
        if (chunk)
                walk->match->replay_tokens = tokens - walk->match->state_boundaries * chunk;
}

/*
 * Where the prompt leaves what was seen before: its KV may be gone, but prompts that branched
 * there once will again. The end of one alone is no branch.
 */
static void tell_checkpoint(struct walk *walk, uint32_t limit)
{
        uint32_t position = walk->match->kv_boundaries, length, i;
        bool wants_state = walk->wants_state;

        for (; position < limit; position += length) {
                length = block_length(walk->needs, FIRST_BLOCK);
                if (length > limit - position)
                        length = limit - position;
                look_up(walk, position, length);
                for (i = 0; i < length; i++) {
                        const struct presence_bits *bits =
                                &walk->block.bits[i * walk->needs->n_banks];

                        if (!(bits->flags & PRESENCE_SEEN))
                                break;
                        wants_state = bits->flags & PRESENCE_HAS_CHILD &&
                                      !has_states(walk->needs, bits);
                }
                if (i < length) {
                        position += i;
                        break;
                }
        }
        if (wants_state && position < limit)
                walk->match->checkpoint_boundaries = position;
}

static void reverse(struct kvt_boundary *first, uint32_t n)
{
        for (uint32_t i = 0; i < n / 2; i++) {
                struct kvt_boundary other = first[i];

                first[i] = first[n - 1 - i];
                first[n - 1 - i] = other;
        }
}

/* Once round, the array is two runs: first those written over, then the older ones. */
static void tell_usable(struct walk *walk)
{
        struct kvt_boundary *usable = walk->query->usable;
        uint32_t n_new = walk->n_usable < walk->query->n_usable ? walk->n_usable
                                                                : walk->next_usable;

        walk->match->n_usable = walk->n_usable;
        reverse(usable, n_new);
        reverse(usable + n_new, walk->n_usable - n_new);
}

static void walk_init(struct walk *walk, const struct kvt__table *table,
                      const struct kvt_match_query *query, struct kvt_match *match)
{
        walk->table = table;
        walk->needs = &table->needs;
        walk->query = query;
        walk->match = match;
        walk->next_usable = walk->n_usable = walk->last_state = 0;
        walk->is_below = walk->wants_state = false;
        memset(walk->stretches, 0, table->needs.n_parts * sizeof(walk->stretches[0]));
}

void kvt__joint_match(const struct kvt__table *table, const struct kvt_match_query *query,
                      struct kvt_match *match)
{
        const struct kvt__needs *needs = &table->needs;
        uint32_t limit = kvt__joint_limit(needs, query), walked;
        struct walk walk; /* its history is read only where it was written */

        walk_init(&walk, table, query, match);
        walked = walk_up(&walk, limit);
        if (!needs->has_paged)
                match->kv_boundaries = match->boundaries;
        match->tokens = match->boundaries * needs->chunk_tokens;
        if (query->n_usable)
                tell_usable(&walk);
        if (query->flags & KVT_MATCH_CHECKPOINT && needs->has_paged && needs->has_state)
                tell_checkpoint(&walk, limit);
        if (query->flags & KVT_MATCH_STATE && needs->has_state)
                tell_state(&walk, walked, limit);
}
