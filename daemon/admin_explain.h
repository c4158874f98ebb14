// SPDX-License-Identifier: Apache-2.0
/*
 * The admin command why (admin.h): of digests, or of a recent match of a session, which
 * its library has to be asked for first (RECENT, MATCHES). Loop thread only.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "daemon/session.h"
#include "proto/wire.h"

/* The answer (NULL: out of memory); or NULL with *@ret_waits true: it is sent later. */
json_t *admin_explain(struct session *asker, uint64_t request, const json_t *arguments,
                      bool *ret_waits);

/* A library has answered. */
void admin_explain_matches(struct session *session, const struct wire_matches *matches);

/* A session is going: it may have asked, or have been asked. */
void admin_explain_session_gone(struct session *session);

/* Libraries that do not answer in time are given up. */
void admin_explain_expire(struct daemon *daemon, uint64_t now_ns);
