// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rdma.h"
#include "daemon/config.h"
#include "daemon/config_key.h"
#include "tests/support/scratch.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)

#define SAMPLE   SOURCE_ROOT "/deploy/kvtierd.conf"
#define MAN_PAGE SOURCE_ROOT "/deploy/man/kvtierd.conf.5"

static char folder[256];

static void make_folder(void)
{
        scratch_make(folder, sizeof(folder));
}

static void remove_folder(void)
{
        scratch_remove(folder);
}

static int parse(struct config *ret_config, const char *text, struct why *why)
{
        return config_parse(ret_config, "test.conf", text, strlen(text), why);
}

static void assert_refused(const char *text, const char *expected)
{
        struct config config;
        struct why why = {""};
        int r = parse(&config, text, &why);

        ck_assert_msg(r == -EINVAL, "accepted: %s", text);
        ck_assert_msg(!strncmp(why.text, expected, strlen(expected)), "\"%s\" says \"%s\"", text,
                      why.text);
}

static void assert_override_refused(const char *assignment, const char *expected)
{
        struct config config, before;
        struct why why = {""};

        config_defaults(&config);
        before = config;
        ck_assert_int_eq(config_apply_override(&config, assignment, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, expected) != NULL, "%s says \"%s\"", assignment, why.text);
        ck_assert_mem_eq(&config, &before, sizeof(config));
}

static void override(struct config *config, const char *format, ...)
{
        struct why why = {""};
        char assignment[1024];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(assignment, sizeof(assignment), format, arguments);
        va_end(arguments);
        ck_assert_msg(!config_apply_override(config, assignment, &why), "%s", why.text);
}

START_TEST(defaults_are_those_of_the_documentation)
{
        const struct sockaddr_in *listen;
        struct config config;

        config_defaults(&config);
        ck_assert_str_eq(config.socket.path, "/run/kvtier/kvtierd.sock");
        ck_assert_uint_eq(config.socket.mode, 0660);
        ck_assert_uint_eq(config.socket.gid, CONFIG_NO_GID);
        ck_assert_uint_eq(config.admin.gid, CONFIG_NO_GID);
        ck_assert_uint_eq(config.sessions.max, 256);
        ck_assert_uint_eq(config.session.leases_max, 65536);
        ck_assert_uint_eq(config.session.bytes_max, 0);
        ck_assert_uint_eq(config.host.bytes, 4 * GIB);
        ck_assert_uint_eq(config.host.piece_bytes, GIB);
        ck_assert_uint_eq(config.host.page_bytes, 4096);
        ck_assert_uint_eq(config.host.lease_share_percent, 80);
        ck_assert_uint_eq(config.host.pinned_share_percent, 20);
        ck_assert_uint_eq(config.nvme.n_paths, 0);
        ck_assert_uint_eq(config.nvme.bytes, 64 * GIB);
        ck_assert_str_eq(config.nvme.catalog, "");
        ck_assert_int_eq(config.nvme.write, PLACEMENT_WRITE_COLD);
        ck_assert_uint_eq(config.nvme.sync_ms, 1000);
        ck_assert_uint_eq(config.nvme.queue_depth, 32);
        ck_assert_uint_eq(config.nvme.pinned_share_percent, 20);
        ck_assert_uint_eq(config.rdma.listen.ss_family, AF_UNSPEC);
        ck_assert_str_eq(config.rdma.secret, "");
        ck_assert_uint_eq(config.rdma.n_allow, 0);
        ck_assert(!config.rdma.whole_regions);
        ck_assert(!config.rdma.busy_poll);
        ck_assert_int_eq(config.pool.backend, CONFIG_POOL_OFF);
        ck_assert_uint_eq(config.pool.bytes, 256 * GIB);
        ck_assert_str_eq(config.pool.index, "");
        ck_assert_int_eq(config.pool.write, PLACEMENT_WRITE_COLD);
        ck_assert(!config.pool.admit_all && !config.pool.admit_tokens);
        ck_assert_uint_eq(config.pool.bundle_bytes, 16 << 20);
        ck_assert_uint_eq(config.pool.linger_ms, 100);
        ck_assert_uint_eq(config.pool.deadline_ms, 10000);
        ck_assert(!config.s3.allow_http);
        ck_assert_uint_eq(config.index.objects_max, 1000000);
        ck_assert_uint_eq(config.chunk_tokens, 256);
        listen = (const struct sockaddr_in *)&config.metrics.listen;
        ck_assert_int_eq(listen->sin_family, AF_INET);
        ck_assert_uint_eq(ntohs(listen->sin_port), 9464);
        ck_assert_uint_eq(ntohl(listen->sin_addr.s_addr), INADDR_LOOPBACK);
        ck_assert_uint_eq(config.drain.seconds, 20);
        ck_assert_int_eq(config.log.level, LOG_LEVEL_INFO);
}
END_TEST

START_TEST(each_default_passes_its_own_bounds)
{
        struct config config;
        struct why why = {""};

        config_defaults(&config);
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                if (config_keys[key].fallback)
                        ck_assert_msg(!config_key_set((enum config_key)key, &config,
                                                      config_keys[key].fallback, &why),
                                      "%s: %s", config_keys[key].name, why.text);
}
END_TEST

