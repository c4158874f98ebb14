// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"

void child_start(struct child *child, void (*run)(struct child *self, void *argument),
                 void *argument)
{
        int to_child[2], to_test[2];
        pid_t parent = getpid();

        ck_assert_int_eq(pipe2(to_child, O_CLOEXEC), 0);
        ck_assert_int_eq(pipe2(to_test, O_CLOEXEC), 0);
        child->pid = fork();
        ck_assert_int_ge(child->pid, 0);
        if (!child->pid) {
                struct child self = {.in = to_child[0], .out = to_test[1]};

                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() != parent)
                        _exit(1);
                close(to_child[1]);
                close(to_test[0]);
                run(&self, argument);
                _exit(0);
        }
        close(to_child[0]);
        close(to_test[1]);
        child->in = to_test[0];
        child->out = to_child[1];
}

void child_say(const struct child *child, uint64_t word)
{
        ck_assert_int_eq(write(child->out, &word, sizeof(word)), sizeof(word));
}

uint64_t child_hear(const struct child *child)
{
        uint64_t word = 0;
        ssize_t n;

        do {
                n = read(child->in, &word, sizeof(word));
        } while (n < 0 && errno == EINTR);
        ck_assert_msg(n == sizeof(word), "process %d is gone", (int)child->pid);
        return word;
}

static int end(struct child *child)
{
        int status;

        ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
        close(child->in);
        close(child->out);
        child->pid = 0;
        return status;
}

void child_kill(struct child *child)
{
        ck_assert_int_eq(kill(child->pid, SIGKILL), 0);
        end(child);
}

void child_join(struct child *child)
{
        int status = end(child);

        ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "it ended with status %#x",
                      (unsigned)status);
}
