// SPDX-License-Identifier: Apache-2.0
/*
 * What the parts of the fake driver share. Everything is under one lock; `changed` is told of
 * every change. The driver's types are spelled out: handles are pointers, results are ints,
 * so that no header of CUDA is needed.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "tests/support/fake_cuda.h"

#define FAKE_DEVICES_MAX 8

/* A function of the driver. */
#define CU(name, arguments)                                  \
        int name arguments;                                  \
        __attribute__((visibility("default"))) int name arguments

struct fake_context {
        int device;
        unsigned refs; /* of a primary context: retains */
        int lost;      /* the result that every call gives from then on, or 0 */
};

struct fake_event {
        struct fake_context *context;
        unsigned refs;
        uint64_t recorded, reached; /* the how-manieth record */
        bool is_destroyed;
        uint64_t reached_ns;
};

struct fake_copy {
        uint64_t to, from, bytes;
};

struct fake_launch {
        const struct fake_kernel *kernel;
        unsigned blocks, threads;
        uint8_t parameters[];
};

enum fake_kind { FAKE_COPY, FAKE_SET, FAKE_KERNEL, FAKE_RECORD, FAKE_WAIT, FAKE_HOST };

struct fake_operation {
        STAILQ_ENTRY(fake_operation) link;
        enum fake_kind kind;
        bool is_running;
        struct fake_event *event;
        uint64_t ticket;
        void (*function)(void *user);
        void *user;
        struct fake_launch *launch;
        uint8_t value; /* to set to */
        size_t n_copies;
        struct fake_copy copies[];
};

STAILQ_HEAD(fake_operations, fake_operation);

struct fake_stream {
        LIST_ENTRY(fake_stream) link;
        struct fake_context *context;
        struct fake_operations operations; /* the first one may be running */
        bool is_destroyed, is_held;
};

/* Memory that a copy may touch. */
struct fake_range {
        LIST_ENTRY(fake_range) link;
        uint64_t base, bytes;
        uint8_t *bytes_at; /* for the host */
        bool is_device;
        bool is_owned; /* allocated here */
        int device;
};

struct fake_state {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        bool is_initialized, is_held, is_capturing;
        int n_devices;
        struct fake_context primary[FAKE_DEVICES_MAX];
        LIST_HEAD(, fake_range) ranges;
        LIST_HEAD(, fake_stream) streams;
        int lose_result; /* 0: none is to be lost */
        unsigned lose_after;
        struct fake_cuda_figures figures;
};

extern struct fake_state fake;

void fake_lock(void);
void fake_unlock(void);

/* Ends the process. */
_Noreturn void fake_misuse(const char *what);

/*
 * Begins a call: counts it; the result that it has to give at once, or 0. The lock is held
 * when 0 is returned. @needs: what the call is of no use without.
 */
enum fake_needs { FAKE_NOTHING, FAKE_INIT, FAKE_CONTEXT };
int fake_enter(const char *name, enum fake_needs needs);
int fake_leave(int result);
bool fake_is_hidden(const char *name);

/* The calling thread's, or NULL. */
struct fake_context *fake_current(void);

/* True in a host function. */
extern _Thread_local bool fake_is_in_host_function;

/* ---- memory ---- */

struct fake_range *fake_range_of(uint64_t address, uint64_t bytes);

/* The host's address of a side of a copy. Unregistered host memory: itself, counted. */
uint8_t *fake_side(uint64_t address, uint64_t bytes, bool *ret_is_device, bool *ret_is_pageable);

/* Is a submitted operation about it? */
bool fake_is_in_use(const struct fake_range *range);

/* ---- streams ---- */

/* NULL and the two special numbers are streams of the current context. */
struct fake_stream *fake_stream_of(void *handle);
struct fake_operation *fake_operation_new(enum fake_kind kind, size_t n_copies);
void fake_submit(struct fake_stream *stream, struct fake_operation *operation);
/* Waits, lock held, until it is empty; the result that a synchronization gives. */
int fake_drain(struct fake_stream *stream);

/* ---- kernels ---- */

struct fake_kernel {
        const char *name;
        /* Bytes of each parameter; ends with 0. */
        uint16_t parameters[8];
        /* Lock held. False: an access went astray. */
        bool (*run)(const struct fake_launch *launch);
};

const struct fake_kernel *fake_kernel_find(const char *name);

/* For kernels. NULL: nothing there that a GPU could reach. */
uint8_t *fake_reach(uint64_t address, uint64_t bytes);
