// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that gets bring bundles into: kept from one to the next while there are reads, for
 * new memory costs a page fault every 4 KiB. Loop thread. Private to the remote tier.
 */
#pragma once

#include <stdint.h>

#define REMOTE_SPARES_MAX      8u
#define REMOTE_SPARE_BYTES_MAX (UINT64_C(64) << 20) /* of all of them */

struct remote_buffer {
        uint8_t *bytes; /* NULL: none */
        uint64_t capacity;
};

struct remote_scratch {
        struct remote_buffer spares[REMOTE_SPARES_MAX];
        uint32_t n_spares;
        uint64_t spare_bytes;
};

/* At least @length bytes; bytes is NULL when there is no memory. */
struct remote_buffer remote_scratch_take(struct remote_scratch *scratch, uint64_t length);
void remote_scratch_give(struct remote_scratch *scratch, struct remote_buffer buffer);
/* Frees what is spare. */
void remote_scratch_trim(struct remote_scratch *scratch);
