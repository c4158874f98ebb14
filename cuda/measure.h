// SPDX-License-Identifier: Apache-2.0
/*
 * Measures once on each GPU how fast each strategy moves runs of each length in each direction,
 * between scratch memory of its own, so that the choice follows the machine and not a constant.
 * Some 60 ms, beside whatever else runs: a busy GPU is measured as what it is.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda/choice.h"
#include "cuda/driver.h"
#include "cuda/slot.h"

struct measure {
        const struct slot_kit *kit;
        cu_context context;
        struct choice *choice;
        uint64_t staging_bytes; /* of a slot */
        atomic_bool stop;
};

/* In a thread of its own. What cannot be measured keeps its guess. */
void measure_run(struct measure *measure);
