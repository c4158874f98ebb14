// SPDX-License-Identifier: Apache-2.0
/*
 * Copies between a GPU's pages and the arena, against plain copies of the same bytes by the
 * driver to registered memory of the same kind, in the same run.
 *
 *   bench_gpu KVTIERD [small] [pages|codecs|copies|latency|product]...
 *
 * One JSON line a row: value, limit, ratio, and which strategies moved the bytes ("staged" is
 * the one that uses the staging buffer on the GPU). Slots are in random order, so that hardly
 * anything can be merged. "small" is for trying it without a GPU.
 *
 *   pages    kvt_store_pages() and kvt_load_pages(), each way and both at once, by page size
 *   codecs   the same for pages that are converted; bytes are those of the pages, so that a bus
 *            that is used to the full gives a ratio of 1.9
 *   copies   kvt_cuda_copy() on leases that are held: without the daemon
 *   latency  one object of 1 MiB
 *   product  a bf16 matrix product at the same time (cuBLAS: KVT_CUBLAS names its file)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/bench_gpu.h"

const struct gpu_shape gpu_shapes[GPU_SHAPES] = {
        {"4k", 4096, 2048, KVT_CODEC_NONE},
        {"16k", 16384, 512, KVT_CODEC_NONE},
        {"64k", 65536, 128, KVT_CODEC_NONE},
        {"256k", 262144, 32, KVT_CODEC_NONE},
        {"2m", 2 * MIB, 4, KVT_CODEC_NONE},
        {"1m_4k", 4096, 256, KVT_CODEC_NONE},
        {"1m_64k", 65536, 16, KVT_CODEC_NONE},
        {"1m_1m", MIB, 1, KVT_CODEC_NONE},
        {"fp8_32k", 32768, 256, KVT_CODEC_FP8_TILE128},
        {"mxfp8_16k", 16384, 512, KVT_CODEC_MXFP8},
};

struct gpu_bench bench = {.run_bytes = 2048 * MIB,
                          .tensor_bytes = 2048 * MIB,
                          .host_bytes = 8192 * MIB,
                          .piece_bytes = 1024 * MIB};

/* ---- sessions ---- */

static void pause_a_little(void)
{
        struct timespec pause = {.tv_nsec = 1000000};

        nanosleep(&pause, NULL);
}

static void wait_registered(void)
{
        struct kvt_cuda_measure measures[32];
        struct kvt_cuda_info info = {.size = sizeof(info)};
        size_t n;

        do {
                pause_a_little();
                bench_check("kvt_cuda_info", kvt_cuda_info(bench.session, &info));
        } while (info.registered_bytes + info.refused_bytes < bench.host_bytes);
        if (info.refused_bytes)
                bench_die("registration", info.last_error);
        while (kvt_cuda_measured(bench.session, 0, measures, 32, &n) == KVT_PENDING)
                pause_a_little();
}

/* Pages are converted by way of the staging buffer. */
static uint16_t n_groups_of(const struct gpu_mode *mode)
{
        return !mode->strategies || mode->strategies & 1u << KVT_CUDA_STAGED ? GPU_SHAPES
                                                                            : GPU_SHAPES_EXACT;
}

static void open_map(uint16_t n_groups)
{
        struct kvt_page_view views[GPU_SHAPES];
        struct kvt_page_group pages[GPU_SHAPES];
        char why[256] = "";

        for (uint16_t i = 0; i < n_groups; i++) {
                uint64_t bytes = gpu_shapes[i].page_bytes;

                views[i] = (struct kvt_page_view){.base = (void *)(uintptr_t)bench.tensor,
                                                  .page_stride = bytes,
                                                  .row_bytes = bytes};
                pages[i] = (struct kvt_page_group){.group = i,
                                                   .n_views = 1,
                                                   .n_pages = bench.tensor_bytes / bytes,
                                                   .views = &views[i]};
        }
        if (kvt_page_map_new(bench.session, pages, n_groups, &bench.map, why, sizeof(why)))
                bench_die("kvt_page_map_new", why);
}

