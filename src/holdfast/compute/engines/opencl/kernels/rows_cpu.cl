/* Softmax and normalisation for CPU-like devices: a work-item goes over whole rows.
 *
 * Supports softmax and log_softmax along rows and along any other dimension, layer norm, RMS norm and
 * group norm with their statistics. Called by row_kernels.py.
 * Writes its outputs alone; a row may be any length; x may be read with a row stride, its
 * columns are contiguous. An input and the output of its kernel may be the same array.
 *
 * Defines (all have defaults)
 *   WORD, VEC  as panels_cpu.cl says, which precedes this file. mean and rstd are stored in REAL.
 *   LOG        log_softmax instead of softmax.
 *   HAS_WEIGHT, HAS_BIAS    the normalisations scale, and shift.
 *
 * All launches have local size 1. A work-item does `each` rows: about rows / (8 * cores), at least 1.
 *   softmax_rows(x, out, rows, columns, x row stride, out row stride, each)
 *     global (ceil(rows / each),)
 *   softmax_along(x, out, outer, length, inner): contiguous [outer][length][inner], along length
 *     global (ceil(inner / VEC), outer)
 *   layer_norm_rows(x, [weight,] [bias,] out, mean, rstd, rows, columns, x row stride,
 *                   out row stride, each, eps)
 *     weight, bias: columns elements. mean, rstd: a REAL for each row. eps is a REAL.
 *     global (ceil(rows / each),)
 *   rms_norm_rows(x, [weight,] out, rstd, rows, columns, x row stride, out row stride, each, eps)
 *   group_norm_rows(x, [weight,] [bias,] out, mean, rstd, rows, channels, span, groups, eps)
 *     x, out: contiguous [batch][groups * channels][span]; a row is (batch, group), `channels` is the
 *     channels of a group, span the elements of a channel. weight, bias: groups * channels elements.
 *     global (rows,)
 */

/* ---- softmax ------------------------------------------------------------------------------- */

inline REAL row_highest(__global const T *x, long whole, int left) {
    RV a = (RV)LOWEST, b = a;
    long j = 0;
    for (; j + 2 * VEC <= whole; j += 2 * VEC) {
        a = higher(a, load_vector(x, j));
        b = higher(b, load_vector(x, j + VEC));
    }
    if (j < whole) a = higher(a, load_vector(x, j));
    if (left) b = higher(b, load_part(x, whole, left, LOWEST));
    return highest_of(higher(a, b));
}

inline void softmax_row(__global const T *x, __global T *out, long columns) {
    long whole = columns / VEC * VEC;
    int left = columns - whole;
    REAL top = row_highest(x, whole, left);
    RV sums = 0;
#ifdef LOG
    for (long j = 0; j < whole; j += VEC) sums += exp_of(load_vector(x, j) - top);
    if (left) sums += exp_of(load_part(x, whole, left, LOWEST) - top);
    REAL off = log(sum_of(sums));
    for (long j = 0; j < whole; j += VEC) store_vector(out, j, load_vector(x, j) - top - off);
    if (left) store_part(out, whole, left, load_part(x, whole, left, 0) - top - off);
#elif PASTE(IS_, WORD)
    for (long j = 0; j < whole; j += VEC) {
        RV v = exp_of(load_vector(x, j) - top);
        store_vector(out, j, v);
        sums += v;
    }
    RV last = left ? exp_of(load_part(x, whole, left, LOWEST) - top) : (RV)0;
    REAL scale = 1 / sum_of(sums + last);
    for (long j = 0; j < whole; j += VEC) store_vector(out, j, load_vector(out, j) * scale);
    if (left) store_part(out, whole, left, last * scale);
#else /* narrow floats are rounded once, so exp is taken twice */
    for (long j = 0; j < whole; j += VEC) sums += exp_of(load_vector(x, j) - top);
    RV last = left ? exp_of(load_part(x, whole, left, LOWEST) - top) : (RV)0;
    REAL scale = 1 / sum_of(sums + last);
    for (long j = 0; j < whole; j += VEC)
        store_vector(out, j, exp_of(load_vector(x, j) - top) * scale);
    if (left) store_part(out, whole, left, last * scale);
#endif
}

__kernel void softmax_rows(__global uchar *x_, ulong x_at, __global uchar *out_, ulong out_at,
                           long rows, long columns, long x_row, long out_row, long each) {
    long first = get_global_id(0) * each, end = min(first + each, rows);
    for (long i = first; i < end; i++)
        softmax_row(CAT(T, x) + i * x_row, AT(T, out) + i * out_row, columns);
}

__kernel void softmax_along(__global uchar *x_, ulong x_at, __global uchar *out_, ulong out_at,
                            long outer, long length, long inner) {
    long at = get_global_id(0) * VEC, start = get_global_id(1) * length * inner + at;
    int many = min((long)VEC, inner - at);
    __global const T *x = CAT(T, x) + start;
    __global T *out = AT(T, out) + start;
    RV top = (RV)LOWEST, sum = 0;
#define ALONG(k) (many == VEC ? load_vector(x, (k) * inner) : load_part(x, (k) * inner, many, 0))
    for (long k = 0; k < length; k++) top = higher(top, ALONG(k));
    for (long k = 0; k < length; k++) sum += exp_of(ALONG(k) - top);
#ifdef LOG
    sum = log(sum);
#endif
    for (long k = 0; k < length; k++) {
#ifdef LOG
        RV v = ALONG(k) - top - sum;
#else
        RV v = exp_of(ALONG(k) - top) / sum;
#endif
        if (many == VEC) store_vector(out, k * inner, v);
        else store_part(out, k * inner, many, v);
    }
}

