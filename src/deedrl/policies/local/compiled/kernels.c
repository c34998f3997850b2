/* What a decoder does between its matrix products, for sampling and, with the gradients of it, for training.
 *
 * Compiled for one size of heads D, one number G of query heads to each key/value head, and bf16 (-DBF16) or float32, so
 * that loops over them have a known length: see loading.py. Numbers are computed in float32 whatever they are stored as.
 * Every function divides its work by tokens or by (token, head), so what comes out does not depend on the number of
 * threads.
 *
 * N tokens, H = G K query heads, K key/value heads, S slots of a row.
 */
#include "numbers.h"

#include <stdlib.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define L (D / LANES)
#define WIDE (L % 4 ? 1 : G > 6 ? 2 : 4) /* vectors of a value taken together; as many sums as registers hold */
#define TILE 64                          /* slots whose scores are computed before their values are read */

/* RMSNorm of x [N, size]. */
void rms_norm(const number *x, const number *weight, number *out, int64_t tokens, int64_t size, float epsilon) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++) norm(x + n * size, weight, out + n * size, size, epsilon);
}

/* The gradient of `norm` in x from that in its result, to `out`, which may hold a gradient already. */
static void norm_back(const number *x, const number *weight, const number *gradient, number *restrict out,
                      int64_t size, float epsilon, int adding) {
    float squares = 0.0f, along = 0.0f;
    for (int64_t i = 0; i < size; i++) {
        squares += get(x[i]) * get(x[i]);
        along += get(x[i]) * get(weight[i]) * get(gradient[i]);
    }
    float scale = 1.0f / sqrtf(squares / (float)size + epsilon), shrunk = along * scale * scale * scale / (float)size;
    for (int64_t i = 0; i < size; i++) {
        float found = get(weight[i]) * get(gradient[i]) * scale - get(x[i]) * shrunk;
        out[i] = put(adding ? get(out[i]) + found : found);
    }
}

/* Adds the gradient of `rms_norm` in x to out; all [N, size]. */
void rms_norm_back(const number *x, const number *weight, const number *gradient, number *out, int64_t tokens,
                   int64_t size, float epsilon) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++)
        norm_back(x + n * size, weight, gradient + n * size, out + n * size, size, epsilon, 1);
}

/* SiLU of the first half of each row of products [N, 2 size], times the second: out [N, size]. */
void gate(const number *products, number *out, int64_t tokens, int64_t size) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++) {
        const number *gates = products + 2 * n * size, *rest = gates + size;
        for (int64_t i = 0; i < size; i++) {
            float x = get(gates[i]), small = exp_of(-fabsf(x));
            out[n * size + i] = put(x * (x < 0.0f ? small : 1.0f) / (1.0f + small) * get(rest[i]));
        }
    }
}

static void gate_back_of(const number *restrict gates, const number *restrict rest, const number *restrict gradient,
                         number *restrict result, number *restrict to_gates, number *restrict to_rest, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        float x = get(gates[i]), small = exp_of(-fabsf(x)), g = get(gradient[i]);
        float share = (x < 0.0f ? small : 1.0f) / (1.0f + small), silu = x * share;
        result[i] = put(silu * get(rest[i]));
        to_gates[i] = put(g * get(rest[i]) * (share + silu * (1.0f - share)));
        to_rest[i] = put(g * silu);
    }
}

/* The gradient of `gate` in products, to out [N, 2 size], from that in its result [N, size], which is made once more. */
void gate_back(const number *products, const number *gradient, number *result, number *out, int64_t tokens,
               int64_t size) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++) {
        const number *gates = products + 2 * n * size;
        number *to = out + 2 * n * size;
        gate_back_of(gates, gates + size, gradient + n * size, result + n * size, to, to + size, size);
    }
}

static void rotate(const number *x, const number *cosine, const number *sine, number *out) {
    const int64_t half = D / 2;
    for (int64_t i = 0; i < half; i++) {
        float first = get(x[i]), second = get(x[i + half]);
        out[i] = put(first * get(cosine[i]) - second * get(sine[i]));
        out[i + half] = put(second * get(cosine[i + half]) + first * get(sine[i + half]));
    }
}

static void rotate_back(const number *gradient, const number *cosine, const number *sine, number *restrict out) {
    const int64_t half = D / 2;
    for (int64_t i = 0; i < half; i++) {
        float first = get(gradient[i]), second = get(gradient[i + half]);
        out[i] = put(first * get(cosine[i]) + second * get(sine[i + half]));
        out[i + half] = put(second * get(cosine[i + half]) - first * get(sine[i]));
    }
}

/* Takes apart the products [N, (H + 2 K) D] of a layer's three projections: queries are rotated and laid out
 * [K, N, G, D], or `in_rows` [rows, H, S, D]; keys, rotated, and values are written into the caches [rows, K, S, D] at
 * (row[n], slot[n]). cosine, sine [N, D]. Where query_norm and key_norm are given (else NULL), heads pass an RMSNorm
 * first. */
