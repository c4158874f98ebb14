// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/layout_table.h"
#include "daemon/placement.h"
#include "daemon/placement_hybrid.h"

/* KV is new for a minute, while it is less than half of the tier's: a prefill takes long. */
#define YOUNG_S     60u
#define YOUNG_SHARE 2u
/* An eviction counts as a mistake when not more states than these went since. */
#define MISTAKE_LISTS 5u
#define SHARE_MIN     0.02
#define EVICTED_MAX   4096u
/* Boundaries remembered: so many for each one there is, and some for small caches. */
#define MEMORY_FACTOR 4u
#define MEMORY_MIN    1024u
/* At least this part of index.objects_max, also when there are as many boundaries. */
#define MEMORY_LEAST 16u
/* Of one slice of the search for states without their KV. */
#define BROKEN_STEPS 4096u

int placement_hybrid_init(struct placement_hybrid *hybrid, uint64_t boundaries_max,
                          uint64_t remembered_max)
{
        void *nodes, *state_groups;
        int r;

        *hybrid = (struct placement_hybrid){.boundaries_max = boundaries_max};
        for (int tier = 0; tier < INDEX_N_TIERS; tier++)
                hybrid->shares[tier].unproven = 0.5;
        r = record_array_new(&nodes, boundaries_max + 1, sizeof(struct placement_node));
        if (r < 0)
                return r;
        hybrid->nodes = nodes;
        r = record_array_new(&state_groups, UINT16_MAX + 1, sizeof(uint32_t));
        if (r < 0)
                return r;
        hybrid->state_groups = state_groups;
        return placement_memory_init(&hybrid->memory, remembered_max);
}

void placement_hybrid_deinit(struct placement_hybrid *hybrid)
{
        placement_memory_deinit(&hybrid->memory);
        record_array_free(hybrid->state_groups, UINT16_MAX + 1, sizeof(uint32_t));
        record_array_free(hybrid->nodes, hybrid->boundaries_max + 1, sizeof(struct placement_node));
        *hybrid = (struct placement_hybrid){0};
}

static struct placement_hybrid *hybrid_of(struct index *index)
{
        return &index_order(index)->hybrid;
}

static struct placement_node *node_of(struct index *index, const struct index_boundary *boundary)
{
        return &hybrid_of(index)->nodes[index_boundary_id(index, boundary)];
}

static struct index_boundary *parent_of(struct index *index, const struct index_boundary *boundary)
{
        return boundary->parent ? index_boundary_at(index, boundary->parent) : NULL;
}

static bool is_state(struct index *index, const struct index_boundary *boundary,
                     const struct index_object *object)
{
        return hybrid_of(index)->state_groups[boundary->layout] >> object->group & 1;
}

static uint32_t *live_of(struct index *index, const struct index_boundary *boundary,
                         enum index_tier tier)
{
        return &index_order(index)->links[tier][index_boundary_id(index, boundary)].children;
}

/* ---- lists ---- */

static void list_out(struct index *index, const struct index_boundary *boundary,
                     enum index_tier tier)
{
        struct placement_node *node = node_of(index, boundary);
        struct placement_queue *queue = &hybrid_of(index)->shares[tier].queues[node->list[tier]];

        if (!node->list[tier])
                return;
        placement_queue_out(index_order(index)->links[tier], queue,
                            index_boundary_id(index, boundary));
        node->list[tier] = PLACEMENT_NO_LIST;
}

static void list_behind(struct index *index, const struct index_boundary *boundary,
                        enum index_tier tier, enum placement_list list, uint32_t anchor)
{
        struct placement_queue *queue = &hybrid_of(index)->shares[tier].queues[list];

        list_out(index, boundary, tier);
        placement_queue_in(index_order(index)->links[tier], queue,
                           index_boundary_id(index, boundary), anchor);
        node_of(index, boundary)->list[tier] = (uint8_t)list;
}

/* To the new end of @list; behind its parent where that is young too: the suffix goes first. */
static void list_in(struct index *index, const struct index_boundary *boundary,
                    enum index_tier tier, enum placement_list list)
{
        bool follows = list == PLACEMENT_YOUNG && boundary->parent &&
                       hybrid_of(index)->nodes[boundary->parent].list[tier] == PLACEMENT_YOUNG;

