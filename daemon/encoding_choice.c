// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "daemon/encoding_choice.h"

static const char *const group_kinds[ENCODING_CHOICE_KINDS] = {
        [LAYOUT_ATTENTION - 1] = "attention", [LAYOUT_WINDOW - 1] = "window",
        [LAYOUT_INDEX - 1] = "index",         [LAYOUT_COMPRESSED - 1] = "compressed",
        [LAYOUT_STATE - 1] = "state",
};

/* The kind of groups named by the @length bytes at @name, from 0; or -1. */
static int find_group_kind(const char *name, size_t length)
{
        for (int i = 0; i < (int)ENCODING_CHOICE_KINDS; i++)
                if (strlen(group_kinds[i]) == length && !memcmp(group_kinds[i], name, length))
                        return i;
        return -1;
}

/* One word between commas: "lz4" (only the first may be such) or "state=lz4". */
static int take_word(struct encoding_choice *choice, const char *word, bool is_first,
                     struct why *why)
{
        const char *equals = strchr(word, '=');
        int encoding = encoding_kind_of(equals ? equals + 1 : word);
        int kind = equals ? find_group_kind(word, (size_t)(equals - word)) : -1;

        if (encoding < 0) {
                why_set(why, "\"%.64s\" is none of off, lz4, planes-lz4, planes-zstd",
                        equals ? equals + 1 : word);
                return -EINVAL;
        }
        if (equals && kind < 0) {
                why_set(why,
                        "\"%.*s\" is no kind of groups: use attention, window, index, compressed "
                        "or state",
                        (int)(equals - word), word);
                return -EINVAL;
        }
        if (!equals && !is_first) {
                why_set(why, "\"%.64s\" comes late: the word for all groups comes first", word);
                return -EINVAL;
        }
        if (equals)
                choice->kinds[kind] = (uint8_t)encoding;
        else
                memset(choice->kinds, encoding, sizeof(choice->kinds));
        return 0;
}

int encoding_choice_parse(struct encoding_choice *ret_choice, const char *text, struct why *why)
{
        struct encoding_choice choice = {{0}};
        char copy[256], *rest = copy, *word;

        if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy)) {
                why_set(why, "\"%.32s...\" is too long", text);
                return -EINVAL;
        }
        while ((word = strsep(&rest, ","))) {
                int r = take_word(&choice, word, word == copy, why);

                if (r)
                        return r;
        }
        *ret_choice = choice;
        return 0;
}

struct encoding encoding_choose(const struct encoding_choice *choice, uint8_t group_kind,
                                uint32_t number_bytes)
{
        if (!group_kind || group_kind > ENCODING_CHOICE_KINDS)
                return (struct encoding){0};
        return encoding_of((enum encoding_kind)choice->kinds[group_kind - 1], number_bytes);
}

static uint8_t dtype_bytes(struct layout_string dtype)
{
        unsigned bits = 0;
        uint16_t i = 0;

        while (i < dtype.length && !isdigit((unsigned char)dtype.bytes[i]))
                i++;
        while (i < dtype.length && isdigit((unsigned char)dtype.bytes[i]) && bits < 1000)
                bits = bits * 10 + (unsigned)(dtype.bytes[i++] - '0');
        return bits == 16 ? 2 : bits == 32 ? 4 : 1;
}

uint8_t encoding_choice_number_bytes(const struct layout *layout, uint16_t group)
{
        const struct layout_group *described = &layout->groups[group];
        uint64_t bytes[5] = {0};
        struct layout_tensor tensor;
        uint32_t position = 0;

        if (!described->n_rows || described->codec != CODEC_NONE)
                return 1;
        if (!layout->rows[described->first_row].n_tensors)
                return dtype_bytes(layout->kv_dtype);
        while (layout_tensor_next(&layout->rows[described->first_row], &position, &tensor))
                bytes[dtype_bytes(tensor.dtype)] += tensor.bytes;
        if (bytes[2] > bytes[1] && bytes[2] >= bytes[4])
                return 2;
        return bytes[4] > bytes[1] ? 4 : 1;
}
