/* Reads and writes of four elements at a time, which gemm_gpu, gemv_gpu, attention_gpu and rows_gpu share.
 *
 * Follows numbers.cl, precedes those files. Defines: WORD, a float dtype as numbers.cl names it:
 * float32, float16, bfloat16 or float64. T is the storage type, ACC what is computed in, ACC4 four of
 * them. READ4 and WRITE4 need indices that are multiples of four.
 */
#define IS_float64 2
#if PASTE(IS_, WORD) == 2
#define ACC double
#define ACC4 double4
#else
#define ACC float
#define ACC4 float4
#endif
#define T TYPE(WORD)
#define READ(p, i) LOAD(WORD, p, i)
#define WRITE(p, i, v) STORE(WORD, p, i, v)
#define READ4(p, i) PASTE(READ4_, WORD)(p, i)
#define WRITE4(p, i, v) PASTE(WRITE4_, WORD)(p, i, v)
#define READ4_float32(p, i) (*(const __global float4 *)((p) + (i)))
#define READ4_float64(p, i) (*(const __global double4 *)((p) + (i)))
#define READ4_float16(p, i) vloada_half4(0, (p) + (i))
#define READ4_bfloat16(p, i) as_float4(convert_uint4(*(const __global ushort4 *)((p) + (i))) << 16)
#define WRITE4_float32(p, i, v) (*(__global float4 *)((p) + (i)) = (v))
#define WRITE4_float64(p, i, v) (*(__global double4 *)((p) + (i)) = (v))
#define WRITE4_float16(p, i, v) vstorea_half4_rte((v), 0, (p) + (i))
#define WRITE4_bfloat16(p, i, v) (*(__global ushort4 *)((p) + (i)) = bfloat16_4(v))
inline ushort4 bfloat16_4(float4 v) {
  return (ushort4)(to_bfloat16(v.x), to_bfloat16(v.y), to_bfloat16(v.z), to_bfloat16(v.w));
}
#define MAD(a, b, c) fma((a), (b), (c))
