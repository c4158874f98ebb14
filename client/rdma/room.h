// SPDX-License-Identifier: Apache-2.0
/*
 * Rooms: where objects stand in the session's buffer, each in one piece. First fit over free
 * runs in order; 4 KiB is the least. A room belongs to a lease of an era (one connection's
 * session): lease numbers come again in another.
 *
 * A room that is lent to the daemon (a grant) is free again only when the grant is over.
 * The bridge's thread only.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"

#define ROOM_UNIT 4096u

enum {
        ROOM_E_FULL = 1, /* no free run is long enough now */
        ROOM_E_TOO_LARGE,
        ROOM_E_EXISTS, /* the lease has one, or its grant is not over yet */
};

struct run {
        TAILQ_ENTRY(run) link; /* while it is free */
        uint64_t offset;
        uint64_t length;
};

struct room {
        RB_ENTRY(room) link;
        uint64_t era;
        uint64_t lease;
        uint64_t bytes;
        uint64_t set;  /* of a reservation; 0: none */
        uint64_t turn; /* when its reservation went to the daemon */
        struct run *run;
        bool is_lent;
        bool is_over; /* goes when it is no longer lent */
};

RB_HEAD(room_tree, room);

struct rooms {
        struct room_tree tree;
        TAILQ_HEAD(run_list, run) free;
        uint64_t size;
};

/* 0 or -ENOMEM. */
int rooms_init(struct rooms *rooms, uint64_t size);
void rooms_deinit(struct rooms *rooms);

/* 0, ROOM_E_* or -ENOMEM. */
int room_new(struct room **ret_room, struct rooms *rooms, uint64_t era, uint64_t lease,
             uint64_t bytes);
struct room *room_find(struct rooms *rooms, uint64_t era, uint64_t lease);
void room_end(struct rooms *rooms, struct room *room);
void room_take_back(struct rooms *rooms, struct room *room); /* it was lent */

/* Those of a set that were asked for before @turn: its number may be another's by now. */
void rooms_end_set(struct rooms *rooms, uint64_t era, uint64_t set, uint64_t turn);
void rooms_end_era(struct rooms *rooms, uint64_t era);
bool rooms_have_era(struct rooms *rooms, uint64_t era);
