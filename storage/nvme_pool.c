// SPDX-License-Identifier: Apache-2.0
/*
 * Which pool is this, and which member is each path?
 *
 * Members are known by their UUIDs, so that the order of the paths does not matter. The
 * catalog and the superblocks hold the same pool UUID and epoch. When they differ, the
 * higher epoch is the truth and the other side's objects are misses: a lost or older
 * catalog begins a new epoch, a member of another pool is left alone and not used. What
 * is not ours, and what a newer program wrote, is never overwritten unless told to
 * format.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/nvme_tier.h"

struct assembly {
        struct nvme *nvme;
        const struct nvme_options *options;
        struct member opened[NVME_MEMBERS_MAX]; /* in the order of the paths */
        uint32_t n_opened;
        bool has_catalog;                  /* nvme->pool was read from it */
        uint64_t highest_epoch;            /* on members of this pool */
        bool is_changed[NVME_MEMBERS_MAX]; /* by index: the superblock is to be written */
};

static int make_uuid(uint8_t ret_uuid[16])
{
        if (getrandom(ret_uuid, 16, 0) != 16)
                return err_raise(-EIO);
        ret_uuid[6] = (uint8_t)((ret_uuid[6] & 0x0f) | 0x40);
        ret_uuid[8] = (uint8_t)((ret_uuid[8] & 0x3f) | 0x80);
        return 0;
}

/* The same file under two names would wait for its own lock. */
static int refuse_twice(const struct nvme_options *options, struct why *why)
{
        for (uint32_t i = 0; i < options->n_paths; i++)
                for (uint32_t j = 0; j < i; j++) {
                        _cleanup_free_ char *left = member_data_path(options->paths[i]);
                        _cleanup_free_ char *right = member_data_path(options->paths[j]);
                        struct stat a, b;

                        if (!left || !right)
                                return err_raise(-ENOMEM);
                        if (strcmp(left, right) && (stat(left, &a) < 0 || stat(right, &b) < 0 ||
                                                    a.st_ino != b.st_ino || a.st_dev != b.st_dev))
                                continue;
                        why_set(why, "%s is named twice", options->paths[i]);
                        return err_raise(-EINVAL);
                }
        return 0;
}

static int open_paths(struct assembly *assembly, struct why *why)
{
        const struct nvme_options *options = assembly->options;
        uint32_t flags = options->force & NVME_FORCE_BUFFERED ? MEMBER_BUFFERED : 0;

        for (uint32_t i = 0; i < options->n_paths; i++) {
                struct member *member = &assembly->opened[i];
                int r = member_open(member, options->paths[i], flags, why);

                if (r)
                        return r == MEMBER_E_BUSY ? err_raise(-EBUSY) : r;
                assembly->n_opened++;
                if (options->format)
                        member->found = SUPERBLOCK_E_EMPTY;
        }
        return 0;
}

/* What must not be opened at all, whatever the catalog says. */
static int refuse_unknown(const struct assembly *assembly, struct why *why)
{
        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                const struct member *member = &assembly->opened[i];

                if (member->found == SUPERBLOCK_E_NEWER) {
                        why_prefix(why, "%s", member->path);
                        return err_raise(-EPROTONOSUPPORT);
                }
                if (member->found == SUPERBLOCK_E_FOREIGN) {
                        why_set(why,
                                "%s holds something that kvtierd did not write: name another "
                                "path, or run kvtierd --format to overwrite it",
                                member->path);
                        return err_raise(-EEXIST);
                }
        }
        return 0;
}

/* The pool is the catalog's, else that of the first member that has one, else new. */
static int choose_pool(struct assembly *assembly)
{
        struct catalog_pool *pool = &assembly->nvme->pool;

        if (assembly->has_catalog)
                return 0;
        memset(pool, 0, sizeof(*pool));
        pool->unit_bytes = SEGMENT_UNIT_BYTES;
        pool->claim_limit = 1;
        pool->clean = 1;
        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                const struct superblock *block = &assembly->opened[i].superblock;

                if (assembly->opened[i].found)
                        continue;
                memcpy(pool->pool_uuid, block->pool_uuid, sizeof(pool->pool_uuid));
                return 0;
        }
        return make_uuid(pool->pool_uuid);
}

