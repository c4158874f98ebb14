// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "tests/support/patience.h"

uint64_t patience_ns(uint64_t ns)
{
        const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");
        double times = multiplier ? strtod(multiplier, NULL) : 1;

        return times > 1 ? (uint64_t)((double)ns * times) : ns;
}
