// The product for one instruction set; included once for each, within a namespace of its own, where LANE_BYTES is the
// size of a vector; so it has no guard, and includes nothing. See spmm.h.

struct Rows {
  typedef double V __attribute__((vector_size(LANE_BYTES)));
  typedef double Loose __attribute__((vector_size(LANE_BYTES), aligned(sizeof(double)), may_alias));
  static constexpr int64_t L = LANE_BYTES / sizeof(double), AHEAD = 8;  // entries that are fetched before they are needed

  // Of one target the columns from `at` on, in so many vectors; they stay in registers.
  template <int VECTORS, bool weighted>
  static INLINE void columns(const Spmm& call, int64_t start, int64_t end, int64_t at, double* y) {
    const double *x = call.x + at, *weight = call.weight;
    const int32_t* index = call.index;
    const int64_t W = call.W, E = call.E;
    V sum[VECTORS] = {};
    for (int64_t e = start; e < end; ++e) {
      const double* row = x + index[e] * W;
      if (e + AHEAD < E) {  // of this target, or of the next ones
        const double* later = x + static_cast<uint32_t>(index[e + AHEAD]) * W;
#pragma GCC unroll 8
        for (int64_t v = 0; v < VECTORS * LANE_BYTES; v += 64) __builtin_prefetch(later + v / sizeof(double));
      }
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        const V some = *reinterpret_cast<const Loose*>(row + v * L);
        sum[v] += weighted ? weight[e] * some : some;
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<Loose*>(y + at + v * L) = sum[v];
  }

  template <bool weighted>
  static INLINE void row(const Spmm& call, int64_t start, int64_t end, double* y) {
    const double *x = call.x, *weight = call.weight;
    const int64_t W = call.W;
    int64_t at = 0;
    for (; at + 8 * L <= W; at += 8 * L) columns<8, weighted>(call, start, end, at, y);
    if (at + 4 * L <= W) columns<4, weighted>(call, start, end, at, y), at += 4 * L;
    if (at + 2 * L <= W) columns<2, weighted>(call, start, end, at, y), at += 2 * L;
    if (at + L <= W) columns<1, weighted>(call, start, end, at, y), at += L;
    for (; at < W; ++at) {
      double sum = 0;
      for (int64_t e = start; e < end; ++e) {
        const double some = x[call.index[e] * W + at];
        sum += weighted ? weight[e] * some : some;
      }
      y[at] = sum;
    }
  }

  static bool sums(const Spmm& call, int64_t first, int64_t last) {
    const int32_t* index = call.index;
    const uint32_t M = static_cast<uint32_t>(call.M);
    for (int64_t n = first; n < last; ++n) {
      const int64_t start = call.ptr[n], end = call.ptr[n + 1];
      if (start < 0 || start > end || end > call.E) return false;
      uint32_t outside = 0;
      for (int64_t e = start; e < end; ++e) outside |= static_cast<uint32_t>(index[e]) >= M;
      if (outside) return false;
      double* y = call.y + n * call.W;
      call.weight ? row<true>(call, start, end, y) : row<false>(call, start, end, y);
    }
    return true;
  }
};
