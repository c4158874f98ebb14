// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <string.h>

#include "base/rdma_credit.h"
#include "base/rdma_frame.h"

void rdma_frame_init(struct rdma_frame *frame, enum rdma_frame_kind kind, size_t length)
{
        *frame = (struct rdma_frame){
                .magic = RDMA_FRAME_MAGIC,
                .kind = (uint16_t)kind,
                .length = (uint32_t)length,
        };
}

/* The length that a kind has to have; 0: no such kind. A message may be longer. */
static size_t kind_bytes(uint16_t kind)
{
        switch (kind) {
        case RDMA_FRAME_HELLO:
                return sizeof(struct rdma_frame_hello);
        case RDMA_FRAME_CHALLENGE:
                return sizeof(struct rdma_frame_challenge);
        case RDMA_FRAME_PROOF:
        case RDMA_FRAME_WELCOME:
                return sizeof(struct rdma_frame_proof);
        case RDMA_FRAME_REFUSED:
                return sizeof(struct rdma_frame_refused);
        case RDMA_FRAME_MESSAGE:
        case RDMA_FRAME_NUDGE:
        case RDMA_FRAME_ECHO:
                return sizeof(struct rdma_frame);
        default:
                return 0;
        }
}

static int refuse(struct why *why, const char *what, uint64_t value)
{
        why_set(why, "a frame with %s %llu", what, (unsigned long long)value);
        return RDMA_FRAME_E_INVALID;
}

/* Text that ends and is followed by zeros alone, in printable ASCII. */
static bool is_text(const char *field, size_t size)
{
        size_t length = strnlen(field, size);

        for (size_t i = 0; i < length; i++)
                if (field[i] < ' ' || field[i] > '~')
                        return false;
        for (size_t i = length; i < size; i++)
                if (field[i])
                        return false;
        return length < size;
}

static int check_limits(uint32_t n_credits, uint32_t message_bytes, struct why *why)
{
        if (n_credits < RDMA_CREDIT_MIN || n_credits > RDMA_CREDIT_MAX)
                return refuse(why, "n_credits", n_credits);
        if (message_bytes < RDMA_MESSAGE_MIN || message_bytes > RDMA_MESSAGE_MAX)
                return refuse(why, "message_bytes", message_bytes);
        return 0;
}

static int check_hello(const struct rdma_frame_hello *hello, struct why *why)
{
        if (hello->reserved)
                return refuse(why, "reserved", hello->reserved);
        if (!is_text(hello->domain, sizeof(hello->domain))) {
                why_set(why, "a HELLO whose domain is no text");
                return RDMA_FRAME_E_INVALID;
        }
        return check_limits(hello->n_credits, hello->message_bytes, why);
}

static int check_challenge(const struct rdma_frame_challenge *challenge, struct why *why)
{
        if (challenge->reserved)
                return refuse(why, "reserved", challenge->reserved);
        return check_limits(challenge->n_credits, challenge->message_bytes, why);
}

static int check_refused(const struct rdma_frame_refused *refused, struct why *why)
{
        if (refused->reserved)
                return refuse(why, "reserved", refused->reserved);
        if (!is_text(refused->why, sizeof(refused->why))) {
                why_set(why, "a REFUSED whose reason is no text");
                return RDMA_FRAME_E_INVALID;
        }
        return 0;
}

int rdma_frame_check(const void *frame, size_t length, struct why *why)
{
        const struct rdma_frame *header = frame;
        size_t expected;

        if (length < sizeof(*header))
                return refuse(why, "length", length);
        if (header->magic != RDMA_FRAME_MAGIC)
                return refuse(why, "magic", header->magic);
        if (header->length != length || length > RDMA_MESSAGE_MAX)
                return refuse(why, "length", header->length);
        if (header->reserved)
                return refuse(why, "reserved", header->reserved);
        expected = kind_bytes(header->kind);
        if (!expected)
                return refuse(why, "kind", header->kind);
        if (header->kind == RDMA_FRAME_MESSAGE ? length <= expected : length != expected)
                return refuse(why, "length", length);
        switch (header->kind) {
        case RDMA_FRAME_HELLO:
                return check_hello(frame, why);
        case RDMA_FRAME_CHALLENGE:
                return check_challenge(frame, why);
        case RDMA_FRAME_REFUSED:
                return check_refused(frame, why);
        default:
                return 0;
        }
}
