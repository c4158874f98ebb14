// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "storage/arena.h"
#include "storage/extent.h"
#include "storage/host.h"
#include "storage/memory.h"

/* Small pages are everybody's: this much stays for the others. */
#define MARGIN_BYTES (64ull << 20)
#define RETRY_MS     1000u

/* What the worker makes. Its own from uv_queue_work until on_piece. */
struct piece {
        uv_work_t work;
        struct arena_wish wish;
        struct arena_memory memory;
        struct why why;
        int result;
};

struct host_pool {
        struct host_options options;
        uv_loop_t *loop;
        uv_timer_t retry;
        struct piece piece;
        bool working;
        atomic_bool cancelled; /* the loop tells the worker */

        uint32_t *numa_nodes;      /* options.numa_nodes, our own copy */
        struct host_arena *arenas; /* room for all from the start, so that they never move */
        size_t n_arenas, n_pieces;
        uint32_t first_id;
        uint64_t used_bytes;

        bool stalled;
        char stall_reason[160];

        bool timer_closed;
        void (*on_closed)(void *user);
        void *on_closed_user;
};

/* What the configuration asks for. */

static int check_sizes(const struct host_options *options, struct why *why)
{
        uint64_t page = options->page_bytes, piece = options->piece_bytes;

        if (page != HOST_UNIT_BYTES && page != 2ull << 20 && page != 1ull << 30)
                why_set(why, "pages of %" PRIu64 " bytes: there are 4096, 2 MiB and 1 GiB", page);
        else if (piece == 0 || piece % page)
                why_set(why,
                        "an arena of %" PRIu64 " bytes is no multiple of its pages of %" PRIu64
                        "; %" PRIu64 " would do",
                        piece, page, (piece / page + 1) * page);
        else if (options->total_bytes == 0 || options->total_bytes % piece)
                why_set(why,
                        "%" PRIu64 " bytes in all are no multiple of the arena's %" PRIu64
                        "; %" PRIu64 " would do",
                        options->total_bytes, piece, (options->total_bytes / piece + 1) * piece);
        else
                return 0;
        return err_raise(-EINVAL);
}

static uint64_t margin_bytes(const struct host_options *options)
{
        return options->page_bytes == HOST_UNIT_BYTES ? MARGIN_BYTES : 0;
}

/* What would have to be otherwise: more huge pages, or fewer bytes. */
static void say_what_fits(const struct host_options *options, const struct memory_bound *limit,
                          uint64_t usable, struct why *why)
{
        uint64_t fits = usable - usable % options->piece_bytes;
        char pages[80] = "", bytes[80] = "";

        if (strstr(limit->source, "/hugepages-"))
                snprintf(pages, sizeof(pages), "; set nr_hugepages there to %" PRIu64 " first",
                         options->total_bytes / options->page_bytes);
        if (fits)
                snprintf(bytes, sizeof(bytes), "; %" PRIu64 " MiB would do", fits >> 20);
        why_set(why, "arenas of %" PRIu64 " MiB do not fit: %s gives %" PRIu64 " MiB%s%s",
                options->total_bytes >> 20, limit->source, limit->bytes >> 20, pages,
                fits || *pages ? bytes : "; not even one piece fits: use smaller ones");
}

int host_check(const struct host_options *options, struct why *why)
{
        struct memory_bounds bounds;
        uint64_t margin = margin_bytes(options), usable;
        int r = check_sizes(options, why);

        if (r < 0)
                return r;
        r = memory_read(&bounds, options->page_bytes, "");
        if (r < 0) {
                why_set(why, "/proc/meminfo does not say how much memory there is");
                return err_raise(-EINVAL);
        }
        usable = bounds.limit.bytes > margin ? bounds.limit.bytes - margin : 0;
        if (options->total_bytes <= usable)
                return 0;
        say_what_fits(options, &bounds.limit, usable, why);
        return err_raise(-EINVAL);
}

/* One piece, on the worker. */

static uint64_t free_bytes_now(void *user)
{
        const struct host_options *options = user;
        uint64_t margin = margin_bytes(options);
        struct memory_bounds bounds;

        if (options->free_bytes)
                return options->free_bytes(options->user);
        if (memory_read(&bounds, options->page_bytes, "") < 0)
                return 0;
        return bounds.free.bytes > margin ? bounds.free.bytes - margin : 0;
}

