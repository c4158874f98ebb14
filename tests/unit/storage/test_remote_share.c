// SPDX-License-Identifier: Apache-2.0
/* Nodes that share a pool: what one stores, deletes and replaces, the others learn. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/pool_name.h"
#include "storage/remote_tier.h"
#include "tests/unit/storage/remote_fixture.h"

#define ROUNDS      16u /* each at least one segment: more than there may be */
#define LONG_ROUNDS 72u /* as many as there may be by default */

static struct pool_fixture *fixture;
static struct node *a, *b;

static void begin(uint32_t n)
{
        fixture = nodes_new(n);
        a = &fixture->nodes[0];
        b = &fixture->nodes[1];
        for (uint32_t i = 0; i < n; i++)
                node_open(fixture, i);
}

static void end(void)
{
        nodes_free(fixture);
}

static void write_one(struct node *node, struct driver_object *object)
{
        ck_assert_int_eq(driver_write(&node->driver, object), 0);
}

static uint64_t total_of(const struct driver_object *object)
{
        struct driver_request request;

        /* The checksum comes with the read. */
        ck_assert_int_eq(driver_submit_read(&a->driver, &request,
                                            (struct driver_object *)(uintptr_t)object, 0),
                         0);
        ck_assert_int_eq(driver_wait(&request), 0);
        return request.checksums.total;
}

START_TEST(node_reads_what_another_stored)
{
        struct driver_object objects[3];

        begin(2);
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = chain_object(1, i, 300000 + i);
                write_one(a, &objects[i]);
        }
        nodes_settle(fixture);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_int_eq(node_read_appeared(b, &objects[i]), 0);
                ck_assert(!b->driver.tier->ops.is_own(b->driver.tier,
                                                      node_appeared(b, &objects[i])->place));
        }
        ck_assert_uint_eq(a->n_appeared, 0);
        ck_assert_uint_eq(driver_usage(&b->driver).used_bytes, 0);
        ck_assert_uint_eq(node_usage(b).nodes, 2);
        ck_assert(node_usage(b).caught_up);
        end();
}
END_TEST

static struct driver_object expected[16];
static struct driver_request reads[16];
static uint32_t n_reads;

static void read_at_once(void *user, const struct tier_object *object, struct tier_place place)
{
        (void)user;
        (void)object;
        expected[n_reads].place = place;
        ck_assert_int_eq(
                driver_submit_read(&b->driver, &reads[n_reads], &expected[n_reads], n_reads << 18),
                0);
        n_reads++;
}

static bool has_b_read_all(void *user)
{
        (void)user;
        for (uint32_t i = 0; i < 16; i++)
                if (!reads[i].is_done)
                        return false;
        return true;
}

START_TEST(an_object_can_be_read_as_soon_as_it_appears)
{
        begin(2);
        b->driver.tier->on_appeared = read_at_once;
        for (uint32_t i = 0; i < 16; i++) {
                expected[i] = chain_object(1, i, 20000);
                ck_assert_int_eq(driver_submit_write(&a->driver, &reads[i], &expected[i], i << 18),
                                 0);
        }
        for (uint32_t i = 0; i < 16; i++)
                ck_assert_int_eq(driver_wait(&reads[i]), 0);
        memset(reads, 0, sizeof(reads));
        nodes_run_until(fixture, has_b_read_all, NULL);
        for (uint32_t i = 0; i < 16; i++) {
                ck_assert_int_eq(reads[i].result, 0);
                ck_assert(driver_holds(&reads[i]));
        }
        end();
}
END_TEST

START_TEST(node_that_opens_later_learns_everything)
{
        struct driver_object object = driver_object(1, 100000), *found;

        begin(2);
        node_close(fixture, 1);
        write_one(a, &object);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 1), 0);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(b, &object), 0);
        /* And knows it from its own index the next time. */
        node_close(fixture, 1);
        ck_assert_uint_eq(node_open(fixture, 1), 1);
        found = driver_find(&b->driver, &object);
        ck_assert_ptr_nonnull(found);
        ck_assert(!b->driver.tier->ops.is_own(b->driver.tier, found->place));
        nodes_settle(fixture);
        ck_assert_uint_eq(b->n_appeared, 0);
        end();
}
END_TEST