        list_behind(index, boundary, tier, list, follows ? boundary->parent : INDEX_NONE);
}

static bool is_new(struct index *index, const struct index_boundary *boundary)
{
        return hybrid_of(index)->now_s - boundary->touched_s < YOUNG_S;
}

static uint32_t n_states(const struct placement_share *share)
{
        return share->queues[PLACEMENT_UNPROVEN].n + share->queues[PLACEMENT_PROVEN].n;
}

/* One more state or child makes @boundary's KV usable. */
static void rise(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        for (; boundary && !(*live_of(index, boundary, tier))++;
             boundary = parent_of(index, boundary))
                list_out(index, boundary, tier);
}

static void fall(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        for (; boundary && !--*live_of(index, boundary, tier);
             boundary = parent_of(index, boundary))
                if (node_of(index, boundary)->has_kv & 1u << tier)
                        list_in(index, boundary, tier, PLACEMENT_DEAD);
}

/* ---- boundaries come and go ---- */

/* A child counts once it has KV of its own: the end of a blob is no other way to go on. */
static void count_child(struct index *index, const struct index_boundary *boundary)
{
        struct placement_node *node = node_of(index, boundary);

        if (node->past.is_counted || !boundary->parent || !(node->flags & PLACEMENT_HAD_KV))
                return;
        node->past.is_counted = true;
        if (!hybrid_of(index)->nodes[boundary->parent].past.children_seen++)
                index_publish_branch(index, index_boundary_at(index, boundary->parent));
}

uint32_t placement_hybrid_presence(struct index *index, const struct index_boundary *boundary)
{
        const struct placement_node *node = node_of(index, boundary);

        return (node->flags & PLACEMENT_HAD_KV ? PRESENCE_SEEN : 0) |
               (node->past.children_seen ? PRESENCE_HAS_CHILD : 0);
}

static uint64_t fingerprint_of(struct index *index, const struct index_boundary *boundary)
{
        return index_fingerprint(index, boundary->layout, &boundary->digest);
}

/*
 * How many may be remembered. Each has an entry in the presence table, which is made for
 * objects_max of them; much fuller, it finds no place for what is there.
 */
static uint64_t memory_max(struct index *index)
{
        const struct placement_hybrid *hybrid = hybrid_of(index);
        uint64_t n_max = MEMORY_MIN + (uint64_t)MEMORY_FACTOR * hybrid->n_nodes;
        struct index_usage usage;
        uint64_t least, unused;

        index_usage(index, &usage);
        least = usage.objects_max / MEMORY_LEAST + 1;
        unused = usage.objects_max > usage.boundaries ? usage.objects_max - usage.boundaries : 0;
        if (unused < least)
                unused = least;
        if (unused > hybrid->memory.pool.n_max)
                unused = hybrid->memory.pool.n_max;
        return n_max < unused ? n_max : unused;
}

static void forget_oldest(struct index *index, uint64_t n_max)
{
        struct placement_memory *memory = &hybrid_of(index)->memory;

        while (placement_memory_n(memory) && placement_memory_n(memory) > n_max)
                index_publish_forgotten(index, placement_memory_forget(memory));
}

void placement_hybrid_begin(struct index *index, struct index_boundary *boundary)
{
        struct placement_hybrid *hybrid = hybrid_of(index);
        struct placement_node *node = node_of(index, boundary);

        hybrid->n_nodes++;
        if (placement_memory_take(&hybrid->memory, fingerprint_of(index, boundary), &node->past))
                node->flags = PLACEMENT_HAD_KV;
        forget_oldest(index, memory_max(index));
}

void placement_hybrid_end(struct index *index, struct index_boundary *boundary)
{
        struct placement_hybrid *hybrid = hybrid_of(index);
        struct placement_node *node = node_of(index, boundary);

        assert(!node->list[INDEX_HOST] && !node->list[INDEX_NVME] && !node->list[INDEX_REMOTE]);
        hybrid->n_nodes--;
        if (node->flags & PLACEMENT_HAD_KV) {
                forget_oldest(index, memory_max(index) - 1);
                placement_memory_add(&hybrid->memory, fingerprint_of(index, boundary), &node->past);
        }
        *node = (struct placement_node){0};
}

