// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "base/thread.h"
#include "cuda/clock.h"
#include "cuda/registry.h"

enum piece_state { WAITING, REGISTERED, REFUSED };

struct piece {
        enum piece_state state;
        uint64_t there;
};

struct arena {
        TAILQ_ENTRY(arena) link;
        struct kvt__mapping *mapping;
        bool is_leaving;
        uint32_t n_pieces;
        struct piece pieces[];
};

TAILQ_HEAD(arena_list, arena);

struct registry {
        LIST_ENTRY(registry) lost_link;
        struct cuda_driver driver;
        struct registry_options options;
        pthread_mutex_t lock;
        pthread_cond_t work; /* for the thread */
        pthread_cond_t over; /* the thread has ended */
        struct arena_list arenas;
        cu_device device;
        int numa_node;
        bool is_running, is_closing, is_lost, is_over, is_left;
        struct registry_counts counts;
};

int registry_new(struct registry **ret_registry, const struct registry_options *options)
{
        struct registry *registry = calloc(1, sizeof(*registry));

        if (!registry)
                return err_raise(-ENOMEM);
        registry->driver = *options->driver;
        registry->options = *options;
        TAILQ_INIT(&registry->arenas);
        pthread_mutex_init(&registry->lock, NULL);
        pthread_cond_init(&registry->work, NULL);
        clock_cond_init(&registry->over);
        *ret_registry = registry;
        return 0;
}

/* ---- pieces ---- */

static uint64_t piece_bytes(const struct registry *registry, const struct arena *arena, uint32_t i)
{
        uint64_t piece = registry->options.piece_bytes;
        uint64_t left = arena->mapping->bytes - i * piece;

        return left < piece ? left : piece;
}

static uint8_t *piece_base(const struct registry *registry, const struct arena *arena, uint32_t i)
{
        return arena->mapping->base + i * registry->options.piece_bytes;
}

/* The nearest to the GPU first: its own node, then memory that is bound to none, then others. */
static unsigned distance(const struct registry *registry, const struct arena *arena)
{
        uint32_t node = arena->mapping->numa_node;

        return node == (uint32_t)registry->numa_node ? 0 : node == UINT32_MAX ? 1 : 2;
}

static uint32_t next_waiting(const struct arena *arena)
{
        uint32_t i = 0;

        while (i < arena->n_pieces && arena->pieces[i].state != WAITING)
                i++;
        return i;
}

static struct arena *next_to_register(struct registry *registry, uint32_t *ret_piece)
{
        struct arena *arena, *best = NULL;

        if (registry->options.leaves_unregistered || registry->is_closing || registry->is_lost)
                return NULL;
        TAILQ_FOREACH(arena, &registry->arenas, link) {
                uint32_t piece = next_waiting(arena);

                if (arena->is_leaving || piece == arena->n_pieces ||
                    (best && distance(registry, best) <= distance(registry, arena)))
                        continue;
                best = arena;
                *ret_piece = piece;
        }
        return best;
}

/* Once the session is gone nobody is there to be told. */
static void tell_refused(struct registry *registry, cu_result error)
{
        pthread_mutex_lock(&registry->lock);
        if (!registry->is_closing)
                registry->options.on_refused(registry->options.context, error);
        pthread_mutex_unlock(&registry->lock);
}

/* Only the thread frees arenas: this one stays while the lock is away. */
static void register_piece(struct registry *registry, struct arena *arena, uint32_t i)
{
        const struct cuda_driver *driver = &registry->driver;
        uint8_t *base = piece_base(registry, arena, i);
        uint64_t bytes = piece_bytes(registry, arena, i);
        cu_address there = 0;
        cu_result error;

        pthread_mutex_unlock(&registry->lock);
        error = driver->host_register(base, bytes,
                                      CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP);
        if (!error && driver->host_address(&there, base, 0)) {
                driver->host_unregister(base);
                error = CU_E_INVALID_VALUE;
        }
        if (error)
                tell_refused(registry, error);
        pthread_mutex_lock(&registry->lock);
        arena->pieces[i] = (struct piece){error ? REFUSED : REGISTERED, there};
        if (error)
                registry->counts.refused_bytes += bytes;
        else
                registry->counts.registered_bytes += bytes;
}

/* ---- arenas ---- */

