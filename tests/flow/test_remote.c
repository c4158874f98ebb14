// SPDX-License-Identifier: Apache-2.0
/*
 * Remote sessions: the library, the bridge and the daemon over a transport that needs no device
 * (tests/support/loopback_rdma.c). What RDMA itself does is in tests/rdma.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "proto/status.h"
#include "tests/support/child.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/fds.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/paged_engine.h"
#include "tests/support/remote_client.h"
#include "tests/support/wire_client.h"

#define MIB UINT64_C(0x100000)

static struct daemon_fixture fixture;
static char address[64], secret[128];
static const char *setting; /* one more of the daemon's */

/* Where the daemon listens: the guest of tests/rdma has devices of its own. */
static const char *host(void)
{
        const char *given = getenv("KVTIER_REMOTE_HOST");

        return given ? given : "127.0.0.1";
}

/* A name whose first address is nobody's (192.0.2.0/24 is for documentation). */
#define NAME "kvtier-of-two-addresses"

__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **ret_found)
{
        int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
        struct addrinfo *second;
        int r;

        *(void **)(&next) = dlsym(RTLD_NEXT, "getaddrinfo");
        if (!node || strcmp(node, NAME))
                return next(node, service, hints, ret_found);
        if (hints && hints->ai_flags & AI_NUMERICHOST)
                return EAI_NONAME;
        r = next("192.0.2.1", service, hints, ret_found);
        if (r || next(host(), service, hints, &second))
                return r ? r : EAI_FAIL;
        (*ret_found)->ai_next = second;
        return 0;
}

