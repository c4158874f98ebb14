// SPDX-License-Identifier: Apache-2.0
/*
 * Clients that attack, misbehave or are many. Whatever they do, the daemon lives, tells the
 * log why it let go of them, and a good session beside them goes on storing and loading.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/checksum.h"
#include "proto/message.h"
#include "proto/presence.h"
#include "proto/status.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/wire_client.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

static struct daemon_fixture fixture;

static struct wire_client *open_client(void)
{
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        wire_client_open(client, fixture.socket);
        return client;
}

static void close_client(struct wire_client *client)
{
        wire_client_close(client);
        free(client);
}

/* Sanitizers keep freed memory. */
static bool is_sanitized(void)
{
        return getenv("ASAN_OPTIONS") || getenv("TSAN_OPTIONS");
}

/* A good session does its work, before and after. */
static void expect_service(struct wire_client *good, uint64_t number)
{
        struct wire_object object = wire_object(number, MIB);

        ck_assert_uint_eq(wire_client_put(good, &object), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_get(good, &object), KVT_WIRE_OK);
}

/* ---- shared memory ---- */

static int reopen(int fd, int flags)
{
        char path[64];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, flags | O_CLOEXEC);
}

static void expect_no_write(int fd)
{
        const uint64_t word = 0;

        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        ck_assert_int_eq(pwrite(fd, &word, sizeof(word), 0), -1);
        ck_assert_int_eq(ftruncate(fd, 4096), -1);
        ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
}

