// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/rdma.h"
#include "daemon/config.h"
#include "daemon/config_file.h"
#include "daemon/config_key.h"
#include "storage/host.h"
#include "storage/nvme.h"

#define STATE_CATALOG    "/var/lib/kvtier/catalog"
#define STATE_POOL_INDEX "/var/lib/kvtier/pool-index"

const char *config_key_name(enum config_key key)
{
        return config_keys[key].name;
}

/* Puts the place that a value came from before the reason. */
static void name_place(const struct config *config, enum config_key key, struct why *why)
{
        if (config->origin[key] == CONFIG_FROM_OVERRIDE)
                why_prefix(why, "--set %s", config_key_name(key));
        else if (config->origin[key] == CONFIG_FROM_DEFAULT)
                why_prefix(why, "%s (default)", config_key_name(key));
        else
                why_prefix(why, "%.200s:%d: %s", config->file, config->origin[key],
                           config_key_name(key));
}

/* nvme.catalog when it was left out: beside the first path. */
static void derive_catalog(struct config *config)
{
        const char *first = config->nvme.paths[0];
        struct stat status;
        int parent;

        if (config->origin[CONFIG_NVME_CATALOG] != CONFIG_FROM_DEFAULT)
                return;
        memset(config->nvme.catalog, 0, sizeof(config->nvme.catalog));
        if (!config->nvme.n_paths)
                return;

        if (!stat(first, &status) && S_ISBLK(status.st_mode)) {
                snprintf(config->nvme.catalog, sizeof(config->nvme.catalog), STATE_CATALOG);
        } else if (!stat(first, &status) && S_ISDIR(status.st_mode)) {
                snprintf(config->nvme.catalog, sizeof(config->nvme.catalog), "%.*s/catalog",
                         (int)(CONFIG_PATH_BYTES - sizeof("/catalog")), first);
        } else {
                parent = (int)(strrchr(first, '/') - first);
                snprintf(config->nvme.catalog, sizeof(config->nvme.catalog), "%.*s/catalog",
                         parent < (int)(CONFIG_PATH_BYTES - sizeof("/catalog"))
                                 ? parent
                                 : (int)(CONFIG_PATH_BYTES - sizeof("/catalog")),
                         first);
        }
}

/* pool.index when it was left out: beside the catalog. */
static void derive_pool_index(struct config *config)
{
        const char *slash = strrchr(config->nvme.catalog, '/');
        int parent = slash ? (int)(slash - config->nvme.catalog) : 0;
        int longest = (int)(CONFIG_PATH_BYTES - sizeof("/pool-index"));

        if (config->origin[CONFIG_POOL_INDEX] != CONFIG_FROM_DEFAULT)
                return;
        memset(config->pool.index, 0, sizeof(config->pool.index));
        if (config->pool.backend == CONFIG_POOL_OFF)
                return;
        if (!*config->nvme.catalog)
                snprintf(config->pool.index, sizeof(config->pool.index), STATE_POOL_INDEX);
        else
                snprintf(config->pool.index, sizeof(config->pool.index), "%.*s/pool-index",
                         parent < longest ? parent : longest, config->nvme.catalog);
}

void config_defaults(struct config *ret_config)
{
        memset(ret_config, 0, sizeof(*ret_config));
        /* The table's own values pass by construction; a test sets each of them. */
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                if (config_keys[key].fallback)
                        config_key_set((enum config_key)key, ret_config, config_keys[key].fallback,
                                       NULL);
}

static int set_from_file(struct config *config, const struct config_file *file, enum config_key key,
                         struct why *why)
{
        const char *value = file->values[key];
        int r = 0;

