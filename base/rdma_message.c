// SPDX-License-Identifier: Apache-2.0
/*
 * Frames by SEND and RECV. Those of the handshake are put in the ring by the helper; once the
 * connection is open, the ring's head is the owner's.
 */
#include <string.h>

#include "base/rdma_queue.h"

static uint8_t *ring_frame(struct rdma_connection *connection, uint32_t position)
{
        uint32_t index = position & (connection->n_out - 1);

        return connection->out + (size_t)index * connection->port->options.message_bytes;
}

static bool has_room(struct rdma_connection *connection)
{
        return atomic_load(&connection->out_head) - atomic_load(&connection->out_tail) <
               connection->n_out;
}

/* The frame's place; its header and bytes are the caller's to fill before commit(). */
static struct rdma_frame *reserve(struct rdma_connection *connection, size_t length)
{
        uint32_t head = atomic_load(&connection->out_head);

        connection->out_lengths[head & (connection->n_out - 1)] = (uint32_t)length;
        return (struct rdma_frame *)(void *)ring_frame(connection, head);
}

static void commit(struct rdma_connection *connection)
{
        atomic_fetch_add(&connection->out_head, 1);
}

/* A handshake has two frames of a side: there is room. */
void rdma_message_put(struct rdma_connection *connection, const void *frame, size_t length)
{
        memcpy(reserve(connection, length), frame, length);
        commit(connection);
}

/* True: there is none, and on_room() will come. */
static bool is_full(struct rdma_connection *connection)
{
        if (has_room(connection))
                return false;
        atomic_store(&connection->wants_room, true);
        /* One that was completed in between did not see the wish. */
        return !has_room(connection) || !atomic_exchange(&connection->wants_room, false);
}

int rdma_connection_send(struct rdma_connection *connection, const void *bytes, size_t length)
{
        struct rdma_frame *frame;
        size_t frame_bytes = sizeof(*frame) + length;

        if (!connection->is_open)
                return RDMA_E_CLOSED;
        if (!length || length > rdma_connection_message_max(connection))
                return RDMA_E_INVALID;
        if (is_full(connection))
                return RDMA_E_FULL;
        frame = reserve(connection, frame_bytes);
        rdma_frame_init(frame, RDMA_FRAME_MESSAGE, frame_bytes);
        memcpy(frame + 1, bytes, length);
        commit(connection);
        mailbox_post(&connection->port->to_helper, &connection->kick);
        return 0;
}

void rdma_message_kick(struct job *job)
{
        rdma_queue_pump(job_owner(job, struct rdma_connection, kick));
}

void rdma_message_room(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, room);

        if (connection->is_open && connection->events.on_room)
                connection->events.on_room(connection->user, connection);
}

void rdma_message_completed(struct rdma_connection *connection)
{
        atomic_fetch_add(&connection->out_tail, 1);
        if (atomic_exchange(&connection->wants_room, false))
                mailbox_post(&connection->port->to_owner, &connection->room);
        if (atomic_load(&connection->out_tail) == atomic_load(&connection->out_head))
                rdma_connection_refused(connection);
}

static bool post_frame(struct rdma_connection *connection, struct rdma_frame *frame,
                       uint32_t length, enum rdma_work work, const void *owner)
{
        struct ibv_sge part = {
                .addr = (uintptr_t)frame,
                .length = length,
                .lkey = connection->mr->lkey,
        };
        struct ibv_send_wr request = {
                .opcode = IBV_WR_SEND,
                .sg_list = &part,
                .num_sge = 1,
        };

        frame->returned = rdma_credit_tell(&connection->credit);
        return rdma_queue_post(connection, &request, work, owner);
}

static bool post_control(struct rdma_connection *connection, struct rdma_control *control,
                         enum rdma_frame_kind kind)
{
        rdma_frame_init(control->frame, kind, sizeof(*control->frame));
        control->is_posted = true;
        return post_frame(connection, control->frame, sizeof(*control->frame), RDMA_WORK_CONTROL,
                          control);
}

/* They have places of their own in the send queue. */
static void pump_controls(struct rdma_connection *connection)
{
        struct rdma_credit *credit = &connection->credit;

        if (credit->owes_echo && !connection->echo.is_posted) {
                credit->owes_echo = false;
                if (!post_control(connection, &connection->echo, RDMA_FRAME_ECHO))
                        return;
        }
        if (!connection->nudge.is_posted && rdma_credit_has_to_nudge(credit, rdma_now_ns())) {
                rdma_credit_nudge(credit);
                rdma_count(connection->port, nudges, 1);
                post_control(connection, &connection->nudge, RDMA_FRAME_NUDGE);
        }
}

static bool post_message(struct rdma_connection *connection)
{
        uint32_t position = connection->out_posted++;
        uint32_t length = connection->out_lengths[position & (connection->n_out - 1)];
        struct rdma_frame *frame = (struct rdma_frame *)(void *)ring_frame(connection, position);

        rdma_credit_sent(&connection->credit);
        if (frame->kind == RDMA_FRAME_MESSAGE)
                rdma_count(connection->port, messages_sent, 1);
        return post_frame(connection, frame, length, RDMA_WORK_MESSAGE, connection);
}

/* The first message in the ring waits for a credit, or it does not. */
static void watch_waiting(struct rdma_connection *connection, bool is_waiting, bool has_moved)
{
        struct rdma_port *port = connection->port;

        if (!is_waiting || has_moved)
                rdma_deadline_clear(&port->deadlines, &connection->waiting);
        if (!is_waiting || connection->waiting.is_set)
                return;
        rdma_count(port, credit_waits, 1);
        rdma_deadline_set(&port->deadlines, &connection->waiting,
                          rdma_now_ns() + port->options.message_ns);
}

