// SPDX-License-Identifier: Apache-2.0
/*
 * Any document as the answer of an S3 service: an error, or, by bit 0 of the first byte, a
 * listing. It comes in parts of as many bytes as the rest of the first byte says.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/s3_pool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LISTED 4u

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static bool parse(const uint8_t *data, size_t size, struct s3_error *error,
                  struct s3_listing *listing)
{
        size_t part = 1 + (size_t)(data[0] >> 1), at = 1;
        struct s3_xml *xml = s3_xml_new(error, listing);
        bool good = true;

        REQUIRE(xml);
        while (at < size && good) {
                /* Memory of its own, so that a byte too many is seen. */
                size_t length = part < size - at ? part : size - at;
                char *copy = malloc(length);

                REQUIRE(copy);
                memcpy(copy, data + at, length);
                good = s3_xml_feed(xml, copy, length);
                free(copy);
                at += length;
        }
        good = good && s3_xml_end(xml);
        s3_xml_free(xml);
        return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct s3_listing listing = {.max = LISTED};
        struct s3_error error = {""};

        if (!size)
                return 0;
        listing.listed = calloc(LISTED, sizeof(*listing.listed));
        REQUIRE(listing.listed);
        parse(data, size, &error, data[0] & 1 ? &listing : NULL);
        REQUIRE(listing.n_listed <= LISTED);
        REQUIRE(strnlen(error.code, sizeof(error.code)) < sizeof(error.code));
        REQUIRE(strnlen(error.message, sizeof(error.message)) < sizeof(error.message));
        for (uint32_t i = 0; i < listing.n_listed; i++)
                REQUIRE(strnlen(listing.listed[i].key, sizeof(listing.listed[i].key)) <
                        sizeof(listing.listed[i].key));
        free(listing.listed);
        return 0;
}
