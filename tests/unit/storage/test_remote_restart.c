// SPDX-License-Identifier: Apache-2.0
/* What a node knows after its end, orderly or not, and after the loss of its index. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/bundle.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/remote_fixture.h"

#define N_OBJECTS    8u
#define KILL_POINTS  28
#define KILL_MOMENTS 12

static struct pool_fixture *fixture;
static struct node *a, *b;

static void use(struct pool_fixture *made)
{
        fixture = made;
        a = &fixture->nodes[0];
        b = &fixture->nodes[1];
}

/* What the child says of itself: in memory that outlives it. */
struct report {
        _Atomic uint32_t stored[N_OBJECTS];    /* its write has ended well */
        _Atomic uint32_t forgotten[N_OBJECTS]; /* its forget has begun */
        _Atomic uint32_t is_open;
        _Atomic uint32_t is_complete;
};

static struct report *report;
static uint32_t n_left;

static void count_down(void *user, enum fake_pool_kind kind, const char *name)
{
        (void)user;
        (void)kind;
        (void)name;
        if (!n_left--)
                _exit(9);
}

static void store(struct node *node, struct driver_object *objects, uint32_t first, uint32_t end)
{
        static struct driver_request writes[N_OBJECTS];

        for (uint32_t i = first; i < end; i++)
                ck_assert_int_eq(
                        driver_submit_write(&node->driver, &writes[i], &objects[i], i << 20), 0);
        for (uint32_t i = first; i < end; i++) {
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
                report->stored[i] = 1;
        }
}

static void make_objects(struct driver_object *objects)
{
        for (uint32_t i = 0; i < N_OBJECTS; i++)
                objects[i] = chain_object(i / 4, i % 4, 60000 + i);
}

/* Stores two prompts, forgets the tail of one and all of the other. */
static void live(const char *folder, uint32_t left)
{
        static struct driver_object objects[N_OBJECTS];

        use(nodes_at(folder, 1));
        node_open(fixture, 0);
        report->is_open = 1;
        n_left = left;
        fake_pool_watch(a->pool, count_down, NULL);
        make_objects(objects);
        store(a, objects, 0, 4);
        store(a, objects, 4, 8);
        nodes_settle(fixture);
        report->forgotten[3] = 1;
        ck_assert_int_eq(driver_forget(&a->driver, &objects[3], true), 0);
        for (uint32_t i = 8; i-- > 4;) {
                report->forgotten[i] = 1;
                /* Nothing but this may take the rest along. */
                report->forgotten[4] = report->forgotten[5] = 1;
                ck_assert_int_eq(driver_forget(&a->driver, &objects[i], false), 0);
        }
        nodes_settle(fixture);
        report->is_complete = 1;
        _exit(0);
}

static pid_t start_child(const char *folder, uint32_t left)
{
        pid_t child;

        report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                      0);
        ck_assert_ptr_ne(report, MAP_FAILED);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (!child)
                live(folder, left);
        return child;
}

static bool is_as_counted(void *user)
{
        uint64_t bytes;

        (void)user;
        fake_pool_count(fixture->pool, "bundle/", &bytes);
        return bytes == driver_usage(&a->driver).used_bytes && !node_usage(a).condemned_bundles;
}

/* The node that died and a new one agree with each other and with what was reported. */
static void check_after_death(const char *folder)
{
        static struct driver_object objects[N_OBJECTS];
        struct driver_object *found;

        use(nodes_at(folder, 2));
        a->options.deadline_ms = 200;
        make_objects(objects);
        node_open(fixture, 0);
        for (uint32_t i = 0; i < N_OBJECTS; i++) {
                found = driver_find(&a->driver, &objects[i]);
                if (report->stored[i] && !report->forgotten[i])
                        ck_assert_msg(found, "object %u is lost", i);
                if (!found)
                        continue;
                objects[i].place = found->place;
                ck_assert_int_eq(driver_read(&a->driver, &objects[i]), 0);
        }
        /* No bundle is left that nobody knows, and the cap knows them all. */
        nodes_run_until(fixture, is_as_counted, NULL);
        nodes_settle(fixture);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(b).entries, node_usage(a).entries);
        for (uint32_t i = 0; i < N_OBJECTS; i++)
                if (node_appeared(b, &objects[i]) && !node_vanished(b, &objects[i]))
                        ck_assert_int_eq(node_read_appeared(b, &objects[i]), 0);
        nodes_free(fixture);
}

