/* How much a work-item does: what distance.cl, indexing.cl, pooling.cl and resample.cl share.
 *
 * Comes before those files; launched by `placing.spread`, whose last argument is `each`. With ON_GPU a
 * work-item does one number, and every so many-th after it; else `each` numbers or rows, one by one.
 */
#ifndef ON_GPU
#define SPAN(index, count) \
    for (long index = get_global_id(0) * each, end_##index = min(index + each, (long)(count)); \
         index < end_##index; index++)
/* Numbers of [lines, depth, height, width]: x in a row, and which row. */
#define NUMBERS \
    SPAN(row, lines * depth * height) \
        for (long x = 0; x < width; x++)
#else
#define SPAN(index, count) \
    for (long index = get_global_id(0); index < (count); index += get_global_size(0))
#define NUMBERS \
    SPAN(k_, lines * depth * height * width) \
        for (long x = k_ % width, row = k_ / width, more_ = 1; more_; more_ = 0)
#endif
