/* Products with weights of linear layers, in bf16 with the matrix tiles of AMX, and what a decoder does just before and
 * after them: norms, sums and gates, on numbers that are in registers or near. Compiled with kernels.c.
 *
 * Few rows read a weight once, and that is what such a product costs: it lies in the order in which it is read, and what
 * comes next is fetched ahead.
 */
#include "tiles.h"

#ifdef TILED
#include <stdlib.h>

#define ROWS 512 /* taken together: their inputs stay in the second cache while the weight passes by */
#define AHEAD (8 * TILE_NUMBERS)

/* weight [lines, size] to tiles [lines / 32, size / 32, 2, 16, 32]: those of 32 lines follow each other in the order of
 * their numbers, each the right side of a product. Both sizes are multiples of 32. */
void pack(const number *weight, number *packed, int64_t lines, int64_t size) {
    const __m512i apart = steps(size / 2);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < lines; n += 32) {
        number *to = packed + n * size;
        for (int64_t k = 0; k < size; k += 32)
            for (int64_t half = 0; half < 32; half += 16)
                for (int64_t p = 0; p < 32; p += 2, to += 32)
                    _mm512_storeu_si512(to, _mm512_i32gather_epi32(apart, weight + (n + half) * size + k + p, 4));
    }
}

/* Tiles 0 to 3 become a [32, size] times 32 lines of the weight; `first` says whether these were not read before. */
static inline void block(const number *a, int64_t size, const number *weight, int first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < size; k += 32, weight += 2 * TILE_NUMBERS) {
        if (first)
            for (int line = 0; line < 32; line++) _mm_prefetch((const char *)(weight + AHEAD) + 64 * line, _MM_HINT_T0);
        _tile_loadd(4, a + k, 2 * size);
        _tile_loadd(6, weight, 64);
        _tile_loadd(7, weight + TILE_NUMBERS, 64);
        _tile_loadd(5, a + 16 * size + k, 2 * size);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static inline __m512 lanes_of(const number *from) {
    __m256i read = _mm256_loadu_si256((const __m256i *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(read), 16));
}

/* SiLU of x, times y. */
static inline __m512 gated_lanes(__m512 x, __m512 y) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 small = power_of_two(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-LOG2_E)));
    __m512 above = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), one, small);
    return _mm512_mul_ps(_mm512_div_ps(_mm512_mul_ps(x, above), _mm512_add_ps(one, small)), y);
}

/* Where a block of the result goes: `count` of its lines, `width` numbers from one to the next. */
struct result { number *out; const number *other, *bias; int64_t width, count; };

/* What `block` left: tile 2 i + j has lines 16 i and columns 16 j on. */
typedef float sums[4][16][16] __attribute__((aligned(64)));

static inline void take_sums(sums to) {
    _tile_stored(0, to[0], 64);
    _tile_stored(1, to[1], 64);
    _tile_stored(2, to[2], 64);
    _tile_stored(3, to[3], 64);
}

/* The block that `block` left, from column n of the products on: rounded after what is added to it. */
static inline void put_block(struct result to, int64_t n) {
    sums found;
    take_sums(found);
    for (int64_t m = 0; m < to.count; m++)
        for (int half = 0; half < 2; half++) {
            int64_t column = n + 16 * half;
            __m512 x = _mm512_load_ps(found[m / 16 * 2 + half][m % 16]);
            if (to.bias) x = _mm512_add_ps(x, lanes_of(to.bias + column));
            if (to.other) x = _mm512_add_ps(x, lanes_of(to.other + m * to.width + column));
            put_lanes(to.out + m * to.width + column, x);
        }
}

/* The same where the weight's lines come as 16 gates, then 16 inputs: one number of the result of each two. */
static inline void put_gated(struct result to, int64_t n) {
    sums found;
    take_sums(found);
    for (int64_t m = 0; m < to.count; m++) {
        __m512 gates = _mm512_load_ps(found[m / 16 * 2][m % 16]), rest = _mm512_load_ps(found[m / 16 * 2 + 1][m % 16]);
        if (to.bias) {
            gates = _mm512_add_ps(gates, lanes_of(to.bias + n));
            rest = _mm512_add_ps(rest, lanes_of(to.bias + n + 16));
        }
        put_lanes(to.out + m * to.width + n / 2, gated_lanes(gates, rest));
    }
}

/* x [tokens, size], passed through an RMSNorm first where norm_weight is given, times a weight of `lines` lines that `pack`
 * laid out: out [tokens, lines], or with `gated` [tokens, lines / 2]. bias [lines] and other [tokens, lines], or NULL, are
 * added. */
void linear(const number *x, const number *norm_weight, float epsilon, const number *packed, const number *bias,
            const number *other, number *out, int64_t tokens, int64_t size, int64_t lines, int64_t gated) {
    const int64_t width = gated ? lines / 2 : lines, whole = tokens / 32 * 32;
    /* Lines of a block that is not full are copied; what lies after them is computed with and thrown away. */
    const int64_t from = norm_weight ? 0 : whole;
    number *room = aligned_alloc(64, (ROUND(tokens) - from) * size * sizeof *room + 64);
#pragma omp parallel
    {
        configure();
#pragma omp for schedule(static)
        for (int64_t m = from; m < tokens; m++) {
            if (norm_weight) norm(x + m * size, norm_weight, room + m * size, size, epsilon);
            else memcpy(room + (m - from) * size, x + m * size, size * sizeof *room);
        }
        for (int64_t rows = 0; rows < tokens; rows += ROWS) {
            int64_t end = tokens - rows < ROWS ? tokens : rows + ROWS;
#pragma omp for schedule(static) nowait
            for (int64_t n = 0; n < lines; n += 32)
                for (int64_t m = rows; m < end; m += 32) {
                    const number *a = m >= from ? room + (m - from) * size : x + m * size;
                    struct result to = {out + m * width, other ? other + m * width : NULL, bias, width,
                                        end - m < 32 ? end - m : 32};
                    block(a, size, packed + n * size, m == rows);
                    if (gated) put_gated(to, n);
                    else put_block(to, n);
                }
        }
        _tile_release();
    }
    free(room);
}
#endif
