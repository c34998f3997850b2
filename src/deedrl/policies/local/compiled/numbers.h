/* Numbers as models store them, and as they are computed with: alone, side by side, and as lines that are normed. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

static inline float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

#ifdef BF16
typedef uint16_t number;
static inline float get(number x) { return as_float((uint32_t)x << 16); }
static inline number put(float x) { /* to the nearest, ties to even */
    uint32_t bits = as_bits(x);
    return (number)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
typedef float number;
static inline float get(number x) { return x; }
static inline number put(float x) { return x; }
#endif

/* Numbers side by side. Compilers make of these what the processor has, or several of it. */
typedef float vector __attribute__((vector_size(4 * LANES)));

#ifdef BF16
typedef uint16_t packed __attribute__((vector_size(2 * LANES)));
typedef uint32_t wide __attribute__((vector_size(4 * LANES)));

static inline vector load(const number *from) {
    packed read;
    memcpy(&read, from, sizeof read);
    return (vector)(__builtin_convertvector(read, wide) << 16);
}

static inline void store(number *to, vector x) {
    wide bits = (wide)x;
    packed written = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, packed);
    memcpy(to, &written, sizeof written);
}
#else
static inline vector load(const number *from) {
    vector read;
    memcpy(&read, from, sizeof read);
    return read;
}

static inline void store(number *to, vector x) { memcpy(to, &x, sizeof x); }
#endif

/* exp for x <= 0, relative error below 3e-7; a polynomial, so that loops over it become vector instructions. */
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x; /* -inf too: a weight of 1e-38, lost in any sum */
    float whole = floorf(x * 1.44269504f + 0.5f);
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    return (sum * rest * rest + rest + 1.0f) * as_float((uint32_t)((int32_t)whole + 127) << 23);
}

/* RMSNorm of a line. */
static inline void norm(const number *x, const number *weight, number *out, int64_t size, float epsilon) {
    float sum = 0.0f;
    for (int64_t i = 0; i < size; i++) sum += get(x[i]) * get(x[i]);
    float scale = 1.0f / sqrtf(sum / (float)size + epsilon);
    /* Rounded before the weight, as the models do it. */
    for (int64_t i = 0; i < size; i++) out[i] = put(get(weight[i]) * get(put(get(x[i]) * scale)));
}
