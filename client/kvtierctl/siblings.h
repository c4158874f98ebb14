// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of the same model and engine that share nothing because of a setting: draft tokens, a
 * dtype, or the engine's version. An upgrade, or a changed flag, has lost the cache that way.
 */
#pragma once

#include <jansson.h>

/* Appends what is found to @list; @layouts as of symptoms_append(). */
void siblings_append(json_t *list, const json_t *layouts);
