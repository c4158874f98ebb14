// SPDX-License-Identifier: Apache-2.0
/*
 * Nodes with a remote tier each, over one pool in a folder. A test drives them one by one or
 * all together; each keeps what its tier told it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "storage/remote.h"
#include "tests/support/fake_pool.h"
#include "tests/support/tier_driver.h"

#define NODES_MAX  3u
#define EVENTS_MAX 4096u
#define NODE_CAP   (32u << 20)

struct event {
        struct object_key key;
        struct tier_place place;
        struct tier_object object; /* appeared; covers NULL */
        bool replaced;             /* vanished */
        uint64_t checksum_total;
};

struct node {
        struct driver driver;
        struct pool *pool; /* the tier's */
        char index[96];
        struct remote_options options;
        struct event appeared[EVENTS_MAX], vanished[EVENTS_MAX];
        uint32_t n_appeared, n_vanished, n_ready, n_notices, n_layouts, n_missed;
        char notice[512]; /* the last one */
        bool is_leaving;  /* what the tier is told when it asks */
};

struct pool_fixture {
        char folder[64];
        char pool[96];
        struct node nodes[NODES_MAX];
        uint32_t n_nodes;
};

/* A pool, and @n nodes that are not open. */
struct pool_fixture *nodes_new(uint32_t n);
/* Over a folder from scratch_make() that may have been used before. */
struct pool_fixture *nodes_at(const char *folder, uint32_t n);
/* Closes what is open and removes the folder. */
void nodes_free(struct pool_fixture *fixture);

/* Opens and recovers; the number of objects found. */
uint32_t node_open(struct pool_fixture *fixture, uint32_t i);
/* The same; the pool does not answer. */
uint32_t node_open_stopped(struct pool_fixture *fixture, uint32_t i);
int node_try_open(struct pool_fixture *fixture, uint32_t i, struct why *why);
void node_close(struct pool_fixture *fixture, uint32_t i);
/* Removes its index; @whole: who it is as well. */
void node_lose_index(struct pool_fixture *fixture, uint32_t i, bool whole);

/* Runs all loops until @is_so; a Check failure after twenty seconds. */
void nodes_run_until(struct pool_fixture *fixture, bool (*is_so)(void *user), void *user);
/*
 * Runs all loops until each node has gone through the journals a few times, and neither
 * writes nor changes its index. _without: node @i, which is held, need not.
 */
void nodes_settle(struct pool_fixture *fixture);
void nodes_settle_without(struct pool_fixture *fixture, uint32_t i);

/* The last event of that key, or NULL. */
const struct event *node_appeared(const struct node *node, const struct driver_object *object);
const struct event *node_vanished(const struct node *node, const struct driver_object *object);

struct remote_usage node_usage(const struct node *node);

/* Object @n whose parent is object @n - 1 of the same prompt. */
struct driver_object chain_object(uint32_t prompt, uint32_t n, uint64_t raw_bytes);
/* Reads what appeared at a node: as written, under that node's place. */
int node_read_appeared(struct node *node, const struct driver_object *object);
