// SPDX-License-Identifier: Apache-2.0
/*
 * An engine whose ranks span nodes: daemons that are peers, two but where three are said, on each a
 * session with one of the shards. Over a transport that needs no device
 * (tests/support/loopback_rdma.c); in the guest of tests/rdma, where KVTIER_SPAN_HOSTS names an
 * address of each device, over theirs.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define MIB          UINT64_C(0x100000)
#define NODES_MAX    3u
#define N_GROUPS     5u
#define N_BOUNDARIES 5u
/* The daemon waits 2 s for answers: neither shorter nor much longer. */
#define DEADLINE_MS 2000u
#define SLACK_MS    4000u

struct node {
        struct daemon_fixture fixture;
        struct hybrid_engine engine;
        char host[32];
        unsigned port;
        char listen_at[64], secret_at[160], peers[160];
        const char *overrides[5];
};

static struct node nodes[NODES_MAX];
static struct node *const a = &nodes[0], *const b = &nodes[1], *const c = &nodes[2];
static unsigned n_nodes = 2;
static struct kvt_layout layout; /* a shard for each node of the engine */
static struct kvt_group groups[N_GROUPS];
static struct hybrid_prompt prompt;
static char secret[] = "/tmp/kvtier-spans-XXXXXX";
static const uint8_t engine_id[16] = {7};

/* ---- nodes ---- */

static void set_hosts(void)
{
        const char *hosts = getenv("KVTIER_SPAN_HOSTS");
        const char *comma = hosts ? strchr(hosts, ',') : NULL;

        snprintf(a->host, sizeof(a->host), "%.*s", comma ? (int)(comma - hosts) : 9,
                 comma ? hosts : "127.0.0.1");
        snprintf(b->host, sizeof(b->host), "%s", comma ? comma + 1 : "127.0.0.1");
        memcpy(c->host, b->host, sizeof(c->host));
}

/* Ports that nobody listens on now, each another: an address has to name its port. */
static void choose_ports(unsigned n)
{
        int fds[NODES_MAX];

        for (unsigned i = 0; i < n; i++) {
                struct sockaddr_in at = {.sin_family = AF_INET};
                socklen_t length = sizeof(at);

                fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                ck_assert_int_eq(inet_pton(AF_INET, nodes[i].host, &at.sin_addr), 1);
                ck_assert(!bind(fds[i], (struct sockaddr *)&at, sizeof(at)));
                ck_assert(!getsockname(fds[i], (struct sockaddr *)&at, &length));
                nodes[i].port = ntohs(at.sin_port);
        }
        for (unsigned i = 0; i < n; i++)
                close(fds[i]);
}

