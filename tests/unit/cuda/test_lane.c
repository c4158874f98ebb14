// SPDX-License-Identifier: Apache-2.0
/* Over a driver whose events come when the test says so. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/lane.h"

#define N_JOBS       300u /* more than a lane looks at in one go */
#define PAGE         4096u
#define PATIENCE_S   20
#define NOT_YET      ((void *)(handles + 1))
#define CLOSE_NS_MAX UINT64_C(2000000000)

static uint8_t handles[2], memory[2 * PAGE];

static struct {
        pthread_mutex_t lock;
        pthread_cond_t more;
        unsigned n_ended;
        enum kvt__page_end ends[N_JOBS]; /* in order */
        struct kvt__page_job *jobs[N_JOBS];
} host;

static cu_result create_stream(cu_stream *ret_stream, unsigned flags, int priority)
{
        *ret_stream = (cu_stream)handles;
        return 0;
}

static cu_result destroy_stream(cu_stream stream)
{
        return 0;
}

static cu_result create_event(cu_event *ret_event, unsigned flags)
{
        *ret_event = (cu_event)handles;
        return 0;
}

static cu_result destroy_event(cu_event event)
{
        return 0;
}

static cu_result query_event(cu_event event)
{
        return event == (cu_event)NOT_YET ? CU_E_NOT_READY : 0;
}

static cu_result push(cu_context context)
{
        return 0;
}

static cu_result pop(cu_context *ret_context)
{
        return 0;
}

static cu_result capture_mode(int *mode)
{
        return 0;
}

static const struct cuda_driver driver = {.stream_create = create_stream,
                                          .stream_destroy = destroy_stream,
                                          .event_create = create_event,
                                          .event_destroy = destroy_event,
                                          .event_query = query_event,
                                          .context_push = push,
                                          .context_pop = pop,
                                          .capture_mode = capture_mode};

static void end_job(struct kvt_session *session, struct kvt__page_job *job, enum kvt__page_end end)
{
        pthread_mutex_lock(&host.lock);
        ck_assert_uint_lt(host.n_ended, N_JOBS);
        host.jobs[host.n_ended] = job;
        host.ends[host.n_ended++] = end;
        pthread_cond_signal(&host.more);
        pthread_mutex_unlock(&host.lock);
}

static const struct kvt__page_host table = {.end = end_job};

static void wait_ended(unsigned n)
{
        struct timespec until;
        int r = 0;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        pthread_mutex_lock(&host.lock);
        while (host.n_ended < n && !r)
                r = pthread_cond_timedwait(&host.more, &host.lock, &until);
        ck_assert_msg(!r, "%u of %u jobs have ended", host.n_ended, n);
        pthread_mutex_unlock(&host.lock);
}

static void on_error(void *context, cu_result error, bool is_lost)
{
        ck_abort_msg("error %d", (int)error);
}

static struct kvt__page_view view = {memory, PAGE, PAGE, PAGE, 1};
static const struct kvt__page_group group = {
        .n_pages = 1, .page_bytes = PAGE, .stored_bytes = PAGE, .n_views = 1, .views = &view};
static const uint32_t slot_0;
static const struct kvt_segment segment = {.address = memory + PAGE, .bytes = PAGE};
static struct kvt__page_job jobs[N_JOBS];
static atomic_bool stops[N_JOBS], never_lost;
static struct slot_kit slot_kit = {.driver = &driver};
static struct choice choice;
static struct registry *registry;
static struct lane lane;

/* Jobs that wait for an event which never comes; nothing is registered, so that they wait here. */
static void setup(void)
{
        struct registry_options options = {.driver = &driver, .piece_bytes = PAGE};
        struct lane_kit kit = {.slot = &slot_kit,
                               .choice = &choice,
                               .host = &table,
                               .on_error = on_error,
                               .is_lost = &never_lost};

        memset(&host, 0, sizeof(host));
        pthread_mutex_init(&host.lock, NULL);
        pthread_cond_init(&host.more, NULL);
        ck_assert_int_eq(registry_new(&registry, &options), 0);
        kit.registry = registry;
        choice_init(&choice, 1u << KVT_CUDA_PLAIN);
        ck_assert_int_eq(lane_init(&lane, &kit, true, 0), 0);
        ck_assert_int_eq(lane_start(&lane), 0);
        for (unsigned i = 0; i < N_JOBS; i++) {
                atomic_store(&stops[i], false);
                jobs[i] = (struct kvt__page_job){.list = {&group, &slot_0, 1, &segment},
                                                 .stop = &stops[i],
                                                 .after = NOT_YET,
                                                 .is_store = true};
                lane_submit(&lane, &jobs[i]);
        }
}

static void teardown(void)
{
        struct timespec now;
        uint64_t by_ns;

        clock_gettime(CLOCK_MONOTONIC, &now);
        by_ns = (uint64_t)now.tv_sec * 1000000000u + CLOSE_NS_MAX;
        lane_close(&lane, by_ns);
        ck_assert(lane_join(&lane, by_ns));
        wait_ended(N_JOBS);
        lane_deinit(&lane, false);
        registry_close(registry, CLOSE_NS_MAX);
}

START_TEST(a_cancel_ends_jobs_however_many_wait_before_them)
{
        setup();
        for (unsigned i = N_JOBS - 10; i < N_JOBS; i++)
                atomic_store(&stops[i], true);
        wait_ended(10);
        for (unsigned i = 0; i < 10; i++) {
                ck_assert(host.jobs[i] >= &jobs[N_JOBS - 10]);
                ck_assert_int_eq(host.ends[i], KVT__PAGE_STOPPED);
        }
        teardown();
}
END_TEST

START_TEST(jobs_that_are_cancelled_all_over_the_queue_end_once_each)
{
        setup();
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 2 - round; i < N_JOBS; i += 3)
                        atomic_store(&stops[i], true);
                wait_ended((round + 1) * N_JOBS / 3);
        }
        for (unsigned i = 0; i < N_JOBS; i++) {
                ck_assert_int_eq(host.ends[i], KVT__PAGE_STOPPED);
                for (unsigned j = 0; j < i; j++)
                        ck_assert_ptr_ne(host.jobs[i], host.jobs[j]);
        }
        teardown();
}
END_TEST

START_TEST(a_close_ends_jobs_that_wait)
{
        setup();
        atomic_store(&stops[N_JOBS / 2], true);
        wait_ended(1);
        teardown();
        for (unsigned i = 1; i < N_JOBS; i++)
                ck_assert_int_eq(host.ends[i], KVT__PAGE_FAILED);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("cuda lane");
        TCase *tcase = tcase_create("lane");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_cancel_ends_jobs_however_many_wait_before_them);
        tcase_add_test(tcase, jobs_that_are_cancelled_all_over_the_queue_end_once_each);
        tcase_add_test(tcase, a_close_ends_jobs_that_wait);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
