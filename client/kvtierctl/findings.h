// SPDX-License-Identifier: Apache-2.0
/*
 * What is configured badly, each finding with its remedy. Pure functions of the daemon's
 * status and of what /proc says about its process; what is not known is no finding.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct findings_process {
        uint64_t memlock_bytes; /* UINT64_MAX: unlimited or unknown */
        bool is_root;           /* its locked memory has no limit */
};

/*
 * An array of {"check", "finding", "remedy"}, the caller's; NULL when out of memory.
 * @status: the answer to "status".
 */
json_t *findings_list(const json_t *status, const struct findings_process *process);

/* Appends one to @list; a text of more than 1023 bytes is cut. */
void findings_add(json_t *list, const char *check, const char *remedy, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* What the checks look at, for people; NULL behind the last. */
const char *findings_check_name(size_t i);
