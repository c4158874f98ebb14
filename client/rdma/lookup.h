// SPDX-License-Identifier: Apache-2.0
/*
 * The addresses of a name. Numbers are read at once; names are asked for in a thread of
 * their own, which nobody ever waits for: a name server that does not answer takes as long as
 * the system's resolver likes, and a session may end meanwhile. One owner.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

#define LOOKUP_ADDRESSES_MAX 8u

struct lookup;

struct lookup_result {
        int error; /* of getaddrinfo() */
        uint32_t n;
        struct sockaddr_storage addresses[LOOKUP_ADDRESSES_MAX];
};

/* Writes 1 to the eventfd @wake_fd when it is done, maybe at once. 0 or negative. */
int lookup_new(struct lookup **ret_lookup, const char *host, const char *service, int wake_fd);

/* False: not yet. */
bool lookup_is_done(struct lookup *lookup, struct lookup_result *ret_result);

/* Done or not. NULL is fine. */
void lookup_free(struct lookup *lookup);
