// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_credit.h"

#define IDLE    500u
#define SILENCE 2500u
#define CREDITS 8u

/*
 * Two sides and the frames between them, in order, without devices: a model of what
 * rdma_message.c does, in which a frame that finds no buffer fails the test.
 */
enum kind { MESSAGE, NUDGE, ECHO };

struct frame {
        enum kind kind;
        uint32_t returned;
};

struct wire {
        struct frame frames[64];
        uint32_t head, tail;
};

struct model {
        struct rdma_credit credit;
        struct wire *out;
        struct wire *in;
        uint32_t n_buffers; /* posted */
        uint32_t n_held;    /* messages that the owner has not taken */
};

static void put(struct model *model, enum kind kind)
{
        struct wire *wire = model->out;

        wire->frames[wire->head++ % 64] = (struct frame){kind, rdma_credit_tell(&model->credit)};
}

static void send_what_is_due(struct model *model, uint64_t now)
{
        if (model->credit.owes_echo) {
                model->credit.owes_echo = false;
                put(model, ECHO);
        }
        if (rdma_credit_has_to_nudge(&model->credit, now)) {
                rdma_credit_nudge(&model->credit);
                put(model, NUDGE);
        }
}

static bool send_message(struct model *model)
{
        if (!rdma_credit_can_send(&model->credit))
                return false;
        rdma_credit_sent(&model->credit);
        put(model, MESSAGE);
        return true;
}

static bool receive(struct model *model, uint64_t now)
{
        struct frame frame;

        if (model->in->head == model->in->tail)
                return false;
        frame = model->in->frames[model->in->tail++ % 64];
        ck_assert_uint_gt(model->n_buffers, 0);
        model->n_buffers--;
        rdma_credit_heard(&model->credit, now);
        ck_assert_int_eq(rdma_credit_returned(&model->credit, frame.returned), 0);
        if (frame.kind == MESSAGE) {
                ck_assert_int_eq(rdma_credit_received(&model->credit), 0);
                model->n_held++;
                return true;
        }
        model->n_buffers++;
        if (frame.kind == NUDGE)
                ck_assert_int_eq(rdma_credit_nudged(&model->credit), 0);
        else
                ck_assert_int_eq(rdma_credit_echoed(&model->credit), 0);
        return true;
}

static void take(struct model *model)
{
        model->n_held--;
        model->n_buffers++;
        rdma_credit_taken(&model->credit);
}

static struct wire wires[2];
static struct model sides[2];

static void start(void)
{
        for (int i = 0; i < 2; i++) {
                struct model *model = &sides[i];

                *model = (struct model){
                        .out = &wires[i],
                        .in = &wires[1 - i],
                        .n_buffers = CREDITS + RDMA_CREDIT_SPARE,
                };
                rdma_credit_init(&model->credit, CREDITS, IDLE, SILENCE, 0);
                rdma_credit_raise(&model->credit, CREDITS);
        }
}

START_TEST(sending_stops_when_the_credits_are_used_up)
{
        start();
        for (uint32_t i = 0; i < CREDITS; i++)
                ck_assert(send_message(&sides[0]));
        ck_assert(!send_message(&sides[0]));
}
END_TEST

START_TEST(before_they_have_told_each_other_both_have_the_least)
{
        rdma_credit_init(&sides[0].credit, 100, IDLE, SILENCE, 0);
        sides[0].out = &wires[0];
        for (uint32_t i = 0; i < RDMA_CREDIT_MIN; i++)
                ck_assert(send_message(&sides[0]));
        ck_assert(!send_message(&sides[0]));
}
END_TEST

START_TEST(half_of_the_credits_are_told_by_a_nudge_when_nothing_else_is_said)
{
        start();
        for (uint32_t i = 0; i < CREDITS; i++)
                send_message(&sides[0]);
        while (receive(&sides[1], 1))
                ;
        for (uint32_t i = 0; i < CREDITS / 2 - 1; i++)
                take(&sides[1]);
        send_what_is_due(&sides[1], 1);
        ck_assert_uint_eq(wires[1].head, 0);
        take(&sides[1]);
        send_what_is_due(&sides[1], 1);
        ck_assert_uint_eq(wires[1].head, 1);
        receive(&sides[0], 1);
        ck_assert(send_message(&sides[0]));
}
END_TEST