bool placement_knows(struct index *index, uint16_t layout, const struct digest *digest,
                     bool *ret_has_child)
{
        const struct index_boundary *boundary = index_find_boundary(index, layout, digest);
        const struct placement_past *past;

        past = boundary ? &node_of(index, boundary)->past
                        : placement_memory_find(&hybrid_of(index)->memory,
                                                index_fingerprint(index, layout, digest));
        if (!past)
                return false;
        *ret_has_child = past->children_seen > 0;
        return true;
}

void placement_hybrid_adopt(struct index *index, struct index_boundary *boundary)
{
        count_child(index, boundary);
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (*live_of(index, boundary, tier))
                        rise(index, parent_of(index, boundary), tier);
}

/* ---- objects come and go ---- */

static void kv_entered(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        struct placement_node *node = node_of(index, boundary);

        if (!(node->has_kv & 1u << tier))
                hybrid_of(index)->shares[tier].n_kv++;
        node->has_kv |= (uint8_t)(1u << tier);
        node->flags |= PLACEMENT_HAD_KV;
        count_child(index, boundary);
        if (!*live_of(index, boundary, tier))
                list_in(index, boundary, tier, PLACEMENT_YOUNG);
}

static void state_entered(struct index *index, struct index_boundary *boundary,
                          enum index_tier tier)
{
        struct placement_node *node = node_of(index, boundary);

        if (node->has_state & 1u << tier)
                return;
        if (!node->has_state)
                node->flags |= PLACEMENT_FRESH;
        node->has_state |= (uint8_t)(1u << tier);
        rise(index, boundary, tier);
        list_in(index, boundary, tier,
                node->flags & PLACEMENT_WORTHY ? PLACEMENT_PROVEN : PLACEMENT_UNPROVEN);
}

void placement_hybrid_enter(struct index *index, const struct index_object *object,
                            enum index_tier tier)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        boundary->touched_s = hybrid_of(index)->now_s;
        if (is_state(index, boundary, object))
                state_entered(index, boundary, tier);
        else
                kv_entered(index, boundary, tier);
}

static bool has_other(struct index *index, const struct index_boundary *boundary,
                      enum index_tier tier, bool states)
{
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                if (is_state(index, boundary, object) == states &&
                    index_object_is_ours(object, tier))
                        return true;
                id = object->next;
        }
        return false;
}

static void state_left(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        struct placement_node *node = node_of(index, boundary);

        node->has_state &= (uint8_t) ~(1u << tier);
        if (!node->has_state)
                node->flags &= PLACEMENT_HAD_KV;
        list_out(index, boundary, tier);
        fall(index, boundary, tier);
}

/* One walk after another, each to its end: else those that it has passed would never be met. */
static void seek_broken(struct placement_hybrid *hybrid)
{
        if (hybrid->has_broken)
                hybrid->more_broken = true;
        else
                hybrid->broken_position = INDEX_NONE;
        hybrid->has_broken = true;
}

static void seek_broken_below(struct index *index, const struct index_boundary *boundary)
{
        if (node_of(index, boundary)->has_kv)
                return;
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                if (*live_of(index, boundary, tier)) {
                        seek_broken(hybrid_of(index));
                        return;
                }
        }
}

static void kv_left(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        struct placement_node *node = node_of(index, boundary);

        node->has_kv &= (uint8_t) ~(1u << tier);
        hybrid_of(index)->shares[tier].n_kv--;
        if (!(node->has_state & 1u << tier))
                list_out(index, boundary, tier);
        seek_broken_below(index, boundary);
}

void placement_hybrid_leave(struct index *index, const struct index_object *object,
                            enum index_tier tier)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        bool state = is_state(index, boundary, object);

        if (has_other(index, boundary, tier, state))
                return;
        if (state)
                state_left(index, boundary, tier);
        else
                kv_left(index, boundary, tier);
}

static bool others_have_kv(struct index *index, const struct index_boundary *boundary)
{
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                if (!is_state(index, boundary, object) &&
                    index_object_is_in(object, INDEX_REMOTE) &&
                    !index_object_is_ours(object, INDEX_REMOTE))
                        return true;
                id = object->next;
        }
        return false;
}