static void write_secret(const char *text)
{
        int fd = open(secret, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
}

/* One that nobody listens on now: an address has to name its port. */
static uint16_t free_port(void)
{
        struct sockaddr_in at = {.sin_family = AF_INET};
        socklen_t length = sizeof(at);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert_int_eq(inet_pton(AF_INET, host(), &at.sin_addr), 1);
        ck_assert(!bind(fd, (struct sockaddr *)&at, sizeof(at)));
        ck_assert(!getsockname(fd, (struct sockaddr *)&at, &length));
        close(fd);
        return ntohs(at.sin_port);
}

static void start(const struct daemon_options *given)
{
        static char listen_at[64], secret_at[160];
        static const char *overrides[] = {listen_at, secret_at, "metrics.listen=127.0.0.1:0",
                                          "rdma.allow=127.0.0.1,10.1.0.0/24", NULL, NULL};
        struct daemon_options options = given ? *given : (struct daemon_options){0};
        unsigned port = free_port();

        options.overrides = overrides;
        options.keeps_fds = true; /* the module stays loaded */
        daemon_fixture_prepare(&fixture, &options);
        snprintf(secret, sizeof(secret), "%s/secret", fixture.folder);
        snprintf(address, sizeof(address), "rdma://%s:%u", host(), port);
        snprintf(listen_at, sizeof(listen_at), "rdma.listen=%s:%u", host(), port);
        snprintf(secret_at, sizeof(secret_at), "rdma.secret=%s", secret);
        overrides[4] = setting;
        write_secret("default of-nobody-elses-business\n");
        ck_assert(!setenv("KVTIER_SECRET", secret, 1));
        daemon_start(&fixture);
}

static void stop(void)
{
        daemon_fixture_deinit(&fixture);
}

/* Where the daemon that was started last serves its metrics. */
static uint16_t metrics_port(void)
{
        FILE *log = fopen(fixture.log, "re");
        unsigned number = 0;
        char line[2048];

        ck_assert_ptr_nonnull(log);
        while (fgets(line, sizeof(line), log)) {
                const char *at = strstr(line, " metrics_port=");

                if (at)
                        number = (unsigned)strtoul(at + strlen(" metrics_port="), NULL, 10);
        }
        fclose(log);
        ck_assert_uint_gt(number, 0);
        return (uint16_t)number;
}

static uint64_t read_metric(const char *name)
{
        static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(metrics_port())};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        static char text[1 << 20];
        char line[96];
        size_t length = 0;
        const char *at;
        ssize_t n;

        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ck_assert(!connect(fd, (struct sockaddr *)&to, sizeof(to)));
        ck_assert_int_gt(write(fd, request, sizeof(request) - 1), 0);
        while ((n = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
                length += (size_t)n;
        close(fd);
        text[length] = '\0';
        snprintf(line, sizeof(line), "\nkvtier_%s ", name);
        at = strstr(text, line);
        ck_assert_msg(at != NULL, "no metric %s", name);
        return strtoull(at + strlen(line), NULL, 10);
}

/* Messages of all sessions so far. */
static uint64_t count_messages(void)
{
        return read_metric("messages_received_total") + read_metric("messages_sent_total");
}

static void expect_nothing_held(void)
{
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 0);
}

static struct kvt_completion wait_for(struct kvt_session *session, enum kvt_status submitted,
                                      const uint64_t *id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(submitted, KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, *id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        return completion;
}

static struct kvt_call waited(void)
{
        return (struct kvt_call){.size = sizeof(struct kvt_call),
                                 .flags = KVT_CALL_WAITED,
                                 .timeout_ns = FLOW_TIMEOUT_NS};
}

/* ---- bytes ---- */

START_TEST(what_a_remote_session_stores_is_loaded_to_the_byte)
{
        static const uint64_t lengths[] = {1,     2,   4095,        4096,    4097,
                                           65537, MIB, 5 * MIB + 3, 16 * MIB};
        struct kvt_session *near, *far;

        start(NULL);
        far = flow_open(address);
        near = flow_open(fixture.socket);
        for (uint64_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                ck_assert_int_eq(flow_put(far, i, 1, lengths[i], 0), KVT_OK);
                ck_assert_int_eq(flow_get(far, i, 1, 1, NULL), KVT_OK);
                /* It is the daemon's like any other. */
                ck_assert_int_eq(flow_get(near, i, 1, 1, NULL), KVT_OK);
                ck_assert_int_eq(flow_put(near, i, 2, lengths[i], KVT_REPLACE), KVT_OK);
                ck_assert_int_eq(flow_get(far, i, 2, 2, NULL), KVT_OK);
        }
        ck_assert_int_eq(flow_put(far, 0, 1, 1, 0), KVT_ALREADY_HAVE);
        ck_assert_int_eq(flow_get(far, 99, 1, 1, NULL), KVT_MISS);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        expect_nothing_held();
        kvt_close(far);
        kvt_close(near);
        stop();
}
END_TEST

START_TEST(page_maps_move_pages_through_the_buffer)
{
        struct paged_engine writer, reader;
        struct kvt_object stored[N_GROUPS], loaded[N_GROUPS];
        uint32_t from[N_GROUPS][SLOTS_MAX], to[N_GROUPS][SLOTS_MAX];

        start(NULL);
        writer = paged_open(address);
        reader = paged_open(address);
        for (uint64_t number = 1; number <= 3; number++) {
                paged_boundary(number, stored, from, 3, 5);
                paged_boundary(number, loaded, to, 1021, -2);
                paged_fill(&writer, stored, N_GROUPS, 0);
                ck_assert_int_eq(paged_store(&writer, number, stored, N_GROUPS), KVT_OK);
                ck_assert_int_eq(paged_load(&reader, 0, NULL, loaded, N_GROUPS).status, KVT_OK);
                paged_expect(&reader, loaded, N_GROUPS, 0);
        }
        expect_nothing_held();
        paged_close(&writer);
        paged_close(&reader);
        stop();
}
END_TEST

START_TEST(pages_of_a_chunk_come_alone)
{
        struct paged_engine engine;
        struct kvt_object stored[N_GROUPS], object;
        uint32_t slots[N_GROUPS][SLOTS_MAX];
        const uint32_t pages[] = {1, 2, 7};
        struct kvt_call call = waited();
        uint8_t *content, bytes[64 << 10];
        uint64_t id, page;

        start(NULL);
        engine = paged_open(address);
        paged_boundary(1, stored, slots, 40, 1);
        paged_fill(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&engine, 0, stored, N_GROUPS), KVT_OK);
        object = stored[FULL];
        content = paged_content(&object, 0);
        page = paged_bytes(&stored[FULL]) / SLOTS_MAX;
        object.pages = pages;
        object.n_pages = 3;
        wait_for(engine.session, kvt_acquire(engine.session, &call, &object, 1, &id), &id);
        ck_assert_int_eq(object.status, KVT_OK);
        ck_assert_uint_eq(object.bytes, 3 * page);
        ck_assert_int_eq(kvt_read(&object, 0, bytes, object.bytes), KVT_OK);
        for (unsigned i = 0; i < 3; i++)
                ck_assert_mem_eq(bytes + i * page, content + pages[i] * page, page);
        wait_for(engine.session, kvt_release(engine.session, &call, &object, 1, &id), &id);
        expect_nothing_held();
        free(content);
        paged_close(&engine);
        stop();
}
END_TEST

#define MANY 300u

/* Reserves, fills and commits, or acquires and checks, all in one call each. */
static void name_many(struct kvt_object *objects)
{
        for (uint64_t i = 0; i < MANY; i++) {
                struct digest digest;

                content_digest(&digest, 1000 + i);
                objects[i] = (struct kvt_object){.group = TEST_GROUP_STATE,
                                                 .flags = KVT_PARENT_UNKNOWN,
                                                 .boundary_tokens = TEST_CHUNK_TOKENS,
                                                 .bytes = 10000 + i};
                memcpy(objects[i].digest.bytes, digest.bytes, sizeof(digest.bytes));
        }
}

START_TEST(a_batch_takes_few_messages)
{
        static struct kvt_object objects[MANY];
        struct kvt_call call = waited();
        struct kvt_session *session;
        uint64_t id, before, messages;

        start(NULL);
        session = flow_open(address);
        name_many(objects);
        wait_for(session, kvt_reserve(session, &call, objects, MANY, &id), &id);
        for (uint64_t i = 0; i < MANY; i++) {
                ck_assert_int_eq(objects[i].status, KVT_OK);
                content_fill(objects[i].segments[0].address, 0, objects[i].bytes, 1000 + i, 1);
        }
        ck_assert_int_eq(
                wait_for(session, kvt_commit(session, &call, objects, MANY, &id), &id).status,
                KVT_OK);
        name_many(objects);
        before = count_messages();
        ck_assert_int_eq(
                wait_for(session, kvt_acquire(session, &call, objects, MANY, &id), &id).status,
                KVT_OK);
        for (uint64_t i = 0; i < MANY; i++) {
                ck_assert_uint_eq(objects[i].bytes, 10000 + i);
                ck_assert(content_is(objects[i].segments[0].address, 0, objects[i].bytes, 1000 + i,
                                     1));
        }
        wait_for(session, kvt_release(session, &call, objects, MANY, &id), &id);
        messages = count_messages() - before;
        printf("%llu messages for %u objects loaded and released\n", (unsigned long long)messages,
               MANY);
        ck_assert_uint_le(messages, MANY / 10);
        expect_nothing_held();
        kvt_close(session);
        stop();
}
END_TEST

/* ---- what is found ---- */

START_TEST(a_match_shows_what_was_looked_for)
{
        struct kvt_call call = waited();
        struct kvt_session *session;
        struct kvt_digest digests[2];
        uint64_t id;

        start(NULL);
        session = flow_open(address);
        ck_assert_int_eq(flow_put(session, 5, 1, 1000, 0), KVT_OK);
        ck_assert(!flow_is_present(session, 5));
        for (unsigned i = 0; i < 2; i++) {
                struct digest digest;

                content_digest(&digest, 5 + i);
                memcpy(digests[i].bytes, digest.bytes, sizeof(digest.bytes));
        }
        ck_assert_int_eq(wait_for(session, kvt_find(session, &call, digests, 2, &id), &id).status,
                         KVT_OK);
        /* The table is shown once its pulse was seen. */
        for (unsigned i = 0; i < 1000 && !flow_is_present(session, 5); i++)
                daemon_pause();
        ck_assert(flow_is_present(session, 5));
        ck_assert(!flow_is_present(session, 6));
        daemon_evict(&fixture, NULL);
        wait_for(session, kvt_find(session, &call, digests, 2, &id), &id);
        ck_assert(!flow_is_present(session, 5));
        kvt_close(session);
        stop();
}
END_TEST

/* ---- no room ---- */

static uint32_t open_flags;

static enum kvt_status open_with(struct kvt_session **ret_session, uint64_t buffer_bytes,
                                 const struct kvt_dmabuf *dmabuf, char why[256])
{
        struct kvt_group groups[] = {
                {.name = "chunk",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = TEST_CHUNK_TOKENS,
                 .page_bytes = TEST_CHUNK_BYTES},
                {.name = "state", .kind = KVT_GROUP_STATE},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "test",
                                    .chunk_tokens = TEST_CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = 2};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = address,
                                      .layout = &layout,
                                      .flags = open_flags,
                                      .buffer_bytes = buffer_bytes,
                                      .dmabuf = dmabuf,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};

        return kvt_open(ret_session, &options, why, 256);
}

