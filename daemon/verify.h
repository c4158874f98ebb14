// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl verify: re-reads every object of the NVMe tier into scratch memory and checks
 * it, beside normal service, a few at a time; what fails is dropped and counted like any
 * failed promotion. One verification runs at a time. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct daemon;
struct session;

struct verify_progress {
        uint64_t total; /* objects on NVMe when it began */
        uint64_t done;
        uint64_t bytes;
        uint64_t corrupt; /* checksum, length or key did not match */
        uint64_t stale;
        uint64_t failed; /* the device failed */
        bool finished;
};

/* 0, -EBUSY (one runs already), -ENOMEM. @on_progress comes several times a second. */
int verify_start(struct daemon *daemon, struct session *session,
                 void (*on_progress)(struct session *session, uint64_t request,
                                     const struct verify_progress *progress),
                 uint64_t request);

/* After each turn of the loop: what could not be started in one turn is in the next. */
void verify_go_on(struct daemon *daemon);

/* Stops after the reads in flight, without further reports. */
void verify_cancel(struct daemon *daemon);

/* The session that asked is going: as verify_cancel() if it is its verification. */
void verify_session_gone(struct daemon *daemon, const struct session *session);
