// SPDX-License-Identifier: Apache-2.0
/*
 * One well-formed message of each kind, then the same with one thing wrong: each fault is
 * refused, and the reason names kind, field and what was expected.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/message.h"
#include "proto/status.h"

static const uint8_t boot_id[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
static struct message_builder builder;

static struct wire_header *header(void)
{
        return (struct wire_header *)packet;
}

static void begin(uint16_t kind, void *fixed, size_t fixed_bytes)
{
        message_header_init(fixed, kind, 7, 9, kind == WIRE_HELLO ? NULL : boot_id);
        if (kind == WIRE_HELLO)
                ((struct wire_header *)fixed)->session = 0;
        message_builder_init(&builder, packet, fixed, fixed_bytes);
}

static void append(const void *record, size_t bytes, uint32_t n_items)
{
        ck_assert_int_eq(message_append(&builder, record, bytes, n_items), 0);
}

static void make_reserve(void)
{
        struct wire_batch batch = {.set = 5, .layout = 3, .total = 2};
        struct wire_reserve_item item = {.bytes = 5000, .numa_node = UINT32_MAX};
        struct digest covers[3] = {{{1}}, {{2}}, {{3}}};

        begin(WIRE_RESERVE, &batch, sizeof(batch));
        append(&item, sizeof(item), 1);
        item.flags = WIRE_RESERVE_CROPPABLE;
        item.n_covers = 3;
        append(&item, sizeof(item), 1);
        append(covers, sizeof(covers), 0);
}

static void make_commit(void)
{
        struct wire_batch batch = {.set = 5, .total = 2};
        struct wire_commit_item item = {.lease = 11, .n_pieces = 2};
        uint64_t pieces[2] = {21, 22};

        begin(WIRE_COMMIT, &batch, sizeof(batch));
        append(&item, sizeof(item), 1);
        append(pieces, sizeof(pieces), 0);
        item = (struct wire_commit_item){.lease = 12};
        append(&item, sizeof(item), 1);
}

static void make_leases(uint16_t kind)
{
        struct wire_batch batch = {.total = 2};
        uint64_t leases[2] = {31, 32};

        begin(kind, &batch, sizeof(batch));
        append(leases, sizeof(leases), 2);
}

static void make_keys(uint16_t kind)
{
        struct wire_adopt adopt = {.batch = {.layout = 3, .total = 2}};
        struct wire_key_item items[2] = {{.group = 1}, {.shard = 2}};
        struct wire_page_run runs[2] = {{0, 2}, {3, 1}};

        begin(kind, &adopt, kind == WIRE_ADOPT ? sizeof(adopt) : sizeof(adopt.batch));
        items[0].n_runs = kind == WIRE_ACQUIRE ? 2 : 0;
        append(&items[0], sizeof(items[0]), 1);
        append(runs, items[0].n_runs * sizeof(runs[0]), 0);
        append(&items[1], sizeof(items[1]), 1);
}

static void make_prefetch(void)
{
        struct wire_prefetch fixed = {.batch = {.layout = 3, .total = 1}, .hint = "10.0.0.2:7428"};
        struct wire_key_item item = {.group = 1};

        begin(WIRE_PREFETCH, &fixed, sizeof(fixed));
        append(&item, sizeof(item), 1);
}

static void make_moves(uint16_t kind)
{
        struct wire_batch fixed = {.total = 2};
        struct wire_move_item items[2] = {
                {.lease = 31, .address = 4096, .bytes = 10, .key = 7},
                {.lease = 32, .address = 8192, .bytes = 4096, .key = 7},
        };

        begin(kind, &fixed, sizeof(fixed));
        append(items, sizeof(items), 2);
}

static void make_find(void)
{
        struct wire_batch fixed = {.total = 2, .layout = 4};
        struct digest digests[2] = {{{7}}, {{8}}};

        begin(WIRE_FIND, &fixed, sizeof(fixed));
        append(digests, sizeof(digests), 2);
}

static void make_found(void)
{
        struct wire_found fixed = {.first = 3, .n_banks = 2};
        struct wire_found_bits bits[4] = {{1, 0, 0, 0}, {2, 2, 0, 0}, {3, 1, 1, 0}, {4, 0, 0, 0}};

        begin(WIRE_FOUND, &fixed, sizeof(fixed));
        append(bits, sizeof(bits), 2);
}

static void make_result(void)
{
        struct wire_header fixed;
        struct wire_result_item item = {
                .index = 1, .lease = 41, .bytes = 8000, .n_extents = 2, .n_pieces = 1};
        struct wire_extent extents[2] = {{1, 0, 4096, 4096}, {2, 0, 8192, 4096}};
        uint64_t piece = 51;

        begin(WIRE_RESULT, &fixed, sizeof(fixed));
        ck_assert_int_eq(message_append_result(&builder, &item, extents, &piece), 0);
        item = (struct wire_result_item){.status = KVT_WIRE_MISS};
        ck_assert_int_eq(message_append_result(&builder, &item, NULL, NULL), 0);
}

static void make_marks(void)
{
        struct wire_batch fixed = {.total = 2, .layout = 4};
        struct wire_mark_item items[2] = {
                {.boundary = {{7}}, .flags = WIRE_MARK_RECLAIM_BELOW | WIRE_MARK_RECLAIM_PREFIX},
                {.boundary = {{8}}, .flags = WIRE_MARK_PIN},
        };

        begin(WIRE_MARK, &fixed, sizeof(fixed));
        append(items, sizeof(items), 2);
}

static void make_attach(void)
{
        struct wire_attach attach = {.layout_bytes = 5};
        uint16_t shards[2] = {0, 3};

        begin(WIRE_ATTACH, &attach, sizeof(attach));
        append(shards, sizeof(shards), 2);
        append("KVTL!", 5, 0);
}

static void make_layout(void)
{
        struct wire_layout layout = {.layout = 3, .layout_bytes = 5};

        begin(WIRE_LAYOUT, &layout, sizeof(layout));
        append("KVTL!", 5, 0);
}

static void make_matches(void)
{
        struct wire_matches fixed = {.sequence = 9, .total = 4, .first = 1};
        struct digest digests[2] = {{{1}}, {{2}}};

        begin(WIRE_MATCHES, &fixed, sizeof(fixed));
        append(digests, sizeof(digests), 2);
}

static void make_text(uint16_t kind)
{
        struct wire_header fixed;

        begin(kind, &fixed, sizeof(fixed));
        append("{\"a\":1}", 7, 7);
}

/* Kinds of a fixed length. */
static void make_fixed(uint16_t kind)
{
        union {
                struct wire_hello hello;
                struct wire_welcome welcome;
                struct wire_arena arena;
                struct wire_attached attached;
                struct wire_cancel cancel;
                struct wire_copies_ended copies_ended;
                struct wire_granted granted;
                struct wire_bye bye;
                struct wire_recent recent;
                struct wire_tell tell;
        } message = {0};
        static const size_t bytes[] = {
                [WIRE_HELLO] = sizeof(struct wire_hello),
                [WIRE_WELCOME] = sizeof(struct wire_welcome),
                [WIRE_ARENA] = sizeof(struct wire_arena),
                [WIRE_ATTACHED] = sizeof(struct wire_attached),
                [WIRE_CANCEL] = sizeof(struct wire_cancel),
                [WIRE_COPIES_ENDED] = sizeof(struct wire_copies_ended),
                [WIRE_GRANTED] = sizeof(struct wire_granted),
                [WIRE_BYE] = sizeof(struct wire_bye),
                [WIRE_RECENT] = sizeof(struct wire_recent),
                [WIRE_FORGET] = sizeof(struct wire_header),
                [WIRE_TELL] = sizeof(struct wire_tell),
        };

        if (kind == WIRE_HELLO)
                strcpy(message.hello.program, "engine");
        if (kind == WIRE_ARENA)
                message.arena.bytes = message.arena.page_bytes = 2u << 20;
        if (kind == WIRE_CANCEL)
                message.cancel.target = 6;
        if (kind == WIRE_BYE)
                strcpy(message.bye.why, "too slow");
        begin(kind, &message, bytes[kind]);
}

