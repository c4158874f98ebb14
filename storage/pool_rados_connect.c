// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "storage/rados_pool.h"

static const char *const settings[][2] = {
        /* After these ends what nobody cancels. */
        {"client_mount_timeout", "5"},
        {"rados_mon_op_timeout", "10"},
        {"rados_osd_op_timeout", "600"},
        /* Beyond these limits librados would block the loop thread. */
        {"objecter_inflight_ops", "65536"},
        {"objecter_inflight_op_bytes", "68719476736"},
        /* Libraries never log. */
        {"log_to_stderr", "false"},
        {"err_to_stderr", "false"},
        {"log_to_syslog", "false"},
        {"err_to_syslog", "false"},
        {"log_file", ""},
        {"admin_socket", ""},
};

static int fail(struct rados_link *link, int result, const char *what, const char *which)
{
        snprintf(link->failure, sizeof(link->failure), "%s%s%s: %s", what, *which ? " " : "", which,
                 strerror(-result));
        return result == -EPERM ? -EACCES : result;
}

static int configure(const struct rados_pool *pool, struct rados_link *link, rados_t cluster)
{
        int r = rados_conf_read_file(cluster, pool->config_path);

        if (r < 0)
                return fail(link, r, "RADOS config file",
                            pool->config_path ? pool->config_path : "at the usual places");
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
                rados_conf_set(cluster, settings[i][0], settings[i][1]);
        if (pool->keyring_path) {
                /* A key in the config file would win over the keyring that is asked for. */
                rados_conf_set(cluster, "key", "");
                rados_conf_set(cluster, "keyfile", "");
                r = rados_conf_set(cluster, "keyring", pool->keyring_path);
        }
        return r < 0 ? fail(link, r, "RADOS keyring", pool->keyring_path) : 0;
}

static int open_io(const struct rados_pool *pool, struct rados_link *link, rados_t cluster)
{
        int r = rados_connect(cluster);

        if (r == -EACCES || r == -EPERM)
                return fail(link, r, "the cluster refuses the credentials of RADOS user",
                            pool->user);
        if (r == -ENOENT)
                return fail(link, -EACCES, "there are no credentials of RADOS user", pool->user);
        if (r < 0)
                return fail(link, r, "connection to the monitors of the RADOS cluster", "");
        r = rados_ioctx_create(cluster, pool->pool_name, &link->io);
        if (r < 0)
                return fail(link, r == -ENOENT ? -ENODEV : r, "RADOS pool", pool->pool_name);
        rados_ioctx_set_namespace(link->io, pool->prefix);
        return 0;
}

static void *run_connect(void *argument)
{
        struct rados_pool *pool = argument;
        struct rados_link *link = &pool->link;
        rados_t cluster;
        int r;

        memset(link, 0, sizeof(*link));
        r = rados_create2(&cluster, "ceph", pool->user, 0);
        if (r < 0) {
                link->result = fail(link, r, "RADOS client", pool->user);
                rados_thread_ended(pool);
                return NULL;
        }
        link->result = configure(pool, link, cluster);
        if (!link->result)
                link->result = open_io(pool, link, cluster);
        if (link->result)
                rados_shutdown(cluster);
        else
                link->cluster = cluster;
        rados_thread_ended(pool);
        return NULL;
}

static void *run_disconnect(void *argument)
{
        struct rados_pool *pool = argument;

        /* A call that the cluster never answered has the io context for good. */
        if (pool->link.is_quiet)
                rados_ioctx_destroy(pool->link.io);
        rados_shutdown(pool->link.cluster);
        rados_thread_ended(pool);
        return NULL;
}

int rados_connect_start(struct rados_pool *pool)
{
        return thread_start(&pool->thread, run_connect, pool);
}

int rados_disconnect_start(struct rados_pool *pool)
{
        return thread_start(&pool->thread, run_disconnect, pool);
}
