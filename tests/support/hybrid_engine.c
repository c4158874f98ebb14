// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

struct kvt_layout hybrid_layout(void)
{
        static const struct kvt_group groups[] = {
                {.name = "full",
                 .kind = KVT_GROUP_ATTENTION,
                 .shards = HYBRID_SHARDS,
                 .page_tokens = 16,
                 .page_bytes = 4000,
                 .padded_bytes = 4096},
                {.name = "window",
                 .kind = KVT_GROUP_WINDOW,
                 .shards = HYBRID_SHARDS,
                 .page_tokens = 32,
                 .window_tokens = 100,
                 .page_bytes = 2048},
                {.name = "indexer",
                 .kind = KVT_GROUP_INDEX,
                 .page_tokens = HYBRID_CHUNK_TOKENS,
                 .page_bytes = 777},
                {.name = "state", .kind = KVT_GROUP_STATE, .shards = HYBRID_SHARDS},
                {.name = "tail", .kind = KVT_GROUP_SCRATCH},
        };

        return (struct kvt_layout){
                .size = sizeof(struct kvt_layout),
                .model = "hybrid",
                .revision = "1",
                .kv_dtype = "bf16",
                .engine = "flow",
                .engine_build = "1",
                .chunk_tokens = HYBRID_CHUNK_TOKENS,
                .groups = groups,
                .n_groups = 5,
        };
}

/* ---- sessions ---- */

static enum kvt_status open_session(struct hybrid_engine *engine, const char *socket,
                                    const struct kvt_layout *layout,
                                    const struct kvt_options *given, uint64_t timeout_ns)
{
        struct kvt_options options = *given;
        enum kvt_status status;
        char why[256] = "";

        *engine = (struct hybrid_engine){.layout = layout ? *layout : hybrid_layout(),
                                         .state_bytes = 5001};
        options.size = sizeof(options);
        options.socket = socket;
        options.program = "hybrid";
        options.layout = &engine->layout;
        options.connect_timeout_ns = timeout_ns;
        status = kvt_open(&engine->session, &options, why, sizeof(why));
        ck_assert_msg(engine->session != NULL, "kvt_open: %s: %s", kvt_status_name(status), why);
        return status;
}

void hybrid_open(struct hybrid_engine *engine, const char *socket, const struct kvt_layout *layout)
{
        ck_assert_int_eq(
                open_session(engine, socket, layout, &(struct kvt_options){0}, FLOW_TIMEOUT_NS),
                KVT_OK);
}

enum kvt_status hybrid_open_rank(struct hybrid_engine *engine, const char *socket,
                                 const struct kvt_layout *layout, const struct kvt_options *options)
{
        return open_session(engine, socket, layout, options, FLOW_TIMEOUT_NS);
}

void hybrid_open_early(struct hybrid_engine *engine, const char *socket)
{
        open_session(engine, socket, NULL, &(struct kvt_options){0}, 0);
}

void hybrid_close(struct hybrid_engine *engine)
{
        kvt_close(engine->session);
        engine->session = NULL;
}

/* @n_shared tokens by @seed, the others by @branch_seed. */
static struct hybrid_prompt chain(const struct hybrid_engine *engine, uint64_t seed,
                                  uint32_t n_shared, uint64_t branch_seed, uint32_t n_tokens,
                                  const char *salt)
{
        struct kvt_identity identity = {
                .size = sizeof(identity), .salt = salt, .salt_bytes = salt ? strlen(salt) : 0};
        uint32_t tokens[HYBRID_BOUNDARIES_MAX * HYBRID_CHUNK_TOKENS + HYBRID_CHUNK_TOKENS];
        struct hybrid_prompt prompt = {.n_tokens = n_tokens};

        ck_assert_uint_le(n_tokens, sizeof(tokens) / sizeof(tokens[0]));
        prompt.n_boundaries = n_tokens / engine->layout.chunk_tokens;
        ck_assert_uint_le(prompt.n_boundaries, HYBRID_BOUNDARIES_MAX);
        content_fill(tokens, 0, n_shared * sizeof(tokens[0]), seed, 0);
        content_fill(tokens + n_shared, 0, (n_tokens - n_shared) * sizeof(tokens[0]), branch_seed,
                     0);
        ck_assert_int_eq(kvt_digest_chain(&identity, tokens, n_tokens, engine->layout.chunk_tokens,
                                          prompt.digests, NULL),
                         KVT_OK);
        return prompt;
}