static void make(uint16_t kind)
{
        memset(packet, 0, sizeof(packet));
        switch (kind) {
        case WIRE_RESERVE:
                return make_reserve();
        case WIRE_COMMIT:
                return make_commit();
        case WIRE_ABORT:
        case WIRE_RELEASE:
                return make_leases(kind);
        case WIRE_ACQUIRE:
        case WIRE_ADOPT:
                return make_keys(kind);
        case WIRE_PREFETCH:
                return make_prefetch();
        case WIRE_PUT:
        case WIRE_FETCH:
                return make_moves(kind);
        case WIRE_FIND:
                return make_find();
        case WIRE_FOUND:
                return make_found();
        case WIRE_MARK:
                return make_marks();
        case WIRE_RESULT:
                return make_result();
        case WIRE_ATTACH:
                return make_attach();
        case WIRE_LAYOUT:
                return make_layout();
        case WIRE_MATCHES:
                return make_matches();
        case WIRE_ADMIN:
        case WIRE_ADMIN_REPLY:
                return make_text(kind);
        default:
                return make_fixed(kind);
        }
}

static const uint16_t all_kinds[] = {
#define NUMBER(number, name) number,
        WIRE_KIND_LIST(NUMBER)
#undef NUMBER
};
#define N_KINDS ((int)(sizeof(all_kinds) / sizeof(all_kinds[0])))

/* Checks a copy that ends where the packet ends, so that ASan sees any read beyond. */
static int check_exactly(size_t length, struct why *why)
{
        uint8_t *copy = malloc(length ? length : 1);
        int r;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, packet, length);
        r = message_check(copy, length, why);
        free(copy);
        return r;
}

START_TEST(a_message_of_each_kind_passes)
{
        struct why why = {""};

        make(all_kinds[_i]);
        ck_assert_msg(!check_exactly(header()->length, &why), "%s", why.text);
        ck_assert_str_eq(why.text, "");
        ck_assert_str_ne(message_kind_name(all_kinds[_i]), "unknown");
}
END_TEST

START_TEST(no_kind_passes_cut_short)
{
        struct why why;
        uint32_t length;

        make(all_kinds[_i]);
        length = header()->length;
        for (uint32_t cut = 0; cut < length; cut++) {
                ck_assert_int_eq(check_exactly(cut, &why), MESSAGE_E_INVALID);
                if (cut < sizeof(struct wire_header))
                        continue;
                header()->length = cut;
                ck_assert_int_eq(check_exactly(cut, &why), MESSAGE_E_INVALID);
                header()->length = length;
        }
}
END_TEST

