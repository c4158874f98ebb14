// SPDX-License-Identifier: Apache-2.0
/* A prompt in a file: token ids or digests, as a JSON array or as text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "client/kvtier.h"

struct prompt {
        uint32_t *tokens;
        size_t n_tokens;
        struct kvt_digest *digests;
        size_t n_digests;
};

/*
 * Reads @path ("-": standard input): with @are_tokens token ids, else digests of 64 hex
 * digits; a JSON array, or words with spaces, commas or lines between. 0, or a negative
 * errno with @why. prompt_deinit() in any case.
 */
int prompt_read(struct prompt *prompt, const char *path, bool are_tokens, struct why *why);
void prompt_deinit(struct prompt *prompt);

/* The first @n digests in hex, one behind the other; to be freed. NULL: out of memory. */
char *prompt_hex(const struct prompt *prompt, size_t n);
