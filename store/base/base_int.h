/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_int.h - what the files of store/base and their tests share, and nobody else includes.
 */
#ifndef LARDER_STORE_BASE_INT_H
#define LARDER_STORE_BASE_INT_H

#include "store/base/base.h"

/* crc32c() by tables alone, whatever the processor has. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t len);

/* ---- limits.c ---- */

/* As cpu_count() and memory_available(), reading SYSROOT/proc/... and SYSROOT/<cgroup mount>/... ("" in earnest). */
unsigned limits_cpu_quota(const char *sysroot); /* CPUs that the cgroups' quotas come to, rounded up; UINT_MAX: none */
uint64_t limits_memory_available(const char *sysroot);

#endif
