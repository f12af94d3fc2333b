/* float32 vectors of the processor's width, and functions that the C loops share.
 *
 * The same source works with any width; NaN stays NaN.
 */
#ifndef HOLDFAST_VECTORS_H
#define HOLDFAST_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vec all(float value) { return value - (vec){}; }
INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec choose(ivec which, vec one, vec other) {
    return (vec)((which & (ivec)one) | (~which & (ivec)other));
}

#if defined(__AVX512F__)
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)b, (__m512)a); }

/* e to the x, to the last bit or two, for x up to 88. */
INLINE vec exponential(vec x) {
    __m512 kept = _mm512_max_ps(_mm512_set1_ps(-104.0f), (__m512)x);
    __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(kept, _mm512_set1_ps(1.44269504f)), 8);
    vec rest = (vec)kept - (vec)whole * 0.693359375f;
    rest = rest + (vec)whole * 2.12194440e-4f;
    vec y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + rest + 1.0f; /* 1 comes last: it is rounded once */
    return (vec)_mm512_scalef_ps((__m512)y, whole);
}
#else
INLINE vec larger(vec a, vec b) { return choose((a > b) | (a != a), a, b); }

INLINE vec exponential(vec x) {
    vec kept = larger(x, all(-87.3f));
    vec magic = all(12582912.0f); /* adding it rounds to integers */
    vec whole = (kept * 1.44269504f + magic) - magic;
    vec rest = kept - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    vec y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + rest + 1.0f; /* 1 comes last: it is rounded once */
    ivec power = (__builtin_convertvector(whole, ivec) + 127) << 23;
    y = y * (vec)power;
    y = choose(x < -87.3f, all(0), y);
    return choose(x == x, y, x); /* NaN stays NaN */
}
#endif

/* A case of a switch: write the expression of each a of x and b of y to `to`. */
#define EACH(EXPRESSION)                                                                        \
    {                                                                                           \
        for (; i + LANES <= n; i += LANES) {                                                    \
            vec a = load(x + i), b = load(y + i);                                               \
            (void)b;                                                                            \
            store(to + i, EXPRESSION);                                                          \
        }                                                                                       \
        if (i < n) {                                                                            \
            float p[LANES] = {0}, q[LANES] = {0};                                               \
            memcpy(p, x + i, (n - i) * sizeof(float));                                          \
            memcpy(q, y + i, (n - i) * sizeof(float));                                          \
            vec a = load(p), b = load(q);                                                       \
            (void)b;                                                                            \
            store(p, EXPRESSION);                                                               \
            memcpy(to + i, p, (n - i) * sizeof(float));                                         \
        }                                                                                       \
        break;                                                                                  \
    }

#endif
