// SPDX-License-Identifier: Apache-2.0
/*
 * The way out: objects that wait together become one bundle when they are of one prompt.
 *
 *     open (waits for more) -> ready -> [encoded on a worker] -> condemned in the index ->
 *     put -> entered in the index, in the same change no longer condemned -> on_done
 *
 * A bundle is on the list of the condemned before its put, so that whatever a crash or a
 * time-out leaves in the pool is removed later; until then it counts. No number is taken
 * before our own journal is read: it may tell of bundles that a power loss took from the
 * index.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "storage/down_work.h"
#include "storage/encoding.h"
#include "storage/remote_tier.h"

#define TRIES_MAX        8u
#define NO_SPACE_RETRIES 5u   /* as long as that many others nothing is stored */
#define NUMBER_SKIP      256u /* after a number that was taken */

/* An object on its way. */
struct item {
        TAILQ_ENTRY(item) link;
        struct tier_write *write;
        uint8_t *encoded; /* NULL: raw */
        uint8_t *table;
        uint64_t footprint;
        struct tier_place place; /* once it is entered */
        int result;
};

TAILQ_HEAD(item_queue, item);

struct remote_put {
        TAILQ_ENTRY(remote_put) link;
        struct remote *remote;
        struct item_queue items;
        uint32_t n_items;
        uint64_t bytes; /* at most, header included */
        uint64_t header_bytes;
        uint32_t n_buffers;
        uint64_t footprints;
        uint64_t born; /* ms */
        bool is_encoded;
        uint64_t encoded_bytes; /* memory of what was encoded, or is to be */
        struct tier_encoding_usage encoding;
        struct down_work work;

        struct bundle_part *parts;
        uint64_t total_bytes;
        struct bundle_id id;
        uint32_t n_tries;
        char name[POOL_NAME_MAX];
        uint8_t *header;
        struct pool_buffer *buffers;
        struct pool_put put;
        struct remote_op op;
};

/* ---- sizes ---- */

static uint64_t record_bytes(uint64_t raw_bytes, uint32_t n_covers, bool is_encoded)
{
        struct bundle_part part = {
                .object = {.raw_bytes = raw_bytes, .n_covers = n_covers},
                .checksums = {.raw_bytes = raw_bytes,
                              .piece_bytes = checksum_piece_bytes(raw_bytes),
                              .n_pieces = checksum_n_pieces(raw_bytes)},
                .encoding_bytes = is_encoded ? checksum_n_pieces(raw_bytes) * 12u : 0,
        };

        return bundle_part_bytes(&part);
}

uint64_t remote_footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers)
{
        (void)tier;
        return BUNDLE_HEAD_BYTES + record_bytes(raw_bytes, n_covers, false) + raw_bytes;
}

static uint64_t footprint_of(const struct tier_write *write)
{
        /* Encoding pays for its table, or is not kept. */
        return remote_footprint(NULL, write->object->raw_bytes, write->object->n_covers);
}

static uint64_t header_share(const struct tier_write *write)
{
        return record_bytes(write->object->raw_bytes, write->object->n_covers,
                            write->encoding.kind != ENCODING_RAW);
}

/* ---- bundles that are open ---- */

/* Do they stand in one chain: the same boundary, or one the parent of the other? */
static bool are_neighbours(const struct tier_object *a, const struct tier_object *b)
{
        if (a->key.domain != b->key.domain || !digest_equal(&a->key.layout, &b->key.layout))
                return false;
        return digest_equal(&a->key.boundary, &b->key.boundary) ||
               (!a->parent_unknown && digest_equal(&a->parent, &b->key.boundary)) ||
               (!b->parent_unknown && digest_equal(&b->parent, &a->key.boundary));
}

static bool belongs(const struct remote_put *put, const struct tier_object *object)
{
        const struct item *item;

        TAILQ_FOREACH_REVERSE(item, &put->items, item_queue, link)
        {
                if (are_neighbours(item->write->object, object))
                        return true;
        }
        return false;
}

static bool has_room(const struct remote_put *put, const struct tier_write *write)
{
        uint64_t bytes = put->bytes + header_share(write) + write->object->raw_bytes;

        return put->n_items < BUNDLE_PARTS_MAX && bytes <= put->remote->options.bundle_bytes &&
               put->header_bytes + header_share(write) <= BUNDLE_HEADER_MAX &&
               put->n_buffers + write->n_segments <= POOL_BUFFERS_MAX;
}