START_TEST(sample_file_holds_every_key_at_its_default)
{
        struct config sample, defaults;
        struct why why = {""};

        config_defaults(&defaults);
        ck_assert_msg(!config_load(&sample, SAMPLE, &why), "%s", why.text);
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++) {
                const struct config_key_spec *spec = &config_keys[key];

                ck_assert_msg(!memcmp((char *)&sample + spec->offset,
                                      (char *)&defaults + spec->offset, spec->size),
                              "%s differs in the sample", spec->name);
        }
}
END_TEST

/* The comment before a key's line, found by section and name, says default and mark. */
static void assert_documented(const char *name, bool reloadable, const char *fallback)
{
        const char *dot = strchr(name, '.');
        char line[256], section[64], comment[2048] = "", leaf[64];
        FILE *file = fopen(SAMPLE, "re");
        bool inside = !dot;

        ck_assert_ptr_nonnull(file);
        snprintf(section, sizeof(section), "%.*s:", dot ? (int)(dot - name) : 0, name);
        snprintf(leaf, sizeof(leaf), "%s:", dot ? dot + 1 : name);
        while (fgets(line, sizeof(line), file)) {
                char *text = line + strspn(line, " ");

                if (dot && line[0] != ' ' && line[0] != '\n' && line[0] != '#')
                        inside = !strncmp(line, section, strlen(section));
                if (*text == '#')
                        strncat(comment, text, sizeof(comment) - strlen(comment) - 1);
                else if (inside && !strncmp(text, leaf, strlen(leaf)))
                        break;
                else
                        comment[0] = 0;
        }
        fclose(file);
        ck_assert_msg(*comment, "%s has no comment in the sample", name);
        ck_assert_msg(!!strstr(comment, "[reload]") == reloadable, "%s: [reload] mark", name);
        ck_assert_msg(strstr(comment, "Default: ") != NULL, "%s: no default", name);
        if (fallback && *fallback)
                ck_assert_msg(strstr(strstr(comment, "Default: "), fallback) != NULL,
                              "%s: another default than %s", name, fallback);
}

START_TEST(sample_file_documents_default_and_reload_of_every_key)
{
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                assert_documented(config_keys[key].name, config_keys[key].reloadable,
                                  config_keys[key].fallback);
}
END_TEST

START_TEST(man_page_names_exactly_the_keys)
{
        FILE *file = fopen(MAN_PAGE, "re");
        char line[256], name[64];
        unsigned key = 0;

        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file)) {
                if (sscanf(line, ".It Cm %63s", name) != 1)
                        continue;
                ck_assert_msg(key < CONFIG_N_KEYS, "%s is no key", name);
                ck_assert_str_eq(name, config_keys[key].name);
                key++;
        }
        fclose(file);
        ck_assert_uint_eq(key, CONFIG_N_KEYS);
}
END_TEST

START_TEST(empty_files_and_sections_mean_defaults)
{
        static const char *const texts[] = {"",         "\n",      "# only a comment\n",
                                            "---\n",    "host:\n", "host:\n  # bytes: 1\nlog:\n",
                                            "nvme: {}", "{}\n"};
        struct config config, defaults;
        struct why why = {""};

        config_defaults(&defaults);
        snprintf(defaults.file, sizeof(defaults.file), "test.conf");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                ck_assert_msg(!parse(&config, texts[i], &why), "%s: %s", texts[i], why.text);
                ck_assert_mem_eq(&config, &defaults, sizeof(config));
        }
}
END_TEST

START_TEST(values_remember_their_line)
{
        struct config config;
        struct why why = {""};

        ck_assert_int_eq(parse(&config, "# one\nhost:\n\n  bytes: 2GiB\nchunk_tokens: 64\n", &why),
                         0);
        ck_assert_int_eq(config.origin[CONFIG_HOST_BYTES], 4);
        ck_assert_int_eq(config.origin[CONFIG_CHUNK_TOKENS], 5);
        ck_assert_int_eq(config.origin[CONFIG_LOG_LEVEL], CONFIG_FROM_DEFAULT);
        ck_assert_uint_eq(config.host.bytes, 2 * GIB);
        ck_assert_uint_eq(config.chunk_tokens, 64);
}
END_TEST

START_TEST(unknown_keys_are_refused_with_line_and_a_guess)
{
        assert_refused("host:\n  byts: 4GiB\n",
                       "test.conf:2: host.byts: unknown key: did you mean host.bytes?");
        assert_refused("\n\nmetric:\n  listen: off\n", "test.conf:3: metric: unknown key");
        assert_refused("chunk_token: 3\n",
                       "test.conf:1: chunk_token: unknown key: did you mean chunk_tokens?");
        assert_refused("log: {colour: blue}\n", "test.conf:1: log.colour: unknown key");
        assert_refused("? [a, b]\n: c\n", "test.conf:1: (top level): a key is a word");
        assert_refused("host.bytes: 4GiB\n", "test.conf:1: host.bytes: write it in two lines");
}
END_TEST

