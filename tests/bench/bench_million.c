// SPDX-License-Identifier: Apache-2.0
/*
 * A client that fills a running kvtierd with small objects; tests/bench/run measures the
 * daemon around it.
 *
 *   bench_million SOCKET store FIRST COUNT   stores objects FIRST .. FIRST + COUNT - 1
 *   bench_million SOCKET load POPULATION COUNT [SEED]
 *                                            loads COUNT random ones of the first POPULATION
 *   bench_million SOCKET first N             waits for the first hit on object N; prints "hit"
 *   bench_million SOCKET hit POPULATION COUNT
 *                                            loads as above, one at a time; prints of their
 *                                            nanoseconds the median, the one in a thousand
 *                                            that took longer, and the longest
 *
 * Each object is 4 KiB, a root of its own, named by its number. Ends with status 1 when
 * anything but the expected outcome comes back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"

#define OBJECT_BYTES 4096u
#define BATCH        512u
#define SECOND_NS    UINT64_C(1000000000)

static void fail(const char *what, enum kvt_status status)
{
        fprintf(stderr, "bench_million: %s: %s\n", what, kvt_status_text(status));
        exit(1);
}

static struct kvt_session *open_session(const char *socket)
{
        static const struct kvt_group group = {
                .name = "blob", .kind = KVT_GROUP_STATE, .page_bytes = OBJECT_BYTES};
        static const struct kvt_layout layout = {
                .size = sizeof(layout), .model = "bench_million", .groups = &group, .n_groups = 1};
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

static void name(struct kvt_object *object, uint64_t number)
{
        memset(object, 0, sizeof(*object));
        memcpy(object->digest.bytes, &number, sizeof(number));
        object->digest.bytes[31] = 1;
        object->boundary_tokens = 256;
        object->bytes = OBJECT_BYTES;
}

static void wait_for(struct kvt_session *session, uint64_t call, const char *what)
{
        struct kvt_completion completion;
        enum kvt_status status = kvt_wait_call(session, call, &completion, 60 * SECOND_NS);

        if (!status)
                status = (enum kvt_status)completion.status;
        if (status)
                fail(what, status);
}

static const struct kvt_call waited = {.size = sizeof(waited), .flags = KVT_CALL_WAITED};

static void store(struct kvt_session *session, uint64_t first, uint64_t count)
{
        static struct kvt_object objects[BATCH];
        uint64_t call;

        for (uint64_t done = 0; done < count;) {
                size_t n = count - done < BATCH ? count - done : BATCH;
                enum kvt_status status;

                for (size_t i = 0; i < n; i++)
                        name(&objects[i], first + done + i);
                status = kvt_reserve(session, &waited, objects, n, &call);
                if (status)
                        fail("reserve", status);
                wait_for(session, call, "reserve");
                for (size_t i = 0; i < n; i++)
                        memset(objects[i].segments[0].address, (int)(done + i), OBJECT_BYTES);
                status = kvt_commit(session, &waited, objects, n, &call);
                if (status)
                        fail("commit", status);
                wait_for(session, call, "commit");
                done += n;
        }
}

static void load(struct kvt_session *session, uint64_t population, uint64_t count, unsigned seed)
{
        static struct kvt_object objects[BATCH];
        uint64_t call;

        srand48(seed);
        for (uint64_t done = 0; done < count;) {
                size_t n = count - done < BATCH ? count - done : BATCH;
                enum kvt_status status;

                for (size_t i = 0; i < n; i++)
                        name(&objects[i], (uint64_t)(drand48() * (double)population));
                status = kvt_acquire(session, &waited, objects, n, &call);
                if (status)
                        fail("acquire", status);
                wait_for(session, call, "acquire");
                status = kvt_release(session, &waited, objects, n, &call);
                if (status)
                        fail("release", status);
                wait_for(session, call, "release");
                done += n;
        }
}

static void first_hit(struct kvt_session *session, uint64_t number)
{
        const struct timespec pause = {.tv_nsec = 2000000};
        struct kvt_completion completion;
        struct kvt_object object;
        uint64_t call;

        for (unsigned i = 0; i < 30000; i++) {
                name(&object, number);
                if (!kvt_acquire(session, &waited, &object, 1, &call) &&
                    !kvt_wait_call(session, call, &completion, 60 * SECOND_NS) &&
                    completion.status == KVT_OK && object.status == KVT_OK) {
                        puts("hit");
                        return;
                }
                nanosleep(&pause, NULL);
        }
        fail("first hit", KVT_MISS);
}

static int compare(const void *left, const void *right)
{
        uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

        return (a > b) - (a < b);
}

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void hit(struct kvt_session *session, uint64_t population, uint64_t count)
{
        uint64_t *took = calloc(count, sizeof(*took));

        if (!took || !count)
                exit(1);
        for (uint64_t i = 0; i < count; i++) {
                uint64_t began = now_ns();

                load(session, population, 1, (unsigned)i);
                took[i] = now_ns() - began;
        }
        qsort(took, count, sizeof(*took), compare);
        printf("%llu %llu %llu\n", (unsigned long long)took[count / 2],
               (unsigned long long)took[count - 1 - count / 1000],
               (unsigned long long)took[count - 1]);
        free(took);
}

int main(int argc, char **argv)
{
        struct kvt_session *session;

        if (argc < 4) {
                fprintf(stderr, "usage: see the head of bench_million.c\n");
                return 2;
        }
        session = open_session(argv[1]);
        if (!strcmp(argv[2], "store") && argc == 5)
                store(session, strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
        else if (!strcmp(argv[2], "load") && argc >= 5)
                load(session, strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0),
                     argc > 5 ? (unsigned)strtoul(argv[5], NULL, 0) : 1);
        else if (!strcmp(argv[2], "hit") && argc == 5)
                hit(session, strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
        else if (!strcmp(argv[2], "first"))
                first_hit(session, strtoull(argv[3], NULL, 0));
        kvt_close(session);
        return 0;
}
