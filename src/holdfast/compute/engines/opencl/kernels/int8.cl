/* int8 matrix products, exact in int32, for CPU-like and GPU-like devices.
 *
 * Supports batches, any strides, ragged sizes. Called by quantize.py.
 * Sums are exact while K * 128 * 128 fits into int32; writes its outputs alone.
 *
 * Appended to numbers.cl. Strides are in elements; a batch index b is (b / inner, b % inner).
 * Fixed here
 *   MR, NQ      CPU: register tile of MR rows by NR = 8 * NQ columns: 6, 4 with AVX-512 or AVX2.
 *   TM, TN, BKQ GPU: elements of a work-item, rows TM by columns TN: 4, 4; BKQ: fours of k in a step: 8.
 *               A work-group of 16 x 16 does BM = 16 * TM rows by BN = 16 * TN columns.
 *   DOT4(a, b, s)  GPU: s + the products of four int8 in each of the ints a and b. The default is plain C.
 *
 * CPU, local size 1:
 *   int8_pack(a, b, to_a, to_b, M, N, K, a batches, b batches, a row stride, a k stride,
 *             b column stride, b k stride, inner, a outer batch stride, a inner, b outer, b inner)
 *     global (ceil(M / MR) + ceil(N / NR), max(a batches, b batches)); a term is 0 where its count is 0
 *     to_a: a batches * ceil(M / MR) * MR * P ints, P = ceil(K / 2), as [batch][panel][P][MR]: two
 *     16-bit integers in each. to_b: the same with N and NR. Start at multiples of 64 bytes.
 *   int8_packed(a, b, out, M, N, K, bm, bn, a batch step,
 *               b batch step, out row stride, out batch stride)
 *     global (ceil(N / bn), ceil(M / bm), batches); bm, bn: multiples of MR and NR (16 and 4 of them).
 *     batch steps in ints, 0 where one matrix serves all. out has column stride 1.
 * GPU, local (16, 16, 1):
 *   int8_tiles(a, b, out, M, N, K, a row stride, a k stride,
 *              b column stride, b k stride, inner, a outer, a inner, b outer, b inner, out row stride,
 *              out batch stride)
 *     global (16 * ceil(N / BN), 16 * ceil(M / BM), batches)
 */
#define MR 6
#define NQ 4
#define NR (8 * NQ)
#define TM 4
#define TN 4
#define BKQ 8
#define BM (16 * TM)
#define BN (16 * TN)
#define UNROLL _Pragma("unroll")

inline long place_of(long b, long inner, long outer_stride, long inner_stride) {
    return b / inner * outer_stride + b % inner * inner_stride;
}

/* ---- cpu mapping ------------------------------------------------------------------- */

inline void pack_pairs(__global const char *x, __global int *to, int many, const int width, long depth,
                       long si, long sk) {
    for (long k = 0; k < depth; k += 2)
        for (int i = 0; i < width; i++) {
            int low = i < many ? x[i * si + k * sk] : 0;
            int high = i < many && k + 1 < depth ? x[i * si + (k + 1) * sk] : 0;
            to[k / 2 * width + i] = (low & 0xffff) | (high << 16);
        }
}

__kernel void int8_pack(__global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at,
                        __global uchar *to_a_, ulong to_a_at, __global uchar *to_b_, ulong to_b_at,
                        long rows, long columns, long depth, long a_batches, long b_batches, long a_row,
                        long a_k, long b_column, long b_k, long inner, long a_outer, long a_inner,
                        long b_outer, long b_inner) {
    long panel = get_global_id(0), b = get_global_id(1), pairs = (depth + 1) / 2;
    long of_a = a_batches ? (rows + MR - 1) / MR : 0, of_b = (columns + NR - 1) / NR;
    if (panel < of_a && b < a_batches)
        pack_pairs(CAT(char, a) + place_of(b, inner, a_outer, a_inner) + panel * MR * a_row,
                   AT(int, to_a) + (b * of_a + panel) * MR * pairs,
                   (int)min((long)MR, rows - panel * MR), MR, depth, a_row, a_k);
    panel -= of_a;
    if (panel >= 0 && b < b_batches)
        pack_pairs(CAT(char, b) + place_of(b, inner, b_outer, b_inner) + panel * NR * b_column,
                   AT(int, to_b) + (b * of_b + panel) * NR * pairs,
                   (int)min((long)NR, columns - panel * NR), NR, depth, b_column, b_k);
}

/* Pairs of 16 bits multiplied and added. LLVM does not find the instruction for it by itself, and without
 * it this takes three times as long. */
#if defined(__AVX2__) && defined(__clang__)
typedef short pair16 __attribute__((__vector_size__(32)));
inline int8 pairs_added(short16 a, short16 b) {
    return __builtin_astype(
        __builtin_ia32_pmaddwd256(__builtin_astype(a, pair16), __builtin_astype(b, pair16)), int8);
}
#else
inline int8 pairs_added(short16 a, short16 b) {
    return convert_int8(a.even) * convert_int8(b.even) + convert_int8(a.odd) * convert_int8(b.odd);
}
#endif

