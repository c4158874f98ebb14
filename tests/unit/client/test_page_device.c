// SPDX-License-Identifier: Apache-2.0
/*
 * What the client does with pages of a device: a device that notes what it is given, whose
 * jobs end when a test says so, against a daemon that does what the test tells it.
 */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/page_device.h"
#include "fake_daemon.h"
#include "proto/message.h"

#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define N_PAGES    8u
#define MAPPINGS   8u

static struct fake fake;
static struct kvt_session *session;
static struct kvt_page_map *map;
static const struct kvt__page_host *host;
/* The pages of the device cannot be read: whoever copies them here dies. */
static uint8_t *pages;

/* ---- the device ---- */

static struct {
        struct kvt__page_device table;
        pthread_mutex_t lock;
        STAILQ_HEAD(, kvt__page_job) jobs;
        unsigned n_jobs;
        struct kvt__mapping *mappings[MAPPINGS];
        unsigned n_mapped, n_unmapped;
        bool is_closed;
} device;

static int place(void *context, const void *base, uint64_t bytes, uint32_t *ret_place,
                 struct why *why)
{
        ck_assert_ptr_eq(context, &device);
        if ((const uint8_t *)base < pages ||
            (const uint8_t *)base + bytes > pages + N_PAGES * FAKE_OBJECT)
                return 0;
        *ret_place = 3;
        return 1;
}

static void submit(void *context, struct kvt__page_job *job)
{
        pthread_mutex_lock(&device.lock);
        STAILQ_INSERT_TAIL(&device.jobs, job, link);
        device.n_jobs++;
        pthread_mutex_unlock(&device.lock);
}

static void map_arena(void *context, struct kvt__mapping *mapping)
{
        pthread_mutex_lock(&device.lock);
        ck_assert_uint_lt(device.n_mapped, MAPPINGS);
        device.mappings[device.n_mapped++] = mapping;
        pthread_mutex_unlock(&device.lock);
}

static void unmap_arena(void *context, struct kvt__mapping *mapping)
{
        pthread_mutex_lock(&device.lock);
        device.n_unmapped++;
        pthread_mutex_unlock(&device.lock);
}

static unsigned see(const unsigned *number)
{
        unsigned now;

        pthread_mutex_lock(&device.lock);
        now = *number;
        pthread_mutex_unlock(&device.lock);
        return now;
}

/* Fails after some seconds. */
static void wait_for(const unsigned *number, unsigned n)
{
        for (unsigned i = 0; i < 5000 && see(number) != n; i++)
                usleep(1000);
        ck_assert_uint_eq(see(number), n);
}

/* NULL after two seconds. */
static struct kvt__page_job *next_job(void)
{
        struct kvt__page_job *job = NULL;

        for (unsigned i = 0; i < 2000 && !job; i++) {
                pthread_mutex_lock(&device.lock);
                job = STAILQ_FIRST(&device.jobs);
                if (job)
                        STAILQ_REMOVE_HEAD(&device.jobs, link);
                pthread_mutex_unlock(&device.lock);
                if (!job)
                        usleep(1000);
        }
        return job;
}

static void close_device(void *context)
{
        struct kvt__page_job *job;

        device.is_closed = true;
        while ((job = STAILQ_FIRST(&device.jobs))) {
                STAILQ_REMOVE_HEAD(&device.jobs, link);
                host->end(session, job, KVT__PAGE_FAILED);
        }
        for (unsigned i = 0; i < device.n_mapped; i++)
                if (device.mappings[i])
                        host->let_go(device.mappings[i]);
}

static void make_device(void)
{
        memset(&device, 0, sizeof(device));
        device.table = (struct kvt__page_device){.version = KVT__PAGE_DEVICE_VERSION,
                                                 .context = &device,
                                                 .place = place,
                                                 .submit = submit,
                                                 .map = map_arena,
                                                 .unmap = unmap_arena,
                                                 .close = close_device};
        pthread_mutex_init(&device.lock, NULL);
        STAILQ_INIT(&device.jobs);
}

/* ---- the stage ---- */

