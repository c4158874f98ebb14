// SPDX-License-Identifier: Apache-2.0
/*
 * Jobs handed from any thread to one thread: a list and an eventfd that can be polled.
 *
 * A job is part of the object that it is about, so that posting never allocates and never
 * fails. Posting one that still waits changes nothing: it runs once, after the last post.
 * Jobs run in the order of their posts, on the thread that calls mailbox_run(), and no lock
 * is held then: a job may post jobs, the one that runs included.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define job_owner(job, type, member) ((type *)(void *)((char *)(job)-offsetof(type, member)))

struct job {
        void (*run)(struct job *job);
        struct job *next; /* the mailbox's */
        atomic_bool is_posted;
};

struct mailbox {
        pthread_mutex_t lock;
        struct job *first;
        struct job *last;
        int fd; /* readable while jobs wait; never read or written by anybody else */
};

/* 0 or negative. */
int mailbox_init(struct mailbox *mailbox);

/* Jobs that still wait are forgotten. */
void mailbox_deinit(struct mailbox *mailbox);

/* Any thread. */
void mailbox_post(struct mailbox *mailbox, struct job *job);

/* Runs what waits at the moment of the call; what is posted meanwhile waits for the next. */
size_t mailbox_run(struct mailbox *mailbox);
