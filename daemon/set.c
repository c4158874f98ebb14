// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "daemon/session.h"
#include "daemon/set.h"

static int set_compare(const struct lease_set *a, const struct lease_set *b)
{
        return a->id < b->id ? -1 : a->id > b->id;
}

TREE_GENERATE(set_tree, lease_set, node, set_compare)

struct lease_set *set_find(struct session *session, uint64_t id)
{
        struct lease_set wanted = {.id = id};

        return RB_FIND(set_tree, &session->sets, &wanted);
}

int set_join(struct lease *lease, uint64_t id)
{
        struct lease_set *set = set_find(lease->session, id);

        if (set && set->n_write + set->n_have >= WIRE_ITEMS_MAX)
                return SET_E_FULL;
        if (!set) {
                set = calloc(1, sizeof(*set));
                if (!set)
                        return err_raise(-ENOMEM);
                set->session = lease->session;
                set->id = id;
                LIST_INIT(&set->members);
                RB_INSERT(set_tree, &lease->session->sets, set);
        }
        lease->set = set;
        LIST_INSERT_HEAD(&set->members, lease, set_link);
        if (lease->kind == LEASE_WRITE)
                set->n_write++;
        else
                set->n_have++;
        return 0;
}

void set_leave(struct lease *lease)
{
        struct lease_set *set = lease->set;

        LIST_REMOVE(lease, set_link);
        if (lease->kind == LEASE_WRITE)
                set->n_write--;
        else
                set->n_have--;
        lease->set = NULL;
        if (!set->n_write && !set->n_have) {
                RB_REMOVE(set_tree, &set->session->sets, set);
                free(set);
        }
}

void set_end(struct leases *leases, struct lease_set *set)
{
        /* The set is gone with its last member: count them first. */
        for (uint32_t n = set->n_write + set->n_have; n; n--)
                lease_end(leases, LIST_FIRST(&set->members));
}