double gpu_open_session(const struct gpu_mode *mode)
{
        struct kvt_group groups[GPU_SHAPES];
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "bench",
                                    .engine = "bench_gpu",
                                    .chunk_tokens = GPU_CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = n_groups_of(mode)};
        struct kvt_cuda_options options = {.size = sizeof(options),
                                           .strategies = mode->strategies,
                                           .blocks = mode->blocks};
        char why[256] = "";
        double began, seconds;

        for (uint16_t i = 0; i < layout.n_groups; i++)
                groups[i] = (struct kvt_group){.name = gpu_shapes[i].name,
                                               .kind = KVT_GROUP_ATTENTION,
                                               .page_tokens =
                                                       GPU_CHUNK_TOKENS / gpu_shapes[i].n_pages,
                                               .page_bytes = gpu_shapes[i].page_bytes,
                                               .codec = gpu_shapes[i].codec};
        bench.session = bench_open(&layout);
        began = bench_now();
        if (kvt_cuda_register(bench.session, &options, why, sizeof(why)))
                bench_die("kvt_cuda_register", why);
        open_map(n_groups_of(mode));
        wait_registered();
        seconds = bench_now() - began;
        gpu_moved(GPU_BOTH);
        return seconds;
}

void gpu_close_session(void)
{
        kvt_close(bench.session);
        kvt_page_map_free(bench.map);
}

void gpu_shuffle(const struct gpu_shape *shape)
{
        uint32_t n = (uint32_t)(bench.tensor_bytes / shape->page_bytes);

        for (uint32_t i = 0; i < n; i++)
                bench.order[i] = i;
        for (uint32_t i = n - 1; i; i--) {
                uint32_t other = (uint32_t)random() % (i + 1), page = bench.order[i];

                bench.order[i] = bench.order[other];
                bench.order[other] = page;
        }
}

void gpu_name_chunk(const struct gpu_shape *shape, uint64_t round, uint64_t number,
                    struct kvt_object *ret_object, uint32_t *pages)
{
        uint32_t n_pages = (uint32_t)(bench.tensor_bytes / shape->page_bytes);
        uint64_t name[3] = {round, number, (uint64_t)(shape - gpu_shapes) + 1};

        for (uint32_t i = 0; i < shape->n_pages; i++)
                pages[i] = bench.order[(number * shape->n_pages + i) % n_pages];
        *ret_object = (struct kvt_object){.group = (uint16_t)(shape - gpu_shapes),
                                          .flags = KVT_PARENT_UNKNOWN,
                                          .boundary_tokens = GPU_CHUNK_TOKENS,
                                          .slots = pages,
                                          .n_slots = shape->n_pages};
        memcpy(ret_object->digest.bytes, name, sizeof(name));
}

/* ---- rows ---- */

const char *gpu_moved(unsigned ways)
{
        static const char *const names[KVT_CUDA_STRATEGIES] = {"plain", "batch", "kernel",
                                                               "staged"};
        static struct kvt_cuda_counts last[2][KVT_CUDA_STRATEGIES];
        static char text[160];
        struct kvt_cuda_info info = {.size = sizeof(info)};
        uint64_t bytes[KVT_CUDA_STRATEGIES] = {0}, total = 0;

        bench_check("kvt_cuda_info", kvt_cuda_info(bench.session, &info));
        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                for (unsigned j = 0; j < 2; j++)
                        if (ways >> j & 1) {
                                bytes[i] += info.moved[j][i].bytes - last[j][i].bytes;
                                total += info.moved[j][i].bytes - last[j][i].bytes;
                        }
        memcpy(last, info.moved, sizeof(last));
        text[0] = '\0';
        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES && total; i++)
                if (bytes[i])
                        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s %.0f %%",
                                 text[0] ? ", " : "", names[i],
                                 100.0 * (double)bytes[i] / (double)total);
        return text;
}

