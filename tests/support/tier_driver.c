// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/tier_driver.h"

#define UNIT 4096u

void driver_init(struct driver *driver, uint64_t arena_bytes)
{
        memset(driver, 0, sizeof(*driver));
        ck_assert_int_eq(uv_loop_init(&driver->loop), 0);
        driver->arena_bytes = arena_bytes;
        driver->arena_id = DRIVER_ARENA_ID;
        driver->arena =
                mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(driver->arena, MAP_FAILED);
}

void driver_deinit(struct driver *driver)
{
        ck_assert_int_eq(uv_loop_close(&driver->loop), 0);
        munmap(driver->arena, driver->arena_bytes);
        free(driver->found);
}

void driver_attach(struct driver *driver, struct tier *tier)
{
        driver->tier = tier;
        ck_assert_int_eq(
                tier->ops.add_memory(tier, DRIVER_ARENA_ID, driver->arena, driver->arena_bytes), 0);
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

void driver_close(struct driver *driver)
{
        bool closed = false;

        driver->tier->ops.remove_memory(driver->tier, DRIVER_ARENA_ID);
        driver->tier->ops.close(driver->tier, on_closed, &closed);
        uv_run(&driver->loop, UV_RUN_DEFAULT);
        ck_assert(closed);
        driver->tier = NULL;
}

struct driver_object driver_object(uint32_t n, uint64_t raw_bytes)
{
        struct driver_object object = {
                .object =
                        {
                                .generation = 1,
                                .raw_bytes = raw_bytes,
                                .boundary_tokens = 64 * (n + 1),
                                .committed_ns = 1000 + n,
                        },
                .seed = 1000003ull * n + raw_bytes,
        };

        memset(object.object.key.layout.bytes, 0x11, DIGEST_BYTES);
        memcpy(object.object.key.boundary.bytes, &n, sizeof(n));
        object.object.key.group = 1;
        memset(object.object.parent.bytes, 0x44, DIGEST_BYTES);
        memset(object.object.writer_boot_id, 0x55, sizeof(object.object.writer_boot_id));
        return object;
}

/* Of a seed: two bytes in four are noise, and each line of eight words comes twice. */
#define CAN_SHRINK (1ull << 63)

/* The word at index @i of the bytes that belong to @seed. */
static uint64_t word_at(uint64_t seed, uint64_t i)
{
        uint64_t x = seed + (seed & CAN_SHRINK ? i & ~8ull : i) * 0x9e3779b97f4a7c15ull;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
        x ^= x >> 27;
        return seed & CAN_SHRINK ? x & 0x00ff07ff00ff07ffull : x;
}

static void fill(uint8_t *bytes, uint64_t length, uint64_t seed)
{
        for (uint64_t at = 0; at < length; at += 8) {
                uint64_t word = word_at(seed, at / 8);

                memcpy(bytes + at, &word, length - at < 8 ? length - at : 8);
        }
}

/* Cuts memory for @left bytes into segments: three of them when it is long enough. */
static void prepare(struct driver *driver, struct driver_request *request,
                    struct driver_object *object, uint64_t at, uint64_t left)
{
        uint8_t *bytes = driver->arena + at;

        memset(request, 0, sizeof(*request));
        request->driver = driver;
        request->object = object;
        request->at = at;
        ck_assert_uint_le(at + (left + UNIT - 1) / UNIT * UNIT, driver->arena_bytes);
        while (left) {
                uint64_t part = left;

                if (request->n_segments < 2 && left > 3 * UNIT)
                        part = left / 3 / UNIT * UNIT;
                request->segments[request->n_segments++] = (struct tier_segment){
                        .bytes = bytes,
                        .length = part,
                        .arena_id = driver->arena_id,
                };
                bytes += part;
                left -= part;
        }
}

static void on_written(struct tier_write *write, int result, struct tier_place place)
{
        struct driver_request *request =
                (void *)((char *)write - offsetof(struct driver_request, write));

        ck_assert(!request->is_done);
        request->is_done = true;
        request->result = result;
        if (!result) {
                ck_assert_uint_ne(place.claim, 0);
                request->object->place = place;
        }
}

int driver_submit_write(struct driver *driver, struct driver_request *request,
                        struct driver_object *object, uint64_t at)
{
        struct checksum_segment whole = {driver->arena + at, object->object.raw_bytes};
        int r;

        prepare(driver, request, object, at, object->object.raw_bytes);
        if (driver->encoding.kind)
                object->seed |= CAN_SHRINK;
        fill(driver->arena + at, object->object.raw_bytes, object->seed);
        checksum_compute(&request->checksums, &object->object.key, object->object.raw_bytes, &whole,
                         1);
        request->write = (struct tier_write){
                .object = &object->object,
                .checksums = &request->checksums,
                .segments = request->segments,
                .n_segments = request->n_segments,
                .encoding = driver->encoding,
                .on_done = on_written,
        };
        r = driver->tier->ops.write(driver->tier, &request->write);
        ck_assert_msg(!request->is_done, "a callback came from inside the call");
        return r;
}

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct driver_request *request =
                (void *)((char *)read - offsetof(struct driver_request, read));

        ck_assert(!request->is_done);
        request->is_done = true;
        request->result = result;
        if (!result) {
                ck_assert_ptr_nonnull(checksums);
                ck_assert_uint_eq(read->committed_ns, request->object->object.committed_ns);
                ck_assert_mem_eq(read->writer_boot_id, request->object->object.writer_boot_id,
                                 sizeof(read->writer_boot_id));
                request->checksums = *checksums;
        }
}

