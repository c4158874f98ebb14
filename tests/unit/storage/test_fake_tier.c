// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "tests/support/fake_tier.h"
#include "tests/unit/storage/tier_conformance.h"

static void *make_store(const struct conformance_subject *subject)
{
        struct fake_store *store = NULL;

        return fake_store_new(&store, CONFORMANCE_BYTES) ? NULL : store;
}

static struct tier *open_fake(const struct conformance_subject *subject, void *made,
                              uv_loop_t *loop)
{
        struct tier *tier = NULL;

        return fake_tier_open(&tier, loop, made) ? NULL : tier;
}

static void remove_store(const struct conformance_subject *subject, void *made)
{
        fake_store_free(made);
}

int main(void)
{
        static const struct conformance_subject subject = {
                .name = "fake",
                .make = make_store,
                .open = open_fake,
                .remove = remove_store,
        };

        return conformance_run("support/fake_tier", &subject, 1);
}