struct hybrid_prompt hybrid_prompt(const struct hybrid_engine *engine, uint64_t seed,
                                   uint32_t n_tokens, const char *salt)
{
        return chain(engine, seed, n_tokens, seed, n_tokens, salt);
}

struct hybrid_prompt hybrid_branch(const struct hybrid_engine *engine, uint64_t seed,
                                   uint32_t boundary, uint64_t branch_seed, uint32_t n_tokens)
{
        return chain(engine, seed, boundary * engine->layout.chunk_tokens, branch_seed, n_tokens,
                     NULL);
}

struct kvt_completion hybrid_call(struct hybrid_engine *engine, hybrid_submit submit, uint64_t set,
                                  struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call),
                                .flags = KVT_CALL_WAITED,
                                .timeout_ns = FLOW_TIMEOUT_NS,
                                .set = set};
        struct kvt_completion completion = {0};
        uint64_t id;

        completion.status = submit(engine->session, &call, objects, n, &id);
        if (completion.status != KVT_OK)
                return completion;
        ck_assert_int_eq(kvt_wait_call(engine->session, id, &completion, 2 * FLOW_TIMEOUT_NS),
                         KVT_OK);
        ck_assert_msg(completion.status != KVT_TIMEOUT, "a call ran into its deadline");
        return completion;
}

/* ---- objects ---- */

static uint64_t bytes_of(const struct hybrid_engine *engine, uint32_t index, uint32_t shard)
{
        const struct kvt_group *group = &engine->layout.groups[index];

        uint64_t page_bytes = group->page_bytes;

        if (group->kind == KVT_GROUP_STATE)
                return engine->state_bytes + shard;
        for (uint32_t i = 0; i < group->n_rows && group->rows[i].first_shard <= shard; i++)
                page_bytes = group->rows[i].page_bytes;
        return engine->layout.chunk_tokens / group->page_tokens * page_bytes;
}

static size_t add_group(const struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                        uint32_t boundary, uint32_t index, struct kvt_object *ret_objects)
{
        const struct kvt_group *group = &engine->layout.groups[index];
        uint32_t n_shards = group->shards ? group->shards : 1;

        if (group->kind == KVT_GROUP_SCRATCH)
                return 0;
        for (uint32_t shard = 0; shard < n_shards; shard++) {
                struct kvt_object *object = &ret_objects[shard];

                memset(object, 0, sizeof(*object));
                object->digest = prompt->digests[boundary - 1];
                if (boundary > 1)
                        object->parent = prompt->digests[boundary - 2];
                object->group = (uint16_t)index;
                object->shard = (uint16_t)shard;
                object->boundary_tokens = boundary * engine->layout.chunk_tokens;
                object->bytes = bytes_of(engine, index, shard);
        }
        return n_shards;
}

size_t hybrid_objects(const struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                      uint32_t boundary, uint32_t groups, struct kvt_object *ret_objects)
{
        size_t n = 0;

        ck_assert(boundary >= 1 && boundary <= prompt->n_boundaries);
        for (uint32_t i = 0; i < engine->layout.n_groups; i++)
                if (groups >> i & 1)
                        n += add_group(engine, prompt, boundary, i, ret_objects + n);
        return n;
}

static bool is_needed(const struct hybrid_engine *engine, const struct kvt_group *group,
                      uint32_t boundary, uint32_t at)
{
        uint32_t chunk = engine->layout.chunk_tokens;

        switch (group->kind) {
        case KVT_GROUP_STATE:
                return at == boundary;
        case KVT_GROUP_WINDOW:
                return boundary - at < (group->window_tokens + chunk - 1) / chunk;
        default:
                return true;
        }
}

