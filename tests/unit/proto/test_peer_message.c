// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/peer_message.h"
#include "proto/status.h"

static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
static struct peer_builder builder;
static struct why why;

static void make_ask(void)
{
        struct peer_ask ask = {.timeout_ns = 5, .layout = {{1}}};
        const struct peer_cell cells[3] = {{0, 0}, {0, 1}, {2, 0}};

        peer_builder_init(&builder, packet, PEER_ASK, 9, &ask, sizeof(ask));
        ck_assert(!peer_add_boundary(&builder, &(struct digest){{7}}, cells, 3));
        ck_assert(!peer_add_boundary(&builder, &(struct digest){{8}}, cells, 1));
}

static struct peer_offer_item offered(void)
{
        return (struct peer_offer_item){.index = 4,
                                        .lease = 3,
                                        .boundary = {{7}},
                                        .bytes = 300000,
                                        .flags = PEER_OFFER_CROPPABLE,
                                        .n_places = 2,
                                        .n_pieces = 2,
                                        .n_covers = 1};
}

static void make_offer(const struct peer_offer_item *item)
{
        static const struct peer_header fixed;
        const struct peer_place places[2] = {{4096, 200000, 1, 0}, {1 << 20, 100000, 2, 0}};
        const uint64_t pieces[2] = {11, 12};
        const struct digest covers[1] = {{{6}}};
        const struct peer_offer_item missing = {.index = 5, .status = KVT_WIRE_MISS};

        peer_builder_init(&builder, packet, PEER_OFFER, 9, &fixed, sizeof(fixed));
        ck_assert(!peer_add_offer(&builder, item, places, pieces, covers));
        ck_assert(!peer_add_offer(&builder, &missing, NULL, NULL, NULL));
}

static void make_release(void)
{
        static const struct peer_header fixed;

        peer_builder_init(&builder, packet, PEER_RELEASE, 0, &fixed, sizeof(fixed));
        ck_assert(!peer_add_lease(&builder, 41));
        ck_assert(!peer_add_lease(&builder, 42));
}

static void make_cancel(void)
{
        static const struct peer_header fixed;

        peer_builder_init(&builder, packet, PEER_CANCEL, 9, &fixed, sizeof(fixed));
}

static void make_find(void)
{
        const struct peer_find find = {.layout = {{1}}, .engine_id = {2}};

        peer_builder_init(&builder, packet, PEER_FIND, 9, &find, sizeof(find));
        ck_assert(!peer_add_digest(&builder, &(struct digest){{7}}));
        ck_assert(!peer_add_digest(&builder, &(struct digest){{8}}));
}

/* Shards 0, 1 and 69 of 70; two boundaries of two banks. */
static void make_found(void)
{
        const struct peer_found found = {.n_banks = 2, .n_shards = 70, .shards = {3, 1 << 5}};
        const struct peer_found_bits bits[2][2] = {{{7, 1}, {0, 0}}, {{5, 5}, {9, 8}}};

        peer_builder_init(&builder, packet, PEER_FOUND, 9, &found, sizeof(found));
        ck_assert(!peer_add_found(&builder, bits[0], 2));
        ck_assert(!peer_add_found(&builder, bits[1], 2));
}

/* The engine is not there. */
static void make_found_nothing(void)
{
        const struct peer_found found = {.n_banks = 0};

        peer_builder_init(&builder, packet, PEER_FOUND, 9, &found, sizeof(found));
}

/* A copy that ends where the message ends, so that ASan sees any read beyond. */
static int check_exactly(uint32_t length)
{
        uint8_t *copy = malloc(length ? length : 1);
        int r;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, packet, length);
        if (length >= sizeof(struct peer_header))
                ((struct peer_header *)copy)->length = length;
        why.text[0] = 0;
        r = peer_message_check(copy, length, &why);
        free(copy);
        return r;
}

START_TEST(an_ask_is_read_as_it_was_written)
{
        const struct peer_boundary *boundary;
        const struct peer_cell *cells;
        struct peer_cursor cursor;

        make_ask();
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
        peer_cursor_init(&cursor, packet);
        ck_assert(!peer_next_boundary(&cursor, &boundary, &cells));
        ck_assert_uint_eq(boundary->boundary.bytes[0], 7);
        ck_assert_uint_eq(boundary->n_cells, 3);
        ck_assert_uint_eq(cells[2].group, 2);
        ck_assert(!peer_next_boundary(&cursor, &boundary, &cells));
        ck_assert_uint_eq(boundary->boundary.bytes[0], 8);
        ck_assert_int_eq(peer_next_boundary(&cursor, &boundary, &cells), PEER_MESSAGE_E_END);
}
END_TEST

