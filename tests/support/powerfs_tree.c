// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/support/powerfs_tree.h"

#define STORE ".powerfs"

struct name_edit {
        struct node *directory;
        char *name;
        struct node *after;
};

/*
 * @subject is what was created, removed or moved. @is_barrier marks the move of a
 * directory: it depends on all before it and all after it depend on it, which keeps the
 * durable tree a tree.
 */
struct name_change {
        TAILQ_ENTRY(name_change) link;
        struct node *subject;
        struct name_edit edits[2];
        unsigned n_edits;
        bool is_barrier;
        bool is_chosen;
};

static struct node *node_new(struct tree *tree, int fd, const struct stat *status)
{
        struct node *node = calloc(1, sizeof(*node));

        if (!node)
                return NULL;
        node->id = ++tree->last_id;
        node->status = *status;
        node->allocated_end = status->st_size;
        SLIST_INIT(&node->live);
        SLIST_INIT(&node->durable);
        file_init(&node->file, fd, status->st_size);
        LIST_INSERT_HEAD(&tree->nodes, node, link);
        return node;
}

static void entries_free(struct entries *entries)
{
        struct entry *entry;

        while ((entry = SLIST_FIRST(entries))) {
                SLIST_REMOVE_HEAD(entries, link);
                free(entry->name);
                free(entry);
        }
}

static void store_name(const struct node *node, char name[static 32])
{
        snprintf(name, 32, "%llu", (unsigned long long)node->id);
}

static void node_destroy(struct tree *tree, struct node *node)
{
        char name[32];

        if (node->is_stored) {
                store_name(node, name);
                unlinkat(tree->store_fd, name, 0);
        }
        LIST_REMOVE(node, link);
        entries_free(&node->live);
        entries_free(&node->durable);
        file_deinit(&node->file);
        free(node->last_name);
        free(node);
}

void node_ref(struct node *node)
{
        node->n_refs++;
}

void node_unref(struct tree *tree, struct node *node, unsigned long n)
{
        node->n_refs -= n;
        if (!node->n_refs)
                node_destroy(tree, node);
}

bool node_is_directory(const struct node *node)
{
        return S_ISDIR(node->status.st_mode);
}

int node_stat(struct node *node, struct stat *ret_status)
{
        if (node_is_directory(node))
                *ret_status = node->status;
        else if (fstat(node->file.fd, ret_status))
                return -errno;
        ret_status->st_ino = node->id;
        ret_status->st_nlink = node_is_directory(node) ? 2 : node->n_names;
        return 0;
}

static struct entry *entries_find(const struct entries *entries, const char *name)
{
        struct entry *entry;

        SLIST_FOREACH(entry, entries, link)
        if (!strcmp(entry->name, name))
                return entry;
        return NULL;
}

struct node *tree_find(const struct node *directory, const char *name)
{
        struct entry *entry = entries_find(&directory->live, name);

        return entry ? entry->node : NULL;
}

/* Makes @name mean @node, or nothing when that is NULL. */
static int entries_set(struct tree *tree, struct entries *entries, const char *name,
                       struct node *node)
{
        struct entry *entry = entries_find(entries, name);
        struct node *old = entry ? entry->node : NULL;

        if (node && !entry) {
                entry = calloc(1, sizeof(*entry));
                if (!entry)
                        return -ENOMEM;
                entry->name = strdup(name);
                if (!entry->name) {
                        free(entry);
                        return -ENOMEM;
                }
                SLIST_INSERT_HEAD(entries, entry, link);
        }
        if (node) {
                node_ref(node);
                entry->node = node;
        } else if (entry) {
                SLIST_REMOVE(entries, entry, entry, link);
                free(entry->name);
                free(entry);
        }
        if (old)
                node_unref(tree, old, 1);
        return 0;
}

static void change_free(struct tree *tree, struct name_change *change)
{
        for (unsigned i = 0; i < change->n_edits; i++) {
                struct name_edit *edit = &change->edits[i];

                node_unref(tree, edit->directory, 1);
                if (edit->after)
                        node_unref(tree, edit->after, 1);
                free(edit->name);
        }
        node_unref(tree, change->subject, 1);
        free(change);
}

static struct name_change *change_new(struct node *subject)
{
        struct name_change *change = calloc(1, sizeof(*change));

        if (!change)
                return NULL;
        node_ref(subject);
        change->subject = subject;
        return change;
}

