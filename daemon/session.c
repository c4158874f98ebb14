// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/acquire.h"
#include "daemon/admin.h"
#include "daemon/attach.h"
#include "daemon/daemon.h"
#include "daemon/dispatch.h"
#include "daemon/finding.h"
#include "daemon/load.h"
#include "daemon/mark.h"
#include "daemon/prefetch.h"
#include "daemon/session.h"

/* From the connection to its HELLO. */
#define GREETING_NS UINT64_C(10000000000)

struct session *session_by_id(struct daemon *daemon, uint64_t id)
{
        struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link)
                if (session->id == id)
                        return session;
        return NULL;
}

/* ---- messages ---- */

void session_send(struct session *session, const void *packet, uint32_t length, int fd)
{
        if (session->state >= SESSION_CLOSING)
                return;
        session->daemon->metrics.messages_sent_total++;
        session->carrier->send(session, packet, length, fd);
}

void session_send_message(struct session *session, const struct message_builder *builder)
{
        session_send(session, builder->buffer, builder->length, -1);
}

void session_take(struct session *session, const void *packet, size_t length)
{
        const struct wire_header *header = packet;
        struct why why = {""};
        int r;

        session->daemon->metrics.messages_received_total++;
        r = message_check(packet, length, &why);
        if (r == MESSAGE_E_UNSUPPORTED) {
                dispatch_unsupported(session, header);
                return;
        }
        if (r) {
                session_close(session, METRICS_GARBAGE, "garbage", why.text);
                return;
        }
        dispatch_message(session, header);
}

/* ---- life and death ---- */

void session_free_when_gone(struct session *session)
{
        if (session->state != SESSION_QUARANTINED || session->n_leases || session->n_handles ||
            session->n_refs || session->pidfd >= 0)
                return;
        TAILQ_REMOVE(&session->daemon->sessions, session, link);
        session->daemon->n_quarantined--;
        daemon_wake(session->daemon);
        free(session->mover);
        free(session);
}

void session_unref(struct session *session)
{
        assert(session->n_refs);
        session->n_refs--;
        session_free_when_gone(session);
}

/* Nobody will commit them any more: whoever waits for one is told now. */
static void retire_leases(struct session *session)
{
        struct lease *lease;
        bool any = false;

        TAILQ_FOREACH(lease, &session->leases, link)
                any |= lease_retire(&session->daemon->leases, lease);
        if (any)
                acquires_reservation_ended(session->daemon);
}

void session_end_leases(struct session *session)
{
        struct lease *lease;

        loads_hang_up(session);
        retire_leases(session);
        while ((lease = TAILQ_FIRST(&session->leases)))
                lease_end(&session->daemon->leases, lease);
        assert(RB_EMPTY(&session->sets));
}

static void end_quarantine(struct session *session, const char *reason)
{
        if (session->n_leases)
                log_info("quarantine_ended", "session=%" PRIu64 " leases=%u reason=%s", session->id,
                         session->n_leases, reason);
        session_end_leases(session);
        if (session->carrier->forget)
                session->carrier->forget(session);
        session_free_when_gone(session);
}

bool sessions_end_quarantine(struct daemon *daemon, const uint8_t secret[16])
{
        struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link) {
                if (session->state == SESSION_GREETING ||
                    memcmp(session->secret, secret, sizeof(session->secret)))
                        continue;
                /* Its hang-up may not have been seen yet; the statement says it all. */
                if (session->state < SESSION_CLOSING)
                        session_close(session, METRICS_HANG_UP, "replaced", NULL);
                session_end_leases(session);
                daemon_wake(daemon);
                return true;
        }
        return false;
}

void session_close(struct session *session, enum metrics_disconnect disconnect, const char *reason,
                   const char *detail)
{
        if (session->state >= SESSION_CLOSING)
                return;
        session->daemon->metrics.disconnects_total[disconnect]++;
        session->close_reason = reason;
        snprintf(session->close_detail, sizeof(session->close_detail), "%s", detail ? detail : "");
        session->state = SESSION_CLOSING;
        session->closed_ns = uv_hrtime();
        daemon_wake(session->daemon);
}

static void begin_end(struct session *session)
{
        struct daemon *daemon = session->daemon;

        log_info("session_closed",
                 "session=%" PRIu64
                 " pid=%d uid=%u from=%s program=%s reason=%s leases=%u detail=%s",
                 session->id, (int)session->pid, session->uid, session->from,
                 log_quoted(session->program).text, session->close_reason, session->n_leases,
                 log_quoted(session->close_detail).text);
        session->carrier->close(session);
        daemon->n_sessions--;
        daemon->n_quarantined++;
        session->state = SESSION_QUARANTINED;
        loads_hang_up(session);
        marks_hang_up(session);
        prefetches_hang_up(session);
        findings_hang_up(session);
        retire_leases(session);
        admin_hang_up(session);
        attach_end(session);
        if (!session->n_leases || session->pidfd < 0)
                end_quarantine(session, "nothing_held");
}

void sessions_reap(struct daemon *daemon)
{
        struct session *session, *next;

        for (session = TAILQ_FIRST(&daemon->sessions); session; session = next) {
                next = TAILQ_NEXT(session, link);
                if (session->state == SESSION_CLOSING)
                        begin_end(session);
                else if (session->state == SESSION_QUARANTINED && !session->n_leases &&
                         session->pidfd >= 0)
                        end_quarantine(session, "copies_ended");
        }
}

void sessions_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link) {
                if (session->state == SESSION_GREETING && now_ns - session->opened_ns > GREETING_NS)
                        session_close(session, METRICS_GARBAGE, "silent",
                                      "no HELLO within ten seconds");
        }
}

/* ---- birth ---- */

bool session_may_stay(const struct session *session)
{
        const struct daemon *daemon = session->daemon;
        uint32_t max = daemon->config.sessions.max;

        if (!session->wants_table && session->is_admin)
                return true;
        return daemon->n_sessions <= max && daemon->n_quarantined < max;
}

struct session *session_new(struct daemon *daemon, const struct session_carrier *carrier)
{
        struct session *session = calloc(1, sizeof(*session));

        if (!session ||
            getrandom(session->secret, sizeof(session->secret), 0) != sizeof(session->secret)) {
                free(session);
                return NULL;
        }
        session->daemon = daemon;
        session->carrier = carrier;
        session->id = daemon->next_session++;
        session->fd = session->pidfd = -1;
        session->opened_ns = uv_hrtime();
        session->domain = DOMAIN_DEFAULT;
        snprintf(session->from, sizeof(session->from), "here");
        TAILQ_INIT(&session->output);
        TAILQ_INIT(&session->leases);
        RB_INIT(&session->sets);
        LIST_INIT(&session->deferred_commits);
        TAILQ_INIT(&session->loads);
        TAILQ_INIT(&session->waiting);
        TAILQ_INSERT_TAIL(&daemon->sessions, session, link);
        daemon->n_sessions++;
        return session;
}
