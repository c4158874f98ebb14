// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <systemd/sd-daemon.h>

#include "daemon/notify.h"

void notify_ready(void)
{
        sd_notify(0, "READY=1");
}

void notify_status(const char *format, ...)
{
        char text[256];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        sd_notifyf(0, "STATUS=%s", text);
}

void notify_reloading(void)
{
        struct timespec now;

        /* The manager pairs the time with its own to tell this reload from an earlier one. */
        clock_gettime(CLOCK_MONOTONIC, &now);
        sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
                   (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void notify_stopping(uint32_t seconds)
{
        sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64, (uint64_t)seconds * 1000000);
}

void notify_watchdog(void)
{
        sd_notify(0, "WATCHDOG=1");
}

uint64_t notify_watchdog_period_ms(void)
{
        uint64_t timeout_us;

        if (sd_watchdog_enabled(0, &timeout_us) <= 0)
                return 0;
        /* Three chances before the manager loses patience. */
        return timeout_us < 3000 ? 1 : timeout_us / 3000;
}
