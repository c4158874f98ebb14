// SPDX-License-Identifier: Apache-2.0
#include "base/rdma.h"

const char *rdma_end_name(enum rdma_end end)
{
        static const char *const names[RDMA_N_ENDS] = {
                [RDMA_END_CLOSED] = "closed",
                [RDMA_END_PEER_CLOSED] = "peer_closed",
                [RDMA_END_LOST] = "lost",
                [RDMA_END_TIMEOUT] = "timeout",
                [RDMA_END_UNREACHABLE] = "unreachable",
                [RDMA_END_NOT_ALLOWED] = "not_allowed",
                [RDMA_END_FULL] = "full",
                [RDMA_END_DENIED] = "denied",
                [RDMA_END_STALE] = "stale",
                [RDMA_END_UNSUPPORTED] = "unsupported",
                [RDMA_END_PROTOCOL] = "protocol",
                [RDMA_END_DEVICE] = "device",
        };

        return end < RDMA_N_ENDS ? names[end] : "unknown";
}