void place(const number *products, const number *cosine, const number *sine, const number *query_norm,
           const number *key_norm, float epsilon, number *query, number *keys, number *values, const int64_t *row,
           const int64_t *slot, int64_t tokens, int64_t kv_heads, int64_t slots, int64_t in_rows) {
    const int64_t heads = G * kv_heads;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++) {
        const number *from = products + n * (heads + 2 * kv_heads) * D;
        const number *c = cosine + n * D, *s = sine + n * D;
        number normed[D];
        for (int64_t h = 0; h < heads + kv_heads; h++, from += D) {
            const number *weight = h < heads ? query_norm : key_norm;
            if (weight) norm(from, weight, normed, D, epsilon);
            int64_t asked = in_rows ? (row[n] * heads + h) * slots + slot[n] : ((h / G) * tokens + n) * G + h % G;
            number *to = h < heads ? query + asked * D
                                   : keys + ((row[n] * kv_heads + h - heads) * slots + slot[n]) * D;
            rotate(weight ? normed : from, c, s, to);
        }
        for (int64_t k = 0; k < kv_heads; k++, from += D)
            memcpy(values + ((row[n] * kv_heads + k) * slots + slot[n]) * D, from, D * sizeof(number));
    }
}

/* The gradient of `place` in products, to out [N, (H + 2 K) D], from those in query [rows, H, S, D], keys and values
 * [rows, K, S, D]. */
void collect(const number *products, const number *cosine, const number *sine, const number *query_norm,
             const number *key_norm, float epsilon, const number *query, const number *keys, const number *values,
             const int64_t *row, const int64_t *slot, number *out, int64_t tokens, int64_t kv_heads, int64_t slots) {
    const int64_t heads = G * kv_heads, width = (heads + 2 * kv_heads) * D;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++) {
        const number *from = products + n * width, *c = cosine + n * D, *s = sine + n * D;
        number *to = out + n * width, turned[D];
        for (int64_t h = 0; h < heads + kv_heads; h++, from += D, to += D) {
            const number *weight = h < heads ? query_norm : key_norm;
            const number *gradient = h < heads ? query + ((row[n] * heads + h) * slots + slot[n]) * D
                                               : keys + ((row[n] * kv_heads + h - heads) * slots + slot[n]) * D;
            rotate_back(gradient, c, s, weight ? turned : to);
            if (weight) norm_back(from, weight, turned, to, D, epsilon, 0);
        }
        for (int64_t k = 0; k < kv_heads; k++, to += D)
            memcpy(to, values + ((row[n] * kv_heads + k) * slots + slot[n]) * D, D * sizeof(number));
    }
}

