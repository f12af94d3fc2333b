// Softmax and normalisation over rows for GPU-like devices. Called by row_kernels.py.
//
// Supports softmax, log_softmax, layer norm, RMS norm and group norm over rows whose elements are contiguous.
// With LOOP 0 each element is read once and written once; sums are in ACC.
//
// Launch: local (LANES * ROWS,), global (LANES * ROWS * ceil(rows / ROWS),).
// Defines (all have defaults):
//   LANES          work-items per row: a power of two
//   ROWS           rows per work-group
//   PER            vectors that one work-item holds: LOOP 0 needs LANES * PER * V >= cols
//   V              4: vectors of four. The host must have checked: cols, row strides and offsets are multiples
//                  of 4 elements; for group norm with weights also `span`.  1: single elements
//   LOOP           1: rows of any length, read again for each pass
//   LOG            1: log_softmax
//   RMS            1: RMS norm: no mean is subtracted, and no bias is expected
//   HAS_WEIGHT HAS_BIAS HAS_STATS   whether those arguments are there (else any handle does)
//   GROUPS         1: layer norm, weight[col]; above 1: group norm with that many groups per sample, rows are
//                  (sample, group), weight[(row % GROUPS) * (cols / span) + col / span], span = elements per channel
//   NV_SHUFFLE     1: lanes of a warp trade sums in registers (inline PTX; NVIDIA devices only)
//   WORD           the dtype, as fours_gpu.cl says, which precedes this file

#ifndef LANES
#define LANES 256
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef PER
#define PER 1
#endif
#ifndef V
#define V 1
#endif
#ifndef LOOP
#define LOOP 0
#endif
#ifndef LOG
#define LOG 0
#endif
#ifndef RMS
#define RMS 0
#endif
#ifndef HAS_WEIGHT
#define HAS_WEIGHT 0
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_STATS
#define HAS_STATS 0
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef NV_SHUFFLE
#define NV_SHUFFLE 0
#endif

#if V == 4
#define VEC ACC4
#define GET(p, i) READ4(p, i)
#define PUT(p, i, v) WRITE4(p, i, v)
#define ADD_UP(v) (((v).x + (v).y) + ((v).z + (v).w))
#define TOP(v) fmax(fmax((v).x, (v).y), fmax((v).z, (v).w))
#else
#define VEC ACC
#define GET(p, i) READ(p, i)
#define PUT(p, i, v) WRITE(p, i, v)
#define ADD_UP(v) (v)
#define TOP(v) (v)
#endif
#define ITEMS (LANES * ROWS)
#define WIDE (LANES * V)

// Reductions: every lane of a row gets the result. `pad` has ITEMS + ROWS * 32 elements.
#if NV_SHUFFLE
inline float traded(float v, int step) {
  float got;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(got) : "f"(v), "r"(step));
  return got;
}
#define REDUCE(name, JOIN)                                                         \
  inline float name(float v, __local float *pad, int lane, int row) {              \
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) {          \
      float w = traded(v, step);                                                   \
      v = JOIN(v, w);                                                              \
    }                                                                              \
    if (LANES > 32) {                                                              \
      __local float *mine = pad + row * 32;                                        \
      barrier(CLK_LOCAL_MEM_FENCE);                                                \
      if (lane % 32 == 0) mine[lane / 32] = v;                                     \
      barrier(CLK_LOCAL_MEM_FENCE);                                                \
      v = mine[0];                                                                 \
      for (int i = 1; i < LANES / 32; i++) v = JOIN(v, mine[i]);                   \
    }                                                                              \
    return v;                                                                      \
  }
#else
// Two levels: FAN sums of LANES / FAN values each, then each lane adds the FAN up. Two barriers after the first.
#define FAN (LANES >= 256 ? 16 : LANES >= 16 ? 8 : 1)
#define REDUCE(name, JOIN)                                                         \
  inline ACC name(ACC v, __local ACC *pad, int lane, int row) {                    \
    __local ACC *mine = pad + row * LANES, *few = pad + ITEMS + row * 32;          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
    mine[lane] = v;                                                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
    if (lane < FAN) {                                                              \
      for (int i = 1; i < LANES / FAN; i++) v = JOIN(v, mine[lane + i * FAN]);     \
      few[lane] = v;                                                               \
    }                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
    v = few[0];                                                                    \
    for (int i = 1; i < FAN; i++) v = JOIN(v, few[i]);                             \
    return v;                                                                      \
  }
#endif
#define PLUS(a, b) ((a) + (b))
REDUCE(sum_of, PLUS)
REDUCE(top_of, fmax)

// The lane's own top is taken off first; the row's top is -inf only if all of it is.
#define NONE (-INFINITY)
#define OFF(top) ((top) == NONE ? (ACC)0 : (top))