START_TEST(a_death_before_any_request_loses_and_leaks_nothing)
{
        char folder[64];
        int status;

        scratch_make(folder, sizeof(folder));
        ck_assert_int_gt(waitpid(start_child(folder, (uint32_t)_i), &status, 0), 0);
        ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || report->is_complete));
        check_after_death(folder);
}
END_TEST

START_TEST(a_death_at_any_moment_loses_and_leaks_nothing)
{
        char folder[64];
        int status;
        pid_t child;

        scratch_make(folder, sizeof(folder));
        child = start_child(folder, UINT32_MAX);
        while (!report->is_open)
                usleep(1000);
        usleep(9000 * (useconds_t)_i);
        kill(child, SIGKILL);
        ck_assert_int_gt(waitpid(child, &status, 0), 0);
        check_after_death(folder);
}
END_TEST

START_TEST(of_two_generations_the_newer_survives)
{
        struct driver_object old = driver_object(1, 10000), new = old, *found;

        new.object.generation = 2;
        new.seed = 4711;
        use(nodes_new(1));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &old), 0);
        ck_assert_int_eq(driver_write(&a->driver, &new), 0);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        found = driver_find(&a->driver, &new);
        ck_assert_ptr_nonnull(found);
        new.place = found->place;
        ck_assert_int_eq(driver_read(&a->driver, &new), 0);
        nodes_run_until(fixture, is_as_counted, NULL);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        nodes_free(fixture);
}
END_TEST

START_TEST(a_bundle_that_nobody_knows_is_removed)
{
        struct driver_object objects[2] = {driver_object(1, 10000), driver_object(2, 20000)};
        char first[POOL_NAME_MAX], second[POOL_NAME_MAX];

        use(nodes_new(1));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &objects[0]), 0);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, first));
        ck_assert_int_eq(driver_write(&a->driver, &objects[1]), 0);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 1, second));
        ck_assert_int_eq(driver_forget(&a->driver, &objects[0], false), 0);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert(!fake_pool_has(fixture->pool, first));
        fake_pool_copy(fixture->pool, second, first); /* it arrived late */
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        nodes_settle(fixture);
        nodes_run_until(fixture, is_as_counted, NULL);
        ck_assert(!fake_pool_has(fixture->pool, first));
        ck_assert(fake_pool_has(fixture->pool, second));
        nodes_free(fixture);
}
END_TEST

/* ---- the index is lost ---- */

static bool is_rebuilt(void *user)
{
        return !driver_usage(&((struct node *)user)->driver).degraded && node_usage(user).caught_up;
}