START_TEST(repeated_keys_are_refused_naming_both_lines)
{
        assert_refused("host:\n  bytes: 4GiB\n  bytes: 4GiB\n",
                       "test.conf:3: host.bytes: it is on line 2 already");
        assert_refused("log:\n  level: info\nhost:\n  bytes: 4GiB\nlog:\n  level: info\n",
                       "test.conf:5: log: the section is there twice");
}
END_TEST

START_TEST(wrong_shapes_are_refused_with_line)
{
        assert_refused("host: 3\n", "test.conf:1: host: this is a section");
        assert_refused("host: [a]\n", "test.conf:1: host: this is a section");
        assert_refused("host:\n  bytes: [1, 2]\n", "test.conf:2: host.bytes: one value");
        assert_refused("host:\n  bytes: {a: 2}\n", "test.conf:2: host.bytes: one value");
        assert_refused("host:\n  bytes:\n", "test.conf:2: host.bytes: the value is missing");
        assert_refused("nvme:\n  paths: /x\n", "test.conf:2: nvme.paths: a list belongs here");
        assert_refused("nvme:\n  paths: [{a: b}]\n", "test.conf:2: nvme.paths: one value");
        assert_refused("nvme:\n  paths:\n    -\n", "test.conf:3: nvme.paths: the value is missing");
        assert_refused("- a\n- b\n", "test.conf:1: (top level): keys belong here");
        assert_refused("log: {level: info}\n---\nlog: {level: info}\n",
                       "test.conf:3: (top level): a second document");
        assert_refused("host: {bytes: &a 4GiB, piece_bytes: *a}\n", "test.conf: YAML aliases");
}
END_TEST

START_TEST(text_that_is_not_yaml_is_refused_with_line)
{
        assert_refused("host:\n  bytes: \"4GiB\n", "test.conf:3: not YAML: ");
        assert_refused("host:\n\tbytes: 4GiB\n", "test.conf:2: not YAML: ");
        assert_refused("log: {level: info}\n}\n", "test.conf:2: not YAML: ");
        assert_refused("\x01\xff", "test.conf:1: not YAML: ");
        assert_refused("log:\n  level: \"in\\0fo\"\n",
                       "test.conf:2: log.level: the value holds control characters");
}
END_TEST

static const struct {
        const char *text;
        uint64_t bytes;
} sizes[] = {
        {"1048576", MIB},  {"1024KiB", MIB},    {"1MiB", MIB},           {"3GiB", 3 * GIB},
        {"2TiB", 2 * TIB}, {"64TiB", 64 * TIB}, {"5000MiB", 5000 * MIB},
};

START_TEST(sizes_take_bytes_and_binary_units)
{
        struct config config;

        config_defaults(&config);
        override(&config, "host.bytes=%s", sizes[_i].text);
        ck_assert_uint_eq(config.host.bytes, sizes[_i].bytes);
}
END_TEST

START_TEST(sizes_that_mean_nothing_are_refused)
{
        static const char *const wrong[] = {"4GB",  "4G",   "4 GiB", "GiB",   "-4GiB", "4.5GiB",
                                            "4gib", "0x10", "+4GiB", " 4GiB", "4GiBB"};
        char assignment[64];

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                snprintf(assignment, sizeof(assignment), "host.bytes=%s", wrong[i]);
                assert_override_refused(assignment, "is not a size");
        }
        assert_override_refused("host.bytes=99999999999999999999", "is not a size");
        assert_override_refused("host.bytes=18446744073709551615TiB", "use 1MiB to 64TiB");
        assert_override_refused("host.bytes=1048577", "is not a multiple of 4KiB: use 1028KiB");
}
END_TEST

START_TEST(an_rdma_port_needs_a_secret_and_somebody_who_may_connect)
{
        struct why why = {""};
        struct config config;

        config_defaults(&config);
        override(&config, "socket.path=/tmp/kvtierd-test.sock");
        override(&config, "host.bytes=16MiB");
        override(&config, "host.piece_bytes=16MiB");
        override(&config, "rdma.listen=10.0.0.1");
        if (rdma_check(&why)) { /* the build has none */
                ck_assert_int_eq(config_check(&config, false, &why), -ENOTSUP);
                ck_assert_msg(strstr(why.text, "rdma.listen: this build has no RDMA"), "%s",
                              why.text);
                return;
        }
        ck_assert_int_eq(config_check(&config, false, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, "rdma.secret"), "%s", why.text);
        override(&config, "rdma.secret=/etc/kvtier/secret");
        ck_assert_int_eq(config_check(&config, false, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, "rdma.allow"), "%s", why.text);
        override(&config, "rdma.allow=10.0.0.0/8, fd00::/8,192.168.1.1");
        ck_assert_uint_eq(config.rdma.n_allow, 3);
        ck_assert_msg(!config_check(&config, false, &why), "%s", why.text);
        override(&config, "rdma.whole_regions=on");
        ck_assert(config.rdma.whole_regions);
        override(&config, "rdma.busy_poll=on");
        ck_assert(config.rdma.busy_poll);
        assert_override_refused("rdma.whole_regions=some", "some");
        ck_assert_int_eq(parse(&config, "rdma:\n  whole_regions: on\n", &why), 0);
        ck_assert(config.rdma.whole_regions && !config.rdma.busy_poll);
        ck_assert_int_eq(parse(&config, "rdma:\n  busy_poll: on\n", &why), 0);
        ck_assert(!config.rdma.whole_regions && config.rdma.busy_poll);
        assert_override_refused("rdma.allow=10.0.0.0/8,ten", "ten");
        assert_override_refused("rdma.listen=ten", "ten");
}
END_TEST

