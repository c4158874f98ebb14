// SPDX-License-Identifier: Apache-2.0
/*
 * message_check() goes by one row per kind: the length of the fixed part, which header
 * fields the kind may use, and a function that checks the rest. A malformed field ends
 * the check at once; an unknown flag is only noted, so that UNSUPPORTED is answered for
 * well-formed messages alone and the records of such a message can still be walked.
 */
#include <string.h>

#include "proto/checksum.h"
#include "proto/layout.h"
#include "proto/message.h"
#include "proto/status.h"

#define EXTENT_UNIT 4096u

struct check {
        const uint8_t *packet;
        const struct wire_header *header;
        struct why *why;
        uint32_t offset;  /* first byte that is not yet accounted for */
        bool unsupported; /* an unknown flag was seen; why says which */
};

#define invalid(check, ...) (why_set((check)->why, __VA_ARGS__), MESSAGE_E_INVALID)

static void check_flags(struct check *check, const char *place, uint32_t index, uint32_t flags,
                        uint32_t known)
{
        if (!(flags & ~known) || check->unsupported)
                return;
        check->unsupported = true;
        why_set(check->why, "%s %u: unknown flags 0x%x, known are 0x%x", place, index,
                flags & ~known, known);
}

/* Zero-terminated and zero-padded, so that no byte of the sender's memory leaks. */
static int check_string(struct check *check, const char *field, const char *text, size_t size)
{
        size_t length = strnlen(text, size);

        if (length == size)
                return invalid(check, "%s has no end, expected at most %zu bytes and a zero", field,
                               size - 1);
        for (size_t i = length; i < size; i++)
                if (text[i])
                        return invalid(check, "%s has byte 0x%02x behind its end, expected zeros",
                                       field, (unsigned char)text[i]);
        return 0;
}

static int check_status(struct check *check, uint32_t status)
{
        if (status >= KVT_WIRE_STATUS_COUNT)
                return invalid(check, "status is %u, expected less than %u", status,
                               (unsigned)KVT_WIRE_STATUS_COUNT);
        return 0;
}

/* Takes @count things of @bytes each off the packet. */
static int take(struct check *check, const char *what, uint32_t count, uint32_t bytes)
{
        uint64_t need = (uint64_t)count * bytes;

        if (need > check->header->length - check->offset)
                return invalid(check, "%u %s need %llu bytes, %u are left of %u", count, what,
                               (unsigned long long)need, check->header->length - check->offset,
                               check->header->length);
        check->offset += (uint32_t)need;
        return 0;
}

static bool is_zero(const uint8_t *bytes, size_t length)
{
        for (size_t i = 0; i < length; i++)
                if (bytes[i])
                        return false;
        return true;
}

static int check_hello(struct check *check)
{
        const struct wire_hello *hello = (const void *)check->packet;

        if (hello->header.session)
                return invalid(check, "session is not 0");
        if (!is_zero(hello->header.boot_id, sizeof(hello->header.boot_id)))
                return invalid(check, "boot_id is not zero");
        check_flags(check, "part", 0, hello->flags, WIRE_HELLO_ADMIN);
        return check_string(check, "program", hello->program, sizeof(hello->program));
}

static int check_welcome(struct check *check)
{
        const struct wire_welcome *welcome = (const void *)check->packet;
        int r = check_status(check, welcome->status);

        return r ? r : check_string(check, "why", welcome->why, sizeof(welcome->why));
}

static int check_arena(struct check *check)
{
        const struct wire_arena *arena = (const void *)check->packet;

        if (arena->page_bytes < EXTENT_UNIT || arena->page_bytes & (arena->page_bytes - 1))
                return invalid(check, "page_bytes is %llu, expected a power of two from %u",
                               (unsigned long long)arena->page_bytes, EXTENT_UNIT);
        if (!arena->bytes || arena->bytes % arena->page_bytes)
                return invalid(check, "bytes is %llu, expected a multiple of page_bytes %llu",
                               (unsigned long long)arena->bytes,
                               (unsigned long long)arena->page_bytes);
        return 0;
}

