/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c - CRC32C (Castagnoli, reflected polynomial 0x82f63b78) and its concatenation.
 *
 * The CRC instruction takes three cycles but starts one each cycle, so a single dependent chain wastes two
 * thirds of it. A block is therefore read as three adjacent streams of `words` 8-byte words, and the three
 * CRCs are joined: moving a CRC over z zero bytes multiplies it by x^(8z) modulo P, which is a carry-less
 * multiplication by the constant x^(8z - 33) and one more CRC instruction, which multiplies by the x^33 that
 * is missing while it reduces ("Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", 2011).
 * There is a constant for every stream length up to 128 words, so that a record of any size down to a few
 * hundred bytes is split evenly, and one pair for long streams.
 *
 * Without such instructions: eight table look-ups for each eight bytes. The tables are linear in the index,
 * hence the compiler writes them from eight constants each.
 *
 * Pure functions, any thread. The choice is one test of a flag that libgcc fills before main().
 */
#include "store/base/base.h"
#include "store/base/base_int.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define CRC_HW_NAME "sse4.2 x3"
#define CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#elif defined(__aarch64__) && !defined(__clang__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_HW_NAME "armv8 x3"
#define CRC_TARGET __attribute__((target("+crc+crypto")))
#endif

#define POLY 0x82f63b78u

enum { STREAM_WORDS = 128, LONG_WORDS = 1024, ONE_STREAM_BYTES = 192 };

/* ---- tables ---- */

#define BIT(i, bit, v) (((i) >> (bit)&1) ? (v) : 0)
#define ENTRY(i, a, b, c, d, e, f, g, h)                                                             \
    (BIT(i, 0, a) ^ BIT(i, 1, b) ^ BIT(i, 2, c) ^ BIT(i, 3, d) ^ BIT(i, 4, e) ^ BIT(i, 5, f) ^       \
     BIT(i, 6, g) ^ BIT(i, 7, h))
#define FOUR(i, ...)                                                                                 \
    ENTRY((i), __VA_ARGS__), ENTRY((i) + 1, __VA_ARGS__), ENTRY((i) + 2, __VA_ARGS__),               \
        ENTRY((i) + 3, __VA_ARGS__)
#define SIXTEEN(i, ...)                                                                              \
    FOUR(i, __VA_ARGS__), FOUR((i) + 4, __VA_ARGS__), FOUR((i) + 8, __VA_ARGS__), FOUR((i) + 12, __VA_ARGS__)
#define QUARTER(i, ...)                                                                              \
    SIXTEEN(i, __VA_ARGS__), SIXTEEN((i) + 16, __VA_ARGS__), SIXTEEN((i) + 32, __VA_ARGS__),         \
        SIXTEEN((i) + 48, __VA_ARGS__)
#define TABLE(...)                                                                                   \
    {                                                                                                \
        QUARTER(0, __VA_ARGS__), QUARTER(64, __VA_ARGS__), QUARTER(128, __VA_ARGS__),                \
            QUARTER(192, __VA_ARGS__)                                                                \
    }

/* slice[k][i]: the CRC register after byte i and k zero bytes. Written as its values for i = 1, 2, 4 ... 128. */
static const uint32_t slice[8][256] = {
    TABLE(0xf26b8303u, 0xe13b70f7u, 0xc79a971fu, 0x8ad958cfu, 0x105ec76fu, 0x20bd8edeu, 0x417b1dbcu, 0x82f63b78u),
    TABLE(0x13a29877u, 0x274530eeu, 0x4e8a61dcu, 0x9d14c3b8u, 0x3fc5f181u, 0x7f8be302u, 0xff17c604u, 0xfbc3faf9u),
    TABLE(0xa541927eu, 0x4f6f520du, 0x9edea41au, 0x38513ec5u, 0x70a27d8au, 0xe144fb14u, 0xc76580d9u, 0x8b277743u),
    TABLE(0xdd45aab8u, 0xbf672381u, 0x7b2231f3u, 0xf64463e6u, 0xe964b13du, 0xd725148bu, 0xaba65fe7u, 0x52a0c93fu),
    TABLE(0x38116facu, 0x7022df58u, 0xe045beb0u, 0xc5670b91u, 0x8f2261d3u, 0x1ba8b557u, 0x37516aaeu, 0x6ea2d55cu),
    TABLE(0xef306b19u, 0xdb8ca0c3u, 0xb2f53777u, 0x6006181fu, 0xc00c303eu, 0x85f4168du, 0x0e045bebu, 0x1c08b7d6u),
    TABLE(0x68032cc8u, 0xd0065990u, 0xa5e0c5d1u, 0x4e2dfd53u, 0x9c5bfaa6u, 0x3d5b83bdu, 0x7ab7077au, 0xf56e0ef4u),
    TABLE(0x493c7d27u, 0x9278fa4eu, 0x211d826du, 0x423b04dau, 0x847609b4u, 0x0d006599u, 0x1a00cb32u, 0x34019664u),
};

