// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "storage/remote_scratch.h"

#define BUFFER_BYTES_MIN (UINT64_C(256) << 10)

struct remote_buffer remote_scratch_take(struct remote_scratch *scratch, uint64_t length)
{
        struct remote_buffer buffer = {.capacity = BUFFER_BYTES_MIN};

        for (uint32_t i = 0; i < scratch->n_spares; i++) {
                buffer = scratch->spares[i];
                if (buffer.capacity < length || buffer.capacity / 4 > length)
                        continue;
                scratch->spares[i] = scratch->spares[--scratch->n_spares];
                scratch->spare_bytes -= buffer.capacity;
                return buffer;
        }
        /* Few sizes fit often; what is not touched takes no memory. */
        for (buffer.capacity = BUFFER_BYTES_MIN; buffer.capacity < length;)
                buffer.capacity *= 2;
        buffer.bytes = malloc(buffer.capacity);
        return buffer;
}

void remote_scratch_give(struct remote_scratch *scratch, struct remote_buffer buffer)
{
        if (!buffer.bytes)
                return;
        if (scratch->n_spares == REMOTE_SPARES_MAX ||
            scratch->spare_bytes + buffer.capacity > REMOTE_SPARE_BYTES_MAX) {
                free(buffer.bytes);
                return;
        }
        scratch->spares[scratch->n_spares++] = buffer;
        scratch->spare_bytes += buffer.capacity;
}

void remote_scratch_trim(struct remote_scratch *scratch)
{
        while (scratch->n_spares)
                free(scratch->spares[--scratch->n_spares].bytes);
        scratch->spare_bytes = 0;
}
