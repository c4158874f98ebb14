// SPDX-License-Identifier: Apache-2.0
/*
 * Drives a tier from a test: makes objects with known bytes, submits, runs the loop until
 * the callback has come, and compares. Failures of the driver itself are Check failures.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "storage/tier.h"

#define DRIVER_ARENA_ID 7u

struct driver {
        uv_loop_t loop;
        struct tier *tier;
        uint8_t *arena; /* registered with the tier */
        uint64_t arena_bytes;
        uint32_t arena_id;           /* DRIVER_ARENA_ID, or TIER_MEMORY_UNREGISTERED */
        struct encoding encoding;    /* of writes; unless zero, bytes of objects can shrink */
        struct driver_object *found; /* by recover() */
        uint32_t n_found;
        bool is_recovered;
};

/* What a test knows about an object. */
struct driver_object {
        struct tier_object object;
        struct tier_place place;
        uint64_t seed;       /* of its bytes */
        uint64_t covers_sum; /* recovery: driver_covers_sum() of what was reported */
};

/* A request of its own, to have several in flight; its memory is the arena at @at. */
struct driver_request {
        struct driver *driver;
        struct driver_object *object;
        uint64_t at;
        uint32_t n_segments;
        struct tier_segment segments[4];
        struct checksum_list checksums;
        struct tier_write write;
        struct tier_read read;
        struct tier_forget forget;
        bool is_done;
        int result;
};

void driver_init(struct driver *driver, uint64_t arena_bytes);
void driver_deinit(struct driver *driver);

/* Gives the driver an opened tier and registers the arena with it. */
void driver_attach(struct driver *driver, struct tier *tier);
/* Closes the tier and runs the loop to its end. */
void driver_close(struct driver *driver);

/* Object number @n of @raw_bytes, generation 1, bytes of their own. */
struct driver_object driver_object(uint32_t n, uint64_t raw_bytes);

/* Submit; the result of submission. driver_wait() gives that of the completion. */
int driver_submit_write(struct driver *driver, struct driver_request *request,
                        struct driver_object *object, uint64_t at);
int driver_submit_read(struct driver *driver, struct driver_request *request,
                       struct driver_object *object, uint64_t at);
/* Of @pieces alone, which come to lie at @at one after another. */
int driver_submit_read_pieces(struct driver *driver, struct driver_request *request,
                              struct driver_object *object, const struct piece_set *pieces,
                              uint64_t at);
void driver_submit_forget(struct driver *driver, struct driver_request *request,
                          struct driver_object *object, bool sync);
int driver_wait(struct driver_request *request);

/* Does the request's memory hold the object's bytes, or those of the pieces that were read? */
bool driver_holds(const struct driver_request *request);

/* Submit and wait. A read that ends with 0 has been compared. */
int driver_write(struct driver *driver, struct driver_object *object);
int driver_read(struct driver *driver, struct driver_object *object);
int driver_read_pieces(struct driver *driver, struct driver_object *object,
                       const struct piece_set *pieces);
int driver_forget(struct driver *driver, struct driver_object *object, bool sync);
int driver_sync(struct driver *driver);

/* A number that differs when the list of covers differs. */
uint64_t driver_covers_sum(const struct tier_object *object);

/* Recovers into driver->found; the number of objects. Covers are summed, not kept. */
uint32_t driver_recover(struct driver *driver);
/* What recovery found under @object's key and generation, or NULL. */
struct driver_object *driver_find(struct driver *driver, const struct driver_object *object);

struct tier_usage driver_usage(struct driver *driver);
