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
 *   show  digest [layout]       everything known of the objects of one boundary
 *   evict layout [tier]         drops what is not leased from one tier ("host", "nvme"); the
 *                               answer comes when all of it has been looked at: {"objects",
 *                               "bytes", "kept"}
 *   evict digest [layout] [group] [shard] [tier]
 *                               the same for one boundary, or only its objects of one group
 *                               or shard; without "layout" in every layout
 *   clear                       as evict, from every tier
 *   kick  session               closes a session; its leases go into quarantine
 *   verify                      re-reads every stored object; answers come one after another
 *
 * Digests and layout ids are hex; a layout may be a prefix that names one. Every answer has
 * "ok"; with false, "error" says why. verify answers {"done", "total", "bytes", "corrupt",
 * "failed", "finished"} until finished is true. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

void admin_command(struct session *session, const struct wire_header *header);

/* The session is gone: a verification that it started ends. */
void admin_hang_up(struct session *session);
