// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/pins.h"

static int compare(const struct kvt__pin *a, const struct kvt__pin *b)
{
        return memcmp(&a->digest, &b->digest, sizeof(a->digest));
}

/* RB_GENERATE_STATIC needs a word that libbsd defines only when it overlays libc. */
RB_GENERATE_INTERNAL(kvt__pins, kvt__pin, link, compare, __attribute__((unused)) static)

struct kvt__pin **kvt__pins_spare(const struct kvt_object *objects, uint32_t n)
{
        struct kvt__pin **spare = calloc(n, sizeof(*spare));

        for (uint32_t i = 0; spare && i < n; i++) {
                spare[i] = calloc(1, sizeof(**spare));
                if (!spare[i]) {
                        kvt__pins_free_spare(spare, i);
                        return NULL;
                }
                memcpy(&spare[i]->digest, &objects[i].digest, sizeof(spare[i]->digest));
        }
        return spare;
}

void kvt__pins_free_spare(struct kvt__pin **spare, uint32_t n)
{
        for (uint32_t i = 0; spare && i < n; i++)
                free(spare[i]);
        free(spare);
}

void kvt__pins_keep(struct kvt__pins *pins, struct kvt__pin **pin)
{
        if (*pin && !RB_INSERT(kvt__pins, pins, *pin))
                *pin = NULL;
}

void kvt__pins_drop(struct kvt__pins *pins, const struct digest *digest)
{
        struct kvt__pin wanted = {.digest = *digest}, *pin = RB_FIND(kvt__pins, pins, &wanted);

        if (!pin)
                return;
        RB_REMOVE(kvt__pins, pins, pin);
        free(pin);
}

void kvt__pins_free(struct kvt__pins *pins)
{
        struct kvt__pin *pin;

        while ((pin = RB_MIN(kvt__pins, pins))) {
                RB_REMOVE(kvt__pins, pins, pin);
                free(pin);
        }
}

const struct kvt__pin *kvt__pins_after(struct kvt__pins *pins, const struct kvt__pin *pin)
{
        if (!pin)
                return RB_MIN(kvt__pins, pins);
        /* The generated step is not const, though it changes nothing. */
        return RB_NEXT(kvt__pins, pins, (struct kvt__pin *)(uintptr_t)pin);
}