static void seal(struct remote_put *put)
{
        struct remote *remote = put->remote;

        TAILQ_REMOVE(&remote->open_puts, put, link);
        remote->n_open_puts--;
        TAILQ_INSERT_TAIL(&remote->ready_puts, put, link);
        remote_wake(remote);
}

static void on_linger(uv_timer_t *timer)
{
        struct remote *remote = timer->data;
        uint64_t now = uv_now(remote->loop);
        struct remote_put *put;

        while ((put = TAILQ_FIRST(&remote->open_puts)) &&
               put->born + remote->options.linger_ms <= now)
                seal(put);
        if (put)
                uv_timer_start(timer, on_linger, put->born + remote->options.linger_ms - now, 0);
        remote_start_puts(remote);
}

static struct remote_put *new_put(struct remote *remote)
{
        struct remote_put *put = calloc(1, sizeof(*put));

        if (!put)
                return NULL;
        put->remote = remote;
        put->born = uv_now(remote->loop);
        put->bytes = put->header_bytes = BUNDLE_HEAD_BYTES;
        put->n_buffers = 1;
        TAILQ_INIT(&put->items);
        if (TAILQ_EMPTY(&remote->open_puts))
                uv_timer_start(&remote->linger, on_linger, remote->options.linger_ms, 0);
        TAILQ_INSERT_TAIL(&remote->open_puts, put, link);
        remote->n_open_puts++;
        return put;
}

/* The open bundle that the object belongs to, or a new one. */
static struct remote_put *choose_put(struct remote *remote, const struct tier_write *write)
{
        struct remote_put *put;

        TAILQ_FOREACH(put, &remote->open_puts, link) {
                if (!belongs(put, write->object))
                        continue;
                if (has_room(put, write))
                        return put;
                seal(put);
                break;
        }
        if (remote->n_open_puts >= REMOTE_OPEN_MAX)
                seal(TAILQ_FIRST(&remote->open_puts));
        return new_put(remote);
}

static int refuse_full(struct remote *remote)
{
        remote->is_full = true;
        return TIER_E_FULL;
}

static int refuse_paused(struct remote *remote)
{
        remote->is_paused = true;
        return TIER_E_PAUSED;
}

static int check_write(struct remote *remote, const struct tier_write *write)
{
        uint64_t footprint = footprint_of(write);
        uint64_t bytes_max = (uint64_t)remote->options.queue_depth * remote->options.bundle_bytes;

        if (remote->is_broken)
                return err_raise(-EIO);
        if (footprint + header_share(write) > BUNDLE_BYTES_MAX)
                return err_raise(-EFBIG);
        if (remote->is_open || remote->is_rebuilding || remote->is_own_late ||
            remote->no_space_until > uv_now(remote->loop) ||
            remote->n_writes >= REMOTE_WRITES_MAX ||
            (remote->n_writes && remote->write_bytes + write->object->raw_bytes > bytes_max) ||
            database_queued(remote->index) >= REMOTE_CHANGES_MAX)
                return refuse_paused(remote);
        if (remote->used_bytes + remote->reserved_bytes + footprint > remote->options.bytes ||
            remote->map.n_entries + remote->n_writes >= remote->map.max)
                return refuse_full(remote);
        return 0;
}

int remote_write(struct tier *tier, struct tier_write *write)
{
        struct remote *remote = (struct remote *)tier;
        int r = check_write(remote, write);
        struct remote_put *put;
        struct item *item;

        if (r)
                return r;
        item = calloc(1, sizeof(*item));
        put = item ? choose_put(remote, write) : NULL;
        if (!put) {
                free(item);
                return err_raise(-ENOMEM);
        }
        item->write = write;
        item->footprint = footprint_of(write);
        TAILQ_INSERT_TAIL(&put->items, item, link);
        put->n_items++;
        put->bytes += header_share(write) + write->object->raw_bytes;
        put->header_bytes += header_share(write);
        put->n_buffers += write->n_segments;
        put->footprints += item->footprint;
        put->is_encoded |= write->encoding.kind != ENCODING_RAW;
        remote->n_writes++;
        remote->write_bytes += write->object->raw_bytes;
        remote->reserved_bytes += item->footprint;
        if (put->bytes >= remote->options.bundle_bytes)
                seal(put);
        remote_wake(remote);
        return 0;
}

