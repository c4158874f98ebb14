// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "client/rdma/room.h"

static int compare(const struct room *a, const struct room *b)
{
        if (a->era != b->era)
                return a->era < b->era ? -1 : 1;
        return a->lease < b->lease ? -1 : a->lease > b->lease;
}

/* RB_GENERATE_STATIC needs a word that libbsd defines only when it overlays libc. */
RB_GENERATE_INTERNAL(room_tree, room, link, compare, __attribute__((unused)) static)

int rooms_init(struct rooms *rooms, uint64_t size)
{
        struct run *all = calloc(1, sizeof(*all));

        if (!all)
                return err_raise(-ENOMEM);
        RB_INIT(&rooms->tree);
        TAILQ_INIT(&rooms->free);
        rooms->size = all->length = size;
        TAILQ_INSERT_HEAD(&rooms->free, all, link);
        return 0;
}

static void join(struct rooms *rooms, struct run *first, struct run *second)
{
        if (!first || !second || first->offset + first->length != second->offset)
                return;
        first->length += second->length;
        TAILQ_REMOVE(&rooms->free, second, link);
        free(second);
}

static void give_back(struct rooms *rooms, struct run *run)
{
        struct run *next;

        TAILQ_FOREACH(next, &rooms->free, link)
                if (next->offset > run->offset)
                        break;
        if (next)
                TAILQ_INSERT_BEFORE(next, run, link);
        else
                TAILQ_INSERT_TAIL(&rooms->free, run, link);
        join(rooms, run, next);
        join(rooms, TAILQ_PREV(run, run_list, link), run);
}

static void room_free(struct rooms *rooms, struct room *room)
{
        RB_REMOVE(room_tree, &rooms->tree, room);
        give_back(rooms, room->run);
        free(room);
}

void rooms_deinit(struct rooms *rooms)
{
        struct room *room;
        struct run *run;

        while ((room = RB_ROOT(&rooms->tree)))
                room_free(rooms, room);
        while ((run = TAILQ_FIRST(&rooms->free))) {
                TAILQ_REMOVE(&rooms->free, run, link);
                free(run);
        }
}

static struct run *find_run(struct rooms *rooms, uint64_t length)
{
        struct run *run;

        TAILQ_FOREACH(run, &rooms->free, link)
                if (run->length >= length)
                        return run;
        return NULL;
}

int room_new(struct room **ret_room, struct rooms *rooms, uint64_t era, uint64_t lease,
             uint64_t bytes)
{
        uint64_t length = (bytes + ROOM_UNIT - 1) / ROOM_UNIT * ROOM_UNIT;
        struct room wanted = {.era = era, .lease = lease};
        struct run *from = find_run(rooms, length);
        struct room *room;

        if (RB_FIND(room_tree, &rooms->tree, &wanted))
                return ROOM_E_EXISTS;
        if (!from)
                return length > rooms->size ? ROOM_E_TOO_LARGE : ROOM_E_FULL;
        room = calloc(1, sizeof(*room));
        if (room)
                room->run = calloc(1, sizeof(*room->run));
        if (!room || !room->run) {
                free(room);
                return err_raise(-ENOMEM);
        }
        *room->run = (struct run){.offset = from->offset, .length = length};
        from->offset += length;
        from->length -= length;
        if (!from->length) {
                TAILQ_REMOVE(&rooms->free, from, link);
                free(from);
        }
        room->era = era;
        room->lease = lease;
        room->bytes = bytes;
        RB_INSERT(room_tree, &rooms->tree, room);
        *ret_room = room;
        return 0;
}

struct room *room_find(struct rooms *rooms, uint64_t era, uint64_t lease)
{
        struct room wanted = {.era = era, .lease = lease};
        struct room *room = RB_FIND(room_tree, &rooms->tree, &wanted);

        return room && !room->is_over ? room : NULL;
}

void room_end(struct rooms *rooms, struct room *room)
{
        room->is_over = true;
        if (!room->is_lent)
                room_free(rooms, room);
}

void room_take_back(struct rooms *rooms, struct room *room)
{
        room->is_lent = false;
        if (room->is_over)
                room_free(rooms, room);
}

static struct room *first_of(struct rooms *rooms, uint64_t era)
{
        struct room wanted = {.era = era};
        struct room *room = RB_NFIND(room_tree, &rooms->tree, &wanted);

        return room && room->era == era ? room : NULL;
}

void rooms_end_set(struct rooms *rooms, uint64_t era, uint64_t set, uint64_t turn)
{
        struct room *room = first_of(rooms, era), *next;

        for (; room && room->era == era; room = next) {
                next = RB_NEXT(room_tree, &rooms->tree, room);
                if (room->set == set && room->turn < turn && !room->is_over)
                        room_end(rooms, room);
        }
}

void rooms_end_era(struct rooms *rooms, uint64_t era)
{
        struct room *room = first_of(rooms, era), *next;

        for (; room && room->era == era; room = next) {
                next = RB_NEXT(room_tree, &rooms->tree, room);
                room_end(rooms, room);
        }
}

bool rooms_have_era(struct rooms *rooms, uint64_t era)
{
        return first_of(rooms, era);
}
