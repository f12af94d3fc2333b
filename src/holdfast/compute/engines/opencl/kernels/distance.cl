/* Distances between all pairs of rows, [sheets, rows, width] and [sheets, columns, width], and the gradient.
 * Called by distance.py.
 *
 * Appended to spans.cl. Defines: WORK (float or double).
 * kind: 0 counts differences, 1 sums, 2 Euclidean, 3 maximum, 4 any power p.
 */

/* Eight partial sums, which compilers vectorize. */
#define SUM(term) { \
        WORK part[8] = {0, 0, 0, 0, 0, 0, 0, 0}; \
        const long end_ = width / 8 * 8; \
        for (long begin_ = 0; begin_ < end_; begin_ += 8) \
            for (int lane = 0; lane < 8; lane++) { \
                const long i = begin_ + lane; \
                part[lane] += term; \
            } \
        for (long i = end_; i < width; i++) part[0] += term; \
        sum = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7])); \
    }

__kernel void distances(__global uchar *out_, ulong out_at, __global uchar *one_, ulong one_at,
                       __global uchar *other_, ulong other_at, long sheets, long rows, long columns,
                       long width, long kind, WORK p, long each) {
    SPAN(k, sheets * rows * columns) {
        const long row = k / columns;
        __global const WORK *a = CAT(WORK, one) + row * width;
        __global const WORK *b = CAT(WORK, other) + (row / rows * columns + k % columns) * width;
        WORK sum = 0;
        if (kind == 0) SUM(a[i] != b[i])
        else if (kind == 1) SUM(fabs(a[i] - b[i]))
        else if (kind == 2) SUM((a[i] - b[i]) * (a[i] - b[i]))
        else if (kind == 4) SUM(pow(fabs(a[i] - b[i]), p))
        else
            for (long i = 0; i < width; i++) {
                const WORK apart = fabs(a[i] - b[i]);
                sum = apart > sum || apart != apart ? apart : sum;
            }
        AT(WORK, out)[k] = kind == 2 ? sqrt(sum) : kind == 4 ? pow(sum, 1 / p) : sum;
    }
}

/* Gradient of the first rows: grad and size are those of the distances. */
__kernel void distances_back(__global uchar *out_, ulong out_at, __global uchar *grad_, ulong grad_at,
                            __global uchar *one_, ulong one_at, __global uchar *other_, ulong other_at,
                            __global uchar *size_, ulong size_at, long sheets, long rows, long columns,
                            long width, long kind, WORK p, long each) {
    SPAN(k, sheets * rows * width) {
        const long row = k / width, i = k % width;
        const WORK here = CAT(WORK, one)[k];
        __global const WORK *b = CAT(WORK, other) + row / rows * columns * width + i;
        __global const WORK *grad = CAT(WORK, grad) + row * columns, *size = CAT(WORK, size) + row * columns;
        WORK sum = 0;
        for (long j = 0; j < columns; j++) {
            const WORK apart = here - b[j * width], way = apart > 0 ? 1 : apart < 0 ? -1 : 0;
            WORK slope = 0;
            if (kind == 1) slope = way;
            else if (kind == 3) slope = fabs(apart) == size[j] ? way : 0;
            else if (kind == 2) slope = size[j] == 0 ? 0 : apart / size[j];
            else if (kind == 4 && size[j] != 0 && apart != 0)
                slope = way * pow(fabs(apart), p - 1) / pow(size[j], p - 1);
            sum += slope * grad[j];
        }
        AT(WORK, out)[k] = sum;
    }
}
