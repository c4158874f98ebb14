// SPDX-License-Identifier: Apache-2.0
/*
 * Parts with something awkward in every field, for the formats of the pool.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "storage/bundle.h"

enum { POOL_SAMPLES = 4 };

/*
 * Sample @i of POOL_SAMPLES: the smallest part; one with all optional things; the largest
 * numbers; many pieces. Its covers and encoding table are static.
 */
struct bundle_part pool_sample(uint32_t i);

bool pool_sample_equal(const struct bundle_part *a, const struct bundle_part *b);
