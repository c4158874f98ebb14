// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/thread.h"
#include "client/session.h"
#include "proto/layout_span.h"
#include "proto/message.h"

#define BEAT_NS_MIN  UINT64_C(50000000)
#define BEAT_NS_MAX  UINT64_C(500000000)
#define CLOSE_NS_MAX UINT64_C(500000000)
#define NEVER        UINT64_MAX
#define OPEN_FLAGS                                                                                 \
        (KVT_OPEN_PARTIAL_LAYOUT | KVT_OPEN_NO_LOADS | KVT_OPEN_NO_STORES | KVT_OPEN_WHOLE_BUFFER)
#define NS_PER_SECOND UINT64_C(1000000000)

uint64_t kvt__now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

void kvt__session_wake(struct kvt_session *session)
{
        static const uint64_t one = 1;

        /* A full counter is a wake-up that has not been seen yet. */
        if (write(session->wake_fd, &one, sizeof(one)) < 0)
                return;
}

void kvt__session_break(struct kvt_session *session, const char *format, ...)
{
        va_list arguments;

        if (session->broken || session->phase == KVT__DOWN)
                return;
        session->broken = true;
        va_start(arguments, format);
        vsnprintf(session->last_error.text, sizeof(session->last_error.text), format, arguments);
        va_end(arguments);
        kvt__table_hide(&session->tables);
        kvt__session_wake(session);
}

void kvt__session_lose(struct kvt_session *session, const char *reason)
{
        if (session->is_lost)
                return;
        session->is_lost = true;
        kvt__session_break(session, "%s", reason);
        snprintf(session->last_error.text, sizeof(session->last_error.text), "%s", reason);
}

bool kvt__session_send(struct kvt_session *session, const void *packet, size_t length)
{
        bool was_empty = STAILQ_EMPTY(&session->outbox.packets);
        int r;

        if (session->broken)
                return false;
        r = kvt__outbox_send(&session->outbox, session->socket, packet, length);
        /* A daemon that lets nobody in has hung up already: its reason waits to be read. */
        if (r == -EPIPE && session->phase == KVT__GREETING)
                return true;
        if (r) {
                kvt__session_break(session, "sending to the daemon: %s", strerror(-r));
                return false;
        }
        /* The thread has to watch for room in the socket from now on. */
        if (was_empty && !STAILQ_EMPTY(&session->outbox.packets))
                kvt__session_wake(session);
        return true;
}

static void era_free(struct kvt_session *session, struct kvt__era *era)
{
        TAILQ_REMOVE(&session->eras, era, link);
        free(era);
}

void kvt__session_settle(struct kvt_session *session)
{
        struct kvt__era *era = TAILQ_FIRST(&session->eras);

        if (session->phase != KVT__UP)
                return;
        while (era && !session->broken) {
                struct kvt__era *next = TAILQ_NEXT(era, link);

                if (era->dead && !era->n_leases) {
                        kvt__say_copies_ended(session, era);
                        era_free(session, era);
                        kvt__arenas_sweep(&session->arenas);
                }
                era = next;
        }
}

/* ---- the thread ---- */

/* Takes the connection down: everything waiting ends, everything leased stays readable. */
static void hang_up(struct kvt_session *session)
{
        bool was_up = session->phase == KVT__UP;

        close(session->socket);
        session->socket = -1;
        session->phase = KVT__DOWN;
        session->broken = false;
        session->layout = 0;
        kvt__outbox_clear(&session->outbox);
        kvt__table_retire(&session->tables);
        kvt__arenas_retract(&session->arenas);
        if (session->era) {
                session->era->dead = true;
                kvt__set_end(&session->leases, session->era, 0);
        }
        kvt__calls_hang_up(session);
        /* An era that never was up has granted nothing that anyone could have to end. */
        if (session->era && !was_up)
                era_free(session, session->era);
        session->era = NULL;
        session->connect_at_ns = kvt__now_ns() + session->backoff_ns;
        pthread_cond_broadcast(&session->changed);
}

