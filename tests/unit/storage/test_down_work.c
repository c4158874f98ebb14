// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "storage/down_work.h"

#define N 8u

struct job {
        struct down_work work;
        uint32_t n_ends;
        int status;
};

static _Atomic uint32_t n_now, n_most;
static uv_loop_t loops[2];
static struct job jobs[2][N];

/* What queues itself again, what holds the other worker meanwhile, and what waits behind. */
static struct job again, held, behind;
static uint32_t n_ends, behind_ended_as;
static uv_sem_t release;

static void help(struct down_work *work)
{
        uint32_t now = ++n_now, most = n_most;

        while (now > most && !atomic_compare_exchange_weak(&n_most, &most, now))
                ;
        /* Until as many as may have been at work at once, and long enough for more, could they. */
        for (unsigned i = 0; i < 250 && n_most < DOWN_WORKERS; i++)
                usleep(1000);
        usleep(2000);
        n_now--;
}

static void then(struct down_work *work, int status)
{
        struct job *job = (struct job *)work;

        job->n_ends++;
        job->status = status;
}

static void queue(uint32_t loop, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                ck_assert_int_eq(down_work_queue(&loops[loop], &jobs[loop][i].work, help, then), 0);
                ck_assert_uint_eq(jobs[loop][i].n_ends, 0);
        }
}

static void setup(void)
{
        memset(jobs, 0, sizeof(jobs));
        n_now = n_most = 0;
        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(uv_loop_init(&loops[i]), 0);
}

static void teardown(void)
{
        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(uv_loop_close(&loops[i]), 0);
}

START_TEST(two_are_at_work_at_a_time)
{
        queue(0, N);
        uv_run(&loops[0], UV_RUN_DEFAULT);
        for (uint32_t i = 0; i < N; i++) {
                ck_assert_uint_eq(jobs[0][i].n_ends, 1);
                ck_assert_int_eq(jobs[0][i].status, 0);
        }
        ck_assert_uint_eq(n_most, DOWN_WORKERS);
}
END_TEST

START_TEST(a_loop_does_not_wait_for_another)
{
        queue(0, N);
        queue(1, N);
        uv_run(&loops[1], UV_RUN_DEFAULT);
        for (uint32_t i = 0; i < N; i++) {
                ck_assert_uint_eq(jobs[0][i].n_ends, 0);
                ck_assert_uint_eq(jobs[1][i].n_ends, 1);
        }
        uv_run(&loops[0], UV_RUN_DEFAULT);
        for (uint32_t i = 0; i < N; i++)
                ck_assert_uint_eq(jobs[0][i].n_ends, 1);
}
END_TEST

static void help_until_released(struct down_work *work)
{
        uv_sem_wait(&release);
}

static void then_again(struct down_work *work, int status)
{
        then(work, status);
        n_ends++;
        if (again.n_ends == N)
                uv_sem_post(&release);
        else
                ck_assert_int_eq(down_work_queue(work->loop, work, help, then_again), 0);
}

static void then_behind(struct down_work *work, int status)
{
        then(work, status);
        behind_ended_as = ++n_ends;
}

START_TEST(what_queues_itself_again_waits_behind_others)
{
        ck_assert_int_eq(uv_sem_init(&release, 0), 0);
        down_work_queue(&loops[0], &held.work, help_until_released, then);
        down_work_queue(&loops[0], &again.work, help, then_again);
        down_work_queue(&loops[0], &behind.work, help, then_behind);
        uv_run(&loops[0], UV_RUN_DEFAULT);
        ck_assert_uint_eq(again.n_ends, N);
        ck_assert_uint_eq(held.n_ends, 1);
        ck_assert_uint_eq(behind_ended_as, 2);
        uv_sem_destroy(&release);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/down_work");
        TCase *tcase = tcase_create("down work");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, two_are_at_work_at_a_time);
        tcase_add_test(tcase, a_loop_does_not_wait_for_another);
        tcase_add_test(tcase, what_queues_itself_again_waits_behind_others);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
