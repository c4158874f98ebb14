// SPDX-License-Identifier: Apache-2.0
/* Groups with codecs against a real daemon: what is stored, what comes back, who shares it. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/quant_engine.h"

#define MIB UINT64_C(0x100000)

static struct daemon_fixture fixture;

static void open_engine(struct quant_engine *ret_engine, bool has_codecs)
{
        quant_open(ret_engine, fixture.socket, has_codecs);
        quant_register(ret_engine, ret_engine->image);
}

/* Into other slots, and nothing else is touched. */
static void expect_loads(struct quant_engine *engine, uint64_t number, uint32_t first, int step)
{
        struct kvt_object loaded[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];

        quant_boundary(number, loaded, slots, first, step);
        ck_assert_int_eq(quant_load(engine, loaded, QUANT_GROUPS), KVT_OK);
        for (unsigned i = 0; i < QUANT_GROUPS; i++) {
                ck_assert_msg(quant_holds(engine, &loaded[i]), "group %u", i);
                quant_clear(engine, &loaded[i]);
        }
        ck_assert(quant_is_untouched(engine));
}

static void store(struct quant_engine *engine, uint64_t number)
{
        struct kvt_object stored[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];

        quant_boundary(number, stored, slots, 3, 5);
        for (unsigned i = 0; i < QUANT_GROUPS; i++)
                quant_fill(engine, &stored[i]);
        ck_assert_int_eq(quant_store(engine, stored, QUANT_GROUPS), KVT_OK);
        for (unsigned i = 0; i < QUANT_GROUPS; i++)
                quant_clear(engine, &stored[i]);
}

START_TEST(pages_come_back_as_their_codec_makes_them)
{
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        struct quant_engine writer, reader;

        daemon_fixture_init(&fixture, &with_nvme);
        open_engine(&writer, true);
        open_engine(&reader, true);
        store(&writer, 1);
        expect_loads(&reader, 1, 63, -2);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        expect_loads(&writer, 1, 20, 3);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        quant_close(&writer);
        quant_close(&reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(an_object_is_its_pages_codes_and_scales)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_object objects[QUANT_GROUPS];
        uint32_t slots[QUANT_GROUPS][QUANT_SLOTS];
        struct kvt_completion completion;
        struct quant_engine engine;
        uint64_t id;

        daemon_fixture_init(&fixture, NULL);
        open_engine(&engine, true);
        store(&engine, 1);
        quant_boundary(1, objects, slots, 0, 1);
        ck_assert_int_eq(kvt_acquire(engine.session, &call, objects, QUANT_GROUPS, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(engine.session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        for (unsigned i = 0; i < QUANT_GROUPS; i++) {
                uint64_t n;
                uint8_t *expected = quant_stored(&objects[i], &n), *bytes = calloc(1, n);

                ck_assert_ptr_nonnull(bytes);
                ck_assert_uint_eq(objects[i].bytes, n);
                ck_assert_int_eq(kvt_read(&objects[i], 0, bytes, n), KVT_OK);
                ck_assert_msg(!memcmp(bytes, expected, n), "group %u", i);
                free(bytes);
                free(expected);
        }
        quant_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(pages_of_a_chunk_load_alone)
{
        static const uint32_t pages[] = {1, 2, 4, 7};
        struct daemon_options with_nvme = {.nvme_bytes = 64 * MIB};
        uint32_t slots[QUANT_SLOTS];
        struct quant_engine engine;

        daemon_fixture_init(&fixture, &with_nvme);
        open_engine(&engine, true);
        store(&engine, 1);
        daemon_wait_written(&fixture);
        for (unsigned i = 0; i < 4; i++) {
                struct kvt_object part =
                        quant_object(1, i % 2 ? QUANT_INDEX : QUANT_KV, slots, 40, 2);

                part.pages = pages;
                part.n_pages = part.n_slots = 4;
                ck_assert_int_eq(quant_load(&engine, &part, 1), KVT_OK);
                ck_assert(quant_holds(&engine, &part));
                quant_clear(&engine, &part);
                ck_assert(quant_is_untouched(&engine));
                if (i == 1)
                        daemon_evict(&fixture, "host");
        }
        quant_close(&engine);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(engines_with_and_without_codecs_never_see_each_others_bytes)
{
        struct quant_engine exact, quantised;
        struct kvt_object object;
        uint32_t slots[QUANT_SLOTS];

        daemon_fixture_init(&fixture, NULL);
        open_engine(&exact, false);
        open_engine(&quantised, true);
        store(&quantised, 1);
        for (uint16_t group = 0; group < QUANT_GROUPS; group++) {
                object = quant_object(1, group, slots, 0, 1);
                ck_assert_int_eq(quant_load(&exact, &object, 1), KVT_MISS);
        }
        ck_assert(quant_is_untouched(&exact));
        store(&exact, 1);
        expect_loads(&quantised, 1, 30, 1);
        quant_close(&exact);
        quant_close(&quantised);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(quantised_objects_take_half_of_the_host_memory)
{
        uint64_t exact_bytes, quantised_bytes;
        struct quant_engine exact, quantised;

        daemon_fixture_init(&fixture, NULL);
        open_engine(&exact, false);
        open_engine(&quantised, true);
        for (uint64_t i = 0; i < 16; i++) {
                struct kvt_object object;
                uint32_t slots[QUANT_SLOTS];

                object = quant_object(i, QUANT_KV, slots, 0, 1);
                quant_fill(&exact, &object);
                ck_assert_int_eq(quant_store(&exact, &object, 1), KVT_OK);
        }
        exact_bytes = daemon_number(&fixture, "host.used_bytes");
        for (uint64_t i = 0; i < 16; i++) {
                struct kvt_object object;
                uint32_t slots[QUANT_SLOTS];

                object = quant_object(i, QUANT_KV, slots, 0, 1);
                quant_fill(&quantised, &object);
                ck_assert_int_eq(quant_store(&quantised, &object, 1), KVT_OK);
        }
        quantised_bytes = daemon_number(&fixture, "host.used_bytes") - exact_bytes;
        ck_assert_uint_lt(quantised_bytes * 100, exact_bytes * 54);
        quant_close(&exact);
        quant_close(&quantised);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                pages_come_back_as_their_codec_makes_them,
                an_object_is_its_pages_codes_and_scales,
                pages_of_a_chunk_load_alone,
                engines_with_and_without_codecs_never_see_each_others_bytes,
                quantised_objects_take_half_of_the_host_memory,
                NULL,
        };

        return flow_run("flow/codec", tests, 120);
}
