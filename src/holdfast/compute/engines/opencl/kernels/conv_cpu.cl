/* Convolution for CPU-like devices: an implicit matrix product, weights @ patches of the image.
 *
 * Supports 1 to 3 dimensions, strides, padding, dilation, groups, images with any strides (channels last
 * too), a bias. Called by conv_implicit.py.
 * Patches are packed for NR outputs at a time, into a slice of `scratch` that stays in the
 * cache; the matrix of all patches is never there.
 *
 * Appended to panels_cpu.cl and gemm_cpu.cl, with their defines; HAS_C says that there is a bias.
 * Triples are along depth, height, width; for fewer dimensions the first ones are 1 (padding: 0).
 * Launches have local size 1.
 *   1. pack_both of gemm_cpu.cl makes panels of the weights: A is [groups][O][K], O outputs of a group and
 *      K = channels of a group * kernel depth * height * width; a batches = groups, b batches = 0,
 *      inner = 1, a outer = O * K. The panels may be kept as long as the weights do not change.
 *   2. conv_pad(x, padded, channels (all), x image stride, x channel stride, x strides (triple),
 *               sizes (triple), padding in front (triple), padded sizes (triple))
 *      global (channels, images). padded: images * channels * padded elements + NR REALs, contiguous;
 *      the padding is written too, the NR at the end are not. A padded size is size + both paddings.
 *   3. conv_packed(padded, weights, out, scratch, [bias,] items, groups, channels, O, padded sizes,
 *                  out sizes, kernel, steps, dilation (triples))
 *      items: images * groups * ceil(P / NR), P = out depth * height * width. channels, O: of a group.
 *      out: contiguous [image][groups * O][P]. bias: groups * O elements.
 *      scratch: work-items * (K + 1) * NR REALs, beginning at a multiple of 64 bytes.
 *      global (min(items, 8 * cores),): work-items take items in turn.
 */
#define THREE(name) long name##0, long name##1, long name##2

__kernel void conv_pad(__global uchar *x_, ulong x_at, __global uchar *padded_, ulong padded_at,
                       long channels, long image_step, long channel_step, THREE(step), THREE(size),
                       THREE(pad), THREE(to)) {
    long channel = get_global_id(0), image = get_global_id(1);
    __global const T *x = CAT(T, x) + image * image_step + channel * channel_step;
    __global REAL *out = AT(REAL, padded) + (image * channels + channel) * to0 * to1 * to2;
    for (long z = 0; z < to0; z++)
        for (long y = 0; y < to1; y++, out += to2) {
            long at_z = z - pad0, at_y = y - pad1;
            int inside = at_z >= 0 && at_z < size0 && at_y >= 0 && at_y < size1;
            long first = inside ? pad2 : to2, end = inside ? pad2 + size2 : to2;
            __global const T *row = x + at_z * step0 + at_y * step1;
            for (long i = 0; i < first; i++) out[i] = 0;
            if (step2 == 1)
                for (long i = first; i < end; i++) out[i] = GET(row, i - pad2);
            else
                for (long i = first; i < end; i++) out[i] = GET(row, (i - pad2) * step2);
            for (long i = end; i < to2; i++) out[i] = 0;
        }
}

/* Outputs that are contiguous in a row of out: `many` from lane `lane` on, `at` in a padded channel. */
typedef struct {
    int lane, many;
    long at;
} Run;

/* A row of the panel. Vectors are copied whole: what is too much of one run, the next run or the next
 * row overwrites; past the end there is room for a row. */
inline void pack_row(__global const REAL *x, __global REAL *to, const Run *runs, int count, long by) {
    for (int r = 0; r < count; r++) {
        __global const REAL *from = x + runs[r].at;
        __global REAL *lanes = to + runs[r].lane;
        if (by == 1)
            for (int i = 0; i < runs[r].many; i += VEC)
                *(__global LOOSE *)(lanes + i) = *(__global const LOOSE *)(from + i);
        else
            for (int i = 0; i < runs[r].many; i++) lanes[i] = from[i * by];
    }
}

__kernel void conv_packed(__global uchar *x_, ulong x_at, __global uchar *w_, ulong w_at,
                          __global uchar *out_, ulong out_at, __global uchar *scratch_,
                          ulong scratch_at, C_ARRAY long items, long groups, long channels, long rows,
                          THREE(size), THREE(to), THREE(by_kernel), THREE(by), THREE(apart)) {
    long places = to0 * to1 * to2, panels = (places + NR - 1) / NR, plane = size0 * size1 * size2;
    long depth = channels * by_kernel0 * by_kernel1 * by_kernel2;
    __global REAL *patches = AT(REAL, scratch) + get_global_id(0) * (depth + 1) * NR;
    for (long item = get_global_id(0); item < items; item += get_global_size(0)) {
        long group = item / panels % groups, image = item / panels / groups, j = item % panels * NR;
        int many = min((long)NR, places - j), count = 0;
        Run runs[NR];
        for (int lane = 0; lane < many; lane += runs[count++].many) {
            long p = j + lane, x = p % to2, y = p / to2 % to1, z = p / to2 / to1;
            runs[count].lane = lane;
            runs[count].many = min((long)(many - lane), to2 - x);
            runs[count].at = (z * by0 * size1 + y * by1) * size2 + x * by2;
        }
        __global const REAL *x = CAT(REAL, x) + (image * groups + group) * channels * plane;
        __global REAL *row = patches;
        for (long c = 0; c < channels; c++, x += plane)
            for (long kz = 0; kz < by_kernel0; kz++)
                for (long ky = 0; ky < by_kernel1; ky++)
                    for (long kx = 0; kx < by_kernel2; kx++, row += NR)
                        pack_row(x + (kz * apart0 * size1 + ky * apart1) * size2 + kx * apart2, row,
                                 runs, count, by2);
        __global const REAL *w = CAT(REAL, w) + group * ((rows + MR - 1) / MR) * MR * depth;
        __global T *out = AT(T, out) + (image * groups + group) * rows * places;
        __global const T *bias = 0;
#ifdef HAS_C
        bias = CAT(T, c) + group * rows;
#endif
        for (long i = 0; i < rows; i += MR) {
            RV sums[MR][NV];
            packed_tile(w + i * depth, patches, depth, sums);
            write_tile(sums, out, places, i, j, rows, places, 1, bias, 1, 1, 0);
        }
    }
}
