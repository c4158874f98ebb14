// SPDX-License-Identifier: Apache-2.0
/*
 * The joint match over what the daemon's index publishes: random trees of boundaries whose
 * objects come, move between tiers and go, one by one. After each step the prompt along a
 * random path is matched in the real table and, the slow way, in a world that is told what
 * is where. `test_joint_tree N` takes N steps.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/index.h"
#include "joint_world.h"

#define CHUNK   16u
#define N_NODES 60u
#define DEPTH   16u
#define STEPS   2000u /* with one tree and layout */
#define BEYOND  4u    /* digests of a prompt that no tree has */

enum place {
        NOWHERE,
        IN_HOST,
        ON_NVME,
};

struct node {
        uint32_t parent; /* node, or 0: a root */
        uint32_t depth;  /* boundaries from the root, itself included */
        struct index_object *objects[LAYOUT_CELLS_MAX];
        enum place places[LAYOUT_CELLS_MAX];
};

static const uint8_t boot_id[16] = {9};
static const struct digest some_layout = {{42}};

static struct node nodes[N_NODES + 1];
static struct world world;
static struct presence_table *table;
static struct index *index_;
static uint16_t layout;
static struct kvt__table view; /* the real table, as a client has it */
static uint32_t n_steps = 200000;
static uint64_t n_usable, n_hints, n_states; /* seen, so that nothing is tested in vain */

static uint64_t random_state = UINT64_C(0x2545f4914f6cdd1d);

static uint32_t draw(uint32_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 32) * n >> 32);
}

static struct digest digest_of(uint32_t number)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &number, sizeof(number));
        digest.bytes[31] = 1;
        return digest;
}

/* ---- the tree ---- */

static void draw_tree(void)
{
        memset(nodes, 0, sizeof(nodes));
        for (uint32_t i = 1; i <= N_NODES; i++) {
                /* Mostly long stretches with a branch now and then. */
                nodes[i].parent = draw(4) ? i - 1 : draw(i);
                if (nodes[nodes[i].parent].depth == DEPTH)
                        nodes[i].parent = 0;
                nodes[i].depth = nodes[nodes[i].parent].depth + 1;
        }
}

static void draw_layout(void)
{
        static const uint8_t kinds[] = {LAYOUT_ATTENTION, LAYOUT_WINDOW, LAYOUT_COMPRESSED,
                                        LAYOUT_STATE, LAYOUT_SCRATCH};
        uint16_t n_groups = (uint16_t)(1 + draw(4)), most = draw(4) ? 3 : 30;

        memset(&world, 0, sizeof(world));
        world.layout.chunk_tokens = CHUNK;
        for (uint16_t i = 0; i <= n_groups; i++) {
                uint8_t kind = i ? kinds[draw(5)] : LAYOUT_ATTENTION;
                struct layout_row row = {.n_shards = (uint16_t)(1 + draw(most)),
                                         .page_bytes = 1 + draw(99)};

                world.layout.groups[i] = (struct layout_group){
                        .kind = kind,
                        .n_shards = row.n_shards,
                        .page_tokens = kind == LAYOUT_STATE ? 0 : CHUNK,
                        .window_tokens = kind == LAYOUT_WINDOW ? 1 + draw(5 * CHUNK) : 0,
                };
                world.layout.n_groups++;
                ck_assert_int_eq(layout_add_row(&world.layout, i, &row), 0);
        }
}

static void begin(void)
{
        const struct presence_view *real;

        draw_layout();
        draw_tree();
        world_init(&world, DEPTH + BEYOND);
        ck_assert_int_eq(presence_table_new(&table, 8 * N_NODES, boot_id, 1), 0);
        ck_assert_int_eq(index_new(&index_, N_NODES * world.table.needs.n_cells, table), 0);
        ck_assert_int_eq(index_layout(index_, DOMAIN_DEFAULT, &some_layout, &layout), 0);
        real = presence_table_view(table);
        view.view = *real;
        view.needs = world.table.needs;
        for (uint32_t bank = 0; bank < view.needs.n_banks; bank++)
                view.seeds[bank] =
                        presence_seed(real->header->hash_key, DOMAIN_DEFAULT, &some_layout, bank);
}

static void end(void)
{
        index_ = index_free(index_);
        table = presence_table_free(table);
        world_deinit(&world);
}

/* ---- what comes and goes ---- */

static void put(uint32_t number, uint16_t group, uint16_t shard, enum place place)
{
        struct node *node = &nodes[number];
        int cell = layout_cell(&world.layout, group, shard);
        struct index_object **object;

        if (cell < 0)
                return;
        object = &node->objects[cell];
        if (!*object && place != NOWHERE) {
                struct index_new_object added = {
                        .layout = layout,
                        .group = group,
                        .shard = shard,
                        .cell = (uint16_t)cell,
                        .digest = digest_of(number),
                        .parent = node->parent ? digest_of(node->parent) : (struct digest){{0}},
                        .boundary_tokens = node->depth * CHUNK,
                        .raw_bytes = 1,
                };

                ck_assert_int_eq(index_add(index_, &added, object), 0);
        }
        node->places[cell] = place;
        if (!*object)
                return;
        index_set_host(index_, *object, place == IN_HOST ? 1 : INDEX_NONE);
        index_set_place(index_, *object, (struct tier_place){.claim = place == ON_NVME ? 1 : 0});
        if (place == NOWHERE) {
                index_remove(index_, *object);
                *object = NULL;
        }
}

