/* Matrix products in any dtype: o = alpha * a @ b + beta * c.
 * Called by gemm.py.
 *
 * Supports float64, integers, dtypes that differ, any strides of all four, empty sums.
 *
 * Defines: IN (dtype of a and b), BASE (of c), OUT (of o), ACC (type of the sums), HAS_C; ON_GPU
 *   chooses the mapping.
 * A batch z is (z / inner, z % inner), with a stride for each. Strides are in elements.
 * Launch, CPU: global (ceil(n / WIDTH), m, batches), any local size; GPU: local (16, 16),
 *   global (16 * ceil(n / 64) * batches, 16 * ceil(m / 64)): some drivers count no further than 65535 groups
 *   in the other dimensions.
 */
#define WIDTH 64
#define BATCH(x) (z / inner * x##_outer + z % inner * x##_inner)

#ifdef HAS_C
#define ADDED(i, j) (alpha * sum + beta * (ACC)LOAD(BASE, c, (i) * c_row + (j) * c_col))
#else
#define ADDED(i, j) (alpha * sum)
#endif

#define ARGUMENTS                                                                                 \
    __global uchar *a_, ulong a_at, __global uchar *b_, ulong b_at, __global uchar *c_,           \
        ulong c_at, __global uchar *o_, ulong o_at, long m, long n, long k, long inner,           \
        long a_outer, long a_inner, long a_row, long a_col, long b_outer, long b_inner,           \
        long b_row, long b_col, long c_outer, long c_inner, long c_row, long c_col, long o_outer, \
        long o_inner, long o_row, long o_col, ACC alpha, ACC beta

#define POINTERS                                                                                  \
    const long z = BATCH_OF;                                                                      \
    __global const TYPE(IN) *a = CAT(TYPE(IN), a) + BATCH(a), *b = CAT(TYPE(IN), b) + BATCH(b);   \
    __global const TYPE(BASE) *c = CAT(TYPE(BASE), c) + BATCH(c);                                 \
    __global TYPE(OUT) *o = AT(TYPE(OUT), o) + BATCH(o);

#ifndef ON_GPU
#define BATCH_OF get_global_id(2)
__kernel void gemm_simple(ARGUMENTS) {
    POINTERS
    const long i = get_global_id(1), j0 = get_global_id(0) * WIDTH;
    const int wide = (int)min((long)WIDTH, n - j0);
    ACC sums[WIDTH];
    for (int j = 0; j < WIDTH; j++) sums[j] = 0;
    for (long d = 0; d < k; d++) {
        const ACC x = (ACC)LOAD(IN, a, i * a_row + d * a_col);
        const long at = d * b_row + j0 * b_col;
        if (b_col == 1 && wide == WIDTH)
            for (int j = 0; j < WIDTH; j++) sums[j] += x * (ACC)LOAD(IN, b, at + j);
        else
            for (int j = 0; j < wide; j++) sums[j] += x * (ACC)LOAD(IN, b, at + j * b_col);
    }
    for (int j = 0; j < wide; j++) {
        const ACC sum = sums[j];
        STORE(OUT, o, i * o_row + (j0 + j) * o_col, ADDED(i, j0 + j));
    }
}
#else
#define SIDE 64
#define ACROSS ((n + SIDE - 1) / SIDE)
#define BATCH_OF (get_group_id(0) / ACROSS)
#define STEP 16
__kernel __attribute__((reqd_work_group_size(16, 16, 1))) void gemm_simple(ARGUMENTS) {
    __local ACC a_tile[STEP][SIDE + 1], b_tile[STEP][SIDE + 1];
    POINTERS
    const int x = (int)get_local_id(0), y = (int)get_local_id(1), item = y * 16 + x;
    const long i0 = get_group_id(1) * SIDE, j0 = get_group_id(0) % ACROSS * SIDE;
    ACC sums[4][4];
    for (int r = 0; r < 4; r++)
        for (int s = 0; s < 4; s++) sums[r][s] = 0;
    for (long d0 = 0; d0 < k; d0 += STEP) {
        for (int e = item; e < SIDE * STEP; e += 256) {
            const long i = i0 + e / STEP, da = d0 + e % STEP, j = j0 + e % SIDE, db = d0 + e / SIDE;
            a_tile[e % STEP][e / STEP] = i < m && da < k ? (ACC)LOAD(IN, a, i * a_row + da * a_col) : 0;
            b_tile[e / SIDE][e % SIDE] = j < n && db < k ? (ACC)LOAD(IN, b, db * b_row + j * b_col) : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int d = 0; d < STEP; d++)
            for (int r = 0; r < 4; r++)
                for (int s = 0; s < 4; s++) sums[r][s] += a_tile[d][y + 16 * r] * b_tile[d][x + 16 * s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int r = 0; r < 4; r++)
        for (int s = 0; s < 4; s++) {
            const long i = i0 + y + 16 * r, j = j0 + x + 16 * s;
            const ACC sum = sums[r][s];
            if (i < m && j < n) STORE(OUT, o, i * o_row + j * o_col, ADDED(i, j));
        }
}
#endif
