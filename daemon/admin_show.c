// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/admin.h"
#include "daemon/admin_objects.h"
#include "daemon/admin_show.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"

/* An object whose header has to be read. The index may change meanwhile. */
struct unread {
        json_t *described; /* of the answer */
        uint16_t layout;
        uint16_t group;
        uint16_t shard;
        uint64_t generation;
};

struct show {
        struct tier_read read; /* first: the tier hands it back */
        struct session *session;
        uint64_t request;
        json_t *objects;
        struct digest digest;
        struct object_key key; /* of the one that is being read */
        struct tier_segment segment;
        uint64_t mapped_bytes;
        struct unread *unread;
        size_t n_unread, at;
};

static void describe_writer(json_t *described, const uint8_t boot_id[16], uint64_t stored_ns)
{
        char text[33];

        admin_hex(text, boot_id, 16);
        json_object_set_new(described, "writer_boot_id", json_string(text));
        json_object_set_new(described, "stored_ns", json_integer((json_int_t)stored_ns));
}

static void finish(struct show *show)
{
        struct session *session = show->session;
        char boot_id[33];

        admin_hex(boot_id, session->daemon->boot_id, sizeof(session->daemon->boot_id));
        admin_reply(
                session, show->request,
                json_pack("{s:b, s:s, s:o}", "ok", 1, "boot_id", boot_id, "objects", show->objects),
                false);
        free(show->unread);
        free(show);
        session_unref(session);
}

static struct index_object *still_there(struct show *show, const struct unread *unread)
{
        struct index *index = show->session->daemon->cache.index;
        struct index_boundary *boundary = index_find_boundary(index, unread->layout, &show->digest);
        struct index_object *object =
                boundary ? index_find_object(index, boundary, unread->group, unread->shard) : NULL;

        return object && object->generation == unread->generation && object->place.claim ? object
                                                                                         : NULL;
}

static void read_on(struct show *show);

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct show *show = (struct show *)read;

        munmap(show->segment.bytes, show->mapped_bytes);
        if (!result)
                describe_writer(show->unread[show->at].described, read->writer_boot_id,
                                read->committed_ns);
        show->at++;
        read_on(show);
}

/* False: the object shows no writer. */
static bool start_read(struct show *show, const struct index_object *object)
{
        struct cache *cache = &show->session->daemon->cache;
        struct piece_set first = {{0}};
        void *scratch;

        piece_set_add(&first, object->raw_bytes, 0, 1);
        show->segment.length = piece_set_bytes(&first, object->raw_bytes);
        show->mapped_bytes = (show->segment.length + 4095) & ~UINT64_C(4095);
        scratch = mmap(NULL, show->mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (scratch == MAP_FAILED)
                return false;
        show->segment.bytes = scratch;
        show->segment.arena_id = TIER_MEMORY_UNREGISTERED;
        index_key(cache->index, object, &show->key);
        show->read = (struct tier_read){
                .place = object->place,
                .key = &show->key,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .pieces = first,
                .segments = &show->segment,
                .n_segments = 1,
                .on_done = on_read,
        };
        if (!cache->nvme->ops.read_pieces(cache->nvme, &show->read))
                return true;
        munmap(scratch, show->mapped_bytes);
        return false;
}

/* One after another: this is for people. */
static void read_on(struct show *show)
{
        for (; show->at < show->n_unread; show->at++) {
                const struct index_object *object = still_there(show, &show->unread[show->at]);

                if (object && start_read(show, object))
                        return;
        }
        finish(show);
}

static void add_object(struct show *show, const struct index_boundary *boundary,
                       const struct index_object *object)
{
        struct daemon *daemon = show->session->daemon;
        json_t *described = admin_describe_object(daemon, object);
        const struct host_copy *copy;

        if (json_array_append_new(show->objects, described))
                return;
        if (object->host != INDEX_NONE) {
                copy = host_copy_at(&daemon->cache.copies, object->host);
                describe_writer(described, copy->writer_boot_id, copy->committed_ns);
        } else if (show->unread) {
                show->unread[show->n_unread++] =
                        (struct unread){described, boundary->layout, object->group, object->shard,
                                        object->generation};
        }
}

static void add_boundary(struct show *show, const struct index_boundary *boundary)
{
        struct index *index = show->session->daemon->cache.index;
        struct unread *unread;
        size_t n = 0;

        for (uint32_t id = boundary->first_object; id; id = index_object_at(index, id)->next)
                n++;
        if (!n)
                return;
        unread = reallocarray(show->unread, show->n_unread + n, sizeof(*unread));
        if (unread)
                show->unread = unread;
        for (uint32_t id = unread ? boundary->first_object : INDEX_NONE; id;
             id = index_object_at(index, id)->next)
                add_object(show, boundary, index_object_at(index, id));
}

static void start(struct session *session, uint64_t request, const struct digest *digest,
                  uint16_t layout)
{
        struct index *index = session->daemon->cache.index;
        struct show *show = calloc(1, sizeof(*show));

        if (!show) {
                admin_reply(session, request, NULL, false);
                return;
        }
        show->session = session;
        show->request = request;
        show->digest = *digest;
        show->objects = json_array();
        session->n_refs++;
        for (uint32_t i = 1; i <= index_n_layouts(index); i++) {
                const struct index_boundary *boundary = NULL;

                if (!layout || layout == i)
                        boundary = index_find_boundary(index, (uint16_t)i, digest);
                if (boundary)
                        add_boundary(show, boundary);
        }
        read_on(show);
}

void admin_show(struct session *session, uint64_t request, const json_t *arguments)
{
        const char *text = json_string_value(json_object_get(arguments, "digest"));
        json_t *error = NULL;
        struct digest digest;
        uint16_t layout;

        if (!text || !admin_parse_digest(text, &digest))
                error = admin_error("show: \"digest\" must be 64 hex digits: see kvtierctl ls");
        else if (!admin_find_layout(session->daemon, arguments, true, &layout, &error))
                start(session, request, &digest, layout);
        if (error)
                admin_reply(session, request, error, false);
}
