// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/table.h"

static void grow(struct table *table)
{
        size_t capacity = table->capacity ? 2 * table->capacity : 64;
        void *cells = realloc(table->cells, capacity * sizeof(*table->cells));

        if (!cells) {
                table->failed = true;
                return;
        }
        table->cells = cells;
        table->capacity = capacity;
}

void table_init(struct table *table, const char *columns)
{
        char titles[512], *state = NULL;

        *table = (struct table){0};
        snprintf(titles, sizeof(titles), "%s", columns);
        for (const char *title = strtok_r(titles, " ", &state);
             title && table->n_columns < TABLE_COLUMNS_MAX; title = strtok_r(NULL, " ", &state)) {
                table->is_number[table->n_columns++] = title[0] == '#';
                table_add(table, "%s", title[0] == '#' ? title + 1 : title);
        }
}

void table_deinit(struct table *table)
{
        free(table->cells);
        *table = (struct table){0};
}

/* Characters, not bytes: the daemon passes UTF-8 on. */
static size_t width_of(const char *text)
{
        size_t width = 0;

        for (; *text; text++)
                width += ((unsigned char)*text & 0xc0) != 0x80;
        return width;
}

/* What clients call themselves must not steer the terminal. */
static void make_harmless(char *text)
{
        for (; *text; text++)
                if ((unsigned char)*text < ' ' || *text == 0x7f)
                        *text = '?';
}

void table_add(struct table *table, const char *format, ...)
{
        size_t column = table->n_cells % (table->n_columns ? table->n_columns : 1);
        va_list arguments;
        char *cell;

        if (table->n_cells == table->capacity)
                grow(table);
        if (table->failed)
                return;
        cell = table->cells[table->n_cells];
        va_start(arguments, format);
        vsnprintf(cell, TABLE_CELL_MAX, format, arguments);
        va_end(arguments);
        make_harmless(cell);
        /* The titles come before their number is known: one after the other. */
        if (table->n_cells < table->n_columns)
                column = table->n_cells;
        if (width_of(cell) > table->widths[column])
                table->widths[column] = width_of(cell);
        table->n_cells++;
}

static void print_cell(const struct table *table, size_t i, FILE *file)
{
        size_t column = i % table->n_columns;
        bool is_last = column + 1 == table->n_columns;
        int padding = (int)(table->widths[column] - width_of(table->cells[i]));

        if (table->is_number[column])
                fprintf(file, "%*s%s", padding, "", table->cells[i]);
        else
                fprintf(file, "%s%*s", table->cells[i], is_last ? 0 : padding, "");
        fputs(is_last ? "\n" : "  ", file);
}

int table_print(const struct table *table, FILE *file)
{
        if (table->failed)
                return -ENOMEM;
        for (size_t i = 0; i < table->n_cells; i++)
                print_cell(table, i, file);
        return 0;
}

void text_append(char *text, size_t size, size_t *used, const char *format, ...)
{
        va_list arguments;
        int n;

        va_start(arguments, format);
        n = vsnprintf(text + *used, size - *used, format, arguments);
        va_end(arguments);
        *used += n > 0 ? (size_t)n : 0;
        if (*used >= size)
                *used = size - 1;
}

static char *next_text(size_t *ret_size)
{
        static char texts[8][64];
        static unsigned next;

        *ret_size = sizeof(texts[0]);
        return texts[next++ % 8];
}

const char *text_bytes(uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
        double value = (double)bytes;
        size_t size, unit = 0;
        char *text = next_text(&size);

        for (; value >= 1024 && unit < 5; unit++)
                value /= 1024;
        snprintf(text, size, unit && value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
        return text;
}

const char *text_count(uint64_t count)
{
        char digits[24];
        size_t size;
        char *text = next_text(&size), *end = text;
        int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)count);

        for (int i = 0; i < n; i++) {
                if (i && (n - i) % 3 == 0)
                        *end++ = ',';
                *end++ = digits[i];
        }
        *end = '\0';
        return text;
}

const char *text_seconds(double seconds)
{
        size_t size;
        char *text = next_text(&size);

        if (seconds < 1e-6)
                snprintf(text, size, "%.0f ns", seconds * 1e9);
        else if (seconds < 1e-3)
                snprintf(text, size, "%.1f us", seconds * 1e6);
        else if (seconds < 1)
                snprintf(text, size, "%.1f ms", seconds * 1e3);
        else if (seconds < 120)
                snprintf(text, size, "%.1f s", seconds);
        else if (seconds < 7200)
                snprintf(text, size, "%.0f min", seconds / 60);
        else if (seconds < 172800)
                snprintf(text, size, "%.0f h", seconds / 3600);
        else
                snprintf(text, size, "%.0f d", seconds / 86400);
        return text;
}

const char *text_percent(double part, double whole)
{
        size_t size;
        char *text = next_text(&size);

        if (whole > 0)
                snprintf(text, size, "%.1f %%", 100 * part / whole);
        else
                snprintf(text, size, "-");
        return text;
}
