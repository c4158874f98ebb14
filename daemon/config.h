// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration: one YAML file of nested maps, one table of keys (config_key.h), one
 * plain struct with every value resolved (bytes, gids, addresses; no units left).
 *
 * libcyaml maps the file to strings by the schema; the table says what each string may
 * be. So the file, `--set key=value` and the defaults go through the same parser and the
 * same bounds. Each key remembers where its value came from, and every refusal names that
 * place: "kvtierd.conf:12: host.bytes: ... use at most 20GiB".
 *
 * The struct holds no pointers: it is copied and compared as a whole. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/config_pool.h"
#include "daemon/config_rdma.h"
#include "daemon/encoding_choice.h"
#include "daemon/placement.h"

#define CONFIG_DEFAULT_PATH "/etc/kvtier/kvtierd.conf"
#define CONFIG_PATHS_MAX    16u  /* nvme.paths */
#define CONFIG_SOCKET_BYTES 108u /* sun_path, terminating zero included */
#define CONFIG_CHUNK_MAX    (1u << 20)
#define CONFIG_NO_GID       ((gid_t)-1)

enum config_key {
        CONFIG_SOCKET_PATH,
        CONFIG_SOCKET_MODE,
        CONFIG_SOCKET_GROUP,
        CONFIG_ADMIN_GROUP,
        CONFIG_SESSIONS_MAX,
        CONFIG_SESSION_LEASES_MAX,
        CONFIG_SESSION_BYTES_MAX,
        CONFIG_HOST_BYTES,
        CONFIG_HOST_PIECE_BYTES,
        CONFIG_HOST_HUGE_PAGES,
        CONFIG_HOST_LEASE_SHARE_PERCENT,
        CONFIG_HOST_PINNED_SHARE_PERCENT,
        CONFIG_NVME_PATHS,
        CONFIG_NVME_BYTES,
        CONFIG_NVME_CATALOG,
        CONFIG_NVME_WRITE,
        CONFIG_NVME_CODEC,
        CONFIG_NVME_SYNC_MS,
        CONFIG_NVME_QUEUE_DEPTH,
        CONFIG_NVME_PINNED_SHARE_PERCENT,
        CONFIG_RDMA_LISTEN,
        CONFIG_RDMA_SECRET,
        CONFIG_RDMA_ALLOW,
        CONFIG_RDMA_PEERS,
        CONFIG_RDMA_WHOLE_REGIONS,
        CONFIG_RDMA_BUSY_POLL,
        CONFIG_POOL_BACKEND,
        CONFIG_POOL_BYTES,
        CONFIG_POOL_INDEX,
        CONFIG_POOL_PREFIX,
        CONFIG_POOL_WRITE,
        CONFIG_POOL_ADMIT,
        CONFIG_POOL_ADMIT_TOKENS,
        CONFIG_POOL_CODEC,
        CONFIG_POOL_BUNDLE_BYTES,
        CONFIG_POOL_LINGER_MS,
        CONFIG_POOL_DEADLINE_MS,
        CONFIG_POOL_READ_BYTES_PER_S,
        CONFIG_POOL_WRITE_BYTES_PER_S,
        CONFIG_POOL_QUEUE_DEPTH,
        CONFIG_POOL_PINNED_SHARE_PERCENT,
        CONFIG_RADOS_CONFIG,
        CONFIG_RADOS_USER,
        CONFIG_RADOS_KEYRING,
        CONFIG_RADOS_POOL,
        CONFIG_S3_ENDPOINT,
        CONFIG_S3_REGION,
        CONFIG_S3_BUCKET,
        CONFIG_S3_CREDENTIALS,
        CONFIG_S3_CA,
        CONFIG_S3_PATH_STYLE,
        CONFIG_S3_ALLOW_HTTP,
        CONFIG_INDEX_OBJECTS_MAX,
        CONFIG_CHUNK_TOKENS,
        CONFIG_METRICS_LISTEN,
        CONFIG_DRAIN_SECONDS,
        CONFIG_LOG_LEVEL,
        CONFIG_N_KEYS
};

/* Where a value came from. */
#define CONFIG_FROM_DEFAULT  0
#define CONFIG_FROM_OVERRIDE (-1) /* --set; any other value is a line of the file */

struct config {
        struct {
                char path[CONFIG_SOCKET_BYTES];
                mode_t mode;
                gid_t gid; /* CONFIG_NO_GID: the daemon's own */
        } socket;
        struct {
                gid_t gid; /* CONFIG_NO_GID: root and the daemon's uid only */
        } admin;
        struct {
                uint32_t max;
        } sessions;
        struct {
                uint32_t leases_max;
                uint64_t bytes_max; /* in flight and leased; 0: the lease share alone limits */
        } session;
        struct {
                uint64_t bytes;
                uint64_t piece_bytes;
                uint64_t page_bytes; /* 4096, 2 MiB or 1 GiB (host.huge_pages) */
                uint32_t lease_share_percent;
                uint32_t pinned_share_percent;
        } host;
        struct {
                char paths[CONFIG_PATHS_MAX][CONFIG_PATH_BYTES];
                uint32_t n_paths;                /* 0: no NVMe tier */
                uint64_t bytes;                  /* of all paths together */
                char catalog[CONFIG_PATH_BYTES]; /* a folder; resolved when it was left out */
                enum placement_write write;
                struct encoding_choice codec;
                uint32_t sync_ms;
                uint32_t queue_depth; /* of each path */
                uint32_t pinned_share_percent;
        } nvme;
        struct config_pool pool;
        struct config_rados rados;
        struct config_s3 s3;
        struct {
                uint64_t objects_max;
        } index;
        uint32_t chunk_tokens;
        struct {
                struct sockaddr_storage listen; /* ss_family AF_UNSPEC: off */
        } metrics;
        struct config_rdma rdma;
        struct {
                uint32_t seconds;
        } drain;
        struct {
                enum log_level level;
        } log;

        int32_t origin[CONFIG_N_KEYS]; /* CONFIG_FROM_* or a line */
        char file[CONFIG_PATH_BYTES];  /* as given; "" without a file */
};

/* "host.bytes". */
const char *config_key_name(enum config_key key);

/* Every key at its default. */
void config_defaults(struct config *ret_config);

/*
 * Reads @path (NULL: defaults only). 0, -EINVAL for what the file says, or the errno of
 * reading it; @why names file, line, key and what would be right.
 */
int config_load(struct config *ret_config, const char *path, struct why *why);

/* As config_load(), from memory; @name stands for the file in messages. */
int config_parse(struct config *ret_config, const char *name, const void *text, size_t length,
                 struct why *why);

/*
 * Sets one key from "host.bytes=8GiB"; lists are separated by commas. @config is
 * unchanged on failure (-EINVAL).
 */
int config_apply_override(struct config *config, const char *assignment, struct why *why);

/*
 * What one key alone cannot tell: sizes against each other and against this machine,
 * folders that must exist. @format: unknown content of nvme.paths is no fault. 0 or a
 * negative errno. Call it after the last override.
 */
int config_check(const struct config *config, bool format, struct why *why);

/* One bit a key: UINT64_C(1) << enum config_key. */
struct config_changes {
        uint64_t taken;        /* reloadable keys that changed: @config has their new values */
        uint64_t need_restart; /* other keys that differ: @config keeps the old values */
};

/* Takes the reloadable values of @fresh, which has been checked, into @config. */
void config_reload(struct config *config, const struct config *fresh,
                   struct config_changes *ret_changes);

/* Writes the names of @keys, "host.bytes, nvme.paths", cut at @size. */
void config_key_names(uint64_t keys, char *ret_text, size_t size);
