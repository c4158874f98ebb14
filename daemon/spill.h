// SPDX-License-Identifier: Apache-2.0
/*
 * Spills: what is worth the trip to the pool, lies on NVMe alone and is about to be evicted
 * there comes up once more, goes to the pool and leaves host memory again. Most objects never
 * need it: they went to the pool from host memory. These could not, because the pool was out
 * of reach then, or were pinned, or found worth it, only later.
 *
 * A few at a time, behind everything else, and only while the pool takes writes. What somebody
 * uses meanwhile stays in host memory; what could not be written leaves it, too, and is not
 * tried again before more has come in. Loop thread only.
 */
#pragma once

struct cache;
struct host_copy;

/* Starts those that are due. Cheap when there are none. */
void spills_pump(struct cache *cache);

/* A write of @copy to the pool has ended, one way or the other; nothing if it is no spill. */
void spill_end(struct cache *cache, struct host_copy *copy);
