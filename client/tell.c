// SPDX-License-Identifier: Apache-2.0
/*
 * kvt_tell(): counts add up in the session until they can be sent, so that none is told twice,
 * and none is lost but with a connection that breaks while they are on their way.
 */
#include "client/session.h"
#include "proto/message.h"

static bool may_send(const struct kvt_session *session)
{
        return session->phase == KVT__UP && !session->broken && session->layout &&
               session->outbox.bytes <= KVT__OUTBOX_BYTES_MAX;
}

void kvt__tell_left(struct kvt_session *session)
{
        struct kvt_told *told = &session->told;
        struct wire_tell tell = {
                .prompts = told->prompts,
                .prompt_tokens = told->prompt_tokens,
                .tail_tokens = told->tail_tokens,
                .kv_tokens = told->kv_tokens,
                .hit_tokens = told->hit_tokens,
                .batch_tokens = told->batch_tokens,
        };

        if (!session->has_told || !may_send(session))
                return;
        message_header_init(&tell.header, WIRE_TELL, ++session->calls.last_id,
                            session->era->session, session->era->boot_id);
        tell.header.length = sizeof(tell);
        if (!kvt__session_send(session, &tell, sizeof(tell)))
                return;
        session->has_told = false;
        *told = (struct kvt_told){.batch_tokens = told->batch_tokens};
}

void kvt__tell_again(struct kvt_session *session)
{
        session->has_told |= session->told.batch_tokens > 0;
        kvt__tell_left(session);
}

/* What cannot be, and what would add up to more than a message may say. */
static bool is_sound(const struct kvt_told *before, const struct kvt_told *told)
{
        const uint64_t parts[] = {told->tail_tokens, told->kv_tokens, told->hit_tokens};

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
                if (parts[i] > told->prompt_tokens)
                        return false;
        return !told->reserved && told->prompts <= WIRE_TELL_MAX - before->prompts &&
               told->prompt_tokens <= WIRE_TELL_MAX - before->prompt_tokens;
}

static void add(struct kvt_told *sum, const struct kvt_told *told)
{
        sum->prompts += told->prompts;
        sum->prompt_tokens += told->prompt_tokens;
        sum->tail_tokens += told->tail_tokens;
        sum->kv_tokens += told->kv_tokens;
        sum->hit_tokens += told->hit_tokens;
        if (told->batch_tokens)
                sum->batch_tokens = told->batch_tokens;
}

enum kvt_status kvt_tell(struct kvt_session *session, const struct kvt_told *given)
{
        enum kvt_status status = KVT_INVALID;
        struct kvt_told told;

        if (!session || !given || kvt__copy_sized(&told, sizeof(told), given))
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        pthread_mutex_lock(&session->lock);
        if (is_sound(&session->told, &told)) {
                add(&session->told, &told);
                session->has_told = true;
                kvt__tell_left(session);
                status = KVT_OK;
        }
        pthread_mutex_unlock(&session->lock);
        return status;
}
