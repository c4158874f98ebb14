// SPDX-License-Identifier: Apache-2.0
/*
 * Submitting: check, encode into messages of at most 64 KiB, send without blocking. The
 * daemon answers a request once, whatever number of messages it came in.
 */
#include <stdlib.h>
#include <string.h>

#include "client/page_call.h"
#include "client/session.h"
#include "client/submit.h"
#include "proto/checksum.h"
#include "proto/message.h"

/* The messages of one batch. */
struct batch {
        struct kvt_session *session;
        struct message_builder builder;
        size_t fixed_bytes;
        union {
                struct wire_batch batch; /* the others begin with it */
                struct wire_adopt adopt;
                struct wire_prefetch prefetch;
        } fixed;
};

static void start_message(struct batch *batch)
{
        message_builder_init(&batch->builder, batch->session->out_buffer, &batch->fixed,
                             batch->fixed_bytes);
}

static bool send_message(struct batch *batch, bool more)
{
        message_set_more(&batch->builder, more);
        batch->fixed.batch.first += batch->builder.n_items;
        return kvt__session_send(batch->session, batch->builder.buffer, batch->builder.length);
}

static void batch_init(struct batch *batch, struct kvt_session *session, uint16_t kind,
                       uint64_t request, uint32_t total)
{
        *batch = (struct batch){.session = session, .fixed_bytes = sizeof(struct wire_batch)};
        message_header_init(&batch->fixed.batch.header, kind, request, session->era->session,
                            session->era->boot_id);
        batch->fixed.batch.total = total;
}

/* Adds a record with what follows it; starts a new message where they no longer fit. */
static bool add(struct batch *batch, const void *record, size_t bytes, const void *extra,
                size_t extra_bytes)
{
        if (bytes + extra_bytes > WIRE_MESSAGE_MAX - batch->builder.length) {
                if (!send_message(batch, true))
                        return false;
                start_message(batch);
        }
        return !message_append(&batch->builder, record, bytes, 1) &&
               !message_append(&batch->builder, extra, extra_bytes, 0);
}

/* ---- what each kind's items look like ---- */

/* Those of reserve: others take the place of some in between. */
static uint32_t wire_flags(uint32_t flags)
{
        uint32_t same = KVT_REPLACE | KVT_PARENT_UNKNOWN | KVT_CROPPABLE | KVT_CONTIGUOUS;

        return (flags & same) | (flags & KVT_HIT ? WIRE_RESERVE_HIT : 0) |
               (flags & KVT_BRANCH ? WIRE_RESERVE_BRANCH : 0);
}

static struct wire_reserve_item reserve_item(const struct kvt__call *call, uint32_t i)
{
        const struct kvt_object *object = &call->objects[i];
        struct wire_reserve_item item = {
                .group = object->group,
                .shard = object->shard,
                .flags = wire_flags(object->flags),
                .hit_tokens = object->flags & KVT_HIT ? object->hit_tokens : 0,
                .boundary_tokens = object->boundary_tokens,
                .numa_node = object->numa_node ? object->numa_node - 1 : UINT32_MAX,
                .bytes = call->owner ? call->items[i].bytes : object->bytes,
                .n_covers = object->flags & KVT_CROPPABLE ? object->n_covers : 0,
        };

        memcpy(&item.boundary, &object->digest, sizeof(item.boundary));
        if (!(object->flags & KVT_PARENT_UNKNOWN))
                memcpy(&item.parent, &object->parent, sizeof(item.parent));
        return item;
}

/* All items of a message stand before all of its covers: count first what fits. */
static bool add_reserves(struct batch *batch, const struct kvt__call *call)
{
        const struct kvt_object *objects = call->objects;
        uint32_t n = call->n;

        for (uint32_t first = 0, end; first < n; first = end) {
                size_t left = WIRE_MESSAGE_MAX - sizeof(struct wire_batch);

                for (end = first; end < n; end++) {
                        struct wire_reserve_item item = reserve_item(call, end);
                        size_t bytes = sizeof(item) + item.n_covers * sizeof(struct digest);

                        if (bytes > left)
                                break;
                        left -= bytes;
                        message_append(&batch->builder, &item, sizeof(item), 1);
                }
                for (uint32_t i = first; i < end; i++)
                        if (objects[i].flags & KVT_CROPPABLE)
                                message_append(&batch->builder, objects[i].covers,
                                               objects[i].n_covers * sizeof(struct digest), 0);
                if (end < n) {
                        if (!send_message(batch, true))
                                return false;
                        start_message(batch);
                }
        }
        return true;
}

