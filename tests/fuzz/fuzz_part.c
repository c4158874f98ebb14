// SPDX-License-Identifier: Apache-2.0
/*
 * Parts of messages between nodes: the input is a row of parts, each with two bytes of length in
 * front. What comes together is whole, of the length that its first part said, and cut again
 * makes the same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/remote_part.h"

static struct remote_join join, again;

static void cut_again(void)
{
        static uint8_t message[WIRE_MESSAGE_MAX], part[4096];
        uint32_t length = join.length, offset = 0;
        bool is_whole = false;

        memcpy(message, join.bytes, length);
        memset(&again, 0, offsetof(struct remote_join, bytes));
        while (offset < length) {
                size_t bytes =
                        remote_cut(part, sizeof(part), join.service, message, length, &offset);
                struct why why;

                if (is_whole || remote_join_add(&again, part, bytes, &is_whole, &why))
                        abort();
        }
        if (!is_whole || again.length != length || memcmp(again.bytes, message, length))
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        memset(&join, 0, offsetof(struct remote_join, bytes));
        while (size >= 2) {
                size_t length = (size_t)data[0] | (size_t)data[1] << 8;
                bool is_whole = false;
                struct why why;
                uint8_t *part;
                int r;

                data += 2;
                size -= 2;
                if (length > size)
                        length = size;
                part = malloc(length ? length : 1);
                if (!part)
                        return 0;
                memcpy(part, data, length);
                r = remote_join_add(&join, part, length, &is_whole, &why);
                free(part);
                if (r)
                        return 0;
                if (!join.length || join.length > WIRE_MESSAGE_MAX)
                        abort();
                if (is_whole)
                        cut_again();
                data += length;
                size -= length;
        }
        return 0;
}