static int change_add(struct name_change *change, struct node *directory, const char *name,
                      struct node *after)
{
        struct name_edit *edit = &change->edits[change->n_edits];

        edit->name = strdup(name);
        if (!edit->name)
                return -ENOMEM;
        edit->directory = directory;
        edit->after = after;
        node_ref(directory);
        if (after)
                node_ref(after);
        change->n_edits++;
        return 0;
}

static int live_set(struct tree *tree, struct node *directory, const char *name, struct node *node)
{
        struct node *old = tree_find(directory, name);
        int r;

        if (node) {
                char *copy = strdup(name);

                if (!copy)
                        return -ENOMEM;
                free(node->last_name);
                node->last_name = copy;
        }
        if (old)
                old->n_names--;
        r = entries_set(tree, &directory->live, name, node);
        if (!r && node)
                node->n_names++;
        clock_gettime(CLOCK_REALTIME, &directory->status.st_mtim);
        directory->status.st_ctim = directory->status.st_mtim;
        return r;
}

/* Applies @change, which it consumes, to the live tree and logs it. */
static int change_commit(struct tree *tree, struct name_change *change)
{
        for (unsigned i = 0; i < change->n_edits; i++) {
                struct name_edit *edit = &change->edits[i];
                int r = live_set(tree, edit->directory, edit->name, edit->after);

                if (r) {
                        change_free(tree, change);
                        return r;
                }
        }
        TAILQ_INSERT_TAIL(&tree->changes, change, link);
        tree->n_changes++;
        return 0;
}

static int commit_one(struct tree *tree, struct node *subject, struct node *directory,
                      const char *name, struct node *after)
{
        struct name_change *change = change_new(subject);
        int r;

        if (!change)
                return -ENOMEM;
        r = change_add(change, directory, name, after);
        if (r) {
                change_free(tree, change);
                return r;
        }
        return change_commit(tree, change);
}

