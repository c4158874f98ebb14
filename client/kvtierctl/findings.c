// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/findings.h"
#include "client/kvtierctl/table.h"

/* An object that is evicted sooner than this after it came was hardly worth storing. */
#define STAY_SECONDS 120.0
/* Below this a daemon has not seen enough to be judged. */
#define UPTIME_SECONDS 60.0

struct findings {
        json_t *list;
        const json_t *status;
        const struct findings_process *process;
};

void findings_add(json_t *list, const char *check, const char *remedy, const char *format, ...)
{
        char text[1024];
        va_list arguments;
        json_t *cut;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        cut = json_string(text);
        /* A name that was cut within a character: better a name in ASCII than no finding. */
        for (char *c = text; !cut && *c; c++)
                if (*c & 0x80)
                        *c = '?';
        json_decref(cut);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "check", check, "finding", text,
                                              "remedy", remedy));
}

static const json_t *tier_of(const struct findings *findings, const char *name)
{
        const json_t *tier;
        size_t i;

        json_array_foreach(json_object_get(findings->status, "tiers"), i,
                           tier) if (!strcmp(json_text(tier, "name"), name)) return tier;
        return NULL;
}

static void check_huge_pages(struct findings *findings)
{
        const json_t *host = tier_of(findings, "host");

        if (!host || json_u64(host, "page_bytes") >= 2u << 20)
                return;
        findings_add(
                findings->list, "huge_pages",
                "reserve them (sysctl vm.nr_hugepages=N, at boot for 1 GiB ones), then set "
                "host.huge_pages to 2MiB and restart",
                "the host tier (%s) has no huge pages: start-up and registration with a GPU take "
                "about four times longer",
                text_bytes(json_u64(host, "capacity_bytes")));
}

static void check_memlock(struct findings *findings)
{
        uint64_t limit = findings->process->memlock_bytes;
        uint64_t capacity = json_u64(tier_of(findings, "host"), "capacity_bytes");

        if (!tier_of(findings, "nvme") || limit >= capacity || findings->process->is_root)
                return;
        findings_add(
                findings->list, "memlock",
                "set LimitMEMLOCK=infinity in the unit (the shipped one has it), or raise "
                "\"ulimit -l\" where kvtierd is started by hand",
                "kvtierd may lock %s of memory, less than the host tier's %s: the device cannot "
                "have all buffers registered",
                text_bytes(limit), text_bytes(capacity));
}

static void check_unaligned(struct findings *findings)
{
        uint64_t tokens = json_u64(findings->status, "unaligned_tokens");

        if (!tokens)
                return;
        findings_add(
                findings->list, "unaligned_tokens",
                "attach with smaller chunk_tokens (a multiple of the engine's page), or with 0 and "
                "a smaller chunk_tokens in kvtierd.conf",
                "%s tokens were not stored because they filled no chunk", text_count(tokens));
}

static const char *thrash_remedy(const char *tier)
{
        if (!strcmp(tier, "host"))
                return "raise host.bytes, add NVMe (nvme.paths), or let engines store less";
        if (!strcmp(tier, "nvme"))
                return "raise nvme.bytes, or set nvme.write to cold";
        return "raise pool.bytes, or set pool.write to cold and pool.admit to seen-twice";
}

static void check_thrash(struct findings *findings)
{
        double uptime = json_double(findings->status, "uptime_seconds");
        const json_t *tier;
        size_t i;

        json_array_foreach(json_object_get(findings->status, "tiers"), i, tier)
        {
                double evicted = json_double(tier, "evicted");
                double objects = json_double(tier, "objects");
                double stay = evicted > 0 ? objects * uptime / evicted : 0;

                /* By Little's law objects stay, on average, as long as one filling takes. */
                if (uptime < UPTIME_SECONDS || evicted < 2 * objects || !objects ||
                    stay > STAY_SECONDS)
                        continue;
                findings_add(findings->list, "thrash", thrash_remedy(json_text(tier, "name")),
                             "tier %s thrashes: %s objects evicted, each about %s after it came",
                             json_text(tier, "name"), text_count((uint64_t)evicted),
                             text_seconds(stay));
        }
}

