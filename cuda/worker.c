// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"
#include "cuda/clock.h"
#include "cuda/worker.h"

static void *run(void *argument)
{
        struct worker *worker = argument;

        worker->run(worker->argument);
        pthread_mutex_lock(&worker->lock);
        worker->is_over = true;
        pthread_cond_signal(&worker->over);
        pthread_mutex_unlock(&worker->lock);
        return NULL;
}

static void deinit(struct worker *worker)
{
        pthread_cond_destroy(&worker->over);
        pthread_mutex_destroy(&worker->lock);
}

int worker_start(struct worker *worker, void (*function)(void *argument), void *argument)
{
        int r;

        *worker = (struct worker){.run = function, .argument = argument};
        pthread_mutex_init(&worker->lock, NULL);
        clock_cond_init(&worker->over);
        r = thread_start(&worker->thread, run, worker);
        if (r)
                deinit(worker);
        return r;
}

bool worker_join(struct worker *worker, uint64_t by_ns)
{
        struct timespec until = clock_timespec(by_ns);
        bool is_over;
        int r = 0;

        pthread_mutex_lock(&worker->lock);
        while (!worker->is_over && !r)
                r = pthread_cond_timedwait(&worker->over, &worker->lock, &until);
        is_over = worker->is_over;
        pthread_mutex_unlock(&worker->lock);
        if (!is_over) {
                pthread_detach(worker->thread);
                return false;
        }
        pthread_join(worker->thread, NULL);
        deinit(worker);
        return true;
}
