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

/* From every tier: of a layout what is pinned goes as well. */
static bool is_clear(const struct removal_request *request)
{
        return request->host && request->nvme && request->remote;
}

int removal_start(struct daemon *daemon, const struct removal_request *request)
{
        if (daemon->removal)
                return -EBUSY;
        daemon->removal = calloc(1, sizeof(*daemon->removal));
        if (!daemon->removal)
                return err_raise(-ENOMEM);
        daemon->removal->request = *request;
        if (is_clear(request))
                marks_clear_layout(daemon, request->layout);
        daemon_wake(daemon);
        return 0;
}

static bool is_pinned(const struct removal_request *request, const struct index_object *object)
{
        uint16_t flags = (request->host ? INDEX_PINNED_HOST : 0) |
                         (request->nvme ? INDEX_PINNED_NVME : 0) |
                         (request->remote ? INDEX_PINNED_REMOTE : 0);

        /* The pins of a layout end when it is cleared; those of one boundary do not. */
        return (request->is_of_boundary || !is_clear(request)) && object->flags & flags;
}

static bool is_in_use(struct cache *cache, const struct removal_request *request,
                      const struct index_object *object)
{
        const struct host_copy *copy;

        if (request->nvme && object->flags & (INDEX_READING | INDEX_WRITING))
                return true;
        if (request->remote && object->flags & (INDEX_READING | INDEX_WRITING_POOL))
                return true;
        if (!request->host || object->host == INDEX_NONE)
                return false;
        copy = host_copy_at(&cache->copies, object->host);
        return copy->n_leases || copy->n_uses;
}

/* True when something went. */
static bool remove_one(struct cache *cache, const struct removal_request *request,
                       struct index_object *object, struct removal_result *result)
{
        bool in_host = request->host && object->host != INDEX_NONE;
        bool in_nvme = request->nvme && object->place.claim;
        bool in_remote = request->remote && object->flags & INDEX_REMOTE_HERE;

        if (!in_host && !in_nvme && !in_remote)
                return false;
        if (is_pinned(request, object) || is_in_use(cache, request, object)) {
                result->kept++;
                return false;
        }
        result->objects++;
        result->bytes += object->raw_bytes;
        if (is_clear(request))
                cache_drop(cache, object, METRICS_BY_ADMIN);
        else if (request->host)
                cache_drop_host(cache, object, METRICS_BY_ADMIN);
        else
                cache_drop_place(cache, object, in_nvme ? INDEX_NVME : INDEX_REMOTE,
                                 METRICS_BY_ADMIN);
        return true;
}

static bool is_asked_for(const struct removal_request *request, const struct index_object *object)
{
        return (request->group == REMOVAL_ANY || request->group == object->group) &&
               (request->shard == REMOVAL_ANY || request->shard == object->shard);
}

static void remove_from_boundary(struct cache *cache, const struct removal_request *request,
                                 const struct index_boundary *boundary,
                                 struct removal_result *result)
{
        /* The boundary may go with its last object. */
        for (uint32_t id = boundary->first_object; id != INDEX_NONE;) {
                struct index_object *object = index_object_at(cache->index, id);

                id = object->next;
                if (is_asked_for(request, object))
                        remove_one(cache, request, object, result);
        }
}

void removal_of_boundary(struct daemon *daemon, const struct removal_request *request,
                         struct removal_result *ret_result)
{
        struct cache *cache = &daemon->cache;
        uint32_t first = request->layout ? request->layout : 1;
        uint32_t last = request->layout ? request->layout : index_n_layouts(cache->index);
        struct removal_result result = {0};

        for (uint32_t layout = first; layout <= last; layout++) {
                const struct index_boundary *boundary =
                        index_find_boundary(cache->index, (uint16_t)layout, &request->digest);

                if (boundary)
                        remove_from_boundary(cache, request, boundary, &result);
        }
        *ret_result = result;
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
                        drops += remove_one(cache, &removal->request, object, &removal->result);
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
