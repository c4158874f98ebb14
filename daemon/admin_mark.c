// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "daemon/admin.h"
#include "daemon/admin_mark.h"
#include "daemon/admin_objects.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/mark.h"

bool admin_is_mark(const char *name)
{
        return !strcmp(name, "pin") || !strcmp(name, "unpin") || !strcmp(name, "reclaim");
}

/* 0: it says nothing that can be done. */
static uint32_t flags_of(const char *name, const json_t *arguments)
{
        uint32_t flags = 0;

        if (!strcmp(name, "pin"))
                return WIRE_MARK_PIN;
        if (!strcmp(name, "unpin"))
                return WIRE_MARK_UNPIN;
        if (json_is_true(json_object_get(arguments, "below")))
                flags |= WIRE_MARK_RECLAIM_BELOW;
        if (json_is_true(json_object_get(arguments, "prefix")))
                flags |= WIRE_MARK_RECLAIM_PREFIX;
        return flags;
}

/* The layout in which there is such a boundary; of several, one must be named. */
static json_t *find_boundary(struct daemon *daemon, const json_t *arguments,
                             const struct digest *digest, uint16_t *ret_layout)
{
        struct index *index = daemon->cache.index;
        uint16_t named, found = 0;
        json_t *error = NULL;

        if (admin_find_layout(daemon, arguments, true, &named, &error))
                return error;
        for (uint32_t i = 1; i <= index_n_layouts(index); i++) {
                if ((named && named != i) || !index_find_boundary(index, (uint16_t)i, digest))
                        continue;
                if (found)
                        return admin_error("more than one layout has this boundary: say which");
                found = (uint16_t)i;
        }
        *ret_layout = found;
        return found ? NULL : admin_error("nothing is known of this boundary");
}

/* Of a reclaim with both flags, what was below may be gone when the boundary itself stays. */
static json_t *stays(const struct mark_result *result, const char *why)
{
        if (!result->objects)
                return admin_error("it stays: %s", why);
        return admin_error("it stays: %s; dropped %" PRIu64 " objects below it", why,
                           result->objects);
}

static json_t *describe(const struct mark_result *result)
{
        switch (result->status) {
        case KVT_WIRE_OK:
                return json_pack("{s:b, s:I, s:I, s:I}", "ok", 1, "objects",
                                 (json_int_t)result->objects, "bytes", (json_int_t)result->bytes,
                                 "kept", (json_int_t)result->kept);
        case KVT_WIRE_MISS:
                return admin_error("it is not there, or not pinned by kvtierctl");
        case KVT_WIRE_BUSY:
                return stays(result, "something hangs on it, or it is leased");
        default:
                return admin_error("%s", status_text(result->status));
        }
}

static void on_pin_end(struct session *session, uint64_t request, const struct mark_result *result)
{
        json_t *answer = result->status == KVT_WIRE_REFUSED
                                 ? admin_error("refused: no more may be pinned (see "
                                               "host.pinned_share_percent and "
                                               "nvme.pinned_share_percent)")
                                 : describe(result);

        admin_reply(session, request, answer, false);
}

static void on_reclaim_end(struct session *session, uint64_t request,
                           const struct mark_result *result)
{
        json_t *answer = result->status == KVT_WIRE_REFUSED ? stays(result, "it is pinned")
                                                            : describe(result);

        admin_reply(session, request, answer, false);
}

void admin_mark(struct session *session, uint64_t request, const char *name,
                const json_t *arguments)
{
        const char *text = json_string_value(json_object_get(arguments, "digest"));
        uint32_t flags = flags_of(name, arguments);
        struct digest digest;
        json_t *error = NULL;
        uint16_t layout = 0;
        int r = 0;

        if (!text || !admin_parse_digest(text, &digest))
                error = admin_error("%s: \"digest\" must be 64 hex digits: see kvtierctl ls", name);
        else if (!flags)
                error = admin_error("%s: what? \"below\", \"prefix\" or both", name);
        else
                error = find_boundary(session->daemon, arguments, &digest, &layout);
        if (!error)
                r = mark_by_admin(session, request, layout, &digest, flags,
                                  strcmp(name, "reclaim") ? on_pin_end : on_reclaim_end);
        if (!error && !r)
                return;
        if (r == -EBUSY)
                error = admin_error("%s: too many marks wait to be done: try again later", name);
        admin_reply(session, request, error, false);
}
