// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/pool_name.h"
#include "storage/remote_nodes.h"

#define PAGE        64u
#define GETS        8u
#define DEADLINE_MS 10000u
#define SEEN_MAX    65536u /* nodes; who comes behind them is not told */

/* Whose names tell of nodes, in the order in which they are walked over. */
static const char *const kinds[] = {"node", "journal", "bundle"};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct node_get {
        struct pool_get get;
        struct remote_nodes *nodes;
        bool in_flight;
        char name[POOL_NAME_MAX];
        uint8_t id[16];
        uint8_t bytes[JOURNAL_NODE_BYTES];
};

struct remote_nodes {
        struct remote_nodes_options options;
        struct pool_list list;
        uint32_t kind;
        char prefix[POOL_NAME_MAX];
        char last[POOL_NAME_MAX]; /* name of the page, or what is behind the rest of a node */
        uint8_t (*seen)[16];      /* in order */
        uint32_t n_seen, seen_size;
        uint8_t ids[PAGE][16];
        uint32_t n_names; /* in the page, of nodes or not */
        uint32_t n_ids, at;
        struct node_get gets[GETS];
        uint32_t n_in_flight;
        bool more, cancelled;
        int result; /* of what could not be started */
};

static void end(struct remote_nodes *nodes, int result)
{
        nodes->options.on_end(nodes->options.user, nodes->cancelled ? -ECANCELED : result);
        free(nodes->seen);
        free(nodes);
}

static void go_on(struct remote_nodes *nodes);

static void tell(struct node_get *get, int result, uint64_t n_bytes)
{
        const struct remote_nodes_options *options = &get->nodes->options;
        struct journal_node node = {.host = ""};
        int r = result;

        if (!r)
                r = journal_node_decode(&node, get->bytes, n_bytes, NULL);
        if (!r && memcmp(node.node, get->id, sizeof(node.node)))
                r = JOURNAL_E_DAMAGED;
        if (r)
                node = (struct journal_node){.host = ""};
        memcpy(node.node, get->id, sizeof(node.node));
        options->on_node(options->user, &node, r);
}

static void on_got(struct pool_get *pool_get, int result, uint64_t n_bytes)
{
        struct node_get *get = pool_get->user;
        struct remote_nodes *nodes = get->nodes;

        get->in_flight = false;
        nodes->n_in_flight--;
        /* One that went meanwhile is none. */
        if (!nodes->cancelled && result != -ENOENT)
                tell(get, result, n_bytes);
        go_on(nodes);
}

static int start_get(struct remote_nodes *nodes, struct node_get *get, const uint8_t id[16])
{
        int r;

        get->nodes = nodes;
        memcpy(get->id, id, sizeof(get->id));
        journal_node_name(get->name, id);
        get->get = (struct pool_get){
                .name = get->name,
                .length = sizeof(get->bytes),
                .bytes = get->bytes,
                .deadline_ms = nodes->options.deadline_ms,
                .on_done = on_got,
                .user = get,
        };
        r = nodes->options.pool->ops.get(nodes->options.pool, &get->get);
        get->in_flight = !r;
        nodes->n_in_flight += !r;
        return r;
}

