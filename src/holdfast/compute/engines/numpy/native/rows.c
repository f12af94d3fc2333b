/* Activations and their gradients, softmax and normalization of rows, forward and backward, in
 * float32; NumPy needs many passes for them.
 *
 * No function allocates, keeps state or calls back; each can run in many threads at once. Sums are
 * added up in pieces, and these in float64.
 */
#include "vectors.h"

INLINE vec absolute(vec x) { return (vec)((ivec)x & 0x7fffffff); }
INLINE vec signed_as(vec x, vec sign) { return (vec)((ivec)x | ((ivec)sign & ~0x7fffffff)); }

/* ---- elementwise */

/* 1 / (1 + exp(-x)), and 1 minus it in `rest`; both exact where they are small. */
INLINE vec share(vec x, vec *rest) {
    vec small = exponential(-absolute(x)), under = 1.0f / (small + 1.0f), over = small * under;
    *rest = choose(x < 0.0f, under, over);
    return choose(x < 0.0f, over, under);
}

INLINE vec sigmoid(vec x) {
    vec small = exponential(-absolute(x));
    return choose(x < 0.0f, small, all(1)) / (small + 1.0f);
}

INLINE vec silu_slope(vec x) {
    vec rest, y = share(x, &rest);
    return y * (x * rest + 1.0f);
}

INLINE vec error_function(vec x) {
    vec size = absolute(x), square = x * x;
    /* Both minimize the largest error: on [0, 1] relative to erf (1.2e-9); on [1, 4], as the
     * exponent of 1 - erf, that of the result (2.4e-9). Above 4, erf is 1 in float32. */
    vec near = all(7.853851708233066e-05f);
    near = near * square - 0.0008010190703622855f;
    near = near * square + 0.005188327353132423f;
    near = near * square - 0.026853811760219184f;
    near = near * square + 0.11283585144426793f;
    near = near * square - 0.3761262582386299f;
    near = (near * square + 0.1283791657266558f) * x + x;
    vec kept = choose(size > 4.0f, all(4), size), far = all(0.00021018254882512467f);
    far = far * kept - 0.0031831208873731587f;
    far = far * kept + 0.022786097101787757f;
    far = far * kept - 0.10509668528116563f;
    far = far * kept - 0.635846387490947f;
    far = far * kept - 1.1284755804747868f;
    far = 1.0f - exponential(far * kept);
    return choose(size < 1.0f, near, signed_as(far, x));
}

/* exp(-x x / 2) for x of 0 to 15, with a correction for the rounding of the square. */
INLINE vec bell(vec x) {
    vec high = (vec)((ivec)x & ~0xfff), low = (high + x) * (x - high) * -0.5f;
    vec more = ((low * 0.16666667f + 0.5f) * low + 1.0f) * low;
    vec y = exponential(high * high * -0.5f);
    return y * more + y;
}

/* The cumulative normal distribution; `density` gets exp(-x x / 2). Below 0 it is
 * the bell times a smooth function, fitted in 1 / (1 + 0.35 |x|) (relative error 3.2e-8). */
INLINE vec gauss(vec x, vec *density) {
    vec size = absolute(x), kept = choose(size > 15.0f, all(15), size);
    vec turned = 1.0f / (kept * 0.35f + 1.0f), place = turned * 2.0f - 1.0f;
    vec y = all(-0.00011389815008377665f);
    y = y * place + 0.00021405785586700588f;
    y = y * place + 0.0006900628030929711f;
    y = y * place - 0.001754381099803372f;
    y = y * place - 0.005108741045836214f;
    y = y * place + 0.010233857602589736f;
    y = y * place + 0.07109894495719793f;
    y = y * place + 0.17149580430536912f;
    y = y * place + 0.25324427678549466f;
    *density = bell(kept);
    y = y * turned * *density;
    return choose(x < 0.0f, y, 1.0f - y);
}

INLINE vec below(vec x) {
    vec density;
    return gauss(x, &density);
}

