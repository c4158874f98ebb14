// SPDX-License-Identifier: Apache-2.0
/*
 * The table of keys: what each value may be, its default, and how it is written into
 * struct config. Defaults, file and --set all pass through config_key_set(), so a value is
 * judged the same wherever it comes from. No place (file, line) is known here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/config.h"

struct config_key_spec {
        const char *name;
        const char *fallback; /* the default, as one would write it; NULL: an empty list */
        bool reloadable;
        /* Sets the value or says in @why what is wrong and what would be right: 0, -EINVAL. */
        int (*set)(const struct config_key_spec *spec, struct config *config, const char *value,
                   struct why *why);
        size_t offset; /* of the value in struct config */
        size_t size;   /* of the value; 4 or 8 for numbers */
        uint64_t min;
        uint64_t max;
};

extern const struct config_key_spec config_keys[CONFIG_N_KEYS];

/* CONFIG_N_KEYS when there is no such key. */
enum config_key config_key_find(const char *name, size_t length);

/* The key whose name is most like @name, CONFIG_N_KEYS when none is. */
enum config_key config_key_like(const char *name, size_t length);

int config_key_set(enum config_key key, struct config *config, const char *value, struct why *why);

/* Lists: empties it; each config_key_set() then adds one. */
void config_key_clear(enum config_key key, struct config *config);
bool config_key_is_list(enum config_key key);

/* "4GiB": exact, with the largest unit that divides @bytes. */
void config_size_text(uint64_t bytes, char ret_text[24]);
