// SPDX-License-Identifier: Apache-2.0
/* The statuses of kvtier.h against those of the wire. */
#pragma once

#include <check.h>

TCase *statuses_case(void);