/* Neighbouring pages become one run. They passed check_acquire(), which limits the runs. */
static uint32_t merge_pages(const struct kvt_object *object,
                            struct wire_page_run ret_runs[WIRE_RUNS_MAX])
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < object->n_pages; i++) {
                if (i && object->pages[i] == object->pages[i - 1] + 1)
                        ret_runs[n - 1].n_pages++;
                else
                        ret_runs[n++] = (struct wire_page_run){object->pages[i], 1};
        }
        return n;
}

static bool add_keys(struct batch *batch, const struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n; i++) {
                const struct kvt_object *object = &call->objects[i];
                struct wire_key_item item = {.group = object->group, .shard = object->shard};
                struct wire_page_run runs[WIRE_RUNS_MAX];

                memcpy(&item.boundary, &object->digest, sizeof(item.boundary));
                if (call->kind != WIRE_PREFETCH)
                        item.n_runs = merge_pages(object, runs);
                if (!add(batch, &item, sizeof(item), runs, item.n_runs * sizeof(runs[0])))
                        return false;
        }
        return true;
}

static bool add_commits(struct batch *batch, const struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n_live; i++) {
                uint32_t index = call->items[i].live;
                const struct kvt_object *object = call->owner ? NULL : &call->objects[index];
                struct wire_commit_item item = {
                        .lease = call->items[index].lease->wire,
                        .n_pieces = object ? object->n_checksums : 0,
                };

                if (!add(batch, &item, sizeof(item), object ? object->checksums : NULL,
                         item.n_pieces * sizeof(uint64_t)))
                        return false;
        }
        return true;
}

static bool add_leases(struct batch *batch, const struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n_live; i++) {
                uint64_t lease = call->items[call->items[i].live].lease->wire;

                if (!add(batch, &lease, sizeof(lease), NULL, 0))
                        return false;
        }
        return true;
}

static bool add_mark(struct batch *batch, const void *digest, uint32_t flags)
{
        struct wire_mark_item item = {.flags = flags};

        memcpy(&item.boundary, digest, sizeof(item.boundary));
        return add(batch, &item, sizeof(item), NULL, 0);
}

static bool add_marks(struct batch *batch, const struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n; i++) {
                const struct kvt_object *object = &call->objects[i];
                uint32_t flags = call->mark;

                if (!flags)
                        flags = (object->flags & KVT_RECLAIM_BELOW ? WIRE_MARK_RECLAIM_BELOW : 0) |
                                (object->flags & KVT_RECLAIM_PREFIX ? WIRE_MARK_RECLAIM_PREFIX : 0);
                if (!add_mark(batch, &object->digest, flags))
                        return false;
        }
        return true;
}

static bool add_items(struct batch *batch, const struct kvt__call *call)
{
        switch (batch->fixed.batch.header.kind) {
        case WIRE_RESERVE:
                return add_reserves(batch, call);
        case WIRE_ACQUIRE:
        case WIRE_ADOPT:
        case WIRE_PREFETCH:
                return add_keys(batch, call);
        case WIRE_COMMIT:
                return add_commits(batch, call);
        case WIRE_MARK:
                return add_marks(batch, call);
        default:
                return add_leases(batch, call);
        }
}

static uint32_t acquire_flags(uint32_t flags)
{
        return (flags & KVT_CALL_WAIT ? WIRE_ACQUIRE_WAIT : 0) |
               (flags & KVT_CALL_PARTIAL ? WIRE_ACQUIRE_PARTIAL : 0) |
               (flags & KVT_CALL_CHECKSUMS ? WIRE_ACQUIRE_CHECKSUMS : 0) |
               (flags & KVT_CALL_RESIDENT ? WIRE_ACQUIRE_RESIDENT : 0);
}