        if (!file->lines[key])
                return 0;
        config->origin[key] = file->lines[key];
        if (config_key_is_list(key)) {
                config_key_clear(key, config);
                for (uint32_t i = 0; i < file->n_paths && !r; i++)
                        r = config_key_set(key, config, file->paths[i], why);
        } else if (value) {
                r = config_key_set(key, config, value, why);
        }
        if (r) {
                name_place(config, key, why);
                return r;
        }
        /* An empty text asks for the default, where that is not a matter of bounds. */
        if (value && !*value)
                config->origin[key] = CONFIG_FROM_DEFAULT;
        return 0;
}

int config_parse(struct config *ret_config, const char *name, const void *text, size_t length,
                 struct why *why)
{
        struct config_file file;
        struct config config;
        int r;

        config_defaults(&config);
        snprintf(config.file, sizeof(config.file), "%s", name);
        r = config_file_parse(&file, name, text, length, why);
        if (r)
                return r;
        for (unsigned key = 0; key < CONFIG_N_KEYS && !r; key++)
                r = set_from_file(&config, &file, (enum config_key)key, why);
        config_file_deinit(&file);
        if (r)
                return r;
        derive_catalog(&config);
        derive_pool_index(&config);
        *ret_config = config;
        return 0;
}

/* Reads at most @size bytes of a file: their number or a negative errno. */
static ssize_t read_file(const char *path, char *buffer, size_t size)
{
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        size_t used = 0;
        ssize_t n;

        if (fd < 0)
                return err_raise(-errno);
        while (used < size) {
                n = read(fd, buffer + used, size - used);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return err_raise(-errno);
                if (n == 0)
                        break;
                used += (size_t)n;
        }
        return (ssize_t)used;
}

int config_load(struct config *ret_config, const char *path, struct why *why)
{
        _cleanup_free_ char *text = NULL;
        ssize_t length;

        if (!path) {
                config_defaults(ret_config);
                return 0;
        }
        if (strlen(path) >= CONFIG_PATH_BYTES) {
                why_set(why, "the path of the configuration is longer than %u bytes",
                        CONFIG_PATH_BYTES - 1);
                return -EINVAL;
        }
        text = malloc(CONFIG_FILE_MAX + 1);
        if (!text)
                return err_raise(-ENOMEM);
        length = read_file(path, text, CONFIG_FILE_MAX + 1);
        if (length < 0) {
                why_set(why, "%s: %s", path, strerror((int)-length));
                return (int)length;
        }
        return config_parse(ret_config, path, text, (size_t)length, why);
}

static int set_list(enum config_key key, struct config *config, const char *value, struct why *why)
{
        _cleanup_free_ char *copy = strdup(value);
        char *rest = copy, *item;
        int r = 0;

        if (!copy)
                return err_raise(-ENOMEM);
        config_key_clear(key, config);
        while (*value && !r && (item = strsep(&rest, ",")))
                r = config_key_set(key, config, item, why);
        return r;
}

int config_apply_override(struct config *config, const char *assignment, struct why *why)
{
        const char *equals = strchr(assignment, '=');
        struct config changed = *config;
        enum config_key key, like;
        int r;

        if (!equals) {
                why_set(why, "--set %.64s: write key=value, such as host.bytes=8GiB", assignment);
                return -EINVAL;
        }
        key = config_key_find(assignment, (size_t)(equals - assignment));
        if (key == CONFIG_N_KEYS) {
                like = config_key_like(assignment, (size_t)(equals - assignment));
                why_set(why, "--set %.64s: unknown key: %s%s", assignment,
                        like == CONFIG_N_KEYS ? "kvtierd.conf(5) lists all keys" : "did you mean ",
                        like == CONFIG_N_KEYS ? "" : config_key_name(like));
                return -EINVAL;
        }
        changed.origin[key] = equals[1] ? CONFIG_FROM_OVERRIDE : CONFIG_FROM_DEFAULT;
        r = config_key_is_list(key) ? set_list(key, &changed, equals + 1, why)
                                    : config_key_set(key, &changed, equals + 1, why);
        if (r) {
                why_prefix(why, "--set %s", config_key_name(key));
                return r;
        }
        derive_catalog(&changed);
        derive_pool_index(&changed);
        *config = changed;
        return 0;
}