/* ---- ends ---- */

static void free_put(struct remote_put *put)
{
        struct item *item;

        while ((item = TAILQ_FIRST(&put->items))) {
                TAILQ_REMOVE(&put->items, item, link);
                free(item->encoded);
                free(item->table);
                free(item);
        }
        free(put->parts);
        free(put->header);
        free(put->buffers);
        free(put);
}

/* Every object with its own result; @result when that is not 0. */
static void end_put(struct remote_put *put, int result)
{
        struct remote *remote = put->remote;
        struct item *item;

        remote->reserved_bytes -= put->footprints;
        put->footprints = 0;
        TAILQ_FOREACH(item, &put->items, link) {
                remote->n_writes--;
                remote->write_bytes -= item->write->object->raw_bytes;
        }
        TAILQ_FOREACH(item, &put->items, link) {
                int r = result ? result : item->result;

                item->write->on_done(item->write, r, r ? (struct tier_place){0, 0} : item->place);
        }
        free_put(put);
        remote_ready(remote);
}

/* As end_put(), of one that had begun. */
static void finish_put(struct remote_put *put, int result)
{
        struct remote *remote = put->remote;

        remote->n_puts--;
        remote->encoded_bytes -= put->encoded_bytes;
        end_put(put, result);
        remote_start_puts(remote);
        remote_idle(remote);
}

void remote_fail_puts(struct remote *remote, int result)
{
        struct remote_put *put;

        while (!TAILQ_EMPTY(&remote->open_puts))
                seal(TAILQ_FIRST(&remote->open_puts));
        while ((put = TAILQ_FIRST(&remote->ready_puts))) {
                TAILQ_REMOVE(&remote->ready_puts, put, link);
                end_put(put, result);
        }
}

/* ---- the index ---- */

static void on_entered(struct remote *remote, void *user, int result)
{
        struct database_changes changes = {NULL};
        struct remote_put *put = user;
        struct item *item;

        TAILQ_FOREACH(item, &put->items, link) {
                struct remote_entry *entry = remote_map_at(&remote->map, item->place);

                /* What was replaced meanwhile, elsewhere, has vanished again. */
                if (!item->result && !entry)
                        item->result = TIER_E_CANCELLED;
                if (entry)
                        entry->flags &= (uint8_t)~REMOTE_ENTRY_ENTERING;
                if (entry && result)
                        remote_drop_entry(remote, entry, &changes);
        }
        database_changes_deinit(&changes);
        finish_put(put, result);
}

/* Has another node the object, or is it not wanted any more? */
static bool is_wanted(struct remote *remote, struct item *item)
{
        struct remote_entry *entry = remote_map_find(&remote->map, &item->write->object->key);

        for (; entry; entry = remote_map_find_next(&remote->map, entry))
                if (!entry->bundle->node->is_own)
                        return false;
        return !item->write->is_current || item->write->is_current(item->write);
}

static int enter(struct remote_put *put, struct item *item, uint32_t part,
                 struct remote_bundle *bundle, struct database_changes *changes,
                 struct remote_group *group)
{
        struct remote *remote = put->remote;
        struct bundle_part *parts = &put->parts[part];
        uint8_t key[REMOTE_INDEX_ENTRY_KEY_BYTES];
        struct journal_record record = {
                .kind = JOURNAL_STORED,
                .bundle = put->id,
                .part = part,
                .stored = *parts,
        };
        struct remote_entry *entry;
        void *value = malloc(remote_index_entry_bytes(parts));

        if (!value)
                return err_raise(-ENOMEM);
        entry = remote_map_add(&remote->map, &parts->object.key, bundle, part);
        if (!entry) {
                free(value);
                return TIER_E_FULL;
        }
        entry->raw_bytes = parts->object.raw_bytes;
        entry->stored_bytes = (uint32_t)parts->stored_bytes;
        entry->checksum_total = parts->checksums.total;
        entry->flags = REMOTE_ENTRY_ENTERING;
        bundle->live_bytes += entry->stored_bytes;
        remote->n_objects++;
        remote->payload_bytes += entry->stored_bytes;
        item->place = remote_map_place(&remote->map, entry);
        remote_index_entry_key(key, &entry->key, entry->claim);
        remote_index_entry_encode(value, &put->id, part, false, parts);
        database_changes_put(changes, key, sizeof(key), value, remote_index_entry_bytes(parts));
        free(value);
        remote_group_add(remote, group, &record);
        return 0;
}

