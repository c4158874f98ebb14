// SPDX-License-Identifier: Apache-2.0
/*
 * What the index says in the presence table: which of a boundary's cells are there, and
 * whether prompts go on behind it.
 */
#include "daemon/index_struct.h"

/* Covers asked for what is in the pool alone: the flag is a hint, the covers may be many. */
#define COVERS_ASKED 64u

struct remote_cells {
        uint64_t local; /* bit a cell of the bank */
        uint64_t remote;
};

static void add_cell(const struct index_object *object, uint32_t bank, struct remote_cells *cells)
{
        uint64_t bit = UINT64_C(1) << object->cell % PRESENCE_CELLS_PER_BANK;

        if (object->cell / PRESENCE_CELLS_PER_BANK != bank)
                return;
        if (object->host || object->place.claim)
                cells->local |= bit;
        else if (object->flags & INDEX_REMOTE_HERE)
                cells->remote |= bit;
}

static bool is_remote_only(struct index *index, const struct index_boundary *boundary,
                           uint32_t bank)
{
        struct remote_cells cells = {0};
        uint32_t n = 0;

        if (!index->objects_in[INDEX_REMOTE])
                return false;
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                add_cell(object, bank, &cells);
                id = object->next;
        }
        for (uint32_t id = boundary->first_cover; id && n < COVERS_ASKED; n++) {
                const struct cover *cover = cover_table_at(&index->covers, id);

                add_cell(index_object_at(index, cover->object), bank, &cells);
                id = cover->next;
        }
        return cells.remote & ~cells.local;
}

static uint32_t presence_flags(struct index *index, const struct index_boundary *boundary,
                               uint32_t bank)
{
        uint32_t flags = is_remote_only(index, boundary, bank) ? PRESENCE_REMOTE_ONLY : 0;

        if (placement_is_hybrid(&index->order, boundary))
                return flags | (bank ? 0 : placement_hybrid_presence(index, boundary));
        return flags | (boundary->n_children ? PRESENCE_HAS_CHILD : 0);
}

/* Says in the presence table that the first child has come, or that the last has gone. */
void index_publish_branch(struct index *index, const struct index_boundary *boundary)
{
        const struct layout_entry *layout = layout_table_at(&index->layouts, boundary->layout);

        if (!index->table || (!boundary->first_object && !boundary->first_cover &&
                              !placement_is_hybrid(&index->order, boundary)))
                return;
        for (uint32_t bank = 0; bank < layout->n_banks; bank++)
                presence_table_set_flags(
                        index->table, presence_fingerprint(layout->seeds[bank], &boundary->digest),
                        presence_flags(index, boundary, bank));
}

void index_publish_forgotten(struct index *index, uint64_t fingerprint)
{
        if (index->table)
                presence_table_set(index->table, fingerprint, 0, 0, 0);
}

static void add_bits(const struct index_object *object, uint32_t bank, struct presence_bits *bits)
{
        uint64_t bit = UINT64_C(1) << object->cell % PRESENCE_CELLS_PER_BANK;

        if (object->cell / PRESENCE_CELLS_PER_BANK != bank)
                return;
        if (object->host)
                bits->resident |= bit;
        if (!index_object_is_nowhere(object))
                bits->present |= bit;
}

/*
 * The bits of a bank, by asking all objects and covers; stops when @enough are found: a
 * boundary may have thousands of covers, and most often the first says all.
 */
static struct presence_bits collect_bits(struct index *index, const struct index_boundary *boundary,
                                         uint32_t bank, uint64_t enough)
{
        struct presence_bits bits = {0};

        for (uint32_t id = boundary->first_object; id;) {
                struct index_object *object = index_object_at(index, id);

                add_bits(object, bank, &bits);
                id = object->next;
        }
        for (uint32_t id = boundary->first_cover; id && (bits.resident & enough) != enough;) {
                struct cover *cover = cover_table_at(&index->covers, id);

                add_bits(index_object_at(index, cover->object), bank, &bits);
                id = cover->next;
        }
        return bits;
}

/* Brings the bit of one cell of a boundary up to date. */
static void publish_cell(struct index *index, const struct index_boundary *boundary,
                         const struct index_object *object)
{
        uint32_t bank = object->cell / PRESENCE_CELLS_PER_BANK;
        uint64_t bit = UINT64_C(1) << object->cell % PRESENCE_CELLS_PER_BANK;
        struct layout_entry *layout = layout_table_at(&index->layouts, boundary->layout);
        uint64_t fingerprint = presence_fingerprint(layout->seeds[bank], &boundary->digest);
        struct presence_bits bits, own = {0};

        if (bank >= layout->n_banks)
                layout->n_banks = bank + 1;
        add_bits(object, bank, &own);
        if (!presence_lookup(presence_table_view(index->table), fingerprint, &bits)) {
                /* New, or found no place before: then its other bits are due as well. */
                bits = collect_bits(index, boundary, bank, UINT64_MAX);
        } else {
                if (!(own.resident & bit))
                        own = collect_bits(index, boundary, bank, bit);
                bits.present = (bits.present & ~bit) | (own.present & bit);
                bits.resident = (bits.resident & ~bit) | (own.resident & bit);
        }
        /* Without a place it reads as a miss; the table counts that. */
        (void)presence_table_set(index->table, fingerprint, bits.present, bits.resident,
                                 presence_flags(index, boundary, bank));
}

void index_publish(struct index *index, struct index_object *object)
{
        struct cover_set *set = index->covers.sets[index_object_id(index, object)];

        if (!index->table)
                return;
        publish_cell(index, index_boundary_at(index, object->boundary), object);
        for (uint32_t i = 0; set && i < set->n_covers; i++) {
                struct cover *cover = cover_table_at(&index->covers, set->covers[i]);

                publish_cell(index, index_boundary_at(index, cover->boundary), object);
        }
}