void rdma_messages_pump(struct rdma_connection *connection)
{
        bool has_moved = false;
        uint32_t head;

        /* Messages first: each tells what a nudge would have to. */
        head = atomic_load(&connection->out_head);
        while (connection->out_posted != head && rdma_credit_can_send(&connection->credit) &&
               rdma_queue_has_room(connection)) {
                has_moved = true;
                if (!post_message(connection))
                        return;
        }
        watch_waiting(connection, connection->out_posted != head, has_moved);
        pump_controls(connection);
}

int rdma_slot_post(struct rdma_slot *slot)
{
        struct rdma_connection *connection = slot->connection;
        struct ibv_sge part = {
                .addr = (uintptr_t)slot->bytes,
                .length = connection->port->options.message_bytes,
                .lkey = connection->mr->lkey,
        };
        struct ibv_recv_wr request = {
                .wr_id = (uintptr_t)slot | RDMA_WORK_SLOT,
                .sg_list = &part,
                .num_sge = 1,
        };
        struct ibv_recv_wr *bad;

        return ibv_post_recv(connection->id->qp, &request, &bad) ? err_raise(-EIO) : 0;
}

static void post_again(struct rdma_slot *slot)
{
        if (rdma_slot_post(slot))
                rdma_connection_break(slot->connection, RDMA_END_DEVICE,
                                      "a buffer cannot be posted");
}

/* Helper: the owner has taken the message. */
static void run_taken(struct job *job)
{
        struct rdma_slot *slot = job_owner(job, struct rdma_slot, job);
        struct rdma_connection *connection = slot->connection;

        if (connection->state == RDMA_CONNECTION_BROKEN)
                return;
        post_again(slot);
        rdma_credit_taken(&connection->credit);
        rdma_queue_pump(connection);
}

/* Owner. */
static void run_message(struct job *job)
{
        struct rdma_slot *slot = job_owner(job, struct rdma_slot, job);
        struct rdma_connection *connection = slot->connection;
        const size_t header = sizeof(struct rdma_frame);

        if (connection->is_open)
                connection->events.on_message(connection->user, connection, slot->bytes + header,
                                              slot->length - header);
        slot->job.run = run_taken;
        mailbox_post(&connection->port->to_helper, &slot->job);
}

static void break_by_rules(struct rdma_connection *connection, const char *what)
{
        rdma_connection_break(connection, RDMA_END_PROTOCOL, "the peer sent %s", what);
}

static void take_message(struct rdma_slot *slot, uint32_t length)
{
        struct rdma_connection *connection = slot->connection;

        if (connection->state != RDMA_CONNECTION_OPEN) {
                break_by_rules(connection, "a message before the handshake");
                return;
        }
        slot->length = length;
        slot->job.run = run_message;
        rdma_count(connection->port, messages_received, 1);
        mailbox_post(&connection->port->to_owner, &slot->job);
}

/* What was in the slot has been used. */
static void take_greeting(struct rdma_slot *slot)
{
        struct rdma_connection *connection = slot->connection;

        if (connection->state != RDMA_CONNECTION_GREETING) {
                if (connection->state != RDMA_CONNECTION_REFUSING)
                        break_by_rules(connection, "a frame of the handshake after it");
                return;
        }
        rdma_connection_take_greeting(connection, slot->bytes);
        if (connection->state == RDMA_CONNECTION_BROKEN)
                return;
        post_again(slot);
        rdma_credit_taken(&connection->credit);
}

static void take_control(struct rdma_slot *slot, uint16_t kind)
{
        struct rdma_connection *connection = slot->connection;
        struct rdma_credit *credit = &connection->credit;

        /* Before it is answered: the answer lets the peer send the next. */
        post_again(slot);
        if (kind == RDMA_FRAME_NUDGE && rdma_credit_nudged(credit))
                break_by_rules(connection, "a NUDGE before the ECHO of the last");
        else if (kind == RDMA_FRAME_ECHO && rdma_credit_echoed(credit))
                break_by_rules(connection, "an ECHO of nothing");
}

static int take_credit(struct rdma_connection *connection, const struct rdma_frame *frame)
{
        bool costs = frame->kind != RDMA_FRAME_NUDGE && frame->kind != RDMA_FRAME_ECHO;

        rdma_credit_heard(&connection->credit, rdma_now_ns());
        if (rdma_credit_returned(&connection->credit, frame->returned))
                return RDMA_CREDIT_E_INVALID;
        return costs ? rdma_credit_received(&connection->credit) : 0;
}

void rdma_slot_arrived(struct rdma_slot *slot, uint32_t length)
{
        struct rdma_connection *connection = slot->connection;
        const struct rdma_frame *frame = (const void *)slot->bytes;
        struct why why = {""};

        /* A frame may be faster than the event that the connection is established. */
        if (connection->listener)
                rdma_connection_greet(connection);
        if (rdma_frame_check(frame, length, &why))
                break_by_rules(connection, why.text);
        else if (take_credit(connection, frame))
                break_by_rules(connection, "what it had no credit for");
        else if (frame->kind == RDMA_FRAME_MESSAGE)
                take_message(slot, length);
        else if (frame->kind == RDMA_FRAME_NUDGE || frame->kind == RDMA_FRAME_ECHO)
                take_control(slot, frame->kind);
        else
                take_greeting(slot);
}
