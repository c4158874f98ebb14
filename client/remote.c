// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/remote.h"

#define MODULE "libkvtier-rdma.so.0"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct kvt__remote_ops *loaded;
static struct why reason;

/* Beside the library, where it is shared; else where the system looks. */
static void *open_module(void)
{
        const char *path = secure_getenv("KVTIER_RDMA_MODULE");
        char beside[4096];
        const char *slash;
        Dl_info info;
        void *module;

        if (path)
                return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (dladdr((const void *)&loaded, &info) && info.dli_fname &&
            (slash = strrchr(info.dli_fname, '/'))) {
                int length = (int)(slash - info.dli_fname);

                snprintf(beside, sizeof(beside), "%.*s/" MODULE, length, info.dli_fname);
                module = dlopen(beside, RTLD_NOW | RTLD_LOCAL);
                if (module)
                        return module;
        }
        return dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
}

/* It stays for good: its threads may run as long as a session does. */
static void load(void)
{
        const struct kvt__remote_ops *ops;
        void *module = open_module();

        if (!module) {
                why_set(&reason, "an rdma:// address takes " MODULE ", which is not there: %s",
                        dlerror());
                return;
        }
        ops = dlsym(module, KVT__REMOTE_SYMBOL);
        if (!ops || ops->version != KVT__REMOTE_VERSION) {
                why_set(&reason, MODULE " is of another version than libkvtier %s", kvt_version());
                return;
        }
        loaded = ops;
}

const struct kvt__remote_ops *kvt__remote_load(struct why *why)
{
        pthread_once(&once, load);
        if (!loaded)
                *why = reason;
        return loaded;
}
