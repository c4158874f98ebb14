// SPDX-License-Identifier: Apache-2.0
#include "trace_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

enum { LINE_BYTES_MAX = 64 << 20, TOKENS_MAX = 1 << 28, TOKENS_A_BYTE = 4 };

/* What is known between lines. */
struct reader {
        struct trace *trace;
        struct why *why;
        /* text and azure: names of sessions are numbered as they come */
        char session_name[64];
        uint32_t session;
        uint64_t start_us; /* of the session, or of the first line */
        uint64_t last_us;
        uint32_t next_id;
};

struct format {
        const char *name;
        bool (*matches)(const char *line);
        int (*read)(struct reader *reader, const char *line);
        bool has_header;
};

static int refuse(const struct reader *reader, const char *what)
{
        why_set(reader->why, "%s", what);
        return err_raise(-EINVAL);
}

/* ---- JSON ---- */

static int member_integer(const struct reader *reader, const json_t *object, const char *name,
                          uint64_t max, uint64_t *ret)
{
        const json_t *value = json_object_get(object, name);

        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (uint64_t)json_integer_value(value) > max) {
                why_set(reader->why, "\"%s\" must be a number from 0 to %" PRIu64, name, max);
                return err_raise(-EINVAL);
        }
        *ret = (uint64_t)json_integer_value(value);
        return 0;
}

static int item_number(const struct reader *reader, const json_t *array, size_t at, double max,
                       double *ret)
{
        const json_t *value = json_array_get(array, at);

        if (!json_is_number(value) || json_number_value(value) < 0 ||
            json_number_value(value) > max) {
                why_set(reader->why, "number %zu of a list must be from 0 to %.0f", at + 1, max);
                return err_raise(-EINVAL);
        }
        *ret = json_number_value(value);
        return 0;
}

static json_t *parse(const struct reader *reader, const char *line)
{
        json_error_t error;
        json_t *root = json_loads(line, 0, &error);

        if (!root)
                why_set(reader->why, "not JSON: %s", error.text);
        return root;
}

/* ---- chains ---- */

/* 0 when they do not fill a chunk. */
static uint32_t blocks_a_chunk(const struct reader *reader, uint32_t block_tokens)
{
        if (!block_tokens || reader->trace->chunk_tokens % block_tokens) {
                why_set(reader->why, "blocks of %u tokens do not fill chunks of %u tokens",
                        block_tokens, reader->trace->chunk_tokens);
                return 0;
        }
        return reader->trace->chunk_tokens / block_tokens;
}

static int refuse_length(const struct reader *reader, uint64_t n_ids, uint64_t n_expected)
{
        why_set(reader->why, "%" PRIu64 " ids where the length needs %" PRIu64, n_ids, n_expected);
        return err_raise(-EINVAL);
}

/* One range of ids, of which those that end a chunk are taken. @position counts blocks. */
static int chain_range(struct reader *reader, const json_t *range, uint32_t n_blocks,
                       uint64_t *position, uint32_t *last)
{
        double first = 0, count = 0;
        int r;

        r = item_number(reader, range, 0, UINT32_MAX - 1.0, &first);
        if (!r)
                r = item_number(reader, range, 1, TOKENS_MAX, &count);
        if (r < 0)
                return r;
        for (uint64_t i = n_blocks - 1 - *position % n_blocks; i < (uint64_t)count; i += n_blocks) {
                r = trace_chunk(reader->trace, *last, (uint32_t)(first + (double)i), last);
                if (r < 0)
                        return r;
        }
        *position += (uint64_t)count;
        return 0;
}

