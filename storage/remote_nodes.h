// SPDX-License-Identifier: Apache-2.0
/*
 * The nodes that share a pool, as each says of itself ("node/NODE", journal.h): a page of
 * names at a time, their objects a few at once. Then those of whom only journals or bundles
 * are left: one name of each is looked for, the rest is stepped over. For people and for gc,
 * not for decisions of the tier. Loop thread; nothing blocks.
 */
#pragma once

#include <stdint.h>

#include "storage/journal.h"
#include "storage/pool.h"

struct remote_nodes;

struct remote_nodes_options {
        struct pool *pool;    /* outlives the walk */
        uint32_t deadline_ms; /* of each request; 0: 10 s */
        /*
         * @result 0: @node is what it says. Else only the id of @node is set: -ENOENT when
         * it has no object of its own, JOURNAL_E_X, or the negative errno of reading it.
         */
        void (*on_node)(void *user, const struct journal_node *node, int result);
        /* The last thing of a walk: 0, the negative errno of a listing, or -ECANCELED. */
        void (*on_end)(void *user, int result);
        void *user;
};

/* 0 or a negative errno: then on_end is not called. */
int remote_nodes_start(struct remote_nodes **ret_nodes, const struct remote_nodes_options *options);

/* Ends, with -ECANCELED, when the requests in flight have. */
void remote_nodes_cancel(struct remote_nodes *nodes);
