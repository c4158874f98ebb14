// SPDX-License-Identifier: Apache-2.0
#define FUSE_USE_VERSION 34

#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/support/powerfs_operations.h"

#define CONTROL_NAME ".powerfs-control"
#define CONTROL_INO  2

/* When more than this waits for a sync in one file, the "kernel" writes it back. */
#define UNSYNCED_LIMIT_BYTES (UINT64_C(512) << 20)

static struct powerfs *powerfs_of(fuse_req_t req)
{
        return fuse_req_userdata(req);
}

static struct node *node_of(struct powerfs *fs, fuse_ino_t ino)
{
        return ino == FUSE_ROOT_ID ? fs->tree.root : (struct node *)(uintptr_t)ino;
}

static fuse_ino_t ino_of(struct powerfs *fs, struct node *node)
{
        return node == fs->tree.root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)node;
}

/* Replies EIO and returns true when the power is off. */
static bool refuse(fuse_req_t req)
{
        bool is_down = powerfs_of(req)->is_down;

        if (is_down)
                fuse_reply_err(req, EIO);
        return is_down;
}

/* The same before something changes, which may be the moment to lose power. */
static bool refuse_change(fuse_req_t req)
{
        struct powerfs *fs = powerfs_of(req);

        if (!fs->is_down && ++fs->n_changes == fs->cut_at)
                control_cut(fs, fs->cut_seed);
        return refuse(req);
}

static struct stat control_stat(void)
{
        return (struct stat){.st_ino = CONTROL_INO, .st_mode = S_IFREG | 0600, .st_nlink = 1};
}

/* Nothing is cached: every access must notice when the power is gone. */
static struct fuse_entry_param control_entry(void)
{
        return (struct fuse_entry_param){.ino = CONTROL_INO, .attr = control_stat()};
}

static int entry_of(struct powerfs *fs, struct node *node, struct fuse_entry_param *ret_entry)
{
        struct fuse_entry_param entry = {.ino = ino_of(fs, node)};
        int r = node_stat(node, &entry.attr);

        if (r)
                return r;
        node_ref(node);
        *ret_entry = entry;
        return 0;
}

static void on_init(void *userdata, struct fuse_conn_info *connection)
{
        struct powerfs *fs = userdata;

        connection->want &= ~(unsigned)(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_SPLICE_READ);
        if (fs->ready_fd >= 0 && write(fs->ready_fd, "1", 1) != 1)
                perror("powerfs: ready");
        close_fdp(&fs->ready_fd);
        fs->ready_fd = -1;
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
        struct powerfs *fs = powerfs_of(req);
        struct fuse_entry_param entry;
        struct node *node;
        int r;

        if (parent == FUSE_ROOT_ID && !strcmp(name, CONTROL_NAME)) {
                entry = control_entry();
                fuse_reply_entry(req, &entry);
                return;
        }
        if (refuse(req))
                return;
        node = tree_find(node_of(fs, parent), name);
        r = node ? entry_of(fs, node, &entry) : -ENOENT;
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_entry(req, &entry);
}

static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
        struct powerfs *fs = powerfs_of(req);

        if (ino != FUSE_ROOT_ID && ino != CONTROL_INO)
                node_unref(&fs->tree, node_of(fs, ino), (unsigned long)n);
        fuse_reply_none(req);
}

static void reply_attributes(fuse_req_t req, struct node *node)
{
        struct stat status;
        int r = node_stat(node, &status);

        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_attr(req, &status, 0);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
        if (ino == CONTROL_INO) {
                struct stat status = control_stat();

                fuse_reply_attr(req, &status, 0);
                return;
        }
        /* The root answers always, so that a mount without power can still be reached. */
        if (ino != FUSE_ROOT_ID && refuse(req))
                return;
        reply_attributes(req, node_of(powerfs_of(req), ino));
}

static int set_times(struct node *node, const struct stat *wanted, int to_set)
{
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

        if (to_set & FUSE_SET_ATTR_ATIME)
                times[0] = wanted->st_atim;
        if (to_set & FUSE_SET_ATTR_ATIME_NOW)
                times[0].tv_nsec = UTIME_NOW;
        if (to_set & FUSE_SET_ATTR_MTIME)
                times[1] = wanted->st_mtim;
        if (to_set & FUSE_SET_ATTR_MTIME_NOW)
                times[1].tv_nsec = UTIME_NOW;
        if (node_is_directory(node))
                return 0;
        return futimens(node->file.fd, times) ? -errno : 0;
}