/* Full blocks only, as ranges [[first, count]...]. */
static int chain_ranges(struct reader *reader, const json_t *ranges, uint64_t tokens,
                        uint32_t block_tokens, uint32_t *ret_last)
{
        uint32_t n_blocks = blocks_a_chunk(reader, block_tokens), last = TRACE_NONE;
        uint64_t position = 0;
        const json_t *range;
        size_t i;
        int r;

        if (!n_blocks)
                return err_raise(-EINVAL);
        if (!json_is_array(ranges))
                return refuse(reader, "no list of id ranges");
        json_array_foreach(ranges, i, range) {
                r = chain_range(reader, range, n_blocks, &position, &last);
                if (r < 0)
                        return r;
        }
        if (position != tokens / block_tokens)
                return refuse_length(reader, position, tokens / block_tokens);
        *ret_last = last;
        return 0;
}

/* ---- formats ---- */

enum { MOONCAKE_BLOCK_TOKENS = 512, MERGED_BLOCK_TOKENS = 64, TEXT_BLOCK_TOKENS = 64 };

static bool is_mooncake(const char *line)
{
        return strstr(line, "\"hash_ids\"");
}

static int chain_ids(struct reader *reader, const json_t *ids, uint64_t tokens, uint32_t *ret_last)
{
        uint64_t n_expected = (tokens + MOONCAKE_BLOCK_TOKENS - 1) / MOONCAKE_BLOCK_TOKENS;
        uint32_t n_blocks = blocks_a_chunk(reader, MOONCAKE_BLOCK_TOKENS), last = TRACE_NONE;
        int r;

        if (!n_blocks)
                return err_raise(-EINVAL);
        if (json_array_size(ids) != n_expected)
                return refuse_length(reader, json_array_size(ids), n_expected);
        for (size_t i = n_blocks - 1; i < tokens / MOONCAKE_BLOCK_TOKENS; i += n_blocks) {
                double id = 0;

                r = item_number(reader, ids, i, UINT32_MAX - 1.0, &id);
                if (!r)
                        r = trace_chunk(reader->trace, last, (uint32_t)id, &last);
                if (r < 0)
                        return r;
        }
        *ret_last = last;
        return 0;
}

static int read_mooncake(struct reader *reader, const char *line)
{
        json_t *root = parse(reader, line);
        uint64_t ms = 0, tokens = 0;
        uint32_t last = TRACE_NONE;
        int r = root ? 0 : err_raise(-EINVAL);

        if (!r)
                r = member_integer(reader, root, "timestamp", UINT32_MAX, &ms);
        if (!r)
                r = member_integer(reader, root, "input_length", TOKENS_MAX, &tokens);
        if (!r)
                r = chain_ids(reader, json_object_get(root, "hash_ids"), tokens, &last);
        if (!r)
                r = trace_append(reader->trace, ms * 1000, TRACE_NONE, (uint32_t)tokens, last);
        json_decref(root);
        return r;
}

static bool is_merged(const char *line)
{
        return strstr(line, "\"hash_ranges\"") && strstr(line, "\"timestamp\"");
}

static int read_merged(struct reader *reader, const char *line)
{
        json_t *root = parse(reader, line);
        uint64_t ms = 0, session = 0, tokens = 0;
        uint32_t last = TRACE_NONE;
        int r = root ? 0 : err_raise(-EINVAL);

        if (!r)
                r = member_integer(reader, root, "timestamp", UINT32_MAX, &ms);
        if (!r)
                r = member_integer(reader, root, "session", 1 << 24, &session);
        if (!r)
                r = member_integer(reader, root, "input_length", TOKENS_MAX, &tokens);
        if (!r)
                r = chain_ranges(reader, json_object_get(root, "hash_ranges"), tokens,
                                 MERGED_BLOCK_TOKENS, &last);
        if (!r)
                r = trace_append(reader->trace, ms * 1000, (uint32_t)session, (uint32_t)tokens,
                                 last);
        json_decref(root);
        return r;
}

static bool is_sessions(const char *line)
{
        return strstr(line, "\"block_size\"") && strstr(line, "\"requests\"");
}

