/* Direct convolution, and the columns that turn them into matrix products.
 * Called by convolution.py.
 *
 * Supports one to three dimensions (missing ones have size 1), strides, padding, dilation, groups, any
 *   dtype and any strides; forward, and with SPREAD its transpose, which is the gradient of its input.
 *
 * Defines: X, W, O dtypes of the arrays (numbers.cl), ACC type of sums, ON_GPU the mapping; SPREAD; HAS_BIAS;
 *   FROM_COLUMNS: x holds the products for each element of the window, as
 *   [n][group][output channel][window element][x element], and they are summed.
 *
 *   conv_direct(x, w, bias, o, Conv, items)
 *     CPU: global (ceil(result[2] / WIDTH), result[0] * result[1], items), items = n * groups * to
 *     GPU: local (64,), global (elements of the result rounded up to 64 * items,); some drivers allow no
 *     more than 65535 groups in the other dimensions
 *   conv_columns(x, o, Conv, start, count, batch step, group step, row step, outside)
 *     o[n][g][channel, window element][output start .. start + count] = x there
 *     CPU: global (from * window, groups, n)
 *     GPU: local (64,), global (count rounded up to 64 * from * window * n * groups,)
 *   conv_weight(x, w, o, Conv, n): x is the input, w the gradient of the output (strides o_n, o_c, o);
 *     o [groups * to][from][window], contiguous
 *     CPU: global (window, from, groups * to); GPU: local (64, 1, 1), global (64 * window, from, groups * to)
 */
typedef struct {
    long groups, from, to; /* channels of a group: input (summed over) and output */
    long size[3], window[3], result[3], stride[3], padding[3], dilation[3];
    long x_n, x_c, x[3], w_g, w_to, w_from, w[3], o_n, o_c, o[3]; /* steps, in elements */
} Conv;
#define WIDTH 64

/* The input index of output `r` for window element `k`; -1 if there is none. */
inline long source(long r, long k, long size, long stride, long padding, long dilation) {
#ifdef SPREAD
    const long t = r + padding - k * dilation;
    return t >= 0 && t % stride == 0 && t / stride < size ? t / stride : -1;
#else
    const long t = r * stride - padding + k * dilation;
    return t >= 0 && t < size ? t : -1;
#endif
}
#define SOURCE(r, k, d) source(r, k, s.size[d], s.stride[d], s.padding[d], s.dilation[d])

/* a / b rounded up, at least 0; b is mostly 1, and divisions are slow. */
inline long up(long a, long b) { return a <= 0 ? 0 : b == 1 ? a : (a + b - 1) / b; }

/* Of `wide` outputs of a row from `first` on, those with an input for window element k: with SPREAD the
 * inputs `low` to `high`, each at `at` + index * stride; else the outputs `low` to `high`. */
typedef struct {
    long low, high, at;
} Span;
inline Span span(long first, long wide, long k, long size, long stride, long padding, long dilation) {
    Span found;
    const long shift = k * dilation - padding;
#ifdef SPREAD
    found.low = up(first - shift, stride);
    found.high = min(up(first + wide - shift, stride), size);
    found.at = shift - first;
#else
    found.at = first * stride + shift;
    found.low = up(-found.at, stride);
    found.high = min(up(size - found.at, stride), wide);
#endif
    return found;
}
#define SPAN(first, wide, k) span(first, wide, k, s.size[2], s.stride[2], s.padding[2], s.dilation[2])

#ifdef FROM_COLUMNS
#define CHANNELS 1
#define CHANNEL(c) ((channel * s.window[0] * s.window[1] * s.window[2] + place) * s.x_c)
#define WEIGHT(c) ((ACC)1)
#else
#define CHANNELS s.from
#define CHANNEL(c) ((channel / s.to * s.from + c) * s.x_c)
#define WEIGHT(c)                                                                                     \
    ((ACC)LOAD(W, w, channel / s.to * s.w_g + channel % s.to * s.w_to + (c) * s.w_from + kd * s.w[0] + \
                         kh * s.w[1] + kw * s.w[2]))
#endif
#ifdef HAS_BIAS
#define BIAS ((ACC)LOAD(W, CAT(TYPE(W), bias), channel))
#else
#define BIAS ((ACC)0)
#endif

