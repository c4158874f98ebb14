// SPDX-License-Identifier: Apache-2.0
/*
 * What nvme_open() would say, without changing anything: for --check-config. A path that
 * a running daemon holds is right as it is.
 */
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/nvme_tier.h"

static int check_parent(const char *path, const char *what, struct why *why)
{
        _cleanup_free_ char *copy = strdup(path);
        const char *parent;

        if (!copy)
                return err_raise(-ENOMEM);
        parent = dirname(copy);
        if (access(parent, W_OK | X_OK) < 0) {
                int r = -errno;

                if (r == -ENOENT)
                        why_set(why,
                                "%s %s: the folder %s does not exist: create it, or name another",
                                what, path, parent);
                else
                        why_set(why,
                                "%s %s: the folder %s is not writable by uid %u (%s): change its "
                                "owner, or name another",
                                what, path, parent, (unsigned)geteuid(), strerror(-r));
                return err_raise(r);
        }
        return 0;
}

/* What the paths on one file system have and want of it, together. */
struct room {
        dev_t device;
        uint64_t have_bytes;
        uint64_t want_bytes;
};

struct check {
        const struct nvme_options *options;
        uint64_t share_bytes; /* of each path */
        uint64_t used_bytes;  /* by this pool's files already */
        struct room rooms[NVME_MEMBERS_MAX];
        uint32_t n_rooms;
};

static struct room *room_on(struct check *check, dev_t device)
{
        uint32_t i = 0;

        while (i < check->n_rooms && check->rooms[i].device != device)
                i++;
        if (i == check->n_rooms)
                check->rooms[check->n_rooms++] = (struct room){.device = device};
        return &check->rooms[i];
}

static int check_room(struct check *check, const char *path, uint64_t have, struct why *why)
{
        _cleanup_free_ char *copy = strdup(path);
        const char *place = path;
        struct statvfs fs;
        struct stat st;
        struct room *room;
        uint64_t bytes;

        if (!copy)
                return err_raise(-ENOMEM);
        if (stat(place, &st) < 0 && stat(place = dirname(copy), &st) < 0)
                return err_raise(-errno);
        room = room_on(check, st.st_dev);
        room->have_bytes += have < check->share_bytes ? have : check->share_bytes;
        room->want_bytes += check->share_bytes;
        if (room->want_bytes <= room->have_bytes)
                return 0;
        if (statvfs(place, &fs) < 0)
                return err_raise(-errno);
        bytes = room->have_bytes + (uint64_t)fs.f_bavail * fs.f_frsize;
        if (bytes >= room->want_bytes)
                return 0;
        why_set(why,
                "%s: the file system has room for %llu bytes, %llu are asked for: lower "
                "the limit, or name a larger file system",
                path, (unsigned long long)bytes, (unsigned long long)room->want_bytes);
        return err_raise(-ENOSPC);
}

static int check_found(const struct member *member, bool format, struct why *why)
{
        if (format || !member->found || member->found == SUPERBLOCK_E_EMPTY)
                return 0;
        if (member->found == SUPERBLOCK_E_NEWER) {
                why_prefix(why, "%s", member->path);
                return err_raise(-EPROTONOSUPPORT);
        }
        why_set(why,
                "%s holds something that kvtierd did not write, or that is damaged: name "
                "another path, or run kvtierd --format to overwrite it",
                member->path);
        return err_raise(-EEXIST);
}

static int check_existing(struct check *check, const char *path, struct why *why)
{
        bool format = check->options->format;
        struct member member;
        struct stat st;
        int r = member_open(&member, path, MEMBER_BUFFERED | MEMBER_NO_WAIT, why);

        if (r)
                return r == MEMBER_E_BUSY ? 0 : r;
        r = check_found(&member, format, why);
        if (!r && !member.found && !format)
                check->used_bytes += member.superblock.size_bytes;
        if (!r && member.is_block && check->share_bytes > member.size_bytes) {
                why_set(why,
                        "%s has %llu bytes, fewer than its share of %llu: lower the limit, or "
                        "name a larger device",
                        path, (unsigned long long)member.size_bytes,
                        (unsigned long long)check->share_bytes);
                r = err_raise(-ENOSPC);
        }
        if (!r && !member.is_block && !fstat(member.fd, &st))
                r = check_room(check, path, (uint64_t)st.st_blocks * 512, why);
        member_close(&member);
        return r;
}

static int check_path(struct check *check, const char *path, struct why *why)
{
        _cleanup_free_ char *file = member_data_path(path);
        int r;

        if (!file)
                return err_raise(-ENOMEM);
        if (!access(file, F_OK))
                return check_existing(check, file, why);
        r = check_parent(file, "NVMe path", why);
        return r ? r : check_room(check, file, 0, why);
}

int nvme_check(const struct nvme_options *options, struct why *why)
{
        struct check check = {.options = options};
        int r = 0;

        if (!options->n_paths || options->n_paths > NVME_MEMBERS_MAX) {
                why_set(why, "%u paths are given; 1 to %u are right", options->n_paths,
                        NVME_MEMBERS_MAX);
                return err_raise(-EINVAL);
        }
        check.share_bytes = options->bytes / options->n_paths;
        if (check.share_bytes < NVME_MEMBER_BYTES_MIN) {
                why_set(why, "%llu bytes over %u paths are too few; each needs at least %llu",
                        (unsigned long long)options->bytes, options->n_paths,
                        (unsigned long long)NVME_MEMBER_BYTES_MIN);
                return err_raise(-EINVAL);
        }
        for (uint32_t i = 0; !r && i < options->n_paths; i++)
                r = check_path(&check, options->paths[i], why);
        if (!r && check.used_bytes > options->bytes) {
                why_set(why,
                        "the pool's files take %llu bytes, more than the limit of %llu: "
                        "raise the limit to that, or run kvtierd --format to start with smaller "
                        "ones",
                        (unsigned long long)check.used_bytes, (unsigned long long)options->bytes);
                return err_raise(-EINVAL);
        }
        if (!r)
                r = database_check(&catalog_kind, options->catalog_path, why);
        if (r > 0)
                return err_raise(-EEXIST);
        if (!r && access(options->catalog_path, W_OK | X_OK) < 0)
                r = check_parent(options->catalog_path, "catalog", why);
        return r;
}
