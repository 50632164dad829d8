// K matrices on one pattern, with their weights at an entry side by side. For one instruction set; included behind
// gate_body.h.
//
// `expand` computes y_nk = sum_e w_ek x_m, `combine` y_n = sum_e sum_k w_ek x_mk, and `inner` w_ek = <own_nk, x_m>, where e
// is an entry from m to n. Each of them goes once over the entries of each target or, with `place`, of each source.
// `scatter` adds w_ek own_nk to y_m for all k and e: what `combine` computes of the transposed matrices, for own rows of
// which some are known after others. They may be those of a few targets, whose part of `ptr` is given.

template <typename R>
struct Shared {
    typedef typename Lanes<R>::V V;
    static constexpr int L = Lanes<R>::L;
    static constexpr int MEMBERS = 4, VECTORS = LANE_BYTES == 64 ? 4 : 2;  // of a tile that stays in registers
    static constexpr int SCATTERED = 2;  // vectors of a range of columns, which one thread adds to

    const SharedCall& call;
    const int64_t K, W;
    const int32_t *ptr, *index, *place;
    const Table<R> x, own;
    const R* weight;

    explicit Shared(const SharedCall& k, int64_t width, bool inner)
        : call(k), K(k.K), W(k.W), ptr(k.ptr), index(k.index), place(k.place), x(k.x, k.M, width, width),
          own(inner ? k.own : nullptr, k.N, k.K * k.W, k.K * k.W), weight(static_cast<const R*>(k.weight)) {}

    INLINE_MEMBER int64_t entry(int64_t p) const { return place ? place[p] : p; }

    INLINE_MEMBER void fetch(int64_t p, int64_t bytes) const {
        if (p + AHEAD >= call.E) return;
        const char* from = reinterpret_cast<const char*>(x.row(static_cast<uint32_t>(index[p + AHEAD])));
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + b);
    }

    static INLINE_MEMBER void give(R* to, V v, int64_t count) {
        if (count >= L) return store(to, v);
        for (int64_t l = 0; l < count; l++) to[l] = v[l];
    }

    // Members from k on of target n, and the vectors of their columns from j on.
    template <int members, int vectors, bool whole>
    INLINE_MEMBER void tile(int64_t n, int64_t k, int64_t j) const {
        V sum[members][vectors] = {};
        for (int64_t p = ptr[n], end = ptr[n + 1]; p < end; p++) {
            const R *row = x.row(index[p]) + j, *w = weight + entry(p) * K + k;
            if (k == 0) fetch(p, W * sizeof(R));
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const V some = take<whole>(row + v * L, x.end);
#pragma GCC unroll 4
                for (int m = 0; m < members; m++) sum[m][v] += w[m] * some;
            }
        }
        R* y = static_cast<R*>(call.y) + (n * K + k) * W + j;
