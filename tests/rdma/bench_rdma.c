// SPDX-License-Identifier: Apache-2.0
/*
 * bench_rdma read|write N: N transfers of 1 MiB, four under way at a time, from a process that
 * does nothing else to one that has granted its memory. Prints "read kvtier MB/s".
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/rdma/side.h"

#define LENGTH   (UINT64_C(1) << 20)
#define AT_ONCE  4u
#define MEMORY   (AT_ONCE * LENGTH)
#define DEADLINE (60 * SIDE_SECOND)

/* Never returns: ended by its parent. */
static void serve(int fd, bool is_write)
{
        struct side side;

        side_init(&side, "rxea");
        side_open(&side, MEMORY);
        memset(side.memory, 1, MEMORY);
        side_listen(&side, "10.1.0.0/24");
        if (write(fd, &side.number, sizeof(side.number)) != sizeof(side.number))
                _exit(1);
        side_wait(&side, &side.is_open, DEADLINE);
        side_grant(&side, 0, MEMORY, is_write);
        side_wait(&side, &side.is_granted, DEADLINE);
        rdma_connection_send(side.connection, &side.offer, sizeof(side.offer));
        side_wait(&side, &side.is_closed, DEADLINE);
        _exit(0);
}

static void start(struct side *side, struct side_transfer *transfer, uint32_t i,
                  const struct side_offer *offer, bool is_write)
{
        side_start(side, transfer, i * LENGTH, LENGTH, offer->places[0].address + i * LENGTH,
                   offer->places[0].key, is_write, DEADLINE);
}

static double measure(struct side *side, const struct side_offer *offer, bool is_write, uint32_t n)
{
        static struct side_transfer transfers[AT_ONCE];
        uint64_t start_ns = side_now_ns();

        for (uint32_t i = 0; i < AT_ONCE; i++)
                start(side, &transfers[i], i, offer, is_write);
        for (uint32_t i = 0; i < n; i++) {
                struct side_transfer *transfer = &transfers[i % AT_ONCE];

                ck_assert(side_wait(side, &transfer->is_done, DEADLINE));
                ck_assert_int_eq(transfer->result, RDMA_RESULT_DONE);
                if (i + AT_ONCE < n)
                        start(side, transfer, i % AT_ONCE, offer, is_write);
        }
        return (double)n * LENGTH / ((double)(side_now_ns() - start_ns) / 1e3);
}

int main(int argc, char **argv)
{
        struct side_offer offer;
        struct side client;
        uint16_t number;
        bool is_write;
        int fds[2];
        pid_t pid;

        if (argc != 3 || pipe(fds))
                return 2;
        is_write = !strcmp(argv[1], "write");
        pid = fork();
        if (!pid)
                serve(fds[1], is_write);
        close(fds[1]); /* or its end would not be noticed */
        if (pid < 0 || read(fds[0], &number, sizeof(number)) != sizeof(number))
                return 1;
        side_init(&client, "rxeb");
        client.options.flight_bytes = client.options.chunk_bytes = 0; /* the defaults */
        side_open(&client, MEMORY);
        memset(client.memory, 2, MEMORY);
        side_connect(&client, number, "here", NULL);
        while (!client.n_messages && !client.is_closed) {
                static const bool never;

                side_wait(&client, &never, SIDE_SECOND / 100);
        }
        memcpy(&offer, client.last, sizeof(offer));
        printf("%s kvtier %.1f\n", argv[1],
               measure(&client, &offer, is_write, (uint32_t)atoi(argv[2])));
        side_close(&client);
        waitpid(pid, NULL, 0);
        return 0;
}