START_TEST(no_kind_passes_with_bytes_behind)
{
        struct why why;

        make(all_kinds[_i]);
        ck_assert_int_eq(check_exactly(header()->length + 8, &why), MESSAGE_E_INVALID);
        header()->length += 8;
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "length"));
        ck_assert_ptr_eq(strstr(why.text, message_kind_name(all_kinds[_i])), why.text);
}
END_TEST

START_TEST(a_packet_is_never_longer_than_a_message)
{
        static _Alignas(8) uint8_t longer[WIRE_MESSAGE_MAX + 8];
        struct wire_header *text = (void *)longer;
        struct why why;

        message_header_init(text, WIRE_ADMIN, 1, 1, NULL);
        text->length = WIRE_MESSAGE_MAX;
        text->n_items = WIRE_MESSAGE_MAX - sizeof(*text);
        ck_assert_int_eq(message_check(longer, WIRE_MESSAGE_MAX, &why), 0);
        text->length += 8;
        text->n_items += 8;
        ck_assert_int_eq(message_check(longer, sizeof(longer), &why), MESSAGE_E_INVALID);
        ck_assert_str_eq(why.text, "a packet of 65544 bytes, expected 48 to 65536");
}
END_TEST

START_TEST(a_fixed_part_is_there_in_full)
{
        struct why why;

        make(WIRE_ACQUIRE);
        header()->length = sizeof(struct wire_header);
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_INVALID);
        ck_assert_str_eq(why.text, "ACQUIRE: length is 48, expected at least 80");
        ck_assert_int_eq(check_exactly(47, &why), MESSAGE_E_INVALID);
        ck_assert_str_eq(why.text, "a packet of 47 bytes, expected 48 to 65536");
        ck_assert_str_eq(message_kind_name(0), "unknown");
        ck_assert_str_eq(message_kind_name(999), "unknown");
}
END_TEST

#define AT(type, field) offsetof(struct type, field), sizeof(((struct type *)0)->field)
#define ITEM(fixed, type, field)                                                                   \
        sizeof(struct fixed) + offsetof(struct type, field), sizeof(((struct type *)0)->field)
#define EXTENT(n, field)                                                                           \
        sizeof(struct wire_header) + sizeof(struct wire_result_item) +                             \
                (n) * sizeof(struct wire_extent) + offsetof(struct wire_extent, field),            \
                sizeof(((struct wire_extent *)0)->field)
#define RUN(n, field)                                                                              \
        sizeof(struct wire_batch) + sizeof(struct wire_key_item) +                                 \
                (n) * sizeof(struct wire_page_run) + offsetof(struct wire_page_run, field),        \
                sizeof(((struct wire_page_run *)0)->field)
#define BAD      MESSAGE_E_INVALID
#define UNKNOWN  MESSAGE_E_UNSUPPORTED
#define PROGRAM  offsetof(struct wire_hello, program)
#define TOO_MANY (WIRE_ITEMS_MAX + 1)

