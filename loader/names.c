/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c - the parts of larder.h that need no handle: names of codes and types, the version, the hash.
 *
 * Apart from api.c because the lower layers name types in their messages, and a program that uses only those should not
 * link all of the library. Pure.
 */
#include "store/base/base.h"

const char *larder_code_name(int code)
{
    switch (code) {
    case LARDER_END: return "end";
    case LARDER_OK: return "ok";
    case LARDER_EINVAL: return "invalid argument";
    case LARDER_ENOMEM: return "out of memory";
    case LARDER_EIO: return "input/output error";
    case LARDER_ENOTFOUND: return "not found";
    case LARDER_EEXIST: return "exists already";
    case LARDER_ECORRUPT: return "corrupt";
    case LARDER_EVERSION: return "unsupported version";
    case LARDER_EBUSY: return "busy";
    case LARDER_EREMOTE: return "refused by the server";
    case LARDER_ETIMEOUT: return "timed out";
    case LARDER_ECANCELED: return "canceled";
    case LARDER_EFORK: return "used after fork";
    default: return "unknown code";
    }
}

const char *larder_version(void)
{
    return LARDER_VERSION;
}

uint64_t larder_hash64(uint64_t seed, const void *data, size_t len)
{
    return hash64(seed, data, len);
}

const char *larder_type_name(int type)
{
    static const char *const names[] = {NULL, "bytes", "image", "audio", "utf8", "json", "i64", "f64", "f32", "bool", "ndarray"};

    return type > 0 && (size_t)type < ARRAY_LEN(names) ? names[type] : NULL;
}