/* The bundle is in the pool. */
static void enter_all(struct remote_put *put)
{
        struct remote *remote = put->remote;
        struct remote_bundle *bundle =
                remote_map_bundle(&remote->map, remote->own, put->id.number, true);
        struct remote_index_bundle value = {.bytes = put->total_bytes};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        struct database_changes changes = {NULL};
        struct remote_group group;
        struct item *item;
        uint32_t part = 0;

        if (!bundle) {
                finish_put(put, err_raise(-ENOMEM)); /* the next start removes it */
                return;
        }
        bundle->bytes = put->total_bytes;
        remote_group_init(&group, &changes);
        TAILQ_FOREACH(item, &put->items, link) {
                item->result = is_wanted(remote, item)
                                       ? enter(put, item, part, bundle, &changes, &group)
                                       : TIER_E_CANCELLED;
                if (item->result)
                        bundle->dead_bytes += put->parts[part].stored_bytes;
                part++;
        }
        if (!bundle->n_entries) {
                database_changes_deinit(&changes);
                remote_condemn(remote, put->id.number, put->total_bytes, 0);
                finish_put(put, 0);
                return;
        }
        remote->n_bundles++;
        remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, put->id.number);
        database_changes_delete(&changes, key, sizeof(key));
        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, put->id.number);
        database_changes_put(&changes, key, sizeof(key), &value, sizeof(value));
        remote_group_commit(remote, &group, false);
        put->op.then = on_entered;
        put->op.user = put;
        remote_change(remote, &changes, false, &put->op);
}

/* ---- the pool ---- */

static void begin_put(struct remote_put *put);

static void hold_writes(struct remote *remote)
{
        uint64_t now = uv_now(remote->loop);

        if (remote->no_space_until <= now)
                remote_notice(remote, "the pool is full: nothing is stored there for a while");
        remote->no_space_until = now + NO_SPACE_RETRIES * remote->options.retry_ms;
}

/* What became of it is unknown, and it may still arrive; or its number was taken. */
static void give_up_number(struct remote_put *put)
{
        struct remote *remote = put->remote;
        const struct remote_bundle *known =
                remote_map_bundle(&remote->map, remote->own, put->id.number, false);
        struct database_changes changes = {NULL};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        if (!known) {
                remote_condemn(remote, put->id.number, put->total_bytes,
                               2 * remote->options.deadline_ms);
                return;
        }
        /* What we know under it stays as it is: ours never came to be. */
        remote->used_bytes -= put->total_bytes;
        remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, known->number);
        if (known->state == REMOTE_BUNDLE_LIVE) {
                database_changes_delete(&changes, key, sizeof(key));
        } else {
                struct remote_index_bundle value = {.bytes = known->bytes};

                database_changes_put(&changes, key, sizeof(key), &value, sizeof(value));
        }
        remote_change(remote, &changes, false, NULL);
}

static void on_put(struct pool_put *pool_put, int result)
{
        struct remote_put *put = pool_put->user;
        struct remote *remote = put->remote;

        remote_note(remote, result);
        if (result == -ENOSPC)
                hold_writes(remote);
        if (result) {
                give_up_number(put);
                if (result == -EEXIST && ++put->n_tries < TRIES_MAX) {
                        remote->next_bundle += NUMBER_SKIP;
                        begin_put(put);
                        return;
                }
                finish_put(put, result);
                return;
        }
        remote->written_bytes += put->total_bytes;
        enter_all(put);
}

static void on_condemned(struct remote *remote, void *user, int result)
{
        struct remote_put *put = user;
        int r = !result && remote->is_open ? err_raise(-EHOSTDOWN) : result;

        put->put = (struct pool_put){
                .name = put->name,
                .buffers = put->buffers,
                .n_buffers = put->n_buffers,
                .flags = POOL_EXCLUSIVE,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_put,
                .user = put,
        };
        if (!r)
                r = remote->pool->ops.put(remote->pool, &put->put);
        if (r) {
                remote_condemn(remote, put->id.number, put->total_bytes, 0);
                finish_put(put, r);
        }
}

