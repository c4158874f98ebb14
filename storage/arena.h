// SPDX-License-Identifier: Apache-2.0
/*
 * The memory of one arena: a sealed memfd, mapped, every page of it there. Blocking, for a
 * worker thread; storage/host.h says when and how many.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

#define ARENA_ANY_NODE UINT32_MAX

enum {
        ARENA_E_SHORT = 1, /* too little memory is free, or the kernel has none to give */
        ARENA_E_CANCELLED,
};

struct arena_wish {
        uint64_t bytes;                     /* a multiple of page_bytes */
        uint64_t page_bytes;                /* 4096, or a huge page size */
        uint32_t numa_node;                 /* a preference; ARENA_ANY_NODE: none */
        uint64_t (*free_bytes)(void *user); /* what may be taken now */
        void *user;
        const atomic_bool *cancelled; /* looked at between slices of 64 MiB */
};

struct arena_memory {
        int fd; /* -1: none */
        void *base;
};

/*
 * Makes an arena. 0; ARENA_E_SHORT with the reason in @why, and then nothing is held;
 * ARENA_E_CANCELLED likewise.
 */
int arena_make(struct arena_memory *ret_memory, const struct arena_wish *wish, struct why *why);

/* Unmaps and closes it; nothing when there is none. */
void arena_drop(struct arena_memory *memory, uint64_t bytes);
