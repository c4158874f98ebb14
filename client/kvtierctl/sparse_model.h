// SPDX-License-Identifier: Apache-2.0
/*
 * Whether a model keeps indexer keys beside its KV (sparse attention, DSA): by its config.json
 * where the layout's model is a folder that can be read, else by its name. Both go by the tables
 * of knowledge/; a model that they do not know is not judged.
 */
#pragma once

#include <jansson.h>

/* Gives each of @layouts whose model keeps them "wants_index", the reason in words. */
void sparse_model_mark(json_t *layouts, const json_t *knowledge);
