// SPDX-License-Identifier: Apache-2.0
/*
 * What a forked child inherits: nothing but memory. Its copies of the socket, the eventfds and
 * what a bridge has open are closed at once, so that the parent's death is a hang-up; arenas and
 * tables are not mapped in it (MADV_DONTFORK); every function answers KVT_FORKED.
 *
 * fork() waits for the locks of all sessions, so that a child finds each in a state that
 * kvt_close() can free. Order: the list's lock, then a session's; nobody takes the list's
 * lock while holding a session's.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "client/session.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, kvt_session) sessions = LIST_HEAD_INITIALIZER(sessions);
static _Atomic uint32_t generation;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int install_error;

static void before_fork(void)
{
        struct kvt_session *session;

        pthread_mutex_lock(&list_lock);
        LIST_FOREACH(session, &sessions, forks)
                pthread_mutex_lock(&session->lock);
}

static void in_parent(void)
{
        struct kvt_session *session;

        LIST_FOREACH(session, &sessions, forks)
                pthread_mutex_unlock(&session->lock);
        pthread_mutex_unlock(&list_lock);
}

static void close_copy(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void in_child(void)
{
        struct kvt_session *session;

        atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
        LIST_FOREACH(session, &sessions, forks) {
                close_copy(&session->socket);
                close_copy(&session->wake_fd);
                close_copy(&session->ready_fd);
                if (session->bridge)
                        session->remote_ops->forget_in_child(session->bridge);
        }
        LIST_INIT(&sessions);
        pthread_mutex_unlock(&list_lock);
}

static void install(void)
{
        install_error = pthread_atfork(before_fork, in_parent, in_child);
}

int kvt__fork_register(struct kvt_session *session)
{
        pthread_once(&once, install);
        if (install_error)
                return err_raise(-install_error);
        pthread_mutex_lock(&list_lock);
        session->fork_generation = atomic_load_explicit(&generation, memory_order_relaxed);
        LIST_INSERT_HEAD(&sessions, session, forks);
        pthread_mutex_unlock(&list_lock);
        return 0;
}

void kvt__fork_unregister(struct kvt_session *session)
{
        struct kvt_session *other;

        pthread_mutex_lock(&list_lock);
        LIST_FOREACH(other, &sessions, forks) {
                if (other == session) {
                        LIST_REMOVE(session, forks);
                        break;
                }
        }
        pthread_mutex_unlock(&list_lock);
}

bool kvt__is_forked(const struct kvt_session *session)
{
        return session->fork_generation != atomic_load_explicit(&generation, memory_order_relaxed);
}
