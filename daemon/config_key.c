// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <ctype.h>
#include <grp.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config_key.h"
#include "proto/remote.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)

static const struct {
        const char *name;
        uint64_t bytes;
} units[] = {{"TiB", TIB}, {"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}};

#define N_UNITS (sizeof(units) / sizeof(units[0]))

void config_size_text(uint64_t bytes, char ret_text[24])
{
        for (size_t i = 0; i < N_UNITS; i++) {
                if (bytes && bytes % units[i].bytes == 0) {
                        snprintf(ret_text, 24, "%" PRIu64 "%s", bytes / units[i].bytes,
                                 units[i].name);
                        return;
                }
        }
        snprintf(ret_text, 24, "%" PRIu64, bytes);
}

/* Digits from the start of @text: their value, and what follows them. */
static bool leading_number(const char *text, uint64_t *ret_number, const char **ret_rest)
{
        char *end;

        if (!isdigit((unsigned char)*text))
                return false;
        errno = 0;
        *ret_number = strtoull(text, &end, 10);
        *ret_rest = end;
        return errno == 0;
}

static void store_number(const struct config_key_spec *spec, struct config *config, uint64_t number)
{
        char *field = (char *)config + spec->offset;

        if (spec->size == sizeof(uint64_t)) {
                memcpy(field, &number, sizeof(number));
        } else {
                uint32_t narrow = (uint32_t)number;

                memcpy(field, &narrow, sizeof(narrow));
        }
}

static int set_number(const struct config_key_spec *spec, struct config *config, const char *value,
                      struct why *why)
{
        const char *rest;
        uint64_t number;

        if (!leading_number(value, &number, &rest) || *rest || number < spec->min ||
            number > spec->max) {
                why_set(why, "\"%.64s\" is not a number from %" PRIu64 " to %" PRIu64, value,
                        spec->min, spec->max);
                return -EINVAL;
        }
        store_number(spec, config, number);
        return 0;
}

/* 0 when @text ends there, else the unit's bytes; UINT64_MAX for an unknown unit. */
static uint64_t unit_bytes(const char *text)
{
        if (!*text)
                return 1;
        for (size_t i = 0; i < N_UNITS; i++)
                if (!strcmp(text, units[i].name))
                        return units[i].bytes;
        return UINT64_MAX;
}

static int set_size(const struct config_key_spec *spec, struct config *config, const char *value,
                    struct why *why)
{
        char low[24], high[24];
        const char *rest;
        uint64_t number, unit;

        if (!leading_number(value, &number, &rest) || (unit = unit_bytes(rest)) == UINT64_MAX) {
                why_set(why,
                        "\"%.64s\" is not a size: use a number of bytes, or a number with "
                        "KiB, MiB, GiB or TiB behind it, such as 4GiB",
                        value);
                return -EINVAL;
        }
        if (__builtin_mul_overflow(number, unit, &number) || number < spec->min ||
            number > spec->max) {
                config_size_text(spec->min, low);
                config_size_text(spec->max, high);
                why_set(why, "\"%.64s\" is out of bounds: use %s to %s", value, low, high);
                return -EINVAL;
        }
        if (number % 4096 != 0) {
                why_set(why, "\"%.64s\" is not a multiple of 4KiB: use %" PRIu64 "KiB", value,
                        (number / 4096 + 1) * 4);
                return -EINVAL;
        }
        store_number(spec, config, number);
        return 0;
}

static int set_mode(const struct config_key_spec *spec, struct config *config, const char *value,
                    struct why *why)
{
        size_t digits = strspn(value, "01234567");

        if (!digits || value[digits] || strtoul(value, NULL, 8) > 0777) {
                why_set(why,
                        "\"%.64s\" is not a file mode: use octal digits up to 0777, such as 0660",
                        value);
                return -EINVAL;
        }
        store_number(spec, config, strtoul(value, NULL, 8));
        return 0;
}

static int find_group(const char *name, gid_t *ret_gid)
{
        char buffer[16384];
        struct group group, *found = NULL;

        if (getgrnam_r(name, &group, buffer, sizeof(buffer), &found) || !found)
                return -ENOENT;
        *ret_gid = found->gr_gid;
        return 0;
}

static int set_group(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        gid_t gid = CONFIG_NO_GID;

        if (*value && find_group(value, &gid)) {
                why_set(why,
                        "there is no group named \"%.64s\" on this machine: create it "
                        "(groupadd), or use \"\"",
                        value);
                return -EINVAL;
        }
        store_number(spec, config, gid);
        return 0;
}

static int copy_path(char *ret_path, size_t size, const char *value, struct why *why)
{
        if (*value != '/') {
                why_set(why, "\"%.64s\" is not an absolute path: let it begin with /", value);
                return -EINVAL;
        }
        if (strlen(value) >= size) {
                why_set(why, "the path is %zu bytes long: use at most %zu", strlen(value),
                        size - 1);
                return -EINVAL;
        }
        memset(ret_path, 0, size);
        memcpy(ret_path, value, strlen(value));
        return 0;
}

static int set_path(const struct config_key_spec *spec, struct config *config, const char *value,
                    struct why *why)
{
        char *path = (char *)config + spec->offset;

        if (!*value && !*spec->fallback) {
                memset(path, 0, spec->size);
                return 0;
        }
        return copy_path(path, spec->size, value, why);
}

static int add_path(const struct config_key_spec *spec, struct config *config, const char *value,
                    struct why *why)
{
        if (config->nvme.n_paths == CONFIG_PATHS_MAX) {
                why_set(why, "more than %u paths: use fewer", CONFIG_PATHS_MAX);
                return -EINVAL;
        }
        for (uint32_t i = 0; i < config->nvme.n_paths; i++) {
                if (!strcmp(config->nvme.paths[i], value)) {
                        why_set(why, "\"%.400s\" is there twice: name each path once", value);
                        return -EINVAL;
                }
        }
        if (copy_path(config->nvme.paths[config->nvme.n_paths], CONFIG_PATH_BYTES, value, why))
                return -EINVAL;
        config->nvme.n_paths++;
        return 0;
}

static int set_huge_pages(const struct config_key_spec *spec, struct config *config,
                          const char *value, struct why *why)
{
        if (!strcmp(value, "off")) {
                config->host.page_bytes = 4096;
        } else if (!strcmp(value, "2MiB")) {
                config->host.page_bytes = 2 * MIB;
        } else if (!strcmp(value, "1GiB")) {
                config->host.page_bytes = GIB;
        } else {
                why_set(why, "\"%.64s\" is none of off, 2MiB, 1GiB", value);
                return -EINVAL;
        }
        return 0;
}

/* Stores the number of @value among @words, which end with NULL. */
static int set_word(const struct config_key_spec *spec, struct config *config, const char *value,
                    const char *const *words, struct why *why)
{
        char all[64] = "";

        for (uint32_t i = 0; words[i]; i++) {
                if (!strcmp(value, words[i])) {
                        store_number(spec, config, i);
                        return 0;
                }
                snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i ? ", " : "",
                         words[i]);
        }
        why_set(why, "\"%.64s\" is none of %s", value, all);
        return -EINVAL;
}

_Static_assert(sizeof(enum placement_write) == 4 && sizeof(enum config_pool_backend) == 4,
               "set_word() stores them");

static int set_write(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        static const char *const words[] = {[PLACEMENT_WRITE_OFF] = "off",
                                            [PLACEMENT_WRITE_COLD] = "cold",
                                            [PLACEMENT_WRITE_STORE] = "store",
                                            NULL};

        return set_word(spec, config, value, words, why);
}

static int set_backend(const struct config_key_spec *spec, struct config *config, const char *value,
                       struct why *why)
{
        return set_word(spec, config, value, config_pool_names, why);
}

static int set_admit(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        static const char *const words[] = {"seen-twice", "all", NULL};

        return set_word(spec, config, value, words, why);
}

static int set_switch(const struct config_key_spec *spec, struct config *config, const char *value,
                      struct why *why)
{
        static const char *const words[] = {"off", "on", NULL};

        return set_word(spec, config, value, words, why);
}

/* What it may be is its user's business. */
static int set_text(const struct config_key_spec *spec, struct config *config, const char *value,
                    struct why *why)
{
        char *text = (char *)config + spec->offset;

        if (strlen(value) >= spec->size) {
                why_set(why, "it is %zu bytes long: use at most %zu", strlen(value),
                        spec->size - 1);
                return -EINVAL;
        }
        memset(text, 0, spec->size);
        memcpy(text, value, strlen(value));
        return 0;
}

static int set_codec(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        struct encoding_choice choice;
        int r = encoding_choice_parse(&choice, value, why);

        if (!r)
                memcpy((char *)config + spec->offset, &choice, sizeof(choice));
        return r;
}

static int set_level(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        if (log_level_parse(value, &config->log.level)) {
                why_set(why, "\"%.64s\" is none of error, warning, info, debug", value);
                return -EINVAL;
        }
        return 0;
}

/* "127.0.0.1:9464" or "[::1]:9464". */
static bool parse_address(const char *value, struct sockaddr_storage *ret_address)
{
        struct sockaddr_in *four = (struct sockaddr_in *)ret_address;
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_address;
        const char *colon = strrchr(value, ':'), *rest;
        char host[64];
        size_t length;
        uint64_t port;

        if (!colon || !leading_number(colon + 1, &port, &rest) || *rest || port > 65535)
                return false;
        length = (size_t)(colon - value);
        if (length == 0 || length >= sizeof(host))
                return false;
        memcpy(host, value, length);
        host[length] = 0;

        if (host[0] == '[' && host[length - 1] == ']') {
                host[length - 1] = 0;
                six->sin6_family = AF_INET6;
                six->sin6_port = htons((uint16_t)port);
                return inet_pton(AF_INET6, host + 1, &six->sin6_addr) == 1;
        }
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return inet_pton(AF_INET, host, &four->sin_addr) == 1;
}

static int set_listen(const struct config_key_spec *spec, struct config *config, const char *value,
                      struct why *why)
{
        struct sockaddr_storage address = {0};

        if (strcmp(value, "off") != 0 && !parse_address(value, &address)) {
                why_set(why,
                        "\"%.64s\" is not an address: use IP:PORT such as 127.0.0.1:9464 or "
                        "[::1]:9464, or off",
                        value);
                return -EINVAL;
        }
        config->metrics.listen = address;
        return 0;
}

static int set_rdma_listen(const struct config_key_spec *spec, struct config *config,
                           const char *value, struct why *why)
{
        struct sockaddr_storage address = {0};

        if (strcmp(value, "off") != 0 && rdma_address_parse(&address, value, REMOTE_PORT, why))
                return -EINVAL;
        config->rdma.listen = address;
        return 0;
}

/* Networks in one line: "10.0.0.0/8, fd00::/8". */
static int set_networks(const struct config_key_spec *spec, struct config *config,
                        const char *value, struct why *why)
{
        struct rdma_network networks[CONFIG_NETWORKS_MAX];
        uint32_t n = 0;

        while (*(value += strspn(value, ", "))) {
                size_t length = strcspn(value, ", ");
                char text[64];

                if (n == CONFIG_NETWORKS_MAX) {
                        why_set(why, "more than %u networks: use fewer", CONFIG_NETWORKS_MAX);
                        return -EINVAL;
                }
                snprintf(text, sizeof(text), "%.*s", (int)length, value);
                if (rdma_network_parse(&networks[n++], text, why))
                        return -EINVAL;
                value += length;
        }
        memset(config->rdma.allow, 0, sizeof(config->rdma.allow));
        memcpy(config->rdma.allow, networks, n * sizeof(networks[0]));
        config->rdma.n_allow = n;
        return 0;
}

/* "NAME" or "NAME:PORT"; what consists of digits and dots was meant to be an address. */
static bool is_peer_name(const char *text)
{
        static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
        static const char digits[] = "0123456789.";
        size_t n_digits = strspn(text, digits), length = n_digits;
        const char *port;

        while (text[length] && text[length] != ':') {
                if (!strchr(letters, text[length]) && !strchr(digits, text[length]))
                        return false;
                length++;
        }
        if (length == n_digits)
                return false;
        if (!text[length])
                return true;
        port = text + length + 1;
        length = strlen(port);
        return length && length <= 5 && strspn(port, "0123456789") == length &&
               strtoul(port, NULL, 10) >= 1 && strtoul(port, NULL, 10) <= UINT16_MAX;
}

static bool is_peer_address(const char *text)
{
        struct sockaddr_storage address;
        const struct sockaddr_in *v4 = (const void *)&address;
        const struct sockaddr_in6 *v6 = (const void *)&address;
        struct why ignored;

        if (rdma_address_parse(&address, text, REMOTE_PORT, &ignored))
                return false;
        return address.ss_family == AF_INET6 ? v6->sin6_port != 0 : v4->sin_port != 0;
}

static int check_peer(const char *text, struct why *why)
{
        if (is_peer_name(text) || is_peer_address(text))
                return 0;
        why_set(why,
                "\"%s\" is no peer: IP, IP:PORT, [IPV6]:PORT, NAME or NAME:PORT, ports 1 to %u",
                text, UINT16_MAX);
        return -EINVAL;
}

/* Addresses and names in one line: "10.0.0.2, node-c:7428, kvtier.svc". */
static int set_peers(const struct config_key_spec *spec, struct config *config, const char *value,
                     struct why *why)
{
        char peers[CONFIG_PEERS_MAX][CONFIG_PEER_BYTES] = {{0}};
        uint32_t n = 0;

        while (*(value += strspn(value, ", "))) {
                size_t length = strcspn(value, ", ");

                if (n == CONFIG_PEERS_MAX || length >= CONFIG_PEER_BYTES) {
                        why_set(why, "more than %u peers, or one of more than %u bytes: use fewer",
                                CONFIG_PEERS_MAX, CONFIG_PEER_BYTES - 1);
                        return -EINVAL;
                }
                memcpy(peers[n], value, length);
                if (check_peer(peers[n++], why))
                        return -EINVAL;
                value += length;
        }
        memcpy(config->rdma.peers, peers, sizeof(peers));
        config->rdma.n_peers = n;
        return 0;
}

#define RELOADABLE true
#define RESTART    false
#define FIELD(member)                                                                              \
        .offset = offsetof(struct config, member), .size = sizeof(((struct config *)0)->member)

_Static_assert(sizeof(mode_t) == 4 && sizeof(gid_t) == 4, "store_number() writes 4 or 8 bytes");

const struct config_key_spec config_keys[CONFIG_N_KEYS] = {
        [CONFIG_SOCKET_PATH] = {"socket.path", "/run/kvtier/kvtierd.sock", RESTART, set_path,
                                FIELD(socket.path)},
        [CONFIG_SOCKET_MODE] = {"socket.mode", "0660", RESTART, set_mode, FIELD(socket.mode)},
        [CONFIG_SOCKET_GROUP] = {"socket.group", "", RESTART, set_group, FIELD(socket.gid)},
        [CONFIG_ADMIN_GROUP] = {"admin.group", "", RESTART, set_group, FIELD(admin.gid)},
        [CONFIG_SESSIONS_MAX] = {"sessions.max", "256", RESTART, set_number, FIELD(sessions.max), 1,
                                 65536},
        [CONFIG_SESSION_LEASES_MAX] = {"session.leases_max", "65536", RESTART, set_number,
                                       FIELD(session.leases_max), 1, 1 << 24},
        [CONFIG_SESSION_BYTES_MAX] = {"session.bytes_max", "0", RESTART, set_size,
                                      FIELD(session.bytes_max), 0, 64 * TIB},
        [CONFIG_HOST_BYTES] = {"host.bytes", "4GiB", RESTART, set_size, FIELD(host.bytes), MIB,
                               64 * TIB},
        [CONFIG_HOST_PIECE_BYTES] = {"host.piece_bytes", "1GiB", RESTART, set_size,
                                     FIELD(host.piece_bytes), MIB, TIB},
        [CONFIG_HOST_HUGE_PAGES] = {"host.huge_pages", "off", RESTART, set_huge_pages,
                                    FIELD(host.page_bytes)},
        [CONFIG_HOST_LEASE_SHARE_PERCENT] = {"host.lease_share_percent", "80", RELOADABLE,
                                             set_number, FIELD(host.lease_share_percent), 1, 100},
        [CONFIG_HOST_PINNED_SHARE_PERCENT] = {"host.pinned_share_percent", "20", RELOADABLE,
                                              set_number, FIELD(host.pinned_share_percent), 0, 90},
        [CONFIG_NVME_PATHS] = {"nvme.paths", NULL, RESTART, add_path, FIELD(nvme.paths)},
        [CONFIG_NVME_BYTES] = {"nvme.bytes", "64GiB", RESTART, set_size, FIELD(nvme.bytes),
                               16 * MIB, 1024 * TIB},
        [CONFIG_NVME_CATALOG] = {"nvme.catalog", "", RESTART, set_path, FIELD(nvme.catalog)},
        [CONFIG_NVME_WRITE] = {"nvme.write", "cold", RELOADABLE, set_write, FIELD(nvme.write)},
        [CONFIG_NVME_CODEC] = {"nvme.codec", "off", RELOADABLE, set_codec, FIELD(nvme.codec)},
        [CONFIG_NVME_SYNC_MS] = {"nvme.sync_ms", "1000", RESTART, set_number, FIELD(nvme.sync_ms),
                                 10, 60000},
        [CONFIG_NVME_QUEUE_DEPTH] = {"nvme.queue_depth", "32", RESTART, set_number,
                                     FIELD(nvme.queue_depth), 1, 1024},
        [CONFIG_NVME_PINNED_SHARE_PERCENT] = {"nvme.pinned_share_percent", "20", RELOADABLE,
                                              set_number, FIELD(nvme.pinned_share_percent), 0, 90},
        [CONFIG_POOL_BACKEND] = {"pool.backend", "off", RESTART, set_backend, FIELD(pool.backend)},
        [CONFIG_POOL_BYTES] = {"pool.bytes", "256GiB", RESTART, set_size, FIELD(pool.bytes),
                               64 * MIB, 1024 * 1024 * TIB},
        [CONFIG_POOL_INDEX] = {"pool.index", "", RESTART, set_path, FIELD(pool.index)},
        [CONFIG_POOL_PREFIX] = {"pool.prefix", "kvtier", RESTART, set_text, FIELD(pool.prefix)},
        [CONFIG_POOL_WRITE] = {"pool.write", "cold", RELOADABLE, set_write, FIELD(pool.write)},
        [CONFIG_POOL_ADMIT] = {"pool.admit", "seen-twice", RELOADABLE, set_admit,
                               FIELD(pool.admit_all)},
        [CONFIG_POOL_ADMIT_TOKENS] = {"pool.admit_tokens", "0", RELOADABLE, set_number,
                                      FIELD(pool.admit_tokens), 0, 1 << 30},
        [CONFIG_POOL_CODEC] = {"pool.codec", "off", RELOADABLE, set_codec, FIELD(pool.codec)},
        [CONFIG_POOL_BUNDLE_BYTES] = {"pool.bundle_bytes", "16MiB", RESTART, set_size,
                                      FIELD(pool.bundle_bytes), MIB, 64 * MIB},
        [CONFIG_POOL_LINGER_MS] = {"pool.linger_ms", "100", RESTART, set_number,
                                   FIELD(pool.linger_ms), 1, 10000},
        [CONFIG_POOL_DEADLINE_MS] = {"pool.deadline_ms", "10000", RESTART, set_number,
                                     FIELD(pool.deadline_ms), 100, 600000},
        [CONFIG_POOL_READ_BYTES_PER_S] = {"pool.read_bytes_per_s", "0", RESTART, set_size,
                                          FIELD(pool.read_bytes_per_s), 0, TIB},
        [CONFIG_POOL_WRITE_BYTES_PER_S] = {"pool.write_bytes_per_s", "0", RESTART, set_size,
                                           FIELD(pool.write_bytes_per_s), 0, TIB},
        [CONFIG_POOL_QUEUE_DEPTH] = {"pool.queue_depth", "16", RESTART, set_number,
                                     FIELD(pool.queue_depth), 1, 1024},
        [CONFIG_POOL_PINNED_SHARE_PERCENT] = {"pool.pinned_share_percent", "20", RELOADABLE,
                                              set_number, FIELD(pool.pinned_share_percent), 0, 90},
        [CONFIG_RADOS_CONFIG] = {"rados.config", "", RESTART, set_path, FIELD(rados.config)},
        [CONFIG_RADOS_USER] = {"rados.user", "", RESTART, set_text, FIELD(rados.user)},
        [CONFIG_RADOS_KEYRING] = {"rados.keyring", "", RESTART, set_path, FIELD(rados.keyring)},
        [CONFIG_RADOS_POOL] = {"rados.pool", "kvtier", RESTART, set_text, FIELD(rados.pool)},
        [CONFIG_S3_ENDPOINT] = {"s3.endpoint", "", RESTART, set_text, FIELD(s3.endpoint)},
        [CONFIG_S3_REGION] = {"s3.region", "", RESTART, set_text, FIELD(s3.region)},
        [CONFIG_S3_BUCKET] = {"s3.bucket", "", RESTART, set_text, FIELD(s3.bucket)},
        [CONFIG_S3_CREDENTIALS] = {"s3.credentials", "", RESTART, set_path, FIELD(s3.credentials)},
        [CONFIG_S3_CA] = {"s3.ca", "", RESTART, set_path, FIELD(s3.ca)},
        [CONFIG_S3_PATH_STYLE] = {"s3.path_style", "off", RESTART, set_switch,
                                  FIELD(s3.path_style)},
        [CONFIG_S3_ALLOW_HTTP] = {"s3.allow_http", "off", RESTART, set_switch,
                                  FIELD(s3.allow_http)},
        [CONFIG_INDEX_OBJECTS_MAX] = {"index.objects_max", "1000000", RESTART, set_number,
                                      FIELD(index.objects_max), 16, 1 << 30},
        [CONFIG_CHUNK_TOKENS] = {"chunk_tokens", "256", RESTART, set_number, FIELD(chunk_tokens), 1,
                                 CONFIG_CHUNK_MAX},
        [CONFIG_METRICS_LISTEN] = {"metrics.listen", "127.0.0.1:9464", RESTART, set_listen,
                                   FIELD(metrics.listen)},
        [CONFIG_RDMA_LISTEN] = {"rdma.listen", "off", RESTART, set_rdma_listen, FIELD(rdma.listen)},
        [CONFIG_RDMA_SECRET] = {"rdma.secret", "", RESTART, set_path, FIELD(rdma.secret)},
        [CONFIG_RDMA_ALLOW] = {"rdma.allow", "", RESTART, set_networks, FIELD(rdma.allow)},
        [CONFIG_RDMA_PEERS] = {"rdma.peers", "", RESTART, set_peers, FIELD(rdma.peers)},
        [CONFIG_RDMA_WHOLE_REGIONS] = {"rdma.whole_regions", "off", RESTART, set_switch,
                                       FIELD(rdma.whole_regions)},
        [CONFIG_RDMA_BUSY_POLL] = {"rdma.busy_poll", "off", RESTART, set_switch,
                                   FIELD(rdma.busy_poll)},
        [CONFIG_DRAIN_SECONDS] = {"drain.seconds", "20", RELOADABLE, set_number,
                                  FIELD(drain.seconds), 0, 3600},
        [CONFIG_LOG_LEVEL] = {"log.level", "info", RELOADABLE, set_level, FIELD(log.level)},
};

enum config_key config_key_find(const char *name, size_t length)
{
        unsigned key;

        for (key = 0; key < CONFIG_N_KEYS; key++)
                if (strlen(config_keys[key].name) == length &&
                    !memcmp(config_keys[key].name, name, length))
                        break;
        return (enum config_key)key;
}

#define LIKE_MAX 64

/* Levenshtein distance of two short strings. */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
        unsigned row[LIKE_MAX + 1];

        for (size_t j = 0; j <= n_b; j++)
                row[j] = (unsigned)j;
        for (size_t i = 1; i <= n_a; i++) {
                unsigned diagonal = row[0];

                row[0] = (unsigned)i;
                for (size_t j = 1; j <= n_b; j++) {
                        unsigned best = diagonal + (a[i - 1] != b[j - 1]);

                        diagonal = row[j];
                        if (row[j] + 1 < best)
                                best = row[j] + 1;
                        if (row[j - 1] + 1 < best)
                                best = row[j - 1] + 1;
                        row[j] = best;
                }
        }
        return row[n_b];
}

enum config_key config_key_like(const char *name, size_t length)
{
        unsigned best = CONFIG_N_KEYS, best_distance = 4; /* further off is a guess */

        if (length > LIKE_MAX)
                return CONFIG_N_KEYS;
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++) {
                const char *candidate = config_keys[key].name;
                unsigned far = distance(name, length, candidate, strlen(candidate));

                if (far < best_distance) {
                        best = key;
                        best_distance = far;
                }
        }
        return (enum config_key)best;
}

int config_key_set(enum config_key key, struct config *config, const char *value, struct why *why)
{
        const struct config_key_spec *spec = &config_keys[key];

        return spec->set(spec, config, value, why);
}

bool config_key_is_list(enum config_key key)
{
        return !config_keys[key].fallback;
}

void config_key_clear(enum config_key key, struct config *config)
{
        if (key == CONFIG_NVME_PATHS) {
                memset(config->nvme.paths, 0, sizeof(config->nvme.paths));
                config->nvme.n_paths = 0;
        }
}
