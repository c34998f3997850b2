/* Attention of many queries, and its gradients, in bf16 with the matrix tiles of AMX. Compiled with kernels.c.
 *
 * Scores, weights and sums are float32; weights are rounded to bf16 where they enter a product, as are the gradients of
 * scores. A block of queries is held against all keys at once, so there is no running maximum to correct.
 *
 * R rows, K key/value heads, Q queries of each, S keys; D size of heads.
 */
#include "tiles.h"

#ifdef TILED
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define QUERIES 32 /* in a block */
#define LEFT(count) ((__mmask16)((count) >= 16 ? 0xffff : (count) > 0 ? (1u << (count)) - 1 : 0)) /* of 16 lanes */

/* Whether the system lets this process use tiles; Linux wants to be asked. */
int tiles(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0; }

/* Numbers of two rows in turn, as a tile on the right of `product` has them. */
static inline __m512i side_by_side(__m256i first, __m256i second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

/* c [m, n] = a [m, k] b, or added to what c holds. All of m, n, k are multiples of 32. `b` [long, n], of which the first k
 * lines are taken, lies in tiles of 32 by 16 numbers, each with pairs of numbers from one column side by side: line k of
 * column n is in tile (n / 16) (long / 32) + k / 32. */
static void product_of_part(const number *a, int64_t a_row, const number *b, int64_t b_long, float *c, int64_t c_row,
                            int64_t m, int64_t n, int64_t k, int adding) {
    for (int64_t i = 0; i < m; i += 32)
        for (int64_t j = 0; j < n; j += 32) {
            float *at = c + i * c_row + j, *below = at + 16 * c_row;
            const number *left = b + j / 16 * (b_long / 32) * TILE_NUMBERS, *right = left + b_long / 32 * TILE_NUMBERS;
            if (adding) {
                _tile_loadd(0, at, 4 * c_row);
                _tile_loadd(1, at + 16, 4 * c_row);
                _tile_loadd(2, below, 4 * c_row);
                _tile_loadd(3, below + 16, 4 * c_row);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t step = 0; step < k / 32; step++) {
                _tile_loadd(4, a + i * a_row + step * 32, 2 * a_row);
                _tile_loadd(5, a + (i + 16) * a_row + step * 32, 2 * a_row);
                _tile_loadd(6, left + step * TILE_NUMBERS, 64);
                _tile_loadd(7, right + step * TILE_NUMBERS, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, at, 4 * c_row);
            _tile_stored(1, at + 16, 4 * c_row);
            _tile_stored(2, below, 4 * c_row);
            _tile_stored(3, below + 16, 4 * c_row);
        }
}

static void product(const number *a, int64_t a_row, const number *b, float *c, int64_t c_row, int64_t m, int64_t n,
                    int64_t k, int adding) {
    product_of_part(a, a_row, b, k, c, c_row, m, n, k, adding);
}

/* The right side of `product` whose column is a line of x [count, D]; lines up to `padded` are zeros. */
static void columns_of(const number *x, int64_t count, int64_t padded, number *to) {
    const __m512i lines = steps(D / 2);
    for (int64_t n = 0; n < padded; n += 16)
        for (int64_t p = 0; p < D / 2; p++, to += 32) {
            const number *from = x + n * D + 2 * p;
            _mm512_storeu_si512(to, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), LEFT(count - n), lines, from, 4));
        }
}

/* The right side of `product` whose row is a line of x [count, D]; lines up to `padded` are zeros. */
static void rows_of(const number *x, int64_t count, int64_t padded, number *to) {
    for (int64_t d = 0; d < D; d += 16)
        for (int64_t n = 0; n < padded; n += 2, to += 32) {
            __m256i first = n < count ? _mm256_loadu_si256((const __m256i *)(x + n * D + d)) : _mm256_setzero_si256();
            __m256i second =
                n + 1 < count ? _mm256_loadu_si256((const __m256i *)(x + (n + 1) * D + d)) : _mm256_setzero_si256();
            _mm512_storeu_si512(to, side_by_side(first, second));
        }
}

