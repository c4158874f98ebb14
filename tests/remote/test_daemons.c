// SPDX-License-Identifier: Apache-2.0
/* Daemons that share a pool, and what may happen to it: behind their backs, or out of reach. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/journal.h"
#include "tests/remote/cluster.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/pool_driver.h"
#include "tests/support/scratch.h"

#define N_NODES   3u
#define N_OBJECTS 24u
#define KIB       UINT64_C(1024)
#define SETTINGS  24u

enum { ON_RADOS, ON_S3, N_BACKENDS };

struct node {
        struct daemon_fixture fixture;
        char settings[SETTINGS][512];
        const char *overrides[SETTINGS + 1];
        uint32_t n_settings;
        char index[64];
        struct kvt_session *session;
};

static struct node nodes[N_NODES];
static char *prefix;
static int damaged;    /* backend whose objects are altered */
static bool keeps_fds; /* librados is used in this process */

static void __attribute__((format(printf, 2, 3))) set(struct node *node, const char *format, ...)
{
        va_list arguments;

        ck_assert_uint_lt(node->n_settings, SETTINGS);
        va_start(arguments, format);
        vsnprintf(node->settings[node->n_settings], sizeof(node->settings[0]), format, arguments);
        va_end(arguments);
        node->overrides[node->n_settings] = node->settings[node->n_settings];
        node->n_settings++;
}

static void set_backend(struct node *node, int backend)
{
        struct pool_rados_options rados = cluster_rados_options();

        if (backend == ON_RADOS) {
                set(node, "pool.backend=rados");
                set(node, "rados.config=%s", rados.config_path);
                set(node, "rados.user=%s", rados.user);
                set(node, "rados.keyring=%s", rados.keyring_path);
                set(node, "rados.pool=%s", rados.pool);
        } else {
                struct pool_s3_options s3 = cluster_s3_options();

                set(node, "pool.backend=s3");
                set(node, "s3.endpoint=%s", s3.endpoint);
                set(node, "s3.bucket=%s", s3.bucket);
                set(node, "s3.credentials=%s", s3.credentials_path);
                set(node, "s3.path_style=on");
                set(node, "s3.allow_http=on");
        }
}

/* Everything goes to the pool at once; there is nothing but host memory above it. */
static void prepare_node(struct node *node, int backend)
{
        struct daemon_options options = {.overrides = node->overrides, .keeps_fds = keeps_fds};

        memset(node, 0, sizeof(*node));
        scratch_make(node->index, sizeof(node->index));
        set_backend(node, backend);
        set(node, "pool.prefix=%s", prefix);
        set(node, "pool.index=%s/pool", node->index);
        set(node, "pool.bytes=64MiB");
        set(node, "pool.write=store");
        set(node, "pool.admit=all");
        set(node, "pool.linger_ms=20");
        daemon_fixture_prepare(&node->fixture, &options);
}

static void start_node(struct node *node)
{
        daemon_start(&node->fixture);
        node->session = flow_open(node->fixture.socket);
}

static void stop_node(struct node *node)
{
        if (node->session)
                kvt_close(node->session);
        node->session = NULL;
        if (node->fixture.pid)
                daemon_stop(&node->fixture);
}

/* Which node it is, it still knows. */
static void forget_index(struct node *node)
{
        char path[128];

        snprintf(path, sizeof(path), "%s/pool", node->index);
        scratch_remove(path);
}

static void begin(int backend, uint32_t n)
{
        damaged = backend;
        prefix = cluster_new_prefix();
        for (uint32_t i = 0; i < n; i++)
                prepare_node(&nodes[i], backend);
}

static void end(uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                stop_node(&nodes[i]);
        for (uint32_t i = 0; i < n; i++) {
                scratch_remove(nodes[i].index);
                daemon_fixture_deinit(&nodes[i].fixture);
        }
        free(prefix);
}

static uint64_t size_of(uint64_t number)
{
        return 200 * KIB + number * 1237;
}

static void put_some(struct node *node, uint64_t first, uint64_t n)
{
        for (uint64_t i = first; i < first + n; i++)
                ck_assert_int_eq(flow_put(node->session, i, 0, size_of(i), 0), KVT_OK);
}

/* How many come back, right to the last byte; what does not is missed, and no worse. */
static uint64_t get_some(struct node *node, uint64_t first, uint64_t n)
{
        uint64_t n_got = 0;

        for (uint64_t i = first; i < first + n; i++)
                n_got += flow_get(node->session, i, 0, 0, NULL) == KVT_OK;
        daemon_expect_alive(&node->fixture);
        return n_got;
}

static void wait_known(struct node *node, uint64_t n)
{
        daemon_wait_number(&node->fixture, "remote.known_objects", n);
}

