/* Shared by all kernels: arrays as arguments, dtypes, arithmetic as in torch.
 *
 * An array is two arguments, `__global uchar *x_, ulong x_at`; AT(float, x) points to its first element.
 * LOAD_word(p, i) and STORE_word(p, i, v) read and write an element of the dtype `word`. Narrow floats
 * are widened to float when they are read and rounded to the nearest when they are written.
 */
#ifdef HAS_DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define AT(type, name) ((__global type *)(name##_ + name##_at))
#define CAT(type, name) ((__global const type *)(name##_ + name##_at))
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD(word, p, i) PASTE(LOAD_, word)(p, i)
#define STORE(word, p, i, v) PASTE(STORE_, word)(p, i, v)
#define TYPE(word) PASTE(TYPE_, word)

#define TYPE_bool uchar
#define TYPE_uint8 uchar
#define TYPE_int8 char
#define TYPE_int16 short
#define TYPE_uint16 ushort
#define TYPE_int32 int
#define TYPE_uint32 uint
#define TYPE_int64 long
#define TYPE_uint64 ulong
#define TYPE_float32 float
#define TYPE_float64 double
#define TYPE_float16 half
#define TYPE_bfloat16 ushort
#define TYPE_float8_e4m3fn uchar
#define TYPE_float8_e5m2 uchar

#define LOAD_bool(p, i) ((uchar)((p)[i] != 0))
#define LOAD_uint8(p, i) ((p)[i])
#define LOAD_int8(p, i) ((p)[i])
#define LOAD_int16(p, i) ((p)[i])
#define LOAD_uint16(p, i) ((p)[i])
#define LOAD_int32(p, i) ((p)[i])
#define LOAD_uint32(p, i) ((p)[i])
#define LOAD_int64(p, i) ((p)[i])
#define LOAD_uint64(p, i) ((p)[i])
#define LOAD_float32(p, i) ((p)[i])
#define LOAD_float64(p, i) ((p)[i])
#define LOAD_float16(p, i) vload_half(i, p)
#define LOAD_bfloat16(p, i) as_float((uint)(p)[i] << 16)
#define LOAD_float8_e4m3fn(p, i) from_e4m3((p)[i])
#define LOAD_float8_e5m2(p, i) from_e5m2((p)[i])

#define STORE_bool(p, i, v) ((p)[i] = (uchar)((v) != 0))
#define STORE_uint8(p, i, v) ((p)[i] = (uchar)(v))
#define STORE_int8(p, i, v) ((p)[i] = (char)(v))
#define STORE_int16(p, i, v) ((p)[i] = (short)(v))
#define STORE_uint16(p, i, v) ((p)[i] = (ushort)(v))
#define STORE_int32(p, i, v) ((p)[i] = (int)(v))
#define STORE_uint32(p, i, v) ((p)[i] = (uint)(v))
#define STORE_int64(p, i, v) ((p)[i] = (long)(v))
#define STORE_uint64(p, i, v) ((p)[i] = (ulong)(v))
#define STORE_float32(p, i, v) ((p)[i] = (float)(v))
#define STORE_float64(p, i, v) ((p)[i] = (double)(v))
#define STORE_float16(p, i, v) vstore_half_rte((float)(v), i, p)
#define STORE_bfloat16(p, i, v) ((p)[i] = to_bfloat16((float)(v)))
#define STORE_float8_e4m3fn(p, i, v) ((p)[i] = to_e4m3((float)(v)))
#define STORE_float8_e5m2(p, i, v) ((p)[i] = to_e5m2((float)(v)))

inline ushort to_bfloat16(float value) {
    uint bits = as_uint(value);
    if (isnan(value)) return (ushort)((bits >> 16) | 0x40);
    return (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_e4m3(uchar word) {
    uint sign = (uint)(word & 0x80) << 24, rest = word & 0x7f;
    if (rest == 0x7f) return as_float(sign | 0x7fc00000);
    if (rest < 8) return copysign((float)rest * 0x1p-9f, as_float(sign));
    return as_float(sign | ((rest << 20) + (120u << 23)));
}

inline float from_e5m2(uchar word) {
    uint sign = (uint)(word & 0x80) << 24, rest = word & 0x7f;
    if (rest > 0x7c) return as_float(sign | 0x7fc00000);
    if (rest == 0x7c) return as_float(sign | 0x7f800000);
    if (rest < 4) return copysign((float)rest * 0x1p-16f, as_float(sign));
    return as_float(sign | ((rest << 21) + (112u << 23)));
}

/* A float rounded to `bits` of mantissa with the smallest normal exponent `low`, as steps of the dtype. */
inline uint rounded_bits(float magnitude, int bits, int low) {
    if (magnitude < ldexp(1.0f, low)) return (uint)rint(ldexp(magnitude, bits - low));
    uint word = as_uint(magnitude), shift = 23 - bits;
    word += ((1u << (shift - 1)) - 1) + ((word >> shift) & 1);
    return (word >> shift) - ((uint)(126 + low) << bits);
}

inline uchar to_e4m3(float value) {
    uchar sign = (uchar)((as_uint(value) >> 24) & 0x80);
    if (isnan(value)) return sign | 0x7f;
    float magnitude = fabs(value);
    if (magnitude > 464.0f) return sign | 0x7f; /* beyond what rounds to 448 there is only nan */
    return sign | (uchar)min(rounded_bits(magnitude, 3, -6), 0x7eu);
}

inline uchar to_e5m2(float value) {
    uchar sign = (uchar)((as_uint(value) >> 24) & 0x80);
    if (isnan(value)) return sign | 0x7e;
    return sign | (uchar)min(rounded_bits(fmin(fabs(value), 65536.0f), 2, -14), 0x7cu);
}
