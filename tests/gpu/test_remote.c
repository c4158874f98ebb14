// SPDX-License-Identifier: Apache-2.0
/*
 * A session with another node whose buffer is memory of a GPU: the library, the bridge and the
 * daemon over a transport without a device, and a driver without a GPU (loopback_rdma.c,
 * fake_cuda.h). What stands for the dma-buf is mapped by the transport; the buffer's own addresses
 * kill whoever dereferences them.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/gpu/gpu_engine.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fds.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB       UINT64_C(0x100000)
#define ALLOCATED (24 * MIB)
#define BUFFER    (16 * MIB)
#define SHAPE     "Qwen3-0.6B"
#define NO_DMABUF 124 /* the attribute that tells of it */

static struct daemon_fixture fixture;
static struct gpu gpu;
static struct gpu_engine engine;
static struct kvt_dmabuf dmabuf;
static cu_address memory;
static uint64_t before = 0x3200; /* the buffer: not at the allocation's start, nor a page's */
static char address[96], secret[160];

static uint16_t free_port(void)
{
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof(at);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert(!bind(fd, (struct sockaddr *)&at, sizeof(at)));
        ck_assert(!getsockname(fd, (struct sockaddr *)&at, &length));
        close(fd);
        return ntohs(at.sin_port);
}

static void write_secret(void)
{
        static const char text[] = "default of-nobody-elses-business\n";
        int fd = open(secret, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        ck_assert_int_eq(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
        close(fd);
        ck_assert(!setenv("KVTIER_SECRET", secret, 1));
}

static void start(void)
{
        static char listen_at[64], secret_at[192];
        static const char *overrides[] = {listen_at, secret_at, "rdma.allow=127.0.0.1", NULL};
        struct daemon_options options = {.overrides = overrides, .keeps_fds = true};
        char why[GPU_WHY_BYTES];
        unsigned port = free_port();

        daemon_fixture_prepare(&fixture, &options);
        snprintf(secret, sizeof(secret), "%s/secret", fixture.folder);
        snprintf(address, sizeof(address), "rdma://127.0.0.1:%u", port);
        snprintf(listen_at, sizeof(listen_at), "rdma.listen=127.0.0.1:%u", port);
        snprintf(secret_at, sizeof(secret_at), "rdma.secret=%s", secret);
        write_secret();
        daemon_start(&fixture);
        ck_assert_msg(gpu_open(&gpu, 0, why), "%s", why);
        memory = gpu_allocate(&gpu, ALLOCATED);
}

static void stop(void)
{
        gpu_release(&gpu, memory);
        gpu_close(&gpu);
        daemon_fixture_deinit(&fixture);
}

static enum kvt_status export(char why[GPU_WHY_BYTES]) {
        return kvt_cuda_export(NULL, (void *)(uintptr_t)(memory + before), BUFFER, &dmabuf, why,
                               GPU_WHY_BYTES);
}

/* In the buffer, whose descriptor is closed as soon as it may be. */
static struct kvt_session *open_session(void)
{
        struct kvt_session *session = NULL;
        char why[GPU_WHY_BYTES] = "";

        ck_assert_msg(export(why) == KVT_OK, "%s", why);
        ck_assert_msg(gpu_engine_remote_session(&session, shape_named(SHAPE), address, &dmabuf, why,
                                                sizeof(why)) == KVT_OK,
                      "%s", why);
        close(dmabuf.fd);
        return session;
}

static void open_engine(uint32_t strategies)
{
        struct kvt_cuda_options options = {.size = sizeof(options),
                                           .flags = KVT_CUDA_NO_MEASURE,
                                           .strategies = strategies,
                                           .piece_bytes = 2 * MIB};

        gpu_engine_open(&engine, shape_named(SHAPE), &gpu, open_session(), &options);
        gpu_engine_wait_registered(&engine);
}

/* What comes back has come from elsewhere. */
static void wipe(void *user)
{
        memset(fake_cuda_bytes(memory, ALLOCATED), 0xee, ALLOCATED);
}

/* The image is pushed and read back by the test itself. */
static void expect_no_host_memory_between(const struct fake_cuda_figures *then)
{
        struct fake_cuda_figures now;

        fake_cuda_figures(&now);
        ck_assert_uint_eq(now.to_device_bytes - then->to_device_bytes, 2 * engine.bytes);
        ck_assert_uint_eq(now.to_host_bytes - then->to_host_bytes, engine.bytes);
        ck_assert_uint_eq(now.registered_bytes, then->registered_bytes);
}

static void round_trip_by(enum kvt_cuda_strategy strategy, uint64_t first)
{
        uint64_t flushes = fake_cuda_calls("cuFlushGPUDirectRDMAWrites");
        struct fake_cuda_figures then;
        struct kvt_cuda_info info;

        open_engine(1u << strategy);
        if (gpu_moves_by(engine.session, strategy)) {
                fake_cuda_figures(&then);
                gpu_engine_round_trip(&engine, first, wipe, NULL);
                info = gpu_engine_info(&engine);
                ck_assert_uint_gt(info.moved[KVT_CUDA_STORE][strategy].bytes, 0);
                ck_assert_uint_gt(info.moved[KVT_CUDA_LOAD][strategy].bytes, 0);
                ck_assert_uint_eq(info.unregistered_bytes_moved, 0);
                ck_assert_uint_eq(info.failed_jobs, 0);
                ck_assert_uint_eq(info.registered_bytes, BUFFER);
                expect_no_host_memory_between(&then);
                ck_assert_uint_gt(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), flushes);
        }
        gpu_engine_close(&engine);
}

START_TEST(pages_go_between_a_gpu_and_another_node_and_never_through_host_memory)
{
        start();
        for (enum kvt_cuda_strategy i = 0; i < KVT_CUDA_STRATEGIES; i++)
                round_trip_by(i, 1 + 100 * (uint64_t)i);
        stop();
}
END_TEST

START_TEST(a_gpu_that_orders_writes_by_itself_is_not_made_to_flush)
{
        uint64_t flushes = fake_cuda_calls("cuFlushGPUDirectRDMAWrites");

        fake_cuda_set_attribute(118, 100);
        start();
        open_engine(0);
        gpu_engine_round_trip(&engine, 1, wipe, NULL);
        gpu_engine_close(&engine);
        ck_assert_uint_eq(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), flushes);
        stop();
}
END_TEST

