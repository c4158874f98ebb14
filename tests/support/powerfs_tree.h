// SPDX-License-Identifier: Apache-2.0
/*
 * The names under powerfs: a live tree, a durable tree, and the log of name changes that
 * lie between them. A sync of a file or a directory moves the changes it covers, and what
 * they depend on, to the durable tree. A power loss keeps a random subset that is closed
 * under dependence; each change is atomic, so a rename leaves the old or the new name.
 *
 * Directories live in memory only. Files lie in a store inside the backing directory;
 * tree_close() replaces what stands there by the durable tree.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "tests/support/powerfs_file.h"

struct name_change;
struct node;

struct entry {
        SLIST_ENTRY(entry) link;
        struct node *node;
        char *name;
};

SLIST_HEAD(entries, entry);

/*
 * A file or a directory. Held by the entries of both trees, by logged changes, by open
 * handles and by the kernel's lookups; the last one to let go destroys it.
 */
struct node {
        LIST_ENTRY(node) link;
        uint64_t id;
        unsigned long n_refs;
        unsigned n_names;
        char *last_name;
        /* Of a directory; a file's is its fd's. */
        struct stat status;
        struct entries live;
        struct entries durable;
        struct file file;
        off_t allocated_end;
        bool is_stored;
};

struct tree {
        int backing_fd;
        int store_fd;
        uint64_t last_id;
        struct node *root;
        LIST_HEAD(, node) nodes;
        TAILQ_HEAD(name_changes, name_change) changes;
        unsigned n_changes;
};

/* Reads the names below @backing. Returns 0 or a negative errno. */
int tree_open(struct tree *tree, const char *backing);

/* Writes the durable tree to the backing directory. Returns 0 or a negative errno. */
int tree_write(struct tree *tree);
void tree_close(struct tree *tree);

void node_ref(struct node *node);
void node_unref(struct tree *tree, struct node *node, unsigned long n);
bool node_is_directory(const struct node *node);
int node_stat(struct node *node, struct stat *ret_status);

/* NULL when there is no such name. */
struct node *tree_find(const struct node *directory, const char *name);

/* All return 0 or a negative errno and are un-synced afterwards. */
int tree_create(struct tree *tree, struct node *directory, const char *name, mode_t mode, uid_t uid,
                gid_t gid, struct node **ret_node);
int tree_link(struct tree *tree, struct node *node, struct node *directory, const char *name);
int tree_remove(struct tree *tree, struct node *directory, const char *name);
int tree_rename(struct tree *tree, struct node *from, const char *old, struct node *to,
                const char *new, bool replace);

/* The names that a sync of @node covers; of its data only, when @data_only. */
int tree_sync_names(struct tree *tree, struct node *node, bool data_only);
int tree_sync_all(struct tree *tree);

/* Names first, then the data of every file. */
int tree_lose_power(struct tree *tree, struct loss *loss);