static struct kvt_session *open_small(uint64_t buffer_bytes)
{
        struct kvt_session *session;
        char why[256];

        ck_assert_msg(open_with(&session, buffer_bytes, NULL, why) == KVT_OK, "%s", why);
        return session;
}

/* Of the lengths that the other test has not, which take the memory of a machine. */
START_TEST(a_quarter_of_a_gibibyte_comes_and_goes)
{
        static const uint64_t lengths[] = {64 * MIB + 1, 256 * MIB};
        const struct daemon_options options = {.piece_bytes = 512 * MIB, .n_pieces = 1};
        struct kvt_session *far;

        start(&options);
        far = open_small(256 * MIB);
        for (unsigned i = 0; i < 2; i++) {
                ck_assert_int_eq(flow_put(far, i, 1, lengths[i], 0), KVT_OK);
                ck_assert_int_eq(flow_get(far, i, 1, 1, NULL), KVT_OK);
        }
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        expect_nothing_held();
        kvt_close(far);
        stop();
}
END_TEST

START_TEST(an_object_without_room_in_the_buffer_is_busy_and_costs_nobody_else)
{
        static struct kvt_object objects[MANY];
        struct kvt_call call = waited();
        struct kvt_session *session;
        unsigned n_busy = 0;
        uint64_t id;

        start(NULL);
        session = open_small(MIB);
        name_many(objects);
        wait_for(session, kvt_reserve(session, &call, objects, 100, &id), &id);
        for (unsigned i = 0; i < 100; i++)
                n_busy += objects[i].status == KVT_BUSY;
        ck_assert_uint_eq(n_busy, 100 - MIB / 12288);
        daemon_wait_number(&fixture, "host.leased_bytes", MIB / 12288 * 12288);
        wait_for(session, kvt_abort(session, &call, objects, MIB / 12288, &id), &id);
        expect_nothing_held();
        /* All of it is free again, in one piece. */
        ck_assert_int_eq(flow_put(session, 1, 1, MIB, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
        ck_assert_int_eq(flow_put(session, 2, 1, MIB + 1, 0), KVT_TOO_LARGE);
        expect_nothing_held();
        kvt_close(session);
        stop();
}
END_TEST

/* The first of them: as many as the buffer holds. */
START_TEST(a_member_without_room_in_the_buffer_costs_the_set_nothing)
{
        static struct kvt_object objects[MANY];
        const unsigned n_held = MIB / 12288;
        struct kvt_call call = waited();
        struct kvt_session *session;
        uint64_t id;

        start(NULL);
        session = open_small(MIB);
        call.set = 7;
        name_many(objects);
        wait_for(session, kvt_reserve(session, &call, objects, n_held + 3, &id), &id);
        for (unsigned i = 0; i < n_held + 3; i++)
                ck_assert_int_eq(objects[i].status, i < n_held ? KVT_OK : KVT_BUSY);
        daemon_wait_number(&fixture, "host.leased_bytes", n_held * 12288);
        for (unsigned i = 0; i < n_held; i++)
                content_fill(objects[i].segments[0].address, 0, objects[i].bytes, 1000 + i, 1);
        ck_assert_int_eq(
                wait_for(session, kvt_commit(session, &call, objects, n_held, &id), &id).status,
                KVT_OK);
        expect_nothing_held();
        /* All have gone into the host tier together. */
        call.set = 0;
        name_many(objects);
        ck_assert_int_eq(
                wait_for(session, kvt_acquire(session, &call, objects, n_held, &id), &id).status,
                KVT_OK);
        for (unsigned i = 0; i < n_held; i++)
                ck_assert(content_is(objects[i].segments[0].address, 0, objects[i].bytes, 1000 + i,
                                     1));
        wait_for(session, kvt_release(session, &call, objects, n_held, &id), &id);
        expect_nothing_held();
        kvt_close(session);
        stop();
}
END_TEST

/* What stands for a dma-buf is host memory: devices that take those refuse it, soft-RoCE takes
   none, and says so; the loopback takes it. */
START_TEST(a_dmabuf_is_the_buffer_or_refused_by_the_name_of_the_device)
{
        struct kvt_dmabuf dmabuf = {
                .size = sizeof(dmabuf), .bytes = MIB, .offset = 8192, .fd = memfd_create("m", 0)};
        struct kvt_session *session;
        char why[256] = "";
        enum kvt_status status;
        uint8_t *base;

        start(NULL);
        ck_assert(!ftruncate(dmabuf.fd, MIB + 8192));
        base = mmap(NULL, MIB + 8192, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.fd, 0);
        ck_assert_ptr_ne(base, MAP_FAILED);
        dmabuf.base = base + 8192;
        status = open_with(&session, 0, &dmabuf, why);
        close(dmabuf.fd);
        if (getenv("KVTIER_REMOTE_HOST")) {
                ck_assert_int_eq(status, KVT_UNSUPPORTED);
                ck_assert_msg(strstr(why, "RDMA device rxe"), "%s", why);
                ck_assert_msg(strstr(why, "(dma-buf)"), "%s", why);
        } else {
                ck_assert_msg(status == KVT_OK, "%s", why);
                ck_assert_int_eq(flow_put(session, 1, 1, 70000, 0), KVT_OK);
                ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
                ck_assert_int_eq(flow_put(session, 2, 1, MIB + 1, 0), KVT_TOO_LARGE);
                expect_nothing_held();
                kvt_close(session);
        }
        munmap(base, MIB + 8192);
        stop();
}
END_TEST

START_TEST(without_windows_the_buffer_is_opened_whole_or_not_at_all)
{
        struct kvt_session *session;

        ck_assert(!setenv("LOOPBACK_NO_WINDOWS", "1", 1));
        start(NULL);
        session = open_small(MIB);
        ck_assert_int_eq(flow_put(session, 1, 1, 5000, 0), KVT_UNSUPPORTED);
        expect_nothing_held();
        kvt_close(session);
        open_flags = KVT_OPEN_WHOLE_BUFFER;
        session = open_small(MIB);
        ck_assert_int_eq(flow_put(session, 2, 1, 5000, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 2, 1, 1, NULL), KVT_OK);
        expect_nothing_held();
        kvt_close(session);
        stop();
}
END_TEST

/* ---- places ---- */

static uint32_t commit_one(struct remote_client *client, struct wire_object *object)
{
        wire_client_end(&client->wire, WIRE_COMMIT, 0, object, 1);
        return object->status;
}

START_TEST(bytes_come_once_and_before_the_commit)
{
        struct remote_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(3, 5000);
        struct kvt_session *session;
        uint64_t place, lease;

        start(NULL);
        ck_assert_ptr_nonnull(client);
        remote_client_open(client, address + strlen("rdma://"), getenv("KVTIER_RDMA_SOURCE"),
                           secret);
        place = client->place.address;
        content_fill(client->memory + 100, 0, 5000, 3, 1);
        wire_client_reserve(&client->wire, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_WIRE_OK);
        ck_assert_uint_eq(object.n_extents, 0);
        lease = object.lease;
        /* Whatever was in that memory before is nobody's to publish. */
        ck_assert_uint_eq(commit_one(client, &object), KVT_WIRE_INVALID);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, lease, place, 4999),
                          KVT_WIRE_INVALID);
        ck_assert_uint_eq(remote_client_move(client, WIRE_FETCH, lease, place, 5000),
                          KVT_WIRE_GONE);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, lease, place + 100, 5000),
                          KVT_WIRE_OK);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, lease, place, 5000),
                          KVT_WIRE_INVALID);
        object.lease = lease;
        ck_assert_uint_eq(commit_one(client, &object), KVT_WIRE_OK);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, lease, place, 5000), KVT_WIRE_GONE);
        session = flow_open(fixture.socket);
        ck_assert_int_eq(flow_get(session, 3, 1, 1, NULL), KVT_OK);
        kvt_close(session);
        remote_client_close(client);
        expect_nothing_held();
        free(client);
        stop();
}
END_TEST

