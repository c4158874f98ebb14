// SPDX-License-Identifier: Apache-2.0
/*
 * What crosses a connection by SEND: frames, little-endian, fixed width, `reserved` zero and
 * checked, one frame a message of the queue pair. proto/README.md draws them.
 *
 *   client  HELLO      protocol, who I am, whom I expect, domain, a nonce, what I can take
 *   server  CHALLENGE  protocol, who I am, a nonce, what I can take
 *   client  PROOF      HMAC-SHA-256(secret, RDMA_LABEL_CLIENT | HELLO | CHALLENGE)
 *   server  WELCOME    HMAC-SHA-256(secret, RDMA_LABEL_SERVER | HELLO | CHALLENGE)
 *   server  REFUSED    instead of CHALLENGE or WELCOME: why
 *   both    MESSAGE    bytes of the owner; costs a credit, as those above do
 *   both    NUDGE      answered at once by ECHO; neither costs a credit (rdma_credit.h)
 *
 * The secret names no side, the labels do: no proof can be sent back as the answer to it.
 * rdma_frame_check() is the one place that judges what came in. Pure functions.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define RDMA_FRAME_MAGIC  0x3146524bu /* "KRF1" */
#define RDMA_DOMAIN_BYTES 64u         /* with the zero that ends it */
#define RDMA_ID_BYTES     16u
#define RDMA_NONCE_BYTES  32u
#define RDMA_MAC_BYTES    32u
#define RDMA_WHY_BYTES    128u
#define RDMA_MESSAGE_MIN  512u /* every side takes frames of this length */
#define RDMA_MESSAGE_MAX  65536u

enum rdma_frame_kind {
        RDMA_FRAME_HELLO = 1,
        RDMA_FRAME_CHALLENGE,
        RDMA_FRAME_PROOF,
        RDMA_FRAME_WELCOME,
        RDMA_FRAME_REFUSED,
        RDMA_FRAME_MESSAGE,
        RDMA_FRAME_NUDGE,
        RDMA_FRAME_ECHO,
};

struct rdma_frame {
        uint32_t magic;
        uint16_t kind;
        uint16_t reserved;
        uint32_t length;   /* of the whole frame */
        uint32_t returned; /* how many messages the sender has given buffers back for */
};
_Static_assert(sizeof(struct rdma_frame) == 16, "rdma_frame");
_Static_assert(offsetof(struct rdma_frame, length) == 8, "rdma_frame");

struct rdma_frame_hello {
        struct rdma_frame frame;
        uint32_t protocol; /* of the owner, as its version is */
        uint16_t major;
        uint16_t minor;
        uint8_t id[RDMA_ID_BYTES];          /* of this run of the client */
        uint8_t expected_id[RDMA_ID_BYTES]; /* the run of the server that is meant; zero: any */
        uint8_t nonce[RDMA_NONCE_BYTES];
        uint32_t n_credits;
        uint32_t message_bytes; /* the longest frame that the client takes */
        uint64_t reserved;
        char domain[RDMA_DOMAIN_BYTES]; /* zero-padded */
};
_Static_assert(sizeof(struct rdma_frame_hello) == 168, "rdma_frame_hello");
_Static_assert(offsetof(struct rdma_frame_hello, nonce) == 56, "rdma_frame_hello");
_Static_assert(offsetof(struct rdma_frame_hello, domain) == 104, "rdma_frame_hello");

struct rdma_frame_challenge {
        struct rdma_frame frame;
        uint32_t protocol;
        uint16_t major;
        uint16_t minor;
        uint8_t id[RDMA_ID_BYTES]; /* of this run of the server */
        uint8_t nonce[RDMA_NONCE_BYTES];
        uint32_t n_credits;
        uint32_t message_bytes;
        uint64_t reserved;
};
_Static_assert(sizeof(struct rdma_frame_challenge) == 88, "rdma_frame_challenge");
_Static_assert(offsetof(struct rdma_frame_challenge, nonce) == 40, "rdma_frame_challenge");

/* PROOF and WELCOME */
struct rdma_frame_proof {
        struct rdma_frame frame;
        uint8_t mac[RDMA_MAC_BYTES];
};
_Static_assert(sizeof(struct rdma_frame_proof) == 48, "rdma_frame_proof");

struct rdma_frame_refused {
        struct rdma_frame frame;
        uint32_t end; /* enum rdma_end */
        uint32_t reserved;
        char why[RDMA_WHY_BYTES]; /* zero-padded */
};
_Static_assert(sizeof(struct rdma_frame_refused) == 152, "rdma_frame_refused");

enum {
        RDMA_FRAME_E_INVALID = 1, /* the reason is in `why`: end the connection */
};

void rdma_frame_init(struct rdma_frame *frame, enum rdma_frame_kind kind, size_t length);

/*
 * Checks a frame of @length received bytes (8-byte aligned). After 0 it may be read through
 * the struct of its kind; whether that kind may come now is the caller's question.
 */
int rdma_frame_check(const void *frame, size_t length, struct why *why);
