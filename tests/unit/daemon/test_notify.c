// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/notify.h"

/* Stands for the service manager: what was sent last is in @message. */
static int manager = -1;
static char message[512];

static void start(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char name[128];
        int length;

        /* An abstract name leaves nothing on disk. */
        length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                          "kvtier-test-notify-%d", getpid());
        manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(manager, 0);
        ck_assert_int_eq(
                bind(manager, (struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
                0);
        snprintf(name, sizeof(name), "@%s", address.sun_path + 1);
        setenv("NOTIFY_SOCKET", name, 1);
}

static void stop(void)
{
        close(manager);
        unsetenv("NOTIFY_SOCKET");
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
}

static const char *hear(void)
{
        ssize_t n = recv(manager, message, sizeof(message) - 1, MSG_DONTWAIT);

        message[n > 0 ? n : 0] = 0;
        return message;
}

START_TEST(states_reach_the_manager)
{
        notify_ready();
        ck_assert_str_eq(hear(), "READY=1");
        notify_status("%d sessions", 3);
        ck_assert_str_eq(hear(), "STATUS=3 sessions");
        notify_watchdog();
        ck_assert_str_eq(hear(), "WATCHDOG=1");
        notify_stopping(20);
        ck_assert_str_eq(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000");
        ck_assert_str_eq(hear(), "");
}
END_TEST

START_TEST(reloading_carries_the_time)
{
        struct timespec now;
        uint64_t sent_us;

        notify_reloading();
        ck_assert_int_eq(sscanf(hear(), "RELOADING=1\nMONOTONIC_USEC=%" SCNu64, &sent_us), 1);
        clock_gettime(CLOCK_MONOTONIC, &now);
        ck_assert_uint_le(sent_us, (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
        ck_assert_uint_gt(sent_us, ((uint64_t)now.tv_sec - 60) * 1000000);
}
END_TEST

START_TEST(long_status_is_cut)
{
        char text[1000];

        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        notify_status("%s", text);
        ck_assert_uint_eq(strlen(hear()), strlen("STATUS=") + 255);
}
END_TEST

START_TEST(watchdog_is_fed_three_times_per_timeout)
{
        char pid[16];

        ck_assert_uint_eq(notify_watchdog_period_ms(), 0);
        setenv("WATCHDOG_USEC", "30000000", 1);
        ck_assert_uint_eq(notify_watchdog_period_ms(), 10000);
        setenv("WATCHDOG_PID", "1", 1);
        ck_assert_uint_eq(notify_watchdog_period_ms(), 0);
        snprintf(pid, sizeof(pid), "%d", getpid());
        setenv("WATCHDOG_PID", pid, 1);
        ck_assert_uint_eq(notify_watchdog_period_ms(), 10000);
        setenv("WATCHDOG_USEC", "100", 1);
        ck_assert_uint_eq(notify_watchdog_period_ms(), 1);
}
END_TEST

START_TEST(an_absent_manager_is_no_failure)
{
        stop();
        notify_ready();
        notify_status("nobody listens");
        setenv("NOTIFY_SOCKET", "/absent/socket", 1);
        notify_ready();
        notify_stopping(1);
        notify_watchdog();
        ck_assert_uint_eq(notify_watchdog_period_ms(), 0);
        manager = -1;
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/notify");
        TCase *states = tcase_create("states");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(states, start, stop);
        tcase_add_test(states, states_reach_the_manager);
        tcase_add_test(states, reloading_carries_the_time);
        tcase_add_test(states, long_status_is_cut);
        tcase_add_test(states, watchdog_is_fed_three_times_per_timeout);
        tcase_add_test(states, an_absent_manager_is_no_failure);
        suite_add_tcase(suite, states);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