/* @value is put over @bytes bytes at @offset of a well-formed message. */
static const struct fault {
        uint16_t kind;
        size_t offset, bytes;
        uint64_t value;
        int r;
        const char *text; /* part of the reason */
} faults[] = {
        {WIRE_CANCEL, AT(wire_header, magic), 0, BAD, "magic is 0x00000000"},
        {WIRE_CANCEL, AT(wire_header, length), 57, BAD, "length is 57"},
        {WIRE_CANCEL, AT(wire_header, flags), WIRE_MORE, BAD, "MORE is set"},
        {WIRE_CANCEL, AT(wire_header, flags), 0x8000, UNKNOWN, "CANCEL: header 0: unknown flags"},
        {WIRE_CANCEL, AT(wire_header, n_items), 1, BAD, "n_items is 1, expected 0"},
        {WIRE_CANCEL, AT(wire_header, request), 0, BAD, "request is 0"},
        {WIRE_CANCEL, AT(wire_header, kind), 0, UNKNOWN, "unknown kind 0"},
        {WIRE_CANCEL, AT(wire_header, kind), 999, UNKNOWN, "unknown kind 999"},
        {WIRE_CANCEL, AT(wire_header, kind), 65535, UNKNOWN, "unknown kind 65535"},
        {WIRE_CANCEL, AT(wire_cancel, target), 0, BAD, "CANCEL: target is 0"},

        {WIRE_HELLO, AT(wire_header, session), 1, BAD, "session is not 0"},
        {WIRE_HELLO, offsetof(struct wire_header, boot_id) + 15, 1, 1, BAD, "boot_id is not"},
        {WIRE_HELLO, AT(wire_hello, flags), 2, UNKNOWN, "unknown flags 0x2"},
        {WIRE_HELLO, PROGRAM + 63, 1, 'x', BAD, "program has byte 0x78 behind its end"},
        {WIRE_WELCOME, AT(wire_welcome, status), KVT_WIRE_STATUS_COUNT, BAD, "status is 20"},
        {WIRE_WELCOME, offsetof(struct wire_welcome, why) + 1, 1, 1, BAD, "why has byte 0x01"},
        {WIRE_ARENA, AT(wire_arena, bytes), 0, BAD, "ARENA: bytes is 0"},
        {WIRE_ARENA, AT(wire_arena, bytes), 4096, BAD, "multiple of page_bytes 2097152"},
        {WIRE_ARENA, AT(wire_arena, page_bytes), 0, BAD, "page_bytes is 0"},
        {WIRE_ARENA, AT(wire_arena, page_bytes), 2048, BAD, "page_bytes is 2048"},
        {WIRE_ARENA, AT(wire_arena, page_bytes), 12288, BAD, "a power of two"},
        {WIRE_ATTACH, AT(wire_attach, flags), 8, UNKNOWN, "unknown flags 0x8"},
        {WIRE_ATTACH, AT(wire_attach, rank), 1, BAD, "rank is 1 of 0"},
        {WIRE_ATTACH, AT(wire_attach, n_ranks), 1025, BAD, "rank is 0 of 1025"},
        {WIRE_ATTACH, AT(wire_attach, layout_bytes), 0, BAD, "layout_bytes is 0"},
        {WIRE_ATTACH, AT(wire_attach, layout_bytes), 32769, BAD, "expected 1 to 32768"},
        {WIRE_ATTACH, AT(wire_attach, layout_bytes), 6, BAD, "6 bytes of layout need 6 bytes"},
        {WIRE_ATTACH, AT(wire_header, n_items), 1025, BAD, "1025 shards, expected at most 1024"},
        {WIRE_ATTACH, AT(wire_header, n_items), 3, BAD, "bytes of layout need"},
        {WIRE_LAYOUT, AT(wire_layout, layout), 0, BAD, "layout is 0"},
        {WIRE_LAYOUT, AT(wire_layout, layout_bytes), 0, BAD, "layout_bytes is 0"},
        {WIRE_LAYOUT, AT(wire_layout, layout_bytes), 32769, BAD, "expected 1 to 32768"},
        {WIRE_LAYOUT, AT(wire_layout, layout_bytes), 6, BAD, "6 bytes of layout need 6 bytes"},
        {WIRE_ATTACHED, AT(wire_attached, status), 999, BAD, "status is 999"},
        {WIRE_ATTACHED, offsetof(struct wire_attached, why) + 511, 1, 1, BAD, "why has byte"},

        {WIRE_RESERVE, AT(wire_batch, flags), 1, UNKNOWN, "known are 0x0"},
        {WIRE_RESERVE, AT(wire_batch, timeout_ns), 1, BAD, "timeout_ns is 1"},
        {WIRE_RESERVE, AT(wire_batch, total), 1, BAD, "go beyond total 1"},
        {WIRE_RESERVE, AT(wire_batch, total), TOO_MANY, BAD, "total is 65537, expected at most"},
        {WIRE_RESERVE, AT(wire_batch, total), 3, BAD, "MORE is 0 after 2 of 3 items"},
        {WIRE_RESERVE, AT(wire_header, flags), WIRE_MORE, BAD, "MORE is 1 after 2 of 2 items"},
        {WIRE_RESERVE, AT(wire_batch, first), UINT32_MAX, BAD, "first 4294967295"},
        {WIRE_RESERVE, AT(wire_header, n_items), 0, BAD, "n_items is 0"},
        {WIRE_RESERVE, AT(wire_header, n_items), 1, BAD, "MORE is 0 after 1 of 2"},
        {WIRE_RESERVE, ITEM(wire_batch, wire_reserve_item, flags), 64, UNKNOWN, "item 0: unknown"},
        {WIRE_RESERVE, ITEM(wire_batch, wire_reserve_item, hit_tokens), 1, BAD,
         "item 0: hit_tokens is 1 without the flag HIT"},
        {WIRE_RESERVE, ITEM(wire_batch, wire_reserve_item, bytes), 0, BAD, "item 0: bytes is 0"},
        {WIRE_RESERVE, ITEM(wire_batch, wire_reserve_item, bytes), (1u << 30) + 1, BAD,
         "expected 1 to 1073741824"},
        {WIRE_RESERVE, ITEM(wire_batch, wire_reserve_item, n_covers), 1, BAD,
         "without the flag CROPPABLE"},
        {WIRE_RESERVE,
         sizeof(struct wire_batch) + sizeof(struct wire_reserve_item) +
                 offsetof(struct wire_reserve_item, n_covers),
         4, WIRE_COVERS_MAX + 1, BAD, "item 1: n_covers is 1901, expected at most 1900"},
        {WIRE_RESERVE,
         sizeof(struct wire_batch) + sizeof(struct wire_reserve_item) +
                 offsetof(struct wire_reserve_item, n_covers),
         4, 4, BAD, "4 covers need 128 bytes, 96 are left"},
        {WIRE_COMMIT, AT(wire_batch, layout), 1, BAD, "COMMIT: layout is 1"},
        {WIRE_COMMIT, ITEM(wire_batch, wire_commit_item, flags), 1, UNKNOWN, "item 0: unknown"},
        {WIRE_COMMIT, ITEM(wire_batch, wire_commit_item, n_pieces), 129, BAD, "at most 128"},
        {WIRE_COMMIT, ITEM(wire_batch, wire_commit_item, n_pieces), 128, BAD, "128 pieces need"},
        {WIRE_ABORT, AT(wire_batch, flags), 2, UNKNOWN, "ABORT: part 0"},
        {WIRE_RELEASE, AT(wire_batch, flags), WIRE_ABORT_MEMBERS, UNKNOWN, "RELEASE: part 0"},
        {WIRE_ABORT, AT(wire_batch, total), WIRE_ITEMS_MAX, BAD, "MORE is 0"},
        {WIRE_RELEASE, AT(wire_batch, set), 5, BAD, "RELEASE: set is 5, expected 0"},
        {WIRE_ACQUIRE, AT(wire_batch, set), 5, BAD, "ACQUIRE: set is 5, expected 0"},
        {WIRE_ACQUIRE, AT(wire_batch, flags), 16, UNKNOWN, "unknown flags 0x10, known are 0xf"},
        {WIRE_ACQUIRE, AT(wire_batch, timeout_ns), 9, BAD, "without the flag WAIT"},
        {WIRE_ACQUIRE, ITEM(wire_batch, wire_key_item, n_runs), 65, BAD,
         "item 0: n_runs is 65, expected at most 64"},
        {WIRE_ACQUIRE, ITEM(wire_batch, wire_key_item, n_runs), UINT32_MAX, BAD, "n_runs is 42949"},
        {WIRE_ACQUIRE, ITEM(wire_batch, wire_key_item, n_runs), 64, BAD, "64 runs need 512 bytes"},
        {WIRE_ACQUIRE, RUN(0, n_pages), 0, BAD, "item 0 run 0: 0 pages from 0 on"},
        {WIRE_ACQUIRE, RUN(1, n_pages), UINT32_MAX - 2, BAD, "run 1: 4294967293 pages from 3 on"},
        {WIRE_ACQUIRE, RUN(1, first_page), 2, BAD, "first_page is 2, expected more than 2"},
        {WIRE_ACQUIRE, RUN(1, first_page), 0, BAD, "item 0 run 1: first_page is 0"},
        {WIRE_ADOPT, ITEM(wire_adopt, wire_key_item, n_runs), 1, BAD,
         "item 0: n_runs is 1, expected at most 0"},
        {WIRE_ADOPT, AT(wire_header, n_items), 0, BAD, "n_items is 0"},
        {WIRE_PREFETCH, AT(wire_batch, flags), 2, UNKNOWN, "PREFETCH: part 0: unknown flags 0x2"},
        {WIRE_PREFETCH, AT(wire_batch, timeout_ns), 5, BAD, "without the flag WAIT"},
        {WIRE_PREFETCH, AT(wire_prefetch, hint[20]), 1, BAD, "hint has byte 0x01 behind its end"},
        {WIRE_PREFETCH, ITEM(wire_prefetch, wire_key_item, n_runs), 1, BAD,
         "item 0: n_runs is 1, expected at most 0"},

        {WIRE_PUT, AT(wire_batch, set), 5, BAD, "PUT: set is 5, expected 0"},
        {WIRE_PUT, AT(wire_batch, layout), 5, BAD, "PUT: layout is 5, expected 0"},
        {WIRE_PUT, ITEM(wire_batch, wire_move_item, reserved), 1, BAD, "item 0: reserved"},
        {WIRE_FETCH, ITEM(wire_batch, wire_move_item, bytes), 0, BAD, "0 bytes from 0x1000 on"},
        {WIRE_FETCH, ITEM(wire_batch, wire_move_item, bytes), LAYOUT_OBJECT_MAX + 1, BAD,
         "bytes from 0x1000 on"},
        {WIRE_FETCH, ITEM(wire_batch, wire_move_item, address), UINT64_MAX - 8, BAD,
         "10 bytes from 0xfffffffffffffff7 on"},
        {WIRE_FIND, AT(wire_batch, flags), 1, UNKNOWN, "FIND: part 0: unknown flags"},
        {WIRE_FIND, AT(wire_batch, set), 1, BAD, "FIND: set is 1"},
        {WIRE_FOUND, AT(wire_found, reserved), 1, BAD, "reserved is not 0"},
        {WIRE_FOUND, AT(wire_found, n_banks), 0, BAD, "n_banks is 0, expected 1 to 16"},
        {WIRE_FOUND, AT(wire_found, n_banks), 17, BAD, "n_banks is 17"},
        {WIRE_FOUND, AT(wire_found, first), WIRE_ITEMS_MAX - 1, BAD, "go beyond 65536"},
        {WIRE_FOUND, ITEM(wire_found, wire_found_bits, reserved), 1, BAD, "record 0: reserved"},

        {WIRE_MARK, AT(wire_batch, flags), 1, UNKNOWN, "MARK: part 0: unknown flags"},
        {WIRE_MARK, AT(wire_batch, set), 5, BAD, "MARK: set is 5, expected 0"},
        {WIRE_RECENT, AT(wire_recent, reserved), 1, BAD, "reserved"},
        {WIRE_MATCHES, AT(wire_matches, reserved), 1, BAD, "reserved"},
        {WIRE_MATCHES, AT(wire_matches, sequence), 0, BAD, "n_items is 2, expected at most 0"},
        {WIRE_MATCHES, AT(wire_matches, first), 3, BAD, "go beyond total 4"},
        {WIRE_MATCHES, AT(wire_matches, total), 2, BAD, "go beyond total 2"},
        {WIRE_TELL, AT(wire_tell, reserved), 1, BAD, "reserved"},
        {WIRE_TELL, AT(wire_tell, prompts), WIRE_TELL_MAX + 1, BAD, "prompts is 281474976710657"},
        {WIRE_TELL, AT(wire_tell, prompt_tokens), WIRE_TELL_MAX + 1, BAD, "prompt_tokens is"},
        {WIRE_TELL, AT(wire_tell, tail_tokens), 1, BAD, "tail_tokens is 1, expected at most 0"},
        {WIRE_TELL, AT(wire_tell, kv_tokens), 1, BAD, "kv_tokens is 1, expected at most 0"},
        {WIRE_TELL, AT(wire_tell, hit_tokens), 1, BAD, "hit_tokens is 1, expected at most 0"},
        {WIRE_MARK, ITEM(wire_batch, wire_mark_item, reserved), 1, BAD, "item 0: reserved"},
        {WIRE_MARK, ITEM(wire_batch, wire_mark_item, flags), 0, BAD, "flags are 0x0, expected one"},
        {WIRE_MARK, ITEM(wire_batch, wire_mark_item, flags), 12, BAD, "flags are 0xc"},
        {WIRE_MARK, ITEM(wire_batch, wire_mark_item, flags), 5, BAD, "flags are 0x5"},
        {WIRE_MARK, ITEM(wire_batch, wire_mark_item, flags), 16, UNKNOWN, "item 0: unknown"},

        {WIRE_GRANTED, AT(wire_granted, status), 20, BAD, "status is 20"},
        {WIRE_GRANTED, AT(wire_granted, n_granted), TOO_MANY, BAD, "n_granted 65537"},
        {WIRE_GRANTED, AT(wire_granted, n_resident), TOO_MANY, BAD, "n_resident 65537"},
        {WIRE_GRANTED, AT(wire_granted, n_fitting), TOO_MANY, BAD, "n_fitting 65537"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, index), WIRE_ITEMS_MAX, BAD,
         "index is 65536"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, status), 20, BAD, "status is 20"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, bytes), 8193, BAD,
         "item 0: 2 extents hold 8192 bytes of 8193"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, bytes), UINT64_MAX, BAD,
         "at most 1073741824"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, n_extents), 129, BAD, "n_extents 129"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, n_extents), 128, BAD, "128 extents need"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, n_pieces), 129, BAD, "n_pieces 129"},
        {WIRE_RESULT, ITEM(wire_header, wire_result_item, n_pieces), 128, BAD, "128 pieces need"},
        {WIRE_RESULT, EXTENT(0, reserved), 1, BAD, "item 0 extent 0: reserved"},
        {WIRE_RESULT, EXTENT(1, offset), 512, BAD, "expected whole units of 4096 or exactly 8000"},
        {WIRE_RESULT, EXTENT(1, length), 0, BAD, "extent 1: length is 0"},
        {WIRE_RESULT, EXTENT(1, length), 4097, BAD, "2 extents hold 8193 bytes, expected whole"},
        {WIRE_RESULT, EXTENT(1, offset), UINT64_MAX - 4095, BAD, "offset and length overflow"},
        {WIRE_ADMIN, AT(wire_header, n_items), 8, BAD, "8 bytes of text need 8 bytes, 7 are left"},
        {WIRE_ADMIN_REPLY, AT(wire_header, n_items), 6, BAD, "length is 55, expected 54"},
        {WIRE_BYE, AT(wire_bye, reserved), 1, BAD, "BYE: reserved is not 0"},
        {WIRE_BYE, AT(wire_bye, status), 20, BAD, "BYE: status is 20"},
        {WIRE_BYE, offsetof(struct wire_bye, why) + 100, 1, 1, BAD, "why has byte"},
};
#define N_FAULTS ((int)(sizeof(faults) / sizeof(faults[0])))

