// SPDX-License-Identifier: Apache-2.0
/*
 * What goes to the daemon: sent at once while the socket takes it, queued otherwise, in
 * order, never blocking. Under the session's lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/error.h"

/* New calls are refused while more than this waits for the daemon to read. */
#define KVT__OUTBOX_BYTES_MAX (4u << 20)

struct kvt__packet {
        STAILQ_ENTRY(kvt__packet) link;
        size_t length;
        unsigned char bytes[];
};

STAILQ_HEAD(kvt__packet_list, kvt__packet);

struct kvt__outbox {
        struct kvt__packet_list packets;
        size_t bytes;
};

/* 0: sent or queued. Negative: the connection is of no more use. */
int kvt__outbox_send(struct kvt__outbox *outbox, int socket, const void *packet, size_t length);

/* Queues it, whatever the socket would take. 0 or -ENOMEM. */
int kvt__outbox_queue(struct kvt__outbox *outbox, const void *packet, size_t length);

/* Sends what is queued. 0 (something may be left), or negative as above. */
int kvt__outbox_flush(struct kvt__outbox *outbox, int socket);

void kvt__outbox_clear(struct kvt__outbox *outbox);