START_TEST(peers_are_addresses_or_names)
{
        static const char *const wrong[] = {"node-c:99999",   "node-c:0",   "node-c:abc",
                                            "node-c:",        "10.0.0.2:0", ":7428",
                                            "10.0.0.2:70000", "[fd00::1",   "10.0.0",
                                            "node c:1/2",     "a:b:7428",   "node!:7428"};
        struct config config;

        config_defaults(&config);
        override(&config, "rdma.peers=10.0.0.2, 10.0.0.3:7000,[fd00::1]:7428,fd00::2,node-c,"
                          "node_d:7428,kvtierd.default.svc:1,4node:65535");
        ck_assert_uint_eq(config.rdma.n_peers, 8);
        ck_assert_str_eq(config.rdma.peers[7], "4node:65535");
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                char text[64];

                snprintf(text, sizeof(text), "rdma.peers=node-a,%s", wrong[i]);
                assert_override_refused(text, "is no peer");
        }
}
END_TEST

/* Lowest and highest value of each number, and what lies just outside. */
static const struct {
        const char *key;
        const char *low, *high;
        const char *below, *above;
} bounds[] = {
        {"sessions.max", "1", "65536", "0", "65537"},
        {"session.leases_max", "1", "16777216", "0", "16777217"},
        {"session.bytes_max", "0", "64TiB", "-1", "65TiB"},
        {"host.bytes", "1MiB", "64TiB", "1020KiB", "65TiB"},
        {"host.piece_bytes", "1MiB", "1TiB", "1020KiB", "2TiB"},
        {"host.lease_share_percent", "1", "100", "0", "101"},
        {"host.pinned_share_percent", "0", "90", "-1", "91"},
        {"nvme.bytes", "16MiB", "1024TiB", "15MiB", "1025TiB"},
        {"nvme.sync_ms", "10", "60000", "9", "60001"},
        {"nvme.queue_depth", "1", "1024", "0", "1025"},
        {"nvme.pinned_share_percent", "0", "90", "-1", "91"},
        {"index.objects_max", "16", "1073741824", "15", "1073741825"},
        {"chunk_tokens", "1", "1048576", "0", "1048577"},
        {"drain.seconds", "0", "3600", "-1", "3601"},
        {"socket.mode", "0", "0777", "-1", "01000"},
};

START_TEST(numbers_keep_to_their_bounds)
{
        struct config config;
        char assignment[96];

        config_defaults(&config);
        override(&config, "%s=%s", bounds[_i].key, bounds[_i].low);
        override(&config, "%s=%s", bounds[_i].key, bounds[_i].high);
        snprintf(assignment, sizeof(assignment), "%s=%s", bounds[_i].key, bounds[_i].below);
        assert_override_refused(assignment, bounds[_i].key);
        snprintf(assignment, sizeof(assignment), "%s=%s", bounds[_i].key, bounds[_i].above);
        assert_override_refused(assignment, bounds[_i].key);
        snprintf(assignment, sizeof(assignment), "%s=%sx", bounds[_i].key, bounds[_i].low);
        assert_override_refused(assignment, bounds[_i].key);
        snprintf(assignment, sizeof(assignment), "%s=many", bounds[_i].key);
        assert_override_refused(assignment, bounds[_i].key);
        snprintf(assignment, sizeof(assignment), "%s=", bounds[_i].key);
        assert_override_refused(assignment, bounds[_i].key);
}
END_TEST

START_TEST(numbers_out_of_bounds_name_line_and_bounds)
{
        assert_refused("sessions:\n  max: 0\n",
                       "test.conf:2: sessions.max: \"0\" is not a number from 1 to 65536");
        assert_refused("host:\n  bytes: 1KiB\n",
                       "test.conf:2: host.bytes: \"1KiB\" is out of bounds: use 1MiB to 64TiB");
        assert_refused("host:\n  bytes: \"\"\n", "test.conf:2: host.bytes: \"\" is not a size");
        assert_refused("socket: {mode: 0999}\n",
                       "test.conf:1: socket.mode: \"0999\" is not a file mode");
}
END_TEST

