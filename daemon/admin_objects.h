// SPDX-License-Identifier: Apache-2.0
/* The admin answers about objects (admin.h). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "daemon/removal.h"
#include "proto/key.h"

struct daemon;
struct index_object;

/*
 * The layout that the member "layout" names by a prefix. 0: *@ret_layout is its number, or
 * 0 when the member is absent and @is_optional. Else *@ret_error says why not.
 */
int admin_find_layout(struct daemon *daemon, const json_t *arguments, bool is_optional,
                      uint16_t *ret_layout, json_t **ret_error);

/* What a hex digit stands for. */
uint8_t admin_nibble(char digit);

/* 64 hex digits. */
bool admin_parse_digest(const char *text, struct digest *ret_digest);

/* Each returns a new object, or NULL when out of memory. */
json_t *admin_ls(struct daemon *daemon, const json_t *arguments);
json_t *admin_describe_object(struct daemon *daemon, const struct index_object *object);

/*
 * What evict, or with @clear clear, is to remove: fills *@ret_request, but for who asks.
 * NULL, or an error to answer.
 */
json_t *admin_removal(struct daemon *daemon, const json_t *arguments, bool clear,
                      struct removal_request *ret_request);
