// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <time.h>

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

#define TRIES    300
#define PAUSE_NS 100000000L

static void pause_a_little(void)
{
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

int scratch_unmount(const char *path)
{
        for (unsigned i = 0; umount(path); i++) {
                if (errno != EBUSY || i == TRIES)
                        return -errno;
                pause_a_little();
        }
        return 0;
}

int scratch_run_patiently(const char *command)
{
        int status = system(command);

        for (unsigned i = 0; status && i < TRIES; i++) {
                pause_a_little();
                status = system(command);
        }
        return status;
}
