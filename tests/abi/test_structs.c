// SPDX-License-Identifier: Apache-2.0
/*
 * Every struct that crosses a process or a restart, frozen member by member. A number
 * here changes only together with a version of the protocol or of the disk format.
 *
 * The members of each struct are listed in order and must touch each other, so that
 * neither padding nor a member that is missing here can go unseen.
 */
#include <check.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_frame.h"
#include "proto/peer_message.h"
#include "proto/presence.h"
#include "proto/remote_part.h"
#include "proto/wire.h"
#include "storage/bundle.h"
#include "storage/catalog_entry.h"
#include "storage/catalog_layout.h"
#include "storage/journal.h"
#include "storage/pool_lease.h"
#include "storage/remote_index.h"
#include "storage/segment.h"
#include "storage/superblock.h"
#include "tests/abi/test_statuses.h"

/* What the compiler makes of a member, and what it has to be. */
struct field {
        const char *name;
        size_t offset;
        size_t bytes;
        size_t frozen_offset;
        size_t frozen_bytes;
};

struct layout_rule {
        const char *name;
        const struct field *fields;
        size_t n_fields;
        size_t bytes;
        size_t frozen_bytes;
};

#define FIELD(type, member, frozen_offset, frozen_bytes)                                           \
        {                                                                                          \
#type "." #member, offsetof(struct type, member),                                  \
                        sizeof(((struct type *)0)->member), (frozen_offset), (frozen_bytes)        \
        }

#define RULE(type, frozen_bytes)                                                                   \
        {                                                                                          \
#type, type##_fields, sizeof(type##_fields) / sizeof(type##_fields[0]),            \
                        sizeof(struct type), (frozen_bytes)                                        \
        }

/* clang-format off */
static const struct field digest_fields[] = {
        FIELD(digest, bytes, 0, 32),
};

static const struct field object_key_fields[] = {
        FIELD(object_key, layout, 0, 32),
        FIELD(object_key, boundary, 32, 32),
        FIELD(object_key, domain, 64, 4),
        FIELD(object_key, group, 68, 2),
        FIELD(object_key, shard, 70, 2),
};

static const struct field wire_header_fields[] = {
        FIELD(wire_header, magic, 0, 4),
        FIELD(wire_header, kind, 4, 2),
        FIELD(wire_header, flags, 6, 2),
        FIELD(wire_header, length, 8, 4),
        FIELD(wire_header, n_items, 12, 4),
        FIELD(wire_header, request, 16, 8),
        FIELD(wire_header, session, 24, 8),
        FIELD(wire_header, boot_id, 32, 16),
};

static const struct field wire_hello_fields[] = {
        FIELD(wire_hello, header, 0, 48),
        FIELD(wire_hello, major, 48, 2),
        FIELD(wire_hello, minor, 50, 2),
        FIELD(wire_hello, flags, 52, 4),
        FIELD(wire_hello, features, 56, 8),
        FIELD(wire_hello, program, 64, 64),
};

static const struct field wire_welcome_fields[] = {
        FIELD(wire_welcome, header, 0, 48),
        FIELD(wire_welcome, major, 48, 2),
        FIELD(wire_welcome, minor, 50, 2),
        FIELD(wire_welcome, status, 52, 4),
        FIELD(wire_welcome, features, 56, 8),
        FIELD(wire_welcome, session, 64, 8),
        FIELD(wire_welcome, boot_id, 72, 16),
        FIELD(wire_welcome, secret, 88, 16),
        FIELD(wire_welcome, table_bytes, 104, 8),
        FIELD(wire_welcome, host_bytes, 112, 8),
        FIELD(wire_welcome, leases_max, 120, 8),
        FIELD(wire_welcome, domain, 128, 4),
        FIELD(wire_welcome, n_arenas, 132, 4),
        FIELD(wire_welcome, why, 136, 128),
};

static const struct field wire_arena_fields[] = {
        FIELD(wire_arena, header, 0, 48),
        FIELD(wire_arena, arena_id, 48, 4),
        FIELD(wire_arena, numa_node, 52, 4),
        FIELD(wire_arena, bytes, 56, 8),
        FIELD(wire_arena, page_bytes, 64, 8),
};

