/* Convolution without an im2col matrix, attention without the matrix of weights, and fused chains
 * of pointwise ops.
 *
 * No function allocates, keeps state or calls back; each can run in many threads at once. Compiled
 * on the machine it runs on, so that LANES fits its processor.
 */
#include "vectors.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define HIGH 8
#define WIDE 3
#else
#define HIGH 6
#define WIDE 2
#endif

/* Output channels in a tile of a convolution; weights are packed in groups of this size. */
int64_t holdfast_high(void) { return HIGH; }

/* ---- convolution
 *
 * A convolution is the matrix product of weight [channels, depth] and columns [depth, results],
 * where row k of the columns is the input from some offset on: it need not be copied. The input is
 * laid out as grids padded with zeros ("planes"), one for each remainder modulo the stride, and
 * row k begins `shift` elements after the start of its plane. Results are computed along the whole
 * grid; those that belong to padding between the lines are not stored.
 */
typedef struct {
    int64_t x_steps[3];   /* strides of the input in elements, by dimension */
    int64_t x_channel;    /* stride of a channel */
    int64_t sizes[3];     /* of the input */
    int64_t stride[3];
    int64_t origin[3];    /* input index where the grid begins: minus the padding */
    int64_t grid[3];      /* sizes of a plane */
    int64_t channels;     /* of the input, in this group */
    int64_t planes;       /* for each channel */
    const int64_t *phase; /* [planes][3]: remainder modulo the stride */
    int64_t depth;
    const int64_t *plane; /* [depth]: channel * planes + plane */
    const int64_t *shift; /* [depth] */
    int64_t outputs;      /* channels of the result, in this group */
    int64_t high;         /* output channels packed together: HIGH, or 1 */
    int64_t out_sizes[3];
    int64_t out_steps[3];
    int64_t out_channel;
    int64_t reach;        /* the largest shift */
    int64_t chunk;        /* input channels laid out at once */
} Window;

/* A piece of a line of a plane: zeros, elements of the input, zeros. */
typedef struct {
    int64_t source, before, count, after;
} Piece;

/* The pieces of the grid from `start` on, plane by plane: the same for every channel. */
static int64_t pieces_of(const Window *w, int64_t start, int64_t span, Piece *pieces) {
    int64_t width = w->grid[2], height = w->grid[1], found = 0;
    for (int64_t f = 0; f < w->planes; f++) {
        const int64_t *phase = w->phase + 3 * f;
        int64_t row = start / width, from = start % width;
        for (int64_t left = span; left > 0; row++, from = 0) {
            int64_t count = width - from < left ? width - from : left, stride = w->stride[2];
            int64_t d = row / height * w->stride[0] + phase[0] + w->origin[0];
            int64_t h = row % height * w->stride[1] + phase[1] + w->origin[1];
            int64_t at = from * stride + phase[2] + w->origin[2];
            int64_t before = at < 0 ? (stride - 1 - at) / stride : 0;
            at += before * stride;
            int64_t n = at < w->sizes[2] ? (w->sizes[2] - at + stride - 1) / stride : 0;
            if (d < 0 || d >= w->sizes[0] || h < 0 || h >= w->sizes[1]) n = 0;
            if (before > count || n == 0) before = count;
            if (n > count - before) n = count - before;
            Piece *piece = pieces + found++;
            piece->source = d * w->x_steps[0] + h * w->x_steps[1] + at * w->x_steps[2];
            piece->before = before;
            piece->count = n;
            piece->after = count - before - n;
            left -= count;
        }
    }
    return found;
}