START_TEST(each_fault_is_refused_with_its_reason)
{
        const struct fault *fault = &faults[_i];
        struct why why = {""};
        size_t length;

        make(fault->kind);
        length = header()->length;
        memcpy(packet + fault->offset, &fault->value, fault->bytes);
        ck_assert_msg(check_exactly(length, &why) == fault->r, "fault %d: %s", _i, why.text);
        ck_assert_msg(strstr(why.text, fault->text), "fault %d: \"%s\" lacks \"%s\"", _i, why.text,
                      fault->text);
        ck_assert_int_eq(check_exactly(length, NULL), fault->r);
}
END_TEST

START_TEST(a_string_without_end_is_refused)
{
        struct why why;

        make(WIRE_HELLO);
        memset(packet + PROGRAM, 'x', 64);
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_INVALID);
        ck_assert_str_eq(why.text,
                         "HELLO: program has no end, expected at most 63 bytes and a zero");
}
END_TEST

START_TEST(a_malformed_field_outweighs_an_unknown_flag)
{
        struct wire_reserve_item *items = (void *)(packet + sizeof(struct wire_batch));
        struct why why;

        make(WIRE_RESERVE);
        items[0].flags = 1u << 31;
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_UNSUPPORTED);
        items[1].bytes = 0;
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "item 1: bytes is 0"));
}
END_TEST