/* Takes a number and says in the index that the bundle may be there. */
static void begin_put(struct remote_put *put)
{
        struct remote *remote = put->remote;
        struct remote_index_bundle value = {.bytes = put->total_bytes};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        struct database_changes changes = {NULL};

        memcpy(put->id.node, remote->own->id, sizeof(put->id.node));
        put->id.number = remote->next_bundle++;
        bundle_name(put->name, &put->id);
        bundle_header_encode(put->header, &put->id, put->parts, put->n_items);
        remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, put->id.number);
        database_changes_put(&changes, key, sizeof(key), &value, sizeof(value));
        remote_put_meta(remote, &changes);
        remote->reserved_bytes -= put->footprints;
        put->footprints = 0;
        remote->used_bytes += put->total_bytes;
        put->op.then = on_condemned;
        put->op.user = put;
        remote_change(remote, &changes, false, &put->op);
}

/* The object's own bytes, without what rounds up the last segment. */
static uint32_t add_segments(struct pool_buffer *buffers, const struct tier_write *write)
{
        uint64_t left = write->object->raw_bytes;
        uint32_t n = 0;

        for (uint32_t i = 0; i < write->n_segments && left; i++) {
                uint64_t length = write->segments[i].length;

                if (length > left)
                        length = left;
                buffers[n++] = (struct pool_buffer){write->segments[i].bytes, length};
                left -= length;
        }
        return n;
}

static void fill_part(struct bundle_part *part, const struct item *item)
{
        const struct checksum_list *checksums = item->write->checksums;

        part->object = *item->write->object;
        memcpy(&part->checksums, checksums,
               offsetof(struct checksum_list, pieces) + checksums->n_pieces * sizeof(uint64_t));
        if (!item->encoded)
                part->stored_bytes = part->object.raw_bytes;
}

static int prepare(struct remote_put *put)
{
        struct item *item;
        uint32_t part = 0;

        put->buffers = calloc(put->n_buffers, sizeof(*put->buffers));
        if (!put->buffers)
                return err_raise(-ENOMEM);
        put->n_buffers = 1;
        TAILQ_FOREACH(item, &put->items, link) {
                fill_part(&put->parts[part], item);
                if (item->encoded)
                        put->buffers[put->n_buffers++] =
                                (struct pool_buffer){item->encoded, put->parts[part].stored_bytes};
                else
                        put->n_buffers += add_segments(&put->buffers[put->n_buffers], item->write);
                part++;
        }
        put->total_bytes = bundle_place(put->parts, put->n_items);
        put->header_bytes = bundle_header_bytes(put->parts, put->n_items);
        put->header = malloc(put->header_bytes);
        if (!put->header)
                return err_raise(-ENOMEM);
        put->buffers[0] = (struct pool_buffer){put->header, put->header_bytes};
        return 0;
}

static void go_on(struct remote_put *put)
{
        int r = put->remote->is_open ? err_raise(-EHOSTDOWN) : prepare(put);

        if (r) {
                finish_put(put, r);
                return;
        }
        remote_pace_take(&put->remote->write_pace, put->total_bytes);
        begin_put(put);
}

/* ---- encoding, on a worker ---- */

static int encode_into(struct encoding_scratch *scratch, struct item *item,
                       struct encoding_table *table, struct bundle_part *part)
{
        const struct tier_write *write = item->write;
        struct iovec segments[TIER_SEGMENTS_MAX];
        uint8_t *shrunk;
        int r;

        for (uint32_t i = 0; i < write->n_segments; i++)
                segments[i] = (struct iovec){write->segments[i].bytes, write->segments[i].length};
        r = encoding_encode(scratch, write->encoding, segments, write->n_segments,
                            write->object->raw_bytes, item->encoded, table);
        if (r)
                return r;
        part->encoding = encoding_number(write->encoding);
        part->stored_bytes = table->stored_bytes;
        part->encoding_bytes = (uint32_t)encoding_table_bytes(table);
        part->encoding_table = item->table;
        encoding_table_put(table, item->table);
        shrunk = realloc(item->encoded, table->stored_bytes);
        if (shrunk)
                item->encoded = shrunk;
        return 0;
}

/* 0, ENCODING_E_RAW or -ENOMEM: it is stored raw then. */
static int encode_item(struct encoding_scratch *scratch, struct item *item,
                       struct bundle_part *part)
{
        struct encoding_table *table = malloc(sizeof(*table));
        int r = err_raise(-ENOMEM);

        item->encoded = malloc(item->write->object->raw_bytes);
        item->table = malloc(ENCODING_TABLE_BYTES_MAX);
        if (scratch && table && item->encoded && item->table)
                r = encode_into(scratch, item, table, part);
        if (r) {
                free(item->encoded);
                item->encoded = NULL;
        }
        free(table);
        return r;
}

