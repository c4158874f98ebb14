// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"

#define POLLED_AT_ONCE 32
#define FOR_CONTROLS   2u

bool rdma_queue_has_room(const struct rdma_connection *connection)
{
        return connection->n_sends + FOR_CONTROLS < connection->n_send_max;
}

bool rdma_queue_post(struct rdma_connection *connection, struct ibv_send_wr *request,
                     enum rdma_work work, const void *owner)
{
        struct ibv_send_wr *bad;
        int r;

        if (connection->state == RDMA_CONNECTION_BROKEN)
                return false;
        request->wr_id = (uintptr_t)owner | work;
        r = ibv_post_send(connection->id->qp, request, &bad);
        if (r) {
                /* Providers differ in the sign. */
                rdma_connection_break(connection, RDMA_END_DEVICE, "posting to a queue pair: %s",
                                      strerror(abs(r)));
                return false;
        }
        connection->n_sends++;
        return true;
}

void rdma_queue_pump(struct rdma_connection *connection)
{
        switch (connection->state) {
        case RDMA_CONNECTION_OPEN:
                rdma_messages_pump(connection);
                rdma_grants_pump(connection);
                rdma_transfers_pump(connection);
                return;
        case RDMA_CONNECTION_GREETING:
        case RDMA_CONNECTION_REFUSING:
                rdma_messages_pump(connection);
                return;
        default:
                return;
        }
}

static void take_success(struct rdma_connection *connection, const struct ibv_wc *wc)
{
        void *owner = (void *)(uintptr_t)(wc->wr_id & ~(uint64_t)RDMA_WORK_MASK);
        enum rdma_work work = wc->wr_id & RDMA_WORK_MASK;

        if (work != RDMA_WORK_SLOT)
                connection->n_sends--;
        switch (work) {
        case RDMA_WORK_SLOT:
                return rdma_slot_arrived(owner, wc->byte_len);
        case RDMA_WORK_MESSAGE:
                return rdma_message_completed(connection);
        case RDMA_WORK_CONTROL:
                ((struct rdma_control *)owner)->is_posted = false;
                return;
        case RDMA_WORK_TRANSFER:
                rdma_credit_heard(&connection->credit, rdma_now_ns());
                return rdma_transfer_completed(owner);
        case RDMA_WORK_GRANT:
                return rdma_grant_completed(owner);
        case RDMA_WORK_MASK:
                return;
        }
}

/* The first completion that failed says why; those behind it are only flushed. */
static void take_failure(struct rdma_connection *connection, const struct ibv_wc *wc)
{
        void *owner = (void *)(uintptr_t)(wc->wr_id & ~(uint64_t)RDMA_WORK_MASK);
        enum rdma_work work = wc->wr_id & RDMA_WORK_MASK;
        const char *status = ibv_wc_status_str(wc->status);

        if (work == RDMA_WORK_TRANSFER &&
            (wc->status == IBV_WC_REM_ACCESS_ERR || wc->status == IBV_WC_REM_INV_REQ_ERR))
                ((struct rdma_transfer *)owner)->result = RDMA_RESULT_REFUSED;
        if (wc->status == IBV_WC_RETRY_EXC_ERR)
                rdma_connection_break(connection, RDMA_END_LOST, "the peer's device is silent: %s",
                                      status);
        else if (wc->status == IBV_WC_WR_FLUSH_ERR)
                rdma_connection_break(connection, RDMA_END_DEVICE, "the queue pair has failed: %s",
                                      status);
        else
                rdma_connection_break(connection, RDMA_END_DEVICE, "the device reported: %s",
                                      status);
}

/* How many; 0: nothing is left, or the queue has gone. */
static int poll_once(struct rdma_connection *connection)
{
        struct ibv_wc completions[POLLED_AT_ONCE];
        int n;

        if (connection->state == RDMA_CONNECTION_BROKEN)
                return 0;
        n = ibv_poll_cq(connection->cq, POLLED_AT_ONCE, completions);
        if (n < 0)
                rdma_connection_break(connection, RDMA_END_DEVICE, "polling a completion queue");
        for (int i = 0; i < n && connection->state != RDMA_CONNECTION_BROKEN; i++) {
                /* The queue was another connection's before, whose queue pair has gone. */
                if (completions[i].qp_num != connection->id->qp->qp_num)
                        continue;
                if (completions[i].status == IBV_WC_SUCCESS)
                        take_success(connection, &completions[i]);
                else
                        take_failure(connection, &completions[i]);
        }
        return n > 0 ? n : 0;
}

void rdma_queue_poll(struct rdma_connection *connection)
{
        int n = 0, now, n_max;

        if (!connection->cq)
                return;
        n_max = connection->cq->cqe; /* the queue goes when the connection breaks */
        /* Asked for before the last look: what comes after it rings. */
        if (ibv_req_notify_cq(connection->cq, 0)) {
                rdma_connection_break(connection, RDMA_END_DEVICE, "asking for a completion event");
                return;
        }
        /* Behind as many as the queue holds is only what will ring: others have their turn. */
        while (n <= n_max && (now = poll_once(connection)) > 0) {
                n += now;
                rdma_queue_pump(connection);
        }
        rdma_queue_pump(connection);
}
