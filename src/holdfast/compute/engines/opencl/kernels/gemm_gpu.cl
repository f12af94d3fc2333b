// Matrix product for GPU-like devices: work-group tiles in local memory, register tiles per work-item.
// Called by gemm.py.
//
// Supports o = alpha * a @ b + beta * c, batched over two dimensions, any strides, ragged sizes,
//   K split over work-groups (gemm_gpu writes partial sums, gemm_gpu_join adds them up).
// Reads nothing outside the matrices; the order of the sums depends on the defines alone.
//
// Launch: local (THREADS,), global (THREADS * tiles_m * tiles_n * SPLIT * batches,), THREADS = BM/TM * BN/TN.
//   gemm_gpu_join: local (256,), global (256 * ceil(m * n * batches / 256),).
// Defines (all have defaults):
//   BM BN BK       tile of a work-group, and its step along K; BK is a multiple of 4
//   TM TN          tile of a work-item; multiples of 4
//   LX (fixed)     work-items of one warp side by side along n; the rest lie along m
//   GROUP_M (fixed) tiles along m that are taken together, for the L2 cache
//   A_ALONG_K      1: a's unit stride (or the smaller one) is along k; 0: along m.  B_ALONG_K: the same, k or n
//   VA VB          4: a is read four at a time. The host must have checked: unit stride along that dimension, its
//                  length a multiple of 4, every other stride and the offset a multiple of 4 elements.  1: one at a time
//   VO             4: the same for rows of o (n and its strides)
//   EDGE           0: k is a multiple of BK; 1: any size. m and n may be anything
//   SPLIT          work-groups that share one tile's K; above 1, o is the workspace [SPLIT][batches][m][n] of ACC
//   HAS_C          whether c is there (else any handle does); a bias is a c with a stride of 0
//   WORD           the dtype, as fours_gpu.cl says, which precedes this file


#ifndef BM
#define BM 128
#endif
#ifndef BN
#define BN 128
#endif
#ifndef BK
#define BK 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#define GROUP_M 8
#ifndef A_ALONG_K
#define A_ALONG_K 1
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 0
#endif
#ifndef VA
#define VA 1
#endif
#ifndef VB
#define VB 1
#endif
#ifndef VO
#define VO 1
#endif
#ifndef EDGE
#define EDGE 1
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#define PAD 4  // keeps float4 alignment, and spreads transposing stores over the banks

#if BK % 4 || TM % 4 || TN % 4 || BM % TM || BN % TN
#error "gemm_gpu: BK, TM and TN are multiples of 4; BM of TM; BN of TN"
#endif

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
#define LX (THREADS <= 32 ? TX : TY < 4 ? 32 / TY : TX < 8 ? TX : 8)
#define LY (THREADS < 32 ? THREADS / LX : 32 / LX)

// A tile is read as vectors, W of them side by side; vector i of a work-item lies at (INNER, OUTER).
#define A_W (A_ALONG_K ? BK / VA : BM / VA)
#define B_W (B_ALONG_K ? BK / VB : BN / VB)
#define FOLD(w) (THREADS >= (w) ? 1 : (w) / THREADS)
#define STEP(w) (THREADS >= (w) ? THREADS / (w) : 1)
#define INNER(w, i) (THREADS >= (w) ? lid % (w) : lid + (i) % FOLD(w) * THREADS)
#define OUTER(w, i) (THREADS >= (w) ? lid / (w) + (i) * STEP(w) : (i) / FOLD(w))
#define A_ALL (BM * BK / VA)
#define B_ALL (BN * BK / VB)
#define A_COUNT ((A_ALL + THREADS - 1) / THREADS)
#define B_COUNT ((B_ALL + THREADS - 1) / THREADS)
#define A_ROW (A_ALONG_K ? BM + PAD : BM)
#define B_ROW (B_ALONG_K ? BN + PAD : BN)
#if VA == 4
#define A_VEC ACC4
#define A_READ(p, i) READ4(p, i)
#else
#define A_VEC ACC
#define A_READ(p, i) READ(p, i)
#endif
#if VB == 4
#define B_VEC ACC4
#define B_READ(p, i) READ4(p, i)
#else
#define B_VEC ACC
#define B_READ(p, i) READ(p, i)
#endif

