// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "cuda/choice.h"

#define KIB UINT64_C(1024)

/*
 * Strategies in order of what they cost a model that runs at the same time: copy engines are
 * otherwise idle, a gather inside the GPU's memory is short, a kernel that waits for the bus
 * holds its SMs all the while. One that takes SMs has to be faster by WORTH.
 */
static const enum kvt_cuda_strategy by_cost[KVT_CUDA_STRATEGIES] = {
        KVT_CUDA_PLAIN, KVT_CUDA_BATCH, KVT_CUDA_STAGED, KVT_CUDA_KERNEL};
#define WORTH 1.05

static bool is_in(uint32_t strategies, enum kvt_cuda_strategy strategy)
{
        return strategies & (1u << strategy);
}

static uint32_t unstaged(const struct choice *choice)
{
        return choice->allowed & ~(1u << KVT_CUDA_STAGED);
}

/* The first allowed one of a list that PLAIN ends. */
static enum kvt_cuda_strategy first_allowed(uint32_t allowed, const enum kvt_cuda_strategy *list)
{
        while (*list != KVT_CUDA_PLAIN && !is_in(allowed, *list))
                list++;
        return *list;
}

/* As on an H200: batches reach the bus from 64 KiB on, copies one by one from 1 MiB on. */
static enum kvt_cuda_strategy guess(uint32_t allowed, uint64_t run_bytes)
{
        static const enum kvt_cuda_strategy small[] = {KVT_CUDA_STAGED, KVT_CUDA_KERNEL,
                                                       KVT_CUDA_BATCH, KVT_CUDA_PLAIN};

        if (run_bytes >= 64 * KIB && is_in(allowed, KVT_CUDA_BATCH))
                return KVT_CUDA_BATCH;
        if (run_bytes >= 1024 * KIB && is_in(allowed, KVT_CUDA_PLAIN))
                return KVT_CUDA_PLAIN;
        return first_allowed(allowed, small);
}

void choice_init(struct choice *ret_choice, uint32_t allowed)
{
        static const uint64_t sizes[CHOICE_ROWS] = {4 * KIB,   16 * KIB,   64 * KIB,
                                                    256 * KIB, 1024 * KIB, 2048 * KIB};
        struct choice *choice = ret_choice;

        *choice = (struct choice){.allowed = allowed ? allowed : 1u << KVT_CUDA_PLAIN};
        for (unsigned row = 0; row < CHOICE_ROWS; row++) {
                choice->run_bytes[row] = sizes[row];
                for (unsigned way = 0; way < 2; way++) {
                        atomic_store(&choice->chosen[row][way], guess(choice->allowed, sizes[row]));
                        atomic_store(&choice->unstaged[row][way],
                                     guess(unstaged(choice), sizes[row]));
                }
        }
}

static void decide(struct choice *choice, unsigned row, unsigned way, uint32_t allowed,
                   _Atomic uint32_t *ret_chosen)
{
        enum kvt_cuda_strategy best = KVT_CUDA_PLAIN;
        double best_rate = 0;

        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++) {
                double rate = atomic_load(&choice->bytes_per_second[row][way][by_cost[i]]);
                double worth = by_cost[i] == KVT_CUDA_BATCH ? 1 : WORTH;

                if (!is_in(allowed, by_cost[i]) || rate <= best_rate * worth)
                        continue;
                best = by_cost[i];
                best_rate = rate;
        }
        if (best_rate > 0)
                atomic_store(ret_chosen, best);
}

void choice_decide(struct choice *choice)
{
        for (unsigned row = 0; row < CHOICE_ROWS; row++)
                for (unsigned way = 0; way < 2; way++) {
                        decide(choice, row, way, choice->allowed, &choice->chosen[row][way]);
                        decide(choice, row, way, unstaged(choice), &choice->unstaged[row][way]);
                }
        atomic_store(&choice->is_measured, true);
}

/* The row that is nearest by ratio. */
static unsigned find_row(const struct choice *choice, uint64_t run_bytes)
{
        unsigned row = 0;

        while (row + 1 < CHOICE_ROWS &&
               (double)run_bytes * (double)run_bytes >
                       (double)choice->run_bytes[row] * (double)choice->run_bytes[row + 1])
                row++;
        return row;
}

static enum kvt_cuda_strategy chosen_for(const struct choice *choice, bool is_store,
                                         uint64_t run_bytes)
{
        unsigned way = is_store ? KVT_CUDA_STORE : KVT_CUDA_LOAD;

        return atomic_load_explicit(&choice->chosen[find_row(choice, run_bytes)][way],
                                    memory_order_relaxed);
}

/* What is staged goes on to the arena by copies, span by span: they have to be worth that. */
static bool is_worth_staging(const struct choice *choice, bool is_store, uint64_t span_bytes)
{
        enum kvt_cuda_strategy chosen = chosen_for(choice, is_store, span_bytes);

        return chosen == KVT_CUDA_PLAIN || chosen == KVT_CUDA_BATCH ||
               span_bytes >= choice->run_bytes[CHOICE_ROWS - 1];
}

enum kvt_cuda_strategy choice_find_unstaged(const struct choice *choice, bool is_store,
                                            const struct choice_shape *shape, bool is_registered)
{
        unsigned row = find_row(choice, shape->run_bytes);
        unsigned way = is_store ? KVT_CUDA_STORE : KVT_CUDA_LOAD;

        return is_registered
                       ? atomic_load_explicit(&choice->unstaged[row][way], memory_order_relaxed)
                       : KVT_CUDA_PLAIN;
}

enum kvt_cuda_strategy choice_find(const struct choice *choice, bool is_store,
                                   const struct choice_shape *shape, bool is_registered)
{
        enum kvt_cuda_strategy chosen = chosen_for(choice, is_store, shape->run_bytes);

        if (!is_registered) {
                if (chosen == KVT_CUDA_PLAIN)
                        return chosen;
                return is_in(choice->allowed, KVT_CUDA_STAGED) ? KVT_CUDA_STAGED : KVT_CUDA_PLAIN;
        }
        if (chosen == KVT_CUDA_STAGED && is_in(choice->allowed, KVT_CUDA_KERNEL) &&
            !is_worth_staging(choice, is_store, shape->span_bytes))
                return choice_find_unstaged(choice, is_store, shape, true);
        return chosen;
}

static uint64_t count_runs(const struct kvt__page_list *list)
{
        const struct kvt__page_group *group = list->group;
        uint64_t n = 0;

        for (uint32_t i = 0; i < group->n_views; i++)
                n += group->views[i].n_rows;
        n *= list->n_slots;
        if (kvt__page_group_is_packed(group))
                for (uint32_t i = 1; i < list->n_slots; i++)
                        n -= list->slots[i] == (uint64_t)list->slots[i - 1] + 1;
        return n;
}

struct choice_shape choice_shape_of(const struct kvt__page_list *list)
{
        uint64_t bytes = list->n_slots * list->group->stored_bytes, left = bytes, n_spans = 0;

        for (const struct kvt_segment *segment = list->segments; left; segment++, n_spans++)
                left -= segment->bytes < left ? segment->bytes : left;
        return (struct choice_shape){.run_bytes = bytes / count_runs(list),
                                     .span_bytes = bytes / n_spans};
}
