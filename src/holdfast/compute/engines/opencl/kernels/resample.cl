/* Elements selected or summed with weights along up to three dimensions; grid sampling.
 * Called by resample.py.
 *
 * The array is [many, channels, depth, height, width] with any steps (in elements), the result is
 * contiguous. Tables from the host, for each dimension: `pick`: the input index of each output;
 * `combine`: from `starts[j]` to `starts[j + 1]`, input indices and their weights.
 *
 * Appended to spans.cl. Defines: WORD (elements that are only moved), FROM and TO (dtypes), WORK
 * (what is computed in).
 */

#ifndef WORD
#define WORD uint
#endif
#ifndef FROM
#define FROM float32
#define TO float32
#define WORK float
#endif

/* The indices of the row: y, z, and n in many * channels. */
#define ROW \
    const long y = row % height, z = row / height % depth, n = row / (height * depth); \
    const long base = n / channels * s_n + n % channels * s_c

__kernel void pick(__global uchar *out_, ulong out_at, __global uchar *from_, ulong from_at,
                   __global uchar *table_, ulong table_at, long lines, long depth, long height, long width,
                   long channels, long s_n, long s_c, long s_z, long s_y, long s_x, long each) {
    __global WORD *out = AT(WORD, out);
    __global const WORD *from = CAT(WORD, from);
    __global const int *at_z = CAT(int, table), *at_y = at_z + depth, *at_x = at_y + height;
    NUMBERS {
        ROW;
        out[row * width + x] = from[base + at_z[z] * s_z + at_y[y] * s_y + at_x[x] * s_x];
    }
}

/* table: for each dimension its starts, then for each its input indices; weights: in the same order.
 * divide: the sum is divided by one divisor for each output index along each dimension. */
__kernel void combine(__global uchar *out_, ulong out_at, __global uchar *from_, ulong from_at,
                      __global uchar *table_, ulong table_at, __global uchar *weight_, ulong weight_at,
                      __global uchar *divisor_, ulong divisor_at, long divide, long many_z, long many_y,
                      long lines, long depth, long height, long width, long channels,
                      long s_n, long s_c, long s_z, long s_y, long s_x, long each) {
    __global TYPE(TO) *out = AT(TYPE(TO), out);
    __global const TYPE(FROM) *from = CAT(TYPE(FROM), from);
    __global const int *start_z = CAT(int, table), *start_y = start_z + depth + 1;
    __global const int *start_x = start_y + height + 1;
    __global const int *at_z = start_x + width + 1, *at_y = at_z + many_z, *at_x = at_y + many_y;
    __global const WORK *weight_z = CAT(WORK, weight), *weight_y = weight_z + many_z;
    __global const WORK *weight_x = weight_y + many_y;
    __global const WORK *by_z = CAT(WORK, divisor), *by_y = by_z + depth, *by_x = by_y + height;
    NUMBERS {
        ROW;
        WORK sum = 0;
        for (int i = start_z[z]; i < start_z[z + 1]; i++)
            for (int j = start_y[y]; j < start_y[y + 1]; j++) {
                const long line = base + at_z[i] * s_z + at_y[j] * s_y;
                WORK part = 0;
                for (int k = start_x[x]; k < start_x[x + 1]; k++)
                    part += weight_x[k] * (WORK)LOAD(FROM, from, line + at_x[k] * s_x);
                sum += weight_z[i] * weight_y[j] * part;
            }
        if (divide) sum /= by_z[z] * by_y[y] * by_x[x];
        STORE(TO, out, row * width + x, sum);
    }
}

/* ---- sampling a [many, channels, height, width] input at given points */

#ifdef SAMPLE
#define LINEAR 0
#define NEAREST 1
#define CUBIC 2

inline WORK reflect(WORK place, WORK low, WORK span) {
    if (span == 0) return 0;
    const WORK away = fabs(place - low), flips = floor(away / span), rest = fmod(away, span);
    return (fmod(flips, (WORK)2) == 1 ? span - rest : rest) + low;
}

/* padding: 0 zeros, 1 the border, 2 reflected. */
inline WORK kept(WORK place, long size, long padding, long aligned) {
    if (padding == 0) return place;
    if (padding == 2)
        place = aligned ? reflect(place, 0, (WORK)(size - 1)) : reflect(place, (WORK)-0.5, (WORK)size);
    return fmin(fmax(place, (WORK)0), (WORK)(size - 1)); /* NaN goes to 0 */
}

inline WORK in_pixels(WORK point, long size, long aligned) {
    return aligned ? (point + 1) / 2 * (size - 1) : ((point + 1) * size - 1) / 2;
}

inline WORK bend(WORK x) {
    const WORK a = (WORK)-0.75;
    x = fabs(x);
    return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

/* How many neighbours a point has along a dimension, which, and their weights; outside is -1. */
inline int neighbours(WORK point, long size, long mode, long padding, long aligned, long *at, WORK *weight) {
    WORK place = in_pixels(point, size, aligned);
    int many = mode == CUBIC ? 4 : mode == LINEAR ? 2 : 1;
    if (mode != CUBIC) place = kept(place, size, padding, aligned);
    const WORK whole = mode == NEAREST ? rint(place) : floor(place);
    for (int t = 0; t < many; t++) {
        WORK there = whole + (mode == CUBIC ? t - 1 : t);
        weight[t] = mode == NEAREST ? 1 : mode == LINEAR ? (t ? place - whole : whole + 1 - place)
                                                         : bend(place - there);
        if (mode == CUBIC) there = kept(there, size, padding, aligned);
        at[t] = there >= 0 && there <= size - 1 ? (long)there : -1;
    }
    return many;
}

__kernel void sample(__global uchar *out_, ulong out_at, __global uchar *from_, ulong from_at,
                     __global uchar *grid_, ulong grid_at, long many, long channels, long points, long height,
                     long width, long mode, long padding, long aligned, long each) {
    __global TYPE(TO) *out = AT(TYPE(TO), out);
    __global const TYPE(FROM) *from = CAT(TYPE(FROM), from);
    __global const WORK *grid = CAT(WORK, grid);
    SPAN(k, many * points) {
        const long n = k / points, point = k % points;
        long x[4], y[4];
        WORK wx[4], wy[4];
        const int across = neighbours(grid[2 * k], width, mode, padding, aligned, x, wx);
        const int down = neighbours(grid[2 * k + 1], height, mode, padding, aligned, y, wy);
        for (long c = 0; c < channels; c++) {
            const long plane = (n * channels + c) * height * width;
            WORK sum = 0;
            for (int j = 0; j < down; j++)
                for (int i = 0; i < across; i++)
                    if (y[j] >= 0 && x[i] >= 0)
                        sum += (WORK)LOAD(FROM, from, plane + y[j] * width + x[i]) * wy[j] * wx[i];
            STORE(TO, out, (n * channels + c) * points + point, sum);
        }
    }
}
#endif