static int check_attach(struct check *check)
{
        const struct wire_attach *attach = (const void *)check->packet;
        int r;

        check_flags(check, "part", 0, attach->flags, WIRE_ATTACH_NO_LOADS | WIRE_ATTACH_NO_STORES);
        if (attach->header.n_items > LAYOUT_SHARDS_MAX)
                return invalid(check, "n_items is %u shards, expected at most %u",
                               attach->header.n_items, LAYOUT_SHARDS_MAX);
        if (!attach->layout_bytes || attach->layout_bytes > LAYOUT_BYTES_MAX)
                return invalid(check, "layout_bytes is %u, expected 1 to %u", attach->layout_bytes,
                               LAYOUT_BYTES_MAX);
        if (attach->n_ranks > LAYOUT_SHARDS_MAX ||
            attach->rank >= (attach->n_ranks ? attach->n_ranks : 1))
                return invalid(check, "rank is %u of %u, expected less, and at most %u ranks",
                               attach->rank, attach->n_ranks, LAYOUT_SHARDS_MAX);
        r = take(check, "shards", attach->header.n_items, sizeof(uint16_t));
        return r ? r : take(check, "bytes of layout", attach->layout_bytes, 1);
}

static int check_attached(struct check *check)
{
        const struct wire_attached *attached = (const void *)check->packet;
        int r = check_status(check, attached->status);

        return r ? r : check_string(check, "why", attached->why, sizeof(attached->why));
}

static int check_layout(struct check *check)
{
        const struct wire_layout *layout = (const void *)check->packet;

        if (!layout->layout)
                return invalid(check, "layout is 0, expected a handle");
        if (!layout->layout_bytes || layout->layout_bytes > LAYOUT_BYTES_MAX)
                return invalid(check, "layout_bytes is %u, expected 1 to %u", layout->layout_bytes,
                               LAYOUT_BYTES_MAX);
        return take(check, "bytes of layout", layout->layout_bytes, 1);
}

/* Which parts of a request the message holds, by first, n_items, total and MORE. */
static int check_part(struct check *check, const struct wire_batch *batch)
{
        uint32_t n_items = batch->header.n_items;
        bool more = batch->header.flags & WIRE_MORE;

        if (!n_items && (batch->header.kind != WIRE_ADOPT || batch->total))
                return invalid(check, "n_items is 0, expected at least 1");
        if (batch->total > WIRE_ITEMS_MAX)
                return invalid(check, "total is %u, expected at most %u", batch->total,
                               WIRE_ITEMS_MAX);
        if ((uint64_t)batch->first + n_items > batch->total)
                return invalid(check, "first %u and n_items %u go beyond total %u", batch->first,
                               n_items, batch->total);
        if (more != (batch->first + n_items < batch->total))
                return invalid(check, "MORE is %d after %u of %u items", more,
                               batch->first + n_items, batch->total);
        return 0;
}

/* Fields of a batch that its kind does not use are zero. */
static int check_batch(struct check *check)
{
        const struct wire_batch *batch = (const void *)check->packet;
        uint16_t kind = batch->header.kind;
        bool reads = kind == WIRE_ACQUIRE || kind == WIRE_ADOPT || kind == WIRE_PREFETCH;
        uint32_t known = 0;

        if (kind == WIRE_PREFETCH)
                known = WIRE_PREFETCH_WAIT;
        else if (reads)
                known = WIRE_ACQUIRE_WAIT | WIRE_ACQUIRE_PARTIAL | WIRE_ACQUIRE_CHECKSUMS |
                        WIRE_ACQUIRE_RESIDENT;
        else if (kind == WIRE_ABORT)
                known = WIRE_ABORT_MEMBERS;
        check_flags(check, "part", 0, batch->flags, known);
        if (batch->set && kind != WIRE_RESERVE && kind != WIRE_COMMIT && kind != WIRE_ABORT)
                return invalid(check, "set is %llu, expected 0", (unsigned long long)batch->set);
        if (batch->timeout_ns && !(reads && batch->flags & WIRE_ACQUIRE_WAIT))
                return invalid(check, "timeout_ns is %llu without the flag WAIT, expected 0",
                               (unsigned long long)batch->timeout_ns);
        if (batch->layout && !reads && kind != WIRE_RESERVE && kind != WIRE_MARK &&
            kind != WIRE_FIND)
                return invalid(check, "layout is %u, expected 0", batch->layout);
        return check_part(check, batch);
}

