// SPDX-License-Identifier: Apache-2.0
/*
 * io_uring on the loop: one ring, registered files and buffers, completions announced
 * through an eventfd that the loop polls. Submissions of one turn of the loop go to the
 * kernel together, just before the loop sleeps.
 *
 * The ring takes COOP_TASKRUN where the kernel has it. Neither DEFER_TASKRUN (polling the
 * eventfd then misses completions) nor IOPOLL (not for files) is used. Loop thread only.
 * It speaks io.h's requests and reports attempts to io_complete().
 */
#pragma once

#include <stdint.h>

#include <uv.h>

#include "storage/io.h"

#define URING_BUFFERS_MAX 4096u

/* 0 or a negative errno: -ENOSYS or -EPERM where io_uring is forbidden. */
int uring_open(struct uring **ret_ring, uv_loop_t *loop, const struct io_options *options);

/* No request may be in flight. */
void uring_close(struct uring *ring, void (*on_closed)(void *user), void *user);

/* Queues what is left of @request: its bytes from n_done on. */
void uring_submit(struct uring *ring, struct io_request *request);

int uring_add_buffer(struct uring *ring, void *base, uint64_t length, int32_t *ret_slot);
void uring_remove_buffer(struct uring *ring, int32_t slot);
