// SPDX-License-Identifier: Apache-2.0
/*
 * Trouble with the pool, bandwidth, and the timer of all that is due later
 * (remote_breaker.c); what the node says of itself (remote_beat.c). Private to the remote tier.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

struct remote;

/* A token bucket that may go into debt: what is too large for it goes at once, and then
 * nothing for as long as that took. */
struct remote_pace {
        uint64_t bytes_per_s; /* 0: no cap */
        double tokens;
        uint64_t at_ns;
        bool held_up; /* something waits for it: the timer has to go off */
};

/* Notes the result of a request; -ENOENT and -EEXIST say that the pool is well. */
void remote_note(struct remote *remote, int result);
void remote_retry_soon(struct remote *remote); /* sets the timer to what is due first */
void remote_pace_init(struct remote_pace *pace, uint64_t bytes_per_s);
/* Whether something may be moved now; if not, remote_pace_due() tells when. */
bool remote_pace_allows(struct remote_pace *pace);
/* Milliseconds until what was held up may be moved; UINT64_MAX: nothing was. */
uint64_t remote_pace_due(struct remote_pace *pace);
void remote_pace_take(struct remote_pace *pace, uint64_t bytes);
void remote_on_retry(uv_timer_t *timer);

/* remote_beat.c: what we say of ourselves, "node/NODE". */
void remote_beat(struct remote *remote);