START_TEST(a_parent_is_given_or_unknown)
{
        struct wire_reserve_item *item = (void *)(packet + sizeof(struct wire_batch));
        struct why why;

        make(WIRE_RESERVE);
        item->flags = WIRE_RESERVE_PARENT_UNKNOWN;
        ck_assert_int_eq(check_exactly(header()->length, &why), 0);
        item->parent.bytes[31] = 1;
        ck_assert_int_eq(check_exactly(header()->length, &why), MESSAGE_E_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "parent is given"));
        item->flags = 0;
        ck_assert_int_eq(check_exactly(header()->length, &why), 0);
}
END_TEST

START_TEST(an_acquire_may_wait_for_some_time)
{
        struct wire_batch *batch = (void *)packet;

        make(WIRE_ACQUIRE);
        batch->flags = WIRE_ACQUIRE_WAIT | WIRE_ACQUIRE_CHECKSUMS;
        batch->timeout_ns = 1000;
        ck_assert_int_eq(check_exactly(header()->length, NULL), 0);
}
END_TEST

START_TEST(an_adopt_without_items_asks_for_everything)
{
        struct wire_adopt adopt = {.batch = {.layout = 1}};

        begin(WIRE_ADOPT, &adopt, sizeof(adopt));
        ck_assert_int_eq(check_exactly(header()->length, NULL), 0);
}
END_TEST

