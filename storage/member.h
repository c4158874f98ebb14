// SPDX-License-Identifier: Apache-2.0
/*
 * A member of a pool: one data file or block device, opened, locked, and its superblock.
 *
 * Nothing is read before the lock is held (an OFD lock; O_EXCL besides on a block
 * device), and nothing is written by member_open(). Blocking calls: for the time of
 * opening.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/superblock.h"

enum {
        MEMBER_E_BUSY = 1, /* locked by another process */
};

struct member {
        char *path; /* of the file or device itself; NULL: missing */
        int fd;
        bool is_block;
        bool is_direct; /* O_DIRECT */
        bool is_preallocated;
        bool is_new;         /* formatted by this opener: nothing in the catalog lies on it */
        uint64_t size_bytes; /* of the file or device as it is */
        /*
         * What member_open() found: 0, or SUPERBLOCK_E_X. EMPTY is answered only when
         * nothing at all was ever written.
         */
        int found;
        struct superblock superblock;
};

#define MEMBER_INIT                                                                                \
        {                                                                                          \
                .fd = -1                                                                           \
        }

enum member_flags {
        MEMBER_BUFFERED = 1u << 0, /* no O_DIRECT */
        MEMBER_NO_WAIT = 1u << 1,  /* answer BUSY at once: the end of a killed daemon's last
                                      writes is not waited for */
};

/*
 * Opens and locks @path, a file (created when absent), a folder (a file kvtier.data in it)
 * or a block device. 0, MEMBER_E_BUSY or a negative errno, with @why filled.
 */
int member_open(struct member *member, const char *path, uint32_t flags, struct why *why);

/* NULL-safe on what member_open() did not reach. Gives up the lock. */
void member_close(struct member *member);

/* Bytes that a file could grow to without shortage, or the size of a device. */
int member_room(const struct member *member, uint64_t *ret_bytes);

/*
 * Makes a file @size_bytes long with its space allocated; for a device only checks. 0 or a
 * negative errno, with @why filled.
 */
int member_grow(struct member *member, uint64_t size_bytes, struct why *why);

/*
 * Seals the superblock under the next sequence and writes both copies, each synced before
 * the other is touched.
 */
int member_write_superblock(struct member *member, struct why *why);

/* Path of the data file behind @path, as member_open() would use it. malloc'd or NULL. */
char *member_data_path(const char *path);
