// SPDX-License-Identifier: Apache-2.0
/*
 * Work for uv's workers on behalf of what goes down: encoding and laying out. All tiers of a
 * loop share two workers for it, so that what is loaded, which needs workers as well and for
 * which somebody waits, always finds some. In the order of queueing. Loop thread.
 */
#pragma once

#include <sys/queue.h>

#include <uv.h>

#define DOWN_WORKERS 2u

struct down_work {
        uv_work_t work;
        uv_loop_t *loop;
        void (*help)(struct down_work *work); /* on a worker */
        void (*then)(struct down_work *work, int status);
        TAILQ_ENTRY(down_work) link;
};

/* @help, then on the loop @then, with 0 or a negative errno: never from inside the call. 0, or
 * a negative errno: then neither is called. */
int down_work_queue(uv_loop_t *loop, struct down_work *work, void (*help)(struct down_work *work),
                    void (*then)(struct down_work *work, int status));
