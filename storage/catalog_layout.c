// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "proto/layout.h"
#include "storage/catalog_entry.h"
#include "storage/catalog_layout.h"

void catalog_layout_key(uint8_t ret_key[CATALOG_LAYOUT_KEY_BYTES], uint32_t domain,
                        const struct digest *id)
{
        ret_key[0] = CATALOG_LAYOUT_PREFIX;
        memcpy(ret_key + 1, &domain, sizeof(domain));
        memcpy(ret_key + 1 + sizeof(domain), id, sizeof(*id));
}

static uint64_t value_checksum(const struct catalog_layout_head *head, const void *encoding)
{
        struct catalog_layout_head copy = *head;
        XXH3_state_t state;

        copy.checksum = 0;
        XXH3_64bits_reset(&state);
        XXH3_64bits_update(&state, &copy, sizeof(copy));
        XXH3_64bits_update(&state, encoding, head->length);
        return XXH3_64bits_digest(&state);
}

void catalog_layout_encode(void *value, const struct tier_layout *layout)
{
        struct catalog_layout_head head = {.version = CATALOG_VERSION, .length = layout->length};

        head.checksum = value_checksum(&head, layout->encoding);
        memcpy(value, &head, sizeof(head));
        memcpy((uint8_t *)value + sizeof(head), layout->encoding, layout->length);
}

int catalog_layout_decode(struct tier_layout *ret_layout, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes)
{
        const uint8_t *key_at = key;
        const uint8_t *encoding = (const uint8_t *)value + sizeof(struct catalog_layout_head);
        struct catalog_layout_head head;
        struct tier_layout layout;
        struct digest id;

        if (key_bytes != CATALOG_LAYOUT_KEY_BYTES || key_at[0] != CATALOG_LAYOUT_PREFIX ||
            value_bytes < sizeof(head))
                return CATALOG_LAYOUT_E_DAMAGED;
        memcpy(&head, value, sizeof(head));
        if (head.version != CATALOG_VERSION || head.length != value_bytes - sizeof(head) ||
            head.length > LAYOUT_BYTES_MAX || head.checksum != value_checksum(&head, encoding))
                return CATALOG_LAYOUT_E_DAMAGED;
        memcpy(&layout.domain, key_at + 1, sizeof(layout.domain));
        memcpy(&layout.id, key_at + 1 + sizeof(layout.domain), sizeof(layout.id));
        if (layout_id(&id, encoding, head.length))
                return err_raise(-ENOMEM);
        if (!digest_equal(&id, &layout.id))
                return CATALOG_LAYOUT_E_DAMAGED;
        layout.length = head.length;
        layout.encoding = encoding;
        *ret_layout = layout;
        return 0;
}
