// SPDX-License-Identifier: Apache-2.0
#include "base/rdma_credit.h"

void rdma_credit_init(struct rdma_credit *credit, uint32_t own, uint64_t idle_ns,
                      uint64_t silence_ns, uint64_t now_ns)
{
        *credit = (struct rdma_credit){
                .own = own,
                .peers = RDMA_CREDIT_MIN,
                .idle_ns = idle_ns,
                .silence_ns = silence_ns,
                .heard_ns = now_ns,
        };
}

void rdma_credit_raise(struct rdma_credit *credit, uint32_t peers)
{
        credit->peers = peers;
}

bool rdma_credit_can_send(const struct rdma_credit *credit)
{
        return credit->sent - credit->returned < credit->peers;
}

void rdma_credit_sent(struct rdma_credit *credit)
{
        credit->sent++;
}

uint32_t rdma_credit_tell(struct rdma_credit *credit)
{
        credit->told = credit->taken;
        return credit->told;
}

void rdma_credit_heard(struct rdma_credit *credit, uint64_t now_ns)
{
        if (now_ns > credit->heard_ns)
                credit->heard_ns = now_ns;
}

int rdma_credit_returned(struct rdma_credit *credit, uint32_t returned)
{
        /* Neither more than was sent nor less than was told before. */
        if (returned - credit->returned > credit->sent - credit->returned)
                return RDMA_CREDIT_E_INVALID;
        credit->returned = returned;
        return 0;
}

int rdma_credit_received(struct rdma_credit *credit)
{
        if (credit->received - credit->told >= credit->own)
                return RDMA_CREDIT_E_INVALID;
        credit->received++;
        return 0;
}

void rdma_credit_taken(struct rdma_credit *credit)
{
        credit->taken++;
}

int rdma_credit_nudged(struct rdma_credit *credit)
{
        if (credit->owes_echo)
                return RDMA_CREDIT_E_INVALID;
        credit->owes_echo = true;
        return 0;
}

int rdma_credit_echoed(struct rdma_credit *credit)
{
        if (!credit->is_nudging)
                return RDMA_CREDIT_E_INVALID;
        credit->is_nudging = false;
        return 0;
}

bool rdma_credit_has_to_nudge(const struct rdma_credit *credit, uint64_t now_ns)
{
        if (credit->is_nudging)
                return false;
        return (credit->taken - credit->told) * 2 >= credit->own ||
               now_ns >= credit->heard_ns + credit->idle_ns;
}

void rdma_credit_nudge(struct rdma_credit *credit)
{
        credit->is_nudging = true;
}

bool rdma_credit_is_lost(const struct rdma_credit *credit, uint64_t now_ns)
{
        return now_ns >= credit->heard_ns + credit->silence_ns;
}

uint64_t rdma_credit_next_ns(const struct rdma_credit *credit)
{
        return credit->heard_ns + (credit->is_nudging ? credit->silence_ns : credit->idle_ns);
}