void kvt__send_call(struct kvt_session *session, struct kvt__call *call, uint64_t timeout_ns)
{
        struct batch batch;
        struct wire_batch *fixed = &batch.fixed.batch;

        batch_init(&batch, session, call->is_doomed ? WIRE_ABORT : call->kind, call->id,
                   call->n_live);
        if (kvt__kind_grants(call->kind) || call->kind == WIRE_MARK || call->kind == WIRE_PREFETCH)
                fixed->layout = session->layout;
        if (kvt__kind_loads(call->kind)) {
                fixed->flags = acquire_flags(call->flags);
                if (call->flags & KVT_CALL_WAIT)
                        fixed->timeout_ns = timeout_ns;
        } else if (call->kind != WIRE_RELEASE && call->kind != WIRE_MARK) {
                fixed->set = call->set;
        }
        if (call->kind == WIRE_ADOPT) {
                batch.fixed_bytes = sizeof(struct wire_adopt);
                memcpy(batch.fixed.adopt.token, call->token, sizeof(call->token));
        } else if (call->kind == WIRE_PREFETCH) {
                batch.fixed_bytes = sizeof(struct wire_prefetch);
                memcpy(batch.fixed.prefetch.hint, call->hint, strlen(call->hint));
        }
        call->is_on_wire = true;
        start_message(&batch);
        if (add_items(&batch, call))
                send_message(&batch, false);
}

/* ---- checks ---- */

static enum kvt_status copy_options(struct kvt_call *ret_options, const struct kvt_call *options)
{
        static const uint32_t known = KVT_CALL_WAITED | KVT_CALL_WAIT | KVT_CALL_PARTIAL |
                                      KVT_CALL_CHECKSUMS | KVT_CALL_RESIDENT | KVT_CALL_BYPASS;

        *ret_options = (struct kvt_call){.size = sizeof(*ret_options)};
        if (!options)
                return KVT_OK;
        if (kvt__copy_sized(ret_options, sizeof(*ret_options), options) || ret_options->reserved)
                return KVT_INVALID;
        return ret_options->flags & ~known ? KVT_UNSUPPORTED : KVT_OK;
}

enum kvt_status kvt__check_reserve(const struct kvt_object *object, uint64_t bytes)
{
        static const uint32_t known = KVT_REPLACE | KVT_PARENT_UNKNOWN | KVT_CROPPABLE |
                                      KVT_CONTIGUOUS | KVT_HIT | KVT_BRANCH;

        if (object->flags & ~known)
                return KVT_UNSUPPORTED;
        if (bytes > LAYOUT_OBJECT_MAX ||
            (object->flags & KVT_CROPPABLE && object->n_covers > WIRE_COVERS_MAX))
                return KVT_TOO_LARGE;
        if (!bytes || (object->flags & KVT_CROPPABLE && object->n_covers && !object->covers))
                return KVT_INVALID;
        return KVT_OK;
}

static enum kvt_status check_reserve(const struct kvt_object *objects, size_t n)
{
        enum kvt_status status = KVT_OK;

        for (size_t i = 0; i < n && status == KVT_OK; i++)
                status = kvt__check_reserve(&objects[i], objects[i].bytes);
        return status;
}

static enum kvt_status check_commit(const struct kvt_object *objects, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (objects[i].n_checksums > CHECKSUM_PIECES_MAX ||
                    (objects[i].n_checksums && !objects[i].checksums))
                        return KVT_INVALID;
        return KVT_OK;
}

/* Ascending pages; how many runs they are goes to @ret_runs. */
static enum kvt_status count_runs(const struct kvt_object *object, uint32_t *ret_runs)
{
        uint32_t n = 0;

