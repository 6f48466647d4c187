/* What the compiled modules share: numbers as they are laid out, CRC-32, and the parts of one message.
 *
 * All of it is static: each module has its own copy, and calls `prepare_crc` when it is loaded.
 */
#ifndef LAKEMQ_MESSAGE_H
#define LAKEMQ_MESSAGE_H
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the tables below are for little-endian machines; elsewhere the definitions in Python serve"
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_CARRYLESS 1
#include <immintrin.h>
#endif

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v);
}
static inline void put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

/* ---- CRC-32, the polynomial of zlib ------------------------------------------------------------------------------ */

static uint32_t crc_table[8][256];

static void make_crc_tables(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        crc_table[0][n] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t n = 0; n < 256; n++)
            crc_table[k][n] = crc_table[0][crc_table[k - 1][n] & 0xFF] ^ crc_table[k - 1][n] >> 8;
}

/* Eight bytes a step. `c` is the inverted state. */
static uint32_t crc_by_table(uint32_t c, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4); memcpy(&high, p + 4, 4);
        low ^= c;
        c = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
            crc_table[4][low >> 24] ^ crc_table[3][high & 0xFF] ^ crc_table[2][high >> 8 & 0xFF] ^
            crc_table[1][high >> 16 & 0xFF] ^ crc_table[0][high >> 24];
        p += 8; n -= 8;
    }
    if (n >= 4) {
        uint32_t four;
        memcpy(&four, p, 4);
        four ^= c;
        c = crc_table[3][four & 0xFF] ^ crc_table[2][four >> 8 & 0xFF] ^ crc_table[1][four >> 16 & 0xFF] ^ crc_table[0][four >> 24];
        p += 4; n -= 4;
    }
    while (n--) c = crc_table[0][(c ^ *p++) & 0xFF] ^ c >> 8;
    return c;
}

#ifdef HAS_CARRYLESS
static int has_carryless, has_wide_carryless;

/* x^e mod P, bit-reflected, as folding constants: how far 128 bits are carried over e bits of message. */
static uint64_t fold_constant(unsigned e) {
    uint32_t r = 0x80000000u; /* 1, reflected */
    for (unsigned i = 0; i < e; i++) r = r & 1 ? r >> 1 ^ 0xEDB88320u : r >> 1;
    return (uint64_t)r << 1;
}

static uint64_t fold_1024_low, fold_1024_high, fold_512_low, fold_512_high;
static uint64_t fold_256_low, fold_256_high, fold_128_low, fold_128_high;

static void make_fold_constants(void) {
    fold_512_low = fold_constant(512 + 32); fold_512_high = fold_constant(512 - 32);
    fold_128_low = fold_constant(128 + 32); fold_128_high = fold_constant(128 - 32);
    fold_256_low = fold_constant(256 + 32); fold_256_high = fold_constant(256 - 32);
    fold_1024_low = fold_constant(1024 + 32); fold_1024_high = fold_constant(1024 - 32);
}

__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i x, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Folds 64 bytes at a time into 16, which the table then finishes. n must be 64 at least. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_folding(uint32_t c, const uint8_t *p, size_t n) {
    const __m128i *q = (const __m128i *)p;
    __m128i a = _mm_loadu_si128(q), b = _mm_loadu_si128(q + 1), d = _mm_loadu_si128(q + 2), e = _mm_loadu_si128(q + 3);
    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)c));
    __m128i by = _mm_set_epi64x((long long)fold_512_high, (long long)fold_512_low);
    p += 64; n -= 64;
    while (n >= 64) {
        q = (const __m128i *)p;
        a = fold(a, by, _mm_loadu_si128(q)); b = fold(b, by, _mm_loadu_si128(q + 1));
        d = fold(d, by, _mm_loadu_si128(q + 2)); e = fold(e, by, _mm_loadu_si128(q + 3));
        p += 64; n -= 64;
    }
    by = _mm_set_epi64x((long long)fold_128_high, (long long)fold_128_low);
    a = fold(a, by, b); a = fold(a, by, d); a = fold(a, by, e);
    while (n >= 16) {
        a = fold(a, by, _mm_loadu_si128((const __m128i *)p));
        p += 16; n -= 16;
    }
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return crc_by_table(crc_by_table(0, rest, 16), p, n);
}

