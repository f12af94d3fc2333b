/* Reading, writing and reducing at indices, masks, searchsorted.
 * Called by gather_scatter.py, indexing.py, scatter.py and sorting.py.
 *
 * An indexed array is [outer, indexed, inner]: the element (o, n, i) of the result is at
 * o * outer_step + place[n] + i * inner_step of the array; steps and places count elements. The host
 * has checked every index before.
 *
 * Appended to spans.cl. Defines: WORD (the type of elements that are only moved), KIND (the dtype
 * of elements that are computed with) and WORK (its C type).
 */

#ifndef WORD
#define WORD uint
#endif
#ifndef KIND
#define KIND float32
#define WORK float
#endif

/* Whether an element is NaN: a function, because compilers warn for integers, which never are. */
inline int differ(WORK one, WORK other) { return one != other; }
#define NO_NUMBER(value) differ(value, value)


/* ---- indices */

/* flag becomes 1 where an index is not in low .. high - 1. */
__kernel void check(__global uchar *flag_, ulong flag_at, __global uchar *index_, ulong index_at, long count,
                    long low, long high, long each) {
    __global const long *index = CAT(long, index);
    int bad = 0;
    SPAN(n, count) bad |= index[n] < low || index[n] >= high;
    if (bad) AT(long, flag)[0] = 1;
}

/* Offsets from the indices of one dimension, added to those of the dimensions before. */
__kernel void places(__global uchar *place_, ulong place_at, __global uchar *index_, ulong index_at, long count,
                     long size, long step, long first, long each) {
    __global long *place = AT(long, place);
    __global const long *index = CAT(long, index);
    SPAN(n, count) {
        const long at = index[n] < 0 ? index[n] + size : index[n];
        place[n] = (first ? 0 : place[n]) + at * step;
    }
}

/* Where the elements of an index of `ndim` dimensions go: table has its sizes, and the steps of the
 * target with 0 for the dimension that the index itself counts along. */
inline long base_of(long flat, __global const long *table, long ndim) {
    long base = 0;
    if (flat <= UINT_MAX) { /* 32-bit division is much faster */
        uint rest = (uint)flat;
        for (long d = ndim - 1; d > 0; d--) {
            const uint size = (uint)table[d], next = rest / size;
            base += (rest - next * size) * table[ndim + d];
            rest = next;
        }
        return base + rest * table[ndim];
    }
    for (long d = ndim - 1; d > 0; d--) {
        base += flat % table[d] * table[ndim + d];
        flat /= table[d];
    }
    return base + flat * table[ndim];
}

__kernel void spread_places(__global uchar *place_, ulong place_at, __global uchar *index_, ulong index_at,
                            __global uchar *table_, ulong table_at, long ndim, long count, long step, long each) {
    __global long *place = AT(long, place);
    __global const long *index = CAT(long, index);
    __global const long *table = CAT(long, table);
    SPAN(n, count) place[n] = base_of(n, table, ndim) + index[n] * step;
}

__kernel void gather(__global uchar *out_, ulong out_at, __global uchar *from_, ulong from_at,
                     __global uchar *index_, ulong index_at, __global uchar *table_, ulong table_at,
                     long ndim, long count, long step, long each) {
    __global WORD *out = AT(WORD, out);
    __global const WORD *from = CAT(WORD, from);
    __global const long *index = CAT(long, index);
    __global const long *table = CAT(long, table);
    SPAN(n, count) out[n] = from[base_of(n, table, ndim) + index[n] * step];
}

/* ---- reading and writing at indices */

__kernel void take(__global uchar *out_, ulong out_at, __global uchar *from_, ulong from_at,
                   __global uchar *place_, ulong place_at, long outer, long count, long inner,
                   long outer_step, long inner_step, long each) {
    __global WORD *out = AT(WORD, out);
    __global const WORD *from = CAT(WORD, from);
    __global const long *place = CAT(long, place);
#ifndef ON_GPU
    long o = get_global_id(0) * each / count, n = get_global_id(0) * each % count;
    SPAN(row, outer * count) {
        __global const WORD *line = from + o * outer_step + place[n];
        __global WORD *to = out + row * inner;
        if (inner == 1) *to = *line;
        else if (inner_step == 1)
            for (long i = 0; i < inner; i++) to[i] = line[i];
        else
            for (long i = 0; i < inner; i++) to[i] = line[i * inner_step];
        if (++n == count) n = 0, o++;
    }
#else
    SPAN(k, outer * count * inner) {
        const long row = k / inner;
        out[k] = from[row / count * outer_step + place[row % count] + k % inner * inner_step];
    }
#endif
}

__kernel void put(__global uchar *out_, ulong out_at, __global uchar *value_, ulong value_at,
                  __global uchar *place_, ulong place_at, long outer, long count, long inner,
                  long outer_step, long inner_step, long v_outer, long v_count, long v_inner, long each) {
    __global WORD *out = AT(WORD, out);
    __global const WORD *value = CAT(WORD, value);
    __global const long *place = CAT(long, place);
    SPAN(k, outer * count * inner) {
        const long row = k / inner, i = k % inner, o = row / count, n = row % count;
        out[o * outer_step + place[n] + i * inner_step] = value[o * v_outer + n * v_count + i * v_inner];
    }
}

/* ---- reducing at indices: OP joins a value to the element there */