/* KV that others have is not missing: a state here can be used with it. */
void placement_hybrid_elsewhere(struct index *index, const struct index_object *object)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        struct placement_node *node = node_of(index, boundary);

        if (others_have_kv(index, boundary)) {
                node->has_kv |= PLACEMENT_ELSEWHERE;
                node->flags |= PLACEMENT_HAD_KV;
                count_child(index, boundary);
        } else if (node->has_kv & PLACEMENT_ELSEWHERE) {
                node->has_kv &= (uint8_t)~PLACEMENT_ELSEWHERE;
                seek_broken_below(index, boundary);
        }
}

/* ---- what turns out to have been a mistake ---- */

/* The state of @node went from @tier, and not long ago; of @n states there are. */
static bool went_too_early(const struct placement_share *share, const struct placement_node *node,
                           enum index_tier tier, uint32_t n)
{
        return node->past.evicted_from[tier] &&
               share->n_evicted - node->past.evicted_at[tier] < MISTAKE_LISTS * n;
}

/* The list that it was evicted from gets a larger share; of @n states there are. */
static void learn_from(struct placement_share *share, struct placement_node *node,
                       enum index_tier tier, uint32_t n)
{
        enum placement_list from = node->past.evicted_from[tier];
        enum placement_list other =
                from == PLACEMENT_UNPROVEN ? PLACEMENT_PROVEN : PLACEMENT_UNPROVEN;
        double weight = (share->evicted[other] + 1.0) / (share->evicted[from] + 1.0);
        double step = (weight > 1 ? weight : 1) / (n + 1);

        share->unproven += from == PLACEMENT_UNPROVEN ? step : -step;
        if (share->unproven < SHARE_MIN)
                share->unproven = SHARE_MIN;
        if (share->unproven > 1 - SHARE_MIN)
                share->unproven = 1 - SHARE_MIN;
        node->past.evicted_from[tier] = PLACEMENT_NO_LIST;
}

void placement_hybrid_evict(struct index *index, enum index_tier tier,
                            const struct placement_victim *victim)
{
        struct placement_share *share = &hybrid_of(index)->shares[tier];
        struct placement_node *node = node_of(index, victim->boundary);
        enum placement_list list = node->list[tier];

        if (list != PLACEMENT_UNPROVEN && list != PLACEMENT_PROVEN)
                return;
        share->n_evicted++;
        if (++share->evicted[list] + share->evicted[PLACEMENT_UNPROVEN + PLACEMENT_PROVEN - list] >=
            EVICTED_MAX) {
                share->evicted[PLACEMENT_UNPROVEN] /= 2;
                share->evicted[PLACEMENT_PROVEN] /= 2;
        }
        node->past.evicted_from[tier] = (uint8_t)list;
        node->past.evicted_at[tier] = share->n_evicted;
}

/* ---- use ---- */

static void use_state(struct index *index, struct index_boundary *boundary)
{
        struct placement_hybrid *hybrid = hybrid_of(index);
        struct placement_node *node = node_of(index, boundary);

        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                struct placement_share *share = &hybrid->shares[tier];
                uint32_t n = n_states(share);

                if (node->has_state & 1u << tier)
                        list_in(index, boundary, tier, PLACEMENT_PROVEN);
                else if (tier == INDEX_HOST && went_too_early(share, node, tier, n))
                        learn_from(share, node, tier, n);
        }
        node->flags |= PLACEMENT_IS_USED | PLACEMENT_WORTHY;
        boundary->touched_s = hybrid->now_s;
}

void placement_hybrid_use(struct index *index, const struct index_object *object, uint32_t now_s)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        struct placement_node *node = node_of(index, boundary);

        hybrid_of(index)->now_s = now_s;
        if (is_state(index, boundary, object)) {
                use_state(index, boundary);
                return;
        }
        /* KV that is stored or read again may get a state now. */
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                if (node->has_state & 1u << tier || !node->list[tier])
                        continue;
                boundary->touched_s = now_s;
                list_in(index, boundary, tier, PLACEMENT_YOUNG);
        }
}

void placement_hybrid_renew(struct index *index, struct index_boundary *boundary,
                            enum index_tier tier, uint32_t now_s)
{
        enum placement_list list = node_of(index, boundary)->list[tier];

