// SPDX-License-Identifier: Apache-2.0
/*
 * A kvtierd process for one test: its configuration, socket, log and NVMe tier lie in a
 * scratch folder, and it may be stopped, killed and started again on them. The binary is
 * the one that the environment variable KVTIERD names.
 *
 * It dies with the test. daemon_fixture_deinit() fails the test when anything is left of
 * it: processes, shared memory, descriptors of the test.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How long the slowest step may take before a test gives it up: sanitizers are slow. */
#define DAEMON_PATIENCE_MS 60000u

struct daemon_options {
        uint64_t piece_bytes;         /* of an arena; 0: 32 MiB */
        uint32_t n_pieces;            /* 0: 2 */
        uint64_t nvme_bytes;          /* 0: no NVMe tier */
        const char *nvme_write;       /* NULL: "store" */
        const char *nvme_folder;      /* of data and catalog; NULL: in the scratch folder */
        const char *const *overrides; /* "key=value", for --set; ends with NULL; may be NULL */
        bool keeps_fds; /* the test has a library that never closes its descriptors */
};

struct daemon_fixture {
        struct daemon_options options;
        char folder[64];
        char socket[96];
        char config[96];
        char log[96];
        char nvme[128];    /* folder of the data file */
        char catalog[128];
        pid_t pid; /* 0: not running */
        long log_start; /* what this run has logged begins here */
        unsigned n_fds; /* of the test when it began */
};

/* Makes the folder and the configuration. */
void daemon_fixture_prepare(struct daemon_fixture *fixture, const struct daemon_options *options);
/* And starts the daemon. */
void daemon_fixture_init(struct daemon_fixture *fixture, const struct daemon_options *options);
/* Stops the daemon when it runs, looks for leftovers, removes the folder. */
void daemon_fixture_deinit(struct daemon_fixture *fixture);

/* Starts it and waits until it serves with all its memory. */
void daemon_start(struct daemon_fixture *fixture);
/* Starts it without waiting for more than the process. */
void daemon_launch(struct daemon_fixture *fixture);
void daemon_wait_ready(struct daemon_fixture *fixture);
/* True when it serves, false when it has refused to start. */
bool daemon_wait_outcome(struct daemon_fixture *fixture);
/* Waits for the end of one that was launched; returns its exit status, -1 for a signal. */
int daemon_wait_end(struct daemon_fixture *fixture);

/* Fails the test, with the log, when the daemon has ended by itself. */
void daemon_expect_alive(struct daemon_fixture *fixture);

/* SIGTERM: it has to drain and exit with 0. */
void daemon_stop(struct daemon_fixture *fixture);
void daemon_kill(struct daemon_fixture *fixture);

/* Waits for a line of this run's log that holds both texts. */
void daemon_wait_log(struct daemon_fixture *fixture, const char *event, const char *detail);
bool daemon_has_logged(const struct daemon_fixture *fixture, const char *event,
                       const char *detail);

/*
 * Gives an admin command, {"command":"status"}, and returns the answer (the last one of a
 * verification). NULL when the daemon does not answer. The caller frees it.
 */
json_t *daemon_ask(struct daemon_fixture *fixture, const char *command);

/* A number or boolean of the status: "sessions", "host.used_bytes", "nvme.objects". */
uint64_t daemon_number(struct daemon_fixture *fixture, const char *name);
/* Waits until it is @value. */
void daemon_wait_number(struct daemon_fixture *fixture, const char *name, uint64_t value);

/* Waits until every object is where the policy "store" wants it. */
void daemon_wait_written(struct daemon_fixture *fixture);
/* And what is there outlives a power loss. */
void daemon_wait_synced(struct daemon_fixture *fixture);
/* Drops what is not leased from one tier ("host", "nvme"), or from all (NULL). */
void daemon_evict(struct daemon_fixture *fixture, const char *tier);
/* Re-reads every stored object; returns how many were corrupt or unreadable. */
uint64_t daemon_verify(struct daemon_fixture *fixture);
/* The data file of the NVMe tier, to be damaged. The caller closes it. */
int daemon_open_data(const struct daemon_fixture *fixture);

unsigned daemon_n_fds(const struct daemon_fixture *fixture);
uint64_t daemon_rss_bytes(const struct daemon_fixture *fixture);

/* Monotonic milliseconds, for deadlines. */
uint64_t daemon_now_ms(void);
/* A pause between two looks at something that sends no event. */
void daemon_pause(void);