bool kvt__session_may_look(struct kvt_session *session, uint64_t now)
{
        return !(session->open_flags & KVT_OPEN_NO_LOADS) &&
               kvt__table_is_fresh(&session->tables, now);
}

static void beat(struct kvt_session *session, uint64_t now)
{
        kvt__tables_sweep(&session->tables);
        if (session->phase != KVT__UP || !session->layout)
                return;
        if (kvt__session_may_look(session, now))
                kvt__table_show(&session->tables);
        else
                kvt__table_hide(&session->tables);
}

static uint64_t beat_ns(const struct kvt_session *session)
{
        uint64_t period = session->tables.current->view.header->heartbeat_period_ns;

        return period < BEAT_NS_MIN ? BEAT_NS_MIN : period > BEAT_NS_MAX ? BEAT_NS_MAX : period;
}

/* Everything that is due. Returns when to look again. */
static uint64_t tick(struct kvt_session *session)
{
        uint64_t now = kvt__now_ns();
        uint64_t next = kvt__calls_expire(session, now);

        if (session->phase == KVT__DOWN && !session->is_lost && now >= session->connect_at_ns)
                kvt__handshake_start(session);
        if (session->phase != KVT__DOWN && session->phase != KVT__UP &&
            now >= session->handshake_until_ns)
                kvt__session_break(session, "the daemon does not answer");
        if (session->broken)
                hang_up(session);
        beat(session, now);
        kvt__session_settle(session);

        if (session->phase == KVT__DOWN && !session->is_lost && session->connect_at_ns < next)
                next = session->connect_at_ns;
        else if (session->phase == KVT__UP && now + beat_ns(session) < next)
                next = now + beat_ns(session);
        else if (session->phase != KVT__UP && session->handshake_until_ns < next &&
                 session->phase != KVT__DOWN)
                next = session->handshake_until_ns;
        return next;
}

static void sleep_until(struct kvt_session *session, struct pollfd fds[2], uint64_t until)
{
        uint64_t now = kvt__now_ns();
        uint64_t wait = until == NEVER ? NS_PER_SECOND : until > now ? until - now : 0;
        struct timespec timeout = {
                .tv_sec = (time_t)(wait / NS_PER_SECOND),
                .tv_nsec = (long)(wait % NS_PER_SECOND),
        };
        uint64_t count;

        if (ppoll(fds, 2, &timeout, NULL) < 0)
                return;
        if (fds[0].revents && read(session->wake_fd, &count, sizeof(count)) < 0)
                return;
}

static void *run(void *argument)
{
        struct kvt_session *session = argument;

        pthread_mutex_lock(&session->lock);
        while (!session->stopping) {
                uint64_t until = tick(session);
                struct pollfd fds[2] = {
                        {.fd = session->wake_fd, .events = POLLIN},
                        {.fd = session->socket, .events = POLLIN},
                };

                /* Broken meanwhile: nothing to wait for. */
                if (session->broken)
                        continue;
                if (!STAILQ_EMPTY(&session->outbox.packets))
                        fds[1].events |= POLLOUT;
                session->sleeping_until_ns = until;
                pthread_mutex_unlock(&session->lock);

                fds[1].revents = 0;
                sleep_until(session, fds, until);
                if (fds[1].revents & (POLLIN | POLLHUP | POLLERR))
                        kvt__receive(session);

                pthread_mutex_lock(&session->lock);
                session->sleeping_until_ns = 0;
                if (fds[1].revents & POLLOUT && !session->broken) {
                        int r = kvt__outbox_flush(&session->outbox, session->socket);

                        if (r)
                                kvt__session_break(session, "sending to the daemon: %s",
                                                   strerror(-r));
                }
        }
        if (session->phase != KVT__DOWN)
                hang_up(session);
        pthread_mutex_unlock(&session->lock);
        return NULL;
}

/* ---- open and close ---- */

static enum kvt_status fail(enum kvt_status status, struct why *why, const char *text)
{
        why_set(why, "%s", text);
        return status;
}

