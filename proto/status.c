// SPDX-License-Identifier: Apache-2.0
#include "proto/status.h"

const char *status_text(uint32_t status)
{
        static const char *const texts[] = {
#define TEXT(number, name, text) [number] = text,
                KVT_STATUS_LIST(TEXT)
#undef TEXT
        };

        return status < KVT_WIRE_STATUS_COUNT ? texts[status] : "unknown status";
}

const char *status_name(uint32_t status)
{
        static const char *const names[] = {
#define NAME(number, name, text) [number] = #name,
                KVT_STATUS_LIST(NAME)
#undef NAME
        };

        return status < KVT_WIRE_STATUS_COUNT ? names[status] : "UNKNOWN";
}