        hybrid_of(index)->now_s = now_s;
        boundary->touched_s = now_s;
        /* Not behind its parent: that may be at the old end itself. */
        if (list)
                list_behind(index, boundary, tier, list, INDEX_NONE);
}

/* ---- a state is stored ---- */

/* Is this a boundary at which KV belongs, and none ever came? A blob may serve it. */
static bool awaits_kv(struct index *index, const struct index_boundary *boundary)
{
        uint32_t kv_tokens = index_layout_at(index, boundary->layout)->kv_tokens;

        return kv_tokens && !(node_of(index, boundary)->flags & PLACEMENT_HAD_KV) &&
               !boundary->first_cover && !(boundary->flags & INDEX_TOKENS_UNKNOWN) &&
               boundary->boundary_tokens % kv_tokens == 0;
}

static void look_later(struct placement_hybrid *hybrid)
{
        if (!hybrid->late_s)
                hybrid->late_s = hybrid->now_s + YOUNG_S;
}

/* What is found on the way up from a new state to where its prefill began. */
struct climb {
        uint32_t began_tokens;       /* where that was; 0: at the start */
        struct index_boundary *base; /* the boundary there, or the next above; NULL: none */
        uint32_t n_steps;
        uint32_t n_crossed;  /* states of the same prefill */
        uint32_t learned_at; /* the one of these by which something was learned */
        bool returned;       /* something on the way had been evicted too early, as */
        bool learned;        /*   an earlier state of the prefill told, or this one */
        bool awaits_kv;      /* some of the prefill's has not come yet */
};

/* Nobody said where the prefill began: at the nearest state that was used. */
static uint32_t guess_began(struct index *index, const struct index_boundary *boundary)
{
        const struct index_boundary *above = parent_of(index, boundary);

        for (unsigned i = 0; above && i < PLACEMENT_WALK_MAX; i++) {
                if (node_of(index, above)->flags & PLACEMENT_IS_USED)
                        return above->boundary_tokens;
                above = parent_of(index, above);
        }
        return 0;
}

static void climb_from(struct index *index, const struct index_boundary *boundary,
                       struct climb *climb)
{
        struct index_boundary *each = parent_of(index, boundary);

        climb->awaits_kv = awaits_kv(index, boundary);
        for (climb->n_steps = 1; each && each->boundary_tokens > climb->began_tokens;
             climb->n_steps++) {
                const struct placement_node *node = node_of(index, each);

                if (climb->n_steps == PLACEMENT_WALK_MAX)
                        return;
                climb->awaits_kv = climb->awaits_kv || awaits_kv(index, each);
                climb->n_crossed += node->has_state != 0;
                if (node->flags & PLACEMENT_RETURNED && !climb->returned) {
                        climb->returned = true;
                        climb->learned_at = index_boundary_id(index, each);
                }
                each = parent_of(index, each);
        }
        if (climb->began_tokens)
                climb->base = each;
}

/*
 * The deepest mistake on the way counts, and only one a prefill: what an earlier state of it
 * taught is taken back for a deeper one.
 */
static void learn_in_tier(struct index *index, struct index_boundary *boundary, struct climb *climb,
                          enum index_tier tier)
{
        struct placement_share *share = &hybrid_of(index)->shares[tier];
        uint32_t n = n_states(share) - climb->n_crossed;
        struct index_boundary *each = boundary;

        if (climb->returned && share->learned_at != climb->learned_at)
                return;
        for (uint32_t i = 0; i < climb->n_steps; i++) {
                struct placement_node *node = node_of(index, each);
                bool has_state = each != boundary && node->has_state;

                if (each != boundary && node->flags & PLACEMENT_RETURNED)
                        return;
                if (!has_state && went_too_early(share, node, tier, n)) {
                        if (climb->returned)
                                share->unproven = share->unproven_before;
                        share->unproven_before = share->unproven;
                        share->learned_at = index_boundary_id(index, boundary);
                        learn_from(share, node, tier, n);
                        climb->learned = true;
                        return;
                }
                each = parent_of(index, each);
        }
}

static bool goes_on(struct index *index, const struct climb *climb)
{
        return climb->base && node_of(index, climb->base)->past.children_seen == 1;
}

