/* Max pooling with indices, and its gradient.
 * Called by pooling.py.
 *
 * The input is [many, channels, depth, height, width] with any steps (in elements), results are contiguous.
 * Along each dimension the host says which inputs a window covers (first, end), and for the gradient which
 * windows cover an input. Of equal elements the first is taken, of several NaNs the last, as torch does.
 *
 * Appended to spans.cl. Defines: KIND (the dtype), WORK (its C type).
 */

#define ROW const long y = row % height, z = row / height % depth, n = row / (height * depth)

/* Whether an element is NaN: a function, because compilers warn for integers, which never are. */
inline int differ(WORK one, WORK other) { return one != other; }

/* table: first and end of each window, for each dimension. */
__kernel void largest(__global uchar *out_, ulong out_at, __global uchar *where_, ulong where_at,
                      __global uchar *from_, ulong from_at, __global uchar *table_, ulong table_at,
                      long lines, long depth, long height, long width, long channels,
                      long s_n, long s_c, long s_z, long s_y, long s_x, long in_height, long in_width,
                      long d_z, long d_y, long d_x, long each) {
    __global TYPE(KIND) *out = AT(TYPE(KIND), out);
    __global long *where = AT(long, where);
    __global const TYPE(KIND) *from = CAT(TYPE(KIND), from);
    __global const int *first_z = CAT(int, table), *end_z = first_z + depth;
    __global const int *first_y = end_z + depth, *end_y = first_y + height;
    __global const int *first_x = end_y + height, *end_x = first_x + width;
    NUMBERS {
        ROW;
        const long base = n / channels * s_n + n % channels * s_c;
        long at = first_z[z] * s_z + first_y[y] * s_y + first_x[x] * s_x;
        long place = (first_z[z] * in_height + first_y[y]) * in_width + first_x[x];
        WORK best = LOAD(KIND, from, base + at);
        for (long i = first_z[z]; i < end_z[z]; i += d_z)
            for (long j = first_y[y]; j < end_y[y]; j += d_y)
                for (long k = first_x[x]; k < end_x[x]; k += d_x) {
                    at = base + i * s_z + j * s_y + k * s_x;
                    const WORK seen = LOAD(KIND, from, at);
                    if (seen > best || differ(seen, seen)) {
                        best = seen;
                        place = (i * in_height + j) * in_width + k;
                    }
                }
        STORE(KIND, out, row * width + x, best);
        where[row * width + x] = place;
    }
}

/* Each input sums over the windows that cover it and have it as maximum: sums are deterministic.
 * table: first and end of those windows, for each dimension of the input. */
__kernel void largest_back(__global uchar *out_, ulong out_at, __global uchar *grad_, ulong grad_at,
                           __global uchar *where_, ulong where_at, __global uchar *table_, ulong table_at,
                           long lines, long depth, long height, long width, long out_depth, long out_height,
                           long out_width, long each) {
    __global TYPE(KIND) *out = AT(TYPE(KIND), out);
    __global const TYPE(KIND) *grad = CAT(TYPE(KIND), grad);
    __global const long *where = CAT(long, where);
    __global const int *first_z = CAT(int, table), *end_z = first_z + depth;
    __global const int *first_y = end_z + depth, *end_y = first_y + height;
    __global const int *first_x = end_y + height, *end_x = first_x + width;
    NUMBERS {
        ROW;
        const long place = (z * height + y) * width + x;
        WORK sum = 0;
        for (long i = first_z[z]; i < end_z[z]; i++)
            for (long j = first_y[y]; j < end_y[y]; j++)
                for (long k = first_x[x]; k < end_x[x]; k++) {
                    const long at = ((n * out_depth + i) * out_height + j) * out_width + k;
                    if (where[at] == place) sum += LOAD(KIND, grad, at);
                }
        STORE(KIND, out, row * width + x, sum);
    }
}