START_TEST(a_node_that_lost_its_index_owns_its_bundles_all_the_same)
{
        static struct driver_object objects[N_OBJECTS];
        struct driver_object more = driver_object(4711, 5000);
        uint8_t id[16];
        uint64_t used;

        use(nodes_new(2));
        report = calloc(1, sizeof(*report));
        node_open(fixture, 0);
        make_objects(objects);
        store(a, objects, 0, 4);
        store(a, objects, 4, 8);
        ck_assert_int_eq(driver_forget(&a->driver, &objects[7], false), 0);
        nodes_settle(fixture);
        memcpy(id, node_usage(a).node, sizeof(id));
        used = driver_usage(&a->driver).used_bytes;
        node_close(fixture, 0);
        node_lose_index(fixture, 0, false);

        ck_assert_uint_eq(node_open(fixture, 0), 0);
        ck_assert_mem_eq(node_usage(a).node, id, sizeof(id));
        ck_assert_int_eq(driver_write(&a->driver, &more), TIER_E_PAUSED);
        nodes_run_until(fixture, is_rebuilt, a);
        ck_assert_uint_eq(a->n_ready, 1);
        ck_assert_uint_eq(driver_usage(&a->driver).used_bytes, used);
        ck_assert_uint_eq(driver_usage(&a->driver).objects, 7);
        ck_assert_ptr_nonnull(node_vanished(a, &objects[7]));
        for (uint32_t i = 0; i < 7; i++) {
                ck_assert_int_eq(node_read_appeared(a, &objects[i]), 0);
                objects[i].place = node_appeared(a, &objects[i])->place;
                ck_assert(a->driver.tier->ops.is_own(a->driver.tier, objects[i].place));
        }
        /* It goes on under numbers of its own, and may delete what it wrote. */
        ck_assert_int_eq(driver_write(&a->driver, &more), 0);
        ck_assert_int_eq(driver_read(&a->driver, &more), 0);
        for (uint32_t i = 7; i-- > 4;)
                ck_assert_int_eq(driver_forget(&a->driver, &objects[i], false), 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 2);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(b).entries, 5);
        ck_assert_int_eq(node_read_appeared(b, &more), 0);
        nodes_free(fixture);
}
END_TEST

START_TEST(rebuilding_survives_a_pool_that_fails_on_the_way)
{
        static struct driver_object objects[N_OBJECTS];

        use(nodes_new(1));
        report = calloc(1, sizeof(*report));
        node_open(fixture, 0);
        make_objects(objects);
        store(a, objects, 0, 4);
        nodes_settle(fixture);
        node_close(fixture, 0);
        node_lose_index(fixture, 0, false);
        node_open(fixture, 0);
        fake_pool_fail(a->pool, 1u << FAKE_POOL_GET | 1u << FAKE_POOL_LIST, 3, -EIO);
        nodes_run_until(fixture, is_rebuilt, a);
        ck_assert_uint_eq(driver_usage(&a->driver).objects, 4);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 4);
        ck_assert(!driver_usage(&a->driver).degraded);
        nodes_free(fixture);
}
END_TEST

START_TEST(rebuilding_finds_what_is_missing_and_what_nobody_knows)
{
        static struct driver_object objects[N_OBJECTS];
        struct driver_object forgotten = driver_object(4711, 5000);
        char stray[POOL_NAME_MAX], last[POOL_NAME_MAX];

        use(nodes_new(1));
        report = calloc(1, sizeof(*report));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &forgotten), 0);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, stray));
        ck_assert_int_eq(driver_forget(&a->driver, &forgotten, false), 0);
        make_objects(objects);
        store(a, objects, 0, 4);
        store(a, objects, 4, 8);
        nodes_settle(fixture);
        node_close(fixture, 0);
        node_lose_index(fixture, 0, false);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 1, last));
        fake_pool_copy(fixture->pool, last, stray);
        fake_pool_drop(fixture->pool, last);
        node_open(fixture, 0);
        nodes_run_until(fixture, is_rebuilt, a);
        nodes_run_until(fixture, is_as_counted, NULL);
        ck_assert_uint_eq(driver_usage(&a->driver).objects, 4);
        for (uint32_t i = 4; i < 8; i++)
                ck_assert_ptr_nonnull(node_vanished(a, &objects[i]));
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        ck_assert(!fake_pool_has(fixture->pool, stray));
        nodes_free(fixture);
}
END_TEST

/* What finds no place in a smaller index could never be read: it is removed, and counted. */
START_TEST(rebuilding_into_a_smaller_index_keeps_what_fits)
{
        struct driver_object object;

        use(nodes_new(1));
        node_open(fixture, 0);
        for (uint32_t i = 0; i < 4; i++) {
                object = driver_object(i, 10000);
                ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        }
        nodes_settle(fixture);
        node_close(fixture, 0);
        node_lose_index(fixture, 0, false);
        a->options.entries_max = 2;
        node_open(fixture, 0);
        nodes_run_until(fixture, is_rebuilt, a);
        nodes_run_until(fixture, is_as_counted, NULL);
        ck_assert_uint_eq(node_usage(a).entries, 2);
        ck_assert_uint_eq(node_usage(a).own_bundles, 2);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 2);
        nodes_free(fixture);
}
END_TEST