static enum kvt_status new_map(void *base, struct kvt_page_map **ret_map, char why[512])
{
        struct kvt_page_view view = {
                .base = base, .page_stride = FAKE_OBJECT, .row_bytes = FAKE_OBJECT};
        struct kvt_page_group group = {.n_pages = N_PAGES, .n_views = 1, .views = &view};

        return kvt_page_map_new(session, &group, 1, ret_map, why, 512);
}

static void setup(void)
{
        struct why reason = {""};
        char why[512] = "";

        pages = mmap(NULL, N_PAGES * FAKE_OBJECT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(pages, MAP_FAILED);
        make_device();
        fake_start(&fake, false);
        session = fake_open(&fake);
        host = kvt__page_host_of(session);
        ck_assert_int_eq(host->set_device(session, &device.table, &reason), 0);
        ck_assert_msg(new_map(pages, &map, why) == KVT_OK, "%s", why);
}

static void teardown(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        ck_assert(device.is_closed);
        kvt_page_map_free(map);
        fake_stop(&fake);
        munmap(pages, N_PAGES * FAKE_OBJECT);
}

static const uint32_t slots[N_PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
static struct kvt_object objects[N_PAGES];

static uint64_t start_with(bool is_store, uint32_t n, struct kvt_call *call)
{
        uint64_t id;

        memset(objects, 0, sizeof(objects));
        for (uint32_t i = 0; i < n; i++) {
                objects[i].digest.bytes[0] = (uint8_t)(i + 1);
                objects[i].slots = &slots[i];
                objects[i].n_slots = 1;
        }
        ck_assert_int_eq(is_store ? kvt_store_pages(session, call, map, objects, n, &id)
                                  : kvt_load_pages(session, call, map, NULL, objects, n, &id),
                         KVT_OK);
        return id;
}

static uint64_t start(bool is_store, uint32_t n, uint64_t set)
{
        struct kvt_call call = {.size = sizeof(call), .set = set};

        return start_with(is_store, n, &call);
}

static uint64_t expect_request(uint16_t kind)
{
        return ((const struct wire_header *)fake_expect(&fake, kind))->request;
}

static uint64_t expect_lease(uint16_t kind, uint64_t lease)
{
        const struct wire_header *header = fake_expect(&fake, kind);
        struct message_cursor cursor;
        struct wire_commit_item item;
        const uint64_t *pieces;
        uint64_t named;

        ck_assert_uint_eq(header->n_items, 1);
        message_cursor_init(&cursor, header);
        if (kind == WIRE_COMMIT) {
                ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), 0);
                named = item.lease;
        } else {
                ck_assert_int_eq(message_next_lease(&cursor, &named), 0);
        }
        ck_assert_uint_eq(named, lease);
        return header->request;
}

static struct fake_item granted(uint32_t index, uint64_t lease)
{
        return (struct fake_item){.index = index,
                                  .status = KVT_OK,
                                  .lease = lease,
                                  .bytes = FAKE_OBJECT,
                                  .offset = index * 65536};
}

static struct kvt_completion wait_one(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_wait(session, &completion, 1, SECONDS(5)), 1);
        return completion;
}

static void expect_nothing(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_poll(session, &completion, 1), 0);
}

/* A store of one object, up to its job. */
static struct kvt__page_job *begin_store(uint64_t set)
{
        struct fake_item grant = granted(0, 5);
        struct kvt__page_job *job;

        start(true, 1, set);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &grant, 1);
        job = next_job();
        ck_assert_ptr_nonnull(job);
        return job;
}

static struct kvt__page_job *begin_load(uint64_t *ret_call)
{
        struct fake_item grant = granted(0, 5);
        struct kvt__page_job *job;
        uint64_t request;

        *ret_call = start(false, 1, 0);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 1);
        fake_result(&fake, request, false, &grant, 1);
        job = next_job();
        ck_assert_ptr_nonnull(job);
        return job;
}

/* ---- jobs ---- */

