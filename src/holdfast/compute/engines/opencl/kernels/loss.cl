/* Negative log likelihood: one element looked up for each target.
 * Called by loss.py.
 *
 * Also writes the weight of each target. A class out of range gives nan, and nothing outside of the arrays is read.
 *
 * Defines: WORD, the dtype of the input; REAL, what is computed in; CLASS, the dtype of targets; HAS_WEIGHT,
 * with a weight for each class in the dtype WEIGHT.
 * One work-item for each target: x is contiguous [outer][classes][inner], target [outer][inner].
 */
__kernel void nll(__global uchar *x_, ulong x_at, __global uchar *target_, ulong target_at,
#ifdef HAS_WEIGHT
                  __global uchar *weight_, ulong weight_at,
#endif
                  __global uchar *loss_, ulong loss_at, __global uchar *count_, ulong count_at, long outer,
                  long classes, long inner, long ignored) {
    const long i = get_global_id(0);
    if (i >= outer * inner) return;
    const long chosen = LOAD(CLASS, CAT(TYPE(CLASS), target), i), row = i / inner;
    REAL count = 1, loss = 0;
    if (chosen == ignored) {
        count = 0;
    } else if (chosen < 0 || chosen >= classes) {
        loss = NAN;
    } else {
#ifdef HAS_WEIGHT
        count = LOAD(WEIGHT, CAT(TYPE(WEIGHT), weight), chosen);
#endif
        loss = -LOAD(WORD, CAT(TYPE(WORD), x), (row * classes + chosen) * inner + (i - row * inner)) * count;
    }
    AT(REAL, loss)[i] = loss;
    AT(REAL, count)[i] = count;
}