/* x [QUERIES, D] the other way round. */
static void turn(const number *x, number *to) {
    for (int64_t d = 0; d < D; d++)
        for (int64_t q = 0; q < QUERIES; q++) to[d * QUERIES + q] = x[q * D + d];
}

/* `count` lines of D numbers, and zeros up to QUERIES. */
static void take(const number *x, int64_t count, number *to) {
    memcpy(to, x, count * D * sizeof *to);
    memset(to + count * D, 0, (QUERIES - count) * D * sizeof *to);
}

/* 16 scores of one query from key s on, as exponents of 2: times `factor`, plus the mask; those beyond `keys` -inf. */
static inline __m512 exponents(const float *scores, const number *mask, float factor, int64_t s, int64_t keys) {
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(scores + s), _mm512_set1_ps(factor));
    const __mmask16 real = LEFT(keys - s);
    if (mask) {
        __m256i read = _mm256_maskz_loadu_epi16(real, mask + s);
        __m512 bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(read), 16));
        x = _mm512_fmadd_ps(bias, _mm512_set1_ps(LOG2_E), x);
    }
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), real, x);
}

static inline void put_pairs(number *to, __m512 first, __m512 second) {
    _mm512_storeu_si512(to, side_by_side((__m256i)_mm512_cvtneps_pbh(first), (__m256i)_mm512_cvtneps_pbh(second)));
}

/* x [D, padded] the other way round, `count` lines of it. */
static void put_turned(const float *x, int64_t count, int64_t padded, number *to) {
    const __m512i lines = steps(padded);
    for (int64_t s = 0; s < count; s++)
        for (int64_t d = 0; d < D; d += 16, to += 16)
            put_lanes(to, _mm512_i32gather_ps(lines, x + d * padded + s, 4));
}

/* The weights of one query, not yet divided by their sum; returns the sum, and the greatest score. */
static float weigh(float *scores, const number *mask, float scaling, int64_t keys, int64_t padded, number *weights,
                   float *greatest) {
    const float factor = scaling * LOG2_E;
    const int64_t plain = mask ? 0 : keys / LANES * LANES; /* scores that need nothing but the factor */
    __m512 top = _mm512_set1_ps(-1e30f), sum = _mm512_setzero_ps();
    for (int64_t s = 0; s < plain; s += LANES) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(scores + s), _mm512_set1_ps(factor));
        _mm512_storeu_ps(scores + s, x);
        top = _mm512_max_ps(top, x);
    }
    for (int64_t s = plain; s < padded; s += LANES) {
        __m512 x = exponents(scores, mask, factor, s, keys);
        _mm512_storeu_ps(scores + s, x);
        top = _mm512_max_ps(top, x);
    }
    const float highest = _mm512_reduce_max_ps(top);
    for (int64_t s = 0; s < padded; s += LANES) {
        __m512 x = power_of_two(_mm512_sub_ps(_mm512_loadu_ps(scores + s), _mm512_set1_ps(highest)));
        sum = _mm512_add_ps(sum, x);
        put_lanes(weights + s, x);
    }
    *greatest = highest / LOG2_E;
    return _mm512_reduce_add_ps(sum);
}

/* query [R, K, Q, D]; keys, values [R, K, S, D] with strides of rows and heads given; mask [R, Q, S], added to scores, its
 * rows `mask_row` apart, or NULL. out [R, Q, K, D], logsum [R, Q, K]. */