START_TEST(objects_that_are_deleted_vanish_elsewhere)
{
        struct driver_object object = driver_object(1, 100000);

        begin(2);
        write_one(a, &object);
        nodes_settle(fixture);
        ck_assert_int_eq(driver_forget(&a->driver, &object, false), 0);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &object));
        ck_assert(!node_vanished(b, &object)->replaced);
        ck_assert_uint_eq(node_vanished(b, &object)->place.claim,
                          node_appeared(b, &object)->place.claim);
        ck_assert_uint_eq(node_usage(b).entries, 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 0);
        end();
}
END_TEST

START_TEST(a_part_that_is_dropped_vanishes_while_its_bundle_stays)
{
        struct driver_object objects[3];
        static struct driver_request requests[3];

        begin(2);
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = chain_object(1, i, 100000);
                ck_assert_int_eq(
                        driver_submit_write(&a->driver, &requests[i], &objects[i], i << 20), 0);
        }
        for (uint32_t i = 0; i < 3; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        ck_assert_int_eq(driver_forget(&a->driver, &objects[2], false), 0);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &objects[2]));
        ck_assert_uint_eq(b->n_vanished, 1);
        ck_assert_int_eq(node_read_appeared(b, &objects[0]), 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        /* Less than half of it is alive now: it goes, and what lived in it. */
        ck_assert_int_eq(driver_forget(&a->driver, &objects[1], false), 0);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(a, &objects[0]));
        ck_assert_ptr_nonnull(node_vanished(b, &objects[0]));
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 0);
        ck_assert_uint_eq(driver_usage(&a->driver).used_bytes, 0);
        end();
}
END_TEST

static bool has_b_heard(void *user)
{
        (void)user;
        return b->n_appeared;
}

START_TEST(of_two_writers_of_a_key_the_first_wins)
{
        struct driver_object mine = driver_object(1, 65536), theirs = mine;
        struct driver_request request;

        begin(2);
        fake_pool_hold(b->pool, 1u << FAKE_POOL_PUT);
        ck_assert_int_eq(driver_submit_write(&b->driver, &request, &theirs, 0), 0);
        write_one(a, &mine);
        nodes_run_until(fixture, has_b_heard, NULL);
        fake_pool_hold(b->pool, 0);
        ck_assert_int_eq(driver_wait(&request), TIER_E_CANCELLED);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(b, &mine), 0);
        ck_assert_uint_eq(node_usage(b).own_bundles, 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        end();
}
END_TEST

START_TEST(of_two_writers_at_once_each_keeps_its_own)
{
        struct driver_object mine = driver_object(1, 65536), theirs = mine;

        begin(2);
        fake_pool_hold(a->pool, 1u << FAKE_POOL_LIST);
        fake_pool_hold(b->pool, 1u << FAKE_POOL_LIST);
        write_one(a, &mine);
        write_one(b, &theirs);
        fake_pool_hold(a->pool, 0);
        fake_pool_hold(b->pool, 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared + b->n_appeared, 0);
        ck_assert_int_eq(driver_read(&a->driver, &mine), 0);
        ck_assert_int_eq(driver_read(&b->driver, &theirs), 0);
        end();
}
END_TEST

START_TEST(replacing_drops_other_bytes_everywhere)
{
        struct driver_object old = driver_object(1, 65536), new = old;
        uint64_t total;

        begin(2);
        write_one(a, &old);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_appeared(b, &old));
        ck_assert_int_eq(driver_forget(&a->driver, &old, true), 0);
        new.object.generation = 2;
        new.seed = 4711;
        write_one(a, &new);
        total = total_of(&new);
        a->driver.tier->ops.replaced(a->driver.tier, &new.object.key, total);
        nodes_settle(fixture);
        ck_assert_uint_eq(b->n_appeared, 2);
        ck_assert_int_eq(node_read_appeared(b, &new), 0);
        ck_assert_int_eq(driver_read(&a->driver, &new), 0);
        end();
}
END_TEST

START_TEST(replacing_reaches_copies_that_the_pool_never_had)
{
        struct driver_object object = driver_object(1, 65536);

        begin(2);
        a->driver.tier->ops.replaced(a->driver.tier, &object.object.key, 4711);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &object));
        ck_assert(node_vanished(b, &object)->replaced);
        ck_assert_uint_eq(node_vanished(b, &object)->checksum_total, 4711);
        ck_assert_uint_eq(node_vanished(b, &object)->place.claim, 0);
        ck_assert_uint_eq(a->n_vanished, 0);
        end();
}
END_TEST