/* From LANES vectors to the vector of their sums: each round adds halves of two vectors into one. */
static inline vector sums(vector *of) {
#define ADD(step, ...)                                                                                                 \
    for (int i = 0; i < step; i++) of[i] = ADDED(of[i], of[i + step], __VA_ARGS__);
#define ADDED(a, b, s, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, ia, ib, ic, id, ie, if_)                                \
    __builtin_shufflevector(a, b, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, ia, ib, ic, id, ie, if_) +                   \
        __builtin_shufflevector(a, b, i0 + s, i1 + s, i2 + s, i3 + s, i4 + s, i5 + s, i6 + s, i7 + s, i8 + s, i9 + s,  \
                                ia + s, ib + s, ic + s, id + s, ie + s, if_ + s)
    ADD(8, 8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
    ADD(4, 4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    ADD(2, 2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    ADD(1, 1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
    return of[0];
}

#if defined(BF16) && defined(__AVX512BF16__) && D % 32 == 0
/* This processor multiplies pairs of bf16 numbers and adds both products up. */
typedef __m512bh queries[G][D / 32];

static inline __m512bh pairs(const number *from) { return (__m512bh)_mm512_loadu_si512(from); }

static inline void set_query(queries query, int g, const number *from) {
    for (int i = 0; i < D / 32; i++) query[g][i] = pairs(from + 32 * i);
}

/* Products of the queries with one key, to be summed over the lanes. */
static inline void times_key(const queries query, const number *key, vector (*products)[LANES], int64_t s) {
    for (int g = 0; g < G; g++) {
        __m512 product = _mm512_setzero_ps();
        for (int i = 0; i < D / 32; i++) product = _mm512_dpbf16_ps(product, query[g][i], pairs(key + 32 * i));
        products[g][s] = (vector)product;
    }
}
#else
typedef vector queries[G][L];

static inline void set_query(queries query, int g, const number *from) {
    for (int l = 0; l < L; l++) query[g][l] = load(from + l * LANES);
}

static inline void times_key(const queries query, const number *key, vector (*products)[LANES], int64_t s) {
    vector read[L];
    for (int l = 0; l < L; l++) read[l] = load(key + l * LANES);
    for (int g = 0; g < G; g++) {
        vector product = query[g][0] * read[0];
        for (int l = 1; l < L; l++) product += query[g][l] * read[l];
        products[g][s] = product;
    }
}
#endif

/* Where one (token, key/value head) stands: its queries; the sums so far, their greatest score and total weight. */
struct state { queries query; vector sum[G][L]; float top[G], total[G]; };

/* Asks for a line of D numbers that will be read soon. */
static inline void fetch(const number *line) {
    for (size_t i = 0; i < D * sizeof *line; i += 64) __builtin_prefetch((const char *)line + i);
}

/* Scores of the queries against `count` keys, at most LANES; -inf for the lanes that are left. The values of the same
 * slots are fetched meanwhile. */
static inline void score(const struct state *state, const number *keys, const number *values, int64_t count,
                         float scaling, float (*scores)[TILE]) {
    vector products[G][LANES];
    for (int64_t s = 0; s < count; s++) {
        fetch(values + s * D);
        times_key(state->query, keys + s * D, products, s);
    }
    for (int g = 0; g < G; g++) {
        for (int64_t s = count; s < LANES; s++) products[g][s] = (vector){0};
        vector found = sums(products[g]) * scaling;
        memcpy(scores[g], &found, sizeof found);
        for (int64_t s = count; s < LANES; s++) scores[g][s] = -INFINITY;
    }
}

/* Adds `count` values, weighted; as many lines from `next` on are fetched meanwhile. */
static inline void add(struct state *state, const number *values, const number *next, int64_t count,
                       float (*weights)[TILE]) {
    for (int l = 0; l < L; l += WIDE) {
        vector sum[G][WIDE];
        for (int g = 0; g < G; g++)
            for (int w = 0; w < WIDE; w++) sum[g][w] = state->sum[g][l + w];
        for (int64_t s = 0; s < count; s++) {
            if (l == 0) fetch(next + s * D);
            for (int w = 0; w < WIDE; w++) {
                vector value = load(values + s * D + (l + w) * LANES);
                for (int g = 0; g < G; g++) sum[g][w] += weights[g][s] * value;
            }
        }
        for (int g = 0; g < G; g++)
            for (int w = 0; w < WIDE; w++) state->sum[g][l + w] = sum[g][w];
    }
}

/* Takes in `count` slots, at most TILE; the keys from `next` on come after them. */
static void take_in(struct state *state, const number *keys, const number *values, const number *next, int64_t count,
                    float scaling) {
    float scores[G][TILE];
    int64_t filled = (count + LANES - 1) / LANES * LANES;
    for (int64_t s = 0; s < count; s += LANES)
        score(state, keys + s * D, values + s * D, count - s < LANES ? count - s : LANES, scaling,
              (float(*)[TILE]) & scores[0][s]);
    for (int g = 0; g < G; g++) {
        float highest = state->top[g], added = 0.0f;
#pragma omp simd reduction(max : highest)
        for (int64_t s = 0; s < filled; s++) highest = scores[g][s] > highest ? scores[g][s] : highest;
        for (int64_t s = 0; s < filled; s++) {
            scores[g][s] = exp_of(scores[g][s] - highest);
            added += scores[g][s];
        }
        float shrunk = state->total[g] > 0.0f ? exp_of(state->top[g] - highest) : 0.0f;
        state->total[g] = state->total[g] * shrunk + added;
        state->top[g] = highest;
        for (int l = 0; l < L; l++) state->sum[g][l] *= shrunk;
    }
    add(state, values, next, count, scores);
}

/* Attention of the first `tokens` of N tokens to the own part of their rows up to themselves, continued from what they
 * found in a prefix.
 *
 * query [K, N, G, D]; keys, values [rows, K, S, D]; token n sees slots 0 .. slot[n] of row[n]; out [N, H, D].
 * prefix [N, G, K, D] is attention to the prefix alone, logsum [N, G, K] the logarithm of its sum of weights, -inf for a
 * token without one; both NULL where none has one. */
void attend(const number *query, const number *keys, const number *values, const number *prefix, const float *logsum,
            number *out, const int64_t *row, const int64_t *slot, int64_t tokens, int64_t of, int64_t kv_heads,
            int64_t slots, float scaling) {
#pragma omp parallel for collapse(2) schedule(dynamic, 4)
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t k = 0; k < kv_heads; k++) {
            struct state state;
            for (int g = 0; g < G; g++) {
                const number *own = query + ((k * of + n) * G + g) * D;
                int64_t at = (n * G + g) * kv_heads + k;
                int known = logsum && logsum[at] > -INFINITY;
                state.top[g] = known ? logsum[at] : -INFINITY;
                state.total[g] = known ? 1.0f : 0.0f;
                set_query(state.query, g, own);
                for (int l = 0; l < L; l++)
                    state.sum[g][l] = known ? load(prefix + at * D + l * LANES) : (vector){0};
            }
            int64_t begin = (row[n] * kv_heads + k) * slots, visible = slot[n] + 1;
            const number *after = keys + (k + 1 < kv_heads ? begin + slots : row[n + 1 < tokens ? n + 1 : n] * kv_heads * slots) * D;
            for (int64_t first = 0; first < visible; first += TILE)
                take_in(&state, keys + (begin + first) * D, values + (begin + first) * D,
                        first + TILE < visible ? keys + (begin + first + TILE) * D : after,
                        visible - first < TILE ? visible - first : TILE, scaling);
            for (int g = 0; g < G; g++)
                for (int l = 0; l < L; l++)
                    store(out + ((n * kv_heads + k) * G + g) * D + l * LANES, state.sum[g][l] / state.total[g]);
        }
}

/* Attention of tokens first .. first + tokens - 1 put together from two parts: token first + n is the one at[n] of
 * own [.., G, K, D] and own_logsum [.., G, K]; prefix, logsum and out as for `attend`. */
void join(const number *own, const float *own_logsum, const int64_t *at, const number *prefix, const float *logsum,
          number *out, int64_t first, int64_t tokens, int64_t kv_heads) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t k = 0; k < kv_heads; k++)
            for (int g = 0; g < G; g++) {
                int64_t a = (at[n] * G + g) * kv_heads + k, b = ((first + n) * G + g) * kv_heads + k;
                int known = logsum && logsum[b] > -INFINITY;
                float share = known ? 1.0f / (1.0f + expf(logsum[b] - own_logsum[a])) : 1.0f;
                number *to = out + (((first + n) * kv_heads + k) * G + g) * D;
                for (int d = 0; d < D; d++)
                    to[d] = put(share * get(own[a * D + d]) + (known ? (1.0f - share) * get(prefix[b * D + d]) : 0.0f));
            }
}

#define BLOCK 64 /* tokens whose weights are summed in float32; blocks are summed in double, so that none gains or loses */

/* Weights of a block's tokens against the greatest logit, 0 for those that are forbidden; returns their sum. */
static inline float weigh(const number *logits, int64_t count, float top, float inverse, float *weights) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        float x = get(logits[i]);
        weights[i] = x > -INFINITY ? exp_of((x - top) * inverse) : 0.0f;
        sum += weights[i];
    }
    return sum;
}

