// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/mover.h"
#include "daemon/rdma_port.h"
#include "storage/host.h"

#define MOVE_NS          UINT64_C(10000000000)
#define MOVE_NS_PER_BYTE UINT64_C(100) /* 10 MB/s: slower is as good as dead */

struct move_batch;

/* One object. */
struct move {
        struct rdma_transfer transfer;
        TAILQ_ENTRY(move) link; /* waiting in its session */
        struct move_batch *batch;
        struct host_copy *copy; /* held while it waits and moves; NULL: not to be moved */
        uint64_t lease;
        uint32_t status;
        struct rdma_piece *pieces;
};

/* One message. */
struct move_batch {
        struct session *session; /* referred to */
        uint64_t request;
        uint32_t first;
        bool more;
        bool is_put;
        uint32_t n_left; /* and one while it is being begun */
        uint32_t n;
        struct move moves[];
};

struct session_mover {
        TAILQ_HEAD(, move) waiting;
        uint32_t n_moving;
        uint32_t n_items; /* of messages that are not answered yet */
};

/* ---- the end of a move ---- */

static uint32_t status_of(enum rdma_result result)
{
        switch (result) {
        case RDMA_RESULT_DONE:
                return KVT_WIRE_OK;
        case RDMA_RESULT_TIMEOUT:
                return KVT_WIRE_TIMEOUT;
        case RDMA_RESULT_REFUSED:
                return KVT_WIRE_DENIED;
        case RDMA_RESULT_UNSUPPORTED:
                return KVT_WIRE_UNSUPPORTED;
        case RDMA_RESULT_FULL:
                return KVT_WIRE_BUSY;
        case RDMA_RESULT_BROKEN:
        default:
                return KVT_WIRE_UNAVAILABLE;
        }
}

static void answer_batch(struct move_batch *batch)
{
        struct session *session = batch->session;
        struct answer answer;

        if (--batch->n_left)
                return;
        session->mover->n_items -= batch->n;
        answer_begin(&answer, session, batch->request);
        for (uint32_t i = 0; i < batch->n; i++)
                answer_status(&answer, batch->first + i, batch->moves[i].status);
        answer_end(&answer, batch->more);
        free(batch);
        session_unref(session);
}

static void settle_lease(const struct move *move)
{
        struct session *session = move->batch->session;
        struct lease *lease = lease_find(&session->daemon->leases, session, move->lease);

        /* Ended meanwhile: its copy goes with the move. */
        if (!lease || lease->copy != move->copy || lease->fill != LEASE_FILLING)
                return;
        lease->fill = move->status ? LEASE_UNFILLABLE : LEASE_FILLED;
        lease->fill_status = move->status;
}

static void end_move(struct move *move, uint32_t status)
{
        struct move_batch *batch = move->batch;

        move->status = status;
        free(steal_ptr(move->pieces));
        if (move->copy) {
                if (batch->is_put)
                        settle_lease(move);
                host_copy_unuse(&batch->session->daemon->cache.copies, steal_ptr(move->copy));
        }
        answer_batch(batch);
}

/* ---- moving ---- */

static void go_on(struct session *session);

static void on_done(struct rdma_transfer *transfer, enum rdma_result result)
{
        struct move *move = transfer->user;
        struct session *session = move->batch->session;

        session->n_refs++; /* the batch may be its last one */
        session->mover->n_moving--;
        end_move(move, status_of(result));
        go_on(session);
        session_unref(session);
}

/* KVT_WIRE_OK: on_done() will come. */
static uint32_t start_move(struct session *session, struct move *move)
{
        if (!session->remote)
                return KVT_WIRE_UNAVAILABLE;
        move->transfer.connection = remote_link_connection(session->remote);
        switch (rdma_transfer_start(&move->transfer)) {
        case 0:
                return KVT_WIRE_OK;
        case RDMA_E_CLOSED:
                return KVT_WIRE_UNAVAILABLE;
        case RDMA_E_FULL:
                return KVT_WIRE_BUSY;
        default:
                return KVT_WIRE_INVALID;
        }
}

static void go_on(struct session *session)
{
        struct session_mover *mover = session->mover;
        struct move *move;

        while (mover->n_moving < MOVER_FLIGHT && (move = TAILQ_FIRST(&mover->waiting))) {
                uint32_t status;

                TAILQ_REMOVE(&mover->waiting, move, link);
                status = start_move(session, move);
                if (status)
                        end_move(move, status);
                else
                        mover->n_moving++;
        }
}

/* ---- beginning ---- */

/* Where the lease's bytes are in host memory. Returns how many parts; 0: nowhere to be moved. */
static uint32_t local_extents(const struct daemon *daemon, const struct lease *lease,
                              struct rdma_extent ret_extents[WIRE_EXTENTS_MAX])
{
        struct host_copy parts;
        struct host_extent extents[WIRE_EXTENTS_MAX];

