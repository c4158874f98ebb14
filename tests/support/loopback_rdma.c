// SPDX-License-Identifier: Apache-2.0
/*
 * base/rdma*.h without a device, between processes of one machine: messages by a Unix socket,
 * bytes by process_vm_readv() and writev(). What stands on the transport can so be tested where
 * there is no RDMA; the transport itself, with its windows, secrets and deadlines, is tested in
 * tests/rdma. Places are not guarded: a wrong one is refused only when nothing is mapped there.
 *
 * One thread, the owner's: callbacks come out of rdma_port_run(), as tasks, in order.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/rdma_connection.h"
#include "base/rdma_memory.h"

struct task {
        STAILQ_ENTRY(task) link;
        void (*run)(void *object);
        void *object;
};

struct rdma_port {
        struct rdma_port_options options;
        char *device;
        int epoll, kick;
        STAILQ_HEAD(, task) tasks;
        LIST_HEAD(, rdma_connection) connections;
        struct rdma_refusal refusal;
        struct rdma_port_stats stats; /* .regions is below */
        uint64_t regions;             /* atomic: arenas are registered by a worker */
};

struct watched {
        bool is_listener;
};

struct rdma_listener {
        struct watched watched;
        struct rdma_port *port;
        struct rdma_listener_options options;
        int socket;
        uint16_t number;
};

struct hello {
        struct rdma_identity identity;
        uint8_t expected_id[RDMA_ID_BYTES];
        char domain[RDMA_DOMAIN_BYTES];
        struct rdma_secret secret;
};

struct answer {
        uint32_t end; /* RDMA_N_ENDS: welcome */
        uint8_t id[RDMA_ID_BYTES];
};

struct rdma_connection {
        struct watched watched;
        LIST_ENTRY(rdma_connection) link;
        struct rdma_port *port;
        struct rdma_listener *listener; /* not through the handshake yet */
        struct rdma_connection_events events;
        void *user;
        int socket;
        pid_t pid;
        bool is_open, has_ended, is_adopted, wants_room;
        enum rdma_end end;
        uint8_t peer_id[RDMA_ID_BYTES];
        char domain[RDMA_DOMAIN_BYTES];
        struct sockaddr_storage address;
        LIST_HEAD(, rdma_grant) grants;
        uint32_t n_transfers;
};

struct rdma_region {
        struct rdma_port *port;
        uint8_t *base;
        size_t length;
        uint8_t *bytes; /* of a dma-buf: what is mapped of it, and where the region is there */
        uint64_t offset;
        uint32_t n_users;
};

struct rdma_grant {
        LIST_ENTRY(rdma_grant) link;
        struct rdma_connection *connection;
        struct rdma_grant_options options;
        struct rdma_extent extents[RDMA_PIECES_MAX];
        bool is_told, is_released;
};

/* ---- tasks ---- */

static void post(struct rdma_port *port, void (*run)(void *object), void *object)
{
        static const uint64_t one = 1;
        struct task *task = calloc(1, sizeof(*task));

        if (!task || write(port->kick, &one, sizeof(one)) < 0)
                abort();
        task->run = run;
        task->object = object;
        STAILQ_INSERT_TAIL(&port->tasks, task, link);
}

static void run_tasks(struct rdma_port *port)
{
        struct task *task;
        uint64_t count;

        if (read(port->kick, &count, sizeof(count)) < 0)
                count = 0;
        while ((task = STAILQ_FIRST(&port->tasks))) {
                STAILQ_REMOVE_HEAD(&port->tasks, link);
                task->run(task->object);
                free(task);
        }
}

/* ---- ends ---- */

static void end_grant(void *object)
{
        struct rdma_grant *grant = object;

        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                grant->extents[i].region->n_users--;
        LIST_REMOVE(grant, link);
        grant->connection->port->stats.windows_bound -= grant->options.n_extents;
        grant->options.on_reusable(grant->options.user, grant);
        free(grant);
}

static void finish_connection(void *object)
{
        struct rdma_connection *connection = object;
        struct rdma_grant *grant, *next;

        if (connection->n_transfers) {
                post(connection->port, finish_connection, connection);
                return;
        }
        for (grant = LIST_FIRST(&connection->grants); grant; grant = next) {
                next = LIST_NEXT(grant, link);
                if (!grant->is_told)
                        grant->options.on_granted(grant->options.user, grant, RDMA_RESULT_BROKEN,
                                                  NULL);
                end_grant(grant);
        }
        close(connection->socket);
        LIST_REMOVE(connection, link);
        connection->port->stats.connections--;
        connection->port->stats.ended[connection->end]++;
        if (connection->is_adopted && connection->events.on_closed)
                connection->events.on_closed(connection->user, connection, connection->end, "");
        free(connection);
}

