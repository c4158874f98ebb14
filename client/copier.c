// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"
#include "client/page_call.h"
#include "client/session.h"

void kvt__copier_init(struct kvt__copier *ret_copier)
{
        TAILQ_INIT(&ret_copier->loads);
        TAILQ_INIT(&ret_copier->stores);
        pthread_cond_init(&ret_copier->work, NULL);
}

void kvt__copier_deinit(struct kvt__copier *copier, bool inherited)
{
        if (!inherited)
                pthread_cond_destroy(&copier->work);
}

static struct kvt__page_queue *queue_of(struct kvt__copier *copier,
                                        const struct kvt__page_object *object)
{
        return kvt__page_call_stores(object->call) ? &copier->stores : &copier->loads;
}

struct kvt__page_object *kvt__copier_next(const struct kvt__copier *copier)
{
        struct kvt__page_object *object = TAILQ_FIRST(&copier->loads);

        return object ? object : TAILQ_FIRST(&copier->stores);
}

static void *run(void *argument)
{
        struct kvt_session *session = argument;
        struct kvt__copier *copier = &session->copier;

        pthread_mutex_lock(&session->lock);
        while (!copier->is_stopping) {
                struct kvt__page_object *object = kvt__copier_next(copier);
                struct kvt__page_list list;
                bool is_whole;

                if (!object) {
                        pthread_cond_wait(&copier->work, &session->lock);
                        continue;
                }
                kvt__copier_remove(session, object);
                kvt__page_object_begin(object, &list);
                pthread_mutex_unlock(&session->lock);
                is_whole = kvt__page_copy(&list, kvt__page_call_stores(object->call),
                                          &object->call->pages->stop);
                pthread_mutex_lock(&session->lock);
                kvt__page_object_end(session, object,
                                     is_whole ? KVT__PAGE_COPIED : KVT__PAGE_STOPPED);
        }
        pthread_mutex_unlock(&session->lock);
        return NULL;
}

int kvt__copier_start(struct kvt_session *session)
{
        struct kvt__copier *copier = &session->copier;
        int r = 0;

        pthread_mutex_lock(&session->lock);
        if (!copier->is_running)
                r = thread_start(&copier->thread, run, session);
        copier->is_running = copier->is_running || !r;
        pthread_mutex_unlock(&session->lock);
        return r;
}

void kvt__copier_stop(struct kvt_session *session)
{
        struct kvt__copier *copier = &session->copier;
        bool is_running;

        pthread_mutex_lock(&session->lock);
        is_running = copier->is_running;
        copier->is_stopping = true;
        pthread_cond_signal(&copier->work);
        pthread_mutex_unlock(&session->lock);
        if (is_running)
                pthread_join(copier->thread, NULL);
}

void kvt__copier_add(struct kvt_session *session, struct kvt__page_object *object)
{
        TAILQ_INSERT_TAIL(queue_of(&session->copier, object), object, link);
        pthread_cond_signal(&session->copier.work);
}

void kvt__copier_remove(struct kvt_session *session, struct kvt__page_object *object)
{
        TAILQ_REMOVE(queue_of(&session->copier, object), object, link);
}
