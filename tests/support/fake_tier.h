// SPDX-License-Identifier: Apache-2.0
/*
 * A tier in memory that passes the conformance suite and fails on demand.
 *
 * What it stores outlives the tier in a fake_store, so that a test can close, open and
 * recover. Completions come on later turns of the loop, in the order of submission, and
 * can be held back. Faults are switched by the functions below and act on what is
 * submitted after them. It can pass for one that others write to as well.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "storage/tier.h"

struct fake_store;

int fake_store_new(struct fake_store **ret_store, uint64_t capacity_bytes);
struct fake_store *fake_store_free(struct fake_store *store);

/* One tier at a time on a store. */
int fake_tier_open(struct tier **ret_tier, uv_loop_t *loop, struct fake_store *store);

/*
 * By default a write asks is_current() when it completes. With @early it does not: its
 * entry is in the catalog already when the completion comes.
 */
void fake_tier_ask_early(struct tier *tier, bool early);

/* Completions wait until released; releasing one by one is possible. */
void fake_tier_hold(struct tier *tier, bool hold);
void fake_tier_release(struct tier *tier, uint32_t n);
/* Completions that wait. */
uint32_t fake_tier_held(const struct tier *tier);

/* The next @n reads or writes end with @result (a negative errno or TIER_E_X). */
void fake_tier_fail_writes(struct tier *tier, uint32_t n, int result);
void fake_tier_fail_reads(struct tier *tier, uint32_t n, int result);

/* The next @n reads deliver only the first half of the bytes and end with -EIO. */
void fake_tier_short_reads(struct tier *tier, uint32_t n);

/* Flips a bit of what is stored at @place: its reads end with TIER_E_CORRUPT. */
void fake_tier_corrupt(struct tier *tier, struct tier_place place);

/* write() answers TIER_E_FULL, or TIER_E_PAUSED, until switched off again. */
void fake_tier_set_full(struct tier *tier, bool full);
void fake_tier_set_paused(struct tier *tier, bool paused);

/*
 * Another node has written an object full of @value, and the tier says so; or an object,
 * anybody's, has gone from @place.
 */
struct tier_place fake_tier_appear(struct tier *tier, const struct tier_object *object,
                                   uint8_t value);
void fake_tier_vanish(struct tier *tier, struct tier_place place, bool replaced,
                      uint64_t checksum_total);

/* What was told by replaced(): how often, and the last checksum. */
uint32_t fake_tier_n_replaced(const struct tier *tier);
uint64_t fake_tier_replaced_total(const struct tier *tier);

/* read() answers @result at once, until it is 0 again. */
void fake_tier_refuse_reads(struct tier *tier, int result);

/* The next @n forgets end with @result; their objects stay. */
void fake_tier_fail_forgets(struct tier *tier, uint32_t n, int result);
