/* Convolution for GPU-like devices: an implicit matrix product, weights @ patches of the image.
 * Called by conv_implicit.py.
 *
 * Supports one to three dimensions, strides, padding, dilation, groups, images with any strides, a bias; with
 *   SPREAD the transpose of a convolution of stride 1 (the gradient of its input). Narrow floats are widened.
 * Reads nothing outside the arrays; patches are in local memory alone.
 *
 * Appended to numbers.cl. Rows of the product are channels of the result, columns are its elements, of all
 * images one after the other; the sum goes over channels and window elements, the latter inside.
 * Defines: X dtype of x, w, bias and o. BM, BN, BK: tile of a work-group and step along the sum. TM, TN: tile
 *   of a work-item, multiples of 4. THREADS = BM / TM * BN / TN is a multiple of BN and of BK; BN a multiple of
 *   4 TN. MOST: room for window elements. HAS_BIAS. SPREAD.
 * Launch: local (THREADS,), global (THREADS * ceil(columns / BN), ceil(to / BM), groups), columns = n * elements.
 *   A window element has 10 bits for each dimension: dilation * (window - 1) < 1024, elements <= MOST.
 */
typedef struct {
    long groups, from, to;
    long size[3], window[3], result[3], stride[3], padding[3], dilation[3];
    long x_n, x_c, x[3], w_g, w_to, w_from, w[3], o_n, o_c, o[3];
} Conv; /* as in conv_direct.cl */

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
#define A_COUNT (BM * BK / THREADS)
#define B_COUNT (BN * BK / THREADS)
#define A_STEP (THREADS / BK)
#define B_STEP (THREADS / BN)
#define A_ROW (BM + 4) /* keeps vectors aligned, and spreads transposing stores over the banks */
#ifdef SPREAD
#define SIGN (-1)
#else
#define SIGN 1
#endif

/* What a work-item reads of b: one output element of one image, some window elements. */
typedef struct {
    long base;
    int at[3], size[3];
    int inside;
} Patch;

