// SPDX-License-Identifier: Apache-2.0
/* How long a test takes for too long, on machines that have other things to do as well. */
#pragma once

#include <stdint.h>

/* @ns on an idle machine: as much longer as Check's own timeouts are (CK_TIMEOUT_MULTIPLIER). */
uint64_t patience_ns(uint64_t ns);
