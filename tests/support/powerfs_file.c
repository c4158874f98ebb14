// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/support/powerfs_file.h"

#define SECTOR 512

enum fate {
        FATE_KEPT,
        FATE_LOST,
        FATE_PREFIX,
        FATE_SCATTERED,
};

enum size_effect {
        SIZE_STAYS,
        SIZE_GROWS,
        SIZE_SET,
};

/* @before is NULL when the range was all zeros or beyond the end. */
struct file_change {
        off_t offset;
        off_t length;
        void *before;
        enum size_effect size_effect;
        off_t size;
        enum fate fate;
        uint64_t salt;
};

static uint64_t mix(uint64_t value)
{
        value += 0x9e3779b97f4a7c15u;
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
        value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
        return value ^ (value >> 31);
}

uint64_t loss_random(struct loss *loss)
{
        loss->random = mix(loss->random);
        return loss->random;
}

bool loss_keeps(struct loss *loss)
{
        return loss_random(loss) % 100 < loss->keep_percent;
}

void file_init(struct file *file, int fd, off_t size)
{
        *file = (struct file){.fd = fd, .durable_size = size};
}

static void forget_changes(struct file *file)
{
        for (size_t i = 0; i < file->n_changes; i++)
                free(file->changes[i].before);
        file->n_changes = 0;
        file->before_bytes = 0;
}

void file_deinit(struct file *file)
{
        forget_changes(file);
        free(file->changes);
        close_fdp(&file->fd);
        file->fd = -1;
}

static bool is_zero(const unsigned char *bytes, size_t length)
{
        return !length || (!bytes[0] && !memcmp(bytes, bytes + 1, length - 1));
}

/* Reads what a change is about to destroy. Holes are not read: they cost nothing. */
static int read_before(struct file *file, off_t offset, off_t length, void **ret_before)
{
        _cleanup_free_ unsigned char *before = NULL;
        off_t data = lseek(file->fd, offset, SEEK_DATA);
        size_t got = 0;

        *ret_before = NULL;
        if (!length || data < 0 || data >= offset + length)
                return 0;
        before = malloc((size_t)length);
        if (!before)
                return -ENOMEM;
        while (got < (size_t)length) {
                ssize_t r =
                        pread(file->fd, before + got, (size_t)length - got, offset + (off_t)got);

                if (r < 0)
                        return -errno;
                if (!r)
                        break;
                got += (size_t)r;
        }
        memset(before + got, 0, (size_t)length - got);
        if (!is_zero(before, (size_t)length))
                *ret_before = steal_ptr(before);
        return 0;
}

static int remember(struct file *file, off_t offset, off_t length, enum size_effect effect,
                    off_t size)
{
        struct file_change *change;
        void *before;
        int r;

        if (file->n_changes == file->n_allocated) {
                size_t n = file->n_allocated ? file->n_allocated * 2 : 16;
                struct file_change *grown = realloc(file->changes, n * sizeof(*grown));

                if (!grown)
                        return -ENOMEM;
                file->changes = grown;
                file->n_allocated = n;
        }
        r = read_before(file, offset, length, &before);
        if (r)
                return r;
        change = &file->changes[file->n_changes++];
        *change = (struct file_change){.offset = offset,
                                       .length = length,
                                       .before = before,
                                       .size_effect = effect,
                                       .size = size};
        file->before_bytes += before ? (uint64_t)length : 0;
        return 0;
}

static int write_all(int fd, const unsigned char *data, size_t length, off_t offset)
{
        while (length) {
                ssize_t r = pwrite(fd, data, length, offset);

                if (r < 0)
                        return -errno;
                data += r;
                length -= (size_t)r;
                offset += r;
        }
        return 0;
}

int file_write(struct file *file, const void *data, size_t length, off_t offset)
{
        off_t end = offset + (off_t)length;
        int r = remember(file, offset, (off_t)length, SIZE_GROWS, end);

        return r ? r : write_all(file->fd, data, length, offset);
}

int file_truncate(struct file *file, off_t size)
{
        struct stat status;
        int r;

        if (fstat(file->fd, &status))
                return -errno;
        r = remember(file, size, status.st_size > size ? status.st_size - size : 0, SIZE_SET, size);
        if (r)
                return r;
        return ftruncate(file->fd, size) ? -errno : 0;
}

int file_allocate(struct file *file, int mode, off_t offset, off_t length)
{
        bool zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
        enum size_effect effect = mode & FALLOC_FL_KEEP_SIZE ? SIZE_STAYS : SIZE_GROWS;
        int r;

        if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
                return -EOPNOTSUPP;
        r = remember(file, offset, zeroes ? length : 0, effect, offset + length);
        if (r)
                return r;
        return fallocate(file->fd, mode, offset, length) ? -errno : 0;
}

