// SPDX-License-Identifier: Apache-2.0
/*
 * One record of a journal segment, as bytes: what journal.c puts one after another. Pure
 * functions, any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/journal.h"

/* Writes journal_record_bytes(). */
void journal_record_encode(void *bytes, const struct journal_record *record);

/*
 * The record at @at, of which at most @length bytes are there; *@ret_bytes: its own. Of a
 * layout the id is taken as it is: to compare it with the encoding is the caller's. 0,
 * JOURNAL_E_DAMAGED or JOURNAL_E_NEWER.
 */
int journal_record_decode(struct journal_record *ret_record, const uint8_t *at, size_t length,
                          size_t *ret_bytes, struct why *why);
