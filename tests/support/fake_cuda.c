// SPDX-License-Identifier: Apache-2.0
/* The fake driver: faults, devices, contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/support/fake_cuda_state.h"

#define FAULTS_MAX     32u
#define FUNCTIONS_MAX  128u
#define ATTRIBUTES_MAX 160
#define STACK_MAX      8
#define HANG_WAIT_S    10u

struct fault {
        char name[48];
        int result;
        unsigned skip, count; /* count 0: for ever */
};

struct count {
        char name[48];
        uint64_t n;
        bool is_hidden;
};

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
                          .changed = PTHREAD_COND_INITIALIZER,
                          .n_devices = 2};
_Thread_local bool fake_is_in_host_function;

static struct fault faults[FAULTS_MAX];
static struct count counts[FUNCTIONS_MAX];
static int attributes[ATTRIBUTES_MAX];
static bool attribute_is_set[ATTRIBUTES_MAX];
static const char *hanging; /* a function, or NULL */
static unsigned n_hanging;  /* calls of it */
static _Thread_local struct fake_context *stack[STACK_MAX];
static _Thread_local int depth;
static _Thread_local int capture_mode; /* 0: what every thread captures is this one's, too */

void fake_lock(void)
{
        pthread_mutex_lock(&fake.lock);
}

void fake_unlock(void)
{
        pthread_cond_broadcast(&fake.changed);
        pthread_mutex_unlock(&fake.lock);
}

_Noreturn void fake_misuse(const char *what)
{
        fprintf(stderr, "fake_cuda: %s\n", what);
        abort();
}

static void fake_wait_a_second(void)
{
        struct timespec next;

        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec++;
        pthread_cond_timedwait(&fake.changed, &fake.lock, &next);
}

/* ---- faults ---- */

static struct count *count_of(const char *name)
{
        unsigned i = 0;

        while (i < FUNCTIONS_MAX - 1 && counts[i].name[0] && strcmp(counts[i].name, name))
                i++;
        if (!counts[i].name[0])
                snprintf(counts[i].name, sizeof(counts[i].name), "%s", name);
        return &counts[i];
}

/* Names of functions without their version. */
static void strip(const char *name, char *ret_name, size_t size)
{
        size_t length = (size_t)snprintf(ret_name, size, "%s", name);

        if (length > 3 && length < size && ret_name[length - 3] == '_' &&
            ret_name[length - 2] == 'v')
                ret_name[length - 3] = '\0';
}

static int fault_of(const char *name)
{
        for (unsigned i = 0; i < FAULTS_MAX; i++) {
                struct fault *fault = &faults[i];

                if (!fault->result || strcmp(fault->name, name))
                        continue;
                if (fault->skip) {
                        fault->skip--;
                        return 0;
                }
                if (fault->count && !--fault->count) {
                        int result = fault->result;

                        fault->result = 0;
                        return result;
                }
                return fault->result;
        }
        return 0;
}

void fake_cuda_fail(const char *name, int result, unsigned skip, unsigned count)
{
        struct fault *free_fault = NULL;

        fake_lock();
        for (unsigned i = 0; i < FAULTS_MAX; i++) {
                if (faults[i].result && !strcmp(faults[i].name, name))
                        faults[i].result = 0;
                if (!faults[i].result)
                        free_fault = &faults[i];
        }
        if (!free_fault)
                fake_misuse("too many faults");
        snprintf(free_fault->name, sizeof(free_fault->name), "%s", name);
        free_fault->result = result;
        free_fault->skip = skip;
        free_fault->count = count;
        fake_unlock();
}

void fake_cuda_hide(const char *name)
{
        fake_lock();
        count_of(name)->is_hidden = true;
        fake_unlock();
}

bool fake_is_hidden(const char *name)
{
        bool is_hidden;

        fake_lock();
        is_hidden = count_of(name)->is_hidden;
        fake_unlock();
        return is_hidden;
}

void fake_cuda_lose(int result, unsigned n_operations)
{
        fake_lock();
        fake.lose_result = result;
        fake.lose_after = n_operations;
        for (int i = 0; i < fake.n_devices && !n_operations; i++)
                fake.primary[i].lost = result;
        if (!n_operations)
                fake.lose_result = 0;
        fake_unlock();
}