static bool has_b_told(void *user)
{
        (void)user;
        return node_usage(b).journal_segments_written;
}

static bool has_c_told(void *user)
{
        (void)user;
        return node_usage(&fixture->nodes[2]).journal_segments_written;
}

/* Node 1 stored it, node 0 replaces it: the third may hear of it in any order. */
START_TEST(bytes_from_before_a_replacement_are_not_entered_after_it)
{
        struct driver_object old = driver_object(1, 65536);
        struct node *c;

        begin(3);
        c = &fixture->nodes[2];
        node_close(fixture, 2);
        fake_pool_hold(b->pool, 1u << FAKE_POOL_LIST); /* it hears of nothing */
        a->driver.tier->ops.replaced(a->driver.tier, &old.object.key, 4711);
        nodes_settle_without(fixture, 1);
        write_one(b, &old);
        nodes_settle_without(fixture, 1);
        ck_assert_uint_eq(a->n_appeared, 0);
        node_open(fixture, 2);
        nodes_settle_without(fixture, 1);
        ck_assert_uint_eq(node_usage(c).entries, 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        /* When its writer hears of it, it drops it. */
        fake_pool_hold(b->pool, 0);
        nodes_settle(fixture);
        ck_assert(node_vanished(b, &old)->replaced);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 0);
        end();
}
END_TEST

START_TEST(bytes_stored_in_the_knowledge_of_a_replacement_are_entered)
{
        struct driver_object new = driver_object(1, 65536);
        struct node *c;

        begin(3);
        c = &fixture->nodes[2];
        node_close(fixture, 2);
        a->driver.tier->ops.replaced(a->driver.tier, &new.object.key, 4711);
        nodes_settle(fixture);
        write_one(b, &new); /* not the bytes that were meant, but later ones */
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(a, &new), 0);
        node_open(fixture, 2);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(c, &new), 0);
        end();
}
END_TEST

START_TEST(replacements_are_remembered_over_a_restart)
{
        struct driver_object old = driver_object(1, 65536);

        begin(2);
        nodes_settle(fixture);
        fake_pool_hold(b->pool, 1u << FAKE_POOL_LIST); /* it hears of nothing */
        a->driver.tier->ops.replaced(a->driver.tier, &old.object.key, 4711);
        nodes_settle_without(fixture, 1);
        node_close(fixture, 0);
        node_open(fixture, 0);
        write_one(b, &old);
        nodes_run_until(fixture, has_b_told, NULL);
        nodes_settle_without(fixture, 1);
        ck_assert_uint_eq(node_usage(a).entries, 0);
        ck_assert_uint_eq(a->n_appeared, 0);
        fake_pool_hold(b->pool, 0);
        end();
}
END_TEST

static uint32_t n_remembered(const struct node *node)
{
        return ((const struct remote *)node->driver.tier)->n_replaced;
}

/*
 * Its tiers above may not have deleted durably what was replaced when the node is killed. _i:
 * a third node is away, for which all others remember it.
 */
START_TEST(what_was_replaced_is_said_again_after_each_start_until_it_has_left)
{
        struct driver_object old = driver_object(1, 65536), other = driver_object(2, 1000);

        begin(3);
        if (_i)
                write_one(&fixture->nodes[2], &other);
        nodes_settle(fixture);
        node_close(fixture, 2);
        b->is_leaving = true;
        a->driver.tier->ops.replaced(a->driver.tier, &old.object.key, 4711);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < 2; i++) {
                ck_assert_ptr_nonnull(node_vanished(b, &old));
                ck_assert(node_vanished(b, &old)->replaced);
                ck_assert_uint_eq(node_vanished(b, &old)->checksum_total, 4711);
                ck_assert_uint_eq(n_remembered(b), 1);
                node_close(fixture, 1);
                node_open(fixture, 1);
                nodes_settle(fixture);
        }
        b->is_leaving = false;
        nodes_settle(fixture);
        ck_assert_uint_eq(n_remembered(b), _i);
        node_close(fixture, 1);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_ptr_null(node_vanished(b, &old));
        end();
}
END_TEST