        if (!object->pages != !object->n_pages)
                return KVT_INVALID;
        for (uint32_t i = 0; i < object->n_pages; i++) {
                uint32_t page = object->pages[i];

                if (page == UINT32_MAX || (i && page <= object->pages[i - 1]))
                        return KVT_INVALID;
                n += !i || page != object->pages[i - 1] + 1;
        }
        *ret_runs = n;
        return n > WIRE_RUNS_MAX ? KVT_TOO_LARGE : KVT_OK;
}

static enum kvt_status check_acquire(const struct kvt_object *objects, size_t n)
{
        uint64_t total = 0;

        for (size_t i = 0; i < n; i++) {
                uint32_t n_runs;
                enum kvt_status status = count_runs(&objects[i], &n_runs);

                if (status != KVT_OK)
                        return status;
                total += n_runs;
        }
        return total > WIRE_RUNS_TOTAL ? KVT_TOO_LARGE : KVT_OK;
}

/* Pages are for whoever acquires them. */
static enum kvt_status check_adopt(const struct kvt_object *objects, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (objects[i].pages || objects[i].n_pages)
                        return KVT_INVALID;
        return KVT_OK;
}

enum kvt_status kvt__check_load(const struct kvt_object *objects, size_t n, const uint8_t *token)
{
        return token ? check_adopt(objects, n) : check_acquire(objects, n);
}

_Static_assert(KVT_OBJECTS_MAX == WIRE_ITEMS_MAX, "the public limit is the wire's");

enum kvt_status kvt__check_call(struct kvt_session *session, struct kvt_call *ret_options,
                                const struct kvt_call *options, const struct kvt_object *objects,
                                size_t n)
{
        if (!session || !n || !objects || n > WIRE_ITEMS_MAX)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        return copy_options(ret_options, options);
}

static enum kvt_status check_room(const struct kvt_session *session)
{
        bool is_full =
                session->calls.n >= KVT__CALLS_MAX || session->outbox.bytes > KVT__OUTBOX_BYTES_MAX;

        return is_full ? KVT_REFUSED : KVT_OK;
}

/* May a new call be sent now? Under the lock. */
static enum kvt_status admit(struct kvt_session *session)
{
        if (session->phase != KVT__UP || session->broken || session->stopping)
                return KVT_UNAVAILABLE;
        return check_room(session);
}

/* ---- calls that ask for leases ---- */

/* KVT_OK: the daemon is asked. Else the answer that every object gets in its place. */
static enum kvt_status answer_here(const struct kvt_session *session, const struct kvt__call *call)
{
        bool loads = kvt__kind_loads(call->kind);
        uint32_t forbidden = loads ? KVT_OPEN_NO_LOADS : KVT_OPEN_NO_STORES;

        /* An end of pins is no store: unsent, it would leave the daemon with them. */
        if (call->mark == WIRE_MARK_UNPIN ||
            (!(session->open_flags & forbidden) && !(call->flags & KVT_CALL_BYPASS)))
                return KVT_OK;
        return loads ? KVT_MISS : KVT_REFUSED;
}

enum kvt_status kvt__submit(struct kvt_session *session, struct kvt__call *call,
                            uint64_t timeout_ns, uint64_t *ret_call)
{
        struct kvt__call *told = call->owner ? call->owner : call;
        enum kvt_status answer, status;

        pthread_mutex_lock(&session->lock);
        answer = answer_here(session, call);
        status = answer == KVT_OK ? admit(session) : check_room(session);
        if (answer == KVT_OK && !session->layout)
                answer = KVT_PENDING;
        if (status == KVT_OK) {
                kvt__call_insert(session, told);
                if (call != told)
                        kvt__call_insert(session, call);
                if (ret_call)
                        *ret_call = told->id;
                if (answer == KVT_OK)
                        kvt__send_call(session, call, timeout_ns);
                else
                        kvt__call_abandon(session, call, answer);
                /* Of an owned call nobody is told: it would stay. */
                if (answer != KVT_OK && call != told)
                        kvt__call_answered(session, call);
        }
        pthread_mutex_unlock(&session->lock);
        return status;
}