INLINE vec gelu_slope(vec x) {
    vec density, y = gauss(x, &density);
    return density * 0.3989422804014327f * x + y;
}

#define SCALE 1.5957691216057308f /* 2 sqrt(2 / pi): (1 + tanh(y)) / 2 is sigmoid(2 y) */
#define CUBE 0.044715f

INLINE vec gelu_tanh(vec x) { return sigmoid((x * x * (SCALE * CUBE) + SCALE) * x) * x; }

INLINE vec gelu_tanh_slope(vec x) {
    vec rest, y = share((x * x * (SCALE * CUBE) + SCALE) * x, &rest);
    return y + y * rest * ((x * x * (3 * SCALE * CUBE) + SCALE) * x);
}

/* The codes are those of c_rows.py. */
void holdfast_each(int64_t code, const float *x, const float *y, float *to, int64_t n) {
    int64_t i = 0;
    switch (code) {
    case 0: EACH(sigmoid(a))
    case 1: EACH(sigmoid(a) * a)
    case 2: EACH(below(a))
    case 3: EACH(below(a) * a)
    case 4: EACH(gelu_tanh(a))
    case 5: EACH(error_function(a))
    case 6: EACH(silu_slope(b) * a)
    case 7: EACH(gelu_slope(b) * a)
    case 8: EACH(gelu_tanh_slope(b) * a)
    case 9: EACH((1.0f - b) * b * a)
    }
}

/* ---- rows */

/* The first `n` elements of a vector, `fill` for the rest. */
INLINE vec part(const float *from, int64_t n, float fill) {
#if defined(__AVX512F__)
    return (vec)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)((1u << n) - 1), from);
#else
    vec found = all(fill);
    memcpy(&found, from, n * sizeof(float));
    return found;
#endif
}

INLINE void put(float *to, vec value, int64_t n) {
#if defined(__AVX512F__)
    if (n < LANES) {
        _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)value);
        return;
    }
#else
    if (n < LANES) {
        memcpy(to, &value, n * sizeof(float));
        return;
    }
#endif
    store(to, value);
}

INLINE float across(vec a) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)a);
#else
    float p[LANES];
    store(p, a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) p[i] += p[i + half];
    return p[0];
#endif
}

/* Elements of X from index i on, of which `left` are in the row. */
#define FROM(X, FILL) (left >= LANES ? load((X) + i) : part((X) + i, left, FILL))
#define PIECE (128 * LANES)

/* The loop body for every vector of a row; `left` elements of it are in the row. */
#define ALONG(FIRST, LAST, ...)                                                                 \
    {                                                                                           \
        int64_t i = (FIRST);                                                                    \
        for (; i + LANES <= (LAST); i += LANES) {                                               \
            const int64_t left = LANES;                                                         \
            __VA_ARGS__                                                                         \
        }                                                                                       \
        if (i < (LAST)) {                                                                       \
            const int64_t left = (LAST) - i;                                                    \
            __VA_ARGS__                                                                         \
        }                                                                                       \
    }

/* A function that adds up an expression over a row, in four sums side by side. */
#define SUM(NAME, ARGUMENTS, EXPRESSION)                                                        \
    static double NAME ARGUMENTS {                                                              \
        double total = 0;                                                                       \
        for (int64_t first = 0; first < n; first += PIECE) {                                    \
            int64_t last = n - first < PIECE ? n : first + PIECE, start = first;                \
            vec sums[4] = {all(0), all(0), all(0), all(0)};                                     \
            for (; start + 4 * LANES <= last; start += 4 * LANES)                               \
                _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {                           \
                    const int64_t left = LANES, i = start + k * LANES;                          \
                    sums[k] += EXPRESSION;                                                      \
                }                                                                               \
            ALONG(start, last, sums[0] += EXPRESSION;)                                          \
            total += across((sums[0] + sums[1]) + (sums[2] + sums[3]));                         \
        }                                                                                       \
        return total;                                                                           \
    }

