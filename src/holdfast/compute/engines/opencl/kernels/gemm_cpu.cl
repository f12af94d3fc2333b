/* Matrix products for CPU-like devices: out[b] = alpha * A[b] @ B[b] + beta * C[b].
 * Called by gemm.py, and conv_implicit.py for pack_both.
 *
 * Supports batches, any element strides, ragged sizes, a matrix or a bias that is added.
 * Writes its outputs alone; reads nothing outside the matrices; sums over K run in registers.
 *
 * Defines (all have defaults)
 *   WORD, VEC  as panels_cpu.cl says, which precedes this file. Sums and scales are in REAL.
 *   MR, NV   register tile: MR rows by NR = NV * VEC columns. 12, 2 with AVX-512; 6, 2 with AVX2.
 *   HAS_C    out gets beta * C; C has element strides, 0 where it is broadcast (a bias over rows
 *            is a C with column stride 0).
 *
 * Fixed here, and known to gemm.py: PACK_K, elements along k that one work-item of pack_both does; DM and
 * DV, way 2: rows of a work-item, and vectors (direct) or columns (dot).
 *
 * A batch index b is (b / inner, b % inner), with a stride for each part: no copy is needed for
 * (batch, heads, ...) seen through a transpose. Strides are in elements.
 *
 * Which way (CPU time against OpenBLAS, Zen 4): direct up to M of 256 or so where B has column stride 1
 * (0.7 to 1.1; 256 cubed 1.45; M of 1: 2.2 with DM 1, DV 16), dot up to 32 where k is contiguous (0.5 to 0.9;
 * M of 1: 1.1 with DM 1, DV 8), else packed (0.95 to 1.1 for squares from 512 on, 1.2 to 1.5 for skinny ones).
 *
 * Way 1, packed. All launches have local size 1 in every dimension.
 *   pack_both(a, b, to_a, to_b, M, N, K, a batches, b batches, a row stride, a k stride,
 *             b column stride, b k stride, inner, a outer batch stride, a inner, b outer, b inner)
 *     global (ceil(M / MR) + ceil(N / NR), ceil(K / PACK_K), max(a batches, b batches));
 *     the first term is 0 where `a batches` is 0 (A is packed already, or is not wanted), the
 *     second where `b batches` is. A batch count is 1 where one matrix serves all batches.
 *     to_a: a batches * ceil(M / MR) * MR * K REALs, as [batch][panel][k][MR], zeros past M
 *     to_b: b batches * ceil(N / NR) * NR * K REALs, as [batch][panel][k][NR], zeros past N
 *     Start both at multiples of 64 bytes, so that no load crosses a cache line.
 *   gemm_packed(a, b, out, [c,] M, N, K, bm, bn, a batch step, b batch step, out row stride,
 *               out batch stride, alpha, [beta, c row stride, c column stride, inner,
 *               c outer batch stride, c inner batch stride])
 *     global (ceil(N / bn), ceil(M / bm), batches)
 *     A work-item does bm rows by bn columns: multiples of MR and NR, given at run time, so that
 *     small products are cut small without another build. 8 * MR by 4 * NR is good; halve them
 *     while there are fewer than 8 work-items for a core.
 *     batch steps are in REALs of the packed arrays; 0 where one matrix serves all batches. out has
 *     column stride 1.
 *   A matrix that does not change (weights) may stay packed between calls.
 * Way 2, direct (few rows, or all small). No scratch; B is read where it lies.
 *   gemm_direct: B has column stride 1; A has any strides.
 *     global (ceil(N / (DV * VEC)), ceil(M / DM), batches)
 *   gemm_dot: A and B both have k stride 1 (a Linear layer: B is a transposed weight).
 *     global (ceil(N / DV), ceil(M / DM), batches)
 *   both: (a, b, out, [c,] M, N, K, a row stride, a k stride, b column stride, b k stride,
 *          inner, a outer, a inner, b outer, b inner, out row stride, out batch stride, alpha,
 *          [beta, c row stride, c column stride, c outer, c inner])
 */
#ifndef MR
#define MR 12
#endif
#ifndef NV
#define NV 2
#endif
#define NR (NV * VEC)
#define PACK_K 256
#define DM 4
#define DV 4
#define DN (DV * VEC)

/* ---- packing ------------------------------------------------------------------------------- */

inline void pack_matrix(__global const T *x, __global REAL *to, long panel, const int width,
                        long rows, long depth, long si, long sk) {
    long panels = (rows + width - 1) / width, k0 = get_global_id(1) * PACK_K;
    long b = get_global_id(2), k1 = min(k0 + PACK_K, depth);
    pack_panel(x + panel * width * si, to + (b * panels + panel) * depth * width,
               (int)min((long)width, rows - panel * width), width, k0, k1, si, sk);
}

