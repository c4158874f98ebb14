// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/rdma_queue.h"
#include "base/thread.h"

#define MS            UINT64_C(1000000)
#define EVENTS_A_TURN 64u

uint64_t rdma_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void take_cm_event(struct rdma_port *port, struct rdma_cm_event *event)
{
        struct rdma_cm_event copy = *event;
        struct rdma_cm_id *id = event->listen_id ? event->listen_id : event->id;
        struct rdma_cm_target *target = id->context;
        uint8_t data[256]; /* the length is a byte */

        /* Acknowledged first: an id whose event is not cannot be destroyed in its handler. */
        if (event->param.conn.private_data && event->param.conn.private_data_len) {
                memcpy(data, event->param.conn.private_data, event->param.conn.private_data_len);
                copy.param.conn.private_data = data;
        } else {
                copy.param.conn.private_data_len = 0;
        }
        rdma_ack_cm_event(event);
        if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST)
                rdma_connect_request((struct rdma_listener *)(void *)target, copy.id,
                                     &copy.param.conn);
        else if (!target->is_listener)
                rdma_connect_event((struct rdma_connection *)(void *)target, &copy);
}

static void take_cm_events(struct rdma_port *port)
{
        struct rdma_cm_event *event;

        while (!rdma_get_cm_event(port->channel, &event))
                take_cm_event(port, event);
}

/* Looked up: a queue may still ring for a connection that has gone. */
static struct rdma_connection *find_connection(struct rdma_port *port, const struct ibv_cq *cq)
{
        struct rdma_connection *connection;

        LIST_FOREACH(connection, &port->connections, link)
                if (connection->cq == cq)
                        return connection;
        return NULL;
}

static void take_completions(struct rdma_port *port, struct rdma_device *device)
{
        struct ibv_cq *cq;
        void *ignored;

        /* The rest has to wait until deadlines and jobs have had their turn. */
        for (unsigned i = 0; i < EVENTS_A_TURN && !ibv_get_cq_event(device->channel, &cq, &ignored);
             i++) {
                struct rdma_connection *connection = find_connection(port, cq);

                ibv_ack_cq_events(cq, 1);
                if (connection)
                        rdma_queue_poll(connection);
        }
}

/* What concerns a connection shows in its completions too; here it is only taken away. */
static void take_async_events(struct rdma_device *device)
{
        struct ibv_async_event event;

        while (!ibv_get_async_event(device->context, &event))
                ibv_ack_async_event(&event);
}

static bool is_busy(const struct rdma_connection *connection)
{
        return connection->cq && connection->n_sends;
}

/* The next may be freed no more than this one: that waits for the mailbox. */
static bool poll_busy(struct rdma_port *port)
{
        struct rdma_connection *connection;
        bool any = false;

        LIST_FOREACH(connection, &port->connections, link) {
                if (!is_busy(connection))
                        continue;
                any = true;
                rdma_queue_poll(connection);
        }
        return any;
}

/* One whose descriptors report errors does so for ever: its device has been removed. */
static void take_device_events(struct rdma_port *port, struct rdma_device *device,
                               const struct pollfd fds[2])
{
        if (fds[0].revents)
                take_completions(port, device);
        if (fds[1].revents)
                take_async_events(device);
        if (!device->is_gone && (fds[0].revents | fds[1].revents) & (POLLERR | POLLNVAL)) {
                device->is_gone = true;
                rdma_count(port, devices_gone, 1);
        }
}

static void wait_for_events(struct rdma_port *port, bool is_spinning)
{
        struct pollfd fds[2 + 2 * RDMA_DEVICES_MAX] = {
                {.fd = port->to_helper.fd, .events = POLLIN},
                {.fd = port->channel->fd, .events = POLLIN},
        };
        uint64_t next_ns = rdma_deadlines_next_ns(&port->deadlines), now_ns = rdma_now_ns();
        uint64_t wait_ns = next_ns > now_ns && !is_spinning ? next_ns - now_ns : 0;
        struct timespec timeout = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
        nfds_t n = 2;

        for (uint32_t i = 0; i < port->n_devices; i++) {
                const struct rdma_device *device = &port->devices[i];
                bool is_gone = device->is_gone;

                fds[n++] =
                        (struct pollfd){.fd = is_gone ? -1 : device->channel->fd, .events = POLLIN};
                fds[n++] = (struct pollfd){.fd = is_gone ? -1 : device->context->async_fd,
                                           .events = POLLIN};
        }
        if (ppoll(fds, n, next_ns == RDMA_NEVER && !is_spinning ? NULL : &timeout, NULL) <= 0)
                return;
        if (fds[0].revents)
                mailbox_run(&port->to_helper);
        if (fds[1].revents)
                take_cm_events(port);
        for (uint32_t i = 0; i < port->n_devices; i++)
                take_device_events(port, &port->devices[i], &fds[2 + 2 * i]);
}

