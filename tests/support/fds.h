// SPDX-License-Identifier: Apache-2.0
/* Open descriptors: as many after as before, and nothing has been left open. */
#pragma once

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static inline unsigned count_fds_of(pid_t pid)
{
        char path[64];
        unsigned n = 0;
        DIR *folder;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        folder = opendir(path);
        ck_assert_ptr_nonnull(folder);
        for (struct dirent *entry; (entry = readdir(folder));)
                n += entry->d_name[0] != '.';
        closedir(folder);
        return n;
}

/* Of this process, with the one that it takes to count them. */
static inline unsigned count_fds(void)
{
        return count_fds_of(getpid());
}
