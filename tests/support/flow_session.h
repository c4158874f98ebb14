// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions of libkvtier for flow tests: the layout of wire_client.h, objects named by
 * numbers, calls that wait. Functions return statuses and fail the test only on what can
 * never be right, such as an object with somebody else's bytes.
 */
#pragma once

#include <stdint.h>

#include "client/kvtier.h"

/* Deadline of each step. */
#define FLOW_TIMEOUT_NS UINT64_C(60000000000)

/* Opens a session that is attached. */
struct kvt_session *flow_open(const char *socket_path);
/* As flow_open(), also while the daemon is away: then it goes on trying. */
struct kvt_session *flow_open_early(const char *socket_path);
/* Waits until the daemon answers (again). */
void flow_wait_attached(struct kvt_session *session);

/* Stores a state object with the content of @generation. @flags: KVT_REPLACE. */
enum kvt_status flow_put(struct kvt_session *session, uint64_t number, uint64_t generation,
                         uint64_t bytes, uint32_t flags);

/*
 * Loads it. KVT_OK: it holds the content of some generation from @oldest to @newest, which
 * goes to @ret_generation (may be NULL); any other content fails the test.
 */
enum kvt_status flow_get(struct kvt_session *session, uint64_t number, uint64_t oldest,
                         uint64_t newest, uint64_t *ret_generation);

/* Does the presence table show it? */
int flow_is_present(struct kvt_session *session, uint64_t number);
