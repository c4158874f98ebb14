// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/prompt.h"

#define FILE_BYTES_MAX (64u << 20)
#define SEPARATORS     " \t\r\n,"
#define HEX_DIGITS     "0123456789abcdefABCDEF"

static int read_all(FILE *file, char **ret_text)
{
        size_t length = 0, capacity = 0;
        _cleanup_free_ char *text = NULL;

        do {
                if (capacity - length < 4096) {
                        char *more = realloc(text, capacity = 2 * capacity + 65536);

                        if (!more)
                                return -ENOMEM;
                        text = more;
                }
                length += fread(text + length, 1, capacity - length - 1, file);
                if (length > FILE_BYTES_MAX)
                        return -EFBIG;
        } while (!feof(file) && !ferror(file));
        if (ferror(file))
                return -EIO;
        text[length] = '\0';
        *ret_text = steal_ptr(text);
        return 0;
}

static int read_file(const char *path, char **ret_text, struct why *why)
{
        FILE *file = strcmp(path, "-") ? fopen(path, "re") : stdin;
        int r = file ? read_all(file, ret_text) : -errno;

        if (r)
                why_set(why, "%s: %s", path, strerror(-r));
        if (file && file != stdin)
                fclose(file);
        return r;
}

/* ---- one item ---- */

static int add_token(struct prompt *prompt, const char *word)
{
        char *end;
        unsigned long long token;

        errno = 0;
        token = strtoull(word, &end, 10);
        if (errno || *end || *word < '0' || *word > '9' || token > UINT32_MAX)
                return -EINVAL;
        prompt->tokens[prompt->n_tokens++] = (uint32_t)token;
        return 0;
}

static int add_digest(struct prompt *prompt, const char *word)
{
        struct kvt_digest *digest = &prompt->digests[prompt->n_digests];

        if (strlen(word) != 2 * sizeof(digest->bytes) || strspn(word, HEX_DIGITS) != strlen(word))
                return -EINVAL;
        for (size_t i = 0; i < sizeof(digest->bytes); i++) {
                unsigned byte;

                sscanf(word + 2 * i, "%2x", &byte);
                digest->bytes[i] = (uint8_t)byte;
        }
        prompt->n_digests++;
        return 0;
}

static int add_word(struct prompt *prompt, const char *word, bool are_tokens)
{
        return are_tokens ? add_token(prompt, word) : add_digest(prompt, word);
}

static int make_room(struct prompt *prompt, size_t n, bool are_tokens)
{
        if (are_tokens)
                prompt->tokens = calloc(n + 1, sizeof(*prompt->tokens));
        else
                prompt->digests = calloc(n + 1, sizeof(*prompt->digests));
        return prompt->tokens || prompt->digests ? 0 : -ENOMEM;
}

/* ---- all of them ---- */

static int refuse(const char *path, bool are_tokens, size_t index, struct why *why)
{
        why_set(why, "%s: item %zu is not a %s", path, index,
                are_tokens ? "token id" : "digest of 64 hex digits");
        return -EINVAL;
}

static int take_array(struct prompt *prompt, const char *path, const json_t *array, bool are_tokens,
                      struct why *why)
{
        const json_t *item;
        size_t i;

        json_array_foreach(array, i, item)
        {
                char number[32];

                snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(item));
                if (are_tokens ? !json_is_integer(item) : !json_is_string(item))
                        return refuse(path, are_tokens, i, why);
                if (add_word(prompt, are_tokens ? number : json_string_value(item), are_tokens))
                        return refuse(path, are_tokens, i, why);
        }
        return 0;
}

static int take_json(struct prompt *prompt, const char *path, const char *text, bool are_tokens,
                     struct why *why)
{
        json_error_t error;
        json_auto_t *array = json_loads(text, 0, &error);

        if (!json_is_array(array)) {
                why_set(why, "%s: not a JSON array: %s", path, array ? "" : error.text);
                return -EINVAL;
        }
        if (make_room(prompt, json_array_size(array), are_tokens)) {
                why_set(why, "%s: out of memory", path);
                return -ENOMEM;
        }
        return take_array(prompt, path, array, are_tokens, why);
}

static int take_words(struct prompt *prompt, const char *path, char *text, bool are_tokens,
                      struct why *why)
{
        char *rest = NULL;
        size_t n = 0;

        /* A token has at least one digit, and a separator behind it, but the last. */
        if (make_room(prompt, strlen(text) / (are_tokens ? 2 : 64) + 1, are_tokens)) {
                why_set(why, "%s: out of memory", path);
                return -ENOMEM;
        }
        for (char *word = strtok_r(text, SEPARATORS, &rest); word;
             word = strtok_r(NULL, SEPARATORS, &rest))
                if (add_word(prompt, word, are_tokens))
                        return refuse(path, are_tokens, n, why);
                else
                        n++;
        return 0;
}

int prompt_read(struct prompt *prompt, const char *path, bool are_tokens, struct why *why)
{
        _cleanup_free_ char *text = NULL;
        int r;

        *prompt = (struct prompt){0};
        r = read_file(path, &text, why);
        if (r)
                return r;
        if (text[strspn(text, SEPARATORS)] == '[')
                return take_json(prompt, path, text, are_tokens, why);
        return take_words(prompt, path, text, are_tokens, why);
}

void prompt_deinit(struct prompt *prompt)
{
        free(prompt->tokens);
        free(prompt->digests);
        *prompt = (struct prompt){0};
}

char *prompt_hex(const struct prompt *prompt, size_t n)
{
        const size_t digits = 2 * sizeof(prompt->digests->bytes);
        char *hex = malloc(n * digits + 1);

        if (!hex)
                return NULL;
        hex[0] = '\0';
        for (size_t i = 0; i < n * digits / 2; i++)
                sprintf(hex + 2 * i, "%02x",
                        prompt->digests[i / sizeof(prompt->digests->bytes)]
                                .bytes[i % sizeof(prompt->digests->bytes)]);
        return hex;
}
