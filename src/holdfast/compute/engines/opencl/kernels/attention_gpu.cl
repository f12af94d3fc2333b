// Attention for GPU-like devices: softmax(q @ k^T * scale + mask) @ v without the score matrix in memory.
// Called by attention.py.
//
// Supports any length, D up to what local memory holds (256 with BQ 32), causal, masks, grouped key heads, strides,
//   the log-sum-exp of each row (for the backward pass).
// Reads nothing outside the arrays; a row whose keys are all masked gives zeros and a log-sum-exp of -inf.
//
// Launch: local (THREADS,), global (THREADS * ceil(sq / BQ) * batches * heads,), THREADS = TX * BQ / RQ.
// Element strides: b batch, h head, s position; elements of a head are contiguous.
// lse: [batches][heads][sq] of ACC, natural logarithm. mask strides may be 0.
// Defines (all but D have defaults):
//   D              size of a head
//   BQ BKV         queries of a work-group, keys that are taken in one step
//   RQ TX          queries of a work-item (multiple of 4); work-items side by side along keys. BKV: multiple of 4 TX
//   KC VC          depth of the pieces of k (along D) and of v (along keys) in local memory; multiples of 4, VC divides 4 TX
//   VQ             4: q, k, v are read four at a time. The host must have checked: D, strides and offsets are multiples
//                  of 4 elements.  1: one at a time.  VO: the same for o
//   CAUSAL         1: query i sees keys up to i + causal_shift
//   MASK           0 none, 1 added to the scores (in the storage dtype), 2 bytes: 0 hides the key
//   HAS_LSE        whether lse is written (else any handle does)
//   WORD           the dtype, as fours_gpu.cl says, which precedes this file
// Local memory in ACC: DEEP * BQ + max(2 KC (BKV + 4), 2 VC (DP + BQ), BQ (TX + 1)); DEEP, DP: D rounded up to KC, 4 TX.

#ifndef BQ
#define BQ 64
#endif
#ifndef BKV
#define BKV 64
#endif
#ifndef RQ
#define RQ 8
#endif
#ifndef TX
#define TX 16
#endif
#ifndef KC
#define KC 8
#endif
#ifndef VC
#define VC 8
#endif
#ifndef VQ
#define VQ 1
#endif
#ifndef VO
#define VO 1
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef HAS_LSE
#define HAS_LSE 0
#endif

#if RQ % 4 || BQ % RQ || BKV % (4 * TX) || KC % 4 || VC % 4 || 4 * TX % VC
#error "attention_gpu: RQ, KC and VC are multiples of 4; BQ of RQ; BKV of 4 TX; 4 TX of VC"
#endif

#define TY (BQ / RQ)
#define THREADS (TX * TY)
#define DP ((D + 4 * TX - 1) / (4 * TX) * (4 * TX))
#define DEEP ((D + KC - 1) / KC * KC)
#define RK (BKV / TX)
#define RD (DP / TX)
#define K_ROW (BKV + 4)  // spreads the transposing stores over the banks
#define K_W (KC / VQ)
#define V_W (DP / VQ)
#define K_ALL (KC * BKV / VQ)
#define V_ALL (VC * DP / VQ)
#define K_COUNT ((K_ALL + THREADS - 1) / THREADS)
#define V_COUNT ((V_ALL + THREADS - 1) / THREADS)
#define K_LOCAL (2 * KC * K_ROW)
#define V_LOCAL (2 * VC * (DP + BQ))
#define R_LOCAL (BQ * (TX + 1))
#define BIGGER(a, b) ((a) > (b) ? (a) : (b))
#define SHARED BIGGER(K_LOCAL, BIGGER(V_LOCAL, R_LOCAL))
#define LOG2E ((ACC)1.4426950408889634)
#define LN2 ((ACC)0.6931471805599453)
#define NONE ((ACC)(-INFINITY))
#if VQ == 4
#define VEC ACC4
#define GET(p, i) READ4(p, i)
#else
#define VEC ACC
#define GET(p, i) READ(p, i)
#endif
// Rows and columns of a work-item go in fours, so that they are read as vectors.
#define ROW_OF(i) ((i) / 4 * (TY * 4) + ty * 4 + (i) % 4)
#define COL_OF(j) ((j) / 4 * (TX * 4) + tx * 4 + (j) % 4)