static const struct field wire_attach_fields[] = {
        FIELD(wire_attach, header, 0, 48),
        FIELD(wire_attach, engine_id, 48, 16),
        FIELD(wire_attach, layout_bytes, 64, 4),
        FIELD(wire_attach, flags, 68, 4),
        FIELD(wire_attach, rank, 72, 4),
        FIELD(wire_attach, n_ranks, 76, 4),
};

static const struct field wire_attached_fields[] = {
        FIELD(wire_attached, header, 0, 48),
        FIELD(wire_attached, status, 48, 4),
        FIELD(wire_attached, layout, 52, 4),
        FIELD(wire_attached, chunk_tokens, 56, 4),
        FIELD(wire_attached, n_cells, 60, 4),
        FIELD(wire_attached, layout_id, 64, 32),
        FIELD(wire_attached, why, 96, 512),
};

static const struct field wire_layout_fields[] = {
        FIELD(wire_layout, header, 0, 48),
        FIELD(wire_layout, layout, 48, 4),
        FIELD(wire_layout, layout_bytes, 52, 4),
        FIELD(wire_layout, layout_id, 56, 32),
};

static const struct field wire_batch_fields[] = {
        FIELD(wire_batch, header, 0, 48),
        FIELD(wire_batch, set, 48, 8),
        FIELD(wire_batch, timeout_ns, 56, 8),
        FIELD(wire_batch, layout, 64, 4),
        FIELD(wire_batch, flags, 68, 4),
        FIELD(wire_batch, first, 72, 4),
        FIELD(wire_batch, total, 76, 4),
};

static const struct field wire_reserve_item_fields[] = {
        FIELD(wire_reserve_item, boundary, 0, 32),
        FIELD(wire_reserve_item, parent, 32, 32),
        FIELD(wire_reserve_item, group, 64, 2),
        FIELD(wire_reserve_item, shard, 66, 2),
        FIELD(wire_reserve_item, flags, 68, 4),
        FIELD(wire_reserve_item, boundary_tokens, 72, 4),
        FIELD(wire_reserve_item, numa_node, 76, 4),
        FIELD(wire_reserve_item, bytes, 80, 8),
        FIELD(wire_reserve_item, n_covers, 88, 4),
        FIELD(wire_reserve_item, hit_tokens, 92, 4),
};

static const struct field wire_commit_item_fields[] = {
        FIELD(wire_commit_item, lease, 0, 8),
        FIELD(wire_commit_item, n_pieces, 8, 4),
        FIELD(wire_commit_item, flags, 12, 4),
};

static const struct field wire_key_item_fields[] = {
        FIELD(wire_key_item, boundary, 0, 32),
        FIELD(wire_key_item, group, 32, 2),
        FIELD(wire_key_item, shard, 34, 2),
        FIELD(wire_key_item, n_runs, 36, 4),
};

static const struct field wire_page_run_fields[] = {
        FIELD(wire_page_run, first_page, 0, 4),
        FIELD(wire_page_run, n_pages, 4, 4),
};

static const struct field wire_adopt_fields[] = {
        FIELD(wire_adopt, batch, 0, 80),
        FIELD(wire_adopt, token, 80, 16),
};

static const struct field wire_cancel_fields[] = {
        FIELD(wire_cancel, header, 0, 48),
        FIELD(wire_cancel, target, 48, 8),
};

static const struct field wire_copies_ended_fields[] = {
        FIELD(wire_copies_ended, header, 0, 48),
        FIELD(wire_copies_ended, secret, 48, 16),
};

static const struct field wire_granted_fields[] = {
        FIELD(wire_granted, header, 0, 48),
        FIELD(wire_granted, status, 48, 4),
        FIELD(wire_granted, n_granted, 52, 4),
        FIELD(wire_granted, n_resident, 56, 4),
        FIELD(wire_granted, n_fitting, 60, 4),
        FIELD(wire_granted, token, 64, 16),
};

static const struct field wire_result_item_fields[] = {
        FIELD(wire_result_item, index, 0, 4),
        FIELD(wire_result_item, status, 4, 4),
        FIELD(wire_result_item, lease, 8, 8),
        FIELD(wire_result_item, generation, 16, 8),
        FIELD(wire_result_item, bytes, 24, 8),
        FIELD(wire_result_item, n_extents, 32, 4),
        FIELD(wire_result_item, n_pieces, 36, 4),
        FIELD(wire_result_item, stored_ns, 40, 8),
        FIELD(wire_result_item, writer_boot_id, 48, 16),
};