void attend_tiles(const number *query, const number *keys, const number *values, const number *mask, number *out,
                  float *logsum, int64_t rows, int64_t heads, int64_t queries, int64_t count, int64_t keys_row,
                  int64_t keys_head, int64_t values_row, int64_t values_head, int64_t mask_row, float scaling) {
    const int64_t padded = ROUND(count), blocks = (queries + QUERIES - 1) / QUERIES, side = padded * D;
    number *sides = aligned_alloc(64, rows * heads * 2 * side * sizeof *sides);
#pragma omp parallel
    {
        number *weights = aligned_alloc(64, QUERIES * padded * sizeof *weights);
        float *scores = aligned_alloc(64, QUERIES * padded * sizeof *scores);
        number asked[QUERIES * D] __attribute__((aligned(64)));
        float found[QUERIES * D] __attribute__((aligned(64)));
        configure();
#pragma omp for collapse(2) schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < heads; k++) {
                number *to = sides + (r * heads + k) * 2 * side;
                columns_of(keys + r * keys_row + k * keys_head, count, padded, to);
                rows_of(values + r * values_row + k * values_head, count, padded, to + side);
            }
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < heads; k++)
                for (int64_t b = 0; b < blocks; b++) {
                    const number *side_of = sides + (r * heads + k) * 2 * side;
                    int64_t first = b * QUERIES, taken = queries - first < QUERIES ? queries - first : QUERIES;
                    take(query + ((r * heads + k) * queries + first) * D, taken, asked);
                    product(asked, D, side_of, scores, padded, QUERIES, padded, D, 0);
                    float sums[QUERIES], top;
                    for (int64_t q = 0; q < QUERIES; q++) {
                        const number *seen = mask && q < taken ? mask + r * mask_row + (first + q) * count : NULL;
                        sums[q] = weigh(scores + q * padded, seen, scaling, count, padded, weights + q * padded, &top);
                        if (q < taken) logsum[(r * queries + first + q) * heads + k] = top + logf(sums[q]);
                    }
                    product(weights, padded, side_of + side, found, D, QUERIES, D, padded, 0);
                    for (int64_t q = 0; q < taken; q++)
                        for (int64_t d = 0; d < D; d++)
                            out[((r * queries + first + q) * heads + k) * D + d] = put(found[q * D + d] / sums[q]);
                }
        _tile_release();
        free(weights);
        free(scores);
    }
    free(sides);
}

/* Which tokens of a pass one row takes in: `count` of them from `place` on, written from the row's slot `start` on. */
struct feed { int64_t place, count, row, start; };

/* One block of a feed's queries, the tokens' G of each in turn, from query `first` on. */
static void attend_block(struct feed feed, int64_t k, int64_t first, int64_t taken, const number *query,
                         const number *key_side, const number *value_side, int64_t room, float *scores,
                         number *weights, const number *prefix, const float *logsum, number *out, int64_t heads,
                         float scaling) {
    number asked[QUERIES * D] __attribute__((aligned(64)));
    float found[QUERIES * D] __attribute__((aligned(64)));
    const int64_t seen = feed.start + (first + taken - 1) / G + 1, padded = ROUND(seen);
    take(query, taken, asked);
    product(asked, D, key_side, scores, padded, QUERIES, padded, D, 0);
    float sums[QUERIES], tops[QUERIES];
    for (int64_t q = 0; q < QUERIES; q++) {
        int64_t visible = q < taken ? feed.start + (first + q) / G + 1 : seen;
        sums[q] = weigh(scores + q * padded, NULL, scaling, visible, padded, weights + q * padded, tops + q);
    }
    product_of_part(weights, padded, value_side, room, found, D, QUERIES, D, padded, 0);
    for (int64_t q = 0; q < taken; q++) {
        const int64_t token = feed.place + (first + q) / G, g = (first + q) % G, at = (token * G + g) * heads + k;
        const int known = logsum && logsum[at] > -INFINITY;
        const float share = known ? 1.0f / (1.0f + expf(logsum[at] - tops[q] - logf(sums[q]))) : 1.0f;
        number *to = out + ((token * heads + k) * G + g) * D;
        for (int64_t d = 0; d < D; d++)
            to[d] = put(share * found[q * D + d] / sums[q] + (known ? (1.0f - share) * get(prefix[at * D + d]) : 0.0f));
    }
}

/* As `attend` of kernels.c, for the tokens of feeds that take in many: each row's keys and values are laid out once, and a
 * block of queries is held against the slots that its last token sees. Other tokens of `out` are left as they are. */