START_TEST(a_node_hits_what_another_stored)
{
        begin(_i, 2);
        start_node(&nodes[0]);
        start_node(&nodes[1]);
        put_some(&nodes[0], 0, N_OBJECTS);
        wait_known(&nodes[1], N_OBJECTS);
        ck_assert_uint_eq(daemon_number(&nodes[1].fixture, "remote.others_objects"), N_OBJECTS);
        ck_assert_uint_eq(get_some(&nodes[1], 0, N_OBJECTS), N_OBJECTS);
        put_some(&nodes[1], 100, 4);
        wait_known(&nodes[0], N_OBJECTS + 4);
        ck_assert_uint_eq(get_some(&nodes[0], 100, 4), 4);
        end(2);
}
END_TEST

START_TEST(a_lost_index_is_made_anew_from_the_journals)
{
        begin(_i, 2);
        start_node(&nodes[0]);
        start_node(&nodes[1]);
        put_some(&nodes[0], 0, N_OBJECTS);
        put_some(&nodes[1], 100, 4);
        wait_known(&nodes[0], N_OBJECTS + 4);
        stop_node(&nodes[0]);
        forget_index(&nodes[0]);
        start_node(&nodes[0]);
        wait_known(&nodes[0], N_OBJECTS + 4);
        ck_assert_uint_eq(get_some(&nodes[0], 0, N_OBJECTS), N_OBJECTS);
        ck_assert_uint_eq(get_some(&nodes[0], 100, 4), 4);
        end(2);
}
END_TEST

/* ---- what is done to the objects of the pool ---- */

/* In the shell: names of a kind, and one object, whose bytes are in $f. */
static const char *const shell_words[N_BACKENDS] = {
        [ON_RADOS] = "r=\"rados -p kv -N $p\"; list() { $r ls | grep \"^$1/\"; }; "
                     "get() { $r get $1 $f; }; put() { $r put $1 $f; }; drop() { $r rm $1; }",
        [ON_S3] = "u=$KVTIER_TEST_S3_ENDPOINT/kvtier; s3() { curl -sf --aws-sigv4 "
                  "aws:amz:us-east-1:s3 -u AK:SECRETKEY "
                  "-H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \"$@\"; }; "
                  "list() { s3 \"$u?list-type=2&prefix=$p%2F$1%2F\" | tr '<' '\\n' | "
                  "sed -n 's/^Key>//p'; }; get() { s3 -o $f $u/$1; }; "
                  "put() { s3 -T $f $u/$1; }; drop() { s3 -X DELETE $u/$1; }",
};

/* A shell command for each object of a kind. There has to be one. */
static void for_each(const char *kind, const char *command)
{
        cluster_shell("p=%s; f=changed; n=0; %s; for o in $(list %s); do %s || exit 1; "
                      "n=$((n + 1)); done; [ $n -gt 0 ]",
                      prefix, shell_words[damaged], kind, command);
}

/* @command alters $f, which is put back after. */
static void rewrite(const char *kind, const char *command)
{
        char whole[512];

        ck_assert_int_lt(snprintf(whole, sizeof(whole), "get $o && { %s; } && put $o", command),
                         (int)sizeof(whole));
        for_each(kind, whole);
}

/* Node 0 has stored, node 1 knows of it and has none of the bytes. */
static void begin_with_stored(int on)
{
        begin(on, 2);
        start_node(&nodes[0]);
        start_node(&nodes[1]);
        put_some(&nodes[0], 0, N_OBJECTS);
        wait_known(&nodes[1], N_OBJECTS);
}

/* Whatever happened: what is stored now is shared as before. */
static void end_with_a_new_object(void)
{
        put_some(&nodes[0], 1000, 1);
        for (int i = 0; i < 1000 && !get_some(&nodes[1], 1000, 1); i++)
                daemon_pause();
        ck_assert_uint_eq(get_some(&nodes[1], 1000, 1), 1);
        end(2);
}

START_TEST(bundles_deleted_behind_our_back_are_misses)
{
        begin_with_stored(_i);
        for_each("bundle", "drop $o");
        ck_assert_uint_eq(get_some(&nodes[1], 0, N_OBJECTS), 0);
        ck_assert_uint_gt(daemon_number(&nodes[1].fixture, "remote.stale_entries"), 0);
        end_with_a_new_object();
}
END_TEST

START_TEST(a_flipped_bit_is_never_loaded)
{
        begin_with_stored(_i);
        /* The last byte of each bundle is of the last of its objects. */
        rewrite("bundle", "python3 -c 'b = bytearray(open(\"changed\", \"rb\").read()); "
                          "b[-1] ^= 4; open(\"changed\", \"wb\").write(b)'");
        ck_assert_uint_lt(get_some(&nodes[1], 0, N_OBJECTS), N_OBJECTS);
        end_with_a_new_object();
}
END_TEST