START_TEST(a_flush_that_fails_is_a_failed_load_and_nothing_else)
{
        struct kvt_object objects[ENGINE_N_MAX];
        uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
        unsigned n;

        start();
        open_engine(0);
        gpu_engine_round_trip(&engine, 1, wipe, NULL);
        fake_cuda_fail("cuFlushGPUDirectRDMAWrites", FAKE_CUDA_NOT_SUPPORTED, 0, 1);
        n = gpu_engine_objects(&engine, 1, objects, slots);
        gpu_engine_load(&engine, objects, n);
        ck_assert_uint_eq(objects[0].status, KVT_IO_ERROR);
        gpu_engine_round_trip(&engine, 201, wipe, NULL);
        gpu_engine_close(&engine);
        stop();
}
END_TEST

START_TEST(the_buffer_is_the_same_after_the_daemon_has_been_restarted)
{
        start();
        open_engine(0);
        gpu_engine_round_trip(&engine, 1, wipe, NULL);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
        gpu_engine_round_trip(&engine, 101, wipe, NULL);
        ck_assert_uint_eq(gpu_engine_info(&engine).mapped_bytes, BUFFER);
        gpu_engine_close(&engine);
        stop();
}
END_TEST

START_TEST(nothing_is_left_when_it_is_over_but_the_memory)
{
        unsigned n_fds;

        before = 0x3000;
        start();
        open_engine(0); /* libraries stay loaded */
        gpu_engine_close(&engine);
        n_fds = count_fds();
        open_engine(0);
        gpu_engine_round_trip(&engine, 1, wipe, NULL);
        gpu_engine_close(&engine);
        ck_assert_uint_eq(count_fds(), n_fds);
        /* The memory is the caller's, and still there. */
        ck_assert(!msync((void *)(uintptr_t)(memory + before), BUFFER, MS_ASYNC));
        stop();
}
END_TEST

START_TEST(an_rdma_device_that_cannot_is_named_and_nothing_is_left)
{
        struct kvt_session *session = NULL;
        char why[GPU_WHY_BYTES] = "";
        unsigned n_fds;

        start();
        ck_assert_msg(export(why) == KVT_OK, "%s", why);
        ck_assert(!setenv("LOOPBACK_NO_DMABUF", "1", 1));
        for (unsigned i = 0; i < 2; i++) {
                n_fds = count_fds(); /* the second time: the module is loaded */
                ck_assert_int_eq(gpu_engine_remote_session(&session, shape_named(SHAPE), address,
                                                           &dmabuf, why, sizeof(why)),
                                 KVT_UNSUPPORTED);
                ck_assert_msg(strstr(why, "in a GPU's memory cannot be registered: RDMA device "),
                              "%s", why);
        }
        ck_assert_uint_eq(count_fds(), n_fds);
        close(dmabuf.fd);
        stop();
}
END_TEST

START_TEST(a_gpu_that_cannot_is_named)
{
        char why[GPU_WHY_BYTES] = "";

        fake_cuda_set_attribute(NO_DMABUF, 0);
        start();
        ck_assert_int_eq(export(why), KVT_UNSUPPORTED);
        ck_assert_msg(strstr(why, "the driver of GPU 0 cannot export its memory"), "%s", why);
        stop();
}
END_TEST

