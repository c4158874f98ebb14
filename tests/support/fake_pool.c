// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/support/fake_pool.h"

#define SLASH  '+' /* stands for '/' in the name of a file */
#define HIDDEN '~' /* a put that is not complete begins with it */

struct pending {
        TAILQ_ENTRY(pending) link;
        enum fake_pool_kind kind;
        void *request; /* struct pool_put, ... */
        uint64_t due;  /* of the loop's clock, ms */
        int fault;     /* 0: carried out */
        bool is_lost;
        bool is_held;
        uint64_t extra;
        uint64_t deadline;
};

TAILQ_HEAD(pending_queue, pending);

struct fake {
        struct pool pool;
        LIST_ENTRY(fake) link; /* pools of this process: hint() */
        uv_loop_t *loop;
        uv_timer_t timer;
        uv_async_t hinted;
        uint32_t n_handles;
        struct pending_queue queue;
        char folder[128];
        char failure[160];
        uint32_t delay_ms;
        bool is_stopped;
        uint32_t fail_kinds, n_fail, lose_kinds, n_lose, n_long, held_kinds;
        int fail_result;
        uint64_t extra;
        void (*on_request)(void *user, enum fake_pool_kind kind, const char *name);
        void *on_request_user;
        struct pool_usage usage;
        bool is_closing;
        void (*on_closed)(void *user);
        void *on_closed_user;
};

static LIST_HEAD(, fake) all = LIST_HEAD_INITIALIZER(all);

/* ---- files ---- */

static void file_name(char *ret_name, const char *name)
{
        size_t i;

        for (i = 0; name[i] && i < POOL_NAME_MAX - 1; i++)
                ret_name[i] = name[i] == '/' ? SLASH : name[i];
        ret_name[i] = '\0';
}

static void file_path(char ret_path[320], const char *folder, const char *name)
{
        char file[POOL_NAME_MAX];

        file_name(file, name);
        snprintf(ret_path, 320, "%s/%s", folder, file);
}

static int write_all(int fd, const struct pool_put *put)
{
        for (uint32_t i = 0; i < put->n_buffers; i++) {
                const uint8_t *at = put->buffers[i].bytes;
                uint64_t left = put->buffers[i].length;

                while (left) {
                        ssize_t n = write(fd, at, left);

                        if (n < 0)
                                return -errno;
                        at += n;
                        left -= (uint64_t)n;
                }
        }
        return 0;
}