START_TEST(of_a_shortened_bundle_nothing_wrong_is_loaded)
{
        begin_with_stored(_i);
        rewrite("bundle", "truncate -s -1000 $f");
        ck_assert_uint_lt(get_some(&nodes[1], 0, N_OBJECTS), N_OBJECTS);
        end_with_a_new_object();
}
END_TEST

START_TEST(a_lengthened_bundle_is_as_good_as_before)
{
        begin_with_stored(_i);
        rewrite("bundle", "head -c 100000 /dev/zero >>$f");
        ck_assert_uint_eq(get_some(&nodes[1], 0, N_OBJECTS), N_OBJECTS);
        end_with_a_new_object();
}
END_TEST

static void wait_damaged(struct node *node)
{
        for (int i = 0; i < 3000 && !daemon_number(&node->fixture, "remote.journal_damaged"); i++)
                daemon_pause();
        ck_assert_uint_gt(daemon_number(&node->fixture, "remote.journal_damaged"), 0);
}

/* Node 1 has read it, so it is there; without its index it has to read it again. */
START_TEST(a_torn_journal_costs_what_it_told)
{
        begin_with_stored(_i);
        stop_node(&nodes[1]);
        forget_index(&nodes[1]);
        rewrite("journal", "truncate -s $(($(stat -c %s $f) / 2)) $f");
        start_node(&nodes[1]);
        wait_damaged(&nodes[1]);
        ck_assert_uint_eq(daemon_number(&nodes[1].fixture, "remote.known_objects"), 0);
        ck_assert_uint_eq(get_some(&nodes[1], 0, N_OBJECTS), 0);
        end_with_a_new_object();
}
END_TEST

/* ---- a dead node ---- */

/* Says of a node that it was last heard of a day ago. */
static void age_node(uv_loop_t *loop, struct pool *pool, const char *name)
{
        uint8_t block[JOURNAL_NODE_BYTES];
        struct journal_node node;
        struct why why = {""};
        uint64_t n;

        ck_assert_int_eq(pool_driver_get(loop, pool, name, 0, block, sizeof(block), &n), 0);
        ck_assert_int_eq(journal_node_decode(&node, block, n, &why), 0);
        node.written_ns -= UINT64_C(86400) * 1000000000;
        journal_node_encode(block, &node);
        ck_assert_int_eq(pool_driver_put(loop, pool, name, block, sizeof(block), 0), 0);
}

/* Nobody runs; who starts again says so. */
static void age_all_nodes(void)
{
        struct pool_rados_options options = cluster_rados_options();
        struct pool_driver_request list;
        struct why why = {""};
        struct pool *pool;
        uv_loop_t loop;

        options.prefix = prefix;
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(pool_rados_open(&pool, &loop, &options, &why), 0);
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "node/", NULL, 10), 0);
        ck_assert_uint_eq(list.n_names, 2);
        for (uint32_t i = 0; i < list.n_names; i++)
                age_node(&loop, pool, list.names[i]);
        pool_driver_close(&loop, pool);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* "collected" of the answer that ends a collection. */
static int64_t collect(struct node *node)
{
        json_t *answer =
                daemon_ask(&node->fixture, "{\"command\":\"pool gc\",\"older_than\":3600}");
        int64_t collected;

        ck_assert_ptr_nonnull(answer);
        ck_assert(json_is_true(json_object_get(answer, "ok")));
        collected = json_integer_value(json_object_get(answer, "collected"));
        json_decref(answer);
        return collected;
}

START_TEST(what_a_dead_node_left_is_collected_by_one_of_two)
{
        int status, n_collected;
        pid_t pid;

        keeps_fds = true;
        begin(ON_RADOS, 3);
        start_node(&nodes[0]);
        start_node(&nodes[1]);
        put_some(&nodes[0], 0, N_OBJECTS);
        /* Its journal is written, so that nothing is left of it in memory alone. */
        wait_known(&nodes[1], N_OBJECTS);
        stop_node(&nodes[1]);
        kvt_close(nodes[0].session);
        nodes[0].session = NULL;
        daemon_kill(&nodes[0].fixture);
        age_all_nodes();
        start_node(&nodes[1]);
        start_node(&nodes[2]);
        wait_known(&nodes[1], N_OBJECTS);
        wait_known(&nodes[2], N_OBJECTS);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid)
                _exit((int)collect(&nodes[1]));
        n_collected = (int)collect(&nodes[2]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status) + n_collected, 1);
        wait_known(&nodes[1], 0);
        wait_known(&nodes[2], 0);
        cluster_shell("! rados -p kv -N %s ls | grep ^bundle/", prefix);
        end(3);
}
END_TEST

/* ---- a pool that is out of reach ---- */

#define DEADLINE_MS 1000u

static void signal_osds(const char *name)
{
        cluster_shell("kill -%s $(cat run/osd.*.pid)", name);
}