static const struct field wire_extent_fields[] = {
        FIELD(wire_extent, arena_id, 0, 4),
        FIELD(wire_extent, reserved, 4, 4),
        FIELD(wire_extent, offset, 8, 8),
        FIELD(wire_extent, length, 16, 8),
};

static const struct field wire_recent_fields[] = {
        FIELD(wire_recent, header, 0, 48),
        FIELD(wire_recent, nth, 48, 4),
        FIELD(wire_recent, reserved, 52, 4),
};

static const struct field wire_matches_fields[] = {
        FIELD(wire_matches, header, 0, 48),
        FIELD(wire_matches, sequence, 48, 8),
        FIELD(wire_matches, beat_ns, 56, 8),
        FIELD(wire_matches, nth, 64, 4),
        FIELD(wire_matches, n_recent, 68, 4),
        FIELD(wire_matches, total, 72, 4),
        FIELD(wire_matches, first, 76, 4),
        FIELD(wire_matches, prompt_tokens, 80, 4),
        FIELD(wire_matches, max_tokens, 84, 4),
        FIELD(wire_matches, boundaries, 88, 4),
        FIELD(wire_matches, kv_boundaries, 92, 4),
        FIELD(wire_matches, repeats, 96, 4),
        FIELD(wire_matches, reserved, 100, 4),
};

static const struct field wire_tell_fields[] = {
        FIELD(wire_tell, header, 0, 48),
        FIELD(wire_tell, prompts, 48, 8),
        FIELD(wire_tell, prompt_tokens, 56, 8),
        FIELD(wire_tell, tail_tokens, 64, 8),
        FIELD(wire_tell, kv_tokens, 72, 8),
        FIELD(wire_tell, hit_tokens, 80, 8),
        FIELD(wire_tell, batch_tokens, 88, 4),
        FIELD(wire_tell, reserved, 92, 4),
};

static const struct field wire_prefetch_fields[] = {
        FIELD(wire_prefetch, batch, 0, 80),
        FIELD(wire_prefetch, hint, 80, 64),
};

static const struct field wire_move_item_fields[] = {
        FIELD(wire_move_item, lease, 0, 8),
        FIELD(wire_move_item, address, 8, 8),
        FIELD(wire_move_item, bytes, 16, 8),
        FIELD(wire_move_item, key, 24, 4),
        FIELD(wire_move_item, reserved, 28, 4),
};

static const struct field wire_found_fields[] = {
        FIELD(wire_found, header, 0, 48),
        FIELD(wire_found, first, 48, 4),
        FIELD(wire_found, n_banks, 52, 4),
        FIELD(wire_found, reserved, 56, 8),
};

static const struct field wire_found_bits_fields[] = {
        FIELD(wire_found_bits, present, 0, 8),
        FIELD(wire_found_bits, resident, 8, 8),
        FIELD(wire_found_bits, flags, 16, 4),
        FIELD(wire_found_bits, reserved, 20, 4),
};

static const struct field peer_header_fields[] = {
        FIELD(peer_header, kind, 0, 2),
        FIELD(peer_header, reserved, 2, 2),
        FIELD(peer_header, length, 4, 4),
        FIELD(peer_header, n_items, 8, 4),
        FIELD(peer_header, reserved2, 12, 4),
        FIELD(peer_header, request, 16, 8),
};

static const struct field peer_ask_fields[] = {
        FIELD(peer_ask, header, 0, 24),
        FIELD(peer_ask, timeout_ns, 24, 8),
        FIELD(peer_ask, layout, 32, 32),
};

static const struct field peer_find_fields[] = {
        FIELD(peer_find, header, 0, 24),
        FIELD(peer_find, layout, 24, 32),
        FIELD(peer_find, engine_id, 56, 16),
};

static const struct field peer_found_fields[] = {
        FIELD(peer_found, header, 0, 24),
        FIELD(peer_found, n_banks, 24, 4),
        FIELD(peer_found, n_shards, 28, 4),
        FIELD(peer_found, shards, 32, 128),
};

static const struct field peer_found_bits_fields[] = {
        FIELD(peer_found_bits, present, 0, 8),
        FIELD(peer_found_bits, resident, 8, 8),
};

