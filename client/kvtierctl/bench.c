// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl bench: stores, loads and matches objects of its own in the running daemon, then
 * clears them. Each batch of up to 16 MiB is one reserve, copy, commit, or one acquire,
 * copy, release; its time is a sample of the percentiles.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "client/kvtier.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define PAGE_TOKENS   16u
#define BATCH_BYTES   (16u << 20)
#define BATCH_OBJECTS 64u
#define SAMPLES_MIN   16u /* batches are made smaller for so many, if there are objects */
#define MATCH_DIGESTS 512u
#define MATCH_CALLS   2000u
#define TIMEOUT_NS    UINT64_C(30000000000)

#define CLEAR_TRIES    200u
#define CLEAR_PAUSE_NS 50000000

enum { OPTION_KEEP = 256 };

struct sizes {
        unsigned long long object_bytes;
        unsigned long long n_objects; /* 0: a quarter of the host tier, at most 256 MiB */
        bool keep;
};

struct bench {
        struct kvt_session *session;
        struct sizes sizes;
        uint32_t n_batch;
        struct kvt_digest *digests;
        struct kvt_object *objects; /* sizes.n_objects */
        uint8_t *bytes;             /* one batch: what is written, and room to read it back */
        double *samples;
        size_t n_samples;
        struct kvt_session_info info;
};

/* Of one kind of call. */
struct measure {
        const char *name;
        double bytes_per_second; /* 0: not a matter of bytes */
        double p50, p95, p99;    /* seconds */
        size_t n;
};

