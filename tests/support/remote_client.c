// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/message.h"
#include "proto/remote.h"
#include "proto/status.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/remote_client.h"

enum { READABLE, WRITABLE, N_GRANTS };

static void on_granted(void *user, struct rdma_grant *grant, enum rdma_result result,
                       const struct rdma_place *places)
{
        struct remote_client *client = user;

        if (result)
                return;
        if (grant == client->grants[WRITABLE])
                client->write_key = places[0].key;
        else
                client->place = places[0];
        client->n_granted++;
}

static void on_reusable(void *user, struct rdma_grant *grant)
{
}

static void on_open(void *user, struct remote_link *link)
{
        struct remote_client *client = user;
        struct rdma_extent extent = {client->region, client->memory, REMOTE_CLIENT_BYTES};
        struct rdma_grant_options options = {
                .extents = &extent,
                .n_extents = 1,
                .timeout_ns = UINT64_C(10000000000),
                .on_granted = on_granted,
                .on_reusable = on_reusable,
                .user = client,
        };

        for (unsigned i = 0; i < N_GRANTS; i++) {
                options.is_writable = i == WRITABLE;
                ck_assert(!rdma_grant_new(&client->grants[i], remote_link_connection(link),
                                          &options));
        }
}

static void on_message(void *user, struct remote_link *link, const void *packet, size_t length)
{
        struct remote_client *client = user;

        ck_assert_int_eq(send(client->socket, packet, length, MSG_NOSIGNAL), (ssize_t)length);
}

static void on_closed(void *user, struct remote_link *link, enum rdma_end end, const char *why)
{
        struct remote_client *client = user;

        client->link = NULL;
        client->has_ended = true;
        shutdown(client->socket, SHUT_RDWR);
}

static int find_secret(void *user, const char *domain, struct rdma_secret *ret_secret)
{
        struct remote_client *client = user;

        *ret_secret = client->secret.secret;
        return 0;
}

static void open_port(struct remote_client *client)
{
        static const struct remote_link_events events = {
                .on_open = on_open, .on_message = on_message, .on_closed = on_closed};
        static const uint8_t id[RDMA_ID_BYTES] = {1};
        struct rdma_port_options options = {
                .identity = remote_identity(id),
                .find_secret = find_secret,
                .user = client,
                .message_bytes = REMOTE_FRAME_BYTES,
                .n_credits = REMOTE_CREDITS,
        };
        struct why why = {""};

        ck_assert_msg(!rdma_port_open(&client->port, &options, &why), "%s", why.text);
        ck_assert(!rdma_region_new(&client->region, client->port, client->memory,
                                   REMOTE_CLIENT_BYTES));
        client->target.domain = client->secret.domain;
        ck_assert(!remote_link_open(&client->link, client->port, &client->target, REMOTE_SESSION,
                                    &events, client));
}

static void *run(void *argument)
{
        struct remote_client *client = argument;
        static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];

        open_port(client);
        while (client->link) {
                struct pollfd fds[2] = {
                        {.fd = rdma_port_fd(client->port), .events = POLLIN},
                        {.fd = client->stops ? -1 : client->socket, .events = POLLIN},
                };
                ssize_t n;

                poll(fds, 2, 100);
                rdma_port_run(client->port);
                if (!client->link || !fds[1].revents)
                        continue;
                n = recv(client->socket, packet, sizeof(packet), MSG_DONTWAIT);
                if (n > 0) {
                        remote_link_send(client->link, packet, (uint32_t)n);
                } else {
                        client->stops = true;
                        remote_link_close(client->link);
                }
        }
        rdma_region_free(client->region);
        rdma_port_close(client->port);
        return NULL;
}

void remote_client_open(struct remote_client *client, const char *address, const char *source,
                        const char *secret_path)
{
        struct why why = {""};
        int pair[2];
        uint8_t *memory;

        memset(client, 0, sizeof(*client));
        ck_assert_msg(!rdma_secret_load(&client->secret, secret_path, &why), "%s", why.text);
        ck_assert(!rdma_address_parse(&client->target.address, address, REMOTE_PORT, &why));
        if (source)
                ck_assert(!rdma_address_parse(&client->target.source, source, 0, &why));
        memory = mmap(NULL, REMOTE_CLIENT_BYTES + 0x100000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
        ck_assert_ptr_ne(memory, MAP_FAILED);
        ck_assert(!mprotect(memory, REMOTE_CLIENT_BYTES, PROT_READ | PROT_WRITE));
        client->memory = memory;
        ck_assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
        client->wire.fd = pair[0];
        client->wire.table_fd = -1;
        client->socket = pair[1];
        ck_assert(!pthread_create(&client->thread, NULL, run, client));
        while (client->n_granted < N_GRANTS && !client->has_ended)
                daemon_pause();
        ck_assert_uint_eq(wire_client_hello(&client->wire, 0), KVT_WIRE_OK);
        ck_assert_uint_eq(client->wire.welcome.table_bytes, 0);
        ck_assert_uint_eq(wire_client_attach(&client->wire), KVT_WIRE_OK);
}

void remote_client_close(struct remote_client *client)
{
        wire_client_close(&client->wire);
        pthread_join(client->thread, NULL);
        close(client->socket);
        munmap(client->memory, REMOTE_CLIENT_BYTES + 0x100000);
}

uint32_t remote_client_move_times(struct remote_client *client, uint16_t kind, uint64_t lease,
                                  uint64_t address, uint64_t bytes, uint32_t n)
{
        struct wire_batch fixed = {.header = wire_client_header(&client->wire, kind), .total = n};
        struct wire_move_item item = {
                .lease = lease,
                .address = address,
                .bytes = bytes,
                .key = kind == WIRE_FETCH ? client->write_key : client->place.key,
        };
        const struct wire_extent *extents;
        struct message_builder builder;
        const struct wire_header *answer;
        struct message_cursor cursor;
        struct wire_result_item result;
        const uint64_t *pieces;

        message_builder_init(&builder, client->wire.out, &fixed, sizeof(fixed));
        for (uint32_t i = 0; i < n; i++)
                ck_assert(!message_append(&builder, &item, sizeof(item), 1));
        if (!wire_client_send(&client->wire, client->wire.out, builder.length))
                return KVT_WIRE_UNAVAILABLE;
        answer = wire_client_receive(&client->wire);
        if (!answer)
                return KVT_WIRE_UNAVAILABLE;
        ck_assert_uint_eq(answer->kind, WIRE_RESULT);
        message_cursor_init(&cursor, answer);
        ck_assert_uint_eq(answer->n_items, n);
        ck_assert(!message_next_result(&cursor, &result, &extents, &pieces));
        return result.status;
}

uint32_t remote_client_move(struct remote_client *client, uint16_t kind, uint64_t lease,
                            uint64_t address, uint64_t bytes)
{
        return remote_client_move_times(client, kind, lease, address, bytes, 1);
}