static void end_connection(struct rdma_connection *connection, enum rdma_end end)
{
        if (connection->has_ended)
                return;
        connection->has_ended = true;
        connection->is_open = false;
        connection->end = end;
        epoll_ctl(connection->port->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
        shutdown(connection->socket, SHUT_RDWR);
        post(connection->port, finish_connection, connection);
}

/* ---- the port ---- */

int rdma_check(struct why *why)
{
        return 0;
}

int rdma_port_open(struct rdma_port **ret_port, const struct rdma_port_options *options,
                   struct why *why)
{
        struct rdma_port *port = calloc(1, sizeof(*port));
        struct epoll_event event = {.events = EPOLLIN};

        if (!port)
                return -ENOMEM;
        port->options = *options;
        port->epoll = epoll_create1(EPOLL_CLOEXEC);
        port->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        STAILQ_INIT(&port->tasks);
        port->stats.devices_gone = getenv("LOOPBACK_DEVICE_GONE") != NULL;
        if (epoll_ctl(port->epoll, EPOLL_CTL_ADD, port->kick, &event))
                abort();
        *ret_port = port;
        return 0;
}

void rdma_port_close(struct rdma_port *port)
{
        struct rdma_connection *connection;

        LIST_FOREACH(connection, &port->connections, link)
                end_connection(connection, RDMA_END_CLOSED);
        run_tasks(port);
        close(port->epoll);
        close(port->kick);
        free(port);
}

void rdma_port_last_refusal(struct rdma_port *port, struct rdma_refusal *ret_refusal)
{
        *ret_refusal = port->refusal;
}

void rdma_port_forget_in_child(const struct rdma_port *port)
{
        const struct rdma_connection *connection;

        LIST_FOREACH(connection, &port->connections, link)
                close(connection->socket);
        close(port->epoll);
        close(port->kick);
}

const char *rdma_port_warning(const struct rdma_port *port)
{
        return NULL;
}

int rdma_port_fd(const struct rdma_port *port)
{
        return port->epoll;
}

void rdma_port_stats(const struct rdma_port *port, struct rdma_port_stats *ret_stats)
{
        *ret_stats = port->stats;
        ret_stats->regions = __atomic_load_n(&port->regions, __ATOMIC_RELAXED);
}

/* ---- handshake and messages ---- */

static struct rdma_connection *connection_new(struct rdma_port *port, int socket, bool writable)
{
        struct rdma_connection *connection = calloc(1, sizeof(*connection));
        struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0)};
        struct ucred peer = {0};
        socklen_t length = sizeof(peer);

        if (!connection)
                abort();
        connection->port = port;
        connection->socket = socket;
        event.data.ptr = &connection->watched;
        if (epoll_ctl(port->epoll, EPOLL_CTL_ADD, socket, &event) ||
            getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length))
                abort();
        connection->pid = peer.pid;
        LIST_INSERT_HEAD(&port->connections, connection, link);
        port->stats.connections++;
        return connection;
}

static void open_connection(struct rdma_connection *connection)
{
        connection->is_open = true;
        connection->port->stats.opened++;
}

static enum rdma_end judge(struct rdma_port *port, const struct hello *hello)
{
        static const uint8_t any[RDMA_ID_BYTES];
        struct rdma_secret secret;

        if (hello->identity.protocol != port->options.identity.protocol)
                return RDMA_END_UNSUPPORTED;
        if (memcmp(hello->expected_id, any, sizeof(any)) &&
            memcmp(hello->expected_id, port->options.identity.id, sizeof(any)))
                return RDMA_END_STALE;
        if (port->options.find_secret(port->options.user, hello->domain, &secret) ||
            secret.length != hello->secret.length ||
            memcmp(secret.bytes, hello->secret.bytes, secret.length))
                return RDMA_END_DENIED;
        return RDMA_N_ENDS;
}

