// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/mark.h"
#include "daemon/record_pool.h"

/* Of one slice: about a millisecond. */
#define SLICE_STEPS 8192u
#define SLICE_DROPS 512u
/* Deletes queued in the tier below; more only takes memory. */
#define FORGETS_MAX 2048u

/* What may be waiting: of one session, and in all, those of sessions that are gone included. */
#define SESSION_ITEMS_MAX WIRE_ITEMS_MAX
#define ITEMS_MAX         (1u << 20)

#define ANY_NUMBER UINT32_MAX

enum note {
        NOTE_NONE, /* the index makes boundaries with this */
        NOTE_ELSEWHERE,
        NOTE_BELOW,
        NOTE_NAMED, /* what hangs on it goes; whether itself, is found when it is walked to */
};

enum stage {
        STAGE_NAMES, /* pins; boundaries whose descendants go are noted */
        STAGE_WALK,  /* over all boundaries: those below go */
        STAGE_CLIMB, /* prefixes go, one after another */
        STAGE_DONE,
};

struct mark_item {
        struct digest boundary;
        uint32_t flags;
        uint32_t status; /* PENDING: not done yet */
};

struct mark_job {
        TAILQ_ENTRY(mark_job) link;
        struct daemon *daemon;
        struct session *session; /* NULL: gone */
        uint64_t request;
        uint16_t layout;
        bool by_admin;
        void (*on_end)(struct session *session, uint64_t request, const struct mark_result *result);

        enum stage stage;
        uint32_t at;       /* item, in stages that go over them */
        uint32_t position; /* boundary of the walk */
        uint8_t *notes;    /* by boundary id; NULL: nothing to walk for */
        bool is_climbing;  /* item @at has got as far as: */
        struct digest next;
        uint32_t children; /* that may hang on it */
        struct mark_result result;
        uint32_t n;
        struct mark_item items[];
};

/* What is left of a slice. */
struct budget {
        uint32_t steps, drops;
};

void marks_init(struct marks *marks)
{
        *marks = (struct marks){0};
        TAILQ_INIT(&marks->jobs);
}

static bool has_more(const struct mark_job *job, const struct budget *budget)
{
        return budget->steps && budget->drops && job->daemon->cache.n_forgetting < FORGETS_MAX;
}

static void take_steps(struct budget *budget, uint64_t n)
{
        budget->steps -= n < budget->steps ? (uint32_t)n : budget->steps;
}

static void take_step(struct budget *budget)
{
        take_steps(budget, 1);
}

/* ---- reclaiming ---- */

/* The boundary may go with its last object. */
static void reclaim_objects(struct mark_job *job, const struct index_boundary *boundary,
                            struct budget *budget)
{
        struct cache *cache = &job->daemon->cache;

        for (uint32_t id = boundary->first_object; id != INDEX_NONE;) {
                struct index_object *object = index_object_at(cache->index, id);

                id = object->next;
                job->result.objects++;
                job->result.bytes += object->raw_bytes;
                cache_drop(cache, object, METRICS_RECLAIMED);
                budget->drops -= budget->drops > 0;
        }
}

static bool is_pinned(const struct mark_job *job, const struct index_boundary *boundary)
{
        struct index *index = job->daemon->cache.index;

        return pins_hold(index_pins(index), index_boundary_id(index, boundary));
}

static uint32_t n_objects(struct index *index, const struct index_boundary *boundary)
{
        uint32_t n = 0;

        for (uint32_t id = boundary->first_object; id; id = index_object_at(index, id)->next)
                n++;
        return n;
}

static void keep(struct mark_job *job, const struct index_boundary *boundary, struct budget *budget)
{
        uint32_t n = n_objects(job->daemon->cache.index, boundary);

        take_steps(budget, n);
        job->result.kept += n;
        job->daemon->metrics.reclaim_kept_objects_total += n;
}

/* ---- below ---- */

static struct index_boundary *parent_of(struct index *index, const struct index_boundary *boundary)
{
        return boundary->parent ? index_boundary_at(index, boundary->parent) : NULL;
}

static int start_notes(struct mark_job *job)
{
        struct index *index = job->daemon->cache.index;
        void *notes;
        int r;

        if (job->notes)
                return 0;
        r = record_array_new(&notes, index_boundaries_max(index) + 1, 1);
        if (r)
                return r;
        job->notes = notes;
        index_set_notes(index, notes);
        return 0;
}

