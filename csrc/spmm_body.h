// The product for one instruction set; included once for each, within a namespace of its own, where LANE_BYTES is the
// size of a vector; so it has no guard, and includes nothing. See spmm.h.

template <typename T>
struct Rows {
  static constexpr int64_t AHEAD = 16;     // entries that are fetched before they are needed
  static constexpr int64_t NEAR = 1 << 20;  // bytes that are in some cache anyway

  // Of the targets from `first` to `last` the columns from `at` on, in so many vectors of BYTES; their sums stay in
  // registers. False where a pointer or an index is out of range, which is only looked at if `checked`.
  template <int VECTORS, int BYTES, bool weighted, bool far, bool checked>
  static bool columns(const Spmm<T>& call, int64_t first, int64_t last, int64_t at) {
    typedef T V __attribute__((vector_size(BYTES)));
    typedef T Loose __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    constexpr int64_t L = BYTES / sizeof(T);
    const T *__restrict x = call.x + at, *__restrict weight = call.weight;
    const int32_t *__restrict ptr = call.ptr, *__restrict index = call.index;
    const int64_t stride = call.x_stride, E = call.E;
    const uint32_t M = static_cast<uint32_t>(call.M);
    const bool alone = call.a == 1 && !call.plus && !call.before;  // looked up once, as writing to y might change it
    T* y = call.y + first * call.y_stride + at;
    for (int64_t n = first; n < last; ++n, y += call.y_stride) {
      const int64_t start = ptr[n], end = ptr[n + 1];
      if (checked && (start < 0 || start > end || end > E)) return false;
      V sum[VECTORS] = {};
      for (int64_t e = start; e < end; ++e) {
        const uint32_t from = static_cast<uint32_t>(index[e]);
        if (checked && __builtin_expect(from >= M, 0)) return false;
        const T* row = x + from * stride;
        if (far && e + AHEAD < E) {  // of this target, or of the next ones
          const T* later = x + static_cast<uint32_t>(index[e + AHEAD]) * stride;
#pragma GCC unroll 8
          for (int64_t v = 0; v < VECTORS * BYTES; v += 64) __builtin_prefetch(later + v / sizeof(T));
        }
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
          const V some = *reinterpret_cast<const Loose*>(row + v * L);
          sum[v] += weighted ? weight[e] * some : some;
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v)
        *reinterpret_cast<Loose*>(y + v * L) = alone ? sum[v] : with_terms<V, Loose>(call, sum[v], n, at + v * L);
    }
    return true;
  }

  // The same of one column: vectors are of entries.
  template <bool weighted>
  static bool column(const Spmm<T>& call, int64_t first, int64_t last, int64_t at) {
    const T *__restrict x = call.x + at, *__restrict weight = call.weight;
    const int32_t *__restrict ptr = call.ptr, *__restrict index = call.index;
    const int64_t stride = call.x_stride, E = call.E;
    const uint32_t M = static_cast<uint32_t>(call.M);
    for (int64_t n = first; n < last; ++n) {
      const int64_t start = ptr[n], end = ptr[n + 1];
      if (start < 0 || start > end || end > E) return false;
      uint32_t outside = 0;
      for (int64_t e = start; e < end; ++e) outside |= static_cast<uint32_t>(index[e]) >= M;
      if (outside) return false;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t e = start; e < end; ++e) sum += weighted ? weight[e] * x[index[e] * stride] : x[index[e] * stride];
      call.y[n * call.y_stride + at] = with_terms(call, sum, n, at);
    }
    return true;
  }

  // The sum at a target, or a vector of such sums, with the terms beside it; `at` is where they stand.
  template <typename Sum, typename Read = Sum>
  static INLINE Sum with_terms(const Spmm<T>& call, Sum sum, int64_t n, int64_t at) {
    sum *= call.a;
    if (call.plus) sum += *reinterpret_cast<const Read*>(call.plus + n * call.plus_stride + at);
    if (call.before) sum += call.c * *reinterpret_cast<const Read*>(call.before + n * call.before_stride + at);
    return sum;
  }

  // All columns from `at` on: as many vectors at a time as there are, and then shorter ones.
  template <int VECTORS, int BYTES, bool weighted, bool far>
  static bool blocks(const Spmm<T>& call, int64_t first, int64_t last, int64_t at) {
    if constexpr (BYTES == sizeof(T)) {
      return at == call.W || column<weighted>(call, first, last, at);
    } else {
      constexpr int64_t some = VECTORS * BYTES / sizeof(T);
      for (; at + some <= call.W; at += some) {
        const bool fine = at ? columns<VECTORS, BYTES, weighted, far, false>(call, first, last, at)
                             : columns<VECTORS, BYTES, weighted, far, true>(call, first, last, at);
        if (!fine) return false;
      }
      constexpr int fewer = VECTORS > 1 ? VECTORS / 2 : 1, bytes = VECTORS > 1 ? BYTES : BYTES / 2;
      return blocks<fewer, bytes, weighted, far>(call, first, last, at);
    }
  }

  static bool sums(const Spmm<T>& call, int64_t first, int64_t last) {
    const bool far = call.M * call.x_stride * int64_t(sizeof(T)) > NEAR;
    const auto run = call.weight ? far ? blocks<8, LANE_BYTES, true, true> : blocks<8, LANE_BYTES, true, false>
                                 : far ? blocks<8, LANE_BYTES, false, true> : blocks<8, LANE_BYTES, false, false>;
    return run(call, first, last, 0);
  }
};
