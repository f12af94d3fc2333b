/* Vectors and panels for CPU-like devices, shared by the *_cpu.cl files.
 *
 * Reads, writes and sums of vectors, fast functions, packing into panels.
 * Follows numbers.cl and precedes the file: engine.kernel("panels_cpu file", function, defines).
 *
 * Defines: WORD, a float dtype as numbers.cl names it (float32). VEC, elements in a vector: 16 with
 * AVX-512, 8 with AVX2, half of that for float64. Arithmetic is in REAL: float, or double for float64.
 *
 * exp_of takes a REAL or a vector RV of it. Errors in float are within 1.2 units of the last place
 * (measured over 2 million numbers).
 */
#ifndef WORD
#define WORD float32
#endif
#define IS_float32 1
#define IS_float64 2
#define T TYPE(WORD)
#define GET(p, i) LOAD(WORD, p, i)
#define PUT(p, i, v) STORE(WORD, p, i, v)
#if PASTE(IS_, WORD) == 2
#define REAL double
#define WHOLE long
#else
#define REAL float
#define WHOLE int
#endif
#ifndef VEC
#if PASTE(IS_, WORD) == 2
#define VEC 8
#else
#define VEC 16
#endif
#endif
#define RV PASTE(REAL, VEC)
#define IV PASTE(WHOLE, VEC)
#define VLOAD PASTE(vload, VEC)
#define VSTORE PASTE(vstore, VEC)
#define UNROLL _Pragma("unroll")
#define LOWEST ((REAL)-INFINITY)
#define OVER __attribute__((overloadable))

/* ---- reading and writing ------------------------------------------------------------------- */

/* PoCL writes vstore16 in pieces; a vector that need not be aligned goes in one. */
typedef RV LOOSE __attribute__((aligned(sizeof(REAL))));

/* VEC elements from p[at], p[at + 1], ...; as a vector if the storage type is REAL. */
inline RV load_vector(__global const T *p, long at) {
#if PASTE(IS_, WORD)
    return *(__global const LOOSE *)(p + at);
#else
    REAL each[VEC];
    for (int i = 0; i < VEC; i++) each[i] = GET(p, at + i);
    return VLOAD(0, each);
#endif
}

inline void store_vector(__global T *p, long at, RV v) {
#if PASTE(IS_, WORD)
    *(__global LOOSE *)(p + at) = v;
#else
    REAL each[VEC];
    VSTORE(v, 0, each);
    for (int i = 0; i < VEC; i++) PUT(p, at + i, each[i]);
#endif
}

/* The last `many` elements of a row; `rest` fills the vector up. */
inline RV load_part(__global const T *p, long at, long many, REAL rest) {
    if (many >= VEC) return load_vector(p, at);
    REAL each[VEC];
    for (int i = 0; i < VEC; i++) each[i] = i < many ? (REAL)GET(p, at + i) : rest;
    return VLOAD(0, each);
}

inline void store_part(__global T *p, long at, long many, RV v) {
    if (many >= VEC) {
        store_vector(p, at, v);
        return;
    }
    REAL each[VEC];
    VSTORE(v, 0, each);
    for (int i = 0; i < many; i++) PUT(p, at + i, each[i]);
}

inline REAL sum_of(RV v) {
    REAL each[VEC], sum = 0;
    VSTORE(v, 0, each);
    for (int i = 0; i < VEC; i++) sum += each[i];
    return sum;
}

/* Unlike fmax, nan propagates. */
inline RV higher(RV a, RV b) { return a >= b || a != a ? a : b; }

inline REAL highest_of(RV v) {
    REAL each[VEC];
    VSTORE(v, 0, each);
    REAL top = each[0];
    for (int i = 1; i < VEC; i++) top = top >= each[i] || top != top ? top : each[i];
    return top;
}

/* ---- functions ----------------------------------------------------------------------------- */

