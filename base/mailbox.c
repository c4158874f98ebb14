// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mailbox.h"

int mailbox_init(struct mailbox *mailbox)
{
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        if (fd < 0)
                return err_raise(-errno);
        *mailbox = (struct mailbox){.fd = fd};
        pthread_mutex_init(&mailbox->lock, NULL);
        return 0;
}

void mailbox_deinit(struct mailbox *mailbox)
{
        close(mailbox->fd);
        mailbox->fd = -1;
        pthread_mutex_destroy(&mailbox->lock);
}

/* An eventfd refuses only what would overflow it, which leaves it readable. */
static void ring(struct mailbox *mailbox)
{
        uint64_t one = 1;
        ssize_t ignored = write(mailbox->fd, &one, sizeof(one));

        (void)ignored;
}

void mailbox_post(struct mailbox *mailbox, struct job *job)
{
        bool was_empty;

        if (atomic_exchange_explicit(&job->is_posted, true, memory_order_acq_rel))
                return;
        pthread_mutex_lock(&mailbox->lock);
        job->next = NULL;
        was_empty = !mailbox->first;
        if (was_empty)
                mailbox->first = job;
        else
                mailbox->last->next = job;
        mailbox->last = job;
        if (was_empty)
                ring(mailbox);
        pthread_mutex_unlock(&mailbox->lock);
}

static struct job *take_all(struct mailbox *mailbox)
{
        struct job *jobs;
        uint64_t count;
        ssize_t ignored;

        pthread_mutex_lock(&mailbox->lock);
        jobs = mailbox->first;
        mailbox->first = mailbox->last = NULL;
        ignored = read(mailbox->fd, &count, sizeof(count));
        pthread_mutex_unlock(&mailbox->lock);
        (void)ignored;
        return jobs;
}

size_t mailbox_run(struct mailbox *mailbox)
{
        struct job *next;
        size_t n = 0;

        for (struct job *job = take_all(mailbox); job; job = next, n++) {
                next = job->next;
                /*
                 * Cleared first: a post from now on means that the job has to run again. By an
                 * exchange: what was written before a post that found it waiting is seen by
                 * this run. A mere store could be seen by others after what the run reads.
                 */
                atomic_exchange_explicit(&job->is_posted, false, memory_order_acq_rel);
                job->run(job);
        }
        return n;
}