static void make_piece(uv_work_t *work)
{
        struct host_pool *pool = work->data;
        struct piece *piece = &pool->piece;

        piece->result = arena_make(&piece->memory, &piece->wish, &piece->why);
        if (!piece->result && pool->options.prepare && !atomic_load(&pool->cancelled))
                pool->options.prepare(pool->options.user, piece->memory.base,
                                      pool->options.piece_bytes);
}

/* The pool, on the loop. */

static void start_piece(struct host_pool *pool);

static void finish_close(struct host_pool *pool)
{
        void (*on_closed)(void *user) = pool->on_closed;
        void *user = pool->on_closed_user;

        if (!pool->timer_closed || pool->working)
                return;
        for (size_t i = 0; i < pool->n_arenas; i++) {
                struct host_arena *arena = &pool->arenas[i];
                struct arena_memory memory = {.fd = arena->fd, .base = arena->base};

                extent_map_free(arena->extents);
                arena_drop(&memory, arena->bytes);
        }
        free(pool->numa_nodes);
        free(pool->arenas);
        free(pool);
        on_closed(user);
}

static void on_retry(uv_timer_t *timer)
{
        start_piece(timer->data);
}

static void stall(struct host_pool *pool, const char *reason)
{
        bool was_stalled = pool->stalled;

        pool->stalled = true;
        snprintf(pool->stall_reason, sizeof(pool->stall_reason), "%.159s", reason);
        uv_timer_start(&pool->retry, on_retry,
                       pool->options.retry_ms ? pool->options.retry_ms : RETRY_MS, 0);
        if (!was_stalled && pool->options.on_stalled)
                pool->options.on_stalled(pool->options.user, pool->stall_reason);
}

static void add_arena(struct host_pool *pool)
{
        struct host_arena *arena = &pool->arenas[pool->n_arenas];
        struct piece *piece = &pool->piece;

        *arena = (struct host_arena){
                .id = pool->first_id + (uint32_t)pool->n_arenas,
                .numa_node = piece->wish.numa_node,
                .bytes = pool->options.piece_bytes,
                .page_bytes = pool->options.page_bytes,
        };
        if (extent_map_new(&arena->extents, arena->bytes / HOST_UNIT_BYTES) < 0) {
                arena_drop(&piece->memory, arena->bytes);
                stall(pool, "no memory to keep account of an arena");
                return;
        }
        arena->base = piece->memory.base;
        arena->fd = piece->memory.fd;
        pool->n_arenas++;
        pool->stalled = false;
        if (pool->options.on_arena)
                pool->options.on_arena(pool->options.user, arena);
        if (!pool->on_closed)
                start_piece(pool);
}

static void on_piece(uv_work_t *work, int status)
{
        struct host_pool *pool = work->data;
        struct piece *piece = &pool->piece;

        pool->working = false;
        if (pool->on_closed) {
                arena_drop(&piece->memory, pool->options.piece_bytes);
                finish_close(pool);
        } else if (piece->result == 0) {
                add_arena(pool);
        } else {
                stall(pool, piece->why.text);
        }
}

static uint32_t node_of_piece(const struct host_options *options, size_t index)
{
        return options->n_numa_nodes ? options->numa_nodes[index % options->n_numa_nodes]
                                     : ARENA_ANY_NODE;
}

static void start_piece(struct host_pool *pool)
{
        struct piece *piece = &pool->piece;
        int r;

        if (pool->n_arenas == pool->n_pieces)
                return;
        piece->wish = (struct arena_wish){
                .bytes = pool->options.piece_bytes,
                .page_bytes = pool->options.page_bytes,
                .numa_node = node_of_piece(&pool->options, pool->n_arenas),
                .free_bytes = free_bytes_now,
                .user = &pool->options,
                .cancelled = &pool->cancelled,
        };
        piece->memory = (struct arena_memory){.fd = -1};
        piece->result = ARENA_E_CANCELLED; /* unless the worker comes to it */
        piece->work.data = pool;
        r = uv_queue_work(pool->loop, &piece->work, make_piece, on_piece);
        assert(r == 0); /* it fails only without a callback */
        pool->working = true;
}