START_TEST(words_take_only_their_values)
{
        struct config config;

        config_defaults(&config);
        override(&config, "host.huge_pages=2MiB");
        ck_assert_uint_eq(config.host.page_bytes, 2 * MIB);
        override(&config, "host.huge_pages=1GiB");
        ck_assert_uint_eq(config.host.page_bytes, GIB);
        override(&config, "host.huge_pages=off");
        ck_assert_uint_eq(config.host.page_bytes, 4096);
        override(&config, "nvme.write=store");
        ck_assert_int_eq(config.nvme.write, PLACEMENT_WRITE_STORE);
        override(&config, "nvme.write=off");
        ck_assert_int_eq(config.nvme.write, PLACEMENT_WRITE_OFF);
        ck_assert_uint_eq(config.nvme.codec.kinds[0], ENCODING_RAW);
        override(&config, "nvme.codec=planes-zstd,state=lz4");
        ck_assert_uint_eq(config.nvme.codec.kinds[LAYOUT_ATTENTION - 1], ENCODING_PLANES_ZSTD);
        ck_assert_uint_eq(config.nvme.codec.kinds[LAYOUT_STATE - 1], ENCODING_LZ4);
        override(&config, "log.level=debug");
        ck_assert_int_eq(config.log.level, LOG_LEVEL_DEBUG);
        assert_override_refused("host.huge_pages=4MiB", "none of off, 2MiB, 1GiB");
        assert_override_refused("nvme.write=all", "none of off, cold, store");
        assert_override_refused("nvme.codec=zip", "none of off, lz4, planes-lz4, planes-zstd");
        assert_override_refused("log.level=loud", "none of error, warning, info, debug");
}
END_TEST

START_TEST(addresses_are_ip_and_port)
{
        const struct sockaddr_in6 *six;
        struct config config;

        config_defaults(&config);
        six = (const struct sockaddr_in6 *)&config.metrics.listen;
        override(&config, "metrics.listen=[::1]:80");
        ck_assert_int_eq(six->sin6_family, AF_INET6);
        ck_assert_uint_eq(ntohs(six->sin6_port), 80);
        override(&config, "metrics.listen=0.0.0.0:0");
        ck_assert_int_eq(six->sin6_family, AF_INET);
        override(&config, "metrics.listen=off");
        ck_assert_int_eq(six->sin6_family, AF_UNSPEC);
        assert_override_refused("metrics.listen=localhost:80", "IP:PORT");
        assert_override_refused("metrics.listen=127.0.0.1", "IP:PORT");
        assert_override_refused("metrics.listen=127.0.0.1:65536", "IP:PORT");
        assert_override_refused("metrics.listen=::1:80", "IP:PORT");
        assert_override_refused("metrics.listen=[::1]", "IP:PORT");
        assert_override_refused("metrics.listen=:80", "IP:PORT");
        assert_override_refused("metrics.listen=[]:80", "IP:PORT");
}
END_TEST

START_TEST(groups_must_exist)
{
        struct config config;

        config_defaults(&config);
        override(&config, "socket.group=root");
        ck_assert_uint_eq(config.socket.gid, 0);
        override(&config, "admin.group=root");
        ck_assert_uint_eq(config.admin.gid, 0);
        override(&config, "socket.group=");
        ck_assert_uint_eq(config.socket.gid, CONFIG_NO_GID);
        assert_override_refused("socket.group=no-such-group",
                                "there is no group named \"no-such-group\"");
}
END_TEST

START_TEST(socket_paths_fit_sun_path)
{
        char assignment[160], name[108];
        struct config config;

        memset(name, 'x', sizeof(name));
        config_defaults(&config);
        override(&config, "socket.path=/%.106s", name);
        ck_assert_uint_eq(strlen(config.socket.path), 107);
        snprintf(assignment, sizeof(assignment), "socket.path=/%.107s", name);
        assert_override_refused(assignment, "the path is 108 bytes long: use at most 107");
        assert_override_refused("socket.path=kvtierd.sock", "is not an absolute path");
        assert_override_refused("socket.path=", "is not an absolute path");
}
END_TEST

START_TEST(paths_are_a_list)
{
        struct config config;
        struct why why = {""};

        ck_assert_msg(!parse(&config, "nvme:\n  paths:\n    - /a/x\n    - /b/y\n", &why), "%s",
                      why.text);
        ck_assert_uint_eq(config.nvme.n_paths, 2);
        ck_assert_str_eq(config.nvme.paths[0], "/a/x");
        ck_assert_str_eq(config.nvme.paths[1], "/b/y");
        override(&config, "nvme.paths=/c");
        ck_assert_uint_eq(config.nvme.n_paths, 1);
        ck_assert_str_eq(config.nvme.paths[0], "/c");
        override(&config, "nvme.paths=/d,/e,/f");
        ck_assert_uint_eq(config.nvme.n_paths, 3);
        override(&config, "nvme.paths=");
        ck_assert_uint_eq(config.nvme.n_paths, 0);
        assert_override_refused("nvme.paths=/a,/a", "is there twice");
        assert_override_refused("nvme.paths=/a,b", "is not an absolute path");
        assert_override_refused("nvme.paths=/a,", "is not an absolute path");
        assert_override_refused("nvme.paths=/1,/2,/3,/4,/5,/6,/7,/8,/9,/10,/11,/12,/13,/14,/15,"
                                "/16,/17",
                                "more than 16 paths");
        assert_refused("nvme:\n  bytes: 1GiB\n  paths: [/a, /a]\n",
                       "test.conf:3: nvme.paths: \"/a\" is there twice");
}
END_TEST