static int read_session_request(struct reader *reader, const json_t *request,
                                uint32_t block_tokens)
{
        double seconds = 0, tokens = 0;
        uint32_t last = TRACE_NONE;
        int r;

        r = item_number(reader, request, 0, UINT32_MAX, &seconds);
        if (!r)
                r = item_number(reader, request, 1, TOKENS_MAX, &tokens);
        if (!r)
                r = chain_ranges(reader, json_array_get(request, 5), (uint64_t)tokens,
                                 block_tokens, &last);
        if (r < 0)
                return r;
        return trace_append(reader->trace, (uint64_t)(seconds * 1e6), reader->session,
                            (uint32_t)tokens, last);
}

static int read_session(struct reader *reader, const char *line)
{
        json_t *root = parse(reader, line), *request;
        uint64_t block_tokens = 0;
        size_t i;
        int r = root ? 0 : err_raise(-EINVAL);

        if (!r)
                r = member_integer(reader, root, "block_size", 1 << 20, &block_tokens);
        if (!r && !json_is_array(json_object_get(root, "requests")))
                r = refuse(reader, "\"requests\" must be a list");
        json_array_foreach(json_object_get(root, "requests"), i, request) {
                if (!r)
                        r = read_session_request(reader, request, (uint32_t)block_tokens);
                if (r < 0) {
                        why_prefix(reader->why, "request %zu", i + 1);
                        break;
                }
        }
        json_decref(root);
        trace_forget_ids(reader->trace);
        reader->session++;
        return r;
}

static bool is_text(const char *line)
{
        return strstr(line, "\"in_bytes\"") && strstr(line, "\"hash_ranges\"");
}

static int enter_text_session(struct reader *reader, const char *name)
{
        if (!name || strlen(name) >= sizeof(reader->session_name))
                return refuse(reader, "\"session\" must be a name of at most 63 bytes");
        if (strcmp(name, reader->session_name) != 0) {
                strcpy(reader->session_name, name);
                reader->start_us = reader->last_us;
                reader->session++;
        }
        return 0;
}

static int read_text(struct reader *reader, const char *line)
{
        json_t *root = parse(reader, line);
        uint64_t us = 0, bytes = 0;
        uint32_t last = TRACE_NONE;
        int r = root ? 0 : err_raise(-EINVAL);

        if (!r)
                r = member_integer(reader, root, "us", UINT32_MAX * 1000000ull, &us);
        if (!r)
                r = member_integer(reader, root, "in_bytes", TOKENS_MAX, &bytes);
        if (!r)
                r = enter_text_session(reader,
                                       json_string_value(json_object_get(root, "session")));
        if (!r)
                r = chain_ranges(reader, json_object_get(root, "hash_ranges"),
                                 bytes / TOKENS_A_BYTE, TEXT_BLOCK_TOKENS, &last);
        if (!r) {
                reader->last_us = reader->start_us + us;
                r = trace_append(reader->trace, reader->last_us, reader->session - 1,
                                 (uint32_t)(bytes / TOKENS_A_BYTE), last);
        }
        json_decref(root);
        return r;
}

static bool is_azure(const char *line)
{
        return strncmp(line, "TIMESTAMP,ContextTokens,GeneratedTokens", 39) == 0;
}

/* 2023-11-16 18:17:03.9799600 */
static const char *azure_time(const char *line, uint64_t *ret_us)
{
        struct tm tm = {0};
        const char *rest = strptime(line, "%Y-%m-%d %H:%M:%S", &tm);
        double fraction = 0;
        char *end;

        if (!rest || timegm(&tm) < 0)
                return NULL;
        if (*rest == '.') {
                fraction = strtod(rest, &end);
                rest = end;
        }
        *ret_us = (uint64_t)timegm(&tm) * 1000000 + (uint64_t)(fraction * 1e6);
        return rest;
}

