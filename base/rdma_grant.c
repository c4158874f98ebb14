// SPDX-License-Identifier: Apache-2.0
/*
 * Grants: one memory window of type 2 for each extent, bound to it and to the queue pair by the
 * send queue, and invalidated there. A window whose invalidation is acknowledged goes back to
 * the device's list; one that is bound when the connection ends is freed before the queue pair,
 * which it would hold.
 *
 *   BINDING --all bound--> HELD --release--> TAKING_BACK --all acknowledged--> OVER
 *   and from each to OVER when the connection ends
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"

static void grant_free(struct rdma_grant *grant)
{
        free(grant->windows);
        free(grant->places);
        free(grant->extents);
        free(grant);
}

/* Helper: a release that was posted before it has run. */
static void run_free(struct job *job)
{
        grant_free(job_owner(job, struct rdma_grant, over));
}

/* Owner. */
static void run_over(struct job *job)
{
        struct rdma_grant *grant = job_owner(job, struct rdma_grant, over);
        struct rdma_port *port = grant->connection->port;

        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                grant->extents[i].region->n_users--;
        grant->connection->n_operations--;
        grant->options.on_reusable(grant->options.user, grant);
        grant->over.run = run_free;
        mailbox_post(&port->to_helper, &grant->over);
}

/* Owner. */
static void run_granted(struct job *job)
{
        struct rdma_grant *grant = job_owner(job, struct rdma_grant, granted);

        grant->options.on_granted(grant->options.user, grant, grant->result,
                                  grant->result ? NULL : grant->places);
}

static void tell(struct rdma_grant *grant, enum rdma_result result)
{
        if (grant->is_told)
                return;
        grant->is_told = true;
        grant->result = result;
        if (!result)
                rdma_count(grant->connection->port, grants, 1);
        grant->granted.run = run_granted;
        mailbox_post(&grant->connection->port->to_owner, &grant->granted);
}

/* In no list, and its windows are free. */
static void finish(struct rdma_grant *grant)
{
        struct rdma_port *port = grant->connection->port;

        rdma_deadline_clear(&port->deadlines, &grant->deadline);
        grant->state = RDMA_GRANT_OVER;
        grant->over.run = run_over;
        mailbox_post(&port->to_owner, &grant->over);
}

static void set_timer(struct rdma_grant *grant)
{
        rdma_deadline_set(&grant->connection->port->deadlines, &grant->deadline,
                          rdma_now_ns() + grant->options.timeout_ns);
}

static void deadline_passed(struct rdma_deadline *deadline)
{
        struct rdma_grant *grant = job_owner(deadline, struct rdma_grant, deadline);

        rdma_count(grant->connection->port, timeouts, 1);
        grant->result = RDMA_RESULT_TIMEOUT;
        rdma_connection_break(grant->connection, RDMA_END_TIMEOUT,
                              "a memory window was not %s by its deadline",
                              grant->state == RDMA_GRANT_BINDING ? "bound" : "invalidated");
}

static bool post_bind(struct rdma_connection *connection, struct rdma_grant *grant, uint32_t i)
{
        size_t device = (size_t)(connection->device - connection->port->devices);
        struct ibv_mw *mw = grant->windows[i]->mw;
        uint32_t key = ibv_inc_rkey(mw->rkey);
        struct ibv_send_wr request = {
                .opcode = IBV_WR_BIND_MW,
                .bind_mw =
                        {
                                .mw = mw,
                                .rkey = key,
                                .bind_info =
                                        {
                                                .mr = grant->extents[i].region->mrs[device],
                                                .addr = (uintptr_t)grant->extents[i].address,
                                                .length = grant->extents[i].length,
                                                .mw_access_flags = grant->options.is_writable
                                                                           ? IBV_ACCESS_REMOTE_WRITE
                                                                           : IBV_ACCESS_REMOTE_READ,
                                        },
                        },
        };

        if (!rdma_queue_post(connection, &request, RDMA_WORK_GRANT, grant))
                return false;
        mw->rkey = key;
        grant->places[i].key = key;
        return true;
}

static bool post_invalidation(struct rdma_connection *connection, struct rdma_grant *grant,
                              uint32_t i)
{
        struct ibv_send_wr request = {
                .opcode = IBV_WR_LOCAL_INV,
                .invalidate_rkey = grant->places[i].key,
        };

        return rdma_queue_post(connection, &request, RDMA_WORK_GRANT, grant);
}

