// SPDX-License-Identifier: Apache-2.0
/* The admin answers about objects and layouts (admin.h). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "daemon/removal.h"

struct daemon;

/* Each returns a new object, or NULL when out of memory. */
json_t *admin_layouts(struct daemon *daemon, const json_t *arguments);
json_t *admin_ls(struct daemon *daemon, const json_t *arguments);
json_t *admin_show(struct daemon *daemon, const json_t *arguments);

/*
 * What evict, or with @clear clear, is to remove: fills *@ret_request, but for who asks.
 * NULL, or an error to answer.
 */
json_t *admin_removal(struct daemon *daemon, const json_t *arguments, bool clear,
                      struct removal_request *ret_request);
