// SPDX-License-Identifier: Apache-2.0
/* The remote tier over a pool in a folder, under the conformance suite. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "storage/remote.h"
#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/tier_conformance.h"

struct made {
        char folder[64];
        char pool[96];
        char index[96];
};

static void *make_folder(const struct conformance_subject *subject)
{
        struct made *made = calloc(1, sizeof(*made));

        (void)subject;
        ck_assert_ptr_nonnull(made);
        scratch_make(made->folder, sizeof(made->folder));
        snprintf(made->pool, sizeof(made->pool), "%s/pool", made->folder);
        snprintf(made->index, sizeof(made->index), "%s/index", made->folder);
        ck_assert_int_eq(mkdir(made->pool, 0700), 0);
        return made;
}

static struct tier *open_remote(const struct conformance_subject *subject, void *user,
                                uv_loop_t *loop)
{
        struct made *made = user;
        struct remote_options options = {
                .index_path = made->index,
                .bytes = CONFORMANCE_BYTES,
                .linger_ms = 1,
                .queue_depth = subject->variant,
        };
        struct why why = {""};
        struct tier *tier = NULL;
        int r;

        ck_assert_int_eq(fake_pool_open(&options.pool, loop, made->pool), 0);
        r = remote_open(&tier, loop, &options, &why);
        ck_assert_msg(r == 0, "%s: %s", subject->name, why.text);
        return tier;
}

static void remove_folder(const struct conformance_subject *subject, void *user)
{
        struct made *made = user;

        (void)subject;
        scratch_remove(made->folder);
        free(made);
}

#define SUBJECT(name_, variant_, ...)                                                              \
        {                                                                                          \
                .name = name_, .make = make_folder, .open = open_remote, .remove = remove_folder,  \
                .variant = variant_, .encoding = {__VA_ARGS__}                                     \
        }

int main(void)
{
        static const struct conformance_subject subjects[] = {
                SUBJECT("pool", 0),
                SUBJECT("one request at a time", 1),
                SUBJECT("byte planes", 0, ENCODING_PLANES_ZSTD, 2),
        };

        return conformance_run("storage/remote conformance", subjects,
                               sizeof(subjects) / sizeof(subjects[0]));
}
