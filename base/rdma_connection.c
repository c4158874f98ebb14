// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"

static uint32_t round_up_to_power(uint32_t n)
{
        uint32_t power = 2;

        while (power < n)
                power *= 2;
        return power;
}

static void connection_free(struct rdma_connection *connection)
{
        rdma_handshake_wipe(&connection->handshake);
        free(connection->slots);
        free(connection->out_lengths);
        free(connection->flights);
        free(connection->memory);
        free(connection);
}

static void lay_out(struct rdma_connection *connection, size_t slot_bytes)
{
        uint8_t *at = connection->memory;

        for (uint32_t i = 0; i < connection->n_slots; i++, at += slot_bytes) {
                connection->slots[i].connection = connection;
                connection->slots[i].bytes = at;
        }
        connection->out = at;
        at += connection->n_out * slot_bytes;
        connection->nudge.frame = (struct rdma_frame *)(void *)at;
        connection->echo.frame = connection->nudge.frame + 1;
}

static int allocate(struct rdma_connection *connection)
{
        const struct rdma_port_options *options = &connection->port->options;
        size_t slot_bytes = options->message_bytes;

        connection->n_slots = options->n_credits + RDMA_CREDIT_SPARE;
        connection->n_out = round_up_to_power(options->n_queued);
        connection->slots = calloc(connection->n_slots, sizeof(*connection->slots));
        connection->out_lengths = calloc(connection->n_out, sizeof(*connection->out_lengths));
        connection->memory_bytes = (connection->n_slots + connection->n_out) * slot_bytes +
                                   2 * sizeof(struct rdma_frame);
        connection->memory = calloc(1, connection->memory_bytes);
        if (!connection->slots || !connection->out_lengths || !connection->memory)
                return err_raise(-ENOMEM);
        lay_out(connection, slot_bytes);
        return 0;
}

static void opening_passed(struct rdma_deadline *deadline);
static void alive_passed(struct rdma_deadline *deadline);
static void waiting_passed(struct rdma_deadline *deadline);

struct rdma_connection *rdma_connection_new(struct rdma_port *port)
{
        struct rdma_connection *connection = calloc(1, sizeof(*connection));

        if (!connection)
                return NULL;
        connection->port = port;
        if (allocate(connection)) {
                connection_free(connection);
                return NULL;
        }
        connection->kick.run = rdma_message_kick;
        connection->room.run = rdma_message_room;
        connection->opening.on_passed = opening_passed;
        connection->alive.on_passed = alive_passed;
        connection->waiting.on_passed = waiting_passed;
        TAILQ_INIT(&connection->pending);
        TAILQ_INIT(&connection->under_way);
        TAILQ_INIT(&connection->grants);
        TAILQ_INIT(&connection->grants_working);
        rdma_count(port, connections, 1);
        return connection;
}

/* The four steps of an end: rdma_port.h. */

static void run_closed(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, end_job);

        if (!connection->listener || connection->is_announced)
                connection->events.on_closed(connection->user, connection, connection->end,
                                             connection->why.text);
        connection_free(connection);
}

static void let_go(struct rdma_connection *connection)
{
        LIST_REMOVE(connection, link);
        rdma_count(connection->port, connections, -1);
}

static void run_let_go(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, end_job);
        struct rdma_port *port = connection->port;

        let_go(connection);
        connection->end_job.run = run_closed;
        mailbox_post(&port->to_owner, &connection->end_job);
        rdma_port_check_drained(port);
}

static void run_ended(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, end_job);

        connection->has_ended = true;
        connection->is_open = false;
        connection->end_job.run = run_let_go;
        mailbox_post(&connection->port->to_helper, &connection->end_job);
}

/* Helper: its owner has never seen it. */
static void run_bury(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, end_job);
        struct rdma_port *port = connection->port;

        let_go(connection);
        connection_free(connection);
        rdma_port_check_drained(port);
}

static void clear_timers(struct rdma_connection *connection)
{
        struct rdma_deadlines *deadlines = &connection->port->deadlines;

        rdma_deadline_clear(deadlines, &connection->opening);
        rdma_deadline_clear(deadlines, &connection->alive);
        rdma_deadline_clear(deadlines, &connection->waiting);
}

/* From the moment that it returns the device touches nothing on behalf of this connection. */
static void stop_device(struct rdma_connection *connection)
{
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

        if (connection->id && connection->id->qp) {
                ibv_modify_qp(connection->id->qp, &attr, IBV_QP_STATE);
                /* Tells the peer, if it can be told. */
                rdma_disconnect(connection->id);
        }
        rdma_grants_revoke(connection);
        rdma_connection_destroy_queues(connection);
}

