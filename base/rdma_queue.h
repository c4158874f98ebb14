// SPDX-License-Identifier: Apache-2.0
/*
 * One connection inside the transport: its struct, what its queues hold, and the functions
 * of the helper thread around them. rdma_port.h says how the threads meet.
 */
#pragma once

#include "base/rdma_credit.h"
#include "base/rdma_handshake.h"
#include "base/rdma_memory.h"
#include "base/rdma_port.h"

enum rdma_connection_state {
        RDMA_CONNECTION_RESOLVING,  /* client: address, then route */
        RDMA_CONNECTION_CONNECTING, /* both: the queue pair is made */
        RDMA_CONNECTION_GREETING,   /* it works: the handshake */
        RDMA_CONNECTION_REFUSING,   /* server: the last frame goes out */
        RDMA_CONNECTION_OPEN,
        RDMA_CONNECTION_BROKEN,
};

/* One receive buffer. */
struct rdma_slot {
        struct job job; /* to the owner: a message; to the helper: post it again */
        struct rdma_connection *connection;
        uint8_t *bytes;
        uint32_t length;
};

/* A frame that costs no credit: one of each kind is on the way at most. */
struct rdma_control {
        struct rdma_frame *frame;
        bool is_posted;
};

struct rdma_connection {
        struct rdma_cm_target target;
        struct rdma_port *port;
        struct rdma_listener *listener; /* NULL: we are the client */
        LIST_ENTRY(rdma_connection) link;

        /* The owner's. */
        struct rdma_connection_events events;
        void *user;
        bool is_open;
        bool is_closed; /* by the owner, who hears nothing but on_closed() any more */
        bool has_ended;
        bool is_announced; /* a listener's: the owner has seen it */
        uint32_t n_operations;
        struct rdma_target aim;
        char domain[RDMA_DOMAIN_BYTES];
        struct sockaddr_storage peer_address; /* of a listener's; else it is aim's */
        struct job open;                      /* to the helper: connect; to the owner: it is open */
        struct job kick;                      /* to the helper: there is a message */
        struct job close;                     /* to the helper */
        struct job end_job;                   /* to and fro: the four steps */
        struct job room;                      /* to the owner */

        /* Messages to send: a ring. The owner fills at head, completions move tail. */
        uint32_t n_out; /* a power of two */
        uint8_t *out;
        uint32_t *out_lengths;
        _Atomic uint32_t out_head;
        _Atomic uint32_t out_tail;
        atomic_bool wants_room;

        /* The helper's. */
        enum rdma_connection_state state;
        enum rdma_end end;
        struct why why;
        bool is_seen; /* by the owner: it ends in four steps */
        struct rdma_cm_id *id;
        struct rdma_device *device;
        struct ibv_cq *cq;
        struct ibv_mr *mr;
        uint8_t *memory;
        size_t memory_bytes;
        struct rdma_slot *slots;
        uint32_t n_slots;
        struct rdma_control nudge;
        struct rdma_control echo;
        struct rdma_credit credit;
        struct rdma_handshake handshake;
        struct rdma_deadline opening;
        struct rdma_deadline alive;
        struct rdma_deadline waiting; /* the first message in the ring, for credit */
        uint32_t out_posted;
        uint32_t n_send_max;
        uint32_t n_sends; /* work requests in the send queue */
        uint64_t flight_bytes;
        uint32_t *flights; /* a ring of n_send_max: bytes of each, in their order */
        uint32_t flight_head;
        uint32_t flight_tail;
        TAILQ_HEAD(rdma_transfer_list, rdma_transfer) pending; /* not all posted */
        struct rdma_transfer_list under_way;                   /* all posted */
        TAILQ_HEAD(rdma_grant_list, rdma_grant) grants;        /* neither to bind nor take back */
        struct rdma_grant_list grants_working;
};

enum rdma_grant_state {
        RDMA_GRANT_BINDING,
        RDMA_GRANT_HELD,
        RDMA_GRANT_TAKING_BACK,
        RDMA_GRANT_OVER,
};

