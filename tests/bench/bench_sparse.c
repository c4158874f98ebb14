// SPDX-License-Identifier: Apache-2.0
/*
 * A client that loads chunks of 6 MiB, 64 pages each, from a running kvtierd, whole or an
 * eighth of their pages; tests/bench/run measures the daemon around it.
 *
 *   bench_sparse SOCKET store COUNT
 *   bench_sparse SOCKET whole|run|scattered COUNT [SEED]
 *
 * `run` asks for 8 pages side by side, `scattered` for 8 anywhere. One chunk at a time, in
 * an order of their own; prints the median milliseconds from acquire to the last byte that
 * may be read. Ends with status 1 when anything but the expected outcome comes back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"

#define N_PAGES     64u
#define N_ASKED     (N_PAGES / 8)
#define PAGE_BYTES  98304u
#define CHUNK_BYTES (PAGE_BYTES * N_PAGES)
#define COUNT_MAX   1024u
#define SECOND_NS   UINT64_C(1000000000)

static const struct kvt_call waited = {.size = sizeof(waited), .flags = KVT_CALL_WAITED};

static void fail(const char *what, enum kvt_status status)
{
        fprintf(stderr, "bench_sparse: %s: %s\n", what, kvt_status_text(status));
        exit(1);
}

static struct kvt_session *open_session(const char *socket)
{
        static const struct kvt_group group = {.name = "kv",
                                               .kind = KVT_GROUP_ATTENTION,
                                               .page_tokens = 16,
                                               .page_bytes = PAGE_BYTES};
        static const struct kvt_layout layout = {.size = sizeof(layout),
                                                 .model = "bench_sparse",
                                                 .chunk_tokens = 16 * N_PAGES,
                                                 .groups = &group,
                                                 .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = socket,
                                      .layout = &layout,
                                      .connect_timeout_ns = 60 * SECOND_NS};
        struct kvt_session *session;
        char why[256] = "";
        enum kvt_status status = kvt_open(&session, &options, why, sizeof(why));

        if (status) {
                fprintf(stderr, "%s\n", why);
                fail("open", status);
        }
        return session;
}

static struct kvt_object chunk(uint32_t number)
{
        struct kvt_object object = {
                .boundary_tokens = 16 * N_PAGES, .flags = KVT_PARENT_UNKNOWN, .bytes = CHUNK_BYTES};

        memcpy(object.digest.bytes, &number, sizeof(number));
        object.digest.bytes[31] = 1;
        return object;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static void call(struct kvt_session *session, submit_fn submit, struct kvt_object *object,
                 const char *what)
{
        struct kvt_completion completion;
        uint64_t id;
        enum kvt_status status = submit(session, &waited, object, 1, &id);

        if (!status)
                status = kvt_wait_call(session, id, &completion, 60 * SECOND_NS);
        if (!status)
                status = (enum kvt_status)completion.status;
        if (status)
                fail(what, status);
}

static void store(struct kvt_session *session, uint32_t number)
{
        struct kvt_object object = chunk(number);

        call(session, kvt_reserve, &object, "reserve");
        for (uint32_t i = 0; i < object.n_segments; i++)
                memset(object.segments[i].address, (int)(number + 1), object.segments[i].bytes);
        call(session, kvt_commit, &object, "commit");
}

/* Ascending pages: a run of neighbours, or each with an equal chance. */
static void choose(uint32_t pages[N_ASKED], int scattered)
{
        uint32_t n = 0, first = (uint32_t)(drand48() * (N_PAGES - N_ASKED + 1));

        if (!scattered)
                for (; n < N_ASKED; n++)
                        pages[n] = first + n;
        for (uint32_t page = 0; n < N_ASKED; page++)
                if (drand48() * (N_PAGES - page) < N_ASKED - n)
                        pages[n++] = page;
}

static double load(struct kvt_session *session, uint32_t number, const char *how)
{
        struct kvt_object object = chunk(number);
        struct timespec began, ended;
        uint32_t pages[N_ASKED];

        if (strcmp(how, "whole")) {
                choose(pages, !strcmp(how, "scattered"));
                object.pages = pages;
                object.n_pages = N_ASKED;
        }
        clock_gettime(CLOCK_MONOTONIC, &began);
        call(session, kvt_acquire, &object, "acquire");
        clock_gettime(CLOCK_MONOTONIC, &ended);
        if (object.bytes != (object.pages ? N_ASKED : N_PAGES) * PAGE_BYTES)
                fail("bytes", KVT_INVALID);
        call(session, kvt_release, &object, "release");
        return (double)(ended.tv_sec - began.tv_sec) * 1e3 +
               (double)(ended.tv_nsec - began.tv_nsec) / 1e6;
}

static int compare(const void *a, const void *b)
{
        const double *x = a, *y = b;

        return *x < *y ? -1 : *x > *y;
}

int main(int argc, char **argv)
{
        static double times[COUNT_MAX];
        uint32_t count = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
        struct kvt_session *session;

        if (!count || count > COUNT_MAX) {
                fprintf(stderr,
                        "usage: bench_sparse SOCKET store|whole|run|scattered COUNT [SEED]\n");
                return 1;
        }
        session = open_session(argv[1]);
        srand48(argc > 4 ? atoi(argv[4]) : 1);
        for (uint32_t i = 0; i < count; i++) {
                if (!strcmp(argv[2], "store"))
                        store(session, i);
                else
                        times[i] = load(session, i * 7 % count, argv[2]);
        }
        qsort(times, count, sizeof(times[0]), compare);
        printf("%.4f\n", times[count / 2]);
        kvt_close(session);
        return 0;
}
