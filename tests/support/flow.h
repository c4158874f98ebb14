// SPDX-License-Identifier: Apache-2.0
/* How the executables of tests/flow run: one suite, each test in a process of its own. */
#pragma once

#include <check.h>

/*
 * Runs @tests, a list that ends with NULL; each may take @seconds. Returns what main() has
 * to return.
 */
int flow_run(const char *name, const TTest *const *tests, unsigned seconds);
