/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_device.c - a cache registered with a real device: the driver takes every record for pinned memory, and copies all of them
 * to the device and back in one piece each. Skipped without a driver or a device.
 */
#include <dlfcn.h>
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/dram_int.h"
#include "tiers/stack_int.h"

#define HOST_MEMORY 1u /* CU_MEMORYTYPE_HOST */
#define MEMORY_TYPE 2  /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */

static struct {
    int (*init)(unsigned), (*count)(int *), (*get)(int *, int), (*retain)(void **, int), (*release)(int), (*push)(void *);
    int (*attribute)(void *, int, unsigned long long), (*alloc)(unsigned long long *, size_t), (*free)(unsigned long long);
    int (*to_device)(unsigned long long, const void *, size_t, void *), (*to_host)(void *, unsigned long long, size_t), (*synchronize)(void);
} cu;

static void find_device(void)
{
    static const struct { const char *name; void *at; } calls[] = {
        {"cuInit", &cu.init}, {"cuDeviceGetCount", &cu.count}, {"cuDeviceGet", &cu.get}, {"cuDevicePrimaryCtxRetain", &cu.retain},
        {"cuDevicePrimaryCtxRelease_v2", &cu.release}, {"cuCtxPushCurrent_v2", &cu.push}, {"cuPointerGetAttribute", &cu.attribute},
        {"cuMemAlloc_v2", &cu.alloc}, {"cuMemFree_v2", &cu.free}, {"cuMemcpyHtoDAsync_v2", &cu.to_device}, {"cuMemcpyDtoH_v2", &cu.to_host},
        {"cuCtxSynchronize", &cu.synchronize},
    };
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    int n = 0;
    if (!lib)
        TEST_SKIP("no libcuda.so.1 on this machine");
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        void *f = dlsym(lib, calls[i].name);
        REQUIRE(f != NULL);
        memcpy(calls[i].at, &f, sizeof f);
    }
    if (cu.init(0) != 0 || cu.count(&n) != 0 || n == 0)
        TEST_SKIP("libcuda.so.1 finds no device");
}

static uint8_t record[6 << 20], back[6 << 20];

static uint32_t length(uint64_t ordinal) { return ordinal % 50 == 49 ? 5000000 : 90000 + (uint32_t)(ordinal * 7919 % 60000); }

static void content(uint64_t ordinal)
{
    uint64_t seed = ordinal;
    rng_fill(&seed, record, length(ordinal));
}

static struct larder_cache_stats stats_of(const struct tiers_cache *c)
{
    struct larder_cache_stats s;
    tiers_cache_stats(c, &s);
    return s;
}

static void wait_registered(const struct tiers_cache *c, uint64_t bytes)
{
    const struct timespec nap = {0, 5000000};
    for (int i = 0; i < 12000 && stats_of(c).registered_bytes < bytes; i++)
        nanosleep(&nap, NULL);
    CHECK_EQ(stats_of(c).registered_bytes, bytes);
}

static void copy_all(struct tiers_cache *c, uint32_t space, uint64_t n)
{
    unsigned long long device;
    REQUIRE_EQ(cu.alloc(&device, sizeof record), 0);
    for (uint64_t o = 0; o < n; o++) {
        const void *view;
        struct extent e;
        unsigned type[2] = {0};
        REQUIRE_EQ(dram_lookup(c->dram, space, &o, 1, &e, &view, NULL, NULL), 1);
        unsigned long long at = (uintptr_t)view;
        CHECK_EQ(cu.attribute(type, MEMORY_TYPE, at), 0);
        CHECK_EQ(type[0], HOST_MEMORY); /* of memory that it does not know, the driver says an error */
        CHECK_EQ(cu.attribute(type, MEMORY_TYPE, at + e.stored_len - 1), 0);
        CHECK_EQ(cu.to_device(device, view, e.stored_len, NULL), 0);
        CHECK_EQ(cu.synchronize(), 0);
        CHECK_EQ(cu.to_host(back, device, e.stored_len), 0);
        content(o);
        CHECK_MEM(back, record, length(o));
    }
    CHECK_EQ(cu.free(device), 0);
}

static void fill_and_copy(int cuda_device)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct cache_space s = {.uuid = "dataset", .lineage = "one"};
    struct larder_error err;
    struct tiers_cache *c;
    uint32_t space;
    uint64_t n = 0;
    o.name = NULL;
    o.dram_bytes = 128 * MIB;
    o.cuda_device = cuda_device;
    REQUIRE_OK(tiers_cache_open(&o, &c, &err), &err);
    REQUIRE_OK(dram_space(c->dram, &s, &space, &err), &err);
    for (;; n++) {
        content(n);
        struct cached r = {record, length(n), length(n), 0, 0};
        if (dram_admit(c->dram, space, n, &r, NULL) != LARDER_OK)
            break;
    }
    dram_register(c->dram);
    wait_registered(c, (uint32_t)atomic_load(&c->dram->h->alloc) * ARENA_PAGE);
    for (size_t i = 0; tiers_cache_warning(c, i); i++)
        CHECK(strstr(tiers_cache_warning(c, i), "CUDA") == NULL);
    copy_all(c, space, n);
    tiers_cache_close(c);
}

TEST(every_record_is_pinned_and_copied)
{
    void *context;
    int device;
    find_device();
    REQUIRE_EQ(cu.get(&device, 0), 0);
    REQUIRE_EQ(cu.retain(&context, device), 0);
    REQUIRE_EQ(cu.push(context), 0);
    fill_and_copy(LARDER_CUDA_IF_USED);
    fill_and_copy(LARDER_CUDA_DEVICE(0));
    CHECK_EQ(cu.release(device), 0);
}

TEST_MAIN();