START_TEST(a_node_that_lost_its_name_too_begins_as_another)
{
        struct driver_object object = driver_object(1, 10000);
        uint8_t id[16];

        use(nodes_new(1));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        nodes_settle(fixture);
        memcpy(id, node_usage(a).node, sizeof(id));
        node_close(fixture, 0);
        node_lose_index(fixture, 0, true);
        node_open(fixture, 0);
        nodes_settle(fixture);
        ck_assert_mem_ne(node_usage(a).node, id, sizeof(id));
        ck_assert_int_eq(node_read_appeared(a, &object), 0);
        ck_assert(!a->driver.tier->ops.is_own(a->driver.tier, node_appeared(a, &object)->place));
        ck_assert_uint_eq(driver_usage(&a->driver).used_bytes, 0);
        nodes_free(fixture);
}
END_TEST

static void write_file(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
}

static void on_pool_closed(void *user)
{
        *(bool *)user = true;
}

/* One that remote_open() did not take. */
static void close_pool(struct node *node)
{
        bool is_closed = false;

        node->pool->ops.close(node->pool, on_pool_closed, &is_closed);
        uv_run(&node->driver.loop, UV_RUN_DEFAULT);
        ck_assert(is_closed);
}

START_TEST(an_index_of_another_node_is_refused)
{
        struct why why = {""};
        char path[128];

        use(nodes_new(1));
        node_open(fixture, 0);
        node_close(fixture, 0);
        snprintf(path, sizeof(path), "%s.node", a->index);
        write_file(path, "0123456789abcdef0123456789abcdef\n");
        ck_assert_int_lt(node_try_open(fixture, 0, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "different nodes"));
        write_file(path, "nonsense\n");
        close_pool(a);
        ck_assert_int_lt(node_try_open(fixture, 0, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "32 hexadecimal digits"));
        close_pool(a);
        nodes_free(fixture);
}
END_TEST

START_TEST(a_damaged_index_is_made_anew)
{
        struct driver_object object = driver_object(1, 10000);
        char path[128];

        use(nodes_new(1));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        nodes_settle(fixture);
        node_close(fixture, 0);
        snprintf(path, sizeof(path), "%s/CURRENT", a->index);
        write_file(path, "garbage");
        ck_assert_uint_eq(node_open(fixture, 0), 0);
        nodes_run_until(fixture, is_rebuilt, a);
        ck_assert_int_eq(node_read_appeared(a, &object), 0);
        ck_assert_uint_eq(driver_usage(&a->driver).objects, 1);
        nodes_free(fixture);
}
END_TEST

struct walk {
        bool has_ended;
        int result;
        uint32_t n_found;
};

static void on_found(void *user, const struct tier_object *object, struct tier_place place)
{
        (void)object;
        (void)place;
        ((struct walk *)user)->n_found++;
}

static void on_walked(void *user, int result)
{
        struct walk *walk = user;

        walk->has_ended = true;
        walk->result = result;
}

static void find_largest_table(const char *index, char ret_path[PATH_MAX], off_t *ret_size)
{
        struct dirent **names;
        int n = scandir(index, &names, NULL, NULL);
        char path[PATH_MAX];
        struct stat status;

        *ret_size = 0;
        ck_assert_int_gt(n, 0);
        for (int i = 0; i < n; i++) {
                snprintf(path, sizeof(path), "%s/%s", index, names[i]->d_name);
                if (strstr(names[i]->d_name, ".sst") && !stat(path, &status) &&
                    status.st_size > *ret_size) {
                        *ret_size = status.st_size;
                        snprintf(ret_path, PATH_MAX, "%s", path);
                }
                free(names[i]);
        }
        free(names);
        ck_assert_int_gt(*ret_size, 0);
}