START_TEST(a_batch_may_come_in_parts)
{
        struct wire_batch *batch = (void *)packet;

        make(WIRE_RELEASE);
        batch->total = 5;
        message_set_more(&builder, true);
        ck_assert_int_eq(check_exactly(header()->length, NULL), 0);
        batch->first = 3;
        message_set_more(&builder, false);
        ck_assert_int_eq(check_exactly(header()->length, NULL), 0);
}
END_TEST

START_TEST(the_cursor_gives_reserves_with_their_covers)
{
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;

        make(WIRE_RESERVE);
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_uint_eq(item.n_covers, 0);
        ck_assert_uint_eq(item.numa_node, UINT32_MAX);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_uint_eq(item.n_covers, 3);
        for (uint8_t i = 0; i < 3; i++)
                ck_assert_uint_eq(covers[i].bytes[0], i + 1);
        ck_assert_ptr_eq(covers + 3, packet + header()->length);
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), MESSAGE_E_END);
}
END_TEST

START_TEST(the_cursor_gives_commits_with_their_pieces)
{
        struct message_cursor cursor;
        struct wire_commit_item item;
        const uint64_t *pieces;

        make(WIRE_COMMIT);
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), 0);
        ck_assert_uint_eq(item.lease, 11);
        ck_assert_uint_eq(item.n_pieces, 2);
        ck_assert_uint_eq(pieces[0], 21);
        ck_assert_uint_eq(pieces[1], 22);
        ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), 0);
        ck_assert_uint_eq(item.lease, 12);
        ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), MESSAGE_E_END);
}
END_TEST

START_TEST(the_cursor_gives_leases_and_keys)
{
        struct message_cursor cursor;
        struct wire_key_item item;
        const struct wire_page_run *runs;
        uint64_t lease;

        make(WIRE_ABORT);
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_lease(&cursor, &lease), 0);
        ck_assert_uint_eq(lease, 31);
        ck_assert_int_eq(message_next_lease(&cursor, &lease), 0);
        ck_assert_uint_eq(lease, 32);
        ck_assert_int_eq(message_next_lease(&cursor, &lease), MESSAGE_E_END);

        for (int adopt = 0; adopt < 2; adopt++) {
                make(adopt ? WIRE_ADOPT : WIRE_ACQUIRE);
                message_cursor_init(&cursor, packet);
                ck_assert_int_eq(message_next_key(&cursor, &item, &runs), 0);
                ck_assert_uint_eq(item.group, 1);
                ck_assert_uint_eq(item.n_runs, adopt ? 0 : 2);
                if (!adopt) {
                        ck_assert_uint_eq(runs[0].n_pages, 2);
                        ck_assert_uint_eq(runs[1].first_page, 3);
                }
                ck_assert_int_eq(message_next_key(&cursor, &item, &runs), 0);
                ck_assert_uint_eq(item.shard, 2);
                ck_assert_uint_eq(item.n_runs, 0);
                ck_assert_int_eq(message_next_key(&cursor, &item, &runs), MESSAGE_E_END);
        }
}
END_TEST

START_TEST(the_cursor_gives_marks)
{
        struct message_cursor cursor;
        struct wire_mark_item item;

        make(WIRE_MARK);
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_mark(&cursor, &item), 0);
        ck_assert_uint_eq(item.boundary.bytes[0], 7);
        ck_assert_int_eq(message_next_mark(&cursor, &item), 0);
        ck_assert_uint_eq(item.boundary.bytes[0], 8);
        ck_assert_uint_eq(item.flags, WIRE_MARK_PIN);
        ck_assert_int_eq(message_next_mark(&cursor, &item), MESSAGE_E_END);
}
END_TEST

START_TEST(the_cursor_gives_results_with_extents_and_pieces)
{
        struct message_cursor cursor;
        struct wire_result_item item;
        const struct wire_extent *extents;
        const uint64_t *pieces;

        make(WIRE_RESULT);
        message_cursor_init(&cursor, packet);
        ck_assert_int_eq(message_next_result(&cursor, &item, &extents, &pieces), 0);
        ck_assert_uint_eq(item.index, 1);
        ck_assert_uint_eq(extents[1].arena_id, 2);
        ck_assert_uint_eq(extents[1].offset, 8192);
        ck_assert_uint_eq(pieces[0], 51);
        ck_assert_int_eq(message_next_result(&cursor, &item, &extents, &pieces), 0);
        ck_assert_uint_eq(item.status, KVT_WIRE_MISS);
        ck_assert_int_eq(message_next_result(&cursor, &item, &extents, &pieces), MESSAGE_E_END);
}
END_TEST