START_TEST(a_granted_object_on_a_device_is_the_devices_job)
{
        struct fake_item grant = granted(1, 5), done = {.status = KVT_OK};
        struct kvt_call call = {.size = sizeof(call), .after = &call, .done = &grant};
        struct kvt__page_job *job;

        start_with(true, 2, &call);
        fake_result(&fake, expect_request(WIRE_RESERVE), false,
                    (struct fake_item[]){{.status = KVT_ALREADY_HAVE}, grant}, 2);
        job = next_job();
        ck_assert_ptr_nonnull(job);
        ck_assert(job->is_store);
        ck_assert_uint_eq(job->place, 3);
        ck_assert_ptr_eq(job->after, &call);
        ck_assert_ptr_eq(job->done, &grant);
        ck_assert(!*job->stop);
        ck_assert_uint_eq(job->list.n_slots, 1);
        ck_assert_uint_eq(job->list.slots[0], 1);
        ck_assert_ptr_eq(job->list.group->views[0].base, pages);
        ck_assert_uint_eq(job->list.segments[0].bytes, FAKE_OBJECT);
        ck_assert_uint_eq(job->list.segments[0].arena_offset, 65536);
        expect_nothing();
        fake_expect_silence(&fake, 20);
        host->end(session, job, KVT__PAGE_COPIED);
        fake_result(&fake, expect_lease(WIRE_COMMIT, 5), false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(see(&device.n_jobs), 1);
}
END_TEST

START_TEST(a_load_completes_when_the_device_has_ended_its_last_job)
{
        uint64_t id;
        struct kvt__page_job *job = begin_load(&id);

        ck_assert(!job->is_store);
        expect_nothing();
        host->end(session, job, KVT__PAGE_COPIED);
        ck_assert_uint_eq(wait_one().call, id);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        expect_lease(WIRE_RELEASE, 5);
}
END_TEST

START_TEST(a_failed_store_is_an_io_error_and_gives_its_room_back)
{
        host->end(session, begin_store(0), KVT__PAGE_FAILED);
        expect_lease(WIRE_ABORT, 5);
        ck_assert_uint_eq(wait_one().status, KVT_IO_ERROR);
        ck_assert_uint_eq(objects[0].status, KVT_IO_ERROR);
}
END_TEST

START_TEST(a_failed_member_fails_its_set)
{
        struct fake_item grants[] = {granted(0, 5), granted(1, 6)};
        struct kvt__page_job *jobs[2];
        const struct wire_header *header;

        start(true, 2, 9);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, grants, 2);
        for (unsigned i = 0; i < 2; i++)
                ck_assert_ptr_nonnull(jobs[i] = next_job());
        host->end(session, jobs[0], KVT__PAGE_FAILED);
        expect_nothing();
        host->end(session, jobs[1], KVT__PAGE_COPIED);
        header = fake_expect(&fake, WIRE_ABORT);
        ck_assert_uint_eq(header->n_items, 2);
        ck_assert_uint_eq(wait_one().status, KVT_IO_ERROR);
        ck_assert_uint_eq(objects[0].status, KVT_IO_ERROR);
        ck_assert_uint_eq(objects[1].status, KVT_IO_ERROR);
}
END_TEST

START_TEST(a_member_that_fails_before_all_are_granted_fails_its_set)
{
        struct fake_item grants[] = {granted(0, 5), granted(1, 6)};
        const struct wire_header *header;
        struct kvt__page_job *job;
        uint64_t request;

        start(true, 2, 9);
        request = expect_request(WIRE_RESERVE);
        fake_result(&fake, request, true, &grants[0], 1);
        ck_assert_ptr_nonnull(job = next_job());
        host->end(session, job, KVT__PAGE_FAILED);
        fake_result(&fake, request, false, &grants[1], 1);
        ck_assert_ptr_nonnull(job = next_job());
        host->end(session, job, KVT__PAGE_COPIED);
        header = fake_expect(&fake, WIRE_ABORT);
        ck_assert_uint_eq(header->n_items, 2);
        ck_assert_uint_eq(wait_one().status, KVT_IO_ERROR);
        ck_assert_uint_eq(objects[1].status, KVT_IO_ERROR);
}
END_TEST

START_TEST(a_failed_load_says_so_and_is_released)
{
        uint64_t id;

        host->end(session, begin_load(&id), KVT__PAGE_FAILED);
        expect_lease(WIRE_RELEASE, 5);
        ck_assert_uint_eq(wait_one().status, KVT_IO_ERROR);
        ck_assert_uint_eq(objects[0].status, KVT_IO_ERROR);
}
END_TEST

