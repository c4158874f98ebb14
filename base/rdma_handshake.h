// SPDX-License-Identifier: Apache-2.0
/*
 * Who speaks: a challenge both ways with a shared secret, and the versions. rdma_frame.h has
 * the frames and their order. The client proves first: whoever does not know the secret gets
 * nothing from a server that could be tried against guesses. An unknown domain is treated as
 * one whose secret nobody knows, so that names cannot be found out by trying.
 *
 * It proves who opened the connection. What follows on it is neither signed nor encrypted:
 * that is the fabric's job.
 *
 * No I/O; the caller sends what step() makes. One thread an object.
 */
#pragma once

#include <stdbool.h>

#include "base/rdma.h"
#include "base/rdma_frame.h"

enum rdma_handshake_state {
        RDMA_HANDSHAKE_STARTING, /* client */
        RDMA_HANDSHAKE_AWAITING_HELLO,
        RDMA_HANDSHAKE_AWAITING_CHALLENGE,
        RDMA_HANDSHAKE_AWAITING_PROOF,
        RDMA_HANDSHAKE_AWAITING_WELCOME,
        RDMA_HANDSHAKE_DONE,
        RDMA_HANDSHAKE_FAILED,
};

/* What a side tells of itself. */
struct rdma_handshake_self {
        struct rdma_identity identity;
        uint32_t n_credits;
        uint32_t message_bytes;
        int (*find_secret)(void *user, const char *domain, struct rdma_secret *ret_secret);
        void *user;
};

struct rdma_handshake {
        enum rdma_handshake_state state;
        struct rdma_handshake_self self;
        struct rdma_frame_hello hello;
        struct rdma_frame_challenge challenge;
        struct rdma_secret secret;
        enum rdma_end end; /* once it has failed */
        struct why why;
        uint8_t peer_id[RDMA_ID_BYTES]; /* what follows: once it is done */
        uint32_t peer_credits;
        uint32_t peer_message_bytes;
        uint16_t minor; /* the lower of both */
};

/* The answer to send, if length is not 0; it fits RDMA_MESSAGE_MIN. */
struct rdma_handshake_answer {
        _Alignas(8) uint8_t bytes[sizeof(struct rdma_frame_hello)];
        size_t length;
};

/* 0, or RDMA_E_DENIED without a secret for @domain, or negative. The answer is HELLO. */
int rdma_handshake_start(struct rdma_handshake *handshake, const struct rdma_handshake_self *self,
                         const char *domain, const uint8_t expected_id[RDMA_ID_BYTES],
                         struct rdma_handshake_answer *ret_answer, struct why *why);

/* The side that was called. */
void rdma_handshake_await(struct rdma_handshake *handshake, const struct rdma_handshake_self *self);

/*
 * Takes a frame that rdma_frame_check() has passed. The state tells whether it goes on; after
 * FAILED the answer, if there is one, tells the peer why.
 */
void rdma_handshake_step(struct rdma_handshake *handshake, const void *frame,
                         struct rdma_handshake_answer *ret_answer);

/* Forgets the secret. */
void rdma_handshake_wipe(struct rdma_handshake *handshake);