static void write_secret(void)
{
        static const char text[] = "default of-the-nodes-of-an-engine\n";
        int fd = mkostemp(secret, O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
        close(fd);
        ck_assert(!setenv("KVTIER_SECRET", secret, 1));
}

static void start_daemon(struct node *node, bool has_peers)
{
        const struct node *first = node == a ? b : a, *second = node == c ? b : c;
        struct daemon_options options = {
                .piece_bytes = 16 * MIB, .n_pieces = 1, .overrides = node->overrides};

        options.keeps_fds = true; /* those of two nodes, and of a module that stays loaded */
        snprintf(node->listen_at, sizeof(node->listen_at), "rdma.listen=%s:%u", node->host,
                 node->port);
        snprintf(node->secret_at, sizeof(node->secret_at), "rdma.secret=%s", secret);
        snprintf(node->peers, sizeof(node->peers), "rdma.peers=%s:%u", first->host, first->port);
        if (n_nodes > 2)
                snprintf(node->peers + strlen(node->peers),
                         sizeof(node->peers) - strlen(node->peers), ",%s:%u", second->host,
                         second->port);
        node->overrides[0] = node->listen_at;
        node->overrides[1] = node->secret_at;
        node->overrides[2] = "rdma.allow=127.0.0.1,10.1.0.0/24";
        node->overrides[3] = has_peers ? node->peers : NULL;
        daemon_fixture_init(&node->fixture, &options);
}

static void open_engine(struct node *node)
{
        const uint16_t shards[] = {(uint16_t)(node - nodes)};
        const struct kvt_options options = {
                .engine_id = engine_id, .shards = shards, .n_shards = 1};

        ck_assert_int_eq(hybrid_open_rank(&node->engine, node->fixture.socket, &layout, &options),
                         KVT_OK);
}

static void set_layout(uint16_t n_shards)
{
        layout = hybrid_layout();
        memcpy(groups, layout.groups, sizeof(groups));
        for (unsigned i = 0; i < N_GROUPS; i++)
                if (groups[i].shards > 1)
                        groups[i].shards = n_shards;
        layout.groups = groups;
}

/* @n_spanned: nodes of the engine. */
static void start_nodes(unsigned n, unsigned n_spanned)
{
        n_nodes = n;
        set_hosts();
        set_layout((uint16_t)n_spanned);
        write_secret();
        choose_ports(n);
        for (unsigned i = 0; i < n; i++)
                start_daemon(&nodes[i], true);
        for (unsigned i = 0; i < n_spanned; i++)
                open_engine(&nodes[i]);
        prompt = hybrid_prompt(&a->engine, 1, N_BOUNDARIES * HYBRID_CHUNK_TOKENS + 1, NULL);
}

static void start(void)
{
        start_nodes(2, 2);
}

static void stop(void)
{
        for (unsigned i = 0; i < n_nodes; i++)
                hybrid_close(&nodes[i].engine);
        for (unsigned i = 1; i < n_nodes; i++)
                if (nodes[i].fixture.pid)
                        daemon_stop(&nodes[i].fixture);
        for (unsigned i = 0; i < n_nodes; i++)
                daemon_fixture_deinit(&nodes[i].fixture);
        unlink(secret);
}

/* What is this node's of the boundaries @first to @last: stored there. */
static void store(struct node *node, uint32_t first, uint32_t last)
{
        for (uint32_t at = first; at <= last; at++) {
                struct kvt_object all[HYBRID_MEMBERS_MAX], mine[HYBRID_MEMBERS_MAX];
                size_t n = hybrid_objects(&node->engine, &prompt, at, HYBRID_ALL, all), n_mine = 0;

                for (size_t i = 0; i < n; i++)
                        if (kvt_is_mine(node->engine.session, all[i].group, all[i].shard, at))
                                mine[n_mine++] = all[i];
                ck_assert_uint_eq(n_mine, 4); /* one of attention, window, index, state each */
                ck_assert_uint_eq(hybrid_call(&node->engine, kvt_reserve, at, mine, n_mine).status,
                                  KVT_OK);
                hybrid_fill(mine, n_mine, 0);
                ck_assert_uint_eq(hybrid_call(&node->engine, kvt_commit, at, mine, n_mine).status,
                                  KVT_OK);
        }
}

static void store_all(void)
{
        store(a, 1, N_BOUNDARIES);
        store(b, 1, N_BOUNDARIES);
}

static void resume(const struct node *node)
{
        ck_assert(!kill(node->fixture.pid, SIGCONT));
}

static void suspend(const struct node *node)
{
        ck_assert(!kill(node->fixture.pid, SIGSTOP));
}

static uint64_t begin_find(struct hybrid_engine *engine)
{
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_find(engine->session, &call, prompt.digests, prompt.n_boundaries, &id),
                         KVT_OK);
        return id;
}

