/* Sorting rows of keys, stable: blocks first, then runs are merged two by two.
 * Called by row_sort.py and sorting.py.
 *
 * Keys are unsigned integers in the wanted order (the host makes them), together with the
 * indices they had. Both are [rows, count]. In a merge every work-item writes `each` elements:
 * its start in both runs is found by bisection, so that all of them have equal work.
 *
 * Defines: KEY (uint or ulong), BLOCK (elements sorted at once), ON_GPU (a work-group sorts a block,
 * in local memory; else a work-item does).
 */

#ifndef ON_GPU
__kernel void sort_blocks(__global uchar *keys_, ulong keys_at, __global uchar *to_, ulong to_at,
                          __global uchar *place_, ulong place_at, long rows, long count, long blocks,
                          long each) {
    const long end = min((long)(get_global_id(0) + 1) * each, rows * blocks);
    for (long b = get_global_id(0) * each; b < end; b++) {
        const long first = b % blocks * BLOCK, size = min((long)BLOCK, count - first);
        const long at = b / blocks * count + first;
        __global const KEY *from = CAT(KEY, keys) + at;
        KEY key[BLOCK];
        int place[BLOCK];
        for (int n = 0; n < size; n++) {
            const KEY here = from[n];
            int k = n;
            for (; k > 0 && key[k - 1] > here; k--) {
                key[k] = key[k - 1];
                place[k] = place[k - 1];
            }
            key[k] = here;
            place[k] = (int)(first + n);
        }
        for (int n = 0; n < size; n++) {
            AT(KEY, to)[at + n] = key[n];
            AT(int, place)[at + n] = place[n];
        }
    }
}
#else
/* A bitonic network; equal keys are compared by their indices, which makes it stable. */
__kernel void sort_blocks(__global uchar *keys_, ulong keys_at, __global uchar *to_, ulong to_at,
                          __global uchar *place_, ulong place_at, long rows, long count, long blocks,
                          long each) {
    __local KEY key[BLOCK];
    __local int place[BLOCK];
    const long b = get_group_id(0), first = b % blocks * BLOCK, at = b / blocks * count + first;
    const int size = (int)min((long)BLOCK, count - first);
    const int me = get_local_id(0), many = get_local_size(0);
    for (int n = me; n < BLOCK; n += many) {
        key[n] = n < size ? CAT(KEY, keys)[at + n] : (KEY)(-1);
        place[n] = n < size ? (int)(first + n) : INT_MAX;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int wide = 2; wide <= BLOCK; wide *= 2)
        for (int apart = wide / 2; apart > 0; apart /= 2) {
            for (int pair = me; pair < BLOCK / 2; pair += many) {
                const int one = 2 * pair - (pair & (apart - 1)), other = one + apart;
                const int rising = (one & wide) == 0;
                const KEY a = key[one], b = key[other];
                const int p = place[one], q = place[other];
                const int greater = a > b || (a == b && p > q);
                if (greater == rising) {
                    key[one] = b, key[other] = a;
                    place[one] = q, place[other] = p;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    for (int n = me; n < size; n += many) {
        AT(KEY, to)[at + n] = key[n];
        AT(int, place)[at + n] = place[n];
    }
}
#endif

/* Runs of `wide` become runs of twice as many. */
__kernel void merge(__global uchar *keys_, ulong keys_at, __global uchar *places_, ulong places_at,
                    __global uchar *to_, ulong to_at, __global uchar *moved_, ulong moved_at, long rows,
                    long count, long wide, long parts, long each) {
    const long item = get_global_id(0);
    if (item >= rows * parts) return;
    const long row = item / parts * count, begin = item % parts * each, end = min(begin + each, count);
    __global const KEY *keys = CAT(KEY, keys) + row;
    __global const int *places = CAT(int, places) + row;
    __global KEY *to = AT(KEY, to) + row;
    __global int *moved = AT(int, moved) + row;
    for (long at = begin; at < end;) {
        const long start = at / (2 * wide) * (2 * wide);
        const long middle = min(start + wide, count), stop = min(start + 2 * wide, count);
        const long done = at - start;
        long low = max(0L, done - (stop - middle)), high = min(done, middle - start);
        while (low < high) {
            const long half_way = (low + high) / 2;
            if (keys[start + half_way] <= keys[middle + done - 1 - half_way]) low = half_way + 1;
            else high = half_way;
        }
        long a = start + low, b = middle + done - low;
        const long until = min(end, stop);
        for (; at < until; at++) {
            const int first = b >= stop || (a < middle && keys[a] <= keys[b]);
            const long from = first ? a : b;
            to[at] = keys[from];
            moved[at] = places[from];
            a += first;
            b += !first;
        }
    }
}

/* ---- one element of each sorted row
 *
 * Keys from `nan` on are NaN. nans: 0, they are the result; 1, they are skipped; 2, there are none.
 */

/* The median. */
__kernel void pick_middle(__global uchar *out_, ulong out_at, __global uchar *keys_, ulong keys_at,
                          __global uchar *places_, ulong places_at, long rows, long count, KEY nan, long nans) {
    for (long row = get_global_id(0); row < rows; row += get_global_size(0)) {
        __global const KEY *keys = CAT(KEY, keys) + row * count;
        long there = nans == 2 ? count : 0, high = count;
        while (there < high) {
            const long half_way = (there + high) / 2;
            if (keys[half_way] < nan) there = half_way + 1;
            else high = half_way;
        }
        const long at = there < count && !nans ? there : max(there - 1, 0L) / 2;
        AT(long, out)[row] = CAT(int, places)[row * count + at];
    }
}

/* The mode: the smallest of the most frequent elements, at its last index. */
__kernel void pick_mode(__global uchar *out_, ulong out_at, __global uchar *keys_, ulong keys_at,
                        __global uchar *places_, ulong places_at, long rows, long count, KEY nan, long nans) {
    for (long row = get_global_id(0); row < rows; row += get_global_size(0)) {
        __global const KEY *keys = CAT(KEY, keys) + row * count;
        long run = 0, best = -1, at = 0;
        for (long n = 0; n < count; n++) {
            run = n && keys[n] == keys[n - 1] && (nans == 2 || keys[n] < nan) ? run + 1 : 0;
            if (run > best) best = run, at = n;
        }
        AT(long, out)[row] = CAT(int, places)[row * count + at];
    }
}

/* ---- the `few` smallest, without sorting all */

/* Of every part of a row the `few` smallest keys, in order, and where they are. */
__kernel void smallest(__global uchar *keys_, ulong keys_at, __global uchar *to_, ulong to_at,
                       __global uchar *place_, ulong place_at, long rows, long count, long parts, long each,
                       long few) {
    const long item = get_global_id(0);
    if (item >= rows * parts) return;
    const long begin = item % parts * each, end = item % parts == parts - 1 ? count : begin + each;
    __global const KEY *keys = CAT(KEY, keys) + item / parts * count;
    __global KEY *to = AT(KEY, to) + item * few;
    __global int *place = AT(int, place) + item * few;
    long have = 0;
    KEY worst = 0;
    for (long n = begin; n < end; n++) {
        const KEY here = keys[n];
        if (have == few && here >= worst) continue;
        long k = have < few ? have++ : few - 1;
        for (; k > 0 && to[k - 1] > here; k--) {
            to[k] = to[k - 1];
            place[k] = place[k - 1];
        }
        to[k] = here;
        place[k] = (int)n;
        worst = to[have - 1];
    }
}