/* A replacement that everybody has read is not remembered by its key any more. */
START_TEST(who_comes_late_is_not_believed_before_it_has_read)
{
        struct driver_object old = driver_object(1, 65536), other = driver_object(2, 1000);
        struct driver_object later = driver_object(3, 1000);
        struct why why = {""};
        struct node *c;

        begin(3);
        c = &fixture->nodes[2];
        node_close(fixture, 2);
        a->driver.tier->ops.replaced(a->driver.tier, &old.object.key, 4711);
        nodes_settle(fixture);
        write_one(b, &other);
        nodes_settle(fixture);
        ck_assert(!node_try_open(fixture, 2, &why));
        fake_pool_hold(c->pool, 1u << FAKE_POOL_GET);
        driver_recover(&c->driver);
        write_one(c, &old);
        nodes_run_until(fixture, has_c_told, NULL);
        nodes_settle_without(fixture, 2);
        ck_assert_ptr_null(node_appeared(a, &old));
        ck_assert_ptr_null(node_appeared(b, &old));
        fake_pool_hold(c->pool, 0);
        nodes_settle(fixture);
        ck_assert(node_vanished(c, &old)->replaced);
        write_one(c, &later);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(a, &later), 0);
        end();
}
END_TEST

/* The only object of its bundle: with its last reader the bundle goes as well. */
START_TEST(an_object_of_another_node_is_forgotten_under_two_reads)
{
        struct driver_object object = driver_object(1, 65536), here;
        static struct driver_request requests[3];

        begin(2);
        write_one(a, &object);
        nodes_settle(fixture);
        here = object;
        here.place = node_appeared(b, &object)->place;
        fake_pool_hold(b->pool, 1u << FAKE_POOL_GET);
        ck_assert_int_eq(driver_submit_read(&b->driver, &requests[0], &here, 0), 0);
        ck_assert_int_eq(driver_submit_read(&b->driver, &requests[1], &here, 1u << 20), 0);
        driver_submit_forget(&b->driver, &requests[2], &here, false);
        fake_pool_hold(b->pool, 0);
        for (uint32_t i = 0; i < 3; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        ck_assert(driver_holds(&requests[0]));
        ck_assert(driver_holds(&requests[1]));
        ck_assert_uint_eq(node_usage(b).entries, 0);
        nodes_settle(fixture);
        ck_assert_int_eq(driver_read(&a->driver, &object), 0);
        end();
}
END_TEST

/* Node 0 has two objects in one bundle that node 1 knows; 1 closes, and 0 drops the first. */
static void drop_behind_the_back_of_b(struct driver_object objects[3])
{
        static struct driver_request requests[2];

        begin(2);
        for (uint32_t i = 0; i < 2; i++) {
                objects[i] = chain_object(1, i, 100000);
                ck_assert_int_eq(
                        driver_submit_write(&a->driver, &requests[i], &objects[i], i << 20), 0);
        }
        for (uint32_t i = 0; i < 2; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(b).entries, 2);
        node_close(fixture, 1);
        ck_assert_int_eq(driver_forget(&a->driver, &objects[0], false), 0);
        nodes_settle(fixture);
        objects[2] = driver_object(4711, 10000);
        write_one(a, &objects[2]);
        nodes_settle(fixture);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 3);
}

/* As a compaction of node 0 removes them, one by one; its snapshot is still to come. */
static void remove_segments(uint32_t n)
{
        char name[POOL_NAME_MAX];

        while (n--) {
                ck_assert(fake_pool_name(fixture->pool, "journal/", 0, name));
                fake_pool_drop(fixture->pool, name);
        }
}

static bool is_a_get_held(void *user)
{
        return fake_pool_held(((struct node *)user)->pool);
}

START_TEST(what_a_segment_told_that_went_unread_is_not_believed_any_more)
{
        struct driver_object objects[3];
        struct why why = {""};

        drop_behind_the_back_of_b(objects);
        if (_i) {
                remove_segments(2);
                ck_assert_uint_eq(node_open(fixture, 1), 2);
        } else {
                /* It was listed, and goes before it is got. */
                ck_assert(!node_try_open(fixture, 1, &why));
                fake_pool_hold(b->pool, 1u << FAKE_POOL_GET);
                ck_assert_uint_eq(driver_recover(&b->driver), 2);
                nodes_run_until(fixture, is_a_get_held, b);
                remove_segments(2);
                fake_pool_hold(b->pool, 0);
        }
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &objects[0]));
        ck_assert_int_eq(node_read_appeared(b, &objects[2]), 0);
        ck_assert_uint_eq(node_usage(b).entries, 1);
        end();
}
END_TEST

