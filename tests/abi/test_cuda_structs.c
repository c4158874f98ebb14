// SPDX-License-Identifier: Apache-2.0
/*
 * The structs of kvtier-cuda.h, member by member: engines are built against one version of it
 * and run with another. Members are added at the end alone, and structs without a size not at
 * all.
 */
#include <check.h>
#include <stddef.h>
#include <stdlib.h>

#include "cuda/kvtier-cuda.h"

/* Members in order; each begins where the one before ends, up to its own alignment. */
struct member {
        const char *name;
        size_t offset, frozen_offset;
};

#define MEMBER(type, member, frozen_offset)                                                        \
        {                                                                                          \
#type "." #member, offsetof(struct type, member), (frozen_offset)                  \
        }
#define BYTES(type, frozen_bytes)                                                                  \
        {                                                                                          \
                "struct " #type, sizeof(struct type), (frozen_bytes)                               \
        }

/* clang-format off */
static const struct member members[] = {
        MEMBER(kvt_cuda_options, size, 0),
        MEMBER(kvt_cuda_options, driver, 8),
        MEMBER(kvt_cuda_options, devices, 16),
        MEMBER(kvt_cuda_options, n_devices, 24),
        MEMBER(kvt_cuda_options, flags, 28),
        MEMBER(kvt_cuda_options, strategies, 32),
        MEMBER(kvt_cuda_options, blocks, 36),
        MEMBER(kvt_cuda_options, staging_bytes, 40),
        MEMBER(kvt_cuda_options, piece_bytes, 48),
        BYTES(kvt_cuda_options, 56),

        MEMBER(kvt_dmabuf, size, 0),
        MEMBER(kvt_dmabuf, base, 8),
        MEMBER(kvt_dmabuf, bytes, 16),
        MEMBER(kvt_dmabuf, offset, 24),
        MEMBER(kvt_dmabuf, fd, 32),
        MEMBER(kvt_dmabuf, reserved, 36),
        BYTES(kvt_dmabuf, 40),

        MEMBER(kvt_cuda_counts, bytes, 0),
        MEMBER(kvt_cuda_counts, runs, 8),
        MEMBER(kvt_cuda_counts, jobs, 16),
        BYTES(kvt_cuda_counts, 24),

        MEMBER(kvt_cuda_info, size, 0),
        MEMBER(kvt_cuda_info, driver_version, 8),
        MEMBER(kvt_cuda_info, n_devices, 12),
        MEMBER(kvt_cuda_info, mapped_bytes, 16),
        MEMBER(kvt_cuda_info, registered_bytes, 24),
        MEMBER(kvt_cuda_info, refused_bytes, 32),
        MEMBER(kvt_cuda_info, failed_jobs, 40),
        MEMBER(kvt_cuda_info, is_lost, 48),
        MEMBER(kvt_cuda_info, has_batch, 52),
        MEMBER(kvt_cuda_info, has_kernels, 56),
        MEMBER(kvt_cuda_info, reserved, 60),
        MEMBER(kvt_cuda_info, moved, 64),
        MEMBER(kvt_cuda_info, unregistered_bytes_moved, 256),
        MEMBER(kvt_cuda_info, last_error, 264),
        BYTES(kvt_cuda_info, 520),

        MEMBER(kvt_cuda_measure, run_bytes, 0),
        MEMBER(kvt_cuda_measure, bytes_per_second, 8),
        MEMBER(kvt_cuda_measure, chosen, 72),
        BYTES(kvt_cuda_measure, 80),

        MEMBER(kvt_cuda_copy, size, 0),
        MEMBER(kvt_cuda_copy, map, 8),
        MEMBER(kvt_cuda_copy, group, 16),
        MEMBER(kvt_cuda_copy, shard, 18),
        MEMBER(kvt_cuda_copy, is_store, 20),
        MEMBER(kvt_cuda_copy, slots, 24),
        MEMBER(kvt_cuda_copy, n_slots, 32),
        MEMBER(kvt_cuda_copy, n_segments, 36),
        MEMBER(kvt_cuda_copy, segments, 40),
        MEMBER(kvt_cuda_copy, strategy, 48),
        MEMBER(kvt_cuda_copy, reserved, 52),
        BYTES(kvt_cuda_copy, 56),

        /* Of kvtier.h, what belongs to pages on a GPU. */
        MEMBER(kvt_call, size, 0),
        MEMBER(kvt_call, flags, 8),
        MEMBER(kvt_call, timeout_ns, 16),
        MEMBER(kvt_call, set, 24),
        MEMBER(kvt_call, user, 32),
        MEMBER(kvt_call, after, 40),
        MEMBER(kvt_call, done, 48),
        BYTES(kvt_call, 56),
};
/* clang-format on */

START_TEST(structs_are_as_they_were)
{
        for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
                ck_assert_msg(members[i].offset == members[i].frozen_offset,
                              "%s: %zu, and not %zu any more", members[i].name, members[i].offset,
                              members[i].frozen_offset);
}
END_TEST

START_TEST(strategies_and_flags_keep_their_numbers)
{
        ck_assert_int_eq(KVT_CUDA_PLAIN, 0);
        ck_assert_int_eq(KVT_CUDA_BATCH, 1);
        ck_assert_int_eq(KVT_CUDA_KERNEL, 2);
        ck_assert_int_eq(KVT_CUDA_STAGED, 3);
        ck_assert_int_eq(KVT_CUDA_STRATEGIES, 4);
        ck_assert_int_eq(KVT_CUDA_STORE, 0);
        ck_assert_int_eq(KVT_CUDA_LOAD, 1);
        ck_assert_uint_eq(KVT_CUDA_NO_MEASURE, 1);
        ck_assert_uint_eq(KVT_CUDA_NO_REGISTER, 2);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("abi/cuda_structs");
        TCase *tcase = tcase_create("cuda_structs");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, structs_are_as_they_were);
        tcase_add_test(tcase, strategies_and_flags_keep_their_numbers);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