static const struct field peer_boundary_fields[] = {
        FIELD(peer_boundary, boundary, 0, 32),
        FIELD(peer_boundary, n_cells, 32, 4),
        FIELD(peer_boundary, reserved, 36, 4),
};

static const struct field peer_cell_fields[] = {
        FIELD(peer_cell, group, 0, 2),
        FIELD(peer_cell, shard, 2, 2),
};

static const struct field peer_offer_item_fields[] = {
        FIELD(peer_offer_item, index, 0, 4),
        FIELD(peer_offer_item, status, 4, 4),
        FIELD(peer_offer_item, lease, 8, 8),
        FIELD(peer_offer_item, boundary, 16, 32),
        FIELD(peer_offer_item, parent, 48, 32),
        FIELD(peer_offer_item, bytes, 80, 8),
        FIELD(peer_offer_item, committed_ns, 88, 8),
        FIELD(peer_offer_item, writer_boot_id, 96, 16),
        FIELD(peer_offer_item, total, 112, 8),
        FIELD(peer_offer_item, boundary_tokens, 120, 4),
        FIELD(peer_offer_item, flags, 124, 4),
        FIELD(peer_offer_item, n_places, 128, 4),
        FIELD(peer_offer_item, n_pieces, 132, 4),
        FIELD(peer_offer_item, n_covers, 136, 4),
        FIELD(peer_offer_item, reserved, 140, 4),
};

static const struct field peer_place_fields[] = {
        FIELD(peer_place, address, 0, 8),
        FIELD(peer_place, length, 8, 8),
        FIELD(peer_place, key, 16, 4),
        FIELD(peer_place, reserved, 20, 4),
};

static const struct field remote_part_fields[] = {
        FIELD(remote_part, service, 0, 4),
        FIELD(remote_part, left, 4, 4),
};

static const struct field wire_mark_item_fields[] = {
        FIELD(wire_mark_item, boundary, 0, 32),
        FIELD(wire_mark_item, flags, 32, 4),
        FIELD(wire_mark_item, reserved, 36, 4),
};

static const struct field wire_bye_fields[] = {
        FIELD(wire_bye, header, 0, 48),
        FIELD(wire_bye, status, 48, 4),
        FIELD(wire_bye, reserved, 52, 4),
        FIELD(wire_bye, why, 56, 512),
};

static const struct field presence_entry_fields[] = {
        FIELD(presence_entry, fingerprint, 0, 8),
        FIELD(presence_entry, present, 8, 8),
        FIELD(presence_entry, resident, 16, 8),
        FIELD(presence_entry, sequence, 24, 4),
        FIELD(presence_entry, flags, 28, 4),
};

static const struct field presence_header_fields[] = {
        FIELD(presence_header, magic, 0, 8),
        FIELD(presence_header, version, 8, 4),
        FIELD(presence_header, header_bytes, 12, 4),
        FIELD(presence_header, entry_bytes, 16, 4),
        FIELD(presence_header, probe_buckets, 20, 4),
        FIELD(presence_header, n_buckets, 24, 8),
        FIELD(presence_header, hash_key, 32, 8),
        FIELD(presence_header, boot_id, 40, 16),
        FIELD(presence_header, heartbeat_period_ns, 56, 8),
        FIELD(presence_header, heartbeat_ns, 64, 8),
        FIELD(presence_header, state, 72, 4),
        FIELD(presence_header, reserved, 76, 4),
};

static const struct field segment_extent_fields[] = {
        FIELD(segment_extent, first, 0, 8),
        FIELD(segment_extent, count, 8, 4),
        FIELD(segment_extent, member, 12, 4),
};