/* False: the send queue is full, or gone. */
static bool pump(struct rdma_connection *connection, struct rdma_grant *grant)
{
        while (grant->n_posted < grant->options.n_extents) {
                uint32_t i = grant->n_posted;

                if (!rdma_queue_has_room(connection))
                        return false;
                grant->n_posted++;
                if (grant->state == RDMA_GRANT_BINDING ? !post_bind(connection, grant, i)
                                                       : !post_invalidation(connection, grant, i))
                        return false;
        }
        return true;
}

void rdma_grants_pump(struct rdma_connection *connection)
{
        struct rdma_grant *grant;

        TAILQ_FOREACH(grant, &connection->grants_working, link)
                if (!pump(connection, grant))
                        return;
}

static void put_windows(struct rdma_grant *grant)
{
        struct rdma_connection *connection = grant->connection;
        uint32_t n = grant->options.n_extents;

        for (uint32_t i = 0; grant->windows && i < n; i++)
                if (grant->windows[i])
                        rdma_window_put(connection->port, connection->device, grant->windows[i]);
        free(grant->windows);
        grant->windows = NULL;
}

/* Its rights end. HELD, and in the list of those. */
static void take_back(struct rdma_grant *grant)
{
        struct rdma_connection *connection = grant->connection;

        TAILQ_REMOVE(&connection->grants, grant, link);
        if (!grant->windows) {
                finish(grant);
                return;
        }
        grant->state = RDMA_GRANT_TAKING_BACK;
        grant->n_posted = grant->n_acked = 0;
        TAILQ_INSERT_TAIL(&connection->grants_working, grant, link);
        set_timer(grant);
}

static void become_held(struct rdma_grant *grant)
{
        grant->state = RDMA_GRANT_HELD;
        TAILQ_INSERT_TAIL(&grant->connection->grants, grant, link);
        rdma_deadline_clear(&grant->connection->port->deadlines, &grant->deadline);
        tell(grant, RDMA_RESULT_DONE);
        if (grant->has_to_go)
                take_back(grant);
}

void rdma_grant_completed(struct rdma_grant *grant)
{
        struct rdma_connection *connection = grant->connection;

        if (++grant->n_acked < grant->options.n_extents)
                return;
        TAILQ_REMOVE(&connection->grants_working, grant, link);
        if (grant->state == RDMA_GRANT_BINDING) {
                rdma_count(connection->port, windows_bound, grant->options.n_extents);
                become_held(grant);
                return;
        }
        rdma_count(connection->port, windows_bound, -(int64_t)grant->options.n_extents);
        put_windows(grant);
        finish(grant);
}

static void revoke(struct rdma_grant *grant)
{
        struct rdma_port *port = grant->connection->port;

        if (!grant->windows)
                return;
        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                rdma_window_free(port, grant->windows[i]);
        free(grant->windows);
        grant->windows = NULL;
        if (grant->state != RDMA_GRANT_BINDING)
                rdma_count(port, windows_bound, -(int64_t)grant->options.n_extents);
}

void rdma_grants_revoke(struct rdma_connection *connection)
{
        struct rdma_grant *grant;

        TAILQ_FOREACH(grant, &connection->grants, link)
                revoke(grant);
        TAILQ_FOREACH(grant, &connection->grants_working, link)
                revoke(grant);
}

static void break_list(struct rdma_grant_list *list)
{
        struct rdma_grant *grant;

        while ((grant = TAILQ_FIRST(list))) {
                TAILQ_REMOVE(list, grant, link);
                tell(grant, grant->result ? grant->result : RDMA_RESULT_BROKEN);
                finish(grant);
        }
}

void rdma_grants_break(struct rdma_connection *connection)
{
        break_list(&connection->grants_working);
        break_list(&connection->grants);
}

static int allocate_windows(struct rdma_grant *grant)
{
        struct rdma_connection *connection = grant->connection;
        uint32_t n = grant->options.n_extents;

        grant->windows = calloc(n, sizeof(*grant->windows));
        for (uint32_t i = 0; grant->windows && i < n; i++) {
                grant->windows[i] = rdma_window_new(connection->port, connection->device);
                if (!grant->windows[i])
                        return err_raise(-ENOMEM);
        }
        return grant->windows ? 0 : err_raise(-ENOMEM);
}

