// SPDX-License-Identifier: Apache-2.0
/*
 * engine SOCKET [PERIOD_MS]: an engine that keeps a daemon busy until its standard input ends.
 * In each turn it stores a new object, loads the last ones again and one that has left host
 * memory, and asks for one that was never stored; now and then it gives one up that it has
 * reserved. It says "turn N" after each.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvtier.h"

#define PAGE_TOKENS 16u
#define PAGE_BYTES  (256u << 10)
#define TIMEOUT_NS  UINT64_C(5000000000)
#define BACK        3u   /* loads of a turn */
#define FAR_BACK    150u /* with 32 MiB of host memory and 48 MiB of NVMe: there alone */

typedef enum kvt_status (*submit_function)(struct kvt_session *session, const struct kvt_call *call,
                                           struct kvt_object *objects, size_t n,
                                           uint64_t *ret_call);

static struct kvt_session *session;

static void give_up(const char *what)
{
        fprintf(stderr, "engine: %s\n", what);
        exit(1);
}

static void attach(const char *path)
{
        struct kvt_group group = {.name = "attention",
                                  .kind = KVT_GROUP_ATTENTION,
                                  .page_tokens = PAGE_TOKENS,
                                  .page_bytes = PAGE_BYTES};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "a model of the tests",
                                    .engine = "tests",
                                    .chunk_tokens = PAGE_TOKENS,
                                    .groups = &group,
                                    .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = path,
                                      .program = "engine of the tests",
                                      .layout = &layout,
                                      .connect_timeout_ns = TIMEOUT_NS};
        char text[512] = "";

        if (kvt_open(&session, &options, text, sizeof(text)) != KVT_OK)
                give_up(text);
}

/* The object of a prompt of its own. */
static struct kvt_object object_of(uint64_t number)
{
        uint32_t tokens[PAGE_TOKENS] = {(uint32_t)getpid()};
        struct kvt_object object = {.boundary_tokens = PAGE_TOKENS, .bytes = PAGE_BYTES};

        memcpy(tokens + 1, &number, sizeof(number));
        kvt_digest_chain(NULL, tokens, PAGE_TOKENS, PAGE_TOKENS, &object.digest, NULL);
        return object;
}

/* Whether the object got it. */
static int call(submit_function submit, struct kvt_object *object)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = TIMEOUT_NS};
        struct kvt_completion completion;
        uint64_t id;

        if (submit(session, &call, object, 1, &id) != KVT_OK ||
            kvt_wait_call(session, id, &completion, 2 * TIMEOUT_NS) != KVT_OK)
                return 0;
        return object->status == KVT_OK;
}

static void load(uint64_t turn)
{
        struct kvt_object object = object_of(turn);

        if (call(kvt_acquire, &object))
                call(kvt_release, &object);
}

static void take_turn(uint64_t turn)
{
        struct kvt_object object = object_of(turn);

        if (call(kvt_reserve, &object)) {
                for (uint32_t i = 0; i < object.n_segments; i++)
                        memset(object.segments[i].address, (int)turn, object.segments[i].bytes);
                call(turn % 8 == 7 ? kvt_abort : kvt_commit, &object);
        }
        for (uint64_t back = 1; back <= BACK && back <= turn; back++)
                load(turn - back);
        if (turn > FAR_BACK)
                load(turn - FAR_BACK);
        load(~turn);
}

int main(int argc, char **argv)
{
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

        if (argc < 2)
                give_up("usage: engine SOCKET [PERIOD_MS]");
        attach(argv[1]);
        for (uint64_t turn = 0; !poll(&input, 1, argc > 2 ? atoi(argv[2]) : 10); turn++) {
                take_turn(turn);
                printf("turn %llu\n", (unsigned long long)turn);
                fflush(stdout);
        }
        kvt_close(session);
        return 0;
}