/* Pages lie where they lie; what they hold together is known exactly. */
START_TEST(extents_of_pages_hold_exactly_their_bytes)
{
        struct wire_header fixed;
        struct wire_result_item item = {.lease = 1, .bytes = 300, .n_extents = 2};
        struct wire_extent extents[2] = {{1, 0, 8191, 100}, {1, 0, 4097, 200}};

        for (uint64_t longer = 0; longer < 2; longer++) {
                extents[1].length = 200 + longer;
                begin(WIRE_RESULT, &fixed, sizeof(fixed));
                ck_assert_int_eq(message_append_result(&builder, &item, extents, NULL), 0);
                ck_assert_int_eq(check_exactly(builder.length, NULL),
                                 longer ? MESSAGE_E_INVALID : 0);
        }
}
END_TEST

START_TEST(attach_and_text_say_where_their_bytes_are)
{
        const struct wire_attach *attach = (void *)packet;

        make(WIRE_ATTACH);
        ck_assert_uint_eq(message_attach_shards(attach)[1], 3);
        ck_assert_mem_eq(message_attach_layout(attach), "KVTL!", 5);
        make(WIRE_LAYOUT);
        ck_assert_mem_eq(message_layout_encoding((void *)packet), "KVTL!", 5);
        make(WIRE_ADMIN);
        ck_assert_mem_eq(message_text(header()), "{\"a\":1}", header()->n_items);
}
END_TEST

START_TEST(a_full_message_stays_as_it_was)
{
        struct wire_extent extents[WIRE_EXTENTS_MAX];
        uint64_t pieces[128] = {0};
        struct wire_result_item item = {.bytes = 1, .n_extents = WIRE_EXTENTS_MAX, .n_pieces = 128};
        struct wire_header fixed;
        uint32_t length, n_items = 0;

        for (uint32_t i = 0; i < WIRE_EXTENTS_MAX; i++)
                extents[i] = (struct wire_extent){.offset = i * 4096, .length = 4096};
        begin(WIRE_RESULT, &fixed, sizeof(fixed));
        while (!message_append_result(&builder, &item, extents, pieces))
                n_items++;
        length = builder.length;
        ck_assert_uint_gt(length, WIRE_MESSAGE_MAX - 4200);
        ck_assert_int_eq(message_append(&builder, pieces, WIRE_MESSAGE_MAX - length + 1, 1),
                         MESSAGE_E_FULL);
        ck_assert_uint_eq(header()->length, length);
        ck_assert_uint_eq(header()->n_items, n_items);
        ck_assert_int_eq(check_exactly(length, NULL), 0);
}
END_TEST

START_TEST(one_message_holds_the_most_covers)
{
        static struct digest covers[WIRE_COVERS_MAX];
        struct wire_batch batch = {.total = 1};
        struct wire_reserve_item item = {
                .bytes = 1, .flags = WIRE_RESERVE_CROPPABLE, .n_covers = WIRE_COVERS_MAX};

        begin(WIRE_RESERVE, &batch, sizeof(batch));
        append(&item, sizeof(item), 1);
        append(covers, sizeof(covers), 0);
        ck_assert_int_eq(check_exactly(header()->length, NULL), 0);
}
END_TEST

static TCase *check_case(void)
{
        TCase *tcase = tcase_create("check");

        tcase_add_loop_test(tcase, a_message_of_each_kind_passes, 0, N_KINDS);
        tcase_add_loop_test(tcase, no_kind_passes_cut_short, 0, N_KINDS);
        tcase_add_loop_test(tcase, no_kind_passes_with_bytes_behind, 0, N_KINDS);
        tcase_add_loop_test(tcase, each_fault_is_refused_with_its_reason, 0, N_FAULTS);
        tcase_add_test(tcase, a_packet_is_never_longer_than_a_message);
        tcase_add_test(tcase, a_fixed_part_is_there_in_full);
        tcase_add_test(tcase, a_string_without_end_is_refused);
        tcase_add_test(tcase, a_malformed_field_outweighs_an_unknown_flag);
        tcase_add_test(tcase, a_parent_is_given_or_unknown);
        tcase_add_test(tcase, an_acquire_may_wait_for_some_time);
        tcase_add_test(tcase, an_adopt_without_items_asks_for_everything);
        tcase_add_test(tcase, a_batch_may_come_in_parts);
        return tcase;
}

static TCase *walk_case(void)
{
        TCase *tcase = tcase_create("walk");

        tcase_add_test(tcase, the_cursor_gives_reserves_with_their_covers);
        tcase_add_test(tcase, the_cursor_gives_commits_with_their_pieces);
        tcase_add_test(tcase, the_cursor_gives_leases_and_keys);
        tcase_add_test(tcase, the_cursor_gives_marks);
        tcase_add_test(tcase, the_cursor_gives_results_with_extents_and_pieces);
        tcase_add_test(tcase, extents_of_pages_hold_exactly_their_bytes);
        tcase_add_test(tcase, attach_and_text_say_where_their_bytes_are);
        tcase_add_test(tcase, a_full_message_stays_as_it_was);
        tcase_add_test(tcase, one_message_holds_the_most_covers);
        return tcase;
}

int main(void)
{
        Suite *suite = suite_create("proto/message");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        suite_add_tcase(suite, check_case());
        suite_add_tcase(suite, walk_case());
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