static void end_notes(struct mark_job *job)
{
        struct index *index = job->daemon->cache.index;

        if (!job->notes)
                return;
        index_set_notes(index, NULL);
        record_array_free(steal_ptr(job->notes), index_boundaries_max(index) + 1, 1);
}

/* Up to the first whose answer is known; then all on the way have it. */
static bool is_below(struct mark_job *job, const struct index_boundary *boundary,
                     struct budget *budget)
{
        struct index *index = job->daemon->cache.index;
        const struct index_boundary *known = parent_of(index, boundary);
        enum note note = NOTE_ELSEWHERE;

        while (known && job->notes[index_boundary_id(index, known)] == NOTE_NONE) {
                known = parent_of(index, known);
                take_step(budget);
        }
        if (known && job->notes[index_boundary_id(index, known)] != NOTE_ELSEWHERE)
                note = NOTE_BELOW;
        for (const struct index_boundary *each = boundary; each && each != known;
             each = parent_of(index, each)) {
                uint8_t *own = &job->notes[index_boundary_id(index, each)];

                if (*own == NOTE_NONE)
                        *own = (uint8_t)note;
        }
        return note == NOTE_BELOW;
}

/*
 * Children first: a place in the tree that is held by children alone goes with the last of
 * them, and thousands of such would go in one turn.
 */
static bool walk(struct mark_job *job, struct budget *budget)
{
        struct index *index = job->daemon->cache.index;

        while (has_more(job, budget)) {
                const struct index_boundary *boundary =
                        index_scan_boundaries(index, &job->position, &budget->steps);

                if (!boundary)
                        break;
                if (boundary->layout != job->layout || !is_below(job, boundary, budget))
                        continue;
                if (is_pinned(job, boundary))
                        keep(job, boundary, budget);
                else
                        reclaim_objects(job, boundary, budget);
        }
        return index_boundaries_have_ended(job->position);
}

/* ---- prefixes ---- */

static bool is_leased(struct mark_job *job, const struct index_boundary *boundary,
                      struct budget *budget)
{
        struct cache *cache = &job->daemon->cache;

        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(cache->index, id);
                const struct host_copy *copy = object->host != INDEX_NONE
                                                       ? host_copy_at(&cache->copies, object->host)
                                                       : transfer_arriving(cache, object);

                if (copy && copy->n_leases)
                        return true;
                take_step(budget);
                id = object->next;
        }
        return false;
}

/* OK, or why the climb ends below this boundary. A blob that serves it needs it, too. */
static uint32_t judge(struct mark_job *job, const struct index_boundary *boundary,
                      struct budget *budget)
{
        if (is_pinned(job, boundary)) {
                keep(job, boundary, budget);
                return KVT_WIRE_REFUSED;
        }
        if (boundary->n_children > job->children || boundary->first_cover ||
            is_leased(job, boundary, budget))
                return KVT_WIRE_BUSY;
        return KVT_WIRE_OK;
}

/* The next above that is more than a place in the tree: such go with their last child. */
static const struct index_boundary *
next_above(struct mark_job *job, const struct index_boundary *boundary, struct budget *budget)
{
        struct index *index = job->daemon->cache.index;
        const struct index_boundary *above = parent_of(index, boundary);

        while (above && !above->first_object && !above->first_cover && above->n_children == 1) {
                above = parent_of(index, above);
                take_step(budget);
        }
        return above;
}

/* Reclaims one boundary and goes to the next. False: this was the last. */
static bool climb_one(struct mark_job *job, struct mark_item *item, struct budget *budget)
{
        struct index *index = job->daemon->cache.index;
        const struct index_boundary *boundary = index_find_boundary(index, job->layout, &job->next);
        const struct index_boundary *above;
        bool stays;
        uint32_t status = boundary ? judge(job, boundary, budget) : KVT_WIRE_MISS;

        take_step(budget);
        if (item->status == KVT_WIRE_PENDING)
                item->status = status;
        if (status)
                return false;
        above = next_above(job, boundary, budget);
        /* Only what is below it and going itself keeps its place. */
        stays = boundary->n_children;
        if (above)
                job->next = above->digest;
        job->children = stays;
        reclaim_objects(job, boundary, budget);
        return above;
}

