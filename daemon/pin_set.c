// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "daemon/pin_set.h"

struct pin {
        RB_ENTRY(pin) node;
        uint32_t boundary;
};

static int compare(const struct pin *a, const struct pin *b)
{
        return a->boundary < b->boundary ? -1 : a->boundary > b->boundary;
}

TREE_GENERATE(pin_tree, pin, node, compare)

static struct pin *find(struct pin_set *set, uint32_t boundary)
{
        struct pin wanted = {.boundary = boundary};

        return RB_FIND(pin_tree, &set->tree, &wanted);
}

bool pin_set_has(struct pin_set *set, uint32_t boundary)
{
        return find(set, boundary);
}

int pin_set_add(struct pin_set *set, struct index *index, struct index_boundary *boundary)
{
        uint32_t id = index_boundary_id(index, boundary);
        struct pin *pin;
        int r;

        if (find(set, id))
                return 0;
        if (set->n == PIN_SET_MAX)
                return PIN_SET_E_MANY;
        pin = calloc(1, sizeof(*pin));
        if (!pin)
                return err_raise(-ENOMEM);
        r = pin_hold(index, boundary);
        if (r) {
                free(pin);
                return r;
        }
        pin->boundary = id;
        RB_INSERT(pin_tree, &set->tree, pin);
        set->n++;
        return 0;
}

static void end(struct pin_set *set, struct index *index, struct pin *pin)
{
        RB_REMOVE(pin_tree, &set->tree, pin);
        set->n--;
        index_unpin(index, index_boundary_at(index, pin->boundary));
        free(pin);
}

bool pin_set_remove(struct pin_set *set, struct index *index, struct index_boundary *boundary)
{
        struct pin *pin = find(set, index_boundary_id(index, boundary));

        if (pin)
                end(set, index, pin);
        return pin;
}

void pin_set_clear(struct pin_set *set, struct index *index, uint16_t layout)
{
        struct pin *pin, *next;

        for (pin = RB_MIN(pin_tree, &set->tree); pin; pin = next) {
                next = RB_NEXT(pin_tree, &set->tree, pin);
                if (!layout || index_boundary_at(index, pin->boundary)->layout == layout)
                        end(set, index, pin);
        }
}
