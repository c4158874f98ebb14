// SPDX-License-Identifier: Apache-2.0
/*
 * An engine as small as can be, built from the development package alone.
 *
 *   engine store        stores one state
 *   engine restore      says what became of it: "hit", "miss", "wrong" or another status
 *   engine load FOLDER  stores and restores until FOLDER/stop is there, whatever becomes of the
 *                       daemon; FOLDER/turns says "hits N" or "none N", N: how often hits have
 *                       begun; at the end how many restores came to what, and how long store
 *                       and restore took at most
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvtier.h>

#define N_TOKENS    64u
#define N_STATES    16u
#define STATE_BYTES 262144u
#define TIMEOUT_NS  UINT64_C(2000000000)

struct counts {
        unsigned stored, hits, misses, unavailable, wrong, other;
        uint64_t longest_ns;
};

static uint32_t tokens[N_TOKENS];
static uint8_t written[STATE_BYTES], buffer[STATE_BYTES];

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct kvt_session *open_session(void)
{
        static const struct kvt_group group = {.name = "sequence", .kind = KVT_GROUP_STATE};
        static const struct kvt_layout layout = {.size = sizeof(layout),
                                                 .model = "none",
                                                 .engine = "deploy",
                                                 .chunk_tokens = N_TOKENS,
                                                 .groups = &group,
                                                 .n_groups = 1};
        static const struct kvt_options options = {
                .size = sizeof(options), .layout = &layout, .connect_timeout_ns = 10 * TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";
        enum kvt_status status = kvt_open(&session, &options, why, sizeof(why));

        if (status != KVT_OK)
                fprintf(stderr, "%s: %s\n", kvt_status_name(status), why);
        return session;
}

/* The state of that name: what its tokens and its bytes are. */
static struct kvt_blob name_state(uint32_t name)
{
        for (uint32_t i = 0; i < N_TOKENS; i++)
                tokens[i] = name * N_TOKENS + i;
        for (uint32_t i = 0; i < STATE_BYTES; i++)
                written[i] = (uint8_t)(name + i / 7);
        return (struct kvt_blob){.size = sizeof(struct kvt_blob),
                                 .tokens = tokens,
                                 .n_tokens = N_TOKENS,
                                 .timeout_ns = TIMEOUT_NS};
}

static enum kvt_status store(struct kvt_session *session, uint32_t name)
{
        struct kvt_blob blob = name_state(name);

        return kvt_blob_put(session, &blob, written, STATE_BYTES);
}

static enum kvt_status restore(struct kvt_session *session, uint32_t name, bool *ret_is_right)
{
        struct kvt_blob blob = name_state(name);
        size_t n_restored;
        uint64_t length;
        enum kvt_status status;

        memset(buffer, 0, sizeof(buffer));
        status = kvt_blob_get(session, &blob, buffer, sizeof(buffer), &length, &n_restored);
        *ret_is_right = status == KVT_OK && length == STATE_BYTES && n_restored == N_TOKENS &&
                        !memcmp(buffer, written, STATE_BYTES);
        return status;
}

static void count(struct counts *counts, enum kvt_status status, bool is_right)
{
        switch (status) {
        case KVT_OK:
                counts->hits += is_right;
                counts->wrong += !is_right;
                break;
        case KVT_MISS:
        case KVT_PENDING:
        case KVT_GONE:
                counts->misses++;
                break;
        case KVT_UNAVAILABLE:
        case KVT_DRAINING:
        case KVT_TIMEOUT:
                counts->unavailable++;
                break;
        default:
                counts->other++;
                fprintf(stderr, "restore: %s\n", kvt_status_name(status));
        }
}

/* Atomically, since the story reads it meanwhile. */
static void tell(const char *folder, bool has_hits, unsigned n_begun)
{
        char path[512], draft[512];
        FILE *file;

        snprintf(path, sizeof(path), "%s/turns", folder);
        snprintf(draft, sizeof(draft), "%s/turns.new", folder);
        file = fopen(draft, "w");
        if (!file || fprintf(file, "%s %u\n", has_hits ? "hits" : "none", n_begun) < 0 ||
            fclose(file) || rename(draft, path))
                perror(path);
}

static int run_load(struct kvt_session *session, const char *folder)
{
        struct counts counts = {0};
        bool has_hits = false;
        unsigned n_begun = 0;
        char stop[512];

        snprintf(stop, sizeof(stop), "%s/stop", folder);
        for (uint32_t i = 0; access(stop, F_OK); i++) {
                uint64_t began = now_ns(), took;
                bool is_right;
                enum kvt_status status;

                counts.stored += store(session, i % N_STATES) == KVT_OK;
                status = restore(session, i % N_STATES, &is_right);
                took = now_ns() - began;
                counts.longest_ns = took > counts.longest_ns ? took : counts.longest_ns;
                count(&counts, status, is_right);
                if (has_hits != (status == KVT_OK)) {
                        has_hits = status == KVT_OK;
                        n_begun += has_hits;
                        tell(folder, has_hits, n_begun);
                }
                if (!has_hits)
                        usleep(1000); /* an engine would compute now */
        }
        printf("stored=%u hits=%u misses=%u unavailable=%u wrong=%u other=%u longest_ms=%u\n",
               counts.stored, counts.hits, counts.misses, counts.unavailable, counts.wrong,
               counts.other, (unsigned)(counts.longest_ns / 1000000));
        return 0;
}

int main(int argc, char **argv)
{
        struct kvt_session *session = open_session();
        enum kvt_status status;
        bool is_right;
        int result = 0;

        if (!session)
                return 1;
        if (argc == 2 && !strcmp(argv[1], "store")) {
                status = store(session, 0);
                puts(kvt_status_name(status));
        } else if (argc == 2 && !strcmp(argv[1], "restore")) {
                status = restore(session, 0, &is_right);
                puts(is_right             ? "hit"
                     : status == KVT_OK   ? "wrong"
                     : status == KVT_MISS ? "miss"
                                          : kvt_status_name(status));
        } else if (argc == 3 && !strcmp(argv[1], "load")) {
                result = run_load(session, argv[2]);
        } else {
                fprintf(stderr, "usage: engine store | restore | load FOLDER\n");
                result = 2;
        }
        kvt_close(session);
        return result;
}
