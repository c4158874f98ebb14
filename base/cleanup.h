// SPDX-License-Identifier: Apache-2.0
/*
 * Scope cleanup: `_cleanup_(foo_freep) struct foo *foo = NULL;` frees on every way out;
 * steal_ptr() and steal_fd() hand the thing over to its new owner.
 */
#pragma once

#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(function) __attribute__((cleanup(function)))

/* Defines foo_freep() for a destructor that accepts NULL. */
#define DEFINE_CLEANUP(type, function)                                                             \
        static inline void function##p(type *pointer)                                              \
        {                                                                                          \
                if (*pointer)                                                                      \
                        function(*pointer);                                                        \
        }

#define steal_ptr(pointer)                                                                         \
        ({                                                                                         \
                __typeof__(pointer) stolen_ = (pointer);                                           \
                (pointer) = NULL;                                                                  \
                stolen_;                                                                           \
        })

static inline int steal_fd(int *fd)
{
        int stolen = *fd;

        *fd = -1;
        return stolen;
}

static inline void close_fdp(int *fd)
{
        if (*fd >= 0)
                close(*fd);
}

static inline void free_memoryp(void *pointer)
{
        free(*(void **)pointer);
}

#define _cleanup_fd_ _cleanup_(close_fdp)
#define _cleanup_free_ _cleanup_(free_memoryp)