uint32_t crc32c_table(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;

    crc = ~crc;
    for (; len >= 8; len -= 8, p += 8) {
        uint32_t lo = get_u32(p) ^ crc, hi = get_u32(p + 4);

        crc = slice[7][lo & 255] ^ slice[6][lo >> 8 & 255] ^ slice[5][lo >> 16 & 255] ^ slice[4][lo >> 24] ^
              slice[3][hi & 255] ^ slice[2][hi >> 8 & 255] ^ slice[1][hi >> 16 & 255] ^ slice[0][hi >> 24];
    }
    while (len--)
        crc = slice[0][(crc ^ *p++) & 255] ^ crc >> 8;
    return ~crc;
}

#ifdef CRC_HW_NAME

/* shift[j - 1] = x^(64 j - 33) modulo P, reflected: moves a CRC over j words. */
static const uint32_t shift[2 * STREAM_WORDS] = {
    0x00000001u, 0x493c7d27u, 0xf20c0dfeu, 0xba4fc28eu, 0x3da6d0cbu, 0xddc0152bu, 0x1c291d04u, 0x9e4addf8u,
    0x740eef02u, 0x39d3b296u, 0x083a6eecu, 0x0715ce53u, 0xc49f4f67u, 0x47db8317u, 0x2ad91c30u, 0x0d3b6092u,
    0x6992cea2u, 0xc96cfdc0u, 0x7e908048u, 0x878a92a7u, 0x1b3d8f29u, 0xdaece73eu, 0xf1d0f55eu, 0xab7aff2au,
    0xa87ab8a8u, 0x2162d385u, 0x8462d800u, 0x83348832u, 0x71d111a8u, 0x299847d5u, 0xffd852c6u, 0xb9e02b86u,
    0xdcb17aa4u, 0x18b33a4eu, 0xf37c5aeeu, 0xb6dd949bu, 0x6051d5a2u, 0x78d9ccb7u, 0x18b0d4ffu, 0xbac2fd7bu,
    0x21f3d99cu, 0xa60ce07bu, 0x8f158014u, 0xce7f39f4u, 0xa00457f7u, 0x61d82e56u, 0x8d6d2c43u, 0xd270f1a2u,
    0x00ac29cfu, 0xc619809du, 0xe9adf796u, 0x2b3cac5du, 0x96638b34u, 0x65863b64u, 0xe0e9f351u, 0x1b03397fu,
    0x9af01f2du, 0xebb883bdu, 0x2cff42cfu, 0xb3e32c28u, 0x88f25a3au, 0x064f7f26u, 0x4e36f0b0u, 0xdd7e3b0cu,
    0xbd6f81f8u, 0xf285651cu, 0x91c9bd4bu, 0x10746f3cu, 0x885f087bu, 0xc7a68855u, 0x4c144932u, 0x271d9844u,
    0x52148f02u, 0x8e766a0cu, 0xa3c6f37au, 0x93a5f730u, 0xd7c0557fu, 0x6cb08e5cu, 0x63ded06au, 0x6b749fb2u,
    0x4d56973cu, 0x1393e203u, 0x9669c9dfu, 0xcec3662eu, 0xe417f38au, 0x96c515bbu, 0x4b9e0f71u, 0xe6fc4e6au,
    0xd104b8fcu, 0x8227bb8au, 0x5b397730u, 0xb0cd4768u, 0xe78eb416u, 0x39c7ff35u, 0x61ff0e01u, 0xd7a4825cu,
    0x8d96551cu, 0x0ab3844bu, 0x0bf80dd2u, 0x0167d312u, 0x8821abedu, 0xf6076544u, 0x6a45d2b2u, 0x26f6a60au,
    0xd8d26619u, 0xa741c1bfu, 0xde87806cu, 0x98d8d9cbu, 0x14338754u, 0x49c3cc9cu, 0x5bd2011fu, 0x68bce87au,
    0xdd07448eu, 0x57a3d037u, 0xdde8f5b9u, 0x6956fc3bu, 0xa3e3e02cu, 0x42d98888u, 0xd73c7beau, 0x3771e98fu,
    0x80ff0093u, 0xb42ae3d9u, 0x8fe4c34du, 0x2178513au, 0xdf99fc11u, 0xe0ac139eu, 0x6c23e841u, 0x170076fau,
    0xfe314258u, 0x444dd413u, 0x0d8373a0u, 0x6f345e45u, 0x19e3635eu, 0x41d17b64u, 0x29f268b4u, 0xff0dba97u,
    0x1dc0632au, 0xa2b73df1u, 0x1614f396u, 0xf872e54cu, 0x9e2993d3u, 0x1e41e9fcu, 0x6bebd73cu, 0x86d8e4d2u,
    0x63ae91e6u, 0x651bd98bu, 0xf8c9da7au, 0x5bb8f1bcu, 0x945a19c1u, 0xa90fd27au, 0xee8213b7u, 0xb3af077au,
    0x93781dc7u, 0x4984d782u, 0xccc4a1b9u, 0xca6ef3acu, 0xa2c2d971u, 0x234e0b26u, 0x1cad4452u, 0xdd66cbbbu,
    0x74922601u, 0x4597456au, 0xc55f7eabu, 0xe9e28eb4u, 0xa1962329u, 0x7b3ff57au, 0x2d370749u, 0xc9c8b782u,
    0x397d84a1u, 0x3f70cc6fu, 0x79113270u, 0x93e106a4u, 0xbc817803u, 0x62ec6c6du, 0x88eb3c07u, 0xd813b325u,
    0x6e4cb630u, 0x0df04680u, 0x71971d5cu, 0x2342001eu, 0xf33b8bc6u, 0x0a2a8d7eu, 0x9fb3bbc0u, 0x6d9a4957u,
    0x6ef22b23u, 0xe8b6368bu, 0xce2df768u, 0xd2c3ed1au, 0xe53a4fc7u, 0x995a5724u, 0xbe60a91au, 0x9ef68d35u,
    0x1dfa0a15u, 0x0c139b31u, 0x8ec52396u, 0xf2271e60u, 0x0e766b11u, 0x0b0bf8cau, 0x475846a4u, 0x2664fd8bu,
    0xb2a3dfa6u, 0xed64812du, 0xdc1a160cu, 0x02ee03b2u, 0x79afdf1cu, 0x8604ae0fu, 0x07ac6e46u, 0x363bd6b3u,
    0x15f85253u, 0x135c83fdu, 0x1bec24ddu, 0x5fabe670u, 0x4c36cd5bu, 0x35ec3279u, 0xe0a22e29u, 0x00bcf5f6u,
    0x7c2b6ed9u, 0x8ae00689u, 0x06ff88fdu, 0x17f27698u, 0xf7317cf0u, 0x58ca5f00u, 0x61b6e40bu, 0xaa7c7ad5u,
    0xde8a97f8u, 0xb5cfca28u, 0x88f61445u, 0xded288f8u, 0xd4520e9eu, 0x59f229bcu, 0x0c592bd5u, 0x6d390decu,
    0x38edfaf3u, 0x37170390u, 0x72cbfcdbu, 0x6353c1ccu, 0x348331a5u, 0xc4584f5cu, 0xc3977c19u, 0xf48642e9u,
    0xdafaea7cu, 0x531377e2u, 0x73db4c04u, 0xdd35bc8du, 0x72675ce8u, 0xb25b29f2u, 0x3ec2ff83u, 0x9a5ede41u,
    0xe8c7a017u, 0xa563905du, 0xcf4bfaefu, 0x45cddf4eu, 0x6bde1ac7u, 0xacfa3103u, 0xae1175c2u, 0xa51b6135u,
};
static const uint32_t shift_long = 0x54a86326u, shift_long2 = 0x1dc403ccu; /* LONG_WORDS and twice as many */