static enum kvt_status set_address(struct kvt_session *session, const char *path, struct why *why)
{
        if (!path)
                path = KVT_DEFAULT_SOCKET;
        if (!*path || strlen(path) >= sizeof(session->address.sun_path))
                return fail(KVT_INVALID, why, "the socket's path is empty or too long");
        session->address.sun_family = AF_UNIX;
        memcpy(session->address.sun_path, path, strlen(path) + 1);
        return KVT_OK;
}

#define BUFFER_BYTES (UINT64_C(256) << 20)
#define BUFFER_UNIT  UINT64_C(4096)

/* The buffer in memory of a GPU: NULL, or what is wrong with it. */
static const char *take_dmabuf(struct kvt_dmabuf *ret_dmabuf, const struct kvt_dmabuf *given)
{
        if (kvt__copy_sized(ret_dmabuf, sizeof(*ret_dmabuf), given))
                return "kvt_dmabuf.size is not set, or the struct is of a newer version";
        if (!ret_dmabuf->base || ret_dmabuf->fd < 0 || ret_dmabuf->reserved)
                return "kvt_dmabuf has no base or fd, or reserved is set";
        if (!ret_dmabuf->bytes || ret_dmabuf->bytes % BUFFER_UNIT)
                return "kvt_dmabuf.bytes is not a multiple of 4 KiB";
        if (((uintptr_t)ret_dmabuf->base ^ ret_dmabuf->offset) % BUFFER_UNIT ||
            ret_dmabuf->offset > UINT64_MAX - ret_dmabuf->bytes)
                return "kvt_dmabuf.offset is not where its base can be";
        return NULL;
}

/* The daemon of another node: the module stands between. */
static enum kvt_status open_bridge(struct kvt_session *session, const struct kvt_options *options,
                                   struct why *why)
{
        const char *environment = secure_getenv("KVTIER_SECRET");
        struct kvt__bridge_options bridge = {
                .address = options->socket + strlen(KVT__REMOTE_SCHEME),
                .secret = options->secret ? options->secret
                          : environment   ? environment
                                          : KVT_DEFAULT_SECRET,
                .buffer_bytes = options->buffer_bytes ? options->buffer_bytes : BUFFER_BYTES,
                .source = secure_getenv("KVTIER_RDMA_SOURCE"),
                .whole_buffer = options->flags & KVT_OPEN_WHOLE_BUFFER,
        };
        struct kvt_dmabuf dmabuf;
        const char *fault = options->dmabuf ? take_dmabuf(&dmabuf, options->dmabuf) : NULL;
        int r;

        if (fault)
                return fail(KVT_INVALID, why, fault);
        if (options->dmabuf) {
                bridge.dmabuf = &dmabuf;
                session->arenas.foreign = dmabuf.base;
        }
        if (bridge.buffer_bytes > UINT64_MAX - BUFFER_UNIT)
                return fail(KVT_INVALID, why, "kvt_options.buffer_bytes is too large");
        bridge.buffer_bytes = (bridge.buffer_bytes + BUFFER_UNIT - 1) / BUFFER_UNIT * BUFFER_UNIT;
        session->remote_ops = kvt__remote_load(why);
        if (!session->remote_ops)
                return KVT_UNSUPPORTED;
        r = session->remote_ops->open(&session->bridge, &bridge, why);
        switch (r) {
        case 0:
                return KVT_OK;
        case -ENOMEM:
                return KVT_NO_MEMORY;
        case -ENOTSUP:
                return KVT_UNSUPPORTED;
        case -EACCES:
        case -EPERM:
                return KVT_DENIED;
        default:
                return KVT_INVALID;
        }
}

static bool is_remote(const char *socket)
{
        return socket && !strncmp(socket, KVT__REMOTE_SCHEME, strlen(KVT__REMOTE_SCHEME));
}

static enum kvt_status set_shards(struct kvt_session *session, const struct kvt_options *options,
                                  struct why *why)
{
        struct layout_span span;
        struct layout layout;
        uint16_t n;

