// SPDX-License-Identifier: Apache-2.0
/* kvt_cuda_export() over the fake driver: where the memory is in the dma-buf, and what is left. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/kvtier-cuda.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fds.h"

#define PAGE      UINT64_C(4096)
#define ALLOCATED (UINT64_C(16) * PAGE + 256) /* ends within a page */
#define BEFORE    (UINT64_C(3) * PAGE + 512)

enum { ATTRIBUTE_FLUSH = 117, ATTRIBUTE_DMABUF = 124 };

static struct cuda_driver driver;
static cu_context context;
static cu_address memory;
static struct kvt_dmabuf dmabuf;
static char why[256];
static unsigned n_fds;

static void setup(void)
{
        struct why reason = {""};

        ck_assert_msg(!cuda_driver_load(&driver, NULL, &reason), "%s", reason.text);
        ck_assert(!driver.primary_retain(&context, 0));
        ck_assert(!driver.context_push(context));
        ck_assert(!driver.allocate(&memory, ALLOCATED));
        ck_assert(!driver.context_pop(&context));
        n_fds = count_fds();
}

static enum kvt_status export(cu_address base, uint64_t bytes) {
        return kvt_cuda_export(NULL, (void *)(uintptr_t)base, bytes, &dmabuf, why, sizeof(why));
}

/* Nothing is open, the context's other holder is the test, and none is current. */
static void expect_nothing_left(void)
{
        struct fake_cuda_figures figures;
        cu_context current = NULL;

        ck_assert_uint_eq(count_fds(), n_fds);
        ck_assert(!driver.context_current(&current));
        ck_assert_ptr_null(current);
        ck_assert(!driver.context_push(context));
        ck_assert(!driver.release(memory));
        ck_assert(!driver.context_pop(&context));
        ck_assert(!driver.primary_release(0));
        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.n_contexts, 0);
}

static void expect_refused(enum kvt_status status, const char *reason)
{
        ck_assert_int_eq(export(memory + BEFORE, PAGE), status);
        ck_assert_msg(strstr(why, reason), "%s", why);
        expect_nothing_left();
}

START_TEST(a_range_within_an_allocation_is_at_its_offset)
{
        uint8_t *seen;

        memcpy(fake_cuda_bytes(memory + BEFORE, 5), "here", 5);
        ck_assert_int_eq(export(memory + BEFORE, 5 * PAGE), KVT_OK);
        ck_assert_ptr_eq(dmabuf.base, (void *)(uintptr_t)(memory + BEFORE));
        ck_assert_uint_eq(dmabuf.bytes, 5 * PAGE);
        ck_assert_uint_eq(dmabuf.offset, BEFORE % PAGE);
        seen = mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.fd, 0);
        ck_assert_ptr_ne(seen, MAP_FAILED);
        ck_assert_str_eq((char *)seen + dmabuf.offset, "here");
        memcpy(seen + dmabuf.offset + 5 * PAGE - 6, "there", 6);
        ck_assert_str_eq(fake_cuda_bytes(memory + BEFORE + 5 * PAGE - 6, 6), "there");
        munmap(seen, 6 * PAGE);
        close(dmabuf.fd);
        expect_nothing_left();
}
END_TEST

START_TEST(the_whole_of_an_allocation_is_exported_with_the_page_that_it_ends_in)
{
        ck_assert_int_eq(export(memory, ALLOCATED), KVT_OK);
        ck_assert_uint_eq(dmabuf.offset, 0);
        ck_assert_uint_eq(dmabuf.bytes, ALLOCATED);
        ck_assert_int_eq(lseek(dmabuf.fd, 0, SEEK_END), 17 * PAGE);
        close(dmabuf.fd);
        expect_nothing_left();
}
END_TEST

START_TEST(more_than_an_allocation_is_refused)
{
        ck_assert_int_eq(export(memory + BEFORE, ALLOCATED - BEFORE + 1), KVT_INVALID);
        ck_assert_msg(strstr(why, "leave the allocation"), "%s", why);
        ck_assert_int_eq(export(memory, UINT64_MAX), KVT_INVALID);
        expect_nothing_left();
}
END_TEST

START_TEST(memory_of_the_host_is_refused)
{
        ck_assert_int_eq(export((uintptr_t)&driver, 8), KVT_INVALID);
        ck_assert_msg(strstr(why, "not in the memory of a GPU"), "%s", why);
        expect_nothing_left();
}
END_TEST

START_TEST(a_driver_that_cannot_is_named)
{
        fake_cuda_set_attribute(ATTRIBUTE_DMABUF, 0);
        expect_refused(KVT_UNSUPPORTED, "the driver of GPU 0 cannot export");
}
END_TEST

START_TEST(a_gpu_that_neither_orders_nor_flushes_is_refused)
{
        fake_cuda_set_attribute(ATTRIBUTE_FLUSH, 0);
        expect_refused(KVT_UNSUPPORTED, "GPU 0 cannot tell");
}
END_TEST

START_TEST(whatever_call_fails_nothing_is_left)
{
        static const struct {
                const char *name;
                int result;
                enum kvt_status status;
        } calls[] = {
                {"cuMemGetHandleForAddressRange", FAKE_CUDA_OUT_OF_MEMORY, KVT_UNAVAILABLE},
                {"cuMemGetHandleForAddressRange", FAKE_CUDA_NOT_SUPPORTED, KVT_UNSUPPORTED},
                {"cuMemGetAddressRange", FAKE_CUDA_NOT_FOUND, KVT_UNAVAILABLE},
                {"cuCtxPushCurrent", FAKE_CUDA_INVALID_CONTEXT, KVT_UNAVAILABLE},
                {"cuDevicePrimaryCtxRetain", FAKE_CUDA_OUT_OF_MEMORY, KVT_UNAVAILABLE},
        };

        fake_cuda_fail(calls[_i].name, calls[_i].result, 0, 1);
        expect_refused(calls[_i].status, calls[_i].name);
}
END_TEST

START_TEST(without_a_driver_it_says_so)
{
        ck_assert_int_eq(kvt_cuda_export("/nowhere/libcuda.so.1", (void *)(uintptr_t)memory, PAGE,
                                         &dmabuf, why, sizeof(why)),
                         KVT_UNAVAILABLE);
        ck_assert_msg(strstr(why, "no CUDA driver"), "%s", why);
        expect_nothing_left();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("cuda/export");
        TCase *all = tcase_create("export");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, NULL);
        tcase_add_test(all, a_range_within_an_allocation_is_at_its_offset);
        tcase_add_test(all, the_whole_of_an_allocation_is_exported_with_the_page_that_it_ends_in);
        tcase_add_test(all, more_than_an_allocation_is_refused);
        tcase_add_test(all, memory_of_the_host_is_refused);
        tcase_add_test(all, a_driver_that_cannot_is_named);
        tcase_add_test(all, a_gpu_that_neither_orders_nor_flushes_is_refused);
        tcase_add_loop_test(all, whatever_call_fails_nothing_is_left, 0, 5);
        tcase_add_test(all, without_a_driver_it_says_so);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
