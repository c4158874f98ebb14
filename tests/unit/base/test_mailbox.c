// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/mailbox.h"

#define MANY 20000

struct note {
        struct job job;
        struct mailbox *mailbox;
        int number;
        int n_runs;
        bool posts_again;
};

static int order[8];
static int n_order;

static void run_note(struct job *job)
{
        struct note *note = job_owner(job, struct note, job);

        note->n_runs++;
        if (n_order < 8)
                order[n_order++] = note->number;
        if (note->posts_again) {
                note->posts_again = false;
                mailbox_post(note->mailbox, job);
        }
}

static struct note make_note(struct mailbox *mailbox, int number)
{
        return (struct note){.job.run = run_note, .mailbox = mailbox, .number = number};
}

static bool is_readable(const struct mailbox *mailbox)
{
        struct pollfd fd = {.fd = mailbox->fd, .events = POLLIN};

        return poll(&fd, 1, 0) == 1;
}

START_TEST(jobs_run_in_order_and_the_descriptor_tells_of_them)
{
        struct mailbox mailbox;
        struct note first, second;

        ck_assert_int_eq(mailbox_init(&mailbox), 0);
        first = make_note(&mailbox, 1);
        second = make_note(&mailbox, 2);
        ck_assert(!is_readable(&mailbox));
        mailbox_post(&mailbox, &second.job);
        mailbox_post(&mailbox, &first.job);
        ck_assert(is_readable(&mailbox));
        ck_assert_uint_eq(mailbox_run(&mailbox), 2);
        ck_assert(!is_readable(&mailbox));
        ck_assert_int_eq(order[0], 2);
        ck_assert_int_eq(order[1], 1);
        ck_assert_uint_eq(mailbox_run(&mailbox), 0);
        mailbox_deinit(&mailbox);
}
END_TEST

START_TEST(a_job_that_waits_is_not_posted_twice)
{
        struct mailbox mailbox;
        struct note note;

        ck_assert_int_eq(mailbox_init(&mailbox), 0);
        note = make_note(&mailbox, 1);
        mailbox_post(&mailbox, &note.job);
        mailbox_post(&mailbox, &note.job);
        ck_assert_uint_eq(mailbox_run(&mailbox), 1);
        ck_assert_int_eq(note.n_runs, 1);
        mailbox_deinit(&mailbox);
}
END_TEST

START_TEST(a_job_may_post_itself_and_runs_at_the_next_call)
{
        struct mailbox mailbox;
        struct note note;

        ck_assert_int_eq(mailbox_init(&mailbox), 0);
        note = make_note(&mailbox, 1);
        note.posts_again = true;
        mailbox_post(&mailbox, &note.job);
        ck_assert_uint_eq(mailbox_run(&mailbox), 1);
        ck_assert(is_readable(&mailbox));
        ck_assert_uint_eq(mailbox_run(&mailbox), 1);
        ck_assert_int_eq(note.n_runs, 2);
        mailbox_deinit(&mailbox);
}
END_TEST

/* Every post is followed by a run that sees what was written before it. */
struct counter {
        struct job job;
        struct mailbox mailbox;
        atomic_int n_posts;
        atomic_int n_seen;
};

static void run_counter(struct job *job)
{
        struct counter *counter = job_owner(job, struct counter, job);

        /* Orders nothing: that is the mailbox's part. */
        atomic_store_explicit(&counter->n_seen,
                              atomic_load_explicit(&counter->n_posts, memory_order_relaxed),
                              memory_order_relaxed);
}

/* Each post is as good as the last one: nothing but its own run shows what it tells. */
static void *post_many(void *argument)
{
        struct counter *counter = argument;

        for (int i = 1; i <= MANY; i++) {
                atomic_store_explicit(&counter->n_posts, i, memory_order_relaxed);
                mailbox_post(&counter->mailbox, &counter->job);
                /* Some come while the job of the one before is about to run. */
                while (i % 4 == 0 &&
                       atomic_load_explicit(&counter->n_seen, memory_order_relaxed) != i)
                        sched_yield();
        }
        return NULL;
}

START_TEST(no_post_of_another_thread_is_lost)
{
        struct counter counter = {.job.run = run_counter};
        struct pollfd fd = {.events = POLLIN};
        pthread_t thread;

        ck_assert_int_eq(mailbox_init(&counter.mailbox), 0);
        fd.fd = counter.mailbox.fd;
        ck_assert_int_eq(pthread_create(&thread, NULL, post_many, &counter), 0);
        while (counter.n_seen < MANY) {
                /* A post that is lost is waited for in vain. */
                ck_assert_int_eq(poll(&fd, 1, 10000), 1);
                mailbox_run(&counter.mailbox);
        }
        pthread_join(thread, NULL);
        mailbox_deinit(&counter.mailbox);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/mailbox");
        TCase *all = tcase_create("mailbox");
        SRunner *runner;
        int failed;

        tcase_add_test(all, jobs_run_in_order_and_the_descriptor_tells_of_them);
        tcase_add_test(all, a_job_that_waits_is_not_posted_twice);
        tcase_add_test(all, a_job_may_post_itself_and_runs_at_the_next_call);
        tcase_add_test(all, no_post_of_another_thread_is_lost);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