static const struct field segment_header_fields[] = {
        FIELD(segment_header, magic, 0, 8),
        FIELD(segment_header, version, 8, 4),
        FIELD(segment_header, header_bytes, 12, 4),
        FIELD(segment_header, checksum, 16, 8),
        FIELD(segment_header, pool_uuid, 24, 16),
        FIELD(segment_header, epoch, 40, 8),
        FIELD(segment_header, own_offset, 48, 8),
        FIELD(segment_header, own_member, 56, 4),
        FIELD(segment_header, n_extents, 60, 4),
        FIELD(segment_header, claim, 64, 8),
        FIELD(segment_header, generation, 72, 8),
        FIELD(segment_header, key, 80, 72),
        FIELD(segment_header, parent, 152, 32),
        FIELD(segment_header, boundary_tokens, 184, 4),
        FIELD(segment_header, flags, 188, 4),
        FIELD(segment_header, raw_bytes, 192, 8),
        FIELD(segment_header, stored_bytes, 200, 8),
        FIELD(segment_header, codec, 208, 4),
        FIELD(segment_header, n_covers, 212, 4),
        FIELD(segment_header, covers_sha256, 216, 32),
        FIELD(segment_header, committed_ns, 248, 8),
        FIELD(segment_header, writer_boot_id, 256, 16),
        FIELD(segment_header, refuse_flags, 272, 8),
        FIELD(segment_header, readonly_flags, 280, 8),
        FIELD(segment_header, ignore_flags, 288, 8),
        FIELD(segment_header, piece_bytes, 296, 4),
        FIELD(segment_header, n_pieces, 300, 4),
        FIELD(segment_header, checksum_total, 304, 8),
        FIELD(segment_header, extents, 312, 256),
        FIELD(segment_header, pieces, 568, 1024),
        FIELD(segment_header, stored_checksums, 1592, 1024),
        FIELD(segment_header, stored_lengths, 2616, 512),
        FIELD(segment_header, reserved, 3128, 968),
};

static const struct field superblock_fields[] = {
        FIELD(superblock, magic, 0, 8),
        FIELD(superblock, version, 8, 4),
        FIELD(superblock, block_bytes, 12, 4),
        FIELD(superblock, checksum, 16, 8),
        FIELD(superblock, pool_uuid, 24, 16),
        FIELD(superblock, member_uuid, 40, 16),
        FIELD(superblock, member_index, 56, 4),
        FIELD(superblock, n_members, 60, 4),
        FIELD(superblock, size_bytes, 64, 8),
        FIELD(superblock, unit_bytes, 72, 4),
        FIELD(superblock, header_bytes, 76, 4),
        FIELD(superblock, epoch, 80, 8),
        FIELD(superblock, sequence, 88, 8),
        FIELD(superblock, refuse_flags, 96, 8),
        FIELD(superblock, readonly_flags, 104, 8),
        FIELD(superblock, ignore_flags, 112, 8),
        FIELD(superblock, reserved, 120, 3976),
};

static const struct field catalog_entry_head_fields[] = {
        FIELD(catalog_entry_head, version, 0, 4),
        FIELD(catalog_entry_head, flags, 4, 4),
        FIELD(catalog_entry_head, checksum, 8, 8),
        FIELD(catalog_entry_head, epoch, 16, 8),
        FIELD(catalog_entry_head, generation, 24, 8),
        FIELD(catalog_entry_head, raw_bytes, 32, 8),
        FIELD(catalog_entry_head, stored_bytes, 40, 8),
        FIELD(catalog_entry_head, committed_ns, 48, 8),
        FIELD(catalog_entry_head, writer_boot_id, 56, 16),
        FIELD(catalog_entry_head, parent, 72, 32),
        FIELD(catalog_entry_head, boundary_tokens, 104, 4),
        FIELD(catalog_entry_head, codec, 108, 2),
        FIELD(catalog_entry_head, cell, 110, 2),
        FIELD(catalog_entry_head, n_extents, 112, 4),
        FIELD(catalog_entry_head, n_covers, 116, 4),
};

static const struct field catalog_layout_head_fields[] = {
        FIELD(catalog_layout_head, version, 0, 4),
        FIELD(catalog_layout_head, length, 4, 4),
        FIELD(catalog_layout_head, checksum, 8, 8),
};

static const struct field catalog_pool_fields[] = {
        FIELD(catalog_pool, version, 0, 4),
        FIELD(catalog_pool, n_members, 4, 4),
        FIELD(catalog_pool, checksum, 8, 8),
        FIELD(catalog_pool, pool_uuid, 16, 16),
        FIELD(catalog_pool, epoch, 32, 8),
        FIELD(catalog_pool, claim_limit, 40, 8),
        FIELD(catalog_pool, suspect_claim, 48, 8),
        FIELD(catalog_pool, kernel_boot_id, 56, 16),
        FIELD(catalog_pool, clean, 72, 4),
        FIELD(catalog_pool, unit_bytes, 76, 4),
        FIELD(catalog_pool, member_uuids, 80, 1024),
};

