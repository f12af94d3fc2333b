/* Loops over the share of a work-item, for distance.cl, indexing.cl, pooling.cl and resample.cl.
 *
 * Precedes those files; launched by `launch_over`, whose last argument is `each`. With ON_GPU a
 * work-item strides over the elements; else it does `each` elements or rows in turn.
 */
#ifndef ON_GPU
#define SPAN(index, count) \
    for (long index = get_global_id(0) * each, end_##index = min(index + each, (long)(count)); \
         index < end_##index; index++)
/* Elements of [lines, depth, height, width]: x in a row, and which row. */
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
