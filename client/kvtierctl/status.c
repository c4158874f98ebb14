// SPDX-License-Identifier: Apache-2.0
/* kvtierctl status: what is there, and how well it does. */
#include <stdio.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

static void print_head(const json_t *status)
{
        printf("kvtierd %s, %s, up %s\n", json_text(status, "version"), json_text(status, "phase"),
               text_seconds(json_double(status, "uptime_seconds")));
        printf("sessions  %s", text_count(json_u64(status, "sessions")));
        if (json_u64(status, "pending"))
                printf(" (%s pending)", text_count(json_u64(status, "pending")));
        if (json_u64(status, "quarantined"))
                printf(" (%s more in quarantine)", text_count(json_u64(status, "quarantined")));
        printf(", %s leases\n", text_count(json_u64(status, "leases")));
        printf("objects   %s of at most %s\n", text_count(json_u64(status, "objects")),
               text_count(json_u64(status, "objects_max")));
        printf("lookups   %s hits, %s misses (%s)\n", text_count(json_u64(status, "hits")),
               text_count(json_u64(status, "misses")),
               text_percent(json_double(status, "hits"),
                            json_double(status, "hits") + json_double(status, "misses")));
        printf("stored    %s, loaded %s\n", text_bytes(json_u64(status, "stored_bytes")),
               text_bytes(json_u64(status, "loaded_bytes")));
        if (json_u64(status, "unaligned_tokens"))
                printf("unaligned %s tokens that filled no chunk: see kvtierctl doctor\n",
                       text_count(json_u64(status, "unaligned_tokens")));
}

static void print_pins(const json_t *status)
{
        const json_t *tier;
        size_t i;

        if (!json_u64(status, "pins"))
                return;
        printf("pins      %s:", text_count(json_u64(status, "pins")));
        json_array_foreach(json_object_get(status, "tiers"), i, tier)
                printf("%s %s of at most %s in %s", i ? "," : "",
                       text_bytes(json_u64(tier, "pinned_bytes")),
                       text_bytes(json_u64(tier, "pinned_limit_bytes")), json_text(tier, "name"));
        putchar('\n');
}

/* What was not merely missing: how often, of what, and why. */
static void print_refused(const json_t *status)
{
        static const enum kvt_status refusals[] = {KVT_BUSY,    KVT_TOO_LARGE, KVT_REFUSED,
                                                   KVT_INVALID, KVT_NO_MEMORY, KVT_DRAINING};
        json_t *operations = json_object_get(status, "operations"), *operation;
        const char *name;

        json_object_foreach(operations, name, operation)
        {
                for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
                        uint64_t n = json_u64(operation, kvt_status_name(refusals[i]));

                        if (n)
                                printf("refused   %s objects of %s: %s (%s)\n", text_count(n), name,
                                       kvt_status_text(refusals[i]), kvt_status_name(refusals[i]));
                }
        }
}

static void add_tier(struct table *table, const json_t *tier)
{
        static const char *const counters[] = {"hits", "evicted", "corrupt", "stale", "io_errors"};
        uint64_t used = json_u64(tier, "used_bytes"), capacity = json_u64(tier, "capacity_bytes");

        table_add(table, "%s", json_text(tier, "name"));
        table_add(table, "%s", text_bytes(used));
        table_add(table, "%s", text_bytes(capacity));
        table_add(table, "%s", text_percent((double)used, (double)capacity));
        table_add(table, "%s", text_count(json_u64(tier, "objects")));
        for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
                table_add(table, "%s", text_count(json_u64(tier, counters[i])));
        table_add(table, "%s", json_bool(tier, "degraded") ? "degraded" : "ok");
}

/* Nothing where the configuration names none. */
static int print_peers(const json_t *peers)
{
        struct table table;
        const json_t *peer;
        size_t i;
        int r;

        if (!json_array_size(peers))
                return STATUS_OK;
        table_init(&table, "PEER ADDRESS STATE #READ #BYTES LAST-END");
        json_array_foreach(peers, i, peer)
        {
                table_add(&table, "%s", json_text(peer, "name"));
                table_add(&table, "%s", json_text(peer, "address"));
                table_add(&table, "%s", json_text(peer, "state"));
                table_add(&table, "%s", text_count(json_u64(peer, "read_objects")));
                table_add(&table, "%s", text_bytes(json_u64(peer, "read_bytes")));
                table_add(&table, "%s", json_text(peer, "why"));
        }
        putchar('\n');
        r = table_print(&table, stdout);
        table_deinit(&table);
        return r ? STATUS_NEGATIVE : STATUS_OK;
}

