// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static _Thread_local char where[128];

int err_raise_at(int negative_errno, const char *file, int line)
{
        const char *name = strrchr(file, '/');

        snprintf(where, sizeof(where), "%s:%d", name ? name + 1 : file, line);
        return negative_errno;
}

const char *err_where(void)
{
        return where;
}

void why_set(struct why *why, const char *format, ...)
{
        va_list arguments;

        if (!why)
                return;
        va_start(arguments, format);
        vsnprintf(why->text, sizeof(why->text), format, arguments);
        va_end(arguments);
}

void why_prefix(struct why *why, const char *format, ...)
{
        char rest[sizeof(why->text)];
        va_list arguments;
        int used;

        if (!why)
                return;
        memcpy(rest, why->text, sizeof(rest));
        va_start(arguments, format);
        used = vsnprintf(why->text, sizeof(why->text), format, arguments);
        va_end(arguments);
        if (used >= 0 && (size_t)used < sizeof(why->text))
                snprintf(why->text + used, sizeof(why->text) - (size_t)used, ": %s", rest);
}
