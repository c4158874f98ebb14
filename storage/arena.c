// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/arena.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

#define SMALL_PAGE_BYTES 4096u
#define SLICE_BYTES      (64ull << 20)
#define NODES_MAX        1024u

static int fail(struct why *why, const char *what)
{
        why_set(why, "%s: %s", what, strerror(errno));
        return ARENA_E_SHORT;
}

static int create_memfd(uint64_t page_bytes)
{
        unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        int fd;

        if (page_bytes > SMALL_PAGE_BYTES)
                flags |= MFD_HUGETLB | (unsigned int)__builtin_ctzll(page_bytes) << MFD_HUGE_SHIFT;
        fd = memfd_create("kvtier-arena", flags | MFD_NOEXEC_SEAL);
        if (fd < 0 && errno == EINVAL)
                fd = memfd_create("kvtier-arena", flags);
        return fd;
}

/* A preference, not a binding: a full node must not end in the OOM killer. */
static int prefer_node(void *base, uint64_t bytes, uint32_t numa_node)
{
        unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
        const size_t bits = 8 * sizeof(mask[0]);

        if (numa_node == ARENA_ANY_NODE)
                return 0;
        if (numa_node >= NODES_MAX) {
                errno = EINVAL;
                return -1;
        }
        mask[numa_node / bits] = 1ul << numa_node % bits;
        return (int)syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, mask, NODES_MAX + 1, 0);
}

static int map(struct arena_memory *memory, const struct arena_wish *wish, struct why *why)
{
        void *base = mmap(NULL, wish->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          memory->fd, 0);

        if (base == MAP_FAILED)
                return fail(why, "mapping the arena");
        memory->base = base;
        if (madvise(base, wish->bytes, MADV_DONTFORK) < 0 ||
            madvise(base, wish->bytes, MADV_DONTDUMP) < 0)
                return fail(why, "keeping the arena out of children and core dumps");
        if (prefer_node(base, wish->bytes, wish->numa_node) < 0)
                return fail(why, "placing the arena on its NUMA node");
        /* Kernels that give huge pages to those who ask do; the others need not. */
        if (wish->page_bytes == SMALL_PAGE_BYTES)
                (void)madvise(base, wish->bytes, MADV_HUGEPAGE);
        return 0;
}

/* Sized and sealed before anything can map it; no page of it is there yet. */
static int make_mapping(struct arena_memory *memory, const struct arena_wish *wish, struct why *why)
{
        memory->fd = create_memfd(wish->page_bytes);
        if (memory->fd < 0)
                return fail(why, "memfd_create");
        if (ftruncate(memory->fd, (off_t)wish->bytes) < 0)
                return fail(why, "sizing the arena");
        if (fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return fail(why, "sealing the arena");
        return map(memory, wish, why);
}

static int look_for_memory(const struct arena_wish *wish, uint64_t bytes, struct why *why)
{
        uint64_t n_free = wish->free_bytes(wish->user);

        if (n_free >= bytes)
                return 0;
        why_set(why,
                "%" PRIu64 " MiB more wanted for an arena of %" PRIu64 ", %" PRIu64 " MiB free",
                bytes >> 20, wish->bytes >> 20, n_free >> 20);
        return ARENA_E_SHORT;
}

/* Never by touching: that would be a SIGBUS where this is an error. */
static int fault_in_slice(struct arena_memory *memory, uint64_t offset, uint64_t bytes,
                          struct why *why)
{
        int r;

        do {
                r = madvise((char *)memory->base + offset, bytes, MADV_POPULATE_WRITE);
        } while (r < 0 && errno == EINTR);
        if (r < 0 && errno == EINVAL) /* an old kernel: allocates, does not map */
                r = fallocate(memory->fd, 0, (off_t)offset, (off_t)bytes);
        return r < 0 ? fail(why, "faulting the arena in") : 0;
}

static int fault_in(struct arena_memory *memory, const struct arena_wish *wish, struct why *why)
{
        int r = 0;

        for (uint64_t at = 0; r == 0 && at < wish->bytes; at += SLICE_BYTES) {
                uint64_t rest = wish->bytes - at;

                if (atomic_load(wish->cancelled))
                        return ARENA_E_CANCELLED;
                r = look_for_memory(wish, rest, why);
                if (r == 0)
                        r = fault_in_slice(memory, at, rest < SLICE_BYTES ? rest : SLICE_BYTES,
                                           why);
        }
        return r;
}

int arena_make(struct arena_memory *ret_memory, const struct arena_wish *wish, struct why *why)
{
        struct arena_memory memory = {.fd = -1};
        int r;

        r = look_for_memory(wish, wish->bytes, why);
        if (r == 0)
                r = make_mapping(&memory, wish, why);
        if (r == 0)
                r = fault_in(&memory, wish, why);
        if (r == 0)
                *ret_memory = memory;
        else
                arena_drop(&memory, wish->bytes);
        return r;
}

void arena_drop(struct arena_memory *memory, uint64_t bytes)
{
        if (memory->base)
                munmap(memory->base, bytes);
        if (memory->fd >= 0)
                close(memory->fd);
        *memory = (struct arena_memory){.fd = -1};
}
