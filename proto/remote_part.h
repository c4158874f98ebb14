// SPDX-License-Identifier: Apache-2.0
/*
 * What crosses an RDMA connection between processes of kvtier: whole messages (proto/wire.h and
 * those of peers), each cut into parts that fit the transport's messages.
 *
 *   part   | service u32 | left u32 | bytes |     little-endian; left: bytes of this message
 *          0             4          8            that follow in the next parts; 0: the last
 *
 * The service says what the connection is for. The side that connects chooses it with its first
 * part, and all parts of both sides repeat it: SESSION carries the messages of a session, HELLO
 * first, PEER those between daemons.
 *
 * A message has at most WIRE_MESSAGE_MAX bytes and at least one. remote_join_add() is the one
 * place that judges what came in. Pure functions, one thread an object.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/wire.h"

/* For rdma_port_options of both sides. */
#define REMOTE_FRAME_BYTES 16384u
#define REMOTE_CREDITS     16u

enum remote_service {
        REMOTE_SESSION = 1,
        REMOTE_PEER = 2,
};

struct remote_part {
        uint32_t service;
        uint32_t left;
};
_Static_assert(sizeof(struct remote_part) == 8, "remote_part");

enum {
        REMOTE_E_INVALID = 1, /* the reason is in `why`: end the connection */
};

/* A message as far as it has come. */
struct remote_join {
        uint32_t service; /* 0: no part has come yet */
        uint32_t length;  /* bytes that are here */
        uint32_t total;   /* 0: the next part begins a message */
        _Alignas(8) uint8_t bytes[WIRE_MESSAGE_MAX];
};

/*
 * Adds a part of @length bytes. 0, with *@ret_is_whole when @join holds a message of
 * @join->length bytes, until the next call; or REMOTE_E_INVALID.
 */
int remote_join_add(struct remote_join *join, const void *part, size_t length, bool *ret_is_whole,
                    struct why *why);

/*
 * Writes the part of a message of @length bytes that begins at *@offset, at most @room bytes
 * (more than a struct remote_part) with its header, and moves *@offset on. Returns its bytes.
 */
size_t remote_cut(void *ret_part, size_t room, uint32_t service, const void *message,
                  uint32_t length, uint32_t *offset);
