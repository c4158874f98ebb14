// SPDX-License-Identifier: Apache-2.0
/* The admin answers about objects and layouts (admin.h). */
#pragma once

#include <jansson.h>

struct daemon;

/* Each returns a new object, or NULL when out of memory. */
json_t *admin_layouts(struct daemon *daemon, const json_t *arguments);
json_t *admin_ls(struct daemon *daemon, const json_t *arguments);
json_t *admin_show(struct daemon *daemon, const json_t *arguments);
json_t *admin_evict(struct daemon *daemon, const json_t *arguments);
json_t *admin_clear(struct daemon *daemon, const json_t *arguments);
