// SPDX-License-Identifier: Apache-2.0
/*
 * Trouble with the pool: after REMOTE_FAILURES_MAX failures in a row the breaker opens. What
 * waits fails, and nothing is asked of the pool but a probe now and then, until one is
 * answered. Also here: bandwidth, and the one timer of all that is due later.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

struct probe {
        struct remote *remote;
        char name[POOL_NAME_MAX];
        uint8_t byte;
        struct pool_get get;
};

static bool is_failure(int result)
{
        return result && result != -ENOENT && result != -EEXIST;
}

static void open_breaker(struct remote *remote)
{
        const char *failure = remote->pool->ops.last_failure(remote->pool);

        remote->is_open = true;
        remote->counts.breaker_opened++;
        remote->retry_ms = remote->options.retry_ms;
        remote->probe_at = uv_now(remote->loop) + remote->retry_ms;
        remote_notice(remote,
                      "the pool is out of reach (%s): its objects are misses until it "
                      "answers",
                      failure);
        remote_fail_puts(remote, -EHOSTDOWN);
        remote_fail_gets(remote, -EHOSTDOWN);
        remote_release_forgets(remote);
        remote_end_appends(remote, -EHOSTDOWN);
        remote_retry_soon(remote);
}

static void close_breaker(struct remote *remote)
{
        remote->is_open = false;
        remote->n_failures = 0;
        remote_notice(remote, "the pool answers again");
        remote_wake(remote);
        remote_follow_poll(remote);
        remote_ready(remote);
}

void remote_note(struct remote *remote, int result)
{
        if (!is_failure(result)) {
                remote->n_failures = 0;
                if (remote->window < remote->options.queue_depth)
                        remote->window += 1 / remote->window;
                if (remote->is_open && !remote->is_closing)
                        close_breaker(remote);
                return;
        }
        remote->io_errors++;
        remote->counts.timeouts += result == -ETIMEDOUT;
        if (result == -ETIMEDOUT && remote->window > 2)
                remote->window /= 2;
        /* A pool that is full answers. */
        if (result != -ENOSPC && ++remote->n_failures >= REMOTE_FAILURES_MAX && !remote->is_open)
                open_breaker(remote);
}

/* ---- probes ---- */

static void on_probed(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct probe *probe = get->user;
        struct remote *remote = probe->remote;

        (void)n_bytes;
        free(probe);
        remote->is_probing = false;
        remote->retry_ms = 2 * remote->retry_ms;
        if (remote->retry_ms > REMOTE_RETRY_MS_MAX)
                remote->retry_ms = REMOTE_RETRY_MS_MAX;
        remote->probe_at = uv_now(remote->loop) + remote->retry_ms;
        remote_note(remote, result);
        remote_retry_soon(remote);
        remote_idle(remote);
}

static void start_probe(struct remote *remote)
{
        struct probe *probe = calloc(1, sizeof(*probe));

        remote->probe_at = uv_now(remote->loop) + remote->retry_ms;
        if (!probe)
                return;
        probe->remote = remote;
        journal_node_name(probe->name, remote->own->id);
        probe->get = (struct pool_get){
                .name = probe->name,
                .length = 1,
                .bytes = &probe->byte,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_probed,
                .user = probe,
        };
        if (remote->pool->ops.get(remote->pool, &probe->get)) {
                free(probe);
                return;
        }
        remote->is_probing = true;
        remote_busy(remote);
}

/* ---- bandwidth ---- */

void remote_pace_init(struct remote_pace *pace, uint64_t bytes_per_s)
{
        *pace = (struct remote_pace){.bytes_per_s = bytes_per_s, .at_ns = uv_hrtime()};
}

static void refill(struct remote_pace *pace)
{
        uint64_t now = uv_hrtime();

        pace->tokens += (double)(now - pace->at_ns) * (double)pace->bytes_per_s / 1e9;
        pace->at_ns = now;
        if (pace->tokens > 0)
                pace->tokens = 0; /* what was not used is not saved up */
}

bool remote_pace_allows(struct remote_pace *pace)
{
        if (pace->bytes_per_s)
                refill(pace);
        pace->held_up = pace->tokens < 0;
        return !pace->held_up;
}

/* Whoever was held up a moment ago still is: the debt may be paid by now, but nobody began. */
uint64_t remote_pace_due(struct remote_pace *pace)
{
        if (!pace->held_up)
                return UINT64_MAX;
        refill(pace);
        return 1 + (uint64_t)(-pace->tokens * 1e3 / (double)pace->bytes_per_s);
}

void remote_pace_take(struct remote_pace *pace, uint64_t bytes)
{
        if (pace->bytes_per_s)
                pace->tokens -= (double)bytes;
}

/* ---- what is due later ---- */

static void at_most(uint64_t *ms, uint64_t other)
{
        if (other < *ms)
                *ms = other;
}

static uint64_t until(const struct remote *remote, uint64_t at)
{
        uint64_t now = uv_now(remote->loop);

        return at > now ? at - now : 0;
}

static uint64_t wait_of_removes(const struct remote *remote)
{
        const struct remote_bundle *bundle;
        uint64_t ms = UINT64_MAX;

        TAILQ_FOREACH(bundle, &remote->going, link) {
                if (bundle->state == REMOTE_BUNDLE_GOING &&
                    bundle->not_before > uv_now(remote->loop))
                        at_most(&ms, until(remote, bundle->not_before));
        }
        return ms;
}

void remote_retry_soon(struct remote *remote)
{
        uint64_t ms = UINT64_MAX;

        if (remote->is_closing || !remote->is_recovered)
                return;
        if (remote->is_open) {
                if (!remote->is_probing)
                        at_most(&ms, until(remote, remote->probe_at));
        } else {
                at_most(&ms, until(remote, remote->heartbeat_at));
                if (remote->is_paused && remote->no_space_until > uv_now(remote->loop))
                        at_most(&ms, until(remote, remote->no_space_until));
                at_most(&ms, remote_journal_wait(remote));
                at_most(&ms, wait_of_removes(remote));
                /* What waits for something else is begun by the end of that. */
                at_most(&ms, remote_pace_due(&remote->write_pace));
                at_most(&ms, remote_pace_due(&remote->read_pace));
        }
        if (ms != UINT64_MAX)
                uv_timer_start(&remote->retry, remote_on_retry, ms, 0);
}

void remote_on_retry(uv_timer_t *timer)
{
        struct remote *remote = timer->data;

        remote_busy(remote);
        if (remote->is_open) {
                if (!remote->is_probing && !until(remote, remote->probe_at))
                        start_probe(remote);
        } else {
                if (!until(remote, remote->heartbeat_at))
                        remote_beat(remote);
                remote_journal_work(remote);
                remote_start_removes(remote);
                remote_start_puts(remote);
                remote_start_gets(remote);
                remote_ready(remote);
        }
        remote_retry_soon(remote);
        remote_idle(remote);
}