static int check_reserve_item(struct check *check, const struct wire_reserve_item *item, uint32_t i)
{
        check_flags(check, "item", i, item->flags,
                    WIRE_RESERVE_REPLACE | WIRE_RESERVE_PARENT_UNKNOWN | WIRE_RESERVE_CROPPABLE |
                            WIRE_RESERVE_CONTIGUOUS | WIRE_RESERVE_HIT | WIRE_RESERVE_BRANCH);
        if (item->hit_tokens && !(item->flags & WIRE_RESERVE_HIT))
                return invalid(check, "item %u: hit_tokens is %u without the flag HIT", i,
                               item->hit_tokens);
        if (!item->bytes || item->bytes > LAYOUT_OBJECT_MAX)
                return invalid(check, "item %u: bytes is %llu, expected 1 to %llu", i,
                               (unsigned long long)item->bytes,
                               (unsigned long long)LAYOUT_OBJECT_MAX);
        if (item->flags & WIRE_RESERVE_PARENT_UNKNOWN && !digest_is_zero(&item->parent))
                return invalid(check, "item %u: parent is given and said to be unknown", i);
        if (item->n_covers && !(item->flags & WIRE_RESERVE_CROPPABLE))
                return invalid(check, "item %u: n_covers is %u without the flag CROPPABLE", i,
                               item->n_covers);
        if (item->n_covers > WIRE_COVERS_MAX)
                return invalid(check, "item %u: n_covers is %u, expected at most %u", i,
                               item->n_covers, WIRE_COVERS_MAX);
        return 0;
}

static int check_reserve(struct check *check)
{
        const struct wire_reserve_item *items;
        uint32_t n_covers = 0;
        int r;

        r = check_batch(check);
        if (r)
                return r;
        items = (const void *)(check->packet + check->offset);
        r = take(check, "items", check->header->n_items, sizeof(*items));
        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                r = check_reserve_item(check, &items[i], i);
                n_covers += items[i].n_covers;
        }
        return r ? r : take(check, "covers", n_covers, sizeof(struct digest));
}

static int check_commit(struct check *check)
{
        int r = check_batch(check);

        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                const struct wire_commit_item *item = (const void *)(check->packet + check->offset);

                r = take(check, "item", 1, sizeof(*item));
                if (r)
                        return r;
                check_flags(check, "item", i, item->flags, 0);
                if (item->n_pieces > CHECKSUM_PIECES_MAX)
                        return invalid(check, "item %u: n_pieces is %u, expected at most %u", i,
                                       item->n_pieces, CHECKSUM_PIECES_MAX);
                r = take(check, "pieces", item->n_pieces, sizeof(uint64_t));
        }
        return r;
}

static int check_leases(struct check *check)
{
        int r = check_batch(check);

        return r ? r : take(check, "leases", check->header->n_items, sizeof(uint64_t));
}

/* Whether the pages exist is known where the layout is. */
static int check_runs(struct check *check, const struct wire_page_run *runs, uint32_t n, uint32_t i)
{
        uint64_t end = 0; /* of the run before */

        for (uint32_t j = 0; j < n; j++) {
                const struct wire_page_run *run = &runs[j];

                if (!run->n_pages || (uint64_t)run->first_page + run->n_pages > UINT32_MAX)
                        return invalid(check, "item %u run %u: %u pages from %u on", i, j,
                                       run->n_pages, run->first_page);
                if (j && run->first_page <= end)
                        return invalid(check,
                                       "item %u run %u: first_page is %u, expected more than %llu",
                                       i, j, run->first_page, (unsigned long long)end);
                end = (uint64_t)run->first_page + run->n_pages;
        }
        return 0;
}

