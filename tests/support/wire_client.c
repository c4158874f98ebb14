// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/layout.h"
#include "proto/message.h"
#include "proto/status.h"
#include "tests/support/content.h"
#include "tests/support/wire_client.h"

/* ---- socket ---- */

bool wire_client_connect(struct wire_client *client, const char *socket_path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};

        memset(client, 0, sizeof(*client));
        client->table_fd = -1;
        client->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(client->fd, 0);
        strncpy(address.sun_path, socket_path, sizeof(address.sun_path) - 1);
        if (!connect(client->fd, (struct sockaddr *)&address, sizeof(address)))
                return true;
        close(steal_fd(&client->fd));
        return false;
}

bool wire_client_send(struct wire_client *client, const void *packet, size_t length)
{
        if (send(client->fd, packet, length, MSG_NOSIGNAL) >= 0)
                return true;
        ck_assert_msg(errno == EPIPE || errno == ECONNRESET, "send: %s", strerror(errno));
        return false;
}

static void take_arena(struct wire_client *client, const struct wire_arena *message, int fd)
{
        struct wire_client_arena *arena;

        ck_assert_int_ge(fd, 0);
        ck_assert_uint_lt(client->n_arenas, WIRE_CLIENT_ARENAS_MAX);
        arena = &client->arenas[client->n_arenas++];
        *arena = (struct wire_client_arena){.id = message->arena_id, .bytes = message->bytes};
        arena->base = mmap(NULL, message->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(arena->base, MAP_FAILED);
        arena->fd = fd;
}

static int received_fd(struct msghdr *message)
{
        struct cmsghdr *header = CMSG_FIRSTHDR(message);
        int fd = -1;

        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
                memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        return fd;
}

/* One packet, with its descriptor or -1. NULL: hung up. */
static const struct wire_header *receive_packet(struct wire_client *client, int *ret_fd)
{
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec vector = {.iov_base = client->in, .iov_len = sizeof(client->in)};
        struct msghdr message = {.msg_iov = &vector,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        struct why why = {""};
        ssize_t n;

        do {
                n = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
                ck_assert_msg(errno == ECONNRESET, "recvmsg: %s", strerror(errno));
        if (n <= 0)
                return NULL;
        ck_assert_int_eq(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
        ck_assert_msg(!message_check(client->in, (size_t)n, &why), "the daemon sends: %s",
                      why.text);
        *ret_fd = received_fd(&message);
        return (const void *)client->in;
}

const struct wire_header *wire_client_receive(struct wire_client *client)
{
        const struct wire_header *header;
        int fd;

        while ((header = receive_packet(client, &fd))) {
                if (header->kind == WIRE_ARENA) {
                        take_arena(client, (const void *)header, fd);
                } else if (header->kind == WIRE_BYE) {
                        memcpy(&client->bye, header, sizeof(client->bye));
                } else {
                        if (header->kind == WIRE_WELCOME)
                                client->table_fd = fd;
                        return header;
                }
        }
        return NULL;
}

void wire_client_wait_hang_up(struct wire_client *client)
{
        while (wire_client_receive(client))
                ;
}

void wire_client_hang_up(struct wire_client *client)
{
        if (client->fd >= 0)
                close(steal_fd(&client->fd));
        if (client->table_fd >= 0)
                close(steal_fd(&client->table_fd));
}

void wire_client_close(struct wire_client *client)
{
        wire_client_hang_up(client);
        for (unsigned i = 0; i < client->n_arenas; i++) {
                munmap(client->arenas[i].base, client->arenas[i].bytes);
                close(client->arenas[i].fd);
        }
        client->n_arenas = 0;
}

/* ---- handshake ---- */

struct wire_header wire_client_header(struct wire_client *client, uint16_t kind)
{
        struct wire_header header;

        message_header_init(&header, kind, ++client->last_request, client->welcome.session,
                            client->welcome.boot_id);
        return header;
}

uint32_t wire_client_hello(struct wire_client *client, uint32_t flags)
{
        struct wire_hello hello = {
                .major = WIRE_MAJOR, .minor = WIRE_MINOR, .flags = flags, .program = "test"};
        const struct wire_header *header;

        message_header_init(&hello.header, WIRE_HELLO, ++client->last_request, 0, NULL);
        hello.header.length = sizeof(hello);
        if (!wire_client_send(client, &hello, sizeof(hello)) && client->fd < 0)
                return KVT_WIRE_UNAVAILABLE;
        header = wire_client_receive(client);
        if (!header)
                return KVT_WIRE_UNAVAILABLE;
        ck_assert_uint_eq(header->kind, WIRE_WELCOME);
        memcpy(&client->welcome, header, sizeof(client->welcome));
        return client->welcome.status;
}

static size_t encode_layout(uint8_t *buffer, size_t size)
{
        struct layout layout = {
                .model = {"test", 4},
                .chunk_tokens = TEST_CHUNK_TOKENS,
                .tp = 1,
                .pp = 1,
                .cp = 1,
                .n_groups = 2,
                .groups = {{.name = {"chunk", 5},
                            .kind = LAYOUT_ATTENTION,
                            .n_shards = 1,
                            .page_tokens = TEST_CHUNK_TOKENS,
                            .n_rows = 1},
                           {.name = {"state", 5},
                            .kind = LAYOUT_STATE,
                            .n_shards = 1,
                            .first_row = 1,
                            .n_rows = 1}},
                .n_rows = 2,
                .rows = {{.n_shards = 1,
                          .page_bytes = TEST_CHUNK_BYTES,
                          .padded_bytes = TEST_CHUNK_BYTES},
                         {.n_shards = 1}},
        };
        int length = layout_encode(&layout, buffer, size);

        ck_assert_int_gt(length, 0);
        return (size_t)length;
}

uint32_t wire_client_attach(struct wire_client *client)
{
        struct wire_attach attach = {.header = wire_client_header(client, WIRE_ATTACH)};
        const struct wire_attached *attached;
        struct message_builder builder;
        uint8_t layout[4096];

        attach.layout_bytes = (uint32_t)encode_layout(layout, sizeof(layout));
        attach.flags = client->attach_flags;
        memcpy(attach.engine_id, client->engine_id, sizeof(attach.engine_id));
        message_builder_init(&builder, client->out, &attach, sizeof(attach));
        ck_assert(!message_append(&builder, layout, attach.layout_bytes, 0));
        if (!wire_client_send(client, client->out, builder.length))
                return KVT_WIRE_UNAVAILABLE;
        attached = (const void *)wire_client_receive(client);
        if (!attached)
                return KVT_WIRE_UNAVAILABLE;
        ck_assert_uint_eq(attached->header.kind, WIRE_ATTACHED);
        client->layout = attached->layout;
        return attached->status;
}

void wire_client_open(struct wire_client *client, const char *socket_path)
{
        uint8_t engine_id[16];

        memcpy(engine_id, client->engine_id, sizeof(engine_id));
        ck_assert(wire_client_connect(client, socket_path));
        memcpy(client->engine_id, engine_id, sizeof(engine_id));
        ck_assert_uint_eq(wire_client_hello(client, 0), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_attach(client), KVT_WIRE_OK);
        /* ATTACHED is sent behind the arenas of the handshake. */
        ck_assert_uint_ge(client->n_arenas, client->welcome.n_arenas);
}

/* ---- admin ---- */

void wire_client_send_admin(struct wire_client *client, const char *text)
{
        struct wire_header header = wire_client_header(client, WIRE_ADMIN);
        uint32_t length = (uint32_t)strlen(text);
        struct message_builder builder;

        message_builder_init(&builder, client->out, &header, sizeof(header));
        ck_assert(!message_append(&builder, text, length, length));
        wire_client_send(client, client->out, builder.length);
}

char *wire_client_read_admin(struct wire_client *client)
{
        const struct wire_header *header;
        char *text = NULL;
        size_t length = 0;

        do {
                header = wire_client_receive(client);
                if (!header) {
                        free(text);
                        return NULL;
                }
                ck_assert_uint_eq(header->kind, WIRE_ADMIN_REPLY);
                text = realloc(text, length + header->n_items + 1);
                ck_assert_ptr_nonnull(text);
                memcpy(text + length, message_text(header), header->n_items);
                length += header->n_items;
                text[length] = '\0';
        } while (header->flags & WIRE_MORE);
        return text;
}

/* ---- requests ---- */

struct wire_object wire_object(uint64_t number, uint64_t bytes)
{
        return (struct wire_object){.number = number, .bytes = bytes, .group = TEST_GROUP_STATE};
}

static void begin_batch(struct wire_client *client, struct message_builder *builder,
                        const struct wire_batch *fixed, uint16_t kind, unsigned n)
{
        struct wire_batch batch = *fixed;

        ck_assert_uint_le(n, WIRE_CLIENT_OBJECTS);
        batch.header = wire_client_header(client, kind);
        batch.total = n;
        message_builder_init(builder, client->out, &batch, sizeof(batch));
}

static uint64_t send_built(struct wire_client *client, const struct message_builder *builder)
{
        wire_client_send(client, client->out, builder->length);
        return client->last_request;
}

uint64_t wire_client_send_reserve(struct wire_client *client, uint64_t set,
                                  const struct wire_object *objects, unsigned n)
{
        struct wire_batch batch = {.set = set, .layout = client->layout};
        struct message_builder builder;

        begin_batch(client, &builder, &batch, WIRE_RESERVE, n);
        for (unsigned i = 0; i < n; i++) {
                struct wire_reserve_item item = {.group = objects[i].group,
                                                 .shard = objects[i].shard,
                                                 .flags = objects[i].flags |
                                                          WIRE_RESERVE_PARENT_UNKNOWN,
                                                 .boundary_tokens = TEST_CHUNK_TOKENS,
                                                 .numa_node = UINT32_MAX,
                                                 .bytes = objects[i].bytes};

                content_digest(&item.boundary, objects[i].number);
                ck_assert(!message_append(&builder, &item, sizeof(item), 1));
        }
        return send_built(client, &builder);
}

static void append_keys(struct message_builder *builder, const struct wire_object *objects,
                        unsigned n)
{
        for (unsigned i = 0; i < n; i++) {
                struct wire_key_item item = {.group = objects[i].group,
                                             .shard = objects[i].shard,
                                             .n_runs = objects[i].n_runs};

                content_digest(&item.boundary, objects[i].number);
                ck_assert(!message_append(builder, &item, sizeof(item), 1));
                ck_assert(!message_append(builder, objects[i].runs,
                                          item.n_runs * sizeof(objects[i].runs[0]), 0));
        }
}

uint64_t wire_client_send_acquire(struct wire_client *client, uint32_t flags, uint64_t timeout_ns,
                                  const struct wire_object *objects, unsigned n)
{
        struct wire_batch batch = {
                .layout = client->layout, .flags = flags, .timeout_ns = timeout_ns};
        struct message_builder builder;

        begin_batch(client, &builder, &batch, WIRE_ACQUIRE, n);
        append_keys(&builder, objects, n);
        return send_built(client, &builder);
}

uint64_t wire_client_send_leases(struct wire_client *client, uint16_t kind, uint64_t set,
                                 const struct wire_object *objects, unsigned n)
{
        struct wire_batch batch = {.set = set};
        struct message_builder builder;

        begin_batch(client, &builder, &batch, kind, n);
        for (unsigned i = 0; i < n; i++) {
                struct wire_commit_item item = {.lease = objects[i].lease};
                size_t bytes = kind == WIRE_COMMIT ? sizeof(item) : sizeof(item.lease);

                ck_assert(!message_append(&builder, &item, bytes, 1));
        }
        return send_built(client, &builder);
}

/* ---- answers ---- */

static void take_results(const struct wire_header *header, struct wire_object *objects, unsigned n)
{
        struct message_cursor cursor;
        struct wire_result_item item;
        const struct wire_extent *extents;
        const uint64_t *pieces;

        message_cursor_init(&cursor, header);
        while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                struct wire_object *object;

                /* A request that is not looked into gets one status for all of it. */
                if (item.index >= n)
                        continue;
                object = &objects[item.index];
                object->status = item.status;
                if (item.lease)
                        object->lease = item.lease;
                if (item.bytes)
                        object->bytes = item.bytes;
                if (!item.n_extents)
                        continue;
                object->n_extents = item.n_extents;
                memcpy(object->extents, extents, item.n_extents * sizeof(*extents));
        }
}

uint32_t wire_client_finish(struct wire_client *client, uint64_t request,
                            struct wire_granted *ret_granted, struct wire_object *objects,
                            unsigned n)
{
        uint32_t status = KVT_WIRE_OK;
        const struct wire_header *header;

        do {
                header = wire_client_receive(client);
                if (!header)
                        return KVT_WIRE_GONE;
                ck_assert_uint_eq(header->request, request);
                if (header->kind == WIRE_GRANTED) {
                        const struct wire_granted *granted = (const void *)header;

                        status = granted->status;
                        if (ret_granted)
                                *ret_granted = *granted;
                } else {
                        ck_assert_uint_eq(header->kind, WIRE_RESULT);
                        take_results(header, objects, n);
                }
        } while (header->kind != WIRE_RESULT || header->flags & WIRE_MORE);
        return status;
}

void wire_client_reserve(struct wire_client *client, uint64_t set, struct wire_object *objects,
                         unsigned n)
{
        uint64_t request = wire_client_send_reserve(client, set, objects, n);

        wire_client_finish(client, request, NULL, objects, n);
}

void wire_client_end(struct wire_client *client, uint16_t kind, uint64_t set,
                     struct wire_object *objects, unsigned n)
{
        uint64_t request = wire_client_send_leases(client, kind, set, objects, n);

        wire_client_finish(client, request, NULL, objects, n);
}

uint32_t wire_client_acquire(struct wire_client *client, uint32_t flags,
                             struct wire_granted *ret_granted, struct wire_object *objects,
                             unsigned n)
{
        uint64_t request = wire_client_send_acquire(client, flags, 0, objects, n);

        return wire_client_finish(client, request, ret_granted, objects, n);
}

uint32_t wire_client_adopt(struct wire_client *client, const uint8_t token[16],
                           struct wire_object *objects, unsigned n)
{
        struct wire_adopt adopt = {.batch = {.layout = client->layout, .total = n}};
        struct message_builder builder;
        uint64_t request;

        adopt.batch.header = wire_client_header(client, WIRE_ADOPT);
        memcpy(adopt.token, token, sizeof(adopt.token));
        message_builder_init(&builder, client->out, &adopt, sizeof(adopt));
        append_keys(&builder, objects, n);
        request = send_built(client, &builder);
        return wire_client_finish(client, request, NULL, objects, n);
}

/* ---- bytes ---- */

static uint8_t *address_of(const struct wire_client *client, const struct wire_extent *extent)
{
        for (unsigned i = 0; i < client->n_arenas; i++) {
                const struct wire_client_arena *arena = &client->arenas[i];

                if (arena->id != extent->arena_id)
                        continue;
                ck_assert_uint_le(extent->offset + extent->length, arena->bytes);
                return arena->base + extent->offset;
        }
        ck_abort_msg("arena %u was never announced", extent->arena_id);
        return NULL;
}

/* The part of the object that lies in extent @i, whose last one may be rounded up. */
static uint64_t part_bytes(const struct wire_object *object, unsigned i, uint64_t offset)
{
        uint64_t left = object->bytes - offset;

        return object->extents[i].length < left ? object->extents[i].length : left;
}

void wire_client_write(struct wire_client *client, const struct wire_object *object)
{
        uint64_t offset = 0, bytes;

        for (unsigned i = 0; i < object->n_extents; i++, offset += bytes) {
                bytes = part_bytes(object, i, offset);
                content_fill(address_of(client, &object->extents[i]), offset, bytes, object->number,
                             object->generation);
        }
        ck_assert_uint_eq(offset, object->bytes);
}

bool wire_client_holds(struct wire_client *client, const struct wire_object *object)
{
        uint64_t offset = 0, bytes;

        for (unsigned i = 0; i < object->n_extents; i++, offset += bytes) {
                bytes = part_bytes(object, i, offset);
                if (!content_is(address_of(client, &object->extents[i]), offset, bytes,
                                object->number, object->generation))
                        return false;
        }
        return offset == object->bytes;
}

uint32_t wire_client_put(struct wire_client *client, struct wire_object *object)
{
        wire_client_reserve(client, 0, object, 1);
        if (object->status)
                return object->status;
        wire_client_write(client, object);
        wire_client_end(client, WIRE_COMMIT, 0, object, 1);
        return object->status;
}

uint32_t wire_client_get(struct wire_client *client, struct wire_object *object)
{
        uint32_t status = wire_client_acquire(client, 0, NULL, object, 1);

        if (status)
                return status;
        if (object->status)
                return object->status;
        ck_assert_msg(wire_client_holds(client, object), "object %llu has other bytes",
                      (unsigned long long)object->number);
        wire_client_end(client, WIRE_RELEASE, 0, object, 1);
        ck_assert_uint_eq(object->status, KVT_WIRE_OK);
        return KVT_WIRE_OK;
}