/* Where @id stands among those that were seen, or would. */
static uint32_t seen_at(const struct remote_nodes *nodes, const uint8_t id[16])
{
        uint32_t low = 0, high = nodes->n_seen;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (memcmp(nodes->seen[middle], id, sizeof(nodes->seen[0])) < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* True when it was not seen before. */
static bool note_seen(struct remote_nodes *nodes, const uint8_t id[16])
{
        uint32_t at = seen_at(nodes, id), size;
        uint8_t(*grown)[16];

        if (at < nodes->n_seen && !memcmp(nodes->seen[at], id, sizeof(nodes->seen[0])))
                return false;
        if (nodes->n_seen == nodes->seen_size) {
                size = nodes->seen_size ? 2 * nodes->seen_size : PAGE;
                grown = size <= SEEN_MAX ? realloc(nodes->seen, size * sizeof(*grown)) : NULL;
                if (!grown)
                        return false;
                nodes->seen = grown;
                nodes->seen_size = size;
        }
        memmove(nodes->seen + at + 1, nodes->seen + at,
                (nodes->n_seen - at) * sizeof(nodes->seen[0]));
        memcpy(nodes->seen[at], id, sizeof(nodes->seen[0]));
        nodes->n_seen++;
        return true;
}

/* One that has no object of its own; no digit stands behind the 'g'. */
static void see_traces(struct remote_nodes *nodes, const char *name)
{
        struct journal_node node = {.host = ""};
        char hex[POOL_NAME_NODE_DIGITS + 1];
        uint64_t number;

        if (!pool_name_parse_number(name, kinds[nodes->kind], node.node, &number))
                return;
        pool_name_hex(hex, node.node);
        snprintf(nodes->last, sizeof(nodes->last), "%s/%s/g", kinds[nodes->kind], hex);
        if (note_seen(nodes, node.node))
                nodes->options.on_node(nodes->options.user, &node, -ENOENT);
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct remote_nodes *nodes = list->user;

        if (strlen(name) >= sizeof(nodes->last) || nodes->n_names == list->max || nodes->cancelled)
                return;
        nodes->n_names++;
        snprintf(nodes->last, sizeof(nodes->last), "%s", name);
        if (nodes->kind)
                see_traces(nodes, name);
        else if (journal_node_name_parse(name, nodes->ids[nodes->n_ids]) &&
                 note_seen(nodes, nodes->ids[nodes->n_ids]))
                nodes->n_ids++;
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct remote_nodes *nodes = list->user;

        nodes->n_in_flight--;
        /* A pool that promises more and gives nothing is not asked for ever. */
        nodes->more = more && nodes->n_names;
        if (nodes->cancelled || (result && result != -ENOENT))
                end(nodes, result);
        else
                go_on(nodes);
}

static int list_page(struct remote_nodes *nodes)
{
        int r;

        nodes->n_names = nodes->n_ids = nodes->at = 0;
        snprintf(nodes->prefix, sizeof(nodes->prefix), "%s/", kinds[nodes->kind]);
        nodes->list = (struct pool_list){
                .prefix = nodes->prefix,
                .after = *nodes->last ? nodes->last : NULL,
                .max = nodes->kind ? 1 : PAGE,
                .deadline_ms = nodes->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = nodes,
        };
        r = nodes->options.pool->ops.list(nodes->options.pool, &nodes->list);
        nodes->n_in_flight += !r;
        return r;
}

/* The rest of the page, then the next page, then the next kind, then the end. */
static void go_on(struct remote_nodes *nodes)
{
        for (uint32_t i = 0; i < GETS && nodes->at < nodes->n_ids; i++) {
                if (nodes->cancelled || nodes->result)
                        break;
                if (!nodes->gets[i].in_flight)
                        nodes->result = start_get(nodes, &nodes->gets[i], nodes->ids[nodes->at++]);
        }
        if (nodes->n_in_flight)
                return;
        if (!nodes->more && nodes->kind + 1 < N_KINDS) {
                nodes->kind++;
                nodes->more = true;
                *nodes->last = '\0';
        }
        if (!nodes->cancelled && !nodes->result && nodes->more)
                nodes->result = list_page(nodes);
        if (!nodes->n_in_flight)
                end(nodes, nodes->result);
}

int remote_nodes_start(struct remote_nodes **ret_nodes, const struct remote_nodes_options *options)
{
        struct remote_nodes *nodes = calloc(1, sizeof(*nodes));
        int r;

        if (!nodes)
                return err_raise(-ENOMEM);
        nodes->options = *options;
        if (!nodes->options.deadline_ms)
                nodes->options.deadline_ms = DEADLINE_MS;
        r = list_page(nodes);
        if (r) {
                free(nodes);
                return r;
        }
        *ret_nodes = nodes;
        return 0;
}

void remote_nodes_cancel(struct remote_nodes *nodes)
{
        nodes->cancelled = true;
}
