// SPDX-License-Identifier: Apache-2.0
/*
 * What every tier must do, whatever it is made of. A test program lists its subjects and
 * gets one Check run over all of them.
 */
#pragma once

#include <stdint.h>

#include <uv.h>

#include "storage/tier.h"

/* Room for objects that a subject's tier should have, about. */
#define CONFORMANCE_BYTES (48u << 20)

struct conformance_subject {
        const char *name;
        /* Prepares a place for a new, empty tier; open() may then be called repeatedly. */
        void *(*make)(const struct conformance_subject *subject);
        struct tier *(*open)(const struct conformance_subject *subject, void *made,
                             uv_loop_t *loop);
        void (*remove)(const struct conformance_subject *subject, void *made);
        uint32_t variant; /* the subject's own */
        struct encoding encoding; /* of all that is written */
};

/* Runs the suite over all subjects. The exit code of main(). */
int conformance_run(const char *suite_name, const struct conformance_subject *subjects,
                    uint32_t n_subjects);