static void end_find(struct hybrid_engine *engine, uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(engine->session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_int_eq(completion.status, KVT_OK);
}

/* The longest usable boundary, by asking. */
static uint32_t ask(struct hybrid_engine *engine)
{
        end_find(engine, begin_find(engine));
        return hybrid_match(engine, &prompt).boundaries;
}

static void expect_usable(struct node *node, uint32_t boundaries)
{
        uint64_t deadline = daemon_now_ms() + 20000;
        uint32_t usable;

        /* After a failure a peer is tried again a little later. */
        while ((usable = ask(&node->engine)) != boundaries) {
                ck_assert_msg(daemon_now_ms() < deadline, "%u are usable, not %u", usable,
                              boundaries);
                daemon_pause();
        }
}

/* Its loop has gone round. */
static void turn(struct node *node)
{
        (void)daemon_number(&node->fixture, "sessions");
}

/* By itself, when the link to a node that was killed has ended. */
static void expect_forgotten(struct hybrid_engine *engine)
{
        uint64_t began = daemon_now_ms();

        while (hybrid_match(engine, &prompt).boundaries) {
                ck_assert_uint_lt(daemon_now_ms() - began, SLACK_MS);
                daemon_pause();
        }
}

/* ---- stories ---- */

START_TEST(what_both_nodes_have_is_usable_on_both)
{
        struct kvt_boundary usable[N_BOUNDARIES];
        struct kvt_match_query query = {.usable = usable, .n_usable = N_BOUNDARIES};
        struct kvt_match match;

        start();
        store(a, 1, N_BOUNDARIES);
        ck_assert_uint_eq(ask(&a->engine), 0);
        store(b, 1, 3);
        /* Nothing that was not asked for. */
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 0);
        ck_assert_uint_eq(ask(&a->engine), 3);
        ck_assert_uint_eq(ask(&b->engine), 3);
        match = hybrid_query(&a->engine, &prompt, query);
        ck_assert_uint_eq(match.n_usable, 3);
        ck_assert_uint_eq(match.resident_boundaries, 3);
        ck_assert_uint_eq(usable[2].boundaries, 1);
        store(b, 4, N_BOUNDARIES);
        ck_assert_uint_eq(ask(&a->engine), N_BOUNDARIES);
        stop();
}
END_TEST

/* Of attention, window (two trailing chunks), index (on each node) and state. */
START_TEST(what_a_node_lacks_leaves_the_boundary_before_it)
{
        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        hybrid_drop(&b->fixture, &prompt, 5, HYBRID_STATE, 1);
        ck_assert_uint_eq(ask(&a->engine), 4);
        hybrid_drop(&b->fixture, &prompt, 4, HYBRID_INDEX, 0);
        ck_assert_uint_eq(ask(&a->engine), 3);
        ck_assert_uint_eq(ask(&b->engine), 3);
        hybrid_drop(&a->fixture, &prompt, 3, HYBRID_ATTENTION, 0);
        ck_assert_uint_eq(ask(&b->engine), 2);
        hybrid_drop(&b->fixture, &prompt, 2, HYBRID_WINDOW, 1);
        ck_assert_uint_eq(ask(&a->engine), 1);
        stop();
}
END_TEST

START_TEST(what_goes_here_is_not_shown_any_more)
{
        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        hybrid_drop(&a->fixture, &prompt, 4, HYBRID_ATTENTION, 0);
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 3);
        stop();
}
END_TEST

/* Another engine of the same layout has it all there: it is not this one. */
START_TEST(shards_that_the_engine_has_nowhere_make_nothing_usable)
{
        struct hybrid_engine other;

        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        hybrid_close(&b->engine);
        hybrid_open(&other, b->fixture.socket, NULL);
        hybrid_store_run(&other, &prompt, 1, N_BOUNDARIES, HYBRID_ALL);
        expect_usable(a, 0);
        open_engine(b);
        ck_assert_uint_eq(ask(&a->engine), 5);
        hybrid_close(&other);
        stop();
}
END_TEST

