// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "daemon/drop_ring.h"
#include "daemon/lease.h"
#include "daemon/session.h"
#include "daemon/set.h"

static int reservation_compare(const struct lease *a, const struct lease *b)
{
        int order = memcmp(&a->entry.digest, &b->entry.digest, sizeof(a->entry.digest));

        if (order)
                return order;
        if (a->entry.layout != b->entry.layout)
                return a->entry.layout < b->entry.layout ? -1 : 1;
        if (a->entry.group != b->entry.group)
                return a->entry.group < b->entry.group ? -1 : 1;
        if (a->entry.shard != b->entry.shard)
                return a->entry.shard < b->entry.shard ? -1 : 1;
        /* Reservations never exclude each other: several may have one key. */
        return a->id < b->id ? -1 : a->id > b->id;
}

static int grant_compare(const struct grant *a, const struct grant *b)
{
        return memcmp(a->token, b->token, sizeof(a->token));
}

/* An id: a slot in the low bits, a number that is never repeated in the others. */
#define SLOT_BITS 24
#define SLOT_MASK ((UINT64_C(1) << SLOT_BITS) - 1)

TREE_GENERATE(reservation_tree, lease, node, reservation_compare)
TREE_GENERATE(grant_tree, grant, node, grant_compare)

void leases_init(struct leases *leases, struct host_copies *copies)
{
        memset(leases, 0, sizeof(*leases));
        leases->copies = copies;
        leases->sequence = 1;
        RB_INIT(&leases->reservations);
        RB_INIT(&leases->grants);
}

void leases_deinit(struct leases *leases)
{
        assert(leases->n_free == leases->n_slots);
        free(leases->slots);
        free(leases->free_slots);
}

static int grow(struct leases *leases)
{
        uint32_t n = leases->n_slots ? leases->n_slots * 2 : 256;
        struct lease **slots;
        uint32_t *free_slots;

        if (n > SLOT_MASK)
                return err_raise(-ENOMEM);
        slots = reallocarray(leases->slots, n, sizeof(*slots));
        if (!slots)
                return err_raise(-ENOMEM);
        leases->slots = slots;
        free_slots = reallocarray(leases->free_slots, n, sizeof(*free_slots));
        if (!free_slots)
                return err_raise(-ENOMEM);
        leases->free_slots = free_slots;
        for (uint32_t slot = n; slot-- > leases->n_slots;) {
                slots[slot] = NULL;
                free_slots[leases->n_free++] = slot;
        }
        leases->n_slots = n;
        return 0;
}

int lease_new(struct leases *leases, struct session *session, enum lease_kind kind,
              struct host_copy *copy, struct lease **ret_lease)
{
        struct lease *lease;
        uint32_t slot;

        assert(copy || kind == LEASE_HAVE);
        if (!leases->n_free) {
                int r = grow(leases);

                if (r)
                        return r;
        }
        lease = calloc(1, sizeof(*lease));
        if (!lease)
                return err_raise(-ENOMEM);

        slot = leases->free_slots[--leases->n_free];
        leases->slots[slot] = lease;
        lease->id = leases->sequence++ << SLOT_BITS | (slot + 1);
        lease->kind = kind;
        lease->session = session;
        lease->copy = copy;
        if (copy) {
                host_copy_lease(leases->copies, copy);
                session->leased_bytes += copy->space_bytes;
        }
        session->n_leases++;
        lease->since_ns = uv_hrtime();
        TAILQ_INSERT_TAIL(&session->leases, lease, link);
        *ret_lease = lease;
        return 0;
}

struct lease *lease_find(struct leases *leases, const struct session *session, uint64_t id)
{
        uint64_t slot = id & SLOT_MASK;
        struct lease *lease;

        if (!slot || slot > leases->n_slots)
                return NULL;
        lease = leases->slots[slot - 1];
        return lease && lease->id == id && lease->session == session ? lease : NULL;
}

static void grant_drop_lease(struct leases *leases, struct lease *lease)
{
        struct grant *grant = lease->grant;

        assert(grant->n_leases);
        grant->n_retired -= lease->is_retired;
        if (!--grant->n_leases)
                grant_free_unused(leases, grant);
}

static void leave_reservation(struct leases *leases, struct lease *lease)
{
        if (lease->is_reserved)
                RB_REMOVE(reservation_tree, &leases->reservations, lease);
        lease->is_reserved = false;
}

static void note_unfinished(struct leases *leases, const struct lease *lease)
{
        const struct index_new_object *entry = &lease->entry;
        struct drop drop = {
                .digest = entry->digest,
                .boundary_tokens = entry->boundary_tokens,
                .layout = entry->layout,
                .group = entry->group,
                .shard = entry->shard,
                .tier = METRICS_N_TIERS,
                .reason = lease->is_retired ? DROP_WRITER_GONE : DROP_ABORTED,
        };

        drop_ring_note(leases->drops, &drop);
}

