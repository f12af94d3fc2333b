/* Products of int8 matrices, exact in int32, on processors with dot products of bytes (VNNI).
 *
 * Writes only `packed` and `out`; allocates nothing. On other processors holdfast_int8_ready()
 * is 0, and the engine multiplies blocks in float32, which is exact too.
 */
#include <stdint.h>
#include <string.h>

/* out[i, j] = sum over k of a[i, k] * b[j, k], for a few rows, where packing does not pay. */
void holdfast_int8_rows(const int8_t *a, const int8_t *b, int32_t *out, int64_t rows,
                        int64_t columns, int64_t depth) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const int8_t *x = a + i * depth, *y = b + j * depth;
            int32_t sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += x[k] * y[k];
            out[i * columns + j] = sum;
        }
}

#if defined(__AVX512VNNI__)
#include <immintrin.h>

#define COLUMNS 16 /* in one register of sums */
#define WIDE 3     /* registers of columns in a tile */
#define HIGH 8     /* rows in a tile */
#define BLOCK (COLUMNS * WIDE)

int64_t holdfast_int8_ready(void) { return BLOCK; }

/* b[columns, depth] as [blocks][depth / 4][BLOCK][4], padded with zeros. */
void holdfast_int8_pack(const int8_t *b, int8_t *packed, int64_t columns, int64_t depth) {
    int64_t fours = (depth + 3) / 4;
    for (int64_t j = 0; j < columns; j += BLOCK) {
        int64_t many = columns - j < BLOCK ? columns - j : BLOCK;
        int8_t *to = packed + j * fours * 4;
        if (many < BLOCK || depth % 4) memset(to, 0, BLOCK * fours * 4);
        for (int64_t c = 0; c < many; c++) {
            const int8_t *from = b + (j + c) * depth;
            for (int64_t k = 0; k < depth / 4; k++)
                memcpy(to + (k * BLOCK + c) * 4, from + 4 * k, 4);
            if (depth % 4)
                memcpy(to + (depth / 4 * BLOCK + c) * 4, from + depth / 4 * 4, depth % 4);
        }
    }
}

/* The instruction multiplies unsigned by signed bytes: rows of a have 128 added, and `excess`
 * (128 times the sum of each column) is subtracted from the result. */
static inline __attribute__((always_inline)) void tile(
    const uint8_t *a, int64_t step, const int8_t *packed, const int32_t *excess, int32_t *out,
    int64_t columns, int64_t many, int64_t fours, const int high) {
    __m512i sums[HIGH][WIDE];
    for (int r = 0; r < high; r++)
        for (int w = 0; w < WIDE; w++) sums[r][w] = _mm512_setzero_si512();
    for (int64_t k = 0; k < fours; k++) {
        __m512i b[WIDE];
        for (int w = 0; w < WIDE; w++)
            b[w] = _mm512_loadu_si512(packed + (k * BLOCK + w * COLUMNS) * 4);
        for (int r = 0; r < high; r++) {
            int32_t four;
            memcpy(&four, a + r * step + 4 * k, 4);
            __m512i row = _mm512_set1_epi32(four);
            for (int w = 0; w < WIDE; w++) sums[r][w] = _mm512_dpbusd_epi32(sums[r][w], row, b[w]);
        }
    }
    for (int r = 0; r < high; r++)
        for (int w = 0; w < WIDE; w++) {
            int64_t left = many - w * COLUMNS;
            __mmask16 mask = left >= COLUMNS ? 0xffff : left <= 0 ? 0 : (1u << left) - 1;
            __m512i less = _mm512_maskz_loadu_epi32(mask, excess + w * COLUMNS);
            __m512i found = _mm512_sub_epi32(sums[r][w], less);
            _mm512_mask_storeu_epi32(out + r * columns + w * COLUMNS, mask, found);
        }
}

/* out[i, j] = sum over k of (a[i, k] - 128) * b[j, k]; a row of a has `fours` * 4 bytes. */
void holdfast_int8_product(const uint8_t *a, const int8_t *packed, const int32_t *excess,
                           int32_t *out, int64_t rows, int64_t columns, int64_t fours) {
    for (int64_t j = 0; j < columns; j += BLOCK) {
        const int8_t *b = packed + j * fours * 4;
        int64_t i = 0, step = fours * 4, many = columns - j;
        for (; i + HIGH <= rows; i += HIGH)
            tile(a + i * step, step, b, excess + j, out + i * columns + j, columns, many, fours, HIGH);
        for (; i < rows; i++)
            tile(a + i * step, step, b, excess + j, out + i * columns + j, columns, many, fours, 1);
    }
}
#else
int64_t holdfast_int8_ready(void) { return 0; }
void holdfast_int8_pack(const int8_t *b, int8_t *packed, int64_t columns, int64_t depth) {}
void holdfast_int8_product(const uint8_t *a, const int8_t *packed, const int32_t *excess,
                           int32_t *out, int64_t rows, int64_t columns, int64_t fours) {}
#endif
