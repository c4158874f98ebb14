// SPDX-License-Identifier: Apache-2.0
/*
 * Names of objects in the pool: KIND "/" NODE, or KIND "/" NODE "/" NUMBER. A node is 32
 * hexadecimal digits, a number 16, so that names sort as their numbers do. A name has one
 * spelling (lower case): whatever else lies in the pool is not ours. Pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "storage/pool.h"

#define POOL_NAME_NODE_BYTES   16u
#define POOL_NAME_NODE_DIGITS  32u
#define POOL_NAME_NUMBER_CHARS 17u /* "/" and the digits */
#define POOL_NAME_NUMBER_MAX   INT64_MAX /* so that the next one never wraps */
#define POOL_HOST_MAX          64u /* bytes of a host's name, the NUL included */

/* @kind: at most 8 of [a-z]. */
void pool_name_node(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16]);
void pool_name_number(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16],
                      uint64_t number);
/* "KIND/NODE/": what list() takes. */
void pool_name_prefix(char ret_name[POOL_NAME_MAX], const char *kind, const uint8_t node[16]);

/* Is it a whole name of that form? */
bool pool_name_parse_node(const char *name, const char *kind, uint8_t ret_node[16]);
bool pool_name_parse_number(const char *name, const char *kind, uint8_t ret_node[16],
                            uint64_t *ret_number);

/* A node alone: 32 digits and a NUL. */
void pool_name_hex(char ret_hex[POOL_NAME_NODE_DIGITS + 1], const uint8_t node[16]);
bool pool_name_parse_hex(const char *hex, uint8_t ret_node[16]);

/*
 * A host's name, for people, in a field of the pool: graphic ASCII and NULs behind it, so
 * that whatever lies in the pool no control character gets onto a terminal. What is none
 * becomes '?', what is too long is cut.
 */
void pool_host_put(uint8_t ret_host[POOL_HOST_MAX], const char *name);
bool pool_host_is_sane(const uint8_t host[POOL_HOST_MAX]);
