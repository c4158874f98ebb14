// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/memory.h"

#define SMALL_PAGE_BYTES 4096u
#define PATH_BYTES       512u

static void close_filep(FILE **file)
{
        if (*file)
                fclose(*file);
}

#define _cleanup_file_ _cleanup_(close_filep)

/* Files of one cgroup controller. */
struct controller {
        const char *name; /* in /proc/self/cgroup; "" for version 2 */
        const char *limit, *usage;
        const char *reclaimable; /* key in memory.stat, NULL: usage counts in full */
};

/* Cut where it is too long: a path that is cut does not exist, and bounds nothing. */
__attribute__((format(printf, 3, 4))) static void set_text(char *text, size_t size,
                                                           const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, size, format, arguments);
        va_end(arguments);
}

static void tighten(struct memory_bound *bound, uint64_t bytes, const char *source)
{
        if (bytes >= bound->bytes)
                return;
        bound->bytes = bytes;
        set_text(bound->source, sizeof(bound->source), "%s", source);
}

static FILE *open_under(const char *root, const char *path)
{
        char full[3 * PATH_BYTES];

        set_text(full, sizeof(full), "%s%s", root, path);
        return fopen(full, "re");
}

/* "max", which version 2 writes for no limit, is not a number and bounds nothing. */
static bool read_number(const char *root, const char *folder, const char *name,
                        uint64_t *ret_number)
{
        char path[2 * PATH_BYTES];
        _cleanup_file_ FILE *file = NULL;

        set_text(path, sizeof(path), "%s/%s", folder, name);
        file = open_under(root, path);
        return file && fscanf(file, "%" SCNu64, ret_number) == 1;
}

/* The number after @key in a file of "key number" lines. */
static bool read_keyed(const char *root, const char *path, const char *key, uint64_t *ret_number)
{
        _cleanup_file_ FILE *file = open_under(root, path);
        char line[256], word[128];
        uint64_t number;

        while (file && fgets(line, sizeof(line), file)) {
                if (sscanf(line, "%127s %" SCNu64, word, &number) == 2 && strcmp(word, key) == 0) {
                        *ret_number = number;
                        return true;
                }
        }
        return false;
}

static bool has_word(const char *list, const char *word)
{
        size_t length = strlen(word);

        for (const char *at = list; (at = strstr(at, word)); at += length)
                if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
                        return true;
        return false;
}

/* This process's path in the hierarchy of @controller, from /proc/self/cgroup. */
static bool find_cgroup(const char *root, const char *controller, char *ret_path)
{
        _cleanup_file_ FILE *file = open_under(root, "/proc/self/cgroup");
        _cleanup_free_ char *line = NULL;
        size_t size = 0;

        while (file && getline(&line, &size, file) > 0) {
                char *names = strchr(line, ':');
                char *path = names ? strchr(names + 1, ':') : NULL;

                if (!path || strlen(path) >= PATH_BYTES)
                        continue;
                *path++ = '\0';
                names++;
                path[strcspn(path, "\n")] = '\0';
                if (controller[0] ? has_word(names, controller) : names[0] == '\0') {
                        strcpy(ret_path, path);
                        return true;
                }
        }
        return false;
}

/* Where that hierarchy is mounted, and which of its folders is seen there. */
static bool find_mount(const char *root, const char *controller, char *ret_mount, char *ret_top)
{
        _cleanup_file_ FILE *file = open_under(root, "/proc/self/mountinfo");
        _cleanup_free_ char *line = NULL;
        char type[32], options[256];
        size_t size = 0;

        while (file && getline(&line, &size, file) > 0) {
                char *rest = strstr(line, " - ");

                if (!rest || sscanf(rest, " - %31s %*s %255s", type, options) != 2 ||
                    sscanf(line, "%*s %*s %*s %511s %511s", ret_top, ret_mount) != 2)
                        continue;
                if (controller[0] ? strcmp(type, "cgroup") == 0 && has_word(options, controller)
                                  : strcmp(type, "cgroup2") == 0)
                        return true;
        }
        return false;
}