#ifdef DIRECT
__kernel void conv_direct(__global uchar *x_, ulong x_at, __global uchar *w_, ulong w_at,
                          __global uchar *bias_, ulong bias_at, __global uchar *o_, ulong o_at, Conv s,
                          long items) {
#ifdef ON_GPU
    const long places = s.result[0] * s.result[1] * s.result[2], blocks = (places + 63) / 64;
    const long place_of = get_group_id(0) % blocks * 64 + get_local_id(0), item = get_group_id(0) / blocks;
    if (place_of >= places) return;
    const long j = place_of % s.result[2], line = place_of / s.result[2];
#else
    const long first = get_global_id(0) * WIDTH, line = get_global_id(1), item = get_global_id(2);
    const long wide = min((long)WIDTH, s.result[2] - first);
    ACC sums[WIDTH];
    for (int j = 0; j < WIDTH; j++) sums[j] = 0;
#endif
    const long channel = item % (s.groups * s.to), n = item / (s.groups * s.to);
    const long rd = line / s.result[1], rh = line % s.result[1];
    __global const TYPE(X) *x = CAT(TYPE(X), x) + n * s.x_n;
    __global const TYPE(W) *w = CAT(TYPE(W), w);
    ACC sum = 0;
    for (long kd = 0; kd < s.window[0]; kd++) {
        const long d = SOURCE(rd, kd, 0);
        if (d < 0) continue;
        for (long kh = 0; kh < s.window[1]; kh++) {
            const long h = SOURCE(rh, kh, 1);
            if (h < 0) continue;
            for (long kw = 0; kw < s.window[2]; kw++) {
                const long place = (kd * s.window[1] + kh) * s.window[2] + kw;
                const long at = d * s.x[0] + h * s.x[1];
#ifdef ON_GPU
                const long l = SOURCE(j, kw, 2);
                if (l < 0) continue;
                for (long c = 0; c < CHANNELS; c++)
                    sum += (ACC)LOAD(X, x, CHANNEL(c) + at + l * s.x[2]) * WEIGHT(c);
#else
                const Span in = SPAN(first, wide, kw);
                for (long c = 0; c < CHANNELS; c++) {
                    const ACC factor = WEIGHT(c);
                    __global const TYPE(X) *row = x + CHANNEL(c) + at;
#ifdef SPREAD
                    for (long q = in.low; q < in.high; q++)
                        sums[q * s.stride[2] + in.at] += factor * (ACC)LOAD(X, row, q * s.x[2]);
#else
                    if (s.stride[2] * s.x[2] == 1) {
                        row += in.at * s.x[2];
                        for (long q = in.low; q < in.high; q++) sums[q] += factor * (ACC)LOAD(X, row, q);
                    } else
                        for (long q = in.low; q < in.high; q++)
                            sums[q] += factor * (ACC)LOAD(X, row, (in.at + q * s.stride[2]) * s.x[2]);
#endif
                }
#endif
            }
        }
    }
    __global TYPE(O) *o = AT(TYPE(O), o) + n * s.o_n + channel * s.o_c + rd * s.o[0] + rh * s.o[1];
    const ACC bias = BIAS;
#ifdef ON_GPU
    STORE(O, o, j * s.o[2], sum + bias);
#else
    for (long j = 0; j < wide; j++) STORE(O, o, (first + j) * s.o[2], sums[j] + bias);
#endif
}
#endif

#ifdef COLUMNS
__kernel void conv_columns(__global uchar *x_, ulong x_at, __global uchar *o_, ulong o_at, Conv s, long start,
                           long count, long batch_step, long group_step, long row_step, ACC outside) {
#ifdef ON_GPU
    const long blocks = (count + 63) / 64, rest = get_group_id(0) / blocks;
    const long depth = s.from * s.window[0] * s.window[1] * s.window[2];
    const long p = start + get_group_id(0) % blocks * 64 + get_local_id(0), row = rest % depth;
    const long n = rest / depth / s.groups, g = rest / depth % s.groups;
    if (p >= start + count) return;
#else
    const long row = get_global_id(0), g = get_global_id(1), n = get_global_id(2);
#endif
    const long kw = row % s.window[2], kh = row / s.window[2] % s.window[1];
    const long kd = row / (s.window[2] * s.window[1]) % s.window[0];
    const long c = row / (s.window[2] * s.window[1] * s.window[0]);
    __global const TYPE(X) *x = CAT(TYPE(X), x) + n * s.x_n + (g * s.from + c) * s.x_c;
    __global TYPE(O) *o = AT(TYPE(O), o) + n * batch_step + g * group_step + row * row_step - start;
#ifdef ON_GPU
    const long rw = p % s.result[2], rh = p / s.result[2] % s.result[1], rd = p / (s.result[2] * s.result[1]);
    const long d = SOURCE(rd, kd, 0), h = SOURCE(rh, kh, 1), l = SOURCE(rw, kw, 2);
    ACC value = outside;
    if (d >= 0 && h >= 0 && l >= 0) value = LOAD(X, x, d * s.x[0] + h * s.x[1] + l * s.x[2]);
    STORE(O, o, p, value);
#else
    for (long p = start; p < start + count;) {
        const long first = p % s.result[2], line = p / s.result[2];
        const long wide = min(s.result[2] - first, start + count - p);
        const long d = SOURCE(line / s.result[1], kd, 0), h = SOURCE(line % s.result[1], kh, 1);
        const Span in = SPAN(first, wide, kw);
        __global const TYPE(X) *from = x + d * s.x[0] + h * s.x[1];
        __global TYPE(O) *to = o + p;
        p += wide;
        if (d < 0 || h < 0 || in.low >= in.high) {
            for (long j = 0; j < wide; j++) STORE(O, to, j, outside);
            continue;
        }
#ifdef SPREAD
        for (long j = 0; j < wide; j++) STORE(O, to, j, outside);
        for (long q = in.low; q < in.high; q++)
            STORE(O, to, q * s.stride[2] + in.at, (ACC)LOAD(X, from, q * s.x[2]));
#else
        for (long j = 0; j < in.low; j++) STORE(O, to, j, outside);
        if (s.stride[2] * s.x[2] == 1) {
            from += in.at;
            for (long j = in.low; j < in.high; j++) STORE(O, to, j, (ACC)LOAD(X, from, j));
        } else
            for (long j = in.low; j < in.high; j++)
                STORE(O, to, j, (ACC)LOAD(X, from, (in.at + j * s.stride[2]) * s.x[2]));
        for (long j = in.high; j < wide; j++) STORE(O, to, j, outside);
#endif
    }
#endif
}
#endif

