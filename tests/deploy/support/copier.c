// SPDX-License-Identifier: Apache-2.0
/*
 * copier SOCKET [load]: an engine in a container of its own. It stores a state, loads it and says
 * "stored" and "loaded" when the bytes are right; with "load" it loads what another one stored, and
 * ends. Otherwise it leases the state and room for another, says "copying" and copies the one into
 * the other until it is killed.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"

#define TOKENS     64u
#define BYTES      (4u << 20)
#define TIMEOUT_NS UINT64_C(20000000000)

static struct kvt_session *session;

static void give_up(const char *what, const char *why)
{
        fprintf(stderr, "copier: %s: %s\n", what, why);
        exit(1);
}

static void must(enum kvt_status status, const char *what)
{
        if (status != KVT_OK)
                give_up(what, kvt_status_text(status));
}

static void say(const char *what)
{
        puts(what);
        fflush(stdout);
}

static void attach(const char *path)
{
        struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "a model of the tests",
                                    .engine = "copier",
                                    .chunk_tokens = TOKENS,
                                    .groups = &group,
                                    .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = path,
                                      .program = "copier",
                                      .layout = &layout,
                                      .connect_timeout_ns = TIMEOUT_NS};
        char text[512] = "";

        if (kvt_open(&session, &options, text, sizeof(text)) != KVT_OK)
                give_up(path, text);
}

static uint8_t *make_bytes(void)
{
        uint8_t *bytes = malloc(BYTES);

        if (!bytes)
                give_up("malloc", "no memory");
        for (uint32_t i = 0; i < BYTES; i++)
                bytes[i] = (uint8_t)(i * 2654435761u >> 24);
        return bytes;
}

static void load(const struct kvt_blob *blob, const uint8_t *expected)
{
        uint8_t *bytes = calloc(1, BYTES);
        uint64_t length;
        size_t n_tokens;

        if (!bytes)
                give_up("calloc", "no memory");
        must(kvt_blob_get(session, blob, bytes, BYTES, &length, &n_tokens), "load");
        if (length != BYTES || memcmp(bytes, expected, BYTES) != 0)
                give_up("load", "other bytes than were stored");
        free(bytes);
        say("loaded");
}

static void copy_for_ever(struct kvt_blob *blob, uint32_t *tokens)
{
        struct kvt_object from = {0}, to = {0};

        must(kvt_blob_acquire(session, blob, &from), "acquire");
        tokens[0] = ~tokens[0];
        must(kvt_blob_reserve(session, blob, BYTES, &to), "reserve");
        if (from.n_segments != 1 || to.n_segments != 1)
                give_up("segments", "more than one");
        say("copying");
        for (;;)
                memcpy(to.segments[0].address, from.segments[0].address, BYTES);
}

int main(int argc, char **argv)
{
        uint32_t tokens[TOKENS] = {1};
        struct kvt_blob blob = {.size = sizeof(blob),
                                .tokens = tokens,
                                .n_tokens = TOKENS,
                                .timeout_ns = TIMEOUT_NS};
        bool loads = argc == 3 && !strcmp(argv[2], "load");
        uint8_t *bytes = make_bytes();

        if (argc < 2 || (argc > 2 && !loads))
                give_up("usage", "copier SOCKET [load]");
        attach(argv[1]);
        if (!loads) {
                must(kvt_blob_put(session, &blob, bytes, BYTES), "store");
                say("stored");
        }
        load(&blob, bytes);
        if (!loads)
                copy_for_ever(&blob, tokens);
        free(bytes);
        kvt_close(session);
        return 0;
}