START_TEST(no_more_is_fetched_at_once_than_may_be_leased)
{
        struct remote_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(3, 5000);
        uint64_t place;

        setting = "session.leases_max=4";
        start(NULL);
        ck_assert_ptr_nonnull(client);
        remote_client_open(client, address + strlen("rdma://"), getenv("KVTIER_RDMA_SOURCE"),
                           secret);
        place = client->place.address;
        content_fill(client->memory, 0, 5000, 3, 1);
        wire_client_reserve(&client->wire, 0, &object, 1);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, object.lease, place, 5000),
                          KVT_WIRE_OK);
        ck_assert_uint_eq(commit_one(client, &object), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(&client->wire, 0, NULL, &object, 1), KVT_WIRE_OK);
        /* What has been answered does not count any more. */
        for (unsigned i = 0; i < 3; i++) {
                ck_assert_uint_eq(
                        remote_client_move_times(client, WIRE_FETCH, object.lease, place, 5000, 5),
                        KVT_WIRE_BUSY);
                ck_assert_uint_eq(
                        remote_client_move_times(client, WIRE_FETCH, object.lease, place, 5000, 4),
                        KVT_WIRE_OK);
        }
        wire_client_end(&client->wire, WIRE_RELEASE, 0, &object, 1);
        remote_client_close(client);
        expect_nothing_held();
        free(client);
        stop();
}
END_TEST

