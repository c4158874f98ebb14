// SPDX-License-Identifier: Apache-2.0
/*
 * SHA-256 comes from OpenSSL. The algorithm is fetched once for the process: an implicit
 * fetch for each digest costs more than hashing a small chunk.
 */
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/digest.h"

/* With the zeros behind them, so that all three have 14 bytes. */
#define PREFIX_ROOT  "kvtier/root/1"
#define PREFIX_STEP  "kvtier/step/1"
#define PREFIX_END   "kvtier/end/1\0"
#define PREFIX_BYTES 14

_Static_assert(sizeof(PREFIX_ROOT) == PREFIX_BYTES, "prefix of a root");
_Static_assert(sizeof(PREFIX_STEP) == PREFIX_BYTES, "prefix of a step");
_Static_assert(sizeof(PREFIX_END) == PREFIX_BYTES, "prefix of an end");

DEFINE_CLEANUP(EVP_MD_CTX *, EVP_MD_CTX_free)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static EVP_MD *sha256; /* lives as long as the process */

static void fetch(void)
{
        sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

/* OpenSSL's 1 or 0; a hash in memory fails for want of memory only. */
static int checked(int success)
{
        return success == 1 ? 0 : err_raise(-ENOMEM);
}

/* Starts a hash over @prefix. */
static int start(EVP_MD_CTX **ret_context, const char *prefix)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *context = NULL;
        int r;

        pthread_once(&once, fetch);
        if (!sha256)
                return err_raise(-ENOMEM);
        context = EVP_MD_CTX_new();
        if (!context)
                return err_raise(-ENOMEM);
        r = checked(EVP_DigestInit_ex2(context, sha256, NULL));
        if (!r && prefix)
                r = checked(EVP_DigestUpdate(context, prefix, PREFIX_BYTES));
        if (!r)
                *ret_context = steal_ptr(context);
        return r;
}

static int update(EVP_MD_CTX *context, const void *bytes, size_t length)
{
        return length ? checked(EVP_DigestUpdate(context, bytes, length)) : 0;
}

static int finish(EVP_MD_CTX *context, struct digest *ret_digest)
{
        struct digest digest;
        int r = checked(EVP_DigestFinal_ex(context, digest.bytes, NULL));

        if (!r)
                *ret_digest = digest;
        return r;
}

int digest_root(struct digest *ret_digest, const struct digest_string *strings, uint32_t n_strings)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *context = NULL;
        int r;

        r = start(&context, PREFIX_ROOT);
        if (!r)
                r = update(context, &n_strings, sizeof(n_strings));
        for (uint32_t i = 0; !r && i < n_strings; i++) {
                r = update(context, &strings[i].length, sizeof(strings[i].length));
                if (!r)
                        r = update(context, strings[i].bytes, strings[i].length);
        }
        return r ? r : finish(context, ret_digest);
}

int digest_step(struct digest *ret_digest, const struct digest *previous, const uint32_t *tokens,
                uint32_t n_tokens)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *context = NULL;
        int r;

        r = start(&context, PREFIX_STEP);
        if (!r)
                r = update(context, previous->bytes, DIGEST_BYTES);
        if (!r)
                r = update(context, tokens, n_tokens * sizeof(*tokens));
        return r ? r : finish(context, ret_digest);
}

int digest_end(struct digest *ret_digest, const struct digest *previous, const uint32_t *tokens,
               uint32_t n_tokens)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *context = NULL;
        int r;

        if (!n_tokens) {
                *ret_digest = *previous;
                return 0;
        }
        r = start(&context, PREFIX_END);
        if (!r)
                r = update(context, previous->bytes, DIGEST_BYTES);
        if (!r)
                r = update(context, tokens, n_tokens * sizeof(*tokens));
        if (!r)
                r = update(context, &n_tokens, sizeof(n_tokens));
        return r ? r : finish(context, ret_digest);
}

int digest_ends(struct digest *ret_digests, const struct digest *previous, const uint32_t *tokens,
                uint32_t n_tokens)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *running = NULL;
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *copy = NULL;
        int r;

        r = start(&running, PREFIX_END);
        if (!r)
                r = start(&copy, NULL);
        if (!r)
                r = update(running, previous->bytes, DIGEST_BYTES);
        for (uint32_t i = 0; !r && i < n_tokens; i++) {
                uint32_t count = i + 1;

                /* The number of tokens ends the hash, so a copy can end after each token. */
                r = update(running, &tokens[i], sizeof(tokens[i]));
                if (!r)
                        r = checked(EVP_MD_CTX_copy_ex(copy, running));
                if (!r)
                        r = update(copy, &count, sizeof(count));
                if (!r)
                        r = finish(copy, &ret_digests[i]);
        }
        return r;
}

int digest_of_bytes(struct digest *ret_digest, const void *bytes, size_t length)
{
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *context = NULL;
        int r;

        r = start(&context, NULL);
        if (!r)
                r = update(context, bytes, length);
        return r ? r : finish(context, ret_digest);
}
