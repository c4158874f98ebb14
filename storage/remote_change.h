// SPDX-License-Identifier: Apache-2.0
/*
 * Changes of the remote tier's index. Private to the remote tier.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "storage/database.h"

struct remote;

/* A change of the index that somebody waits for; embedded in what waits. */
struct remote_op {
        struct database_op op;
        struct remote *remote;
        void (*then)(struct remote *remote, void *user, int result);
        void *user;
};

/*
 * Queues changes of the index; with @op (else NULL), op->then is called when they are in its
 * log. A failure of the index breaks the tier until the next start: nothing is written any
 * more.
 */
void remote_change(struct remote *remote, struct database_changes *changes, bool sync,
                   struct remote_op *op);
void remote_break(struct remote *remote, int result);