void gpu_print(const char *name, const char *mode, const char *shape, double value, double limit,
               const char *unit, const char *strategy)
{
        printf("{\"name\": \"gpu_%s\", \"mode\": \"%s\", \"shape\": \"%s\", \"value\": %.4g, "
               "\"limit\": %.4g, \"ratio\": %.3f, \"unit\": \"%s\", \"moved_by\": \"%s\"}\n",
               name, mode, shape, value, limit, limit > 0 ? value / limit : 0.0, unit,
               strategy ? strategy : "");
        fflush(stdout);
}

/* ---- plain copies ---- */

static void copy_plain(unsigned way, cu_stream stream, uint64_t bytes)
{
        cu_address host = (uintptr_t)bench.pinned;

        for (uint64_t done = 0; done < bytes; done += bench.tensor_bytes / 2) {
                /* Each way has its half, so that both may run at once. */
                uint64_t at = way == GPU_STORE ? 0 : bench.tensor_bytes / 2;
                cu_address to = way == GPU_STORE ? host + at : bench.tensor + at;
                cu_address from = way == GPU_STORE ? bench.tensor + at : host + at;

                gpu_copy(&bench.gpu, to, from, bench.tensor_bytes / 2, stream);
        }
}

double gpu_run_dma(unsigned ways)
{
        double began = bench_now();

        if (ways & GPU_STORE)
                copy_plain(GPU_STORE, bench.gpu.stream, bench.run_bytes);
        if (ways & GPU_LOAD)
                copy_plain(GPU_LOAD, bench.other, bench.run_bytes);
        if (ways & GPU_STORE)
                gpu_wait(&bench.gpu);
        if (ways & GPU_LOAD)
                gpu_wait_stream(&bench.gpu, bench.other);
        return bench_now() - began;
}

/* ---- the run ---- */

static void begin(char *daemon)
{
        char why[GPU_WHY_BYTES];

        if (!gpu_open(&bench.gpu, 0, why)) {
                printf("%s\n", why);
                exit(77);
        }
        bench_start_daemon_of(daemon, bench.host_bytes, bench.piece_bytes);
        gpu_enter(&bench.gpu);
        bench.other = gpu_stream(&bench.gpu);
        bench.tensor = gpu_allocate(&bench.gpu, bench.tensor_bytes);
        bench.pinned = bench_shared_memory(bench.tensor_bytes);
        bench.order = (void *)bench_memory(bench.tensor_bytes / gpu_shapes[0].page_bytes *
                                           sizeof(bench.order[0]));
        gpu_check(&bench.gpu,
                  bench.gpu.driver.host_register(bench.pinned, bench.tensor_bytes,
                                                 CU_HOST_REGISTER_PORTABLE),
                  "cuMemHostRegister");
        gpu_write(&bench.gpu, bench.tensor, bench.pinned, bench.tensor_bytes);
}

static bool is_asked(int argc, char **argv, const char *name)
{
        bool has_names = false;

        for (int i = 2; i < argc; i++) {
                if (!strcmp(argv[i], name))
                        return true;
                has_names |= strcmp(argv[i], "small") != 0;
        }
        return !has_names;
}

int main(int argc, char **argv)
{
        if (argc < 2) {
                fprintf(stderr, "usage: bench_gpu KVTIERD [small] "
                                "[pages|codecs|copies|latency|product]...\n");
                return 2;
        }
        if (argc > 2 && !strcmp(argv[2], "small")) {
                bench.run_bytes = bench.tensor_bytes = 32 * MIB;
                bench.host_bytes = 256 * MIB;
                bench.piece_bytes = 64 * MIB;
        }
        begin(argv[1]);
        if (is_asked(argc, argv, "pages"))
                gpu_bench_pages();
        if (is_asked(argc, argv, "latency"))
                gpu_bench_latency();
        if (is_asked(argc, argv, "product"))
                gpu_bench_product();
        if (is_asked(argc, argv, "copies"))
                gpu_bench_copies();
        if (is_asked(argc, argv, "codecs"))
                gpu_bench_codecs();
        bench_stop_daemon();
        return 0;
}