/* The causes that the NVMe tier names in its reason, and what helps. */
static const struct {
        const char *cause;
        const char *remedy;
} degraded_nvme[] = {
        {"io_uring is not available", "give the container kvtier's seccomp profile "
                                      "(/usr/share/kvtier/seccomp.json), or set "
                                      "kernel.io_uring_disabled=0, and restart"},
        {"no O_DIRECT", "put nvme.paths on ext4, XFS or a block device"},
        {"memory is not registered", "raise the memlock limit of kvtierd (LimitMEMLOCK=infinity, "
                                     "\"ulimit -l\") and restart"},
        {"a path of the pool is not used", "the log names it: bring it back into nvme.paths, or "
                                           "start anew with kvtierd --format"},
        {"the catalog failed", "look for what failed in the log, for room on the file system of "
                               "nvme.catalog, and restart"},
        {"space is not preallocated", "put nvme.paths on a file system with fallocate, such as "
                                      "ext4 or XFS"},
};

static void add_degraded_nvme(struct findings *findings, const char *reason)
{
        bool known = false;

        for (size_t i = 0; i < sizeof(degraded_nvme) / sizeof(degraded_nvme[0]); i++) {
                if (!strstr(reason, degraded_nvme[i].cause))
                        continue;
                findings_add(findings->list, "degraded", degraded_nvme[i].remedy,
                             "tier nvme is degraded: %s", degraded_nvme[i].cause);
                known = true;
        }
        if (!known)
                findings_add(findings->list, "degraded", "see the reason, and the log of kvtierd",
                             "tier nvme is degraded: %s", reason);
}

static void check_degraded(struct findings *findings)
{
        const json_t *tier;
        size_t i;

        json_array_foreach(json_object_get(findings->status, "tiers"), i, tier)
        {
                const char *reason = json_text(tier, "degraded_reason");

                if (!json_bool(tier, "degraded"))
                        continue;
                if (!strcmp(json_text(tier, "name"), "nvme"))
                        add_degraded_nvme(findings, reason);
                else if (!strcmp(json_text(tier, "name"), "remote"))
                        findings_add(findings->list, "degraded",
                                     "look at the pool (ceph status, or the S3 endpoint) and at "
                                     "pool_notice "
                                     "in the daemon's log; what is here is served meanwhile",
                                     "tier remote is degraded: %s", reason);
                else
                        findings_add(
                                findings->list, "stalled_arenas",
                                "free memory (old engines may still hold the arenas of an earlier "
                                "kvtierd: kvtierctl sessions), or lower host.bytes",
                                "tier host is degraded: %s", reason);
        }
}

static void check_bad_bytes(struct findings *findings)
{
        const json_t *tier;
        size_t i;

        json_array_foreach(json_object_get(findings->status, "tiers"), i, tier)
        {
                uint64_t corrupt = json_u64(tier, "corrupt"), failed = json_u64(tier, "io_errors");

                if (!corrupt && !failed)
                        continue;
                if (!strcmp(json_text(tier, "name"), "remote")) {
                        if (corrupt)
                                findings_add(findings->list, "bad_bytes",
                                             "look for the node that wrote them (kvtierctl show), "
                                             "and at "
                                             "the pool",
                                             "tier remote: %s corrupt objects",
                                             text_count(corrupt));
                        continue;
                }
                findings_add(
                        findings->list, "bad_bytes",
                        "look for the device in the kernel's log (dmesg) and in smartctl -a, run "
                        "kvtierctl verify, replace it",
                        "tier %s: %s corrupt objects, %s I/O errors", json_text(tier, "name"),
                        text_count(corrupt), text_count(failed));
        }
}

static void check_quarantine(struct findings *findings)
{
        const json_t *host = tier_of(findings, "host");
        uint64_t bytes = json_u64(host, "quarantined_bytes");

        if (bytes < json_u64(host, "capacity_bytes") / 10 || !bytes)
                return;
        findings_add(
                findings->list, "quarantine",
                "kvtierctl sessions names the processes: end them, their memory is free at once",
                "%s of host memory wait for processes that have hung up but live on",
                text_bytes(bytes));
}

