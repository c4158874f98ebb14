// SPDX-License-Identifier: Apache-2.0
/*
 * Tables for people: columns as wide as their widest cell, numbers to the right. And the
 * numbers: bytes with binary units, counts with separators, times in the unit that fits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 16
#define TABLE_CELL_MAX    160

struct table {
        size_t n_columns;
        bool is_number[TABLE_COLUMNS_MAX];
        size_t widths[TABLE_COLUMNS_MAX];
        char (*cells)[TABLE_CELL_MAX];
        size_t n_cells;
        size_t capacity;
        bool failed; /* out of memory: table_print() says so */
};

/* @columns: titles with a space between; one that begins with '#' is of numbers. */
void table_init(struct table *table, const char *columns);
void table_deinit(struct table *table);

/* The next cell, row by row. */
void table_add(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints what was added. Returns 0 or -ENOMEM (printed nothing). */
int table_print(const struct table *table, FILE *file);

/*
 * Writes behind the first *@used bytes of @text, which has room for @size; what does not
 * fit is cut. *@used stays below @size.
 */
void text_append(char *text, size_t size, size_t *used, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* Text of a number, valid until the function has been called eight times more. */
const char *text_bytes(uint64_t bytes);              /* "1.5 GiB" */
const char *text_count(uint64_t count);              /* "1,234,567" */
const char *text_seconds(double seconds);            /* "250 us", "3.2 s", "2 h 5 min" */
const char *text_percent(double part, double whole); /* "42.0 %", "-" of nothing */
