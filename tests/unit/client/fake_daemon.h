// SPDX-License-Identifier: Apache-2.0
/*
 * A daemon that does only what a test tells it: the test's own thread receives a message,
 * looks at it and answers, while the library's thread lives its life. One connection at a
 * time; everything it waits for has a limit of some seconds, then the test fails.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "proto/presence.h"
#include "proto/wire.h"

#define FAKE_ARENAS      2
#define FAKE_ARENA_BYTES (1u << 20)
#define FAKE_CHUNK       16u
#define FAKE_OBJECT      8192u

struct fake {
        char folder[64];
        char path[108];
        int listener;
        int socket; /* -1: nobody is connected */
        int table_fd;
        int arena_fds[FAKE_ARENAS];
        uint8_t *arenas[FAKE_ARENAS];
        uint32_t first_arena_id;
        void *table;
        uint64_t table_bytes;
        uint64_t seed; /* of bank 0 of the attached layout */
        uint8_t boot_id[16];
        uint8_t secret[16];
        uint64_t session;
        struct kvt_layout layout;
        const uint16_t *shards; /* of sessions that it opens; NULL: all */
        uint32_t n_shards;
        uint8_t packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
        /* faults to inject into the handshake */
        bool leave_table_unsealed;
        bool leave_arenas_unsealed;
        uint32_t welcome_status;
        uint32_t attached_status;
        const char *why;
};

struct fake_item {
        uint32_t index;
        uint32_t status;
        uint64_t lease;
        uint64_t bytes; /* 0: no extent */
        uint32_t arena; /* number, not id */
        uint64_t offset;
};

/* Memory, socket and a fresh boot id. @with_state adds a state group to the layout. */
void fake_start(struct fake *fake, bool with_state);

/* Everything closed and removed; the path refuses connections. */
void fake_stop(struct fake *fake);

/* As after a restart: new boot id, new table, new arenas (other ids) at the same path. */
void fake_restart(struct fake *fake);

void fake_accept(struct fake *fake);
void fake_hang_up(struct fake *fake);

/* Accepts and does the whole handshake. */
void fake_greet(struct fake *fake);

/* Opens a session with the fake's layout, greeting it meanwhile. */
struct kvt_session *fake_open(struct fake *fake);

/* Opens with a refusal or fault set in @fake. */
enum kvt_status fake_open_refused(struct fake *fake, char *ret_why, size_t why_bytes);

/* Waits until the session says that it is (not) attached. */
void fake_await(struct kvt_session *session, bool attached);

/* The next message, which must be of @kind. Valid until the next one. */
const void *fake_expect(struct fake *fake, uint16_t kind);

/* Fails if the client sends anything within @ms. */
void fake_expect_silence(struct fake *fake, int ms);

/* Waits for the client to hang up. */
void fake_expect_hang_up(struct fake *fake);

void fake_send(struct fake *fake, const void *packet, size_t length, int fd);
void fake_result(struct fake *fake, uint64_t request, bool more, const struct fake_item *items,
                 uint32_t n);
void fake_granted(struct fake *fake, uint64_t request, uint32_t status, uint32_t n_granted);

/* Puts a boundary into the table. */
void fake_put(struct fake *fake, const struct kvt_digest *digest, uint64_t present,
              uint64_t resident);
void fake_set_state(struct fake *fake, uint32_t state);
void fake_beat(struct fake *fake, uint64_t ns);
