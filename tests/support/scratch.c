// SPDX-License-Identifier: Apache-2.0
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/scratch.h"

void scratch_make(char *ret_path, size_t size)
{
        snprintf(ret_path, size, "/var/tmp/kvtier-test-XXXXXX");
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