static void check_pending(struct findings *findings)
{
        uint64_t pending = json_u64(findings->status, "pending");

        if (!pending)
                return;
        findings_add(
                findings->list, "pending",
                "kvtierctl sessions shows which, the daemon's log (layout_pending) which rows are "
                "missing: look for the rank that does not come up",
                "%s sessions wait for other processes of their engine to tell what their shards "
                "hold: until then everything misses",
                text_count(pending));
}

static void check_pins(struct findings *findings)
{
        uint64_t refused = json_u64(findings->status, "pins_refused");

        if (!refused)
                return;
        findings_add(findings->list, "pins",
                     "raise host.pinned_share_percent and nvme.pinned_share_percent, or pin less: "
                     "kvtierctl status shows what is pinned",
                     "%s pins were refused: no more of a tier may be pinned", text_count(refused));
}

static void check_index(struct findings *findings)
{
        /* What others have in the pool makes room by itself. */
        uint64_t objects = json_u64(findings->status, "objects") -
                           json_u64(tier_of(findings, "remote"), "others_objects");
        uint64_t most = json_u64(findings->status, "objects_max");

        if (!most || objects < most / 10 * 9)
                return;
        findings_add(findings->list, "index",
                     "raise index.objects_max (200 bytes of memory each) and restart",
                     "%s of at most %s objects are known: the index evicts, not the tiers",
                     text_count(objects), text_count(most));
}

static void check_unwritten(struct findings *findings)
{
        const json_t *host = tier_of(findings, "host"), *nvme = tier_of(findings, "nvme");
        uint64_t dropped = json_u64(host, "dropped_unwritten");

        if (!nvme || !strcmp(json_text(nvme, "write"), "off") ||
            dropped < json_u64(host, "evicted") / 10 || !dropped)
                return;
        findings_add(
                findings->list, "unwritten",
                "add a path to nvme.paths, raise nvme.queue_depth or host.bytes",
                "%s objects left host memory before they were written down: NVMe is too slow for "
                "what is stored",
                text_count(dropped));
}

/* What the daemon said names the cause; a chunk that does not fit is the usual one. */
static void check_refusals(struct findings *findings)
{
        const json_t *refusals = json_object_get(findings->status, "layout_refusals");
        uint64_t number = json_u64(refusals, "number");
        const char *why = json_text(refusals, "why");

        if (!number)
                return;
        findings_add(
                findings->list, "layout_refused",
                strstr(why, "chunk_tokens")
                        ? "set the engine's chunk_tokens as it says (kvtierctl plan derives N from "
                          "the "
                          "model's config.json), or 0 for the daemon's choice"
                        : "set the engine up as it says; until then it runs without a cache",
                "%s times an engine was turned away for its layout, last %s ago (%.64s): %.500s",
                text_count(number), text_seconds(json_double(refusals, "age_seconds")),
                json_text(refusals, "program"), why);
}

static const struct {
        const char *name;
        void (*check)(struct findings *findings);
} checks[] = {
        {"huge pages", check_huge_pages},
        {"locked memory", check_memlock},
        {"unaligned tokens", check_unaligned},
        {"thrash", check_thrash},
        {"degraded tiers", check_degraded},
        {"corrupt bytes and I/O errors", check_bad_bytes},
        {"quarantined memory", check_quarantine},
        {"size of the index", check_index},
        {"unwritten objects", check_unwritten},
        {"layouts that are not whole", check_pending},
        {"refused pins", check_pins},
        {"refused layouts", check_refusals},
};

const char *findings_check_name(size_t i)
{
        return i < sizeof(checks) / sizeof(checks[0]) ? checks[i].name : NULL;
}

json_t *findings_list(const json_t *status, const struct findings_process *process)
{
        struct findings findings = {.list = json_array(), .status = status, .process = process};

        for (size_t i = 0; findings.list && i < sizeof(checks) / sizeof(checks[0]); i++)
                checks[i].check(&findings);
        return findings.list;
}
