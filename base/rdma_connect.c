// SPDX-License-Identifier: Apache-2.0
/*
 * From an address to a queue pair that works, on either side. The handshake is next.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"

#define DEPTH_MAX      16u  /* READs at a time: enough for any distance within a building */
#define OPERATIONS_MAX 128u /* work requests of transfers and grants in the send queue */
#define RETRIES        7
#define ACK_TIMEOUT    16 /* 4.096 us * 2^16 = 268 ms, before a packet is sent again */

/* What a server that rejects puts in the private data, behind which the fabric pads. */
struct rejection {
        uint32_t magic;
        uint32_t end;
};

static uint8_t smaller(uint32_t a, uint32_t b)
{
        return (uint8_t)(a < b ? a : b);
}

/* Posted before the peer can know of the queue pair: it never sends to one without buffers. */
static int post_slots(struct rdma_connection *connection)
{
        for (uint32_t i = 0; i < connection->n_slots; i++) {
                int r = rdma_slot_post(&connection->slots[i]);

                if (r)
                        return r;
        }
        return 0;
}

static int create_cq(struct rdma_connection *connection)
{
        int n = (int)(connection->n_slots + connection->n_send_max);

        connection->cq = rdma_cq_new(connection->port, connection->device, n);
        if (!connection->cq)
                return err_raise(-errno);
        return ibv_req_notify_cq(connection->cq, 0) ? err_raise(-EIO) : 0;
}

static int create_qp(struct rdma_connection *connection)
{
        struct ibv_qp_init_attr attr = {
                .send_cq = connection->cq,
                .recv_cq = connection->cq,
                .qp_type = IBV_QPT_RC,
                .sq_sig_all = 1,
                .cap =
                        {
                                .max_send_wr = connection->n_send_max,
                                .max_recv_wr = connection->n_slots,
                                .max_send_sge = 1,
                                .max_recv_sge = 1,
                        },
        };

        if (rdma_create_qp(connection->id, connection->device->pd, &attr))
                return err_raise(-errno);
        rdma_count(connection->port, queue_pairs, 1);
        return 0;
}

/* Registers the messages' memory, and makes the queues. */
static int create_queues(struct rdma_connection *connection)
{
        struct rdma_device *device = connection->device;
        uint32_t wanted = connection->n_out + 2 + OPERATIONS_MAX;
        uint32_t most = (uint32_t)device->attr.max_qp_wr;
        int r;

        connection->n_send_max = wanted < most ? wanted : most;
        connection->flights = calloc(connection->n_send_max, sizeof(*connection->flights));
        if (!connection->flights)
                return err_raise(-ENOMEM);
        connection->mr = ibv_reg_mr(device->pd, connection->memory, connection->memory_bytes,
                                    IBV_ACCESS_LOCAL_WRITE);
        if (!connection->mr)
                return err_raise(-errno);
        rdma_count(connection->port, regions, 1);
        r = create_cq(connection);
        if (!r)
                r = create_qp(connection);
        return r ? r : post_slots(connection);
}

void rdma_connection_destroy_queues(struct rdma_connection *connection)
{
        struct rdma_port *port = connection->port;

        if (connection->id && connection->id->qp) {
                rdma_destroy_qp(connection->id);
                rdma_count(port, queue_pairs, -1);
        }
        if (connection->cq) {
                rdma_cq_put(connection->device, connection->cq);
                connection->cq = NULL;
        }
        if (connection->mr) {
                ibv_dereg_mr(connection->mr);
                connection->mr = NULL;
                rdma_count(port, regions, -1);
        }
        if (connection->id) {
                rdma_destroy_id(connection->id);
                connection->id = NULL;
        }
}

/* The device that the routes chose, if it is one of ours. */
static int find_device(struct rdma_connection *connection)
{
        connection->device = rdma_device_find(connection->port, connection->id->verbs);
        return connection->device ? 0 : err_raise(-ENODEV);
}

/*
 * The default takes seconds, in which nothing moves after a lost packet. With the retries it
 * is two seconds until a device gives its peer up. Kernels before 5.1 do not know the option.
 */
