// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/layout.h"
#include "fake_daemon.h"
#include "proto/layout.h"
#include "proto/message.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define LIMIT_MS 5000

static const struct kvt_group groups[] = {
        {
                .name = "kv",
                .kind = KVT_GROUP_ATTENTION,
                .page_tokens = FAKE_CHUNK,
                .page_bytes = FAKE_OBJECT,
        },
        {
                .name = "state",
                .kind = KVT_GROUP_STATE,
                .page_bytes = FAKE_OBJECT,
        },
};

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int make_memory(const char *name, uint64_t bytes, void **ret_base)
{
        int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
        *ret_base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(*ret_base, MAP_FAILED);
        return fd;
}

static void make_table(struct fake *fake)
{
        struct presence_header *header;

        fake->table_bytes = presence_table_bytes(1000);
        fake->table_fd = make_memory("table", fake->table_bytes, &fake->table);
        header = fake->table;
        header->magic = PRESENCE_MAGIC;
        header->version = PRESENCE_VERSION;
        header->header_bytes = PRESENCE_HEADER_BYTES;
        header->entry_bytes = sizeof(struct presence_entry);
        header->probe_buckets = PRESENCE_PROBE_BUCKETS;
        header->n_buckets = presence_n_buckets(1000);
        header->hash_key = 0x1234;
        header->heartbeat_period_ns = 20000000;
        memcpy(header->boot_id, fake->boot_id, sizeof(header->boot_id));
        fake_set_state(fake, PRESENCE_SERVING);
        fake_beat(fake, UINT64_MAX);
        if (!fake->leave_table_unsealed)
                ck_assert_int_eq(
                        fcntl(fake->table_fd, F_ADD_SEALS,
                              F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                        0);
}

static void make_arenas(struct fake *fake)
{
        for (int i = 0; i < FAKE_ARENAS; i++) {
                void *base;

                fake->arena_fds[i] = make_memory("arena", FAKE_ARENA_BYTES, &base);
                fake->arenas[i] = base;
                if (!fake->leave_arenas_unsealed)
                        ck_assert_int_eq(fcntl(fake->arena_fds[i], F_ADD_SEALS,
                                               F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                                         0);
        }
}

static void make_run(struct fake *fake)
{
        ck_assert_int_eq(getrandom(fake->boot_id, sizeof(fake->boot_id), 0), 16);
        make_table(fake);
        make_arenas(fake);
}

static void drop_run(struct fake *fake)
{
        munmap(fake->table, fake->table_bytes);
        close(fake->table_fd);
        for (int i = 0; i < FAKE_ARENAS; i++) {
                munmap(fake->arenas[i], FAKE_ARENA_BYTES);
                close(fake->arena_fds[i]);
        }
}

void fake_start(struct fake *fake, bool with_state)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        bool table = fake->leave_table_unsealed, arenas = fake->leave_arenas_unsealed;

        memset(fake, 0, sizeof(*fake));
        fake->leave_table_unsealed = table;
        fake->leave_arenas_unsealed = arenas;
        strcpy(fake->folder, "/tmp/kvt-fake-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(fake->folder));
        snprintf(fake->path, sizeof(fake->path), "%s/socket", fake->folder);
        strcpy(address.sun_path, fake->path);
        fake->socket = -1;
        fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(fake->listener, (void *)&address, sizeof(address)), 0);
        ck_assert_int_eq(listen(fake->listener, 8), 0);
        fake->session = 100;
        fake->layout = (struct kvt_layout){
                .size = sizeof(fake->layout),
                .model = "model",
                .engine = "engine",
                .chunk_tokens = FAKE_CHUNK,
                .groups = groups,
                .n_groups = with_state ? 2 : 1,
        };
        make_run(fake);
}

void fake_stop(struct fake *fake)
{
        fake_hang_up(fake);
        close(fake->listener);
        unlink(fake->path);
        rmdir(fake->folder);
        drop_run(fake);
}

void fake_restart(struct fake *fake)
{
        fake_hang_up(fake);
        drop_run(fake);
        fake->first_arena_id += 10;
        make_run(fake);
}

static void await_event(int fd, int limit_ms)
{
        struct pollfd event = {.fd = fd, .events = POLLIN};

        ck_assert_msg(poll(&event, 1, limit_ms) == 1, "nothing came within %d ms", limit_ms);
}

void fake_accept(struct fake *fake)
{
        ck_assert_int_eq(fake->socket, -1);
        await_event(fake->listener, LIMIT_MS);
        fake->socket = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
        ck_assert_int_ge(fake->socket, 0);
}

void fake_hang_up(struct fake *fake)
{
        if (fake->socket >= 0)
                close(fake->socket);
        fake->socket = -1;
}

const void *fake_expect(struct fake *fake, uint16_t kind)
{
        const struct wire_header *header = (const void *)fake->packet;
        struct why why;
        ssize_t length;

        await_event(fake->socket, LIMIT_MS);
        length = recv(fake->socket, fake->packet, sizeof(fake->packet), 0);
        ck_assert_msg(length > 0, "the client hung up");
        ck_assert_msg(!message_check(fake->packet, (size_t)length, &why), "%s", why.text);
        ck_assert_str_eq(message_kind_name(header->kind), message_kind_name(kind));
        return fake->packet;
}

void fake_expect_silence(struct fake *fake, int ms)
{
        struct pollfd event = {.fd = fake->socket, .events = POLLIN};

        ck_assert_int_eq(poll(&event, 1, ms), 0);
}

void fake_expect_hang_up(struct fake *fake)
{
        ssize_t length;

        do {
                await_event(fake->socket, LIMIT_MS);
                length = recv(fake->socket, fake->packet, sizeof(fake->packet), 0);
        } while (length > 0);
        fake_hang_up(fake);
}

void fake_send(struct fake *fake, const void *packet, size_t length, int fd)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec bytes = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
        struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};

        if (fd >= 0) {
                header.msg_control = &control;
                header.msg_controllen = sizeof(control);
                control.align.cmsg_level = SOL_SOCKET;
                control.align.cmsg_type = SCM_RIGHTS;
                control.align.cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
        }
        ck_assert_int_eq(sendmsg(fake->socket, &header, MSG_NOSIGNAL), (ssize_t)length);
}