/* Mode and owner are not part of the game: they take effect at once and for good. */
static int set_attributes(struct powerfs *fs, struct node *node, const struct stat *wanted,
                          int to_set)
{
        bool is_file = !node_is_directory(node);
        int r = 0;

        if (to_set & FUSE_SET_ATTR_MODE) {
                node->status.st_mode = (node->status.st_mode & S_IFMT) | (wanted->st_mode & 07777);
                if (is_file && fchmod(node->file.fd, wanted->st_mode & 07777))
                        return -errno;
        }
        if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
                if (to_set & FUSE_SET_ATTR_UID)
                        node->status.st_uid = wanted->st_uid;
                if (to_set & FUSE_SET_ATTR_GID)
                        node->status.st_gid = wanted->st_gid;
                if (is_file && fchown(node->file.fd, node->status.st_uid, node->status.st_gid))
                        return -errno;
        }
        if (to_set & FUSE_SET_ATTR_SIZE) {
                r = fault_hits(&fs->fail_write, node, wanted->st_size)
                            ? -EIO
                            : file_truncate(&node->file, wanted->st_size);
                if (r)
                        return r;
                if (wanted->st_size < node->allocated_end)
                        node->allocated_end = wanted->st_size;
        }
        return set_times(node, wanted, to_set);
}

static void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *wanted, int to_set,
                       struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);
        int r;

        if (ino == CONTROL_INO) {
                on_getattr(req, ino, info);
                return;
        }
        if (refuse_change(req))
                return;
        r = set_attributes(fs, node_of(fs, ino), wanted, to_set);
        if (r)
                fuse_reply_err(req, -r);
        else
                reply_attributes(req, node_of(fs, ino));
}

/* Makes a node; the caller replies with *@ret_entry. */
static int create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                  struct fuse_entry_param *ret_entry)
{
        struct powerfs *fs = powerfs_of(req);
        const struct fuse_ctx *context = fuse_req_ctx(req);
        struct node *node;
        int r;

        if (tree_find(node_of(fs, parent), name))
                return -EEXIST;
        r = tree_create(&fs->tree, node_of(fs, parent), name, mode, context->uid, context->gid,
                        &node);
        return r ? r : entry_of(fs, node, ret_entry);
}

static void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
        struct fuse_entry_param entry;
        int r;

        if (refuse_change(req))
                return;
        r = create(req, parent, name, S_IFDIR | (mode & 07777), &entry);
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_entry(req, &entry);
}

static void on_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *info)
{
        struct fuse_entry_param entry;
        int r;

        if (refuse_change(req))
                return;
        r = create(req, parent, name, S_IFREG | (mode & 07777), &entry);
        if (r) {
                fuse_reply_err(req, -r);
                return;
        }
        info->direct_io = 1;
        fuse_reply_create(req, &entry, info);
}

static void on_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
        struct powerfs *fs = powerfs_of(req);
        struct fuse_entry_param entry;
        int r;

        if (refuse_change(req))
                return;
        r = tree_link(&fs->tree, node_of(fs, ino), node_of(fs, parent), name);
        if (!r)
                r = entry_of(fs, node_of(fs, ino), &entry);
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_entry(req, &entry);
}

static void on_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
        struct powerfs *fs = powerfs_of(req);
        struct node *node;

        if (refuse_change(req))
                return;
        node = tree_find(node_of(fs, parent), name);
        if (!node)
                fuse_reply_err(req, ENOENT);
        else if (!SLIST_EMPTY(&node->live))
                fuse_reply_err(req, ENOTEMPTY);
        else
                fuse_reply_err(req, -tree_remove(&fs->tree, node_of(fs, parent), name));
}

static void on_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned flags)
{
        struct powerfs *fs = powerfs_of(req);

        if (refuse_change(req))
                return;
        if (flags & ~(unsigned)RENAME_NOREPLACE)
                fuse_reply_err(req, EINVAL);
        else if (!tree_find(node_of(fs, parent), name))
                fuse_reply_err(req, ENOENT);
        else
                fuse_reply_err(req, -tree_rename(&fs->tree, node_of(fs, parent), name,
                                                 node_of(fs, new_parent), new_name, !flags));
}

/* The kernel keeps a lookup of what is open, so that handles need no reference. */
static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);
        int r = 0;

        info->direct_io = 1;
        if (ino != CONTROL_INO) {
                if (refuse(req))
                        return;
                if (info->flags & O_TRUNC) {
                        if (refuse_change(req))
                                return;
                        r = file_truncate(&node_of(fs, ino)->file, 0);
                        node_of(fs, ino)->allocated_end = 0;
                }
        }
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_open(req, info);
}