/* In the process of the suite, so that a test that fails leaves nobody a stopped cluster. */
static void let_osds_go_on(void)
{
        signal_osds("CONT");
}

static bool is_breaker_open(struct node *node)
{
        return daemon_number(&node->fixture, "remote.breaker_open");
}

/* None of the loads may wait for the pool. */
static void expect_local_hits(struct node *node, uint64_t first, uint64_t n)
{
        for (uint64_t i = first; i < first + n; i++) {
                uint64_t began = daemon_now_ms();

                ck_assert_int_eq(flow_get(node->session, i, 0, 0, NULL), KVT_OK);
                ck_assert_uint_lt(daemon_now_ms() - began, DEADLINE_MS);
        }
}

/* New objects, which go to host memory, until the pool is taken for out of reach. */
static uint64_t put_until_breaker_opens(struct node *node, uint64_t first)
{
        uint64_t n = 0, deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        while (!is_breaker_open(node)) {
                ck_assert_uint_lt(daemon_now_ms(), deadline);
                if (n < N_OBJECTS)
                        put_some(node, first + n++, 1);
                daemon_pause();
        }
        return n;
}

/* What is stored meanwhile is held here, and the pool's tier does not take it. */
static void expect_stores_refused(struct node *node, uint64_t first, uint64_t n)
{
        const char *refused = "remote.refused_writes";
        uint64_t n_in_pool = daemon_number(&node->fixture, "remote.objects");
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        put_some(node, first, n);
        while (!daemon_number(&node->fixture, refused)) {
                ck_assert_msg(daemon_now_ms() < deadline, "no store was refused");
                daemon_pause();
        }
        ck_assert(is_breaker_open(node));
        ck_assert_uint_eq(daemon_number(&node->fixture, "remote.objects"), n_in_pool);
        expect_local_hits(node, first, n);
}

START_TEST(a_stopped_pool_takes_no_stores_and_what_is_here_is_served)
{
        uint64_t n;

        begin(ON_RADOS, 2);
        for (uint32_t i = 0; i < 2; i++) {
                set(&nodes[i], "pool.deadline_ms=%u", DEADLINE_MS);
                start_node(&nodes[i]);
        }
        put_some(&nodes[0], 0, N_OBJECTS);
        wait_known(&nodes[1], N_OBJECTS);
        ck_assert_uint_eq(daemon_number(&nodes[0].fixture, "remote.refused_writes"), 0);
        signal_osds("STOP");
        expect_local_hits(&nodes[0], 0, N_OBJECTS);
        n = put_until_breaker_opens(&nodes[0], 100);
        expect_local_hits(&nodes[0], 0, N_OBJECTS);
        expect_local_hits(&nodes[0], 100, n);
        expect_stores_refused(&nodes[0], 200, 4);
        ck_assert_uint_eq(get_some(&nodes[1], 0, 4), 0);
        signal_osds("CONT");
        for (uint32_t i = 0; i < 2; i++)
                daemon_wait_number(&nodes[i].fixture, "remote.breaker_open", 0);
        ck_assert_uint_eq(daemon_number(&nodes[0].fixture, "remote.breaker_opened"), 1);
        ck_assert_uint_eq(get_some(&nodes[1], 0, N_OBJECTS), N_OBJECTS);
        end_with_a_new_object();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("remote/daemons");
        TCase *share = tcase_create("share"), *damage = tcase_create("damage");
        TCase *gc = tcase_create("gc"), *outage = tcase_create("outage");
        TCase *all[] = {share, damage, gc, outage};
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_loop_test(share, a_node_hits_what_another_stored, 0, N_BACKENDS);
        tcase_add_loop_test(share, a_lost_index_is_made_anew_from_the_journals, 0, N_BACKENDS);
        tcase_add_loop_test(damage, bundles_deleted_behind_our_back_are_misses, 0, N_BACKENDS);
        tcase_add_loop_test(damage, a_flipped_bit_is_never_loaded, 0, N_BACKENDS);
        tcase_add_loop_test(damage, of_a_shortened_bundle_nothing_wrong_is_loaded, 0, N_BACKENDS);
        tcase_add_loop_test(damage, a_lengthened_bundle_is_as_good_as_before, 0, N_BACKENDS);
        tcase_add_loop_test(damage, a_torn_journal_costs_what_it_told, 0, N_BACKENDS);
        tcase_add_unchecked_fixture(outage, NULL, let_osds_go_on);
        tcase_add_test(outage, a_stopped_pool_takes_no_stores_and_what_is_here_is_served);
        tcase_add_test(gc, what_a_dead_node_left_is_collected_by_one_of_two);
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
                tcase_set_timeout(all[i], 90);
                suite_add_tcase(suite, all[i]);
        }
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