static struct remote_put *put_of(struct down_work *work)
{
        return (struct remote_put *)((char *)work - offsetof(struct remote_put, work));
}

/* What finds no memory tells nothing of how well it would have shrunk. */
static void encode(struct down_work *work)
{
        struct remote_put *put = put_of(work);
        struct encoding_scratch *scratch = encoding_scratch_new();
        uint64_t begun = uv_hrtime();
        struct item *item;
        uint32_t part = 0;

        TAILQ_FOREACH(item, &put->items, link) {
                uint64_t raw_bytes = item->write->object->raw_bytes;

                if (item->write->encoding.kind != ENCODING_RAW &&
                    encode_item(scratch, item, &put->parts[part]) >= 0) {
                        put->encoding.raw_bytes_total += raw_bytes;
                        put->encoding.stored_bytes_total +=
                                item->encoded ? put->parts[part].stored_bytes : raw_bytes;
                }
                part++;
        }
        encoding_scratch_free(scratch);
        put->encoding.seconds_total = (double)(uv_hrtime() - begun) / 1e9;
}

/* Memory for the stored forms: what was taken, or will be. */
static uint64_t encoded_bytes_of(const struct remote_put *put, bool is_encoded)
{
        const struct item *item;
        uint64_t bytes = 0;
        uint32_t part = 0;

        TAILQ_FOREACH(item, &put->items, link) {
                if (is_encoded && item->encoded)
                        bytes += put->parts[part].stored_bytes;
                else if (!is_encoded && item->write->encoding.kind != ENCODING_RAW)
                        bytes += item->write->object->raw_bytes;
                part++;
        }
        return bytes;
}

static void hold_memory(struct remote_put *put, uint64_t bytes)
{
        struct remote *remote = put->remote;

        remote->encoded_bytes += bytes - put->encoded_bytes;
        put->encoded_bytes = bytes;
        if (remote->counts.encoded_bytes_most < remote->encoded_bytes)
                remote->counts.encoded_bytes_most = remote->encoded_bytes;
}

static void on_encoded(struct down_work *work, int status)
{
        struct remote_put *put = put_of(work);
        struct remote *remote = put->remote;
        struct tier_encoding_usage *encoded = &remote->encoded;

        (void)status; /* nobody cancels it */
        encoded->raw_bytes_total += put->encoding.raw_bytes_total;
        encoded->stored_bytes_total += put->encoding.stored_bytes_total;
        encoded->seconds_total += put->encoding.seconds_total;
        hold_memory(put, encoded_bytes_of(put, true));
        remote->n_encoding--;
        remote_busy(remote);
        go_on(put);
        remote_start_puts(remote); /* the next may be encoded */
        remote_idle(remote);
}

static bool waits_for_encoder(const struct remote_put *put)
{
        const struct remote *remote = put->remote;

        if (!put->is_encoded)
                return false;
        return remote->n_encoding >= REMOTE_ENCODERS_MAX ||
               (remote->encoded_bytes && remote->encoded_bytes + encoded_bytes_of(put, false) >
                                                 remote->options.encoded_bytes);
}

static void begin_encoding(struct remote_put *put)
{
        uint64_t bytes = put->is_encoded ? encoded_bytes_of(put, false) : 0;

        if (!bytes || down_work_queue(put->remote->loop, &put->work, encode, on_encoded)) {
                go_on(put);
        } else {
                put->remote->n_encoding++;
                hold_memory(put, bytes);
        }
}

void remote_start_puts(struct remote *remote)
{
        struct remote_put *put;

        remote->write_pace.held_up = false;
        while ((put = TAILQ_FIRST(&remote->ready_puts)) && remote->is_own_read &&
               !remote->is_open && !waits_for_encoder(put) &&
               remote->n_puts < (uint32_t)remote->window &&
               remote_pace_allows(&remote->write_pace)) {
                TAILQ_REMOVE(&remote->ready_puts, put, link);
                remote->n_puts++;
                remote_busy(remote);
                put->parts = calloc(put->n_items, sizeof(*put->parts));
                if (!put->parts)
                        finish_put(put, err_raise(-ENOMEM));
                else
                        begin_encoding(put);
        }
        if (put)
                remote_retry_soon(remote);
}