/* The nearest state above where the prefill began, unless prompts branch there. */
static void supersede(struct index *index, const struct climb *climb)
{
        struct index_boundary *above = climb->base;

        if (above && above->boundary_tokens == climb->began_tokens)
                above = parent_of(index, above);
        for (unsigned i = 0; above && i < PLACEMENT_WALK_MAX; i++) {
                struct placement_node *node = node_of(index, above);

                if (node->has_state) {
                        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                                if (node->has_state & 1u << tier && node->past.children_seen <= 1)
                                        list_in(index, above, tier, PLACEMENT_DEAD);
                        return;
                }
                above = parent_of(index, above);
        }
}

static void list_state(struct index *index, const struct index_boundary *boundary)
{
        const struct placement_node *node = node_of(index, boundary);

        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (node->has_state & 1u << tier)
                        list_in(index, boundary, tier,
                                node->flags & PLACEMENT_WORTHY ? PLACEMENT_PROVEN
                                                               : PLACEMENT_UNPROVEN);
}

/*
 * The states of one prefill, and the one it began with, are listed anew, so that each is
 * newer than those below it. Only the last one, and branches, may be proven by the prefill.
 */
static void list_states_of_prefill(struct index *index, struct index_boundary *boundary,
                                   const struct climb *climb)
{
        struct index_boundary *each = boundary;

        list_state(index, boundary);
        if (climb->n_crossed) {
                while ((each = parent_of(index, each)) &&
                       each->boundary_tokens > climb->began_tokens) {
                        struct placement_node *node = node_of(index, each);

                        if (!(node->flags & (PLACEMENT_BRANCH | PLACEMENT_IS_USED)))
                                node->flags &= (uint8_t)~PLACEMENT_WORTHY;
                        if (node->has_state)
                                list_state(index, each);
                }
        }
        if (climb->base && climb->base->boundary_tokens == climb->began_tokens &&
            node_of(index, climb->base)->has_state)
                use_state(index, climb->base);
}

static void place_new_state(struct index *index, struct index_boundary *boundary,
                            const struct index_origin *origin)
{
        struct placement_node *node = node_of(index, boundary);
        struct climb climb = {.began_tokens = origin->is_known ? origin->began_tokens
                                                               : guess_began(index, boundary)};
        bool branch = origin->is_branch || (!origin->is_known && node->past.children_seen > 1);

        /* What was too early is judged by the lists as they were without it. */
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (node->has_state & 1u << tier)
                        list_out(index, boundary, tier);
        climb_from(index, boundary, &climb);
        if (climb.awaits_kv)
                look_later(hybrid_of(index));
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                learn_in_tier(index, boundary, &climb, tier);
        node->flags &= (uint8_t)~PLACEMENT_FRESH;
        node->flags |= branch ? PLACEMENT_BRANCH : 0;
        node->flags |= climb.learned ? PLACEMENT_RETURNED : 0;
        if (branch || goes_on(index, &climb) || climb.returned || climb.learned)
                node->flags |= PLACEMENT_WORTHY;
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                node->past.evicted_from[tier] = PLACEMENT_NO_LIST;
        list_states_of_prefill(index, boundary, &climb);
        if (climb.began_tokens && !climb.n_crossed)
                supersede(index, &climb);
}

void placement_hybrid_stored(struct index *index, const struct index_object *object,
                             const struct index_origin *origin, uint32_t now_s)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        hybrid_of(index)->now_s = now_s;
        if (!is_state(index, boundary, object)) {
                placement_hybrid_use(index, object, now_s);
        } else if (node_of(index, boundary)->flags & PLACEMENT_FRESH) {
                boundary->touched_s = now_s;
                place_new_state(index, boundary, origin);
        }
}

/* ---- states without their KV ---- */

/*
 * Is KV of the chain gone? What was never there may still be on its way to a new state, and a
 * state that was used can do without.
 */
static bool has_gap(struct index *index, const struct index_boundary *state, uint32_t *steps)
{
        const struct index_boundary *boundary = state;
        bool may_await = !(node_of(index, state)->flags & PLACEMENT_IS_USED), awaits = false;

        for (unsigned i = 0; boundary && i < PLACEMENT_WALK_MAX; i++) {
                const struct placement_node *node = node_of(index, boundary);

                if (node->flags & PLACEMENT_HAD_KV && !node->has_kv)
                        return true;
                awaits = awaits || (may_await && awaits_kv(index, boundary));
                *steps -= *steps > 0;
                boundary = parent_of(index, boundary);
        }
        if (awaits && is_new(index, state))
                look_later(hybrid_of(index));
        return awaits && !is_new(index, state);
}

