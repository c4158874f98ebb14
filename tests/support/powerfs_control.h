// SPDX-License-Identifier: Apache-2.0
/*
 * What a powerfs is told and tells: loss of power, faults, room. The commands are those of
 * powerfs.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "tests/support/powerfs_tree.h"

struct fault {
        bool is_on;
        off_t offset;
        char glob[64];
};

struct powerfs {
        struct tree tree;
        struct fault fail_read;
        struct fault fail_write;
        struct fault fail_sync;
        bool has_space_limit;
        uint64_t space_left;
        uint64_t n_changes;
        uint64_t cut_at;
        uint64_t cut_seed;
        bool is_down;
        struct loss loss;
        char *buffer;
        size_t buffer_size;
        LIST_HEAD(, listing) listings;

        const char *backing;
        const char *mountpoint;
        int ready_fd;
        bool no_fallocate;
};

/* Loses power. */
void control_cut(struct powerfs *fs, uint64_t seed);

bool fault_hits(const struct fault *fault, const struct node *node, off_t end);
/* Takes what a file grows by from the space left. Returns 0 or -ENOSPC. */
int control_take_space(struct powerfs *fs, struct node *node, off_t end);

/* One line; 0 or -EINVAL. */
int control_command(struct powerfs *fs, const char *line);
/* Writes the state; returns its length. */
size_t control_describe(struct powerfs *fs, char *text, size_t size);