        if (layout_decode_partial(&layout, session->asked.bytes, session->asked.length, why))
                return KVT_INVALID;
        n = layout_most_shards(&layout);
        if (options->shards ? !options->n_shards || options->n_shards > LAYOUT_SHARDS_MAX
                            : options->n_shards)
                return fail(KVT_INVALID, why, "shards and n_shards do not fit together");
        if (options->n_ranks > LAYOUT_SHARDS_MAX ||
            options->rank >= (options->n_ranks ? options->n_ranks : 1))
                return fail(KVT_INVALID, why, "rank and n_ranks do not fit together");
        kvt__rank_init(&session->rank, &layout, options->rank, options->n_ranks);
        if (options->shards)
                n = (uint16_t)options->n_shards;
        session->shards = calloc(n, sizeof(session->shards[0]));
        if (!session->shards)
                return fail(KVT_NO_MEMORY, why, "out of memory");
        session->n_shards = n;
        for (uint16_t i = 0; i < n; i++)
                session->shards[i] = options->shards ? options->shards[i] : i;
        layout_span_init(&span, &layout, session->shards, n);
        session->spans_nodes = !layout_span_is_whole(&span);
        return KVT_OK;
}

static enum kvt_status set_identity(struct kvt_session *session, const struct kvt_options *options,
                                    struct why *why)
{
        const char *program = options->program ? options->program : program_invocation_short_name;
        int r = 0;

        session->open_flags = options->flags;
        snprintf(session->program, sizeof(session->program), "%s", program);
        if (options->engine_id)
                memcpy(session->engine_id, options->engine_id, sizeof(session->engine_id));
        else if (getrandom(session->engine_id, sizeof(session->engine_id), 0) < 0)
                return fail(KVT_NO_MEMORY, why, "no random bytes for the engine id");
        if (!options->layout)
                return fail(KVT_INVALID, why, "kvt_options.layout is missing");
        session->asked_is_partial = options->flags & KVT_OPEN_PARTIAL_LAYOUT;
        r = kvt__layout_encode(&session->asked, options->layout, session->asked_is_partial, why);
        if (r)
                return r == -ENOMEM ? KVT_NO_MEMORY : KVT_INVALID;
        return set_shards(session, options, why);
}

static enum kvt_status make_parts(struct kvt_session *session, struct why *why)
{
        session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        session->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        session->out_buffer = aligned_alloc(8, WIRE_MESSAGE_MAX);
        session->in_buffer = aligned_alloc(8, WIRE_MESSAGE_MAX);
        if (session->wake_fd < 0 || session->ready_fd < 0)
                return fail(KVT_NO_MEMORY, why, "no file descriptors left");
        if (!session->out_buffer || !session->in_buffer || kvt__recent_init(&session->recent))
                return fail(KVT_NO_MEMORY, why, "out of memory");
        return KVT_OK;
}

static struct kvt_session *session_new(void)
{
        static _Atomic uint64_t last_serial;
        struct kvt_session *session = calloc(1, sizeof(*session));
        pthread_condattr_t monotonic;

        if (!session)
                return NULL;
        session->host = &kvt__page_host;
        session->wake_fd = session->ready_fd = session->socket = -1;
        session->serial = atomic_fetch_add_explicit(&last_serial, 1, memory_order_relaxed) + 1;
        session->backoff_ns = KVT__BACKOFF_NS_MIN;
        TAILQ_INIT(&session->eras);
        kvt__arenas_init(&session->arenas);
        TAILQ_INIT(&session->calls.ready);
        kvt__copier_init(&session->copier);
        STAILQ_INIT(&session->outbox.packets);
        pthread_mutex_init(&session->lock, NULL);
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&session->changed, &monotonic);
        pthread_condattr_destroy(&monotonic);
        return session;
}

