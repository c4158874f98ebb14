// SPDX-License-Identifier: Apache-2.0
/* Submitting calls over page maps: check, build the record and its first call, send. */
#include <stdlib.h>
#include <string.h>

#include "client/page_call.h"
#include "client/session.h"
#include "client/submit.h"
#include "proto/wire.h"

/* What is checked of every object. */
struct check {
        const struct kvt_page_map *map;
        uint32_t chunk_tokens; /* 0: not known yet */
        bool is_store;
        size_t n_slots; /* of all objects */
};

static enum kvt_status check_slots(struct check *check, const struct kvt_object *object,
                                   const struct kvt__page_group *group)
{
        uint32_t n = 1;

        if (group->page_tokens)
                n = object->pages ? object->n_pages : check->chunk_tokens / group->page_tokens;
        if (!object->slots || !object->n_slots || (n && object->n_slots != n))
                return KVT_INVALID;
        for (uint32_t i = 0; i < object->n_slots; i++)
                if (object->slots[i] >= group->n_pages)
                        return KVT_INVALID;
        check->n_slots += object->n_slots;
        return KVT_OK;
}

static enum kvt_status check_object(struct check *check, const struct kvt_object *object)
{
        const struct kvt__page_group *group =
                kvt__page_map_find(check->map, object->group, object->shard);
        enum kvt_status status = group ? check_slots(check, object, group) : KVT_INVALID;
        uint64_t bytes;

        if (status != KVT_OK || !check->is_store)
                return status;
        bytes = object->n_slots * group->stored_bytes;
        if (object->pages || object->n_checksums || (object->bytes && object->bytes != bytes))
                return KVT_INVALID;
        return kvt__check_reserve(object, bytes);
}

static enum kvt_status check_objects(struct kvt_session *session, struct check *check,
                                     const struct kvt_object *objects, size_t n)
{
        enum kvt_status status = KVT_OK;

        pthread_mutex_lock(&session->lock);
        check->chunk_tokens = session->chunk_tokens;
        pthread_mutex_unlock(&session->lock);
        for (size_t i = 0; i < n && status == KVT_OK; i++)
                status = check_object(check, &objects[i]);
        return status;
}

/* ---- records ---- */

static void free_call(struct kvt__call *call)
{
        if (call)
                kvt__page_work_free(call->pages);
        free(call);
}

/* The slots are copied: the caller's lists are read at submit alone. */
static void describe(struct kvt__call *call, const struct kvt_object *objects)
{
        struct kvt__page_work *work = call->pages;
        size_t used = 0;

        for (uint32_t i = 0; i < call->n; i++) {
                struct kvt__page_object *object = &work->objects[i];

                object->call = call;
                object->group = kvt__page_map_find(work->map, objects[i].group, objects[i].shard);
                object->slots = work->slots + used;
                object->n_slots = objects[i].n_slots;
                memcpy(work->slots + used, objects[i].slots,
                       objects[i].n_slots * sizeof(work->slots[0]));
                used += objects[i].n_slots;
        }
}

/* The record that the caller knows. NULL: no memory. */
static struct kvt__call *record_new(uint16_t kind, const struct kvt_call *options,
                                    struct kvt_page_map *map, struct kvt_object *objects, size_t n,
                                    size_t n_slots)
{
        struct kvt__call *call = kvt__call_new(kind, options, objects, n);
        struct kvt__page_work *work = calloc(1, sizeof(*work) + n * sizeof(work->objects[0]));
        bool is_store = kind == KVT__STORE_PAGES;

        if (!call || !work) {
                free(call);
                free(work);
                return NULL;
        }
        call->pages = work;
        atomic_init(&work->stop, false);
        work->map = map;
        work->after = options->after;
        work->done = options->done;
        kvt__page_map_ref(map);
        work->slots = calloc(n_slots, sizeof(work->slots[0]));
        if (is_store)
                work->commit = kvt__call_new(WIRE_COMMIT, options, NULL, n);
        if (!work->slots || (is_store && !work->commit)) {
                free_call(call);
                return NULL;
        }
        if (is_store)
                work->commit->deadline_ns = 0;
        describe(call, objects);
        return call;
}

/* What the daemon is asked first. Its deadline is the record's. */
static struct kvt__call *child_new(struct kvt__call *call, uint16_t kind,
                                   const struct kvt_call *options, struct kvt_object *objects)
{
        struct kvt__call *child = kvt__call_new(kind, options, objects, call->n);

        if (!child)
                return NULL;
        child->deadline_ns = 0;
        child->owner = call;
        call->pages->child = child;
        for (uint32_t i = 0; i < call->n; i++) {
                const struct kvt__page_object *object = &call->pages->objects[i];

                child->items[i].bytes = object->n_slots * object->group->stored_bytes;
        }
        return child;
}

static enum kvt_status submit(struct kvt_session *session, const struct check *check,
                              const struct kvt_call *options, struct kvt_page_map *map,
                              const uint8_t *token, struct kvt_object *objects, size_t n,
                              uint64_t *ret_call)
{
        struct kvt__call *call = record_new(check->is_store ? KVT__STORE_PAGES : KVT__LOAD_PAGES,
                                            options, map, objects, n, check->n_slots);
        uint16_t kind = check->is_store ? WIRE_RESERVE : token ? WIRE_ADOPT : WIRE_ACQUIRE;
        struct kvt__call *child = call ? child_new(call, kind, options, objects) : NULL;
        enum kvt_status status = KVT_NO_MEMORY;

        if (child) {
                if (token)
                        memcpy(child->token, token, sizeof(child->token));
                status = kvt__submit(session, child, options->timeout_ns, ret_call);
        }
        if (status != KVT_OK) {
                free(child);
                free_call(call);
        }
        return status;
}

static enum kvt_status check_options(const struct kvt_call *options, bool is_store)
{
        static const uint32_t known = KVT_CALL_WAITED | KVT_CALL_BYPASS;
        static const uint32_t of_loads = KVT_CALL_WAIT | KVT_CALL_PARTIAL | KVT_CALL_RESIDENT;

        return options->flags & ~(is_store ? known : known | of_loads) ? KVT_INVALID : KVT_OK;
}

static enum kvt_status move_pages(struct kvt_session *session, bool is_store,
                                  const struct kvt_call *given, struct kvt_page_map *map,
                                  const uint8_t *token, struct kvt_object *objects, size_t n,
                                  uint64_t *ret_call)
{
        struct check check = {.map = map, .is_store = is_store};
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, given, objects, n);

        if (status == KVT_OK && (!map || map->session != session->serial))
                status = KVT_INVALID;
        if (status == KVT_OK && (options.after || options.done) && !map->has_device)
                status = KVT_INVALID;
        if (status == KVT_OK)
                status = check_options(&options, is_store);
        if (status == KVT_OK && !is_store)
                status = kvt__check_load(objects, n, token);
        if (status == KVT_OK)
                status = check_objects(session, &check, objects, n);
        return status == KVT_OK
                       ? submit(session, &check, &options, map, token, objects, n, ret_call)
                       : status;
}

enum kvt_status kvt_store_pages(struct kvt_session *session, const struct kvt_call *call,
                                struct kvt_page_map *map, struct kvt_object *objects, size_t n,
                                uint64_t *ret_call)
{
        return move_pages(session, true, call, map, NULL, objects, n, ret_call);
}

enum kvt_status kvt_load_pages(struct kvt_session *session, const struct kvt_call *call,
                               struct kvt_page_map *map, const uint8_t *token,
                               struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        return move_pages(session, false, call, map, token, objects, n, ret_call);
}