static bool is_of_pool(const struct assembly *assembly, const struct member *member)
{
        return !member->found &&
               !memcmp(member->superblock.pool_uuid, assembly->nvme->pool.pool_uuid, 16);
}

/* Settles the epoch: a catalog that was lost, or is older than the members, begins a new one. */
static void choose_epoch(struct assembly *assembly)
{
        struct nvme *nvme = assembly->nvme;

        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                const struct member *member = &assembly->opened[i];

                if (is_of_pool(assembly, member) &&
                    member->superblock.epoch > assembly->highest_epoch)
                        assembly->highest_epoch = member->superblock.epoch;
        }
        if (assembly->has_catalog && nvme->pool.epoch >= assembly->highest_epoch)
                return;
        nvme->pool.epoch = assembly->highest_epoch + 1;
        if (assembly->highest_epoch)
                nvme_notice(nvme,
                            "the catalog is lost or older than the data: the tier starts "
                            "empty under epoch %llu",
                            (unsigned long long)nvme->pool.epoch);
}

static void install(struct assembly *assembly, struct member *member, uint32_t index)
{
        struct nvme *nvme = assembly->nvme;

        assert(nvme->members[index].fd < 0);
        nvme->members[index] = *member;
        *member = (struct member)MEMBER_INIT;
        if (index >= nvme->pool.n_members)
                nvme->pool.n_members = index + 1;
}

/* Index that the catalog knows the member under, or -1. */
static int known_index(const struct assembly *assembly, const struct member *member)
{
        const struct nvme *nvme = assembly->nvme;

        for (uint32_t i = 0; i < nvme->pool.n_members; i++)
                if (!memcmp(nvme->pool.member_uuids[i], member->superblock.member_uuid, 16))
                        return nvme->members[i].fd < 0 ? (int)i : -1;
        return -1;
}

static void install_known(struct assembly *assembly)
{
        struct nvme *nvme = assembly->nvme;

        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                struct member *member = &assembly->opened[i];
                int index;

                if (!is_of_pool(assembly, member))
                        continue;
                index = known_index(assembly, member);
                /* After a lost catalog the members know their indices themselves. */
                if (!assembly->has_catalog && index < 0 &&
                    member->superblock.member_index < NVME_MEMBERS_MAX &&
                    nvme->members[member->superblock.member_index].fd < 0) {
                        index = (int)member->superblock.member_index;
                        memcpy(nvme->pool.member_uuids[index], member->superblock.member_uuid, 16);
                }
                if (index < 0)
                        continue;
                if (assembly->has_catalog && member->superblock.epoch != nvme->pool.epoch)
                        member->is_new = true; /* was away while the pool went on without it */
                install(assembly, member, (uint32_t)index);
        }
}

/* Index for a new member: that of a missing one, whose objects are gone, or the next. */
static int free_index(const struct nvme *nvme)
{
        for (uint32_t i = 0; i < NVME_MEMBERS_MAX; i++)
                if (nvme->members[i].fd < 0)
                        return (int)i;
        return -1;
}

static int install_new(struct assembly *assembly)
{
        struct nvme *nvme = assembly->nvme;

        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                struct member *member = &assembly->opened[i];
                int index = free_index(nvme), r;

                if (member->fd < 0 || index < 0 ||
                    (member->found != SUPERBLOCK_E_EMPTY && !is_of_pool(assembly, member)))
                        continue;
                memset(&member->superblock, 0, sizeof(member->superblock));
                member->is_new = true;
                r = make_uuid(nvme->pool.member_uuids[index]);
                if (r)
                        return r;
                install(assembly, member, (uint32_t)index);
        }
        return 0;
}

