// SPDX-License-Identifier: Apache-2.0
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/scratch.h"

void scratch_make(char *ret_path, size_t size)
{
        scratch_make_in("/var/tmp", ret_path, size);
}

void scratch_make_in(const char *parent, char *ret_path, size_t size)
{
        snprintf(ret_path, size, "%s/kvtier-test-XXXXXX", parent);
        if (!mkdtemp(ret_path)) {
                perror(ret_path);
                abort();
        }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        return remove(path);
}

void scratch_remove(const char *path)
{
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