struct rdma_grant {
        struct rdma_grant_options options; /* its extents are the copy below */
        struct rdma_connection *connection;
        bool is_released;            /* owner */
        struct job job;              /* to the helper: bind */
        struct job release;          /* to the helper: take back */
        struct job granted;          /* to the owner */
        struct job over;             /* to the owner: reusable; to the helper: free */
        enum rdma_grant_state state; /* helper */
        bool has_to_go;              /* helper: released while it was bound */
        bool is_told;                /* helper: `granted` is posted */
        enum rdma_result result;
        struct rdma_deadline deadline;
        TAILQ_ENTRY(rdma_grant) link;
        uint32_t n_posted; /* of the binds, or of the invalidations */
        uint32_t n_acked;
        struct rdma_extent *extents;
        struct rdma_place *places;
        struct rdma_window **windows; /* NULL: whole regions */
};

struct rdma_region {
        struct rdma_port *port;
        uint8_t *base;
        size_t length;
        uint32_t n_users;                     /* owner */
        struct ibv_mr *mrs[RDMA_DEVICES_MAX]; /* one a device; NULL: it cannot reach it */
};

/* What a completion belongs to: the kind stands in the low bits of wr_id. */
enum rdma_work {
        RDMA_WORK_SLOT,
        RDMA_WORK_MESSAGE,
        RDMA_WORK_CONTROL,
        RDMA_WORK_TRANSFER,
        RDMA_WORK_GRANT,
        RDMA_WORK_MASK = 7,
};

/* rdma_connect.c: from an address to a working queue pair. */
void rdma_connect_event(struct rdma_connection *connection, const struct rdma_cm_event *event);
void rdma_connect_request(struct rdma_listener *listener, struct rdma_cm_id *id,
                          const struct rdma_conn_param *param);
void rdma_connect_start(struct job *job);
void rdma_connection_destroy_queues(struct rdma_connection *connection);

/* rdma_connection.c */
struct rdma_connection *rdma_connection_new(struct rdma_port *port);
/* Any state; everything under way ends. Nothing may be done with its queues after it. */
void rdma_connection_break(struct rdma_connection *connection, enum rdma_end end,
                           const char *format, ...) __attribute__((format(printf, 3, 4)));
void rdma_connection_greet(struct rdma_connection *connection);
void rdma_connection_take_greeting(struct rdma_connection *connection, const void *frame);
/* The last word to a client that is not let in has gone out. */
void rdma_connection_refused(struct rdma_connection *connection);

/* rdma_message.c */
void rdma_message_put(struct rdma_connection *connection, const void *frame, size_t length);
int rdma_slot_post(struct rdma_slot *slot);
void rdma_slot_arrived(struct rdma_slot *slot, uint32_t length);
void rdma_message_kick(struct job *job);
void rdma_message_room(struct job *job); /* the owner's */
void rdma_messages_pump(struct rdma_connection *connection);
void rdma_message_completed(struct rdma_connection *connection);

/* rdma_queue.c: what goes to the device, and what comes back. */
void rdma_queue_poll(struct rdma_connection *connection);
void rdma_queue_pump(struct rdma_connection *connection);
bool rdma_queue_has_room(const struct rdma_connection *connection);
/* False, and broken. */
bool rdma_queue_post(struct rdma_connection *connection, struct ibv_send_wr *request,
                     enum rdma_work work, const void *owner);

/* rdma_transfer.c, rdma_grant.c */
bool rdma_extent_is_valid(const struct rdma_extent *extent, const struct rdma_port *port);
void rdma_transfers_pump(struct rdma_connection *connection);
void rdma_transfer_completed(struct rdma_transfer *transfer);
void rdma_transfers_break(struct rdma_connection *connection);
void rdma_grants_pump(struct rdma_connection *connection);
void rdma_grant_completed(struct rdma_grant *grant);
/* Around the end of the queue pair: before it windows end, after it owners are told. */
void rdma_grants_revoke(struct rdma_connection *connection);
void rdma_grants_break(struct rdma_connection *connection);