START_TEST(segments_that_were_read_may_go)
{
        struct driver_object objects[3];

        drop_behind_the_back_of_b(objects);
        remove_segments(1);
        ck_assert_uint_eq(node_open(fixture, 1), 2);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &objects[0]));
        ck_assert_ptr_null(node_vanished(b, &objects[1]));
        ck_assert_uint_eq(node_usage(b).entries, 2);
        end();
}
END_TEST

static bool has_told(void *user)
{
        return node_usage(user).journal_segments_written;
}

/* Whichever comes first in the list. */
START_TEST(a_segment_that_cannot_be_read_stops_its_own_node_alone)
{
        struct driver_object objects[2] = {driver_object(1, 10000), driver_object(2, 10000)};
        char name[POOL_NAME_MAX];
        struct node *c;

        fixture = nodes_new(3);
        a = &fixture->nodes[0];
        b = &fixture->nodes[1];
        c = &fixture->nodes[2];
        a->options.deadline_ms = b->options.deadline_ms = 200;
        node_open(fixture, 0);
        node_open(fixture, 1);
        fake_pool_hold(a->pool, 1u << FAKE_POOL_LIST); /* neither waits for the other */
        fake_pool_hold(b->pool, 1u << FAKE_POOL_LIST);
        write_one(a, &objects[0]);
        write_one(b, &objects[1]);
        nodes_run_until(fixture, has_told, a);
        nodes_run_until(fixture, has_told, b);
        node_close(fixture, 0);
        node_close(fixture, 1);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 2);
        ck_assert(fake_pool_name(fixture->pool, "journal/", (uint32_t)_i, name));
        fake_pool_bar(fixture->pool, name);
        node_open(fixture, 2);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(c).entries, 1);
        ck_assert(!node_usage(c).caught_up);
        ck_assert_uint_eq(c->n_notices, 1);
        ck_assert_ptr_nonnull(strstr(c->notice, name));
        end();
}
END_TEST

/* B reads what there is now. */
static void b_comes_back(void)
{
        node_open(fixture, 1);
        nodes_settle(fixture);
}

/* Was told so by a journal: every start tells it again, until what may be outdated is gone. */
static void assert_tells_b_until_it_vouches(void)
{
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_uint_eq(b->n_missed, i < 2);
                if (i == 1)
                        b->driver.tier->ops.vouched(b->driver.tier);
                node_close(fixture, 1);
                b_comes_back();
        }
        ck_assert_uint_eq(b->n_missed, 0);
}

START_TEST(a_torn_segment_is_skipped_and_counted)
{
        struct driver_object objects[3];
        char name[POOL_NAME_MAX];

        begin(2);
        node_close(fixture, 1);
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = driver_object(i, 10000);
                write_one(a, &objects[i]);
                nodes_settle(fixture);
        }
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 3);
        ck_assert(fake_pool_name(fixture->pool, "journal/", 1, name));
        fake_pool_resize(fixture->pool, name, fake_pool_size(fixture->pool, name) - 9);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_appeared(b, &objects[0]));
        ck_assert_ptr_null(node_appeared(b, &objects[1]));
        ck_assert_int_eq(node_read_appeared(b, &objects[2]), 0);
        ck_assert_uint_eq(node_usage(b).journal_damaged, 1);
        ck_assert_ptr_nonnull(strstr(b->notice, name));
        /* It may have told that objects[0] was dropped, or replaced. */
        ck_assert_ptr_nonnull(node_vanished(b, &objects[0]));
        ck_assert_uint_eq(node_usage(b).entries, 1);
        assert_tells_b_until_it_vouches();
        node_close(fixture, 1);
        ck_assert_uint_eq(node_open(fixture, 1), 1);
        end();
}
END_TEST

