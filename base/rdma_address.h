// SPDX-License-Identifier: Apache-2.0
/*
 * Numeric addresses, and the list of networks that may connect. Names are the owner's to
 * resolve: that blocks. Pure functions, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

enum {
        RDMA_ADDRESS_E_INVALID = 1, /* the reason is in `why` */
};

#define RDMA_ADDRESS_TEXT_MAX 64

/* "10.0.0.1:7428", "[fe80::1]:7428"; without a port @default_port. 0 or _E_INVALID. */
int rdma_address_parse(struct sockaddr_storage *ret_address, const char *text,
                       uint16_t default_port, struct why *why);

/* The address as rdma_address_parse() reads it. */
void rdma_address_format(const struct sockaddr *address, char text[RDMA_ADDRESS_TEXT_MAX]);

size_t rdma_address_bytes(const struct sockaddr *address);

struct rdma_network {
        uint8_t bytes[16]; /* IPv4 as ::ffff:a.b.c.d, so that one rule serves both */
        uint8_t prefix;    /* bits of `bytes` that count */
};

/* "10.0.0.0/8", "fd00::/8", or one address. 0 or _E_INVALID. */
int rdma_network_parse(struct rdma_network *ret_network, const char *text, struct why *why);

/* An empty list has nobody in it. */
bool rdma_networks_contain(const struct rdma_network *networks, size_t n_networks,
                           const struct sockaddr *address);