/* Says which paths and which members of the pool are not used. */
static int report_unused(struct assembly *assembly, struct why *why)
{
        struct nvme *nvme = assembly->nvme;
        uint32_t n_used = 0;

        for (uint32_t i = 0; i < nvme->pool.n_members; i++) {
                if (nvme->members[i].fd >= 0) {
                        n_used++;
                        continue;
                }
                nvme->degraded |= NVME_DEGRADED_MEMBER;
                nvme_notice(nvme, "path %u of the pool's %u is missing: its objects are misses",
                            i + 1, nvme->pool.n_members);
        }
        for (uint32_t i = 0; i < assembly->n_opened; i++) {
                const struct member *member = &assembly->opened[i];

                if (member->fd < 0)
                        continue;
                nvme->degraded |= NVME_DEGRADED_MEMBER;
                nvme_notice(nvme, "%s %s: it is not used", member->path,
                            member->found == SUPERBLOCK_E_DAMAGED ? "has damaged superblocks"
                                                                  : "belongs to another pool");
                if (!n_used)
                        why_set(why,
                                "%s %s: name the catalog that belongs to it, or run kvtierd "
                                "--format to overwrite it",
                                member->path,
                                member->found == SUPERBLOCK_E_DAMAGED
                                        ? "has damaged superblocks"
                                        : "does not belong to the catalog's pool");
        }
        return n_used ? 0 : err_raise(-EINVAL);
}

static uint64_t floor_units(uint64_t bytes)
{
        return bytes / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES;
}

/* Bytes that a member takes now, of those that count. */
static uint64_t size_now(const struct member *member)
{
        if (member->is_new)
                return 0;
        return member->superblock.size_bytes;
}

static int size_member(struct assembly *assembly, uint32_t index, uint64_t share, uint64_t *left,
                       struct why *why)
{
        struct member *member = &assembly->nvme->members[index];
        uint64_t size = size_now(member), target = share;
        int r;

        if (member->is_block && target > floor_units(member->size_bytes))
                target = floor_units(member->size_bytes);
        if (target > size && target - size > *left)
                target = size + *left;
        if (target < size)
                target = size;
        if (target < NVME_MEMBER_BYTES_MIN) {
                why_set(why, "%s would get %llu bytes; a member needs at least %llu", member->path,
                        (unsigned long long)target, (unsigned long long)NVME_MEMBER_BYTES_MIN);
                return err_raise(-EINVAL);
        }
        /* A new member's old content goes, so that the file is never larger than its share. */
        if (member->is_new && !member->is_block && ftruncate(member->fd, 0) < 0)
                return err_raise(-errno);
        if (member->is_new && !member->is_block)
                member->size_bytes = 0;
        r = member_grow(member, target, why);
        if (r)
                return r;
        /* A growth that was cut short by a crash may have left more than the superblock says. */
        if (!member->is_block && member->size_bytes > target &&
            ftruncate(member->fd, (off_t)target) < 0)
                return err_raise(-errno);
        *left -= target - size;
        assembly->is_changed[index] |= target != size;
        member->superblock.size_bytes = target;
        return 0;
}

/* Equal shares of the cap; what members have already stays theirs. */
static int size_members(struct assembly *assembly, struct why *why)
{
        struct nvme *nvme = assembly->nvme;
        uint64_t cap = floor_units(assembly->options->bytes), used = 0, left;
        uint32_t n = 0;
        int r = 0;

        for (uint32_t i = 0; i < nvme->pool.n_members; i++) {
                if (nvme->members[i].fd < 0)
                        continue;
                n++;
                used += size_now(&nvme->members[i]);
        }
        if (used > cap) {
                why_set(why,
                        "the pool's files take %llu bytes, more than the limit of %llu: "
                        "raise the limit to that, or run kvtierd --format to start with smaller "
                        "ones",
                        (unsigned long long)used, (unsigned long long)cap);
                return err_raise(-EINVAL);
        }
        left = cap - used;
        for (uint32_t i = 0; !r && i < nvme->pool.n_members; i++)
                if (nvme->members[i].fd >= 0)
                        r = size_member(assembly, i, floor_units(cap / n), &left, why);
        return r;
}