void file_sync(struct file *file)
{
        struct stat status;

        forget_changes(file);
        if (!fstat(file->fd, &status))
                file->durable_size = status.st_size;
}

static void choose_fate(struct file_change *change, struct loss *loss)
{
        change->salt = loss_random(loss);
        if (change->length > SECTOR && change->size_effect != SIZE_SET &&
            loss_random(loss) % 4 == 0) {
                change->fate = change->salt & 1 ? FATE_PREFIX : FATE_SCATTERED;
                loss->n_torn++;
        } else if (loss_keeps(loss)) {
                change->fate = FATE_KEPT;
                loss->n_kept++;
        } else {
                change->fate = FATE_LOST;
                loss->n_lost++;
        }
}

static bool sector_survives(const struct file_change *change, off_t sector)
{
        off_t first = change->offset / SECTOR;
        off_t n_sectors = (change->offset + change->length - 1) / SECTOR - first + 1;

        switch (change->fate) {
        case FATE_KEPT:
                return true;
        case FATE_LOST:
                return false;
        case FATE_PREFIX:
                return sector - first < (off_t)((change->salt >> 1) % (uint64_t)n_sectors);
        case FATE_SCATTERED:
                return mix(change->salt ^ (uint64_t)sector) & 1;
        }
        return false;
}

/* The end of what survives of a growing change, 0 when nothing does. */
static off_t surviving_end(const struct file_change *change)
{
        off_t end = change->offset + change->length;

        if (!change->length)
                return change->fate == FATE_LOST ? 0 : change->size;
        for (off_t sector = (end - 1) / SECTOR; sector >= change->offset / SECTOR; sector--) {
                if (sector_survives(change, sector))
                        return (sector + 1) * SECTOR < end ? (sector + 1) * SECTOR : end;
        }
        return 0;
}

static off_t surviving_size(const struct file *file)
{
        off_t size = file->durable_size;

        for (size_t i = 0; i < file->n_changes; i++) {
                const struct file_change *change = &file->changes[i];
                off_t end;

                if (change->size_effect == SIZE_SET && change->fate != FATE_LOST)
                        size = change->size;
                if (change->size_effect != SIZE_GROWS)
                        continue;
                end = surviving_end(change);
                size = end > size ? end : size;
        }
        return size;
}

static int write_zeros(int fd, off_t start, off_t end)
{
        static const unsigned char zeros[64 * 1024];
        int r = 0;

        while (!r && start < end) {
                size_t length =
                        end - start < (off_t)sizeof(zeros) ? (size_t)(end - start) : sizeof(zeros);

                r = write_all(fd, zeros, length, start);
                start += (off_t)length;
        }
        return r;
}

static int put_back(struct file *file, const struct file_change *change, off_t start, off_t end)
{
        off_t change_end = change->offset + change->length;

        start = start > change->offset ? start : change->offset;
        end = end < change_end ? end : change_end;
        if (start >= end)
                return 0;
        if (!change->before)
                return write_zeros(file->fd, start, end);
        return write_all(file->fd, (const unsigned char *)change->before + (start - change->offset),
                         (size_t)(end - start), start);
}

/*
 * Newest change first. A sector is settled once some change survives in it: whatever
 * older changes did to it was on the disk underneath.
 */
static int restore(struct file *file, const struct file_change *change, unsigned char *settled)
{
        off_t first = change->offset / SECTOR, run = first;
        off_t end = (change->offset + change->length + SECTOR - 1) / SECTOR;
        int r;

        if (!change->length)
                return 0;
        for (off_t s = first; s < end; s++) {
                unsigned char bit = (unsigned char)(1u << (s % 8));

                if (!(settled[s / 8] & bit) && !sector_survives(change, s))
                        continue;
                settled[s / 8] |= bit;
                r = put_back(file, change, run * SECTOR, s * SECTOR);
                if (r)
                        return r;
                run = s + 1;
        }
        return put_back(file, change, run * SECTOR, end * SECTOR);
}

int file_lose_power(struct file *file, struct loss *loss)
{
        _cleanup_free_ unsigned char *settled = NULL;
        off_t end = 0;
        int r;

        if (!file->n_changes)
                return 0;
        for (size_t i = 0; i < file->n_changes; i++) {
                const struct file_change *change = &file->changes[i];

                choose_fate(&file->changes[i], loss);
                if (change->offset + change->length > end)
                        end = change->offset + change->length;
        }
        settled = calloc(1, (size_t)end / SECTOR / 8 + 1);
        if (!settled)
                return -ENOMEM;
        for (size_t i = file->n_changes; i-- > 0;) {
                r = restore(file, &file->changes[i], settled);
                if (r)
                        return r;
        }
        if (ftruncate(file->fd, surviving_size(file)))
                return -errno;
        file_sync(file);
        return 0;
}
