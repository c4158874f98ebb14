// SPDX-License-Identifier: Apache-2.0
/*
 * FIND: what the presence table says of boundaries; and, of an engine whose ranks span nodes, what
 * all its nodes have between them (daemon/span_join.h).
 *
 * For such an engine each peer is asked, in one message for all boundaries of a part, which of its
 * shards it has attached and which of their objects it can load. The answer is due when each shard
 * has an answer, when no peer is left that could give one, or at the deadline, whatever comes
 * first; what a shard without an answer leaves is a miss of everything. Nothing is kept of it: a
 * link that ends while others are waited for takes its answer with it, and one that ends later
 * makes the daemon tell the sessions to FORGET what they were told.
 *
 * Parts of one request are answered in order. What a session has asked for and was not told is
 * bounded: beyond, nothing is found. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/session.h"
#include "proto/peer_message.h"

struct finding;
struct finding_ask;
struct peer;

TAILQ_HEAD(finding_list, finding);
LIST_HEAD(finding_asks, finding_ask);

void finding_request(struct session *session, const struct wire_batch *batch);

/* Ends the wait: nothing is found. */
void finding_cancel(struct session *session, uint64_t target);

/* The session ends: nothing is found for it any more. */
void findings_hang_up(struct session *session);

/* Answers what is late. */
void findings_expire(struct daemon *daemon, uint64_t now_ns);

/* What the connection to a peer tells. Returns NULL, or which rule it has broken. */
const char *findings_take(struct peer *peer, const struct peer_found *found);
void findings_opened(struct peer *peer);
void findings_closed(struct peer *peer, bool was_open);

/* The answer to a peer's FIND, in @buffer of WIRE_MESSAGE_MAX bytes, 8-byte aligned. Its length. */
uint32_t finding_answer(struct daemon *daemon, const struct peer_find *find, void *buffer);
