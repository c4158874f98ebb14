// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/outbox.h"

enum {
        SEND_E_FULL = 1, /* the socket takes no more now */
};

static int send_now(int fd, const void *packet, size_t length)
{
        ssize_t sent;

        do
                sent = send(fd, packet, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent >= 0)
                return 0;
        if (errno == EAGAIN || errno == ENOBUFS)
                return SEND_E_FULL;
        return err_raise(-errno);
}

int kvt__outbox_queue(struct kvt__outbox *outbox, const void *packet, size_t length)
{
        struct kvt__packet *queued;

        queued = malloc(sizeof(*queued) + length);
        if (!queued)
                return err_raise(-ENOMEM);
        queued->length = length;
        memcpy(queued->bytes, packet, length);
        STAILQ_INSERT_TAIL(&outbox->packets, queued, link);
        outbox->bytes += length;
        return 0;
}

int kvt__outbox_send(struct kvt__outbox *outbox, int fd, const void *packet, size_t length)
{
        int r = SEND_E_FULL;

        if (STAILQ_EMPTY(&outbox->packets))
                r = send_now(fd, packet, length);
        return r <= 0 ? r : kvt__outbox_queue(outbox, packet, length);
}

static void drop_first(struct kvt__outbox *outbox)
{
        struct kvt__packet *packet = STAILQ_FIRST(&outbox->packets);

        STAILQ_REMOVE_HEAD(&outbox->packets, link);
        outbox->bytes -= packet->length;
        free(packet);
}

int kvt__outbox_flush(struct kvt__outbox *outbox, int fd)
{
        while (!STAILQ_EMPTY(&outbox->packets)) {
                struct kvt__packet *packet = STAILQ_FIRST(&outbox->packets);
                int r = send_now(fd, packet->bytes, packet->length);

                if (r == SEND_E_FULL)
                        return 0;
                if (r)
                        return r;
                drop_first(outbox);
        }
        return 0;
}

void kvt__outbox_clear(struct kvt__outbox *outbox)
{
        while (!STAILQ_EMPTY(&outbox->packets))
                drop_first(outbox);
}