static void put_groups(uint32_t number, bool states, enum place place)
{
        for (uint16_t g = 0; g < world.layout.n_groups; g++)
                for (uint16_t s = 0; s < world.layout.groups[g].n_shards; s++)
                        if ((world.layout.groups[g].kind == LAYOUT_STATE) == states)
                                put(number, g, s, place);
}

static void step(void)
{
        uint32_t number = 1 + draw(N_NODES);
        uint16_t group = (uint16_t)draw(world.layout.n_groups);
        uint16_t shard = (uint16_t)draw(world.layout.groups[group].n_shards);

        switch (draw(16)) {
        case 0:
                put(number, group, shard, NOWHERE);
                break;
        case 1:
                put(number, group, shard, ON_NVME);
                break;
        case 2:
                put_groups(number, true, NOWHERE);
                break;
        case 3:
                put_groups(number, false, NOWHERE);
                put_groups(number, true, NOWHERE);
                break;
        case 4:
        case 5:
                put_groups(number, false, ON_NVME);
                break;
        case 6:
        case 7:
                put_groups(number, true, draw(2) ? IN_HOST : ON_NVME);
                break;
        default:
                put_groups(number, false, IN_HOST);
        }
}

/* ---- matches ---- */

static void tell_world(uint32_t at, uint32_t number)
{
        const struct digest digest = digest_of(number);
        const struct index_boundary *boundary = index_find_boundary(index_, layout, &digest);

        for (uint16_t g = 0; g < world.layout.n_groups; g++)
                for (uint16_t s = 0; s < world.layout.groups[g].n_shards; s++) {
                        int cell = layout_cell(&world.layout, g, s);

                        if (cell < 0)
                                continue;
                        if (nodes[number].places[cell] == NOWHERE)
                                world_drop(&world, at, g, s);
                        else
                                world_put(&world, at, g, s, nodes[number].places[cell] == IN_HOST);
                }
        world_set_flags(&world, at, boundary && boundary->n_children ? PRESENCE_HAS_CHILD : 0);
}

/* The digests from the root to @number, and some that nobody has stored. */
static uint32_t make_prompt(uint32_t number, struct digest *ret_digests)
{
        uint32_t n = nodes[number].depth;

        for (uint32_t at = n; at > 0; at--, number = nodes[number].parent) {
                ret_digests[at - 1] = digest_of(number);
                tell_world(at, number);
        }
        for (uint32_t i = 0; i < BEYOND; i++) {
                ret_digests[n + i] = digest_of(1000 + i);
                for (uint32_t bank = 0; bank < world.table.needs.n_banks; bank++)
                        world.entries[n + i][bank]->present = 0;
                world_set_flags(&world, n + i + 1, 0);
        }
        return n + draw(BEYOND + 1);
}

static void check_prompt(uint32_t number)
{
        struct kvt_boundary usable[DEPTH], expected_usable[DEPTH];
        struct digest digests[DEPTH + BEYOND];
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = (const void *)digests,
                .n_digests = make_prompt(number, digests),
                .flags = KVT_MATCH_CHECKPOINT | KVT_MATCH_STATE,
                .usable = usable,
                .n_usable = 1 + draw(DEPTH),
        };
        struct kvt_match found = {.size = sizeof(found)}, expected;

        query.prompt_tokens = query.n_digests * CHUNK + draw(3);
        kvt__joint_match(&view, &query, &found);
        expected = world_expect(&world, &query, expected_usable);
        world_compare(&found, usable, &expected, expected_usable);
        n_usable += found.boundaries > 1;
        n_hints += found.checkpoint_boundaries > 0;
        n_states += found.state_boundaries > found.boundaries;
}

START_TEST(random_trees_match_as_is_obvious)
{
        for (uint32_t i = 0; i < n_steps; i++) {
                if (i % STEPS == 0)
                        begin();
                step();
                check_prompt(1 + draw(N_NODES));
                if (i % STEPS == STEPS - 1 || i == n_steps - 1)
                        end();
        }
        ck_assert_uint_gt(n_usable, n_steps / 50);
        ck_assert_uint_gt(n_hints, n_steps / 200);
        ck_assert_uint_gt(n_states, n_steps / 200);
}
END_TEST

int main(int argc, char **argv)
{
        Suite *suite = suite_create("client/joint_tree");
        TCase *tests = tcase_create("joint_tree");
        SRunner *runner = srunner_create(suite);
        int failed;

        if (argc > 1)
                n_steps = (uint32_t)strtoul(argv[1], NULL, 10);
        tcase_set_timeout(tests, 1500);
        tcase_add_test(tests, random_trees_match_as_is_obvious);
        suite_add_tcase(suite, tests);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
