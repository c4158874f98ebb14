// SPDX-License-Identifier: Apache-2.0
/*
 * One side of the wire: a port on one of the guest's two devices, what it was told, and memory
 * that it grants or transfers. Both sides may live in one process, each with its own devices and
 * helper; the test's thread owns both.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rdma_connection.h"
#include "base/rdma_memory.h"

#define SIDE_A      "10.1.0.1"
#define SIDE_B      "10.1.0.2"
#define SIDE_SECOND UINT64_C(1000000000)

/*
 * The clock, and how much of the time so far this process got no processor in, at the least: the
 * guest's are emulated by a machine that may have other work.
 */
struct side_moment {
        uint64_t ns;
        uint64_t withheld_ns;
};

/* What a side sends about a grant. */
struct side_offer {
        uint32_t n_places;
        uint32_t reserved;
        struct rdma_place places[4];
};

struct side {
        struct rdma_port *port;
        struct rdma_port_options options;
        struct rdma_listener *listener;
        uint16_t number;
        const char *secret; /* of domain "here" */
        struct rdma_connection *connection;
        bool is_open;
        bool is_closed;
        enum rdma_end end;
        char why[512];
        struct side_moment closed;
        uint8_t *memory;
        size_t memory_bytes;
        struct rdma_region *region;
        uint32_t n_messages;
        uint32_t n_rooms;
        uint8_t last[4096]; /* message */
        size_t last_bytes;
        struct rdma_grant *grant;
        bool is_granted;
        bool is_reusable;
        enum rdma_result granted;
        struct side_offer offer; /* of its own grant */
        void (*on_message)(struct side *side, const void *bytes, size_t length); /* may be NULL */
};

/* Sides that run together; every wait runs the ports of both. */
struct pair {
        struct side server; /* on rxea */
        struct side client; /* on rxeb */
};

uint64_t side_now_ns(void);
struct side_moment side_moment(void);
/* In @least_ns by the clock or more, and in less than @most_ns of the time that it got. */
void side_expect_took(struct side_moment start, struct side_moment end, uint64_t least_ns,
                      uint64_t most_ns);

/* Fills in what the tests share; the options may be changed before side_open(). */
void side_init(struct side *side, const char *device);
void side_open(struct side *side, size_t memory_bytes);
void side_close(struct side *side);

/* @allowed is a network. */
void side_listen(struct side *side, const char *allowed);
void side_connect(struct side *side, uint16_t number, const char *domain,
                  const uint8_t expected_id[RDMA_ID_BYTES]);

void pair_init(struct pair *pair);
/* Opens both, connects them, and waits until both are open. */
void pair_open(struct pair *pair, size_t memory_bytes);
void pair_close(struct pair *pair);

/* Runs both ports, or one, until *@flag or for @timeout_ns. Says whether the flag came. */
bool pair_wait(struct pair *pair, const bool *flag, uint64_t timeout_ns);
bool side_wait(struct side *side, const bool *flag, uint64_t timeout_ns);
/* Until *@counter is @value. */
bool pair_wait_for(struct pair *pair, const uint32_t *counter, uint32_t value, uint64_t timeout_ns);
/* Runs both for that long. */
void pair_run(struct pair *pair, uint64_t duration_ns);

/* Grants a part of the side's memory, without waiting. */
void side_grant(struct side *side, size_t offset, size_t length, bool is_writable);

struct side_transfer {
        struct rdma_transfer transfer;
        struct rdma_piece piece;
        bool is_done;
        enum rdma_result result;
        struct side_moment done;
};

/* From and to the side's own memory at @offset. */
void side_start(struct side *side, struct side_transfer *transfer, size_t offset, size_t length,
                uint64_t remote_address, uint32_t key, bool is_write, uint64_t timeout_ns);