static int store_file(struct tree *tree, struct node *node, uid_t uid, gid_t gid)
{
        char name[32];
        int fd;

        store_name(node, name);
        fd = openat(tree->store_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        node->is_stored = true;
        node->file.fd = fd;
        if (fchown(fd, uid, gid) || fchmod(fd, node->status.st_mode & 07777))
                return -errno;
        return 0;
}

int tree_create(struct tree *tree, struct node *directory, const char *name, mode_t mode, uid_t uid,
                gid_t gid, struct node **ret_node)
{
        struct stat status = {.st_mode = mode, .st_uid = uid, .st_gid = gid, .st_blksize = 4096};
        struct node *node;
        int r = 0;

        clock_gettime(CLOCK_REALTIME, &status.st_mtim);
        status.st_ctim = status.st_atim = status.st_mtim;
        node = node_new(tree, -1, &status);
        if (!node)
                return -ENOMEM;
        node_ref(node);
        if (!S_ISDIR(mode))
                r = store_file(tree, node, uid, gid);
        if (!r)
                r = commit_one(tree, node, directory, name, node);
        if (!r)
                *ret_node = node;
        node_unref(tree, node, 1);
        return r;
}

int tree_link(struct tree *tree, struct node *node, struct node *directory, const char *name)
{
        return commit_one(tree, node, directory, name, node);
}

int tree_remove(struct tree *tree, struct node *directory, const char *name)
{
        return commit_one(tree, tree_find(directory, name), directory, name, NULL);
}

int tree_rename(struct tree *tree, struct node *from, const char *old, struct node *to,
                const char *new, bool replace)
{
        struct node *node = tree_find(from, old), *target = tree_find(to, new);
        struct name_change *change;
        int r;

        if (target && !replace)
                return -EEXIST;
        if (target && node_is_directory(target) && !SLIST_EMPTY(&target->live))
                return -ENOTEMPTY;
        if (target == node)
                return 0;
        change = change_new(node);
        if (!change)
                return -ENOMEM;
        change->is_barrier = node_is_directory(node);
        r = change_add(change, to, new, node);
        if (!r)
                r = change_add(change, from, old, NULL);
        if (r) {
                change_free(tree, change);
                return r;
        }
        return change_commit(tree, change);
}

/* Whether @change makes sense only after @earlier. */
static bool depends(const struct name_change *change, const struct name_change *earlier)
{
        if (change->is_barrier || earlier->is_barrier || change->subject == earlier->subject)
                return true;
        for (unsigned i = 0; i < change->n_edits; i++) {
                const struct name_edit *edit = &change->edits[i];

                if (edit->directory == earlier->subject)
                        return true;
                for (unsigned j = 0; j < earlier->n_edits; j++) {
                        const struct name_edit *old = &earlier->edits[j];

                        if (old->directory == change->subject ||
                            (old->directory == edit->directory && !strcmp(old->name, edit->name)))
                                return true;
                }
        }
        return false;
}

/* Moves the chosen changes to the durable tree. */
static int apply_chosen(struct tree *tree)
{
        struct name_change *change = TAILQ_FIRST(&tree->changes);

        while (change) {
                struct name_change *next = TAILQ_NEXT(change, link);

                if (change->is_chosen) {
                        for (unsigned i = 0; i < change->n_edits; i++) {
                                struct name_edit *edit = &change->edits[i];
                                int r = entries_set(tree, &edit->directory->durable, edit->name,
                                                    edit->after);

                                if (r)
                                        return r;
                        }
                        TAILQ_REMOVE(&tree->changes, change, link);
                        tree->n_changes--;
                        change_free(tree, change);
                }
                change = next;
        }
        return 0;
}

static bool covered_by_sync(const struct name_change *change, const struct node *node,
                            bool data_only)
{
        if (change->subject == node)
                return !data_only || (change->n_edits == 1 && change->edits[0].after);
        if (!node_is_directory(node))
                return false;
        return change->edits[0].directory == node ||
               (change->n_edits == 2 && change->edits[1].directory == node);
}

int tree_sync_names(struct tree *tree, struct node *node, bool data_only)
{
        struct name_change *change;

        TAILQ_FOREACH_REVERSE(change, &tree->changes, name_changes, link)
        {
                struct name_change *later = TAILQ_NEXT(change, link);

                change->is_chosen = covered_by_sync(change, node, data_only);
                for (; later && !change->is_chosen; later = TAILQ_NEXT(later, link))
                        change->is_chosen = later->is_chosen && depends(later, change);
        }
        return apply_chosen(tree);
}

int tree_sync_all(struct tree *tree)
{
        struct name_change *change;
        struct node *node;

        TAILQ_FOREACH(change, &tree->changes, link)
                change->is_chosen = true;
        LIST_FOREACH(node, &tree->nodes, link)
                if (!node_is_directory(node))
                        file_sync(&node->file);
        return apply_chosen(tree);
}

static void choose_survivors(struct tree *tree, struct loss *loss)
{
        struct name_change *change, *earlier;

        TAILQ_FOREACH(change, &tree->changes, link) {
                change->is_chosen = loss_keeps(loss);
                for (earlier = TAILQ_FIRST(&tree->changes); earlier != change && change->is_chosen;
                     earlier = TAILQ_NEXT(earlier, link))
                        change->is_chosen = earlier->is_chosen || !depends(change, earlier);
                loss->n_kept += change->is_chosen;
                loss->n_lost += !change->is_chosen;
        }
}

int tree_lose_power(struct tree *tree, struct loss *loss)
{
        struct node *node;
        int r;

        choose_survivors(tree, loss);
        r = apply_chosen(tree);
        if (r)
                return r;
        LIST_FOREACH(node, &tree->nodes, link) {
                if (node_is_directory(node))
                        continue;
                r = file_lose_power(&node->file, loss);
                if (r)
                        return r;
        }
        return 0;
}

static int read_directory(struct tree *tree, struct node *directory, int fd);

static int read_entry(struct tree *tree, struct node *directory, int fd, const char *name)
{
        _cleanup_fd_ int child_fd = -1;
        struct stat status;
        struct node *node;
        bool is_directory;
        int r;

        if (fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW))
                return -errno;
        is_directory = S_ISDIR(status.st_mode);
        if (!is_directory && !S_ISREG(status.st_mode))
                return -EOPNOTSUPP;
        child_fd = openat(fd, name, (is_directory ? O_RDONLY : O_RDWR) | O_CLOEXEC);
        if (child_fd < 0)
                return -errno;
        node = node_new(tree, is_directory ? -1 : child_fd, &status);
        if (!node)
                return -ENOMEM;
        node_ref(node);
        r = live_set(tree, directory, name, node);
        if (!r)
                r = entries_set(tree, &directory->durable, name, node);
        if (is_directory && !r)
                r = read_directory(tree, node, child_fd);
        else if (!is_directory)
                steal_fd(&child_fd);
        node_unref(tree, node, 1);
        return r;
}