#ifdef OP
#define OP_add(a, b) ((a) + (b))
#define OP_or(a, b) ((a) | (b))
#define OP_multiply(a, b) ((a) * (b))
#define OP_amax(a, b) ((b) > (a) || NO_NUMBER(b) ? (b) : (a))
#define OP_amin(a, b) ((b) < (a) || NO_NUMBER(b) ? (b) : (a))
#define MEET(a, b) PASTE(OP_, OP)(a, b)

/* A work-item has some of the outer * inner rows, and takes all indices in turn. */
__kernel void meet(__global uchar *out_, ulong out_at, __global uchar *value_, ulong value_at,
                   __global uchar *place_, ulong place_at, long outer, long count, long inner,
                   long outer_step, long inner_step, long v_outer, long v_count, long v_inner, long each) {
    __global WORK *out = AT(WORK, out);
    __global const WORK *value = CAT(WORK, value);
    __global const long *place = CAT(long, place);
    const long begin = get_global_id(0) * each, end = min(begin + each, outer * inner);
    for (long line = begin; line < end;) {
        const long o = line / inner, i = line % inner, stretch = min(inner - i, end - line);
        __global WORK *into = out + o * outer_step + i * inner_step;
        __global const WORK *given = value + o * v_outer + i * v_inner;
        for (long n = 0; n < count; n++) {
            __global WORK *to = into + place[n];
            __global const WORK *from = given + n * v_count;
            for (long j = 0; j < stretch; j++)
                to[j * inner_step] = MEET(to[j * inner_step], from[j * v_inner]);
        }
        line += stretch;
    }
}

/* Indices are sorted, order is the permutation: the first of equal ones takes all of them. */
__kernel void meet_sorted(__global uchar *out_, ulong out_at, __global uchar *value_, ulong value_at,
                          __global uchar *place_, ulong place_at, __global uchar *order_, ulong order_at,
                          long outer, long count, long inner, long outer_step, long inner_step,
                          long v_outer, long v_count, long v_inner) {
    __global WORK *out = AT(WORK, out);
    __global const WORK *value = CAT(WORK, value);
    __global const long *place = CAT(long, place);
    __global const long *order = CAT(long, order);
    for (long k = get_global_id(0); k < outer * count * inner; k += get_global_size(0)) {
        const long row = k / inner, i = k % inner, o = row / count;
        long n = row % count;
        const long here = place[order[n]];
        if (n > 0 && place[order[n - 1]] == here) continue;
        __global WORK *to = out + o * outer_step + here + i * inner_step;
        __global const WORK *from = value + o * v_outer + i * v_inner;
        WORK sum = *to;
        do sum = MEET(sum, from[order[n] * v_count]);
        while (++n < count && place[order[n]] == here);
        *to = sum;
    }
}
#endif

/* Atomic float adds, in any order: for many values on GPUs. */
__kernel void add_atomic(__global uchar *out_, ulong out_at, __global uchar *value_, ulong value_at,
                         __global uchar *place_, ulong place_at, long outer, long count, long inner,
                         long outer_step, long inner_step, long v_outer, long v_count, long v_inner) {
    __global const float *value = CAT(float, value);
    __global const long *place = CAT(long, place);
    for (long k = get_global_id(0); k < outer * count * inner; k += get_global_size(0)) {
        const long row = k / inner, i = k % inner, o = row / count, n = row % count;
        volatile __global uint *to = AT(uint, out) + o * outer_step + place[n] + i * inner_step;
        const float add = value[o * v_outer + n * v_count + i * v_inner];
        uint before = *to, seen;
        do {
            seen = before;
            before = atomic_cmpxchg(to, seen, as_uint(as_float(seen) + add));
        } while (before != seen);
    }
}

/* ---- masks */

/* How many of each `each` booleans are true. */
__kernel void count_true(__global uchar *counts_, ulong counts_at, __global uchar *mask_, ulong mask_at,
                         long count, long each) {
    __global const uchar *mask = CAT(uchar, mask);
    const long begin = get_global_id(0) * each, end = min(begin + each, count);
    if (begin >= count) return;
    long found = 0;
    for (long n = begin; n < end; n++) found += mask[n] != 0;
    AT(long, counts)[get_global_id(0)] = found;
}

/* The indices of the true ones. */
__kernel void list_true(__global uchar *place_, ulong place_at, __global uchar *starts_, ulong starts_at,
                        __global uchar *mask_, ulong mask_at, long count, long each) {
    __global const uchar *mask = CAT(uchar, mask);
    __global long *place = AT(long, place);
    const long begin = get_global_id(0) * each, end = min(begin + each, count);
    if (begin >= count) return;
    long at = CAT(long, starts)[get_global_id(0)];
    for (long n = begin; n < end; n++)
        if (mask[n]) place[at++] = n;
}

/* ---- searchsorted: rows of `size` elements, `wide` values for each */

__kernel void search(__global uchar *out_, ulong out_at, __global uchar *order_, ulong order_at,
                     __global uchar *value_, ulong value_at, long count, long size, long wide, long after,
                     long each) {
    __global const WORK *order = CAT(WORK, order);
    __global const WORK *value = CAT(WORK, value);
    SPAN(n, count) {
        __global const WORK *row = order + (wide ? n / wide * size : 0);
        const WORK wanted = value[n];
        long low = 0, high = size;
        while (low < high) {
            const long middle = (low + high) / 2;
            const WORK there = row[middle];
            /* NaN is the largest. */
            const int beyond = after ? there > wanted || (NO_NUMBER(there) && !NO_NUMBER(wanted))
                                     : there >= wanted || NO_NUMBER(there);
            if (beyond) high = middle;
            else low = middle + 1;
        }
        AT(long, out)[n] = low;
    }
}