static void apply_cgroup(struct memory_bounds *bounds, const char *root, const char *folder,
                         const struct controller *controller)
{
        uint64_t limit, usage, reclaimable = 0;
        char path[2 * PATH_BYTES];

        if (!read_number(root, folder, controller->limit, &limit))
                return;
        set_text(path, sizeof(path), "%s/%s", folder, controller->limit);
        tighten(&bounds->limit, limit, path);
        if (!read_number(root, folder, controller->usage, &usage))
                return;
        if (controller->reclaimable) {
                char stat[2 * PATH_BYTES];

                set_text(stat, sizeof(stat), "%s/memory.stat", folder);
                read_keyed(root, stat, controller->reclaimable, &reclaimable);
        }
        usage -= reclaimable < usage ? reclaimable : usage;
        tighten(&bounds->free, usage < limit ? limit - usage : 0, path);
}

/* Every folder from this process's own up to the mount: each may have a limit. */
static void apply_controller(struct memory_bounds *bounds, const char *root,
                             const struct controller *controller)
{
        char cgroup[PATH_BYTES], mount[PATH_BYTES], top[PATH_BYTES], folder[2 * PATH_BYTES];
        const char *below = cgroup;
        size_t top_length, mount_length;

        if (!find_cgroup(root, controller->name, cgroup) ||
            !find_mount(root, controller->name, mount, top))
                return;
        top_length = strlen(top);
        if (top_length > 1 && strncmp(cgroup, top, top_length) == 0)
                below += top_length;
        mount_length = strlen(mount);
        set_text(folder, sizeof(folder), "%s%s", mount, strcmp(below, "/") ? below : "");
        for (;;) {
                apply_cgroup(bounds, root, folder, controller);
                if (strlen(folder) <= mount_length)
                        return;
                *strrchr(folder, '/') = '\0';
        }
}

static int read_ram(struct memory_bounds *bounds, const char *root)
{
        uint64_t total_kib, available_kib;

        if (!read_keyed(root, "/proc/meminfo", "MemTotal:", &total_kib) ||
            !read_keyed(root, "/proc/meminfo", "MemAvailable:", &available_kib))
                return err_raise(-EIO);
        tighten(&bounds->limit, total_kib << 10, "MemTotal of /proc/meminfo");
        tighten(&bounds->free, available_kib << 10, "MemAvailable of /proc/meminfo");
        return 0;
}

/* Pages that are reserved belong to a mapping already, though nothing has touched them. */
static void read_huge_pool(struct memory_bounds *bounds, uint64_t page_bytes, const char *root)
{
        uint64_t n_total = 0, n_free = 0, n_reserved = 0;
        char folder[PATH_BYTES];

        set_text(folder, sizeof(folder), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB",
                 page_bytes >> 10);
        read_number(root, folder, "nr_hugepages", &n_total);
        read_number(root, folder, "free_hugepages", &n_free);
        read_number(root, folder, "resv_hugepages", &n_reserved);
        tighten(&bounds->limit, n_total * page_bytes, folder);
        tighten(&bounds->free, (n_free > n_reserved ? n_free - n_reserved : 0) * page_bytes,
                folder);
}

int memory_read(struct memory_bounds *ret_bounds, uint64_t page_bytes, const char *root)
{
        static const struct controller small[] = {
                {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
                {"", "memory.max", "memory.current", "inactive_file"},
        };
        static const struct controller huge_2m[] = {
                {"hugetlb", "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes", NULL},
                {"", "hugetlb.2MB.max", "hugetlb.2MB.current", NULL},
        };
        static const struct controller huge_1g[] = {
                {"hugetlb", "hugetlb.1GB.limit_in_bytes", "hugetlb.1GB.usage_in_bytes", NULL},
                {"", "hugetlb.1GB.max", "hugetlb.1GB.current", NULL},
        };
        struct memory_bounds bounds = {.limit.bytes = UINT64_MAX, .free.bytes = UINT64_MAX};
        const struct controller *controllers = page_bytes >= 1u << 30 ? huge_1g : huge_2m;
        int r;

        if (page_bytes == SMALL_PAGE_BYTES) {
                controllers = small;
                r = read_ram(&bounds, root);
                if (r < 0)
                        return r;
        } else {
                read_huge_pool(&bounds, page_bytes, root);
        }
        apply_controller(&bounds, root, &controllers[0]);
        apply_controller(&bounds, root, &controllers[1]);
        *ret_bounds = bounds;
        return 0;
}
