// SPDX-License-Identifier: Apache-2.0
/*
 * The list of metrics: everything that is counted and measured, in the order in which it is
 * exported. daemon/metrics.h makes a struct of it.
 */
#pragma once

/*
 * field, kind, labels, help
 *
 * Kinds: COUNTER and GAUGE are uint64_t, SECONDS_COUNTER and SECONDS_GAUGE double,
 * HISTOGRAM struct metrics_histogram in seconds.
 * Labels: NONE, TIER [tier], OPERATION_STATUS [operation][status], TIER_REMOVAL
 * [tier][removal], DISCONNECT [disconnect], REFUSAL [refusal], RDMA_END [enum rdma_end].
 */
#define METRICS_LIST(X)                                                                            \
        X(uptime_seconds, SECONDS_GAUGE, NONE, "Time since the daemon started.")                   \
        X(resident_bytes, GAUGE, NONE,                                                             \
          "Resident memory of the daemon's process; arenas in huge pages are not in it.")          \
        X(draining, GAUGE, NONE, "1 while the daemon shuts down.")                                 \
        X(config_reloads_total, COUNTER, NONE, "Reloads by SIGHUP that were taken.")               \
        X(config_reload_failures_total, COUNTER, NONE, "Reloads that were refused.")               \
        X(http_requests_total, COUNTER, NONE, "Requests to this endpoint.")                        \
                                                                                                   \
        X(sessions, GAUGE, NONE, "Sessions attached now.")                                         \
        X(sessions_pending, GAUGE, NONE, "Of these, those whose layout is not whole yet.")         \
        X(sessions_quarantined, GAUGE, NONE, "Ended sessions whose leases still stand.")           \
        X(sessions_limit, GAUGE, NONE, "sessions.max of the configuration.")                       \
        X(sessions_opened_total, COUNTER, NONE, "Sessions that attached.")                         \
        X(attach_refused_total, COUNTER, REFUSAL, "Clients turned away, by reason.")               \
        X(disconnects_total, COUNTER, DISCONNECT, "Sessions ended, by reason.")                    \
        X(messages_received_total, COUNTER, NONE, "Messages from clients.")                        \
        X(messages_sent_total, COUNTER, NONE, "Messages to clients.")                              \
                                                                                                   \
        X(operation_objects_total, COUNTER, OPERATION_STATUS,                                      \
          "Objects in requests, by operation and result.")                                         \
        X(stored_bytes_total, COUNTER, NONE, "Bytes of committed objects.")                        \
        X(loaded_bytes_total, COUNTER, NONE, "Bytes of objects granted for loading.")              \
        X(page_loads_total, COUNTER, NONE,                                                         \
          "Objects of which pages alone were asked for and found.")                                \
        X(page_loads_asked_bytes_total, COUNTER, NONE, "Bytes of those pages.")                    \
        X(page_loads_read_bytes_total, COUNTER, NONE,                                              \
          "Bytes read from below for them: the pieces that they touch.")                           \
        X(hits_total, COUNTER, TIER, "Objects asked for and found, by the tier that had them.")    \
        X(misses_total, COUNTER, NONE, "Objects asked for and not found.")                         \
        X(match_hint_refused_total, COUNTER, NONE,                                                 \
          "Acquires of a boundary that was gone since the presence table showed it.")              \
        X(unaligned_tokens_total, COUNTER, NONE, "Tokens not stored because they fill no chunk.")  \
        X(prompts_total, COUNTER, NONE, "Prompts that engines looked for, as they told.")          \
        X(prompt_tokens_total, COUNTER, NONE,                                                      \
          "Tokens of those that the engine's own cache lacked.")                                   \
        X(prompt_tail_tokens_total, COUNTER, NONE,                                                 \
          "Of those, behind the last whole chunk: never found.")                                   \
        X(prompt_kv_tokens_total, COUNTER, NONE, "Of those, whose KV was there.")                  \
        X(prompt_hit_tokens_total, COUNTER, NONE, "Of those, that could be used.")                 \
                                                                                                   \
        X(leases, GAUGE, NONE, "Leases held, quarantined ones included.")                          \
        X(leased_bytes, GAUGE, NONE, "Host bytes under lease, quarantined ones included.")         \
        X(leased_limit_bytes, GAUGE, NONE, "Most host bytes that may be leased at once.")          \
        X(quarantined_bytes, GAUGE, NONE, "Host bytes under leases of ended sessions.")            \
        X(oldest_lease_seconds, SECONDS_GAUGE, NONE, "Age of the oldest lease.")                   \
        X(pins, GAUGE, NONE, "Boundaries that sessions and kvtierctl have pinned.")                \
        X(pins_refused_total, COUNTER, NONE, "Pins beyond the share that may be pinned.")          \
        X(reclaim_kept_objects_total, COUNTER, NONE, "Objects to be reclaimed that pins kept.")    \
                                                                                                   \
        X(host_arenas, GAUGE, NONE, "Arenas that are up.")                                         \
        X(host_arenas_configured, GAUGE, NONE, "Arenas to come up in all.")                        \
        X(host_stalled, GAUGE, NONE, "1 while arenas wait for free memory.")                       \
        X(host_dropped_objects_total, COUNTER, NONE,                                               \
          "Objects dropped from the host tier before they were written down.")                     \
        X(host_dropped_bytes_total, COUNTER, NONE, "Bytes of those.")                              \
                                                                                                   \
        X(tier_capacity_bytes, GAUGE, TIER, "Room for objects.")                                   \
        X(tier_used_bytes, GAUGE, TIER, "Room taken, headers and rounding included.")              \
        X(tier_payload_bytes, GAUGE, TIER,                                                         \
          "Bytes of the objects there, as they are stored; on NVMe rounded up to 4 KiB.")          \
        X(tier_objects, GAUGE, TIER, "Objects there.")                                             \
        X(tier_pinned_bytes, GAUGE, TIER, "Room of objects that pins keep from eviction.")         \
        X(tier_pinned_limit_bytes, GAUGE, TIER, "Most that pins may keep there.")                  \
        X(tier_recovered, GAUGE, TIER, "1 when what survived the last stop is known.")             \
        X(tier_degraded, GAUGE, TIER, "1 when the tier works, but not as configured.")             \
        X(tier_read_bytes_total, COUNTER, TIER, "Bytes read from the tier's device.")              \
        X(tier_written_bytes_total, COUNTER, TIER, "Bytes written to the tier's device.")          \
        X(tier_encode_raw_bytes_total, COUNTER, TIER, "Bytes given to the tier's encoders.")       \
        X(tier_encode_stored_bytes_total, COUNTER, TIER,                                           \
          "Bytes that they made of them, or left as they were.")                                   \
        X(tier_encode_seconds_total, SECONDS_COUNTER, TIER, "Thread time spent on encoding.")      \
        X(tier_decode_raw_bytes_total, COUNTER, TIER, "Bytes that came from the tier's decoders.") \
        X(tier_decode_stored_bytes_total, COUNTER, TIER, "Bytes that they were made of.")          \
        X(tier_decode_seconds_total, SECONDS_COUNTER, TIER, "Thread time spent on decoding.")      \
        X(tier_queued_reads, GAUGE, TIER, "Reads waiting or in flight.")                           \
        X(tier_queued_writes, GAUGE, TIER, "Writes waiting or in flight.")                         \
        X(tier_queued_bytes, GAUGE, TIER, "Bytes of those.")                                       \
        X(tier_oldest_read_seconds, SECONDS_GAUGE, TIER, "Age of the oldest unfinished read.")     \
        X(tier_oldest_write_seconds, SECONDS_GAUGE, TIER, "Age of the oldest unfinished write.")   \
        X(tier_read_seconds, HISTOGRAM, TIER, "Time of a promotion, from start to verified.")      \
        X(tier_write_seconds, HISTOGRAM, TIER, "Time of a write-down, from start to catalogued.")  \
        X(tier_io_errors_total, COUNTER, TIER, "Reads and writes that the device failed.")         \
        X(corrupt_objects_total, COUNTER, TIER, "Objects whose bytes failed verification.")        \
        X(stale_objects_total, COUNTER, TIER,                                                      \
          "Objects whose bytes failed verification because of a power loss or a failed sync.")     \
        X(removed_objects_total, COUNTER, TIER_REMOVAL, "Objects removed, by tier and reason.")    \
        X(removed_bytes_total, COUNTER, TIER_REMOVAL, "Bytes of those.")                           \
                                                                                                   \
        X(write_behind_backlog_bytes, GAUGE, NONE,                                                 \
          "Host bytes that policy wants on NVMe and that are not there yet.")                      \
        X(write_behind_pauses_total, COUNTER, TIER,                                                \
          "Times a full queue, or a pool out of reach, paused write-behind.")                      \
                                                                                                   \
        X(remote_entries, GAUGE, NONE, "Objects in the pool that its index here knows.")           \
        X(remote_nodes, GAUGE, NONE, "Nodes that share the pool, this one included.")              \
        X(remote_bundles, GAUGE, NONE, "Bundles in the pool that this node wrote.")                \
        X(remote_dead_bytes, GAUGE, NONE, "Bytes of those that nothing refers to any more.")       \
        X(remote_caught_up, GAUGE, NONE, "1 when all journals were read since the start.")         \
        X(remote_breaker_open, GAUGE, NONE, "1 while the pool is taken for out of reach.")         \
        X(remote_breaker_opened_total, COUNTER, NONE, "Times it was found out of reach.")          \
        X(remote_read_requests_total, COUNTER, NONE, "Reads of the pool, neighbours merged.")      \
        X(remote_timeouts_total, COUNTER, NONE, "Requests that ended at their deadline.")          \
        X(remote_stale_entries_total, COUNTER, NONE, "Reads that found the bundle gone.")          \
        X(remote_journal_read_total, COUNTER, NONE, "Journal segments of other nodes read.")       \
        X(remote_journal_written_total, COUNTER, NONE, "Journal segments of this node written.")   \
        X(remote_journal_damaged_total, COUNTER, NONE, "Journal segments skipped as damaged.")     \
        X(remote_offered_bytes, GAUGE, NONE, "Host bytes that wait to be written to the pool.")    \
        X(remote_refused_writes_total, COUNTER, NONE,                                              \
          "Writes that the pool, out of reach or busy, did not take at the time.")                 \
        X(remote_dropped_objects_total, COUNTER, NONE,                                             \
          "Objects that left host memory while they waited to be written to the pool.")            \
        X(remote_unindexed_objects_total, COUNTER, NONE,                                           \
          "Objects in the pool that found no place in the index, or do not fit what is here.")     \
                                                                                                   \
        X(catalog_queue_entries, GAUGE, NONE, "Changes waiting for the catalog's thread.")         \
        X(checksum_bytes_total, COUNTER, NONE, "Bytes hashed.")                                    \
        X(checksum_seconds_total, SECONDS_COUNTER, NONE, "Thread time spent on hashing.")          \
                                                                                                   \
        X(index_objects, GAUGE, NONE, "Objects known, in any tier.")                               \
        X(index_boundaries, GAUGE, NONE, "Boundaries known.")                                      \
        X(index_objects_limit, GAUGE, NONE, "index.objects_max of the configuration.")             \
        X(index_full_total, COUNTER, NONE, "Objects refused because the index was full.")          \
        X(layouts, GAUGE, NONE, "Layouts known.")                                                  \
        X(presence_entries, GAUGE, NONE, "Entries of the presence table in use.")                  \
        X(presence_capacity_entries, GAUGE, NONE, "Entries of the presence table.")                \
        X(presence_refused_total, COUNTER, NONE, "Entries that found no place in it.")             \
                                                                                                   \
        X(peers, GAUGE, NONE, "Other nodes that may be asked for objects.")                        \
        X(peers_connected, GAUGE, NONE, "Of these, those that a connection is open to.")           \
        X(peer_asked_objects_total, COUNTER, NONE, "Objects asked of peers.")                      \
        X(peer_expected_objects, GAUGE, NONE, "Of these, those that are not here or given up.")    \
        X(peer_read_objects_total, COUNTER, NONE, "Objects read from peers and verified.")         \
        X(peer_read_bytes_total, COUNTER, NONE, "Bytes of those.")                                 \
        X(peer_read_misses_total, COUNTER, NONE, "Objects asked of peers that did not have them.") \
        X(peer_read_corrupt_objects_total, COUNTER, NONE,                                          \
          "Objects read from peers that failed verification, or failed it there.")                 \
        X(peer_read_failures_total, COUNTER, NONE,                                                 \
          "Objects that did not come: no room, too late, no connection, cancelled.")               \
        X(peer_read_seconds, HISTOGRAM, NONE, "Time from an offer to the verified object.")        \
        X(peer_finds_total, COUNTER, NONE, "Questions to peers about what an engine has there.")   \
        X(peer_find_timeouts_total, COUNTER, NONE, "Finds that ended by their deadline.")          \
        X(peer_served_objects_total, COUNTER, NONE, "Objects offered to peers.")                   \
        X(peer_served_bytes_total, COUNTER, NONE, "Bytes of those.")                               \
        X(peer_wanted_objects, GAUGE, NONE, "Objects that peers wait for.")                        \
        X(peer_leased_bytes, GAUGE, NONE, "Host bytes leased for peers to read.")                  \
                                                                                                   \
        X(rdma_connections, GAUGE, NONE, "RDMA connections that are open.")                        \
        X(rdma_queue_pairs, GAUGE, NONE, "Queue pairs that the devices hold for us.")              \
        X(rdma_regions, GAUGE, NONE, "Memory regions registered: one an arena and device.")        \
        X(rdma_windows, GAUGE, NONE, "Memory windows allocated.")                                  \
        X(rdma_windows_bound, GAUGE, NONE, "Memory windows that a peer may use now.")              \
        X(rdma_devices_gone, GAUGE, NONE, "RDMA devices that were removed under the daemon.")      \
        X(rdma_opened_total, COUNTER, NONE, "RDMA connections that came through the handshake.")   \
        X(rdma_ended_total, COUNTER, RDMA_END, "RDMA connections ended or refused, by reason.")    \
        X(rdma_messages_sent_total, COUNTER, NONE, "Messages sent by RDMA.")                       \
        X(rdma_messages_received_total, COUNTER, NONE, "Messages received by RDMA.")               \
        X(rdma_read_bytes_total, COUNTER, NONE, "Bytes read from the memory of others.")           \
        X(rdma_written_bytes_total, COUNTER, NONE, "Bytes written to the memory of others.")       \
        X(rdma_timeouts_total, COUNTER, NONE, "RDMA operations that passed their deadline.")       \
                                                                                                   \
        X(loop_lag_seconds, HISTOGRAM, NONE, "How late the loop's timer fires.")