static void read_control(fuse_req_t req, size_t size, off_t offset)
{
        char text[256];
        size_t length = control_describe(powerfs_of(req), text, sizeof(text));

        if ((size_t)offset >= length)
                fuse_reply_buf(req, NULL, 0);
        else
                fuse_reply_buf(req, text + offset,
                               length - (size_t)offset < size ? length - (size_t)offset : size);
}

/* As a disk with sectors of 512 bytes would refuse it. */
static bool is_misaligned(const struct fuse_file_info *info, size_t size, off_t offset)
{
        return (info->flags & O_DIRECT) && (size % 512 || offset % 512);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);
        ssize_t r;

        if (ino == CONTROL_INO) {
                read_control(req, size, offset);
                return;
        }
        if (refuse(req))
                return;
        if (is_misaligned(info, size, offset)) {
                fuse_reply_err(req, EINVAL);
                return;
        }
        if (fault_hits(&fs->fail_read, node_of(fs, ino), offset + (off_t)size)) {
                fuse_reply_err(req, EIO);
                return;
        }
        if (size > fs->buffer_size) {
                char *grown = realloc(fs->buffer, size);

                if (!grown) {
                        fuse_reply_err(req, ENOMEM);
                        return;
                }
                fs->buffer = grown;
                fs->buffer_size = size;
        }
        r = pread(node_of(fs, ino)->file.fd, fs->buffer, size, offset);
        if (r < 0)
                fuse_reply_err(req, errno);
        else
                fuse_reply_buf(req, fs->buffer, (size_t)r);
}

static void write_control(fuse_req_t req, const char *data, size_t size)
{
        char line[128];
        int r = -EINVAL;

        if (size < sizeof(line)) {
                memcpy(line, data, size);
                line[size] = 0;
                r = control_command(powerfs_of(req), line);
        }
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_write(req, size);
}

static int sync_node(struct powerfs *fs, struct node *node, bool data_only)
{
        if (fault_hits(&fs->fail_sync, node, 0))
                return -EIO;
        if (!node_is_directory(node))
                file_sync(&node->file);
        return tree_sync_names(&fs->tree, node, data_only);
}

static int write_node(struct powerfs *fs, struct node *node, const char *data, size_t size,
                      off_t offset, int flags)
{
        off_t end = offset + (off_t)size;
        int r;

        if (fault_hits(&fs->fail_write, node, end))
                return -EIO;
        r = control_take_space(fs, node, end);
        if (r)
                return r;
        r = file_write(&node->file, data, size, offset);
        if (r)
                return r;
        if (node->file.before_bytes > UNSYNCED_LIMIT_BYTES)
                file_sync(&node->file);
        return flags & O_DSYNC ? sync_node(fs, node, true) : 0;
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);
        int r = -EINVAL;

        if (ino == CONTROL_INO) {
                write_control(req, data, size);
                return;
        }
        if (refuse_change(req))
                return;
        if (!is_misaligned(info, size, offset))
                r = write_node(fs, node_of(fs, ino), data, size, offset, info->flags);
        if (r)
                fuse_reply_err(req, -r);
        else
                fuse_reply_write(req, size);
}

static void on_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                         struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);
        int r = -EOPNOTSUPP;

        if (ino == CONTROL_INO) {
                fuse_reply_err(req, EOPNOTSUPP);
                return;
        }
        if (refuse_change(req))
                return;
        if (!fs->no_fallocate) {
                struct node *node = node_of(fs, ino);

                r = fault_hits(&fs->fail_write, node, offset + length) ? -EIO : 0;
                if (!r)
                        r = control_take_space(fs, node, offset + length);
                if (!r)
                        r = file_allocate(&node->file, mode, offset, length);
        }
        fuse_reply_err(req, -r);
}

static void on_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
        fuse_reply_err(req, 0);
}

static void on_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *info)
{
        struct powerfs *fs = powerfs_of(req);

        if (ino == CONTROL_INO)
                fuse_reply_err(req, 0);
        else if (!refuse_change(req))
                fuse_reply_err(req, -sync_node(fs, node_of(fs, ino), data_only));
}

static void on_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
                     struct fuse_file_info *info)
{
        off_t r;

        if (refuse(req))
                return;
        r = lseek(node_of(powerfs_of(req), ino)->file.fd, offset, whence);
        if (r < 0)
                fuse_reply_err(req, errno);
        else
                fuse_reply_lseek(req, r);
}

/* A listing is taken whole, so that it survives changes made while it is read. */
struct listing {
        LIST_ENTRY(listing) link;
        char *bytes;
        size_t size;
};