static double now_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static error_t parse_sizes(int key, char *value, struct argp_state *state)
{
        struct sizes *sizes = state->input;
        unsigned long long *number = key == 'b' ? &sizes->object_bytes : &sizes->n_objects;
        char *end;

        switch (key) {
        case 'b':
        case 'n':
                errno = 0;
                *number = strtoull(value, &end, 10);
                if (end != value && key == 'b' && (*end == 'K' || *end == 'M')) {
                        *number <<= *end++ == 'K' ? 10 : 20;
                        if (!strcmp(end, "iB"))
                                end += 2;
                }
                if (errno || *end || end == value || value[0] == '-' || !*number ||
                    *number > 1u << 30)
                        argp_error(state, "-%c %s: use 1 to %s", key, value,
                                   key == 'b' ? "1024MiB, in bytes or with KiB or MiB behind"
                                              : "1073741824");
                return 0;
        case OPTION_KEEP:
                sizes->keep = true;
                return 0;
        case ARGP_KEY_ARG:
                argp_error(state, "unexpected argument: %s", value);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

/* ---- set up ---- */

static int open_session(const struct context *context, struct bench *bench)
{
        struct kvt_group group = {
                .name = "bench",
                .kind = KVT_GROUP_ATTENTION,
                .page_tokens = PAGE_TOKENS,
                .page_bytes = bench->sizes.object_bytes,
        };
        struct kvt_layout layout = {
                .size = sizeof(layout),
                .model = "kvtierctl bench",
                .engine = "kvtierctl",
                .chunk_tokens = PAGE_TOKENS,
                .groups = &group,
                .n_groups = 1,
        };
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = context->socket,
                .program = "kvtierctl bench",
                .layout = &layout,
                .connect_timeout_ns = UINT64_C(5000000000),
        };
        char text[512] = "";
        enum kvt_status status = kvt_open(&bench->session, &options, text, sizeof(text));

        if (status == KVT_OK)
                return STATUS_OK;
        command_error("cannot attach: %s", text[0] ? text : kvt_status_text(status));
        return status == KVT_UNAVAILABLE ? STATUS_UNREACHABLE : STATUS_NEGATIVE;
}

static uint64_t least(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

static void choose_sizes(struct bench *bench)
{
        struct sizes *sizes = &bench->sizes;
        uint64_t share = bench->info.host_bytes / 4;

        if (!sizes->n_objects)
                sizes->n_objects = least(share, 256u << 20) / sizes->object_bytes;
        if (!sizes->n_objects)
                sizes->n_objects = 1;
        bench->n_batch = (uint32_t)least(BATCH_BYTES / sizes->object_bytes,
                                         least(BATCH_OBJECTS, sizes->n_objects / SAMPLES_MIN));
        if (bench->n_batch < 1)
                bench->n_batch = 1;
}

static int prepare(struct bench *bench)
{
        uint64_t salt, n_tokens;
        uint32_t *tokens;

        bench->info.size = sizeof(bench->info);
        if (kvt_session_info(bench->session, &bench->info) != KVT_OK)
                return STATUS_NEGATIVE;
        choose_sizes(bench);
        n_tokens = bench->sizes.n_objects * PAGE_TOKENS;
        tokens = calloc(n_tokens, sizeof(*tokens));
        bench->digests = calloc(bench->sizes.n_objects, sizeof(*bench->digests));
        bench->objects = calloc(bench->sizes.n_objects, sizeof(*bench->objects));
        bench->bytes = malloc(bench->n_batch * bench->sizes.object_bytes);
        bench->samples = calloc(bench->sizes.n_objects + MATCH_CALLS, sizeof(*bench->samples));
        if (!tokens || !bench->digests || !bench->objects || !bench->bytes || !bench->samples ||
            getrandom(&salt, sizeof(salt), 0) != sizeof(salt)) {
                free(tokens);
                command_error("out of memory");
                return STATUS_NEGATIVE;
        }
        /* Other tokens each time: nothing of an earlier run is met. */
        memcpy(tokens, &salt, sizeof(salt));
        memset(bench->bytes, 0x5a, bench->n_batch * bench->sizes.object_bytes);
        kvt_digest_chain(NULL, tokens, n_tokens, PAGE_TOKENS, bench->digests, NULL);
        free(tokens);
        return STATUS_OK;
}

static void deinit(struct bench *bench)
{
        kvt_close(bench->session);
        free(bench->digests);
        free(bench->objects);
        free(bench->bytes);
        free(bench->samples);
}

/* ---- calls ---- */

typedef enum kvt_status (*submit_function)(struct kvt_session *session, const struct kvt_call *call,
                                           struct kvt_object *objects, size_t n,
                                           uint64_t *ret_call);

static enum kvt_status do_call(struct bench *bench, submit_function submit, uint64_t first,
                               size_t n)
{
        struct kvt_call call = {
                .size = sizeof(call),
                .flags = KVT_CALL_WAITED,
                .timeout_ns = TIMEOUT_NS,
        };
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(bench->session, &call, bench->objects + first, n, &id);
        if (status == KVT_OK)
                status = kvt_wait_call(bench->session, id, &completion, 2 * TIMEOUT_NS);
        return status == KVT_OK ? completion.status : status;
}

static void fill_objects(struct bench *bench)
{
        for (uint64_t number = 0; number < bench->sizes.n_objects; number++) {
                bench->objects[number] = (struct kvt_object){
                        .digest = bench->digests[number],
                        .boundary_tokens = (uint32_t)(number + 1) * PAGE_TOKENS,
                        .bytes = bench->sizes.object_bytes,
                };
                if (number > 0)
                        bench->objects[number].parent = bench->digests[number - 1];
        }
}

static void write_batch(struct bench *bench, uint64_t first, size_t n)
{
        for (size_t i = 0; i < n; i++)
                kvt_write(&bench->objects[first + i], 0,
                          bench->bytes + i * bench->sizes.object_bytes, bench->sizes.object_bytes);
}

static enum kvt_status reserve_batch(struct bench *bench, uint64_t first, size_t n)
{
        enum kvt_status status = do_call(bench, kvt_reserve, first, n);

        if (status == KVT_OK)
                write_batch(bench, first, n);
        return status;
}

static enum kvt_status abort_batch(struct bench *bench, uint64_t first, size_t n)
{
        return do_call(bench, kvt_abort, first, n);
}

static enum kvt_status store_batch(struct bench *bench, uint64_t first, size_t n)
{
        enum kvt_status status = reserve_batch(bench, first, n);

        return status == KVT_OK ? do_call(bench, kvt_commit, first, n) : status;
}

static enum kvt_status load_batch(struct bench *bench, uint64_t first, size_t n)
{
        enum kvt_status status = do_call(bench, kvt_acquire, first, n);

        if (status != KVT_OK)
                return status;
        for (size_t i = 0; i < n; i++)
                kvt_read(&bench->objects[first + i], 0,
                         bench->bytes + i * bench->sizes.object_bytes, bench->sizes.object_bytes);
        return do_call(bench, kvt_release, first, n);
}

/* ---- measures ---- */

static int by_value(const void *a, const void *b)
{
        double left = *(const double *)a, right = *(const double *)b;

        return (left > right) - (left < right);
}

static void take_percentiles(struct bench *bench, struct measure *measure)
{
        size_t n = bench->n_samples;

        qsort(bench->samples, n, sizeof(*bench->samples), by_value);
        measure->n = n;
        measure->p50 = bench->samples[n / 2];
        measure->p95 = bench->samples[n * 95 / 100];
        measure->p99 = bench->samples[n * 99 / 100];
        bench->n_samples = 0;
}

static int run_batches(struct bench *bench,
                       enum kvt_status (*batch)(struct bench *bench, uint64_t first, size_t n),
                       const char *name, struct measure *ret_measure)
{
        uint64_t n_objects = bench->sizes.n_objects;
        double sum = 0;

        fill_objects(bench);
        for (uint64_t first = 0; first < n_objects; first += bench->n_batch) {
                double begin = now_seconds();
                enum kvt_status status =
                        batch(bench, first, least(n_objects - first, bench->n_batch));

                if (status != KVT_OK) {
                        command_error("%s: %s: try fewer or smaller objects (-n, -b)", name,
                                      kvt_status_text(status));
                        return STATUS_NEGATIVE;
                }
                bench->samples[bench->n_samples] = now_seconds() - begin;
                sum += bench->samples[bench->n_samples++];
        }
        *ret_measure = (struct measure){
                .name = name,
                .bytes_per_second =
                        (double)(n_objects * bench->sizes.object_bytes) / (sum > 0 ? sum : 1e-9),
        };
        take_percentiles(bench, ret_measure);
        return STATUS_OK;
}

/*
 * Writes all objects once and takes them back: the first touch of a page in this process
 * costs many times what a copy does, and an engine pays it once. It may be more than can be
 * leased, or than session.leases_max and session.bytes_max allow: then that much is warm.
 */
static int warm_up(struct bench *bench)
{
        enum kvt_status status = KVT_OK;
        uint64_t n_objects = bench->sizes.n_objects, first, n = 0;
        bool any;

        fill_objects(bench);
        for (first = 0; first < n_objects && status == KVT_OK; first += n) {
                n = least(n_objects - first, bench->n_batch);
                status = reserve_batch(bench, first, n);
        }
        any = first > n;
        for (n_objects = first, first = 0; first < n_objects; first += n) {
                n = least(n_objects - first, bench->n_batch);
                abort_batch(bench, first, n);
        }
        if (status == KVT_OK || status == KVT_BUSY || any)
                return STATUS_OK;
        command_error("reserve: %s: try smaller objects (-b)", kvt_status_text(status));
        return STATUS_NEGATIVE;
}

/*
 * An entry that the daemon is writing at this moment (its objects are on their way down)
 * reads as a miss, so one short match says nothing; one that stays short does.
 */
static void match_again(struct bench *bench, const struct kvt_match_query *query,
                        struct kvt_match *ret_match)
{
        for (unsigned i = 0; i < 100 && ret_match->boundaries != query->n_digests; i++) {
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
                kvt_match(bench->session, query, ret_match);
        }
}

static int run_match(struct bench *bench, struct measure *ret_measure)
{
        uint64_t n_objects = bench->sizes.n_objects;
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = bench->digests,
                .n_digests = n_objects < MATCH_DIGESTS ? (uint32_t)n_objects : MATCH_DIGESTS,
        };
        struct kvt_match match = {.size = sizeof(match)};

        for (unsigned i = 0; i < MATCH_CALLS; i++) {
                double begin = now_seconds();
                enum kvt_status status = kvt_match(bench->session, &query, &match);

                bench->samples[bench->n_samples++] = now_seconds() - begin;
                if (status == KVT_OK && match.boundaries != query.n_digests)
                        match_again(bench, &query, &match);
                if (status != KVT_OK || match.boundaries != query.n_digests) {
                        command_error("match: %u of %u boundaries (%s)", match.boundaries,
                                      query.n_digests, kvt_status_text(status));
                        return STATUS_NEGATIVE;
                }
        }
        *ret_measure = (struct measure){.name = "match"};
        take_percentiles(bench, ret_measure);
        return STATUS_OK;
}

/* ---- the end ---- */

/* What is being written down just then stays, so that it has to be said again. */
static void clear(struct context *context, const struct bench *bench)
{
        char layout[2 * sizeof(bench->info.layout_id) + 1];

        for (size_t i = 0; i < sizeof(bench->info.layout_id); i++)
                sprintf(layout + 2 * i, "%02x", bench->info.layout_id[i]);
        for (unsigned i = 0; i < CLEAR_TRIES; i++) {
                json_auto_t *answer = NULL;
                struct timespec pause = {.tv_nsec = CLEAR_PAUSE_NS};

                if (command_ask(context,
                                json_pack("{s:s, s:s}", "command", "clear", "layout", layout),
                                &answer))
                        break;
                if (!json_u64(answer, "kept"))
                        return;
                nanosleep(&pause, NULL);
        }
        command_error("the bench's objects stay until they are evicted");
}

static void print_table(const struct bench *bench, const struct measure *measures, size_t n)
{
        struct table table;

        printf("%s objects of %s, %u a batch; match of %u boundaries\n\n",
               text_count(bench->sizes.n_objects), text_bytes(bench->sizes.object_bytes),
               bench->n_batch,
               (unsigned)(bench->sizes.n_objects < MATCH_DIGESTS ? bench->sizes.n_objects
                                                                 : MATCH_DIGESTS));
        table_init(&table, "CALL #GB/s #P50 #P95 #P99 #SAMPLES");
        for (size_t i = 0; i < n; i++) {
                table_add(&table, "%s", measures[i].name);
                if (measures[i].bytes_per_second > 0)
                        table_add(&table, "%.2f", measures[i].bytes_per_second / 1e9);
                else
                        table_add(&table, "-");
                table_add(&table, "%s", text_seconds(measures[i].p50));
                table_add(&table, "%s", text_seconds(measures[i].p95));
                table_add(&table, "%s", text_seconds(measures[i].p99));
                table_add(&table, "%zu", measures[i].n);
        }
        table_print(&table, stdout);
        table_deinit(&table);
}

static void print_document(const struct bench *bench, const struct measure *measures, size_t n)
{
        json_auto_t *document = json_pack("{s:b, s:I, s:I, s:I}", "ok", 1, "objects",
                                          (json_int_t)bench->sizes.n_objects, "object_bytes",
                                          (json_int_t)bench->sizes.object_bytes, "batch_objects",
                                          (json_int_t)bench->n_batch);

        for (size_t i = 0; i < n; i++)
                json_object_set_new(document, measures[i].name,
                                    json_pack("{s:f, s:f, s:f, s:f, s:I}", "gb_per_second",
                                              measures[i].bytes_per_second / 1e9, "p50_seconds",
                                              measures[i].p50, "p95_seconds", measures[i].p95,
                                              "p99_seconds", measures[i].p99, "samples",
                                              (json_int_t)measures[i].n));
        command_print_json(document, false);
}

int bench_command(struct context *context, int argc, char **argv)
{
        static const struct argp_option options[] = {
                {"bytes", 'b', "BYTES", 0, "Of one object, KiB or MiB behind it (default 1MiB)", 0},
                {"objects", 'n', "N", 0,
                 "How many (default: a quarter of the host tier, at most 256 MiB)", 0},
                {"keep", OPTION_KEEP, NULL, 0,
                 "Leave them stored, for trying ls, show, verify, evict and clear", 0},
                {0},
        };
        static const struct argp argp = {.options = options, .parser = parse_sizes};
        struct bench bench = {.sizes.object_bytes = 1u << 20};
        struct measure measures[3];
        int r;

        command_parse(context, &argp, "Stores, loads and matches objects of its own.", argc, argv,
                      &bench.sizes, 0);
        /* First the plain connection: it says best why the daemon does not answer. */
        r = command_connect(context);
        if (r == STATUS_OK)
                r = open_session(context, &bench);
        if (r == STATUS_OK)
                r = prepare(&bench);
        if (r == STATUS_OK) {
                r = warm_up(&bench);
                if (r == STATUS_OK)
                        r = run_batches(&bench, store_batch, "store", &measures[0]);
                if (r == STATUS_OK)
                        r = run_batches(&bench, load_batch, "load", &measures[1]);
                if (r == STATUS_OK)
                        r = run_match(&bench, &measures[2]);
                if (!bench.sizes.keep)
                        clear(context, &bench);
        }
        if (r == STATUS_OK) {
                if (context->json)
                        print_document(&bench, measures, 3);
                else
                        print_table(&bench, measures, 3);
        }
        deinit(&bench);
        return r;
}
