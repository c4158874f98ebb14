// SPDX-License-Identifier: Apache-2.0
/* A real RocksDB on powerfs, apart from the rest because of its own setup. */
#pragma once

#include <stdint.h>

struct powerfs_mount;

/*
 * Writes synced and un-synced keys, flushes, loses power with @seed in mid-work, and
 * asserts that the database opens and still has every synced key. Forks.
 */
void check_rocksdb_survives(struct powerfs_mount *mount, uint64_t seed);
