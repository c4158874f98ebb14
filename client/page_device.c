// SPDX-License-Identifier: Apache-2.0
/* What a device is offered. */
#include <stddef.h>

#include "client/page_call.h"
#include "client/session.h"

const struct kvt__page_device *kvt__session_device(struct kvt_session *session)
{
        const struct kvt__page_device *device;

        pthread_mutex_lock(&session->lock);
        device = session->device;
        pthread_mutex_unlock(&session->lock);
        return device;
}

/* No job and no arena is given to it any more; it ends those that it has. */
void kvt__session_drop_device(struct kvt_session *session)
{
        const struct kvt__page_device *device;

        pthread_mutex_lock(&session->lock);
        device = session->device;
        session->device = NULL;
        kvt__arenas_set_device(&session->arenas, NULL);
        pthread_mutex_unlock(&session->lock);
        if (device)
                device->close(device->context);
}

static int set_device(struct kvt_session *session, const struct kvt__page_device *device,
                      struct why *why)
{
        int r = 0;

        if (!device) {
                kvt__session_drop_device(session);
                return 0;
        }
        if (device->version != KVT__PAGE_DEVICE_VERSION) {
                why_set(why, "libkvtier expects devices of version %u, this one is of %u",
                        KVT__PAGE_DEVICE_VERSION, device->version);
                return err_raise(-EPROTO);
        }
        pthread_mutex_lock(&session->lock);
        if (session->device) {
                why_set(why, "the session has a device already");
                r = err_raise(-EEXIST);
        } else {
                session->device = device;
                kvt__arenas_set_device(&session->arenas, device);
        }
        pthread_mutex_unlock(&session->lock);
        return r;
}

static void end_job(struct kvt_session *session, struct kvt__page_job *job, enum kvt__page_end end)
{
        struct kvt__page_object *object =
                (void *)((uint8_t *)job - offsetof(struct kvt__page_object, job));

        pthread_mutex_lock(&session->lock);
        kvt__page_object_end(session, object, end);
        pthread_mutex_unlock(&session->lock);
}

static void lose(struct kvt_session *session)
{
        pthread_mutex_lock(&session->lock);
        kvt__session_lose(session, KVT__PAGE_LOST_REASON);
        pthread_mutex_unlock(&session->lock);
}

const struct kvt__page_host kvt__page_host = {
        .version = KVT__PAGE_DEVICE_VERSION,
        .set_device = set_device,
        .device = kvt__session_device,
        .end = end_job,
        .lose = lose,
        .let_go = kvt__mapping_unref,
        .find_group = kvt__page_map_find,
        .is_forked = kvt__is_forked,
};
