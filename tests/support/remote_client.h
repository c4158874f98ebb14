// SPDX-License-Identifier: Apache-2.0
/*
 * A remote session that is nothing but the wire (wire_client.h): a thread carries its packets
 * over RDMA as they are. It grants the daemon one place, for reading and for writing, and may say
 * of it whatever it likes.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/rdma_memory.h"
#include "base/rdma_secret.h"
#include "proto/remote_link.h"
#include "tests/support/wire_client.h"

#define REMOTE_CLIENT_BYTES UINT64_C(0x100000) /* of the place; nothing is mapped behind it */

struct remote_client {
        struct wire_client wire;
        uint8_t *memory;
        struct rdma_place place;
        uint32_t write_key; /* the same place, for FETCH */

        /* the thread's */
        pthread_t thread;
        int socket;
        struct rdma_secret_file secret;
        struct rdma_target target;
        struct rdma_port *port;
        struct remote_link *link;
        struct rdma_region *region;
        struct rdma_grant *grants[2];
        atomic_uint n_granted;
        atomic_bool has_ended;
        bool stops;
};

/* Connected to IP:PORT, attached, its place granted. */
void remote_client_open(struct remote_client *client, const char *address, const char *source,
                        const char *secret_path);
void remote_client_close(struct remote_client *client);

/* One request that names the same @n times: the status of the first, or as below. */
uint32_t remote_client_move_times(struct remote_client *client, uint16_t kind, uint64_t lease,
                                  uint64_t address, uint64_t bytes, uint32_t n);

/* PUT or FETCH of one object; returns its status, UNAVAILABLE when the daemon hangs up. */
uint32_t remote_client_move(struct remote_client *client, uint16_t kind, uint64_t lease,
                            uint64_t address, uint64_t bytes);
