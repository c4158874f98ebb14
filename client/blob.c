// SPDX-License-Identifier: Apache-2.0
/*
 * Blobs: whole sequences by their tokens, for engines without block hashes.
 *
 * A blob is one object whose digest names all its tokens. A croppable one also covers
 * every boundary before its end. Finding probes, longest first, every boundary and every
 * possible end up to the tokens asked about. Blocking calls, any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/session.h"
#include "proto/digest.h"

#define TIMEOUT_NS   UINT64_C(30000000000)
#define GET_TRIES    4
#define STRINGS_SELF 2 /* salt and LoRA, before the images */

_Static_assert(sizeof(struct kvt_digest) == sizeof(struct digest), "one digest, two names");

/* ---- the chain of digests ---- */

static enum kvt_status from_errno(int r)
{
        return r ? KVT_NO_MEMORY : KVT_OK;
}

static enum kvt_status root(const struct kvt_identity *given, struct digest *ret_root)
{
        _cleanup_free_ struct digest_string *strings = NULL;
        struct kvt_identity identity = {0};

        if (given && kvt__copy_sized(&identity, sizeof(identity), given))
                return KVT_INVALID;
        if (identity.reserved || (identity.n_images && !identity.images) ||
            (identity.salt_bytes && !identity.salt) || (identity.lora_bytes && !identity.lora))
                return KVT_INVALID;
        strings = calloc((size_t)identity.n_images + STRINGS_SELF, sizeof(strings[0]));
        if (!strings)
                return KVT_NO_MEMORY;
        strings[0] = (struct digest_string){identity.salt, identity.salt_bytes};
        strings[1] = (struct digest_string){identity.lora, identity.lora_bytes};
        for (uint32_t i = 0; i < identity.n_images; i++) {
                const char *image = identity.images[i] ? identity.images[i] : "";

                strings[STRINGS_SELF + i] = (struct digest_string){image, (uint32_t)strlen(image)};
        }
        return from_errno(digest_root(ret_root, strings, identity.n_images + STRINGS_SELF));
}

/*
 * All digests of a token sequence: the root, one for each whole chunk, the end. Without
 * chunks (0 tokens each) everything is one end.
 */
struct chain {
        struct digest *links; /* links[0] is the root */
        size_t n_chunks;
        uint32_t chunk_tokens;
        uint32_t rest; /* tokens behind the last whole chunk */
        struct digest end;
};

static void chain_deinit(struct chain *chain)
{
        free(chain->links);
}

static enum kvt_status chain_init(struct chain *chain, const struct kvt_identity *identity,
                                  const uint32_t *tokens, size_t n_tokens, uint32_t chunk_tokens)
{
        enum kvt_status status;
        int r = 0;

        *chain = (struct chain){.chunk_tokens = chunk_tokens};
        if (n_tokens > UINT32_MAX || (n_tokens && !tokens))
                return KVT_INVALID;
        chain->n_chunks = chunk_tokens ? n_tokens / chunk_tokens : 0;
        chain->rest = (uint32_t)(n_tokens - chain->n_chunks * chunk_tokens);
        chain->links = calloc(chain->n_chunks + 1, sizeof(chain->links[0]));
        if (!chain->links)
                return KVT_NO_MEMORY;
        status = root(identity, &chain->links[0]);
        if (status != KVT_OK)
                return status;
        for (size_t i = 0; !r && i < chain->n_chunks; i++)
                r = digest_step(&chain->links[i + 1], &chain->links[i], tokens + i * chunk_tokens,
                                chunk_tokens);
        if (!r)
                r = digest_end(&chain->end, &chain->links[chain->n_chunks],
                               tokens + chain->n_chunks * chunk_tokens, chain->rest);
        return from_errno(r);
}

enum kvt_status kvt_digest_chain(const struct kvt_identity *identity, const uint32_t *tokens,
                                 size_t n_tokens, uint32_t chunk_tokens,
                                 struct kvt_digest *ret_boundaries, struct kvt_digest *ret_end)
{
        _cleanup_(chain_deinit) struct chain chain;
        enum kvt_status status = chain_init(&chain, identity, tokens, n_tokens, chunk_tokens);