static enum kvt_status submit_grant(struct kvt_session *session, uint16_t kind,
                                    const struct kvt_call *options, const uint8_t *token,
                                    struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt__call *call = kvt__call_new(kind, options, objects, n);
        enum kvt_status status;

        if (!call)
                return KVT_NO_MEMORY;
        if (token)
                memcpy(call->token, token, sizeof(call->token));
        status = kvt__submit(session, call, options->timeout_ns, ret_call);
        if (status != KVT_OK)
                free(call);
        return status;
}

enum kvt_status kvt_reserve(struct kvt_session *session, const struct kvt_call *call,
                            struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        if (status == KVT_OK)
                status = check_reserve(objects, n);
        return status == KVT_OK
                       ? submit_grant(session, WIRE_RESERVE, &options, NULL, objects, n, ret_call)
                       : status;
}

enum kvt_status kvt_acquire(struct kvt_session *session, const struct kvt_call *call,
                            struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        if (status == KVT_OK)
                status = check_acquire(objects, n);
        return status == KVT_OK
                       ? submit_grant(session, WIRE_ACQUIRE, &options, NULL, objects, n, ret_call)
                       : status;
}

enum kvt_status kvt_adopt(struct kvt_session *session, const struct kvt_call *call,
                          const uint8_t token[16], struct kvt_object *objects, size_t n,
                          uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        if (status == KVT_OK)
                status = token ? check_adopt(objects, n) : KVT_INVALID;
        return status == KVT_OK
                       ? submit_grant(session, WIRE_ADOPT, &options, token, objects, n, ret_call)
                       : status;
}

enum kvt_status kvt_prefetch(struct kvt_session *session, const struct kvt_call *call,
                             const char *hint, struct kvt_object *objects, size_t n,
                             uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);
        struct kvt__call *submitted;

        if (status != KVT_OK)
                return status;
        if (options.flags & ~(KVT_CALL_WAITED | KVT_CALL_WAIT | KVT_CALL_BYPASS))
                return KVT_UNSUPPORTED;
        if (hint && strlen(hint) >= WIRE_HINT_MAX)
                return KVT_INVALID;
        submitted = kvt__call_new(WIRE_PREFETCH, &options, objects, n);
        if (!submitted)
                return KVT_NO_MEMORY;
        submitted->hint = hint ? hint : "";
        status = kvt__submit(session, submitted, options.timeout_ns, ret_call);
        if (status != KVT_OK)
                free(submitted);
        return status;
}

/* ---- finding ---- */

static void send_find(struct kvt_session *session, struct kvt__call *call,
                      const struct digest *digests, uint32_t n)
{
        struct batch batch;
        bool sent = true;

        batch_init(&batch, session, WIRE_FIND, call->id, n);
        batch.fixed.batch.layout = session->layout;
        call->is_on_wire = true;
        start_message(&batch);
        for (uint32_t i = 0; i < n && sent; i++)
                sent = add(&batch, &digests[i], sizeof(digests[i]), NULL, 0);
        if (sent)
                send_message(&batch, false);
}

/* Is there more to ask than the table on this node says? Under the lock. */
static bool asks_daemon(const struct kvt_session *session)
{
        return session->bridge || session->spans_nodes;
}

/* A bridge keeps them itself. */
static bool keep_digests(const struct kvt_session *session, struct kvt__call *call,
                         const struct digest *digests, uint32_t n)
{
        if (session->bridge || !session->spans_nodes)
                return true;
        call->digests = malloc(n * sizeof(*digests));
        if (!call->digests)
                return false;
        memcpy(call->digests, digests, n * sizeof(*digests));
        call->n_digests = n;
        return true;
}

