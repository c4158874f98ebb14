// SPDX-License-Identifier: Apache-2.0
/*
 * What this session has pinned: the daemon forgets a session's pins with its connection,
 * so the library sends them again on the next one. Under the session's lock.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdint.h>

#include "proto/key.h"

struct kvt_object;

struct kvt__pin {
        RB_ENTRY(kvt__pin) link;
        struct digest digest;
};

RB_HEAD(kvt__pins, kvt__pin);

/*
 * One for each object of a call, so that keeping them needs no memory later. NULL when
 * there is none. An entry is taken by kvt__pins_keep(); freed by kvt__pins_free_spare().
 */
struct kvt__pin **kvt__pins_spare(const struct kvt_object *objects, uint32_t n);
void kvt__pins_free_spare(struct kvt__pin **spare, uint32_t n);

/* Takes *@pin over, unless its digest is there already. */
void kvt__pins_keep(struct kvt__pins *pins, struct kvt__pin **pin);
void kvt__pins_drop(struct kvt__pins *pins, const struct digest *digest);
void kvt__pins_free(struct kvt__pins *pins);

/* The one behind @pin, or the first. NULL: there is none. */
const struct kvt__pin *kvt__pins_after(struct kvt__pins *pins, const struct kvt__pin *pin);
