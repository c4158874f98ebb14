// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "daemon/acquire.h"
#include "daemon/admin.h"
#include "daemon/admin_explain.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/attach.h"
#include "daemon/commit.h"
#include "daemon/daemon.h"
#include "daemon/dispatch.h"
#include "daemon/finding.h"
#include "daemon/handshake.h"
#include "daemon/layout_use.h"
#include "daemon/load.h"
#include "daemon/mark.h"
#include "daemon/mover.h"
#include "daemon/prefetch.h"
#include "daemon/store.h"

static bool is_batch(uint16_t kind)
{
        return kind == WIRE_RESERVE || kind == WIRE_COMMIT || kind == WIRE_ABORT ||
               kind == WIRE_ACQUIRE || kind == WIRE_ADOPT || kind == WIRE_RELEASE ||
               kind == WIRE_MARK || kind == WIRE_PREFETCH || kind == WIRE_PUT ||
               kind == WIRE_FETCH || kind == WIRE_FIND;
}

/* One status for a whole request that is not looked into. */
static void answer_all(struct session *session, const struct wire_header *header, uint32_t status)
{
        if (header->kind == WIRE_ACQUIRE || header->kind == WIRE_ADOPT)
                load_refuse(session, header->request, status);
        else if (is_batch(header->kind))
                answer_part(session, (const void *)header, status);
        else
                answer_once(session, header->request, status);
}

void dispatch_unsupported(struct session *session, const struct wire_header *header)
{
        if (session->state == SESSION_GREETING) {
                session_close(session, METRICS_GARBAGE, "garbage",
                              "the first message is not a HELLO this daemon knows");
                return;
        }
        answer_all(session, header, KVT_WIRE_UNSUPPORTED);
}

static bool is_current(const struct session *session, const struct wire_header *header)
{
        return header->session == session->id &&
               !memcmp(header->boot_id, session->daemon->boot_id, sizeof(header->boot_id));
}

static void copies_ended(struct session *session, const struct wire_copies_ended *message)
{
        bool found = memcmp(message->secret, session->secret, sizeof(session->secret)) &&
                     sessions_end_quarantine(session->daemon, message->secret);

        answer_once(session, message->header.request, found ? KVT_WIRE_OK : KVT_WIRE_GONE);
}

static bool names_objects(uint16_t kind)
{
        return kind == WIRE_RESERVE || kind == WIRE_ACQUIRE || kind == WIRE_ADOPT ||
               kind == WIRE_MARK || kind == WIRE_PREFETCH || kind == WIRE_FIND;
}

static void dispatch_batch(struct session *session, const struct wire_batch *batch)
{
        uint16_t kind = batch->header.kind;

        if (names_objects(kind) && batch->layout != session->layout) {
                answer_all(session, &batch->header, KVT_WIRE_GONE);
                return;
        }
        /* While the layout is not whole, nothing has a name. */
        if (names_objects(kind) && !session->layout) {
                answer_all(session, &batch->header, KVT_WIRE_PENDING);
                return;
        }
        switch (kind) {
        case WIRE_RESERVE:
                store_reserve(session, batch);
                return;
        case WIRE_COMMIT:
                commit_request(session, batch);
                return;
        case WIRE_ABORT:
                store_abort(session, batch);
                return;
        case WIRE_ACQUIRE:
                acquire_request(session, batch);
                return;
        case WIRE_ADOPT:
                load_adopt(session, batch);
                return;
        case WIRE_MARK:
                mark_request(session, batch);
                return;
        case WIRE_PREFETCH:
                prefetch_request(session, batch);
                return;
        case WIRE_PUT:
        case WIRE_FETCH:
                mover_request(session, batch);
                return;
        case WIRE_FIND:
                finding_request(session, batch);
                return;
        default:
                load_release(session, batch);
                return;
        }
}

void dispatch_message(struct session *session, const struct wire_header *header)
{
        const void *message = header;

        if (session->state == SESSION_GREETING) {
                if (header->kind == WIRE_HELLO)
                        handshake_hello(session, message);
                else
                        session_close(session, METRICS_GARBAGE, "garbage",
                                      "the first message is not a HELLO");
                return;
        }
        if (session->assembly && (header->request != session->assembly->request ||
                                  header->kind != session->assembly->kind)) {
                session_close(session, METRICS_GARBAGE, "garbage",
                              "another request between the parts of one");
                return;
        }
        if (!is_current(session, header)) {
                answer_all(session, header, KVT_WIRE_GONE);
                return;
        }
        if (is_batch(header->kind) && session->state != SESSION_ATTACHED) {
                answer_all(session, header, KVT_WIRE_INVALID);
                return;
        }
        if (is_batch(header->kind)) {
                dispatch_batch(session, message);
                return;
        }
        switch (header->kind) {
        case WIRE_ATTACH:
                attach_request(session, message);
                return;
        case WIRE_CANCEL:
                load_cancel(session, message);
                return;
        case WIRE_COPIES_ENDED:
                copies_ended(session, message);
                return;
        case WIRE_MATCHES:
                admin_explain_matches(session, message);
                return;
        case WIRE_ADMIN:
                admin_command(session, header);
                return;
        case WIRE_TELL:
                layout_use_tell(session, message);
                return;
        default:
                session_close(session, METRICS_GARBAGE, "garbage",
                              "a kind that only the daemon sends, or a second HELLO");
        }
}
