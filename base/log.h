// SPDX-License-Identifier: Apache-2.0
/*
 * One structured line an event: "level event key=value ...". To stderr, with a time
 * stamp or, when that is the journal's stream, with a priority; or to the journal itself. Only the
 * daemon and the CLI log; libraries return errors. Callable from any thread.
 */
#pragma once

enum log_level {
        LOG_LEVEL_ERROR,
        LOG_LEVEL_WARNING,
        LOG_LEVEL_INFO,
        LOG_LEVEL_DEBUG,
};

/* Lines above @level are dropped. The default is LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);

/*
 * What takes a line, "event key=value ...", when stderr is the journal's stream: with its
 * fields. Unless it returns 0 the line goes to stderr. Set once, before there are threads.
 */
typedef int (*log_journal_fn)(int priority, const char *line);
void log_set_journal(log_journal_fn send);

/*
 * Parses "error", "warning", "info" or "debug". Returns 0, or -EINVAL for any other
 * name.
 */
int log_level_parse(const char *name, enum log_level *ret_level);

/*
 * @event is a word such as "session_open"; @format gives the rest as key=value pairs,
 * values with spaces in double quotes: log_quoted(), unless their text is our own. Cut at
 * 1,024 bytes. Control characters in the result are replaced, so that no value can forge
 * a line.
 */
void log_event(enum log_level level, const char *event, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

struct log_value {
        char text[768];
};

/*
 * A value in double quotes, in which quotes, backslashes and newlines are escaped: no text
 * of somebody else's can forge a pair. Cut where it is too long. Its text lives until the
 * end of the statement that calls this: log_info("hello", "name=%s", log_quoted(name).text).
 */
struct log_value log_quoted(const char *text);

#define log_error(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warning(event, ...) log_event(LOG_LEVEL_WARNING, event, __VA_ARGS__)
#define log_info(event, ...) log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...) log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__)
