// SPDX-License-Identifier: Apache-2.0
/*
 * The status page, status_page.html: built into the daemon by daemon/embed-page, so that it
 * needs no file and no network.
 *
 * It is served to whoever reaches metrics.listen, so what it shows names no prompt: no
 * tokens, no digests, no ids of users. It loads nothing, and its policy lets the browser run
 * the one script and apply the one style that are in it, known by their hashes.
 */
#pragma once

#include <stddef.h>

struct daemon;

/* What the page polls. */
enum status_document {
        STATUS_SUMMARY, /* the document of "kvtierctl --json status" */
        STATUS_DETAILS, /* sessions, layouts, recent drops: the first of each, and how many */
        STATUS_HISTORY, /* the last minutes, once at first: rows as of struct status_sample */
};

struct status_page {
        const unsigned char *html;
        size_t length;
        const char *policy; /* its Content-Security-Policy */
};

extern const struct status_page status_page;

/* JSON as text, which the caller frees. NULL: out of memory. Loop thread. */
char *status_document(struct daemon *daemon, enum status_document which);
