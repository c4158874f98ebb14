// SPDX-License-Identifier: Apache-2.0
/*
 * What every pool (storage/pool.h) must do, whatever it is made of. A test program lists its
 * subjects and gets one Check run over all of them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "storage/pool.h"

struct pool_subject {
        const char *name;
        bool has_no_hints; /* those of its kind cannot have */
        /* Prepares a place for a new, empty pool. */
        void *(*make)(const struct pool_subject *subject);
        /* One more node on it: called repeatedly, also while others are open. */
        struct pool *(*open)(const struct pool_subject *subject, void *made, uv_loop_t *loop);
        void (*remove)(const struct pool_subject *subject, void *made);
        /* From now on a get cannot be answered within 5 ms. NULL: 64 MiB take longer. */
        void (*slow_down)(struct pool *pool);
};

/* Runs the suite over all subjects. The exit code of main(). */
int pool_conformance_run(const char *suite_name, const struct pool_subject *subjects,
                         uint32_t n_subjects);
