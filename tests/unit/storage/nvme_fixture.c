// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/catalog.h"
#include "storage/space.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/nvme_fixture.h"

static void on_notice(void *user, const char *text)
{
        struct nvme_fixture *fixture = user;

        ck_assert_uint_lt(fixture->n_notices, 8);
        snprintf(fixture->notices[fixture->n_notices++], sizeof(fixture->notices[0]), "%s", text);
}

void fixture_init(struct nvme_fixture *fixture)
{
        memset(fixture, 0, sizeof(*fixture));
        scratch_make(fixture->folder, sizeof(fixture->folder));
        for (uint32_t i = 0; i < FIXTURE_MEMBERS_MAX; i++) {
                snprintf(fixture->paths[i], sizeof(fixture->paths[i]), "%s/%c.data",
                         fixture->folder, 'a' + i);
                fixture->path_list[i] = fixture->paths[i];
        }
        snprintf(fixture->catalog, sizeof(fixture->catalog), "%s/catalog", fixture->folder);
        fixture->options = (struct nvme_options){
                .paths = fixture->path_list,
                .n_paths = 1,
                .bytes = 32u << 20,
                .catalog_path = fixture->catalog,
                .sync_ms = 100,
                .on_notice = on_notice,
                .user = fixture,
        };
        driver_init(&fixture->driver, FIXTURE_ARENA_BYTES);
}

void fixture_deinit(struct nvme_fixture *fixture)
{
        uv_run(&fixture->driver.loop, UV_RUN_DEFAULT);
        driver_deinit(&fixture->driver);
        scratch_remove(fixture->folder);
}

void fixture_set_members(struct nvme_fixture *fixture, uint32_t n)
{
        fixture->options.n_paths = n;
        fixture->options.bytes = (uint64_t)n * (32u << 20);
}

int fixture_try_open(struct nvme_fixture *fixture)
{
        struct tier *tier;
        int r;

        fixture->n_notices = 0;
        fixture->why.text[0] = '\0';
        r = nvme_open(&tier, &fixture->driver.loop, &fixture->options, &fixture->why);
        if (r)
                uv_run(&fixture->driver.loop, UV_RUN_DEFAULT);
        else
                driver_attach(&fixture->driver, tier);
        return r;
}

uint32_t fixture_open(struct nvme_fixture *fixture)
{
        ck_assert_msg(fixture_try_open(fixture) == 0, "%s", fixture->why.text);
        return driver_recover(&fixture->driver);
}

void fixture_close(struct nvme_fixture *fixture)
{
        driver_close(&fixture->driver);
}

void fixture_die_after(struct nvme_fixture *fixture,
                       void (*story)(struct nvme_fixture *fixture, struct driver_object *objects),
                       struct driver_object *ret_objects, uint32_t n_objects)
{
        size_t bytes = n_objects * sizeof(*ret_objects);
        struct driver_object *shared =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        int status;
        pid_t pid;

        ck_assert_ptr_ne(shared, MAP_FAILED);
        memcpy(shared, ret_objects, bytes);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid) {
                driver_init(&fixture->driver, FIXTURE_ARENA_BYTES);
                fixture_open(fixture);
                story(fixture, shared);
                _exit(77);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 77, "the story failed");
        memcpy(ret_objects, shared, bytes);
        munmap(shared, bytes);
}

bool fixture_was_told(const struct nvme_fixture *fixture, const char *text)
{
        for (uint32_t i = 0; i < fixture->n_notices; i++)
                if (strstr(fixture->notices[i], text))
                        return true;
        return false;
}

void fixture_locate(const struct driver_object *object, uint32_t *ret_member, uint64_t *ret_offset)
{
        struct space_extents extents;

        space_extents_of(object->place, &extents);
        *ret_member = extents.at[0].member;
        *ret_offset = extents.at[0].first * SEGMENT_UNIT_BYTES;
}

void fixture_peek(struct nvme_fixture *fixture, uint32_t member, uint64_t offset, void *bytes,
                  size_t length)
{
        int fd = open(fixture->paths[member], O_RDONLY | O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(pread(fd, bytes, length, (off_t)offset), (ssize_t)length);
        close(fd);
}

void fixture_poke(struct nvme_fixture *fixture, uint32_t member, uint64_t offset, const void *bytes,
                  size_t length)
{
        int fd = open(fixture->paths[member], O_WRONLY | O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(pwrite(fd, bytes, length, (off_t)offset), (ssize_t)length);
        ck_assert_int_eq(fsync(fd), 0);
        close(fd);
}

void fixture_flip(struct nvme_fixture *fixture, uint32_t member, uint64_t offset)
{
        uint8_t byte;

        fixture_peek(fixture, member, offset, &byte, 1);
        byte ^= 0x04;
        fixture_poke(fixture, member, offset, &byte, 1);
}

struct database *fixture_open_catalog(struct nvme_fixture *fixture)
{
        struct database *catalog;

        ck_assert_msg(database_open(&catalog, &fixture->driver.loop, &catalog_kind,
                                    fixture->catalog, &fixture->why) == 0,
                      "%s", fixture->why.text);
        return catalog;
}

void fixture_close_catalog(struct nvme_fixture *fixture, struct database *catalog)
{
        database_close(catalog, NULL, NULL);
        uv_run(&fixture->driver.loop, UV_RUN_DEFAULT);
}

static void on_put(struct database_op *op, int result)
{
        ck_assert_int_eq(result, 0);
        free(op);
}

void fixture_put_entry(struct nvme_fixture *fixture, struct database *catalog,
                       const struct catalog_entry *entry)
{
        struct database_op *op = calloc(1, sizeof(*op));
        void *value = malloc(catalog_entry_bytes(entry));

        catalog_entry_encode(value, entry);
        op->on_done = on_put;
        catalog_put(catalog, op, &entry->object.key, entry->claim, value,
                    catalog_entry_bytes(entry));
}

uint32_t fixture_count_entries(struct nvme_fixture *fixture)
{
        struct database *catalog = fixture_open_catalog(fixture);
        struct database_cursor *cursor;
        const void *key, *value;
        size_t key_bytes, value_bytes;
        uint32_t n = 0;

        ck_assert_int_eq(database_cursor_open(&cursor, catalog, CATALOG_ENTRY_PREFIX), 0);
        while (database_cursor_next(cursor, &key, &key_bytes, &value, &value_bytes))
                n++;
        ck_assert_int_eq(database_cursor_close(cursor), 0);
        fixture_close_catalog(fixture, catalog);
        return n;
}

struct catalog_entry fixture_entry_of(const struct driver_object *object, uint64_t epoch)
{
        struct catalog_entry entry = {
                .object = object->object, .epoch = epoch, .stored_bytes = object->object.raw_bytes};
        struct space_extents extents;

        space_extents_of(object->place, &extents);
        entry.claim = object->place.claim;
        entry.n_extents = extents.n;
        memcpy(entry.extents, extents.at, extents.n * sizeof(extents.at[0]));
        return entry;
}

void fixture_adopt(struct nvme_fixture *fixture, struct driver_object *object)
{
        struct driver_object *found = driver_find(&fixture->driver, object);

        ck_assert_msg(found != NULL, "an object was not found again");
        object->place = found->place;
}
