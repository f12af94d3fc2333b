/* Attention for CPU-like devices: softmax(q @ k^T * scale + mask) @ v, no matrix of scores in memory.
 * Called by attention.py.
 *
 * Supports any length, any size of head, causal, added masks, key heads that several query heads share,
 * any strides, the log-sum-exp of each row (for the backward pass).
 * Reads nothing outside the arrays; a row that sees no key gives zeros and a log-sum-exp of
 * -inf. A work-item does MR queries against all keys they see.
 *
 * Appended to panels_cpu.cl. Defines (all but DEPTH and WIDTH have defaults)
 *   WORD, VEC   as panels_cpu.cl says. lse is in REAL.
 *   DEPTH       size of a head of q and k. WIDTH: of v and out, as a multiple of NR = NV * VEC, rounded up.
 *   MR, NV      register tile, as in gemm_cpu.cl: 12, 2 with AVX-512; 6, 2 with AVX2.
 *   BKV         keys taken in one step; a multiple of NR. 256.
 *   CAUSAL      query i sees keys up to i + shift (torch: shift 0).
 *   HAS_MASK    a mask of WORD is added to the scores; strides may be 0.
 *   HAS_LSE     lse is written.
 *
 * Launches have local size 1. Strides are in elements: b batch, h head, s position, d within a head.
 *   attention_pack(k, v, to_k, to_v, key heads, keys, width of v, k b, k h, k s, k d, v b, v h, v s, v d)
 *     global (ceil(keys / NR), batches * key heads)
 *     to_k: batches * key heads * ceil(keys / NR) * NR * DEPTH REALs, as [panel][d][NR]
 *     to_v: batches * key heads * ceil(keys / NR) * NR * WIDTH REALs, as [key][WIDTH]
 *     Start both at multiples of 64 bytes.
 *   attention(q, to_k, to_v, out, [mask,] [lse,] heads, share, queries, keys, width of v, q b, q h, q s,
 *             q d, out b, out h, out s, scale, [shift,] [mask b, mask h, mask s (query), mask k (key)])
 *     share: query heads for a key head. out has d stride 1. lse: [batches][heads][queries]
 *     global (ceil(queries / MR), batches * heads)
 */
#ifndef MR
#define MR 12
#endif
#ifndef NV
#define NV 2
#endif
#define NR (NV * VEC)
#ifndef BKV
#define BKV 256
#endif

__kernel void attention_pack(__global uchar *k_, ulong k_at, __global uchar *v_, ulong v_at,
                             __global uchar *to_k_, ulong to_k_at, __global uchar *to_v_,
                             ulong to_v_at, long heads, long keys, long width, long k_b, long k_h,
                             long k_s, long k_d, long v_b, long v_h, long v_s, long v_d) {
    long panel = get_global_id(0), panels = get_global_size(0), head = get_global_id(1);
    long at = head * panels + panel, first = panel * NR;
    int many = min((long)NR, keys - first);
    pack_panel(CAT(T, k) + batch_offset(head, heads, k_b, k_h) + first * k_s,
               AT(REAL, to_k) + at * NR * DEPTH, many, NR, 0, DEPTH, k_s, k_d);
    __global const T *v = CAT(T, v) + batch_offset(head, heads, v_b, v_h) + first * v_s;
    __global REAL *to = AT(REAL, to_v) + at * NR * WIDTH;
    for (int j = 0; j < NR; j++) {
        long full = j < many ? width : 0;
        if (v_d == 1)
            for (long d = 0; d < full; d++) to[j * WIDTH + d] = GET(v, j * v_s + d);
        else
            for (long d = 0; d < full; d++) to[j * WIDTH + d] = GET(v, j * v_s + d * v_d);
        for (long d = full; d < WIDTH; d++) to[j * WIDTH + d] = 0;
    }
}

/* Scores of MR queries against a panel of NR keys; q is [d][MR] and scaled. */
inline void scores_of(const REAL *q, __global const REAL *k, RV (*scores)[NV]) {
    RV s[MR][NV];
    UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < NV; v++) s[r][v] = 0;
    for (int d = 0; d < DEPTH; d++) {
        RV row[NV];
        UNROLL for (int v = 0; v < NV; v++)
            row[v] = *(__global const LOOSE *)(k + d * NR + v * VEC);
        UNROLL for (int r = 0; r < MR; r++) {
            RV x = (RV)(q[d * MR + r]);
            UNROLL for (int v = 0; v < NV; v++) s[r][v] = fma(x, row[v], s[r][v]);
        }
    }
    UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < NV; v++) scores[r][v] = s[r][v];
}

/* Weights of a step, from its scores: exponentials less the highest score so far. Returns the
 * factor for the earlier sums. */
inline REAL weights_of(REAL *row, int count, REAL *top, REAL *sum) {
    RV high = (RV)LOWEST;
    for (int j = 0; j < count; j += VEC) high = higher(high, *(LOOSE *)(row + j));
    REAL now = highest_of(high), before = *top;
    now = before >= now || before != before ? before : now;
    REAL off = now == LOWEST ? (REAL)0 : now; /* nothing seen yet: -inf less -inf is NaN */
    RV added = 0;
    for (int j = 0; j < count; j += VEC) {
        RV e = exp_of(*(LOOSE *)(row + j) - off);
        *(LOOSE *)(row + j) = e;
        added += e;
    }
    REAL factor = exp_of(before - off);
    *top = now;
    *sum = *sum * factor + sum_of(added);
    return factor;
}