static void *help(void *argument)
{
        struct rdma_port *port = argument;

        while (!atomic_load(&port->is_drained)) {
                bool is_spinning = port->options.busy_poll && poll_busy(port);

                wait_for_events(port, is_spinning);
                rdma_deadlines_run(&port->deadlines, rdma_now_ns());
        }
        return NULL;
}

void rdma_port_check_drained(struct rdma_port *port)
{
        if (!atomic_load(&port->is_closing) || !LIST_EMPTY(&port->connections) ||
            !LIST_EMPTY(&port->listeners))
                return;
        atomic_store(&port->is_drained, true);
        mailbox_post(&port->to_owner, &port->wake);
}

void rdma_port_note_refusal(struct rdma_port *port, enum rdma_end end,
                            const struct sockaddr *address)
{
        pthread_mutex_lock(&port->refusal_lock);
        port->refusal.n++;
        port->refusal.end = end;
        rdma_address_format(address, port->refusal.address);
        pthread_mutex_unlock(&port->refusal_lock);
}

void rdma_port_last_refusal(struct rdma_port *port, struct rdma_refusal *ret_refusal)
{
        pthread_mutex_lock(&port->refusal_lock);
        *ret_refusal = port->refusal;
        pthread_mutex_unlock(&port->refusal_lock);
}

static void run_wake(struct job *job)
{
        (void)job;
}

static void run_close(struct job *job)
{
        struct rdma_port *port = job_owner(job, struct rdma_port, close);
        struct rdma_connection *connection;

        while (!LIST_EMPTY(&port->listeners))
                rdma_listener_end(LIST_FIRST(&port->listeners));
        LIST_FOREACH(connection, &port->connections, link)
                rdma_connection_break(connection, RDMA_END_CLOSED, "the port is closed");
        rdma_port_check_drained(port);
}

static void default_to(uint32_t *value, uint32_t standard)
{
        if (!*value)
                *value = standard;
}

static void default_to_ms(uint64_t *value, uint64_t standard_ms)
{
        if (!*value)
                *value = standard_ms * MS;
}

static void set_defaults(struct rdma_port_options *options)
{
        default_to(&options->connections_max, 256);
        default_to(&options->n_credits, 32);
        default_to(&options->message_bytes, 4096);
        default_to(&options->n_queued, 64);
        default_to(&options->n_operations, 1024);
        default_to(&options->chunk_bytes, 1u << 20);
        default_to(&options->flight_bytes, 8u << 20);
        default_to_ms(&options->handshake_ns, 5000);
        default_to_ms(&options->message_ns, 10000);
        default_to_ms(&options->idle_ns, 500);
        default_to_ms(&options->silence_ns, 2500);
}

static bool are_valid(const struct rdma_port_options *options)
{
        return options->find_secret && options->n_credits >= RDMA_CREDIT_MIN &&
               options->n_credits <= RDMA_CREDIT_MAX && options->n_queued >= 2 &&
               options->n_queued <= RDMA_CREDIT_MAX && options->message_bytes >= RDMA_MESSAGE_MIN &&
               options->message_bytes <= RDMA_MESSAGE_MAX && options->message_bytes % 8 == 0;
}

static void port_free(struct rdma_port *port)
{
        rdma_devices_close(port);
        if (port->channel)
                rdma_destroy_event_channel(port->channel);
        if (port->to_helper.fd >= 0)
                mailbox_deinit(&port->to_helper);
        if (port->to_owner.fd >= 0)
                mailbox_deinit(&port->to_owner);
        pthread_mutex_destroy(&port->refusal_lock);
        free(port);
}