void rdma_connection_break(struct rdma_connection *connection, enum rdma_end end,
                           const char *format, ...)
{
        struct rdma_port *port = connection->port;
        va_list arguments;

        if (connection->state == RDMA_CONNECTION_BROKEN)
                return;
        connection->state = RDMA_CONNECTION_BROKEN;
        connection->end = end;
        va_start(arguments, format);
        vsnprintf(connection->why.text, sizeof(connection->why.text), format, arguments);
        va_end(arguments);
        rdma_count(port, ended[end], 1);
        if (connection->listener && !connection->is_seen)
                rdma_port_note_refusal(port, end,
                                       (const struct sockaddr *)&connection->peer_address);
        clear_timers(connection);
        stop_device(connection);
        rdma_transfers_break(connection);
        rdma_grants_break(connection);
        connection->end_job.run = connection->is_seen ? run_ended : run_bury;
        mailbox_post(connection->is_seen ? &port->to_owner : &port->to_helper,
                     &connection->end_job);
}

/* The handshake. */

static void break_as_refused(struct rdma_connection *connection)
{
        rdma_connection_break(connection, connection->handshake.end, "%s",
                              connection->handshake.why.text);
}

static void opening_passed(struct rdma_deadline *deadline)
{
        struct rdma_connection *connection = job_owner(deadline, struct rdma_connection, opening);

        if (connection->state == RDMA_CONNECTION_REFUSING)
                break_as_refused(connection);
        else if (connection->state == RDMA_CONNECTION_GREETING)
                rdma_connection_break(connection, RDMA_END_TIMEOUT,
                                      "no handshake until the deadline");
        else
                rdma_connection_break(connection, RDMA_END_UNREACHABLE,
                                      "no answer until the deadline");
}

static void alive_passed(struct rdma_deadline *deadline)
{
        struct rdma_connection *connection = job_owner(deadline, struct rdma_connection, alive);
        const uint64_t soon_ns = 10000000;
        uint64_t now_ns, next_ns;

        /* Signs of life that nobody has read yet count. */
        rdma_queue_poll(connection);
        if (connection->state == RDMA_CONNECTION_BROKEN)
                return;
        now_ns = rdma_now_ns();
        if (rdma_credit_is_lost(&connection->credit, now_ns)) {
                rdma_connection_break(connection, RDMA_END_LOST, "silence for %llu ms",
                                      (unsigned long long)(now_ns - connection->credit.heard_ns) /
                                              1000000u);
                return;
        }
        next_ns = rdma_credit_next_ns(&connection->credit);
        rdma_deadline_set(&connection->port->deadlines, deadline,
                          next_ns > now_ns + soon_ns ? next_ns : now_ns + soon_ns);
}

static void waiting_passed(struct rdma_deadline *deadline)
{
        struct rdma_connection *connection = job_owner(deadline, struct rdma_connection, waiting);

        rdma_count(connection->port, timeouts, 1);
        rdma_connection_break(connection, RDMA_END_TIMEOUT, "the peer takes no messages");
}

static struct rdma_handshake_self make_self(const struct rdma_port *port)
{
        return (struct rdma_handshake_self){
                .identity = port->options.identity,
                .n_credits = port->options.n_credits,
                .message_bytes = port->options.message_bytes,
                .find_secret = port->options.find_secret,
                .user = port->options.user,
        };
}

static void say_hello(struct rdma_connection *connection)
{
        struct rdma_handshake_self self = make_self(connection->port);
        struct rdma_handshake_answer hello;
        struct why why = {""};
        int r = rdma_handshake_start(&connection->handshake, &self, connection->domain,
                                     connection->aim.expected_id, &hello, &why);

        if (r)
                rdma_connection_break(connection, r < 0 ? RDMA_END_DEVICE : RDMA_END_DENIED, "%s",
                                      r < 0 ? strerror(-r) : why.text);
        else
                rdma_message_put(connection, hello.bytes, hello.length);
}

void rdma_connection_greet(struct rdma_connection *connection)
{
        struct rdma_port *port = connection->port;
        struct rdma_handshake_self self = make_self(port);
        uint64_t now_ns = rdma_now_ns();

        if (connection->state != RDMA_CONNECTION_CONNECTING)
                return;
        connection->state = RDMA_CONNECTION_GREETING;
        rdma_credit_init(&connection->credit, port->options.n_credits, port->options.idle_ns,
                         port->options.silence_ns, now_ns);
        rdma_deadline_set(&port->deadlines, &connection->alive, now_ns + port->options.idle_ns);
        if (connection->listener)
                rdma_handshake_await(&connection->handshake, &self);
        else
                say_hello(connection);
        rdma_queue_pump(connection);
}

