/* Running sums, products, extremes and sums of exponentials along a dimension.
 * Called by cumulate.py.
 *
 * Two ways. LINES: a work-item runs along a line alone; lines next to each other are next to each other in
 * memory or are enough for all work-items. GROUPS: a work-group runs along a line, GROUP elements at a time.
 * NaN propagates; of equal extremes the last counts.
 *
 * Defines: IN, OUT dtypes; KIND, the C type that is computed in; RUN_sum, RUN_prod, RUN_max, RUN_min or
 * RUN_logaddexp, what is computed; PLACED if indices are written too.
 * x has steps for outer, length, inner; out (and place) are contiguous.
 */
#ifdef PLACED
#define PLACE_ARRAY __global uchar *place_, ulong place_at,
#define IF_PLACED(text) text
#else
#define PLACE_ARRAY
#define IF_PLACED(text)
#endif

#define LOWEST_uchar 0
#define LOWEST_long LONG_MIN
#define LOWEST_ulong 0
#define LOWEST_float (-INFINITY)
#define LOWEST_double (-INFINITY)
#define HIGHEST_uchar 255
#define HIGHEST_long LONG_MAX
#define HIGHEST_ulong ULONG_MAX
#define HIGHEST_float INFINITY
#define HIGHEST_double INFINITY

/* START begins a run, JOINED joins two, AFTER is whether b replaces a. */
#if defined(RUN_sum)
#define START 0
#define JOINED(a, b) ((a) + (b))
#elif defined(RUN_prod)
#define START 1
#define JOINED(a, b) ((a) * (b))
#elif defined(RUN_logaddexp)
#define START (-INFINITY)
#define JOINED(a, b) log_added(a, b)
#elif defined(RUN_max)
#define START PASTE(LOWEST_, KIND)
#define AFTER(a, b) ((b) >= (a) || (b) != (b))
#define JOINED(a, b) (AFTER(a, b) ? (b) : (a))
#else
#define START PASTE(HIGHEST_, KIND)
#define AFTER(a, b) ((b) <= (a) || (b) != (b))
#define JOINED(a, b) (AFTER(a, b) ? (b) : (a))
#endif

#ifdef RUN_logaddexp
inline KIND log_added(KIND a, KIND b) {
    const KIND high = a > b ? a : b, low = a > b ? b : a;
    if (a != a || b != b) return a + b;
    return isinf(high) || low == -INFINITY ? high : high + log1p(exp(low - high));
}
#endif

#ifdef LINES
__kernel void cumulate(__global uchar *x_, ulong x_at, __global uchar *out_, ulong out_at, PLACE_ARRAY long outer,
                       long length, long inner, long x_outer, long x_step, long x_inner, long each) {
    __global const TYPE(IN) *x = CAT(TYPE(IN), x);
    __global TYPE(OUT) *out = AT(TYPE(OUT), out);
    const long end = min(outer * inner, (long)(get_global_id(0) + 1) * each);
    for (long line = get_global_id(0) * each; line < end; line++) {
        const long o = line / inner, i = line - o * inner;
        const long from = o * x_outer + i * x_inner, to = o * length * inner + i;
        KIND run = START;
        IF_PLACED(long at = 0;)
        for (long j = 0; j < length; j++) {
            const KIND v = (KIND)LOAD(IN, x, from + j * x_step);
            IF_PLACED(at = j == 0 || AFTER(run, v) ? j : at;)
            run = j == 0 ? v : JOINED(run, v);
            STORE(OUT, out, to + j * inner, run);
            IF_PLACED(AT(long, place)[to + j * inner] = at;)
        }
    }
}
#endif

#ifdef GROUPS
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void cumulate(__global uchar *x_, ulong x_at, __global uchar *out_, ulong out_at, PLACE_ARRAY long outer,
              long length, long inner, long x_outer, long x_step, long x_inner, long each) {
    __local KIND runs[2][GROUP];
    IF_PLACED(__local long places[2][GROUP];)
    __global const TYPE(IN) *x = CAT(TYPE(IN), x);
    __global TYPE(OUT) *out = AT(TYPE(OUT), out);
    const long line = get_group_id(0), o = line / inner, i = line - o * inner;
    const long from = o * x_outer + i * x_inner, to = o * length * inner + i;
    const int id = get_local_id(0);
    KIND carry = START;
    IF_PLACED(long carried = 0;)
    for (long start = 0; start < length; start += GROUP) {
        const long j = start + id;
        int now = 0;
        runs[0][id] = j < length ? (KIND)LOAD(IN, x, from + j * x_step) : START;
        IF_PLACED(places[0][id] = j;)
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = 1; step < GROUP; step *= 2) {
            KIND v = runs[now][id];
            IF_PLACED(long at = places[now][id];)
            if (id >= step) {
                const KIND before = runs[now][id - step];
                IF_PLACED(at = AFTER(before, v) ? at : places[now][id - step];)
                v = JOINED(before, v);
            }
            now = 1 - now;
            runs[now][id] = v;
            IF_PLACED(places[now][id] = at;)
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        KIND v = runs[now][id], whole = runs[now][GROUP - 1];
        IF_PLACED(long at = places[now][id]; long last = places[now][GROUP - 1];)
        if (start) {
            IF_PLACED(at = AFTER(carry, v) ? at : carried; last = AFTER(carry, whole) ? last : carried;)
            v = JOINED(carry, v);
            whole = JOINED(carry, whole);
        }
        if (j < length) {
            STORE(OUT, out, to + j * inner, v);
            IF_PLACED(AT(long, place)[to + j * inner] = at;)
        }
        carry = whole;
        IF_PLACED(carried = last;)
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
