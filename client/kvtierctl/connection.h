// SPDX-License-Identifier: Apache-2.0
/*
 * The line to kvtierd: ADMIN messages with JSON text both ways. Blocking, one question at a
 * time. An answer is one or several documents, each on a line of its own; one message may
 * hold part of a line.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct connection {
        int fd;
        uint64_t session;
        uint64_t request;
        uint8_t boot_id[16];
        pid_t daemon_pid; /* 0: in another pid namespace */
        const char *path;
};

/*
 * Connects to the socket at @path (kept) and shakes hands. 0, or a negative errno with
 * @why saying what to do.
 */
int connection_open(struct connection *connection, const char *path, struct why *why);
void connection_close(struct connection *connection);

/*
 * Asks @command and calls @on_document for each document of the answer, which stays the
 * connection's. 0, or a negative errno with @why.
 */
int connection_ask(struct connection *connection, const json_t *command,
                   void (*on_document)(void *user, json_t *document), void *user, struct why *why);