static void set_patience(struct rdma_cm_id *id)
{
        uint8_t timeout = ACK_TIMEOUT;

        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
}

static void set_depths(const struct rdma_device *device, struct rdma_conn_param *param)
{
        uint8_t reads = smaller(DEPTH_MAX, (uint32_t)device->attr.max_qp_init_rd_atom);
        uint8_t served = smaller(DEPTH_MAX, (uint32_t)device->attr.max_qp_rd_atom);

        param->initiator_depth = smaller(reads, param->initiator_depth);
        param->responder_resources = smaller(served, param->responder_resources);
        param->retry_count = RETRIES;
        /* Credits see to it that a buffer is always there: a missing one is a fault. */
        param->rnr_retry_count = 0;
        param->private_data = NULL;
        param->private_data_len = 0;
}

static void set_timer(struct rdma_connection *connection, uint64_t timeout_ns)
{
        rdma_deadline_set(&connection->port->deadlines, &connection->opening,
                          rdma_now_ns() + timeout_ns);
}

static int remaining_ms(const struct rdma_connection *connection)
{
        uint64_t now_ns = rdma_now_ns(), at_ns = connection->opening.at_ns;

        return at_ns > now_ns ? (int)((at_ns - now_ns) / 1000000u) + 1 : 1;
}

static void cannot(struct rdma_connection *connection, const char *what, int error)
{
        rdma_connection_break(connection, RDMA_END_UNREACHABLE, "%s: %s", what, strerror(error));
}

void rdma_connect_start(struct job *job)
{
        struct rdma_connection *connection = job_owner(job, struct rdma_connection, open);
        struct rdma_port *port = connection->port;
        struct rdma_target *aim = &connection->aim;
        bool is_from_anywhere = !aim->source.ss_family;

        LIST_INSERT_HEAD(&port->connections, connection, link);
        set_timer(connection, aim->timeout_ns);
        if (rdma_create_id(port->channel, &connection->id, connection, RDMA_PS_TCP)) {
                connection->id = NULL;
                cannot(connection, "making an RDMA id", errno);
                return;
        }
        set_patience(connection->id);
        if (rdma_resolve_addr(connection->id,
                              is_from_anywhere ? NULL : (struct sockaddr *)&aim->source,
                              (struct sockaddr *)&aim->address, remaining_ms(connection)))
                cannot(connection, "finding an RDMA device for the address", errno);
}

static void address_resolved(struct rdma_connection *connection)
{
        if (find_device(connection))
                cannot(connection, "the address is reached by another device", ENODEV);
        else if (rdma_resolve_route(connection->id, remaining_ms(connection)))
                cannot(connection, "finding a route", errno);
}

static void route_resolved(struct rdma_connection *connection)
{
        struct rdma_conn_param param = {
                .initiator_depth = DEPTH_MAX,
                .responder_resources = DEPTH_MAX,
        };
        int r = create_queues(connection);

        if (r) {
                rdma_connection_break(connection, RDMA_END_DEVICE, "making a queue pair: %s",
                                      strerror(-r));
                return;
        }
        connection->state = RDMA_CONNECTION_CONNECTING;
        set_depths(connection->device, &param);
        if (rdma_connect(connection->id, &param))
                cannot(connection, "connecting", errno);
}

static void rejected(struct rdma_connection *connection, const struct rdma_cm_event *event)
{
        static const char *const words[RDMA_N_ENDS] = {
                [RDMA_END_NOT_ALLOWED] = "this address is not in the server's list",
                [RDMA_END_FULL] = "the server has as many connections as it may have",
        };
        const struct rdma_conn_param *param = &event->param.conn;
        struct rejection rejection = {0};

        if (param->private_data_len >= sizeof(rejection))
                memcpy(&rejection, param->private_data, sizeof(rejection));
        if (rejection.magic == RDMA_FRAME_MAGIC && rejection.end < RDMA_N_ENDS &&
            words[rejection.end])
                rdma_connection_break(connection, rejection.end, "refused by the server: %s",
                                      words[rejection.end]);
        else
                rdma_connection_break(connection, RDMA_END_UNREACHABLE,
                                      "nobody listens there (rejected, reason %d)", event->status);
}

