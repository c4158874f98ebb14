// SPDX-License-Identifier: Apache-2.0
/* The bridge's thread: the socket pair, the link, and what opens and closes them. */
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/thread.h"
#include "client/kvtier.h"
#include "client/rdma/bridge.h"
#include "proto/remote.h"
#include "proto/status.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define TABLE_BOUNDARIES 262144u
#define BEAT_NS          UINT64_C(100000000)
#define QUEUED_MAX       (8u << 20) /* beyond it the library's socket is not read */
#define PACKETS_A_TURN   64
#define CONNECT_NS       UINT64_C(3000000000)

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void bridge_beat(struct kvt__bridge *bridge)
{
        bridge->beat_ns = now_ns();
        presence_table_beat(bridge->table, bridge->beat_ns);
}

/* ---- the library's socket ---- */

static void close_socket(struct kvt__bridge *bridge)
{
        if (bridge->socket >= 0) {
                /* A forked child may hold a copy. */
                shutdown(bridge->socket, SHUT_RDWR);
                close(steal_fd(&bridge->socket));
        }
        kvt__outbox_clear(&bridge->out);
}

/* The library has gone, or nothing can be said to it any more. */
static void hang_up(struct kvt__bridge *bridge)
{
        close_socket(bridge);
        lookup_free(steal_ptr(bridge->lookup));
        if (bridge->link)
                remote_link_close(bridge->link);
}

static int send_with_fd(int socket, const void *packet, size_t length, int fd)
{
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = {.bytes = {0}};
        struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
        struct msghdr message = {
                .msg_iov = &vector,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = sizeof(control.bytes),
        };
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);

        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

void bridge_tell(struct kvt__bridge *bridge, const void *packet, size_t length, int fd)
{
        int r;

        if (bridge->socket < 0)
                return;
        /* Descriptors come with the greeting, when nothing else waits. */
        if (fd >= 0)
                r = send_with_fd(bridge->socket, packet, length, fd);
        else
                r = kvt__outbox_send(&bridge->out, bridge->socket, packet, length);
        if (r)
                hang_up(bridge);
}

void bridge_fail(struct kvt__bridge *bridge, uint32_t status, const char *format, ...)
{
        struct wire_bye bye = {.status = status};
        va_list arguments;

        message_header_init(&bye.header, WIRE_BYE, 0, bridge->session, bridge->boot_id);
        bye.header.length = sizeof(bye);
        va_start(arguments, format);
        vsnprintf(bye.why, sizeof(bye.why), format, arguments);
        va_end(arguments);
        bridge_tell(bridge, &bye, sizeof(bye), -1);
        hang_up(bridge);
}

/* ---- the daemon's link ---- */

static void send_down(struct kvt__bridge *bridge, const void *packet, size_t length)
{
        if (bridge->link && remote_link_send(bridge->link, packet, (uint32_t)length) < 0)
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
}

void bridge_forward(struct kvt__bridge *bridge, const struct wire_header *header)
{
        struct kvt__packet *packet;

        send_down(bridge, header, header->length);
        bridge->is_mid = header->flags & WIRE_MORE;
        if (bridge->is_mid)
                return;
        STAILQ_FOREACH(packet, &bridge->wait.packets, link)
                send_down(bridge, packet->bytes, packet->length);
        kvt__outbox_clear(&bridge->wait);
}

void bridge_say(struct kvt__bridge *bridge, const void *packet, size_t length)
{
        if (!bridge->is_mid)
                send_down(bridge, packet, length);
        else if (kvt__outbox_queue(&bridge->wait, packet, length))
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
}

static void on_message(void *user, struct remote_link *link, const void *packet, size_t length)
{
        struct kvt__bridge *bridge = user;
        struct why why = {""};
        int r = message_check(packet, length, &why);

        (void)link;
        if (r == MESSAGE_E_INVALID)
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "the daemon sent garbage: %s", why.text);
        else if (!r && bridge->socket >= 0)
                bridge_from_daemon(bridge, packet);
}

static uint32_t status_of_end(enum rdma_end end)
{
        switch (end) {
        case RDMA_END_NOT_ALLOWED:
        case RDMA_END_DENIED:
                return KVT_WIRE_DENIED;
        case RDMA_END_FULL:
                return KVT_WIRE_REFUSED;
        case RDMA_END_UNSUPPORTED:
                return KVT_WIRE_UNSUPPORTED;
        default:
                return KVT_WIRE_UNAVAILABLE;
        }
}