static void on_hello(struct rdma_connection *connection, const struct hello *hello)
{
        struct rdma_listener *listener = steal_ptr(connection->listener);
        struct answer answer = {.end = judge(connection->port, hello)};

        memcpy(answer.id, connection->port->options.identity.id, sizeof(answer.id));
        if (send(connection->socket, &answer, sizeof(answer), MSG_NOSIGNAL) < 0 ||
            answer.end != RDMA_N_ENDS) {
                connection->port->refusal.n++;
                connection->port->refusal.end = (enum rdma_end)answer.end;
                rdma_connection_peer_address(connection, connection->port->refusal.address);
                end_connection(connection, (enum rdma_end)answer.end);
                return;
        }
        memcpy(connection->peer_id, hello->identity.id, sizeof(connection->peer_id));
        memcpy(connection->domain, hello->domain, sizeof(connection->domain));
        open_connection(connection);
        listener->options.on_connection(listener->options.user, connection);
}

static void on_answer(struct rdma_connection *connection, const struct answer *answer)
{
        if (answer->end != RDMA_N_ENDS) {
                end_connection(connection, (enum rdma_end)answer->end);
                return;
        }
        memcpy(connection->peer_id, answer->id, sizeof(connection->peer_id));
        open_connection(connection);
        if (connection->events.on_open)
                connection->events.on_open(connection->user, connection);
}

static void read_connection(struct rdma_connection *connection)
{
        static _Thread_local _Alignas(8) uint8_t bytes[RDMA_MESSAGE_MAX];

        while (!connection->has_ended) {
                ssize_t n = recv(connection->socket, bytes, sizeof(bytes), MSG_DONTWAIT);

                if (n < 0 && errno == EAGAIN)
                        return;
                if (n <= 0) {
                        end_connection(connection, RDMA_END_PEER_CLOSED);
                } else if (connection->is_open) {
                        connection->port->stats.messages_received++;
                        connection->events.on_message(connection->user, connection, bytes,
                                                      (size_t)n);
                } else if (connection->listener) {
                        on_hello(connection, (const void *)bytes);
                } else {
                        on_answer(connection, (const void *)bytes);
                }
        }
}

static void watch(struct rdma_connection *connection, uint32_t events)
{
        struct epoll_event event = {.events = events, .data.ptr = &connection->watched};

        epoll_ctl(connection->port->epoll, EPOLL_CTL_MOD, connection->socket, &event);
}

void rdma_port_run(struct rdma_port *port)
{
        struct epoll_event events[16];
        int n = epoll_wait(port->epoll, events, 16, 0);

        for (int i = 0; i < n; i++) {
                struct watched *watched = events[i].data.ptr;
                struct rdma_connection *connection = (void *)watched;

                if (!watched)
                        continue;
                if (watched->is_listener) {
                        struct rdma_listener *listener = (void *)watched;
                        int socket = accept4(listener->socket, NULL, NULL, SOCK_CLOEXEC);

                        if (socket >= 0)
                                connection_new(port, socket, false)->listener = listener;
                        continue;
                }
                if (events[i].events & EPOLLOUT && connection->is_open) {
                        watch(connection, EPOLLIN);
                        if (connection->wants_room && connection->events.on_room)
                                connection->events.on_room(connection->user, connection);
                }
                if (events[i].events & (EPOLLIN | EPOLLHUP))
                        read_connection(connection);
        }
        run_tasks(port);
}

/* ---- listeners and connections ---- */

static socklen_t loopback_name(struct sockaddr_un *ret_name, uint16_t number)
{
        *ret_name = (struct sockaddr_un){.sun_family = AF_UNIX};
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                           (size_t)snprintf(ret_name->sun_path + 1, 100, "kvtier-loopback-%u",
                                            number));
}

int rdma_listener_open(struct rdma_listener **ret_listener, struct rdma_port *port,
                       const struct rdma_listener_options *options, struct why *why)
{
        struct rdma_listener *listener = calloc(1, sizeof(*listener));
        struct epoll_event event = {.events = EPOLLIN};
        struct sockaddr_un name;
        socklen_t length;

        if (!listener)
                return -ENOMEM;
        listener->watched.is_listener = true;
        listener->port = port;
        listener->options = *options;
        listener->number = ntohs(((const struct sockaddr_in *)&options->address)->sin_port);
        listener->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        length = loopback_name(&name, listener->number);
        event.data.ptr = &listener->watched;
        if (bind(listener->socket, (struct sockaddr *)&name, length) ||
            listen(listener->socket, 16) ||
            epoll_ctl(port->epoll, EPOLL_CTL_ADD, listener->socket, &event)) {
                why_set(why, "port %u: %s", listener->number, strerror(errno));
                return -errno;
        }
        *ret_listener = listener;
        return 0;
}

void rdma_listener_close(struct rdma_listener *listener)
{
        close(listener->socket);
        free(listener);
}

