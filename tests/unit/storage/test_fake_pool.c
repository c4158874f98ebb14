// SPDX-License-Identifier: Apache-2.0
/* The pool that tests use, under the suite of the real ones. */
#include <check.h>
#include <stdlib.h>

#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/pool_conformance.h"

static void *make_folder(const struct pool_subject *subject)
{
        char *folder = calloc(1, 64);

        ck_assert_ptr_nonnull(folder);
        scratch_make(folder, 64);
        return folder;
}

static struct pool *open_fake(const struct pool_subject *subject, void *made, uv_loop_t *loop)
{
        struct pool *pool;

        ck_assert_int_eq(fake_pool_open(&pool, loop, made), 0);
        return pool;
}

static void remove_folder(const struct pool_subject *subject, void *made)
{
        scratch_remove(made);
        free(made);
}

static void slow_down(struct pool *pool)
{
        fake_pool_delay(pool, 5);
}

int main(void)
{
        static const struct pool_subject subject = {.name = "fake",
                                                    .make = make_folder,
                                                    .open = open_fake,
                                                    .remove = remove_folder,
                                                    .slow_down = slow_down};

        return pool_conformance_run("storage/fake_pool", &subject, 1);
}
