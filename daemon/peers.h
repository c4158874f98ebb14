// SPDX-License-Identifier: Apache-2.0
/*
 * Peers: the other daemons of the configuration (rdma.peers), and the connection to each on
 * which this one asks for objects (daemon/peer_read.h). It is opened when it is first needed;
 * after a failure the next attempt waits, longer each time, and what is asked meanwhile is
 * UNAVAILABLE at once. The transport's keep-alive ends it within 3 s of silence.
 *
 * An entry is an address, which is a peer for good, or a name, of which every address is one:
 * names are looked up on a worker, at the start and every 30 s. An address that is gone from
 * its name's list stays until nothing is under way with it. One at which this very daemon
 * answers is itself, and never asked.
 *
 * Those who ask us come on connections of their own (daemon/peer_serve.h), whether or not we know
 * them: rdma.allow and the secret decide. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include <jansson.h>

#include "base/rdma_address.h"
#include "base/rdma_deadline.h"
#include "daemon/config.h"
#include "daemon/finding.h"
#include "daemon/peer_read.h"
#include "daemon/peer_serve.h"
#include "proto/remote_link.h"

struct daemon;
struct peers;
struct peer_name;

struct peer {
        TAILQ_ENTRY(peer) link;
        struct peers *peers;
        char name[CONFIG_PEER_BYTES]; /* as the configuration has it */
        char address_text[RDMA_ADDRESS_TEXT_MAX];
        struct sockaddr_storage address;
        const struct peer_name *from; /* a name that gave the address; NULL: an address */
        bool is_listed;               /* in its last answer */
        bool is_self;
        struct remote_link *remote; /* NULL: none */
        bool is_open;
        struct rdma_backoff backoff;
        uint64_t retry_ns; /* no attempt before */
        char why[128];     /* the last connection ended, or could not be made */
        struct peer_releases releases;
        LIST_HEAD(, peer_fetch) fetches;
        struct finding_asks asks;
        bool has_told; /* sessions, since it was opened, what it has of their engine */
        uint64_t read_objects, read_bytes;
};

struct peers {
        struct daemon *daemon;
        TAILQ_HEAD(, peer) list;
        struct peer_name *names;
        uint32_t n_names;
        uint64_t look_up_ns; /* when names are looked up again */
        uint32_t n_working;  /* jobs on uv's workers */
        bool is_stopping;
        struct peer_reads reads;
        struct finding_list findings; /* oldest first */
        struct peer_serving serving;
};

/* After the port: daemon->peers stays NULL without one. 0 or negative. */
int peers_open(struct daemon *daemon);

/* All links are being closed; nothing is asked or served any more. */
void peers_stop(struct daemon *daemon);

/*
 * Nothing of them is on a worker. A name that is being looked up is waited for, with servers that
 * do not answer as long as the resolver's own time-outs: getaddrinfo() cannot be stopped.
 */
bool peers_are_quiet(const struct daemon *daemon);

/* After the port's links are gone. */
void peers_close(struct daemon *daemon);

/* Sends what has gathered; called after each turn of the loop. */
void peers_go_on(struct daemon *daemon);

/* Deadlines, and names to be looked up; called ten times a second. */
void peers_expire(struct daemon *daemon, uint64_t now_ns);

/*
 * The peer that a hint means: an entry as the configuration has it, or one of the addresses.
 * NULL: there is no such peer, or it is this daemon.
 */
struct peer *peers_find(struct daemon *daemon, const char *hint);

/* Opens the connection unless there is one. False: not now; @peer->why says why. */
bool peer_connect(struct peer *peer);

void peers_refresh(struct daemon *daemon);

/* For `kvtierctl status`: an array, or NULL without memory. */
json_t *peers_status(const struct daemon *daemon);