/* Ids stay clear of UINT32_MAX, which means no arena at all elsewhere. */
static int choose_first_id(uint32_t *ret_id)
{
        uint32_t id;

        if (getrandom(&id, sizeof(id), 0) != sizeof(id))
                return err_raise(-EIO);
        *ret_id = 1 + id % (UINT32_MAX / 2);
        return 0;
}

int host_pool_new(struct host_pool **ret_pool, uv_loop_t *loop, const struct host_options *options)
{
        _cleanup_free_ struct host_pool *pool = calloc(1, sizeof(*pool));
        _cleanup_free_ struct host_arena *arenas = NULL;
        _cleanup_free_ uint32_t *nodes = NULL;
        int r;

        assert(options->piece_bytes > 0 && options->total_bytes % options->piece_bytes == 0);
        if (!pool)
                return err_raise(-ENOMEM);
        pool->options = *options;
        pool->loop = loop;
        pool->n_pieces = options->total_bytes / options->piece_bytes;
        arenas = calloc(pool->n_pieces, sizeof(*arenas));
        nodes = calloc(options->n_numa_nodes + 1, sizeof(*nodes));
        if (!arenas || !nodes)
                return err_raise(-ENOMEM);
        if (options->n_numa_nodes)
                memcpy(nodes, options->numa_nodes, options->n_numa_nodes * sizeof(*nodes));
        r = choose_first_id(&pool->first_id);
        if (r < 0)
                return r;
        r = uv_timer_init(loop, &pool->retry);
        if (r < 0)
                return err_raise(r);
        pool->retry.data = pool;
        pool->arenas = steal_ptr(arenas);
        pool->numa_nodes = steal_ptr(nodes);
        pool->options.numa_nodes = pool->numa_nodes;
        start_piece(pool);
        *ret_pool = steal_ptr(pool);
        return 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
        struct host_pool *pool = handle->data;

        pool->timer_closed = true;
        finish_close(pool);
}

void host_pool_close(struct host_pool *pool, void (*on_closed)(void *user), void *user)
{
        pool->on_closed = on_closed;
        pool->on_closed_user = user;
        atomic_store(&pool->cancelled, true);
        if (pool->working)
                (void)uv_cancel((uv_req_t *)&pool->piece.work);
        uv_close((uv_handle_t *)&pool->retry, on_timer_closed);
}

size_t host_n_arenas(const struct host_pool *pool)
{
        return pool->n_arenas;
}

const struct host_arena *host_arena_at(const struct host_pool *pool, size_t index)
{
        return index < pool->n_arenas ? &pool->arenas[index] : NULL;
}

const struct host_arena *host_arena_by_id(const struct host_pool *pool, uint32_t arena_id)
{
        return host_arena_at(pool, (size_t)(uint32_t)(arena_id - pool->first_id));
}

void *host_address(const struct host_pool *pool, const struct host_extent *extent)
{
        const struct host_arena *arena = host_arena_by_id(pool, extent->arena_id);

        assert(arena && extent->offset + extent->length <= arena->bytes);
        return (char *)arena->base + extent->offset;
}

/* Space. */

/* What one host_alloc() has so far. */
struct gathering {
        struct host_pool *pool;
        uint64_t n_units; /* still to find */
        struct host_extent *extents;
        uint32_t n_extents;
};

/*
 * The arena to take from next: the first that holds all of @n_units in one run, so that
 * later arenas keep their long runs; else the one with the longest run. NULL: all full.
 */
static struct host_arena *choose_arena(const struct host_pool *pool, uint64_t n_units,
                                       uint32_t numa_node, uint64_t *ret_largest)
{
        struct host_arena *best = NULL;
        uint64_t best_largest = 0;

        for (size_t i = 0; i < pool->n_arenas && best_largest < n_units; i++) {
                struct host_arena *arena = &pool->arenas[i];
                uint64_t largest = extent_map_largest(arena->extents);

                if ((numa_node != ARENA_ANY_NODE && arena->numa_node != numa_node) ||
                    largest <= best_largest)
                        continue;
                best = arena;
                best_largest = largest;
        }
        *ret_largest = best_largest;
        return best;
}