static bool climb(struct mark_job *job, struct mark_item *item, struct budget *budget)
{
        if (!job->is_climbing) {
                job->next = item->boundary;
                /* What was below has been told to go. */
                job->children = item->flags & WIRE_MARK_RECLAIM_BELOW ? ANY_NUMBER : 0;
                job->is_climbing = true;
        }
        while (job->is_climbing && has_more(job, budget))
                job->is_climbing = climb_one(job, item, budget);
        return !job->is_climbing;
}

/* ---- jobs ---- */

static struct pin_set *owner_of(struct mark_job *job)
{
        if (job->by_admin)
                return &job->daemon->marks.admin_pins;
        return job->session ? &job->session->pins : NULL;
}

static uint32_t pin(struct mark_job *job, struct index_boundary *boundary)
{
        struct pin_set *owner = owner_of(job);
        int r = owner ? pin_set_add(owner, job->daemon->cache.index, boundary) : 0;

        if (r > 0)
                job->daemon->metrics.pins_refused_total++;
        else if (!r)
                offer_pinned(&job->daemon->cache, boundary);
        return r > 0 ? KVT_WIRE_REFUSED : r ? KVT_WIRE_NO_MEMORY : KVT_WIRE_OK;
}

static uint32_t unpin(struct mark_job *job, struct index_boundary *boundary)
{
        struct pin_set *owner = owner_of(job);
        bool was = owner && pin_set_remove(owner, job->daemon->cache.index, boundary);

        return was ? KVT_WIRE_OK : KVT_WIRE_MISS;
}

/* What can be said of an item at once; else PENDING. */
static uint32_t name_one(struct mark_job *job, const struct mark_item *item)
{
        struct index *index = job->daemon->cache.index;
        struct index_boundary *boundary = index_find_boundary(index, job->layout, &item->boundary);

        if (!boundary)
                return KVT_WIRE_MISS;
        if (item->flags & WIRE_MARK_PIN)
                return pin(job, boundary);
        if (item->flags & WIRE_MARK_UNPIN)
                return unpin(job, boundary);
        if (item->flags & WIRE_MARK_RECLAIM_BELOW) {
                if (start_notes(job))
                        return KVT_WIRE_NO_MEMORY;
                job->notes[index_boundary_id(index, boundary)] = NOTE_NAMED;
        }
        return KVT_WIRE_PENDING;
}

static bool name_all(struct mark_job *job, struct budget *budget)
{
        const struct pin_table *pins = index_pins(job->daemon->cache.index);

        for (; job->at < job->n && has_more(job, budget); job->at++) {
                uint64_t before = pins->n_steps;

                job->items[job->at].status = name_one(job, &job->items[job->at]);
                take_steps(budget, 1 + pins->n_steps - before);
        }
        return job->at == job->n;
}

static bool climb_all(struct mark_job *job, struct budget *budget)
{
        for (; job->at < job->n && has_more(job, budget); job->at++) {
                struct mark_item *item = &job->items[job->at];

                take_step(budget);
                if (item->status != KVT_WIRE_PENDING && !job->is_climbing)
                        continue;
                if (!(item->flags & WIRE_MARK_RECLAIM_PREFIX))
                        item->status = KVT_WIRE_OK;
                else if (!climb(job, item, budget))
                        return false;
        }
        return job->at == job->n;
}

static bool do_stage(struct mark_job *job, struct budget *budget)
{
        switch (job->stage) {
        case STAGE_NAMES:
                return name_all(job, budget);
        case STAGE_WALK:
                return !job->notes || walk(job, budget);
        default:
                return climb_all(job, budget);
        }
}

static void send_statuses(struct mark_job *job)
{
        struct answer answer;

        answer_begin(&answer, job->session, job->request);
        for (uint32_t i = 0; i < job->n; i++)
                answer_status(&answer, i, job->items[i].status);
        answer_end(&answer, false);
}

static void job_free(struct mark_job *job)
{
        TAILQ_REMOVE(&job->daemon->marks.jobs, job, link);
        job->daemon->marks.n_items -= job->n;
        if (job->session)
                job->session->n_mark_items -= job->n;
        end_notes(job);
        free(job);
}

static void finish(struct mark_job *job)
{
        for (uint32_t i = 0; i < job->n && !job->result.status; i++)
                job->result.status = job->items[i].status;
        if (job->session && job->on_end)
                job->on_end(job->session, job->request, &job->result);
        else if (job->session)
                send_statuses(job);
        job_free(job);
}