START_TEST(catalog_lies_beside_the_first_path)
{
        char expected[300];
        struct config config;

        config_defaults(&config);
        override(&config, "nvme.paths=%s/pool,/elsewhere/pool", folder);
        snprintf(expected, sizeof(expected), "%s/catalog", folder);
        ck_assert_str_eq(config.nvme.catalog, expected);
        override(&config, "nvme.paths=%s", folder);
        ck_assert_str_eq(config.nvme.catalog, expected);
        override(&config, "nvme.catalog=/own/catalog");
        ck_assert_str_eq(config.nvme.catalog, "/own/catalog");
        override(&config, "nvme.paths=%s/other", folder);
        ck_assert_str_eq(config.nvme.catalog, "/own/catalog");
        override(&config, "nvme.catalog=");
        ck_assert_str_eq(config.nvme.catalog, expected);
        override(&config, "nvme.paths=");
        ck_assert_str_eq(config.nvme.catalog, "");
}
END_TEST

START_TEST(overrides_name_a_key_and_a_value)
{
        struct config config;

        config_defaults(&config);
        override(&config, "chunk_tokens=512");
        ck_assert_uint_eq(config.chunk_tokens, 512);
        ck_assert_int_eq(config.origin[CONFIG_CHUNK_TOKENS], CONFIG_FROM_OVERRIDE);
        assert_override_refused("chunk_tokens", "write key=value");
        assert_override_refused("chunk_tokns=1", "did you mean chunk_tokens");
        assert_override_refused("nothing.like.it=1", "kvtierd.conf(5)");
        assert_override_refused("=1", "unknown key");
        assert_override_refused("", "write key=value");
        assert_override_refused("sessions.max=0", "--set sessions.max: \"0\" is not a number");
}
END_TEST

START_TEST(unreadable_files_say_why)
{
        struct config config;
        struct why why = {""};
        char path[300];

        snprintf(path, sizeof(path), "%s/absent.conf", folder);
        ck_assert_int_eq(config_load(&config, path, &why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why.text, "absent.conf: No such file"));
        ck_assert_int_eq(config_load(&config, folder, &why), -EISDIR);
        ck_assert_int_eq(config_load(&config, "/dev/zero", &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "more than 1 MiB"));
}
END_TEST

static void write_config(char *ret_path, size_t size, const char *format, ...)
{
        va_list arguments;
        FILE *file;

        snprintf(ret_path, size, "%s/test.conf", folder);
        file = fopen(ret_path, "we");
        ck_assert_ptr_nonnull(file);
        va_start(arguments, format);
        vfprintf(file, format, arguments);
        va_end(arguments);
        ck_assert_int_eq(fclose(file), 0);
}

static void small(struct config *config)
{
        config_defaults(config);
        override(config, "socket.path=%s/s", folder);
        override(config, "host.bytes=64MiB");
        override(config, "host.piece_bytes=32MiB");
}

START_TEST(a_right_configuration_passes_the_check)
{
        struct config config;
        struct why why = {""};

        small(&config);
        ck_assert_msg(!config_check(&config, false, &why), "%s", why.text);
        override(&config, "nvme.paths=%s/pool", folder);
        override(&config, "nvme.bytes=64MiB");
        ck_assert_msg(!config_check(&config, false, &why), "%s", why.text);
}
END_TEST

static void assert_check_refuses(const struct config *config, const char *expected)
{
        struct why why = {""};

        ck_assert_int_lt(config_check(config, false, &why), 0);
        ck_assert_msg(strstr(why.text, expected) != NULL, "it says \"%s\"", why.text);
}

START_TEST(folders_must_exist)
{
        struct config config;

        small(&config);
        override(&config, "socket.path=%s/absent/s", folder);
        assert_check_refuses(&config, "absent: No such file or directory: create it");
        small(&config);
        override(&config, "nvme.paths=%s/absent/pool", folder);
        assert_check_refuses(&config, "--set nvme.paths: ");
        small(&config);
        override(&config, "nvme.paths=%s/pool", folder);
        override(&config, "nvme.bytes=64MiB");
        override(&config, "nvme.catalog=%s/absent/catalog", folder);
        assert_check_refuses(&config, "--set nvme.catalog: ");
        small(&config);
        override(&config, "socket.path=/etc/passwd/s");
        assert_check_refuses(&config, "/etc/passwd");
}
END_TEST

static void pooled(struct config *config, const char *backend)
{
        small(config);
        override(config, "pool.index=%s/pool-index", folder);
        override(config, "pool.backend=%s", backend);
}

