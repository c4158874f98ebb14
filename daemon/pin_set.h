// SPDX-License-Identifier: Apache-2.0
/*
 * The pins of one owner: a session, or kvtierctl's, which belong to the daemon. A boundary
 * is pinned once by an owner, however often it is asked for. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/tree.h"
#include "daemon/index.h"
#include "daemon/pin_table.h"

#define PIN_SET_MAX 16384u /* pins of one owner */

enum {
        PIN_SET_E_MANY = 2, /* PIN_SET_MAX is reached; beside PIN_E_FULL */
};

struct pin;
RB_HEAD(pin_tree, pin);

/* All zeros: none. */
struct pin_set {
        struct pin_tree tree; /* by boundary id: the record stays while it is pinned */
        uint32_t n;
};

/* 0 (also when it is pinned already), PIN_E_FULL, PIN_SET_E_MANY or -ENOMEM. */
int pin_set_add(struct pin_set *set, struct index *index, struct index_boundary *boundary);

/* False: it is not pinned by this owner. */
bool pin_set_remove(struct pin_set *set, struct index *index, struct index_boundary *boundary);
bool pin_set_has(struct pin_set *set, uint32_t boundary);

/* Ends the pins on a layout's boundaries, or with 0 all. */
void pin_set_clear(struct pin_set *set, struct index *index, uint16_t layout);