/* Its own journal tells a node without an index that it knew the segment while it was whole. */
START_TEST(a_segment_that_was_read_before_it_was_torn_is_not_missed)
{
        struct driver_object objects[3], own = driver_object(7, 10000);
        char prefix[POOL_NAME_MAX], name[POOL_NAME_MAX];

        begin(2);
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = driver_object(i, 10000);
                write_one(a, &objects[i]);
                nodes_settle(fixture);
        }
        write_one(b, &own); /* with what it has read */
        nodes_settle(fixture);
        node_close(fixture, 1);
        pool_name_prefix(prefix, "journal", node_usage(a).node);
        ck_assert(fake_pool_name(fixture->pool, prefix, 1, name));
        fake_pool_resize(fixture->pool, name, fake_pool_size(fixture->pool, name) - 9);
        node_lose_index(fixture, 1, false);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(node_usage(b).journal_damaged, 1);
        ck_assert_uint_eq(b->n_missed, 0);
        end();
}
END_TEST

START_TEST(a_bundle_deleted_behind_everybodys_back_is_a_miss)
{
        struct driver_object object = driver_object(1, 65536);
        char name[POOL_NAME_MAX];
        struct driver_object here = object;

        begin(2);
        write_one(a, &object);
        nodes_settle(fixture);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        fake_pool_drop(fixture->pool, name);
        ck_assert_int_eq(node_read_appeared(b, &object), TIER_E_MISS);
        ck_assert_uint_eq(node_usage(b).stale_entries, 1);
        here.place = node_appeared(b, &object)->place;
        ck_assert_int_eq(driver_forget(&b->driver, &here, false), 0);
        ck_assert_uint_eq(node_usage(b).entries, 0);
        ck_assert_int_eq(driver_read(&a->driver, &object), TIER_E_MISS);
        ck_assert_int_eq(driver_forget(&a->driver, &object, false), 0);
        ck_assert_uint_eq(driver_usage(&a->driver).used_bytes, 0);
        end();
}
END_TEST

/* Long records: a snapshot of them takes several segments. */
START_TEST(a_long_journal_is_compacted)
{
        static struct driver_object objects[3 * LONG_ROUNDS];
        static struct driver_request writes[3];
        struct tier_layout layout = {.length = 5, .encoding = (const uint8_t *)"abcde"};
        struct digest *covers = calloc(TIER_COVERS_MAX, sizeof(*covers));

        begin(2);
        node_close(fixture, 1);
        ck_assert_int_eq(layout_id(&layout.id, layout.encoding, layout.length), 0);
        ck_assert_int_eq(a->driver.tier->ops.keep_layout(a->driver.tier, &layout), 0);
        for (uint32_t i = 0; i < 3 * LONG_ROUNDS; i++) {
                objects[i] = driver_object(i, 5000);
                objects[i].object.croppable = true;
                objects[i].object.covers = covers;
                objects[i].object.n_covers = TIER_COVERS_MAX;
                ck_assert_int_eq(
                        driver_submit_write(&a->driver, &writes[i % 3], &objects[i], i % 3 << 16),
                        0);
                if (i % 3 < 2)
                        continue;
                for (uint32_t k = 0; k < 3; k++)
                        ck_assert_int_eq(driver_wait(&writes[k]), 0);
                ck_assert_int_eq(driver_forget(&a->driver, &objects[i], false), 0);
        }
        nodes_settle(fixture);
        ck_assert_uint_lt(fake_pool_count(fixture->pool, "journal/", NULL), LONG_ROUNDS);
        node_open(fixture, 1);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < 3 * LONG_ROUNDS; i++) {
                if (i % 3 < 2)
                        ck_assert_int_eq(node_read_appeared(b, &objects[i]), 0);
                else
                        ck_assert(!node_appeared(b, &objects[i]) || node_vanished(b, &objects[i]));
        }
        ck_assert_uint_eq(node_usage(b).entries, 2 * LONG_ROUNDS);
        ck_assert_uint_eq(b->n_layouts, 1);
        /* It was not told of what had gone before the snapshot. */
        ck_assert_uint_lt(b->n_appeared, 3 * LONG_ROUNDS);
        end();
        free(covers);
}
END_TEST

static void write_rounds(uint32_t first, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                struct driver_object object = driver_object(first + i, 1000);

                write_one(a, &object);
                nodes_settle(fixture);
        }
}

/* Node 1 stores nothing; it has read, and goes away. Node 0 replaces @old, 2 says it has read it.
 */
