/* Steps of attention on rows of scores that are in memory: for the gradient, and heads of unusual sizes.
 * Called by attention.py.
 *
 *
 * Defines: ACC float or double; MASK the dtype of a mask, HAS_MASK where there is one; ON_GPU the mapping.
 *   attention_weights(scores, mask, lse, rows, seen, start, heads, causal, mask b, mask h, mask s, mask k, lse step)
 *     scores [batches * heads][rows][seen], contiguous, in place; row r of a head is query start + r; its
 *     log-sum-exp goes to lse[head * lse step + query]. A row that sees nothing becomes zeros, its
 *     log-sum-exp 0.
 *   attention_slopes(weights, toward, rows, seen, scale): both [heads * rows][seen]; toward becomes
 *     scale * weights * (toward - sum(weights * toward))
 * Launch, CPU: global (rows, batches * heads), local (1, 1); GPU: local (64,), global (64 * rows * batches * heads,).
 */
#ifdef ON_GPU
#define ITEMS 64
#define ROW (get_group_id(0) % rows)
#define HEAD (get_group_id(0) / rows)
#define ITEM get_local_id(0)
#define SHARED __local ACC parts[ITEMS];
#define GATHERED(value, how) gathered_##how(parts, value)
inline ACC gathered_max(__local ACC *parts, ACC value) {
    const int item = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    parts[item] = value;
    for (int half_ = ITEMS / 2; half_; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_) parts[item] = fmax(parts[item], parts[item + half_]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return parts[0];
}
inline ACC gathered_sum(__local ACC *parts, ACC value) {
    const int item = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    parts[item] = value;
    for (int half_ = ITEMS / 2; half_; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_) parts[item] += parts[item + half_];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return parts[0];
}
#else
#define ITEMS 1
#define ROW get_global_id(0)
#define HEAD get_global_id(1)
#define ITEM 0
#define SHARED
#define GATHERED(value, how) (value)
#endif

__kernel void attention_weights(__global uchar *scores_, ulong scores_at, __global uchar *mask_, ulong mask_at,
                                __global uchar *lse_, ulong lse_at, long rows, long seen, long start, long heads,
                                long causal, long mask_b, long mask_h, long mask_s, long mask_k, long lse_step) {
    SHARED
    const long row = ROW, head = HEAD, query = start + row;
    __global ACC *s = AT(ACC, scores) + (head * rows + row) * seen;
    const long many = causal ? min(seen, query + 1) : seen;
#ifdef HAS_MASK
    __global const TYPE(MASK) *mask =
        CAT(TYPE(MASK), mask) + head / heads * mask_b + head % heads * mask_h + query * mask_s;
    for (long j = ITEM; j < many; j += ITEMS) s[j] += (ACC)LOAD(MASK, mask, j * mask_k);
#endif
    ACC top = -INFINITY;
    for (long j = ITEM; j < many; j += ITEMS) top = fmax(top, s[j]);
    top = GATHERED(top, max);
    if (top == -INFINITY) top = 0;
    ACC sum = 0;
    for (long j = ITEM; j < many; j += ITEMS) {
        const ACC e = exp(s[j] - top);
        s[j] = e;
        sum += e;
    }
    sum = GATHERED(sum, sum);
    const ACC total = sum == 0 ? (ACC)1 : sum;
    for (long j = ITEM; j < many; j += ITEMS) s[j] /= total;
    for (long j = many + ITEM; j < seen; j += ITEMS) s[j] = 0;
    if (ITEM == 0) AT(ACC, lse)[head * lse_step + query] = log(total) + top;
}

__kernel void attention_slopes(__global uchar *weights_, ulong weights_at, __global uchar *toward_, ulong toward_at,
                               long rows, long seen, ACC scale) {
    SHARED
    const long at = (HEAD * rows + ROW) * seen;
    __global const ACC *w = CAT(ACC, weights) + at;
    __global ACC *t = AT(ACC, toward) + at;
    ACC mean = 0;
    for (long j = ITEM; j < seen; j += ITEMS) mean += w[j] * t[j];
    mean = GATHERED(mean, sum);
    for (long j = ITEM; j < seen; j += ITEMS) t[j] = (t[j] - mean) * w[j] * scale;
}
