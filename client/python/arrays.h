/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One member of many objects to and from one array, for kvtier/objects.py: what Python would
 * need a loop for. Compiled into kvtier._native beside kvtier.h.
 */
#include <stdint.h>
#include <string.h>

#include "kvtier.h"

/* From @bytes of each of @n objects, beginning at @offset, to @ret_values. */
static void python_gather(const struct kvt_object *objects, size_t n, size_t offset, size_t bytes,
                          void *ret_values)
{
        for (size_t i = 0; i < n; i++)
                memcpy((char *)ret_values + i * bytes, (const char *)(objects + i) + offset,
                       bytes);
}

/* The way back. */
static void python_scatter(struct kvt_object *objects, size_t n, size_t offset, size_t bytes,
                           const void *values)
{
        for (size_t i = 0; i < n; i++)
                memcpy((char *)(objects + i) + offset, (const char *)values + i * bytes, bytes);
}

/* Copies of the objects with numbers @which; the first number that does not exist, or @n_which. */
static size_t python_take(const struct kvt_object *objects, size_t n, const uint32_t *which,
                          size_t n_which, struct kvt_object *ret_objects)
{
        for (size_t i = 0; i < n_which; i++) {
                if (which[i] >= n)
                        return i;
                ret_objects[i] = objects[which[i]];
        }
        return n_which;
}

/* Which objects have @status, or with @leased which have a lease. Returns how many. */
static size_t python_select(const struct kvt_object *objects, size_t n, uint32_t status,
                            int leased, uint32_t *ret_which)
{
        size_t found = 0;

        for (size_t i = 0; i < n; i++)
                if (leased ? objects[i].lease != 0 : objects[i].status == status)
                        ret_which[found++] = (uint32_t)i;
        return found;
}

/*
 * Gives each object its part of @values: @counts[i] of them, or @each where there are no
 * counts. @offset is that of a pointer to uint32_t, @n_offset that of its uint32_t length.
 * Returns how many values were given out, never more than @n_values.
 */
static size_t python_share_out(struct kvt_object *objects, size_t n, size_t offset,
                               size_t n_offset, const uint32_t *values, size_t n_values,
                               const uint32_t *counts, uint32_t each)
{
        size_t used = 0;

        for (size_t i = 0; i < n; i++) {
                uint32_t count = counts ? counts[i] : each;
                const uint32_t *part = count ? values + used : NULL;

                if (count > n_values - used)
                        return SIZE_MAX;
                memcpy((char *)(objects + i) + offset, &part, sizeof(part));
                memcpy((char *)(objects + i) + n_offset, &count, sizeof(count));
                used += count;
        }
        return used;
}