/*
 * A peer that leaves before it has heard that we are connected can only reject: a client, whose
 * side is established, hears that in place of a disconnect.
 */
static bool is_disconnect(const struct rdma_connection *connection,
                          const struct rdma_cm_event *event)
{
        return event->event == RDMA_CM_EVENT_DISCONNECTED ||
               (event->event == RDMA_CM_EVENT_REJECTED &&
                connection->state > RDMA_CONNECTION_CONNECTING);
}

static void disconnected(struct rdma_connection *connection)
{
        /* What the peer said last may still be in the queue. */
        rdma_queue_poll(connection);
        rdma_connection_break(connection, RDMA_END_PEER_CLOSED, "the peer disconnected");
}

void rdma_connect_event(struct rdma_connection *connection, const struct rdma_cm_event *event)
{
        if (connection->state == RDMA_CONNECTION_BROKEN)
                return;
        if (is_disconnect(connection, event))
                return disconnected(connection);
        switch (event->event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
                return address_resolved(connection);
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
                return route_resolved(connection);
        case RDMA_CM_EVENT_ESTABLISHED:
                return rdma_connection_greet(connection);
        case RDMA_CM_EVENT_REJECTED:
                return rejected(connection, event);
        case RDMA_CM_EVENT_ADDR_ERROR:
        case RDMA_CM_EVENT_ROUTE_ERROR:
        case RDMA_CM_EVENT_CONNECT_ERROR:
        case RDMA_CM_EVENT_UNREACHABLE:
                return rdma_connection_break(connection, RDMA_END_UNREACHABLE, "%s (%d)",
                                             rdma_event_str(event->event), event->status);
        case RDMA_CM_EVENT_DEVICE_REMOVAL:
                return rdma_connection_break(connection, RDMA_END_DEVICE, "the device was removed");
        default:
                return;
        }
}

static void reject(struct rdma_port *port, struct rdma_cm_id *id, enum rdma_end end)
{
        struct rejection rejection = {RDMA_FRAME_MAGIC, end};

        rdma_count(port, ended[end], 1);
        rdma_port_note_refusal(port, end, rdma_get_peer_addr(id));
        rdma_reject(id, &rejection, sizeof(rejection));
        rdma_destroy_id(id);
}

static bool is_full(struct rdma_port *port)
{
        return rdma_count(port, connections, 0) >= port->options.connections_max;
}

static void accept_id(struct rdma_connection *connection, const struct rdma_conn_param *asked)
{
        struct rdma_conn_param param = *asked;
        int r = find_device(connection);

        if (!r)
                r = create_queues(connection);
        if (r) {
                rdma_connection_break(connection, RDMA_END_DEVICE, "making a queue pair: %s",
                                      strerror(-r));
                return;
        }
        connection->state = RDMA_CONNECTION_CONNECTING;
        set_depths(connection->device, &param);
        if (rdma_accept(connection->id, &param))
                cannot(connection, "accepting", errno);
}

void rdma_connect_request(struct rdma_listener *listener, struct rdma_cm_id *id,
                          const struct rdma_conn_param *param)
{
        struct rdma_port *port = listener->port;
        struct rdma_connection *connection;

        if (!rdma_networks_contain(listener->allowed, listener->n_allowed, rdma_get_peer_addr(id)))
                return reject(port, id, RDMA_END_NOT_ALLOWED);
        connection =
                is_full(port) || atomic_load(&port->is_closing) ? NULL : rdma_connection_new(port);
        if (!connection)
                return reject(port, id, RDMA_END_FULL);
        connection->listener = listener;
        connection->id = id;
        memcpy(&connection->peer_address, rdma_get_peer_addr(id),
               rdma_address_bytes(rdma_get_peer_addr(id)));
        id->context = connection;
        set_patience(id);
        LIST_INSERT_HEAD(&port->connections, connection, link);
        set_timer(connection, port->options.handshake_ns);
        accept_id(connection, param);
}