SUM(sum, (const float *x, int64_t n), FROM(x, 0))
SUM(products, (const float *x, const float *y, int64_t n), FROM(x, 0) * FROM(y, 0))
SUM(along, (const float *x, const float *y, float mean, int64_t n),
    FROM(x, 0) * (FROM(y, mean) - mean))

INLINE vec apart(vec x, float mean) { return (x - mean) * (x - mean); }
SUM(squares, (const float *x, float mean, int64_t n), apart(FROM(x, mean), mean))

INLINE float largest(const float *x, int64_t n) {
    vec one = all(-INFINITY), other = one;
    int64_t start = 0;
    for (; start + 2 * LANES <= n; start += 2 * LANES) {
        one = larger(load(x + start), one);
        other = larger(load(x + start + LANES), other);
    }
    ALONG(start, n, one = larger(FROM(x, -INFINITY), one);)
    one = larger(one, other);
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)one);
#else
    float top = one[0];
    for (int i = 1; i < LANES; i++) top = one[i] > top ? one[i] : top;
    return top;
#endif
}

/* `largest` need not find NaNs: they are in the sum. */
void holdfast_softmax(const float *x, float *to, int64_t rows, int64_t n, int64_t logarithm) {
    for (; rows > 0; rows--, x += n, to += n) {
        float top = largest(x, n);
        double total = 0;
        for (int64_t first = 0; first < n; first += PIECE) {
            int64_t last = n - first < PIECE ? n : first + PIECE;
            vec added = all(0);
            if (logarithm)
                ALONG(first, last, added += exponential(FROM(x, -INFINITY) - top);)
            else
                ALONG(first, last, vec y = exponential(FROM(x, -INFINITY) - top);
                      put(to + i, y, left); added += y;)
            total += across(added);
        }
        float factor = 1 / total, less = log(total);
        if (logarithm)
            ALONG(0, n, put(to + i, (FROM(x, 0) - top) - less, left);)
        else
            ALONG(0, n, put(to + i, FROM(to, 0) * factor, left);)
    }
}

/* `exponential` for any x. */
INLINE vec grown(vec x) {
    vec y = exponential(-absolute(x));
    return choose(x > 0.0f, 1.0f / y, y);
}

void holdfast_softmax_backward(const float *grad, const float *y, float *to, int64_t rows,
                               int64_t n, int64_t logarithm) {
    for (; rows > 0; rows--, grad += n, y += n, to += n) {
        float total = logarithm ? sum(grad, n) : products(grad, y, n);
        if (logarithm)
            ALONG(0, n, put(to + i, FROM(grad, 0) - grown(FROM(y, 0)) * total, left);)
        else
            ALONG(0, n, put(to + i, (FROM(grad, 0) - total) * FROM(y, 0), left);)
    }
}

void holdfast_layer_norm(const float *x, const float *weight, const float *bias, float *to,
                         float *means, float *scales, int64_t rows, int64_t n, double eps) {
    for (int64_t r = 0; r < rows; r++, x += n, to += n) {
        float mean = sum(x, n) / n, scale = 1 / sqrt(squares(x, mean, n) / n + eps);
        means[r] = mean;
        scales[r] = scale;
        if (weight && bias)
            ALONG(0, n, put(to + i, (FROM(x, 0) - mean) * scale * FROM(weight, 0) + FROM(bias, 0),
                            left);)
        else if (weight)
            ALONG(0, n, put(to + i, (FROM(x, 0) - mean) * scale * FROM(weight, 0), left);)
        else if (bias)
            ALONG(0, n, put(to + i, (FROM(x, 0) - mean) * scale + FROM(bias, 0), left);)
        else
            ALONG(0, n, put(to + i, (FROM(x, 0) - mean) * scale, left);)
    }
}

/* Gradients of rows; those of weight and bias are added to [2][n] in `sums`. `scratch` holds 3 n
 * floats and three vectors: sums of a few rows, and a weight of ones. */
