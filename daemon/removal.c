// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/daemon.h"
#include "daemon/removal.h"

/* Of one slice: about a millisecond. */
#define SLICE_STEPS 8192u
#define SLICE_DROPS 512u
/* Deletes queued in the tier below; more only takes memory. */
#define FORGETS_MAX 2048u

struct removal {
        struct removal_request request;
        struct removal_result result;
        uint32_t position;
};

int removal_start(struct daemon *daemon, const struct removal_request *request)
{
        if (daemon->removal)
                return -EBUSY;
        daemon->removal = calloc(1, sizeof(*daemon->removal));
        if (!daemon->removal)
                return err_raise(-ENOMEM);
        daemon->removal->request = *request;
        daemon_wake(daemon);
        return 0;
}

static bool is_in_use(struct cache *cache, const struct removal_request *request,
                      const struct index_object *object)
{
        const struct host_copy *copy;

        if (request->nvme && object->flags & (INDEX_READING | INDEX_WRITING))
                return true;
        if (!request->host || object->host == INDEX_NONE)
                return false;
        copy = host_copy_at(&cache->copies, object->host);
        return copy->n_leases || copy->n_uses;
}

/* True when something went. */
static bool remove_one(struct cache *cache, struct removal *removal, struct index_object *object)
{
        const struct removal_request *request = &removal->request;
        bool in_host = request->host && object->host != INDEX_NONE;
        bool in_nvme = request->nvme && object->place.claim;

        if (!in_host && !in_nvme)
                return false;
        if (is_in_use(cache, request, object)) {
                removal->result.kept++;
                return false;
        }
        removal->result.objects++;
        removal->result.bytes += object->raw_bytes;
        if (request->host && request->nvme)
                cache_drop(cache, object, METRICS_BY_ADMIN);
        else if (request->host)
                cache_drop_host(cache, object, METRICS_BY_ADMIN);
        else
                cache_drop_place(cache, object, METRICS_BY_ADMIN);
        return true;
}

void removal_go_on(struct daemon *daemon)
{
        struct removal *removal = daemon->removal;
        struct cache *cache = &daemon->cache;
        uint32_t steps = SLICE_STEPS, drops = 0;
        struct index_object *object = NULL;

        if (!removal)
                return;
        while (drops < SLICE_DROPS && cache->n_forgetting < FORGETS_MAX) {
                object = index_scan(cache->index, &removal->position, &steps);
                if (!object)
                        break;
                if (index_boundary_at(cache->index, object->boundary)->layout ==
                    removal->request.layout)
                        drops += remove_one(cache, removal, object);
        }
        if (object || !index_scan_has_ended(cache->index, removal->position)) {
                /* With a full queue the next delete that ends makes the loop turn. */
                if (cache->n_forgetting < FORGETS_MAX)
                        daemon_wake(daemon);
                return;
        }
        daemon->removal = NULL;
        removal->request.on_end(removal->request.session, removal->request.request,
                                &removal->result);
        free(removal);
}

void removal_cancel(struct daemon *daemon)
{
        free(steal_ptr(daemon->removal));
}

void removal_session_gone(struct daemon *daemon, const struct session *session)
{
        if (daemon->removal && daemon->removal->request.session == session)
                removal_cancel(daemon);
}
