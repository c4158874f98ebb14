// SPDX-License-Identifier: Apache-2.0
/*
 * The thread that copies pages: one a session, from its first page map to its end. It takes
 * objects in the order in which they were granted, those of loads first: a request waits for
 * them, while stores come behind the work. It copies without the session's lock; all else is
 * under it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

struct kvt_session;
struct kvt__page_object;

TAILQ_HEAD(kvt__page_queue, kvt__page_object);

struct kvt__copier {
        pthread_t thread;
        pthread_cond_t work;
        struct kvt__page_queue loads;
        struct kvt__page_queue stores;
        bool is_running;
        bool is_stopping;
};

void kvt__copier_init(struct kvt__copier *ret_copier);
/* @inherited: in a forked child, where the thread is not. It has been stopped otherwise. */
void kvt__copier_deinit(struct kvt__copier *copier, bool inherited);

/* Starts the thread unless it runs. Takes the lock. 0 or negative. */
int kvt__copier_start(struct kvt_session *session);

/* Waits until the thread has let go of the caller's memory and ended. Without the lock. */
void kvt__copier_stop(struct kvt_session *session);

/* What is to be copied next, or NULL. It stays in its queue. */
struct kvt__page_object *kvt__copier_next(const struct kvt__copier *copier);

/* To be copied, and no longer. */
void kvt__copier_add(struct kvt_session *session, struct kvt__page_object *object);
void kvt__copier_remove(struct kvt_session *session, struct kvt__page_object *object);
