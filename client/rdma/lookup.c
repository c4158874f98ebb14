// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/thread.h"
#include "client/rdma/lookup.h"

/* The owner's and the thread's: who is last frees it. */
struct lookup {
        char *host, *service;
        int wake_fd; /* a copy */
        pthread_mutex_t lock;
        uint32_t n_refs;
        bool is_done;
        struct lookup_result result;
};

static void unref(struct lookup *lookup)
{
        uint32_t n_left;

        pthread_mutex_lock(&lookup->lock);
        n_left = --lookup->n_refs;
        pthread_mutex_unlock(&lookup->lock);
        if (n_left)
                return;
        pthread_mutex_destroy(&lookup->lock);
        close_fdp(&lookup->wake_fd);
        free(lookup->host);
        free(lookup->service);
        free(lookup);
}

static int ask(const struct lookup *lookup, int flags, struct lookup_result *ret_result)
{
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *found = NULL;
        struct lookup_result result = {
                .error = getaddrinfo(lookup->host, lookup->service, &hints, &found),
        };

        if (!result.error)
                for (const struct addrinfo *at = found; at && result.n < LOOKUP_ADDRESSES_MAX;
                     at = at->ai_next)
                        memcpy(&result.addresses[result.n++], at->ai_addr, at->ai_addrlen);
        if (found)
                freeaddrinfo(found);
        *ret_result = result;
        return result.error;
}

static void finish(struct lookup *lookup, const struct lookup_result *result)
{
        static const uint64_t one = 1;
        ssize_t ignored;

        pthread_mutex_lock(&lookup->lock);
        lookup->result = *result;
        lookup->is_done = true;
        pthread_mutex_unlock(&lookup->lock);
        ignored = write(lookup->wake_fd, &one, sizeof(one));
        (void)ignored;
}

static void *run(void *argument)
{
        struct lookup *lookup = argument;
        struct lookup_result result;

        ask(lookup, 0, &result);
        finish(lookup, &result);
        unref(lookup);
        return NULL;
}

static int start_thread(struct lookup *lookup)
{
        pthread_t thread;
        int r;

        lookup->n_refs++;
        r = thread_start(&thread, run, lookup);
        if (r)
                lookup->n_refs--;
        else
                pthread_detach(thread);
        return r;
}

int lookup_new(struct lookup **ret_lookup, const char *host, const char *service, int wake_fd)
{
        struct lookup *lookup = calloc(1, sizeof(*lookup));
        struct lookup_result result;
        int r = 0;

        if (!lookup)
                return err_raise(-ENOMEM);
        pthread_mutex_init(&lookup->lock, NULL);
        lookup->n_refs = 1;
        lookup->host = strdup(host);
        lookup->service = strdup(service);
        lookup->wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 0);
        if (!lookup->host || !lookup->service || lookup->wake_fd < 0)
                r = err_raise(-ENOMEM);
        else if (ask(lookup, AI_NUMERICHOST, &result) != EAI_NONAME)
                finish(lookup, &result);
        else
                r = start_thread(lookup);
        if (r) {
                unref(lookup);
                return r;
        }
        *ret_lookup = lookup;
        return 0;
}

bool lookup_is_done(struct lookup *lookup, struct lookup_result *ret_result)
{
        bool is_done;

        pthread_mutex_lock(&lookup->lock);
        is_done = lookup->is_done;
        if (is_done)
                *ret_result = lookup->result;
        pthread_mutex_unlock(&lookup->lock);
        return is_done;
}

void lookup_free(struct lookup *lookup)
{
        if (lookup)
                unref(lookup);
}