/* A bit of the index's largest table: where @bytes are, or with none of these in the middle. */
static void flip_in_index(const char *index, const void *bytes, size_t n_bytes)
{
        char path[PATH_MAX];
        uint8_t *table, *at;
        off_t size;
        int fd;

        find_largest_table(index, path, &size);
        fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        table = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(table, MAP_FAILED);
        at = n_bytes ? memmem(table, (size_t)size, bytes, n_bytes) : table + size / 2;
        ck_assert_ptr_nonnull(at);
        *at ^= 1;
        munmap(table, (size_t)size);
        close(fd);
}

/* Long records, each in a block of its own. */
static void store_long_records(struct driver_object *objects, uint32_t n)
{
        struct digest *covers = calloc(TIER_COVERS_MAX, sizeof(*covers));
        uint8_t *bytes = (uint8_t *)covers;

        for (size_t i = 0; i < TIER_COVERS_MAX * sizeof(*covers); i++)
                bytes[i] = (uint8_t)(i * 2654435761u >> 11); /* it does not shrink much */
        for (uint32_t i = 0; i < n; i++) {
                objects[i] = driver_object(i, 5000);
                objects[i].object.croppable = true;
                objects[i].object.covers = covers;
                objects[i].object.n_covers = TIER_COVERS_MAX;
                ck_assert_int_eq(driver_write(&a->driver, &objects[i]), 0);
        }
        free(covers);
}

static bool has_told_of(const struct node *node, const struct driver_object *objects, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (!node_appeared(node, &objects[i]))
                        return false;
        return true;
}

/* A bit has turned over between two runs, in what the walk meets after some entries. */
START_TEST(an_index_that_is_damaged_in_the_middle_is_made_anew)
{
        struct driver_object objects[6];
        struct why why = {""};
        struct walk walk = {.result = 1};

        use(nodes_new(1));
        node_open(fixture, 0);
        store_long_records(objects, 6);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 6); /* now they are in a table */
        nodes_settle(fixture);
        node_close(fixture, 0);
        flip_in_index(a->index, NULL, 0);
        ck_assert_msg(!node_try_open(fixture, 0, &why), "%s", why.text);
        a->driver.tier->ops.recover(a->driver.tier, on_found, on_walked, &walk);
        while (!walk.has_ended)
                uv_run(&a->driver.loop, UV_RUN_ONCE);
        ck_assert_int_eq(walk.result, 0);
        ck_assert_uint_gt(walk.n_found, 0); /* and vanished again */
        ck_assert_uint_eq(a->n_vanished, walk.n_found);
        ck_assert_ptr_nonnull(strstr(a->notice, "damaged and is made anew"));
        nodes_settle(fixture);
        nodes_run_until(fixture, is_rebuilt, a);
        ck_assert(has_told_of(a, objects, 6));
        ck_assert_int_eq(node_read_appeared(a, &objects[5]), 0);
        ck_assert_uint_eq(node_usage(a).own_bundles, 6);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 6);
        /* For good. */
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 6);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(a).own_bundles, 6);
        nodes_free(fixture);
}
END_TEST

/* Of what is read before the loop turns: who we are, or what replacing commits said. */
START_TEST(an_index_that_is_damaged_where_it_is_loaded_is_made_anew)
{
        const uint64_t total = UINT64_C(0x5a17c0de5a17c0de);
        struct driver_object objects[6], other = driver_object(4711, 10000);
        struct remote_usage usage;

        use(nodes_new(1));
        node_open(fixture, 0);
        store_long_records(objects, 6);
        a->driver.tier->ops.replaced(a->driver.tier, &other.object.key, total);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 6);
        nodes_settle(fixture);
        usage = node_usage(a);
        node_close(fixture, 0);
        flip_in_index(a->index, _i ? (const void *)&total : usage.node,
                      _i ? sizeof(total) : sizeof(usage.node));
        ck_assert_uint_eq(node_open(fixture, 0), 0);
        nodes_run_until(fixture, is_rebuilt, a);
        ck_assert(has_told_of(a, objects, 6));
        ck_assert_mem_eq(node_usage(a).node, usage.node, sizeof(usage.node));
        nodes_free(fixture);
}
END_TEST

