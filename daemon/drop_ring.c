// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

#include "daemon/drop_ring.h"
#include "daemon/record_pool.h"
#include "storage/tier.h"

#define HEADS 65536u
/* Records that a search passes over: hashes are keyed, so only a hot digest has as many. */
#define STEPS_MAX 4096u
/* How far back a repetition is looked for. */
#define REPEATS_MAX 8u

int drop_ring_init(struct drop_ring *ring)
{
        void *records, *heads;
        uint64_t seed;
        int r;

        if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
                return err_raise(-EIO);
        r = record_array_new(&records, DROP_RING_SIZE, sizeof(struct drop));
        if (r < 0)
                return r;
        r = record_array_new(&heads, HEADS, sizeof(uint64_t));
        if (r < 0) {
                record_array_free(records, DROP_RING_SIZE, sizeof(struct drop));
                return r;
        }
        *ring = (struct drop_ring){.records = records, .heads = heads, .seed = seed};
        return 0;
}

void drop_ring_deinit(struct drop_ring *ring)
{
        record_array_free(ring->heads, HEADS, sizeof(uint64_t));
        record_array_free(ring->records, DROP_RING_SIZE, sizeof(struct drop));
        *ring = (struct drop_ring){0};
}

static struct drop *record_at(const struct drop_ring *ring, uint64_t number)
{
        return &ring->records[number % DROP_RING_SIZE];
}

static bool is_in_ring(const struct drop_ring *ring, uint64_t number)
{
        return ring->n - number <= DROP_RING_SIZE;
}

static uint64_t *head_of(const struct drop_ring *ring, const struct digest *digest)
{
        return &ring->heads[XXH3_64bits_withSeed(digest, sizeof(*digest), ring->seed) % HEADS];
}

/* The record before @number in its chain, plus 1; 0 at the end. */
static uint64_t before(const struct drop_ring *ring, uint64_t number)
{
        uint32_t back = record_at(ring, number)->back;

        return back && is_in_ring(ring, number - back) ? number - back + 1 : 0;
}

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_repetition(const struct drop *a, const struct drop *b)
{
        return a->layout == b->layout && a->group == b->group && a->shard == b->shard &&
               a->tier == b->tier && a->reason == b->reason && a->rule == b->rule &&
               digest_equal(&a->digest, &b->digest);
}

/* The newest record of the same object, when it says the same. */
static struct drop *find_repeated(const struct drop_ring *ring, uint64_t head,
                                  const struct drop *drop)
{
        for (unsigned i = 0; head && i < REPEATS_MAX; i++, head = before(ring, head - 1)) {
                struct drop *record = record_at(ring, head - 1);

                if (is_repetition(record, drop))
                        return record;
                if (record->group == drop->group && record->shard == drop->shard)
                        return NULL;
        }
        return NULL;
}

void drop_ring_note(struct drop_ring *ring, const struct drop *drop)
{
        struct drop *record;
        uint64_t *head, distance;

        if (!ring->records)
                return;
        head = head_of(ring, &drop->digest);
        if (*head && !is_in_ring(ring, *head - 1))
                *head = 0;
        record = find_repeated(ring, *head, drop);
        if (record) {
                record->count++;
                record->wall_ns = wall_clock_ns();
                return;
        }
        record = record_at(ring, ring->n);
        *record = *drop;
        record->wall_ns = wall_clock_ns();
        record->count = 1;
        distance = *head ? ring->n - (*head - 1) : 0;
        record->back = distance < DROP_RING_SIZE ? (uint32_t)distance : 0;
        *head = ++ring->n;
}

const struct drop *drop_ring_next(const struct drop_ring *ring, uint16_t layout,
                                  const struct digest *digest, uint64_t *position)
{
        uint64_t number;

        if (!ring->records)
                return NULL;
        number = *position ? before(ring, *position - 1) : *head_of(ring, digest);
        if (!*position && number && !is_in_ring(ring, number - 1))
                return NULL;
        for (unsigned i = 0; number && i < STEPS_MAX; i++, number = before(ring, number - 1)) {
                const struct drop *record = record_at(ring, number - 1);

                if (record->layout == layout && digest_equal(&record->digest, digest)) {
                        *position = number;
                        return record;
                }
        }
        return NULL;
}

const struct drop *drop_ring_recent(const struct drop_ring *ring, uint64_t ago)
{
        return ago < ring->n && ago < DROP_RING_SIZE ? record_at(ring, ring->n - 1 - ago) : NULL;
}

static const struct {
        const char *name;
        bool is_refusal;
        const char *text;
} reasons[] = {
#define DROP_REASON_ROW(name, is_refusal, text) {#name, is_refusal, text},
        DROP_REASONS(DROP_REASON_ROW)
#undef DROP_REASON_ROW
};

static const char *const rules[] = {
#define DROP_RULE_ROW(name, text) text,
        DROP_RULES(DROP_RULE_ROW)
#undef DROP_RULE_ROW
};

const char *drop_reason_name(uint8_t reason)
{
        return reasons[reason < DROP_N_REASONS ? reason : DROP_UNEXPLAINED].name;
}

const char *drop_reason_text(uint8_t reason)
{
        return reasons[reason < DROP_N_REASONS ? reason : DROP_UNEXPLAINED].text;
}

bool drop_reason_is_refusal(uint8_t reason)
{
        return reason < DROP_N_REASONS && reasons[reason].is_refusal;
}

uint8_t drop_reason_of_read(int result)
{
        switch (result) {
        case TIER_E_CORRUPT:
                return DROP_CORRUPT;
        case TIER_E_STALE:
                return DROP_STALE;
        default:
                return result < 0 ? DROP_IO_ERROR : DROP_UNEXPLAINED;
        }
}

const char *drop_rule_text(uint8_t rule)
{
        return rules[rule < DROP_N_RULES ? rule : DROP_RULE_NONE];
}