/* The folder that @path is to be created in exists. */
static int check_parent(const char *path, struct why *why)
{
        char parent[CONFIG_PATH_BYTES];
        size_t length = (size_t)(strrchr(path, '/') - path);
        struct stat status;

        snprintf(parent, sizeof(parent), "%.*s", length ? (int)length : 1, path);
        if (stat(parent, &status)) {
                why_set(why, "the folder %.300s: %s: create it, or name another", parent,
                        strerror(errno));
                return -EINVAL;
        }
        if (!S_ISDIR(status.st_mode)) {
                why_set(why, "%.300s is not a folder: name a path inside one", parent);
                return -EINVAL;
        }
        if (access(parent, W_OK | X_OK)) {
                why_set(why,
                        "the folder %.300s is not writable by uid %u: change its owner or "
                        "name another",
                        parent, (unsigned)geteuid());
                return -EINVAL;
        }
        return 0;
}

static int check_pieces(const struct config *config, struct why *why)
{
        char piece[24], page[24], fits[24];
        uint64_t pieces;

        config_size_text(config->host.piece_bytes, piece);
        config_size_text(config->host.page_bytes, page);
        if (config->host.piece_bytes % config->host.page_bytes) {
                why_set(why, "%s is not a multiple of host.huge_pages (%s): use %s", piece, page,
                        page);
                name_place(config, CONFIG_HOST_PIECE_BYTES, why);
                return -EINVAL;
        }
        if (config->host.bytes % config->host.piece_bytes) {
                pieces = config->host.bytes / config->host.piece_bytes;
                config_size_text((pieces ? pieces : 1) * config->host.piece_bytes, fits);
                why_set(why,
                        "it is not a multiple of host.piece_bytes (%s): use %s, or a "
                        "smaller piece",
                        piece, fits);
                name_place(config, CONFIG_HOST_BYTES, why);
                return -EINVAL;
        }
        return 0;
}

static int check_host(const struct config *config, struct why *why)
{
        struct host_options options = {
                .total_bytes = config->host.bytes,
                .piece_bytes = config->host.piece_bytes,
                .page_bytes = config->host.page_bytes,
        };
        int r;

        r = check_pieces(config, why);
        if (r)
                return r;
        r = host_check(&options, why);
        if (r)
                name_place(config, CONFIG_HOST_BYTES, why);
        return r;
}

static int check_nvme(const struct config *config, bool format, struct why *why)
{
        const char *paths[CONFIG_PATHS_MAX];
        struct nvme_options options = {
                .paths = paths,
                .n_paths = config->nvme.n_paths,
                .bytes = config->nvme.bytes,
                .catalog_path = config->nvme.catalog,
                .format = format,
        };
        int r;

        if (!config->nvme.n_paths)
                return 0;
        /* A derived one is as right as the path that it lies beside. */
        if (config->origin[CONFIG_NVME_CATALOG] != CONFIG_FROM_DEFAULT &&
            check_parent(config->nvme.catalog, why)) {
                name_place(config, CONFIG_NVME_CATALOG, why);
                return -EINVAL;
        }
        for (uint32_t i = 0; i < config->nvme.n_paths; i++)
                paths[i] = config->nvme.paths[i];
        r = nvme_check(&options, why);
        if (r)
                name_place(config, r == -ENOSPC ? CONFIG_NVME_BYTES : CONFIG_NVME_PATHS, why);
        return r;
}

static int check_pool(const struct config *config, struct why *why)
{
        int r;

        if (config->pool.backend == CONFIG_POOL_OFF)
                return 0;
        if (check_parent(config->pool.index, why)) {
                name_place(config, CONFIG_POOL_INDEX, why);
                return -EINVAL;
        }
        if (config->pool.bundle_bytes > config->pool.bytes / 4) {
                why_set(why, "it is above a quarter of pool.bytes: use less, or a larger pool");
                name_place(config, CONFIG_POOL_BUNDLE_BYTES, why);
                return -EINVAL;
        }
        r = config_check_backend(config, why);
        if (r)
                name_place(config, CONFIG_POOL_BACKEND, why);
        return r;
}

