/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_int.h - what the files of store/base and their tests share, and nobody else includes.
 */
#ifndef LARDER_STORE_BASE_INT_H
#define LARDER_STORE_BASE_INT_H

#include "store/base/base.h"

/* crc32c() by tables alone, whatever the processor has. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t len);

#endif