static struct arena *next_to_leave(struct registry *registry)
{
        struct arena *arena;

        TAILQ_FOREACH(arena, &registry->arenas, link)
                if (!registry->is_lost && (arena->is_leaving || registry->is_closing))
                        break;
        return arena;
}

static void forget_piece(struct registry *registry, struct arena *arena, uint32_t i)
{
        uint64_t bytes = piece_bytes(registry, arena, i);
        enum piece_state state = arena->pieces[i].state;

        arena->pieces[i].state = REFUSED;
        if (state == REFUSED)
                registry->counts.refused_bytes -= bytes;
        if (state != REGISTERED)
                return;
        registry->counts.registered_bytes -= bytes;
        if (arena->mapping->is_foreign)
                return;
        pthread_mutex_unlock(&registry->lock);
        registry->driver.host_unregister(piece_base(registry, arena, i));
        pthread_mutex_lock(&registry->lock);
}

static void drop(struct registry *registry, struct arena *arena)
{
        TAILQ_REMOVE(&registry->arenas, arena, link);
        registry->counts.mapped_bytes -= arena->mapping->bytes;
        registry->options.let_go(arena->mapping);
        free(arena);
}

/* It can be found until its last piece is gone, but has no leases any more to be found for. */
static void leave(struct registry *registry, struct arena *arena)
{
        for (uint32_t i = 0; i < arena->n_pieces && !registry->is_lost; i++)
                forget_piece(registry, arena, i);
        if (!registry->is_lost)
                drop(registry, arena);
}

/* What the driver may still write to stays mapped, and known, until the process ends. */
static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, registry) lost = LIST_HEAD_INITIALIZER(lost);

static void registry_free(struct registry *registry)
{
        if (registry->is_lost) {
                pthread_mutex_lock(&lost_lock);
                LIST_INSERT_HEAD(&lost, registry, lost_link);
                pthread_mutex_unlock(&lost_lock);
                return;
        }
        while (!TAILQ_EMPTY(&registry->arenas))
                drop(registry, TAILQ_FIRST(&registry->arenas));
        pthread_cond_destroy(&registry->work);
        pthread_cond_destroy(&registry->over);
        pthread_mutex_destroy(&registry->lock);
        free(registry);
}

void registry_map(struct registry *registry, struct kvt__mapping *mapping)
{
        uint64_t piece = registry->options.piece_bytes;
        uint64_t n = (mapping->bytes + piece - 1) / piece;
        struct arena *arena = calloc(1, sizeof(*arena) + n * sizeof(arena->pieces[0]));

        /* Without memory for it, it is used as it is: slowly. */
        if (!arena) {
                registry->options.let_go(mapping);
                return;
        }
        arena->mapping = mapping;
        arena->n_pieces = (uint32_t)n;
        for (uint32_t i = 0; i < n && mapping->is_foreign; i++)
                arena->pieces[i] =
                        (struct piece){REGISTERED, (uintptr_t)piece_base(registry, arena, i)};
        pthread_mutex_lock(&registry->lock);
        TAILQ_INSERT_TAIL(&registry->arenas, arena, link);
        registry->counts.mapped_bytes += mapping->bytes;
        if (mapping->is_foreign)
                registry->counts.registered_bytes += mapping->bytes;
        pthread_cond_signal(&registry->work);
        pthread_mutex_unlock(&registry->lock);
}

void registry_unmap(struct registry *registry, struct kvt__mapping *mapping)
{
        struct arena *arena;

        pthread_mutex_lock(&registry->lock);
        TAILQ_FOREACH(arena, &registry->arenas, link)
                if (arena->mapping == mapping)
                        arena->is_leaving = true;
        pthread_cond_signal(&registry->work);
        pthread_mutex_unlock(&registry->lock);
}

void registry_find(struct registry *registry, uint64_t address, struct registry_extent *ret_extent)
{
        uint64_t piece = registry->options.piece_bytes;
        struct arena *arena;

        *ret_extent = (struct registry_extent){address, address + 1, address, false, false};
        pthread_mutex_lock(&registry->lock);
        TAILQ_FOREACH(arena, &registry->arenas, link) {
                uint64_t base = (uintptr_t)arena->mapping->base;
                uint32_t i = (uint32_t)((address - base) / piece);

                if (address < base || address - base >= arena->mapping->bytes)
                        continue;
                ret_extent->start = ret_extent->there = base + i * piece;
                ret_extent->end = ret_extent->start + piece_bytes(registry, arena, i);
                ret_extent->is_foreign = arena->mapping->is_foreign;
                ret_extent->is_registered = arena->pieces[i].state == REGISTERED;
                if (ret_extent->is_registered)
                        ret_extent->there = arena->pieces[i].there;
                break;
        }
        pthread_mutex_unlock(&registry->lock);
}