/* Only root can give the socket to a group that it is no member of. */
static int check_group(const struct config *config, struct why *why)
{
        gid_t gid = config->socket.gid;

        if (gid == CONFIG_NO_GID || !geteuid() || gid == getegid() || group_member(gid))
                return 0;
        why_set(why,
                "uid %u is no member of it: add it (usermod -aG, or SupplementaryGroups= of the "
                "unit), or use \"\"",
                (unsigned)geteuid());
        return -EINVAL;
}

/* A port that lets nobody in is a mistake. */
static int check_rdma(const struct config *config, struct why *why)
{
        if (config->rdma.listen.ss_family == AF_UNSPEC) {
                if (!config->rdma.n_peers)
                        return 0;
                why_set(why, "peers are reached by RDMA: set rdma.listen, too");
                name_place(config, CONFIG_RDMA_PEERS, why);
                return -EINVAL;
        }
        if (rdma_check(why)) {
                name_place(config, CONFIG_RDMA_LISTEN, why);
                return err_raise(-ENOTSUP);
        }
        if (!*config->rdma.secret) {
                why_set(why, "rdma.listen is set: name the file that holds \"DOMAIN SECRET\"");
                name_place(config, CONFIG_RDMA_SECRET, why);
                return -EINVAL;
        }
        if (!config->rdma.n_allow) {
                why_set(why, "rdma.listen is set: name the networks that may connect, such as "
                             "10.0.0.0/8");
                name_place(config, CONFIG_RDMA_ALLOW, why);
                return -EINVAL;
        }
        return 0;
}

int config_check(const struct config *config, bool format, struct why *why)
{
        int r;

        r = check_parent(config->socket.path, why);
        if (r) {
                name_place(config, CONFIG_SOCKET_PATH, why);
                return r;
        }
        r = check_group(config, why);
        if (r) {
                name_place(config, CONFIG_SOCKET_GROUP, why);
                return r;
        }
        r = check_rdma(config, why);
        if (r)
                return r;
        r = check_host(config, why);
        if (r)
                return r;
        r = check_nvme(config, format, why);
        return r ? r : check_pool(config, why);
}

static bool differs(const struct config *a, const struct config *b, enum config_key key)
{
        const struct config_key_spec *spec = &config_keys[key];

        return memcmp((const char *)a + spec->offset, (const char *)b + spec->offset, spec->size) !=
               0;
}

void config_reload(struct config *config, const struct config *fresh,
                   struct config_changes *ret_changes)
{
        struct config_changes changes = {0};

        for (unsigned key = 0; key < CONFIG_N_KEYS; key++) {
                const struct config_key_spec *spec = &config_keys[key];

                if (!differs(config, fresh, (enum config_key)key))
                        continue;
                if (!spec->reloadable) {
                        changes.need_restart |= UINT64_C(1) << key;
                        continue;
                }
                memcpy((char *)config + spec->offset, (const char *)fresh + spec->offset,
                       spec->size);
                config->origin[key] = fresh->origin[key];
                changes.taken |= UINT64_C(1) << key;
        }
        *ret_changes = changes;
}

_Static_assert(CONFIG_N_KEYS <= 64, "one bit each in a uint64_t");

void config_key_names(uint64_t keys, char *ret_text, size_t size)
{
        size_t used = 0;
        int n;

        ret_text[0] = 0;
        for (unsigned key = 0; key < CONFIG_N_KEYS && used < size; key++) {
                if (!(keys & UINT64_C(1) << key))
                        continue;
                n = snprintf(ret_text + used, size - used, "%s%s", used ? ", " : "",
                             config_keys[key].name);
                used += n > 0 ? (size_t)n : 0;
        }
}