static int put_file(struct fake *fake, const struct pool_put *put)
{
        char path[320], hidden[320];
        _cleanup_fd_ int fd = -1;
        int r;

        file_path(path, fake->folder, put->name);
        if (put->flags & POOL_EXCLUSIVE && !access(path, F_OK))
                return -EEXIST;
        snprintf(hidden, sizeof(hidden), "%.200s/%c%d-%p", fake->folder, HIDDEN, getpid(),
                 (const void *)put);
        fd = open(hidden, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        r = write_all(fd, put);
        if (!r && put->flags & POOL_EXCLUSIVE) {
                r = link(hidden, path) < 0 ? -errno : 0;
                unlink(hidden);
        } else if (!r && rename(hidden, path) < 0) {
                r = -errno;
        }
        if (!r)
                for (uint32_t i = 0; i < put->n_buffers; i++)
                        fake->usage.written_bytes_total += put->buffers[i].length;
        return r;
}

static int get_file(struct fake *fake, const struct pool_get *get, uint64_t *ret_bytes)
{
        _cleanup_fd_ int fd = -1;
        char path[320];
        ssize_t n;

        file_path(path, fake->folder, get->name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        while (*ret_bytes < get->length) {
                n = pread(fd, (uint8_t *)get->bytes + *ret_bytes, get->length - *ret_bytes,
                          (off_t)(get->offset + *ret_bytes));
                if (n < 0)
                        return -errno;
                if (!n)
                        break;
                *ret_bytes += (uint64_t)n;
        }
        fake->usage.read_bytes_total += *ret_bytes;
        return 0;
}

/* All files that begin with @prefix, sorted; freed by free_names(). */
static int find_names(const char *folder, const char *prefix, struct dirent ***ret_names)
{
        struct dirent **names = NULL;
        char wanted[POOL_NAME_MAX];
        int n = scandir(folder, &names, NULL, NULL), n_kept = 0;

        ck_assert_int_ge(n, 0);
        file_name(wanted, prefix);
        for (int i = 0; i < n; i++) {
                if (names[i]->d_name[0] != '.' && names[i]->d_name[0] != HIDDEN &&
                    !strncmp(names[i]->d_name, wanted, strlen(wanted))) {
                        for (char *c = names[i]->d_name; *c; c++)
                                *c = *c == SLASH ? '/' : *c;
                        names[n_kept++] = names[i];
                } else {
                        free(names[i]);
                }
        }
        /* In the order of names with slashes in them. */
        for (int i = 1; i < n_kept; i++)
                for (int j = i; j && strcmp(names[j - 1]->d_name, names[j]->d_name) > 0; j--) {
                        struct dirent *other = names[j];

                        names[j] = names[j - 1];
                        names[j - 1] = other;
                }
        *ret_names = names;
        return n_kept;
}

static void free_names(struct dirent **names, int n)
{
        for (int i = 0; i < n; i++)
                free(names[i]);
        free(names);
}

static void list_files(struct fake *fake, struct pool_list *list)
{
        struct dirent **names;
        uint32_t n_given = 0;
        bool more = false;
        int n = find_names(fake->folder, list->prefix, &names);

        for (int i = 0; i < n && !more; i++) {
                if (list->after && strcmp(names[i]->d_name, list->after) <= 0)
                        continue;
                if (n_given == list->max) {
                        more = true;
                        break;
                }
                n_given++;
                list->on_name(list, names[i]->d_name,
                              fake_pool_size(fake->folder, names[i]->d_name));
        }
        free_names(names, n);
        list->on_done(list, 0, more);
}

/* ---- requests ---- */

static const char *name_of(const struct pending *pending)
{
        switch (pending->kind) {
        case FAKE_POOL_PUT:
                return ((struct pool_put *)pending->request)->name;
        case FAKE_POOL_GET:
                return ((struct pool_get *)pending->request)->name;
        case FAKE_POOL_REMOVE:
                return ((struct pool_remove *)pending->request)->name;
        default:
                return ((struct pool_list *)pending->request)->prefix;
        }
}

static int remove_file(struct fake *fake, const struct pool_remove *remove)
{
        char path[320];

        file_path(path, fake->folder, remove->name);
        return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

static int note_result(struct fake *fake, const struct pending *pending, int result)
{
        if (result && result != -ENOENT && result != -EEXIST) {
                fake->usage.failures_total++;
                snprintf(fake->failure, sizeof(fake->failure), "%s: %s", name_of(pending),
                         strerror(-result));
        }
        return result;
}

/* Carries it out, unless it fails, and completes it. */
static void finish(struct fake *fake, struct pending *pending)
{
        int fault = pending->fault, r = 0;
        uint64_t n_bytes = 0;

        if (fake->on_request && !fault)
                fake->on_request(fake->on_request_user, pending->kind, name_of(pending));
        if (pending->kind == FAKE_POOL_PUT) {
                struct pool_put *put = pending->request;

                r = fault ? fault : put_file(fake, put);
                put->on_done(put, note_result(fake, pending, pending->is_lost ? -ETIMEDOUT : r));
        } else if (pending->kind == FAKE_POOL_GET) {
                struct pool_get *get = pending->request;

                r = fault ? fault : get_file(fake, get, &n_bytes);
                get->on_done(get, note_result(fake, pending, pending->is_lost ? -ETIMEDOUT : r),
                             n_bytes + pending->extra);
        } else if (pending->kind == FAKE_POOL_REMOVE) {
                struct pool_remove *remove = pending->request;

                r = fault ? fault : remove_file(fake, remove);
                remove->on_done(remove,
                                note_result(fake, pending, pending->is_lost ? -ETIMEDOUT : r));
        } else {
                struct pool_list *list = pending->request;

                if (fault || pending->is_lost)
                        list->on_done(list, note_result(fake, pending, fault ? fault : -ETIMEDOUT),
                                      false);
                else
                        list_files(fake, list);
        }
        free(pending);
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct fake *fake = handle->data;
        void (*on_closed)(void *user) = fake->on_closed;
        void *user = fake->on_closed_user;

        if (--fake->n_handles)
                return;
        free(fake);
        on_closed(user);
}

static void on_timer(uv_timer_t *timer);

static void schedule(struct fake *fake)
{
        uint64_t first = UINT64_MAX, now = uv_now(fake->loop);
        struct pending *pending;

        TAILQ_FOREACH(pending, &fake->queue, link) {
                uint64_t due = pending->is_held ? pending->deadline : pending->due;

                if (due < first)
                        first = due;
        }
        if (first != UINT64_MAX) {
                uv_timer_start(&fake->timer, on_timer, first > now ? first - now : 0, 0);
        } else if (fake->is_closing && !uv_is_closing((uv_handle_t *)&fake->timer)) {
                LIST_REMOVE(fake, link);
                uv_close((uv_handle_t *)&fake->timer, on_handle_closed);
                uv_close((uv_handle_t *)&fake->hinted, on_handle_closed);
        }
}

static struct pending *next_due(struct fake *fake)
{
        uint64_t now = uv_now(fake->loop);
        struct pending *pending;

        TAILQ_FOREACH(pending, &fake->queue, link) {
                if (pending->is_held && pending->deadline <= now) {
                        pending->fault = -ETIMEDOUT;
                        return pending;
                }
                if (!pending->is_held && pending->due <= now)
                        return pending;
        }
        return NULL;
}

static void on_timer(uv_timer_t *timer)
{
        struct fake *fake = timer->data;
        struct pending_queue due = TAILQ_HEAD_INITIALIZER(due);
        struct pending *pending;

        /* What callbacks submit comes on a later turn. */
        while ((pending = next_due(fake))) {
                TAILQ_REMOVE(&fake->queue, pending, link);
                TAILQ_INSERT_TAIL(&due, pending, link);
        }
        while ((pending = TAILQ_FIRST(&due))) {
                TAILQ_REMOVE(&due, pending, link);
                fake->usage.n_requests--;
                finish(fake, pending);
        }
        schedule(fake);
}

static bool takes_fault(uint32_t kinds, enum fake_pool_kind kind, uint32_t *n)
{
        if (!*n || !(kinds & 1u << kind))
                return false;
        --*n;
        return true;
}

static int submit(struct pool *pool, enum fake_pool_kind kind, void *request, uint32_t deadline_ms)
{
        struct fake *fake = (struct fake *)pool;
        struct pending *pending = calloc(1, sizeof(*pending));

        if (!pending)
                return err_raise(-ENOMEM);
        ck_assert_uint_gt(deadline_ms, 0);
        pending->kind = kind;
        pending->request = request;
        pending->deadline = uv_now(fake->loop) + deadline_ms;
        pending->due = uv_now(fake->loop) + fake->delay_ms;
        if (fake->is_stopped || pending->due > pending->deadline) {
                pending->due = pending->deadline;
                pending->fault = -ETIMEDOUT;
        } else if (takes_fault(fake->fail_kinds, kind, &fake->n_fail)) {
                pending->due = uv_now(fake->loop);
                pending->fault = fake->fail_result;
        } else if (takes_fault(fake->lose_kinds, kind, &fake->n_lose)) {
                pending->is_lost = true;
        } else if (takes_fault(1u << FAKE_POOL_GET, kind, &fake->n_long)) {
                pending->extra = fake->extra;
        }
        pending->is_held = !pending->fault && fake->held_kinds & 1u << kind;
        TAILQ_INSERT_TAIL(&fake->queue, pending, link);
        fake->usage.n_requests++;
        fake->usage.requests_total[kind]++;
        schedule(fake);
        return 0;
}

static int fake_put(struct pool *pool, struct pool_put *put)
{
        ck_assert_uint_le(put->n_buffers, POOL_BUFFERS_MAX);
        return submit(pool, FAKE_POOL_PUT, put, put->deadline_ms);
}

static int fake_get(struct pool *pool, struct pool_get *get)
{
        return submit(pool, FAKE_POOL_GET, get, get->deadline_ms);
}

static int fake_remove(struct pool *pool, struct pool_remove *remove)
{
        return submit(pool, FAKE_POOL_REMOVE, remove, remove->deadline_ms);
}

static int fake_list(struct pool *pool, struct pool_list *list)
{
        ck_assert_uint_gt(list->max, 0);
        return submit(pool, FAKE_POOL_LIST, list, list->deadline_ms);
}

/* ---- the pool ---- */

static void on_hinted(uv_async_t *async)
{
        struct fake *fake = async->data;

        if (fake->pool.on_hint && !fake->is_closing && !fake->is_stopped)
                fake->pool.on_hint(fake->pool.on_hint_user);
}

static void fake_hint(struct pool *pool)
{
        struct fake *fake = (struct fake *)pool, *other;

        LIST_FOREACH(other, &all, link) {
                if (other != fake && !strcmp(other->folder, fake->folder))
                        uv_async_send(&other->hinted);
        }
}

static const char *fake_last_failure(const struct pool *pool)
{
        return ((const struct fake *)pool)->failure;
}

static void fake_usage(const struct pool *pool, struct pool_usage *ret_usage)
{
        *ret_usage = ((const struct fake *)pool)->usage;
}

static void fake_close(struct pool *pool, void (*on_closed)(void *user), void *user)
{
        struct fake *fake = (struct fake *)pool;

        fake->is_closing = true;
        fake->on_closed = on_closed;
        fake->on_closed_user = user;
        schedule(fake);
}

int fake_pool_open(struct pool **ret_pool, uv_loop_t *loop, const char *folder)
{
        static const struct pool_ops ops = {
                .name = "fake",
                .put = fake_put,
                .get = fake_get,
                .remove = fake_remove,
                .list = fake_list,
                .hint = fake_hint,
                .last_failure = fake_last_failure,
                .usage = fake_usage,
                .close = fake_close,
        };
        struct fake *fake = calloc(1, sizeof(*fake));

        if (!fake)
                return err_raise(-ENOMEM);
        fake->pool.ops = ops;
        fake->loop = loop;
        snprintf(fake->folder, sizeof(fake->folder), "%s", folder);
        TAILQ_INIT(&fake->queue);
        ck_assert_int_eq(uv_timer_init(loop, &fake->timer), 0);
        ck_assert_int_eq(uv_async_init(loop, &fake->hinted, on_hinted), 0);
        fake->timer.data = fake->hinted.data = fake;
        fake->n_handles = 2;
        LIST_INSERT_HEAD(&all, fake, link);
        *ret_pool = &fake->pool;
        return 0;
}

/* ---- faults ---- */

void fake_pool_delay(struct pool *pool, uint32_t ms)
{
        ((struct fake *)pool)->delay_ms = ms;
}

void fake_pool_stop(struct pool *pool, bool stopped)
{
        ((struct fake *)pool)->is_stopped = stopped;
}

void fake_pool_fail(struct pool *pool, uint32_t kinds, uint32_t n, int result)
{
        struct fake *fake = (struct fake *)pool;

        fake->fail_kinds = kinds;
        fake->n_fail = n;
        fake->fail_result = result;
}

void fake_pool_lose_replies(struct pool *pool, uint32_t kinds, uint32_t n)
{
        struct fake *fake = (struct fake *)pool;

        fake->lose_kinds = kinds;
        fake->n_lose = n;
}

void fake_pool_long_replies(struct pool *pool, uint32_t n, uint64_t extra)
{
        struct fake *fake = (struct fake *)pool;

        fake->n_long = n;
        fake->extra = extra;
}

void fake_pool_hold(struct pool *pool, uint32_t kinds)
{
        struct fake *fake = (struct fake *)pool;
        struct pending *pending;

        fake->held_kinds = kinds;
        TAILQ_FOREACH(pending, &fake->queue, link) {
                if (!(kinds & 1u << pending->kind))
                        pending->is_held = false;
        }
        schedule(fake);
}

uint32_t fake_pool_held(const struct pool *pool)
{
        const struct fake *fake = (const struct fake *)pool;
        const struct pending *pending;
        uint32_t n = 0;

        TAILQ_FOREACH(pending, &fake->queue, link) {
                n += pending->is_held;
        }
        return n;
}

void fake_pool_watch(struct pool *pool,
                     void (*on_request)(void *user, enum fake_pool_kind kind, const char *name),
                     void *user)
{
        struct fake *fake = (struct fake *)pool;

        fake->on_request = on_request;
        fake->on_request_user = user;
}

/* ---- what lies in the folder ---- */

bool fake_pool_has(const char *folder, const char *name)
{
        char path[320];

        file_path(path, folder, name);
        return !access(path, F_OK);
}

uint64_t fake_pool_size(const char *folder, const char *name)
{
        struct stat st;
        char path[320];

        file_path(path, folder, name);
        return stat(path, &st) < 0 ? 0 : (uint64_t)st.st_size;
}

uint32_t fake_pool_count(const char *folder, const char *prefix, uint64_t *ret_bytes)
{
        struct dirent **names;
        int n = find_names(folder, prefix, &names);

        if (ret_bytes)
                *ret_bytes = 0;
        for (int i = 0; i < n && ret_bytes; i++)
                *ret_bytes += fake_pool_size(folder, names[i]->d_name);
        free_names(names, n);
        return (uint32_t)n;
}

bool fake_pool_name(const char *folder, const char *prefix, uint32_t n,
                    char ret_name[POOL_NAME_MAX])
{
        struct dirent **names;
        int n_names = find_names(folder, prefix, &names);
        bool is_there = n < (uint32_t)n_names;

        if (is_there)
                snprintf(ret_name, POOL_NAME_MAX, "%.*s", (int)POOL_NAME_MAX - 1, names[n]->d_name);
        free_names(names, n_names);
        return is_there;
}

void fake_pool_drop(const char *folder, const char *name)
{
        char path[320];

        file_path(path, folder, name);
        ck_assert_int_eq(unlink(path), 0);
}

void fake_pool_bar(const char *folder, const char *name)
{
        char path[320];

        fake_pool_drop(folder, name);
        file_path(path, folder, name);
        ck_assert_int_eq(mkdir(path, 0700), 0); /* EISDIR, to root as well */
}

void fake_pool_flip(const char *folder, const char *name, uint64_t offset)
{
        char path[320];
        uint8_t byte;
        int fd;

        file_path(path, folder, name);
        fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)offset), 1);
        byte ^= 1;
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)offset), 1);
        close(fd);
}

void fake_pool_resize(const char *folder, const char *name, uint64_t bytes)
{
        char path[320];

        file_path(path, folder, name);
        ck_assert_int_eq(truncate(path, (off_t)bytes), 0);
}

void fake_pool_copy(const char *folder, const char *from, const char *name)
{
        char from_path[320], path[320], bytes[4096];
        int in, out;
        ssize_t n;

        file_path(from_path, folder, from);
        file_path(path, folder, name);
        in = open(from_path, O_RDONLY | O_CLOEXEC);
        out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        ck_assert(in >= 0 && out >= 0);
        while ((n = read(in, bytes, sizeof(bytes))) > 0)
                ck_assert_int_eq(write(out, bytes, (size_t)n), n);
        close(in);
        close(out);
}