#define PLACE                                                                      \
  __local ACC pad[ITEMS + ROWS * 32];                                              \
  const int lane = (int)(get_local_id(0) % LANES), line = (int)(get_local_id(0) / LANES); \
  const long row = (long)get_group_id(0) * ROWS + line;                            \
  const bool live = row < rows;                                                    \
  const __global T *x = CAT(T, x) + (live ? row : 0) * x_row;                      \
  __global T *o = AT(T, o) + (live ? row : 0) * o_row;                             \
  const long first = lane * V;

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void rows_softmax(
    __global uchar *x_, ulong x_at, __global uchar *o_, ulong o_at, long rows, long cols, long x_row, long o_row) {
  PLACE
#if LOOP
  ACC top = NONE, sum = 0;
  for (long i = first; i < cols; i += WIDE) {
    const VEC v = GET(x, i);
    const ACC high = fmax(top, TOP(v));
    sum = sum * exp(OFF(top) - OFF(high)) * (top == NONE ? 0 : 1) + ADD_UP(exp(v - OFF(high)));
    top = high;
  }
  const ACC all = top_of(top, pad, lane, line);
  sum = sum_of(sum * exp(OFF(top) - OFF(all)) * (top == NONE ? 0 : 1), pad, lane, line);
  if (!live) return;
  for (long i = first; i < cols; i += WIDE) {
#if LOG
    PUT(o, i, GET(x, i) - (all + log(sum)));
#else
    PUT(o, i, exp(GET(x, i) - all) * (1 / sum));
#endif
  }
#else
  VEC held[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    held[i] = (VEC)(NONE);
    if (first + i * WIDE < cols) held[i] = GET(x, first + i * WIDE);
  }
  VEC most = held[0];
#pragma unroll
  for (int i = 1; i < PER; i++) most = fmax(most, held[i]);
  const ACC top = top_of(TOP(most), pad, lane, line);
  VEC part = (VEC)(0);
#pragma unroll
  for (int i = 0; i < PER; i++) {
#if LOG
    part += exp(held[i] - top);
#else
    held[i] = exp(held[i] - top);
    part += held[i];
#endif
  }
  const ACC sum = sum_of(ADD_UP(part), pad, lane, line);
#if LOG
  const ACC less = top + log(sum);
#else
  const ACC share = 1 / sum;
#endif
#pragma unroll
  for (int i = 0; i < PER; i++) {
    if (live && first + i * WIDE < cols) {
#if LOG
      PUT(o, first + i * WIDE, held[i] - less);
#else
      PUT(o, first + i * WIDE, held[i] * share);
#endif
    }
  }
#endif
}

// Weights of layer norm lie along the row; those of group norm belong to channels of `span` elements.
#if GROUPS > 1
#define OF_COL(p, i) ((VEC)(READ(p, (row % GROUPS) * (cols / span) + (i) / span)))
#else
#define OF_COL(p, i) GET(p, i)
#endif

inline VEC scaled(VEC v, const __global T *weight, const __global T *bias, long i, long row, long cols, long span) {
#if HAS_WEIGHT
  v *= OF_COL(weight, i);
#endif
#if HAS_BIAS
  v += OF_COL(bias, i);
#endif
  return v;
}

// mean_ and rstd_: rows elements of ACC each.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void rows_norm(
    __global uchar *x_, ulong x_at, __global uchar *weight_, ulong weight_at, __global uchar *bias_, ulong bias_at,
    __global uchar *o_, ulong o_at, __global uchar *mean_, ulong mean_at, __global uchar *rstd_, ulong rstd_at,
    long rows, long cols, long x_row, long o_row, long span, float eps) {
  PLACE
  const __global T *weight = CAT(T, weight), *bias = CAT(T, bias);
  ACC mean = 0;
  VEC part = (VEC)(0);
#if LOOP
#define EACH(i) for (long i = first; i < cols; i += WIDE)
#define HELD(i) GET(x, i)
#else
  VEC held[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    held[i] = (VEC)(0);
    if (first + i * WIDE < cols) held[i] = GET(x, first + i * WIDE);
  }
#endif
#if !RMS
#if LOOP
  EACH(i) part += HELD(i);
#else
#pragma unroll
  for (int i = 0; i < PER; i++) part += held[i];
#endif
  mean = sum_of(ADD_UP(part), pad, lane, line) / cols;
  part = (VEC)(0);
#endif
#if LOOP
  EACH(i) {
    const VEC d = HELD(i) - mean;
    part += d * d;
  }
#else
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const VEC d = held[i] - mean;
    if (first + i * WIDE < cols) part += d * d;
  }
#endif
  const ACC rstd = 1 / sqrt(sum_of(ADD_UP(part), pad, lane, line) / cols + eps);
  if (!live) return;
#if LOOP
  EACH(i) PUT(o, i, scaled((HELD(i) - mean) * rstd, weight, bias, i, row, cols, span));
#else
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const long at = first + i * WIDE;
    if (at < cols) PUT(o, at, scaled((held[i] - mean) * rstd, weight, bias, at, row, cols, span));
  }
#endif
#if HAS_STATS
  if (lane == 0) {
    AT(ACC, mean)[row] = mean;
    AT(ACC, rstd)[row] = rstd;
  }
#endif
}