uint16_t rdma_listener_port(const struct rdma_listener *listener)
{
        return listener->number;
}

static void end_unreachable(void *object)
{
        end_connection(object, RDMA_END_UNREACHABLE);
}

int rdma_connection_open(struct rdma_connection **ret_connection, struct rdma_port *port,
                         const struct rdma_target *target,
                         const struct rdma_connection_events *events, void *user)
{
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        struct hello hello = {.identity = port->options.identity};
        struct rdma_connection *connection;
        const struct sockaddr_in *to = (const void *)&target->address;
        struct sockaddr_un name;
        socklen_t length = loopback_name(&name, ntohs(to->sin_port));
        bool is_here = ntohl(to->sin_addr.s_addr) >> 8 != 0xc00002; /* 192.0.2.0/24: nobody */
        bool is_connected = is_here && !connect(fd, (struct sockaddr *)&name, length);

        connection = connection_new(port, fd, false);
        connection->events = *events;
        connection->user = user;
        connection->is_adopted = true;
        connection->address = target->address;
        memcpy(hello.expected_id, target->expected_id, sizeof(hello.expected_id));
        snprintf(hello.domain, sizeof(hello.domain), "%s", target->domain);
        snprintf(connection->domain, sizeof(connection->domain), "%s", target->domain);
        if (!is_connected ||
            port->options.find_secret(port->options.user, target->domain, &hello.secret) ||
            send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0)
                post(port, end_unreachable, connection);
        *ret_connection = connection;
        return 0;
}

void rdma_connection_adopt(struct rdma_connection *connection,
                           const struct rdma_connection_events *events, void *user)
{
        connection->events = *events;
        connection->user = user;
        connection->is_adopted = true;
}

void rdma_connection_close(struct rdma_connection *connection)
{
        end_connection(connection, RDMA_END_CLOSED);
}

int rdma_connection_send(struct rdma_connection *connection, const void *bytes, size_t length)
{
        if (!connection->is_open)
                return RDMA_E_CLOSED;
        if (send(connection->socket, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
                connection->port->stats.messages_sent++;
                return 0;
        }
        if (errno != EAGAIN)
                return RDMA_E_CLOSED;
        connection->wants_room = true;
        watch(connection, EPOLLIN | EPOLLOUT);
        return RDMA_E_FULL;
}

size_t rdma_connection_message_max(const struct rdma_connection *connection)
{
        return connection->port->options.message_bytes - sizeof(struct rdma_frame);
}

const char *rdma_connection_domain(const struct rdma_connection *connection)
{
        return connection->domain;
}

const uint8_t *rdma_connection_peer_id(const struct rdma_connection *connection)
{
        return connection->peer_id;
}

uint16_t rdma_connection_minor(const struct rdma_connection *connection)
{
        return connection->port->options.identity.minor;
}

void rdma_connection_peer_address(const struct rdma_connection *connection,
                                  char text[RDMA_ADDRESS_TEXT_MAX])
{
        snprintf(text, RDMA_ADDRESS_TEXT_MAX, "loopback:%d", (int)connection->pid);
}

/* ---- memory ---- */

int rdma_region_new(struct rdma_region **ret_region, struct rdma_port *port, void *base,
                    size_t length)
{
        struct rdma_region *region = calloc(1, sizeof(*region));

        if (!region)
                return -ENOMEM;
        *region = (struct rdma_region){.port = port, .base = base, .length = length};
        __atomic_fetch_add(&port->regions, 1, __ATOMIC_RELAXED);
        *ret_region = region;
        return 0;
}

/* The other side reaches the bytes through a mapping of them. */
int rdma_region_new_dmabuf(struct rdma_region **ret_region, struct rdma_port *port,
                           const struct rdma_dmabuf *dmabuf, void *base, size_t length,
                           struct why *why)
{
        uint64_t mapped = dmabuf->offset + length;
        uint8_t *bytes;
        int r;

        if (getenv("LOOPBACK_NO_DMABUF")) {
                why_set(why, "RDMA device loopback cannot register the memory of other devices "
                             "(dma-buf)");
                return RDMA_E_ABSENT;
        }
        bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf->fd, 0);
        if (bytes == MAP_FAILED) {
                why_set(why, "%s", strerror(errno));
                return -errno;
        }
        r = rdma_region_new(ret_region, port, base, length);
        if (r) {
                munmap(bytes, mapped);
                return r;
        }
        (*ret_region)->bytes = bytes;
        (*ret_region)->offset = dmabuf->offset;
        return 0;
}