static bool begin_to_seek(struct placement_hybrid *hybrid)
{
        if (hybrid->late_s && hybrid->now_s >= hybrid->late_s) {
                hybrid->late_s = 0;
                seek_broken(hybrid);
        }
        return hybrid->has_broken;
}

/*
 * A corrupt chunk, say, leaves states behind that nothing can use, and so does a prefill that
 * died. They are found in slices, by a walk over all boundaries: nobody knows what hangs on
 * one.
 */
static void find_broken(struct index *index)
{
        struct placement_hybrid *hybrid = hybrid_of(index);
        struct index_boundary *boundary;
        uint32_t steps = BROKEN_STEPS;

        if (!begin_to_seek(hybrid))
                return;
        while ((boundary = index_scan_boundaries(index, &hybrid->broken_position, &steps))) {
                if (!placement_is_hybrid(index_order(index), boundary) ||
                    !node_of(index, boundary)->has_state || !has_gap(index, boundary, &steps))
                        continue;
                for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                        if (node_of(index, boundary)->has_state & 1u << tier)
                                list_in(index, boundary, tier, PLACEMENT_DEAD);
        }
        if (!index_boundaries_have_ended(hybrid->broken_position))
                return;
        hybrid->has_broken = hybrid->more_broken;
        hybrid->more_broken = false;
        hybrid->broken_position = INDEX_NONE;
}

/* ---- victims ---- */

void placement_hybrid_age(struct index *index, enum index_tier tier)
{
        struct placement_hybrid *hybrid = hybrid_of(index);
        struct placement_share *share = &hybrid->shares[tier];
        const struct placement_queue *young = &share->queues[PLACEMENT_YOUNG];

        find_broken(index);
        while (young->oldest) {
                struct index_boundary *oldest = index_boundary_at(index, young->oldest);

                if (is_new(index, oldest) &&
                    young->n <= share->n_kv / YOUNG_SHARE)
                        return;
                list_in(index, oldest, tier, PLACEMENT_DEAD);
        }
}

enum placement_list placement_hybrid_giving_list(const struct placement_share *share,
                                                 uint32_t n_unproven, uint32_t n_proven)
{
        return n_unproven > share->unproven * (n_unproven + n_proven) || !n_proven
                       ? PLACEMENT_UNPROVEN
                       : PLACEMENT_PROVEN;
}

bool placement_is_dead(struct index *index, const struct index_object *object)
{
        const struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        return placement_is_hybrid(index_order(index), boundary) &&
               node_of(index, boundary)->list[INDEX_HOST] == PLACEMENT_DEAD;
}

/* A state that others need the KV of goes alone, and so does one that is merely old. */
static enum placement_part part_of(struct index *index, const struct index_boundary *boundary,
                                   enum index_tier tier, enum placement_list list)
{
        bool has_state = node_of(index, boundary)->has_state >> tier & 1;

        if (list != PLACEMENT_DEAD && list != PLACEMENT_YOUNG)
                return PLACEMENT_STATES;
        return has_state && *live_of(index, boundary, tier) > 1 ? PLACEMENT_STATES : PLACEMENT_ALL;
}

void placement_hybrid_victim(struct index *index, enum index_tier tier, enum placement_list list,
                             placement_may_evict *may_evict, void *user, unsigned max_steps,
                             struct placement_victim *ret_victim)
{
        const struct placement_link *links = index_order(index)->links[tier];
        uint32_t id = hybrid_of(index)->shares[tier].queues[list].oldest;

        for (unsigned i = 0; id && i < max_steps; i++, id = links[id].newer) {
                struct index_boundary *boundary = index_boundary_at(index, id);

                *ret_victim = (struct placement_victim){
                        .boundary = boundary,
                        .part = part_of(index, boundary, tier, list),
                        .is_dead = list == PLACEMENT_DEAD,
                };
                if (may_evict(user, ret_victim))
                        return;
        }
        ret_victim->boundary = NULL;
}