static int check_keys(struct check *check)
{
        uint32_t most = check->header->kind == WIRE_ACQUIRE ? WIRE_RUNS_MAX : 0;
        int r = check_batch(check);

        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                const struct wire_key_item *item = (const void *)(check->packet + check->offset);
                const struct wire_page_run *runs = (const void *)(item + 1);

                r = take(check, "item", 1, sizeof(*item));
                if (r)
                        return r;
                if (item->n_runs > most)
                        return invalid(check, "item %u: n_runs is %u, expected at most %u", i,
                                       item->n_runs, most);
                r = take(check, "runs", item->n_runs, sizeof(*runs));
                if (!r)
                        r = check_runs(check, runs, item->n_runs, i);
        }
        return r;
}

_Static_assert(WIRE_PREFETCH_WAIT == WIRE_ACQUIRE_WAIT, "check_batch() knows one of them");

static int check_prefetch(struct check *check)
{
        const struct wire_prefetch *prefetch = (const void *)check->packet;
        int r = check_string(check, "hint", prefetch->hint, sizeof(prefetch->hint));

        return r ? r : check_keys(check);
}

/* One thing at a time, or the two parts of a reclaim. */
static bool is_one_mark(uint32_t flags)
{
        uint32_t reclaims = WIRE_MARK_RECLAIM_BELOW | WIRE_MARK_RECLAIM_PREFIX;

        return flags == WIRE_MARK_PIN || flags == WIRE_MARK_UNPIN ||
               (flags && !(flags & ~reclaims));
}

static int check_marks(struct check *check)
{
        const struct wire_mark_item *items;
        int r = check_batch(check);

        if (r)
                return r;
        items = (const void *)(check->packet + check->offset);
        r = take(check, "items", check->header->n_items, sizeof(*items));
        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                const uint32_t known = WIRE_MARK_RECLAIM_BELOW | WIRE_MARK_RECLAIM_PREFIX |
                                       WIRE_MARK_PIN | WIRE_MARK_UNPIN;

                check_flags(check, "item", i, items[i].flags, known);
                if (items[i].reserved)
                        r = invalid(check, "item %u: reserved is not 0", i);
                else if (!is_one_mark(items[i].flags & known) && !(items[i].flags & ~known))
                        r = invalid(check, "item %u: flags are 0x%x, expected one mark", i,
                                    items[i].flags);
        }
        return r;
}

static int check_moves(struct check *check)
{
        const struct wire_move_item *items;
        int r = check_batch(check);

        if (r)
                return r;
        items = (const void *)(check->packet + check->offset);
        r = take(check, "items", check->header->n_items, sizeof(*items));
        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                if (items[i].reserved)
                        r = invalid(check, "item %u: reserved is not 0", i);
                else if (!items[i].bytes || items[i].bytes > LAYOUT_OBJECT_MAX ||
                         items[i].address + items[i].bytes < items[i].address)
                        r = invalid(check, "item %u: %llu bytes from 0x%llx on", i,
                                    (unsigned long long)items[i].bytes,
                                    (unsigned long long)items[i].address);
        }
        return r;
}

static int check_find(struct check *check)
{
        int r = check_batch(check);

        return r ? r : take(check, "digests", check->header->n_items, sizeof(struct digest));
}

static int check_found(struct check *check)
{
        const struct wire_found *found = (const void *)check->packet;
        const struct wire_found_bits *bits = (const void *)(check->packet + check->offset);
        uint32_t n_items = found->header.n_items, n_banks = found->n_banks;
        int r;

        if (found->reserved)
                return invalid(check, "reserved is not 0");
        if (!n_banks || n_banks > WIRE_BANKS_MAX)
                return invalid(check, "n_banks is %u, expected 1 to %u", n_banks, WIRE_BANKS_MAX);
        if (n_items > WIRE_ITEMS_MAX || found->first > WIRE_ITEMS_MAX - n_items)
                return invalid(check, "first %u and n_items %u go beyond %u", found->first, n_items,
                               WIRE_ITEMS_MAX);
        r = take(check, "records", n_items * n_banks, sizeof(*bits));
        for (uint32_t i = 0; !r && i < n_items * n_banks; i++)
                if (bits[i].reserved)
                        r = invalid(check, "record %u: reserved is not 0", i);
        return r;
}

