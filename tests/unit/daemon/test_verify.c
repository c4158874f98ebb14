// SPDX-License-Identifier: Apache-2.0
/* kvtierctl verify over a tier whose reads cannot even be started. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/verify.h"

#define N_OBJECTS 300u

static struct daemon *daemon_;
static struct session *session;
static struct tier tier;
static struct tier_read *reads[N_OBJECTS]; /* that have been started and not ended */
static unsigned n_reads, n_starts, n_refused;
static unsigned refuse_to; /* so many starts fail */
static struct verify_progress last;

static int start(struct tier *self, struct tier_read *read)
{
        if (n_starts++ < refuse_to) {
                n_refused++;
                return -ENOMEM;
        }
        reads[n_reads++] = read;
        return 0;
}

static void on_progress(struct session *asker, uint64_t request,
                        const struct verify_progress *progress)
{
        ck_assert_ptr_eq(asker, session);
        ck_assert_uint_eq(request, 7);
        ck_assert(!last.finished);
        last = *progress;
}

static void setup(void)
{
        static const struct digest layout_id = {{42}};
        uint16_t layout;

        daemon_ = calloc(1, sizeof(*daemon_));
        session = calloc(1, sizeof(*session));
        ck_assert(daemon_ && session);
        daemon_->is_closing = true; /* there is no loop to wake */
        ck_assert_int_eq(index_new(&daemon_->cache.index, 1000, NULL), 0);
        ck_assert_int_eq(index_layout(daemon_->cache.index, 0, &layout_id, &layout), 0);
        daemon_->cache.metrics = &daemon_->metrics;
        tier.ops.read = start;
        daemon_->cache.nvme = &tier;
        n_reads = n_starts = n_refused = refuse_to = 0;
        memset(&last, 0, sizeof(last));
        for (uint32_t i = 0; i < N_OBJECTS; i++) {
                struct index_new_object object = {
                        .layout = layout, .parent_unknown = true, .raw_bytes = 4096};
                struct index_object *added;

                memcpy(object.digest.bytes, &(uint32_t){i + 1}, sizeof(uint32_t));
                ck_assert_int_eq(index_add(daemon_->cache.index, &object, &added), 0);
                index_set_place(daemon_->cache.index, added, (struct tier_place){i + 1, i + 1});
        }
}

static void teardown(void)
{
        ck_assert_ptr_null(daemon_->verify);
        index_free(daemon_->cache.index);
        free(session);
        free(daemon_);
}

/* Ends the reads and turns the loop until the verification is over. */
static void run(void)
{
        for (unsigned turns = 0; daemon_->verify; turns++) {
                ck_assert_uint_lt(turns, 2 * N_OBJECTS);
                if (n_reads) {
                        struct tier_read *read = reads[--n_reads];

                        read->on_done(read, 0, NULL);
                }
                verify_go_on(daemon_);
        }
        ck_assert(last.finished);
        ck_assert_uint_eq(last.total, N_OBJECTS);
        ck_assert_uint_eq(last.done, N_OBJECTS);
        ck_assert_uint_eq(last.failed, n_refused);
}

START_TEST(reads_that_cannot_start_do_not_end_it)
{
        refuse_to = (unsigned)_i;
        ck_assert_int_eq(verify_start(daemon_, session, on_progress, 7), 0);
        ck_assert_int_eq(verify_start(daemon_, session, on_progress, 8), -EBUSY);
        run();
        ck_assert_uint_eq(n_refused, (unsigned)_i < N_OBJECTS ? (unsigned)_i : N_OBJECTS);
}
END_TEST

START_TEST(one_that_is_not_wanted_any_more_ends_without_a_word)
{
        refuse_to = N_OBJECTS;
        ck_assert_int_eq(verify_start(daemon_, session, on_progress, 7), 0);
        ck_assert_ptr_nonnull(daemon_->verify);
        verify_session_gone(daemon_, session);
        verify_go_on(daemon_);
        ck_assert_ptr_null(daemon_->verify);
        ck_assert(!last.finished);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/verify");
        TCase *tcase = tcase_create("verify");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_loop_test(tcase, reads_that_cannot_start_do_not_end_it, 0, 6);
        tcase_add_loop_test(tcase, reads_that_cannot_start_do_not_end_it, 64, 66);
        tcase_add_loop_test(tcase, reads_that_cannot_start_do_not_end_it, 299, 302);
        tcase_add_test(tcase, one_that_is_not_wanted_any_more_ends_without_a_word);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
