// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/powerfs_control.h"

void control_cut(struct powerfs *fs, uint64_t seed)
{
        static const unsigned char keep_percent[] = {0, 25, 50, 75, 100};
        int r;

        fs->loss = (struct loss){.random = seed};
        fs->loss.keep_percent = keep_percent[loss_random(&fs->loss) % sizeof(keep_percent)];
        fs->is_down = true;
        r = tree_lose_power(&fs->tree, &fs->loss);
        if (!r)
                r = tree_write(&fs->tree);
        fprintf(stderr, "powerfs: cut seed=%" PRIu64 " kept=%u lost=%u torn=%u result=%d\n", seed,
                fs->loss.n_kept, fs->loss.n_lost, fs->loss.n_torn, r);
        if (r)
                abort();
}

bool fault_hits(const struct fault *fault, const struct node *node, off_t end)
{
        return fault->is_on && end > fault->offset && node->last_name &&
               !fnmatch(fault->glob, node->last_name, 0);
}

int control_take_space(struct powerfs *fs, struct node *node, off_t end)
{
        uint64_t growth = end > node->allocated_end ? (uint64_t)(end - node->allocated_end) : 0;

        if (fs->has_space_limit && growth > fs->space_left)
                return -ENOSPC;
        if (fs->has_space_limit)
                fs->space_left -= growth;
        if (growth)
                node->allocated_end = end;
        return 0;
}

static int parse_fault(const char *arguments, bool has_offset, struct fault *ret_fault)
{
        struct fault fault = {.is_on = true, .glob = "*"};
        long long offset = -1;

        if (has_offset) {
                if (sscanf(arguments, "%lld %63s", &offset, fault.glob) < 1 || offset < 0)
                        return -EINVAL;
        } else {
                sscanf(arguments, "%63s", fault.glob);
        }
        fault.offset = offset;
        *ret_fault = fault;
        return 0;
}

int control_command(struct powerfs *fs, const char *line)
{
        char word[16];
        uint64_t first = 0, second = 0;
        int used, n;

        if (sscanf(line, "%15s%n", word, &used) != 1)
                return -EINVAL;
        line += used;
        n = sscanf(line, "%" SCNu64 " %" SCNu64, &first, &second);

        if (!strcmp(word, "fail-read"))
                return parse_fault(line, true, &fs->fail_read);
        if (!strcmp(word, "fail-write"))
                return parse_fault(line, true, &fs->fail_write);
        if (!strcmp(word, "fail-sync"))
                return parse_fault(line, false, &fs->fail_sync);
        if (!strcmp(word, "cut") && n == 1 && !fs->is_down) {
                control_cut(fs, first);
        } else if (!strcmp(word, "cut-after") && n == 2 && first) {
                fs->cut_at = fs->n_changes + first;
                fs->cut_seed = second;
        } else if (!strcmp(word, "space") && n == 1) {
                fs->has_space_limit = true;
                fs->space_left = first;
        } else if (!strcmp(word, "heal")) {
                fs->fail_read.is_on = fs->fail_write.is_on = fs->fail_sync.is_on = false;
                fs->has_space_limit = false;
        } else {
                return -EINVAL;
        }
        return 0;
}

size_t control_describe(struct powerfs *fs, char *text, size_t size)
{
        uint64_t n_unsynced = 0;
        struct node *node;
        int n;

        LIST_FOREACH(node, &fs->tree.nodes, link)
                n_unsynced += node->file.n_changes;
        n = snprintf(text, size,
                     "power %s\nchanges %" PRIu64 "\nunsynced_writes %" PRIu64
                     "\nunsynced_names %u\nkept %u\nlost %u\ntorn %u\n",
                     fs->is_down ? "off" : "on", fs->n_changes, n_unsynced, fs->tree.n_changes,
                     fs->loss.n_kept, fs->loss.n_lost, fs->loss.n_torn);
        return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}