static int check_cancel(struct check *check)
{
        const struct wire_cancel *cancel = (const void *)check->packet;

        return cancel->target ? 0 : invalid(check, "target is 0, expected a request");
}

static int check_nothing(struct check *check)
{
        return 0;
}

static int check_granted(struct check *check)
{
        const struct wire_granted *granted = (const void *)check->packet;
        int r = check_status(check, granted->status);

        if (r)
                return r;
        if (granted->n_granted > WIRE_ITEMS_MAX || granted->n_resident > WIRE_ITEMS_MAX ||
            granted->n_fitting > WIRE_ITEMS_MAX)
                return invalid(check,
                               "n_granted %u, n_resident %u, n_fitting %u, expected at most %u",
                               granted->n_granted, granted->n_resident, granted->n_fitting,
                               WIRE_ITEMS_MAX);
        return 0;
}

static bool is_whole_units(const struct wire_extent *extent)
{
        return !(extent->offset % EXTENT_UNIT) && !(extent->length % EXTENT_UNIT);
}

/* Whole units that hold the object, or, when they are pages, exactly its bytes. */
static int check_extents(struct check *check, const struct wire_extent *extents, uint32_t n_extents,
                         uint64_t bytes, uint32_t i)
{
        uint32_t n_whole = 0;
        uint64_t sum = 0;

        for (uint32_t j = 0; j < n_extents; j++) {
                const struct wire_extent *extent = &extents[j];

                if (extent->reserved)
                        return invalid(check, "item %u extent %u: reserved is not 0", i, j);
                if (!extent->length)
                        return invalid(check, "item %u extent %u: length is 0", i, j);
                n_whole += is_whole_units(extent);
                if (extent->offset + extent->length < extent->offset || sum + extent->length < sum)
                        return invalid(check, "item %u extent %u: offset and length overflow", i,
                                       j);
                sum += extent->length;
        }
        if (n_extents && sum < bytes)
                return invalid(check, "item %u: %u extents hold %llu bytes of %llu", i, n_extents,
                               (unsigned long long)sum, (unsigned long long)bytes);
        if (n_whole < n_extents && sum != bytes)
                return invalid(check,
                               "item %u: %u extents hold %llu bytes, expected whole units of %u "
                               "or exactly %llu",
                               i, n_extents, (unsigned long long)sum, EXTENT_UNIT,
                               (unsigned long long)bytes);
        return 0;
}

static int check_result_item(struct check *check, uint32_t i)
{
        const struct wire_result_item *item = (const void *)(check->packet + check->offset);
        const struct wire_extent *extents;
        int r = take(check, "item", 1, sizeof(*item));

        if (!r)
                r = check_status(check, item->status);
        if (r)
                return r;
        if (item->index >= WIRE_ITEMS_MAX)
                return invalid(check, "item %u: index is %u, expected less than %u", i, item->index,
                               WIRE_ITEMS_MAX);
        if (item->bytes > LAYOUT_OBJECT_MAX)
                return invalid(check, "item %u: bytes is %llu, expected at most %llu", i,
                               (unsigned long long)item->bytes,
                               (unsigned long long)LAYOUT_OBJECT_MAX);
        if (item->n_extents > WIRE_EXTENTS_MAX || item->n_pieces > CHECKSUM_PIECES_MAX)
                return invalid(check, "item %u: n_extents %u, n_pieces %u, expected at most %u, %u",
                               i, item->n_extents, item->n_pieces, WIRE_EXTENTS_MAX,
                               CHECKSUM_PIECES_MAX);
        extents = (const void *)(check->packet + check->offset);
        r = take(check, "extents", item->n_extents, sizeof(*extents));
        if (!r)
                r = check_extents(check, extents, item->n_extents, item->bytes, i);
        return r ? r : take(check, "pieces", item->n_pieces, sizeof(uint64_t));
}