/* What the codec made of what went down since the start. */
static void print_codec(const json_t *tier)
{
        uint64_t raw = json_u64(tier, "encode_raw_bytes");
        uint64_t stored = json_u64(tier, "encode_stored_bytes");

        if (raw && stored)
                printf("\n%s: %s were encoded to %s, 1 to %.2f\n", json_text(tier, "name"),
                       text_bytes(raw), text_bytes(stored), (double)raw / (double)stored);
}

/* What only the pool has. */
static void print_pool(const json_t *tier)
{
        if (strcmp(json_text(tier, "name"), "remote") != 0)
                return;
        printf("\npool (%s): %s nodes, %s objects known, %s of them others' alone; %s bundles of "
               "this node, %s dead\n",
               json_text(tier, "backend"), text_count(json_u64(tier, "nodes")),
               text_count(json_u64(tier, "known_objects")),
               text_count(json_u64(tier, "others_objects")), text_count(json_u64(tier, "bundles")),
               text_bytes(json_u64(tier, "dead_bytes")));
        if (!json_bool(tier, "caught_up"))
                printf("what others stored is still being learned\n");
        if (json_u64(tier, "timeouts") || json_u64(tier, "refused_writes") ||
            json_u64(tier, "dropped_unwritten"))
                printf("%s requests timed out, %s writes were refused, %s objects left host memory "
                       "before their turn\n",
                       text_count(json_u64(tier, "timeouts")),
                       text_count(json_u64(tier, "refused_writes")),
                       text_count(json_u64(tier, "dropped_unwritten")));
        if (json_u64(tier, "stale_entries") || json_u64(tier, "journal_damaged"))
                printf("%s reads found their bundle gone, %s journal segments were damaged\n",
                       text_count(json_u64(tier, "stale_entries")),
                       text_count(json_u64(tier, "journal_damaged")));
}

static int print_tiers(const json_t *tiers)
{
        struct table table;
        const json_t *tier;
        size_t i;
        int r;

        table_init(&table, "TIER #USED #CAPACITY #FULL #OBJECTS #HITS #EVICTED #CORRUPT #STALE "
                           "#IO-ERRORS STATE");
        json_array_foreach(tiers, i, tier) add_tier(&table, tier);
        putchar('\n');
        r = table_print(&table, stdout);
        table_deinit(&table);
        json_array_foreach(tiers, i, tier)
        {
                print_codec(tier);
                print_pool(tier);
                if (json_bool(tier, "degraded"))
                        printf("\n%s is degraded: %s\n", json_text(tier, "name"),
                               json_text(tier, "degraded_reason"));
                if (json_u64(tier, "ready_bytes") &&
                    json_u64(tier, "ready_bytes") < json_u64(tier, "capacity_bytes"))
                        printf("\n%s: %s of %s are up\n", json_text(tier, "name"),
                               text_bytes(json_u64(tier, "ready_bytes")),
                               text_bytes(json_u64(tier, "capacity_bytes")));
        }
        return r ? STATUS_NEGATIVE : STATUS_OK;
}

int status_command(struct context *context, int argc, char **argv)
{
        json_auto_t *status = NULL;
        int r;

        command_parse(context, NULL, "Tiers with their bytes and objects, and what was counted.",
                      argc, argv, NULL, 0);
        r = command_ask(context, json_pack("{s:s}", "command", "status"), &status);
        if (r)
                return r;
        if (context->json) {
                command_print_json(status, false);
                return STATUS_OK;
        }
        print_head(status);
        print_pins(status);
        print_refused(status);
        r = print_tiers(json_object_get(status, "tiers"));
        return r ? r : print_peers(json_object_get(status, "peers"));
}