/* Copy these pieces of some channels, one after the other. */
static void lay_out(const Window *w, const float *x, int64_t channels, const Piece *pieces,
                    int64_t found, float *to) {
    int64_t jump = w->x_steps[2] * w->stride[2];
    for (int64_t c = 0; c < channels; c++, x += w->x_channel)
        for (const Piece *piece = pieces; piece < pieces + found; piece++) {
            const float *from = x + piece->source;
            int64_t n = piece->count;
            for (int64_t i = 0; i < piece->before; i++) to[i] = 0;
            to += piece->before;
            if (jump == 1)
                memcpy(to, from, n * sizeof(float));
            else if (jump == 2)
                for (int64_t i = 0; i < n; i++) to[i] = from[2 * i];
            else
                for (int64_t i = 0; i < n; i++) to[i] = from[i * jump];
            to += n;
            for (int64_t i = 0; i < piece->after; i++) to[i] = 0;
            to += piece->after;
        }
}

/* Products of M rows of the weight, packed, with N vectors of columns, which begin at `rows`.
 * Long sums are added up in pieces: one sum of thousands of terms loses bits. */
#define PIECE 96
#define TILE(NAME, M, N)                                                                        \
    static __attribute__((noinline)) void NAME(                                                 \
        const float *restrict x, const int64_t *restrict rows, int64_t depth,                   \
        const float *restrict weight, float *restrict out) {                                    \
        for (int64_t first = 0; first == 0 || first < depth; first += PIECE) {                  \
            int64_t last = depth - first < PIECE ? depth : first + PIECE;                       \
            vec sums[M][N];                                                                     \
            for (int m = 0; m < M; m++)                                                         \
                for (int n = 0; n < N; n++) sums[m][n] = all(0);                                \
            for (int64_t k = first; k < last; k++, weight += M) {                               \
                const float *row = x + rows[k];                                                 \
                vec column[N];                                                                  \
                _Pragma("GCC unroll 8") for (int n = 0; n < N; n++)                             \
                    column[n] = load(row + n * LANES);                                          \
                _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                           \
                    vec factor = all(weight[m]);                                                \
                    _Pragma("GCC unroll 8") for (int n = 0; n < N; n++)                         \
                        sums[m][n] += factor * column[n];                                       \
                }                                                                               \
            }                                                                                   \
            if (first == 0)                                                                     \
                for (int m = 0; m < M; m++)                                                     \
                    for (int n = 0; n < N; n++)                                                 \
                        store(out + (m * N + n) * LANES, sums[m][n]);                           \
            else                                                                                \
                for (int m = 0; m < M; m++)                                                     \
                    for (int n = 0; n < N; n++) {                                               \
                        float *to = out + (m * N + n) * LANES;                                  \
                        store(to, load(to) + sums[m][n]);                                       \
                    }                                                                           \
        }                                                                                       \
    }

TILE(tall_1, HIGH, 1)
TILE(tall_2, HIGH, 2)
TILE(tall_most, HIGH, WIDE)
TILE(flat_1, 1, 1)
TILE(flat_2, 1, 2)
TILE(flat_4, 1, 4)
TILE(flat_8, 1, 8)

typedef void (*Tile)(const float *, const int64_t *, int64_t, const float *, float *);

/* The widest tile for this many results, and how many vectors it has. */
INLINE Tile tile_of(int64_t high, int64_t places, int64_t *wide) {
    if (high == 1) {
        *wide = places > 4 * LANES ? 8 : places > 2 * LANES ? 4 : places > LANES ? 2 : 1;
        return *wide == 8 ? flat_8 : *wide == 4 ? flat_4 : *wide == 2 ? flat_2 : flat_1;
    }
    *wide = places > 2 * LANES ? WIDE : places > LANES ? 2 : 1;
    return *wide == 1 ? tall_1 : *wide == 2 ? tall_2 : tall_most;
}