START_TEST(a_cancelled_call_ends_when_the_device_has_let_go)
{
        uint64_t id, cancel;
        struct kvt__page_job *job = begin_load(&id);

        ck_assert_int_eq(kvt_cancel(session, NULL, id, &cancel), KVT_OK);
        ck_assert(*job->stop);
        expect_nothing();
        fake_expect_silence(&fake, 20);
        host->end(session, job, KVT__PAGE_STOPPED);
        ck_assert_uint_eq(wait_one().call, id);
        ck_assert_uint_eq(objects[0].status, KVT_CANCELLED);
        ck_assert_uint_eq(wait_one().call, cancel);
        expect_lease(WIRE_RELEASE, 5);
}
END_TEST

START_TEST(of_several_jobs_of_a_cancelled_call_the_last_ends_it)
{
        struct fake_item grants[] = {granted(0, 5), granted(1, 6)};
        uint64_t id = start(true, 2, 0);
        struct kvt__page_job *jobs[2];

        fake_result(&fake, expect_request(WIRE_RESERVE), false, grants, 2);
        for (unsigned i = 0; i < 2; i++)
                ck_assert_ptr_nonnull(jobs[i] = next_job());
        ck_assert_int_eq(kvt_cancel(session, NULL, id, NULL), KVT_OK);
        host->end(session, jobs[1], KVT__PAGE_STOPPED);
        expect_nothing();
        host->end(session, jobs[0], KVT__PAGE_COPIED);
        ck_assert_uint_eq(wait_one().status, KVT_CANCELLED);
}
END_TEST

/* The daemon may not give the bytes to others before it hears that the copies have ended. */
static void expect_copies_ended_behind(struct kvt__page_job *job, enum kvt__page_end end)
{
        fake_greet(&fake);
        fake_await(session, true);
        fake_expect_silence(&fake, 20);
        expect_nothing();
        host->end(session, job, end);
        fake_expect(&fake, WIRE_COPIES_ENDED);
}

START_TEST(a_store_whose_connection_ends_is_over_when_the_device_has_let_go)
{
        struct kvt__page_job *job = begin_store(0);

        fake_hang_up(&fake);
        for (unsigned i = 0; i < 5000 && !*job->stop; i++)
                usleep(1000);
        ck_assert(*job->stop);
        expect_copies_ended_behind(job, KVT__PAGE_COPIED);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(objects[0].status, KVT_UNAVAILABLE);
}
END_TEST

START_TEST(a_load_whose_connection_ends_keeps_what_the_device_copies)
{
        uint64_t id;
        struct kvt__page_job *job = begin_load(&id);

        fake_hang_up(&fake);
        expect_copies_ended_behind(job, KVT__PAGE_COPIED);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
}
END_TEST

START_TEST(a_call_that_times_out_ends_when_the_device_has_let_go)
{
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = 30000000};
        struct fake_item grant = granted(0, 5);
        struct kvt__page_job *job;

        start_with(true, 1, &call);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &grant, 1);
        ck_assert_ptr_nonnull(job = next_job());
        for (unsigned i = 0; i < 5000 && !*job->stop; i++)
                usleep(1000);
        ck_assert(*job->stop);
        expect_nothing();
        fake_expect_silence(&fake, 20);
        host->end(session, job, KVT__PAGE_COPIED);
        expect_lease(WIRE_ABORT, 5);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        ck_assert_uint_eq(objects[0].status, KVT_TIMEOUT);
}
END_TEST

START_TEST(a_lost_job_ends_the_session_and_keeps_its_lease)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct pollfd listener = {.fd = fake.listener, .events = POLLIN};
        uint64_t id;

        host->end(session, begin_load(&id), KVT__PAGE_LOST);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(objects[0].status, KVT_UNAVAILABLE);
        /* No release, no statement that copies have ended: nothing but the hang-up. */
        fake_expect_hang_up(&fake);
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        ck_assert_uint_eq(info.attached, 0);
        ck_assert_ptr_nonnull(strstr(info.last_error, "GPU"));
        ck_assert_int_eq(kvt_store_pages(session, NULL, map, objects, 1, NULL), KVT_UNAVAILABLE);
        /* It does not connect again. */
        ck_assert_int_ne(kvt_wait_attached(session, 100000000), KVT_OK);
        ck_assert_int_eq(poll(&listener, 1, 100), 0);
}
END_TEST