static void give_up(struct rdma_grant *grant, enum rdma_result result)
{
        tell(grant, result);
        finish(grant);
}

static void open_whole_regions(struct rdma_grant *grant)
{
        struct rdma_connection *connection = grant->connection;
        size_t device = (size_t)(connection->device - connection->port->devices);

        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                grant->places[i].key = grant->extents[i].region->mrs[device]->rkey;
        become_held(grant);
}

/* A region may be there for some devices only: a dma-buf's, or what came when one was gone. */
static bool has_regions(const struct rdma_grant *grant)
{
        const struct rdma_connection *connection = grant->connection;
        size_t device = (size_t)(connection->device - connection->port->devices);

        for (uint32_t i = 0; i < grant->options.n_extents; i++)
                if (!grant->extents[i].region->mrs[device])
                        return false;
        return true;
}

/* Helper. */
static void run_bind(struct job *job)
{
        struct rdma_grant *grant = job_owner(job, struct rdma_grant, job);
        struct rdma_connection *connection = grant->connection;

        if (connection->state != RDMA_CONNECTION_OPEN) {
                give_up(grant, RDMA_RESULT_BROKEN);
        } else if (!has_regions(grant)) {
                give_up(grant, RDMA_RESULT_UNSUPPORTED);
        } else if (!connection->device->has_windows) {
                if (connection->port->options.whole_regions)
                        open_whole_regions(grant);
                else
                        give_up(grant, RDMA_RESULT_UNSUPPORTED);
        } else if (allocate_windows(grant)) {
                put_windows(grant);
                give_up(grant, RDMA_RESULT_FULL);
        } else {
                TAILQ_INSERT_TAIL(&connection->grants_working, grant, link);
                set_timer(grant);
                rdma_queue_pump(connection);
        }
}

/* Helper. */
static void run_release(struct job *job)
{
        struct rdma_grant *grant = job_owner(job, struct rdma_grant, release);

        grant->has_to_go = true;
        if (grant->state != RDMA_GRANT_HELD)
                return;
        take_back(grant);
        rdma_queue_pump(grant->connection);
}

static bool is_valid(const struct rdma_connection *connection,
                     const struct rdma_grant_options *options)
{
        if (!options->n_extents || options->n_extents > RDMA_PIECES_MAX || !options->timeout_ns)
                return false;
        for (uint32_t i = 0; i < options->n_extents; i++)
                if (!rdma_extent_is_valid(&options->extents[i], connection->port))
                        return false;
        return true;
}

static struct rdma_grant *grant_new(struct rdma_connection *connection,
                                    const struct rdma_grant_options *options)
{
        struct rdma_grant *grant = calloc(1, sizeof(*grant));
        uint32_t n = options->n_extents;

        if (!grant)
                return NULL;
        grant->options = *options;
        grant->connection = connection;
        grant->job.run = run_bind;
        grant->release.run = run_release;
        grant->deadline.on_passed = deadline_passed;
        grant->extents = calloc(n, sizeof(*grant->extents));
        grant->places = calloc(n, sizeof(*grant->places));
        if (!grant->extents || !grant->places) {
                grant_free(grant);
                return NULL;
        }
        memcpy(grant->extents, options->extents, n * sizeof(*grant->extents));
        for (uint32_t i = 0; i < n; i++) {
                grant->places[i].address = (uintptr_t)grant->extents[i].address;
                grant->places[i].length = grant->extents[i].length;
        }
        return grant;
}

int rdma_grant_new(struct rdma_grant **ret_grant, struct rdma_connection *connection,
                   const struct rdma_grant_options *options)
{
        struct rdma_grant *grant;

        if (!connection->is_open)
                return RDMA_E_CLOSED;
        if (!is_valid(connection, options))
                return RDMA_E_INVALID;
        if (connection->n_operations >= connection->port->options.n_operations)
                return RDMA_E_FULL;
        grant = grant_new(connection, options);
        if (!grant)
                return err_raise(-ENOMEM);
        connection->n_operations++;
        for (uint32_t i = 0; i < options->n_extents; i++)
                options->extents[i].region->n_users++;
        mailbox_post(&connection->port->to_helper, &grant->job);
        *ret_grant = grant;
        return 0;
}

void rdma_grant_release(struct rdma_grant *grant)
{
        if (grant->is_released)
                return;
        grant->is_released = true;
        mailbox_post(&grant->connection->port->to_helper, &grant->release);
}