/* Everything but the thread. @inherited: the memory of the parent's session in a child. */
static void session_free(struct kvt_session *session, bool inherited)
{
        kvt__calls_free(session);
        kvt__leases_free(&session->leases);
        kvt__pins_free(&session->pins);
        while (!TAILQ_EMPTY(&session->eras))
                era_free(session, TAILQ_FIRST(&session->eras));
        kvt__outbox_clear(&session->outbox);
        kvt__tables_free(&session->tables, inherited);
        kvt__recent_deinit(&session->recent);
        kvt__arenas_free(&session->arenas, inherited);
        if (session->wake_fd >= 0)
                close(session->wake_fd);
        if (session->ready_fd >= 0)
                close(session->ready_fd);
        kvt__copier_deinit(&session->copier, inherited);
        /* Its thread is not in a child. */
        if (session->bridge && !inherited)
                session->remote_ops->close(session->bridge);
        free(session->shards);
        free(session->out_buffer);
        free(session->in_buffer);
        if (!inherited) {
                pthread_cond_destroy(&session->changed);
                pthread_mutex_destroy(&session->lock);
        }
        free(session);
}

static void stop_thread(struct kvt_session *session)
{
        pthread_mutex_lock(&session->lock);
        session->stopping = true;
        kvt__session_wake(session);
        pthread_mutex_unlock(&session->lock);
        pthread_join(session->thread, NULL);
        kvt__fork_unregister(session);
}

static void wait_until(struct kvt_session *session, uint64_t until_ns)
{
        struct timespec until = {
                .tv_sec = (time_t)(until_ns / NS_PER_SECOND),
                .tv_nsec = (long)(until_ns % NS_PER_SECOND),
        };

        pthread_cond_timedwait(&session->changed, &session->lock, &until);
}

static uint64_t deadline(uint64_t timeout_ns)
{
        uint64_t now = kvt__now_ns();

        /* Beyond this a timespec may not hold it; nobody waits for a century. */
        return timeout_ns > NS_PER_SECOND * 3600 * 24 * 365 * 100
                       ? now + NS_PER_SECOND * 3600 * 24 * 365 * 100
                       : now + timeout_ns;
}

/* How far the session has come. Under the lock. */
static enum kvt_status standing(const struct kvt_session *session)
{
        if (session->phase == KVT__UP && !session->broken)
                return session->layout ? KVT_OK : KVT_PENDING;
        return session->refusal != KVT_OK ? session->refusal : KVT_UNAVAILABLE;
}

/* Waits as long as the caller wants for a session that has not come as far as @enough. */
static enum kvt_status await(struct kvt_session *session, enum kvt_status enough,
                             uint64_t timeout_ns, struct why *why)
{
        uint64_t until = deadline(timeout_ns);
        enum kvt_status status;

        pthread_mutex_lock(&session->lock);
        for (;;) {
                status = standing(session);
                if ((status != KVT_UNAVAILABLE && (status != KVT_PENDING || status == enough)) ||
                    kvt__now_ns() >= until)
                        break;
                wait_until(session, until);
        }
        if (status != KVT_OK)
                *why = session->last_error;
        pthread_mutex_unlock(&session->lock);
        return status;
}

enum kvt_status kvt_wait_attached(struct kvt_session *session, uint64_t timeout_ns)
{
        struct why why;

        if (!session)
                return KVT_INVALID;
        return kvt__is_forked(session) ? KVT_FORKED : await(session, KVT_OK, timeout_ns, &why);
}

