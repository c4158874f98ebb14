// SPDX-License-Identifier: Apache-2.0
/*
 * bench_session ADDRESS NAME: stores and loads objects of 1 MiB with the daemon at ADDRESS, a
 * batch a call, and prints "write kvtier MB/s" (a load: the daemon writes) and
 * "read kvtier MB/s" (a store: it reads). What the caller does with the bytes is not timed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"

#define N_OBJECTS    32u
#define OBJECT_BYTES (UINT64_C(1) << 20)
#define SECOND       UINT64_C(1000000000)

static struct kvt_session *session;
static struct kvt_object objects[N_OBJECTS];

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static void fail(const char *what, enum kvt_status status, const char *why)
{
        fprintf(stderr, "%s: %s %s\n", what, kvt_status_name(status), why);
        exit(1);
}

/* Returns how many seconds it took. */
static double run(const char *what, submit_fn submit)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = 120 * SECOND};
        struct kvt_completion completion;
        struct timespec before, after;
        enum kvt_status status;
        uint64_t id = 0;

        clock_gettime(CLOCK_MONOTONIC, &before);
        status = submit(session, &call, objects, N_OBJECTS, &id);
        if (status != KVT_OK)
                fail(what, status, "");
        do
                status = kvt_wait_call(session, id, &completion, 120 * SECOND);
        while (status == KVT_OK && completion.flags & KVT_COMPLETION_MORE);
        clock_gettime(CLOCK_MONOTONIC, &after);
        if (status != KVT_OK || completion.status != KVT_OK)
                fail(what, status != KVT_OK ? status : completion.status, "");
        return (double)(after.tv_sec - before.tv_sec) +
               (double)(after.tv_nsec - before.tv_nsec) / 1e9;
}

static void name_objects(uint64_t name)
{
        for (uint64_t i = 0; i < N_OBJECTS; i++) {
                uint64_t words[2] = {name + 1, i};

                objects[i] =
                        (struct kvt_object){.flags = KVT_PARENT_UNKNOWN, .bytes = OBJECT_BYTES};
                memcpy(objects[i].digest.bytes, words, sizeof(words));
        }
}

static void print(const char *kind, double seconds)
{
        printf("%s kvtier %.1f\n", kind, (double)(N_OBJECTS * OBJECT_BYTES) / 1e6 / seconds);
        fflush(stdout);
}

int main(int argc, char **argv)
{
        struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {
                .size = sizeof(layout), .model = "bench", .groups = &group, .n_groups = 1};
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = argc > 1 ? argv[1] : NULL,
                .layout = &layout,
                .buffer_bytes = 2 * N_OBJECTS * OBJECT_BYTES,
                .connect_timeout_ns = 60 * SECOND,
        };
        uint64_t name = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
        char why[256] = "";
        enum kvt_status status = kvt_open(&session, &options, why, sizeof(why));

        if (status != KVT_OK)
                fail("kvt_open", status, why);
        name_objects(name);
        run("reserve", kvt_reserve);
        for (uint64_t i = 0; i < N_OBJECTS; i++)
                memset(objects[i].segments[0].address, (int)(i + name), OBJECT_BYTES);
        print("read", run("commit", kvt_commit));
        name_objects(name);
        print("write", run("acquire", kvt_acquire));
        run("release", kvt_release);
        kvt_close(session);
        return 0;
}