void attend_feeds(const number *query, const number *keys, const number *values, const number *prefix,
                  const float *logsum, number *out, const struct feed *feeds, int64_t count, int64_t of, int64_t heads,
                  int64_t slots, float scaling) {
    int64_t room = 0, blocks = 0;
    for (int64_t f = 0; f < count; f++) {
        int64_t padded = ROUND(feeds[f].start + feeds[f].count), needed = (feeds[f].count * G + QUERIES - 1) / QUERIES;
        room = padded > room ? padded : room;
        blocks = needed > blocks ? needed : blocks;
    }
    number *sides = aligned_alloc(64, count * heads * 2 * room * D * sizeof *sides);
#pragma omp parallel
    {
        number *weights = aligned_alloc(64, QUERIES * room * sizeof *weights);
        float *scores = aligned_alloc(64, QUERIES * room * sizeof *scores);
        configure();
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t f = 0; f < count; f++)
            for (int64_t k = 0; k < heads; k++) {
                number *to = sides + (f * heads + k) * 2 * room * D;
                int64_t held = feeds[f].start + feeds[f].count, begin = (feeds[f].row * heads + k) * slots * D;
                columns_of(keys + begin, held, ROUND(held), to);
                rows_of(values + begin, held, ROUND(held), to + room * D);
            }
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t f = 0; f < count; f++)
            for (int64_t k = 0; k < heads; k++)
                for (int64_t b = 0; b < blocks; b++) {
                    int64_t first = b * QUERIES, left = feeds[f].count * G - first;
                    const number *to = sides + (f * heads + k) * 2 * room * D;
                    if (left > 0)
                        attend_block(feeds[f], k, first, left < QUERIES ? left : QUERIES,
                                     query + ((k * of + feeds[f].place) * G + first) * D, to, to + room * D,
                                     ROUND(feeds[f].start + feeds[f].count), scores, weights, prefix, logsum, out, heads,
                                     scaling);
                }
        _tile_release();
        free(weights);
        free(scores);
    }
    free(sides);
}

/* From weights, their gradients, and what both have in common (`along`), of two queries: the gradients of their scores. */
static void pair_back(float *const scores[2], float *const gradients[2], const number *const mask[2],
                      const float logsum[2], const float along[2], float scaling, int64_t keys, int64_t padded,
                      number *weight_pairs, number *score_pairs, number *const of_scores[2]) {
    for (int64_t s = 0; s < padded; s += LANES) {
        __m512 weight[2], gradient[2];
        for (int i = 0; i < 2; i++) {
            __m512 x = exponents(scores[i], mask[i], scaling * LOG2_E, s, keys);
            weight[i] = power_of_two(_mm512_sub_ps(x, _mm512_set1_ps(logsum[i] * LOG2_E)));
            __m512 over = _mm512_sub_ps(_mm512_loadu_ps(gradients[i] + s), _mm512_set1_ps(along[i]));
            gradient[i] = _mm512_mul_ps(_mm512_mul_ps(weight[i], over), _mm512_set1_ps(scaling));
            put_lanes(of_scores[i] + s, gradient[i]);
        }
        put_pairs(weight_pairs + s / 16 * TILE_NUMBERS, weight[0], weight[1]);
        put_pairs(score_pairs + s / 16 * TILE_NUMBERS, gradient[0], gradient[1]);
    }
}

/* What the gradient of one (row, head) needs. */
struct work {
    number *key_columns, *value_columns, *key_rows, *weight_pairs, *score_pairs, *of_scores;
    float *scores, *gradients, *of_keys, *of_values;
};

static struct work allocated(int64_t padded) {
    number *numbers = aligned_alloc(64, (3 * D + 3 * QUERIES) * padded * sizeof *numbers);
    float *floats = aligned_alloc(64, (2 * QUERIES + 2 * D) * padded * sizeof *floats);
    number *after = numbers + 3 * D * padded;
    float *sums = floats + 2 * QUERIES * padded;
    return (struct work){numbers, numbers + D * padded, numbers + 2 * D * padded, after, after + QUERIES * padded,
                         after + 2 * QUERIES * padded, floats, floats + QUERIES * padded, sums, sums + D * padded};
}

