// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Where the code was is nothing that a reader of the journal needs. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include "daemon/log_journal.h"

#define KEY_MAX (64u - sizeof("KVTIER_") + 1) /* the journal takes no longer names */

static char *end_of(struct log_record *record)
{
        return record->bytes + record->used;
}

static size_t room(const struct log_record *record)
{
        return sizeof(record->bytes) - record->used;
}

/* What stands from @start to the end of the bytes is a field. */
static void close_field(struct log_record *record, size_t start)
{
        record->fields[record->n_fields++] =
                (struct iovec){record->bytes + start, record->used - start};
}

__attribute__((format(printf, 2, 3))) static void add_field(struct log_record *record,
                                                            const char *format, ...)
{
        size_t start = record->used;
        va_list arguments;
        int n;

        va_start(arguments, format);
        n = vsnprintf(end_of(record), room(record), format, arguments);
        va_end(arguments);
        if (n < 0 || (size_t)n >= room(record))
                return;
        record->used += (size_t)n;
        close_field(record, start);
}

static void put(struct log_record *record, char byte)
{
        if (room(record))
                record->bytes[record->used++] = byte;
}

/* Copies a value and returns what stands behind it. */
static const char *put_value(struct log_record *record, const char *at)
{
        bool is_quoted = *at == '"';

        for (at += is_quoted; *at && *at != (is_quoted ? '"' : ' '); at++) {
                bool is_escaped = is_quoted && at[0] == '\\' && at[1];

                at += is_escaped;
                put(record, is_escaped && *at == 'n' ? '\n' : *at);
        }
        return at + (is_quoted && *at == '"');
}

/* One pair at @at; returns what stands behind it, NULL when there is none. */
static const char *add_pair(struct log_record *record, const char *at)
{
        size_t start = record->used, length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");

        if (!length || length > KEY_MAX || at[length] != '=' || record->n_fields == LOG_FIELDS_MAX)
                return NULL;
        for (const char *letter = "KVTIER_"; *letter; letter++)
                put(record, *letter);
        for (size_t i = 0; i < length; i++)
                put(record, (char)toupper((unsigned char)at[i]));
        put(record, '=');
        at = put_value(record, at + length + 1);
        /* Cut short it would be another value. */
        if (!room(record))
                return NULL;
        close_field(record, start);
        return at;
}

void log_record_init(struct log_record *record, int priority, const char *line)
{
        const char *at = line + strcspn(line, " ");

        record->n_fields = record->used = 0;
        add_field(record, "MESSAGE=%s", line);
        add_field(record, "PRIORITY=%d", priority);
        add_field(record, "SYSLOG_IDENTIFIER=kvtierd");
        add_field(record, "KVTIER_EVENT=%.*s", (int)(at - line), line);
        while (at && *at == ' ')
                at = add_pair(record, at + 1);
}

int log_journal_send(int priority, const char *line)
{
        struct log_record record;

        /* In a container the stream may be the journal's and its socket not there: then
         * sd_journal_sendv() says that it took what it has dropped. */
        if (access("/run/systemd/journal/socket", W_OK))
                return -errno;
        log_record_init(&record, priority, line);
        return sd_journal_sendv(record.fields, (int)record.n_fields);
}
