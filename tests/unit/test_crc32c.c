/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_crc32c.c - CRC32C against published vectors and a bit at a time, both implementations, and concatenation.
 */
#include "store/base/base.h"
#include "store/base/base_int.h"
#include "tests/unit/test.h"

static uint32_t by_bits(uint32_t crc, const uint8_t *p, size_t len)
{
    crc = ~crc;
    while (len--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

typedef uint32_t crc_fn(uint32_t crc, const void *data, size_t len);
static crc_fn *const implementations[] = {crc32c, crc32c_table};

TEST(published_vectors)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    /* An iSCSI read command (RFC 3720, B.4). */
    static const uint8_t command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                        0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                        0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};

    memset(ones, 255, sizeof(ones));
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    for (size_t i = 0; i < ARRAY_LEN(implementations); i++) {
        crc_fn *crc = implementations[i];

        CHECK_EQ(crc(0, "", 0), 0);
        CHECK_EQ(crc(0, NULL, 0), 0);
        CHECK_EQ(crc(0, "a", 1), 0xc1d04330u);
        CHECK_EQ(crc(0, "123456789", 9), 0xe3069283u);
        CHECK_EQ(crc(0, zeros, 32), 0x8a9136aau);
        CHECK_EQ(crc(0, ones, 32), 0x62a8ab43u);
        CHECK_EQ(crc(0, up, 32), 0x46dd794eu);
        CHECK_EQ(crc(0, down, 32), 0x113fdb5cu);
        CHECK_EQ(crc(0, command, 48), 0xd9963a56u);
    }
}

TEST(every_length_and_alignment)
{
    static uint8_t data[2064];
    uint64_t seed = 1;

    rng_fill(&seed, data, sizeof(data));
    for (size_t len = 0; len <= 2000; len++) {
        const uint8_t *p = data + len % 17;
        uint32_t begin = len % 3 ? (uint32_t)rng_u64(&seed) : 0, want = by_bits(begin, p, len);

        if (crc32c(begin, p, len) != want || crc32c_table(begin, p, len) != want) {
            CHECK_EQ(crc32c(begin, p, len), want);
            CHECK_EQ(crc32c_table(begin, p, len), want);
            CHECK_EQ(len, -1);
            return;
        }
    }
}

/* Lengths around the joints of streams: 24 bytes times 8, 128 (3 KiB) and 1024 (24 KiB), and whole shard-like sizes. */
TEST(long_inputs)
{
    static const size_t around[] = {192, 3072, 6144, 24576, 24576 + 3072, 49152, 110000, 262144};
    size_t cap = 262144 + 128;
    AUTO_FREE uint8_t *data = malloc(cap);
    uint64_t seed = 2;

    REQUIRE(data != NULL);
    rng_fill(&seed, data, cap);
    for (size_t i = 0; i < ARRAY_LEN(around); i++)
        for (size_t len = around[i] - 30; len < around[i] + 30; len++) {
            size_t off = len % 9;

            REQUIRE_EQ(crc32c(5, data + off, len), crc32c_table(5, data + off, len));
        }
    CHECK_EQ(crc32c_table(9, data, 50000), by_bits(9, data, 50000));
}

TEST(continued_at_every_point)
{
    uint8_t data[1500];
    uint64_t seed = 3;
    uint32_t whole;

    rng_fill(&seed, data, sizeof(data));
    whole = by_bits(0, data, sizeof(data));
    for (size_t cut = 0; cut <= sizeof(data); cut++) {
        REQUIRE_EQ(crc32c(crc32c(0, data, cut), data + cut, sizeof(data) - cut), whole);
        REQUIRE_EQ(crc32c_table(crc32c_table(0, data, cut), data + cut, sizeof(data) - cut), whole);
    }
}

TEST(concatenation)
{
    static uint8_t data[40000];
    uint64_t seed = 4;

    rng_fill(&seed, data, sizeof(data));
    for (int i = 0; i < 2000; i++) {
        size_t len = rng_below(&seed, i < 1000 ? 40 : sizeof(data)), cut = rng_below(&seed, len + 1);
        uint32_t a = crc32c(0, data, cut), b = crc32c(0, data + cut, len - cut);

        REQUIRE_EQ(crc32c_combine(a, b, len - cut), crc32c(0, data, len));
    }
    CHECK_EQ(crc32c_combine(0x12345678, 0, 0), 0x12345678);
    CHECK_EQ(crc32c_combine(0, 0x12345678, 99), 0x12345678);
}

/* Lengths that no buffer has: combining is associative, whatever the split. */
TEST(concatenation_of_huge_parts)
{
    uint64_t seed = 5;

    for (int i = 0; i < 200; i++) {
        uint32_t a = (uint32_t)rng_u64(&seed), b = (uint32_t)rng_u64(&seed), c = (uint32_t)rng_u64(&seed);
        uint64_t len_b = rng_u64(&seed) >> (1 + rng_below(&seed, 40)), len_c = rng_u64(&seed) >> 1;
        uint32_t left = crc32c_combine(crc32c_combine(a, b, len_b), c, len_c);

        REQUIRE_EQ(left, crc32c_combine(a, crc32c_combine(b, c, len_c), len_b + len_c));
    }
}

TEST(implementation_has_a_name)
{
    const char *name = crc32c_impl();

#if defined(__x86_64__)
    bool fast = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");

    CHECK_STR(name, fast ? "sse4.2 x3" : "table");
#else
    CHECK(name && *name);
#endif
}

TEST_MAIN();
