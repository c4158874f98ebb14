// SPDX-License-Identifier: Apache-2.0
/*
 * Log lines as records of the systemd journal: the line as the message, and its event and
 * pairs as fields, so that `journalctl KVTIER_EVENT=session_closed KVTIER_SESSION=7` finds
 * them. A pair key=value is the field KVTIER_KEY, without quotes and escapes. Any thread.
 */
#pragma once

#include <stddef.h>
#include <sys/uio.h>

#define LOG_FIELDS_MAX 32u /* further pairs are in the message alone */

struct log_record {
        struct iovec fields[LOG_FIELDS_MAX];
        size_t n_fields;
        size_t used;
        char bytes[4096];
};

/* @line is "event key=value ..."; what comes after a word that is no pair has no field. */
void log_record_init(struct log_record *record, int priority, const char *line);

/* 0, or a negative errno: the journal did not take it. A log_journal_fn. */
int log_journal_send(int priority, const char *line);