// Where vector i of a work-item lies in its tile: x along m or n, y along k.
#define A_X(i) (A_ALONG_K ? OUTER(A_W, i) : INNER(A_W, i) * VA)
#define A_Y(i) (A_ALONG_K ? INNER(A_W, i) * VA : OUTER(A_W, i))
#define B_X(i) (B_ALONG_K ? OUTER(B_W, i) : INNER(B_W, i) * VB)
#define B_Y(i) (B_ALONG_K ? INNER(B_W, i) * VB : OUTER(B_W, i))

// Past the edges of m and n the last element is read again, and the result is not written: no branch in the
// loop. (NVIDIA's compiler also spends fewer registers with the `min` than without.) Past k there must be zeros.
inline void fetch_a(A_VEC *held, const __global T *p, long s_x, long s_y, int lid, int x_left, int y_left) {
#pragma unroll
  for (int i = 0; i < A_COUNT; i++) {
    const int x = min(A_X(i), x_left - (A_ALONG_K ? 1 : VA)), y = A_Y(i);
    if (A_ALL % THREADS == 0 || lid + i * THREADS < A_ALL) {
      const int inside = y_left < BK ? min(y, y_left - (A_ALONG_K ? VA : 1)) : y;
      const A_VEC got = A_READ(p, x * s_x + inside * s_y);
      held[i] = y_left >= BK || y < y_left ? got : (A_VEC)(0);
    }
  }
}

inline void fetch_b(B_VEC *held, const __global T *p, long s_x, long s_y, int lid, int x_left, int y_left) {
#pragma unroll
  for (int i = 0; i < B_COUNT; i++) {
    const int x = min(B_X(i), x_left - (B_ALONG_K ? 1 : VB)), y = B_Y(i);
    if (B_ALL % THREADS == 0 || lid + i * THREADS < B_ALL) {
      const int inside = y_left < BK ? min(y, y_left - (B_ALONG_K ? VB : 1)) : y;
      const B_VEC got = B_READ(p, x * s_x + inside * s_y);
      held[i] = y_left >= BK || y < y_left ? got : (B_VEC)(0);
    }
  }
}

// The tiles lie in local memory with k outermost, so that a register tile is read in vectors.
inline void keep_a(__local ACC *tile, const A_VEC *held, int lid) {
#pragma unroll
  for (int i = 0; i < A_COUNT; i++) {
    if (A_ALL % THREADS != 0 && lid + i * THREADS >= A_ALL) break;
    __local ACC *to = tile + A_Y(i) * A_ROW + A_X(i);
#if VA == 1
    to[0] = held[i];
#elif A_ALONG_K
    to[0] = held[i].x;
    to[A_ROW] = held[i].y;
    to[2 * A_ROW] = held[i].z;
    to[3 * A_ROW] = held[i].w;
#else
    *(__local ACC4 *)to = held[i];
#endif
  }
}

inline void keep_b(__local ACC *tile, const B_VEC *held, int lid) {
#pragma unroll
  for (int i = 0; i < B_COUNT; i++) {
    if (B_ALL % THREADS != 0 && lid + i * THREADS >= B_ALL) break;
    __local ACC *to = tile + B_Y(i) * B_ROW + B_X(i);
#if VB == 1
    to[0] = held[i];
#elif B_ALONG_K
    to[0] = held[i].x;
    to[B_ROW] = held[i].y;
    to[2 * B_ROW] = held[i].z;
    to[3 * B_ROW] = held[i].w;
#else
    *(__local ACC4 *)to = held[i];
#endif
  }
}