START_TEST(a_peer_that_is_killed_is_a_miss_until_it_is_back)
{
        uint64_t began;

        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        daemon_kill(&b->fixture);
        expect_forgotten(&a->engine);
        began = daemon_now_ms();
        ck_assert_uint_eq(ask(&a->engine), 0);
        ck_assert_uint_lt(daemon_now_ms() - began, DEADLINE_MS + SLACK_MS);
        daemon_start(&b->fixture);
        flow_wait_attached(b->engine.session);
        expect_usable(a, 0);
        store(b, 1, 4);
        expect_usable(a, 4);
        stop();
}
END_TEST

/* It lives, and says nothing. */
START_TEST(a_peer_that_is_silent_is_a_miss_at_the_deadline)
{
        uint64_t began, took, generation;

        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        suspend(b);
        began = daemon_now_ms();
        ck_assert_uint_eq(ask(&a->engine), 0);
        took = daemon_now_ms() - began;
        ck_assert_uint_ge(took, DEADLINE_MS - 10);
        ck_assert_uint_lt(took, DEADLINE_MS + SLACK_MS);
        /* Others are served meanwhile. */
        ck_assert_int_eq(
                hybrid_load_boundary(&a->engine, &prompt, 1, 1u << HYBRID_INDEX, 0, 0, &generation),
                KVT_OK);
        resume(b);
        expect_usable(a, 5);
        stop();
}
END_TEST

/* A peer that has nothing of the engine, and is silent. */
START_TEST(who_has_no_shard_is_not_waited_for)
{
        uint64_t began;

        start_nodes(3, 2);
        store_all();
        expect_usable(a, 5);
        suspend(c);
        began = daemon_now_ms();
        ck_assert_uint_eq(ask(&a->engine), 5);
        ck_assert_uint_lt(daemon_now_ms() - began, DEADLINE_MS - 500);
        resume(c);
        stop();
}
END_TEST

START_TEST(three_nodes_have_what_each_has)
{
        start_nodes(3, 3);
        store(c, 1, 4);
        store_all();
        expect_usable(a, 4);
        expect_usable(c, 4);
        hybrid_drop(&b->fixture, &prompt, 3, HYBRID_ATTENTION, 1);
        ck_assert_uint_eq(ask(&c->engine), 2);
        daemon_kill(&b->fixture);
        expect_usable(a, 0);
        stop();
}
END_TEST

/* One has answered and is gone before the other has. */
START_TEST(an_answer_goes_with_its_link)
{
        uint64_t id;

        start_nodes(3, 3);
        store(c, 1, N_BOUNDARIES);
        store_all();
        expect_usable(a, 5);
        suspend(c);
        id = begin_find(&a->engine);
        /* Each has read what came before: the question, the answer. */
        turn(a);
        turn(b);
        turn(a);
        daemon_kill(&b->fixture);
        expect_forgotten(&a->engine);
        resume(c);
        end_find(&a->engine, id);
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 0);
        stop();
}
END_TEST

/* A node of the fleet without the engine is restarted. */
START_TEST(who_had_nothing_to_tell_takes_nothing_along)
{
        uint64_t id;

        start_nodes(3, 2);
        store_all();
        expect_usable(a, 5);
        suspend(b);
        id = begin_find(&a->engine);
        turn(a);
        turn(c);
        turn(a);
        daemon_kill(&c->fixture);
        daemon_wait_log(&a->fixture, "peer_disconnected", "peer=");
        turn(a);
        /* What was found before is still known, and what is asked for is still found. */
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 5);
        resume(b);
        end_find(&a->engine, id);
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 5);
        stop();
}
END_TEST

START_TEST(a_find_ends_by_cancel_and_with_its_session)
{
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t id, cancel, began;

        start();
        store_all();
        ck_assert_uint_eq(ask(&a->engine), 5);
        suspend(b);
        began = daemon_now_ms();
        id = begin_find(&a->engine);
        ck_assert_int_eq(kvt_cancel(a->engine.session, &call, id, &cancel), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(a->engine.session, cancel, &completion, FLOW_TIMEOUT_NS),
                         KVT_OK);
        ck_assert_uint_lt(daemon_now_ms() - began, DEADLINE_MS - 500);
        /* Nothing more of it comes, which would be one answer too many. */
        ck_assert_uint_eq(ask(&a->engine), 0);
        begin_find(&a->engine);
        hybrid_close(&a->engine);
        resume(b);
        open_engine(a);
        expect_usable(a, 5);
        stop();
}
END_TEST