/* The first token whose weights, added to those before it, exceed what is left; the last one with a weight if rounding
 * keeps all from that. */
static int64_t crossing(const float *weights, int64_t count, double left) {
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) {
        if (weights[i] > 0.0f) last = i;
        left -= weights[i];
        if (left < 0.0) return i;
    }
    return last;
}

/* Draw n is from softmax(logits[which[n]] / temperature[which[n]]), at uniform[n] in [0, 1) of its cumulative sum; at
 * temperature 0 it is the first of the greatest logits, its log-probability that at temperature 1. logits [.., tokens],
 * -inf for a forbidden token; token, logprob [draws]. */
void draw(const number *logits, const float *temperature, const double *uniform, const int64_t *which, int64_t *token,
          float *logprob, int64_t draws, int64_t tokens) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK;
#pragma omp parallel
    {
        double *ends = malloc(blocks * sizeof *ends);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < draws; n++) {
            const number *x = logits + which[n] * tokens;
            const float heat = temperature[which[n]], inverse = heat > 0.0f ? 1.0f / heat : 1.0f;
            float weights[BLOCK], top = -INFINITY;
#pragma omp simd reduction(max : top)
            for (int64_t i = 0; i < tokens; i++) top = get(x[i]) > top ? get(x[i]) : top;
            double total = 0.0;
            for (int64_t b = 0; b < blocks; b++) {
                int64_t count = tokens - b * BLOCK < BLOCK ? tokens - b * BLOCK : BLOCK;
                ends[b] = total += weigh(x + b * BLOCK, count, top, inverse, weights);
            }
            int64_t at = 0;
            if (heat > 0.0f) {
                double target = uniform[n] * total; /* always less than the total */
                while (at + BLOCK < tokens && ends[at / BLOCK] <= target) at += BLOCK;
                int64_t count = tokens - at < BLOCK ? tokens - at : BLOCK;
                weigh(x + at, count, top, inverse, weights);
                at += crossing(weights, count, target - (at ? ends[at / BLOCK - 1] : 0.0));
            } else
                while (get(x[at]) < top) at++;
            token[n] = at;
            logprob[n] = (get(x[at]) - top) * inverse - (float)log(total);
        }
        free(ends);
    }
}
