// SPDX-License-Identifier: Apache-2.0
/*
 * The transport on two soft-RoCE devices, in the guest that tests/rdma/guest boots. An argument
 * is the name of one theme.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/rdma/test_rdma.h"

void grant(struct pair *pair, size_t offset, size_t length, bool is_writable)
{
        struct side *server = &pair->server;

        side_grant(server, offset, length, is_writable);
        ck_assert(pair_wait(pair, &server->is_granted, 10 * SIDE_SECOND));
        ck_assert_int_eq(server->granted, RDMA_RESULT_DONE);
}

void take_back(struct pair *pair)
{
        rdma_grant_release(pair->server.grant);
        ck_assert(pair_wait(pair, &pair->server.is_reusable, 10 * SIDE_SECOND));
}

/* A connection that broke says why. */
static void expect_connected(struct pair *pair, enum rdma_result result)
{
        const struct side *client = &pair->client, *server = &pair->server;

        if (result != RDMA_RESULT_BROKEN)
                return;
        pair_wait(pair, &client->is_closed, 10 * SIDE_SECOND);
        pair_wait(pair, &server->is_closed, 10 * SIDE_SECOND);
        ck_abort_msg("the client's end is %s: %s; the server's %s: %s", rdma_end_name(client->end),
                     client->why, rdma_end_name(server->end), server->why);
}

enum rdma_result move(struct pair *pair, size_t offset, size_t length, uint64_t address,
                      bool is_write)
{
        struct side_transfer transfer;

        side_start(&pair->client, &transfer, offset, length, address,
                   pair->server.offer.places[0].key, is_write, 200 * SIDE_SECOND);
        ck_assert(pair_wait(pair, &transfer.is_done, 210 * SIDE_SECOND));
        expect_connected(pair, transfer.result);
        return transfer.result;
}

void fill(uint8_t *bytes, size_t length, uint64_t seed)
{
        uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

        for (size_t i = 0; i < length; i += sizeof(state)) {
                size_t n = length - i < sizeof(state) ? length - i : sizeof(state);

                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                memcpy(bytes + i, &state, n);
        }
}

void run_command(const char *format, ...)
{
        char command[256];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(command, sizeof(command), format, arguments);
        va_end(arguments);
        ck_assert_msg(system(command) == 0, "%s", command);
}

/* Tests are processes of their own. */
static int *n_skipped;

void skip_claim(const char *name, const char *reason)
{
        ++*n_skipped;
        printf("skipped %s: %s\n", name, reason);
        fflush(stdout);
}

int main(int argc, char **argv)
{
        TCase *(*const cases[])(void) = {transfer_case, message_case, right_case, whole_case,
                                         greeting_case, trouble_case, link_case};
        Suite *suite = suite_create("rdma");
        SRunner *runner;
        int failed;

        n_skipped = mmap(NULL, sizeof(*n_skipped), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (n_skipped == MAP_FAILED)
                return 1;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
                suite_add_tcase(suite, cases[i]());
        runner = srunner_create(suite);
        srunner_run(runner, NULL, argc > 1 ? argv[1] : NULL, CK_ENV);
        failed = srunner_ntests_failed(runner);
        printf("%d passed, %d failed, %d skipped\n",
               srunner_ntests_run(runner) - failed - *n_skipped, failed, *n_skipped);
        srunner_free(runner);
        return failed != 0;
}
