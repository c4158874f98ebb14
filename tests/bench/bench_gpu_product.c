// SPDX-License-Identifier: Apache-2.0
/*
 * What a model that computes at the same time loses: products of bf16 matrices by cuBLAS in a
 * thread and a stream of their own, in the process and the context that the copies are in.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench_gpu.h"

#define SIDE_MAX 8192u /* of the matrices */
#define IN_QUEUE 8u
#define WINDOW   1.0 /* seconds */

/* Of cuBLAS's binary interface. */
enum { BF16 = 14, COMPUTE_FP32 = 68, ALGORITHM_DEFAULT = -1 };

static struct {
        int (*create)(void **);
        int (*set_stream)(void *, cu_stream);
        int (*product)(void *, int, int, int, int, int, const void *, const void *, int, int,
                       const void *, int, int, const void *, void *, int, int, int, int);
        void *handle;
        cu_stream stream;
        cu_address matrices[3];
        int side;
        atomic_bool stop;
        uint64_t n_done;
        double seconds;
} product;

static bool load(void)
{
        const char *named = getenv("KVT_CUBLAS");
        const char *const names[] = {named ? named : "libcublas.so.13", "libcublas.so.12",
                                     "libcublas.so"};
        void *library = NULL;

        for (unsigned i = 0; i < 3 && !library; i++)
                library = dlopen(names[i], RTLD_NOW);
        if (!library) {
                fprintf(stderr, "product: %s\n", dlerror());
                return false;
        }
        *(void **)&product.create = dlsym(library, "cublasCreate_v2");
        *(void **)&product.set_stream = dlsym(library, "cublasSetStream_v2");
        *(void **)&product.product = dlsym(library, "cublasGemmEx");
        return product.create && product.set_stream && product.product;
}

/* Random numbers from 0.5 to 1 of both signs: zeros would take less power. */
static void fill_matrices(void)
{
        uint64_t bytes = UINT64_C(2) * SIDE_MAX * SIDE_MAX, state = 1;
        uint16_t *numbers = (uint16_t *)bench.pinned;

        for (uint64_t i = 0; i < bytes / 2; i++) {
                state = state * UINT64_C(6364136223846793005) + 1;
                numbers[i] = (uint16_t)((state >> 48 & 0x807f) | 0x3f00);
        }
        for (unsigned i = 0; i < 2; i++)
                gpu_write(&bench.gpu, product.matrices[i], numbers, bytes);
}

static void multiply(void)
{
        const float one = 1, zero = 0;
        int n = product.side;
        void *a = (void *)(uintptr_t)product.matrices[0];
        void *b = (void *)(uintptr_t)product.matrices[1];
        void *c = (void *)(uintptr_t)product.matrices[2];

        if (product.product(product.handle, 0, 0, n, n, n, &one, a, BF16, n, b, BF16, n, &zero, c,
                            BF16, n, COMPUTE_FP32, ALGORITHM_DEFAULT))
                bench_die("cublasGemmEx", "failed");
}

/* Some products are always queued; those that are over count. */
static void *compute(void *user)
{
        struct cuda_driver *driver = &bench.gpu.driver;
        cu_event events[IN_QUEUE];
        uint64_t n_started = 0;
        double began;

        gpu_enter(&bench.gpu);
        for (unsigned i = 0; i < IN_QUEUE; i++)
                events[i] = gpu_event(&bench.gpu);
        began = bench_now();
        for (product.n_done = 0; !atomic_load(&product.stop);) {
                while (n_started < product.n_done + IN_QUEUE) {
                        multiply();
                        gpu_check(&bench.gpu,
                                  driver->event_record(events[n_started++ % IN_QUEUE],
                                                       product.stream),
                                  "cuEventRecord");
                }
                while (driver->event_query(events[product.n_done % IN_QUEUE]) == CU_E_NOT_READY)
                        ;
                product.n_done++;
        }
        product.seconds = bench_now() - began;
        while (driver->stream_query(product.stream) == CU_E_NOT_READY)
                ;
        for (unsigned i = 0; i < IN_QUEUE; i++)
                gpu_check(&bench.gpu, driver->event_destroy(events[i]), "cuEventDestroy");
        gpu_leave(&bench.gpu);
        return NULL;
}

