// SPDX-License-Identifier: Apache-2.0
/*
 * The data of one file under powerfs. The backing file always holds what a reader sees
 * now; beside it stands a log of before-images of everything that was not yet synced.
 *
 * A sync forgets the log. A power loss decides for every logged change, sector by
 * sector, whether it had reached the disk, and puts the before-image back where it had
 * not. Since each before-image is the result of the change before it, any version of a
 * sector can come back, which is what reordering inside a device looks like.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct file_change;

/* Embedded in its node, which owns the fd too. */
struct file {
        int fd;
        off_t durable_size;
        struct file_change *changes;
        size_t n_changes;
        size_t n_allocated;
        uint64_t before_bytes;
};

/* How a loss of power went, summed up over files and names. */
struct loss {
        uint64_t random;
        unsigned keep_percent;
        unsigned n_kept;
        unsigned n_lost;
        unsigned n_torn;
};

/* The next number of the loss; the same seed gives the same numbers. */
uint64_t loss_random(struct loss *loss);

/* Whether the next change had reached the disk. */
bool loss_keeps(struct loss *loss);

void file_init(struct file *file, int fd, off_t size);
void file_deinit(struct file *file);

/* Each returns 0 or a negative errno, and is un-synced afterwards. */
int file_write(struct file *file, const void *data, size_t length, off_t offset);
int file_truncate(struct file *file, off_t size);
int file_allocate(struct file *file, int mode, off_t offset, off_t length);

/* Everything written so far will survive. */
void file_sync(struct file *file);

/* Takes the file back to what was on the disk. Returns 0 or a negative errno. */
int file_lose_power(struct file *file, struct loss *loss);