size_t hybrid_needed(const struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                     uint32_t boundary, struct kvt_object *ret_objects)
{
        size_t n = 0;

        for (uint32_t at = 1; at <= boundary; at++)
                for (uint32_t i = 0; i < engine->layout.n_groups; i++)
                        if (is_needed(engine, &engine->layout.groups[i], boundary, at))
                                n += add_group(engine, prompt, at, i, ret_objects + n);
        ck_assert_uint_le(n, HYBRID_OBJECTS_MAX);
        return n;
}

/* ---- bytes ---- */

/* A number for content.h that differs from that of every other object. */
static uint64_t name_of(const struct kvt_object *object)
{
        uint64_t name;

        memcpy(&name, object->digest.bytes, sizeof(name));
        return name ^ ((uint64_t)object->group << 16 | object->shard) << 32;
}

void hybrid_fill(struct kvt_object *objects, size_t n, uint64_t generation)
{
        for (size_t i = 0; i < n; i++) {
                uint64_t offset = 0;

                if (objects[i].status != KVT_OK)
                        continue;
                for (uint32_t j = 0; j < objects[i].n_segments; j++) {
                        const struct kvt_segment *segment = &objects[i].segments[j];

                        content_fill(segment->address, offset, segment->bytes, name_of(&objects[i]),
                                     generation);
                        offset += segment->bytes;
                }
                ck_assert_uint_eq(offset, objects[i].bytes);
        }
}

bool hybrid_holds(const struct kvt_object *object, uint64_t generation)
{
        uint64_t offset = 0;

        for (uint32_t i = 0; i < object->n_segments; i++) {
                const struct kvt_segment *segment = &object->segments[i];

                if (!content_is(segment->address, offset, segment->bytes, name_of(object),
                                generation))
                        return false;
                offset += segment->bytes;
        }
        return offset == object->bytes;
}

/* ---- storing ---- */

/* The outcome of a reserve as an engine takes it: all or nothing. */
static enum kvt_status outcome_of(const struct kvt_completion *completion,
                                  const struct kvt_object *objects, size_t n)
{
        if (completion->status != KVT_OK)
                return completion->status;
        for (size_t i = 0; i < n; i++)
                if (objects[i].status != KVT_ALREADY_HAVE)
                        return KVT_OK;
        return KVT_ALREADY_HAVE;
}

/* What there is a lease for; the rest of the array stays behind it. */
static size_t leased_first(struct kvt_object *objects, size_t n)
{
        size_t n_leased = 0;

        for (size_t i = 0; i < n; i++) {
                if (objects[i].status == KVT_OK || objects[i].lease) {
                        struct kvt_object object = objects[i];

                        objects[i] = objects[n_leased];
                        objects[n_leased++] = object;
                }
        }
        return n_leased;
}

enum kvt_status hybrid_store(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                             uint32_t boundary, uint32_t groups, uint64_t generation,
                             uint32_t flags)
{
        struct kvt_object objects[HYBRID_MEMBERS_MAX];
        size_t n = hybrid_objects(engine, prompt, boundary, groups, objects);
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t set = ++engine->last_set;

        for (size_t i = 0; i < n; i++)
                objects[i].flags = flags;
        completion = hybrid_call(engine, kvt_reserve, set, objects, n);
        status = outcome_of(&completion, objects, n);
        if (status == KVT_ALREADY_HAVE)
                return status;
        if (status != KVT_OK) {
                n = leased_first(objects, n);
                if (n)
                        hybrid_call(engine, kvt_abort, set, objects, n);
                return status;
        }
        hybrid_fill(objects, n, generation);
        return hybrid_call(engine, kvt_commit, set, objects, n).status;
}

void hybrid_store_run(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                      uint32_t first, uint32_t last, uint32_t groups)
{
        for (uint32_t boundary = first; boundary <= last; boundary++)
                ck_assert_int_eq(hybrid_store(engine, prompt, boundary, groups, 0, 0), KVT_OK);
}