void holdfast_layer_norm_backward(const float *grad, const float *x, const float *means,
                                  const float *scales, const float *weight, float *to,
                                  double *sums, int64_t rows, int64_t n, float *scratch) {
    float *down = scratch, *added = down + n + LANES, *ones = added + n + LANES;
    if (!weight) {
        for (int64_t i = 0; i < n; i++) ones[i] = 1;
        weight = ones;
    }
    memset(scratch, 0, 2 * (n + LANES) * sizeof(float));
    for (int64_t r = 0; r < rows; r++, grad += n, x += n) {
        float mean = means[r], scale = scales[r];
        double inner = 0, middle = 0;
        for (int64_t first = 0; first < n; first += PIECE) {
            int64_t last = n - first < PIECE ? n : first + PIECE;
            vec one = all(0), other = all(0);
            ALONG(first, last, vec g = FROM(grad, 0), product = (FROM(x, mean) - mean) * scale * g;
                  vec factor = FROM(weight, 0); store(down + i, load(down + i) + product);
                  store(added + i, load(added + i) + g); one += product * factor;
                  other += g * factor;)
            inner += across(one);
            middle += across(other);
        }
        if (to) {
            float bend = inner * scale / n, less = middle * scale / n;
            ALONG(0, n, vec normal = (FROM(x, 0) - mean) * scale;
                  vec sloped = FROM(grad, 0) * scale * FROM(weight, 0);
                  put(to + i, sloped - normal * bend - less, left);)
            to += n;
        }
        if (r % 32 == 31 || r == rows - 1) {
            for (int64_t i = 0; i < n; i++) sums[i] += down[i], sums[n + i] += added[i];
            memset(scratch, 0, 2 * (n + LANES) * sizeof(float));
        }
    }
}

/* ---- channels: one factor for each row */

/* Groups of `each` rows with one mean: from group `first` on, `groups` for each sample. */
void holdfast_group_norm(const float *x, const float *weight, const float *bias, float *to,
                         float *means, float *scales, int64_t count, int64_t n, int64_t first,
                         int64_t groups, int64_t each, double eps) {
    for (int64_t r = 0; r < count; r++) {
        int64_t all_of = each * n, channel = (first + r) % groups * each;
        float mean = sum(x, all_of) / all_of;
        float scale = 1 / sqrt(squares(x, mean, all_of) / all_of + eps);
        means[r] = mean;
        scales[r] = scale;
        for (int64_t c = channel; c < channel + each; c++, x += n, to += n) {
            float factor = weight ? scale * weight[c] : scale, shift = bias ? bias[c] : 0;
            ALONG(0, n, put(to + i, (FROM(x, 0) - mean) * factor + shift, left);)
        }
    }
}

/* The mean of each row, and the sum of squared distances from it. */
void holdfast_moments(const float *x, double *means, double *apart, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += n) {
        double mean = sum(x, n) / n, lost = mean - (float)mean;
        means[r] = mean;
        apart[r] = squares(x, mean, n) - lost * lost * n;
    }
}

void holdfast_scaled(const float *x, const float *scales, const float *shifts, float *to,
                     int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += n, to += n) {
        float scale = scales[r], shift = shifts[r];
        ALONG(0, n, put(to + i, FROM(x, 0) * scale + shift, left);)
    }
}

/* For each row the sums of grad and of grad * (x - mean). */
void holdfast_slopes(const float *grad, const float *x, const float *means, double *added,
                     double *distances, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, grad += n, x += n) {
        added[r] = sum(grad, n);
        distances[r] = along(grad, x, means[r], n);
    }
}

/* grad * scale - (x - mean) * bend - less. */
void holdfast_bent(const float *grad, const float *x, const float *means, const float *scales,
                   const float *bends, const float *lesses, float *to, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, grad += n, x += n, to += n) {
        float mean = means[r], scale = scales[r], bend = bends[r], less = lesses[r];
        ALONG(0, n, vec distance = FROM(x, 0) - mean;
              put(to + i, FROM(grad, 0) * scale - distance * bend - less, left);)
    }
}
