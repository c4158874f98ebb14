// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"
#include "daemon/mover.h"
#include "daemon/rdma_port.h"
#include "daemon/session_remote.h"

/* As for sockets: more than the longest answer. */
#define OUTPUT_MAX (UINT64_C(32) << 20)

static void send_by_link(struct session *session, const void *packet, uint32_t length, int fd)
{
        int r;

        (void)fd;
        if (remote_link_queued(session->remote) + length > OUTPUT_MAX) {
                session_close(session, METRICS_NOT_READING, "not_reading",
                              "the client does not read its answers");
                return;
        }
        r = remote_link_send(session->remote, packet, length);
        if (r < 0)
                session_close(session, METRICS_SOCKET_ERROR, "no_memory", NULL);
        else if (r)
                session_close(session, METRICS_LOST, "lost", "the connection is closing");
}

static void on_message(void *user, struct remote_link *link, const void *packet, size_t length)
{
        struct session *session = user;

        (void)link;
        if (session->state < SESSION_CLOSING)
                session_take(session, packet, length);
}

static void on_closed(void *user, struct remote_link *link, enum rdma_end end, const char *why)
{
        struct session *session = user;
        char detail[256];

        (void)link;
        session->remote = NULL;
        daemon_port_link_gone(session->daemon);
        snprintf(detail, sizeof(detail), "%s%s%s", rdma_end_name(end), *why ? ": " : "", why);
        session_close(session, end == RDMA_END_PEER_CLOSED ? METRICS_HANG_UP : METRICS_LOST,
                      end == RDMA_END_PEER_CLOSED ? "hang_up" : "lost", detail);
}

static const struct remote_link_events events = {
        .on_message = on_message,
        .on_closed = on_closed,
};

/* The last word may still be on its way: the port sees to the link from here on. */
static void close_link(struct session *session)
{
        mover_hang_up(session);
        if (session->remote)
                daemon_port_let_go(session->daemon, steal_ptr(session->remote));
}

static const struct session_carrier remote_carrier = {
        .send = send_by_link,
        .close = close_link,
};

static bool is_full(const struct daemon *daemon)
{
        uint32_t max = daemon->config.sessions.max;

        return daemon->n_sessions >= max || daemon->n_quarantined >= max;
}

/* Why there is no session for it. */
static void refuse(struct daemon *daemon, struct remote_link *link, const char *reason)
{
        struct wire_welcome welcome;
        char from[RDMA_ADDRESS_TEXT_MAX];

        rdma_connection_peer_address(remote_link_connection(link), from);
        log_warning("session_refused", "from=%s reason=%s", from, log_quoted(reason).text);
        handshake_refusal(&welcome, daemon->boot_id, KVT_WIRE_REFUSED, reason);
        remote_link_send(link, &welcome, sizeof(welcome));
        daemon_port_let_go(daemon, link);
}

void session_remote_accept(struct daemon *daemon, struct remote_link *link, const void *packet,
                           size_t length)
{
        struct session *session = NULL;
        struct why why = {""};

        if (daemon->phase >= DAEMON_STOPPING) {
                daemon->metrics.attach_refused_total[METRICS_STOPPING]++;
                why_set(&why, "the daemon is stopping");
        } else if (is_full(daemon)) {
                daemon->metrics.attach_refused_total[METRICS_TOO_MANY]++;
                why_set(&why, "sessions.max of %u is reached", daemon->config.sessions.max);
        } else if (!(session = session_new(daemon, &remote_carrier))) {
                why_set(&why, "out of memory");
        }
        daemon_port_link_opened(daemon);
        if (!session) {
                refuse(daemon, link, why.text);
                return;
        }
        session->remote = link;
        session->uid = (uid_t)-1;
        session->gid = (gid_t)-1;
        rdma_connection_peer_address(remote_link_connection(link), session->from);
        remote_link_hand_over(link, &events, session);
        session_take(session, packet, length);
}