static int listing_add(fuse_req_t req, struct listing *listing, const char *name,
                       const struct stat *status)
{
        size_t size = fuse_add_direntry(req, NULL, 0, name, NULL, 0);
        char *grown = realloc(listing->bytes, listing->size + size);

        if (!grown)
                return -ENOMEM;
        listing->bytes = grown;
        fuse_add_direntry(req, grown + listing->size, size, name, status,
                          (off_t)(listing->size + size));
        listing->size += size;
        return 0;
}

static void listing_free(struct listing *listing)
{
        LIST_REMOVE(listing, link);
        free(listing->bytes);
        free(listing);
}

static int listing_fill(fuse_req_t req, struct listing *listing, struct node *directory)
{
        struct entry *entry;
        int r = listing_add(req, listing, ".", &directory->status);

        if (!r)
                r = listing_add(req, listing, "..", &directory->status);
        SLIST_FOREACH(entry, &directory->live, link)
        {
                struct stat status = entry->node->status;

                status.st_ino = entry->node->id;
                if (!r)
                        r = listing_add(req, listing, entry->name, &status);
        }
        return r;
}

static void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
        struct listing *listing;

        if (refuse(req))
                return;
        listing = calloc(1, sizeof(*listing));
        if (!listing) {
                fuse_reply_err(req, ENOMEM);
                return;
        }
        LIST_INSERT_HEAD(&powerfs_of(req)->listings, listing, link);
        info->fh = (uint64_t)(uintptr_t)listing;
        if (fuse_reply_open(req, info))
                listing_free(listing);
}

/* A reader that starts again at the beginning expects to see the present. */
static void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *info)
{
        struct listing *listing = (struct listing *)(uintptr_t)info->fh;
        size_t used = 0;

        if (refuse(req))
                return;
        if (!offset) {
                listing->size = 0;
                if (listing_fill(req, listing, node_of(powerfs_of(req), ino))) {
                        fuse_reply_err(req, ENOMEM);
                        return;
                }
        }
        /* Only whole entries; an offset always stands at the start of one. */
        while ((size_t)offset + used < listing->size) {
                struct fuse_dirent head;

                memcpy(&head, listing->bytes + offset + used, FUSE_NAME_OFFSET);
                if (used + FUSE_DIRENT_SIZE(&head) > size)
                        break;
                used += FUSE_DIRENT_SIZE(&head);
        }
        fuse_reply_buf(req, used ? listing->bytes + offset : NULL, used);
}

static void on_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
        listing_free((struct listing *)(uintptr_t)info->fh);
        fuse_reply_err(req, 0);
}

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
        struct powerfs *fs = powerfs_of(req);
        struct statvfs status;

        if (refuse(req))
                return;
        if (fstatvfs(fs->tree.backing_fd, &status)) {
                fuse_reply_err(req, errno);
                return;
        }
        if (fs->has_space_limit)
                status.f_bfree = status.f_bavail = fs->space_left / status.f_frsize;
        fuse_reply_statfs(req, &status);
}

static const struct fuse_lowlevel_ops operations = {
        .init = on_init,
        .lookup = on_lookup,
        .forget = on_forget,
        .getattr = on_getattr,
        .setattr = on_setattr,
        .mkdir = on_mkdir,
        .unlink = on_unlink,
        .rmdir = on_unlink,
        .rename = on_rename,
        .link = on_link,
        .create = on_create,
        .open = on_open,
        .read = on_read,
        .write = on_write,
        .flush = on_flush,
        .release = on_flush,
        .fsync = on_fsync,
        .fsyncdir = on_fsync,
        .fallocate = on_fallocate,
        .lseek = on_lseek,
        .opendir = on_opendir,
        .readdir = on_readdir,
        .releasedir = on_releasedir,
        .statfs = on_statfs,
};

int powerfs_serve(struct powerfs *fs)
{
        static char name[] = "powerfs", dash_o[] = "-o";
        static char mount_options[] = "fsname=powerfs,default_permissions,allow_other";
        char *arguments[] = {name, dash_o, mount_options, NULL};
        struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
        struct fuse_session *session;
        int r = -1;

        session = fuse_session_new(&args, &operations, sizeof(operations), fs);
        fuse_opt_free_args(&args);
        if (!session)
                return -1;
        if (!fuse_set_signal_handlers(session)) {
                if (!fuse_session_mount(session, fs->mountpoint)) {
                        r = fuse_session_loop(session);
                        fuse_session_unmount(session);
                }
                fuse_remove_signal_handlers(session);
        }
        fuse_session_destroy(session);
        /* The kernel need not release a directory before it is unmounted. */
        while (!LIST_EMPTY(&fs->listings))
                listing_free(LIST_FIRST(&fs->listings));
        return r;
}
