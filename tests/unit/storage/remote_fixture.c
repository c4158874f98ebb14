// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch.h"
#include "tests/unit/storage/remote_fixture.h"

#define ARENA_BYTES (16u << 20)
#define PATIENCE_MS 20000u

static void on_notice(void *user, const char *text)
{
        struct node *node = user;

        node->n_notices++;
        snprintf(node->notice, sizeof(node->notice), "%s", text);
}

static void on_appeared(void *user, const struct tier_object *object, struct tier_place place)
{
        struct node *node = user;
        struct event *event = &node->appeared[node->n_appeared++ % EVENTS_MAX];

        *event = (struct event){.key = object->key, .place = place, .object = *object};
        event->object.covers = NULL;
}

static void on_vanished(void *user, const struct object_key *key, struct tier_place place,
                        bool replaced, uint64_t checksum_total)
{
        struct node *node = user;

        node->vanished[node->n_vanished++ % EVENTS_MAX] = (struct event){
                .key = *key,
                .place = place,
                .replaced = replaced,
                .checksum_total = checksum_total,
        };
}

static void on_missed(void *user)
{
        ((struct node *)user)->n_missed++;
}

static bool is_leaving(void *user)
{
        return ((struct node *)user)->is_leaving;
}

static void on_ready(void *user)
{
        ((struct node *)user)->n_ready++;
}

static void on_layout(void *user, const struct tier_layout *layout)
{
        (void)layout;
        ((struct node *)user)->n_layouts++;
}

struct pool_fixture *nodes_new(uint32_t n)
{
        char folder[64];

        scratch_make(folder, sizeof(folder));
        return nodes_at(folder, n);
}

struct pool_fixture *nodes_at(const char *folder, uint32_t n)
{
        struct pool_fixture *fixture = calloc(1, sizeof(*fixture));

        ck_assert_ptr_nonnull(fixture);
        snprintf(fixture->folder, sizeof(fixture->folder), "%s", folder);
        snprintf(fixture->pool, sizeof(fixture->pool), "%s/pool", fixture->folder);
        ck_assert(!mkdir(fixture->pool, 0700) || errno == EEXIST);
        fixture->n_nodes = n;
        for (uint32_t i = 0; i < n; i++) {
                struct node *node = &fixture->nodes[i];

                snprintf(node->index, sizeof(node->index), "%s/index-%u", fixture->folder, i);
                node->options = (struct remote_options){
                        .index_path = node->index,
                        .bytes = NODE_CAP,
                        .bundle_bytes = 4u << 20,
                        .linger_ms = 1,
                        .poll_ms = 5,
                        .deadline_ms = 5000,
                        .retry_ms = 100,
                        .host = "a-node",
                        .on_notice = on_notice,
                        .user = node,
                };
                driver_init(&node->driver, ARENA_BYTES);
        }
        return fixture;
}

void nodes_free(struct pool_fixture *fixture)
{
        for (uint32_t i = 0; i < fixture->n_nodes; i++) {
                if (fixture->nodes[i].driver.tier)
                        node_close(fixture, i);
                driver_deinit(&fixture->nodes[i].driver);
        }
        scratch_remove(fixture->folder);
        free(fixture);
}

int node_try_open(struct pool_fixture *fixture, uint32_t i, struct why *why)
{
        struct node *node = &fixture->nodes[i];
        struct tier *tier;
        int r;

        ck_assert_int_eq(fake_pool_open(&node->pool, &node->driver.loop, fixture->pool), 0);
        node->options.pool = node->pool;
        node->n_appeared = node->n_vanished = node->n_ready = node->n_notices = 0;
        node->n_layouts = node->n_missed = 0;
        r = remote_open(&tier, &node->driver.loop, &node->options, why);
        if (r)
                return r;
        tier->on_appeared = on_appeared;
        tier->on_vanished = on_vanished;
        tier->on_missed = on_missed;
        tier->is_leaving = is_leaving;
        tier->on_shared_user = node;
        tier->on_ready = on_ready;
        tier->on_ready_user = node;
        tier->on_layout = on_layout;
        tier->on_layout_user = node;
        driver_attach(&node->driver, tier);
        return 0;
}

uint32_t node_open(struct pool_fixture *fixture, uint32_t i)
{
        struct why why = {""};

        ck_assert_msg(!node_try_open(fixture, i, &why), "%s", why.text);
        return driver_recover(&fixture->nodes[i].driver);
}

uint32_t node_open_stopped(struct pool_fixture *fixture, uint32_t i)
{
        struct why why = {""};

        ck_assert_msg(!node_try_open(fixture, i, &why), "%s", why.text);
        fake_pool_stop(fixture->nodes[i].pool, true);
        return driver_recover(&fixture->nodes[i].driver);
}

