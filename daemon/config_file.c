// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <cyaml/cyaml.h>
#include <yaml.h>

#include "daemon/config_file.h"
#include "daemon/config_key.h"

/*
 * First reading: where things stand.
 */

struct walk {
        yaml_document_t *document;
        struct config_file *file;
        const char *name;
        struct why *why;
        const char *seen[CONFIG_N_KEYS]; /* sections */
        size_t n_seen;
};

static int line_of(const yaml_node_t *node)
{
        return (int)node->start_mark.line + 1;
}

static const char *text_of(const yaml_node_t *node, size_t *ret_length)
{
        *ret_length = node->data.scalar.length;
        return (const char *)node->data.scalar.value;
}

static int refuse_unknown(struct walk *walk, const yaml_node_t *node, const char *name)
{
        enum config_key like = config_key_like(name, strlen(name));

        if (like == CONFIG_N_KEYS)
                why_set(walk->why, "%s:%d: %.64s: unknown key: kvtierd.conf(5) lists all keys",
                        walk->name, line_of(node), name);
        else
                why_set(walk->why, "%s:%d: %.64s: unknown key: did you mean %s?", walk->name,
                        line_of(node), name, config_key_name(like));
        return -EINVAL;
}

static int refuse_value(struct walk *walk, const yaml_node_t *node, const char *name,
                        const char *expected)
{
        why_set(walk->why, "%s:%d: %.64s: %s", walk->name, line_of(node), name, expected);
        return -EINVAL;
}

/* Strings go on as C strings: a zero byte inside would cut them unseen. */
static bool is_plain_text(const yaml_node_t *node)
{
        size_t length;
        const char *text = text_of(node, &length);

        for (size_t i = 0; i < length; i++)
                if (iscntrl((unsigned char)text[i]))
                        return false;
        return true;
}