static void replace_behind_the_back_of_b(const struct driver_object *old, bool b_has_told)
{
        struct driver_object object = driver_object(1, 1000);
        struct node *c;

        fixture = nodes_new(3);
        a = &fixture->nodes[0];
        b = &fixture->nodes[1];
        c = &fixture->nodes[2];
        a->options.segments_max = ROUNDS / 2;
        b->options.heartbeat_s = b_has_told ? 1 : 1000;
        for (uint32_t i = 0; i < 3; i++)
                node_open(fixture, i);
        write_rounds(0, 1);
        if (b_has_told)
                nodes_run_until(fixture, has_told, b);
        nodes_settle(fixture);
        node_close(fixture, 1);
        a->driver.tier->ops.replaced(a->driver.tier, &old->object.key, 4711);
        nodes_settle(fixture);
        write_one(c, &object);
        nodes_settle(fixture);
}

static void compact_behind_the_back_of_b(uint32_t first)
{
        write_rounds(first, ROUNDS);
        ck_assert_uint_lt(fake_pool_count(fixture->pool, "journal/", NULL), ROUNDS);
}

/* Its own tiers may hold older bytes; it hears of the new ones however long it is away. */
START_TEST(a_node_that_stores_nothing_is_waited_for_too)
{
        struct driver_object old = driver_object(4711, 1000);

        replace_behind_the_back_of_b(&old, true);
        compact_behind_the_back_of_b(2);
        b_comes_back();
        ck_assert_ptr_nonnull(node_vanished(b, &old));
        ck_assert(node_vanished(b, &old)->replaced);
        ck_assert_uint_eq(b->n_missed, 0);
        end();
}
END_TEST

START_TEST(a_node_that_nobody_waited_for_is_told_that_it_missed_something)
{
        struct driver_object old = driver_object(4711, 1000);

        replace_behind_the_back_of_b(&old, false);
        compact_behind_the_back_of_b(2);
        b_comes_back();
        ck_assert_ptr_null(node_vanished(b, &old));
        ck_assert_uint_eq(node_usage(b).entries, ROUNDS + 2);
        assert_tells_b_until_it_vouches();
        end();
}
END_TEST

/* A delete that waits for readers could be lost: nothing is vouched for before it is done. */
START_TEST(what_is_read_while_it_goes_is_not_vouched_for_yet)
{
        struct driver_object old = driver_object(4711, 1000), own = driver_object(4712, 1000);
        static struct driver_request read, forget;
        const struct remote *remote;

        replace_behind_the_back_of_b(&old, false);
        compact_behind_the_back_of_b(2);
        b_comes_back();
        ck_assert_uint_eq(b->n_missed, 1);
        remote = (const struct remote *)b->driver.tier;
        write_one(b, &own);
        fake_pool_hold(b->pool, 1u << FAKE_POOL_GET);
        ck_assert_int_eq(driver_submit_read(&b->driver, &read, &own, 0), 0);
        driver_submit_forget(&b->driver, &forget, &own, false);
        b->driver.tier->ops.vouched(b->driver.tier);
        ck_assert(remote->is_unvouched);
        fake_pool_hold(b->pool, 0);
        ck_assert_int_eq(driver_wait(&read), 0);
        ck_assert_int_eq(driver_wait(&forget), 0);
        ck_assert(!remote->is_unvouched);
        end();
}
END_TEST

/* Deletes that did not get into it are there again at the next start. */
START_TEST(a_broken_index_is_not_vouched_for)
{
        struct driver_object old = driver_object(4711, 1000);
        struct remote *remote;

        replace_behind_the_back_of_b(&old, false);
        compact_behind_the_back_of_b(2);
        b_comes_back();
        remote = (struct remote *)b->driver.tier;
        remote_break(remote, -ENOMEM);
        remote->tier.ops.vouched(&remote->tier);
        ck_assert(remote->is_unvouched);
        end();
}
END_TEST

/* Its index knew what its snapshots no longer repeat. The next ones say so all the same. */
START_TEST(a_node_whose_index_was_lost_still_tells_what_it_no_longer_repeats)
{
        struct driver_object old = driver_object(4711, 1000);

        replace_behind_the_back_of_b(&old, false);
        compact_behind_the_back_of_b(2);
        node_close(fixture, 0);
        node_lose_index(fixture, 0, false);
        node_open(fixture, 0);
        nodes_settle(fixture);
        compact_behind_the_back_of_b(2 + ROUNDS);
        b_comes_back();
        ck_assert_uint_eq(b->n_missed, 1);
        end();
}
END_TEST

