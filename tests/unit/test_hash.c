/* SPDX-License-Identifier: Apache-2.0 */
/* The other side of the comparison is libxxhash, called as a library: hash.c has the algorithm compiled in. */
#include <xxhash.h>

#include "store/base/base.h"
#include "tests/unit/test.h"

TEST(published_values)
{
    CHECK_EQ(hash64(0, "", 0), 0x2d06800538d394c2u);
    CHECK_EQ(hash64(0, NULL, 0), 0x2d06800538d394c2u);
    CHECK_EQ(hash64(0, "a", 1), 0xe6c632b61e964e1fu);
    CHECK_EQ(hash64(0, "abc", 3), 0x78af5f94892f3950u);
}

TEST(agrees_with_the_library)
{
    static uint8_t data[5000];
    uint64_t state = 5;

    rng_fill(&state, data, sizeof(data));
    for (size_t len = 0; len <= sizeof(data); len += len < 600 ? 1 : 37) {
        uint64_t seed = rng_u64(&state);
        CHECK_EQ(hash64(seed, data, len), XXH3_64bits_withSeed(data, len, seed));
        CHECK_EQ(hash64(0, data, len), XXH3_64bits(data, len));
    }
}

TEST(alignment_does_not_matter)
{
    static uint8_t data[1100], moved[1200];
    uint64_t state = 6;

    rng_fill(&state, data, sizeof(data));
    for (size_t shift = 0; shift < 64; shift++) {
        memcpy(moved + shift, data, sizeof(data));
        CHECK_EQ(hash64(9, moved + shift, sizeof(data)), hash64(9, data, sizeof(data)));
    }
}

TEST(seed_and_every_bit_count)
{
    uint8_t data[64] = {0};
    uint64_t plain = hash64(1, data, sizeof(data));

    CHECK(hash64(2, data, sizeof(data)) != plain);
    for (size_t bit = 0; bit < 8 * sizeof(data); bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(hash64(1, data, sizeof(data)) != plain);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST_MAIN();