/* One extent more. HOST_E_FULL when there is nothing left to take. */
static int take_extent(struct gathering *gathering, uint32_t numa_node)
{
        struct host_extent *extent = &gathering->extents[gathering->n_extents];
        struct extent_run run;
        uint32_t n_runs;
        uint64_t largest;
        struct host_arena *arena;
        int r;

        arena = choose_arena(gathering->pool, gathering->n_units, numa_node, &largest);
        if (!arena)
                return HOST_E_FULL;
        if (largest > gathering->n_units)
                largest = gathering->n_units;
        r = extent_map_alloc(arena->extents, largest, 1, &run, &n_runs);
        assert(r <= 0); /* the run was just seen */
        if (r < 0)
                return r;
        *extent = (struct host_extent){
                .arena_id = arena->id,
                .offset = run.first * HOST_UNIT_BYTES,
                .length = run.count * HOST_UNIT_BYTES,
        };
        gathering->pool->used_bytes += extent->length;
        gathering->n_units -= run.count;
        gathering->n_extents++;
        return 0;
}

static int gather(struct gathering *gathering, uint32_t numa_node, uint32_t max_extents)
{
        uint64_t n_units = gathering->n_units;
        int r = 0;

        while (r == 0 && gathering->n_units > 0)
                r = gathering->n_extents < max_extents ? take_extent(gathering, numa_node)
                                                       : HOST_E_FULL;
        if (r == 0)
                return 0;
        host_release(gathering->pool, gathering->extents, gathering->n_extents);
        gathering->n_extents = 0;
        gathering->n_units = n_units;
        return r;
}

/* The rule of extent.h, over all arenas: crumbs only while some space stays free besides. */
static uint32_t limit_extents(const struct host_pool *pool, uint64_t bytes, uint32_t max_extents)
{
        uint64_t ready = pool->n_arenas * pool->options.piece_bytes;
        uint64_t n_free = ready - pool->used_bytes;

        if (bytes > n_free)
                return 0;
        if (max_extents > EXTENT_RUNS_GOOD && n_free - bytes < ready / EXTENT_SLACK_DIVISOR)
                return EXTENT_RUNS_GOOD;
        return max_extents;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

int host_alloc(struct host_pool *pool, uint64_t bytes, uint32_t numa_node, uint32_t max_extents,
               struct host_extent *ret_extents, uint32_t *ret_n_extents)
{
        uint64_t n_units = bytes / HOST_UNIT_BYTES + (bytes % HOST_UNIT_BYTES != 0);
        struct host_extent extents[HOST_EXTENTS_MAX];
        struct gathering gathering = {.pool = pool, .n_units = n_units, .extents = extents};
        uint32_t limit;
        int r = HOST_E_FULL;

        assert(bytes > 0 && max_extents > 0);
        limit = limit_extents(pool, n_units * HOST_UNIT_BYTES,
                              smaller(max_extents, HOST_EXTENTS_MAX));
        if (limit == 0)
                return HOST_E_FULL;
        if (numa_node != ARENA_ANY_NODE)
                r = gather(&gathering, numa_node, smaller(limit, EXTENT_RUNS_GOOD));
        if (r == HOST_E_FULL)
                r = gather(&gathering, ARENA_ANY_NODE, limit);
        if (r != 0)
                return r;
        memcpy(ret_extents, extents, gathering.n_extents * sizeof(extents[0]));
        *ret_n_extents = gathering.n_extents;
        return 0;
}

void host_release(struct host_pool *pool, const struct host_extent *extents, uint32_t n_extents)
{
        for (uint32_t i = 0; i < n_extents; i++) {
                const struct host_arena *arena = host_arena_by_id(pool, extents[i].arena_id);

                assert(arena && extents[i].offset % HOST_UNIT_BYTES == 0 &&
                       extents[i].length % HOST_UNIT_BYTES == 0);
                extent_map_release(arena->extents,
                                   (struct extent_run){extents[i].offset / HOST_UNIT_BYTES,
                                                       extents[i].length / HOST_UNIT_BYTES});
                pool->used_bytes -= extents[i].length;
        }
}

void host_usage(const struct host_pool *pool, struct host_usage *ret_usage)
{
        *ret_usage = (struct host_usage){
                .configured_bytes = pool->options.total_bytes,
                .ready_bytes = pool->n_arenas * pool->options.piece_bytes,
                .used_bytes = pool->used_bytes,
                .stalled = pool->stalled,
        };
        if (pool->stalled)
                memcpy(ret_usage->stall_reason, pool->stall_reason, sizeof(pool->stall_reason));
}
