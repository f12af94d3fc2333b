/* Vectors: a T has W elements, and comparing two gives an I.
 *
 * Precedes pointwise.cl if codegen.py generates a kernel that computes W elements of WIDE_FLOAT at once.
 * LOADV_word(p, i) reads elements i to i + W - 1 and widens them to T; STOREV_word(p, i, v) rounds and
 * writes them. ALIGNED: reads and writes begin at multiples of 16 bytes.
 */
#define CONVERT(v) PASTE(convert_, PASTE(WIDE_FLOAT, W))(v)
#define TRUTHS(v) PASTE(convert_, PASTE(WIDE_TRUTH, W))(v)
#ifdef ALIGNED
#define GET(type, p, i) (*(__global const PASTE(type, W) *)((p) + (i)))
#define PUT(type, p, i, v) (*(__global PASTE(type, W) *)((p) + (i)) = (v))
#else
#define GET(type, p, i) PASTE(vload, W)(0, (p) + (i))
#define PUT(type, p, i, v) PASTE(vstore, W)(v, 0, (p) + (i))
#endif
#define AS(type, v) PASTE(convert_, PASTE(type, W))(v)

#define LOADV_bool(p, i) CONVERT((GET(uchar, p, i) != (uchar)0) & (char)1)
#define LOADV_uint8(p, i) CONVERT(GET(uchar, p, i))
#define LOADV_int8(p, i) CONVERT(GET(char, p, i))
#define LOADV_int16(p, i) CONVERT(GET(short, p, i))
#define LOADV_uint16(p, i) CONVERT(GET(ushort, p, i))
#define LOADV_int32(p, i) CONVERT(GET(int, p, i))
#define LOADV_uint32(p, i) CONVERT(GET(uint, p, i))
#define LOADV_int64(p, i) CONVERT(GET(long, p, i))
#define LOADV_uint64(p, i) CONVERT(GET(ulong, p, i))
#define LOADV_float32(p, i) CONVERT(GET(float, p, i))
#define LOADV_float64(p, i) CONVERT(GET(double, p, i))
#define LOADV_float16(p, i) CONVERT(PASTE(vload_half, W)(0, (p) + (i)))
#define LOADV_bfloat16(p, i) \
    CONVERT(PASTE(as_float, W)(PASTE(convert_uint, W)(GET(ushort, p, i)) << 16))
#define LOADT_bool(p, i) TRUTHS(GET(uchar, p, i))

#define STOREV_bool(p, i, v) PUT(uchar, p, i, AS(uchar, ((v) != 0) & 1))
#define STOREV_float32(p, i, v) PUT(float, p, i, AS(float, v))
#define STOREV_float64(p, i, v) PUT(double, p, i, AS(double, v))
#define STOREV_float16(p, i, v) PASTE(vstore_half, PASTE(W, _rte))(AS(float, v), 0, (p) + (i))
#define STOREV_bfloat16(p, i, v) PUT(ushort, p, i, to_bfloat16s(AS(float, v)))

inline PASTE(ushort, W) to_bfloat16s(PASTE(float, W) value) {
    const PASTE(uint, W) bits = PASTE(as_uint, W)(value);
    const PASTE(uint, W) rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const PASTE(uint, W) none = (bits >> 16) | 0x40u;
    return PASTE(convert_ushort, W)(value != value ? none : rounded);
}
