// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

static _Atomic int threshold = LOG_LEVEL_INFO;
static log_journal_fn send_to_journal;

static const char *const level_names[] = {
        [LOG_LEVEL_ERROR] = "error",
        [LOG_LEVEL_WARNING] = "warning",
        [LOG_LEVEL_INFO] = "info",
        [LOG_LEVEL_DEBUG] = "debug",
};

/* Priorities of syslog(3), which the journal reads as a "<N>" prefix. */
static const int level_priorities[] = {
        [LOG_LEVEL_ERROR] = 3,
        [LOG_LEVEL_WARNING] = 4,
        [LOG_LEVEL_INFO] = 6,
        [LOG_LEVEL_DEBUG] = 7,
};

void log_set_level(enum log_level level)
{
        atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void log_set_journal(log_journal_fn send)
{
        send_to_journal = send;
}

int log_level_parse(const char *name, enum log_level *ret_level)
{
        for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
                if (!strcmp(name, level_names[i])) {
                        *ret_level = (enum log_level)i;
                        return 0;
                }
        }
        return err_raise(-EINVAL);
}

/* systemd names the device and inode of the stream that it connected to the journal. */
static bool stderr_is_journal(void)
{
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long device, inode;
        struct stat status;

        if (!stream || sscanf(stream, "%lu:%lu", &device, &inode) != 2)
                return false;
        return !fstat(STDERR_FILENO, &status) && status.st_dev == device && status.st_ino == inode;
}

static size_t prefix(char *line, size_t size, bool is_journal, enum log_level level,
                     const char *event)
{
        struct timespec now;
        struct tm utc;
        char stamp[32];
        int used;

        if (is_journal) {
                used = snprintf(line, size, "<%d>%s", level_priorities[level], event);
        } else {
                clock_gettime(CLOCK_REALTIME, &now);
                gmtime_r(&now.tv_sec, &utc);
                strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc);
                used = snprintf(line, size, "%s.%03ldZ %s %s", stamp, now.tv_nsec / 1000000,
                                level_names[level], event);
        }
        return used < 0 ? 0 : (size_t)used < size ? (size_t)used : size - 1;
}

struct log_value log_quoted(const char *text)
{
        struct log_value value;
        char *at = value.text, *end = value.text + sizeof(value.text);

        *at++ = '"';
        /* Room for an escape, the last quote and the NUL. */
        for (; *text && end - at >= 4; text++) {
                bool escaped = *text == '"' || *text == '\\' || *text == '\n';

                if (escaped)
                        *at++ = '\\';
                *at++ = *text == '\n' ? 'n' : *text;
        }
        *at++ = '"';
        *at = '\0';
        return value;
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
        char line[1024];
        va_list arguments;
        bool is_journal;
        size_t used;
        int more;

        if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed))
                return;

        is_journal = stderr_is_journal();
        used = prefix(line, sizeof(line) - 1, is_journal, level, event);
        if (*format) {
                line[used++] = ' ';
                va_start(arguments, format);
                more = vsnprintf(line + used, sizeof(line) - 1 - used, format, arguments);
                va_end(arguments);
                if (more > 0)
                        used += (size_t)more < sizeof(line) - 1 - used ? (size_t)more
                                                                       : sizeof(line) - 2 - used;
        }
        for (size_t i = 0; i < used; i++)
                if ((unsigned char)line[i] < ' ')
                        line[i] = '?';
        line[used] = '\0';
        if (is_journal && send_to_journal &&
            !send_to_journal(level_priorities[level], strchr(line, '>') + 1))
                return;
        line[used++] = '\n';

        /* Nothing useful can be done when the log itself cannot be written. */
        if (write(STDERR_FILENO, line, used) < 0)
                return;
}