static void copy_folder(const char *from, const char *to)
{
        char command[320];

        snprintf(command, sizeof(command), "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
        ck_assert_int_eq(system(command), 0);
}

static bool has_caught_up(void *user)
{
        return node_usage(user).caught_up;
}

/* A power loss takes the index back to where the pool has bundles that it does not know. */
static void take_index_back(struct driver_object *lost, uint32_t n_lost)
{
        struct driver_object object = driver_object(1, 10000);
        char kept[128];

        use(nodes_new(1));
        snprintf(kept, sizeof(kept), "%s-kept", a->index);
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        nodes_settle(fixture);
        node_close(fixture, 0);
        copy_folder(a->index, kept);
        node_open(fixture, 0);
        for (uint32_t i = 0; i < n_lost; i++) {
                lost[i] = driver_object(2 + i, 20000);
                ck_assert_int_eq(driver_write(&a->driver, &lost[i]), 0);
        }
        nodes_settle(fixture);
        node_close(fixture, 0);
        copy_folder(kept, a->index);
        scratch_remove(kept);
}

START_TEST(an_index_that_was_taken_back_learns_before_it_takes_numbers)
{
        struct driver_object lost[2], more = driver_object(4711, 30000);
        struct driver_request request;

        take_index_back(lost, 2);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        fake_pool_hold(a->pool, 1u << FAKE_POOL_PUT);
        ck_assert_int_eq(driver_submit_write(&a->driver, &request, &more, 0), 0);
        nodes_run_until(fixture, has_caught_up, a);
        fake_pool_hold(a->pool, 0);
        ck_assert_int_eq(driver_wait(&request), 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(a).condemned_bundles, 0);
        ck_assert_uint_eq(node_usage(a).own_bundles, 4);
        for (uint32_t i = 0; i < 2; i++)
                ck_assert_int_eq(node_read_appeared(a, &lost[i]), 0);
        ck_assert_int_eq(driver_read(&a->driver, &more), 0);
        nodes_run_until(fixture, is_as_counted, NULL); /* headers and all */
        nodes_free(fixture);
}
END_TEST

static bool has_failed(void *user)
{
        return ((const struct driver_request *)user)->is_done;
}

START_TEST(what_is_written_while_our_journal_cannot_be_read_fails_and_then_pauses)
{
        struct driver_object lost[1], more = driver_object(4711, 30000);
        struct driver_request request;

        take_index_back(lost, 1);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        fake_pool_fail(a->pool, 1u << FAKE_POOL_GET, 3, -EACCES);
        ck_assert_int_eq(driver_submit_write(&a->driver, &request, &more, 0), 0);
        nodes_run_until(fixture, has_failed, &request);
        ck_assert_int_eq(request.result, -EAGAIN);
        ck_assert_int_eq(driver_write(&a->driver, &more), TIER_E_PAUSED);
        nodes_run_until(fixture, has_caught_up, a);
        ck_assert_uint_eq(a->n_ready, 1);
        ck_assert_int_eq(driver_write(&a->driver, &more), 0);
        nodes_free(fixture);
}
END_TEST

START_TEST(nothing_waits_for_a_journal_of_ours_that_cannot_be_read)
{
        struct driver_object lost[1], *found;
        struct driver_object object = driver_object(1, 10000);
        char name[POOL_NAME_MAX];

        take_index_back(lost, 1);
        ck_assert(fake_pool_name(fixture->pool, "journal/", 1, name));
        fake_pool_bar(fixture->pool, name);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        found = driver_find(&a->driver, &object);
        ck_assert_ptr_nonnull(found);
        ck_assert_int_eq(driver_forget(&a->driver, found, true), 0);
        ck_assert(!node_usage(a).caught_up);
        nodes_free(fixture);
}
END_TEST

/* Of bundles whose journal never got there nobody knows; the cap counts them all the same. */
START_TEST(bundles_above_the_last_number_we_know_are_removed)
{
        struct driver_object object = driver_object(1, 10000);
        char name[POOL_NAME_MAX], stray[POOL_NAME_MAX];
        struct bundle_id id;

        use(nodes_new(1));
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        ck_assert(bundle_name_parse(name, &id));
        id.number += 20;
        bundle_name(stray, &id);
        fake_pool_copy(fixture->pool, name, stray);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        nodes_settle(fixture);
        nodes_run_until(fixture, is_as_counted, NULL);
        ck_assert(!fake_pool_has(fixture->pool, stray));
        ck_assert(fake_pool_has(fixture->pool, name));
        nodes_free(fixture);
}
END_TEST

/* ---- what the pool did not get yet ---- */

START_TEST(records_that_are_not_in_the_pool_are_sent_by_the_next_start)
{
        struct driver_object object = driver_object(1, 10000);

        use(nodes_new(2));
        a->options.linger_ms = 100;
        node_open(fixture, 0);
        nodes_settle(fixture);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        fake_pool_fail(a->pool, 1u << FAKE_POOL_PUT, UINT32_MAX, -EIO);
        node_close(fixture, 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 0);
        node_open(fixture, 0);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(b, &object), 0);
        nodes_free(fixture);
}
END_TEST