/* Store the channels of a tile from grid index `at` on, without the padding between lines. */
INLINE void keep(const Window *w, const float *tile, int64_t wide, int64_t channels, float *out,
                 const float *bias, int64_t at, int64_t count, int add) {
    int64_t width = w->grid[2], height = w->grid[1], step = w->out_steps[2];
    int64_t row = at / width, column = at % width;
    for (; count > 0; row++, column = 0) {
        int64_t next = width - column < count ? width - column : count;
        int64_t n = w->out_sizes[2] - column < next ? w->out_sizes[2] - column : next;
        int64_t d = row / height, h = row % height;
        float *line = out + d * w->out_steps[0] + h * w->out_steps[1] + column * step;
        int inside = h < w->out_sizes[1] && d < w->out_sizes[0] && n > 0;
        for (int64_t m = 0; inside && m < channels; m++) {
            const float *from = tile + m * wide;
            float *to = line + m * w->out_channel, more = bias ? bias[m] : 0;
            if (add)
                for (int64_t i = 0; i < n; i++) to[i * step] += from[i];
            else if (step == 1)
                for (int64_t i = 0; i < n; i++) to[i] = from[i] + more;
            else
                for (int64_t i = 0; i < n; i++) to[i * step] = from[i] + more;
        }
        tile += next;
        count -= next;
    }
}

INLINE int64_t span_of(const Window *w, int64_t places) {
    /* An odd number of cache lines, so that neighbours do not fall into one cache set. */
    int64_t lines = (places + w->reach + (w->high == 1 ? 8 : WIDE) * LANES + 15) / 16;
    return (lines | 1) * 16;
}

INLINE int64_t most_pieces(const Window *w, int64_t span) {
    return w->planes * (span / w->grid[2] + 3);
}

/* How many floats of scratch this many results need. */
int64_t holdfast_scratch(const Window *w, int64_t places) {
    int64_t span = span_of(w, places);
    return w->chunk * w->planes * span + 2 * w->depth + 8 * most_pieces(w, span) + 32;
}

/* Results at grid indices [start, stop), for one group of channels. */
static void convolve(const Window *w, const float *x, const float *weight, const float *bias,
                     float *out, int64_t start, int64_t stop, float *scratch) {
    int64_t span = span_of(w, stop - start), high = w->high, taps = w->depth / w->channels;
    int64_t *rows = (int64_t *)scratch;
    Piece *pieces = (Piece *)(rows + w->depth);
    float *patch = (float *)(((uintptr_t)(pieces + most_pieces(w, span)) + 63) / 64 * 64);
    float buffer[HIGH * 8 * LANES];
    int64_t found = pieces_of(w, start, span, pieces);
    for (int64_t c = 0; c < w->channels; c += w->chunk) {
        int64_t channels = w->channels - c < w->chunk ? w->channels - c : w->chunk;
        int64_t first = c * taps, depth = channels * taps;
        lay_out(w, x + c * w->x_channel, channels, pieces, found, patch);
        for (int64_t k = 0; k < depth; k++)
            rows[k] = (w->plane[first + k] - c * w->planes) * span + w->shift[first + k];
        /* Channels in the outer loop: results are written along their rows. */
        for (int64_t o = 0; o < w->outputs; o += high) {
            const float *factors = weight + o * w->depth + first * high;
            int64_t outputs = w->outputs - o < high ? w->outputs - o : high;
            for (int64_t at = start; at < stop;) {
                int64_t wide;
                Tile tile = tile_of(high, stop - at, &wide);
                int64_t count = stop - at < wide * LANES ? stop - at : wide * LANES;
                tile(patch + (at - start), rows, depth, factors, buffer);
                keep(w, buffer, wide * LANES, outputs, out + o * w->out_channel,
                     bias ? bias + o : 0, at, count, c > 0);
                at += count;
            }
        }
    }
}

/* The same for `groups` groups, one after the other in all four arrays; each has `packed` elements
 * of weight. */
void holdfast_convolve(const Window *w, const float *x, const float *weight, const float *bias,
                       float *out, int64_t start, int64_t stop, int64_t groups, int64_t packed,
                       float *scratch) {
    for (int64_t g = 0; g < groups; g++)
        convolve(w, x + g * w->channels * w->x_channel, weight + g * packed,
                 bias ? bias + g * w->outputs : 0, out + g * w->outputs * w->out_channel, start,
                 stop, scratch);
}