static int check_result(struct check *check)
{
        int r = 0;

        for (uint32_t i = 0; !r && i < check->header->n_items; i++)
                r = check_result_item(check, i);
        return r;
}

static int check_text(struct check *check)
{
        return take(check, "bytes of text", check->header->n_items, 1);
}

static int check_recent(struct check *check)
{
        const struct wire_recent *recent = (const void *)check->packet;

        return recent->reserved ? invalid(check, "reserved is not 0") : 0;
}

static int check_matches(struct check *check)
{
        const struct wire_matches *matches = (const void *)check->packet;
        uint32_t n = matches->header.n_items;

        if (matches->reserved)
                return invalid(check, "reserved is not 0");
        if (n > WIRE_MATCH_DIGESTS_MAX || (n && !matches->sequence))
                return invalid(check, "n_items is %u, expected at most %u", n,
                               matches->sequence ? WIRE_MATCH_DIGESTS_MAX : 0);
        if ((uint64_t)matches->first + n > matches->total)
                return invalid(check, "first %u and n_items %u go beyond total %u", matches->first,
                               n, matches->total);
        return take(check, "digests", n, sizeof(struct digest));
}

static int check_tell(struct check *check)
{
        const struct wire_tell *tell = (const void *)check->packet;
        const struct {
                const char *name;
                uint64_t count, limit;
        } counts[] = {
                {"prompts", tell->prompts, WIRE_TELL_MAX},
                {"prompt_tokens", tell->prompt_tokens, WIRE_TELL_MAX},
                {"tail_tokens", tell->tail_tokens, tell->prompt_tokens},
                {"kv_tokens", tell->kv_tokens, tell->prompt_tokens},
                {"hit_tokens", tell->hit_tokens, tell->prompt_tokens},
        };

        if (tell->reserved)
                return invalid(check, "reserved is not 0");
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
                if (counts[i].count > counts[i].limit)
                        return invalid(check, "%s is %llu, expected at most %llu", counts[i].name,
                                       (unsigned long long)counts[i].count,
                                       (unsigned long long)counts[i].limit);
        return 0;
}

static int check_bye(struct check *check)
{
        const struct wire_bye *bye = (const void *)check->packet;
        int r = check_status(check, bye->status);

        if (!r && bye->reserved)
                r = invalid(check, "reserved is not 0");
        return r ? r : check_string(check, "why", bye->why, sizeof(bye->why));
}

/* What a kind's header may hold. */
#define KIND_MORE    (1u << 0) /* can be a part of several */
#define KIND_ITEMS   (1u << 1) /* n_items counts something; else it is 0 */
#define KIND_REQUEST (1u << 2) /* has a request id */