#pragma GCC unroll 4
        for (int m = 0; m < members; m++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) give(y + m * W + v * L, sum[m][v], whole ? L : W - j - v * L);
    }

    template <int members>
    INLINE_MEMBER void tiles(int64_t n, int64_t k) const {
        int64_t j = 0;
        for (; j + VECTORS * L <= W; j += VECTORS * L) tile<members, VECTORS, true>(n, k, j);
        for (; j + L <= W; j += L) tile<members, 1, true>(n, k, j);
        if (j < W) tile<members, 1, false>(n, k, j);
    }

    void expand(int64_t n) const {
        int64_t k = 0;
        for (; k + MEMBERS <= K; k += MEMBERS) tiles<MEMBERS>(n, k);
        for (; k < K; k++) tiles<1>(n, k);
    }

    template <int vectors, bool whole>
    INLINE_MEMBER void columns(int64_t n, int64_t j) const {
        V even[vectors] = {}, odd[vectors] = {};
        for (int64_t p = ptr[n], end = ptr[n + 1]; p < end; p++) {
            const R *row = x.row(index[p]) + j, *w = weight + entry(p) * K;
            if (j == 0) fetch(p, 512);
            int64_t k = 0;
            for (; k + 2 <= K; k += 2)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    even[v] += w[k] * take<whole>(row + k * W + v * L, x.end);
                    odd[v] += w[k + 1] * take<whole>(row + (k + 1) * W + v * L, x.end);
                }
            if (k < K)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) even[v] += w[k] * take<whole>(row + k * W + v * L, x.end);
        }
        R* y = static_cast<R*>(call.y) + n * W + j;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) give(y + v * L, even[v] + odd[v], whole ? L : W - j - v * L);
    }

    void combine(int64_t n) const {
        int64_t j = 0;
        for (; j + VECTORS * L <= W; j += VECTORS * L) columns<VECTORS, true>(n, j);
        for (; j + L <= W; j += L) columns<1, true>(n, j);
        if (j < W) columns<1, false>(n, j);
    }

    // As many members from k on as a vector has lanes, or those that are left.
    template <bool whole>
    INLINE_MEMBER void products(const R* mine, const R* row, int64_t k, R* to) const {
        const int64_t count = whole ? L : K - k;
        V sum[L] = {};
        int64_t j = 0;
        for (; j + L <= W; j += L) {
            const V some = load(row + j);
#pragma GCC unroll 16
            for (int m = 0; m < L; m++)
                if (whole || m < count) sum[m] += some * load(mine + (k + m) * W + j);
        }
        if (j < W) {
            R held[L] = {}, other[L] = {};
            for (int64_t l = 0; l < W - j; l++) held[l] = row[j + l];
            for (int m = 0; m < L; m++) {
                if (!whole && m >= count) break;
                for (int64_t l = 0; l < W - j; l++) other[l] = mine[(k + m) * W + j + l];
                sum[m] += load<R>(held) * load<R>(other);
            }
        }
        give(to + k, lane_sums<L, R>(sum), count);
    }

    void inner(int64_t n) const {
        const R* mine = own.row(n);
        for (int64_t p = ptr[n], end = ptr[n + 1]; p < end; p++) {
            const R* row = x.row(index[p]);
            R* to = static_cast<R*>(call.y) + entry(p) * K;
            fetch(p, W * sizeof(R));
            int64_t k = 0;
            for (; k + L <= K; k += L) products<true>(mine, row, k, to);
            if (k < K) products<false>(mine, row, k, to);
        }
    }

    template <int entries, bool whole>
    INLINE_MEMBER void add(const R* mine, int64_t p, int64_t j) const {
        V sum[entries][SCATTERED] = {};
        const R* w[entries];
#pragma GCC unroll 4
        for (int i = 0; i < entries; i++) w[i] = weight + entry(p + i) * K;
        for (int64_t k = 0; k < K; k++)
#pragma GCC unroll 4
            for (int v = 0; v < SCATTERED; v++) {
                const V some = take<whole>(mine + k * W + j + v * L, own.end);
#pragma GCC unroll 4
                for (int i = 0; i < entries; i++) sum[i][v] += w[i][k] * some;
            }
#pragma GCC unroll 4
        for (int i = 0; i < entries; i++) {
            R* y = static_cast<R*>(call.y) + index[p + i] * W + j;
#pragma GCC unroll 4
            for (int v = 0; v < SCATTERED; v++) {
                const int64_t left = whole ? L : W - j - v * L;
                if (left >= L) store(y + v * L, load(y + v * L) + sum[i][v]);
                else for (int64_t l = 0; l < left; l++) y[v * L + l] += sum[i][v][l];
            }
        }
    }

    // The columns of a range of all entries, in their order.
    void scatter(int64_t range) const {
        const int64_t j = range * SCATTERED * L;
        const bool whole = j + SCATTERED * L <= W;
        for (int64_t n = 0; n < call.N; n++) {
            const R* mine = own.row(n);
            int64_t p = ptr[n];
            const int64_t end = ptr[n + 1];
            for (; p + 4 <= end; p += 4) whole ? add<4, true>(mine, p, j) : add<4, false>(mine, p, j);
            for (; p < end; p++) whole ? add<1, true>(mine, p, j) : add<1, false>(mine, p, j);
        }
    }

    bool fine(int64_t n) const {
        const int64_t start = ptr[n], end = ptr[n + 1];
        if (start < 0 || end < start || end > call.E) return false;
        bool within = true;
        for (int64_t p = start; p < end; p++) within &= index[p] >= 0 && index[p] < call.M;
        for (int64_t p = start; place && p < end; p++) within &= place[p] >= 0 && place[p] < call.E;
        return within;
    }

    template <typename F>
    int each_row(F f) const {
        const Ranges ranges(ptr, call.N, call.E, K * W);
        return each_range(ranges, [&](int64_t range) -> int {
            for (int64_t n = ranges.start(range), last = ranges.start(range + 1); n < last; n++) {
                if (!fine(n)) return OUT_OF_RANGE;
                f(n);
            }
            return FINE;
        });
    }
};

template <typename R>
int shared_expand(const SharedCall& call) {
    const Shared<R> shared(call, call.W, false);
    return shared.each_row([&](int64_t n) { shared.expand(n); });
}

template <typename R>
int shared_combine(const SharedCall& call) {
    const Shared<R> shared(call, call.K * call.W, false);
    return shared.each_row([&](int64_t n) { shared.combine(n); });
}

template <typename R>
int shared_inner(const SharedCall& call) {
    const Shared<R> shared(call, call.W, true);
    return shared.each_row([&](int64_t n) { shared.inner(n); });
}

template <typename R>
int shared_scatter(const SharedCall& call) {
    const Shared<R> shared(call, call.W, true);
    for (int64_t n = 0; n < call.N; n++)
        if (!shared.fine(n)) return OUT_OF_RANGE;
    const int64_t width = Shared<R>::SCATTERED * Shared<R>::L, ranges = (call.W + width - 1) / width;
#ifdef _OPENMP
    const int64_t entries = call.N ? call.ptr[call.N] - call.ptr[0] : 0;
    if (ranges > 1 && entries * call.K * call.W > 1 << 16 && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel for
        for (int64_t range = 0; range < ranges; range++) shared.scatter(range);
        return FINE;
    }
#endif
    for (int64_t range = 0; range < ranges; range++) shared.scatter(range);
    return FINE;
}
