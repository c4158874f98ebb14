// SPDX-License-Identifier: Apache-2.0
/*
 * READs and WRITEs. A transfer is cut into chunks, and only so many bytes are on the device at a
 * time: what a nudge or a message has to wait for is bounded, and each chunk that ends is a
 * sign of life.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/rdma_queue.h"

/* Owner. */
static void run_done(struct job *job)
{
        struct rdma_transfer *transfer = job_owner(job, struct rdma_transfer, job);

        for (uint32_t i = 0; i < transfer->n_pieces; i++)
                transfer->pieces[i].local.region->n_users--;
        transfer->connection->n_operations--;
        transfer->on_done(transfer, transfer->result);
}

/* In neither list. */
static void finish(struct rdma_transfer *transfer, enum rdma_result result)
{
        struct rdma_port *port = transfer->connection->port;

        rdma_deadline_clear(&port->deadlines, &transfer->deadline);
        transfer->result = result;
        transfer->job.run = run_done;
        mailbox_post(&port->to_owner, &transfer->job);
}

static void count(struct rdma_transfer *transfer)
{
        struct rdma_port *port = transfer->connection->port;
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < transfer->n_pieces; i++)
                bytes += transfer->pieces[i].local.length;
        if (transfer->is_write) {
                rdma_count(port, writes, 1);
                rdma_count(port, written_bytes, bytes);
        } else {
                rdma_count(port, reads, 1);
                rdma_count(port, read_bytes, bytes);
        }
}

static bool is_posted(const struct rdma_transfer *transfer)
{
        return transfer->next_piece == transfer->n_pieces;
}

static bool has_begun(const struct rdma_transfer *transfer)
{
        return transfer->next_piece || transfer->offset;
}

static void deadline_passed(struct rdma_deadline *deadline)
{
        struct rdma_transfer *transfer = job_owner(deadline, struct rdma_transfer, deadline);
        struct rdma_connection *connection = transfer->connection;

        rdma_count(connection->port, timeouts, 1);
        if (!has_begun(transfer)) {
                TAILQ_REMOVE(&connection->pending, transfer, link);
                finish(transfer, RDMA_RESULT_TIMEOUT);
                return;
        }
        transfer->result = RDMA_RESULT_TIMEOUT;
        rdma_connection_break(connection, RDMA_END_TIMEOUT, "a %s did not end by its deadline",
                              transfer->is_write ? "write" : "read");
}

/* The next chunk of a transfer that is not posted whole. */
static uint32_t chunk_bytes(const struct rdma_connection *connection,
                            const struct rdma_transfer *transfer)
{
        uint64_t bytes = transfer->pieces[transfer->next_piece].local.length - transfer->offset;
        uint64_t most = connection->port->options.chunk_bytes;

        if (most > connection->device->message_max)
                most = connection->device->message_max;
        return (uint32_t)(bytes < most ? bytes : most);
}

static bool post_chunk(struct rdma_connection *connection, struct rdma_transfer *transfer,
                       uint32_t bytes)
{
        const struct rdma_piece *piece = &transfer->pieces[transfer->next_piece];
        size_t device = (size_t)(connection->device - connection->port->devices);
        struct ibv_sge part = {
                .addr = (uintptr_t)piece->local.address + transfer->offset,
                .length = bytes,
                .lkey = piece->local.region->mrs[device]->lkey,
        };
        struct ibv_send_wr request = {
                .opcode = transfer->is_write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                .sg_list = &part,
                .num_sge = 1,
                .wr.rdma =
                        {
                                .remote_addr = piece->remote_address + transfer->offset,
                                .rkey = piece->remote_key,
                        },
        };

        /* First: should posting break the connection, the transfer counts as begun. */
        transfer->n_posted++;
        transfer->offset += bytes;
        if (transfer->offset == piece->local.length) {
                transfer->next_piece++;
                transfer->offset = 0;
        }
        connection->flights[connection->flight_head++ % connection->n_send_max] = bytes;
        connection->flight_bytes += bytes;
        return rdma_queue_post(connection, &request, RDMA_WORK_TRANSFER, transfer);
}