static int write_superblocks(struct assembly *assembly, struct why *why)
{
        struct nvme *nvme = assembly->nvme;

        for (uint32_t i = 0; i < nvme->pool.n_members; i++) {
                struct member *member = &nvme->members[i];
                struct superblock *block = &member->superblock;
                int r;

                if (member->fd < 0 ||
                    (!member->is_new && !assembly->is_changed[i] &&
                     block->epoch == nvme->pool.epoch && block->member_index == i &&
                     block->n_members == nvme->pool.n_members))
                        continue;
                memcpy(block->pool_uuid, nvme->pool.pool_uuid, sizeof(block->pool_uuid));
                memcpy(block->member_uuid, nvme->pool.member_uuids[i], sizeof(block->member_uuid));
                block->member_index = i;
                block->n_members = nvme->pool.n_members;
                block->unit_bytes = SEGMENT_UNIT_BYTES;
                block->header_bytes = SEGMENT_HEADER_BYTES;
                block->epoch = nvme->pool.epoch;
                r = member_write_superblock(member, why);
                if (r)
                        return r;
        }
        return 0;
}

static int add_space(struct nvme *nvme)
{
        for (uint32_t i = 0; i < nvme->pool.n_members; i++) {
                const struct member *member = &nvme->members[i];
                int r;

                if (member->fd < 0)
                        continue;
                r = space_add_member(&nvme->space, i,
                                     member->superblock.size_bytes / SEGMENT_UNIT_BYTES,
                                     SUPERBLOCK_AREA_BYTES / SEGMENT_UNIT_BYTES);
                if (r)
                        return r;
        }
        return 0;
}

/* A pool record that cannot be read is a catalog that is lost. */
static int load_pool(struct assembly *assembly, struct why *why)
{
        struct nvme *nvme = assembly->nvme;
        int r = catalog_load_pool(nvme->catalog, &nvme->pool, why);

        assembly->has_catalog = !r;
        if (r == CATALOG_E_NEWER)
                return err_raise(-EPROTONOSUPPORT);
        if (r == CATALOG_E_FOREIGN)
                return err_raise(-EEXIST);
        if (r == CATALOG_E_DAMAGED)
                nvme_notice(nvme, "%s", why->text);
        return r < 0 ? r : 0;
}

static int assemble(struct assembly *assembly, struct why *why)
{
        int r = load_pool(assembly, why);

        if (!r)
                r = choose_pool(assembly);
        if (r)
                return r;
        choose_epoch(assembly);
        install_known(assembly);
        r = install_new(assembly);
        if (!r)
                r = report_unused(assembly, why);
        if (!r)
                r = size_members(assembly, why);
        if (!r)
                r = write_superblocks(assembly, why);
        if (!r)
                r = add_space(assembly->nvme);
        assembly->nvme->n_members = assembly->nvme->pool.n_members;
        return r;
}

static int open_catalog(struct assembly *assembly, struct why *why)
{
        struct nvme *nvme = assembly->nvme;
        const char *path = assembly->options->catalog_path;
        int r = 0;

        if (assembly->options->format)
                r = database_destroy(&catalog_kind, path, why);
        if (!r)
                r = database_open(&nvme->catalog, nvme->loop, &catalog_kind, path, why);
        if (r == DATABASE_E_DAMAGED) {
                nvme_notice(nvme, "the catalog cannot be read and is made anew (%s)", why->text);
                r = database_destroy(&catalog_kind, path, why);
                if (!r)
                        r = database_open(&nvme->catalog, nvme->loop, &catalog_kind, path, why);
        }
        if (r == DATABASE_E_BUSY)
                return err_raise(-EBUSY);
        return r > 0 ? err_raise(-EEXIST) : r;
}

int nvme_pool_assemble(struct nvme *nvme, const struct nvme_options *options, struct why *why)
{
        struct assembly *assembly = calloc(1, sizeof(*assembly));
        int r;

        if (!assembly)
                return err_raise(-ENOMEM);
        assembly->nvme = nvme;
        assembly->options = options;
        /* The members' locks come before everything: they name the pool's owner. */
        r = refuse_twice(options, why);
        if (!r)
                r = open_paths(assembly, why);
        if (!r)
                r = refuse_unknown(assembly, why);
        if (!r)
                r = open_catalog(assembly, why);
        if (!r)
                r = assemble(assembly, why);
        for (uint32_t i = 0; i < assembly->n_opened; i++)
                member_close(&assembly->opened[i]);
        free(assembly);
        return r;
}
