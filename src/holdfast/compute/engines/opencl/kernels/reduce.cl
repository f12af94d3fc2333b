/* Reductions of expressions over any dimensions of strided arrays.
 * Called by reduction.py.
 *
 * Three ways. ROWS (CPUs): reduced elements are contiguous. COLUMNS (CPUs): kept ones are. GROUPS (GPUs):
 * work-groups, `lanes` work-items to a result.
 * codegen.py puts these defines in front:
 *   ARGUMENTS, SIZES    arguments of the kernel: arrays and scalars; sizes and steps
 *   POINTERS            pointers to the arrays
 *   KEPT(o), REDUCED(r) offsets in the arrays for a kept and a reduced index
 *   WHOLE(n), PART(n)   states of n results: WHOLE is wide, PART may be narrow; CLEAR and CLEAR_WHOLE start them
 *   STEP(l)             joins the current element to part l
 *   JOIN(l, m), FOLD(l, w)  join part m to part l, and part l to whole w
 *   LOCAL, HAND(at), MEET(at, other), TAKE(at)  states in local memory
 *   FINISH(w, o, c)     writes result o of chunk c
 * A part takes in at most BLOCK steps before it is folded, so that float sums stay precise; the order of
 * additions depends on sizes alone.
 */
#define BLOCK 32
#define LANES 32  /* parallel partial sums: several vectors of any CPU */
#define WIDTH 1024 /* columns that a work-item takes at a time: a page of float32 */

#ifdef ROWS
__kernel void reduce(ARGUMENTS, long each, long chunk, long outs, long reduced, long inner, SIZES) {
    POINTERS
    const long end_out = min(outs, (long)(get_global_id(0) + 1) * each);
    const long c = get_global_id(1), first = c * chunk, last = min(reduced, first + chunk);
    for (long o = get_global_id(0) * each; o < end_out; o++) {
        KEPT(o)
        WHOLE(1)
        CLEAR_WHOLE(0)
        for (long r_ = first; r_ < last;) {
            const long row = r_ / inner, from = r_ - row * inner;
            const long to = min(min(inner, from + last - r_), from + LANES * BLOCK);
            REDUCED(row)
            PART(LANES)
            if (to - from < 2 * LANES) {
                const int l = 0;
                CLEAR(0)
                for (long j = from; j < to; j++) { STEP(0) }
                FOLD(0, 0)
            } else {
                long at = from;
                for (int l = 0; l < LANES; l++) { CLEAR(l) }
                for (; at + LANES <= to; at += LANES)
                    for (int l = 0; l < LANES; l++) { const long j = at + l; STEP(l) }
                for (int l = 0; l < to - at; l++) { const long j = at + l; STEP(l) }
                for (int l = 0; l < 16; l++) { JOIN(l, l + 16) }
                for (int l = 0; l < 8; l++) { JOIN(l, l + 8) }
                for (int l = 0; l < 8; l++) { FOLD(l, 0) }
            }
            r_ += to - from;
        }
        FINISH(0, o, c)
    }
}
#endif

#ifdef COLUMNS
__kernel void reduce(ARGUMENTS, long blocks, long chunk, long width, long reduced, SIZES) {
    POINTERS
    const long row = get_global_id(0) / blocks, from = (get_global_id(0) - row * blocks) * WIDTH;
    const int many = min((long)WIDTH, width - from);
    const long c = get_global_id(1), first = c * chunk, last = min(reduced, first + chunk);
    KEPT(row)
    WHOLE(WIDTH)
    PART(WIDTH)
    for (int l = 0; l < many; l++) { CLEAR_WHOLE(l) }
    for (long start = first; start < last; start += BLOCK) {
        const long end = min(start + BLOCK, last);
        for (int l = 0; l < many; l++) { CLEAR(l) }
        long at = start;
        for (; at + 4 <= end; at += 4) /* four rows at once: parts are read and written less often */
            for (int l = 0; l < many; l++) {
                const long j = from + l;
                #pragma unroll
                for (int u = 0; u < 4; u++) { const long r = at + u; REDUCED(r) STEP(l) }
            }
        for (long r = at; r < end; r++) {
            REDUCED(r)
            for (int l = 0; l < many; l++) { const long j = from + l; STEP(l) }
        }
        for (int l = 0; l < many; l++) { FOLD(l, l) }
    }
    for (int l = 0; l < many; l++) { const long j = from + l; FINISH(l, row * width + from + l, c) }
}
#endif

#ifdef GROUPS
/* BESIDE: kept elements are contiguous, so work-items next to each other take results next to each other. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void reduce(ARGUMENTS, long lanes_, long chunk, long outs, long reduced, SIZES) {
    POINTERS
    LOCAL
    const int id = get_local_id(0), lanes = (int)lanes_, many = GROUP / lanes, l = 0;
#ifdef BESIDE
    const int lane = id / many, mine = id - lane * many, apart = many;
#else
    const int mine = id / lanes, lane = id - mine * lanes, apart = 1;
#endif
    const INDEX o = (INDEX)get_group_id(0) * many + mine, c = get_group_id(1);
    const INDEX last = (INDEX)min(reduced, ((long)c + 1) * chunk);
    WHOLE(1)
    CLEAR_WHOLE(0)
    KEPT(o)
    if (o < outs) {
        for (INDEX r_ = (INDEX)(c * chunk + lane); r_ < last;) {
            const INDEX stop = min(last, r_ + BLOCK * lanes);
            PART(1)
            CLEAR(0)
            for (; r_ + 3 * lanes < stop; r_ += 4 * lanes) {
                #pragma unroll
                for (int u = 0; u < 4; u++) { const INDEX r = r_ + u * lanes; REDUCED(r) STEP(0) }
            }
            for (; r_ < stop; r_ += lanes) { const INDEX r = r_; REDUCED(r) STEP(0) }
            FOLD(0, 0)
        }
    }
    HAND(id)
    for (int half_ = lanes / 2; half_ > 0; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_) { MEET(id, id + half_ * apart) }
    }
    if (lane == 0 && o < outs) {
        TAKE(id)
        FINISH(0, o, c)
    }
}
#endif