void rdma_transfers_pump(struct rdma_connection *connection)
{
        uint64_t most = connection->port->options.flight_bytes;
        struct rdma_transfer *transfer;

        while (connection->state == RDMA_CONNECTION_OPEN && rdma_queue_has_room(connection) &&
               (transfer = TAILQ_FIRST(&connection->pending))) {
                uint32_t bytes = chunk_bytes(connection, transfer);

                if (connection->flight_bytes && connection->flight_bytes + bytes > most)
                        return;
                if (!post_chunk(connection, transfer, bytes))
                        return;
                if (!is_posted(transfer))
                        continue;
                TAILQ_REMOVE(&connection->pending, transfer, link);
                TAILQ_INSERT_TAIL(&connection->under_way, transfer, link);
        }
}

void rdma_transfer_completed(struct rdma_transfer *transfer)
{
        struct rdma_connection *connection = transfer->connection;

        connection->flight_bytes -=
                connection->flights[connection->flight_tail++ % connection->n_send_max];
        if (--transfer->n_posted || !is_posted(transfer))
                return;
        TAILQ_REMOVE(&connection->under_way, transfer, link);
        count(transfer);
        finish(transfer, RDMA_RESULT_DONE);
}

static void break_list(struct rdma_transfer_list *list)
{
        struct rdma_transfer *transfer;

        while ((transfer = TAILQ_FIRST(list))) {
                TAILQ_REMOVE(list, transfer, link);
                finish(transfer, transfer->result ? transfer->result : RDMA_RESULT_BROKEN);
        }
}

void rdma_transfers_break(struct rdma_connection *connection)
{
        break_list(&connection->under_way);
        break_list(&connection->pending);
}

/* Helper. */
static void run_start(struct job *job)
{
        struct rdma_transfer *transfer = job_owner(job, struct rdma_transfer, job);
        struct rdma_connection *connection = transfer->connection;

        if (connection->state != RDMA_CONNECTION_OPEN) {
                finish(transfer, RDMA_RESULT_BROKEN);
                return;
        }
        TAILQ_INSERT_TAIL(&connection->pending, transfer, link);
        rdma_deadline_set(&connection->port->deadlines, &transfer->deadline,
                          rdma_now_ns() + transfer->timeout_ns);
        rdma_queue_pump(connection);
}

bool rdma_extent_is_valid(const struct rdma_extent *extent, const struct rdma_port *port)
{
        const struct rdma_region *region = extent->region;
        uintptr_t address = (uintptr_t)extent->address, base = (uintptr_t)region->base;

        return region->port == port && extent->length && address >= base &&
               extent->length <= region->length &&
               address - base <= region->length - extent->length;
}

static bool is_valid(const struct rdma_transfer *transfer)
{
        const struct rdma_port *port = transfer->connection->port;
        size_t device = (size_t)(transfer->connection->device - port->devices);

        if (!transfer->n_pieces || transfer->n_pieces > RDMA_PIECES_MAX || !transfer->timeout_ns)
                return false;
        for (uint32_t i = 0; i < transfer->n_pieces; i++)
                if (!rdma_extent_is_valid(&transfer->pieces[i].local, port) ||
                    !transfer->pieces[i].local.region->mrs[device])
                        return false;
        return true;
}

int rdma_transfer_start(struct rdma_transfer *transfer)
{
        struct rdma_connection *connection = transfer->connection;

        if (!connection->is_open)
                return RDMA_E_CLOSED;
        if (!is_valid(transfer))
                return RDMA_E_INVALID;
        if (connection->n_operations >= connection->port->options.n_operations)
                return RDMA_E_FULL;
        connection->n_operations++;
        for (uint32_t i = 0; i < transfer->n_pieces; i++)
                transfer->pieces[i].local.region->n_users++;
        transfer->job = (struct job){.run = run_start};
        transfer->deadline = (struct rdma_deadline){.on_passed = deadline_passed};
        transfer->offset = 0;
        transfer->next_piece = transfer->n_posted = 0;
        transfer->result = RDMA_RESULT_DONE;
        mailbox_post(&connection->port->to_helper, &transfer->job);
        return 0;
}