/* ---- loading ---- */

/* The daemon may be gone meanwhile; the bytes were right all the same. */
static void release(struct hybrid_engine *engine, struct kvt_object *objects, size_t n)
{
        enum kvt_status status = hybrid_call(engine, kvt_release, 0, objects, n).status;

        ck_assert_msg(status == KVT_OK || status == KVT_GONE || status == KVT_UNAVAILABLE,
                      "release: %s", kvt_status_name(status));
}

enum kvt_status hybrid_load(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                            uint32_t boundary)
{
        struct kvt_object *objects = calloc(HYBRID_OBJECTS_MAX, sizeof(*objects));
        enum kvt_status status;
        size_t n;

        ck_assert_ptr_nonnull(objects);
        n = hybrid_needed(engine, prompt, boundary, objects);
        status = hybrid_call(engine, kvt_acquire, 0, objects, n).status;
        if (status == KVT_OK) {
                for (size_t i = 0; i < n; i++)
                        ck_assert_msg(hybrid_holds(&objects[i], 0),
                                      "other bytes in group %u, shard %u at %u tokens",
                                      objects[i].group, objects[i].shard,
                                      objects[i].boundary_tokens);
                release(engine, objects, n);
        }
        free(objects);
        return status;
}

static uint64_t generation_of(const struct kvt_object *object, uint64_t oldest, uint64_t newest)
{
        for (uint64_t generation = newest;; generation--) {
                if (hybrid_holds(object, generation))
                        return generation;
                ck_assert_msg(generation > oldest,
                              "group %u, shard %u has the bytes of no generation from %llu to %llu",
                              object->group, object->shard, (unsigned long long)oldest,
                              (unsigned long long)newest);
        }
}

enum kvt_status hybrid_load_boundary(struct hybrid_engine *engine,
                                     const struct hybrid_prompt *prompt, uint32_t boundary,
                                     uint32_t groups, uint64_t oldest, uint64_t newest,
                                     uint64_t *ret_generation)
{
        struct kvt_object objects[HYBRID_MEMBERS_MAX];
        size_t n = hybrid_objects(engine, prompt, boundary, groups, objects);
        enum kvt_status status = hybrid_call(engine, kvt_acquire, 0, objects, n).status;
        size_t n_leased = status == KVT_OK ? n : leased_first(objects, n);

        if (status == KVT_OK) {
                *ret_generation = generation_of(&objects[0], oldest, newest);
                for (size_t i = 1; i < n; i++)
                        ck_assert_msg(hybrid_holds(&objects[i], *ret_generation),
                                      "a mixture of generations: %llu, but %llu in group %u",
                                      (unsigned long long)*ret_generation,
                                      (unsigned long long)generation_of(&objects[i], 0, newest),
                                      objects[i].group);
        }
        if (n_leased)
                hybrid_call(engine, kvt_release, 0, objects, n_leased);
        return status;
}

struct kvt_match hybrid_query(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                              struct kvt_match_query query)
{
        struct kvt_match match = {.size = sizeof(match)};

        query.size = sizeof(query);
        query.digests = prompt->digests;
        query.n_digests = prompt->n_boundaries;
        ck_assert_int_eq(kvt_match(engine->session, &query, &match), KVT_OK);
        return match;
}

struct kvt_match hybrid_match(struct hybrid_engine *engine, const struct hybrid_prompt *prompt)
{
        return hybrid_query(engine, prompt,
                            (struct kvt_match_query){.prompt_tokens = prompt->n_tokens});
}

static bool is_among(const struct kvt_object *object, const struct kvt_object *objects, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (objects[i].group == object->group && objects[i].shard == object->shard &&
                    !memcmp(&objects[i].digest, &object->digest, sizeof(object->digest)))
                        return true;
        return false;
}

