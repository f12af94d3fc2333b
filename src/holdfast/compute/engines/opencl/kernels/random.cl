/* Random numbers on the device: Philox 4x32-10, a counter that ten rounds of multiplication mix.
 * Called by random.py.
 *
 * One counter gives four 32-bit words; work-item i makes elements 4 i to 4 i + 3 of `count`, so they
 * depend on the key only. KIND is the distribution, WORD the storage dtype.
 */
inline uint4 philox(ulong counter, uint2 key) {
    uint4 words = (uint4)((uint)counter, (uint)(counter >> 32), 0, 0);
    for (int round = 0; round < 10; round++) {
        const uint low0 = words.x * 0xD2511F53u, high0 = mul_hi(words.x, 0xD2511F53u);
        const uint low1 = words.z * 0xCD9E8D57u, high1 = mul_hi(words.z, 0xCD9E8D57u);
        words = (uint4)(high1 ^ words.y ^ key.x, low1, high0 ^ words.w ^ key.y, low0);
        key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    return words;
}

/* Uniform in [0, 1), 24 bits. */
inline float4 uniform(uint4 words) { return convert_float4(words >> 8) * 0x1p-24f; }

/* Two normal numbers from two uniform ones (Box-Muller); 1 - u is never 0. */
inline float4 normal(uint4 words) {
    const float4 u = uniform(words);
    const float2 radius = sqrt(-2.0f * log(1.0f - u.xy));
    const float2 angle = 6.283185307179586f * u.zw;
    return (float4)(radius * cos(angle), radius * sin(angle));
}

__kernel void draw(
    __global uchar *out_, ulong out_at, long seed, long count, long each, float one, float other
) {
    __global TYPE(WORD) *out = AT(TYPE(WORD), out);
    const uint2 key = (uint2)((uint)seed, (uint)((ulong)seed >> 32));
    const long end = min((long)(get_global_id(0) + 1) * each, (count + 3) / 4);
    for (long i = get_global_id(0) * each; i < end; i++) {
        const uint4 words = philox((ulong)i, key);
#if KIND == 0 /* uniform from `one` up to `other` */
        const float4 made = uniform(words) * (other - one) + one;
#elif KIND == 1 /* normal with mean `one` and deviation `other` */
        const float4 made = normal(words) * other + one;
#else /* 1 with probability `one` */
        const float4 made = convert_float4((uniform(words) < one) & 1);
#endif
        const float single[4] = {made.x, made.y, made.z, made.w};
        for (int k = 0; k < 4 && 4 * i + k < count; k++) STORE(WORD, out, 4 * i + k, single[k]);
    }
}
