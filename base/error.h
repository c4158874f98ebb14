// SPDX-License-Identifier: Apache-2.0
/*
 * The error contract, used everywhere below the public API.
 *
 *   0             success.
 *   < 0           a negative errno: a failure nobody planned for. It is never matched
 *                 on, only passed up until somebody gives the operation up.
 *   > 0           MODULE_E_THING from the module's own header: an outcome that the
 *                 direct caller handles. It is never passed on.
 *
 * err_raise() marks the place where a failure begins; the place is kept per thread, so
 * that whoever gives up can log it with err_where(). A function either logs or returns
 * an error, never both. `ret_` arguments are untouched on failure.
 */
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>

#define err_raise(negative_errno) err_raise_at((negative_errno), __FILE__, __LINE__)

/* Remembers file and line for this thread and returns @negative_errno unchanged. */
int err_raise_at(int negative_errno, const char *file, int line);

/* "file.c:12" of the last err_raise() on this thread, "" if there was none. */
const char *err_where(void);

/*
 * Why an input was refused, in words for a person: what was wrong, where, and what
 * would be right. Filled by the functions that validate what comes from outside.
 */
struct why {
        char text[512];
};

/* Sets @why (which may be NULL) from a printf format. */
void why_set(struct why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before what @why holds; for callers that know the place. */
void why_prefix(struct why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