/* More than one message of each kind, and more than may be under way: all is answered, in order. */
START_TEST(finds_of_many_boundaries_are_answered_to_the_end)
{
        static struct kvt_digest many[KVT_OBJECTS_MAX];
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t ids[3];

        start();
        store_all();
        for (uint32_t i = 0; i < KVT_OBJECTS_MAX; i++)
                memcpy(many[i].bytes, &i, sizeof(i));
        memcpy(many, prompt.digests, prompt.n_boundaries * sizeof(many[0]));
        for (unsigned i = 0; i < 3; i++)
                ck_assert_int_eq(kvt_find(a->engine.session, &call, many, KVT_OBJECTS_MAX, &ids[i]),
                                 KVT_OK);
        for (unsigned i = 0; i < 3; i++) {
                ck_assert_int_eq(
                        kvt_wait_call(a->engine.session, ids[i], &completion, FLOW_TIMEOUT_NS),
                        KVT_OK);
                ck_assert_int_eq(completion.status, KVT_OK);
        }
        ck_assert_int_eq(kvt_find(a->engine.session, &call, many, 5000, &ids[0]), KVT_OK);
        end_find(&a->engine, ids[0]);
        ck_assert_uint_eq(hybrid_match(&a->engine, &prompt).boundaries, 5);
        stop();
}
END_TEST

/* Neither node stores what is the other's. */
START_TEST(shards_of_other_nodes_are_not_stored_here)
{
        struct kvt_object object = {
                .group = HYBRID_ATTENTION, .shard = 1, .boundary_tokens = HYBRID_CHUNK_TOKENS};
        struct kvt_object objects[HYBRID_MEMBERS_MAX];
        size_t n;

        start();
        n = hybrid_objects(&a->engine, &prompt, 1, 1u << HYBRID_ATTENTION, objects);
        for (size_t i = 0; i < n; i++)
                if (objects[i].shard == 1)
                        object = objects[i];
        ck_assert_uint_eq(hybrid_call(&a->engine, kvt_reserve, 0, &object, 1).status, KVT_INVALID);
        stop();
}
END_TEST

/* ---- attaching ---- */

static enum kvt_status attach(struct node *node, const uint16_t *shards, uint32_t n_shards,
                              uint32_t flags, char why[256])
{
        const struct kvt_layout whole = hybrid_layout();
        struct kvt_group known[N_GROUPS];
        struct kvt_layout part = whole;
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = node->fixture.socket,
                .layout = flags ? &part : &whole,
                .engine_id = engine_id,
                .shards = shards,
                .n_shards = n_shards,
                .flags = flags,
                .connect_timeout_ns = FLOW_TIMEOUT_NS,
        };
        struct kvt_session *session = NULL;
        enum kvt_status status;

        memcpy(known, whole.groups, sizeof(known));
        known[HYBRID_ATTENTION].page_bytes = known[HYBRID_ATTENTION].padded_bytes = 0;
        part.groups = known;
        status = kvt_open(&session, &options, why, 256);
        kvt_close(session);
        return status;
}

START_TEST(without_peers_an_engine_that_spans_nodes_is_refused)
{
        static const uint16_t shards[] = {0};
        char why[256] = "";

        set_hosts();
        write_secret();
        choose_ports(2);
        start_daemon(a, false);
        ck_assert_int_eq(attach(a, shards, 1, 0, why), KVT_REFUSED);
        ck_assert_msg(strstr(why, "shard 1 of 2 is on another node"), "%s", why);
        ck_assert_msg(strstr(why, "rdma.peers"), "%s", why);
        daemon_fixture_deinit(&a->fixture);
        unlink(secret);
}
END_TEST