void marks_go_on(struct daemon *daemon)
{
        struct budget budget = {SLICE_STEPS, SLICE_DROPS};
        struct mark_job *job;

        if (!daemon->recovered)
                return;
        while ((job = TAILQ_FIRST(&daemon->marks.jobs)) && has_more(job, &budget)) {
                if (!do_stage(job, &budget))
                        break;
                job->at = 0;
                if (++job->stage == STAGE_DONE)
                        finish(job);
        }
        /* With a full queue the next delete that ends makes the loop turn. */
        if (job && daemon->cache.n_forgetting < FORGETS_MAX)
                daemon_wake(daemon);
}

static bool may_wait(const struct session *session, uint32_t n)
{
        return session->n_mark_items + n <= SESSION_ITEMS_MAX &&
               session->daemon->marks.n_items + n <= ITEMS_MAX;
}

static struct mark_job *job_new(struct session *session, uint64_t request, uint16_t layout,
                                uint32_t n)
{
        struct mark_job *job = calloc(1, sizeof(*job) + n * sizeof(job->items[0]));

        if (!job)
                return NULL;
        job->daemon = session->daemon;
        job->session = session;
        job->request = request;
        job->layout = layout;
        job->n = n;
        session->n_mark_items += n;
        session->daemon->marks.n_items += n;
        TAILQ_INSERT_TAIL(&session->daemon->marks.jobs, job, link);
        daemon_wake(session->daemon);
        return job;
}

static void refuse(struct session *session, const struct assembly *assembly, uint32_t status)
{
        struct answer answer;

        answer_begin(&answer, session, assembly->request);
        for (uint32_t i = 0; i < assembly->n; i++)
                answer_status(&answer, i, status);
        answer_end(&answer, false);
}

void mark_request(struct session *session, const struct wire_batch *batch)
{
        struct assembly *assembly;
        struct mark_job *job = NULL;
        uint32_t status = KVT_WIRE_REFUSED;

        if (!assembly_add(session, batch, &assembly))
                return;
        if (!session->no_stores && may_wait(session, assembly->n)) {
                job = job_new(session, assembly->request, session->layout, assembly->n);
                status = KVT_WIRE_NO_MEMORY;
        }
        for (uint32_t i = 0; job && i < assembly->n; i++)
                job->items[i] = (struct mark_item){assembly->marks[i].boundary,
                                                   assembly->marks[i].flags, KVT_WIRE_PENDING};
        if (!job)
                refuse(session, assembly, status);
        assembly_free(assembly);
}

int mark_by_admin(struct session *session, uint64_t request, uint16_t layout,
                  const struct digest *digest, uint32_t flags,
                  void (*on_end)(struct session *session, uint64_t request,
                                 const struct mark_result *result))
{
        struct mark_job *job;

        if (!may_wait(session, 1))
                return -EBUSY;
        job = job_new(session, request, layout, 1);
        if (!job)
                return err_raise(-ENOMEM);
        job->by_admin = true;
        job->on_end = on_end;
        job->items[0] = (struct mark_item){*digest, flags, KVT_WIRE_PENDING};
        return 0;
}

void mark_cancel(struct session *session, uint64_t target)
{
        struct mark_job *job;

        TAILQ_FOREACH(job, &session->daemon->marks.jobs, link) {
                if (job->session != session || job->request != target)
                        continue;
                for (uint32_t i = 0; i < job->n; i++)
                        if (job->items[i].status == KVT_WIRE_PENDING)
                                job->items[i].status = KVT_WIRE_CANCELLED;
                finish(job);
                return;
        }
}

void marks_hang_up(struct session *session)
{
        struct mark_job *job;

        TAILQ_FOREACH(job, &session->daemon->marks.jobs, link)
                if (job->session == session)
                        job->session = NULL;
        session->n_mark_items = 0;
        pin_set_clear(&session->pins, session->daemon->cache.index, 0);
}

void marks_clear_layout(struct daemon *daemon, uint16_t layout)
{
        struct session *session;

        pin_set_clear(&daemon->marks.admin_pins, daemon->cache.index, layout);
        TAILQ_FOREACH(session, &daemon->sessions, link)
                pin_set_clear(&session->pins, daemon->cache.index, layout);
}

void marks_deinit(struct daemon *daemon)
{
        struct mark_job *job;

        while ((job = TAILQ_FIRST(&daemon->marks.jobs)))
                job_free(job);
        pin_set_clear(&daemon->marks.admin_pins, daemon->cache.index, 0);
}