/* TFLOP/s while bytes move one way for some time (NULL: none move), and their GB/s. */
static double measure(const struct gpu_shape *shape, unsigned way, double *ret_speed)
{
        double began, bytes = 0;
        pthread_t thread;

        atomic_store(&product.stop, false);
        if (pthread_create(&thread, NULL, compute, NULL))
                bench_die("pthread_create", "failed");
        began = bench_now();
        while (bench_now() - began < WINDOW) {
                if (!shape)
                        continue;
                bench.round += way == GPU_STORE;
                gpu_run_calls(shape, way);
                bytes += (double)bench.run_bytes;
        }
        *ret_speed = bytes / (bench_now() - began) / 1e9;
        atomic_store(&product.stop, true);
        pthread_join(thread, NULL);
        return 2.0 * product.side * product.side * product.side * (double)product.n_done /
               product.seconds / 1e12;
}

static double alone;

static void bench_mode(const struct gpu_mode *mode, const struct gpu_shape *shape)
{
        char name[64];
        double speed, flops;

        snprintf(name, sizeof(name), "%s, side %d", mode->name, product.side);
        gpu_open_session(mode);
        gpu_shuffle(shape);
        bench.round++;
        gpu_run_calls(shape, GPU_STORE);
        gpu_moved(GPU_BOTH);
        flops = measure(shape, GPU_STORE, &speed);
        gpu_print("product_beside_store", name, shape->name, flops, alone, "TFLOP/s",
                  gpu_moved(GPU_BOTH));
        gpu_print("store_beside_product", name, shape->name, speed, 0, "GB/s", NULL);
        bench.round++;
        flops = measure(shape, GPU_LOAD, &speed);
        gpu_print("product_beside_load", name, shape->name, flops, alone, "TFLOP/s", NULL);
        gpu_print("load_beside_product", name, shape->name, speed, 0, "GB/s", NULL);
        bench.round--;
        gpu_close_session();
}

/* One product takes some 0.2 ms or 1.6 ms, in which its kernel has all SMs to itself. */
static void bench_side(int side)
{
        static const struct gpu_mode modes[] = {
                {"kernel, 4 blocks", 1u << KVT_CUDA_KERNEL, 4},
                {"kernel, 16 blocks", 1u << KVT_CUDA_KERNEL, 16},
                {"staged, 4 blocks", 1u << KVT_CUDA_STAGED, 4},
                {"staged, 16 blocks", 1u << KVT_CUDA_STAGED, 16},
                {"batch", 1u << KVT_CUDA_BATCH, 0},
        };
        double speed;

        product.side = side;
        measure(NULL, 0, &speed);
        alone = measure(NULL, 0, &speed);
        gpu_print("product", side == (int)SIDE_MAX ? "alone, side 8192" : "alone, side 4096",
                  "none", alone, 0, "TFLOP/s", NULL);
        for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
                bench_mode(&modes[i], &gpu_shapes[i == 4 ? 2 : 1]);
}

void gpu_bench_product(void)
{
        if (!load() || product.create(&product.handle)) {
                printf("{\"name\": \"gpu_product\", \"skipped\": \"no cuBLAS\"}\n");
                return;
        }
        product.stream = gpu_stream(&bench.gpu);
        product.set_stream(product.handle, product.stream);
        for (unsigned i = 0; i < 3; i++)
                product.matrices[i] =
                        gpu_allocate(&bench.gpu, UINT64_C(2) * SIDE_MAX * SIDE_MAX);
        fill_matrices();
        bench_side(4096);
        bench_side((int)SIDE_MAX);
}
