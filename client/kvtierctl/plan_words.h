// SPDX-License-Identifier: Apache-2.0
/* A command line taken apart as a shell would, without running anything. */
#pragma once

#include <jansson.h>

#include "base/error.h"

/*
 * The words of @command: quotes and backslashes are followed, comments left out, variables stay
 * as they are; what ends a command (";", "|", "&" and their doubles) is null. 0, or -EINVAL with
 * @why when a quote is not closed.
 */
int plan_words_split(const char *command, json_t **ret_words, struct why *why);