/* ---- normalisation ------------------------------------------------------------------------- */

/* Sum of (x - off), or of its squares. Four sums, as one would wait for each addition. */
inline REAL row_sum(__global const T *x, long columns, REAL off, const int squared) {
    long whole = columns / VEC * VEC, j = 0;
    RV s[4] = {0, 0, 0, 0};
    for (; j + 4 * VEC <= whole; j += 4 * VEC)
        _Pragma("unroll") for (int u = 0; u < 4; u++) {
            RV v = load_vector(x, j + u * VEC) - off;
            s[u] += squared ? v * v : v;
        }
    for (; j < whole; j += VEC) {
        RV v = load_vector(x, j) - off;
        s[0] += squared ? v * v : v;
    }
    if (whole < columns) {
        RV v = load_part(x, whole, columns - whole, off) - off;
        s[1] += squared ? v * v : v;
    }
    return sum_of((s[0] + s[1]) + (s[2] + s[3]));
}

inline RV scaled(RV v, __global const T *weight, __global const T *bias, long j, int many) {
#ifdef HAS_WEIGHT
    v *= many == VEC ? load_vector(weight, j) : load_part(weight, j, many, 0);
#endif
#ifdef HAS_BIAS
    v += many == VEC ? load_vector(bias, j) : load_part(bias, j, many, 0);
#endif
    return v;
}

inline void write_row(__global const T *x, __global T *out, long columns, REAL off, REAL scale,
                      __global const T *weight, __global const T *bias) {
    long whole = columns / VEC * VEC;
    int left = columns - whole;
    for (long j = 0; j < whole; j += VEC)
        store_vector(out, j, scaled((load_vector(x, j) - off) * scale, weight, bias, j, VEC));
    if (left)
        store_part(out, whole, left, scaled((load_part(x, whole, left, 0) - off) * scale, weight,
                                            bias, whole, left));
}

#ifdef HAS_WEIGHT
#define WEIGHT_ARRAY __global uchar *weight_, ulong weight_at,
#define WEIGHT CAT(T, weight)
#else
#define WEIGHT_ARRAY
#define WEIGHT ((__global const T *)0)
#endif
#ifdef HAS_BIAS
#define BIAS_ARRAY __global uchar *bias_, ulong bias_at,
#define BIAS CAT(T, bias)
#else
#define BIAS_ARRAY
#define BIAS ((__global const T *)0)
#endif

__kernel void layer_norm_rows(__global uchar *x_, ulong x_at, WEIGHT_ARRAY BIAS_ARRAY
                              __global uchar *out_, ulong out_at, __global uchar *mean_,
                              ulong mean_at, __global uchar *rstd_, ulong rstd_at, long rows,
                              long columns, long x_row, long out_row, long each, REAL eps) {
    long first = get_global_id(0) * each, end = min(first + each, rows);
    for (long i = first; i < end; i++) {
        __global const T *x = CAT(T, x) + i * x_row;
        REAL mean = row_sum(x, columns, 0, 0) / columns;
        REAL rstd = 1 / sqrt(row_sum(x, columns, mean, 1) / columns + eps);
        AT(REAL, mean)[i] = mean;
        AT(REAL, rstd)[i] = rstd;
        write_row(x, AT(T, out) + i * out_row, columns, mean, rstd, WEIGHT, BIAS);
    }
}

#ifndef HAS_BIAS
__kernel void rms_norm_rows(__global uchar *x_, ulong x_at, WEIGHT_ARRAY __global uchar *out_,
                            ulong out_at, __global uchar *rstd_, ulong rstd_at, long rows,
                            long columns, long x_row, long out_row, long each, REAL eps) {
    long first = get_global_id(0) * each, end = min(first + each, rows);
    for (long i = first; i < end; i++) {
        __global const T *x = CAT(T, x) + i * x_row;
        REAL rstd = 1 / sqrt(row_sum(x, columns, 0, 1) / columns + eps);
        AT(REAL, rstd)[i] = rstd;
        write_row(x, AT(T, out) + i * out_row, columns, 0, rstd, WEIGHT, BIAS);
    }
}
#endif

__kernel void group_norm_rows(__global uchar *x_, ulong x_at, WEIGHT_ARRAY BIAS_ARRAY
                              __global uchar *out_, ulong out_at, __global uchar *mean_,
                              ulong mean_at, __global uchar *rstd_, ulong rstd_at, long rows,
                              long channels, long span, long groups, REAL eps) {
    long row = get_global_id(0), columns = channels * span, c0 = row % groups * channels;
    __global const T *x = CAT(T, x) + row * columns;
    __global T *out = AT(T, out) + row * columns;
    REAL mean = row_sum(x, columns, 0, 0) / columns;
    REAL rstd = 1 / sqrt(row_sum(x, columns, mean, 1) / columns + eps);
    AT(REAL, mean)[row] = mean;
    AT(REAL, rstd)[row] = rstd;
    for (long c = 0; c < channels; c++) {
        REAL scale = rstd, shift;
#ifdef HAS_WEIGHT
        scale *= GET(WEIGHT, c0 + c);
#endif
        shift = -mean * scale;
#ifdef HAS_BIAS
        shift += GET(BIAS, c0 + c);
#endif
        long at = c * span, whole = at + span / VEC * VEC, end = at + span;
        for (; at < whole; at += VEC)
            store_vector(out, at, fma(load_vector(x, at), (RV)scale, (RV)shift));
        for (; at < end; at++) {
            REAL v = fma((REAL)GET(x, at), scale, shift);
            PUT(out, at, v);
        }
    }
}
