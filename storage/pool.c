// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "storage/pool.h"

#define DIGITS  "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyz"

bool pool_name_is_valid(const char *name)
{
        size_t length = strnlen(name, POOL_NAME_MAX);

        return length > 0 && length < POOL_NAME_MAX && name[0] != '/' &&
               strspn(name, LETTERS DIGITS "./-") == length;
}

bool pool_prefix_is_valid(const char *prefix)
{
        size_t length = strnlen(prefix, POOL_NAME_MAX + 1);

        return length <= POOL_NAME_MAX && prefix[0] != '/' &&
               strspn(prefix, LETTERS DIGITS "ABCDEFGHIJKLMNOPQRSTUVWXYZ._/-") == length;
}
