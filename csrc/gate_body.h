// Weights of each channel: y_n = sum_e f_e act(s_m + t_n + u_e) (z_m + v_e), where e is an entry from m to n and
// everything stands channel by channel: attention with as many heads as channels, which is not normalised. For one
// instruction set; included behind attend_body.h.
//
// There is one pass over the entries of each target, and on the way back one over those of each source. The first makes
// the same sums with the derivative in the place of the activation, too: the gradient of t_n over that of y_n.

template <typename R, int activation, bool back>
struct Gate {
    typedef typename Lanes<R>::V V;
    static constexpr int L = Lanes<R>::L;

    const Call& call;
    const int64_t c, others, entries;
    const bool far;
    const R slope;
    const int32_t *ptr, *index, *place, *entry_row;
    // Of the terms s, t and u, those of the own end, of the other and of entries; the rows z, and v of entries; gradients.
    const Table<R> own_terms, other_terms, entry, z, values, grad;
    const R* factor;

    static Table<R> source_terms(const Call& k) { return Table<R>(k.source, k.M, k.source_stride, k.c); }
    static Table<R> target_terms(const Call& k) { return Table<R>(k.target, k.N, k.target_stride, k.c); }

    static int64_t bytes_read(const Call& k) {
        const int64_t of_entries = (k.entry != nullptr) + (k.values != nullptr);
        return (2 * (back ? k.N : k.M) + of_entries * k.E) * k.c * int64_t(sizeof(R));
    }

    explicit Gate(const Call& k)
        : call(k), c(k.c), others(back ? k.N : k.M), entries(k.E), far(bytes_read(k) > NEAR),
          slope(R(k.slope)), ptr(back ? k.t_ptr : k.ptr), index(back ? k.t_index : k.index),
          place(back ? k.t_back : nullptr), entry_row(k.entry_row), own_terms(back ? source_terms(k) : target_terms(k)),
          other_terms(back ? target_terms(k) : source_terms(k)), entry(k.entry, k.E, k.entry_stride, c),
          z(k.z, k.M, k.z_stride, c), values(k.values, k.E, k.values_stride, c), grad(k.grad, k.N, c, c),
          factor(static_cast<const R*>(k.factor)) {}

    // A vector of row i from column j on; zeros where there is no table.
    template <bool whole>
    static INLINE_MEMBER V at(const Table<R>& table, int64_t i, int64_t j) {
        return table.data ? take<whole>(table.row(i) + j, table.end) : V{};
    }

    template <bool whole>
    INLINE_MEMBER V factor_at(int64_t p, int64_t j) const {
        const R* from = factor + p * call.factor_stride;
        if (!call.factor_step) return all<R>(*from);
        R held[L] = {};
        for (int64_t h = j, last = whole ? j + L : std::min(j + L, c); h < last; h++) held[h - j] = from[h * call.factor_step];
        return load<R>(held);
    }

    template <bool whole>
    INLINE_MEMBER void give(void* table, int64_t i, int64_t j, V v) const {
        give_row<whole>(static_cast<R*>(table) + i * c, j, v);
    }
    template <bool whole>
    INLINE_MEMBER void give_row(R* row, int64_t j, V v) const {
        R* to = row + j;
        if (whole || j + L <= c) return store(to, v);
        for (int64_t l = 0; l < c - j; l++) to[l] = v[l];
    }

    static INLINE_MEMBER void fetch(const R* from, int64_t bytes) {
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(reinterpret_cast<const char*>(from) + b);
    }