static const struct field bundle_head_fields[] = {
        FIELD(bundle_head, magic, 0, 8),
        FIELD(bundle_head, version, 8, 4),
        FIELD(bundle_head, header_bytes, 12, 4),
        FIELD(bundle_head, checksum, 16, 8),
        FIELD(bundle_head, node, 24, 16),
        FIELD(bundle_head, number, 40, 8),
        FIELD(bundle_head, n_parts, 48, 4),
        FIELD(bundle_head, refuse_flags, 52, 4),
        FIELD(bundle_head, ignore_flags, 56, 4),
        FIELD(bundle_head, reserved, 60, 4),
};

static const struct field bundle_part_head_fields[] = {
        FIELD(bundle_part_head, record_bytes, 0, 4),
        FIELD(bundle_part_head, flags, 4, 4),
        FIELD(bundle_part_head, checksum, 8, 8),
        FIELD(bundle_part_head, key, 16, 72),
        FIELD(bundle_part_head, parent, 88, 32),
        FIELD(bundle_part_head, generation, 120, 8),
        FIELD(bundle_part_head, raw_bytes, 128, 8),
        FIELD(bundle_part_head, stored_bytes, 136, 8),
        FIELD(bundle_part_head, offset, 144, 8),
        FIELD(bundle_part_head, committed_ns, 152, 8),
        FIELD(bundle_part_head, writer_boot_id, 160, 16),
        FIELD(bundle_part_head, checksum_total, 176, 8),
        FIELD(bundle_part_head, boundary_tokens, 184, 4),
        FIELD(bundle_part_head, cell, 188, 2),
        FIELD(bundle_part_head, reserved, 190, 2),
        FIELD(bundle_part_head, piece_bytes, 192, 4),
        FIELD(bundle_part_head, n_pieces, 196, 4),
        FIELD(bundle_part_head, n_covers, 200, 4),
        FIELD(bundle_part_head, encoding, 204, 4),
        FIELD(bundle_part_head, encoding_bytes, 208, 4),
        FIELD(bundle_part_head, reserved2, 212, 4),
};

static const struct field journal_head_fields[] = {
        FIELD(journal_head, magic, 0, 8),
        FIELD(journal_head, version, 8, 4),
        FIELD(journal_head, length, 12, 4),
        FIELD(journal_head, checksum, 16, 8),
        FIELD(journal_head, node, 24, 16),
        FIELD(journal_head, number, 40, 8),
        FIELD(journal_head, n_records, 48, 4),
        FIELD(journal_head, refuse_flags, 52, 4),
        FIELD(journal_head, ignore_flags, 56, 4),
        FIELD(journal_head, reserved, 60, 4),
};

static const struct field journal_record_head_fields[] = {
        FIELD(journal_record_head, kind, 0, 4),
        FIELD(journal_record_head, bytes, 4, 4),
};

static const struct field journal_node_block_fields[] = {
        FIELD(journal_node_block, magic, 0, 8),
        FIELD(journal_node_block, version, 8, 4),
        FIELD(journal_node_block, length, 12, 4),
        FIELD(journal_node_block, checksum, 16, 8),
        FIELD(journal_node_block, node, 24, 16),
        FIELD(journal_node_block, host, 40, 64),
        FIELD(journal_node_block, written_ns, 104, 8),
        FIELD(journal_node_block, first_segment, 112, 8),
        FIELD(journal_node_block, next_segment, 120, 8),
        FIELD(journal_node_block, bundles, 128, 8),
        FIELD(journal_node_block, bytes, 136, 8),
        FIELD(journal_node_block, bytes_max, 144, 8),
        FIELD(journal_node_block, heartbeat_s, 152, 4),
        FIELD(journal_node_block, refuse_flags, 156, 4),
        FIELD(journal_node_block, ignore_flags, 160, 4),
        FIELD(journal_node_block, reserved, 164, 92),
};

static const struct field rdma_frame_fields[] = {
        FIELD(rdma_frame, magic, 0, 4),
        FIELD(rdma_frame, kind, 4, 2),
        FIELD(rdma_frame, reserved, 6, 2),
        FIELD(rdma_frame, length, 8, 4),
        FIELD(rdma_frame, returned, 12, 4),
};