/* out = out * factor + weights @ v, for MR queries and NR columns. */
inline void add_values(const REAL *weights, __global const REAL *v, int count, const REAL *factors,
                       REAL *out) {
    RV s[MR][NV];
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int w = 0; w < NV; w++)
            s[r][w] = *(LOOSE *)(out + r * WIDTH + w * VEC) * factors[r];
    for (int j = 0; j < count; j++) {
        RV row[NV];
        UNROLL for (int w = 0; w < NV; w++)
            row[w] = *(__global const LOOSE *)(v + (long)j * WIDTH + w * VEC);
        UNROLL for (int r = 0; r < MR; r++) {
            RV x = (RV)(weights[r * BKV + j]);
            UNROLL for (int w = 0; w < NV; w++) s[r][w] = fma(x, row[w], s[r][w]);
        }
    }
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int w = 0; w < NV; w++) *(LOOSE *)(out + r * WIDTH + w * VEC) = s[r][w];
}

/* Masked scores become -inf: keys from `end` on. */
inline void hide(REAL *row, long first, int count, long end) {
    for (int j = max(0L, min((long)count, end - first)); j < count; j++) row[j] = LOWEST;
}

__kernel void attention(__global uchar *q_, ulong q_at, __global uchar *k_, ulong k_at,
                        __global uchar *v_, ulong v_at, __global uchar *out_, ulong out_at,
#ifdef HAS_MASK
                        __global uchar *mask_, ulong mask_at,
#endif
#ifdef HAS_LSE
                        __global uchar *lse_, ulong lse_at,
#endif
                        long heads, long share, long queries, long keys, long width, long q_b,
                        long q_h, long q_s, long q_d, long out_b, long out_h, long out_s, REAL scale
#ifdef CAUSAL
                        , long shift
#endif
#ifdef HAS_MASK
                        , long mask_b, long mask_h, long mask_s, long mask_k
#endif
) {
    long i0 = get_global_id(0) * MR, head = get_global_id(1);
    int many = min((long)MR, queries - i0);
    long padded = (keys + NR - 1) / NR * NR;
    __global const REAL *k = CAT(REAL, k) + head / share * padded * DEPTH;
    __global const REAL *v = CAT(REAL, v) + head / share * padded * WIDTH;
    __global const T *q = CAT(T, q) + batch_offset(head, heads, q_b, q_h) + i0 * q_s;
    REAL turned[DEPTH * MR], weights[MR * BKV], sums[MR * WIDTH];
    REAL tops[MR], totals[MR], factors[MR];
    for (int r = 0; r < MR; r++) {
        tops[r] = LOWEST;
        totals[r] = 0;
        for (int d = 0; d < DEPTH; d++)
            turned[d * MR + r] = r < many ? (REAL)GET(q, r * q_s + d * q_d) * scale : (REAL)0;
    }
    for (int i = 0; i < MR * WIDTH; i++) sums[i] = 0;
    long seen = keys;
#ifdef CAUSAL
    seen = min(keys, i0 + many + shift); /* keys that the last of these queries sees */
#endif
    for (long first = 0; first < seen; first += BKV) {
        int count = min((long)BKV, padded - first);
        count = min((long)count, (seen - first + NR - 1) / NR * NR);
        for (int j = 0; j < count; j += NR) {
            RV s[MR][NV];
            scores_of(turned, k + (first + j) * DEPTH, s);
            UNROLL for (int r = 0; r < MR; r++)
                UNROLL for (int w = 0; w < NV; w++)
                    *(LOOSE *)(weights + r * BKV + j + w * VEC) = s[r][w];
        }
        for (int r = 0; r < MR; r++) {
            REAL *row = weights + r * BKV;
            long end = keys;
#ifdef CAUSAL
            end = min(keys, i0 + r + 1 + shift);
#endif
#ifdef HAS_MASK
            if (r < many) {
                __global const T *mask = CAT(T, mask) + batch_offset(head, heads, mask_b, mask_h)
                                         + (i0 + r) * mask_s + first * mask_k;
                int inside = min((long)count, keys - first);
                if (mask_k == 1)
                    for (int j = 0; j < inside; j++) row[j] += GET(mask, j);
                else
                    for (int j = 0; j < inside; j++) row[j] += GET(mask, j * mask_k);
            }
#endif
            if (first + count > end) hide(row, first, count, end);
            factors[r] = weights_of(row, count, tops + r, totals + r);
        }
        int used = min((long)count, seen - first); /* the rest is 0 */
        for (int w = 0; w < WIDTH; w += NR)
            add_values(weights, v + first * WIDTH + w, used, factors, sums + w);
    }
    __global T *out = AT(T, out) + batch_offset(head, heads, out_b, out_h) + i0 * out_s;
    for (int r = 0; r < many; r++) {
        REAL by = totals[r] == 0 ? (REAL)0 : 1 / totals[r];
        for (int d = 0; d < width; d++) PUT(out, r * out_s + d, sums[r * WIDTH + d] * by);
#ifdef HAS_LSE
        AT(REAL, lse)[head * queries + i0 + r] = log(totals[r]) + tops[r];
#endif
    }
}