inline void pairs_tile(__global const int *a, __global const int *b, long pairs, int *tile) {
    int8 s[MR][NQ];
    UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < NQ; v++) s[r][v] = 0;
    for (long k = 0; k < pairs; k++) {
        short16 row[NQ];
        UNROLL for (int v = 0; v < NQ; v++) row[v] = as_short16(vload8(0, b + v * 8));
        UNROLL for (int r = 0; r < MR; r++) {
            short16 x = as_short16((int8)(a[r]));
            UNROLL for (int v = 0; v < NQ; v++) s[r][v] += pairs_added(x, row[v]);
        }
        a += MR;
        b += NR;
    }
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int v = 0; v < NQ; v++) vstore8(s[r][v], 0, tile + r * NR + v * 8);
}

__kernel void int8_packed(__global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at,
                          __global uchar *out_, ulong out_at, long rows,
                          long columns, long depth, long bm, long bn, long a_step, long b_step, long ldo,
                          long out_step) {
    long n = get_global_id(2), pairs = (depth + 1) / 2;
    long j0 = get_global_id(0) * bn, j1 = min(j0 + bn, columns);
    long i0 = get_global_id(1) * bm, i1 = min(i0 + bm, rows);
    __global int *out = AT(int, out) + n * out_step;
    for (long j = j0; j < j1; j += NR)
        for (long i = i0; i < i1; i += MR) {
            int tile[MR * NR];
            pairs_tile(CAT(int, a) + n * a_step + i * pairs, CAT(int, b) + n * b_step + j * pairs, pairs,
                       tile);
            int high = min((long)MR, rows - i), wide = min((long)NR, columns - j);
            for (int r = 0; r < high; r++)
                for (int w = 0; w < wide; w++)
                    out[(i + r) * ldo + j + w] = tile[r * NR + w];
        }
}

/* ---- gpu mapping --------------------------------------------------------------------------- */

#ifndef DOT4
inline int dot4(int a, int b, int s) {
    int4 x = convert_int4(as_char4(a)), y = convert_int4(as_char4(b));
    return s + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
#define DOT4(a, b, s) dot4(a, b, s)
#endif

/* Four elements along k of one row, 0 past the end. */
inline int four_of(__global const char *x, long row, long rows, long k, long depth, long si, long sk) {
    char4 v = 0;
    if (row < rows) {
        x += row * si + k * sk;
        if (k < depth) v.x = x[0];
        if (k + 1 < depth) v.y = x[sk];
        if (k + 2 < depth) v.z = x[2 * sk];
        if (k + 3 < depth) v.w = x[3 * sk];
    }
    return as_int(v);
}

__kernel __attribute__((reqd_work_group_size(16, 16, 1))) void int8_tiles(
    __global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at, __global uchar *out_, ulong out_at,
    long rows, long columns, long depth, long a_row, long a_k, long b_column,
    long b_k, long inner, long a_outer, long a_inner, long b_outer, long b_inner, long ldo,
    long out_step) {
    __local int a_tile[BKQ][BM + 1], b_tile[BKQ][BN + 1];
    const long n = get_group_id(2), i0 = get_group_id(1) * BM, j0 = get_group_id(0) * BN;
    const int x = get_local_id(0), y = get_local_id(1), item = y * 16 + x;
    __global const char *a = CAT(char, a) + place_of(n, inner, a_outer, a_inner);
    __global const char *b = CAT(char, b) + place_of(n, inner, b_outer, b_inner);
    int s[TM][TN];
    UNROLL for (int r = 0; r < TM; r++) UNROLL for (int c = 0; c < TN; c++) s[r][c] = 0;
    for (long k = 0; k < depth; k += 4 * BKQ) {
        /* Neighbours read along k, which is contiguous in most weights. */
        for (int t = item; t < BKQ * BM; t += 256)
            a_tile[t % BKQ][t / BKQ] =
                four_of(a, i0 + t / BKQ, rows, k + t % BKQ * 4, depth, a_row, a_k);
        for (int t = item; t < BKQ * BN; t += 256)
            b_tile[t % BKQ][t / BKQ] =
                four_of(b, j0 + t / BKQ, columns, k + t % BKQ * 4, depth, b_column, b_k);
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int q = 0; q < BKQ; q++)
            UNROLL for (int r = 0; r < TM; r++)
                UNROLL for (int c = 0; c < TN; c++)
                    s[r][c] = DOT4(a_tile[q][y + 16 * r], b_tile[q][x + 16 * c], s[r][c]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    __global int *out = AT(int, out) + n * out_step;
    for (int r = 0; r < TM; r++)
        for (int c = 0; c < TN; c++) {
            long i = i0 + y + 16 * r, j = j0 + x + 16 * c;
            if (i < rows && j < columns) out[i * ldo + j] = s[r][c];
        }
}
