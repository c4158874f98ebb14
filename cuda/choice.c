// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "cuda/choice.h"

#define KIB UINT64_C(1024)

/*
 * Strategies in order of what they cost a model that runs at the same time: copy engines are
 * otherwise idle, a gather inside the GPU's memory is short, a kernel that waits for the bus
 * holds its SMs all the while. A dearer one has to be faster by WORTH.
 */
static const enum kvt_cuda_strategy by_cost[KVT_CUDA_STRATEGIES] = {
        KVT_CUDA_PLAIN, KVT_CUDA_BATCH, KVT_CUDA_STAGED, KVT_CUDA_KERNEL};
#define WORTH 1.03

static bool is_allowed(const struct choice *choice, enum kvt_cuda_strategy strategy)
{
        return choice->allowed & (1u << strategy);
}

/* The first allowed one of a list that PLAIN ends. */
static enum kvt_cuda_strategy first_allowed(const struct choice *choice,
                                            const enum kvt_cuda_strategy *list)
{
        while (*list != KVT_CUDA_PLAIN && !is_allowed(choice, *list))
                list++;
        return *list;
}

/* From a megabyte on a copy engine is as fast as the bus; small copies cost more than they move. */
static enum kvt_cuda_strategy guess(const struct choice *choice, uint64_t run_bytes)
{
        static const enum kvt_cuda_strategy small[] = {KVT_CUDA_STAGED, KVT_CUDA_KERNEL,
                                                       KVT_CUDA_BATCH, KVT_CUDA_PLAIN};
        static const enum kvt_cuda_strategy large[] = {KVT_CUDA_BATCH, KVT_CUDA_PLAIN};

        if (run_bytes >= 1024 * KIB && is_allowed(choice, KVT_CUDA_PLAIN))
                return first_allowed(choice, large);
        return first_allowed(choice, small);
}

void choice_init(struct choice *ret_choice, uint32_t allowed)
{
        static const uint64_t sizes[CHOICE_ROWS] = {4 * KIB,   16 * KIB,   64 * KIB,
                                                    256 * KIB, 1024 * KIB, 2048 * KIB};

        *ret_choice = (struct choice){.allowed = allowed ? allowed : 1u << KVT_CUDA_PLAIN};
        for (unsigned row = 0; row < CHOICE_ROWS; row++) {
                ret_choice->run_bytes[row] = sizes[row];
                for (unsigned way = 0; way < 2; way++)
                        atomic_store(&ret_choice->chosen[row][way], guess(ret_choice, sizes[row]));
        }
}

static void decide(struct choice *choice, unsigned row, unsigned way)
{
        enum kvt_cuda_strategy best = KVT_CUDA_PLAIN;
        double best_rate = 0;

        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++) {
                double rate = atomic_load(&choice->bytes_per_second[row][way][by_cost[i]]);

                if (!is_allowed(choice, by_cost[i]) || rate <= best_rate * WORTH)
                        continue;
                best = by_cost[i];
                best_rate = rate;
        }
        if (best_rate > 0)
                atomic_store(&choice->chosen[row][way], best);
}

void choice_decide(struct choice *choice)
{
        for (unsigned row = 0; row < CHOICE_ROWS; row++)
                for (unsigned way = 0; way < 2; way++)
                        decide(choice, row, way);
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

enum kvt_cuda_strategy choice_find(const struct choice *choice, bool is_store, uint64_t run_bytes,
                                   bool is_registered)
{
        unsigned way = is_store ? KVT_CUDA_STORE : KVT_CUDA_LOAD;
        enum kvt_cuda_strategy chosen = atomic_load_explicit(
                &choice->chosen[find_row(choice, run_bytes)][way], memory_order_relaxed);

        if (is_registered || chosen == KVT_CUDA_STAGED || chosen == KVT_CUDA_PLAIN)
                return chosen;
        return is_allowed(choice, KVT_CUDA_STAGED) ? KVT_CUDA_STAGED : KVT_CUDA_PLAIN;
}

static bool is_packed(const struct kvt__page_group *group)
{
        return group->n_views == 1 && group->views[0].n_rows == 1 &&
               group->views[0].page_stride == group->views[0].row_bytes;
}

uint64_t choice_mean_run(const struct kvt__page_list *list)
{
        const struct kvt__page_group *group = list->group;
        uint64_t n = 0;

        for (uint32_t i = 0; i < group->n_views; i++)
                n += group->views[i].n_rows;
        n *= list->n_slots;
        if (is_packed(group))
                for (uint32_t i = 1; i < list->n_slots; i++)
                        n -= list->slots[i] == (uint64_t)list->slots[i - 1] + 1;
        return list->n_slots * group->page_bytes / n;
}