static void prepare_read(struct driver *driver, struct driver_request *request,
                         struct driver_object *object, uint64_t at, uint64_t bytes)
{
        prepare(driver, request, object, at, bytes);
        memset(driver->arena + at, 0xee, bytes);
        request->read = (struct tier_read){
                .place = object->place,
                .key = &object->object.key,
                .generation = object->object.generation,
                .raw_bytes = object->object.raw_bytes,
                .segments = request->segments,
                .n_segments = request->n_segments,
                .on_done = on_read,
        };
}

int driver_submit_read(struct driver *driver, struct driver_request *request,
                       struct driver_object *object, uint64_t at)
{
        int r;

        prepare_read(driver, request, object, at, object->object.raw_bytes);
        r = driver->tier->ops.read(driver->tier, &request->read);
        ck_assert_msg(!request->is_done, "a callback came from inside the call");
        return r;
}

int driver_submit_read_pieces(struct driver *driver, struct driver_request *request,
                              struct driver_object *object, const struct piece_set *pieces,
                              uint64_t at)
{
        int r;

        prepare_read(driver, request, object, at,
                     piece_set_bytes(pieces, object->object.raw_bytes));
        request->read.pieces = *pieces;
        r = driver->tier->ops.read_pieces(driver->tier, &request->read);
        ck_assert_msg(!request->is_done, "a callback came from inside the call");
        return r;
}

static void on_freed(struct tier_forget *forget, int result)
{
        struct driver_request *request =
                (void *)((char *)forget - offsetof(struct driver_request, forget));

        ck_assert(!request->is_done);
        request->is_done = true;
        request->result = result;
}

void driver_submit_forget(struct driver *driver, struct driver_request *request,
                          struct driver_object *object, bool sync)
{
        memset(request, 0, sizeof(*request));
        request->driver = driver;
        request->object = object;
        request->forget.on_freed = on_freed;
        driver->tier->ops.forget(driver->tier, object->place, &object->object.key, sync,
                                 &request->forget);
        ck_assert_msg(!request->is_done, "a callback came from inside the call");
}

int driver_wait(struct driver_request *request)
{
        while (!request->is_done)
                uv_run(&request->driver->loop, UV_RUN_ONCE);
        return request->result;
}

/* Are these the object's bytes from @first, a multiple of 8, on? */
static bool are_bytes_of(const struct driver_object *object, const uint8_t *bytes, uint64_t first,
                         uint64_t length)
{
        for (uint64_t at = 0; at < length; at += 8) {
                uint64_t word = word_at(object->seed, (first + at) / 8);

                if (memcmp(bytes + at, &word, length - at < 8 ? length - at : 8))
                        return false;
        }
        return true;
}