START_TEST(the_presence_table_cannot_be_written)
{
        struct wire_client *client, *good;
        struct presence_header *table;
        int fd;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        good = open_client();
        expect_no_write(client->table_fd);
        /* Opened afresh for writing, it may open, but the seals hold. */
        fd = reopen(client->table_fd, O_RDWR);
        if (fd >= 0) {
                expect_no_write(fd);
                close(fd);
        }
        ck_assert_int_eq(fcntl(client->table_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
        table = mmap(NULL, 4096, PROT_READ, MAP_SHARED, client->table_fd, 0);
        ck_assert_ptr_ne(table, MAP_FAILED);
        ck_assert_int_eq(mprotect(table, 4096, PROT_READ | PROT_WRITE), -1);
        ck_assert_uint_eq(table->magic, PRESENCE_MAGIC);
        munmap(table, 4096);
        expect_service(good, 1);
        close_client(client);
        close_client(good);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(an_arena_cannot_be_resized_or_sealed)
{
        struct wire_client *client;
        int fd;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        for (unsigned i = 0; i < client->n_arenas; i++) {
                off_t bytes = (off_t)client->arenas[i].bytes;

                /* Whoever may write it may open it again; the seals are the inode's. */
                fd = reopen(client->arenas[i].fd, O_RDWR);
                ck_assert_int_ge(fd, 0);
                ck_assert_int_eq(ftruncate(fd, bytes / 2), -1);
                ck_assert_int_eq(errno, EPERM);
                ck_assert_int_eq(ftruncate(fd, 2 * bytes), -1);
                ck_assert_int_eq(errno, EPERM);
                ck_assert_int_eq(fallocate(fd, 0, 0, 2 * bytes), -1);
                ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
                close(fd);
        }
        expect_service(client, 1);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/*
 * A hole punched into an arena reads as zeros: inside a domain any process can alter bytes
 * of host memory. The daemon lives, checksums tell, and NVMe never takes it for the object.
 */
START_TEST(a_hole_in_an_arena_is_told_by_checksums_and_kills_nobody)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB};
        struct wire_object object = wire_object(1, 2 * MIB);
        struct wire_client *client;
        uint32_t status;

        daemon_fixture_init(&fixture, &options);
        client = open_client();
        ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
        daemon_wait_written(&fixture);
        for (unsigned i = 0; i < client->n_arenas; i++)
                ck_assert_int_eq(fallocate(client->arenas[i].fd,
                                           FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                           (off_t)client->arenas[i].bytes),
                                 0);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, &object, 1), KVT_WIRE_OK);
        ck_assert(!wire_client_holds(client, &object));
        wire_client_end(client, WIRE_RELEASE, 0, &object, 1);
        /*
         * The device may write to the pages that the hole took away, so what comes up from
         * below may fail its checksum: a miss, and never other bytes.
         */
        daemon_evict(&fixture, "host");
        status = wire_client_get(client, &object);
        ck_assert(status == KVT_WIRE_OK || status == KVT_WIRE_CORRUPT);
        expect_service(client, 2);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- who may connect ---- */

static void connect_as(struct child *self, void *argument)
{
        uid_t uid = *(const uid_t *)argument;
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        ck_assert_int_eq(setgroups(0, NULL), 0);
        ck_assert_int_eq(setresgid(uid, uid, uid), 0);
        ck_assert_int_eq(setresuid(uid, uid, uid), 0);
        if (!wire_client_connect(client, fixture.socket)) {
                child_say(self, errno == EACCES ? 1000 : 2000);
        } else {
                child_say(self, wire_client_hello(client, 0));
                wire_client_close(client);
        }
        free(client);
}

static uint64_t answer_to(uid_t uid)
{
        struct child child;
        uint64_t answer;

        child_start(&child, connect_as, &uid);
        answer = child_hear(&child);
        child_join(&child);
        return answer;
}

START_TEST(another_uid_is_refused)
{
        struct wire_client *good;

        daemon_fixture_init(&fixture, NULL);
        good = open_client();
        ck_assert_uint_eq(answer_to(0), KVT_WIRE_OK);
        /* First the file mode, then the daemon's own look at the credentials. */
        ck_assert_uint_eq(answer_to(12345), 1000);
        ck_assert_int_eq(chmod(fixture.socket, 0777), 0);
        ck_assert_uint_eq(answer_to(12345), KVT_WIRE_DENIED);
        daemon_wait_log(&fixture, "session_refused", "uid=12345");
        /* The kernel's stand-in for uids without a mapping belongs to nobody. */
        ck_assert_uint_eq(answer_to(65534), KVT_WIRE_DENIED);
        daemon_wait_log(&fixture, "session_refused", "uid=65534");
        expect_service(good, 1);
        close_client(good);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void ask_to_clear(struct child *self, void *argument)
{
        struct wire_client *client = calloc(1, sizeof(*client));
        char *answer;

        ck_assert_ptr_nonnull(client);
        ck_assert_int_eq(setgroups(0, NULL), 0);
        ck_assert_int_eq(setresgid(12345, 12345, 12345), 0);
        ck_assert_int_eq(setresuid(12345, 12345, 12345), 0);
        ck_assert(wire_client_connect(client, fixture.socket));
        ck_assert_uint_eq(wire_client_hello(client, WIRE_HELLO_ADMIN), KVT_WIRE_OK);
        wire_client_send_admin(client, "{\"command\":\"clear\",\"layout\":\"0\"}");
        answer = wire_client_read_admin(client);
        ck_assert_ptr_nonnull(answer);
        child_say(self, strstr(answer, "may not give admin commands") != NULL);
        free(answer);
        wire_client_close(client);
        free(client);
}

START_TEST(admin_commands_need_the_admin_group)
{
        static const char *const overrides[] = {"socket.mode=0666", NULL};
        struct daemon_options options = {.overrides = overrides};
        struct child child;

        daemon_fixture_init(&fixture, &options);
        ck_assert_uint_eq(answer_to(12345), KVT_WIRE_OK);
        child_start(&child, ask_to_clear, NULL);
        ck_assert_uint_eq(child_hear(&child), 1);
        child_join(&child);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- garbage ---- */

enum garbage {
        RANDOM_BYTES,
        SHORT_HEADER,
        WRONG_MAGIC,
        WRONG_LENGTH,
        CUT_OFF,
        TOO_MANY_ITEMS,
        RESERVED_NOT_ZERO,
        FROM_THE_DAEMON,
        SECOND_HELLO,
        TOO_LONG,
        N_GARBAGE
};

static void send_mangled(struct wire_client *client, enum garbage garbage)
{
        static uint8_t packet[WIRE_MESSAGE_MAX + 4096] __attribute__((aligned(8)));
        struct wire_batch *batch = (void *)packet;
        struct wire_reserve_item *item = (void *)(batch + 1);
        size_t length = sizeof(*batch) + sizeof(*item);

        memset(packet, 0, sizeof(packet));
        batch->header = wire_client_header(client, WIRE_RESERVE);
        batch->header.length = (uint32_t)length;
        batch->header.n_items = 1;
        batch->layout = client->layout;
        batch->total = 1;
        item->bytes = 4096;
        item->numa_node = UINT32_MAX;
        switch (garbage) {
        case RANDOM_BYTES:
                for (size_t i = 0; i < 512; i++)
                        packet[i] = (uint8_t)rand();
                length = 512;
                break;
        case SHORT_HEADER:
                length = 20;
                break;
        case WRONG_MAGIC:
                batch->header.magic ^= 1;
                break;
        case WRONG_LENGTH:
                batch->header.length += 8;
                break;
        case CUT_OFF:
                length -= 8;
                break;
        case TOO_MANY_ITEMS:
                batch->header.n_items = UINT32_MAX;
                break;
        case RESERVED_NOT_ZERO:
                item->hit_tokens = 1;
                break;
        case FROM_THE_DAEMON:
                batch->header.kind = WIRE_BYE;
                batch->header.n_items = 0;
                batch->header.length = (uint32_t)(length = sizeof(struct wire_bye));
                break;
        case SECOND_HELLO:
                batch->header.kind = WIRE_HELLO;
                batch->header.n_items = 0;
                batch->header.length = (uint32_t)(length = sizeof(struct wire_hello));
                break;
        case TOO_LONG:
        case N_GARBAGE:
                length = WIRE_MESSAGE_MAX + 1000;
                break;
        }
        wire_client_send(client, packet, length);
}

START_TEST(garbage_is_disconnected_with_a_logged_reason)
{
        struct wire_client *good;

        daemon_fixture_init(&fixture, NULL);
        good = open_client();
        for (enum garbage garbage = 0; garbage < N_GARBAGE; garbage++) {
                struct wire_client *bad = open_client();
                char session[64];

                send_mangled(bad, garbage);
                wire_client_wait_hang_up(bad);
                snprintf(session, sizeof(session), "session=%" PRIu64 " ", bad->welcome.session);
                daemon_wait_log(&fixture, session, "reason=garbage");
                close_client(bad);
                expect_service(good, 100 + garbage);
        }
        /* Not even a HELLO. */
        struct wire_client *bad = calloc(1, sizeof(*bad));

        ck_assert(wire_client_connect(bad, fixture.socket));
        wire_client_send(bad, "hello", 5);
        wire_client_wait_hang_up(bad);
        close_client(bad);
        expect_service(good, 200);
        ck_assert_uint_eq(daemon_number(&fixture, "sessions"), 1);
        close_client(good);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(what_the_daemon_does_not_know_is_answered_as_unsupported)
{
        struct {
                struct wire_batch batch;
                struct wire_key_item item;
        } acquire = {.batch = {.flags = 1u << 31, .total = 1}};
        struct wire_object answer = {0};
        struct wire_header unknown;
        struct wire_client *client;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        unknown = wire_client_header(client, 999);
        unknown.length = sizeof(unknown);
        ck_assert(wire_client_send(client, &unknown, sizeof(unknown)));
        wire_client_finish(client, unknown.request, NULL, &answer, 1);
        ck_assert_uint_eq(answer.status, KVT_WIRE_UNSUPPORTED);
        acquire.batch.header = wire_client_header(client, WIRE_ACQUIRE);
        acquire.batch.header.length = sizeof(acquire);
        acquire.batch.header.n_items = 1;
        acquire.batch.layout = client->layout;
        ck_assert(wire_client_send(client, &acquire, sizeof(acquire)));
        ck_assert_uint_eq(
                wire_client_finish(client, acquire.batch.header.request, NULL, &answer, 1),
                KVT_WIRE_UNSUPPORTED);
        expect_service(client, 1);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(descriptors_that_a_client_sends_are_not_kept)
{
        struct wire_client *client;
        unsigned n_fds;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        n_fds = daemon_n_fds(&fixture);
        for (unsigned i = 0; i < 50; i++) {
                struct wire_header header = wire_client_header(client, 999);
                union {
                        char bytes[CMSG_SPACE(8 * sizeof(int))];
                        struct cmsghdr align;
                } control = {{0}};
                struct iovec vector = {.iov_base = &header, .iov_len = sizeof(header)};
                struct msghdr message = {.msg_iov = &vector,
                                         .msg_iovlen = 1,
                                         .msg_control = control.bytes,
                                         .msg_controllen = sizeof(control.bytes)};
                struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
                struct wire_object answer = {0};

                header.length = sizeof(header);
                rights->cmsg_level = SOL_SOCKET;
                rights->cmsg_type = SCM_RIGHTS;
                rights->cmsg_len = CMSG_LEN(8 * sizeof(int));
                for (unsigned f = 0; f < 8; f++)
                        memcpy(CMSG_DATA(rights) + f * sizeof(int), &(int){0}, sizeof(int));
                ck_assert_int_gt(sendmsg(client->fd, &message, 0), 0);
                wire_client_finish(client, header.request, NULL, &answer, 1);
        }
        ck_assert_uint_eq(daemon_n_fds(&fixture), n_fds);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_client_that_does_not_read_is_disconnected)
{
        struct wire_client *bad, *good;
        static const char status[] = "{\"command\":\"status\"}";
        uint64_t began_ms, slowest_ms = 0, rss;
        char session[64];

        daemon_fixture_init(&fixture, NULL);
        good = open_client();
        bad = open_client();
        rss = daemon_rss_bytes(&fixture);
        ck_assert_int_eq(fcntl(bad->fd, F_SETFL, O_NONBLOCK), 0);
        for (unsigned i = 0; i < 100000; i++) {
                struct message_builder builder;
                struct wire_header header = wire_client_header(bad, WIRE_ADMIN);

                message_builder_init(&builder, bad->out, &header, sizeof(header));
                ck_assert(
                        !message_append(&builder, status, sizeof(status) - 1, sizeof(status) - 1));
                if (send(bad->fd, bad->out, builder.length, MSG_NOSIGNAL) < 0) {
                        struct pollfd poll_fd = {.fd = bad->fd, .events = POLLOUT};

                        if (errno != EAGAIN)
                                break;
                        poll(&poll_fd, 1, 1000);
                }
                if (i % 1000)
                        continue;
                began_ms = daemon_now_ms();
                expect_service(good, 1000 + i);
                if (daemon_now_ms() - began_ms > slowest_ms)
                        slowest_ms = daemon_now_ms() - began_ms;
        }
        snprintf(session, sizeof(session), "session=%" PRIu64 " ", bad->welcome.session);
        daemon_wait_log(&fixture, session, "reason=not_reading");
        ck_assert_uint_lt(slowest_ms, 5000);
        if (!is_sanitized())
                ck_assert_uint_lt(daemon_rss_bytes(&fixture), rss + 96 * MIB);
        expect_service(good, 1);
        close_client(bad);
        close_client(good);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* Parts of one commit, each as full of checksums as a message can be, without end. */
static void send_checksums(struct wire_client *client)
{
        static const uint64_t pieces[CHECKSUM_PIECES_MAX];
        const struct wire_commit_item item = {.lease = 1, .n_pieces = CHECKSUM_PIECES_MAX};
        struct wire_batch batch = {.set = 1, .total = WIRE_ITEMS_MAX};
        struct message_builder builder;

        batch.header = wire_client_header(client, WIRE_COMMIT);
        for (;;) {
                message_builder_init(&builder, client->out, &batch, sizeof(batch));
                while (builder.length + sizeof(item) + sizeof(pieces) <= WIRE_MESSAGE_MAX) {
                        message_append(&builder, &item, sizeof(item), 1);
                        message_append(&builder, pieces, sizeof(pieces), 0);
                        batch.first++;
                }
                message_set_more(&builder, true);
                if (batch.first > WIRE_ITEMS_MAX - 100 ||
                    !wire_client_send(client, client->out, builder.length))
                        return;
        }
}

START_TEST(the_checksums_of_one_commit_are_bounded)
{
        struct wire_client *bad, *good;
        uint64_t rss;

        daemon_fixture_init(&fixture, NULL);
        good = open_client();
        bad = open_client();
        expect_service(good, 1);
        rss = daemon_rss_bytes(&fixture);
        send_checksums(bad);
        wire_client_wait_hang_up(bad);
        daemon_wait_log(&fixture, "too many checksums", "reason=garbage");
        if (!is_sanitized())
                ck_assert_uint_lt(daemon_rss_bytes(&fixture), rss + 32 * MIB);
        expect_service(good, 2);
        close_client(bad);
        close_client(good);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(limits_of_a_session_hold)
{
        static const char *const overrides[] = {"session.leases_max=10", "sessions.max=3",
                                                "session.bytes_max=8MiB", NULL};
        struct daemon_options options = {.overrides = overrides};
        struct wire_object objects[12], large[3];
        struct wire_client *clients[3], *refused;

        daemon_fixture_init(&fixture, &options);
        for (unsigned i = 0; i < 3; i++)
                clients[i] = open_client();
        refused = calloc(1, sizeof(*refused));
        ck_assert(wire_client_connect(refused, fixture.socket));
        ck_assert_uint_eq(wire_client_hello(refused, 0), KVT_WIRE_REFUSED);
        ck_assert_ptr_nonnull(strstr(refused->welcome.why, "sessions.max"));
        close_client(refused);

        for (unsigned i = 0; i < 12; i++)
                objects[i] = wire_object(i, 4096);
        wire_client_reserve(clients[0], 0, objects, 12);
        for (unsigned i = 0; i < 12; i++)
                ck_assert_uint_eq(objects[i].status, i < 10 ? KVT_WIRE_OK : KVT_WIRE_REFUSED);
        for (unsigned i = 0; i < 3; i++)
                large[i] = wire_object(100 + i, 4 * MIB);
        wire_client_reserve(clients[1], 0, large, 3);
        for (unsigned i = 0; i < 3; i++)
                ck_assert_uint_eq(large[i].status, i < 2 ? KVT_WIRE_OK : KVT_WIRE_REFUSED);
        expect_service(clients[2], 1);
        for (unsigned i = 0; i < 3; i++)
                close_client(clients[i]);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- many ---- */

static void work_a_while(struct child *self, void *argument)
{
        uint64_t first = *(const uint64_t *)argument;
        struct kvt_session *session = flow_open(fixture.socket);

        child_say(self, 1);
        child_hear(self);
        for (uint64_t i = 0; i < 20; i++) {
                enum kvt_status status =
                        flow_put(session, first + i, 0, 4096 + (first * 31 + i) % 60000, 0);

                ck_assert_msg(status == KVT_OK, "put: %s", kvt_status_name(status));
                status = flow_get(session, first + i, 0, 0, NULL);
                ck_assert_msg(status == KVT_OK, "get: %s", kvt_status_name(status));
        }
        child_say(self, 1);
        child_hear(self);
        kvt_close(session);
}

#define N_CROWD 64

static struct wire_client *open_with(uint32_t attach_flags)
{
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        ck_assert(wire_client_connect(client, fixture.socket));
        ck_assert_uint_eq(wire_client_hello(client, 0), KVT_WIRE_OK);
        client->attach_flags = attach_flags;
        ck_assert_uint_eq(wire_client_attach(client), KVT_WIRE_OK);
        return client;
}

/* What a session says when it attaches holds, also when its library is none of ours. */
START_TEST(a_session_gets_nothing_that_it_gave_up)
{
        struct wire_object known = wire_object(1, MIB), objects[2], unknown = wire_object(2, MIB);
        struct wire_client *good, *blind, *silent;
        struct wire_granted granted;

        daemon_fixture_init(&fixture, NULL);
        good = open_client();
        blind = open_with(WIRE_ATTACH_NO_LOADS);
        silent = open_with(WIRE_ATTACH_NO_STORES);
        expect_service(good, 1);
        ck_assert_uint_eq(wire_client_acquire(good, 0, &granted, &known, 1), KVT_WIRE_OK);

        ck_assert_uint_eq(wire_client_acquire(blind, 0, NULL, &known, 1), KVT_WIRE_MISS);
        ck_assert_uint_eq(wire_client_acquire(blind, WIRE_ACQUIRE_WAIT, NULL, &unknown, 1),
                          KVT_WIRE_MISS);
        ck_assert_uint_eq(wire_client_adopt(blind, granted.token, &known, 1), KVT_WIRE_MISS);
        ck_assert_uint_eq(wire_client_get(silent, &known), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_adopt(silent, granted.token, &known, 1), KVT_WIRE_OK);

        objects[0] = objects[1] = unknown;
        objects[1].number = 3;
        wire_client_reserve(silent, 7, objects, 2);
        for (unsigned i = 0; i < 2; i++) {
                ck_assert_uint_eq(objects[i].status, KVT_WIRE_REFUSED);
                ck_assert_uint_eq(objects[i].lease, 0);
        }
        ck_assert_uint_eq(wire_client_put(blind, &unknown), KVT_WIRE_OK);
        expect_service(good, 4);
        close_client(good);
        close_client(blind);
        close_client(silent);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(sixty_four_clients_at_once_are_served)
{
        struct child children[N_CROWD];

        daemon_fixture_init(&fixture, NULL);
        for (uint64_t i = 0; i < N_CROWD; i++) {
                uint64_t first = 100 * (i + 1);

                child_start(&children[i], work_a_while, &first);
        }
        for (unsigned i = 0; i < N_CROWD; i++)
                child_hear(&children[i]);
        ck_assert_uint_eq(daemon_number(&fixture, "sessions"), N_CROWD);
        for (unsigned i = 0; i < N_CROWD; i++)
                child_say(&children[i], 1);
        for (unsigned i = 0; i < N_CROWD; i++)
                child_hear(&children[i]);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), N_CROWD * 20);
        for (unsigned i = 0; i < N_CROWD; i++)
                child_say(&children[i], 1);
        for (unsigned i = 0; i < N_CROWD; i++)
                child_join(&children[i]);
        daemon_wait_number(&fixture, "sessions", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void connect_and_leave(unsigned n)
{
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        for (unsigned i = 0; i < n; i++) {
                struct wire_object object = wire_object(7, 4096);

                /* As strangers, after the handshake, attached, or holding something. */
                if (i % 4 == 0) {
                        ck_assert(wire_client_connect(client, fixture.socket));
                } else if (i % 4 == 1) {
                        ck_assert(wire_client_connect(client, fixture.socket));
                        ck_assert_uint_eq(wire_client_hello(client, WIRE_HELLO_ADMIN), KVT_WIRE_OK);
                } else {
                        wire_client_open(client, fixture.socket);
                        if (i % 4 == 3) {
                                wire_client_reserve(client, 0, &object, 1);
                                wire_client_end(client, WIRE_ABORT, 0, &object, 1);
                        }
                }
                wire_client_close(client);
        }
        free(client);
}

/* The last client's may be closed a moment later. */
static void expect_at_most_fds(unsigned n)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        while (daemon_n_fds(&fixture) > n) {
                ck_assert_msg(daemon_now_ms() < deadline, "%u descriptors, %u before",
                              daemon_n_fds(&fixture), n);
                daemon_pause();
        }
}

START_TEST(ten_thousand_connections_leave_nothing_behind)
{
        uint64_t rss, growth;
        unsigned n_fds;

        daemon_fixture_init(&fixture, NULL);
        n_fds = daemon_n_fds(&fixture);
        connect_and_leave(1000); /* what is kept for reuse is there now */
        daemon_wait_number(&fixture, "sessions", 0);
        expect_at_most_fds(n_fds);
        rss = daemon_rss_bytes(&fixture);
        connect_and_leave(9000);
        daemon_wait_number(&fixture, "sessions", 0);
        daemon_wait_number(&fixture, "quarantined", 0);
        expect_at_most_fds(n_fds);
        growth = daemon_rss_bytes(&fixture) - rss;
        /* 100 bytes a connection would be a leak. */
        if (!is_sanitized())
                ck_assert_msg((int64_t)growth < 900000, "grew by %" PRIu64 " bytes", growth);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                the_presence_table_cannot_be_written,
                an_arena_cannot_be_resized_or_sealed,
                a_hole_in_an_arena_is_told_by_checksums_and_kills_nobody,
                another_uid_is_refused,
                admin_commands_need_the_admin_group,
                garbage_is_disconnected_with_a_logged_reason,
                what_the_daemon_does_not_know_is_answered_as_unsupported,
                descriptors_that_a_client_sends_are_not_kept,
                a_client_that_does_not_read_is_disconnected,
                the_checksums_of_one_commit_are_bounded,
                limits_of_a_session_hold,
                a_session_gets_nothing_that_it_gave_up,
                sixty_four_clients_at_once_are_served,
                ten_thousand_connections_leave_nothing_behind,
                NULL,
        };

        return flow_run("hostile", tests, 180);
}
