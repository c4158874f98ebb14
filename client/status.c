// SPDX-License-Identifier: Apache-2.0
#include "proto/status.h"
#include "client/kvtier.h"

#define SAME_NUMBER(number, name, text)                                                            \
        _Static_assert((int)KVT_##name == (int)KVT_WIRE_##name, "one list of numbers");
KVT_STATUS_LIST(SAME_NUMBER)
#undef SAME_NUMBER

#define QUOTE(x)   #x
#define NUMBERS(x) QUOTE(x)

const char *kvt_status_text(enum kvt_status status)
{
        return status_text((uint32_t)status);
}

const char *kvt_status_name(enum kvt_status status)
{
        return status_name((uint32_t)status);
}

const char *kvt_version(void)
{
        return NUMBERS(KVT_VERSION_MAJOR) "." NUMBERS(KVT_VERSION_MINOR) ".0";
}