bool driver_holds(const struct driver_request *request)
{
        const struct driver_object *object = request->object;
        const uint8_t *bytes = request->driver->arena + request->at;
        const struct piece_set *pieces = &request->read.pieces;
        uint64_t raw_bytes = object->object.raw_bytes;
        struct piece_run run = {0, 0};

        if (!piece_set_next(pieces, raw_bytes, 0, &run))
                return are_bytes_of(object, bytes, 0, raw_bytes);
        do {
                if (!are_bytes_of(object, bytes, run.first, run.end - run.first))
                        return false;
                bytes += run.end - run.first;
        } while (piece_set_next(pieces, raw_bytes, run.end, &run));
        return true;
}

int driver_write(struct driver *driver, struct driver_object *object)
{
        struct driver_request request;
        int r = driver_submit_write(driver, &request, object, 0);

        return r ? r : driver_wait(&request);
}

int driver_read(struct driver *driver, struct driver_object *object)
{
        struct driver_request request;
        int r = driver_submit_read(driver, &request, object, 0);

        if (!r)
                r = driver_wait(&request);
        if (!r)
                ck_assert_msg(driver_holds(&request), "a read succeeded with wrong bytes");
        return r;
}

int driver_read_pieces(struct driver *driver, struct driver_object *object,
                       const struct piece_set *pieces)
{
        struct driver_request request;
        int r = driver_submit_read_pieces(driver, &request, object, pieces, 0);

        if (!r)
                r = driver_wait(&request);
        if (!r)
                ck_assert_msg(driver_holds(&request), "a read succeeded with wrong bytes");
        return r;
}

int driver_forget(struct driver *driver, struct driver_object *object, bool sync)
{
        struct driver_request request;

        driver_submit_forget(driver, &request, object, sync);
        return driver_wait(&request);
}

struct synced {
        bool is_done;
        int result;
};

static void on_synced(void *user, int result)
{
        *(struct synced *)user = (struct synced){true, result};
}

int driver_sync(struct driver *driver)
{
        struct synced synced = {false, 0};

        driver->tier->ops.sync(driver->tier, on_synced, &synced);
        while (!synced.is_done)
                uv_run(&driver->loop, UV_RUN_ONCE);
        return synced.result;
}

uint64_t driver_covers_sum(const struct tier_object *object)
{
        const uint8_t *bytes = (const uint8_t *)object->covers;
        uint64_t sum = object->n_covers;

        for (size_t i = 0; i < object->n_covers * sizeof(struct digest); i++)
                sum = sum * 1099511628211ull + bytes[i];
        return sum;
}

static void on_object(void *user, const struct tier_object *object, struct tier_place place)
{
        struct driver *driver = user;

        driver->found = realloc(driver->found, (driver->n_found + 1) * sizeof(*driver->found));
        ck_assert_ptr_nonnull(driver->found);
        driver->found[driver->n_found] = (struct driver_object){
                .object = *object,
                .place = place,
                .covers_sum = driver_covers_sum(object),
        };
        driver->found[driver->n_found++].object.covers = NULL;
}

static void on_recovered(void *user, int result)
{
        struct driver *driver = user;

        ck_assert_int_eq(result, 0);
        driver->is_recovered = true;
}

uint32_t driver_recover(struct driver *driver)
{
        driver->n_found = 0;
        driver->is_recovered = false;
        driver->tier->ops.recover(driver->tier, on_object, on_recovered, driver);
        while (!driver->is_recovered)
                uv_run(&driver->loop, UV_RUN_ONCE);
        return driver->n_found;
}

struct driver_object *driver_find(struct driver *driver, const struct driver_object *object)
{
        for (uint32_t i = 0; i < driver->n_found; i++)
                if (object_key_equal(&driver->found[i].object.key, &object->object.key) &&
                    driver->found[i].object.generation == object->object.generation)
                        return &driver->found[i];
        return NULL;
}

struct tier_usage driver_usage(struct driver *driver)
{
        struct tier_usage usage;

        driver->tier->ops.usage(driver->tier, &usage);
        return usage;
}