START_TEST(a_pool_is_checked_without_a_network)
{
        struct config config;

        pooled(&config, "s3");
        override(&config, "s3.endpoint=ftp://nowhere.invalid");
        override(&config, "s3.bucket=kv");
        assert_check_refuses(&config, "--set pool.backend: ");
        override(&config, "pool.index=%s/absent/pool-index", folder);
        assert_check_refuses(&config, "--set pool.index: the folder ");
        pooled(&config, "rados");
        override(&config, "rados.user=nobody");
        assert_check_refuses(&config, "--set pool.backend: ");
        override(&config, "pool.bytes=64MiB");
        override(&config, "pool.bundle_bytes=32MiB");
        assert_check_refuses(&config, "--set pool.bundle_bytes: it is above a quarter");
        override(&config, "pool.backend=off");
        ck_assert_int_eq(config_check(&config, false, NULL), 0);
}
END_TEST

START_TEST(keys_of_the_pool_are_words_numbers_and_names)
{
        struct config config;
        char name[160];

        config_defaults(&config);
        override(&config, "pool.backend=rados");
        ck_assert_int_eq(config.pool.backend, CONFIG_POOL_RADOS);
        override(&config, "pool.write=store");
        ck_assert_int_eq(config.pool.write, PLACEMENT_WRITE_STORE);
        override(&config, "pool.admit=all");
        ck_assert(config.pool.admit_all);
        override(&config, "s3.path_style=on");
        ck_assert(config.s3.path_style);
        override(&config, "rados.user=client.kv");
        ck_assert_str_eq(config.rados.user, "client.kv");
        assert_override_refused("pool.backend=ceph", "\"ceph\" is none of off, rados, s3");
        assert_override_refused("pool.admit=some", "\"some\" is none of seen-twice, all");
        assert_override_refused("s3.path_style=true", "\"true\" is none of off, on");
        assert_override_refused("s3.credentials=keys", "is not an absolute path");
        assert_override_refused("pool.bytes=1MiB", "out of bounds: use 64MiB to 1048576TiB");
        memset(name, 'x', sizeof(name));
        memcpy(name, "s3.bucket=", strlen("s3.bucket="));
        name[strlen("s3.bucket=") + 129] = 0;
        assert_override_refused(name, "it is 129 bytes long: use at most 128");
}
END_TEST

START_TEST(the_index_of_the_pool_lies_beside_the_catalog)
{
        char expected[300];
        struct config config;

        config_defaults(&config);
        override(&config, "pool.backend=s3");
        ck_assert_str_eq(config.pool.index, "/var/lib/kvtier/pool-index");
        override(&config, "nvme.paths=%s/pool", folder);
        snprintf(expected, sizeof(expected), "%s/pool-index", folder);
        ck_assert_str_eq(config.pool.index, expected);
        override(&config, "pool.index=/own/index");
        ck_assert_str_eq(config.pool.index, "/own/index");
        override(&config, "pool.index=");
        ck_assert_str_eq(config.pool.index, expected);
}
END_TEST

START_TEST(pieces_must_divide_the_host_tier)
{
        struct config config;

        small(&config);
        override(&config, "host.bytes=80MiB");
        assert_check_refuses(&config, "is not a multiple of host.piece_bytes (32MiB): use 64MiB");
        override(&config, "host.bytes=16MiB");
        assert_check_refuses(&config, "use 32MiB");
        small(&config);
        override(&config, "host.huge_pages=2MiB");
        override(&config, "host.piece_bytes=1MiB");
        assert_check_refuses(&config, "1MiB is not a multiple of host.huge_pages (2MiB): use 2MiB");
}
END_TEST

START_TEST(arenas_beyond_the_machine_are_refused_with_line)
{
        char path[300], expected[400];
        struct config config;
        struct why why = {""};

        write_config(path, sizeof(path), "socket:\n  path: %s/s\nhost:\n  bytes: 64TiB\n", folder);
        ck_assert_msg(!config_load(&config, path, &why), "%s", why.text);
        snprintf(expected, sizeof(expected), "%s:4: host.bytes: ", path);
        assert_check_refuses(&config, expected);
}
END_TEST

START_TEST(what_is_not_ours_is_overwritten_only_by_format)
{
        char path[300], expected[400];
        struct config config;
        struct why why = {""};
        FILE *file;

        snprintf(path, sizeof(path), "%s/pool", folder);
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        for (int i = 0; i < 100000; i++)
                fputs("letters ", file);
        ck_assert_int_eq(fclose(file), 0);
        write_config(path, sizeof(path),
                     "socket: {path: %s/s}\nhost:\n  bytes: 64MiB\n  piece_bytes: 32MiB\n"
                     "nvme:\n  bytes: 64MiB\n  paths: [%s/pool]\n",
                     folder, folder);
        ck_assert_msg(!config_load(&config, path, &why), "%s", why.text);
        snprintf(expected, sizeof(expected), "%s:7: nvme.paths: ", path);
        assert_check_refuses(&config, expected);
        ck_assert_msg(!config_check(&config, true, &why), "%s", why.text);
}
END_TEST