/* [outputs][depth], with strides in elements, -> [blocks][depth][high], padded with zeros. */
void holdfast_pack(const float *weight, int64_t outputs, int64_t depth, int64_t output_step,
                   int64_t depth_step, int64_t high, float *packed) {
    for (int64_t o = 0; o < outputs; o += high, weight += high * output_step)
        for (int64_t k = 0; k < depth; k++, packed += high) {
            const float *from = weight + k * depth_step;
            if (outputs - o >= HIGH && high == HIGH)
                _Pragma("GCC unroll 8") for (int m = 0; m < HIGH; m++)
                    packed[m] = from[m * output_step];
            else
                for (int64_t m = 0; m < high; m++)
                    packed[m] = o + m < outputs ? from[m * output_step] : 0;
        }
}

/* ---- attention
 *
 * Both products have the queries of a block side by side in vectors: scores [keys][SPAN], then
 * results [width][SPAN], so that the maximum and the sum of a query's scores need no operation
 * across a vector.
 */
#define SPAN (WIDE * LANES)

typedef struct {
    int64_t keys, width, depth;  /* of a value, of a query */
    int64_t q_row, q_column;     /* strides in elements */
    int64_t out_row;
    int64_t mask_row, mask_column;
    int64_t causal;              /* query i sees keys 0 to i */
    float factor;
} Heads;

int64_t holdfast_attention_scratch(const Heads *h) {
    int64_t longest = h->keys > h->depth ? h->keys : h->depth;
    return SPAN * (h->depth + h->keys + 3 * HIGH) + 2 * (longest + HIGH) + 64;
}

/* Apply the mask and the causal triangle to the scores of some keys, in place. */
INLINE void hide(const Heads *h, const float *mask, int64_t first, int64_t count, int64_t key,
                 int64_t keys, float *scores) {
    for (int64_t j = 0; j < keys; j++) {
        float *row = scores + j * SPAN;
        if (mask && h->mask_row == 0) {
            vec added = all(mask[(key + j) * h->mask_column]);
            for (int n = 0; n < WIDE; n++)
                store(row + n * LANES, load(row + n * LANES) + added);
        } else if (mask) {
            const float *added = mask + first * h->mask_row + (key + j) * h->mask_column;
            for (int64_t i = 0; i < count; i++) row[i] += added[i * h->mask_row];
        }
        for (int64_t i = 0; h->causal && i < count && i < key + j - first; i++) row[i] = -INFINITY;
    }
}

/* Queries [start, stop) of one head. `keys` and `values` are packed, by key and by element of a
 * value; `sums` gets the logarithm of each query's sum of exponentials. A query with all keys
 * masked gets zeros. */
