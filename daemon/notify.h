// SPDX-License-Identifier: Apache-2.0
/*
 * What the service manager is told (sd_notify). Without NOTIFY_SOCKET all of it does
 * nothing, and a manager that cannot be reached is no reason to stop serving: nothing
 * here fails. Loop thread only.
 */
#pragma once

#include <stdint.h>

/* Start or reload has ended. */
void notify_ready(void);

/* One line for `systemctl status`. */
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* SIGHUP was received; notify_ready() ends it. */
void notify_reloading(void);

/* Draining begins and may take @seconds from now. */
void notify_stopping(uint32_t seconds);

/* Still alive. */
void notify_watchdog(void);

/* How often notify_watchdog() should be called, 0: no watchdog is set. */
uint64_t notify_watchdog_period_ms(void);