static bool has_written_segment(void *user)
{
        return node_usage(user).journal_segments_written;
}

START_TEST(a_segment_whose_reply_was_lost_keeps_its_number)
{
        struct driver_object object = driver_object(1, 10000);

        use(nodes_new(2));
        node_open(fixture, 0);
        nodes_settle(fixture);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        fake_pool_lose_replies(a->pool, 1u << FAKE_POOL_PUT, 1);
        nodes_run_until(fixture, has_written_segment, a);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 1);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(b->n_appeared, 1);
        nodes_free(fixture);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/remote restart");
        TCase *tcase = tcase_create("restart");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, a_death_before_any_request_loses_and_leaks_nothing, 0,
                            KILL_POINTS);
        tcase_add_loop_test(tcase, a_death_at_any_moment_loses_and_leaks_nothing, 0, KILL_MOMENTS);
        tcase_add_test(tcase, of_two_generations_the_newer_survives);
        tcase_add_test(tcase, a_bundle_that_nobody_knows_is_removed);
        tcase_add_test(tcase, a_node_that_lost_its_index_owns_its_bundles_all_the_same);
        tcase_add_test(tcase, rebuilding_survives_a_pool_that_fails_on_the_way);
        tcase_add_test(tcase, rebuilding_finds_what_is_missing_and_what_nobody_knows);
        tcase_add_test(tcase, rebuilding_into_a_smaller_index_keeps_what_fits);
        tcase_add_test(tcase, a_node_that_lost_its_name_too_begins_as_another);
        tcase_add_test(tcase, an_index_of_another_node_is_refused);
        tcase_add_test(tcase, a_damaged_index_is_made_anew);
        tcase_add_test(tcase, an_index_that_is_damaged_in_the_middle_is_made_anew);
        tcase_add_loop_test(tcase, an_index_that_is_damaged_where_it_is_loaded_is_made_anew, 0, 2);
        tcase_add_test(tcase, an_index_that_was_taken_back_learns_before_it_takes_numbers);
        tcase_add_test(tcase,
                       what_is_written_while_our_journal_cannot_be_read_fails_and_then_pauses);
        tcase_add_test(tcase, nothing_waits_for_a_journal_of_ours_that_cannot_be_read);
        tcase_add_test(tcase, bundles_above_the_last_number_we_know_are_removed);
        tcase_add_test(tcase, records_that_are_not_in_the_pool_are_sent_by_the_next_start);
        tcase_add_test(tcase, a_segment_whose_reply_was_lost_keeps_its_number);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