DEFINE_CLEANUP(struct rdma_port *, port_free)

static struct rdma_port *port_new(const struct rdma_port_options *options)
{
        struct rdma_port *port = calloc(1, sizeof(*port));

        if (!port)
                return NULL;
        port->options = *options;
        port->to_helper.fd = port->to_owner.fd = -1;
        pthread_mutex_init(&port->refusal_lock, NULL);
        port->wake.run = run_wake;
        port->close.run = run_close;
        rdma_deadlines_init(&port->deadlines);
        LIST_INIT(&port->connections);
        LIST_INIT(&port->listeners);
        return port;
}

/* librdmacm works where a kernel has its device, and says ENODEV or ENOENT where none has. */
static int open_channel(struct rdma_port *port, struct why *why)
{
        int flags;

        port->channel = rdma_create_event_channel();
        if (!port->channel) {
                why_set(why, "this machine has no RDMA: /dev/infiniband/rdma_cm: %s",
                        strerror(errno));
                return RDMA_E_ABSENT;
        }
        flags = fcntl(port->channel->fd, F_GETFL);
        if (flags < 0 || fcntl(port->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return err_raise(-errno);
        return 0;
}

int rdma_check(struct why *why)
{
        return 0;
}

int rdma_port_open(struct rdma_port **ret_port, const struct rdma_port_options *options,
                   struct why *why)
{
        struct rdma_port_options completed = *options;
        _cleanup_(port_freep) struct rdma_port *port = NULL;
        int r;

        set_defaults(&completed);
        if (!are_valid(&completed)) {
                why_set(why, "an option of the RDMA port is out of its range");
                return err_raise(-EINVAL);
        }
        /* Does nothing where the kernel copies pinned pages at fork(), as since 5.12. */
        ibv_fork_init();
        port = port_new(&completed);
        if (!port)
                return err_raise(-ENOMEM);
        r = open_channel(port, why);
        if (!r)
                r = rdma_devices_open(port, why);
        if (!r)
                r = mailbox_init(&port->to_helper);
        if (!r)
                r = mailbox_init(&port->to_owner);
        if (!r)
                r = thread_start(&port->helper, help, port);
        if (r)
                return r;
        *ret_port = steal_ptr(port);
        return 0;
}

void rdma_port_close(struct rdma_port *port)
{
        struct pollfd fd = {.fd = port->to_owner.fd, .events = POLLIN};

        atomic_store(&port->is_closing, true);
        mailbox_post(&port->to_helper, &port->close);
        while (!atomic_load(&port->is_drained)) {
                poll(&fd, 1, -1);
                rdma_port_run(port);
        }
        pthread_join(port->helper, NULL);
        /* What is left only tells and frees. */
        while (mailbox_run(&port->to_owner) + mailbox_run(&port->to_helper))
                ;
        port_free(port);
}

void rdma_port_forget_in_child(const struct rdma_port *port)
{
        close(port->channel->fd);
        close(port->to_helper.fd);
        close(port->to_owner.fd);
        /* Contexts are librdmacm's, one for all ports: a second close finds nothing. */
        for (uint32_t i = 0; i < port->n_devices; i++) {
                close(port->devices[i].channel->fd);
                close(port->devices[i].context->async_fd);
                close(port->devices[i].context->cmd_fd);
        }
}

const char *rdma_port_warning(const struct rdma_port *port)
{
        return *port->warning ? port->warning : NULL;
}

int rdma_port_fd(const struct rdma_port *port)
{
        return port->to_owner.fd;
}

void rdma_port_run(struct rdma_port *port)
{
        mailbox_run(&port->to_owner);
}

void rdma_port_stats(const struct rdma_port *port, struct rdma_port_stats *ret_stats)
{
#define RDMA_STAT_COPY(name)                                                                       \
        ret_stats->name = atomic_load_explicit(&port->stats.name, memory_order_relaxed);
        RDMA_STAT_LIST(RDMA_STAT_COPY)
#undef RDMA_STAT_COPY
        for (size_t i = 0; i < RDMA_N_ENDS; i++)
                ret_stats->ended[i] =
                        atomic_load_explicit(&port->stats.ended[i], memory_order_relaxed);
}
