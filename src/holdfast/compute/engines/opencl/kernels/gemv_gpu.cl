// Product of a few rows with a matrix for GPU-like devices: as fast as the matrix is read.
// Called by gemm.py.
//
// Does what gemm_gpu does, for small m: o = alpha * a @ b + beta * c, the same arguments.
// Reads nothing outside the matrices; b is read once for every MV rows of a.
//
// Launch: local (COLS * SLICES,), global (COLS * SLICES * ceil(n / WIDE) * ceil(m / MV) * batches,),
//   WIDE = B_ALONG_K ? COLS : COLS * VB columns per work-group.
// Defines (all have defaults):
//   MV             rows that one work-group takes
//   COLS SLICES    work-items side by side along n; work-items that share the K of a column, a power of two
//   B_ALONG_K      1: b's unit stride is along k (weights of a linear layer): neighbours read along k; 0: along n
//   VB             4: b is read four at a time along that dimension; VA 4: so is a along k. The host must have checked, as
//                  for gemm_gpu: unit stride, length a multiple of 4, other strides and offset multiples of 4 elements
//   HAS_C WORD     as in gemm_gpu.cl

#ifndef MV
#define MV 1
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 1
#endif
#ifndef COLS
#define COLS 8
#endif
#ifndef SLICES
#define SLICES 32
#endif
#ifndef VA
#define VA 1
#endif
#ifndef VB
#define VB 1
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#define WIDE (B_ALONG_K ? COLS : COLS * VB)
#define ITEMS (COLS * SLICES)
#if VB == 4
#define VEC ACC4
#define GET(p, i) READ4(p, i)
#else
#define VEC ACC
#define GET(p, i) READ(p, i)
#endif

// The elements of a row of `a` that are multiplied with one vector of b.
inline VEC row_of(const __global T *a, long k, long a_col) {
#if !B_ALONG_K || VB == 1
  return (VEC)(READ(a, k * a_col));
#elif VA == 4
  return READ4(a, k);
#else
  return (ACC4)(READ(a, k * a_col), READ(a, (k + 1) * a_col), READ(a, (k + 2) * a_col), READ(a, (k + 3) * a_col));
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gemv_gpu(
    __global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at, __global uchar *c_, ulong c_at,
    __global uchar *o_, ulong o_at, long m, long n, long k, long batch1,
    long a_s0, long a_s1, long a_row, long a_col, long b_s0, long b_s1, long b_row, long b_col,
    long c_s0, long c_s1, long c_row, long c_col, long o_s0, long o_s1, long o_row,
    float alpha, float beta) {
  __local ACC pad[ITEMS * VB] __attribute__((aligned(32)));
  const int lid = (int)get_local_id(0);
  const int col = B_ALONG_K ? lid / SLICES : lid % COLS, slice = B_ALONG_K ? lid % SLICES : lid / COLS;
  const uint blocks_n = (uint)((n + WIDE - 1) / WIDE), blocks_m = (uint)((m + MV - 1) / MV);
  const uint block = (uint)get_group_id(0), batch = block / blocks_n / blocks_m;
  const long z0 = batch / (uint)batch1, z1 = batch % (uint)batch1;
  const long n0 = (long)(block % blocks_n) * WIDE, m0 = (long)(block / blocks_n % blocks_m) * MV;

  // Past the edges the last row and column are read again; what comes of it is not written.
  const long last = n - (B_ALONG_K ? 1 : VB);
  const long mine = min(n0 + (B_ALONG_K ? col : col * VB), last);
  const __global T *b = CAT(T, b) + z0 * b_s0 + z1 * b_s1 + mine * (!B_ALONG_K && VB == 4 ? 1 : b_col);
  const __global T *a = CAT(T, a) + z0 * a_s0 + z1 * a_s1;
  const long b_y = B_ALONG_K && VB == 4 ? 1 : b_row;
  long rows[MV];
  VEC sum[MV];
#pragma unroll
  for (int r = 0; r < MV; r++) {
    rows[r] = min(m0 + r, m - 1) * a_row;
    sum[r] = (VEC)(0);
  }
  const int step = B_ALONG_K ? VB : 1;
#pragma unroll 4
  for (long y = slice * step; y < k; y += SLICES * step) {
    const VEC v = GET(b, y * b_y);
#pragma unroll
    for (int r = 0; r < MV; r++) sum[r] = MAD(row_of(a + rows[r], y, a_col), v, sum[r]);
  }

#pragma unroll
  for (int r = 0; r < MV; r++) {
#if VB == 4 && B_ALONG_K
    pad[slice * COLS + col] = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
#elif VB == 4
    *(__local ACC4 *)(pad + (slice * COLS + col) * 4) = sum[r];
#else
    pad[slice * COLS + col] = sum[r];
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_of = SLICES / 2; half_of > 0; half_of /= 2) {
      for (int i = lid; i < half_of * WIDE; i += ITEMS) pad[i] += pad[i + half_of * WIDE];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = lid; i < WIDE; i += ITEMS) {
      const long x = n0 + i, row = m0 + r;
      if (x < n && row < m) {
        ACC v = alpha * pad[i];
#if HAS_C
        v += beta * READ(CAT(T, c), z0 * c_s0 + z1 * c_s1 + row * c_row + x * c_col);
#endif
        WRITE(AT(T, o), z0 * o_s0 + z1 * o_s1 + row * o_row + x, v);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
