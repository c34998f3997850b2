/* The matrix tiles of AMX and vectors of 16 numbers in bf16, where there are both: then TILED is defined. */
#pragma once
#include "numbers.h"

#if defined(BF16) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__) && D % 32 == 0
#define TILED
#include <immintrin.h>

#define TILE_NUMBERS 512
#define ROUND(x) (((x) + 31) / 32 * 32)

/* Every tile is 16 lines of 64 bytes. */
static inline void configure(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t columns[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.columns[tile] = 64;
        config.rows[tile] = 16;
    }
    _tile_loadconfig(&config);
}

/* 0, step, 2 step, ... */
static inline __m512i steps(int64_t step) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)step));
}

#define LOG2_E 1.44269504f

/* 2^x for x <= 0, relative error below 3e-7; but 0 where that is lost in any sum: numbers too small for a normal exponent
 * are slow, above all to round. */
static inline __m512 power_of_two(__m512 x) {
    const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-92.0f), _CMP_GE_OQ);
    __m512 whole = _mm512_roundscale_ps(x, 0), rest = _mm512_sub_ps(x, whole);
    __m512 sum = _mm512_set1_ps(1.5403530e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.3333558e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(9.6181291e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.5504109e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.4022651e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.9314718e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(counts, sum, whole);
}

static inline void put_lanes(number *to, __m512 x) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x));
}
#endif
