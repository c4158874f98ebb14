// SPDX-License-Identifier: Apache-2.0
/* Threads of libraries: they take no signals, which are the application's. */
#pragma once

#include <pthread.h>

#include "base/error.h"

/* 0 or negative. */
int thread_start(pthread_t *ret_thread, void *(*run)(void *argument), void *argument);