static int read_azure(struct reader *reader, const char *line)
{
        uint32_t last = TRACE_NONE;
        uint64_t us = 0;
        const char *rest = azure_time(line, &us);
        unsigned long tokens;
        char *end;
        int r;

        if (!rest || *rest != ',')
                return refuse(reader, "a line must begin with a date, a time and a comma");
        tokens = strtoul(rest + 1, &end, 10);
        if (end == rest + 1 || *end != ',' || rest[1] == '-' || tokens > TOKENS_MAX)
                return refuse(reader, "ContextTokens must be a number");
        if (!reader->trace->n_requests)
                reader->start_us = us;
        if (us < reader->start_us)
                return refuse(reader, "a time before that of the first line");
        for (uint32_t i = 0; i < tokens / reader->trace->chunk_tokens; i++) {
                r = trace_chunk(reader->trace, last, reader->next_id++, &last);
                if (r < 0)
                        return r;
        }
        return trace_append(reader->trace, us - reader->start_us, TRACE_NONE, (uint32_t)tokens,
                            last);
}

static const struct format formats[] = {
        {"mooncake", is_mooncake, read_mooncake, false},
        {"merged", is_merged, read_merged, false},
        {"sessions", is_sessions, read_session, false},
        {"text", is_text, read_text, false},
        {"azure", is_azure, read_azure, true},
};

/* ---- files ---- */

static const struct format *format_of(const char *line)
{
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
                if (formats[i].matches(line))
                        return &formats[i];
        return NULL;
}

static bool is_sound(gzFile file)
{
        int error;

        gzerror(file, &error);
        return error == Z_OK;
}

/* The next line without its end, or NULL at the end of the file or when it cannot be read. */
static char *next_line(gzFile file, char **buffer, size_t *size)
{
        size_t length = 0;

        for (;;) {
                if (*size - length < 2) {
                        char *larger = *size < LINE_BYTES_MAX ? realloc(*buffer, *size * 2) : NULL;

                        if (!larger)
                                return NULL;
                        *buffer = larger;
                        *size *= 2;
                }
                if (!gzgets(file, *buffer + length, (int)(*size - length)))
                        return length && gzeof(file) && is_sound(file) ? *buffer : NULL;
                length += strlen(*buffer + length);
                if (length && (*buffer)[length - 1] == '\n') {
                        (*buffer)[length - 1] = '\0';
                        return *buffer;
                }
        }
}

static int read_lines(struct reader *reader, gzFile file)
{
        size_t size = 1 << 16;
        char *buffer = malloc(size);
        const struct format *format = NULL;
        uint64_t n_lines = 0;
        int r = buffer ? 0 : err_raise(-ENOMEM);

        while (!r && next_line(file, &buffer, &size)) {
                bool is_header = false;

                n_lines++;
                if (!buffer[0])
                        continue;
                if (!format) {
                        format = format_of(buffer);
                        is_header = format && format->has_header;
                }
                if (!format)
                        r = refuse(reader, "no known format of traces");
                else if (!is_header)
                        r = format->read(reader, buffer);
                if (r < 0)
                        why_prefix(reader->why, "line %" PRIu64, n_lines);
        }
        free(buffer);
        return r;
}

static int read_open(struct reader *reader, gzFile file)
{
        int r;

        r = read_lines(reader, file);
        if (r < 0)
                return r;
        if (!is_sound(file) || !gzeof(file))
                return refuse(reader, "damaged, cut short, or a line of more than 64 MiB");
        if (!reader->trace->n_requests)
                return refuse(reader, "no requests");
        return trace_finish(reader->trace);
}

int trace_file_read(struct trace *trace, const char *path, struct why *why)
{
        struct reader reader = {.trace = trace, .why = why};
        gzFile file = gzopen(path, "rbe");
        int r;

        if (!file) {
                why_set(why, "%s: %s", path, strerror(errno));
                return err_raise(errno ? -errno : -ENOMEM);
        }
        gzbuffer(file, 1 << 17);
        r = read_open(&reader, file);
        gzclose(file);
        if (r < 0)
                why_prefix(why, "%s", path);
        return r;
}