START_TEST(an_offer_is_read_as_it_was_written)
{
        const struct peer_offer_item *item, given = offered();
        const struct peer_place *places;
        const uint64_t *pieces;
        const struct digest *covers;
        struct peer_cursor cursor;

        make_offer(&given);
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
        peer_cursor_init(&cursor, packet);
        ck_assert(!peer_next_offer(&cursor, &item, &places, &pieces, &covers));
        ck_assert_mem_eq(item, &given, sizeof(given));
        ck_assert_uint_eq(places[1].length, 100000);
        ck_assert_uint_eq(pieces[1], 12);
        ck_assert_uint_eq(covers[0].bytes[0], 6);
        ck_assert(!peer_next_offer(&cursor, &item, &places, &pieces, &covers));
        ck_assert_uint_eq(item->status, KVT_WIRE_MISS);
        ck_assert_int_eq(peer_next_offer(&cursor, &item, &places, &pieces, &covers),
                         PEER_MESSAGE_E_END);
}
END_TEST

START_TEST(a_find_is_read_as_it_was_written)
{
        const struct peer_find *find = (const void *)packet;

        make_find();
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
        ck_assert_uint_eq(find->header.n_items, 2);
        ck_assert_uint_eq(find->engine_id[0], 2);
        ck_assert_uint_eq(peer_find_digests(find)[1].bytes[0], 8);
}
END_TEST

START_TEST(what_is_found_is_read_as_it_was_written)
{
        const struct peer_found *found = (const void *)packet;

        make_found();
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
        ck_assert_uint_eq(found->shards[1], 1 << 5);
        ck_assert_uint_eq(peer_found_bits(found)[0].present, 7);
        ck_assert_uint_eq(peer_found_bits(found)[3].present, 9);
        ck_assert_uint_eq(peer_found_bits(found)[3].resident, 8);
        make_found_nothing();
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
}
END_TEST

/* One message each way, whatever the layout. */
START_TEST(a_find_and_its_answer_fit_one_message)
{
        struct peer_found_bits bits[PEER_BANKS_MAX] = {{0}};
        struct peer_found found = {.n_banks = (uint32_t)_i, .n_shards = 1, .shards = {1}};
        uint32_t most = peer_find_max((uint32_t)_i);

        make_find();
        for (uint32_t i = 2; i < most; i++)
                ck_assert(!peer_add_digest(&builder, &(struct digest){{7}}));
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
        peer_builder_init(&builder, packet, PEER_FOUND, 9, &found, sizeof(found));
        for (uint32_t i = 0; i < most; i++)
                ck_assert(!peer_add_found(&builder, bits, (uint32_t)_i));
        ck_assert_msg(!check_exactly(builder.length), "%s", why.text);
}
END_TEST

START_TEST(no_message_passes_cut_short_or_with_more)
{
        const struct peer_offer_item given = offered();
        uint32_t length;

        if (_i == 0)
                make_ask();
        else if (_i == 1)
                make_offer(&given);
        else if (_i == 2)
                make_release();
        else if (_i == 3)
                make_cancel();
        else if (_i == 4)
                make_find();
        else if (_i == 5)
                make_found();
        else
                make_found_nothing();
        length = builder.length;
        ck_assert(!check_exactly(length));
        for (uint32_t cut = 0; cut < length; cut++) {
                ck_assert_int_eq(check_exactly(cut), PEER_MESSAGE_E_INVALID);
                ck_assert(*why.text);
        }
        ck_assert_int_eq(check_exactly(length + 8), PEER_MESSAGE_E_INVALID);
}
END_TEST

#define HEADER(member) offsetof(struct peer_header, member)
#define ASKED(member)  (sizeof(struct peer_ask) + offsetof(struct peer_boundary, member))
#define OFFER(member)  (sizeof(struct peer_header) + offsetof(struct peer_offer_item, member))
#define PLACE(member)                                                                              \
        (sizeof(struct peer_header) + sizeof(struct peer_offer_item) +                             \
         offsetof(struct peer_place, member))

#define FOUND(member) offsetof(struct peer_found, member)
#define BITS(member)  (sizeof(struct peer_found) + offsetof(struct peer_found_bits, member))

static const struct {
        size_t offset;
        uint32_t value; /* of the four bytes there */
        const char *why;
} found_faults[] = {
        {FOUND(n_banks), PEER_BANKS_MAX + 1, "n_banks is 17"},
        {FOUND(n_banks), 0, "2 items of 0 banks"},
        {FOUND(n_banks), 1, "length is"},
        {FOUND(n_shards), LAYOUT_SHARDS_MAX + 1, "n_shards 1025"},
        {FOUND(n_shards), 0, "for 0 shards"},
        {FOUND(n_shards), 69, "shards beyond the last of 69"},
        {FOUND(shards) + 8, 1 << 6, "shards beyond the last of 70"},
        {FOUND(shards) + 16, 1, "shards beyond"},
        {FOUND(header.n_items), 0, "0 items of 2 banks"},
        {FOUND(header.n_items), 1u << 30, "n_items is"},
        {FOUND(header.request), 0, "request is 0"},
        {BITS(resident), 8, "record 0: resident"},
};

