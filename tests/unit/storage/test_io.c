// SPDX-License-Identifier: Apache-2.0
/* Both engines: io_uring (loop index 0) and the thread pool (1). */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/io.h"
#include "tests/support/scratch.h"

#define DEPTH 8u
#define CHUNK 65536u

static uv_loop_t loop;
static char folder[64];
static struct io *io;
static int fds[2];
static uint8_t *memory;
static int n_done, last_result;

static void begin(int engine)
{
        struct io_options options = {
                .fds = fds,
                .n_fds = 2,
                .depth = DEPTH,
                .force_threads = engine,
        };
        struct why fallback = {""};
        char path[96];

        scratch_make(folder, sizeof(folder));
        snprintf(path, sizeof(path), "%s/data", folder);
        fds[0] = -1; /* a missing member */
        fds[1] = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
        ck_assert_int_ge(fds[1], 0);
        ck_assert_int_eq(posix_memalign((void **)&memory, 4096, DEPTH * CHUNK), 0);
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(io_open(&io, &loop, &options, &fallback), 0);
        ck_assert_int_eq(fallback.text[0] != '\0', engine);
        n_done = 0;
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

static void end(void)
{
        bool closed = false;

        io_close(io, on_closed, &closed);
        ck_assert(!closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(closed);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        close(fds[1]);
        free(memory);
        scratch_remove(folder);
}

static void on_done(struct io_request *request, int result)
{
        last_result = result;
        n_done++;
}

static void submit(struct io_request *request, bool is_write, uint32_t i, int32_t buffer)
{
        *request = (struct io_request){
                .file = 1,
                .is_write = is_write,
                .buffer = buffer,
                .length = CHUNK,
                .offset = (uint64_t)i * CHUNK,
                .bytes = memory + (size_t)i * CHUNK,
                .on_done = on_done,
        };
        io_submit(io, request);
}

static void wait_done(int n)
{
        ck_assert_int_lt(n_done, n);
        while (n_done < n)
                uv_run(&loop, UV_RUN_ONCE);
}

static void write_and_read(int32_t buffer)
{
        struct io_request requests[DEPTH];

        for (uint32_t i = 0; i < DEPTH; i++) {
                memset(memory + (size_t)i * CHUNK, (int)i + 1, CHUNK);
                submit(&requests[i], true, i, buffer);
        }
        wait_done(DEPTH);
        ck_assert_int_eq(last_result, 0);
        memset(memory, 0, DEPTH * CHUNK);
        for (uint32_t i = 0; i < DEPTH; i++)
                submit(&requests[i], false, i, buffer);
        wait_done(2 * DEPTH);
        ck_assert_int_eq(last_result, 0);
        for (uint32_t i = 0; i < DEPTH; i++)
                for (uint32_t j = 0; j < CHUNK; j += 512)
                        ck_assert_uint_eq(memory[(size_t)i * CHUNK + j], i + 1);
}

START_TEST(bytes_come_back)
{
        begin(_i);
        write_and_read(IO_NO_BUFFER);
        end();
}
END_TEST

START_TEST(bytes_come_back_through_registered_memory)
{
        int32_t slot = IO_NO_BUFFER, again = IO_NO_BUFFER;

        begin(_i);
        if (_i) {
                ck_assert_int_eq(io_add_buffer(io, memory, DEPTH * CHUNK, &slot), -EOPNOTSUPP);
        } else {
                ck_assert_int_eq(io_add_buffer(io, memory, DEPTH * CHUNK, &slot), 0);
                write_and_read(slot);
                io_remove_buffer(io, slot);
                ck_assert_int_eq(io_add_buffer(io, memory, DEPTH * CHUNK, &again), 0);
                ck_assert_int_eq(again, slot);
        }
        end();
}
END_TEST

START_TEST(a_read_past_the_end_fails)
{
        struct io_request request;

        begin(_i);
        ck_assert_int_eq(ftruncate(fds[1], CHUNK / 2), 0);
        submit(&request, false, 0, IO_NO_BUFFER);
        wait_done(1);
        ck_assert_int_eq(last_result, -EIO);
        ck_assert_uint_eq(request.n_done, CHUNK / 2);
        submit(&request, false, 1, IO_NO_BUFFER);
        wait_done(2);
        ck_assert_int_eq(last_result, -EIO);
        end();
}
END_TEST

START_TEST(a_missing_member_fails)
{
        struct io_request request;

        begin(_i);
        submit(&request, true, 0, IO_NO_BUFFER);
        wait_done(1);
        ck_assert_int_eq(last_result, 0);
        request.file = 0;
        io_submit(io, &request);
        wait_done(2);
        ck_assert_int_eq(last_result, -EBADF);
        end();
}
END_TEST

START_TEST(a_refused_write_fails)
{
        struct io_request request;

        begin(_i);
        submit(&request, true, 0, IO_NO_BUFFER);
        wait_done(1);
        request.bytes = memory + 1; /* O_DIRECT wants aligned memory */
        io_submit(io, &request);
        wait_done(2);
        ck_assert_int_lt(last_result, 0);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/io");
        TCase *tcase = tcase_create("io");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_loop_test(tcase, bytes_come_back, 0, 2);
        tcase_add_loop_test(tcase, bytes_come_back_through_registered_memory, 0, 2);
        tcase_add_loop_test(tcase, a_read_past_the_end_fails, 0, 2);
        tcase_add_loop_test(tcase, a_missing_member_fails, 0, 2);
        tcase_add_loop_test(tcase, a_refused_write_fails, 0, 2);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
