// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow_session.h"
#include "tests/support/wire_client.h"

static struct kvt_session *open_session(const char *socket_path, enum kvt_status expected)
{
        struct kvt_group groups[] = {
                {.name = "chunk",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = TEST_CHUNK_TOKENS,
                 .page_bytes = TEST_CHUNK_BYTES},
                {.name = "state", .kind = KVT_GROUP_STATE},
        };
        struct kvt_layout layout = {
                .size = sizeof(layout),
                .model = "test",
                .chunk_tokens = TEST_CHUNK_TOKENS,
                .groups = groups,
                .n_groups = 2,
        };
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = socket_path,
                .program = "flow",
                .layout = &layout,
                .connect_timeout_ns = expected == KVT_OK ? FLOW_TIMEOUT_NS : 0,
        };
        struct kvt_session *session = NULL;
        enum kvt_status status;
        char why[256] = "";

        status = kvt_open(&session, &options, why, sizeof(why));
        if (status != KVT_OK && status != expected)
                ck_abort_msg("kvt_open: %s: %s", kvt_status_name(status), why);
        ck_assert_ptr_nonnull(session);
        return session;
}

struct kvt_session *flow_open(const char *socket_path)
{
        return open_session(socket_path, KVT_OK);
}

struct kvt_session *flow_open_early(const char *socket_path)
{
        return open_session(socket_path, KVT_UNAVAILABLE);
}

void flow_wait_attached(struct kvt_session *session)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;
        struct kvt_session_info info;

        for (;;) {
                memset(&info, 0, sizeof(info));
                info.size = sizeof(info);
                ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
                if (info.attached)
                        return;
                ck_assert_msg(daemon_now_ms() < deadline, "not attached: %s", info.last_error);
                daemon_pause();
        }
}

static void name_object(struct kvt_object *object, uint64_t number)
{
        struct digest digest;

        content_digest(&digest, number);
        memset(object, 0, sizeof(*object));
        memcpy(object->digest.bytes, digest.bytes, sizeof(digest.bytes));
        object->group = TEST_GROUP_STATE;
        object->boundary_tokens = TEST_CHUNK_TOKENS;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

/* One call over one object, waited for. The call's status, which is the object's too. */
static enum kvt_status call_one(struct kvt_session *session, submit_fn submit,
                                struct kvt_object *object)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(session, &call, object, 1, &id);
        if (status != KVT_OK)
                return status;
        status = kvt_wait_call(session, id, &completion, 2 * FLOW_TIMEOUT_NS);
        ck_assert_int_eq(status, KVT_OK);
        ck_assert_msg(completion.status != KVT_TIMEOUT, "a call ran into its deadline");
        return completion.status != KVT_OK ? completion.status : (enum kvt_status)object->status;
}

static void fill(const struct kvt_object *object, uint64_t number, uint64_t generation)
{
        uint64_t offset = 0;

        for (uint32_t i = 0; i < object->n_segments; i++) {
                content_fill(object->segments[i].address, offset, object->segments[i].bytes, number,
                             generation);
                offset += object->segments[i].bytes;
        }
        ck_assert_uint_eq(offset, object->bytes);
}

static int holds(const struct kvt_object *object, uint64_t number, uint64_t generation)
{
        uint64_t offset = 0;

        for (uint32_t i = 0; i < object->n_segments; i++) {
                if (!content_is(object->segments[i].address, offset, object->segments[i].bytes,
                                number, generation))
                        return 0;
                offset += object->segments[i].bytes;
        }
        return offset == object->bytes;
}

enum kvt_status flow_put(struct kvt_session *session, uint64_t number, uint64_t generation,
                         uint64_t bytes, uint32_t flags)
{
        struct kvt_object object;
        enum kvt_status status;

        name_object(&object, number);
        object.flags = flags | KVT_PARENT_UNKNOWN;
        object.bytes = bytes;
        status = call_one(session, kvt_reserve, &object);
        if (status != KVT_OK)
                return status;
        fill(&object, number, generation);
        return call_one(session, kvt_commit, &object);
}

enum kvt_status flow_get(struct kvt_session *session, uint64_t number, uint64_t oldest,
                         uint64_t newest, uint64_t *ret_generation)
{
        struct kvt_object object;
        enum kvt_status status;
        uint64_t generation;

        name_object(&object, number);
        status = call_one(session, kvt_acquire, &object);
        if (status != KVT_OK)
                return status;
        for (generation = newest; !holds(&object, number, generation); generation--)
                ck_assert_msg(generation > oldest, "object %llu holds no generation %llu to %llu",
                              (unsigned long long)number, (unsigned long long)oldest,
                              (unsigned long long)newest);
        if (ret_generation)
                *ret_generation = generation;
        call_one(session, kvt_release, &object);
        return KVT_OK;
}

int flow_is_present(struct kvt_session *session, uint64_t number)
{
        struct kvt_digest digest;
        struct digest bytes;
        uint64_t present = 0;

        content_digest(&bytes, number);
        memcpy(digest.bytes, bytes.bytes, sizeof(digest.bytes));
        ck_assert_int_eq(kvt_probe(session, &digest, 1, &present, NULL), KVT_OK);
        return present >> 1 & 1; /* cell 1: the state group */
}