START_TEST(more_than_the_file_system_holds_is_refused_with_line)
{
        char path[300], expected[400];
        struct config config;
        struct why why = {""};

        write_config(path, sizeof(path),
                     "socket: {path: %s/s}\nhost:\n  bytes: 64MiB\n  piece_bytes: 32MiB\n"
                     "nvme:\n  bytes: 1024TiB\n  paths: [%s/pool]\n",
                     folder, folder);
        ck_assert_msg(!config_load(&config, path, &why), "%s", why.text);
        snprintf(expected, sizeof(expected), "%s:6: nvme.bytes: ", path);
        assert_check_refuses(&config, expected);
}
END_TEST

START_TEST(reload_takes_what_is_reloadable_and_names_the_rest)
{
        struct config config, fresh;
        struct config_changes changes;
        char names[256];

        small(&config);
        fresh = config;
        config_reload(&config, &fresh, &changes);
        ck_assert_uint_eq(changes.taken | changes.need_restart, 0);

        override(&fresh, "log.level=debug");
        override(&fresh, "nvme.write=store");
        override(&fresh, "drain.seconds=3");
        override(&fresh, "host.lease_share_percent=50");
        override(&fresh, "host.bytes=128MiB");
        override(&fresh, "nvme.paths=/a");
        config_reload(&config, &fresh, &changes);
        config_key_names(changes.taken, names, sizeof(names));
        ck_assert_str_eq(names, "host.lease_share_percent, nvme.write, drain.seconds, log.level");
        config_key_names(changes.need_restart, names, sizeof(names));
        ck_assert_str_eq(names, "host.bytes, nvme.paths, nvme.catalog");
        ck_assert_int_eq(config.log.level, LOG_LEVEL_DEBUG);
        ck_assert_int_eq(config.nvme.write, PLACEMENT_WRITE_STORE);
        ck_assert_uint_eq(config.drain.seconds, 3);
        ck_assert_uint_eq(config.host.lease_share_percent, 50);
        ck_assert_uint_eq(config.host.bytes, 64 * MIB);
        ck_assert_uint_eq(config.nvme.n_paths, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/config");
        TCase *values = tcase_create("values"), *file = tcase_create("file");
        TCase *check = tcase_create("check");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(values, make_folder, remove_folder);
        tcase_add_test(values, defaults_are_those_of_the_documentation);
        tcase_add_test(values, each_default_passes_its_own_bounds);
        tcase_add_loop_test(values, sizes_take_bytes_and_binary_units, 0,
                            sizeof(sizes) / sizeof(sizes[0]));
        tcase_add_test(values, sizes_that_mean_nothing_are_refused);
        tcase_add_test(values, an_rdma_port_needs_a_secret_and_somebody_who_may_connect);
        tcase_add_test(values, peers_are_addresses_or_names);
        tcase_add_loop_test(values, numbers_keep_to_their_bounds, 0,
                            sizeof(bounds) / sizeof(bounds[0]));
        tcase_add_test(values, words_take_only_their_values);
        tcase_add_test(values, addresses_are_ip_and_port);
        tcase_add_test(values, groups_must_exist);
        tcase_add_test(values, socket_paths_fit_sun_path);
        tcase_add_test(values, paths_are_a_list);
        tcase_add_test(values, catalog_lies_beside_the_first_path);
        tcase_add_test(values, overrides_name_a_key_and_a_value);
        suite_add_tcase(suite, values);

        tcase_add_checked_fixture(file, make_folder, remove_folder);
        tcase_add_test(file, sample_file_holds_every_key_at_its_default);
        tcase_add_test(file, sample_file_documents_default_and_reload_of_every_key);
        tcase_add_test(file, man_page_names_exactly_the_keys);
        tcase_add_test(file, empty_files_and_sections_mean_defaults);
        tcase_add_test(file, values_remember_their_line);
        tcase_add_test(file, unknown_keys_are_refused_with_line_and_a_guess);
        tcase_add_test(file, repeated_keys_are_refused_naming_both_lines);
        tcase_add_test(file, wrong_shapes_are_refused_with_line);
        tcase_add_test(file, text_that_is_not_yaml_is_refused_with_line);
        tcase_add_test(file, numbers_out_of_bounds_name_line_and_bounds);
        tcase_add_test(file, unreadable_files_say_why);
        suite_add_tcase(suite, file);

        tcase_add_checked_fixture(check, make_folder, remove_folder);
        tcase_add_test(check, a_right_configuration_passes_the_check);
        tcase_add_test(check, folders_must_exist);
        tcase_add_test(check, a_pool_is_checked_without_a_network);
        tcase_add_test(check, keys_of_the_pool_are_words_numbers_and_names);
        tcase_add_test(check, the_index_of_the_pool_lies_beside_the_catalog);
        tcase_add_test(check, pieces_must_divide_the_host_tier);
        tcase_add_test(check, arenas_beyond_the_machine_are_refused_with_line);
        tcase_add_test(check, what_is_not_ours_is_overwritten_only_by_format);
        tcase_add_test(check, more_than_the_file_system_holds_is_refused_with_line);
        tcase_add_test(check, reload_takes_what_is_reloadable_and_names_the_rest);
        suite_add_tcase(suite, check);

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