#ifdef WEIGHTS
__kernel void conv_weight(__global uchar *x_, ulong x_at, __global uchar *w_, ulong w_at, __global uchar *o_,
                          ulong o_at, Conv s, long many) {
#ifdef ON_GPU
    const long place = get_group_id(0);
#else
    const long place = get_global_id(0);
#endif
    const long c = get_global_id(1), channel = get_global_id(2), windows = s.window[0] * s.window[1] * s.window[2];
    const long kw = place % s.window[2], kh = place / s.window[2] % s.window[1];
    const long kd = place / (s.window[2] * s.window[1]);
    __global const TYPE(X) *x = CAT(TYPE(X), x) + (channel / s.to * s.from + c) * s.x_c;
    __global const TYPE(W) *w = CAT(TYPE(W), w) + channel * s.o_c;
    __global TYPE(O) *o = AT(TYPE(O), o) + (channel * s.from + c) * windows + place;
    ACC total = 0;
#ifdef ON_GPU
    __local ACC parts[64];
    const long lid = get_local_id(0), all = many * s.result[0] * s.result[1] * s.result[2];
    for (long e = lid; e < all; e += 64) {
        const long rw = e % s.result[2], rh = e / s.result[2] % s.result[1];
        const long rd = e / (s.result[2] * s.result[1]) % s.result[0];
        const long n = e / (s.result[2] * s.result[1] * s.result[0]);
        const long d = SOURCE(rd, kd, 0), h = SOURCE(rh, kh, 1), l = SOURCE(rw, kw, 2);
        if (d >= 0 && h >= 0 && l >= 0)
            total += (ACC)LOAD(X, x, n * s.x_n + d * s.x[0] + h * s.x[1] + l * s.x[2]) *
                     (ACC)LOAD(W, w, n * s.o_n + rd * s.o[0] + rh * s.o[1] + rw * s.o[2]);
    }
    parts[lid] = total;
    for (long half_ = 32; half_; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < half_) parts[lid] += parts[lid + half_];
    }
    if (!lid) STORE(O, o, 0, parts[0]);
#else
    const Span in = SPAN(0, s.result[2], kw);
    for (long n = 0; n < many; n++)
        for (long rd = 0; rd < s.result[0]; rd++) {
            const long d = SOURCE(rd, kd, 0);
            if (d < 0) continue;
            for (long rh = 0; rh < s.result[1]; rh++) {
                const long h = SOURCE(rh, kh, 1);
                if (h < 0) continue;
                __global const TYPE(X) *row = x + n * s.x_n + d * s.x[0] + h * s.x[1] + in.at * s.x[2];
                __global const TYPE(W) *came = w + n * s.o_n + rd * s.o[0] + rh * s.o[1];
                ACC sum = 0;
                for (long j = in.low; j < in.high; j++)
                    sum += (ACC)LOAD(X, row, j * s.stride[2] * s.x[2]) * (ACC)LOAD(W, came, j * s.o[2]);
                total += sum;
            }
        }
    STORE(O, o, 0, total);
#endif
}
#endif
