// SPDX-License-Identifier: Apache-2.0
/*
 * A pool in a scratch folder for the tests of the NVMe tier: members a.data, b.data, ...
 * beside a folder catalog, a driver on top, notices kept, and hands on the bytes below.
 */
#pragma once

#include <stdint.h>

#include "storage/catalog_entry.h"
#include "storage/nvme.h"
#include "tests/support/tier_driver.h"

#define FIXTURE_MEMBERS_MAX 4u
#define FIXTURE_ARENA_BYTES (24u << 20)

struct nvme_fixture {
        char folder[64];
        char paths[FIXTURE_MEMBERS_MAX][96];
        const char *path_list[FIXTURE_MEMBERS_MAX];
        char catalog[96];
        struct nvme_options options;
        struct driver driver;
        struct why why;
        uint32_t n_notices;
        char notices[8][512];
};

/* One member, 32 MiB; nothing is opened yet. */
void fixture_init(struct nvme_fixture *fixture);
void fixture_deinit(struct nvme_fixture *fixture);

void fixture_set_members(struct nvme_fixture *fixture, uint32_t n);

/* nvme_open() as the options say; its result. Attached to the driver, not recovered. */
int fixture_try_open(struct nvme_fixture *fixture);
/* Opens and recovers, and must succeed; the number of objects found. */
uint32_t fixture_open(struct nvme_fixture *fixture);
void fixture_close(struct nvme_fixture *fixture);

/*
 * Runs @story on an opened and recovered tier in a child that then ends without closing
 * anything, as after kill -9. What it returns through @ret_objects (shared memory) stays.
 */
void fixture_die_after(struct nvme_fixture *fixture,
                       void (*story)(struct nvme_fixture *fixture, struct driver_object *objects),
                       struct driver_object *ret_objects, uint32_t n_objects);

/* Did a notice contain @text? */
bool fixture_was_told(const struct nvme_fixture *fixture, const char *text);

/* Where an object's header lies: member and byte offset (objects in one extent). */
void fixture_locate(const struct driver_object *object, uint32_t *ret_member, uint64_t *ret_offset);

/* Reads and writes of member @member, whoever has it open. */
void fixture_peek(struct nvme_fixture *fixture, uint32_t member, uint64_t offset, void *bytes,
                  size_t length);
void fixture_poke(struct nvme_fixture *fixture, uint32_t member, uint64_t offset, const void *bytes,
                  size_t length);
void fixture_flip(struct nvme_fixture *fixture, uint32_t member, uint64_t offset);

/* Walks, adds to, and rewrites the catalog of a closed pool. */
struct database *fixture_open_catalog(struct nvme_fixture *fixture);
void fixture_close_catalog(struct nvme_fixture *fixture, struct database *catalog);
void fixture_put_entry(struct nvme_fixture *fixture, struct database *catalog,
                       const struct catalog_entry *entry);
uint32_t fixture_count_entries(struct nvme_fixture *fixture);

/* The same entry as that of @object in its extents; for hand-made catalogs. */
struct catalog_entry fixture_entry_of(const struct driver_object *object, uint64_t epoch);

/* A stored object and its place again, as recovery found it; fails when it did not. */
void fixture_adopt(struct nvme_fixture *fixture, struct driver_object *object);