        if (status != KVT_OK)
                return status;
        if (ret_boundaries && chain.n_chunks)
                memcpy(ret_boundaries, &chain.links[1], chain.n_chunks * sizeof(chain.links[0]));
        if (ret_end)
                memcpy(ret_end, &chain.end, sizeof(*ret_end));
        return KVT_OK;
}

/* ---- one blocking step ---- */

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static enum kvt_status do_call(struct kvt_session *session, submit_fn submit,
                               struct kvt_object *object, uint64_t timeout_ns)
{
        struct kvt_call call = {
                .size = sizeof(call),
                .flags = KVT_CALL_WAITED,
                .timeout_ns = timeout_ns ? timeout_ns : TIMEOUT_NS,
        };
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(session, &call, object, 1, &id);
        if (status != KVT_OK)
                return status;
        /* The call's own deadline ends it; this wait only has to be longer. */
        status = kvt_wait_call(session, id, &completion, UINT64_MAX);
        return status == KVT_OK ? (enum kvt_status)completion.status : status;
}

/* What every blob call needs to know first. */
static enum kvt_status begin(struct kvt_session *session, const struct kvt_blob *given,
                             struct kvt_blob *ret_blob, struct chain *ret_chain)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        enum kvt_status status;

        *ret_chain = (struct chain){0};
        if (!session || !given || kvt__copy_sized(ret_blob, sizeof(*ret_blob), given))
                return KVT_INVALID;
        if (ret_blob->flags & ~(uint32_t)(KVT_CROPPABLE | KVT_REPLACE))
                return KVT_UNSUPPORTED;
        status = kvt_session_info(session, &info);
        if (status == KVT_OK && !info.attached)
                status = KVT_UNAVAILABLE;
        if (status == KVT_OK && !ret_blob->n_tokens)
                status = KVT_INVALID;
        if (status != KVT_OK)
                return status;
        return chain_init(ret_chain, ret_blob->identity, ret_blob->tokens, ret_blob->n_tokens,
                          info.chunk_tokens);
}

/* Whole chunks that end before the blob does. */
static size_t n_inner_boundaries(const struct chain *chain)
{
        return chain->rest || !chain->n_chunks ? chain->n_chunks : chain->n_chunks - 1;
}

/* ---- storing ---- */

enum kvt_status kvt_blob_reserve(struct kvt_session *session, const struct kvt_blob *given,
                                 uint64_t bytes, struct kvt_object *ret_object)
{
        _cleanup_(chain_deinit) struct chain chain = {0};
        struct kvt_object object = {0};
        struct kvt_blob blob;
        enum kvt_status status = ret_object ? begin(session, given, &blob, &chain) : KVT_INVALID;
        size_t inner;

        if (status != KVT_OK)
                return status;
        inner = n_inner_boundaries(&chain);
        memcpy(&object.digest, &chain.end, sizeof(object.digest));
        if (inner)
                memcpy(&object.parent, &chain.links[inner], sizeof(object.parent));
        object.group = blob.group;
        object.shard = blob.shard;
        object.boundary_tokens = (uint32_t)blob.n_tokens;
        object.bytes = bytes;
        if (blob.flags & KVT_CROPPABLE && inner) {
                if (inner > WIRE_COVERS_MAX)
                        return KVT_TOO_LARGE;
                object.covers = (const void *)&chain.links[1];
                object.n_covers = (uint32_t)inner;
        }
        object.flags = blob.flags | KVT_CONTIGUOUS;
        status = do_call(session, kvt_reserve, &object, blob.timeout_ns);
        if (status == KVT_REFUSED || status == KVT_BUSY) {
                object.flags = blob.flags;
                status = do_call(session, kvt_reserve, &object, blob.timeout_ns);
        }
        /* The covers are gone with this function. */
        object.covers = NULL;
        object.n_covers = 0;
        if (status == KVT_OK)
                status = (enum kvt_status)object.status;
        if (status == KVT_OK || status == KVT_ALREADY_HAVE)
                *ret_object = object;
        return status;
}

