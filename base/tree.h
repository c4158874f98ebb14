// SPDX-License-Identifier: Apache-2.0
/*
 * Intrusive red-black trees from libbsd, for one file: RB_GENERATE_STATIC there needs a
 * word that libbsd defines only where it overlays libc.
 */
#pragma once

#include <bsd/sys/tree.h>

#define TREE_GENERATE(name, type, field, compare)                                                  \
        RB_GENERATE_INTERNAL(name, type, field, compare, __attribute__((unused)) static)
