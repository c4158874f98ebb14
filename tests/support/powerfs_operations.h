// SPDX-License-Identifier: Apache-2.0
/* What the kernel asks of a powerfs. */
#pragma once

#include "tests/support/powerfs_control.h"

/* Mounts it and serves until it is unmounted or a signal comes. Negative: it could not. */
int powerfs_serve(struct powerfs *fs);
