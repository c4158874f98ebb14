/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvtier-cuda: page maps over memory of NVIDIA GPUs.
 *
 * kvt_cuda_register() gives a session the device. From then on kvt_page_map_new() takes views
 * in GPU memory (of cudaMalloc or of the virtual memory calls), and kvt_store_pages() and
 * kvt_load_pages() move them; groups in host memory go on as before, in the same map if need
 * be. kvt_call.after is a CUevent that the copies of the call wait for: of a store, recorded
 * behind the work that wrote the pages, of a load, behind the last reader of those that it
 * overwrites. It stays the caller's, and must neither be recorded again nor destroyed before
 * the completion. kvt_call.done is a CUevent that the library records behind the last copy,
 * before the call completes; where nothing was copied it is left alone. It has to be of the GPU
 * that has the pages: objects on another fail. Pages are in place when kvt_poll() reports a load,
 * on every stream.
 *
 * The driver, libcuda.so.1, is loaded at run time; without one kvt_cuda_register() says so.
 * The library uses the primary context of each GPU (as torch and the CUDA runtime do), leaves
 * the caller's current context as it was, and never calls back from the driver's threads.
 *
 * The daemon's arenas are registered with the driver in the background, piece by piece, first
 * those of the NUMA node next to the GPU; copies in parts that are not registered yet are
 * right, but slower (they go through the driver's own buffers). Under CUDA MPS another process
 * does the copies, and would go on after this one's death, when its leases are given to
 * others: registering is refused there.
 *
 * The pages of a group with a codec are converted on the GPU, to the bits that the processor
 * would give, between the pages and the staging buffers: they need kernels, and STAGED among the
 * strategies; kvt_page_map_new() refuses them where the session's first GPU lacks that.
 *
 * A copy that fails is a failed object (KVT_IO_ERROR): it is not stored, or its pages are
 * undefined. When the GPU's context is lost, the session ends: everything completes with
 * KVT_UNAVAILABLE, the daemon keeps the leases from others until this process is gone, and the
 * library does not connect again. kvt_close() returns in every case.
 *
 * Threads and forks: as kvtier.h. Handles of CUDA are void *, so that no header of CUDA is
 * needed.
 */
#ifndef KVTIER_CUDA_H
#define KVTIER_CUDA_H

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * How bytes go between pages and the arena. Copies and staging hardly slow down what else runs
 * on the GPU; KERNEL holds its SMs while it waits for the bus, and products of matrices, which
 * count on all SMs, took up to five times as long beside it. Append only.
 */
enum kvt_cuda_strategy {
        KVT_CUDA_PLAIN = 0,  /* one cuMemcpyAsync for each run of neighbours */
        KVT_CUDA_BATCH = 1,  /* cuMemcpyBatchAsync (drivers for CUDA 12.8 and later) */
        KVT_CUDA_KERNEL = 2, /* a kernel that reads or writes the arena itself */
        KVT_CUDA_STAGED = 3  /* a kernel to or from a staging buffer on the GPU, and one copy */
};
#define KVT_CUDA_STRATEGIES 4

/* kvt_cuda_options.flags */
#define KVT_CUDA_NO_MEASURE  (1u << 0) /* choose by page size alone: see kvt_cuda_measured() */
#define KVT_CUDA_NO_REGISTER (1u << 1) /* leave the arenas unregistered (tests; slow) */

struct kvt_cuda_options {
        size_t size;
        const char *driver;      /* NULL: $KVT_CUDA_DRIVER, or else libcuda.so.1 */
        const uint32_t *devices; /* ordinals, the first next to most of the traffic; NULL: that
                                    of the caller's current context, or else 0. Those of page
                                    maps are added as they come */
        uint32_t n_devices;
        uint32_t flags;         /* KVT_CUDA_* */
        uint32_t strategies;    /* bits 1 << enum kvt_cuda_strategy; 0: all. Of these the one
                                   that was measured fastest is taken; PLAIN stands in where none
                                   of them can be used */
        uint32_t blocks;        /* of a kernel, 512 threads each, of which an SM takes up to 4:
                                   what a model that runs at the same time may lose; 0 is 16 */
        uint64_t staging_bytes; /* of each GPU, both directions together; 0: 64 MiB */
        uint64_t piece_bytes;   /* registered at a time, 2 MiB and more; 0: 128 MiB */
};

/*
 * Gives the session its device; once. KVT_OK; KVT_UNAVAILABLE: no driver, no GPU, or one that
 * cannot be used; KVT_UNSUPPORTED: CUDA MPS, a driver before CUDA 11.4, or a libkvtier of
 * another version; KVT_REFUSED: it has one already; KVT_INVALID, KVT_NO_MEMORY, KVT_FORKED.
 * The reason in words goes to @ret_why (may be NULL), at most @why_bytes with the NUL. Starts
 * threads: one that registers, two for each GPU. Does not wait for the registration.
 */
KVT_API enum kvt_status kvt_cuda_register(struct kvt_session *session,
                                          const struct kvt_cuda_options *options, char *ret_why,
                                          size_t why_bytes);

/*
 * Takes the device away: calls in flight end, those on GPU memory that come later fail
 * (KVT_UNSUPPORTED for each object). kvt_close() does the same. Waits for copies in flight, at
 * most two seconds, and for the driver to take everything back, at most three more; what hangs
 * longer is left to it. Not beside kvt_close(), kvt_page_map_new() or other functions of this
 * header. A map outlives it; its objects fail (KVT_IO_ERROR) where a later kvt_cuda_register()
 * does not have its GPU, or cannot convert there what has a codec.
 */
KVT_API void kvt_cuda_unregister(struct kvt_session *session);

/*
 * Memory of a GPU as a dma-buf, by which an RDMA device reaches it: for kvt_options.dmabuf of a
 * remote session, whose bytes then go between that memory and the other node, past this node's
 * host memory. [@base, @base + @bytes) lies in one allocation, anywhere. @driver: as
 * kvt_cuda_options.driver. The fd in *ret_dmabuf is the caller's to close; the memory has to stay
 * as long as the session. Copies that libkvtier-cuda makes see what has come by RDMA; who reads
 * leases with kernels of his own has to see to that (cuFlushGPUDirectRDMAWrites).
 *
 * KVT_OK; KVT_UNSUPPORTED: the driver or the GPU cannot; KVT_UNAVAILABLE: no driver, no GPU, or it
 * fails; KVT_INVALID: no memory of a GPU, or more than an allocation. The reason in words goes to
 * @ret_why (may be NULL), at most @why_bytes with the NUL.
 */
KVT_API enum kvt_status kvt_cuda_export(const char *driver, void *base, uint64_t bytes,
                                        struct kvt_dmabuf *ret_dmabuf, char *ret_why,
                                        size_t why_bytes);

#define KVT_CUDA_STORE 0 /* index of a direction: from the GPU to the arena */
#define KVT_CUDA_LOAD  1

struct kvt_cuda_counts {
        uint64_t bytes;
        uint64_t runs; /* copies of the driver's, or runs that a kernel was given */
        uint64_t jobs; /* objects of which any byte went this way */
};

struct kvt_cuda_info {
        size_t size;
        uint32_t driver_version; /* as cuDriverGetVersion: 13000 for 13.0 */
        uint32_t n_devices;
        uint64_t mapped_bytes;     /* of arenas */
        uint64_t registered_bytes; /* of these, so far */
        uint64_t refused_bytes;    /* of these, which the driver would not register */
        uint64_t failed_jobs;
        uint32_t is_lost;     /* 1: the context of a GPU is lost */
        uint32_t has_batch;   /* 1: the driver has cuMemcpyBatchAsync */
        uint32_t has_kernels; /* 1: the library has kernels that the GPUs can run */
        uint32_t reserved;
        struct kvt_cuda_counts moved[2][KVT_CUDA_STRATEGIES]; /* by direction */
        uint64_t unregistered_bytes_moved; /* of all bytes, those through the driver's buffers */
        char last_error[256];              /* of the driver, or "" */
};

KVT_API enum kvt_status kvt_cuda_info(struct kvt_session *session,
                                      struct kvt_cuda_info *ret_info);

/* What was measured once on a GPU, with pages of one size. 0: not measured, or not possible. */
struct kvt_cuda_measure {
        uint64_t run_bytes; /* that lie together on both sides */
        double bytes_per_second[2][KVT_CUDA_STRATEGIES];
        uint32_t chosen[2]; /* enum kvt_cuda_strategy; before and without measuring: a guess */
};

/*
 * The table by which @device (an ordinal) chooses: up to @max rows, ascending, into
 * @ret_measures; @ret_n gets their number. KVT_OK; KVT_PENDING: not measured yet, the rows are
 * guesses; KVT_MISS: no such GPU is in use; KVT_INVALID, KVT_FORKED.
 */
KVT_API enum kvt_status kvt_cuda_measured(struct kvt_session *session, uint32_t device,
                                          struct kvt_cuda_measure *ret_measures, size_t max,
                                          size_t *ret_n);

/* One object of a low-level copy: pages of a map, and the segments of a lease. */
struct kvt_cuda_copy {
        size_t size;
        const struct kvt_page_map *map;
        uint16_t group;
        uint16_t shard;
        uint32_t is_store; /* 1: from the pages to the segments */
        const uint32_t *slots;
        uint32_t n_slots;
        uint32_t n_segments;
        const struct kvt_segment *segments; /* n_slots pages long */
        uint32_t strategy; /* 1 + enum kvt_cuda_strategy; STAGED is taken for KERNEL; 0: the best of
                              the others */
        uint32_t reserved;
};

/*
 * For callers that hold leases themselves (kvt_reserve(), kvt_acquire()): enqueues the copy on
 * @stream, a CUstream of the GPU that has the pages, and returns. The lease has to be held
 * until the copy has ended there; what @copy names is read before this returns. Segments that
 * are not registered yet may make it wait for the stream. KVT_OK; KVT_UNSUPPORTED: the group has
 * a codec; KVT_IO_ERROR: some of it may have been enqueued; KVT_UNAVAILABLE: the context is
 * lost; KVT_INVALID, KVT_FORKED.
 */
KVT_API enum kvt_status kvt_cuda_copy(struct kvt_session *session,
                                      const struct kvt_cuda_copy *copy, void *stream);

#ifdef __cplusplus
}
#endif

#endif
