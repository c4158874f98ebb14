// SPDX-License-Identifier: Apache-2.0
/* An explanation in words: English for people, who read it in kvtierctl why. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/explain.h"

#define EXPLAIN_TEXT_MAX 1024u

/* What is known of why something is missing: "evicted from host memory to make room (...)". */
void explain_gap_text(const struct daemon *daemon, const struct explain_gap *gap, char *ret_text,
                      size_t size);

/* One sentence that answers "why was this not a hit". @now_ns is the wall clock. */
void explain_sentence(struct daemon *daemon, const struct explanation *explanation, uint64_t now_ns,
                      char *ret_text, size_t size);
