// SPDX-License-Identifier: Apache-2.0
/*
 * Walks over all objects and all boundaries of the index, by id.
 */
#include "daemon/index_struct.h"

/* ---- boundaries ---- */

uint64_t index_boundaries_max(const struct index *index)
{
        return index->boundaries.n_max;
}

void index_set_notes(struct index *index, uint8_t *notes)
{
        index->notes = notes;
}

struct index_boundary *index_scan_boundaries(struct index *index, uint32_t *position,
                                             uint32_t *steps)
{
        if (*position == INDEX_NONE)
                *position = index->boundaries.highest + 1;
        while (*steps && *position > 1) {
                struct index_boundary *boundary = record_pool_at(&index->boundaries, --*position);

                --*steps;
                if (boundary->flags & INDEX_IN_USE)
                        return boundary;
        }
        return NULL;
}

bool index_boundaries_have_ended(uint32_t position)
{
        return position == 1;
}

/* ---- objects ---- */

struct index_object *index_next_object(struct index *index, uint32_t after)
{
        for (uint32_t id = after + 1; id && id <= index->objects.highest; id++) {
                struct index_object *object = record_pool_at(&index->objects, id);

                if (object->boundary)
                        return object;
        }
        return NULL;
}

struct index_object *index_scan(struct index *index, uint32_t *position, uint32_t *steps)
{
        while (*steps && *position < index->objects.highest) {
                struct index_object *object = record_pool_at(&index->objects, ++*position);

                --*steps;
                if (object->boundary)
                        return object;
        }
        return NULL;
}

bool index_expects_foreign(const struct index *index, uint32_t steps)
{
        return index->n_foreign && index->n_foreign * steps >= index->objects.highest;
}

struct index_object *index_find_foreign(struct index *index, uint32_t steps)
{
        struct index_object *object;

        if (!index->n_foreign)
                return NULL;
        while (steps) {
                while ((object = index_scan(index, &index->foreign_position, &steps)))
                        if (index_object_is_foreign(object))
                                return object;
                if (index_scan_has_ended(index, index->foreign_position))
                        index->foreign_position = INDEX_NONE;
        }
        return NULL;
}

bool index_scan_has_ended(const struct index *index, uint32_t position)
{
        return position >= index->objects.highest;
}