        if (!lease->pages)
                return daemon_port_extents(daemon, lease->copy, 0, lease->copy->raw_bytes,
                                           ret_extents);
        for (uint32_t i = 0; i < lease->pages->n; i++)
                extents[i] = (struct host_extent){
                        .arena_id = lease->pages->extents[i].arena_id,
                        .offset = lease->pages->extents[i].offset,
                        .length = lease->pages->extents[i].length,
                };
        parts = (struct host_copy){.n_extents = lease->pages->n, .extents = extents};
        return daemon_port_extents(daemon, &parts, 0, lease->pages->bytes, ret_extents);
}

static uint32_t plan_pieces(struct move *move, const struct lease *lease,
                            const struct wire_move_item *item)
{
        struct daemon *daemon = move->batch->session->daemon;
        struct rdma_extent extents[WIRE_EXTENTS_MAX];
        uint32_t n = local_extents(daemon, lease, extents);
        uint64_t address = item->address;

        if (!n)
                return KVT_WIRE_IO_ERROR;
        move->pieces = calloc(n, sizeof(*move->pieces));
        if (!move->pieces)
                return KVT_WIRE_NO_MEMORY;
        for (uint32_t i = 0; i < n; i++) {
                move->pieces[i] = (struct rdma_piece){
                        .local = extents[i],
                        .remote_address = address,
                        .remote_key = item->key,
                };
                address += extents[i].length;
        }
        move->transfer = (struct rdma_transfer){
                .pieces = move->pieces,
                .n_pieces = n,
                .is_write = !move->batch->is_put,
                .timeout_ns = MOVE_NS + item->bytes * MOVE_NS_PER_BYTE,
                .on_done = on_done,
                .user = move,
        };
        return KVT_WIRE_OK;
}

/* May these bytes be moved now? */
static uint32_t check_lease(const struct lease *lease, bool is_put, uint64_t bytes)
{
        if (!lease || lease->kind != (is_put ? LEASE_WRITE : LEASE_READ))
                return KVT_WIRE_GONE;
        if (is_put ? lease->fill != LEASE_EMPTY
                   : lease->loading || lease->copy->state != HOST_COPY_READY)
                return KVT_WIRE_INVALID;
        return bytes == (lease->pages ? lease->pages->bytes : lease->copy->raw_bytes)
                       ? KVT_WIRE_OK
                       : KVT_WIRE_INVALID;
}

static void begin_move(struct move *move, const struct wire_move_item *item)
{
        struct session *session = move->batch->session;
        struct lease *lease = lease_find(&session->daemon->leases, session, item->lease);
        uint32_t status = check_lease(lease, move->batch->is_put, item->bytes);

        if (!status)
                status = plan_pieces(move, lease, item);
        if (status) {
                end_move(move, status);
                return;
        }
        move->lease = item->lease;
        move->copy = lease->copy;
        host_copy_use(move->copy);
        if (move->batch->is_put)
                lease->fill = LEASE_FILLING;
        TAILQ_INSERT_TAIL(&session->mover->waiting, move, link);
}

static struct session_mover *mover_of(struct session *session)
{
        if (!session->mover) {
                session->mover = calloc(1, sizeof(*session->mover));
                if (session->mover)
                        TAILQ_INIT(&session->mover->waiting);
        }
        return session->mover;
}

/* Each object that a client is honest about has a lease. */
static bool has_room(struct session *session, uint32_t n)
{
        return session->mover->n_items + n <= session->daemon->config.session.leases_max;
}

void mover_request(struct session *session, const struct wire_batch *message)
{
        uint32_t n = message->header.n_items;
        struct wire_move_item item;
        struct message_cursor cursor;
        struct move_batch *batch;

        if (session->carrier->shares_memory) {
                answer_part(session, message, KVT_WIRE_INVALID);
                return;
        }
        if (!mover_of(session)) {
                answer_part(session, message, KVT_WIRE_NO_MEMORY);
                return;
        }
        if (!has_room(session, n)) {
                answer_part(session, message, KVT_WIRE_BUSY);
                return;
        }
        batch = calloc(1, sizeof(*batch) + n * sizeof(batch->moves[0]));
        if (!batch) {
                answer_part(session, message, KVT_WIRE_NO_MEMORY);
                return;
        }
        session->mover->n_items += n;
        session->n_refs++;
        batch->session = session;
        batch->request = message->header.request;
        batch->first = message->first;
        batch->more = message->header.flags & WIRE_MORE;
        batch->is_put = message->header.kind == WIRE_PUT;
        batch->n = n;
        batch->n_left = n + 1;
        message_cursor_init(&cursor, message);
        for (uint32_t i = 0; !message_next_move(&cursor, &item); i++) {
                batch->moves[i].batch = batch;
                begin_move(&batch->moves[i], &item);
        }
        go_on(session);
        answer_batch(batch);
}

void mover_hang_up(struct session *session)
{
        struct move *move;

        if (!session->mover)
                return;
        session->n_refs++;
        while ((move = TAILQ_FIRST(&session->mover->waiting))) {
                TAILQ_REMOVE(&session->mover->waiting, move, link);
                end_move(move, KVT_WIRE_UNAVAILABLE);
        }
        session->n_refs--;
}
