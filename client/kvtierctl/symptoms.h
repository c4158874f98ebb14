// SPDX-License-Identifier: Apache-2.0
/*
 * What the layouts tell of engines that get less from the cache than they could: each symptom
 * with its figures, why it costs, and the remedy. Pure functions of the daemon's "layouts";
 * what is not told is no finding.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

/*
 * Appends to @list, as findings_list() makes it.
 * @layouts: all of the answers to "layouts"; a layout whose model is known to keep an indexer has
 * "wants_index", which says why (client/kvtierctl/sparse_model.h).
 */
void symptoms_append(json_t *list, const json_t *layouts);

/* What is looked at, for people; NULL behind the last. */
const char *symptoms_check_name(size_t i);
