// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/member.h"
#include "storage/segment.h"

#define DATA_FILE    "kvtier.data"
#define BUSY_WAIT_MS 10
#define BUSY_TRIES   200

static int fail(const struct member *member, int r, const char *what, struct why *why)
{
        why_set(why, "%s: %s: %s", member->path, what, strerror(-r));
        return err_raise(r);
}

char *member_data_path(const char *path)
{
        struct stat st;
        char *file;

        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
                return strdup(path);
        return asprintf(&file, "%s/" DATA_FILE, path) < 0 ? NULL : file;
}

/* File systems without O_DIRECT answer EINVAL to the open. */
static int open_file(struct member *member, bool force_buffered)
{
        int open_flags = O_RDWR | O_CLOEXEC | (member->is_block ? O_EXCL : O_CREAT);

        member->is_direct = !force_buffered;
        if (!force_buffered)
                member->fd = open(member->path, open_flags | O_DIRECT, 0600);
        if (force_buffered || (member->fd < 0 && errno == EINVAL)) {
                member->is_direct = false;
                member->fd = open(member->path, open_flags, 0600);
        }
        return member->fd < 0 ? -errno : 0;
}

/*
 * The lock of a daemon that was killed stays until the kernel has ended its last write,
 * which must not land under our feet: that moment is waited for.
 */
static bool wait_a_moment(uint32_t *tries)
{
        const struct timespec moment = {.tv_nsec = BUSY_WAIT_MS * 1000000};

        if (++*tries > BUSY_TRIES)
                return false;
        nanosleep(&moment, NULL);
        return true;
}