void holdfast_attention(const Heads *h, const float *q, const float *keys, const float *values,
                        const float *mask, float *out, float *sums, int64_t start, int64_t stop,
                        float *scratch) {
    int64_t longest = h->keys > h->depth ? h->keys : h->depth;
    int64_t *rows = (int64_t *)scratch;
    float *turned = (float *)(((uintptr_t)(rows + longest) + 63) / 64 * 64);
    float *weights = turned + h->depth * SPAN;
    float buffer[HIGH * SPAN];
    for (int64_t k = 0; k < longest; k++) rows[k] = k * SPAN;
    for (; start < stop; start += SPAN) {
        int64_t count = stop - start < SPAN ? stop - start : SPAN;
        for (int64_t i = 0; i < SPAN; i++)
            for (int64_t d = 0; d < h->depth; d++)
                turned[d * SPAN + i] =
                    i < count ? q[(start + i) * h->q_row + d * h->q_column] * h->factor : 0;
        int64_t seen = h->causal && start + count < h->keys ? start + count : h->keys;
        vec top[WIDE], sum[WIDE];
        for (int n = 0; n < WIDE; n++) top[n] = all(-INFINITY), sum[n] = all(0);
        for (int64_t j = 0; j < seen; j += HIGH) {
            float *scores = weights + j * SPAN;
            int64_t here = seen - j < HIGH ? seen - j : HIGH;
            tall_most(turned, rows, h->depth, keys + j * h->depth, scores);
            if (mask || (h->causal && j + here > start + 1))
                hide(h, mask, start, count, j, here, scores);
            for (int64_t m = 0; m < here; m++)
                for (int n = 0; n < WIDE; n++)
                    top[n] = larger(load(scores + m * SPAN + n * LANES), top[n]);
        }
        for (int i = 0; i < SPAN; i++) /* all keys are masked */
            if (((float *)top)[i] == -INFINITY) ((float *)top)[i] = 0;
        for (int64_t j = 0; j < seen; j++)
            for (int n = 0; n < WIDE; n++) {
                float *at = weights + j * SPAN + n * LANES;
                vec y = exponential(load(at) - top[n]);
                store(at, y);
                sum[n] += y;
            }
        for (int64_t i = 0; i < count; i++) {
            float whole = ((float *)sum)[i];
            sums[start + i] = ((float *)top)[i] + (whole == 0 ? 0 : logf(whole));
            ((float *)sum)[i] = whole == 0 ? 0 : 1 / whole;
        }
        for (int64_t d = 0; d < h->width; d += HIGH) {
            tall_most(weights, rows, seen, values + d * h->keys, buffer);
            int64_t here = h->width - d < HIGH ? h->width - d : HIGH;
            for (int64_t i = 0; i < count; i++)
                for (int64_t m = 0; m < here; m++)
                    out[(start + i) * h->out_row + d + m] = buffer[m * SPAN + i] * ((float *)sum)[i];
        }
    }
}

/* ---- chains of pointwise ops
 *
 * Registers are arrays, then scalars, then buffers; of the latter two the scratch holds a block
 * each. The result of an op is stored before the next one reads it, so that results are those of
 * single ops.
 */
#define BLOCK 2048
#define FUNCTIONS 64 /* codes from here on are those of `holdfast_each` in rows.c */

typedef void Each(int64_t code, const float *x, const float *y, float *to, int64_t n);

typedef struct {
    int32_t code, to, one, other;
} Order;

INLINE vec root(vec a) {
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)a);
#else
    vec y;
    for (int i = 0; i < LANES; i++) y[i] = __builtin_sqrtf(a[i]);
    return y;
#endif
}

static void obey(int32_t code, const float *x, const float *y, float *to, int64_t n) {
    int64_t i = 0;
    switch (code) {
    case 0: EACH(a + b)
    case 1: EACH(a - b)
    case 2: EACH(a * b)
    case 3: EACH(a / b)
    case 4: EACH(choose((a > b) | (a != a), a, b))
    case 5: EACH(choose((a < b) | (a != a), a, b))
    case 6: EACH(-a)
    case 7: EACH((vec)((ivec)a & 0x7fffffff))
    case 8: EACH(root(a))
    case 9: EACH(a * a)
    }
}

int64_t holdfast_chain_scratch(int64_t numbers, int64_t buffers) {
    return (numbers + buffers) * BLOCK;
}

/* Elements [start, stop) of all arrays. */
void holdfast_chain(const Order *orders, int64_t count, float *const *arrays, int64_t many,
                    const float *numbers, int64_t constants, int64_t start, int64_t stop,
                    float *scratch, Each *each) {
    for (int64_t c = 0; c < constants; c++)
        for (int64_t i = 0; i < BLOCK; i++) scratch[c * BLOCK + i] = numbers[c];
    for (int64_t at = start; at < stop; at += BLOCK) {
        int64_t n = stop - at < BLOCK ? stop - at : BLOCK;
#define REGISTER(R) ((R) < many ? arrays[R] + at : scratch + ((R) - many) * BLOCK)
        for (const Order *o = orders; o < orders + count; o++)
            if (o->code < FUNCTIONS)
                obey(o->code, REGISTER(o->one), REGISTER(o->other), REGISTER(o->to), n);
            else
                each(o->code - FUNCTIONS, REGISTER(o->one), REGISTER(o->other), REGISTER(o->to), n);
    }
}
