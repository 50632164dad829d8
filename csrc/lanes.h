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

// The same of numbers that are not above zero, or hardly.
template <typename R>
INLINE typename Lanes<R>::V shrinking(typename Lanes<R>::V x) {
    typedef typename Lanes<R>::V V;
    const V least = all<R>(Lanes<R>::least);
    const typename Lanes<R>::I none = x < least;
    V scale;
    const V q = exponential_parts<R>(pick<R>(none, least, x), scale);
    return pick<R>(none, V{}, q * scale + scale);
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

template <int activation, typename R>
INLINE typename Lanes<R>::V activate(R slope, typename Lanes<R>::V u) {
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
template <int activation, typename R>
INLINE typename Lanes<R>::V derivative(R slope, typename Lanes<R>::V u, typename Lanes<R>::V v) {
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

// Of pairs of vectors the sums of pairs of lanes that are `width` apart: of the first what stands at even blocks of so
// many lanes, of the second at odd ones.
#define PAIR_SUMS(width, even, odd) \
    if constexpr (width < P)        \
        for (int k = 0; k < P; k += 2 * width) v[k] = SHUFFLE(v[k], v[k + width], even) + SHUFFLE(v[k], v[k + width], odd)
#define LANES_OF(...) __VA_ARGS__

// Of P vectors the sums of each P lanes, vector by vector and side by side; P is a power of two, up to L.
// Of eight lanes, pairs of neighbours are added within each four, which takes one instruction for each half of a pair.
template <int P, typename R>
INLINE typename Lanes<R>::V lane_sums(typename Lanes<R>::V* v) {
    typedef typename Lanes<R>::I I;
    constexpr int L = Lanes<R>::L;
    if constexpr (L == 2) {
        PAIR_SUMS(1, LANES_OF(0, 2), LANES_OF(1, 3));
    } else if constexpr (L == 4) {
        PAIR_SUMS(1, LANES_OF(0, 4, 2, 6), LANES_OF(1, 5, 3, 7));
        PAIR_SUMS(2, LANES_OF(0, 1, 4, 5), LANES_OF(2, 3, 6, 7));
    } else if constexpr (L == 8) {
        PAIR_SUMS(1, LANES_OF(0, 2, 8, 10, 4, 6, 12, 14), LANES_OF(1, 3, 9, 11, 5, 7, 13, 15));
        PAIR_SUMS(2, LANES_OF(0, 2, 8, 10, 4, 6, 12, 14), LANES_OF(1, 3, 9, 11, 5, 7, 13, 15));
        PAIR_SUMS(4, LANES_OF(0, 1, 2, 3, 8, 9, 10, 11), LANES_OF(4, 5, 6, 7, 12, 13, 14, 15));
    } else if constexpr (L == 16) {
        PAIR_SUMS(1, LANES_OF(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30), LANES_OF(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
        PAIR_SUMS(2, LANES_OF(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29), LANES_OF(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
        PAIR_SUMS(4, LANES_OF(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27), LANES_OF(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
        PAIR_SUMS(8, LANES_OF(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23), LANES_OF(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
    }
    if constexpr (P == 1 || P == L) return v[0];
    // What is of one vector stood apart, and is brought together: of L = 8, it stands within each four lanes already.
    constexpr int near = L == 8 && P < 4 ? 4 / P : 1;
    I places;
    for (int j = 0; j < L; j++) {
        const int vector = j / (L / P), sum = j % (L / P);
        places[j] = sum / near * P * near + vector * near + sum % near;
    }
    return PERMUTE(v[0], places);
}
#undef PAIR_SUMS
#undef LANES_OF
