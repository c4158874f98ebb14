// SPDX-License-Identifier: Apache-2.0
/*
 * ATTACH: what the engine's bytes mean, from one session that knows it all or from several
 * that know it between them (daemon/layout_assembly.h).
 *
 * A session that attached with rows missing is ATTACHED without a layout (session->layout
 * is 0, description is NULL) until the rows are in; then it is sent LAYOUT.
 * Loop thread only.
 */
#pragma once

#include "daemon/session.h"

/* The last engine that was turned away for its layout, for kvtierctl doctor. */
struct attach_refusal {
        uint64_t at_ns; /* 0: none was */
        char program[64];
        char why[WIRE_WHY_MAX];
};

void attach_request(struct session *session, const struct wire_attach *attach);

/* The session hangs up: what only it knew of an unfinished layout is forgotten. */
void attach_end(struct session *session);