bool registry_covers(struct registry *registry, const struct kvt__page_list *list)
{
        uint64_t left = list->n_slots * list->group->stored_bytes;

        for (const struct kvt_segment *segment = list->segments; left; segment++) {
                uint64_t at = (uintptr_t)segment->address, end = at + segment->bytes;

                while (at < end) {
                        struct registry_extent extent;

                        registry_find(registry, at, &extent);
                        if (!extent.is_registered)
                                return false;
                        at = extent.end;
                }
                left -= segment->bytes < left ? segment->bytes : left;
        }
        return true;
}

void registry_count(struct registry *registry, struct registry_counts *ret_counts)
{
        pthread_mutex_lock(&registry->lock);
        *ret_counts = registry->counts;
        pthread_mutex_unlock(&registry->lock);
}

/* ---- the thread ---- */

/* One step. False: there is nothing to do. */
static bool step(struct registry *registry)
{
        struct arena *arena = next_to_leave(registry);
        uint32_t piece;

        if (arena) {
                leave(registry, arena);
                return true;
        }
        arena = next_to_register(registry, &piece);
        if (arena)
                register_piece(registry, arena, piece);
        return arena != NULL;
}

static void work(struct registry *registry)
{
        for (;;) {
                if (step(registry))
                        continue;
                if (registry->is_closing)
                        return;
                pthread_cond_wait(&registry->work, &registry->lock);
        }
}

static void *run(void *argument)
{
        struct registry *registry = argument;
        const struct cuda_driver *driver = &registry->driver;
        cu_context context;
        bool is_retained, is_in, is_left;
        int mode;

        /* Kept by this thread alone: it may outlive the session. */
        is_retained = !driver->primary_retain(&context, registry->device);
        is_in = is_retained && !cuda_enter(driver, context, &mode);
        pthread_mutex_lock(&registry->lock);
        if (!is_in)
                registry->options.leaves_unregistered = true;
        work(registry);
        pthread_mutex_unlock(&registry->lock);
        if (is_in)
                cuda_leave(driver, mode);
        if (is_retained)
                driver->primary_release(registry->device);
        pthread_mutex_lock(&registry->lock);
        registry->is_over = true;
        is_left = registry->is_left;
        pthread_cond_signal(&registry->over);
        pthread_mutex_unlock(&registry->lock);
        if (is_left)
                registry_free(registry);
        return NULL;
}

/* Under the lock, for which the new thread waits, so that it sees all that is set here. */
static int start(struct registry *registry)
{
        pthread_t thread;
        int r = thread_start(&thread, run, registry);

        if (r)
                return r;
        pthread_detach(thread);
        registry->is_running = true;
        return 0;
}

int registry_start(struct registry *registry, cu_device device, int numa_node)
{
        int r;

        pthread_mutex_lock(&registry->lock);
        registry->device = device;
        registry->numa_node = numa_node;
        r = start(registry);
        pthread_mutex_unlock(&registry->lock);
        return r;
}

void registry_lose(struct registry *registry)
{
        pthread_mutex_lock(&registry->lock);
        registry->is_lost = true;
        pthread_mutex_unlock(&registry->lock);
}

void registry_close(struct registry *registry, uint64_t timeout_ns)
{
        struct timespec until = clock_timespec(clock_now_ns() + timeout_ns);
        int r = 0;

        pthread_mutex_lock(&registry->lock);
        registry->is_closing = true;
        pthread_cond_signal(&registry->work);
        while (registry->is_running && !registry->is_over && !r)
                r = pthread_cond_timedwait(&registry->over, &registry->lock, &until);
        registry->is_left = registry->is_running && !registry->is_over;
        r = registry->is_left;
        pthread_mutex_unlock(&registry->lock);
        if (!r)
                registry_free(registry);
}
