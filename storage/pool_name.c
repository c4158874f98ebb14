// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "storage/pool_name.h"

void pool_name_hex(char ret_hex[POOL_NAME_NODE_DIGITS + 1], const uint8_t node[16])
{
        for (unsigned i = 0; i < POOL_NAME_NODE_BYTES; i++)
                snprintf(ret_hex + (size_t)2 * i, 3, "%02x", node[i]);
}

void pool_name_node(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16])
{
        char hex[POOL_NAME_NODE_DIGITS + 1];

        pool_name_hex(hex, node);
        snprintf(ret_name, POOL_NAME_MAX, "%.8s/%s", kind, hex);
}

void pool_name_prefix(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16])
{
        char hex[POOL_NAME_NODE_DIGITS + 1];

        pool_name_hex(hex, node);
        snprintf(ret_name, POOL_NAME_MAX, "%.8s/%s/", kind, hex);
}

void pool_name_number(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16],
                      uint64_t number)
{
        char hex[POOL_NAME_NODE_DIGITS + 1];

        pool_name_hex(hex, node);
        snprintf(ret_name, POOL_NAME_MAX, "%.8s/%s/%016" PRIx64, kind, hex, number);
}

/* -1: not one of the digits that we write. */
static int digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_bytes(const char *digits, uint8_t *ret_bytes, unsigned n_bytes)
{
        for (unsigned i = 0; i < n_bytes; i++) {
                int high = digit(digits[2 * i]);
                int low = high < 0 ? -1 : digit(digits[2 * i + 1]);

                if (low < 0)
                        return false;
                ret_bytes[i] = (uint8_t)(high << 4 | low);
        }
        return true;
}

/* Where the node of @name begins, NULL when it is of another kind. */
static const char *after_kind(const char *name, const char *kind)
{
        size_t length = strlen(kind);

        return !strncmp(name, kind, length) && name[length] == '/' ? name + length + 1 : NULL;
}

bool pool_name_parse_hex(const char *hex, uint8_t ret_node[16])
{
        uint8_t node[POOL_NAME_NODE_BYTES];

        if (strnlen(hex, POOL_NAME_NODE_DIGITS + 1) != POOL_NAME_NODE_DIGITS ||
            !parse_bytes(hex, node, sizeof(node)))
                return false;
        memcpy(ret_node, node, sizeof(node));
        return true;
}

bool pool_name_parse_node(const char *name, const char *kind, uint8_t ret_node[16])
{
        const char *hex = after_kind(name, kind);

        return hex && pool_name_parse_hex(hex, ret_node);
}

bool pool_name_parse_number(const char *name, const char *kind, uint8_t ret_node[16],
                            uint64_t *ret_number)
{
        const char *hex = after_kind(name, kind), *number;
        uint8_t node[POOL_NAME_NODE_BYTES], bytes[8];
        uint64_t value = 0;

        if (!hex || !parse_bytes(hex, node, sizeof(node)))
                return false;
        number = hex + POOL_NAME_NODE_DIGITS;
        if (strnlen(number, POOL_NAME_NUMBER_CHARS + 1) != POOL_NAME_NUMBER_CHARS ||
            number[0] != '/' || !parse_bytes(number + 1, bytes, sizeof(bytes)))
                return false;
        for (unsigned i = 0; i < sizeof(bytes); i++)
                value = value << 8 | bytes[i];
        if (value > POOL_NAME_NUMBER_MAX)
                return false;
        memcpy(ret_node, node, sizeof(node));
        *ret_number = value;
        return true;
}

static bool is_graphic(uint8_t byte)
{
        return byte > ' ' && byte < 0x7f;
}

void pool_host_put(uint8_t ret_host[POOL_HOST_MAX], const char *name)
{
        memset(ret_host, 0, POOL_HOST_MAX);
        for (size_t i = 0; i < POOL_HOST_MAX - 1 && name[i]; i++)
                ret_host[i] = is_graphic((uint8_t)name[i]) ? (uint8_t)name[i] : '?';
}

bool pool_host_is_sane(const uint8_t host[POOL_HOST_MAX])
{
        size_t n = strnlen((const char *)host, POOL_HOST_MAX);

        for (size_t i = 0; i < POOL_HOST_MAX; i++) {
                if (i < n ? !is_graphic(host[i]) : host[i])
                        return false;
        }
        return n < POOL_HOST_MAX;
}
