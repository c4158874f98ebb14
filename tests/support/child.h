// SPDX-License-Identifier: Apache-2.0
/*
 * Forked processes that play clients: they talk to the test through two pipes, word by
 * word, and die with it. Start them before the test opens a session of its own, whose
 * threads a fork would leave behind.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct child {
        pid_t pid; /* 0 in the child itself */
        int in;    /* words from the other side */
        int out;
};

/* Runs @run(child's view, @argument) in a new process, which exits 0 when it returns. */
void child_start(struct child *child, void (*run)(struct child *self, void *argument),
                 void *argument);

/* Either side. child_hear() fails the test when the other side is gone. */
void child_say(const struct child *child, uint64_t word);
uint64_t child_hear(const struct child *child);

/* kill -9, and waits until it is gone. */
void child_kill(struct child *child);

/* Waits for its end, which has to be a good one. */
void child_join(struct child *child);