START_TEST(without_its_device_a_map_is_unsupported)
{
        struct fake_item grant = granted(0, 5);

        ck_assert_int_eq(host->set_device(session, NULL, NULL), 0);
        ck_assert(device.is_closed);
        start(true, 1, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &grant, 1);
        expect_lease(WIRE_ABORT, 5);
        ck_assert_uint_eq(wait_one().status, KVT_UNSUPPORTED);
}
END_TEST

START_TEST(jobs_end_before_a_session_is_closed)
{
        struct fake_item grant = granted(0, 5);

        start(true, 1, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &grant, 1);
        wait_for(&device.n_jobs, 1);
        /* The rest is the teardown's: close() ends the job, and nothing of it is used later. */
}
END_TEST

/* ---- maps ---- */

START_TEST(memory_that_nobody_can_read_is_refused_by_name)
{
        uint8_t *nowhere =
                mmap(NULL, N_PAGES * FAKE_OBJECT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct kvt_page_map *other;
        char why[512] = "";

        ck_assert_int_eq(new_map(nowhere, &other, why), KVT_INVALID);
        ck_assert_ptr_nonnull(strstr(why, "group 0"));
        ck_assert_ptr_nonnull(strstr(why, "GPU"));
        ck_assert_int_eq(host->set_device(session, NULL, NULL), 0);
        ck_assert_int_eq(new_map(nowhere, &other, why), KVT_INVALID);
        ck_assert_ptr_nonnull(strstr(why, "kvt_cuda_register()"));
        munmap(nowhere, N_PAGES * FAKE_OBJECT);
}
END_TEST

START_TEST(views_of_a_group_lie_in_one_place)
{
        static uint8_t half[N_PAGES][FAKE_OBJECT / 2];
        struct kvt_page_view views[] = {
                {.base = pages, .page_stride = FAKE_OBJECT, .row_bytes = FAKE_OBJECT / 2},
                {.base = half, .page_stride = FAKE_OBJECT / 2, .row_bytes = FAKE_OBJECT / 2}};
        struct kvt_page_group group = {.n_pages = N_PAGES, .n_views = 2, .views = views};
        struct kvt_page_map *other;
        char why[512] = "";

        ck_assert_int_eq(kvt_page_map_new(session, &group, 1, &other, why, sizeof(why)),
                         KVT_INVALID);
        ck_assert_ptr_nonnull(strstr(why, "different places"));
}
END_TEST

START_TEST(memory_of_the_host_stays_the_copiers_and_has_no_events)
{
        static uint8_t mine[N_PAGES][FAKE_OBJECT];
        struct kvt_call call = {.size = sizeof(call), .after = &call};
        struct fake_item grant = granted(0, 5), done = {.status = KVT_OK};
        char why[512];

        kvt_page_map_free(map);
        ck_assert_int_eq(new_map(mine, &map, why), KVT_OK);
        memset(objects, 0, sizeof(objects));
        objects[0].slots = slots;
        objects[0].n_slots = 1;
        ck_assert_int_eq(kvt_store_pages(session, &call, map, objects, 1, NULL), KVT_INVALID);
        start(true, 1, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &grant, 1);
        fake_result(&fake, expect_lease(WIRE_COMMIT, 5), false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(see(&device.n_jobs), 0);
}
END_TEST

/* ---- arenas ---- */

START_TEST(an_arena_stays_mapped_until_the_device_has_let_go_of_it)
{
        struct kvt__mapping *old;
        volatile const uint8_t *byte;

        ck_assert_uint_eq(device.n_mapped, FAKE_ARENAS);
        old = device.mappings[0];
        byte = old->base;
        fake.arenas[0][0] = 77;
        fake_hang_up(&fake);
        fake_restart(&fake);
        fake_greet(&fake);
        ck_assert_int_eq(kvt_wait_attached(session, SECONDS(5)), KVT_OK);
        wait_for(&device.n_unmapped, FAKE_ARENAS);
        ck_assert_uint_eq(see(&device.n_unmapped), FAKE_ARENAS);
        ck_assert_uint_eq(see(&device.n_mapped), 2 * FAKE_ARENAS);
        /* Gone from the daemon, and still there: the driver has it registered. */
        ck_assert_uint_eq(*byte, 77);
        ck_assert_uint_eq(atomic_load(&old->refs), 1);
}
END_TEST

START_TEST(an_arena_with_a_job_in_it_is_not_taken_back)
{
        uint64_t id;
        struct kvt__page_job *job = begin_load(&id);

        fake_hang_up(&fake);
        fake_restart(&fake);
        fake_greet(&fake);
        ck_assert_int_eq(kvt_wait_attached(session, SECONDS(5)), KVT_OK);
        wait_for(&device.n_unmapped, FAKE_ARENAS - 1);
        usleep(20000);
        ck_assert_uint_eq(see(&device.n_unmapped), FAKE_ARENAS - 1);
        host->end(session, job, KVT__PAGE_COPIED);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        wait_for(&device.n_unmapped, FAKE_ARENAS);
        ck_assert_uint_eq(see(&device.n_unmapped), FAKE_ARENAS);
}
END_TEST

START_TEST(a_second_device_or_another_version_is_refused)
{
        struct kvt__page_device other = device.table;
        struct why why = {""};

        ck_assert_int_eq(host->set_device(session, &other, &why), -EEXIST);
        other.version++;
        ck_assert_int_eq(host->set_device(session, &other, &why), -EPROTO);
        ck_assert_ptr_nonnull(strstr(why.text, "version"));
        ck_assert_ptr_eq(host->device(session), &device.table);
}
END_TEST

START_TEST(a_forked_child_leaves_the_device_alone)
{
        int status;
        pid_t pid = fork();

        ck_assert_int_ge(pid, 0);
        if (!pid) {
                kvt_close(session);
                _exit(device.is_closed || device.n_unmapped ? 1 : 0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/page_device");
        TCase *tcase = tcase_create("page_device");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, a_granted_object_on_a_device_is_the_devices_job);
        tcase_add_test(tcase, a_load_completes_when_the_device_has_ended_its_last_job);
        tcase_add_test(tcase, a_failed_store_is_an_io_error_and_gives_its_room_back);
        tcase_add_test(tcase, a_failed_member_fails_its_set);
        tcase_add_test(tcase, a_member_that_fails_before_all_are_granted_fails_its_set);
        tcase_add_test(tcase, a_failed_load_says_so_and_is_released);
        tcase_add_test(tcase, a_cancelled_call_ends_when_the_device_has_let_go);
        tcase_add_test(tcase, of_several_jobs_of_a_cancelled_call_the_last_ends_it);
        tcase_add_test(tcase, a_store_whose_connection_ends_is_over_when_the_device_has_let_go);
        tcase_add_test(tcase, a_load_whose_connection_ends_keeps_what_the_device_copies);
        tcase_add_test(tcase, a_call_that_times_out_ends_when_the_device_has_let_go);
        tcase_add_test(tcase, a_lost_job_ends_the_session_and_keeps_its_lease);
        tcase_add_test(tcase, without_its_device_a_map_is_unsupported);
        tcase_add_test(tcase, jobs_end_before_a_session_is_closed);
        tcase_add_test(tcase, memory_that_nobody_can_read_is_refused_by_name);
        tcase_add_test(tcase, views_of_a_group_lie_in_one_place);
        tcase_add_test(tcase, memory_of_the_host_stays_the_copiers_and_has_no_events);
        tcase_add_test(tcase, an_arena_stays_mapped_until_the_device_has_let_go_of_it);
        tcase_add_test(tcase, an_arena_with_a_job_in_it_is_not_taken_back);
        tcase_add_test(tcase, a_second_device_or_another_version_is_refused);
        tcase_add_test(tcase, a_forked_child_leaves_the_device_alone);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