void lease_end(struct leases *leases, struct lease *lease)
{
        uint32_t slot = (uint32_t)(lease->id & SLOT_MASK) - 1;

        assert(!lease->loading);
        if (lease->kind == LEASE_WRITE && !lease->is_settled && leases->drops)
                note_unfinished(leases, lease);
        if (lease->set)
                set_leave(lease);
        leave_reservation(leases, lease);
        if (lease->copy) {
                lease->session->leased_bytes -= lease->copy->space_bytes;
                host_copy_unlease(leases->copies, lease->copy);
        }
        if (lease->grant)
                grant_drop_lease(leases, lease);
        if (lease->covers)
                lease->session->n_reserved_covers -= lease->entry.n_covers;
        lease->session->n_leases--;
        TAILQ_REMOVE(&lease->session->leases, lease, link);
        leases->slots[slot] = NULL;
        leases->free_slots[leases->n_free++] = slot;
        free(lease->covers);
        free(lease->pages);
        free(lease);
}

void lease_enter_reservation(struct leases *leases, struct lease *lease)
{
        RB_INSERT(reservation_tree, &leases->reservations, lease);
        lease->is_reserved = true;
}

bool lease_retire(struct leases *leases, struct lease *lease)
{
        bool was_reserved = lease->is_reserved;

        leave_reservation(leases, lease);
        if (lease->grant && !lease->is_retired)
                lease->grant->n_retired++;
        lease->is_retired = true;
        return was_reserved;
}

bool lease_is_reserved(struct leases *leases, uint16_t layout, const struct digest *digest,
                       uint16_t group, uint16_t shard)
{
        struct lease wanted = {.entry = {.layout = layout, .group = group, .shard = shard}};
        const struct lease *found;

        wanted.entry.digest = *digest;
        found = RB_NFIND(reservation_tree, &leases->reservations, &wanted); /* id 0: the first */
        return found && found->entry.layout == layout && found->entry.group == group &&
               found->entry.shard == shard && digest_equal(&found->entry.digest, digest);
}

int grant_new(struct leases *leases, const uint8_t engine_id[16], uint32_t domain, uint16_t layout,
              uint32_t n_members, struct grant **ret_grant)
{
        struct grant *grant = calloc(1, sizeof(*grant));

        if (grant)
                grant->members = calloc(n_members, sizeof(*grant->members));
        if (!grant || !grant->members) {
                free(grant);
                return err_raise(-ENOMEM);
        }
        memcpy(grant->engine_id, engine_id, sizeof(grant->engine_id));
        grant->domain = domain;
        grant->layout = layout;
        do {
                if (getrandom(grant->token, sizeof(grant->token), 0) != sizeof(grant->token)) {
                        free(grant->members);
                        free(grant);
                        return err_raise(-EIO);
                }
        } while (RB_INSERT(grant_tree, &leases->grants, grant));
        *ret_grant = grant;
        return 0;
}

void grant_add_member(struct leases *leases, struct grant *grant, struct host_copy *copy,
                      const struct digest *boundary, uint16_t group, uint16_t shard)
{
        host_copy_lease(leases->copies, copy);
        grant->members[grant->n_members++] = (struct grant_member){copy, *boundary, group, shard};
}

struct grant *grant_find(struct leases *leases, const uint8_t token[16])
{
        struct grant wanted, *found;

        memcpy(wanted.token, token, sizeof(wanted.token));
        found = RB_FIND(grant_tree, &leases->grants, &wanted);
        return found && found->n_leases > found->n_retired ? found : NULL;
}

static int compare_keys(const struct digest *boundary, uint16_t group, uint16_t shard,
                        const struct grant_member *member)
{
        int order = memcmp(boundary, &member->boundary, sizeof(*boundary));

        if (order)
                return order;
        if (group != member->group)
                return group < member->group ? -1 : 1;
        return shard < member->shard ? -1 : shard > member->shard;
}

static int compare_members(const void *a, const void *b, void *user)
{
        const struct grant *grant = user;
        const struct grant_member *member = &grant->members[*(const uint32_t *)a];

        return compare_keys(&member->boundary, member->group, member->shard,
                            &grant->members[*(const uint32_t *)b]);
}

static bool put_in_order(struct grant *grant)
{
        if (grant->order)
                return true;
        grant->order = calloc(grant->n_members, sizeof(*grant->order));
        if (!grant->order)
                return false;
        for (uint32_t i = 0; i < grant->n_members; i++)
                grant->order[i] = i;
        qsort_r(grant->order, grant->n_members, sizeof(*grant->order), compare_members, grant);
        return true;
}

const struct grant_member *grant_find_member(struct grant *grant, const struct wire_key_item *key,
                                             uint32_t *position)
{
        uint32_t low = 0, high = grant->n_members;

        /* Members are usually asked for in the order in which they were granted. */
        if (*position < grant->n_members &&
            !compare_keys(&key->boundary, key->group, key->shard, &grant->members[*position]))
                return &grant->members[(*position)++];
        if (!put_in_order(grant))
                return NULL;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                const struct grant_member *member = &grant->members[grant->order[middle]];
                int order = compare_keys(&key->boundary, key->group, key->shard, member);

                if (!order) {
                        *position = grant->order[middle] + 1;
                        return member;
                }
                if (order < 0)
                        high = middle;
                else
                        low = middle + 1;
        }
        return NULL;
}

void grant_attach_lease(struct grant *grant, struct lease *lease)
{
        lease->grant = grant;
        grant->n_leases++;
}

void grant_free_unused(struct leases *leases, struct grant *grant)
{
        assert(!grant->n_leases);
        RB_REMOVE(grant_tree, &leases->grants, grant);
        for (uint32_t i = 0; i < grant->n_members; i++)
                host_copy_unlease(leases->copies, grant->members[i].copy);
        free(grant->members);
        free(grant->order);
        free(grant);
}
