// SPDX-License-Identifier: Apache-2.0
/*
 * Bench of the encodings: how much smaller they make KV, and how fast a core is at it.
 *
 *   bench_encoding                             synthetic KV, bf16 and fp32
 *   bench_encoding NAME NUMBER_BYTES FILE...   the bytes of files, all of them as one
 *
 * The synthetic KV is 16,384 tokens of 1,024 channels: Gaussian, with log-normal scales and
 * Gaussian means of the channels. It is cut into objects of OBJECT_BYTES; each number is the
 * median of RUNS rounds over all of them. One thread, time of its processor. memcpy is the ceiling
 * that rows of speed name. One JSON line a row: name, value, unit, limit, runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/encoding.h"

#define OBJECT_BYTES (4u << 20)
#define RUNS         5u
#define TOKENS       16384u
#define CHANNELS     1024u

struct data {
        const char *name;
        uint8_t *bytes;
        size_t length;
        uint32_t number_bytes;
};

__attribute__((noreturn)) static void die(const char *what)
{
        fprintf(stderr, "bench_encoding: %s\n", what);
        exit(1);
}

static void *allocate(size_t bytes)
{
        void *memory = calloc(1, bytes);

        if (!memory)
                die("no memory");
        return memory;
}

/* Of this thread's processor, so that others on the machine count little. */
static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(double *values)
{
        qsort(values, RUNS, sizeof(*values), by_value);
        return values[RUNS / 2];
}

/* ---- synthetic KV ---- */

static uint64_t random_state = 1;

static double uniform(void)
{
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return ((double)(random_state >> 11) + 0.5) / 9007199254740992.0;
}

static double gaussian(void)
{
        double radius = sqrt(-2 * log(uniform()));

        return radius * cos(2 * M_PI * uniform());
}

/* The number in its first bytes: bf16 is the upper half of fp32. */
static void put_number(uint8_t *bytes, float value, uint32_t number_bytes)
{
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        if (number_bytes < 4)
                bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        memcpy(bytes, &bits, number_bytes);
}

static struct data make_kv(const char *name, uint32_t number_bytes)
{
        struct data data = {.name = name, .number_bytes = number_bytes};
        static double scale[CHANNELS], mean[CHANNELS];

        data.length = (size_t)TOKENS * CHANNELS * number_bytes;
        data.bytes = allocate(data.length);
        random_state = 1;
        for (size_t c = 0; c < CHANNELS; c++) {
                scale[c] = exp(gaussian() / 2);
                mean[c] = gaussian() / 2;
        }
        for (size_t i = 0; i < (size_t)TOKENS * CHANNELS; i++)
                put_number(data.bytes + i * number_bytes,
                           (float)(mean[i % CHANNELS] + scale[i % CHANNELS] * gaussian()),
                           number_bytes);
        return data;
}

static struct data read_files(char **arguments, int n)
{
        struct data data = {.name = arguments[0],
                            .number_bytes = (uint32_t)strtoul(arguments[1], NULL, 10)};

        for (int i = 2; i < n; i++) {
                FILE *file = fopen(arguments[i], "rb");
                long length;

                if (!file || fseek(file, 0, SEEK_END) || (length = ftell(file)) < 0)
                        die(arguments[i]);
                rewind(file);
                data.bytes = realloc(data.bytes, data.length + (size_t)length);
                if (!data.bytes ||
                    fread(data.bytes + data.length, 1, (size_t)length, file) != (size_t)length)
                        die(arguments[i]);
                data.length += (size_t)length;
                fclose(file);
        }
        return data;
}

/* ---- measuring ---- */

struct round {
        double encode_seconds, decode_seconds;
        uint64_t stored_bytes, decoded_bytes;
};

/* All objects once, each encoded and, when that helped, decoded and compared. */
static struct round run(struct encoding_scratch *scratch, const struct data *data,
                        struct encoding encoding, uint8_t *stored, uint8_t *back)
{
        struct round round = {.stored_bytes = 0};

        for (size_t at = 0; at < data->length; at += OBJECT_BYTES) {
                size_t left = data->length - at, n = left < OBJECT_BYTES ? left : OBJECT_BYTES;
                struct iovec from = {data->bytes + at, n}, to = {back, n};
                struct encoding_table table;
                double began = now();
                int r = encoding_encode(scratch, encoding, &from, 1, n, stored, &table);

                round.encode_seconds += now() - began;
                if (r) {
                        round.stored_bytes += n;
                        continue;
                }
                round.stored_bytes += table.stored_bytes;
                began = now();
                r = encoding_decode(scratch, &table, n, NULL, stored, &to, 1);
                round.decode_seconds += now() - began;
                round.decoded_bytes += n;
                if (r || memcmp(back, data->bytes + at, n))
                        die("other bytes came back");
        }
        return round;
}

static double copy_speed(const struct data *data, uint8_t *back)
{
        double seconds[RUNS];

        for (uint32_t i = 0; i < RUNS; i++) {
                double began = now();

                for (size_t at = 0; at + OBJECT_BYTES <= data->length; at += OBJECT_BYTES)
                        memcpy(back, data->bytes + at, OBJECT_BYTES);
                seconds[i] = now() - began;
        }
        return (double)(data->length / OBJECT_BYTES * OBJECT_BYTES) / median(seconds) / 1e9;
}

static void row(const struct data *data, struct encoding encoding, const char *what, double value,
                const char *unit, double limit)
{
        printf("{\"name\": \"encoding_%s_%s_%s\", \"value\": %.4f, \"unit\": \"%s\", "
               "\"limit\": %.4f, \"runs\": %u}\n",
               data->name, encoding_name(encoding.kind), what, value, unit, limit, RUNS);
}

static void measure(const struct data *data)
{
        struct encoding_scratch *scratch = encoding_scratch_new();
        uint8_t *stored = allocate(OBJECT_BYTES), *back = allocate(OBJECT_BYTES);
        double limit = copy_speed(data, back), length = (double)data->length;

        if (!scratch)
                die("no memory");
        for (int kind = ENCODING_LZ4; kind < ENCODING_KINDS; kind++) {
                struct encoding encoding =
                        encoding_of((enum encoding_kind)kind, data->number_bytes);
                double encode[RUNS], decode[RUNS];
                struct round round;

                for (uint32_t i = 0; i < RUNS; i++) {
                        round = run(scratch, data, encoding, stored, back);
                        encode[i] = round.encode_seconds;
                        decode[i] = round.decode_seconds;
                }
                row(data, encoding, "ratio", length / (double)round.stored_bytes, "ratio", 0);
                row(data, encoding, "encode", length / median(encode) / 1e9, "GB/s", limit);
                if (round.decoded_bytes)
                        row(data, encoding, "decode",
                            (double)round.decoded_bytes / median(decode) / 1e9, "GB/s", limit);
        }
        free(stored);
        free(back);
        encoding_scratch_free(scratch);
}

static void measure_and_free(struct data data)
{
        if (!data.length)
                die("no bytes");
        measure(&data);
        free(data.bytes);
}

int main(int argc, char **argv)
{
        if (argc == 1) {
                measure_and_free(make_kv("synthetic-bf16", 2));
                measure_and_free(make_kv("synthetic-fp32", 4));
                return 0;
        }
        if (argc < 4)
                die("usage: bench_encoding [NAME NUMBER_BYTES FILE...]");
        measure_and_free(read_files(argv + 1, argc - 1));
        return 0;
}
