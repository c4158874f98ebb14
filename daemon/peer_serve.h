// SPDX-License-Identifier: Apache-2.0
/*
 * Serving peers: another node asks for objects, and reads what is offered out of our memory.
 *
 *   NEW -> WANTED (not there yet) -> FOUND -> PROMOTING -> HASHING -> GRANTING -> OFFERED -> gone
 *
 * What is found is leased like a session's: in host memory at once, from NVMe by promotion. What
 * is in the pool alone is missing here: the reader has a pool of its own. Checksums that nobody has
 * computed yet are computed now, on a worker. Then exactly the object's extents are granted, for
 * READ. The lease ends when on_reusable() has come, after RELEASE or with the connection:
 * before that the memory may still be read from outside.
 *
 * A reader gets no further object while it holds SERVE_BYTES or SERVE_OBJECTS, those that are
 * being promoted for it included; the rest waits its turn, FOUND first. So no lease waits for
 * space, and a reader that takes its time keeps little. One that keeps an offer for 30 s is
 * disconnected. What it asks for beyond its share of what can be remembered is BUSY. Loop thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "daemon/index.h"
#include "proto/remote_link.h"

struct daemon;
struct peer_server;
struct served;

RB_HEAD(served_tree, served);

struct peer_serving {
        LIST_HEAD(, peer_server) servers; /* one a connection */
        struct served_tree wanted;        /* by key: what somebody waits for */
        uint32_t n_wanted;
        uint32_t n_items;      /* of all asks that are not answered to the end */
        uint64_t leased_bytes; /* for peers */
        uint64_t last_lease;
};

/* Takes a link over, with its first message (daemon_port_serve()). */
void peer_serve_accept(struct daemon *daemon, struct remote_link *link, const void *packet,
                       size_t length);

/* An object is there that was not. */
void peer_serve_published(struct daemon *daemon, const struct index_object *object);

/* Goes on with what may go on now, and sends the offers that have gathered. */
void peer_serve_go_on(struct daemon *daemon);
void peer_serve_expire(struct daemon *daemon, uint64_t now_ns);
void peer_serve_stop(struct daemon *daemon);