enum kvt_status kvt__submit_find(struct kvt_session *session, const struct kvt_call *given,
                                 const struct digest *digests, uint32_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = copy_options(&options, given);
        struct kvt__call *call;

        if (status == KVT_OK && options.flags & ~KVT_CALL_WAITED)
                status = KVT_UNSUPPORTED;
        if (status != KVT_OK)
                return status;
        call = kvt__call_new(WIRE_FIND, &options, NULL, 0);
        if (!call)
                return KVT_NO_MEMORY;
        pthread_mutex_lock(&session->lock);
        status = asks_daemon(session) ? admit(session) : check_room(session);
        if (status == KVT_OK && !keep_digests(session, call, digests, n))
                status = KVT_NO_MEMORY;
        if (status != KVT_OK) {
                pthread_mutex_unlock(&session->lock);
                free(call);
                return status;
        }
        kvt__call_insert(session, call);
        if (ret_call)
                *ret_call = call->id;
        if (asks_daemon(session) && !session->layout)
                kvt__call_abandon(session, call, KVT_PENDING);
        else if (asks_daemon(session) && !(session->open_flags & KVT_OPEN_NO_LOADS))
                send_find(session, call, digests, n);
        else
                kvt__call_finish(session, call);
        pthread_mutex_unlock(&session->lock);
        return KVT_OK;
}

/* ---- calls that end leases ---- */

/* Claims the lease for this call, or the item has its status here: it is dead or unknown. */
static bool claim(struct kvt_session *session, struct kvt__call *call, uint32_t index)
{
        struct kvt__item *item = &call->items[index];
        struct kvt__lease *lease = kvt__lease_find(&session->leases, call->objects[index].lease);

        item->status = KVT_GONE;
        if (!lease || lease->ending)
                return false;
        if (lease->writes != (call->kind != WIRE_RELEASE)) {
                item->status = KVT_INVALID;
                return false;
        }
        item->lease = lease;
        if (lease->era->dead || lease->era != session->era || session->broken) {
                kvt__lease_end(&session->leases, lease);
                return false;
        }
        lease->ending = true;
        return true;
}

static void claim_all(struct kvt_session *session, struct kvt__call *call)
{
        uint32_t n_live = 0;

        for (uint32_t i = 0; i < call->n; i++) {
                if (claim(session, call, i)) {
                        call->items[n_live++].live = i;
                        continue;
                }
                call->items[i].is_final = true;
                kvt__item_changed(call, &call->items[i]);
        }
        call->n_live = n_live;
        /* The daemon cannot know of members from an earlier session: nothing is published. */
        call->is_doomed = call->kind == WIRE_COMMIT && call->set && n_live && n_live < call->n;
}

static enum kvt_status submit_end(struct kvt_session *session, uint16_t kind,
                                  const struct kvt_call *options, struct kvt_object *objects,
                                  size_t n, uint64_t *ret_call)
{
        struct kvt__call *call = kvt__call_new(kind, options, objects, n);

        if (!call)
                return KVT_NO_MEMORY;
        pthread_mutex_lock(&session->lock);
        if (check_room(session) != KVT_OK) {
                pthread_mutex_unlock(&session->lock);
                free(call);
                return KVT_REFUSED;
        }
        kvt__call_insert(session, call);
        if (ret_call)
                *ret_call = call->id;
        claim_all(session, call);
        if (call->n_live)
                kvt__send_call(session, call, 0);
        else
                kvt__call_finish(session, call);
        kvt__session_settle(session);
        pthread_mutex_unlock(&session->lock);
        return KVT_OK;
}

enum kvt_status kvt_commit(struct kvt_session *session, const struct kvt_call *call,
                           struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        if (status == KVT_OK)
                status = check_commit(objects, n);
        return status == KVT_OK ? submit_end(session, WIRE_COMMIT, &options, objects, n, ret_call)
                                : status;
}

enum kvt_status kvt_abort(struct kvt_session *session, const struct kvt_call *call,
                          struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        return status == KVT_OK ? submit_end(session, WIRE_ABORT, &options, objects, n, ret_call)
                                : status;
}

enum kvt_status kvt_release(struct kvt_session *session, const struct kvt_call *call,
                            struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, call, objects, n);

        return status == KVT_OK ? submit_end(session, WIRE_RELEASE, &options, objects, n, ret_call)
                                : status;
}

/* ---- marks ---- */