static void send_welcome(struct fake *fake)
{
        struct wire_welcome welcome = {
                .major = WIRE_MAJOR,
                .status = fake->welcome_status,
                .session = ++fake->session,
                .table_bytes = fake->table_bytes,
                .host_bytes = FAKE_ARENAS * FAKE_ARENA_BYTES,
                .n_arenas = FAKE_ARENAS,
        };

        message_header_init(&welcome.header, WIRE_WELCOME, 0, fake->session, fake->boot_id);
        welcome.header.length = sizeof(welcome);
        ck_assert_int_eq(getrandom(fake->secret, sizeof(fake->secret), 0), 16);
        memcpy(welcome.secret, fake->secret, sizeof(welcome.secret));
        memcpy(welcome.boot_id, fake->boot_id, sizeof(welcome.boot_id));
        if (fake->why)
                snprintf(welcome.why, sizeof(welcome.why), "%s", fake->why);
        fake_send(fake, &welcome, sizeof(welcome), fake->table_fd);
}

static void send_arena(struct fake *fake, uint32_t number)
{
        struct wire_arena arena = {
                .arena_id = fake->first_arena_id + number,
                .numa_node = UINT32_MAX,
                .bytes = FAKE_ARENA_BYTES,
                .page_bytes = 4096,
        };

        message_header_init(&arena.header, WIRE_ARENA, 0, fake->session, fake->boot_id);
        arena.header.length = sizeof(arena);
        fake_send(fake, &arena, sizeof(arena), fake->arena_fds[number]);
}

static void answer_attach(struct fake *fake, const struct wire_attach *attach)
{
        struct kvt__layout_encoding *asked = calloc(2, sizeof(*asked));
        struct layout layout;
        struct wire_attached attached = {.status = fake->attached_status, .layout = 7};
        uint64_t hash_key = ((const struct presence_header *)fake->table)->hash_key;

        asked->length = attach->layout_bytes;
        memcpy(asked->bytes, message_attach_layout(attach), asked->length);
        ck_assert_int_eq(kvt__layout_choose(&asked[1], &layout, asked, FAKE_CHUNK, NULL), 0);
        ck_assert_int_eq(layout_id(&attached.layout_id, asked[1].bytes, asked[1].length), 0);
        attached.chunk_tokens = FAKE_CHUNK;
        attached.n_cells = layout_n_cells(&layout);
        fake->seed = presence_seed(hash_key, DOMAIN_DEFAULT, &attached.layout_id, 0);
        message_header_init(&attached.header, WIRE_ATTACHED, attach->header.request, fake->session,
                            fake->boot_id);
        attached.header.length = sizeof(attached);
        if (fake->why)
                snprintf(attached.why, sizeof(attached.why), "%s", fake->why);
        fake_send(fake, &attached, sizeof(attached), -1);
        free(asked);
}

void fake_greet(struct fake *fake)
{
        fake_accept(fake);
        fake_expect(fake, WIRE_HELLO);
        send_welcome(fake);
        if (fake->welcome_status || fake->leave_table_unsealed)
                return;
        send_arena(fake, 0);
        if (fake->leave_arenas_unsealed)
                return; /* the client has hung up, or is about to */
        send_arena(fake, 1);
        answer_attach(fake, fake_expect(fake, WIRE_ATTACH));
}

