/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/larder.h"
#include "tests/unit/test.h"

TEST(names)
{
    CHECK_STR(larder_code_name(LARDER_ENOTFOUND), "not found");
    CHECK_STR(larder_code_name(LARDER_OK), "ok");
    CHECK_STR(larder_code_name(-99), "unknown code");
    for (int c = LARDER_EFORK; c <= LARDER_END; c++)
        CHECK(strcmp(larder_code_name(c), "unknown code") != 0);
    CHECK_STR(larder_version(), LARDER_VERSION);
    CHECK_STR(larder_type_name(LARDER_IMAGE), "image");
    CHECK_STR(larder_type_name(LARDER_NDARRAY), "ndarray");
    CHECK(larder_type_name(0) == NULL && larder_type_name(11) == NULL && larder_type_name(-1) == NULL);
    CHECK_EQ(larder_hash64(0, "", 0), 0x2d06800538d394c2ull); /* XXH3's own test vector */
    CHECK(larder_hash64(1, "abc", 3) != larder_hash64(2, "abc", 3));
}

TEST_MAIN();