void fake_cuda_hold(bool is_held)
{
        fake_lock();
        fake.is_held = is_held;
        fake_unlock();
}

void fake_cuda_hold_stream(void *stream, bool is_held)
{
        fake_lock();
        ((struct fake_stream *)stream)->is_held = is_held;
        fake_unlock();
}

void fake_cuda_capture(bool is_capturing)
{
        fake_lock();
        fake.is_capturing = is_capturing;
        fake_unlock();
}

void fake_cuda_hang(const char *name)
{
        fake_lock();
        hanging = name;
        fake_unlock();
}

bool fake_cuda_wait_hanging(void)
{
        bool is_hanging;

        fake_lock();
        for (unsigned i = 0; !n_hanging && i < HANG_WAIT_S; i++)
                fake_wait_a_second();
        is_hanging = n_hanging;
        fake_unlock();
        return is_hanging;
}

void fake_cuda_set_attribute(int attribute, int value)
{
        fake_lock();
        attributes[attribute] = value;
        attribute_is_set[attribute] = true;
        fake_unlock();
}

void fake_cuda_set_devices(int n)
{
        fake_lock();
        fake.n_devices = n;
        fake_unlock();
}

void fake_cuda_figures(struct fake_cuda_figures *ret_figures)
{
        fake_lock();
        *ret_figures = fake.figures;
        fake_unlock();
}

uint64_t fake_cuda_calls(const char *name)
{
        uint64_t n;

        fake_lock();
        n = count_of(name)->n;
        fake_unlock();
        return n;
}

/* ---- calls ---- */

struct fake_context *fake_current(void)
{
        return depth ? stack[depth - 1] : NULL;
}

static bool spoils_graphs(const char *name)
{
        static const char *const names[] = {
                "cuMemAlloc",        "cuMemFree",           "cuMemHostAlloc", "cuMemFreeHost",
                "cuMemHostRegister", "cuMemHostUnregister", "cuEventQuery",   "cuStreamQuery",
                "cuModuleLoadData",  "cuModuleUnload"};

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                if (fake.is_capturing && !capture_mode && !strcmp(names[i], name))
                        return true;
        return false;
}

static int find_fault(const char *name, enum fake_needs needs)
{
        struct fake_context *context = fake_current();
        int result = fault_of(name);

        if (result)
                return result;
        if (spoils_graphs(name)) {
                fake.figures.n_spoilt++;
                return FAKE_CUDA_CAPTURE_UNSUPPORTED;
        }
        if (needs != FAKE_NOTHING && !fake.is_initialized)
                return FAKE_CUDA_NOT_INITIALIZED;
        if (needs != FAKE_CONTEXT)
                return 0;
        if (!context)
                return FAKE_CUDA_INVALID_CONTEXT;
        if (!context->refs)
                return FAKE_CUDA_CONTEXT_IS_DESTROYED;
        return context->lost;
}

static void hang(const char *name)
{
        n_hanging++;
        pthread_cond_broadcast(&fake.changed);
        while (hanging && !strcmp(hanging, name))
                pthread_cond_wait(&fake.changed, &fake.lock);
        n_hanging--;
}

int fake_enter(const char *name, enum fake_needs needs)
{
        char plain[48];
        int result;

        strip(name, plain, sizeof(plain));
        if (fake_is_in_host_function)
                fake_misuse("the driver is called from a host function");
        fake_lock();
        count_of(plain)->n++;
        if (hanging && !strcmp(hanging, plain))
                hang(plain);
        result = find_fault(plain, needs);
        if (result)
                fake_unlock();
        return result;
}

int fake_leave(int result)
{
        fake_unlock();
        return result;
}

/* ---- driver and devices ---- */

CU(cuInit, (unsigned flags))
{
        int result = fake_enter(__func__, FAKE_NOTHING);

        if (result)
                return result;
        if (!fake.n_devices)
                return fake_leave(FAKE_CUDA_NO_DEVICE);
        fake.is_initialized = true;
        for (int i = 0; i < FAKE_DEVICES_MAX; i++)
                fake.primary[i].device = i;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuDriverGetVersion, (int *ret_version))
{
        *ret_version = 13000;
        return FAKE_CUDA_OK;
}

