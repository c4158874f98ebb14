// SPDX-License-Identifier: Apache-2.0
/*
 * Any frames, one after the other, against a side of the handshake and the credits: nothing is
 * read outside a frame, what is refused is refused with a reason, nobody gets in without the
 * secret, and what a peer is told is itself a frame that passes. An input is
 *
 *   u8 side (odd: the one that was called) | n x ( u16 length | that many bytes )
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_credit.h"
#include "base/rdma_handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static int find_secret(void *user, const char *domain, struct rdma_secret *ret_secret)
{
        (void)user;
        memset(ret_secret, 7, sizeof(*ret_secret));
        ret_secret->length = RDMA_SECRET_MAX;
        return domain[0] == 'd' ? 0 : 1;
}

static const struct rdma_handshake_self self = {
        .identity = {.protocol = 1, .major = 1},
        .n_credits = 8,
        .message_bytes = 4096,
        .find_secret = find_secret,
};

static void check_answer(const struct rdma_handshake_answer *answer)
{
        struct why why = {""};

        REQUIRE(!answer->length || !rdma_frame_check(answer->bytes, answer->length, &why));
}

static void take_credit(struct rdma_credit *credit, const struct rdma_frame *frame)
{
        if (rdma_credit_returned(credit, frame->returned))
                return;
        if (frame->kind == RDMA_FRAME_NUDGE)
                (void)rdma_credit_nudged(credit);
        else if (frame->kind == RDMA_FRAME_ECHO)
                (void)rdma_credit_echoed(credit);
        else if (!rdma_credit_received(credit))
                rdma_credit_taken(credit);
        REQUIRE(credit->sent - credit->returned <= credit->sent);
        REQUIRE(credit->received - credit->told <= credit->own);
}

static void take(struct rdma_handshake *handshake, struct rdma_credit *credit, const uint8_t *bytes,
                 size_t length)
{
        uint8_t *frame = malloc(length ? length : 1);
        struct rdma_handshake_answer answer;
        struct why why = {""};

        REQUIRE(frame);
        if (length)
                memcpy(frame, bytes, length);
        if (rdma_frame_check(frame, length, &why)) {
                REQUIRE(*why.text);
        } else {
                take_credit(credit, (const void *)frame);
                rdma_handshake_step(handshake, frame, &answer);
                check_answer(&answer);
                REQUIRE(handshake->state != RDMA_HANDSHAKE_DONE);
                REQUIRE(handshake->state != RDMA_HANDSHAKE_FAILED || *handshake->why.text);
        }
        free(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const uint8_t any[RDMA_ID_BYTES];
        struct rdma_handshake handshake;
        struct rdma_handshake_answer answer;
        struct rdma_credit credit;

        if (!size)
                return 0;
        rdma_credit_init(&credit, 8, 1, 2, 0);
        if (data[0] & 1)
                rdma_handshake_await(&handshake, &self);
        else
                REQUIRE(!rdma_handshake_start(&handshake, &self, "d", any, &answer, NULL));
        data++, size--;
        while (size >= 2) {
                size_t length = data[0] | (size_t)data[1] << 8;

                data += 2, size -= 2;
                if (length > size)
                        length = size;
                take(&handshake, &credit, data, length);
                data += length, size -= length;
        }
        return 0;
}
