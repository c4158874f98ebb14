// SPDX-License-Identifier: Apache-2.0
/* Records for our journal from whoever collects what dead nodes have left. */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

struct remote_append {
        TAILQ_ENTRY(remote_append) link;
        uint64_t ordinal; /* of the segment that has the last record */
        void (*on_done)(void *user, int result);
        void *user;
};

static int check(const struct remote *remote, const struct journal_record *records, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (records[i].kind != JOURNAL_DELETED && records[i].kind != JOURNAL_REPLACED)
                        return err_raise(-EINVAL);
        if (remote->is_closing)
                return err_raise(-ECANCELED);
        return remote->is_broken ? err_raise(-EIO) : remote->is_open ? err_raise(-EHOSTDOWN) : 0;
}

int remote_append(struct tier *tier, const struct journal_record *records, uint32_t n_records,
                  void (*on_done)(void *user, int result), void *user)
{
        struct remote *remote = (struct remote *)tier;
        struct database_changes changes = {NULL};
        struct remote_append *append;
        struct remote_group group;
        int r = check(remote, records, n_records);

        if (r)
                return r;
        append = calloc(1, sizeof(*append));
        if (!append)
                return err_raise(-ENOMEM);
        append->on_done = on_done;
        append->user = user;
        remote_group_init(&group, &changes);
        for (uint32_t i = 0; i < n_records; i++) {
                if (records[i].kind == JOURNAL_DELETED)
                        remote_apply_deleted(remote, &records[i].bundle, &changes);
                else
                        remote_replaced_learn(remote, remote->own, UINT64_MAX, &records[i].key,
                                              records[i].checksum_total, &changes);
                remote_group_add(remote, &group, &records[i]);
        }
        append->ordinal = remote_group_commit(remote, &group, true);
        remote_replaced_wait(remote, append->ordinal);
        remote_change(remote, &changes, false, NULL);
        TAILQ_INSERT_TAIL(&remote->appends, append, link);
        remote_busy(remote);
        return 0;
}

void remote_end_appends(struct remote *remote, int result)
{
        struct remote_append *append, *next;

        for (append = TAILQ_FIRST(&remote->appends); append; append = next) {
                int r = append->ordinal <= remote->done_ordinal ? 0 : result;

                next = TAILQ_NEXT(append, link);
                if (r || append->ordinal <= remote->done_ordinal) {
                        TAILQ_REMOVE(&remote->appends, append, link);
                        append->on_done(append->user, r);
                        free(append);
                        remote_idle(remote);
                }
        }
}