START_TEST(each_fault_of_what_is_found_is_named)
{
        make_found();
        memcpy(packet + found_faults[_i].offset, &found_faults[_i].value,
               sizeof(found_faults[_i].value));
        ck_assert_int_eq(check_exactly(builder.length), PEER_MESSAGE_E_INVALID);
        ck_assert_msg(strstr(why.text, found_faults[_i].why), "%s", why.text);
}
END_TEST

START_TEST(a_find_asks_for_something)
{
        make_find();
        ((struct peer_header *)packet)->n_items = 0;
        ck_assert_int_eq(check_exactly(sizeof(struct peer_find)), PEER_MESSAGE_E_INVALID);
        ck_assert_msg(strstr(why.text, "expected a digest"), "%s", why.text);
}
END_TEST

static const struct {
        bool is_ask;
        size_t offset;
        uint32_t value; /* of the four bytes there */
        const char *why;
} faults[] = {
        {true, HEADER(kind), 9, "kind is 9"},
        {true, HEADER(reserved2), 1, "reserved is not 0"},
        {true, HEADER(request), 0, "request is 0"},
        {true, HEADER(n_items), 0, "expected a boundary"},
        {true, ASKED(n_cells), 0, "n_cells is 0"},
        {true, ASKED(n_cells), PEER_CELLS_MAX + 1, "n_cells is 16385"},
        {true, ASKED(reserved), 1, "boundary 0: reserved"},
        {false, OFFER(index), PEER_CELLS_MAX, "index 16384"},
        {false, OFFER(status), KVT_WIRE_STATUS_COUNT, "offer 0: index 4, status"},
        {false, OFFER(status), KVT_WIRE_PENDING, "offer 0: index 4, status 3"},
        {false, OFFER(status), KVT_WIRE_ALREADY_HAVE, "offer 0: index 4, status 1"},
        {false, OFFER(status), KVT_WIRE_BUSY, "it is refused, and is not empty"},
        {false, OFFER(lease), 0, "lease 0"},
        {false, OFFER(bytes), 300001, "places have 300000 bytes, expected 300001"},
        {false, OFFER(flags), 4, "unknown flags 0x4"},
        {false, OFFER(flags), 0, "n_covers is 1"},
        {false, OFFER(n_places), 0, "n_places is 0"},
        {false, OFFER(n_places), PEER_PLACES_MAX + 1, "n_places is 65"},
        {false, OFFER(n_pieces), 3, "n_pieces is 3, expected 2"},
        {false, OFFER(reserved), 1, "reserved 1"},
        {false, PLACE(length), 0, "place 0: 0 bytes"},
        {false, PLACE(address) + 4, UINT32_MAX, "places have"},
        {false, PLACE(reserved), 1, "place 0: reserved"},
};

START_TEST(each_fault_is_named)
{
        const struct peer_offer_item given = offered();

        faults[_i].is_ask ? make_ask() : make_offer(&given);
        memcpy(packet + faults[_i].offset, &faults[_i].value, sizeof(faults[_i].value));
        if (!strcmp(faults[_i].why, "places have"))
                memset(packet + PLACE(address), 0xff, 8);
        ck_assert_int_eq(check_exactly(builder.length), PEER_MESSAGE_E_INVALID);
        if (strcmp(faults[_i].why, "places have") != 0)
                ck_assert_msg(strstr(why.text, faults[_i].why), "%s", why.text);
}
END_TEST

START_TEST(a_full_message_takes_no_more)
{
        uint32_t n = 0;

        make_release();
        while (!peer_add_lease(&builder, ++n))
                ck_assert_uint_le(builder.length, WIRE_MESSAGE_MAX);
        ck_assert_uint_eq(builder.length, WIRE_MESSAGE_MAX);
        ck_assert(!check_exactly(builder.length));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/peer_message");
        TCase *tcase = tcase_create("messages");
        SRunner *runner;
        int n_failed;

        tcase_add_test(tcase, an_ask_is_read_as_it_was_written);
        tcase_add_test(tcase, an_offer_is_read_as_it_was_written);
        tcase_add_loop_test(tcase, no_message_passes_cut_short_or_with_more, 0, 7);
        tcase_add_loop_test(tcase, each_fault_is_named, 0,
                            (int)(sizeof(faults) / sizeof(faults[0])));
        tcase_add_test(tcase, a_full_message_takes_no_more);
        tcase_add_test(tcase, a_find_is_read_as_it_was_written);
        tcase_add_test(tcase, what_is_found_is_read_as_it_was_written);
        tcase_add_loop_test(tcase, a_find_and_its_answer_fit_one_message, 1,
                            (int)PEER_BANKS_MAX + 1);
        tcase_add_loop_test(tcase, each_fault_of_what_is_found_is_named, 0,
                            (int)(sizeof(found_faults) / sizeof(found_faults[0])));
        tcase_add_test(tcase, a_find_asks_for_something);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