/* One launch for both, as a launch costs as much as a small product. */
__kernel void pack_both(__global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at,
                        __global uchar *to_a_, ulong to_a_at, __global uchar *to_b_, ulong to_b_at,
                        long rows, long columns, long depth, long a_batches, long b_batches,
                        long a_row, long a_k, long b_column, long b_k, long inner, long a_outer,
                        long a_inner, long b_outer, long b_inner) {
    long panel = get_global_id(0), b = get_global_id(2);
    long of_a = a_batches ? (rows + MR - 1) / MR : 0;
    if (panel < of_a && b < a_batches)
        pack_matrix(CAT(T, a) + batch_offset(b, inner, a_outer, a_inner), AT(REAL, to_a), panel,
                    MR, rows, depth, a_row, a_k);
    if (panel >= of_a && b < b_batches)
        pack_matrix(CAT(T, b) + batch_offset(b, inner, b_outer, b_inner), AT(REAL, to_b),
                    panel - of_a, NR, columns, depth, b_column, b_k);
}

/* ---- epilogue ------------------------------------------------------------------------------ */

#ifdef HAS_C
#define C_ARRAY __global uchar *c_, ulong c_at,
#else
#define C_ARRAY
#endif

inline RV finish_vector(RV sum, REAL alpha, __global const T *c, REAL beta, long cj, long j) {
    RV v = sum * alpha;
#ifdef HAS_C
    if (cj == 1) v += beta * load_vector(c, j);
    else if (cj == 0) v += (RV)(beta * GET(c, 0));
    else {
        RV w;
        REAL *each = (REAL *)&w;
        for (int i = 0; i < VEC; i++) each[i] = GET(c, (j + i) * cj);
        v += beta * w;
    }
#endif
    return v;
}

inline REAL finish(REAL sum, REAL alpha, __global const T *c, REAL beta, long cj, long j) {
    REAL v = sum * alpha;
#ifdef HAS_C
    v += beta * GET(c, j * cj);
#endif
    return v;
}

/* Write a register tile at row i, column j of out; the edge path only what is inside. */
inline void write_tile(RV (*sums)[NV], __global T *out, long ldo, long i, long j, long rows,
                       long columns, REAL alpha, __global const T *c, REAL beta, long ci, long cj) {
    if (i + MR <= rows && j + NR <= columns) {
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < NV; v++)
                store_vector(out, (i + r) * ldo + j + v * VEC,
                             finish_vector(sums[r][v], alpha, c + (i + r) * ci, beta, cj,
                                           j + v * VEC));
        return;
    }
    REAL tile[MR * NR];
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int v = 0; v < NV; v++) VSTORE(sums[r][v], 0, tile + r * NR + v * VEC);
    int high = min((long)MR, rows - i), wide = min((long)NR, columns - j);
    for (int r = 0; r < high; r++)
        for (int w = 0; w < wide; w++)
            PUT(out, (i + r) * ldo + j + w,
                  finish(tile[r * NR + w], alpha, c + (i + r) * ci, beta, cj, j + w));
}

/* ---- way 1 --------------------------------------------------------------------------------- */

inline void packed_tile(__global const REAL *a, __global const REAL *b, long depth,
                        RV (*sums)[NV]) {
    RV s[MR][NV];
    UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < NV; v++) s[r][v] = 0;
    for (long k = 0; k < depth; k++) {
        RV row[NV];
        UNROLL for (int v = 0; v < NV; v++) row[v] = VLOAD(0, b + v * VEC);
        UNROLL for (int r = 0; r < MR; r++) {
            RV x = (RV)(a[r]);
            UNROLL for (int v = 0; v < NV; v++) s[r][v] = fma(x, row[v], s[r][v]);
        }
        a += MR;
        b += NR;
    }
    UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < NV; v++) sums[r][v] = s[r][v];
}

__kernel void gemm_packed(__global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at,
                          __global uchar *out_, ulong out_at, C_ARRAY long rows,
                          long columns, long depth, long bm, long bn, long a_step, long b_step,
                          long ldo, long out_step, REAL alpha
#ifdef HAS_C
                          , REAL beta, long ci, long cj, long inner, long c_outer, long c_inner
#endif
) {
    long b = get_global_id(2);
    long j0 = get_global_id(0) * bn, j1 = min(j0 + bn, columns);
    long i0 = get_global_id(1) * bm, i1 = min(i0 + bm, rows);
    __global const REAL *pa = CAT(REAL, a) + b * a_step, *pb = CAT(REAL, b) + b * b_step;
    __global T *out = AT(T, out) + b * out_step;
    __global const T *c = 0;
#ifdef HAS_C
    c = CAT(T, c) + batch_offset(b, inner, c_outer, c_inner);
#else
    REAL beta = 0;
    long ci = 0, cj = 0;
#endif
    for (long j = j0; j < j1; j += NR)
        for (long i = i0; i < i1; i += MR) {
            RV sums[MR][NV];
            packed_tile(pa + i * depth, pb + j * depth, depth, sums);
            write_tile(sums, out, ldo, i, j, rows, columns, alpha, c, beta, ci, cj);
        }
}

/* ---- way 2 --------------------------------------------------------------------------------- */

#ifdef HAS_C
#define C_NUMBERS , REAL beta, long ci, long cj, long c_outer, long c_inner
#else
#define C_NUMBERS
#endif
#define DIRECT(name)                                                                              \
    __kernel void name(__global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at,            \
                       __global uchar *out_, ulong out_at, C_ARRAY long rows,          \
                       long columns, long depth, long a_row, long a_k, long b_column, long b_k,   \
                       long inner, long a_outer, long a_inner, long b_outer, long b_inner,        \
                       long ldo, long out_step, REAL alpha C_NUMBERS)