static void forget_pins(struct kvt_session *session, const struct kvt_object *objects, size_t n)
{
        pthread_mutex_lock(&session->lock);
        for (size_t i = 0; i < n; i++)
                kvt__pins_drop(&session->pins, (const void *)&objects[i].digest);
        pthread_mutex_unlock(&session->lock);
}

/* @mark: PIN, UNPIN, or 0 for what each object's flags say. */
static enum kvt_status submit_mark(struct kvt_session *session, uint32_t mark,
                                   const struct kvt_call *given, struct kvt_object *objects,
                                   size_t n, uint64_t *ret_call)
{
        struct kvt_call options;
        enum kvt_status status = kvt__check_call(session, &options, given, objects, n);
        struct kvt__call *call;

        if (status != KVT_OK)
                return status;
        /* Also while the daemon is away: it has forgotten them, and is not told again. */
        if (mark == WIRE_MARK_UNPIN)
                forget_pins(session, objects, n);
        call = kvt__call_new(WIRE_MARK, &options, objects, n);
        if (!call)
                return KVT_NO_MEMORY;
        call->mark = mark;
        if (mark)
                call->pins = kvt__pins_spare(objects, call->n);
        status = mark && !call->pins ? KVT_NO_MEMORY
                                     : kvt__submit(session, call, options.timeout_ns, ret_call);
        if (status != KVT_OK) {
                kvt__pins_free_spare(call->pins, call->n);
                free(call);
        }
        return status;
}

enum kvt_status kvt_reclaim(struct kvt_session *session, const struct kvt_call *call,
                            struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        static const uint32_t known = KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX;

        for (size_t i = 0; objects && i < n; i++) {
                if (objects[i].flags & ~known)
                        return KVT_UNSUPPORTED;
                if (!objects[i].flags)
                        return KVT_INVALID;
        }
        return submit_mark(session, 0, call, objects, n, ret_call);
}

enum kvt_status kvt_pin(struct kvt_session *session, const struct kvt_call *call,
                        struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        return submit_mark(session, WIRE_MARK_PIN, call, objects, n, ret_call);
}

enum kvt_status kvt_unpin(struct kvt_session *session, const struct kvt_call *call,
                          struct kvt_object *objects, size_t n, uint64_t *ret_call)
{
        return submit_mark(session, WIRE_MARK_UNPIN, call, objects, n, ret_call);
}

/* ---- cancel ---- */

static void send_cancel(struct kvt_session *session, struct kvt__call *call)
{
        struct wire_cancel message = {.target = call->target};

        message_header_init(&message.header, WIRE_CANCEL, call->id, session->era->session,
                            session->era->boot_id);
        message.header.length = sizeof(message);
        call->is_on_wire = true;
        kvt__session_send(session, &message, sizeof(message));
}

static bool can_send(const struct kvt_session *session)
{
        return session->phase == KVT__UP && !session->broken;
}

enum kvt_status kvt_cancel(struct kvt_session *session, const struct kvt_call *options,
                           uint64_t target, uint64_t *ret_call)
{
        struct kvt_call copy;
        struct kvt__call *call, *other;
        enum kvt_status status = session && target ? KVT_OK : KVT_INVALID;

        if (status == KVT_OK && kvt__is_forked(session))
                return KVT_FORKED;
        if (status == KVT_OK)
                status = copy_options(&copy, options);
        if (status != KVT_OK)
                return status;
        call = kvt__call_new(WIRE_CANCEL, &copy, NULL, 0);
        if (!call)
                return KVT_NO_MEMORY;
        call->target = target;
        pthread_mutex_lock(&session->lock);
        other = kvt__call_find(session, target);
        /* Its end waits for no one but the copier, who looks up every megabyte. */
        if (other && other->pages)
                call->deadline_ns = 0;
        /* A cancel is always admitted: it is how a caller gets out of having too many calls. */
        kvt__call_insert(session, call);
        if (ret_call)
                *ret_call = call->id;
        if (other && other->is_on_wire && !other->is_done && can_send(session))
                send_cancel(session, call);
        else if (!other || !other->pages || !kvt__page_call_cancel(session, other))
                kvt__call_finish(session, call);
        pthread_mutex_unlock(&session->lock);
        return KVT_OK;
}