static void expect_refused(struct kvt_dmabuf wrong, const char *reason)
{
        struct kvt_session *session = NULL;
        char why[GPU_WHY_BYTES] = "";

        ck_assert_int_eq(gpu_engine_remote_session(&session, shape_named(SHAPE), address, &wrong,
                                                   why, sizeof(why)),
                         KVT_INVALID);
        ck_assert_msg(strstr(why, reason), "%s", why);
}

START_TEST(a_buffer_that_cannot_be_right_is_refused)
{
        struct kvt_dmabuf wrong;
        char why[GPU_WHY_BYTES] = "";

        start();
        ck_assert_msg(export(why) == KVT_OK, "%s", why);
        wrong = dmabuf;
        wrong.size = 0;
        expect_refused(wrong, "kvt_dmabuf.size");
        wrong = dmabuf;
        wrong.bytes -= 512;
        expect_refused(wrong, "kvt_dmabuf.bytes");
        wrong = dmabuf;
        wrong.offset ^= 512;
        expect_refused(wrong, "kvt_dmabuf.offset");
        wrong = dmabuf;
        wrong.reserved = 1;
        expect_refused(wrong, "reserved");
        close(dmabuf.fd);
        expect_refused(dmabuf, "kvt_dmabuf.fd");
        snprintf(address, sizeof(address), "%s", fixture.socket);
        expect_refused(dmabuf, "kvt_options.dmabuf is for remote sessions");
        stop();
}
END_TEST

/* One page of each group at @base, as far as that is asked. */
static enum kvt_status new_map(struct kvt_session *session, void *base, char why[GPU_WHY_BYTES])
{
        const struct shape_group *group = &shape_named(SHAPE)->groups[0];
        struct kvt_page_view view = {.base = base,
                                     .page_stride = shape_page_bytes(group),
                                     .row_bytes = shape_page_bytes(group),
                                     .row_stride = shape_page_bytes(group),
                                     .n_rows = 1};
        struct kvt_page_group groups[] = {{.n_views = 1, .n_pages = 1, .views = &view}};
        struct kvt_page_map *map;

        return kvt_page_map_new(session, groups, 1, &map, why, GPU_WHY_BYTES);
}

START_TEST(whatever_would_touch_the_buffer_with_the_processor_is_refused)
{
        struct kvt_blob blob = {
                .size = sizeof(blob), .tokens = (const uint32_t[]){1, 2, 3}, .n_tokens = 3};
        struct kvt_object object = {.lease = 1, .segments = (struct kvt_segment[]){{0}}};
        struct kvt_session *session;
        char why[GPU_WHY_BYTES] = "", *bytes = calloc(1, MIB * 4);
        uint64_t length;
        size_t n;

        start();
        session = open_session();
        ck_assert_int_eq(kvt_cuda_register(session, NULL, why, sizeof(why)), KVT_OK);
        ck_assert_int_eq(new_map(session, bytes, why), KVT_INVALID);
        ck_assert_msg(strstr(why, "does not lie on the GPU that has the session's buffer"), "%s",
                      why);
        ck_assert_int_eq(kvt_blob_put(session, &blob, "x", 1), KVT_UNSUPPORTED);
        ck_assert_int_eq(kvt_blob_get(session, &blob, bytes, 1, &length, &n), KVT_UNSUPPORTED);
        ck_assert_int_eq(kvt_verify(session, &object), KVT_UNSUPPORTED);
        kvt_close(session);
        free(bytes);
        stop();
}
END_TEST

START_TEST(pages_on_another_gpu_are_refused)
{
        struct kvt_session *session;
        char why[GPU_WHY_BYTES] = "";
        cu_address elsewhere;
        struct gpu other;

        start();
        ck_assert_msg(gpu_open(&other, 1, why), "%s", why);
        elsewhere = gpu_allocate(&other, 4 * MIB);
        session = open_session();
        ck_assert_int_eq(kvt_cuda_register(session, NULL, why, sizeof(why)), KVT_OK);
        ck_assert_int_eq(new_map(session, (void *)(uintptr_t)elsewhere, why), KVT_INVALID);
        ck_assert_msg(strstr(why, "does not lie on the GPU that has the session's buffer"), "%s",
                      why);
        kvt_close(session);
        gpu_release(&other, elsewhere);
        gpu_close(&other);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                pages_go_between_a_gpu_and_another_node_and_never_through_host_memory,
                a_gpu_that_orders_writes_by_itself_is_not_made_to_flush,
                a_flush_that_fails_is_a_failed_load_and_nothing_else,
                the_buffer_is_the_same_after_the_daemon_has_been_restarted,
                nothing_is_left_when_it_is_over_but_the_memory,
                an_rdma_device_that_cannot_is_named_and_nothing_is_left,
                a_gpu_that_cannot_is_named,
                a_buffer_that_cannot_be_right_is_refused,
                whatever_would_touch_the_buffer_with_the_processor_is_refused,
                pages_on_another_gpu_are_refused,
                NULL,
        };

        return flow_run("gpu remote", tests, 120);
}
