// SPDX-License-Identifier: Apache-2.0
/* The themes of test_rdma, and what they share. */
#pragma once

#include <check.h>

#include "tests/rdma/side.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)
#define MS  UINT64_C(1000000)

TCase *transfer_case(void);
TCase *message_case(void);
TCase *right_case(void);
TCase *whole_case(void);
TCase *greeting_case(void);
TCase *trouble_case(void);
TCase *link_case(void);

/* The server grants, and it is granted. */
void grant(struct pair *pair, size_t offset, size_t length, bool is_writable);
void take_back(struct pair *pair);

/* The client reads or writes what the server granted, from or to its own memory at @offset. */
enum rdma_result move(struct pair *pair, size_t offset, size_t length, uint64_t address,
                      bool is_write);

void fill(uint8_t *bytes, size_t length, uint64_t seed);

/* The claim cannot be shown on these devices. The test that says so has passed. */
void skip_claim(const char *name, const char *reason);

/* Runs a program of the guest, which has to succeed. */
void run_command(const char *format, ...) __attribute__((format(printf, 1, 2)));