static enum kvt_status open_session(struct kvt_session **ret_session,
                                    const struct kvt_options *given, struct why *why)
{
        struct kvt_session *session;
        struct kvt_options options;
        enum kvt_status status;

        if (!ret_session || !given || kvt__copy_sized(&options, sizeof(options), given))
                return fail(KVT_INVALID, why,
                            "kvt_options.size is not set, or the struct is of a newer version");
        if (options.flags & ~OPEN_FLAGS)
                return fail(KVT_UNSUPPORTED, why, "kvt_options.flags has unknown bits");
        if (options.dmabuf && !is_remote(options.socket))
                return fail(KVT_INVALID, why, "kvt_options.dmabuf is for remote sessions");
        session = session_new();
        if (!session)
                return fail(KVT_NO_MEMORY, why, "out of memory");
        status = is_remote(options.socket) ? KVT_OK : set_address(session, options.socket, why);
        if (status == KVT_OK)
                status = set_identity(session, &options, why);
        if (status == KVT_OK && is_remote(options.socket))
                status = open_bridge(session, &options, why);
        if (status == KVT_OK)
                status = make_parts(session, why);
        if (status == KVT_OK && (kvt__fork_register(session) ||
                                 thread_start(&session->thread, run, session))) {
                kvt__fork_unregister(session);
                status = fail(KVT_NO_MEMORY, why, "no thread for the session");
        }
        if (status != KVT_OK) {
                session_free(session, false);
                return status;
        }
        status = await(session, KVT_PENDING, options.connect_timeout_ns, why);
        if (status != KVT_OK && status != KVT_PENDING && status != KVT_UNAVAILABLE) {
                stop_thread(session);
                session_free(session, false);
                return status;
        }
        *ret_session = session;
        return status;
}

enum kvt_status kvt_open(struct kvt_session **ret_session, const struct kvt_options *options,
                         char *ret_why, size_t why_bytes)
{
        struct why why = {""};
        enum kvt_status status = open_session(ret_session, options, &why);

        if (ret_why && why_bytes)
                snprintf(ret_why, why_bytes, "%s", why.text);
        return status;
}

/* Sends back all that this session holds, so that nothing of it ends in quarantine. */
static void return_leases(struct kvt_session *session)
{
        struct kvt__lease *lease = NULL;

        while ((lease = kvt__lease_after(&session->leases, lease ? lease->id : 0))) {
                if (lease->era != session->era || lease->ending)
                        continue;
                lease->ending = true;
                kvt__give_back(session, lease->writes ? WIRE_RESERVE : WIRE_ACQUIRE, lease->set,
                               &lease->wire, 1);
        }
}

void kvt_close(struct kvt_session *session)
{
        uint64_t until = kvt__now_ns() + CLOSE_NS_MAX;

        if (!session)
                return;
        if (kvt__is_forked(session)) {
                session_free(session, true);
                return;
        }
        pthread_mutex_lock(&session->lock);
        kvt__calls_cancel(session);
        pthread_mutex_unlock(&session->lock);
        kvt__copier_stop(session);
        kvt__session_drop_device(session);
        pthread_mutex_lock(&session->lock);
        return_leases(session);
        while (session->phase == KVT__UP && !session->broken && kvt__calls_on_wire(session) &&
               kvt__now_ns() < until)
                wait_until(session, until);
        pthread_mutex_unlock(&session->lock);
        stop_thread(session);
        session_free(session, false);
}

enum kvt_status kvt_session_info(struct kvt_session *session, struct kvt_session_info *ret_info)
{
        struct kvt_session_info info = {0};

        if (!session || !ret_info || ret_info->size < sizeof(info.size) || ret_info->size > 4096)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        pthread_mutex_lock(&session->lock);
        info.size = ret_info->size;
        info.attached = session->phase == KVT__UP && !session->broken;
        info.chunk_tokens = session->chunk_tokens;
        memcpy(info.layout_id, session->layout_id.bytes, sizeof(info.layout_id));
        memcpy(info.boot_id, session->boot_id, sizeof(info.boot_id));
        info.reconnects = session->n_attached ? session->n_attached - 1 : 0;
        info.host_bytes = session->host_bytes;
        info.pending = info.attached && !session->layout;
        info.lost_pins = session->pins.n_lost;
        if (!info.attached || info.pending)
                snprintf(info.last_error, sizeof(info.last_error), "%.*s",
                         (int)sizeof(info.last_error) - 1, session->last_error.text);
        pthread_mutex_unlock(&session->lock);
        memset(ret_info, 0, info.size);
        memcpy(ret_info, &info, info.size < sizeof(info) ? info.size : sizeof(info));
        return KVT_OK;
}
