// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl show: everything known of the objects of one boundary. Who wrote an object and
 * when is kept with its bytes: of one that is only on NVMe the first piece is read, and
 * verified, before the answer goes out. Loop thread only.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "daemon/session.h"

/* Answers now or later. */
void admin_show(struct session *session, uint64_t request, const json_t *arguments);
