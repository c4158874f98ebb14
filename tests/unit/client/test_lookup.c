// SPDX-License-Identifier: Apache-2.0
/* The resolver is the test's: it does not answer before it is told to. */
#include <check.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/rdma/lookup.h"

static struct sockaddr_in answers[2] = {
        {.sin_family = AF_INET, .sin_port = 1},
        {.sin_family = AF_INET, .sin_port = 2},
};
static struct addrinfo infos[2];
static sem_t asked, may_answer, answered;
static int wake_fd;

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret_infos)
{
        bool is_number = !strcmp(host, "10.0.0.1");

        ck_assert_str_eq(service, "7428");
        if (hints->ai_flags & AI_NUMERICHOST && !is_number)
                return EAI_NONAME;
        if (!is_number) {
                sem_post(&asked);
                sem_wait(&may_answer);
        }
        for (unsigned i = 0; i < 2; i++)
                infos[i] = (struct addrinfo){.ai_addr = (struct sockaddr *)&answers[i],
                                             .ai_addrlen = sizeof(answers[i])};
        infos[0].ai_next = is_number ? NULL : &infos[1];
        *ret_infos = infos;
        return 0;
}

void freeaddrinfo(struct addrinfo *given)
{
        ck_assert_ptr_eq(given, infos);
        sem_post(&answered);
}

static void setup(void)
{
        sem_init(&asked, 0, 0);
        sem_init(&may_answer, 0, 0);
        sem_init(&answered, 0, 0);
        wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        ck_assert_int_ge(wake_fd, 0);
}

static void teardown(void)
{
        close(wake_fd);
}

static bool rings(int ms)
{
        struct pollfd fd = {.fd = wake_fd, .events = POLLIN};

        return poll(&fd, 1, ms) == 1;
}

START_TEST(numbers_are_read_at_once)
{
        struct lookup_result result;
        struct lookup *lookup;

        ck_assert_int_eq(lookup_new(&lookup, "10.0.0.1", "7428", wake_fd), 0);
        ck_assert(lookup_is_done(lookup, &result));
        ck_assert(rings(0));
        ck_assert_int_eq(result.error, 0);
        ck_assert_uint_eq(result.n, 1);
        lookup_free(lookup);
}
END_TEST

START_TEST(a_name_is_asked_for_beside_its_owner_and_has_all_its_addresses)
{
        struct lookup_result result;
        struct lookup *lookup;

        ck_assert_int_eq(lookup_new(&lookup, "node", "7428", wake_fd), 0);
        sem_wait(&asked);
        ck_assert(!lookup_is_done(lookup, &result));
        ck_assert(!rings(0));
        sem_post(&may_answer);
        ck_assert(rings(10000));
        ck_assert(lookup_is_done(lookup, &result));
        ck_assert_uint_eq(result.n, 2);
        ck_assert_mem_eq(&result.addresses[1], &answers[1], sizeof(answers[1]));
        lookup_free(lookup);
}
END_TEST

START_TEST(nobody_waits_for_a_name_server)
{
        struct lookup *lookup;

        ck_assert_int_eq(lookup_new(&lookup, "node", "7428", wake_fd), 0);
        sem_wait(&asked);
        lookup_free(lookup);
        /* A checker of memory sees the thread use what is still there. */
        sem_post(&may_answer);
        sem_wait(&answered);
        ck_assert(rings(10000));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/lookup");
        TCase *all = tcase_create("lookup");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, teardown);
        tcase_add_test(all, numbers_are_read_at_once);
        tcase_add_test(all, a_name_is_asked_for_beside_its_owner_and_has_all_its_addresses);
        tcase_add_test(all, nobody_waits_for_a_name_server);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
