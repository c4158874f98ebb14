// SPDX-License-Identifier: Apache-2.0
/* What the configuration says about other nodes: the values of rdma.*. */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include "base/rdma_address.h"
#include "daemon/config_pool.h"

#define CONFIG_NETWORKS_MAX 32u /* rdma.allow */
#define CONFIG_PEERS_MAX    64u /* rdma.peers */
#define CONFIG_PEER_BYTES   64u /* of one of them, terminating zero included */

struct config_rdma {
        struct sockaddr_storage listen; /* ss_family AF_UNSPEC: off */
        char secret[CONFIG_PATH_BYTES]; /* a file: base/rdma_secret.h */
        struct rdma_network allow[CONFIG_NETWORKS_MAX];
        uint32_t n_allow;
        char peers[CONFIG_PEERS_MAX][CONFIG_PEER_BYTES]; /* host, or host:port */
        uint32_t n_peers;
        uint32_t whole_regions; /* grants by devices without windows open a whole arena */
        uint32_t busy_poll;
};