/* One block of queries: adds to the gradients of keys and values [D, padded], gives that of the queries [QUERIES, D]. */
static void block_back(struct work w, const number *asked, const number *direction, const number *const *mask,
                       const float *logsum, const float *along, float scaling, int64_t count, int64_t padded,
                       float *of_query) {
    number turned[QUERIES * D] __attribute__((aligned(64)));
    product(asked, D, w.key_columns, w.scores, padded, QUERIES, padded, D, 0);
    product(direction, D, w.value_columns, w.gradients, padded, QUERIES, padded, D, 0);
    for (int64_t q = 0; q < QUERIES; q += 2) {
        float *scores[2] = {w.scores + q * padded, w.scores + (q + 1) * padded};
        float *gradients[2] = {w.gradients + q * padded, w.gradients + (q + 1) * padded};
        number *of_scores[2] = {w.of_scores + q * padded, w.of_scores + (q + 1) * padded};
        pair_back(scores, gradients, mask + q, logsum + q, along + q, scaling, count, padded,
                  w.weight_pairs + q / 2 * 32, w.score_pairs + q / 2 * 32, of_scores);
    }
    turn(direction, turned);
    product(turned, QUERIES, w.weight_pairs, w.of_values, padded, D, padded, QUERIES, 1);
    turn(asked, turned);
    product(turned, QUERIES, w.score_pairs, w.of_keys, padded, D, padded, QUERIES, 1);
    product(w.of_scores, padded, w.key_rows, of_query, D, QUERIES, D, padded, 0);
}

/* The gradients of `attend_tiles` in queries [R, K, Q, D], keys and values [R, K, S, D], from that in its result
 * [R, Q, K, D]; `out` and `logsum` are what it gave. Each row's keys and values have gradients of their own, even
 * where rows share them. */
void attend_tiles_back(const number *query, const number *keys, const number *values, const number *mask,
                       const number *out, const float *logsum, const number *direction, number *of_query,
                       number *of_keys, number *of_values, int64_t rows, int64_t heads, int64_t queries, int64_t count,
                       int64_t keys_row, int64_t keys_head, int64_t values_row, int64_t values_head, int64_t mask_row,
                       float scaling) {
    const int64_t padded = ROUND(count);
#pragma omp parallel
    {
        struct work w = allocated(padded);
        number asked[QUERIES * D] __attribute__((aligned(64))), wanted[QUERIES * D] __attribute__((aligned(64)));
        float found[QUERIES * D] __attribute__((aligned(64)));
        configure();
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < heads; k++) {
                const number *key = keys + r * keys_row + k * keys_head;
                columns_of(key, count, padded, w.key_columns);
                rows_of(key, count, padded, w.key_rows);
                columns_of(values + r * values_row + k * values_head, count, padded, w.value_columns);
                memset(w.of_keys, 0, D * padded * sizeof *w.of_keys);
                memset(w.of_values, 0, D * padded * sizeof *w.of_values);
                for (int64_t first = 0; first < queries; first += QUERIES) {
                    int64_t taken = queries - first < QUERIES ? queries - first : QUERIES;
                    int64_t begin = (r * heads + k) * queries + first;
                    const number *seen[QUERIES];
                    float sums[QUERIES], along[QUERIES];
                    take(query + begin * D, taken, asked);
                    memset(wanted, 0, sizeof wanted);
                    for (int64_t q = 0; q < QUERIES; q++) {
                        int64_t at = (r * queries + first + q) * heads + k;
                        seen[q] = mask && q < taken ? mask + r * mask_row + (first + q) * count : NULL;
                        sums[q] = q < taken ? logsum[at] : INFINITY; /* no weight at all */
                        along[q] = 0.0f;
                        if (q >= taken) continue;
                        memcpy(wanted + q * D, direction + at * D, D * sizeof *wanted);
                        for (int64_t d = 0; d < D; d++) along[q] += get(wanted[q * D + d]) * get(out[at * D + d]);
                    }
                    block_back(w, asked, wanted, seen, sums, along, scaling, count, padded, found);
                    for (int64_t i = 0; i < taken * D; i++) of_query[begin * D + i] = put(found[i]);
                }
                put_turned(w.of_keys, count, padded, of_keys + (r * heads + k) * count * D);
                put_turned(w.of_values, count, padded, of_values + (r * heads + k) * count * D);
            }
        _tile_release();
        free(w.key_columns);
        free(w.scores);
    }
}
#else
int tiles(void) { return 0; }
#endif
