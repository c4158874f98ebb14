// SPDX-License-Identifier: Apache-2.0
/*
 * What benches of the host tier have in common: a daemon of their own below /tmp, memory to
 * copy between, medians and rows. Any failure ends the process, and the daemon with it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"

#define MIB        (UINT64_C(1) << 20)
#define BENCH_HOST (512 * MIB) /* the host tier */
#define SECONDS    UINT64_C(1000000000)
#define RUNS_MAX   64u

void bench_start_daemon(char *program);
void bench_start_daemon_of(char *program, uint64_t host_bytes, uint64_t piece_bytes);
void bench_stop_daemon(void);

struct kvt_session *bench_open(const struct kvt_layout *layout);

_Noreturn void bench_die(const char *what, const char *why);
/* Dies unless it is KVT_OK. */
void bench_check(const char *what, uint32_t status);

/* Memory as the daemon's, and as an engine's; touched. */
uint8_t *bench_shared_memory(uint64_t bytes);
uint8_t *bench_memory(uint64_t bytes);

/* Monotonic seconds. */
double bench_now(void);

/* Sorts them. */
double bench_median(double *values, uint32_t n);

/* One JSON line, of medians in GB/s. */
void bench_print_row(const char *name, const char *shape, double *values, double *limits,
                     uint32_t n);