#if PASTE(IS_, WORD) == 2
#define EXPONENTIAL(F, I) inline F OVER exp_of(F x) { return exp(x); }
#else
/* Two factors for the power of two: one alone cannot make the smallest numbers. */
#define EXPONENTIAL(F, I)                                                                         \
    inline F OVER exp_of(F x) {                                                                   \
        F kept = x < -104.0f ? (F)-104.0f : x > 89.0f ? (F)89.0f : x;                             \
        F shifted = kept * 1.44269504f + 12582912.0f; /* adding it rounds to integers */     \
        F whole = shifted - 12582912.0f;                                                          \
        F rest = fma(whole, (F)-0.693359375f, kept);                                              \
        rest = fma(whole, (F)2.12194440e-4f, rest);                                               \
        F y = fma((F)1.9875691500e-4f, rest, (F)1.3981999507e-3f);                                \
        y = fma(y, rest, (F)8.3334519073e-3f);                                                    \
        y = fma(y, rest, (F)4.1665795894e-2f);                                                    \
        y = fma(y, rest, (F)1.6666665459e-1f);                                                    \
        y = fma(y, rest, (F)5.0000001201e-1f);                                                    \
        y = fma(y, rest * rest, rest) + 1.0f;                                                     \
        I power = PASTE(as_, I)(shifted) - 0x4b400000, half_ = power >> 1;                        \
        return y * PASTE(as_, F)((half_ + 127) << 23)                                             \
               * PASTE(as_, F)((power - half_ + 127) << 23);                                      \
    }
#endif
EXPONENTIAL(REAL, WHOLE)
EXPONENTIAL(RV, IV)

/* ---- panels -------------------------------------------------------------------------------- */

inline long batch_offset(long b, long inner, long outer_stride, long inner_stride) {
    return b / inner * outer_stride + b % inner * inner_stride;
}

/* Four rows by four k, turned; `to` is at the first row of the four. */
inline void turn_four(__global const T *x, __global REAL *to, const int width, long si) {
#if PASTE(IS_, WORD) == 1
    float4 a = vload4(0, x), b = vload4(0, x + si);
    float4 c = vload4(0, x + 2 * si), d = vload4(0, x + 3 * si);
    float4 ab = (float4)(a.s0, b.s0, a.s1, b.s1), cd = (float4)(c.s0, d.s0, c.s1, d.s1);
    float4 ef = (float4)(a.s2, b.s2, a.s3, b.s3), gh = (float4)(c.s2, d.s2, c.s3, d.s3);
    vstore4((float4)(ab.lo, cd.lo), 0, to);
    vstore4((float4)(ab.hi, cd.hi), 0, to + width);
    vstore4((float4)(ef.lo, gh.lo), 0, to + 2 * width);
    vstore4((float4)(ef.hi, gh.hi), 0, to + 3 * width);
#else
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) to[k * width + i] = GET(x, i * si + k);
#endif
}

/* Where k is contiguous, 16 elements of a row are read together: rows that lie a power of two apart
 * would throw each other out of the cache. */
inline long pack_turned(__global const T *x, __global REAL *to, const int width, long k, long k1,
                        long si) {
    for (; k + 16 <= k1; k += 16)
        for (int i = 0; i < width; i += 4) {
            int first = min(i, width - 4); /* a width that is no multiple of 4: some twice */
            for (int j = 0; j < 16; j += 4)
                turn_four(x + first * si + k + j, to + (k + j) * width + first, width, si);
        }
    return k;
}

/* Elements k .. k1 of the `many` rows of a panel of `width`. */
inline void pack_panel(__global const T *x, __global REAL *to, int many, const int width, long k,
                       long k1, long si, long sk) {
    if (many < width) {
        for (; k < k1; k++) {
            for (int i = 0; i < many; i++) to[k * width + i] = GET(x, i * si + k * sk);
            for (int i = many; i < width; i++) to[k * width + i] = 0;
        }
        return;
    }
    if (si == 1) {
        for (; k < k1; k++)
            for (int i = 0; i < width; i++) to[k * width + i] = GET(x, i + k * sk);
        return;
    }
    if (sk == 1 && width >= 4) k = pack_turned(x, to, width, k, k1, si);
    for (; k < k1; k++)
        for (int i = 0; i < width; i++) to[k * width + i] = GET(x, i * si + k * sk);
}