static int read_directory(struct tree *tree, struct node *directory, int fd)
{
        struct dirent *dirent;
        DIR *stream;
        int r = 0;

        fd = dup(fd);
        stream = fd < 0 ? NULL : fdopendir(fd);
        if (!stream)
                return -errno;
        while (!r && (dirent = readdir(stream))) {
                if (strcmp(dirent->d_name, ".") && strcmp(dirent->d_name, "..") &&
                    strcmp(dirent->d_name, STORE))
                        r = read_entry(tree, directory, dirfd(stream), dirent->d_name);
        }
        closedir(stream);
        return r;
}

int tree_open(struct tree *tree, const char *backing)
{
        struct stat status;

        *tree = (struct tree){.backing_fd = -1, .store_fd = -1};
        LIST_INIT(&tree->nodes);
        TAILQ_INIT(&tree->changes);
        tree->backing_fd = open(backing, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (tree->backing_fd < 0 || fstat(tree->backing_fd, &status))
                return -errno;
        if (mkdirat(tree->backing_fd, STORE, 0700))
                return -errno;
        tree->store_fd = openat(tree->backing_fd, STORE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (tree->store_fd < 0)
                return -errno;
        tree->root = node_new(tree, -1, &status);
        if (!tree->root)
                return -ENOMEM;
        node_ref(tree->root);
        return read_directory(tree, tree->root, tree->backing_fd);
}

/* A file keeps a name somewhere in the backing directory as long as it has a node. */
static int write_file(struct node *node, int fd, const char *name)
{
        char path[64];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", node->file.fd);
        return linkat(AT_FDCWD, path, fd, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

static int write_directory(const struct node *directory, int fd, const char *name)
{
        _cleanup_fd_ int own_fd = -1;
        struct entry *entry;
        int r = 0;

        if (mkdirat(fd, name, 0700))
                return -errno;
        own_fd = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (own_fd < 0)
                return -errno;
        SLIST_FOREACH(entry, &directory->durable, link)
        {
                if (node_is_directory(entry->node))
                        r = write_directory(entry->node, own_fd, entry->name);
                else
                        r = write_file(entry->node, own_fd, entry->name);
                if (r)
                        return r;
        }
        if (fchown(own_fd, directory->status.st_uid, directory->status.st_gid) ||
            fchmod(own_fd, directory->status.st_mode & 07777))
                return -errno;
        return 0;
}

/* Empties the directory @fd but for the entry @keep. */
static int remove_all(int fd, const char *keep)
{
        struct dirent *dirent;
        DIR *stream;
        int r = 0;

        fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        stream = fd < 0 ? NULL : fdopendir(fd);
        if (!stream)
                return -errno;
        while (!r && (dirent = readdir(stream))) {
                const char *name = dirent->d_name;
                _cleanup_fd_ int child = -1;

                if (!strcmp(name, ".") || !strcmp(name, "..") || (keep && !strcmp(name, keep)))
                        continue;
                if (!unlinkat(fd, name, 0))
                        continue;
                child = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                r = child < 0 ? -errno : remove_all(child, NULL);
                if (!r && unlinkat(fd, name, AT_REMOVEDIR))
                        r = -errno;
        }
        closedir(stream);
        return r;
}

int tree_write(struct tree *tree)
{
        static const char next[] = STORE "/next";
        struct entry *entry;
        char path[sizeof(next) + 256];
        int r = write_directory(tree->root, tree->backing_fd, next);

        if (!r)
                r = remove_all(tree->backing_fd, STORE);
        if (r)
                return r;
        SLIST_FOREACH(entry, &tree->root->durable, link)
        {
                snprintf(path, sizeof(path), "%s/%s", next, entry->name);
                if (renameat(tree->backing_fd, path, tree->backing_fd, entry->name))
                        return -errno;
        }
        r = remove_all(tree->store_fd, NULL);
        if (!r && unlinkat(tree->backing_fd, STORE, AT_REMOVEDIR))
                r = -errno;
        return r;
}

void tree_close(struct tree *tree)
{
        struct name_change *change;
        struct node *node;

        while ((change = TAILQ_FIRST(&tree->changes))) {
                TAILQ_REMOVE(&tree->changes, change, link);
                for (unsigned i = 0; i < change->n_edits; i++)
                        free(change->edits[i].name);
                free(change);
        }
        while ((node = LIST_FIRST(&tree->nodes)))
                node_destroy(tree, node);
        close_fdp(&tree->store_fd);
        close_fdp(&tree->backing_fd);
}