inline float patch_value(__global const TYPE(X) *x, const Patch *p, long channel, int word, long shift) {
    const int d = p->at[0] + SIGN * (word & 1023), h = p->at[1] + SIGN * (word >> 10 & 1023);
    const int l = p->at[2] + SIGN * (word >> 20);
    if (!p->inside || (uint)d >= (uint)p->size[0] || (uint)h >= (uint)p->size[1] || (uint)l >= (uint)p->size[2])
        return 0;
    return LOAD(X, x, p->base + channel + SIGN * shift);
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void conv_gpu(
    __global uchar *x_, ulong x_at, __global uchar *w_, ulong w_at, __global uchar *bias_, ulong bias_at,
    __global uchar *o_, ulong o_at, Conv s, long columns, long w_row, long w_col) {
    __local float a_tile[2][BK * A_ROW] __attribute__((aligned(16)));
    __local float b_tile[2][BK * BN] __attribute__((aligned(16)));
    __local int words[MOST];
    __local long shifts[MOST];
    const int lid = (int)get_local_id(0), tx = lid % TX, ty = lid / TX;
    const long m0 = (long)get_group_id(1) * BM, n0 = (long)get_group_id(0) * BN, g = get_group_id(2);
    const int window = (int)(s.window[0] * s.window[1] * s.window[2]), depth = (int)s.from * window;
    const long plane = s.result[0] * s.result[1] * s.result[2];

    for (int k = lid; k < window; k += THREADS) {
        const int kw = k % (int)s.window[2], kh = k / (int)s.window[2] % (int)s.window[1];
        const int kd = k / (int)(s.window[2] * s.window[1]);
        const int d = kd * (int)s.dilation[0], h = kh * (int)s.dilation[1], l = kw * (int)s.dilation[2];
        words[k] = d | h << 10 | l << 20;
        shifts[k] = d * s.x[0] + h * s.x[1] + l * s.x[2];
    }

    Patch patch;
    {
        const long column = n0 + lid % BN;
        const long n = column / plane;
        const int p = (int)(column % plane);
        const int at[3] = {p / (int)(s.result[1] * s.result[2]), p / (int)s.result[2] % (int)s.result[1],
                           p % (int)s.result[2]};
        patch.inside = column < columns;
        patch.base = n * s.x_n + g * s.from * s.x_c;
        for (int i = 0; i < 3; i++) {
#ifdef SPREAD
            patch.at[i] = at[i] + (int)s.padding[i];
#else
            patch.at[i] = at[i] * (int)s.stride[i] - (int)s.padding[i];
#endif
            patch.size[i] = (int)s.size[i];
            patch.base += patch.at[i] * s.x[i];
        }
    }
    /* The channel and the window element of this work-item, advanced without divisions. */
    int place[B_COUNT];
    long channel[B_COUNT];
    for (int i = 0; i < B_COUNT; i++) {
        const int k = lid / BN + i * B_STEP;
        place[i] = k % window;
        channel[i] = k / window;
    }
    const int skip = BK % window, ahead = BK / window;
    __global const TYPE(X) *x = CAT(TYPE(X), x);
    __global const TYPE(X) *w = CAT(TYPE(X), w) + g * s.to * w_row;
    barrier(CLK_LOCAL_MEM_FENCE);

    float4 sum[TM][TN / 4];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN / 4; j++) sum[i][j] = (float4)(0);

    float a_held[A_COUNT], b_held[B_COUNT];
    int now = 0;
    for (int k0 = -BK; k0 < depth; k0 += BK) {
        const int next = k0 + BK;
        if (next < depth) {
#pragma unroll
            for (int i = 0; i < A_COUNT; i++) {
                const long row = m0 + lid / BK + i * A_STEP;
                const int k = next + lid % BK;
                a_held[i] = row < s.to && k < depth ? LOAD(X, w, row * w_row + k * w_col) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < B_COUNT; i++) {
                b_held[i] = 0;
                if (next + lid / BN + i * B_STEP < depth)
                    b_held[i] = patch_value(x, &patch, channel[i] * s.x_c, words[place[i]], shifts[place[i]]);
                place[i] += skip;
                channel[i] += ahead;
                if (place[i] >= window) {
                    place[i] -= window;
                    channel[i]++;
                }
            }
        }
        if (k0 >= 0) {
            __local const float *a = a_tile[now] + ty * 4, *b = b_tile[now] + tx * 4;
#pragma unroll
            for (int k = 0; k < BK; k++) {
                float4 u[TM / 4], v[TN / 4];
#pragma unroll
                for (int i = 0; i < TM / 4; i++) u[i] = *(__local const float4 *)(a + k * A_ROW + i * (TY * 4));
#pragma unroll
                for (int j = 0; j < TN / 4; j++) v[j] = *(__local const float4 *)(b + k * BN + j * (TX * 4));
#pragma unroll
                for (int i = 0; i < TM / 4; i++)
#pragma unroll
                    for (int j = 0; j < TN / 4; j++) {
                        sum[4 * i][j] = fma((float4)(u[i].x), v[j], sum[4 * i][j]);
                        sum[4 * i + 1][j] = fma((float4)(u[i].y), v[j], sum[4 * i + 1][j]);
                        sum[4 * i + 2][j] = fma((float4)(u[i].z), v[j], sum[4 * i + 2][j]);
                        sum[4 * i + 3][j] = fma((float4)(u[i].w), v[j], sum[4 * i + 3][j]);
                    }
            }
        }
        if (next < depth) {
            now ^= 1;
#pragma unroll
            for (int i = 0; i < A_COUNT; i++) a_tile[now][lid % BK * A_ROW + lid / BK + i * A_STEP] = a_held[i];
#pragma unroll
            for (int i = 0; i < B_COUNT; i++) b_tile[now][(lid / BN + i * B_STEP) * BN + lid % BN] = b_held[i];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }

    __global TYPE(X) *o = AT(TYPE(X), o) + g * s.to * s.o_c;
#pragma unroll
    for (int j = 0; j < TN; j++) {
        const long column = n0 + j / 4 * (TX * 4) + tx * 4 + j % 4;
        if (column >= columns) continue;
        const long at = column / plane * s.o_n + column % plane;
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const long row = m0 + i / 4 * (TY * 4) + ty * 4 + i % 4;
            if (row >= s.to) continue;
            const float4 four = sum[i][j / 4];
            float value = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
#ifdef HAS_BIAS
            value += LOAD(X, CAT(TYPE(X), bias), g * s.to + row);
#endif
            STORE(X, o, row * s.o_c + at, value);
        }
    }
}