static const struct field rdma_frame_hello_fields[] = {
        FIELD(rdma_frame_hello, frame, 0, 16),
        FIELD(rdma_frame_hello, protocol, 16, 4),
        FIELD(rdma_frame_hello, major, 20, 2),
        FIELD(rdma_frame_hello, minor, 22, 2),
        FIELD(rdma_frame_hello, id, 24, 16),
        FIELD(rdma_frame_hello, expected_id, 40, 16),
        FIELD(rdma_frame_hello, nonce, 56, 32),
        FIELD(rdma_frame_hello, n_credits, 88, 4),
        FIELD(rdma_frame_hello, message_bytes, 92, 4),
        FIELD(rdma_frame_hello, reserved, 96, 8),
        FIELD(rdma_frame_hello, domain, 104, 64),
};

static const struct field rdma_frame_challenge_fields[] = {
        FIELD(rdma_frame_challenge, frame, 0, 16),
        FIELD(rdma_frame_challenge, protocol, 16, 4),
        FIELD(rdma_frame_challenge, major, 20, 2),
        FIELD(rdma_frame_challenge, minor, 22, 2),
        FIELD(rdma_frame_challenge, id, 24, 16),
        FIELD(rdma_frame_challenge, nonce, 40, 32),
        FIELD(rdma_frame_challenge, n_credits, 72, 4),
        FIELD(rdma_frame_challenge, message_bytes, 76, 4),
        FIELD(rdma_frame_challenge, reserved, 80, 8),
};

static const struct field rdma_frame_proof_fields[] = {
        FIELD(rdma_frame_proof, frame, 0, 16),
        FIELD(rdma_frame_proof, mac, 16, 32),
};

static const struct field rdma_frame_refused_fields[] = {
        FIELD(rdma_frame_refused, frame, 0, 16),
        FIELD(rdma_frame_refused, end, 16, 4),
        FIELD(rdma_frame_refused, reserved, 20, 4),
        FIELD(rdma_frame_refused, why, 24, 128),
};

static const struct field pool_lease_block_fields[] = {
        FIELD(pool_lease_block, magic, 0, 8),
        FIELD(pool_lease_block, version, 8, 4),
        FIELD(pool_lease_block, length, 12, 4),
        FIELD(pool_lease_block, checksum, 16, 8),
        FIELD(pool_lease_block, node, 24, 16),
        FIELD(pool_lease_block, holder, 40, 16),
        FIELD(pool_lease_block, epoch, 56, 8),
        FIELD(pool_lease_block, written_ns, 64, 8),
        FIELD(pool_lease_block, seconds, 72, 4),
        FIELD(pool_lease_block, refuse_flags, 76, 4),
        FIELD(pool_lease_block, ignore_flags, 80, 4),
        FIELD(pool_lease_block, reserved, 84, 4),
        FIELD(pool_lease_block, host, 88, 64),
        FIELD(pool_lease_block, reserved2, 152, 8),
};

static const struct field remote_index_meta_fields[] = {
        FIELD(remote_index_meta, version, 0, 4),
        FIELD(remote_index_meta, flags, 4, 4),
        FIELD(remote_index_meta, checksum, 8, 8),
        FIELD(remote_index_meta, node, 16, 16),
        FIELD(remote_index_meta, next_bundle, 32, 8),
        FIELD(remote_index_meta, first_segment, 40, 8),
        FIELD(remote_index_meta, next_segment, 48, 8),
};

static const struct field remote_index_entry_fields[] = {
        FIELD(remote_index_entry, node, 0, 16),
        FIELD(remote_index_entry, number, 16, 8),
        FIELD(remote_index_entry, part, 24, 4),
        FIELD(remote_index_entry, flags, 28, 4),
};

static const struct field remote_index_bundle_fields[] = {
        FIELD(remote_index_bundle, bytes, 0, 8),
};

static const struct field remote_index_node_fields[] = {
        FIELD(remote_index_node, read_to, 0, 8),
        FIELD(remote_index_node, floor, 8, 8),
        FIELD(remote_index_node, gap_at, 16, 8),
        FIELD(remote_index_node, n_positions, 24, 4),
        FIELD(remote_index_node, reserved, 28, 4),
};

static const struct field remote_index_position_fields[] = {
        FIELD(remote_index_position, node, 0, 16),
        FIELD(remote_index_position, number, 16, 8),
};

static const struct field remote_index_replaced_fields[] = {
        FIELD(remote_index_replaced, node, 0, 16),
        FIELD(remote_index_replaced, number, 16, 8),
        FIELD(remote_index_replaced, checksum_total, 24, 8),
};