/* Work-items in a row take the same columns and other rows: what they read of B is still in the cache. */
inline long linear(void) { return get_global_id(1) * get_global_size(0) + get_global_id(0); }
inline long block(void) { return linear() % get_global_size(1); }
inline long slab(void) { return linear() / get_global_size(1); }

/* The sums of one tile; `whole` is a constant, so that the inner loop has no test in it. */
inline void direct_sums(__global const T *a, __global const T *b, long depth, long a_row, long a_k,
                        long b_k, int high, long wide, const int whole, RV (*sums)[DV]) {
    RV s[DM][DV];
    UNROLL for (int r = 0; r < DM; r++) UNROLL for (int v = 0; v < DV; v++) s[r][v] = 0;
    for (long k = 0; k < depth; k++) {
        RV row[DV];
        UNROLL for (int v = 0; v < DV; v++)
            row[v] = whole ? load_vector(b, k * b_k + v * VEC)
                           : load_part(b, k * b_k + v * VEC, wide - v * VEC, 0);
        UNROLL for (int r = 0; r < DM; r++) {
            RV x = (RV)((REAL)GET(a, min(r, high - 1) * a_row + k * a_k));
            UNROLL for (int v = 0; v < DV; v++) s[r][v] = fma(x, row[v], s[r][v]);
        }
    }
    UNROLL for (int r = 0; r < DM; r++) UNROLL for (int v = 0; v < DV; v++) sums[r][v] = s[r][v];
}

DIRECT(gemm_direct) {
    long n = get_global_id(2), j = slab() * DN, i = block() * DM;
    __global const T *a = CAT(T, a) + batch_offset(n, inner, a_outer, a_inner) + i * a_row;
    __global const T *b = CAT(T, b) + batch_offset(n, inner, b_outer, b_inner) + j;
    __global T *out = AT(T, out) + n * out_step;
    __global const T *c = 0;
#ifdef HAS_C
    c = CAT(T, c) + batch_offset(n, inner, c_outer, c_inner);
#else
    REAL beta = 0;
    long ci = 0, cj = 0;
#endif
    int high = min((long)DM, rows - i), wide = min((long)DN, columns - j);
    RV sums[DM][DV];
    if (wide == DN) direct_sums(a, b, depth, a_row, a_k, b_k, high, wide, 1, sums);
    else direct_sums(a, b, depth, a_row, a_k, b_k, high, wide, 0, sums);
    if (wide == DN) {
        for (int r = 0; r < high; r++)
            UNROLL for (int v = 0; v < DV; v++)
                store_vector(out, (i + r) * ldo + j + v * VEC,
                             finish_vector(sums[r][v], alpha, c + (i + r) * ci, beta, cj,
                                           j + v * VEC));
        return;
    }
    const REAL *tile = (const REAL *)sums;
    for (int r = 0; r < high; r++)
        for (int w = 0; w < wide; w++)
            PUT(out, (i + r) * ldo + j + w,
                  finish(tile[r * DN + w], alpha, c + (i + r) * ci, beta, cj, j + w));
}

DIRECT(gemm_dot) {
    long n = get_global_id(2), j = slab() * DV, i = block() * DM;
    __global const T *a = CAT(T, a) + batch_offset(n, inner, a_outer, a_inner) + i * a_row;
    __global const T *b = CAT(T, b) + batch_offset(n, inner, b_outer, b_inner) + j * b_column;
    __global T *out = AT(T, out) + n * out_step;
    __global const T *c = 0;
#ifdef HAS_C
    c = CAT(T, c) + batch_offset(n, inner, c_outer, c_inner);
#else
    REAL beta = 0;
    long ci = 0, cj = 0;
#endif
    int high = min((long)DM, rows - i), wide = min((long)DV, columns - j);
    RV s[DM][DV];
    UNROLL for (int r = 0; r < DM; r++) UNROLL for (int v = 0; v < DV; v++) s[r][v] = 0;
    for (long k = 0; k < depth; k += VEC) {
        RV y[DV];
        long many = depth - k;
        UNROLL for (int v = 0; v < DV; v++) y[v] = load_part(b, min(v, wide - 1) * b_column + k, many, 0);
        UNROLL for (int r = 0; r < DM; r++) {
            RV x = load_part(a, min(r, high - 1) * a_row + k, many, 0);
            UNROLL for (int v = 0; v < DV; v++) s[r][v] = fma(x, y[v], s[r][v]);
        }
    }
    UNROLL for (int r = 0; r < DM; r++)
        UNROLL for (int v = 0; v < DV; v++) {
            if (r >= high || v >= wide) continue;
            REAL each[VEC], sum = 0;
            VSTORE(s[r][v], 0, each);
            for (int w = 0; w < VEC; w++) sum += each[w];
            PUT(out, (i + r) * ldo + j + v,
                  finish(sum, alpha, c + (i + r) * ci, beta, cj, j + v));
        }
}
