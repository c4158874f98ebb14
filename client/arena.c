// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/arena.h"

/* Without these the daemon, or anyone with the fd, could take the memory from under a copy. */
#define ARENA_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int kvt__map_sealed(void **ret_base, int fd, uint64_t bytes, int protection, int seals,
                    const char *what, struct why *why)
{
        int have = fcntl(fd, F_GET_SEALS);
        struct stat status;
        void *base;

        if (have < 0 || (have & seals) != seals) {
                why_set(why, "%s is not sealed as it must be (seals 0x%x, wanted 0x%x)", what,
                        have < 0 ? 0u : (unsigned)have, (unsigned)seals);
                return err_raise(-EPERM);
        }
        if (fstat(fd, &status) < 0 || status.st_size < 0 || !bytes ||
            (uint64_t)status.st_size != bytes) {
                why_set(why, "%s does not have the size that the daemon announced", what);
                return err_raise(-EPROTO);
        }
        base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) {
                int error = errno;

                why_set(why, "%s cannot be mapped: %s", what, strerror(error));
                return err_raise(-error);
        }
        if (madvise(base, bytes, MADV_DONTFORK) < 0) {
                int error = errno;

                munmap(base, bytes);
                why_set(why, "%s cannot be kept from children: %s", what, strerror(error));
                return err_raise(-error);
        }
        *ret_base = base;
        return 0;
}

void kvt__arenas_init(struct kvt__arena_list *ret_arenas)
{
        TAILQ_INIT(&ret_arenas->queue);
        ret_arenas->device = NULL;
        ret_arenas->foreign = NULL;
}

void kvt__mapping_unref(struct kvt__mapping *mapping)
{
        if (atomic_fetch_sub_explicit(&mapping->refs, 1, memory_order_acq_rel) != 1)
                return;
        if (!mapping->is_foreign)
                munmap(mapping->base, mapping->bytes);
        free(mapping);
}

static void tell(const struct kvt__page_device *device, const struct kvt__arena *arena)
{
        atomic_fetch_add_explicit(&arena->mapping->refs, 1, memory_order_relaxed);
        device->map(device->context, arena->mapping);
}

void kvt__arenas_set_device(struct kvt__arena_list *arenas, const struct kvt__page_device *device)
{
        struct kvt__arena *arena;

        arenas->device = device;
        if (!device)
                return;
        TAILQ_FOREACH(arena, &arenas->queue, link)
                tell(device, arena);
}

static struct kvt__arena *find_inode(struct kvt__arena_list *arenas, uint32_t id, int fd)
{
        struct kvt__arena *arena;
        struct stat status;

        if (fstat(fd, &status) < 0)
                return NULL;
        TAILQ_FOREACH(arena, &arenas->queue, link)
                if (arena->id == id && arena->device == status.st_dev &&
                    arena->inode == status.st_ino)
                        return arena;
        return NULL;
}

/* Takes the mapping at @base over when it succeeds. */
static struct kvt__arena *arena_new(uint32_t id, void *base, uint64_t bytes, uint32_t numa_node,
                                    int fd)
{
        struct kvt__arena *arena = calloc(1, sizeof(*arena));
        struct kvt__mapping *mapping = calloc(1, sizeof(*mapping));
        struct stat status;

        if (!arena || !mapping || fstat(fd, &status) < 0) {
                free(arena);
                free(mapping);
                return NULL;
        }
        *mapping = (struct kvt__mapping){
                .base = base, .bytes = bytes, .arena_id = id, .numa_node = numa_node};
        atomic_init(&mapping->refs, 1);
        *arena = (struct kvt__arena){.id = id,
                                     .announced = true,
                                     .mapping = mapping,
                                     .device = status.st_dev,
                                     .inode = status.st_ino};
        return arena;
}

int kvt__arena_announce(struct kvt__arena_list *arenas, uint32_t id, uint64_t bytes,
                        uint32_t numa_node, int fd, struct why *why)
{
        struct kvt__arena *arena = find_inode(arenas, id, fd);
        void *base = NULL;
        int r;

        if (arena && arena->mapping->bytes == bytes) {
                arena->announced = true;
                return 0;
        }
        if (kvt__arena_find(arenas, id)) {
                why_set(why, "arena %u is announced twice", id);
                return err_raise(-EPROTO);
        }
        r = arenas->foreign ? 0
                            : kvt__map_sealed(&base, fd, bytes, PROT_READ | PROT_WRITE, ARENA_SEALS,
                                              "an arena", why);
        if (r)
                return r;
        arena = arena_new(id, arenas->foreign ? arenas->foreign : base, bytes, numa_node, fd);
        if (!arena) {
                if (!arenas->foreign)
                        munmap(base, bytes);
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        arena->mapping->is_foreign = arenas->foreign;
        TAILQ_INSERT_TAIL(&arenas->queue, arena, link);
        if (arenas->device)
                tell(arenas->device, arena);
        return 0;
}

struct kvt__arena *kvt__arena_find(struct kvt__arena_list *arenas, uint32_t id)
{
        struct kvt__arena *arena;

        TAILQ_FOREACH(arena, &arenas->queue, link)
                if (arena->announced && arena->id == id)
                        return arena;
        return NULL;
}

void kvt__arenas_retract(struct kvt__arena_list *arenas)
{
        struct kvt__arena *arena;

        TAILQ_FOREACH(arena, &arenas->queue, link)
                arena->announced = false;
}

static void arena_free(struct kvt__arena_list *arenas, struct kvt__arena *arena, bool inherited)
{
        TAILQ_REMOVE(&arenas->queue, arena, link);
        if (!inherited && arenas->device)
                arenas->device->unmap(arenas->device->context, arena->mapping);
        /* In a child the parent's threads may hold references that nobody gives back. */
        if (!inherited)
                kvt__mapping_unref(arena->mapping);
        else
                free(arena->mapping);
        free(arena);
}

void kvt__arenas_sweep(struct kvt__arena_list *arenas)
{
        struct kvt__arena *arena = TAILQ_FIRST(&arenas->queue);

        while (arena) {
                struct kvt__arena *next = TAILQ_NEXT(arena, link);

                if (!arena->announced && !arena->n_leases)
                        arena_free(arenas, arena, false);
                arena = next;
        }
}

void kvt__arenas_free(struct kvt__arena_list *arenas, bool inherited)
{
        while (!TAILQ_EMPTY(&arenas->queue))
                arena_free(arenas, TAILQ_FIRST(&arenas->queue), inherited);
}
