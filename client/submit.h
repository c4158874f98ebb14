// SPDX-License-Identifier: Apache-2.0
/*
 * What calls have in common on their way out, for those that are made of several. The
 * checks are pure; no lock is held.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/call.h"
#include "client/kvtier.h"
#include "proto/digest.h"

/* Session, list and options of any call. */
enum kvt_status kvt__check_call(struct kvt_session *session, struct kvt_call *ret_options,
                                const struct kvt_call *options, const struct kvt_object *objects,
                                size_t n);

/* An object of a reserve, @bytes long. */
enum kvt_status kvt__check_reserve(const struct kvt_object *object, uint64_t bytes);

/* The objects of an acquire or, with @token, of an adopt. */
enum kvt_status kvt__check_load(const struct kvt_object *objects, size_t n, const uint8_t *token);

/*
 * Takes @call over, and its owner, when it returns KVT_OK; @ret_call gets the number that
 * the caller knows.
 */
enum kvt_status kvt__submit(struct kvt_session *session, struct kvt__call *call,
                            uint64_t timeout_ns, uint64_t *ret_call);

/* Sends an inserted call. On failure the connection is broken, and the call with it. */
void kvt__send_call(struct kvt_session *session, struct kvt__call *call, uint64_t timeout_ns);

/* client/match.c's kvt_find(). */
enum kvt_status kvt__submit_find(struct kvt_session *session, const struct kvt_call *given,
                                 const struct digest *digests, uint32_t n, uint64_t *ret_call);
