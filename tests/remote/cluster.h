// SPDX-License-Identifier: Apache-2.0
/*
 * The servers that tests/remote/run has started, as its test programs find them: by the
 * environment. A program that is run without them ends with a word of that.
 */
#pragma once

#include "storage/pool_rados.h"
#include "storage/pool_s3.h"

struct pool_rados_options cluster_rados_options(void);
struct pool_s3_options cluster_s3_options(void);