static int check_scalar(struct walk *walk, const yaml_node_t *node, const char *name)
{
        if (node->type != YAML_SCALAR_NODE)
                return refuse_value(walk, node, name, "one value belongs here, not a list or map");
        if (!node->data.scalar.length && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
                return refuse_value(walk, node, name,
                                    "the value is missing: write one, or remove the line for the "
                                    "default");
        if (!is_plain_text(node))
                return refuse_value(walk, node, name, "the value holds control characters");
        return 0;
}

static int check_list(struct walk *walk, const yaml_node_t *node, const char *name)
{
        yaml_node_item_t *item;
        int r;

        if (node->type != YAML_SEQUENCE_NODE)
                return refuse_value(walk, node, name,
                                    "a list belongs here, such as [/a, /b]; [] for none");
        for (item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
                r = check_scalar(walk, yaml_document_get_node(walk->document, *item), name);
                if (r)
                        return r;
        }
        return 0;
}

/* "section.name" or "name" for a key; -EINVAL for what cannot be one. */
static int key_name(struct walk *walk, const char *section, const yaml_node_t *node, char *ret_name,
                    size_t size)
{
        size_t length;

        if (node->type != YAML_SCALAR_NODE || !is_plain_text(node))
                return refuse_value(walk, node, *section ? section : "(top level)",
                                    "a key is a word, not a list or map");
        text_of(node, &length);
        if (*section)
                snprintf(ret_name, size, "%s.%.64s", section,
                         (const char *)node->data.scalar.value);
        else
                snprintf(ret_name, size, "%.64s", (const char *)node->data.scalar.value);
        return 0;
}

static int walk_value(struct walk *walk, const char *name, const yaml_node_t *key_node,
                      const yaml_node_t *value)
{
        enum config_key key = config_key_find(name, strlen(name));

        if (key == CONFIG_N_KEYS)
                return refuse_unknown(walk, key_node, name);
        if (walk->file->lines[key]) {
                why_set(walk->why, "%s:%d: %s: it is on line %d already: keep one of them",
                        walk->name, line_of(key_node), name, walk->file->lines[key]);
                return -EINVAL;
        }
        walk->file->lines[key] = line_of(key_node);
        return config_key_is_list(key) ? check_list(walk, value, name)
                                       : check_scalar(walk, value, name);
}

static bool is_section(const char *name)
{
        size_t length = strlen(name);

        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                if (!strncmp(config_keys[key].name, name, length) &&
                    config_keys[key].name[length] == '.')
                        return true;
        return false;
}

/* Maps of the file: the top level with @section "", or one section. */
static int walk_map(struct walk *walk, const char *section, const yaml_node_t *map);

static int walk_section(struct walk *walk, const char *name, const yaml_node_t *key_node,
                        const yaml_node_t *value)
{
        for (size_t i = 0; i < walk->n_seen; i++)
                if (!strcmp(walk->seen[i], (const char *)key_node->data.scalar.value))
                        return refuse_value(walk, key_node, name,
                                            "the section is there twice: join them");
        walk->seen[walk->n_seen++] = (const char *)key_node->data.scalar.value;

        /* A section whose keys are all commented out. */
        if (value->type == YAML_SCALAR_NODE && !value->data.scalar.length)
                return 0;
        if (value->type != YAML_MAPPING_NODE)
                return refuse_value(walk, value, name,
                                    "this is a section: its keys belong below it, indented");
        return walk_map(walk, name, value);
}

static int walk_map(struct walk *walk, const char *section, const yaml_node_t *map)
{
        yaml_node_pair_t *pair;
        char name[160];
        int r;

        for (pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++) {
                const yaml_node_t *key = yaml_document_get_node(walk->document, pair->key);
                const yaml_node_t *value = yaml_document_get_node(walk->document, pair->value);

                r = key_name(walk, section, key, name, sizeof(name));
                if (r)
                        return r;
                if (!*section && strchr(name, '.'))
                        r = refuse_value(walk, key, name,
                                         "write it in two lines: the word before the dot as a "
                                         "section, the rest indented below it");
                else if (!*section && is_section(name))
                        r = walk_section(walk, name, key, value);
                else
                        r = walk_value(walk, name, key, value);
                if (r)
                        return r;
        }
        return 0;
}

static int refuse_syntax(const yaml_parser_t *parser, const char *name, struct why *why)
{
        if (parser->error == YAML_MEMORY_ERROR)
                return err_raise(-ENOMEM);
        why_set(why, "%s:%zu: not YAML: %s%s%s%s", name, parser->problem_mark.line + 1,
                parser->context ? parser->context : "", parser->context ? ", " : "",
                parser->problem ? parser->problem : "unreadable",
                parser->problem && strstr(parser->problem, "cannot start any token")
                        ? ": indent with spaces, not tabs, and quote what begins with @ or %"
                        : "");
        return -EINVAL;
}

static int walk_document(struct walk *walk, yaml_parser_t *parser)
{
        yaml_node_t *root = yaml_document_get_root_node(walk->document);
        yaml_document_t second;
        int r;

        if (!root)
                return 0;
        if (root->type != YAML_MAPPING_NODE) {
                if (root->type == YAML_SCALAR_NODE && !root->data.scalar.length)
                        return 0;
                return refuse_value(walk, root, "(top level)",
                                    "keys belong here, such as \"host:\"");
        }
        r = walk_map(walk, "", root);
        if (r)
                return r;

        if (!yaml_parser_load(parser, &second))
                return refuse_syntax(parser, walk->name, walk->why);
        root = yaml_document_get_root_node(&second);
        if (root)
                r = refuse_value(walk, root, "(top level)",
                                 "a second document begins here: keep one");
        yaml_document_delete(&second);
        return r;
}

static int find_lines(struct config_file *file, const char *name, const void *text, size_t length,
                      struct why *why)
{
        struct walk walk = {.file = file, .name = name, .why = why};
        yaml_document_t document;
        yaml_parser_t parser;
        int r;

        if (!yaml_parser_initialize(&parser))
                return err_raise(-ENOMEM);
        yaml_parser_set_input_string(&parser, text, length);
        if (yaml_parser_load(&parser, &document)) {
                walk.document = &document;
                r = walk_document(&walk, &parser);
                yaml_document_delete(&document);
        } else {
                r = refuse_syntax(&parser, name, why);
        }
        yaml_parser_delete(&parser);
        return r;
}

/*
 * Second reading: the values.
 */

struct socket_section {
        char *path, *mode, *group;
};
struct admin_section {
        char *group;
};
struct sessions_section {
        char *max;
};
struct session_section {
        char *leases_max, *bytes_max;
};
struct host_section {
        char *bytes, *piece_bytes, *huge_pages, *lease_share_percent, *pinned_share_percent;
};
struct nvme_section {
        char **paths;
        unsigned paths_count;
        char *bytes, *catalog, *write, *codec, *sync_ms, *queue_depth, *pinned_share_percent;
};
struct pool_section {
        char *backend, *bytes, *index, *prefix, *write, *admit, *admit_tokens, *codec;
        char *bundle_bytes, *linger_ms, *deadline_ms, *read_bytes_per_s, *write_bytes_per_s;
        char *queue_depth, *pinned_share_percent;
};
struct rados_section {
        char *config, *user, *keyring, *pool;
};
struct s3_section {
        char *endpoint, *region, *bucket, *credentials, *ca, *path_style, *allow_http;
};
struct index_section {
        char *objects_max;
};
struct metrics_section {
        char *listen;
};
struct rdma_section {
        char *listen, *secret, *allow, *peers, *whole_regions, *busy_poll;
};
struct drain_section {
        char *seconds;
};
struct log_section {
        char *level;
};
struct tree {
        struct socket_section *socket;
        struct admin_section *admin;
        struct sessions_section *sessions;
        struct session_section *session;
        struct host_section *host;
        struct nvme_section *nvme;
        struct pool_section *pool;
        struct rados_section *rados;
        struct s3_section *s3;
        struct index_section *index;
        struct metrics_section *metrics;
        struct rdma_section *rdma;
        struct drain_section *drain;
        struct log_section *log;
        char *chunk_tokens;
};

#define OPTIONAL (CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL)
#define VALUE(structure, field)                                                                    \
        CYAML_FIELD_STRING_PTR(#field, OPTIONAL, struct structure, field, 0, CYAML_UNLIMITED)
#define SECTION(field)                                                                             \
        CYAML_FIELD_MAPPING_PTR(#field, CYAML_FLAG_POINTER_NULL_STR | CYAML_FLAG_OPTIONAL,         \
                                struct tree, field, field##_fields)

static const cyaml_schema_value_t path_schema = {
        CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, CYAML_UNLIMITED),
};
static const cyaml_schema_field_t socket_fields[] = {VALUE(socket_section, path),
                                                     VALUE(socket_section, mode),
                                                     VALUE(socket_section, group), CYAML_FIELD_END};
static const cyaml_schema_field_t admin_fields[] = {VALUE(admin_section, group), CYAML_FIELD_END};
static const cyaml_schema_field_t sessions_fields[] = {VALUE(sessions_section, max),
                                                       CYAML_FIELD_END};
static const cyaml_schema_field_t session_fields[] = {
        VALUE(session_section, leases_max), VALUE(session_section, bytes_max), CYAML_FIELD_END};
static const cyaml_schema_field_t host_fields[] = {VALUE(host_section, bytes),
                                                   VALUE(host_section, piece_bytes),
                                                   VALUE(host_section, huge_pages),
                                                   VALUE(host_section, lease_share_percent),
                                                   VALUE(host_section, pinned_share_percent),
                                                   CYAML_FIELD_END};
static const cyaml_schema_field_t nvme_fields[] = {
        CYAML_FIELD_SEQUENCE("paths", OPTIONAL, struct nvme_section, paths, &path_schema, 0,
                             CYAML_UNLIMITED),
        VALUE(nvme_section, bytes),
        VALUE(nvme_section, catalog),
        VALUE(nvme_section, write),
        VALUE(nvme_section, codec),
        VALUE(nvme_section, sync_ms),
        VALUE(nvme_section, queue_depth),
        VALUE(nvme_section, pinned_share_percent),
        CYAML_FIELD_END};
static const cyaml_schema_field_t pool_fields[] = {VALUE(pool_section, backend),
                                                   VALUE(pool_section, bytes),
                                                   VALUE(pool_section, index),
                                                   VALUE(pool_section, prefix),
                                                   VALUE(pool_section, write),
                                                   VALUE(pool_section, admit),
                                                   VALUE(pool_section, admit_tokens),
                                                   VALUE(pool_section, codec),
                                                   VALUE(pool_section, bundle_bytes),
                                                   VALUE(pool_section, linger_ms),
                                                   VALUE(pool_section, deadline_ms),
                                                   VALUE(pool_section, read_bytes_per_s),
                                                   VALUE(pool_section, write_bytes_per_s),
                                                   VALUE(pool_section, queue_depth),
                                                   VALUE(pool_section, pinned_share_percent),
                                                   CYAML_FIELD_END};
static const cyaml_schema_field_t rados_fields[] = {
        VALUE(rados_section, config), VALUE(rados_section, user), VALUE(rados_section, keyring),
        VALUE(rados_section, pool), CYAML_FIELD_END};
static const cyaml_schema_field_t s3_fields[] = {
        VALUE(s3_section, endpoint),   VALUE(s3_section, region),
        VALUE(s3_section, bucket),     VALUE(s3_section, credentials),
        VALUE(s3_section, ca),         VALUE(s3_section, path_style),
        VALUE(s3_section, allow_http), CYAML_FIELD_END};
static const cyaml_schema_field_t index_fields[] = {VALUE(index_section, objects_max),
                                                    CYAML_FIELD_END};
static const cyaml_schema_field_t metrics_fields[] = {VALUE(metrics_section, listen),
                                                      CYAML_FIELD_END};
static const cyaml_schema_field_t rdma_fields[] = {VALUE(rdma_section, listen),
                                                   VALUE(rdma_section, secret),
                                                   VALUE(rdma_section, allow),
                                                   VALUE(rdma_section, peers),
                                                   VALUE(rdma_section, whole_regions),
                                                   VALUE(rdma_section, busy_poll),
                                                   CYAML_FIELD_END};
static const cyaml_schema_field_t drain_fields[] = {VALUE(drain_section, seconds), CYAML_FIELD_END};
static const cyaml_schema_field_t log_fields[] = {VALUE(log_section, level), CYAML_FIELD_END};
static const cyaml_schema_field_t tree_fields[] = {
        SECTION(socket),  SECTION(admin),   SECTION(sessions),
        SECTION(session), SECTION(host),    SECTION(nvme),
        SECTION(pool),    SECTION(rados),   SECTION(s3),
        SECTION(index),   SECTION(metrics), SECTION(rdma),
        SECTION(drain),   SECTION(log),     VALUE(tree, chunk_tokens),
        CYAML_FIELD_END};
static const cyaml_schema_value_t tree_schema = {
        CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct tree, tree_fields),
};

/* Keeps libcyaml's first complaint: the walk should leave it none, bar aliases. */
static void on_message(cyaml_log_t level, void *context, const char *format, va_list arguments)
{
        struct why *first = context;

        if (level == CYAML_LOG_ERROR && !*first->text)
                vsnprintf(first->text, sizeof(first->text), format, arguments);
        first->text[strcspn(first->text, "\n")] = 0;
}

static cyaml_config_t cyaml_options(struct why *first)
{
        return (cyaml_config_t){
                .log_fn = on_message,
                .log_ctx = first,
                .log_level = CYAML_LOG_ERROR,
                .mem_fn = cyaml_mem,
                .flags = CYAML_CFG_NO_ALIAS,
        };
}

#define PICK(key, section, field) file->values[key] = tree->section ? tree->section->field : NULL

static void pick_pool_values(struct config_file *file, const struct tree *tree)
{
        PICK(CONFIG_POOL_BACKEND, pool, backend);
        PICK(CONFIG_POOL_BYTES, pool, bytes);
        PICK(CONFIG_POOL_INDEX, pool, index);
        PICK(CONFIG_POOL_PREFIX, pool, prefix);
        PICK(CONFIG_POOL_WRITE, pool, write);
        PICK(CONFIG_POOL_ADMIT, pool, admit);
        PICK(CONFIG_POOL_ADMIT_TOKENS, pool, admit_tokens);
        PICK(CONFIG_POOL_CODEC, pool, codec);
        PICK(CONFIG_POOL_BUNDLE_BYTES, pool, bundle_bytes);
        PICK(CONFIG_POOL_LINGER_MS, pool, linger_ms);
        PICK(CONFIG_POOL_DEADLINE_MS, pool, deadline_ms);
        PICK(CONFIG_POOL_READ_BYTES_PER_S, pool, read_bytes_per_s);
        PICK(CONFIG_POOL_WRITE_BYTES_PER_S, pool, write_bytes_per_s);
        PICK(CONFIG_POOL_QUEUE_DEPTH, pool, queue_depth);
        PICK(CONFIG_POOL_PINNED_SHARE_PERCENT, pool, pinned_share_percent);
        PICK(CONFIG_RADOS_CONFIG, rados, config);
        PICK(CONFIG_RADOS_USER, rados, user);
        PICK(CONFIG_RADOS_KEYRING, rados, keyring);
        PICK(CONFIG_RADOS_POOL, rados, pool);
        PICK(CONFIG_S3_ENDPOINT, s3, endpoint);
        PICK(CONFIG_S3_REGION, s3, region);
        PICK(CONFIG_S3_BUCKET, s3, bucket);
        PICK(CONFIG_S3_CREDENTIALS, s3, credentials);
        PICK(CONFIG_S3_CA, s3, ca);
        PICK(CONFIG_S3_PATH_STYLE, s3, path_style);
        PICK(CONFIG_S3_ALLOW_HTTP, s3, allow_http);
}

static void pick_values(struct config_file *file, const struct tree *tree)
{
        PICK(CONFIG_SOCKET_PATH, socket, path);
        PICK(CONFIG_SOCKET_MODE, socket, mode);
        PICK(CONFIG_SOCKET_GROUP, socket, group);
        PICK(CONFIG_ADMIN_GROUP, admin, group);
        PICK(CONFIG_SESSIONS_MAX, sessions, max);
        PICK(CONFIG_SESSION_LEASES_MAX, session, leases_max);
        PICK(CONFIG_SESSION_BYTES_MAX, session, bytes_max);
        PICK(CONFIG_HOST_BYTES, host, bytes);
        PICK(CONFIG_HOST_PIECE_BYTES, host, piece_bytes);
        PICK(CONFIG_HOST_HUGE_PAGES, host, huge_pages);
        PICK(CONFIG_HOST_LEASE_SHARE_PERCENT, host, lease_share_percent);
        PICK(CONFIG_HOST_PINNED_SHARE_PERCENT, host, pinned_share_percent);
        PICK(CONFIG_NVME_BYTES, nvme, bytes);
        PICK(CONFIG_NVME_CATALOG, nvme, catalog);
        PICK(CONFIG_NVME_WRITE, nvme, write);
        PICK(CONFIG_NVME_CODEC, nvme, codec);
        PICK(CONFIG_NVME_SYNC_MS, nvme, sync_ms);
        PICK(CONFIG_NVME_QUEUE_DEPTH, nvme, queue_depth);
        PICK(CONFIG_NVME_PINNED_SHARE_PERCENT, nvme, pinned_share_percent);
        PICK(CONFIG_INDEX_OBJECTS_MAX, index, objects_max);
        pick_pool_values(file, tree);
        PICK(CONFIG_METRICS_LISTEN, metrics, listen);
        PICK(CONFIG_RDMA_LISTEN, rdma, listen);
        PICK(CONFIG_RDMA_SECRET, rdma, secret);
        PICK(CONFIG_RDMA_ALLOW, rdma, allow);
        PICK(CONFIG_RDMA_PEERS, rdma, peers);
        PICK(CONFIG_RDMA_WHOLE_REGIONS, rdma, whole_regions);
        PICK(CONFIG_RDMA_BUSY_POLL, rdma, busy_poll);
        PICK(CONFIG_DRAIN_SECONDS, drain, seconds);
        PICK(CONFIG_LOG_LEVEL, log, level);
        file->values[CONFIG_CHUNK_TOKENS] = tree->chunk_tokens;
        if (tree->nvme) {
                file->paths = (const char *const *)tree->nvme->paths;
                file->n_paths = tree->nvme->paths_count;
        }
}

static int map_values(struct config_file *file, const char *name, const void *text, size_t length,
                      struct why *why)
{
        struct why first = {""};
        cyaml_config_t options = cyaml_options(&first);
        struct tree *tree = NULL;
        cyaml_err_t error;

        error = cyaml_load_data(text, length, &options, &tree_schema, (cyaml_data_t **)&tree, NULL);
        if (error == CYAML_ERR_OOM)
                return err_raise(-ENOMEM);
        if (error == CYAML_ERR_ALIAS) {
                why_set(why, "%s: YAML aliases (*name) are not read: write the value out", name);
                return -EINVAL;
        }
        if (error) {
                why_set(why, "%s: %s: %s", name, cyaml_strerror(error), first.text);
                return -EINVAL;
        }
        file->tree = tree;
        if (tree)
                pick_values(file, tree);
        return 0;
}

/* A file of comments holds no map, which libcyaml insists on. */
static bool has_keys(const struct config_file *file)
{
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                if (file->lines[key])
                        return true;
        return false;
}

int config_file_parse(struct config_file *ret_file, const char *name, const void *text,
                      size_t length, struct why *why)
{
        struct config_file file = {0};
        int r;

        if (length > CONFIG_FILE_MAX) {
                why_set(why, "%s: more than 1 MiB: this is not a configuration of kvtierd", name);
                return -EINVAL;
        }
        r = find_lines(&file, name, text, length, why);
        if (!r && has_keys(&file))
                r = map_values(&file, name, text, length, why);
        if (!r)
                *ret_file = file;
        return r;
}

void config_file_deinit(struct config_file *file)
{
        struct why first = {""};
        cyaml_config_t options = cyaml_options(&first);

        cyaml_free(&options, &tree_schema, file->tree, 0);
        file->tree = NULL;
}