START_TEST(what_nodes_cannot_agree_on_is_refused)
{
        static const uint16_t shards[] = {1, 0}, none[] = {9};
        char why[256] = "";

        start();
        ck_assert_int_eq(attach(a, shards, 1, 0, why), KVT_REFUSED);
        ck_assert_msg(strstr(why, "other shards on this node"), "%s", why);
        ck_assert_int_eq(attach(a, NULL, 0, 0, why), KVT_REFUSED);
        ck_assert_msg(strstr(why, "other shards on this node"), "%s", why);
        ck_assert_int_eq(attach(a, none, 1, 0, why), KVT_INVALID);
        ck_assert_msg(strstr(why, "the layout has 2"), "%s", why);
        ck_assert_int_eq(attach(a, shards + 1, 1, KVT_OPEN_PARTIAL_LAYOUT, why), KVT_REFUSED);
        ck_assert_msg(strstr(why, "rows are not put together over nodes"), "%s", why);
        ck_assert_int_eq(attach(a, shards + 1, 1, 0, why), KVT_OK);
        stop();
}
END_TEST

START_TEST(the_list_of_sessions_tells_that_an_engine_spans_nodes)
{
        json_t *answer, *session;
        unsigned n = 0;
        size_t i;

        start();
        answer = daemon_ask(&a->fixture, "{\"command\":\"sessions\"}");
        json_array_foreach(json_object_get(answer, "sessions"), i, session)
        {
                if (strcmp(json_string_value(json_object_get(session, "program")), "hybrid") != 0)
                        continue;
                ck_assert_int_eq(json_integer_value(json_object_get(session, "shards")), 1);
                ck_assert_int_eq(json_integer_value(json_object_get(session, "n_shards")), 2);
                n++;
        }
        ck_assert_uint_eq(n, 1);
        json_decref(answer);
        stop();
}
END_TEST

/* An engine's rank without a daemon on its node, say. */
START_TEST(a_remote_session_finds_the_same_and_forgets_it)
{
        static const uint16_t shards[] = {0};
        const struct kvt_options options = {
                .engine_id = engine_id, .shards = shards, .n_shards = 1, .buffer_bytes = MIB};
        struct hybrid_engine remote;
        char address[64];

        start();
        store_all();
        hybrid_drop(&b->fixture, &prompt, 5, HYBRID_STATE, 1);
        snprintf(address, sizeof(address), "rdma://%s:%u", a->host, a->port);
        ck_assert_int_eq(hybrid_open_rank(&remote, address, NULL, &options), KVT_OK);
        ck_assert_uint_eq(hybrid_match(&remote, &prompt).boundaries, 0);
        ck_assert_uint_eq(ask(&remote), 4);
        daemon_kill(&b->fixture);
        expect_forgotten(&remote);
        hybrid_close(&remote);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                what_both_nodes_have_is_usable_on_both,
                what_a_node_lacks_leaves_the_boundary_before_it,
                what_goes_here_is_not_shown_any_more,
                shards_that_the_engine_has_nowhere_make_nothing_usable,
                a_peer_that_is_killed_is_a_miss_until_it_is_back,
                a_peer_that_is_silent_is_a_miss_at_the_deadline,
                who_has_no_shard_is_not_waited_for,
                three_nodes_have_what_each_has,
                an_answer_goes_with_its_link,
                who_had_nothing_to_tell_takes_nothing_along,
                a_find_ends_by_cancel_and_with_its_session,
                finds_of_many_boundaries_are_answered_to_the_end,
                shards_of_other_nodes_are_not_stored_here,
                without_peers_an_engine_that_spans_nodes_is_refused,
                what_nodes_cannot_agree_on_is_refused,
                the_list_of_sessions_tells_that_an_engine_spans_nodes,
                a_remote_session_finds_the_same_and_forgets_it,
                NULL,
        };

        return flow_run("spans", tests, 120);
}
