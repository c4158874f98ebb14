// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/index.h"
#include "daemon/pin_table.h"
#include "daemon/record_pool.h"

#define UNIT_BYTES 4096u

static const uint16_t pinned_in[INDEX_N_TIERS] = {INDEX_PINNED_HOST, INDEX_PINNED_NVME,
                                                  INDEX_PINNED_REMOTE};

int pin_table_init(struct pin_table *pins, uint64_t boundaries_max)
{
        void *holds;
        int r = record_array_new(&holds, boundaries_max + 1, sizeof(*pins->holds));

        if (r < 0)
                return r;
        *pins = (struct pin_table){.holds = holds, .boundaries_max = boundaries_max};
        return 0;
}

void pin_table_deinit(struct pin_table *pins)
{
        record_array_free(pins->holds, pins->boundaries_max + 1, sizeof(*pins->holds));
        *pins = (struct pin_table){0};
}

uint64_t pin_space(uint32_t raw_bytes, enum index_tier tier)
{
        uint64_t units = ((uint64_t)raw_bytes + UNIT_BYTES - 1) / UNIT_BYTES;

        /* On NVMe each object has a header of one unit. */
        return (units + (tier == INDEX_NVME)) * UNIT_BYTES;
}

bool pins_hold(const struct pin_table *pins, uint32_t boundary)
{
        return pins->n_held && pins->holds[boundary];
}

static struct index_boundary *parent_of(struct index *index, const struct index_boundary *boundary)
{
        return boundary->parent ? index_boundary_at(index, boundary->parent) : NULL;
}

static void protect(struct pin_table *pins, struct index_object *object, enum index_tier tier)
{
        uint64_t bytes = pin_space(object->raw_bytes, tier);

        if (!index_object_is_ours(object, tier) || object->flags & pinned_in[tier] ||
            pins->bytes[tier] + bytes > pins->bytes_max[tier])
                return;
        pins->bytes[tier] += bytes;
        object->flags |= pinned_in[tier];
}

static void expose(struct pin_table *pins, struct index_object *object, enum index_tier tier)
{
        if (!(object->flags & pinned_in[tier]))
                return;
        pins->bytes[tier] -= pin_space(object->raw_bytes, tier);
        object->flags &= (uint16_t)~pinned_in[tier];
}

/* Calls @change for each object of the boundary in each tier. */
static void for_objects(struct index *index, const struct index_boundary *boundary,
                        void (*change)(struct pin_table *pins, struct index_object *object,
                                       enum index_tier tier))
{
        struct pin_table *pins = index_pins(index);

        pins->n_steps++;
        for (uint32_t id = boundary->first_object; id;) {
                struct index_object *object = index_object_at(index, id);

                for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                        change(pins, object, tier);
                pins->n_steps++;
                id = object->next;
        }
}

/* What a hold on @boundary would add, up to the first ancestor that is held already. */
static void add_up(struct index *index, const struct index_boundary *boundary,
                   uint64_t ret_bytes[INDEX_N_TIERS])
{
        struct pin_table *pins = index_pins(index);

        for (; boundary && !pins->holds[index_boundary_id(index, boundary)];
             boundary = parent_of(index, boundary)) {
                pins->n_steps++;
                for (uint32_t id = boundary->first_object; id;) {
                        const struct index_object *object = index_object_at(index, id);

                        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                                if (index_object_is_ours(object, tier))
                                        ret_bytes[tier] += pin_space(object->raw_bytes, tier);
                        pins->n_steps++;
                        id = object->next;
                }
        }
}

/* One more reason to hold @boundary; the first one holds its parent, too. */
static void hold(struct index *index, struct index_boundary *boundary)
{
        struct pin_table *pins = index_pins(index);

        while (boundary && !pins->holds[index_boundary_id(index, boundary)]++) {
                pins->n_held++;
                for_objects(index, boundary, protect);
                boundary = parent_of(index, boundary);
        }
}

int pin_hold(struct index *index, struct index_boundary *boundary)
{
        const struct pin_table *pins = index_pins(index);
        uint64_t bytes[INDEX_N_TIERS] = {0};

        add_up(index, boundary, bytes);
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (bytes[tier] && pins->bytes[tier] + bytes[tier] > pins->bytes_max[tier])
                        return PIN_E_FULL;
        hold(index, boundary);
        return 0;
}

void pin_let_go(struct index *index, struct index_boundary *boundary)
{
        struct pin_table *pins = index_pins(index);

        while (boundary) {
                uint32_t *holds = &pins->holds[index_boundary_id(index, boundary)];

                assert(*holds);
                if (--*holds)
                        return;
                pins->n_held--;
                for_objects(index, boundary, expose);
                boundary = parent_of(index, boundary);
        }
}

void pins_enter(struct index *index, struct index_object *object, enum index_tier tier)
{
        struct pin_table *pins = index_pins(index);

        if (pins_hold(pins, object->boundary))
                protect(pins, object, tier);
}

void pins_leave(struct index *index, struct index_object *object, enum index_tier tier)
{
        expose(index_pins(index), object, tier);
}

void pins_adopt(struct index *index, const struct index_boundary *boundary)
{
        if (pins_hold(index_pins(index), index_boundary_id(index, boundary)))
                hold(index, parent_of(index, boundary));
}
