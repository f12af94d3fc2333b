/* Functions that expressions call.
 * Called by kernels that elementwise/codegen.py generates.
 *
 * T is the type that is computed in: a float or double, several of them (then comparisons give I, whose
 * bits are all set or none), or an integer. K(1.5) is a constant in T.
 */
#ifdef FLOATING
inline T f_maximum(T a, T b) { return a != a ? a : (a > b ? a : b); } /* nan propagates */
inline T f_minimum(T a, T b) { return a != a ? a : (a < b ? a : b); }

/* x * P(x * x) with tanh(that) = erf(x): fitted on 0 to 4 for the least relative error, 7e-8. */
inline T f_odd(T x) {
    const T s = fmin(x * x, K(16.0));
    T p = s * K(5.423107623803748e-09) + K(2.7536265659986653e-08);
    p = p * s + K(-4.794214494577577e-06);
    p = p * s + K(8.459478426796076e-05);
    p = p * s + K(-0.000614834176754465);
    p = p * s + K(-0.00019529244836950075);
    p = p * s + K(0.10276986591798866);
    return (p * s + K(1.1283792469938219)) * x;
}
#ifdef EXACT
inline T f_erf(T x) { return erf(x); }
inline T f_gauss(T x) { return K(0.5) * erfc(x * -K(0.7071067811865476)); }
#else
inline T f_erf(T x) { return tanh(f_odd(x)); }
/* The share of normally distributed numbers below x: (1 + erf(x / sqrt(2))) / 2. */
inline T f_gauss(T x) { return K(1.0) / (K(1.0) + exp(K(-2.0) * f_odd(x * K(0.7071067811865476)))); }
#endif

inline T f_sigmoid(T x) { return K(1.0) / (K(1.0) + exp(-x)); }
inline T f_ramp(T x) { return f_minimum(f_maximum(x + K(3.0), K(0.0)), K(6.0)) / K(6.0); }
inline T f_soft(T x) { return log1p(exp(-fabs(x))) + f_maximum(x, K(0.0)); } /* log(1 + exp(x)) */
inline T f_gelu_slope(T x) {
    return f_gauss(x) + x * exp(x * x * K(-0.5)) * K(0.3989422804014327);
}
/* (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)), with y a cubic that comes near to erf; this is -2 y. */
inline T f_cubic(T x) { return (x * x * K(-0.07135481627272283) + K(-1.5957691216057308)) * x; }
inline T f_gelu_tanh(T x) { return x / (K(1.0) + exp(f_cubic(x))); }
inline T f_gelu_tanh_slope(T x) {
    const T grown = exp(fmin(f_cubic(x), K(80.0))), share = K(1.0) / (K(1.0) + grown);
    const T rising = (x * x * K(0.21406444881816846) + K(1.5957691216057308)) * x;
    return share + rising * (grown * share * share); /* beyond 80 the product is 0 anyway */
}
/* tanh(log(1 + exp(x))); above 30 it is 1 and exp would overflow. */
inline T f_mish(T x) {
    const T grown = exp(fmin(x, K(30.0))), product = grown * (grown + K(2.0));
    return product / (product + K(2.0));
}
inline T f_mish_slope(T x) {
    const T bent = f_mish(x);
    return bent + x * f_sigmoid(x) * (K(1.0) - bent * bent);
}
inline T f_lerp(T a, T b, T w) {
    const T way = b - a; /* from the nearer end: a weight of exactly 1 gives exactly b */
    return fabs(w) < K(0.5) ? a + w * way : b - way * (K(1.0) - w);
}
inline T f_remainder(T a, T b) {
    const T rest = fmod(a, b);
    return ((rest != K(0.0)) & ((rest < K(0.0)) != (b < K(0.0)))) ? rest + b : rest;
}
inline T f_floor_divide(T a, T b) {
    const T rest = fmod(a, b);
    T found = (a - rest) / b;
    found = ((rest != K(0.0)) & ((rest < K(0.0)) != (b < K(0.0)))) ? found - K(1.0) : found;
    const T down = floor(found);
    const T near = found - down > K(0.5) ? down + K(1.0) : down;
    return b == K(0.0) ? a / b : (found == K(0.0) ? copysign(K(0.0), a / b) : near);
}
inline T f_logaddexp(T a, T b) { /* twice the same infinity: the difference would be NaN */
    return a == b ? a + K(0.6931471805599453) : fmax(a, b) + log1p(exp(-fabs(a - b)));
}
inline T f_logaddexp2(T a, T b) {
    const T more = log1p(exp2(-fabs(a - b))) * K(1.4426950408889634);
    return a == b ? a + K(1.0) : fmax(a, b) + more;
}
inline T f_xlogy(T a, T b, T log_b) { return b != b ? b : (a == K(0.0) ? K(0.0) : a * log_b); }
/* Vectors in which one element is huge come out wrong for small ones in PoCL (SLEEF): floats below 1/128.
 * There the first terms of the series are right to the last digit. */
