// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/down_work.h"

TAILQ_HEAD(down_work_list, down_work);

/* Of all loops of this thread: few, so that they are searched. */
static _Thread_local struct down_work_list waiting, working;
static _Thread_local bool is_ready;

static uint32_t n_working(const uv_loop_t *loop)
{
        const struct down_work *work;
        uint32_t n = 0;

        TAILQ_FOREACH(work, &working, link)
                n += work->loop == loop;
        return n;
}

static struct down_work *first_waiting(const uv_loop_t *loop)
{
        struct down_work *work;

        TAILQ_FOREACH(work, &waiting, link) {
                if (work->loop == loop)
                        return work;
        }
        return NULL;
}

static void on_worker(uv_work_t *work)
{
        struct down_work *self = work->data;

        self->help(self);
}

static void on_ended(uv_work_t *work, int status);

static int start(struct down_work *work)
{
        int r;

        work->work.data = work;
        r = uv_queue_work(work->loop, &work->work, on_worker, on_ended);
        if (r)
                return err_raise(r);
        TAILQ_INSERT_TAIL(&working, work, link);
        return 0;
}

static void on_ended(uv_work_t *work, int status)
{
        struct down_work *ended = work->data, *next;
        const uv_loop_t *loop = ended->loop;
        int r;

        TAILQ_REMOVE(&working, ended, link);
        ended->then(ended, status);
        while (n_working(loop) < DOWN_WORKERS && (next = first_waiting(loop))) {
                TAILQ_REMOVE(&waiting, next, link);
                r = start(next);
                if (r)
                        next->then(next, r);
        }
}

int down_work_queue(uv_loop_t *loop, struct down_work *work, void (*help)(struct down_work *work),
                    void (*then)(struct down_work *work, int status))
{
        if (!is_ready) {
                TAILQ_INIT(&waiting);
                TAILQ_INIT(&working);
                is_ready = true;
        }
        work->loop = loop;
        work->help = help;
        work->then = then;
        /* Where one waits, on_ended() is between the end of another and the start of that one. */
        if (!first_waiting(loop) && n_working(loop) < DOWN_WORKERS)
                return start(work);
        TAILQ_INSERT_TAIL(&waiting, work, link);
        return 0;
}
