// SPDX-License-Identifier: Apache-2.0
/* Regions over verbs of a few functions, which note what they are asked and fail as told. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "base/rdma_queue.h"

#define DEVICES 2u
#define FD      77
#define OFFSET  UINT64_C(0x3000)
#define LENGTH  UINT64_C(0x10000)
#define BASE    ((void *)0x7f0000003000)

static struct ibv_device names[DEVICES] = {{.name = "one"}, {.name = "two"}};
static struct ibv_context contexts[DEVICES];
static struct ibv_pd pds[DEVICES];
static struct ibv_mr mrs[DEVICES];
static struct rdma_port port;
static int errors[DEVICES]; /* of each device's registration; 0: it works */
static bool is_registered[DEVICES];
static unsigned n_as_memory;

static unsigned number_of(const struct ibv_pd *pd)
{
        return (unsigned)(pd - pds);
}

static struct ibv_mr *registration(struct ibv_pd *pd)
{
        unsigned i = number_of(pd);

        if (errors[i]) {
                errno = errors[i];
                return NULL;
        }
        ck_assert(!is_registered[i]);
        is_registered[i] = true;
        return &mrs[i];
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
        ck_assert_uint_eq(offset, OFFSET);
        ck_assert_uint_eq(length, LENGTH);
        ck_assert_uint_eq(iova, (uintptr_t)BASE);
        ck_assert_int_eq(fd, FD);
        ck_assert_int_eq(access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
        return registration(pd);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access)
{
        n_as_memory++;
        return registration(pd);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
        n_as_memory++;
        return registration(pd);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
        unsigned i = (unsigned)(mr - mrs);

        ck_assert(is_registered[i]);
        is_registered[i] = false;
        return 0;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
        return device->name;
}

static void setup(void)
{
        port.n_devices = DEVICES;
        for (unsigned i = 0; i < DEVICES; i++) {
                contexts[i].device = &names[i];
                port.devices[i] = (struct rdma_device){
                        .context = &contexts[i], .pd = &pds[i], .has_windows = true};
        }
}

static int register_dmabuf(struct rdma_region **ret_region, struct why *why)
{
        const struct rdma_dmabuf dmabuf = {.fd = FD, .offset = OFFSET};

        return rdma_region_new_dmabuf(ret_region, &port, &dmabuf, BASE, LENGTH, why);
}

static void expect_nothing_left(void)
{
        for (unsigned i = 0; i < DEVICES; i++)
                ck_assert(!is_registered[i]);
        ck_assert_uint_eq(port.stats.regions, 0);
        ck_assert_uint_eq(n_as_memory, 0);
}

START_TEST(a_dmabuf_is_registered_with_each_device_and_all_of_it_goes_again)
{
        struct rdma_region *region;
        struct why why = {""};

        ck_assert_int_eq(register_dmabuf(&region, &why), 0);
        ck_assert(is_registered[0] && is_registered[1]);
        ck_assert_uint_eq(port.stats.regions, 2);
        ck_assert_int_eq(rdma_region_free(region), 0);
        expect_nothing_left();
}
END_TEST

START_TEST(a_device_that_cannot_is_left_out)
{
        struct rdma_region *region;
        struct why why = {""};

        errors[0] = EOPNOTSUPP;
        ck_assert_int_eq(register_dmabuf(&region, &why), 0);
        ck_assert_ptr_null(region->mrs[0]);
        ck_assert_ptr_eq(region->mrs[1], &mrs[1]);
        ck_assert_uint_eq(port.stats.regions, 1);
        ck_assert_int_eq(rdma_region_free(region), 0);
        expect_nothing_left();
}
END_TEST

START_TEST(no_device_that_can_is_absence_and_is_named)
{
        struct rdma_region *region = NULL;
        struct why why = {""};

        errors[0] = errors[1] = EOPNOTSUPP;
        ck_assert_int_eq(register_dmabuf(&region, &why), RDMA_E_ABSENT);
        ck_assert_ptr_null(region);
        ck_assert_msg(strstr(why.text, "device two cannot register"), "%s", why.text);
        expect_nothing_left();
}
END_TEST

START_TEST(a_failure_counts_for_more_than_absence)
{
        struct rdma_region *region = NULL;
        struct why why = {""};

        errors[0] = ENOMEM;
        errors[1] = EOPNOTSUPP;
        ck_assert_int_eq(register_dmabuf(&region, &why), -ENOMEM);
        ck_assert_msg(strstr(why.text, "device one does not register"), "%s", why.text);
        expect_nothing_left();
}
END_TEST

START_TEST(memory_is_registered_with_the_devices_that_are_left)
{
        struct rdma_region *region;

        port.devices[0].is_gone = true;
        errors[0] = EIO;
        ck_assert_int_eq(rdma_region_new(&region, &port, BASE, LENGTH), 0);
        ck_assert_ptr_null(region->mrs[0]);
        ck_assert_ptr_eq(region->mrs[1], &mrs[1]);
        ck_assert_uint_eq(port.stats.regions, 1);
        ck_assert_int_eq(rdma_region_free(region), 0);
        ck_assert(!is_registered[1]);
        ck_assert_uint_eq(port.stats.regions, 0);
}
END_TEST

START_TEST(without_a_device_no_memory_is_registered)
{
        struct rdma_region *region = NULL;

        port.devices[0].is_gone = port.devices[1].is_gone = true;
        ck_assert_int_eq(rdma_region_new(&region, &port, BASE, LENGTH), -ENODEV);
        ck_assert_ptr_null(region);
        expect_nothing_left();
}
END_TEST

START_TEST(memory_that_one_does_not_take_is_taken_back_from_the_others)
{
        struct rdma_region *region = NULL;

        errors[1] = ENOMEM;
        ck_assert_int_eq(rdma_region_new(&region, &port, BASE, LENGTH), -ENOMEM);
        ck_assert_ptr_null(region);
        ck_assert(!is_registered[0]);
        ck_assert_uint_eq(port.stats.regions, 0);
}
END_TEST

START_TEST(a_region_in_use_stays)
{
        struct rdma_region *region;
        struct why why = {""};

        ck_assert_int_eq(register_dmabuf(&region, &why), 0);
        region->n_users = 1;
        ck_assert_int_eq(rdma_region_free(region), RDMA_E_BUSY);
        ck_assert(is_registered[0] && is_registered[1]);
        region->n_users = 0;
        ck_assert_int_eq(rdma_region_free(region), 0);
        expect_nothing_left();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_region");
        TCase *all = tcase_create("rdma_region");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, NULL);
        tcase_add_test(all, a_dmabuf_is_registered_with_each_device_and_all_of_it_goes_again);
        tcase_add_test(all, a_device_that_cannot_is_left_out);
        tcase_add_test(all, no_device_that_can_is_absence_and_is_named);
        tcase_add_test(all, a_failure_counts_for_more_than_absence);
        tcase_add_test(all, memory_is_registered_with_the_devices_that_are_left);
        tcase_add_test(all, without_a_device_no_memory_is_registered);
        tcase_add_test(all, memory_that_one_does_not_take_is_taken_back_from_the_others);
        tcase_add_test(all, a_region_in_use_stays);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
