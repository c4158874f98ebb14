// SPDX-License-Identifier: Apache-2.0
/*
 * What this session has pinned: the daemon forgets a session's pins with its connection,
 * so the library sends them again on the next one. Those that it does not take then are
 * lost, and sent again all the same on the one after. Under the session's lock.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/key.h"

struct kvt_object;

struct kvt__pin {
        RB_ENTRY(kvt__pin) link;
        struct digest digest;
        bool is_lost; /* the daemon did not take it again */
};

RB_HEAD(kvt__pin_tree, kvt__pin);

/* All zeros is none. */
struct kvt__pins {
        struct kvt__pin_tree tree;
        uint32_t n_lost;
};

/*
 * One for each object of a call, so that keeping them needs no memory later. NULL when
 * there is none. An entry is taken by kvt__pins_keep(); freed by kvt__pins_free_spare().
 */
struct kvt__pin **kvt__pins_spare(const struct kvt_object *objects, uint32_t n);
void kvt__pins_free_spare(struct kvt__pin **spare, uint32_t n);

/* It stands: takes *@pin over, unless its digest is there already. */
void kvt__pins_keep(struct kvt__pins *pins, struct kvt__pin **pin);
/* It does not stand any more; nothing when it was dropped meanwhile. */
void kvt__pins_lose(struct kvt__pins *pins, const struct digest *digest);
void kvt__pins_drop(struct kvt__pins *pins, const struct digest *digest);
void kvt__pins_free(struct kvt__pins *pins);

/* Copies of the @n behind @pin (NULL: the first), of which there are as many; like spare ones. */
struct kvt__pin **kvt__pins_copy(struct kvt__pins *pins, const struct kvt__pin *pin, uint32_t n);

/* The one behind @pin, or the first. NULL: there is none. */
const struct kvt__pin *kvt__pins_after(struct kvt__pins *pins, const struct kvt__pin *pin);