    // K vectors of columns from j on, of all entries of one target or source.
    template <int K, bool whole>
    INLINE_MEMBER void columns(int64_t n, int64_t j) const {
        const Table<R>& rows = back ? grad : z;
        V own[K], value[K], sum[K] = {}, slopes[K] = {};
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) {
            own[k] = at<whole>(own_terms, n, j + k * L);
            value[k] = back ? at<whole>(z, n, j + k * L) : V{};
        }
        for (int64_t p = ptr[n], end = ptr[n + 1]; p < end; p++) {
            const int64_t o = index[p], e = place ? place[p] : p, term = entry_row ? entry_row[e] : e;
            if (far && p + AHEAD < entries) {
                const int64_t later = p + AHEAD, next = index[later], at = place ? place[later] : later;
                const int64_t term_at = entry_row ? entry_row[at] : at;
                if (other_terms.data) fetch(other_terms.row(next) + j, K * LANE_BYTES);
                fetch(rows.row(next) + j, K * LANE_BYTES);
                if (entry.data) fetch(entry.row(term_at) + j, K * LANE_BYTES);
                if (values.data) fetch(values.row(at) + j, K * LANE_BYTES);
                if (back && call.d_entry) fetch(static_cast<const R*>(call.d_entry) + term_at * c + j, K * LANE_BYTES);
                if (back && call.d_values) fetch(static_cast<const R*>(call.d_values) + at * c + j, K * LANE_BYTES);
            }
#pragma GCC unroll 4
            for (int k = 0; k < K; k++) {
                const int64_t at_k = j + k * L;
                V u = own[k] + at<whole>(other_terms, o, at_k);
                if (entry.data) u += at<whole>(entry, term, at_k);
                V v = activate<activation, R>(slope, u), d = derivative<activation, R>(slope, u, v);
                const V row = at<whole>(rows, o, at_k);
                V x = back ? value[k] : row;
                if (values.data) x += at<whole>(values, e, at_k);
                if (back && call.d_factor) give<whole>(call.d_factor, e, at_k, v * x * row);
                if (factor) {
                    const V f = factor_at<whole>(e, at_k);
                    v *= f;
                    d *= f;
                }
                if (back) {
                    v *= row;
                    d *= x * row;
                    if (call.d_values) give<whole>(call.d_values, e, at_k, v);
                    if (call.d_entry) give<whole>(call.d_entry, term, at_k, d);
                    sum[k] += v;
                } else {
                    sum[k] += v * x;
                    d *= x;
                }
                slopes[k] += d;
            }
        }
        R* of_sum = static_cast<R*>(back ? call.d_z : call.y);
        R* of_slopes = static_cast<R*>(back ? call.d_source : call.stats);
        const int64_t step = back ? call.d_z_stride : c, step_of_slopes = back ? call.d_source_stride : c;
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) {
            if (of_sum && of_sum == of_slopes) sum[k] += slopes[k];
            if (of_sum) give_row<whole>(of_sum + n * step, j + k * L, sum[k]);
            if (of_slopes && of_sum != of_slopes) give_row<whole>(of_slopes + n * step_of_slopes, j + k * L, slopes[k]);
        }
    }

    bool fine(int64_t n) const {
        const int64_t start = ptr[n], end = ptr[n + 1];
        if (start < 0 || end < start || end > entries) return false;
        bool within = true;
        for (int64_t p = start; p < end; p++) within &= index[p] >= 0 && index[p] < others;
        return within;
    }

    int run() const {
        const int64_t rows = back ? call.M : call.N;
        const Ranges ranges(ptr, rows, entries, c);
        return each_range(ranges, [&](int64_t range) -> int {
            for (int64_t n = ranges.start(range), last = ranges.start(range + 1); n < last; n++) {
                if (!fine(n)) return OUT_OF_RANGE;
                int64_t j = 0;
                for (; j + 4 * L <= c; j += 4 * L) columns<4, true>(n, j);
                if (j + 2 * L <= c) columns<2, true>(n, j), j += 2 * L;
                for (; j < c; j += L) columns<1, false>(n, j);
            }
            return FINE;
        });
    }
};

template <typename R, bool back>
int gate(const Call& call) {
    switch (call.activation) {
        case LEAKY_RELU: return Gate<R, LEAKY_RELU, back>(call).run();
        case RELU: return Gate<R, RELU, back>(call).run();
        case SIGMOID: return Gate<R, SIGMOID, back>(call).run();
        case TANH: return Gate<R, TANH, back>(call).run();
        case SEEN: return Gate<R, SEEN, back>(call).run();
        case SEEN_TANH: return Gate<R, SEEN_TANH, back>(call).run();
        default: return Gate<R, NONE, back>(call).run();
    }
}

template <typename R>
int gate_forward(const Call& call) {
    return gate<R, false>(call);
}

template <typename R>
int gate_backward(const Call& call) {
    if (!call.d_z && !call.d_source && !call.d_entry && !call.d_factor && !call.d_values) return FINE;
    return gate<R, true>(call);
}
