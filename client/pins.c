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
RB_GENERATE_INTERNAL(kvt__pin_tree, kvt__pin, link, compare, __attribute__((unused)) static)

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

static struct kvt__pin *find(struct kvt__pins *pins, const struct digest *digest)
{
        struct kvt__pin wanted = {.digest = *digest};

        return RB_FIND(kvt__pin_tree, &pins->tree, &wanted);
}

static void set_lost(struct kvt__pins *pins, struct kvt__pin *pin, bool is_lost)
{
        pins->n_lost += is_lost - pin->is_lost;
        pin->is_lost = is_lost;
}

void kvt__pins_keep(struct kvt__pins *pins, struct kvt__pin **pin)
{
        struct kvt__pin *other = *pin ? RB_INSERT(kvt__pin_tree, &pins->tree, *pin) : NULL;

        if (other)
                set_lost(pins, other, false);
        else
                *pin = NULL;
}

void kvt__pins_lose(struct kvt__pins *pins, const struct digest *digest)
{
        struct kvt__pin *pin = find(pins, digest);

        if (pin)
                set_lost(pins, pin, true);
}

void kvt__pins_drop(struct kvt__pins *pins, const struct digest *digest)
{
        struct kvt__pin *pin = find(pins, digest);

        if (!pin)
                return;
        set_lost(pins, pin, false);
        RB_REMOVE(kvt__pin_tree, &pins->tree, pin);
        free(pin);
}

void kvt__pins_free(struct kvt__pins *pins)
{
        struct kvt__pin *pin;

        while ((pin = RB_MIN(kvt__pin_tree, &pins->tree))) {
                RB_REMOVE(kvt__pin_tree, &pins->tree, pin);
                free(pin);
        }
}

struct kvt__pin **kvt__pins_copy(struct kvt__pins *pins, const struct kvt__pin *pin, uint32_t n)
{
        struct kvt__pin **copies = calloc(n, sizeof(*copies));

        for (uint32_t i = 0; copies && i < n; i++) {
                pin = kvt__pins_after(pins, pin);
                copies[i] = calloc(1, sizeof(**copies));
                if (!copies[i]) {
                        kvt__pins_free_spare(copies, i);
                        return NULL;
                }
                copies[i]->digest = pin->digest;
        }
        return copies;
}

const struct kvt__pin *kvt__pins_after(struct kvt__pins *pins, const struct kvt__pin *pin)
{
        if (!pin)
                return RB_MIN(kvt__pin_tree, &pins->tree);
        /* The generated step is not const, though it changes nothing. */
        return RB_NEXT(kvt__pin_tree, &pins->tree, (struct kvt__pin *)(uintptr_t)pin);
}
