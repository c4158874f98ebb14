// SPDX-License-Identifier: Apache-2.0
/* Who wrote an object and when; reclaim and pins; sessions that see and leave no traces. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"

#define MIB        (UINT64_C(1) << 20)
#define SECONDS(n) ((n)*UINT64_C(1000000000))

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static struct daemon_fixture fixture;
static struct kvt_session *session;

static struct kvt_session *open_session(uint32_t flags)
{
        static const struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {
                .size = sizeof(layout), .model = "mark", .groups = &group, .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .layout = &layout,
                                      .flags = flags,
                                      .connect_timeout_ns = SECONDS(60)};
        struct kvt_session *opened;
        char why[256];

        ck_assert_msg(kvt_open(&opened, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return opened;
}

static void start(uint64_t nvme_bytes)
{
        struct daemon_options options = {.nvme_bytes = nvme_bytes};

        daemon_fixture_init(&fixture, &options);
        session = open_session(0);
}

static void stop(void)
{
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

static struct kvt_digest digest(uint32_t name)
{
        struct kvt_digest digest = {{1}};

        if (!name)
                return (struct kvt_digest){{0}};
        memcpy(digest.bytes + 4, &name, sizeof(name));
        return digest;
}

/* Boundary @name, @depth steps from the root, below @parent (0: it is a root). */
static struct kvt_object object(uint32_t name, uint32_t parent, uint32_t depth, uint64_t bytes)
{
        return (struct kvt_object){.digest = digest(name),
                                   .parent = digest(parent),
                                   .boundary_tokens = depth * 64,
                                   .bytes = bytes};
}

static uint32_t run(struct kvt_session *by, submit_fn submit, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(by, &call, objects, n, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(by, id, &completion, SECONDS(60)), KVT_OK);
        return completion.status;
}

static uint32_t store(uint32_t name, uint32_t parent, uint32_t depth, uint64_t bytes)
{
        struct kvt_object stored = object(name, parent, depth, bytes);
        uint32_t status = run(session, kvt_reserve, &stored, 1);

        if (status != KVT_OK)
                return status;
        for (uint32_t i = 0; i < stored.n_segments; i++)
                memset(stored.segments[i].address, (int)name, stored.segments[i].bytes);
        return run(session, kvt_commit, &stored, 1);
}

/* ---- provenance ---- */

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * SECONDS(1) + (uint64_t)now.tv_nsec;
}

static void boot_id(uint8_t ret_boot_id[16])
{
        struct kvt_session_info info = {.size = sizeof(info)};

        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        memcpy(ret_boot_id, info.boot_id, 16);
}

static void expect_written_by(const uint8_t writer[16], uint64_t from_ns, uint64_t to_ns)
{
        struct kvt_object loaded = object(1, 0, 1, 0);

        ck_assert_uint_eq(run(session, kvt_acquire, &loaded, 1), KVT_OK);
        ck_assert_mem_eq(loaded.writer_boot_id, writer, 16);
        ck_assert_uint_ge(loaded.stored_ns, from_ns);
        ck_assert_uint_le(loaded.stored_ns, to_ns);
        ck_assert_uint_eq(run(session, kvt_release, &loaded, 1), KVT_OK);
}

START_TEST(what_is_granted_says_who_wrote_it_and_when)
{
        uint64_t from_ns, to_ns;
        uint8_t writer[16], later[16];

        start(64 * MIB);
        boot_id(writer);
        from_ns = wall_clock_ns();
        ck_assert_uint_eq(store(1, 0, 1, MIB), KVT_OK);
        to_ns = wall_clock_ns();
        expect_written_by(writer, from_ns, to_ns);

        /* From NVMe, and by a later run of the daemon. */
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        expect_written_by(writer, from_ns, to_ns);
        kvt_close(session);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        session = open_session(0);
        boot_id(later);
        ck_assert_mem_ne(later, writer, 16);
        expect_written_by(writer, from_ns, to_ns);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                what_is_granted_says_who_wrote_it_and_when,
                NULL,
        };

        return flow_run("mark", tests, 60);
}