/* Both sides send whenever they may, take by chance, and the frames arrive by chance. */
START_TEST(no_frame_ever_finds_no_buffer_and_nobody_waits_for_ever)
{
        uint64_t n_sent[2] = {0};

        srand(7);
        start();
        for (uint32_t step = 0; step < 200000; step++) {
                int i = rand() % 2;
                struct model *model = &sides[i];
                uint64_t now = step / 16; /* idle times come too */

                switch (rand() % 4) {
                case 0:
                        n_sent[i] += send_message(model);
                        break;
                case 1:
                        receive(model, now);
                        break;
                case 2:
                        if (model->n_held)
                                take(model);
                        break;
                default:
                        send_what_is_due(model, now);
                }
                ck_assert_uint_le(model->out->head - model->out->tail, 2 * CREDITS);
        }
        ck_assert_uint_gt(n_sent[0], 10000);
        ck_assert_uint_gt(n_sent[1], 10000);
}
END_TEST

START_TEST(the_next_nudge_waits_for_the_echo_of_the_last)
{
        start();
        send_what_is_due(&sides[0], IDLE);
        ck_assert_uint_eq(wires[0].head, 1);
        send_what_is_due(&sides[0], 2 * IDLE);
        ck_assert_uint_eq(wires[0].head, 1);
        ck_assert(receive(&sides[1], IDLE));
        send_what_is_due(&sides[1], IDLE);
        ck_assert(receive(&sides[0], 2 * IDLE));
        ck_assert(!rdma_credit_has_to_nudge(&sides[0].credit, 2 * IDLE));
        ck_assert(rdma_credit_has_to_nudge(&sides[0].credit, 3 * IDLE));
}
END_TEST

START_TEST(silence_is_death_and_a_sign_of_life_ends_it)
{
        struct rdma_credit *credit = &sides[0].credit;

        start();
        ck_assert(!rdma_credit_is_lost(credit, SILENCE - 1));
        ck_assert(rdma_credit_is_lost(credit, SILENCE));
        rdma_credit_heard(credit, 100);
        ck_assert(!rdma_credit_is_lost(credit, SILENCE));
        ck_assert(rdma_credit_is_lost(credit, SILENCE + 100));
        ck_assert_uint_eq(rdma_credit_next_ns(credit), 100 + IDLE);
        rdma_credit_nudge(credit);
        ck_assert_uint_eq(rdma_credit_next_ns(credit), 100 + SILENCE);
        /* A clock that two threads read may look back. */
        rdma_credit_heard(credit, 50);
        ck_assert(!rdma_credit_is_lost(credit, SILENCE + 99));
}
END_TEST

START_TEST(a_peer_that_breaks_the_rules_is_found_out)
{
        struct rdma_credit *credit = &sides[0].credit;

        start();
        /* More back than was sent, and less than was told before. */
        ck_assert_int_eq(rdma_credit_returned(credit, 1), RDMA_CREDIT_E_INVALID);
        send_message(&sides[0]);
        send_message(&sides[0]);
        ck_assert_int_eq(rdma_credit_returned(credit, 2), 0);
        ck_assert_int_eq(rdma_credit_returned(credit, 1), RDMA_CREDIT_E_INVALID);
        /* An echo of nothing. */
        ck_assert_int_eq(rdma_credit_echoed(credit), RDMA_CREDIT_E_INVALID);
        /* Nudges without waiting for the echo. */
        ck_assert_int_eq(rdma_credit_nudged(credit), 0);
        ck_assert_int_eq(rdma_credit_nudged(credit), RDMA_CREDIT_E_INVALID);
        /* Beyond its credits, though buffers be posted again: it was not told. */
        for (uint32_t i = 0; i < CREDITS; i++) {
                ck_assert_int_eq(rdma_credit_received(credit), 0);
                rdma_credit_taken(credit);
        }
        ck_assert_int_eq(rdma_credit_received(credit), RDMA_CREDIT_E_INVALID);
}
END_TEST

START_TEST(counts_may_wrap)
{
        struct rdma_credit *credit = &sides[0].credit;

        start();
        credit->sent = credit->returned = UINT32_MAX - 1;
        for (uint32_t i = 0; i < CREDITS; i++)
                ck_assert(send_message(&sides[0]));
        ck_assert(!send_message(&sides[0]));
        ck_assert_int_eq(rdma_credit_returned(credit, 1), 0);
        ck_assert(send_message(&sides[0]));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_credit");
        TCase *all = tcase_create("rdma_credit");
        SRunner *runner;
        int failed;

        tcase_add_test(all, sending_stops_when_the_credits_are_used_up);
        tcase_add_test(all, before_they_have_told_each_other_both_have_the_least);
        tcase_add_test(all, half_of_the_credits_are_told_by_a_nudge_when_nothing_else_is_said);
        tcase_add_test(all, no_frame_ever_finds_no_buffer_and_nobody_waits_for_ever);
        tcase_add_test(all, the_next_nudge_waits_for_the_echo_of_the_last);
        tcase_add_test(all, silence_is_death_and_a_sign_of_life_ends_it);
        tcase_add_test(all, a_peer_that_breaks_the_rules_is_found_out);
        tcase_add_test(all, counts_may_wrap);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
