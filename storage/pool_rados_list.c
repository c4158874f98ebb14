// SPDX-License-Identifier: Apache-2.0
/*
 * List: a run of names from the directory, then each object's size, all at once. Names
 * without an object are left out; when that leaves none, the next run is read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/rados_pool.h"

/* No name contains '_'. */
void rados_directory(char ret_directory[POOL_NAME_MAX + 8], const char *name)
{
        snprintf(ret_directory, POOL_NAME_MAX + 8, "_names.%.*s", (int)strcspn(name, "/"), name);
}

static struct rados_request *request_of(struct rados_op *op)
{
        return (struct rados_request *)op;
}

static void read_names(struct rados_request *request, const char *after);

void rados_list_deinit(struct rados_request *request)
{
        free(request->listing.found);
        request->listing.found = NULL;
}

void rados_list_cancel(struct rados_request *request)
{
        for (uint32_t i = 0; i < request->listing.n_found; i++)
                rados_op_cancel(&request->listing.found[i].op);
}

/* Hands the names out. Of those that failed, the first result; else 0. */
static int deliver(struct rados_request *request, uint32_t *ret_n)
{
        struct rados_listing *listing = &request->listing;
        struct pool_list *list = request->list;

        *ret_n = 0;
        for (uint32_t i = 0; i < listing->n_found; i++)
                if (listing->found[i].op.result < 0 && listing->found[i].op.result != -ENOENT)
                        return listing->found[i].op.result;
        for (uint32_t i = 0; i < listing->n_found; i++) {
                if (listing->found[i].op.result < 0)
                        continue;
                ++*ret_n;
                list->on_name(list, listing->found[i].name, listing->found[i].bytes);
        }
        return 0;
}

static void finish_run(struct rados_request *request)
{
        struct rados_listing *listing = &request->listing;
        uint32_t n;
        int r = deliver(request, &n);

        if (r < 0 || n || !listing->more || !listing->n_found) {
                rados_request_end(request, r < 0 ? r : listing->more);
                return;
        }
        read_names(request, listing->last);
}

static void on_size(struct rados_op *op)
{
        struct rados_request *request = ((struct rados_found *)op)->request;

        if (--request->listing.n_waiting == 0)
                finish_run(request);
}

static void ask_sizes(struct rados_request *request)
{
        struct rados_listing *listing = &request->listing;
        struct rados_pool *pool = request->op.pool;

        listing->n_waiting = listing->n_found;
        for (uint32_t i = 0; i < listing->n_found; i++) {
                struct rados_found *found = &listing->found[i];
                int r = rados_op_prepare(&found->op, pool, on_size);

                found->request = request;
                if (r < 0)
                        rados_op_fail(&found->op, pool, r, on_size);
                else
                        rados_op_started(&found->op,
                                         rados_aio_stat(pool->link.io, found->name,
                                                        found->op.completion, &found->bytes,
                                                        &found->changed));
        }
}

/* What other programs put into the directory is not a name. */
static void take_names(struct rados_listing *listing, uint32_t max)
{
        char *name, *value;
        size_t name_length, value_length;

        while (listing->n_found < max &&
               !rados_omap_get_next2(listing->names, &name, &value, &name_length, &value_length) &&
               name) {
                struct rados_found *found = &listing->found[listing->n_found];

                if (name_length < sizeof(listing->last)) {
                        memcpy(listing->last, name, name_length);
                        listing->last[name_length] = '\0';
                }
                if (name_length >= POOL_NAME_MAX)
                        continue;
                memset(found, 0, sizeof(*found));
                memcpy(found->name, name, name_length);
                if (pool_name_is_valid(found->name))
                        listing->n_found++;
        }
}

static void on_names(struct rados_op *op)
{
        struct rados_request *request = request_of(op);
        struct rados_listing *listing = &request->listing;

        rados_release_read_op(listing->read);
        *listing->last = '\0';
        if (op->result >= 0)
                take_names(listing, request->list->max);
        rados_omap_get_end(listing->names);
        if (op->result >= 0 && request->is_late)
                op->result = -ECANCELED;
        if (op->result < 0)
                rados_request_end(request, rados_absent(op));
        else if (!listing->n_found && !listing->more)
                rados_request_end(request, 0);
        else if (!listing->n_found && !*listing->last)
                rados_request_end(request, -EIO); /* a page of what is too long to go on from */
        else if (!listing->n_found)
                read_names(request, listing->last);
        else
                ask_sizes(request);
}

static void on_refused(struct rados_op *op)
{
        rados_request_end(request_of(op), op->result);
}

static void read_names(struct rados_request *request, const char *after)
{
        struct rados_listing *listing = &request->listing;
        struct pool_list *list = request->list;
        struct rados_pool *pool = request->op.pool;
        char directory[POOL_NAME_MAX + 8];
        rados_read_op_t read = rados_create_read_op();
        int r = read ? rados_op_prepare(&request->op, pool, on_names) : -ENOMEM;

        if (r < 0) {
                if (read)
                        rados_release_read_op(read);
                rados_op_fail(&request->op, pool, r, on_refused);
                return;
        }
        listing->read = read;
        listing->more = 0;
        rados_read_op_omap_get_vals2(read, after, list->prefix, list->max, &listing->names,
                                     &listing->more, &listing->read_result);
        listing->n_found = 0;
        rados_directory(directory, list->prefix);
        rados_op_started(&request->op,
                         rados_aio_read_op_operate(read, pool->link.io, request->op.completion,
                                                   directory, LIBRADOS_OPERATION_NOFLAG));
}

static bool is_sound(const struct pool_list *list)
{
        return list->max >= 1 && list->max <= POOL_LIST_MAX && strchr(list->prefix, '/') &&
               pool_name_is_valid(list->prefix);
}

void rados_list_start(struct rados_request *request)
{
        struct rados_listing *listing = &request->listing;
        struct pool_list *list = request->list;
        int r = is_sound(list) ? 0 : -EINVAL;

        if (!r) {
                listing->found = calloc(list->max, sizeof(*listing->found));
                r = listing->found ? 0 : -ENOMEM;
        }
        if (r < 0)
                rados_op_fail(&request->op, request->op.pool, r, on_refused);
        else
                read_names(request, list->after ? list->after : "");
}