/* The library's list of what a boundary needs has all that is in ours, and nothing else. */
static void check_needed(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                         uint32_t boundary)
{
        struct kvt_object *theirs = calloc(2 * HYBRID_OBJECTS_MAX, sizeof(*theirs));
        struct kvt_object *ours = theirs + HYBRID_OBJECTS_MAX;
        struct kvt_boundary_query query = {
                .size = sizeof(query), .digests = prompt->digests, .boundaries = boundary};
        size_t n_theirs, n;

        ck_assert_ptr_nonnull(theirs);
        n = hybrid_needed(engine, prompt, boundary, ours);
        ck_assert_int_eq(kvt_boundary_objects(engine->session, &query, theirs, HYBRID_OBJECTS_MAX,
                                              &n_theirs),
                         KVT_OK);
        ck_assert_uint_eq(n_theirs, n);
        for (size_t i = 0; i < n; i++)
                ck_assert(is_among(&ours[i], theirs, n_theirs));
        free(theirs);
}

uint32_t hybrid_usable(struct hybrid_engine *engine, const struct hybrid_prompt *prompt)
{
        struct kvt_match match = hybrid_match(engine, prompt);

        ck_assert_uint_eq(match.tokens, match.boundaries * engine->layout.chunk_tokens);
        if (match.boundaries) {
                check_needed(engine, prompt, match.boundaries);
                ck_assert_int_eq(hybrid_load(engine, prompt, match.boundaries), KVT_OK);
        }
        return match.boundaries;
}

static void add_member(char *command, size_t size, const char *format, int value)
{
        size_t length = strlen(command);

        if (value >= 0)
                snprintf(command + length, size - length, format, value);
}

/* How many objects went, and how many are in use. */
static void ask_drop(struct daemon_fixture *fixture, const char *command, json_int_t *ret_objects,
                     json_int_t *ret_kept)
{
        json_t *answer = daemon_ask(fixture, command);

        ck_assert_msg(json_is_true(json_object_get(answer, "ok")), "%s: %s", command,
                      json_string_value(json_object_get(answer, "error")));
        *ret_objects = json_integer_value(json_object_get(answer, "objects"));
        *ret_kept = json_integer_value(json_object_get(answer, "kept"));
        json_decref(answer);
}

/* @command: its beginning, without the closing brace. */
static void drop(struct daemon_fixture *fixture, char *command, size_t size, int group, int shard)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;
        json_int_t objects, kept, dropped = 0;

        add_member(command, size, ",\"group\":%d", group);
        add_member(command, size, ",\"shard\":%d", shard);
        strncat(command, "}", size - strlen(command) - 1);
        for (;;) {
                ask_drop(fixture, command, &objects, &kept);
                dropped += objects;
                if (!kept)
                        break;
                /* It is being written to NVMe. */
                ck_assert_msg(daemon_now_ms() < deadline, "%s: in use for ever", command);
                daemon_pause();
        }
        ck_assert_msg(dropped > 0, "%s: there was nothing", command);
}

static const char *hex_of(const struct hybrid_prompt *prompt, uint32_t boundary)
{
        static char hex[65];

        for (unsigned i = 0; i < 32; i++)
                snprintf(hex + 2 * i, 3, "%02x", prompt->digests[boundary - 1].bytes[i]);
        return hex;
}

void hybrid_evict(struct daemon_fixture *fixture, const struct hybrid_prompt *prompt,
                  uint32_t boundary, int group, int shard, const char *tier)
{
        char command[256];

        snprintf(command, sizeof(command),
                 "{\"command\":\"evict\",\"tier\":\"%s\",\"digest\":\"%s\"", tier,
                 hex_of(prompt, boundary));
        drop(fixture, command, sizeof(command), group, shard);
}

void hybrid_drop(struct daemon_fixture *fixture, const struct hybrid_prompt *prompt,
                 uint32_t boundary, int group, int shard)
{
        char command[256];

        snprintf(command, sizeof(command), "{\"command\":\"clear\",\"digest\":\"%s\"",
                 hex_of(prompt, boundary));
        drop(fixture, command, sizeof(command), group, shard);
}