inline void multiply(ACC4 (*sum)[TN / 4], const __local ACC *a, const __local ACC *b) {
#pragma unroll
  for (int k = 0; k < BK; k++) {
    ACC4 u[TM / 4], v[TN / 4];
#pragma unroll
    for (int i = 0; i < TM / 4; i++) u[i] = *(const __local ACC4 *)(a + k * A_ROW + i * (TY * 4));
#pragma unroll
    for (int j = 0; j < TN / 4; j++) v[j] = *(const __local ACC4 *)(b + k * B_ROW + j * (TX * 4));
#pragma unroll
    for (int i = 0; i < TM / 4; i++) {
#pragma unroll
      for (int j = 0; j < TN / 4; j++) {
        sum[4 * i][j] = MAD((ACC4)(u[i].x), v[j], sum[4 * i][j]);
        sum[4 * i + 1][j] = MAD((ACC4)(u[i].y), v[j], sum[4 * i + 1][j]);
        sum[4 * i + 2][j] = MAD((ACC4)(u[i].z), v[j], sum[4 * i + 2][j]);
        sum[4 * i + 3][j] = MAD((ACC4)(u[i].w), v[j], sum[4 * i + 3][j]);
      }
    }
  }
}

inline ACC finish(ACC sum, const __global T *c, long c_i, ACC alpha, ACC beta) {
  ACC v = alpha * sum;
#if HAS_C
  v += beta * READ(c, c_i);
#endif
  return v;
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void gemm_gpu(
    __global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at, __global uchar *c_, ulong c_at,
    __global uchar *o_, ulong o_at, long m, long n, long k, long batch1,
    long a_s0, long a_s1, long a_row, long a_col, long b_s0, long b_s1, long b_row, long b_col,
    long c_s0, long c_s1, long c_row, long c_col, long o_s0, long o_s1, long o_row,
    float alpha, float beta) {
  __local ACC a_tile[2][BK * A_ROW] __attribute__((aligned(32)));
  __local ACC b_tile[2][BK * B_ROW] __attribute__((aligned(32)));
  const int lid = (int)get_local_id(0);
  const int lane = lid % (LX * LY), warp = lid / (LX * LY);
  const int tx = warp % (TX / LX) * LX + lane % LX;
  const int ty = warp / (TX / LX) * LY + lane / LX;

  // Tiles go in strips of GROUP_M rows, down each strip first.
  const uint tiles_m = (uint)((m + BM - 1) / BM), tiles_n = (uint)((n + BN - 1) / BN);
  const uint tile = (uint)(get_group_id(0) % (tiles_m * tiles_n));
  const uint above = (uint)(get_group_id(0) / (tiles_m * tiles_n));
  const uint strip = tile / (GROUP_M * tiles_n), inside = tile % (GROUP_M * tiles_n);
  const uint high = min((uint)GROUP_M, tiles_m - strip * GROUP_M);
  const long m0 = (long)(strip * GROUP_M + inside % high) * BM, n0 = (long)(inside / high) * BN;
  const uint part = above % SPLIT, batch = above / SPLIT;
  const long z0 = batch / (uint)batch1, z1 = batch % (uint)batch1;

  long k_from = 0, k_to = k;
  if (SPLIT > 1) {
    const long share = ((k + BK - 1) / BK + SPLIT - 1) / SPLIT * BK;
    k_from = min(k, part * share);
    k_to = min(k, k_from + share);
  }
  // A literal 1 lets the compiler drop the multiplications.
  const long a_x = (VA == 4 && !A_ALONG_K) ? 1 : a_row, a_y = (VA == 4 && A_ALONG_K) ? 1 : a_col;
  const long b_x = (VB == 4 && !B_ALONG_K) ? 1 : b_col, b_y = (VB == 4 && B_ALONG_K) ? 1 : b_row;
  const __global T *a = CAT(T, a) + z0 * a_s0 + z1 * a_s1 + m0 * a_x + k_from * a_y;
  const __global T *b = CAT(T, b) + z0 * b_s0 + z1 * b_s1 + n0 * b_x + k_from * b_y;
  const int m_left = (int)min(m - m0, (long)BM), n_left = (int)min(n - n0, (long)BN);

  ACC4 sum[TM][TN / 4];
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN / 4; j++) sum[i][j] = (ACC4)(0);
  }
  A_VEC a_held[A_COUNT];
  B_VEC b_held[B_COUNT];
  // The first step takes what K leaves over, so that all others are whole.
  int steps = (int)((k_to - k_from + BK - 1) / BK), now = 0;
  if (steps > 0) {
    const int first = EDGE == 1 ? (int)(k_to - k_from - (long)(steps - 1) * BK) : BK;
    fetch_a(a_held, a, a_x, a_y, lid, m_left, first);
    fetch_b(b_held, b, b_x, b_y, lid, n_left, first);
    keep_a(a_tile[0], a_held, lid);
    keep_b(b_tile[0], b_held, lid);
    a += first * a_y;
    b += first * b_y;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (; steps > 0; steps--) {
    if (steps > 1) {
      fetch_a(a_held, a, a_x, a_y, lid, m_left, BK);
      fetch_b(b_held, b, b_x, b_y, lid, n_left, BK);
      a += BK * a_y;
      b += BK * b_y;
    }
    multiply(sum, a_tile[now] + ty * 4, b_tile[now] + tx * 4);
    if (steps > 1) {
      now ^= 1;
      keep_a(a_tile[now], a_held, lid);
      keep_b(b_tile[now], b_held, lid);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }

#if SPLIT > 1
  const long batches = get_num_groups(0) / (tiles_m * tiles_n * SPLIT);
  __global ACC *o = AT(ACC, o) + (part * batches + batch) * m * n;
#else
  __global T *o = AT(T, o) + z0 * o_s0 + z1 * o_s1;
#endif
  const __global T *c = CAT(T, c) + z0 * c_s0 + z1 * c_s1;
#pragma unroll
  for (int i = 0; i < TM; i++) {
    const int r = i / 4 * (TY * 4) + ty * 4 + i % 4;
    if (r >= m_left) continue;
#pragma unroll
    for (int j = 0; j < TN / 4; j++) {
      const int q = j * (TX * 4) + tx * 4;
      const long row = m0 + r, col = n0 + q;
      ACC4 v = sum[i][j];
#if SPLIT > 1
      __global ACC *to = o + row * n + col;
      if (q < n_left) to[0] = v.x;
      if (q + 1 < n_left) to[1] = v.y;
      if (q + 2 < n_left) to[2] = v.z;
      if (q + 3 < n_left) to[3] = v.w;
#else
#define DONE(e, s) finish(v.e, c, row *c_row + (col + s) * c_col, alpha, beta)
#if VO == 4
      if (q < n_left) {
        v = (ACC4)(DONE(x, 0), DONE(y, 1), DONE(z, 2), DONE(w, 3));
        WRITE4(o, row * o_row + col, v);
      }
#else
      if (q < n_left) WRITE(o, row * o_row + col, DONE(x, 0));
      if (q + 1 < n_left) WRITE(o, row * o_row + col + 1, DONE(y, 1));
      if (q + 2 < n_left) WRITE(o, row * o_row + col + 2, DONE(z, 2));
      if (q + 3 < n_left) WRITE(o, row * o_row + col + 3, DONE(w, 3));
#endif
#endif
    }
  }
}

// Add up the parts of a split product. part_: [SPLIT][batches][m][n] of ACC.
__kernel void gemm_gpu_join(
    __global uchar *part_, ulong part_at, __global uchar *c_, ulong c_at,
    __global uchar *o_, ulong o_at, long m, long n, long batches, long batch1, long c_s0, long c_s1, long c_row,
    long c_col, long o_s0, long o_s1, long o_row, float alpha, float beta) {
  const long all = m * n * batches, i = get_global_id(0);
  if (i >= all) return;
  const long batch = i / (m * n), row = i / n % m, col = i % n;
  const long z0 = batch / batch1, z1 = batch % batch1;
  const __global ACC *part = CAT(ACC, part) + i;
  ACC sum = 0;
  for (int s = 0; s < SPLIT; s++) sum += part[s * all];
  sum = finish(sum, CAT(T, c), z0 * c_s0 + z1 * c_s1 + row * c_row + col * c_col,
               alpha, beta);
  WRITE(AT(T, o), z0 * o_s0 + z1 * o_s1 + row * o_row + col, sum);
}
