// SPDX-License-Identifier: Apache-2.0
/*
 * The commands of kvtierctl: JSON text in an ADMIN message, JSON text back.
 *
 * Commands (`"command"`), further members, and the members of the answer:
 *
 *   status                      daemon, tiers, objects, counters
 *   sessions                    list of sessions, quarantined ones included
 *   layouts [after]             a page of layouts: id, objects, bytes, sessions; what it means
 *                               (model, groups, rows), when that is "known"; "differences" from
 *                               the first layout of the same model; "next" begins the next page
 *   ls    after, limit, layout  a page of objects in index order; "next" begins the next page
 *   show  digest [layout]       everything known of the objects of one boundary; "boot_id" of
 *                               this run, to hold against each "writer_boot_id"
 *   pin, unpin  digest [layout] keeps a boundary and all above it from eviction, or no longer
 *   reclaim     digest [layout] "below", "prefix" or both: drops what hangs on a boundary, or it
 *                               and what is above it: {"objects", "bytes", "kept"}
 *   evict layout [tier]         drops what is not leased from one tier ("host", "nvme"); the
 *                               answer comes when all of it has been looked at: {"objects",
 *                               "bytes", "kept"}
 *   evict digest [layout] [group] [shard] [tier]
 *                               the same for one boundary, or only its objects of one group
 *                               or shard; without "layout" in every layout
 *   clear                       as evict, from every tier
 *   kick  session               closes a session; its leases go into quarantine
 *   why  layout, digests        why a prompt is not a hit: its boundaries' digests, one behind
 *        [first, prompt_tokens, the other; "runs" of boundaries that are alike, "digest" that of
 *        max_tokens]            the first, with the "gaps" of each and their causes, and "why"
 *                               in one sentence
 *   why  session [nth]          the same of a recent match of a session, and "match"
 *   pool  [older_than]          the remote pool: this node's part of it, its breaker, and the
 *                               "nodes" that share it, as each says of itself; dead is who has
 *                               not for older_than seconds
 *   pool gc  [node, older_than] removes what dead nodes have left there: one that is named (its
 *                               first digits, or its host), else all; an answer for each, with
 *                               an "outcome", and one with "finished"
 *   verify                      re-reads every stored object; answers come one after another
 *
 * Digests and layout ids are hex; a layout may be a prefix that names one. Every answer has
 * "ok"; with false, "error" says why. verify answers {"done", "total", "bytes", "corrupt",
 * "failed", "finished"} until finished is true. A command may have several parts (MORE).
 * Loop thread only.
 */
#pragma once

#include <jansson.h>

#include "daemon/session.h"

/*
 * Answers with a document, which it takes over; NULL stands for out of memory. @more:
 * further documents follow. Each ends with a newline.
 */
void admin_reply(struct session *session, uint64_t request, json_t *answer, bool more);

void admin_command(struct session *session, const struct wire_header *header);

/* The session is gone: a verification that it started ends. */
void admin_hang_up(struct session *session);
