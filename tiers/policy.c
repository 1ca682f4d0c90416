/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - what a cache does with a record that it does not hold: pure, so that a simulator runs the same code.
 *
 * Without replacement (MinIO, CoorDL 6.1) records come in while there is room; the first that finds none closes admission,
 * so that which records are held never depends on who asks next. A record that could not lie in the empty cache
 * says nothing about room and closes nothing. FIFO (DELI) makes room by evicting what came first.
 */
#include "tiers/cache_int.h"

enum policy_act policy_admit(enum replacement replacement, bool closed, uint64_t need, uint64_t room, uint64_t whole)
{
    if (need > whole)
        return POLICY_REFUSE;
    if (replacement == REPLACE_FIFO)
        return need <= room ? POLICY_ADMIT : POLICY_EVICT;
    if (closed)
        return POLICY_REFUSE;
    return need <= room ? POLICY_ADMIT : POLICY_CLOSE;
}
