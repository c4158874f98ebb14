// SPDX-License-Identifier: Apache-2.0
/*
 * Flow control and keep-alive of one connection: who may send how much, and when silence
 * means death. Arithmetic only; the caller has the clock and the frames.
 *
 * Each side keeps n_credits + RDMA_CREDIT_SPARE receive buffers posted, less those whose
 * message its owner has not taken yet. A message costs a credit, and every frame tells how
 * many messages its sender has given buffers back for. The spare ones are for the two frames
 * that cost no credit: a NUDGE, of which a side sends the next only after the ECHO of the last,
 * and that ECHO. As a buffer is posted again before its frame is answered, no frame ever
 * arrives without a buffer.
 *
 * A nudge is sent when half of the credits wait to be told and no other frame tells them,
 * and when nothing was heard for `idle_ns`. Nothing heard for `silence_ns`: the peer is lost.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define RDMA_CREDIT_SPARE 2u
#define RDMA_CREDIT_MIN   4u /* what both sides have before they have told each other more */
#define RDMA_CREDIT_MAX   4096u

enum {
        RDMA_CREDIT_E_INVALID = 1, /* no honest peer says this */
};

struct rdma_credit {
        uint32_t own;      /* messages the peer may have on the way to us */
        uint32_t peers;    /* messages we may have on the way to it */
        uint32_t sent;     /* counts wrap; only differences mean anything */
        uint32_t returned; /* of `sent`: the peer has buffers for them again */
        uint32_t received;
        uint32_t taken;  /* of `received`: buffers posted again */
        uint32_t told;   /* of `taken`: the peer has been told */
        bool is_nudging; /* a NUDGE of ours is not echoed yet */
        bool owes_echo;
        uint64_t idle_ns;
        uint64_t silence_ns;
        uint64_t heard_ns; /* when the peer last showed life */
};

void rdma_credit_init(struct rdma_credit *credit, uint32_t own, uint64_t idle_ns,
                      uint64_t silence_ns, uint64_t now_ns);

/* The peer's number of credits, once it is known. */
void rdma_credit_raise(struct rdma_credit *credit, uint32_t peers);

bool rdma_credit_can_send(const struct rdma_credit *credit);
void rdma_credit_sent(struct rdma_credit *credit);

/* Any frame goes out: what it has to tell. */
uint32_t rdma_credit_tell(struct rdma_credit *credit);

/* The peer showed life: a frame came in, or it took part in a transfer. */
void rdma_credit_heard(struct rdma_credit *credit, uint64_t now_ns);

/* Any frame came in: what it tells. 0 or _E_INVALID. */
int rdma_credit_returned(struct rdma_credit *credit, uint32_t returned);

/* A message came in, against what we granted. 0 or _E_INVALID. */
int rdma_credit_received(struct rdma_credit *credit);

/* Its buffer is posted again. */
void rdma_credit_taken(struct rdma_credit *credit);

/* A NUDGE or an ECHO came in. 0, or _E_INVALID: the last NUDGE's ECHO has not been sent yet, or
 * no ECHO is owed to us. */
int rdma_credit_nudged(struct rdma_credit *credit);
int rdma_credit_echoed(struct rdma_credit *credit);

/* Is a NUDGE due? Sending it is rdma_credit_nudge(). */
bool rdma_credit_has_to_nudge(const struct rdma_credit *credit, uint64_t now_ns);
void rdma_credit_nudge(struct rdma_credit *credit);

bool rdma_credit_is_lost(const struct rdma_credit *credit, uint64_t now_ns);

/* When to look again at the two above, if nothing happens before. */
uint64_t rdma_credit_next_ns(const struct rdma_credit *credit);