/* An era of which the library holds nothing is over. */
static void end_era(struct kvt__bridge *bridge)
{
        struct bridge_era *era = LIST_FIRST(&bridge->eras);

        if (era && era->id == bridge->era && !rooms_have_era(&bridge->rooms, era->id)) {
                LIST_REMOVE(era, link);
                free(era);
        }
        bridge->era = 0;
}

/* All batches have ended. */
static void on_closed(void *user, struct remote_link *link, enum rdma_end end, const char *why)
{
        struct kvt__bridge *bridge = user;

        (void)link;
        bridge->link = NULL;
        /* Nothing has been said yet: maybe by another way. */
        if (!bridge->is_open && bridge->socket >= 0 && bridge->next_address < bridge->addresses.n)
                return;
        bridge_fail(bridge, status_of_end(end), "rdma://%s:%s: %s%s%s", bridge->host,
                    bridge->service, rdma_end_name(end), *why ? ": " : "", why);
        presence_table_set_state(bridge->table, PRESENCE_STOPPED);
        kvt__outbox_clear(&bridge->wait);
        batches_drop(bridge);
        bridge_requests_free(bridge);
        end_era(bridge);
}

/* Only now is the library heard: what it says is for this link. */
static void on_open(void *user, struct remote_link *link)
{
        struct kvt__bridge *bridge = user;

        (void)link;
        bridge->is_open = true;
}

static const struct remote_link_events events = {
        .on_open = on_open,
        .on_message = on_message,
        .on_closed = on_closed,
};

static void connect_next(struct kvt__bridge *bridge)
{
        struct rdma_target target = {
                .address = bridge->addresses.addresses[bridge->next_address++],
                .source = bridge->source,
                .domain = bridge->secret.domain,
                .timeout_ns = CONNECT_NS,
        };
        int r;

        bridge->is_open = false;
        r = remote_link_open(&bridge->link, bridge->port, &target, REMOTE_SESSION, &events, bridge);
        if (r)
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "rdma://%s:%s: %s", bridge->host,
                            bridge->service, r < 0 ? strerror(-r) : "no connection can be opened");
}

/* The name's addresses have come, or the one before did not answer. */
static void go_on_connecting(struct kvt__bridge *bridge)
{
        if (bridge->link || bridge->socket < 0)
                return;
        if (bridge->lookup) {
                if (!lookup_is_done(bridge->lookup, &bridge->addresses))
                        return;
                lookup_free(steal_ptr(bridge->lookup));
                if (bridge->addresses.error)
                        bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "%s: %s", bridge->host,
                                    gai_strerror(bridge->addresses.error));
        }
        if (bridge->socket >= 0 && bridge->next_address < bridge->addresses.n)
                connect_next(bridge);
}

static void begin(struct kvt__bridge *bridge, int socket)
{
        int r;

        bridge->socket = socket;
        bridge->is_welcome = bridge->is_mid = false;
        bridge->session = 0;
        memset(bridge->boot_id, 0, sizeof(bridge->boot_id));
        bridge->addresses.n = bridge->next_address = 0;
        r = lookup_new(&bridge->lookup, bridge->host, bridge->service, bridge->wake_fd);
        if (r)
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "%s: %s", bridge->host, strerror(-r));
}

/* ---- the loop ---- */

static void read_library(struct kvt__bridge *bridge)
{
        for (unsigned i = 0; i < PACKETS_A_TURN && bridge->socket >= 0; i++) {
                ssize_t length =
                        recv(bridge->socket, bridge->packet_in, WIRE_MESSAGE_MAX, MSG_DONTWAIT);
                struct why why;

                if (length < 0 && (errno == EAGAIN || errno == EINTR))
                        return;
                if (length <= 0) {
                        hang_up(bridge);
                        return;
                }
                /* It is our own library: what it sends is right, or it is better ended. */
                if (message_check(bridge->packet_in, (size_t)length, &why) == MESSAGE_E_INVALID)
                        hang_up(bridge);
                else
                        bridge_from_library(bridge);
        }
}