static const struct kind {
        uint32_t fixed_bytes; /* 0: no such kind */
        uint32_t flags;
        int (*check)(struct check *check);
} kinds[] = {
        [WIRE_HELLO] = {sizeof(struct wire_hello), KIND_REQUEST, check_hello},
        [WIRE_WELCOME] = {sizeof(struct wire_welcome), 0, check_welcome},
        [WIRE_ARENA] = {sizeof(struct wire_arena), 0, check_arena},
        [WIRE_ATTACH] = {sizeof(struct wire_attach), KIND_ITEMS | KIND_REQUEST, check_attach},
        [WIRE_ATTACHED] = {sizeof(struct wire_attached), KIND_REQUEST, check_attached},
        [WIRE_RESERVE] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                          check_reserve},
        [WIRE_COMMIT] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                         check_commit},
        [WIRE_ABORT] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                        check_leases},
        [WIRE_ACQUIRE] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                          check_keys},
        [WIRE_ADOPT] = {sizeof(struct wire_adopt), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                        check_keys},
        [WIRE_RELEASE] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                          check_leases},
        [WIRE_CANCEL] = {sizeof(struct wire_cancel), KIND_REQUEST, check_cancel},
        [WIRE_COPIES_ENDED] = {sizeof(struct wire_copies_ended), KIND_REQUEST, check_nothing},
        [WIRE_GRANTED] = {sizeof(struct wire_granted), KIND_MORE | KIND_REQUEST, check_granted},
        [WIRE_RESULT] = {sizeof(struct wire_header), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                         check_result},
        [WIRE_ADMIN] = {sizeof(struct wire_header), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                        check_text},
        [WIRE_ADMIN_REPLY] = {sizeof(struct wire_header), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                              check_text},
        [WIRE_BYE] = {sizeof(struct wire_bye), 0, check_bye},
        [WIRE_LAYOUT] = {sizeof(struct wire_layout), 0, check_layout},
        [WIRE_MARK] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                       check_marks},
        [WIRE_RECENT] = {sizeof(struct wire_recent), KIND_REQUEST, check_recent},
        [WIRE_MATCHES] = {sizeof(struct wire_matches), KIND_ITEMS | KIND_REQUEST, check_matches},
        [WIRE_PREFETCH] = {sizeof(struct wire_prefetch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                           check_prefetch},
        [WIRE_PUT] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                      check_moves},
        [WIRE_FETCH] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                        check_moves},
        [WIRE_FIND] = {sizeof(struct wire_batch), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                       check_find},
        [WIRE_FOUND] = {sizeof(struct wire_found), KIND_MORE | KIND_ITEMS | KIND_REQUEST,
                        check_found},
        [WIRE_FORGET] = {sizeof(struct wire_header), 0, check_nothing},
        [WIRE_TELL] = {sizeof(struct wire_tell), KIND_REQUEST, check_tell},
};

static const struct kind *find_kind(uint16_t number)
{
        if (number >= sizeof(kinds) / sizeof(kinds[0]) || !kinds[number].fixed_bytes)
                return NULL;
        return &kinds[number];
}

/* What holds for every kind, also for those that a later version adds. */
static int check_header(struct check *check, size_t length)
{
        const struct wire_header *header = check->header;

        if (length < sizeof(*header) || length > WIRE_MESSAGE_MAX)
                return invalid(check, "a packet of %zu bytes, expected %zu to %u", length,
                               sizeof(*header), WIRE_MESSAGE_MAX);
        if (header->magic != WIRE_MAGIC)
                return invalid(check, "magic is 0x%08x, expected 0x%08x", header->magic,
                               WIRE_MAGIC);
        if (header->length != length)
                return invalid(check, "length is %u, expected the packet's %zu", header->length,
                               length);
        return 0;
}

static int check_kind(struct check *check, const struct kind *kind)
{
        const struct wire_header *header = check->header;
        int r;

        if (header->length < kind->fixed_bytes)
                return invalid(check, "length is %u, expected at least %u", header->length,
                               kind->fixed_bytes);
        if (header->flags & WIRE_MORE && !(kind->flags & KIND_MORE))
                return invalid(check, "MORE is set, expected a message of its own");
        if (header->n_items && !(kind->flags & KIND_ITEMS))
                return invalid(check, "n_items is %u, expected 0", header->n_items);
        if (!header->request && kind->flags & KIND_REQUEST)
                return invalid(check, "request is 0, expected an id");
        check_flags(check, "header", 0, header->flags, WIRE_MORE);

        check->offset = kind->fixed_bytes;
        r = kind->check(check);
        if (!r && check->offset != header->length)
                r = invalid(check, "length is %u, expected %u", header->length, check->offset);
        return r;
}

int message_check(const void *packet, size_t length, struct why *why)
{
        struct check check = {.packet = packet, .header = packet, .why = why};
        const struct kind *kind;
        int r;

        r = check_header(&check, length);
        if (r)
                return r;
        kind = find_kind(check.header->kind);
        if (!kind) {
                why_set(why, "unknown kind %u", check.header->kind);
                return MESSAGE_E_UNSUPPORTED;
        }
        r = check_kind(&check, kind);
        if (!r && check.unsupported)
                r = MESSAGE_E_UNSUPPORTED;
        if (r)
                why_prefix(why, "%s", message_kind_name(check.header->kind));
        return r;
}
