// SPDX-License-Identifier: Apache-2.0
/* The NVMe tier under the conformance suite: as it should run, and each way it can degrade. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "storage/nvme.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/tier_conformance.h"

#define TWO_MEMBERS (1u << 31)

struct made {
        char folder[64];
        char paths[2][96];
        char catalog[96];
};

static void *make_folder(const struct conformance_subject *subject)
{
        struct made *made = calloc(1, sizeof(*made));

        ck_assert_ptr_nonnull(made);
        scratch_make(made->folder, sizeof(made->folder));
        snprintf(made->paths[0], sizeof(made->paths[0]), "%s/a.data", made->folder);
        snprintf(made->paths[1], sizeof(made->paths[1]), "%s/b.data", made->folder);
        snprintf(made->catalog, sizeof(made->catalog), "%s/catalog", made->folder);
        return made;
}

static struct tier *open_nvme(const struct conformance_subject *subject, void *user,
                              uv_loop_t *loop)
{
        struct made *made = user;
        const char *paths[] = {made->paths[0], made->paths[1]};
        struct nvme_options options = {
                .paths = paths,
                .n_paths = subject->variant & TWO_MEMBERS ? 2 : 1,
                .bytes = CONFORMANCE_BYTES,
                .catalog_path = made->catalog,
                .sync_ms = 50,
                .force = subject->variant & ~TWO_MEMBERS,
        };
        struct why why = {""};
        struct tier *tier = NULL;
        int r = nvme_open(&tier, loop, &options, &why);

        ck_assert_msg(r == 0, "%s: %s", subject->name, why.text);
        return tier;
}

static void remove_folder(const struct conformance_subject *subject, void *made)
{
        scratch_remove(((struct made *)made)->folder);
        free(made);
}

#define SUBJECT(name_, variant_, ...)                                                              \
        {                                                                                          \
                .name = name_, .make = make_folder, .open = open_nvme, .remove = remove_folder,    \
                .variant = variant_, .encoding = {                                                 \
                        __VA_ARGS__                                                                \
                }                                                                                  \
        }

int main(void)
{
        static const struct conformance_subject subjects[] = {
                SUBJECT("io_uring", 0),
                SUBJECT("two members", TWO_MEMBERS),
                SUBJECT("thread pool", NVME_FORCE_THREADS),
                SUBJECT("buffered", NVME_FORCE_BUFFERED),
                SUBJECT("unregistered", NVME_FORCE_UNREGISTERED | TWO_MEMBERS),
                SUBJECT("byte planes", TWO_MEMBERS, ENCODING_PLANES_ZSTD, 2),
                SUBJECT("lz4, thread pool", NVME_FORCE_THREADS, ENCODING_LZ4, 1),
        };

        return conformance_run("storage/nvme conformance", subjects,
                               sizeof(subjects) / sizeof(subjects[0]));
}