inline void fetch_k(VEC *held, const __global T *k, long k_s, int d0, long left, int lid) {
#pragma unroll
  for (int i = 0; i < K_COUNT; i++) {
    const int at = lid + i * THREADS, d = d0 + at % K_W * VQ, row = at / K_W;
    held[i] = (VEC)(0);
    if ((K_ALL % THREADS == 0 || at < K_ALL) && row < left && (D % KC == 0 || d < D)) held[i] = GET(k, row * k_s + d);
  }
}

inline void keep_k(__local ACC *tile, const VEC *held, int lid) {
#pragma unroll
  for (int i = 0; i < K_COUNT; i++) {
    const int at = lid + i * THREADS;
    __local ACC *to = tile + at % K_W * VQ * K_ROW + at / K_W;
    if (K_ALL % THREADS == 0 || at < K_ALL) {
#if VQ == 4
      to[0] = held[i].x;
      to[K_ROW] = held[i].y;
      to[2 * K_ROW] = held[i].z;
      to[3 * K_ROW] = held[i].w;
#else
      to[0] = held[i];
#endif
    }
  }
}

inline void fetch_v(VEC *held, const __global T *v, long v_s, long left, int lid) {
#pragma unroll
  for (int i = 0; i < V_COUNT; i++) {
    const int at = lid + i * THREADS, d = at % V_W * VQ, row = at / V_W;
    held[i] = (VEC)(0);
    if ((V_ALL % THREADS == 0 || at < V_ALL) && row < left && (D == DP || d < D)) held[i] = GET(v, row * v_s + d);
  }
}

inline void keep_v(__local ACC *tile, const VEC *held, int lid) {
#pragma unroll
  for (int i = 0; i < V_COUNT; i++) {
    const int at = lid + i * THREADS;
    if (V_ALL % THREADS == 0 || at < V_ALL) *(__local VEC *)(tile + at * VQ) = held[i];
  }
}

// q is kept with D outermost, times scale * log2(e): the scores are exponents of 2.
inline void keep_q(__local ACC *tile, const __global T *q, long q_s, long left, ACC factor, int lid) {
  for (int at = lid; at < BQ * DEEP / VQ; at += THREADS) {
    const int d = at / BQ * VQ, row = at % BQ;
    VEC x = (VEC)(0);
    if (row < left && (D == DEEP || d < D)) x = GET(q, row * q_s + d) * factor;
    __local ACC *to = tile + d * BQ + row;
#if VQ == 4
    to[0] = x.x;
    to[BQ] = x.y;
    to[2 * BQ] = x.z;
    to[3 * BQ] = x.w;
#else
    to[0] = x;
#endif
  }
}

// sum[RQ][4 * wide] += a[depth][rows] * b[depth][cols]
#define MULTIPLY(sum, wide, depth, a, a_row, b, b_row)                                  \
  _Pragma("unroll") for (int e = 0; e < (depth); e++) {                                 \
    ACC4 f[RQ / 4], g[wide];                                                            \
    _Pragma("unroll") for (int i = 0; i < RQ / 4; i++)                                  \
      f[i] = *(const __local ACC4 *)((a) + e * (a_row) + i * (TY * 4) + ty * 4);        \
    _Pragma("unroll") for (int j = 0; j < (wide); j++)                                  \
      g[j] = *(const __local ACC4 *)((b) + e * (b_row) + j * (TX * 4) + tx * 4);        \
    _Pragma("unroll") for (int i = 0; i < RQ / 4; i++) {                                \
      _Pragma("unroll") for (int j = 0; j < (wide); j++) {                              \
        sum[4 * i][j] = MAD((ACC4)(f[i].x), g[j], sum[4 * i][j]);                       \
        sum[4 * i + 1][j] = MAD((ACC4)(f[i].y), g[j], sum[4 * i + 1][j]);               \
        sum[4 * i + 2][j] = MAD((ACC4)(f[i].z), g[j], sum[4 * i + 2][j]);               \
        sum[4 * i + 3][j] = MAD((ACC4)(f[i].w), g[j], sum[4 * i + 3][j]);               \
      }                                                                                 \
    }                                                                                   \
  }