/* The same with 256 bits a step, for what is large: 128 bytes at a time. n must be 256 at least. */
__attribute__((target("avx2,vpclmulqdq"))) static inline __m256i fold_wide(__m256i x, __m256i by, __m256i next) {
    __m256i low = _mm256_clmulepi64_epi128(x, by, 0x00), high = _mm256_clmulepi64_epi128(x, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

__attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1"))) static uint32_t crc_by_wide_folding(
    uint32_t c, const uint8_t *p, size_t n) {
    const __m256i *q = (const __m256i *)p;
    __m256i a = _mm256_loadu_si256(q), b = _mm256_loadu_si256(q + 1);
    __m256i d = _mm256_loadu_si256(q + 2), e = _mm256_loadu_si256(q + 3);
    a = _mm256_xor_si256(a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)c)));
    __m256i by = _mm256_set_epi64x((long long)fold_1024_high, (long long)fold_1024_low, (long long)fold_1024_high,
                                   (long long)fold_1024_low);
    p += 128; n -= 128;
    while (n >= 128) {
        q = (const __m256i *)p;
        a = fold_wide(a, by, _mm256_loadu_si256(q)); b = fold_wide(b, by, _mm256_loadu_si256(q + 1));
        d = fold_wide(d, by, _mm256_loadu_si256(q + 2)); e = fold_wide(e, by, _mm256_loadu_si256(q + 3));
        p += 128; n -= 128;
    }
    by = _mm256_set_epi64x((long long)fold_256_high, (long long)fold_256_low, (long long)fold_256_high,
                           (long long)fold_256_low);
    a = fold_wide(a, by, b); a = fold_wide(a, by, d); a = fold_wide(a, by, e);
    __m128i narrow = _mm_set_epi64x((long long)fold_128_high, (long long)fold_128_low);
    __m128i x = fold(_mm256_castsi256_si128(a), narrow, _mm256_extracti128_si256(a, 1));
    for (; n >= 16; p += 16, n -= 16) x = fold(x, narrow, _mm_loadu_si128((const __m128i *)p));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, x);
    return crc_by_table(crc_by_table(0, rest, 16), p, n);
}
#endif

static uint32_t crc32_of(uint32_t value, const uint8_t *p, size_t n) {
    uint32_t c = ~value;
#ifdef HAS_CARRYLESS
    if (has_wide_carryless && n >= 256) return ~crc_by_wide_folding(c, p, n);
    if (has_carryless && n >= 64) return ~crc_by_folding(c, p, n);
#endif
    return ~crc_by_table(c, p, n);
}

/* ---- one message -------------------------------------------------------------------------------------------------- */

enum {
    PARTITION = 4, INDEX = 6, TERM = 14, SYSTEM_CODE = 18, SEND_TIME = 21, STORE_TIME = 29, CRC = 33, FLAG = 41,
    BODY = 43, BYTES_MIN = 57,
    COMPRESSED = 0x0001, COMPRESSION = 0x0070, VERSION_AND_RESERVED = 0xEF00, VERSION_1 = 0x0100, BATCH = 0x1000,
    COMPRESSION_NUMBER_MAX = 4, BUSINESS_ID_CHARACTERS_MAX = 100, NAME_BYTES_MAX = 127,
};

/* Where the variable parts of a message lie. */
typedef struct {
    int64_t length, body_bytes, business_id, business_id_bytes, attributes, attributes_bytes, app, app_bytes;
} Parts;

static inline int64_t not_negative(int64_t n) { return n < 0 ? 0 : n; }

/* 1 if the parts add up to the length, which ends within `left`. */
static inline int find_parts(const uint8_t *m, int64_t left, Parts *parts) {
    if (left < BYTES_MIN) return 0;
    int64_t length = (int32_t)get32(m);
    if (length < BYTES_MIN || length > left) return 0;
    int64_t at = BODY;
    parts->length = length;
    parts->body_bytes = not_negative((int32_t)get32(m + at));
    at += 4 + parts->body_bytes;
    if (at > length - 10) return 0;
    parts->business_id = at + 2;
    parts->business_id_bytes = not_negative((int16_t)get16(m + at));
    at += 2 + parts->business_id_bytes;
    if (at > length - 8) return 0;
    parts->attributes = at + 2;
    parts->attributes_bytes = not_negative((int16_t)get16(m + at));
    at += 2 + parts->attributes_bytes;
    if (at > length - 6) return 0;
    at += 4 + not_negative((int32_t)get32(m + at));
    if (at > length - 2) return 0;
    parts->app = at + 2;
    parts->app_bytes = not_negative((int16_t)get16(m + at));
    return at + 2 + parts->app_bytes == length;
}

/* The number of characters, or -1 if it is not UTF-8 as Python has it: no overlong forms, no surrogates. */
static int64_t utf8_characters(const uint8_t *p, int64_t n) {
    int64_t count = 0;
    const uint8_t *end = p + n;
    while (p < end) {
        while (end - p >= 8) {
            uint64_t eight;
            memcpy(&eight, p, 8);
            if (eight & 0x8080808080808080ull) break;
            p += 8; count += 8;
        }
        if (p == end) break;
        uint8_t first = *p++;
        count++;
        if (first < 0x80) continue;
        int more = first >= 0xC2 && first <= 0xDF ? 1 : (first & 0xF0) == 0xE0 ? 2 : first >= 0xF0 && first <= 0xF4 ? 3 : 0;
        if (!more || end - p < more) return -1;
        uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high) return -1;
        for (int k = 1; k < more; k++)
            if ((p[k] & 0xC0) != 0x80) return -1;
        p += more;
    }
    return count;
}

static void prepare_crc(void) {
    make_crc_tables();
#ifdef HAS_CARRYLESS
    __builtin_cpu_init();
    has_carryless = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    has_wide_carryless = has_carryless && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2");
    make_fold_constants();
#endif
}
#endif