CU(cuDeviceGetCount, (int *ret_n))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        *ret_n = fake.n_devices;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuDeviceGet, (int *ret_device, int ordinal))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        if (ordinal < 0 || ordinal >= fake.n_devices)
                return fake_leave(FAKE_CUDA_INVALID_DEVICE);
        *ret_device = ordinal;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuDeviceGetName, (char *ret_name, int size, int device))
{
        snprintf(ret_name, (size_t)size, "Fake %d", device);
        return FAKE_CUDA_OK;
}

CU(cuDeviceGetPCIBusId, (char *ret_id, int size, int device))
{
        snprintf(ret_id, (size_t)size, "ffff:%02x:00.0", (unsigned)device);
        return FAKE_CUDA_OK;
}

/* What an H200 says, of those that somebody may ask for; 0 for others. */
static int attribute_of(int attribute)
{
        static const struct {
                int attribute, value;
        } known[] = {{1, 1024}, {2, 1024}, {10, 32}, {16, 132}, {19, 1}, {39, 2048},
                     {40, 3},   {41, 1},   {75, 9},  {76, 0},   {91, 0}, {99, 1},
                     {113, 1},  {117, 1},  {118, 0}, {124, 1},  {134, 0}};

        if (attribute >= 0 && attribute < ATTRIBUTES_MAX && attribute_is_set[attribute])
                return attributes[attribute];
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
                if (known[i].attribute == attribute)
                        return known[i].value;
        return 0;
}

CU(cuDeviceGetAttribute, (int *ret_value, int attribute, int device))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        *ret_value = attribute_of(attribute);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuGetErrorName, (int error, const char **ret_name))
{
        *ret_name = error ? "CUDA_ERROR_FAKE" : "CUDA_SUCCESS";
        return FAKE_CUDA_OK;
}

CU(cuGetErrorString, (int error, const char **ret_text))
{
        *ret_text = error ? "an error of the fake driver" : "no error";
        return FAKE_CUDA_OK;
}

/* ---- contexts ---- */

CU(cuDevicePrimaryCtxRetain, (void **ret_context, int device))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        if (device < 0 || device >= fake.n_devices)
                return fake_leave(FAKE_CUDA_INVALID_DEVICE);
        fake.figures.n_contexts += !fake.primary[device].refs++;
        *ret_context = &fake.primary[device];
        return fake_leave(fake.primary[device].lost);
}

CU(cuDevicePrimaryCtxRelease_v2, (int device))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        if (!fake.primary[device].refs)
                fake_misuse("a primary context is released too often");
        fake.figures.n_contexts -= !--fake.primary[device].refs;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuDevicePrimaryCtxGetState, (int device, unsigned *ret_flags, int *ret_active))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        *ret_flags = 0;
        *ret_active = fake.primary[device].refs > 0;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuCtxGetCurrent, (void **ret_context))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        *ret_context = fake_current();
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuCtxSetCurrent, (void *context))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        depth = depth ? depth : 1;
        stack[depth - 1] = context;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuCtxPushCurrent_v2, (void *context))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        if (depth == STACK_MAX)
                fake_misuse("contexts are pushed and not popped");
        stack[depth++] = context;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuCtxPopCurrent_v2, (void **ret_context))
{
        int result = fake_enter(__func__, FAKE_INIT);

        if (result)
                return result;
        if (!depth)
                return fake_leave(FAKE_CUDA_INVALID_CONTEXT);
        depth--;
        if (ret_context)
                *ret_context = stack[depth];
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuThreadExchangeStreamCaptureMode, (int *mode))
{
        int before = capture_mode;

        capture_mode = *mode;
        *mode = before;
        return FAKE_CUDA_OK;
}

CU(cuCtxGetDevice, (int *ret_device))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_device = fake_current()->device;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuCtxGetStreamPriorityRange, (int *ret_least, int *ret_greatest))
{
        if (ret_least)
                *ret_least = 0;
        if (ret_greatest)
                *ret_greatest = -5;
        return FAKE_CUDA_OK;
}

CU(cuCtxSynchronize, (void))
{
        struct fake_stream *stream;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        LIST_FOREACH(stream, &fake.streams, link)
                if (stream->context == fake_current())
                        fake_drain(stream);
        return fake_leave(fake_current()->lost);
}