#if defined(__x86_64__)

static inline bool hw_usable(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

CRC_TARGET static inline uint32_t hw_byte(uint32_t crc, uint8_t v)
{
    return _mm_crc32_u8(crc, v);
}

CRC_TARGET static inline uint32_t hw_word(uint32_t crc, uint64_t v)
{
    return (uint32_t)_mm_crc32_u64(crc, v);
}

CRC_TARGET static inline uint64_t hw_multiply(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);

    return (uint64_t)_mm_cvtsi128_si64(product);
}

#else

static inline bool hw_usable(void)
{
    unsigned long want = HWCAP_CRC32 | HWCAP_PMULL;

    return (getauxval(AT_HWCAP) & want) == want;
}

CRC_TARGET static inline uint32_t hw_byte(uint32_t crc, uint8_t v)
{
    return __crc32cb(crc, v);
}

CRC_TARGET static inline uint32_t hw_word(uint32_t crc, uint64_t v)
{
    return __crc32cd(crc, v);
}

CRC_TARGET static inline uint64_t hw_multiply(uint32_t a, uint32_t b)
{
    return (uint64_t)vmull_p64(a, b);
}

#endif

/* The register after three adjacent streams of `words` words at p; one and two move a CRC over 1 and 2 streams. */
CRC_TARGET static inline uint32_t hw_streams(uint32_t crc, const uint8_t *p, size_t words, uint32_t one,
                                             uint32_t two)
{
    const uint8_t *q = p + words * 8, *r = q + words * 8, *end = q;
    uint32_t b = 0, c = 0;

    for (; p < end; p += 8, q += 8, r += 8) {
        crc = hw_word(crc, get_u64(p));
        b = hw_word(b, get_u64(q));
        c = hw_word(c, get_u64(r));
    }
    return hw_word(0, hw_multiply(crc, two) ^ hw_multiply(b, one)) ^ c;
}

