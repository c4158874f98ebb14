// SPDX-License-Identifier: Apache-2.0
/* The remote tier on RADOS and on S3, under the conformance suite of all tiers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "storage/remote.h"
#include "tests/remote/cluster.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/tier_conformance.h"

enum { ON_RADOS, ON_S3 };

struct made {
        char folder[64];
        char index[96];
        char *prefix;
};

static void *make_place(const struct conformance_subject *subject)
{
        struct made *made = calloc(1, sizeof(*made));

        ck_assert_ptr_nonnull(made);
        scratch_make(made->folder, sizeof(made->folder));
        snprintf(made->index, sizeof(made->index), "%s/index", made->folder);
        made->prefix = cluster_new_prefix();
        return made;
}

static struct pool *open_pool(uint32_t variant, const char *prefix, uv_loop_t *loop)
{
        struct pool_rados_options rados = cluster_rados_options();
        struct pool_s3_options s3 = cluster_s3_options();
        struct why why = {""};
        struct pool *pool = NULL;
        int r;

        rados.prefix = s3.prefix = prefix;
        r = variant == ON_RADOS ? pool_rados_open(&pool, loop, &rados, &why)
                                : pool_s3_open(&pool, loop, &s3, &why);
        ck_assert_msg(r == 0, "%s", why.text);
        return pool;
}

static struct tier *open_tier(const struct conformance_subject *subject, void *user,
                              uv_loop_t *loop)
{
        struct made *made = user;
        struct remote_options options = {
                .pool = open_pool(subject->variant, made->prefix, loop),
                .index_path = made->index,
                .bytes = CONFORMANCE_BYTES,
                .linger_ms = 1,
        };
        struct why why = {""};
        struct tier *tier = NULL;

        ck_assert_msg(remote_open(&tier, loop, &options, &why) == 0, "%s", why.text);
        return tier;
}

static void remove_place(const struct conformance_subject *subject, void *user)
{
        struct made *made = user;

        scratch_remove(made->folder);
        free(made->prefix);
        free(made);
}

#define SUBJECT(name_, variant_)                                                                   \
        {                                                                                          \
                .name = name_, .make = make_place, .open = open_tier, .remove = remove_place,      \
                .variant = variant_                                                                \
        }

int main(void)
{
        static const struct conformance_subject subjects[] = {
                SUBJECT("rados", ON_RADOS),
                SUBJECT("s3", ON_S3),
        };

        return conformance_run("remote/tier", subjects, sizeof(subjects) / sizeof(subjects[0]));
}
