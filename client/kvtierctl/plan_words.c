// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/plan_words.h"

static bool is_blank(char c)
{
        return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *skip_blanks(const char *text)
{
        for (;;) {
                if (is_blank(*text))
                        text++;
                else if (text[0] == '\\' && text[1] == '\n')
                        text += 2;
                else if (*text == '#')
                        text += strcspn(text, "\n");
                else
                        return text;
        }
}

/* Ends a command, but for the "&" of "2>&1" and "&>log". */
static bool is_end(const char *text, char before)
{
        return *text == ';' || *text == '|' || (*text == '&' && before != '>' && text[1] != '>');
}

/* Copies a quoted part behind its opening quote; returns what follows the closing one. */
static const char *take_quoted(const char *text, char quote, char *word, size_t *n)
{
        for (; *text && *text != quote; text++) {
                if (quote == '"' && *text == '\\' && text[1] && strchr("\\\"$`\n", text[1]))
                        text++;
                word[(*n)++] = *text;
        }
        return *text ? text + 1 : NULL;
}

/* One word into @word, which has room for all of @text. NULL: a quote is not closed. */
static const char *take_word(const char *text, char *word)
{
        size_t n = 0;

        while (text && *text && !is_blank(*text) && !is_end(text, n ? word[n - 1] : '\0')) {
                if (*text == '\'' || *text == '"') {
                        text = take_quoted(text + 1, *text, word, &n);
                } else if (text[0] == '\\' && text[1] == '\n') {
                        text += 2;
                } else {
                        text += text[0] == '\\' && text[1];
                        word[n++] = *text++;
                }
        }
        word[n] = '\0';
        return text;
}

int plan_words_split(const char *command, json_t **ret_words, struct why *why)
{
        json_auto_t *words = json_array();
        _cleanup_free_ char *word = malloc(strlen(command) + 1);

        if (!words || !word) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        for (command = skip_blanks(command); *command; command = skip_blanks(command)) {
                json_t *text;

                if (is_end(command, '\0')) {
                        json_array_append_new(words, json_null());
                        command += strspn(command, ";|&");
                        continue;
                }
                command = take_word(command, word);
                if (!command) {
                        why_set(why, "the command line has a quote that is not closed");
                        return err_raise(-EINVAL);
                }
                text = json_string(word);
                if (!text) {
                        why_set(why, "the command line is no UTF-8");
                        return err_raise(-EINVAL);
                }
                json_array_append_new(words, text);
        }
        *ret_words = steal_ptr(words);
        return 0;
}