struct opening {
        struct fake *fake;
        struct kvt_session *session;
        enum kvt_status status;
        char why[512];
};

static void *open_in_thread(void *argument)
{
        struct opening *opening = argument;
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = opening->fake->path,
                .layout = &opening->fake->layout,
                .shards = opening->fake->shards,
                .n_shards = opening->fake->n_shards,
                .connect_timeout_ns = LIMIT_MS * UINT64_C(1000000),
        };

        opening->status = kvt_open(&opening->session, &options, opening->why, sizeof(opening->why));
        return NULL;
}

static struct opening open_greeted(struct fake *fake)
{
        struct opening opening = {.fake = fake};
        pthread_t thread;

        ck_assert_int_eq(pthread_create(&thread, NULL, open_in_thread, &opening), 0);
        fake_greet(fake);
        pthread_join(thread, NULL);
        return opening;
}

struct kvt_session *fake_open(struct fake *fake)
{
        struct opening opening = open_greeted(fake);

        ck_assert_msg(opening.status == KVT_OK, "%s: %s", kvt_status_name(opening.status),
                      opening.why);
        return opening.session;
}

enum kvt_status fake_open_refused(struct fake *fake, char *ret_why, size_t why_bytes)
{
        struct opening opening = open_greeted(fake);

        ck_assert_ptr_null(opening.session);
        snprintf(ret_why, why_bytes, "%s", opening.why);
        return opening.status;
}

void fake_await(struct kvt_session *session, bool attached)
{
        struct kvt_session_info info = {.size = sizeof(info)};

        for (int i = 0; i < LIMIT_MS; i++) {
                ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
                if (!!info.attached == attached)
                        return;
                poll(NULL, 0, 1);
        }
        ck_abort_msg("the session did not become %s", attached ? "attached" : "detached");
}

void fake_result(struct fake *fake, uint64_t request, bool more, const struct fake_item *items,
                 uint32_t n)
{
        struct message_builder builder;
        struct wire_header header;

        message_header_init(&header, WIRE_RESULT, request, fake->session, fake->boot_id);
        message_builder_init(&builder, fake->packet, &header, sizeof(header));
        for (uint32_t i = 0; i < n; i++) {
                struct wire_result_item item = {
                        .index = items[i].index,
                        .status = items[i].status,
                        .lease = items[i].lease,
                        .generation = 1,
                        .bytes = items[i].bytes,
                        .n_extents = items[i].bytes ? 1 : 0,
                };
                struct wire_extent extent = {
                        .arena_id = fake->first_arena_id + items[i].arena,
                        .offset = items[i].offset,
                        .length = (items[i].bytes + 4095) / 4096 * 4096,
                };

                ck_assert_int_eq(message_append_result(&builder, &item, &extent, NULL), 0);
        }
        message_set_more(&builder, more);
        fake_send(fake, builder.buffer, builder.length, -1);
}

void fake_granted(struct fake *fake, uint64_t request, uint32_t status, uint32_t n_granted)
{
        struct wire_granted granted = {.status = status, .n_granted = n_granted};

        message_header_init(&granted.header, WIRE_GRANTED, request, fake->session, fake->boot_id);
        granted.header.length = sizeof(granted);
        granted.header.flags = WIRE_MORE;
        fake_send(fake, &granted, sizeof(granted), -1);
}

void fake_put(struct fake *fake, const struct kvt_digest *digest, uint64_t present,
              uint64_t resident)
{
        struct presence_view view;
        struct presence_entry *entries, *entry;
        uint64_t fingerprint = presence_fingerprint(fake->seed, (const void *)digest);
        uint64_t bucket, home;

        ck_assert_int_eq(presence_view_init(&view, fake->table, fake->table_bytes), 0);
        entries = (void *)((uint8_t *)fake->table + PRESENCE_HEADER_BYTES);
        home = bucket = presence_home(fingerprint, view.n_buckets);
        for (;;) {
                entry = &entries[bucket * PRESENCE_BUCKET_ENTRIES];
                if (!entry->fingerprint || (++entry)->fingerprint == 0)
                        break;
                bucket = (bucket + 1) % view.n_buckets;
        }
        entry->present = present;
        entry->resident = resident;
        entry->fingerprint = fingerprint;
        if (bucket != home)
                entries[home * PRESENCE_BUCKET_ENTRIES].flags += 1u << PRESENCE_OVERFLOW_SHIFT;
}

void fake_set_state(struct fake *fake, uint32_t state)
{
        ((struct presence_header *)fake->table)->state = state;
}

void fake_beat(struct fake *fake, uint64_t ns)
{
        ((struct presence_header *)fake->table)->heartbeat_ns = ns ? ns : now_ns();
}