#ifdef EXACT
#define SMALL K(1.4901161193847656e-08)
#else
#define SMALL K(0.0078125)
#endif
inline T f_sin(T x) { return fabs(x) < SMALL ? x - x * x * x * K(0.16666666666666666) : sin(x); }
inline T f_cos(T x) { return fabs(x) < SMALL ? K(1.0) - x * x * K(0.5) : cos(x); }
inline T f_tan(T x) { return fabs(x) < SMALL ? x + x * x * x * K(0.3333333333333333) : tan(x); }
/* Vectors of doubles with a 0, an infinity or a nan have wrong powers beside it in PoCL (SLEEF): one by one. */
#ifdef EXACT
inline T f_power(T base, T exponent) {
#ifdef W
    T found;
    for (int i = 0; i < W; i++) ((double *)&found)[i] = pow(((double *)&base)[i], ((double *)&exponent)[i]);
    return found;
#else
    return pow(base, exponent);
#endif
}
#endif
inline T f_sinc(T x) {
    const T turned = x * K(3.141592653589793);
    return x == K(0.0) ? K(1.0) : f_sin(turned) / turned;
}
inline T f_sign(T x) { return (x > K(0.0) ? K(1.0) : K(0.0)) - (x < K(0.0) ? K(1.0) : K(0.0)); }
/* Up to 6 by psi(x) = psi(x + 1) - 1 / x, left of 0 by reflection, then the series for large x. */
inline T f_digamma(T given) {
    const T turn = given - rint(given);
    T x = given < K(0.0) ? K(1.0) - given : given, found = K(0.0);
    for (int i = 0; i < 6; i++) {
        found -= x < K(6.0) ? K(1.0) / x : K(0.0);
        x = x < K(6.0) ? x + K(1.0) : x;
    }
    const T s = K(1.0) / (x * x);
    T series = s * (K(0.003968253968253968) - s * K(0.004166666666666667));
    series = s * (K(0.08333333333333333) - s * (K(0.008333333333333333) - series));
    found += log(x) - K(0.5) / x - series;
    const T back = turn == K(0.0) ? (T)NAN : found - K(3.141592653589793) / f_tan(K(3.141592653589793) * turn);
    return given < K(0.0) ? back : (given == K(0.0) ? -copysign((T)INFINITY, given) : found);
}
#endif

#ifdef WHOLE
inline T f_maximum(T a, T b) { return a > b ? a : b; }
inline T f_minimum(T a, T b) { return a < b ? a : b; }
/* By 0 the answer is 0, and by -1 nothing overflows: processors stop the program at either. */
inline T f_divide(T a, T b) { return b == 0 ? 0 : (IS_MINUS_ONE(b) ? (T)(0 - a) : (T)(a / b)); }
inline T f_fmod(T a, T b) { return b == 0 || IS_MINUS_ONE(b) ? 0 : (T)(a % b); }
inline T f_remainder(T a, T b) {
    const T rest = f_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
inline T f_floor_divide(T a, T b) {
    const T rest = f_fmod(a, b);
    return (T)(f_divide(a, b) - (rest != 0 && (rest < 0) != (b < 0)));
}
/* A negative power is a fraction: zero, except for 1 and -1. */
inline T f_power(T base, T exponent) {
    if (exponent < 0) {
        if (base == 1) return 1;
        return IS_MINUS_ONE(base) ? ((exponent & 1) ? base : (T)1) : (T)0;
    }
    T found = 1;
    while (exponent) {
        if (exponent & 1) found = (T)(found * base);
        base = (T)(base * base);
        exponent = (T)(exponent >> 1);
    }
    return found;
}
inline T f_size(T a) { return a < 0 ? (T)(0 - a) : a; }
inline T f_gcd(T a, T b) {
    a = f_size(a);
    b = f_size(b);
    while (b != 0) {
        const T rest = f_fmod(a, b);
        a = b;
        b = rest;
    }
    return a;
}
inline T f_lcm(T a, T b) {
    const T common = f_gcd(a, b);
    return common == 0 ? (T)0 : (T)(f_divide(f_size(a), common) * f_size(b));
}
inline T f_left(T a, T by) { return by < 0 || by >= BITS ? (T)0 : (T)(a << by); }
inline T f_right(T a, T by) { return by < 0 || by >= BITS ? (a < 0 ? (T)-1 : (T)0) : (T)(a >> by); }
#endif