static int set_lock(int fd, short type)
{
        struct flock lock = {.l_type = type, .l_whence = SEEK_SET};

        return fcntl(fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

static int lock_file(struct member *member, uint32_t tries, struct why *why)
{
        int r;

        do
                r = set_lock(member->fd, F_WRLCK);
        while ((r == -EAGAIN || r == -EACCES) && wait_a_moment(&tries));
        if (!r)
                return 0;
        if (r != -EAGAIN && r != -EACCES)
                return fail(member, r, "lock", why);
        why_set(why, "%s is in use by another daemon: stop that one, or name another path",
                member->path);
        return MEMBER_E_BUSY;
}

static int measure(struct member *member, struct why *why)
{
        struct stat st;

        if (fstat(member->fd, &st) < 0)
                return fail(member, -errno, "stat", why);
        if (!member->is_block && !S_ISREG(st.st_mode)) {
                why_set(why, "%s is neither a file nor a folder nor a block device", member->path);
                return err_raise(-EINVAL);
        }
        member->size_bytes = (uint64_t)st.st_size;
        if (member->is_block && ioctl(member->fd, BLKGETSIZE64, &member->size_bytes) < 0)
                return fail(member, -errno, "size", why);
        return 0;
}

static int read_area(struct member *member, uint8_t *area, struct why *why)
{
        size_t done = 0;

        while (done < SUPERBLOCK_AREA_BYTES) {
                ssize_t n =
                        pread(member->fd, area + done, SUPERBLOCK_AREA_BYTES - done, (off_t)done);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return fail(member, -errno, "read", why);
                done += (size_t)n;
                if (!n || done % SUPERBLOCK_BYTES)
                        break; /* a short file: the rest counts as zeros */
        }
        return 0;
}

/* Was anything ever written to it? Allocated but unwritten space is a hole to SEEK_DATA. */
static bool has_data(const struct member *member)
{
        if (member->is_block)
                return false; /* only the area is looked at */
        return member->size_bytes && lseek(member->fd, 0, SEEK_DATA) >= 0;
}

static int read_superblock(struct member *member, struct why *why)
{
        _cleanup_free_ void *area = NULL;
        int r;

        if (posix_memalign(&area, SUPERBLOCK_BYTES, SUPERBLOCK_AREA_BYTES))
                return err_raise(-ENOMEM);
        memset(area, 0, SUPERBLOCK_AREA_BYTES);
        r = read_area(member, area, why);
        if (r)
                return r;
        member->found = superblock_choose(&member->superblock, area, why);
        if (member->found == SUPERBLOCK_E_EMPTY && has_data(member))
                member->found = SUPERBLOCK_E_FOREIGN;
        return 0;
}

int member_open(struct member *member, const char *path, uint32_t flags, struct why *why)
{
        uint32_t tries = flags & MEMBER_NO_WAIT ? BUSY_TRIES : 0;
        struct stat st;
        int r;

        *member = (struct member)MEMBER_INIT;
        member->path = member_data_path(path);
        if (!member->path)
                return err_raise(-ENOMEM);
        member->is_block = !stat(path, &st) && S_ISBLK(st.st_mode);
        do
                r = open_file(member, flags & MEMBER_BUFFERED);
        while (r == -EBUSY && wait_a_moment(&tries));
        if (r == -EBUSY) {
                why_set(why, "%s is mounted or in use", member->path);
                r = MEMBER_E_BUSY;
        } else if (r == -EACCES || r == -EPERM) {
                why_set(why,
                        "%s: open: %s: let uid %u read and write it (under systemd see the unit "
                        "as well: ReadWritePaths=, DeviceAllow=)",
                        member->path, strerror(-r), (unsigned)geteuid());
                r = err_raise(r);
        } else if (r) {
                fail(member, r, "open", why);
        }
        if (!r)
                r = lock_file(member, tries, why);
        if (!r)
                r = measure(member, why);
        if (!r)
                r = read_superblock(member, why);
        if (r)
                member_close(member);
        return r;
}

void member_close(struct member *member)
{
        if (member->fd >= 0) {
                /* An io_uring that is being torn down would keep file and lock for a while. */
                set_lock(member->fd, F_UNLCK);
                close(member->fd);
        }
        free(member->path);
        member->fd = -1;
        member->path = NULL;
}

int member_room(const struct member *member, uint64_t *ret_bytes)
{
        struct statvfs fs;
        struct stat st;

        if (member->is_block) {
                *ret_bytes = member->size_bytes;
                return 0;
        }
        if (fstatvfs(member->fd, &fs) < 0 || fstat(member->fd, &st) < 0)
                return err_raise(-errno);
        *ret_bytes = (uint64_t)fs.f_bavail * fs.f_frsize + (uint64_t)st.st_blocks * 512;
        return 0;
}

static int refuse_room(const struct member *member, uint64_t room, uint64_t size_bytes,
                       struct why *why)
{
        why_set(why, "%s: the file system has room for %llu bytes, %llu are asked for",
                member->path, (unsigned long long)room, (unsigned long long)size_bytes);
        return err_raise(-ENOSPC);
}

int member_grow(struct member *member, uint64_t size_bytes, struct why *why)
{
        uint64_t room;
        int r;

        if (member->is_block) {
                if (member->size_bytes >= size_bytes)
                        return 0;
                why_set(why, "%s has %llu bytes, fewer than its share of %llu", member->path,
                        (unsigned long long)member->size_bytes, (unsigned long long)size_bytes);
                return err_raise(-ENOSPC);
        }
        r = member_room(member, &room);
        if (r)
                return fail(member, r, "statvfs", why);
        /* Not found out by trying: a failing fallocate first takes what others need. */
        if (room < size_bytes)
                return refuse_room(member, room, size_bytes, why);
        member->is_preallocated = !fallocate(member->fd, 0, 0, (off_t)size_bytes);
        if (!member->is_preallocated && errno == ENOSPC) {
                /* What the attempt allocated beyond the old end goes back. */
                if (ftruncate(member->fd, (off_t)member->size_bytes) < 0)
                        return fail(member, -errno, "truncate", why);
                return refuse_room(member, room, size_bytes, why);
        }
        if (!member->is_preallocated && errno != EOPNOTSUPP && errno != ENOSYS)
                return fail(member, -errno, "fallocate", why);
        if (!member->is_preallocated && member->size_bytes < size_bytes &&
            ftruncate(member->fd, (off_t)size_bytes) < 0)
                return fail(member, -errno, "truncate", why);
        if (member->size_bytes < size_bytes)
                member->size_bytes = size_bytes;
        return 0;
}

int member_write_superblock(struct member *member, struct why *why)
{
        _cleanup_free_ void *block = NULL;

        if (posix_memalign(&block, SUPERBLOCK_BYTES, SUPERBLOCK_BYTES))
                return err_raise(-ENOMEM);
        member->superblock.sequence++;
        superblock_seal(&member->superblock);
        memcpy(block, &member->superblock, SUPERBLOCK_BYTES);
        for (uint32_t i = 0; i < SUPERBLOCK_COPIES; i++) {
                ssize_t n = pwrite(member->fd, block, SUPERBLOCK_BYTES,
                                   (off_t)i * SUPERBLOCK_COPY_BYTES);

                if (n >= 0 && n != SUPERBLOCK_BYTES)
                        return fail(member, -EIO, "superblock", why);
                if (n < 0 || fdatasync(member->fd) < 0)
                        return fail(member, -errno, "superblock", why);
        }
        member->found = 0;
        return 0;
}