CRC_TARGET static uint32_t crc32c_hw(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;

    crc = ~crc;
    for (; len >= 24 * (size_t)LONG_WORDS; p += 24 * (size_t)LONG_WORDS, len -= 24 * (size_t)LONG_WORDS)
        crc = hw_streams(crc, p, LONG_WORDS, shift_long, shift_long2);
    while (len >= ONE_STREAM_BYTES) {
        size_t words = MIN(len / 24, (size_t)STREAM_WORDS);

        crc = hw_streams(crc, p, words, shift[words - 1], shift[2 * words - 1]);
        p += 24 * words;
        len -= 24 * words;
    }
    for (; len >= 8; p += 8, len -= 8)
        crc = hw_word(crc, get_u64(p));
    while (len--)
        crc = hw_byte(crc, *p++);
    return ~crc;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t len)
{
    return likely(hw_usable()) ? crc32c_hw(crc, data, len) : crc32c_table(crc, data, len);
}

const char *crc32c_impl(void)
{
    return hw_usable() ? CRC_HW_NAME : "table";
}

#else

uint32_t crc32c(uint32_t crc, const void *data, size_t len)
{
    return crc32c_table(crc, data, len);
}

const char *crc32c_impl(void)
{
    return "table";
}

#endif

/* ---- concatenation ---- */

/* a * b modulo P; both reflected: bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        if (a >> 31)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? POLY : 0);
    }
    return product;
}

/* crc(A||B) = crc(A) * x^(8 len_b) + crc(B); the power by repeated squaring. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    uint32_t square = (uint32_t)1 << 23; /* x^8 */

    for (; len_b; len_b >>= 1, square = multiply(square, square))
        if (len_b & 1)
            crc_a = multiply(square, crc_a);
    return crc_a ^ crc_b;
}