START_TEST(a_place_that_is_not_granted_ends_the_session_and_no_other)
{
        struct remote_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(3, REMOTE_CLIENT_BYTES + 4096);
        struct kvt_session *session;

        start(NULL);
        ck_assert_ptr_nonnull(client);
        session = open_small(2 * MIB);
        remote_client_open(client, address + strlen("rdma://"), getenv("KVTIER_RDMA_SOURCE"),
                           secret);
        wire_client_reserve(&client->wire, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_WIRE_OK);
        ck_assert_uint_ne(remote_client_move(client, WIRE_PUT, object.lease, client->place.address,
                                             object.bytes),
                          KVT_WIRE_OK);
        wire_client_wait_hang_up(&client->wire);
        daemon_wait_number(&fixture, "sessions", 1);
        expect_nothing_held();
        ck_assert_int_eq(flow_get(session, 3, 0, 0, NULL), KVT_MISS);
        ck_assert_int_eq(flow_put(session, 1, 1, MIB, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
        remote_client_close(client);
        kvt_close(session);
        free(client);
        stop();
}
END_TEST

START_TEST(places_are_for_remote_sessions)
{
        struct remote_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(3, 5000);

        start(NULL);
        ck_assert_ptr_nonnull(client);
        client->wire.fd = client->wire.table_fd = -1;
        wire_client_open(&client->wire, fixture.socket);
        wire_client_reserve(&client->wire, 0, &object, 1);
        ck_assert_uint_eq(remote_client_move(client, WIRE_PUT, object.lease, 4096, 5000),
                          KVT_WIRE_INVALID);
        wire_client_close(&client->wire);
        free(client);
        stop();
}
END_TEST

/* ---- ends ---- */

static void hold_and_wait(struct child *self, void *argument)
{
        struct kvt_session *session = flow_open(address);
        struct kvt_call call = waited();
        static struct kvt_object objects[MANY];
        uint64_t id;

        name_many(objects);
        wait_for(session, kvt_reserve(session, &call, objects, MANY, &id), &id);
        child_say(self, 1);
        kvt_commit(session, &call, objects, MANY, &id);
        child_hear(self);
}

START_TEST(leases_of_a_killed_client_end_at_once)
{
        struct kvt_session *session;
        struct child child;

        start(NULL);
        child_start(&child, hold_and_wait, NULL);
        child_hear(&child);
        child_kill(&child);
        expect_nothing_held();
        daemon_wait_number(&fixture, "sessions", 0);
        session = flow_open(address);
        ck_assert_int_eq(flow_put(session, 1, 1, MIB, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
        kvt_close(session);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        stop();
}
END_TEST

START_TEST(a_lease_outlives_the_daemon_and_the_session_comes_back)
{
        struct kvt_call call = waited();
        struct kvt_session *session;
        struct kvt_object object = {.group = TEST_GROUP_STATE};
        struct kvt_completion completion;
        struct kvt_session_info info = {.size = sizeof(info)};
        struct digest digest;
        uint64_t id;
        pid_t forked;

        start(NULL);
        session = open_small(2 * MIB);
        ck_assert_int_eq(flow_put(session, 7, 1, MIB, 0), KVT_OK);
        content_digest(&digest, 7);
        memcpy(object.digest.bytes, digest.bytes, sizeof(digest.bytes));
        completion = wait_for(session, kvt_acquire(session, &call, &object, 1, &id), &id);
        ck_assert_int_eq(completion.status, KVT_OK);
        /* A child holds copies of whatever the bridge has open. */
        forked = fork();
        if (!forked)
                for (;;)
                        pause();
        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(session);
        ck_assert(!kill(forked, SIGKILL));
        ck_assert_int_eq(waitpid(forked, NULL, 0), forked);
        ck_assert(content_is(object.segments[0].address, 0, MIB, 7, 1));
        /* The room is not given to anybody else meanwhile. */
        ck_assert_int_eq(flow_put(session, 8, 1, MIB, 0), KVT_OK);
        ck_assert_int_eq(flow_put(session, 9, 1, MIB + 4096, 0), KVT_BUSY);
        ck_assert(content_is(object.segments[0].address, 0, MIB, 7, 1));
        completion = wait_for(session, kvt_release(session, &call, &object, 1, &id), &id);
        ck_assert_int_eq(completion.status, KVT_GONE);
        /* And then it is: the library has said that its copies have ended. */
        while (flow_put(session, 10, 1, 2 * MIB, 0) == KVT_BUSY)
                daemon_pause();
        ck_assert_int_eq(flow_get(session, 10, 1, 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        ck_assert_uint_eq(info.reconnects, 1);
        expect_nothing_held();
        kvt_close(session);
        stop();
}
END_TEST

START_TEST(a_forked_child_keeps_no_descriptor_of_a_session)
{
        struct kvt_session *session;
        unsigned before;
        pid_t forked;
        int status;

        start(NULL);
        before = count_fds();
        session = open_small(MIB);
        ck_assert_int_eq(flow_put(session, 1, 1, 100, 0), KVT_OK);
        ck_assert_uint_gt(count_fds(), before);
        forked = fork();
        if (!forked) {
                int kept = (int)count_fds() - (int)before;

                /* Inherited, and as good as gone. */
                kvt_close(session);
                _exit(kept);
        }
        ck_assert_int_eq(waitpid(forked, &status, 0), forked);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 0);
        /* The parent's go on. */
        ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
        kvt_close(session);
        /* librdmacm keeps its devices open. */
        if (!getenv("KVTIER_REMOTE_HOST"))
                ck_assert_uint_eq(count_fds(), before);
        stop();
}
END_TEST

/* Of the library, once what it closes beside its callers is closed. */
static unsigned settled_fds(void)
{
        unsigned n, before;

        daemon_wait_number(&fixture, "sessions", 0);
        n = count_fds();
        do {
                before = n;
                daemon_pause();
                n = count_fds();
        } while (n != before);
        return n;
}

static void expect_fds(unsigned n)
{
        const uint64_t deadline = daemon_now_ms() + FLOW_TIMEOUT_NS / 1000000;
        unsigned now;

        while ((now = count_fds()) != n) {
                ck_assert_msg(daemon_now_ms() < deadline, "%u descriptors, not %u", now, n);
                daemon_pause();
        }
}

START_TEST(sessions_that_come_and_go_leave_nothing)
{
        /* In a guest without acceleration each takes a second. */
        unsigned n = getenv("KVTIER_REMOTE_HOST") ? 25 : 100, n_fds = 0;

        start(NULL);
        for (unsigned i = 0; i < n; i++) {
                struct kvt_session *session = open_small(MIB);

                ck_assert_int_eq(flow_put(session, i, 1, 100, 0), KVT_OK);
                kvt_close(session);
                if (!i)
                        n_fds = settled_fds(); /* with those of the module */
        }
        expect_fds(n_fds);
        daemon_wait_number(&fixture, "sessions", 0);
        expect_nothing_held();
        while (read_metric("rdma_connections"))
                daemon_pause();
        ck_assert_uint_eq(read_metric("rdma_opened_total"), n);
        ck_assert_uint_eq(read_metric("rdma_queue_pairs"), 0);
        ck_assert_uint_eq(read_metric("rdma_windows_bound"), 0);
        stop();
}
END_TEST

/* ---- refusals ---- */

static enum kvt_status try_to_open(char why[256])
{
        struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {
                .size = sizeof(layout), .model = "test", .groups = &group, .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = address,
                                      .layout = &layout,
                                      .buffer_bytes = MIB,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session;

        return kvt_open(&session, &options, why, 256);
}

START_TEST(a_wrong_secret_is_denied_and_said_so)
{
        char why[256];

        start(NULL);
        write_secret("default not-the-same-secret\n");
        ck_assert_int_eq(try_to_open(why), KVT_DENIED);
        ck_assert_msg(strstr(why, "denied"), "%s", why);
        daemon_wait_log(&fixture, "rdma_refused", "reason=denied");
        unlink(secret);
        ck_assert_int_eq(try_to_open(why), KVT_INVALID);
        ck_assert_msg(strstr(why, secret), "%s", why);
        stop();
}
END_TEST

START_TEST(a_session_too_many_is_refused_and_logged)
{
        struct kvt_session *near;
        char why[256];

        setting = "sessions.max=1";
        start(NULL);
        near = flow_open(fixture.socket);
        ck_assert_int_eq(try_to_open(why), KVT_REFUSED);
        ck_assert_msg(strstr(why, "sessions.max"), "%s", why);
        daemon_wait_log(&fixture, "session_refused", "from=");
        kvt_close(near);
        stop();
}
END_TEST

START_TEST(a_device_that_is_gone_is_told_and_counted)
{
        ck_assert(!setenv("LOOPBACK_DEVICE_GONE", "1", 1));
        start(NULL);
        daemon_wait_log(&fixture, "rdma_device_gone", "n=1");
        ck_assert_uint_eq(read_metric("rdma_devices_gone"), 1);
        stop();
}
END_TEST

START_TEST(a_name_is_tried_by_each_of_its_addresses)
{
        struct kvt_session *session;
        char at[64];

        start(NULL);
        snprintf(at, sizeof(at), "rdma://" NAME "%s", strrchr(address, ':'));
        session = flow_open(at);
        ck_assert_int_eq(flow_put(session, 1, 1, 5000, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 1, 1, NULL), KVT_OK);
        kvt_close(session);
        stop();
}
END_TEST

START_TEST(without_the_module_the_address_is_unsupported)
{
        char why[256];

        start(NULL);
        ck_assert(!setenv("KVTIER_RDMA_MODULE", "/nowhere/libkvtier-rdma.so.0", 1));
        ck_assert_int_eq(try_to_open(why), KVT_UNSUPPORTED);
        ck_assert_msg(strstr(why, "libkvtier-rdma.so.0"), "%s", why);
        stop();
}
END_TEST

START_TEST(an_address_that_is_none_is_invalid)
{
        char why[256];

        start(NULL);
        snprintf(address, sizeof(address), "rdma://:1");
        ck_assert_int_eq(try_to_open(why), KVT_INVALID);
        ck_assert_msg(strstr(why, "no address"), "%s", why);
        snprintf(address, sizeof(address), "rdma://[::1:7428");
        ck_assert_int_eq(try_to_open(why), KVT_INVALID);
        ck_assert_msg(strstr(why, address), "%s", why);
        stop();
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const long_tests[] = {a_quarter_of_a_gibibyte_comes_and_goes, NULL};
        const TTest *const tests[] = {
                /* The loopback can be told so; the devices of a guest have windows, and stay. */
                without_windows_the_buffer_is_opened_whole_or_not_at_all,
                a_device_that_is_gone_is_told_and_counted,
                /* And these are of devices, too. */
                what_a_remote_session_stores_is_loaded_to_the_byte,
                page_maps_move_pages_through_the_buffer,
                pages_of_a_chunk_come_alone,
                a_batch_takes_few_messages,
                a_match_shows_what_was_looked_for,
                an_object_without_room_in_the_buffer_is_busy_and_costs_nobody_else,
                a_member_without_room_in_the_buffer_costs_the_set_nothing,
                a_dmabuf_is_the_buffer_or_refused_by_the_name_of_the_device,
                bytes_come_once_and_before_the_commit,
                no_more_is_fetched_at_once_than_may_be_leased,
                a_place_that_is_not_granted_ends_the_session_and_no_other,
                places_are_for_remote_sessions,
                leases_of_a_killed_client_end_at_once,
                a_lease_outlives_the_daemon_and_the_session_comes_back,
                a_forked_child_keeps_no_descriptor_of_a_session,
                sessions_that_come_and_go_leave_nothing,
                a_wrong_secret_is_denied_and_said_so,
                a_session_too_many_is_refused_and_logged,
                a_name_is_tried_by_each_of_its_addresses,
                without_the_module_the_address_is_unsupported,
                an_address_that_is_none_is_invalid,
                NULL,
        };

        if (argc > 1)
                return flow_run("remote", long_tests, 300);
        return flow_run("remote", tests + (getenv("KVTIER_REMOTE_HOST") ? 2 : 0), 120);
}