enum kvt_status kvt_blob_commit(struct kvt_session *session, struct kvt_object *object,
                                uint64_t timeout_ns)
{
        enum kvt_status status =
                object ? do_call(session, kvt_commit, object, timeout_ns) : KVT_INVALID;

        return status == KVT_OK ? (enum kvt_status)object->status : status;
}

enum kvt_status kvt_blob_abort(struct kvt_session *session, struct kvt_object *object,
                               uint64_t timeout_ns)
{
        return object ? do_call(session, kvt_abort, object, timeout_ns) : KVT_INVALID;
}

enum kvt_status kvt_blob_put(struct kvt_session *session, const struct kvt_blob *blob,
                             const void *bytes, uint64_t length)
{
        struct kvt_object object;
        enum kvt_status status;

        if (session && session->arenas.foreign)
                return KVT_UNSUPPORTED;
        status = bytes ? kvt_blob_reserve(session, blob, length, &object) : KVT_INVALID;
        if (status != KVT_OK)
                return status;
        status = kvt_write(&object, 0, bytes, length);
        if (status != KVT_OK) {
                kvt_blob_abort(session, &object, blob->timeout_ns);
                return status;
        }
        return kvt_blob_commit(session, &object, blob->timeout_ns);
}

/* ---- finding ---- */

/* A search for the longest prefix that one cell has, in one shown table. */
struct search {
        const struct kvt__table *table;
        uint32_t bank;
        uint64_t mask;
        const uint32_t *tokens;
        const struct chain *chain;
        struct digest *ends; /* room for all ends of one chunk */
};

/* The highest index whose cell is present, plus 1; 0: none. */
static size_t last_present(const struct search *search, const struct digest *digests, size_t n)
{
        struct presence_block block;

        while (n > 0) {
                uint32_t length = n < PRESENCE_BLOCK ? (uint32_t)n : PRESENCE_BLOCK;

                n -= length;
                kvt__table_look_up(search->table, search->bank, 1, digests + n, length, &block);
                for (uint32_t i = length; i > 0; i--)
                        if (block.bits[i - 1].present & search->mask)
                                return n + i;
        }
        return 0;
}

/* Ends inside the chunk behind boundary @chunk, which has @n tokens to offer. */
static int find_end(const struct search *search, size_t chunk, uint32_t n, size_t *ret_tokens)
{
        size_t before = chunk * search->chain->chunk_tokens;
        size_t found;
        int r;

        if (!n)
                return 0;
        r = digest_ends(search->ends, &search->chain->links[chunk], search->tokens + before, n);
        if (r)
                return r;
        found = last_present(search, search->ends, n);
        if (found)
                *ret_tokens = before + found;
        return 0;
}

/* From the longest down: ends in the rest, the last boundary, ends in the chunk before... */
static int find_longest(const struct search *search, size_t *ret_tokens)
{
        const struct chain *chain = search->chain;
        int r = find_end(search, chain->n_chunks, chain->rest, ret_tokens);

        for (size_t chunk = chain->n_chunks; !r && !*ret_tokens && chunk > 0; chunk--) {
                if (last_present(search, &chain->links[chunk], 1))
                        *ret_tokens = chunk * chain->chunk_tokens;
                else
                        r = find_end(search, chunk - 1, chain->chunk_tokens - 1, ret_tokens);
        }
        return r;
}

static enum kvt_status find_in(const struct kvt__table *table, const struct kvt_blob *blob,
                               const struct chain *chain, size_t *ret_tokens)
{
        size_t longest = chain->chunk_tokens && chain->n_chunks ? chain->chunk_tokens : chain->rest;
        _cleanup_free_ struct digest *ends = calloc(longest + 1, sizeof(ends[0]));
        struct search search = {
                .table = table,
                .tokens = blob->tokens,
                .chain = chain,
                .ends = ends,
        };
        int cell = kvt__needs_cell(&table->needs, blob->group, blob->shard);

        if (!ends)
                return KVT_NO_MEMORY;
        if (cell < 0)
                return KVT_INVALID;
        search.bank = (uint32_t)cell / PRESENCE_CELLS_PER_BANK;
        search.mask = UINT64_C(1) << (uint32_t)cell % PRESENCE_CELLS_PER_BANK;
        return from_errno(find_longest(&search, ret_tokens));
}

