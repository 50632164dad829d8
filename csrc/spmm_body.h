// The product for one instruction set; included once for each, within a namespace of its own, where LANE_BYTES is the
// size of a vector; so it has no guard, and includes nothing. See spmm.h.

template <typename T>
struct Rows {
  typedef T V __attribute__((vector_size(LANE_BYTES)));
  typedef T Loose __attribute__((vector_size(LANE_BYTES), aligned(sizeof(T)), may_alias));
  static constexpr int64_t L = LANE_BYTES / sizeof(T), AHEAD = 8;  // entries that are fetched before they are needed

  // The sum at a target, or a vector of such sums, with the terms beside it; `at` is where they stand.
  template <typename Sum>
  static INLINE Sum with_terms(const Spmm<T>& call, Sum sum, int64_t n, int64_t at) {
    typedef typename Unaligned<Sum>::Type Read;
    if (call.a != 1) sum *= call.a;
    if (call.plus) sum += *reinterpret_cast<const Read*>(call.plus + n * call.plus_stride + at);
    if (call.before) sum += call.c * *reinterpret_cast<const Read*>(call.before + n * call.before_stride + at);
    return sum;
  }

  // Of one target the columns from `at` on, in so many vectors; they stay in registers.
  template <int VECTORS, bool weighted>
  static INLINE void columns(const Spmm<T>& call, int64_t n, int64_t at) {
    const T *x = call.x + at, *weight = call.weight;
    const int32_t* index = call.index;
    const int64_t stride = call.x_stride, E = call.E, start = call.ptr[n], end = call.ptr[n + 1];
    V sum[VECTORS] = {};
    for (int64_t e = start; e < end; ++e) {
      const T* row = x + index[e] * stride;
      if (e + AHEAD < E) {  // of this target, or of the next ones
        const T* later = x + static_cast<uint32_t>(index[e + AHEAD]) * stride;
#pragma GCC unroll 8
        for (int64_t v = 0; v < VECTORS * LANE_BYTES; v += 64) __builtin_prefetch(later + v / sizeof(T));
      }
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        const V some = *reinterpret_cast<const Loose*>(row + v * L);
        sum[v] += weighted ? weight[e] * some : some;
      }
    }
    T* y = call.y + n * call.y_stride + at;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<Loose*>(y + v * L) = with_terms(call, sum[v], n, at + v * L);
  }

  template <bool weighted>
  static INLINE void row(const Spmm<T>& call, int64_t n) {
    const T *x = call.x, *weight = call.weight;
    const int64_t W = call.W;
    int64_t at = 0;
    for (; at + 8 * L <= W; at += 8 * L) columns<8, weighted>(call, n, at);
    if (at + 4 * L <= W) columns<4, weighted>(call, n, at), at += 4 * L;
    if (at + 2 * L <= W) columns<2, weighted>(call, n, at), at += 2 * L;
    if (at + L <= W) columns<1, weighted>(call, n, at), at += L;
    for (; at < W; ++at) {
      T sum = 0;
      for (int64_t e = call.ptr[n]; e < call.ptr[n + 1]; ++e) {
        const T some = x[call.index[e] * call.x_stride + at];
        sum += weighted ? weight[e] * some : some;
      }
      call.y[n * call.y_stride + at] = with_terms(call, sum, n, at);
    }
  }

  // How vectors are read that need not stand at a multiple of their size.
  template <typename Sum, typename = void>
  struct Unaligned {
    typedef Loose Type;
  };
  template <typename Dummy>
  struct Unaligned<T, Dummy> {
    typedef T Type;
  };

  static bool sums(const Spmm<T>& call, int64_t first, int64_t last) {
    const int32_t* index = call.index;
    const uint32_t M = static_cast<uint32_t>(call.M);
    for (int64_t n = first; n < last; ++n) {
      const int64_t start = call.ptr[n], end = call.ptr[n + 1];
      if (start < 0 || start > end || end > call.E) return false;
      uint32_t outside = 0;
      for (int64_t e = start; e < end; ++e) outside |= static_cast<uint32_t>(index[e]) >= M;
      if (outside) return false;
      call.weight ? row<true>(call, n) : row<false>(call, n);
    }
    return true;
  }
};