/* A removal of old segments was under way, and between what remained and the snapshot it ends. */
START_TEST(what_went_unread_is_not_forgotten_by_a_restart)
{
        struct driver_object old = driver_object(4711, 1000);
        char prefix[POOL_NAME_MAX], name[POOL_NAME_MAX];

        replace_behind_the_back_of_b(&old, false);
        write_rounds(2, 2);
        pool_name_prefix(prefix, "journal", node_usage(a).node);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert(fake_pool_name(fixture->pool, prefix, 0, name));
                fake_pool_drop(fixture->pool, name);
        }
        b_comes_back();
        ck_assert_uint_eq(b->n_missed, 0); /* not yet: the snapshot may tell of all */
        node_close(fixture, 1);
        compact_behind_the_back_of_b(4);
        b_comes_back();
        ck_assert_uint_eq(b->n_missed, 1);
        end();
}
END_TEST

START_TEST(a_node_without_a_journal_is_gone)
{
        struct driver_object object = driver_object(1, 65536);
        char name[POOL_NAME_MAX];

        begin(2);
        write_one(a, &object);
        nodes_settle(fixture);
        node_close(fixture, 0);
        while (fake_pool_name(fixture->pool, "journal/", 0, name))
                fake_pool_drop(fixture->pool, name);
        nodes_settle(fixture);
        ck_assert_ptr_nonnull(node_vanished(b, &object));
        ck_assert_uint_eq(node_usage(b).nodes, 1);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/remote share");
        TCase *tcase = tcase_create("nodes");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, node_reads_what_another_stored);
        tcase_add_test(tcase, an_object_can_be_read_as_soon_as_it_appears);
        tcase_add_test(tcase, node_that_opens_later_learns_everything);
        tcase_add_test(tcase, objects_that_are_deleted_vanish_elsewhere);
        tcase_add_test(tcase, a_part_that_is_dropped_vanishes_while_its_bundle_stays);
        tcase_add_test(tcase, of_two_writers_of_a_key_the_first_wins);
        tcase_add_test(tcase, of_two_writers_at_once_each_keeps_its_own);
        tcase_add_test(tcase, replacing_drops_other_bytes_everywhere);
        tcase_add_test(tcase, replacing_reaches_copies_that_the_pool_never_had);
        tcase_add_test(tcase, bytes_from_before_a_replacement_are_not_entered_after_it);
        tcase_add_test(tcase, bytes_stored_in_the_knowledge_of_a_replacement_are_entered);
        tcase_add_test(tcase, replacements_are_remembered_over_a_restart);
        tcase_add_loop_test(
                tcase, what_was_replaced_is_said_again_after_each_start_until_it_has_left, 0, 2);
        tcase_add_test(tcase, who_comes_late_is_not_believed_before_it_has_read);
        tcase_add_test(tcase, an_object_of_another_node_is_forgotten_under_two_reads);
        tcase_add_loop_test(tcase, what_a_segment_told_that_went_unread_is_not_believed_any_more, 0,
                            2);
        tcase_add_test(tcase, segments_that_were_read_may_go);
        tcase_add_loop_test(tcase, a_segment_that_cannot_be_read_stops_its_own_node_alone, 0, 2);
        tcase_add_test(tcase, a_torn_segment_is_skipped_and_counted);
        tcase_add_test(tcase, a_segment_that_was_read_before_it_was_torn_is_not_missed);
        tcase_add_test(tcase, a_bundle_deleted_behind_everybodys_back_is_a_miss);
        tcase_add_test(tcase, a_long_journal_is_compacted);
        tcase_add_test(tcase, a_node_that_stores_nothing_is_waited_for_too);
        tcase_add_test(tcase, a_node_that_nobody_waited_for_is_told_that_it_missed_something);
        tcase_add_test(tcase, what_is_read_while_it_goes_is_not_vouched_for_yet);
        tcase_add_test(tcase, a_broken_index_is_not_vouched_for);
        tcase_add_test(tcase, a_node_whose_index_was_lost_still_tells_what_it_no_longer_repeats);
        tcase_add_test(tcase, what_went_unread_is_not_forgotten_by_a_restart);
        tcase_add_test(tcase, a_node_without_a_journal_is_gone);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
