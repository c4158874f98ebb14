// SPDX-License-Identifier: Apache-2.0
/*
 * Statuses on the wire and in the public API: one list, append only, never renumbered.
 * client/kvtier.h repeats the numbers for its users; tests/abi holds the two together.
 */
#pragma once

#include <stdint.h>

/* number, name, text for people */
#define KVT_STATUS_LIST(X)                                                                         \
        X(0, OK, "ok")                                                                             \
        X(1, ALREADY_HAVE, "the object is stored already")                                         \
        X(2, MISS, "not stored")                                                                   \
        X(3, PENDING, "not decided yet, the answer follows")                                       \
        X(4, BUSY, "no room at this moment, all of it is leased")                                  \
        X(5, TOO_LARGE, "larger than a limit that waiting does not change")                        \
        X(6, REFUSED, "a limit of the session or of the daemon is reached")                        \
        X(7, STALE, "what the request relied on has been replaced or dropped")                     \
        X(8, GONE, "the session, lease or token is of an earlier run or has ended")                \
        X(9, UNAVAILABLE, "the daemon is not reachable")                                           \
        X(10, TIMEOUT, "the deadline passed")                                                      \
        X(11, CANCELLED, "cancelled")                                                              \
        X(12, UNSUPPORTED, "the daemon does not know this kind or flag")                           \
        X(13, INVALID, "the request is malformed")                                                 \
        X(14, CORRUPT, "the stored bytes failed their checksum")                                   \
        X(15, DENIED, "not permitted")                                                             \
        X(16, IO_ERROR, "the device failed")                                                       \
        X(17, NO_MEMORY, "out of memory")                                                          \
        X(18, FORKED, "the session belongs to the parent process")                                 \
        X(19, DRAINING, "the daemon is shutting down and admits nothing new")

enum kvt_wire_status {
#define KVT_STATUS_ENUM(number, name, text) KVT_WIRE_##name = number,
        KVT_STATUS_LIST(KVT_STATUS_ENUM)
#undef KVT_STATUS_ENUM
        KVT_WIRE_STATUS_COUNT
};

/* Text of a status, "unknown status" for a number outside the list. Never NULL. */
const char *status_text(uint32_t status);

/* Name of a status ("ALREADY_HAVE"), "UNKNOWN" outside the list. Never NULL. */
const char *status_name(uint32_t status);