enum kvt_status kvt_blob_find(struct kvt_session *session, const struct kvt_blob *given,
                              size_t *ret_tokens)
{
        _cleanup_(chain_deinit) struct chain chain = {0};
        struct kvt_blob blob;
        enum kvt_status status = ret_tokens ? begin(session, given, &blob, &chain) : KVT_INVALID;
        struct kvt__table *table;
        size_t tokens = 0;

        if (status == KVT_UNAVAILABLE)
                status = KVT_MISS;
        if (ret_tokens)
                *ret_tokens = 0;
        if (status != KVT_OK)
                return status;
        table = kvt__table_enter(&session->tables);
        if (!table)
                return KVT_MISS;
        if (kvt__table_is_serving(table) && table->needs.chunk_tokens == chain.chunk_tokens)
                status = find_in(table, &blob, &chain, &tokens);
        kvt__table_leave(table);
        *ret_tokens = tokens;
        return status == KVT_OK && !tokens ? KVT_MISS : status;
}

/* ---- loading ---- */

enum kvt_status kvt_blob_acquire(struct kvt_session *session, const struct kvt_blob *given,
                                 struct kvt_object *ret_object)
{
        _cleanup_(chain_deinit) struct chain chain = {0};
        struct kvt_object object = {0};
        struct kvt_blob blob;
        enum kvt_status status = ret_object ? begin(session, given, &blob, &chain) : KVT_INVALID;

        if (status != KVT_OK)
                return status;
        memcpy(&object.digest, &chain.end, sizeof(object.digest));
        object.group = blob.group;
        object.shard = blob.shard;
        status = do_call(session, kvt_acquire, &object, blob.timeout_ns);
        if (status == KVT_OK)
                status = (enum kvt_status)object.status;
        if (status == KVT_OK)
                *ret_object = object;
        return status;
}

enum kvt_status kvt_blob_release(struct kvt_session *session, struct kvt_object *object)
{
        return object ? do_call(session, kvt_release, object, 0) : KVT_INVALID;
}

static enum kvt_status copy_out(struct kvt_session *session, const struct kvt_blob *blob,
                                void *buffer, uint64_t capacity, uint64_t *ret_length)
{
        struct kvt_object object;
        enum kvt_status status = kvt_blob_acquire(session, blob, &object);

        if (status != KVT_OK)
                return status;
        *ret_length = object.bytes;
        status = object.bytes > capacity ? KVT_TOO_LARGE
                                         : kvt_read(&object, 0, buffer, object.bytes);
        kvt_blob_release(session, &object);
        return status;
}

enum kvt_status kvt_blob_get(struct kvt_session *session, const struct kvt_blob *given,
                             void *buffer, uint64_t capacity, uint64_t *ret_length,
                             size_t *ret_tokens)
{
        enum kvt_status status = KVT_MISS;
        struct kvt_blob blob;
        size_t tokens;

        if (!given || !ret_length || !ret_tokens || (capacity && !buffer) ||
            kvt__copy_sized(&blob, sizeof(blob), given))
                return KVT_INVALID;
        if (session && session->arenas.foreign)
                return KVT_UNSUPPORTED;
        blob.size = sizeof(blob);
        *ret_length = 0;
        *ret_tokens = 0;
        /* What the table promised may be gone: then the next shorter one, not for ever. */
        for (int i = 0; i < GET_TRIES && blob.n_tokens; i++) {
                status = kvt_blob_find(session, &blob, &tokens);
                if (status != KVT_OK)
                        return status;
                blob.n_tokens = tokens;
                status = copy_out(session, &blob, buffer, capacity, ret_length);
                if (status == KVT_OK || status == KVT_TOO_LARGE)
                        *ret_tokens = tokens;
                if (status != KVT_MISS && status != KVT_CORRUPT && status != KVT_IO_ERROR)
                        return status;
                blob.n_tokens--;
        }
        return status;
}