/* Next orders. False: the end. */
static bool take_orders(struct kvt__bridge *bridge)
{
        int socket = -1;
        bool goes_on;
        uint64_t count;

        if (read(bridge->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
                return false;
        pthread_mutex_lock(&bridge->lock);
        goes_on = !bridge->stopping;
        if (goes_on && !bridge->link && bridge->socket < 0)
                socket = steal_fd(&bridge->pending);
        pthread_mutex_unlock(&bridge->lock);
        if (socket >= 0)
                begin(bridge, socket);
        go_on_connecting(bridge);
        return goes_on;
}

static void turn(struct kvt__bridge *bridge)
{
        bool reads =
                bridge->link && bridge->is_open && remote_link_queued(bridge->link) < QUEUED_MAX;
        struct pollfd fds[3] = {
                {.fd = bridge->wake_fd, .events = POLLIN},
                {.fd = rdma_port_fd(bridge->port), .events = POLLIN},
                {.fd = bridge->socket, .events = reads ? POLLIN : 0},
        };

        if (!STAILQ_EMPTY(&bridge->out.packets))
                fds[2].events |= POLLOUT;
        if (poll(fds, 3, bridge->link ? (int)(BEAT_NS / 1000000) : 1000) < 0)
                return;
        if (fds[2].revents & POLLOUT && kvt__outbox_flush(&bridge->out, bridge->socket))
                hang_up(bridge);
        if (fds[2].revents & (POLLIN | POLLHUP | POLLERR) && bridge->socket >= 0)
                read_library(bridge);
        if (fds[1].revents)
                rdma_port_run(bridge->port);
        if (bridge->link && now_ns() >= bridge->beat_ns + BEAT_NS)
                bridge_beat(bridge);
}

static int register_buffer(struct kvt__bridge *bridge, struct why *why)
{
        int r = rdma_region_new(&bridge->region, bridge->port, bridge->base, bridge->bytes);

        if (r)
                why_set(why,
                        "a buffer of %llu bytes cannot be registered: %s: is RLIMIT_MEMLOCK large "
                        "enough?",
                        (unsigned long long)bridge->bytes, strerror(-r));
        return r;
}

static int register_dmabuf(struct kvt__bridge *bridge, struct why *why)
{
        struct rdma_dmabuf dmabuf = {.fd = bridge->arena_fd, .offset = bridge->dmabuf_offset};
        struct why reason = {""};
        int r = rdma_region_new_dmabuf(&bridge->region, bridge->port, &dmabuf, bridge->base,
                                       bridge->bytes, &reason);

        if (r)
                why_set(why, "a buffer of %llu bytes in a GPU's memory cannot be registered: %s",
                        (unsigned long long)bridge->bytes, reason.text);
        return r == RDMA_E_ABSENT ? -ENOTSUP : r;
}

static int open_port(struct kvt__bridge *bridge, struct why *why)
{
        struct rdma_port_options options = {
                .identity = remote_identity(bridge->id),
                .find_secret = rdma_secret_find,
                .user = &bridge->secret,
                .connections_max = 2,
                .message_bytes = REMOTE_FRAME_BYTES,
                .n_credits = REMOTE_CREDITS,
                .whole_regions = bridge->whole_buffer,
        };
        int r = rdma_port_open(&bridge->port, &options, why);

        if (r)
                return r < 0 ? r : -ENOTSUP;
        r = bridge->is_dmabuf ? register_dmabuf(bridge, why) : register_buffer(bridge, why);
        if (r)
                rdma_port_close(steal_ptr(bridge->port));
        return r;
}

static void tell_opened(struct kvt__bridge *bridge, int result, const struct why *why)
{
        pthread_mutex_lock(&bridge->lock);
        bridge->is_opened = true;
        bridge->open_result = result;
        bridge->open_why = *why;
        pthread_cond_signal(&bridge->opened);
        pthread_mutex_unlock(&bridge->lock);
}

static void *run(void *argument)
{
        struct kvt__bridge *bridge = argument;
        struct why why = {""};
        int r = open_port(bridge, &why);

        tell_opened(bridge, r, &why);
        if (r)
                return NULL;
        while (take_orders(bridge))
                turn(bridge);
        hang_up(bridge);
        while (bridge->link) {
                turn(bridge);
                take_orders(bridge); /* the last ring, or each turn would end at once */
        }
        rdma_region_free(bridge->region);
        rdma_port_close(bridge->port);
        return NULL;
}

/* ---- opening and closing ---- */

static void bridge_free(struct kvt__bridge *bridge)
{
        struct bridge_era *era;

        while ((era = LIST_FIRST(&bridge->eras))) {
                LIST_REMOVE(era, link);
                free(era);
        }
        rooms_deinit(&bridge->rooms);
        presence_table_free(bridge->table);
        if (bridge->base && !bridge->is_dmabuf)
                munmap(bridge->base, bridge->bytes);
        close_fdp(&bridge->arena_fd);
        close_fdp(&bridge->wake_fd);
        close_fdp(&bridge->pending);
        pthread_cond_destroy(&bridge->opened);
        pthread_mutex_destroy(&bridge->lock);
        free(bridge->host);
        free(bridge->service);
        free(bridge->result);
        free(bridge->own);
        free(bridge->packet_in);
        explicit_bzero(&bridge->secret, sizeof(bridge->secret));
        free(bridge);
}

/* "host:port", "[::1]:port", "host". */
static int split_address(struct kvt__bridge *bridge, const char *address, struct why *why)
{
        const char *colon = strrchr(address, ':'), *host = address;
        size_t length = strlen(address);

        if (*address == '[') {
                const char *bracket = strchr(address, ']');

                colon = bracket && bracket[1] == ':' ? bracket + 1 : NULL;
                host = address + 1;
                length = bracket ? (size_t)(bracket - host) : 0;
        } else if (colon) {
                length = (size_t)(colon - address);
        }
        if (!length || (colon && !colon[1])) {
                why_set(why, "rdma://%s is no address: use rdma://HOST:PORT", address);
                return -EINVAL;
        }
        bridge->host = strndup(host, length);
        if (!colon) {
                if (asprintf(&bridge->service, "%u", REMOTE_PORT) < 0)
                        bridge->service = NULL;
        } else {
                bridge->service = strdup(colon + 1);
        }
        return bridge->host && bridge->service ? 0 : -ENOMEM;
}

static int make_buffer(struct kvt__bridge *bridge, uint64_t bytes, struct why *why)
{
        unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        void *base;

        bridge->arena_fd = memfd_create("kvtier-remote", flags | MFD_NOEXEC_SEAL);
        /* Before Linux 6.3. */
        if (bridge->arena_fd < 0 && errno == EINVAL)
                bridge->arena_fd = memfd_create("kvtier-remote", flags);
        if (bridge->arena_fd < 0 || ftruncate(bridge->arena_fd, (off_t)bytes) ||
            fcntl(bridge->arena_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
                why_set(why, "no buffer of %llu bytes: %s", (unsigned long long)bytes,
                        strerror(errno));
                return -errno;
        }
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bridge->arena_fd, 0);
        if (base == MAP_FAILED) {
                why_set(why, "no buffer of %llu bytes: %s", (unsigned long long)bytes,
                        strerror(errno));
                return -errno;
        }
        bridge->base = base;
        bridge->bytes = bytes;
        /* A child has no business in it, and pinned pages do not mix with copying on write. */
        madvise(base, bytes, MADV_DONTFORK);
        return 0;
}

static int take_dmabuf(struct kvt__bridge *bridge, const struct kvt_dmabuf *dmabuf, struct why *why)
{
        bridge->arena_fd = fcntl(dmabuf->fd, F_DUPFD_CLOEXEC, 0);
        if (bridge->arena_fd < 0) {
                why_set(why, "kvt_dmabuf.fd: %s", strerror(errno));
                return -errno;
        }
        bridge->is_dmabuf = true;
        bridge->dmabuf_offset = dmabuf->offset;
        bridge->base = dmabuf->base;
        bridge->bytes = dmabuf->bytes;
        return 0;
}

static int make_parts(struct kvt__bridge *bridge)
{
        static const uint8_t no_boot_id[16];
        int r;

        bridge->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        bridge->result = aligned_alloc(8, WIRE_MESSAGE_MAX);
        bridge->own = aligned_alloc(8, WIRE_MESSAGE_MAX);
        bridge->packet_in = aligned_alloc(8, WIRE_MESSAGE_MAX);
        if (bridge->wake_fd < 0 || !bridge->result || !bridge->own || !bridge->packet_in ||
            getrandom(bridge->id, sizeof(bridge->id), 0) < 0 ||
            getrandom(&bridge->arena_id, sizeof(bridge->arena_id), 0) < 0)
                return -ENOMEM;
        r = rooms_init(&bridge->rooms, bridge->bytes);
        return r ? r : presence_table_new(&bridge->table, TABLE_BOUNDARIES, no_boot_id, BEAT_NS);
}

static int start_thread(struct kvt__bridge *bridge, struct why *why)
{
        int r = thread_start(&bridge->thread, run, bridge);

        if (r)
                return r;
        pthread_mutex_lock(&bridge->lock);
        while (!bridge->is_opened)
                pthread_cond_wait(&bridge->opened, &bridge->lock);
        r = bridge->open_result;
        *why = bridge->open_why;
        pthread_mutex_unlock(&bridge->lock);
        if (r)
                pthread_join(bridge->thread, NULL);
        return r;
}

static int bridge_open(struct kvt__bridge **ret_bridge, const struct kvt__bridge_options *options,
                       struct why *why)
{
        struct kvt__bridge *bridge = calloc(1, sizeof(*bridge));
        int r;

        if (!bridge)
                return -ENOMEM;
        bridge->arena_fd = bridge->wake_fd = bridge->pending = bridge->socket = -1;
        bridge->whole_buffer = options->whole_buffer;
        LIST_INIT(&bridge->eras);
        LIST_INIT(&bridge->batches);
        RB_INIT(&bridge->requests);
        RB_INIT(&bridge->rooms.tree);
        TAILQ_INIT(&bridge->rooms.free);
        STAILQ_INIT(&bridge->out.packets);
        STAILQ_INIT(&bridge->wait.packets);
        pthread_mutex_init(&bridge->lock, NULL);
        pthread_cond_init(&bridge->opened, NULL);
        r = split_address(bridge, options->address, why);
        if (!r && options->source)
                r = rdma_address_parse(&bridge->source, options->source, 0, why);
        if (!r)
                r = rdma_secret_load(&bridge->secret, options->secret, why);
        if (!r && options->dmabuf)
                r = take_dmabuf(bridge, options->dmabuf, why);
        else if (!r)
                r = make_buffer(bridge, options->buffer_bytes, why);
        if (!r)
                r = make_parts(bridge);
        if (!r)
                r = start_thread(bridge, why);
        if (r) {
                if (!*why->text)
                        why_set(why, "%s", strerror(r < 0 ? -r : EINVAL));
                bridge_free(bridge);
                return r < 0 ? r : -EINVAL;
        }
        *ret_bridge = bridge;
        return 0;
}

static void wake(struct kvt__bridge *bridge)
{
        static const uint64_t one = 1;

        if (write(bridge->wake_fd, &one, sizeof(one)) < 0)
                return; /* it is awake already */
}

static int bridge_connect(struct kvt__bridge *bridge)
{
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
                return -errno;
        pthread_mutex_lock(&bridge->lock);
        close_fdp(&bridge->pending);
        bridge->pending = pair[1];
        pthread_mutex_unlock(&bridge->lock);
        wake(bridge);
        return pair[0];
}

static void bridge_close(struct kvt__bridge *bridge)
{
        pthread_mutex_lock(&bridge->lock);
        bridge->stopping = true;
        pthread_mutex_unlock(&bridge->lock);
        wake(bridge);
        pthread_join(bridge->thread, NULL);
        bridge_free(bridge);
}

static void close_copy(int *fd)
{
        if (*fd >= 0)
                close(steal_fd(fd));
}

static void bridge_forget_in_child(struct kvt__bridge *bridge)
{
        close_copy(&bridge->socket);
        close_copy(&bridge->pending);
        close_copy(&bridge->wake_fd);
        close_copy(&bridge->arena_fd);
        close(presence_table_fd(bridge->table));
        if (bridge->port)
                rdma_port_forget_in_child(bridge->port);
}

__attribute__((visibility("default"))) extern const struct kvt__remote_ops kvt__remote_ops;
const struct kvt__remote_ops kvt__remote_ops = {
        .version = KVT__REMOTE_VERSION,
        .open = bridge_open,
        .connect = bridge_connect,
        .close = bridge_close,
        .forget_in_child = bridge_forget_in_child,
};