static const struct layout_rule rules[] = {
        RULE(digest, 32),
        RULE(object_key, 72),
        RULE(wire_header, 48),
        RULE(wire_hello, 128),
        RULE(wire_welcome, 264),
        RULE(wire_arena, 72),
        RULE(wire_attach, 80),
        RULE(wire_attached, 608),
        RULE(wire_layout, 88),
        RULE(wire_batch, 80),
        RULE(wire_reserve_item, 96),
        RULE(wire_commit_item, 16),
        RULE(wire_key_item, 40),
        RULE(wire_page_run, 8),
        RULE(wire_adopt, 96),
        RULE(wire_cancel, 56),
        RULE(wire_copies_ended, 64),
        RULE(wire_granted, 80),
        RULE(wire_result_item, 64),
        RULE(wire_extent, 24),
        RULE(wire_bye, 568),
        RULE(wire_prefetch, 144),
        RULE(wire_move_item, 32),
        RULE(wire_found, 64),
        RULE(wire_found_bits, 24),
        RULE(peer_header, 24),
        RULE(peer_ask, 64),
        RULE(peer_find, 72),
        RULE(peer_found, 160),
        RULE(peer_found_bits, 16),
        RULE(peer_boundary, 40),
        RULE(peer_cell, 4),
        RULE(peer_offer_item, 144),
        RULE(peer_place, 24),
        RULE(remote_part, 8),
        RULE(remote_index_meta, 56),
        RULE(remote_index_entry, 32),
        RULE(remote_index_bundle, 8),
        RULE(remote_index_node, 32),
        RULE(remote_index_position, 24),
        RULE(remote_index_replaced, 32),
        RULE(wire_mark_item, 40),
        RULE(wire_recent, 56),
        RULE(wire_matches, 104),
        RULE(wire_tell, 96),
        RULE(presence_entry, 32),
        RULE(presence_header, 80),
        RULE(segment_extent, 16),
        RULE(segment_header, 4096),
        RULE(superblock, 4096),
        RULE(catalog_entry_head, 120),
        RULE(catalog_layout_head, 16),
        RULE(catalog_pool, 1104),
        RULE(bundle_head, 64),
        RULE(bundle_part_head, 216),
        RULE(journal_head, 64),
        RULE(journal_record_head, 8),
        RULE(journal_node_block, 256),
        RULE(rdma_frame, 16),
        RULE(rdma_frame_hello, 168),
        RULE(rdma_frame_challenge, 88),
        RULE(rdma_frame_proof, 48),
        RULE(rdma_frame_refused, 152),
        RULE(pool_lease_block, 160),
};

/* clang-format on */

#define N_RULES (sizeof(rules) / sizeof(rules[0]))

START_TEST(members_stand_where_they_are_frozen)
{
        const struct layout_rule *rule = &rules[_i];

        for (size_t i = 0; i < rule->n_fields; i++) {
                const struct field *field = &rule->fields[i];

                ck_assert_msg(field->offset == field->frozen_offset, "%s is at %zu, frozen at %zu",
                              field->name, field->offset, field->frozen_offset);
                ck_assert_msg(field->bytes == field->frozen_bytes, "%s has %zu bytes, frozen %zu",
                              field->name, field->bytes, field->frozen_bytes);
        }
        ck_assert_msg(rule->bytes == rule->frozen_bytes, "%s has %zu bytes, frozen %zu", rule->name,
                      rule->bytes, rule->frozen_bytes);
}
END_TEST

START_TEST(members_leave_no_padding)
{
        const struct layout_rule *rule = &rules[_i];
        size_t end = 0;

        for (size_t i = 0; i < rule->n_fields; i++) {
                ck_assert_msg(rule->fields[i].offset == end, "something lies before %s",
                              rule->fields[i].name);
                end += rule->fields[i].bytes;
        }
        ck_assert_msg(end == rule->bytes, "%s goes on after its last member", rule->name);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("abi");
        TCase *structs = tcase_create("structs");
        SRunner *runner;
        int n_failed;

        tcase_add_loop_test(structs, members_stand_where_they_are_frozen, 0, N_RULES);
        tcase_add_loop_test(structs, members_leave_no_padding, 0, N_RULES);
        suite_add_tcase(suite, structs);
        suite_add_tcase(suite, statuses_case());
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