// Reduce one value per row over the work-items of the row; all of them get the result.
#define OVER_ROW(v, JOIN)                                                                            \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                      \
  _Pragma("unroll") for (int i = 0; i < RQ; i++) shared[ROW_OF(i) * (TX + 1) + tx] = v[i];           \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                      \
  _Pragma("unroll") for (int i = 0; i < RQ; i++) {                                                   \
    v[i] = shared[ROW_OF(i) * (TX + 1)];                                                             \
    for (int j = 1; j < TX; j++) v[i] = JOIN(v[i], shared[ROW_OF(i) * (TX + 1) + j]);                \
  }
#define HIGHER(a, b) fmax(a, b)
#define PLUS(a, b) ((a) + (b))

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_gpu(
    __global uchar *q_, ulong q_at, __global uchar *k_, ulong k_at, __global uchar *v_, ulong v_at,
    __global uchar *mask_, ulong mask_at, __global uchar *o_, ulong o_at, __global uchar *lse_, ulong lse_at,
    long heads, long group, long sq, long skv, long q_b, long q_h, long q_s, long k_b, long k_h, long k_s,
    long v_b, long v_h, long v_s, long mask_b, long mask_h, long mask_q, long mask_k, long o_b, long o_h, long o_s,
    long causal_shift, float scale) {
  __local ACC q_tile[DEEP * BQ] __attribute__((aligned(32)));
  __local ACC shared[SHARED] __attribute__((aligned(32)));
  const int lid = (int)get_local_id(0), tx = lid % TX, ty = lid / TX;
  const uint blocks = (uint)((sq + BQ - 1) / BQ);
  const uint which = (uint)get_group_id(0) / blocks;
  const long b = which / (uint)heads, h = which % (uint)heads;
  // Under a causal mask the last block has the most work: it starts first.
  const long q0 = (long)(blocks - 1 - (uint)get_group_id(0) % blocks) * BQ;
  const __global T *k = CAT(T, k) + b * k_b + h / group * k_h;
  const __global T *v = CAT(T, v) + b * v_b + h / group * v_h;
  long last = skv;
  if (CAUSAL) last = max(0L, min(skv, q0 + BQ + causal_shift));

  keep_q(q_tile, CAT(T, q) + b * q_b + h * q_h + q0 * q_s, q_s, sq - q0, scale * LOG2E, lid);
  ACC4 out[RQ][RD / 4];
  ACC top[RQ], total[RQ];
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    top[i] = NONE;
    total[i] = 0;
#pragma unroll
    for (int j = 0; j < RD / 4; j++) out[i][j] = (ACC4)(0);
  }
  VEC held_k[K_COUNT], held_v[V_COUNT];

  for (long k0 = 0; k0 < last; k0 += BKV) {
    const __global T *k_now = k + k0 * k_s, *v_now = v + k0 * v_s;
    const long left = skv - k0;
    ACC4 s[RQ][RK / 4];
#pragma unroll
    for (int i = 0; i < RQ; i++) {
#pragma unroll
      for (int j = 0; j < RK / 4; j++) s[i][j] = (ACC4)(0);
    }
    fetch_k(held_k, k_now, k_s, 0, left, lid);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = 0; c < DEEP / KC; c++) {
      __local ACC *tile = shared + c % 2 * (KC * K_ROW);
      keep_k(tile, held_k, lid);
      barrier(CLK_LOCAL_MEM_FENCE);
      if (c + 1 < DEEP / KC) fetch_k(held_k, k_now, k_s, (c + 1) * KC, left, lid);
      MULTIPLY(s, RK / 4, KC, q_tile + c * (KC * BQ), BQ, tile, K_ROW)
    }
    fetch_v(held_v, v_now, v_s, left, lid);

#if MASK
#if MASK == 1
    const __global T *mask = CAT(T, mask) + b * mask_b + h * mask_h;
#define MASKED(x, r, c) ((x) + READ(mask, (r) * mask_q + (c) * mask_k) * LOG2E)
#else
    const __global uchar *mask = CAT(uchar, mask) + b * mask_b + h * mask_h;