/* ---- what the library sends by itself ---- */

static struct kvt__call *internal_call(struct kvt_session *session, uint16_t kind, uint32_t n)
{
        struct kvt__call *call;

        if (!can_send(session))
                return NULL;
        call = kvt__call_new(kind, NULL, NULL, n);
        if (!call) {
                /* Hanging up ends in the same state: the daemon gets everything back. */
                kvt__session_break(session, "out of memory");
                return NULL;
        }
        call->is_internal = true;
        kvt__call_insert(session, call);
        return call;
}

void kvt__stop(struct kvt_session *session, const struct kvt__call *target)
{
        struct kvt__call *call = target->is_on_wire ? internal_call(session, WIRE_CANCEL, 0) : NULL;

        if (!call)
                return;
        call->target = target->id;
        send_cancel(session, call);
}

void kvt__say_copies_ended(struct kvt_session *session, const struct kvt__era *era)
{
        struct kvt__call *call = internal_call(session, WIRE_COPIES_ENDED, 0);
        struct wire_copies_ended message;

        if (!call)
                return;
        message_header_init(&message.header, WIRE_COPIES_ENDED, call->id, session->era->session,
                            session->era->boot_id);
        message.header.length = sizeof(message);
        memcpy(message.secret, era->secret, sizeof(message.secret));
        call->is_on_wire = true;
        kvt__session_send(session, &message, sizeof(message));
}

void kvt__give_back(struct kvt_session *session, uint16_t granted_by, uint64_t set,
                    const uint64_t *wire_leases, uint32_t n)
{
        uint16_t kind = granted_by == WIRE_RESERVE ? WIRE_ABORT : WIRE_RELEASE;
        struct kvt__call *call = internal_call(session, kind, 0);
        struct batch batch;
        bool sent = true;

        if (!call)
                return;
        call->n_live = n;
        call->set = kind == WIRE_ABORT ? set : 0;
        call->is_on_wire = true;
        batch_init(&batch, session, kind, call->id, n);
        batch.fixed.batch.set = call->set;
        if (kind == WIRE_ABORT && !set)
                batch.fixed.batch.flags = WIRE_ABORT_MEMBERS;
        start_message(&batch);
        for (uint32_t i = 0; i < n && sent; i++)
                sent = add(&batch, &wire_leases[i], sizeof(wire_leases[i]), NULL, 0);
        if (sent)
                send_message(&batch, false);
}

/* One request for the @n pins behind @pin, which are there; false: no more can be sent. */
static bool pin_some_again(struct kvt_session *session, const struct kvt__pin *pin, uint32_t n)
{
        struct kvt__pin **pins = kvt__pins_copy(&session->pins, pin, n);
        struct kvt__call *call = pins ? internal_call(session, WIRE_MARK, n) : NULL;
        struct batch batch;
        bool sent = true;

        if (!pins)
                kvt__session_break(session, "out of memory");
        if (!call) {
                kvt__pins_free_spare(pins, n);
                return false;
        }
        call->mark = WIRE_MARK_PIN;
        call->pins = pins;
        call->is_on_wire = true;
        batch_init(&batch, session, WIRE_MARK, call->id, n);
        batch.fixed.batch.layout = session->layout;
        start_message(&batch);
        for (uint32_t i = 0; i < n && sent; i++)
                sent = add_mark(&batch, &pins[i]->digest, WIRE_MARK_PIN);
        return sent && send_message(&batch, false);
}

void kvt__pin_again(struct kvt_session *session)
{
        const struct kvt__pin *each = NULL, *last = NULL;
        uint32_t n = 0;

        while ((each = kvt__pins_after(&session->pins, each))) {
                if (++n < WIRE_ITEMS_MAX)
                        continue;
                if (!pin_some_again(session, last, n))
                        return;
                last = each;
                n = 0;
        }
        if (n)
                pin_some_again(session, last, n);
}