void node_close(struct pool_fixture *fixture, uint32_t i)
{
        driver_close(&fixture->nodes[i].driver);
}

void node_lose_index(struct pool_fixture *fixture, uint32_t i, bool whole)
{
        char path[128];

        scratch_remove(fixture->nodes[i].index);
        snprintf(path, sizeof(path), "%s.node", fixture->nodes[i].index);
        if (whole)
                ck_assert_int_eq(unlink(path), 0);
}

/* One turn of every loop that is in use; waits when none has anything to do. */
static void run_once(struct pool_fixture *fixture, int longest_ms)
{
        struct pollfd fds[NODES_MAX];
        nfds_t n = 0;

        for (uint32_t i = 0; i < fixture->n_nodes; i++) {
                uv_loop_t *loop = &fixture->nodes[i].driver.loop;
                int ms;

                if (!fixture->nodes[i].driver.tier)
                        continue;
                uv_run(loop, UV_RUN_NOWAIT);
                uv_update_time(loop);
                ms = uv_backend_timeout(loop);
                if (ms >= 0 && ms < longest_ms)
                        longest_ms = ms;
                fds[n++] = (struct pollfd){.fd = uv_backend_fd(loop), .events = POLLIN};
        }
        poll(fds, n, longest_ms);
}

void nodes_run_until(struct pool_fixture *fixture, bool (*is_so)(void *user), void *user)
{
        uint64_t end = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);

        while (!is_so(user)) {
                ck_assert_msg(uv_hrtime() < end, "it never came to be");
                run_once(fixture, 50);
        }
}

static bool is_left_out(const struct pool_fixture *fixture, uint32_t i, uint32_t without)
{
        return i == without || !fixture->nodes[i].driver.tier;
}

static void settle_once(struct pool_fixture *fixture, uint32_t without)
{
        uint64_t lists[NODES_MAX] = {0}, end = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
        bool is_settled = false;
        struct pool_usage usage;
        struct tier_usage tier;

        for (uint32_t i = 0; i < fixture->n_nodes; i++) {
                if (is_left_out(fixture, i, without))
                        continue;
                fixture->nodes[i].pool->ops.usage(fixture->nodes[i].pool, &usage);
                lists[i] = usage.requests_total[FAKE_POOL_LIST] + 3;
        }
        while (!is_settled) {
                ck_assert_msg(uv_hrtime() < end, "the nodes do not settle");
                run_once(fixture, 50);
                is_settled = true;
                for (uint32_t i = 0; i < fixture->n_nodes; i++) {
                        if (is_left_out(fixture, i, without))
                                continue;
                        fixture->nodes[i].pool->ops.usage(fixture->nodes[i].pool, &usage);
                        tier = driver_usage(&fixture->nodes[i].driver);
                        is_settled &= usage.requests_total[FAKE_POOL_LIST] >= lists[i] &&
                                      !tier.queued_changes && !tier.queued_writes;
                }
        }
}

/* Twice: what one has to tell goes out in the first pass, the others hear it in the second. */
void nodes_settle_without(struct pool_fixture *fixture, uint32_t without)
{
        settle_once(fixture, without);
        settle_once(fixture, without);
}

void nodes_settle(struct pool_fixture *fixture)
{
        nodes_settle_without(fixture, NODES_MAX);
}

static const struct event *last_of(const struct event *events, uint32_t n,
                                   const struct driver_object *object)
{
        ck_assert_uint_le(n, EVENTS_MAX);
        while (n--)
                if (object_key_equal(&events[n].key, &object->object.key))
                        return &events[n];
        return NULL;
}

const struct event *node_appeared(const struct node *node, const struct driver_object *object)
{
        return last_of(node->appeared, node->n_appeared, object);
}

const struct event *node_vanished(const struct node *node, const struct driver_object *object)
{
        return last_of(node->vanished, node->n_vanished, object);
}

struct remote_usage node_usage(const struct node *node)
{
        struct remote_usage usage;

        remote_usage(node->driver.tier, &usage);
        return usage;
}

struct driver_object chain_object(uint32_t prompt, uint32_t n, uint64_t raw_bytes)
{
        struct driver_object object = driver_object(prompt * 1000 + n, raw_bytes);
        struct driver_object parent = driver_object(prompt * 1000 + n - 1, 1);

        if (n)
                object.object.parent = parent.object.key.boundary;
        else
                memset(&object.object.parent, 0, sizeof(object.object.parent));
        return object;
}

int node_read_appeared(struct node *node, const struct driver_object *object)
{
        const struct event *event = node_appeared(node, object);
        struct driver_object here = *object;

        ck_assert_ptr_nonnull(event);
        here.place = event->place;
        here.object.generation = 77; /* a number of this node */
        return driver_read(&node->driver, &here);
}
