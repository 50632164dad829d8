// Vectors of numbers, and elementwise functions of them. Included once for each instruction set, within a namespace of
// its own, where LANE_BYTES is the size of a vector; so it has no guard, and includes nothing.

template <typename R>
struct Lanes;

template <>
struct Lanes<float> {
    typedef float V __attribute__((vector_size(LANE_BYTES)));
    typedef int32_t I __attribute__((vector_size(LANE_BYTES)));
    typedef float Unaligned __attribute__((vector_size(LANE_BYTES), aligned(4), may_alias));
    typedef int32_t Int;
    static constexpr int L = LANE_BYTES / 4;
    // Of the exponential: ln 2 in two parts, a number that shifts integers into the last bits of a mantissa, how many
    // bits that has, the bias of the exponent, and where results overflow and underflow.
    static constexpr float ln2 = 0.693359375f, ln2_rest = -0x1.bd0106p-13f, shift = 0x1.8p23f;
    static constexpr int mantissa = 23, bias = 127, terms = 7;
    static constexpr float least = -87.3f, greatest = 88.3f, flat = 20.f;
};

template <>
struct Lanes<double> {
    typedef double V __attribute__((vector_size(LANE_BYTES)));
    typedef int64_t I __attribute__((vector_size(LANE_BYTES)));
    typedef double Unaligned __attribute__((vector_size(LANE_BYTES), aligned(8), may_alias));
    typedef int64_t Int;
    static constexpr int L = LANE_BYTES / 8;
    static constexpr double ln2 = 0x1.62e42fefap-1, ln2_rest = 0x1.cf79abc9e3b3ap-40, shift = 0x1.8p52;
    static constexpr int mantissa = 52, bias = 1023, terms = 13;
    static constexpr double least = -708., greatest = 709., flat = 44.;
};

template <typename R>
INLINE typename Lanes<R>::V load(const R* p) {
    return *reinterpret_cast<const typename Lanes<R>::Unaligned*>(p);
}

template <typename R>
INLINE void store(R* p, typename Lanes<R>::V v) {
    *reinterpret_cast<typename Lanes<R>::Unaligned*>(p) = v;
}

template <typename R>
INLINE typename Lanes<R>::V all(R value) {
    return value - (typename Lanes<R>::V){};
}

// Those of two vectors, lane by lane, as a mask says.
template <typename R>
INLINE typename Lanes<R>::V pick(typename Lanes<R>::I mask, typename Lanes<R>::V yes, typename Lanes<R>::V no) {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    return (V)(((I)yes & mask) | ((I)no & ~mask));
}

// e^x = scale (1 + q), by e^x = 2^n e^r with |r| <= ln 2 / 2 and the series of e^r - 1; a NaN stays one.
template <typename R>
INLINE typename Lanes<R>::V exponential_parts(typename Lanes<R>::V x, typename Lanes<R>::V& scale) {
    typedef Lanes<R> T;
    typedef typename T::V V;
    typedef typename T::I I;
    // 1 / k!
    static constexpr R series[] = {1, 1, R(1) / 2, R(1) / 6, R(1) / 24, R(1) / 120, R(1) / 720, R(1) / 5040,
                                   R(1) / 40320, R(1) / 362880, R(1) / 3628800, R(1) / 39916800, R(1) / 479001600,
                                   R(1) / 6227020800};
    const V shifted = x * R(1.4426950408889634) + T::shift, n = shifted - T::shift;
    const V r = (x - n * T::ln2) - n * T::ln2_rest;
    V q = all<R>(series[T::terms]);
#pragma GCC unroll 16
    for (int k = T::terms - 1; k > 0; k--) q = q * r + series[k];
    scale = (V)(((I)shifted + typename T::Int(T::bias)) << typename T::Int(T::mantissa));
    return q * r;
}

template <typename R>
INLINE typename Lanes<R>::V exponential(typename Lanes<R>::V x) {
    typedef Lanes<R> T;
    typedef typename T::V V;
    const V least = all<R>(T::least), greatest = all<R>(T::greatest);
    V scale, within = pick<R>(x < least, least, pick<R>(x > greatest, greatest, x));
    const V q = exponential_parts<R>(within, scale);
    V y = q * scale + scale;
    y = pick<R>(x < least, V{}, y);
    return pick<R>(x > greatest, all<R>(std::numeric_limits<R>::infinity()), y);
}

template <typename R>
INLINE typename Lanes<R>::V sigmoid(typename Lanes<R>::V x) {
    return R(1) / (R(1) + exponential<R>(-x));
}

// By e^2x - 1, which is as exact near zero as far from it.
template <typename R>
INLINE typename Lanes<R>::V tangent(typename Lanes<R>::V x) {
    typedef Lanes<R> T;
    typedef typename T::V V;
    const V flat = all<R>(T::flat), twice = x + x;
    V scale, within = pick<R>(twice < -flat, -flat, pick<R>(twice > flat, flat, twice));
    const V q = exponential_parts<R>(within, scale), e = q * scale + (scale - R(1));
    return e / (e + R(2));
}

template <typename R>
INLINE typename Lanes<R>::V activate(int64_t activation, R slope, typename Lanes<R>::V u) {
    typedef typename Lanes<R>::V V;
    switch (activation) {
        case LEAKY_RELU: return pick<R>(u < V{}, slope * u, u);
        case RELU: return pick<R>(u < V{}, V{}, u);
        case SIGMOID: return sigmoid<R>(u);
        case TANH: return tangent<R>(u);
        case SEEN: return pick<R>(u == all<R>(-std::numeric_limits<R>::infinity()), V{}, u);
        case SEEN_TANH:
            return tangent<R>(pick<R>(u == all<R>(-std::numeric_limits<R>::infinity()), V{}, u));
        default: return u;
    }
}

// The derivative at u, where the function is v.
template <typename R>
INLINE typename Lanes<R>::V derivative(int64_t activation, R slope, typename Lanes<R>::V u, typename Lanes<R>::V v) {
    typedef typename Lanes<R>::V V;
    const V one = all<R>(1);
    switch (activation) {
        case LEAKY_RELU: return pick<R>(u > V{}, one, all<R>(slope));
        case RELU: return pick<R>(u > V{}, one, V{});
        case SIGMOID: return v * (one - v);
        case TANH: return one - v * v;
        case SEEN: return pick<R>(u == all<R>(-std::numeric_limits<R>::infinity()), V{}, one);
        case SEEN_TANH:
            return pick<R>(u == all<R>(-std::numeric_limits<R>::infinity()), V{}, one - v * v);
        default: return one;
    }
}

// The sums of the lanes of L vectors, side by side.
template <typename R>
INLINE typename Lanes<R>::V lane_sums(typename Lanes<R>::V* v) {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    constexpr int L = Lanes<R>::L;
    // Each round adds pairs of vectors: of the first what stands at even blocks of lanes, of the second at odd ones.
#pragma GCC unroll 4
    for (int width = 1; width < L; width *= 2) {
        I even, odd;
#pragma GCC unroll 16
        for (int j = 0; j < L; j++) {
            const int second = (j / width) & 1, within = j & ~width;
            even[j] = within + second * L;
            odd[j] = within + width + second * L;
        }
#pragma GCC unroll 16
        for (int k = 0; k < L; k += 2 * width) {
            const V a = v[k], b = v[k + width];
            v[k] = SHUFFLE(a, b, even) + SHUFFLE(a, b, odd);
        }
    }
    return v[0];
}