#define MASKED(x, r, c) (mask[(r) * mask_q + (c) * mask_k] ? (x) : NONE)
#endif
#else
#define MASKED(x, r, c) (x)
#endif
#define SEEN(e, n)                                                                                    \
  {                                                                                                   \
    const long c = k0 + col + n;                                                                      \
    const bool seen = c < skv && r < sq && (!CAUSAL || c <= r + causal_shift);                        \
    s[i][j].e = seen ? MASKED(s[i][j].e, r, c) : NONE;                                                \
  }
    if (MASK || left < BKV || (CAUSAL && k0 + BKV - 1 > q0 + causal_shift)) {
#pragma unroll
      for (int i = 0; i < RQ; i++) {
        const long r = q0 + ROW_OF(i);
#pragma unroll
        for (int j = 0; j < RK / 4; j++) {
          const int col = COL_OF(4 * j);
          SEEN(x, 0) SEEN(y, 1) SEEN(z, 2) SEEN(w, 3)
        }
      }
    }

    ACC high[RQ];
#pragma unroll
    for (int i = 0; i < RQ; i++) {
      ACC4 most = s[i][0];
#pragma unroll
      for (int j = 1; j < RK / 4; j++) most = fmax(most, s[i][j]);
      high[i] = fmax(top[i], fmax(fmax(most.x, most.y), fmax(most.z, most.w)));
    }
    OVER_ROW(high, HIGHER)
#pragma unroll
    for (int i = 0; i < RQ; i++) {
      const ACC off = high[i] == NONE ? (ACC)0 : high[i];
      const ACC fade = exp2(top[i] - off);
      top[i] = high[i];
      ACC4 part = (ACC4)(0);
#pragma unroll
      for (int j = 0; j < RK / 4; j++) {
        s[i][j] = exp2(s[i][j] - off);
        part += s[i][j];
      }
      // Each work-item sums its own columns; they are joined once, at the end.
      total[i] = total[i] * fade + ((part.x + part.y) + (part.z + part.w));
#pragma unroll
      for (int j = 0; j < RD / 4; j++) out[i][j] *= fade;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

#pragma unroll
    for (int j = 0; j < RK / 4; j++) {
      for (int c = 0; c < TX * 4 / VC; c++) {
        const int at = j * (TX * 4 / VC) + c;
        __local ACC *p_tile = shared + at % 2 * (VC * (DP + BQ)), *v_tile = p_tile + VC * BQ;
        if (tx / (VC / 4) == c) {
          __local ACC *to = p_tile + tx % (VC / 4) * (4 * BQ) + ty * 4;
#pragma unroll
          for (int i = 0; i < RQ / 4; i++) {
#define COLUMN(e) ((ACC4)(s[4 * i][j].e, s[4 * i + 1][j].e, s[4 * i + 2][j].e, s[4 * i + 3][j].e))
            *(__local ACC4 *)(to + i * (TY * 4)) = COLUMN(x);
            *(__local ACC4 *)(to + i * (TY * 4) + BQ) = COLUMN(y);
            *(__local ACC4 *)(to + i * (TY * 4) + 2 * BQ) = COLUMN(z);
            *(__local ACC4 *)(to + i * (TY * 4) + 3 * BQ) = COLUMN(w);
          }
        }
        keep_v(v_tile, held_v, lid);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (at + 1 < BKV / VC) fetch_v(held_v, v_now + (at + 1) * (VC * v_s), v_s, left - (at + 1) * VC, lid);
        MULTIPLY(out, RD / 4, VC, p_tile, BQ, v_tile, DP)
      }
    }
  }

  OVER_ROW(total, PLUS)
  __global T *o = AT(T, o) + b * o_b + h * o_h;
#pragma unroll
  for (int i = 0; i < RQ; i++) {
    const long r = q0 + ROW_OF(i);
    if (r >= sq) continue;
    const ACC share = total[i] > 0 ? 1 / total[i] : total[i];
#pragma unroll
    for (int j = 0; j < RD / 4; j++) {
      const int d = COL_OF(4 * j);
      const ACC4 x = out[i][j] * share;
#if VO == 4
      if (D == DP || d < D) WRITE4(o, r * o_s + d, x);
#else
      if (d < D) WRITE(o, r * o_s + d, x.x);
      if (d + 1 < D) WRITE(o, r * o_s + d + 1, x.y);
      if (d + 2 < D) WRITE(o, r * o_s + d + 2, x.z);
      if (d + 3 < D) WRITE(o, r * o_s + d + 3, x.w);
#endif
    }
#if HAS_LSE
    if (tx == 0) AT(ACC, lse)[which * sq + r] = (top[i] + log2(total[i])) * LN2;
#endif
  }
}
