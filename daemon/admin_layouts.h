// SPDX-License-Identifier: Apache-2.0
/* The admin answers about layouts: what they mean, and how they differ (admin.h). */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct daemon;

/* Each returns a new object or array, or NULL when out of memory. */
json_t *admin_layouts(struct daemon *daemon, const json_t *arguments);

/* How much is stored of one, and what it is called: without its rows and differences. */
json_t *admin_layout_brief(struct daemon *daemon, uint16_t number);

/* [{"field", "this", "other"}]: what differs between two layouts, as far as both are known. */
json_t *admin_layout_differences(struct daemon *daemon, uint16_t layout, uint16_t other);