/* Owner. */
static void run_open(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, open);
        struct rdma_listener *listener = connection->listener;

        if (connection->is_closed)
                return;
        connection->is_open = true;
        if (!listener) {
                if (connection->events.on_open)
                        connection->events.on_open(connection->user, connection);
                return;
        }
        if (listener->is_closed || atomic_load(&connection->port->is_closing)) {
                rdma_connection_close(connection);
                return;
        }
        listener->on_connection(listener->user, connection);
        connection->is_announced = connection->events.on_message && connection->events.on_closed;
        /* Out of memory, the owner closes it as it is. */
        assert(connection->is_announced || connection->is_closed);
}

static void become_open(struct rdma_connection *connection)
{
        struct rdma_port *port = connection->port;
        struct rdma_handshake *handshake = &connection->handshake;

        connection->state = RDMA_CONNECTION_OPEN;
        connection->is_seen = true;
        if (connection->listener)
                memcpy(connection->domain, handshake->hello.domain, sizeof(connection->domain));
        rdma_deadline_clear(&port->deadlines, &connection->opening);
        rdma_credit_raise(&connection->credit, handshake->peer_credits);
        rdma_count(port, opened, 1);
        connection->open.run = run_open;
        mailbox_post(&port->to_owner, &connection->open);
}

void rdma_connection_take_greeting(struct rdma_connection *connection, const void *frame)
{
        struct rdma_handshake *handshake = &connection->handshake;
        struct rdma_handshake_answer answer;

        rdma_handshake_step(handshake, frame, &answer);
        if (answer.length)
                rdma_message_put(connection, answer.bytes, answer.length);
        if (handshake->state == RDMA_HANDSHAKE_DONE) {
                become_open(connection);
        } else if (handshake->state == RDMA_HANDSHAKE_FAILED) {
                if (answer.length)
                        connection->state = RDMA_CONNECTION_REFUSING;
                else
                        break_as_refused(connection);
        }
}

void rdma_connection_refused(struct rdma_connection *connection)
{
        if (connection->state == RDMA_CONNECTION_REFUSING)
                break_as_refused(connection);
}

/* What the owner calls. */

int rdma_connection_open(struct rdma_connection **ret_connection, struct rdma_port *port,
                         const struct rdma_target *target,
                         const struct rdma_connection_events *events, void *user)
{
        struct rdma_connection *connection;

        if (rdma_count(port, connections, 0) >= port->options.connections_max)
                return RDMA_E_FULL;
        if (atomic_load(&port->is_closing) || strlen(target->domain) >= RDMA_DOMAIN_BYTES)
                return err_raise(-EINVAL);
        connection = rdma_connection_new(port);
        if (!connection)
                return err_raise(-ENOMEM);
        connection->aim = *target;
        if (!connection->aim.timeout_ns)
                connection->aim.timeout_ns = port->options.handshake_ns;
        strcpy(connection->domain, target->domain);
        connection->aim.domain = connection->domain;
        connection->events = *events;
        connection->user = user;
        connection->is_seen = true;
        connection->open.run = rdma_connect_start;
        mailbox_post(&port->to_helper, &connection->open);
        *ret_connection = connection;
        return 0;
}

void rdma_connection_adopt(struct rdma_connection *connection,
                           const struct rdma_connection_events *events, void *user)
{
        connection->events = *events;
        connection->user = user;
}

static void run_close(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, close);

        rdma_connection_break(connection, RDMA_END_CLOSED, "closed");
}

void rdma_connection_close(struct rdma_connection *connection)
{
        if (connection->is_closed || connection->has_ended)
                return;
        connection->is_closed = true;
        connection->is_open = false;
        connection->close.run = run_close;
        mailbox_post(&connection->port->to_helper, &connection->close);
}

size_t rdma_connection_message_max(const struct rdma_connection *connection)
{
        uint32_t own = connection->port->options.message_bytes;
        uint32_t peers = connection->handshake.peer_message_bytes;

        return (own < peers ? own : peers) - sizeof(struct rdma_frame);
}

const char *rdma_connection_domain(const struct rdma_connection *connection)
{
        return connection->domain;
}

const uint8_t *rdma_connection_peer_id(const struct rdma_connection *connection)
{
        return connection->handshake.peer_id;
}

uint16_t rdma_connection_minor(const struct rdma_connection *connection)
{
        return connection->handshake.minor;
}

void rdma_connection_peer_address(const struct rdma_connection *connection,
                                  char text[RDMA_ADDRESS_TEXT_MAX])
{
        const struct sockaddr_storage *address =
                connection->listener ? &connection->peer_address : &connection->aim.address;

        rdma_address_format((const struct sockaddr *)address, text);
}