int rdma_region_free(struct rdma_region *region)
{
        if (region && region->n_users)
                return RDMA_E_BUSY;
        if (region)
                __atomic_fetch_sub(&region->port->regions, 1, __ATOMIC_RELAXED);
        if (region && region->bytes)
                munmap(region->bytes, region->offset + region->length);
        free(region);
        return 0;
}

static uint64_t place_of(const struct rdma_extent *extent)
{
        const struct rdma_region *region = extent->region;
        uint8_t *address = extent->address;

        if (region->bytes)
                address = region->bytes + region->offset + (address - region->base);
        return (uintptr_t)address;
}

static void tell_grant(void *object)
{
        struct rdma_grant *grant = object;
        struct rdma_place places[RDMA_PIECES_MAX];

        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                places[i] = (struct rdma_place){
                        .address = place_of(&grant->extents[i]),
                        .length = grant->extents[i].length,
                        .key = i + 1,
                };
        grant->is_told = true;
        if (getenv("LOOPBACK_NO_WINDOWS") && !grant->connection->port->options.whole_regions) {
                grant->options.on_granted(grant->options.user, grant, RDMA_RESULT_UNSUPPORTED,
                                          NULL);
                rdma_grant_release(grant);
                return;
        }
        grant->options.on_granted(grant->options.user, grant, RDMA_RESULT_DONE, places);
}

int rdma_grant_new(struct rdma_grant **ret_grant, struct rdma_connection *connection,
                   const struct rdma_grant_options *options)
{
        struct rdma_grant *grant;

        if (!connection->is_open)
                return RDMA_E_CLOSED;
        if (!options->n_extents || options->n_extents > RDMA_PIECES_MAX)
                return RDMA_E_INVALID;
        grant = calloc(1, sizeof(*grant));
        if (!grant)
                return -ENOMEM;
        grant->connection = connection;
        grant->options = *options;
        memcpy(grant->extents, options->extents, options->n_extents * sizeof(grant->extents[0]));
        for (uint32_t i = 0; i < options->n_extents; i++)
                grant->extents[i].region->n_users++;
        LIST_INSERT_HEAD(&connection->grants, grant, link);
        connection->port->stats.grants++;
        connection->port->stats.windows_bound += options->n_extents;
        post(connection->port, tell_grant, grant);
        *ret_grant = grant;
        return 0;
}

void rdma_grant_release(struct rdma_grant *grant)
{
        if (grant->is_released || grant->connection->has_ended)
                return;
        grant->is_released = true;
        post(grant->connection->port, end_grant, grant);
}

static bool move_piece(const struct rdma_transfer *transfer, const struct rdma_piece *piece)
{
        pid_t pid = transfer->connection->pid;

        for (uint64_t done = 0; done < piece->local.length;) {
                struct iovec local = {(uint8_t *)piece->local.address + done,
                                      piece->local.length - done};
                struct iovec remote = {(void *)(uintptr_t)(piece->remote_address + done),
                                       piece->local.length - done};
                ssize_t n = transfer->is_write ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                                               : process_vm_readv(pid, &local, 1, &remote, 1, 0);

                if (n <= 0)
                        return false;
                done += (uint64_t)n;
        }
        return true;
}

static void run_transfer(void *object)
{
        struct rdma_transfer *transfer = object;
        struct rdma_connection *connection = transfer->connection;
        struct rdma_port_stats *stats = &connection->port->stats;

        transfer->result = connection->is_open ? RDMA_RESULT_DONE : RDMA_RESULT_BROKEN;
        for (uint32_t i = 0; i < transfer->n_pieces; i++) {
                const struct rdma_piece *piece = &transfer->pieces[i];

                piece->local.region->n_users--;
                if (transfer->result)
                        continue;
                if (!move_piece(transfer, piece))
                        transfer->result = RDMA_RESULT_REFUSED;
                *(transfer->is_write ? &stats->written_bytes : &stats->read_bytes) +=
                        piece->local.length;
        }
        connection->n_transfers--;
        if (transfer->result)
                end_connection(connection, RDMA_END_DEVICE);
        transfer->on_done(transfer, transfer->result);
}

int rdma_transfer_start(struct rdma_transfer *transfer)
{
        struct rdma_connection *connection = transfer->connection;

        if (!connection->is_open)
                return RDMA_E_CLOSED;
        for (uint32_t i = 0; i < transfer->n_pieces; i++)
                transfer->pieces[i].local.region->n_users++;
        connection->n_transfers++;
        post(connection->port, run_transfer, transfer);
        return 0;
}
