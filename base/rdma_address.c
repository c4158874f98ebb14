// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_address.h"

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static int refuse(struct why *why, const char *text, const char *expected)
{
        why_set(why, "\"%.64s\" is not %s", text, expected);
        return RDMA_ADDRESS_E_INVALID;
}

/* 0 to @max, in digits alone. */
static bool parse_number(const char *text, unsigned long max, unsigned long *ret_number)
{
        unsigned long number;
        char *end;

        if (*text < '0' || *text > '9')
                return false;
        number = strtoul(text, &end, 10);
        if (*end || end - text > 5 || number > max)
                return false;
        *ret_number = number;
        return true;
}

/* Splits "host:port" and "[host]:port"; the port is where the colon was, or NULL. */
static bool split(char *text, char **ret_host, char **ret_port)
{
        char *end;

        *ret_port = NULL;
        if (*text == '[') {
                end = strchr(text, ']');
                if (!end || (end[1] && end[1] != ':'))
                        return false;
                *ret_host = text + 1;
                *ret_port = end[1] ? end + 2 : NULL;
                *end = '\0';
                return true;
        }
        *ret_host = text;
        end = strchr(text, ':');
        /* Several colons without brackets are an IPv6 address without a port. */
        if (end && !strchr(end + 1, ':')) {
                *end = '\0';
                *ret_port = end + 1;
        }
        return true;
}

int rdma_address_parse(struct sockaddr_storage *ret_address, const char *text,
                       uint16_t default_port, struct why *why)
{
        static const char expected[] = "an address such as 10.0.0.1:7428 or [fd00::1]:7428";
        struct sockaddr_storage address = {0};
        struct sockaddr_in *v4 = (void *)&address;
        struct sockaddr_in6 *v6 = (void *)&address;
        unsigned long number = default_port;
        char copy[RDMA_ADDRESS_TEXT_MAX], *host, *port;

        if (strlen(text) >= sizeof(copy))
                return refuse(why, text, expected);
        strcpy(copy, text);
        if (!split(copy, &host, &port) || (port && !parse_number(port, UINT16_MAX, &number)))
                return refuse(why, text, expected);
        if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
                v4->sin_family = AF_INET;
                v4->sin_port = htons((uint16_t)number);
        } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
                v6->sin6_family = AF_INET6;
                v6->sin6_port = htons((uint16_t)number);
        } else {
                return refuse(why, text, expected);
        }
        *ret_address = address;
        return 0;
}

void rdma_address_format(const struct sockaddr *address, char text[RDMA_ADDRESS_TEXT_MAX])
{
        const struct sockaddr_in *v4 = (const void *)address;
        const struct sockaddr_in6 *v6 = (const void *)address;
        char host[INET6_ADDRSTRLEN] = "?";

        if (address->sa_family == AF_INET) {
                inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
                snprintf(text, RDMA_ADDRESS_TEXT_MAX, "%s:%u", host, ntohs(v4->sin_port));
        } else if (address->sa_family == AF_INET6) {
                inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
                snprintf(text, RDMA_ADDRESS_TEXT_MAX, "[%s]:%u", host, ntohs(v6->sin6_port));
        } else {
                snprintf(text, RDMA_ADDRESS_TEXT_MAX, "?");
        }
}

size_t rdma_address_bytes(const struct sockaddr *address)
{
        return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                              : sizeof(struct sockaddr_in);
}

int rdma_network_parse(struct rdma_network *ret_network, const char *text, struct why *why)
{
        static const char expected[] = "a network such as 10.0.0.0/8 or fd00::/8";
        struct rdma_network network = {.prefix = 128};
        char copy[RDMA_ADDRESS_TEXT_MAX], *slash;
        unsigned long bits;
        bool is_v4;

        if (strlen(text) >= sizeof(copy))
                return refuse(why, text, expected);
        strcpy(copy, text);
        slash = strchr(copy, '/');
        if (slash)
                *slash = '\0';
        is_v4 = inet_pton(AF_INET, copy, network.bytes + sizeof(mapped)) == 1;
        if (is_v4)
                memcpy(network.bytes, mapped, sizeof(mapped));
        else if (inet_pton(AF_INET6, copy, network.bytes) != 1)
                return refuse(why, text, expected);
        if (slash) {
                if (!parse_number(slash + 1, is_v4 ? 32 : 128, &bits))
                        return refuse(why, text, expected);
                network.prefix = (uint8_t)(bits + (is_v4 ? 96 : 0));
        }
        *ret_network = network;
        return 0;
}

static bool has_prefix(const struct rdma_network *network, const uint8_t bytes[16])
{
        size_t whole = network->prefix / 8;
        uint8_t rest = (uint8_t)(0xff00u >> network->prefix % 8);

        return !memcmp(network->bytes, bytes, whole) &&
               (!rest || !((network->bytes[whole] ^ bytes[whole]) & rest));
}

bool rdma_networks_contain(const struct rdma_network *networks, size_t n_networks,
                           const struct sockaddr *address)
{
        const struct sockaddr_in *v4 = (const void *)address;
        const struct sockaddr_in6 *v6 = (const void *)address;
        uint8_t bytes[16];

        if (address->sa_family == AF_INET) {
                memcpy(bytes, mapped, sizeof(mapped));
                memcpy(bytes + sizeof(mapped), &v4->sin_addr, 4);
        } else if (address->sa_family == AF_INET6) {
                memcpy(bytes, &v6->sin6_addr, 16);
        } else {
                return false;
        }
        for (size_t i = 0; i < n_networks; i++)
                if (has_prefix(&networks[i], bytes))
                        return true;
        return false;
}
