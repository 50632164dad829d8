// Attention between all pairs, for one instruction set; included behind attend_body.h. See `PairCall`.
//
// Everything is a vector of sources long: keys and values are turned beforehand, channel by channel, and filled up with
// zeros. Some targets are taken at a time, so that what is read of the sources serves all of them.

template <typename R>
struct Pairs {
    typedef typename Lanes<R>::V V;
    static constexpr int64_t L = Lanes<R>::L, TARGETS = 4;
    static constexpr int64_t COLUMNS = LANE_BYTES == 64 ? 4 : 2;  // of a table at a time: as many as registers take
    static constexpr int64_t CELLS = TARGETS * COLUMNS;

    const PairCall& call;
    const int64_t M, D, W, room;  // room: of the sources, in whole vectors

    explicit Pairs(const PairCall& k) : call(k), M(k.M), D(k.D), W(k.W), room(rounded(k.M, 2 * L)) {}

    static const R* head(const void* table, int64_t batch, int64_t b, int64_t offset) {
        return static_cast<const R*>(table) + b * batch + offset;
    }

    // The lanes of a vector, turned round by some of them.
    template <int by>
    static V turned(V v) {
        typename Lanes<R>::I places;
        for (int l = 0; l < L; l++) places[l] = (l + by) % L;
        return PERMUTE(v, places);
    }

    // What all lanes of a vector give together, half of them with the other half.
    static INLINE_MEMBER V larger(V a, V b) { return a > b ? a : b; }
    template <int half = L / 2>
    static R largest(V v) {
        v = larger(v, turned<half>(v));
        if constexpr (half > 1) return largest<half / 2>(v);
        return v[0];
    }
    template <int half = L / 2>
    static R total(V v) {
        v += turned<half>(v);
        if constexpr (half > 1) return total<half / 2>(v);
        return v[0];
    }

    // Of M rows the columns of one head, side by side; and back.
    void turn(const R* from, int64_t stride, int64_t width, R* to) const {
        for (int64_t d = 0; d < width; d++) {
            for (int64_t m = 0; m < M; m++) to[d * room + m] = from[m * stride + d];
            std::fill(to + d * room + M, to + (d + 1) * room, R(0));
        }
    }
    void turn_back(const R* from, int64_t width, void* table, int64_t b, int64_t k) const {
        R* to = static_cast<R*>(table) + b * M * call.K * width + k * width;
        for (int64_t m = 0; m < M; m++)
            for (int64_t d = 0; d < width; d++) to[m * call.K * width + d] = from[d * room + m];
    }

    // The inner products of some rows with all columns of a table.
    void products(const R* const* rows, const R* table, int64_t width, R* out) const {
        for (int64_t j = 0; j < room; j += 2 * L) {
            V sum[TARGETS][2] = {};
            for (int64_t d = 0; d < width; d++) {
                const V one = load(table + d * room + j), two = load(table + d * room + j + L);
#pragma GCC unroll 4
                for (int64_t r = 0; r < TARGETS; r++) {
                    sum[r][0] += rows[r][d] * one;
                    sum[r][1] += rows[r][d] * two;
                }
            }
#pragma GCC unroll 4
            for (int64_t r = 0; r < TARGETS; r++) {
                store(out + r * room + j, sum[r][0]);
                store(out + r * room + j + L, sum[r][1]);
            }
        }
    }

    // The sums of a table's columns under some rows of weights.
    void sums(const R* weight, const R* table, int64_t width, R* const* out, int64_t count) const {
        for (int64_t d = 0; d < width; d += COLUMNS) {
            const R* columns[COLUMNS];  // beyond the width, the last one again
            for (int64_t i = 0; i < COLUMNS; i++) columns[i] = table + std::min(d + i, width - 1) * room;
            V sum[CELLS] = {};
            for (int64_t j = 0; j < room; j += L) {
#pragma GCC unroll 4
                for (int64_t r = 0; r < TARGETS; r++) {
                    const V w = load(weight + r * room + j);
#pragma GCC unroll 4
                    for (int64_t i = 0; i < COLUMNS; i++) sum[r * COLUMNS + i] += w * load(columns[i] + j);
                }
            }
            R found[CELLS];
            for (int64_t i = 0; i < CELLS; i += L) store(found + i, lane_sums<L, R>(sum + i));
            for (int64_t r = 0; r < count; r++)
                for (int64_t i = 0; i < std::min(COLUMNS, width - d); i++) out[r][d + i] = found[r * COLUMNS + i];
        }
    }

    // To a table's columns, some rows of numbers times the weights of each.
    void spread(const R* weight, const R* const* rows, int64_t width, R* table, int64_t count) const {
        for (int64_t d = 0; d < width; d += COLUMNS) {
            R* columns[COLUMNS];  // beyond the width, some memory that nobody reads
            R numbers[CELLS] = {};
            for (int64_t i = 0; i < COLUMNS; i++) {
                columns[i] = table + (d + i) * room;
                if (d + i >= width) continue;
                for (int64_t r = 0; r < count; r++) numbers[r * COLUMNS + i] = rows[r][d + i];
            }
            for (int64_t j = 0; j < room; j += L) {
                V sum[COLUMNS];
#pragma GCC unroll 4
                for (int64_t i = 0; i < COLUMNS; i++) sum[i] = load(columns[i] + j);
#pragma GCC unroll 4
                for (int64_t r = 0; r < TARGETS; r++) {
                    const V w = load(weight + r * room + j);
#pragma GCC unroll 4
                    for (int64_t i = 0; i < COLUMNS; i++) sum[i] += numbers[r * COLUMNS + i] * w;
                }
#pragma GCC unroll 4
                for (int64_t i = 0; i < COLUMNS; i++) store(columns[i] + j, sum[i]);
            }
        }
    }

    static constexpr R hidden = -std::numeric_limits<R>::infinity();

    // Hides the sources that target n does not see.
    void hide(R* score, int64_t n) const {
        const int64_t limit = call.causal ? std::min(n + 1, M) : M;
        std::fill(score + limit, score + room, hidden);
    }

    // From the scores of some targets to weights, times the sum of each target's; finds what is taken off the scores, and
    // one over the sums.
    void weigh(R* score, R (*stats)[2]) const {
        V top[TARGETS], sum[TARGETS] = {};
        for (V& v : top) v = all<R>(hidden);
        for (int64_t j = 0; j < room; j += L)
#pragma GCC unroll 4
            for (int64_t r = 0; r < TARGETS; r++) top[r] = larger(load(score + r * room + j), top[r]);
        for (int64_t r = 0; r < TARGETS; r++) stats[r][0] = largest(top[r]);
        for (int64_t j = 0; j < room; j += L)
#pragma GCC unroll 4
            for (int64_t r = 0; r < TARGETS; r++) {
                const V w = shrinking<R>(load(score + r * room + j) - stats[r][0]);
                sum[r] += w;
                store(score + r * room + j, w);
            }
        for (int64_t r = 0; r < TARGETS; r++) stats[r][1] = R(1) / total(sum[r]);
    }

    // From the scores of a target to its weights, with what the way there has found.
    void weigh_again(R* score, const R* stats) const {
        for (int64_t j = 0; j < room; j += L)
            store(score + j, shrinking<R>(load(score + j) - stats[0]) * stats[1]);
    }

    // One head of one sequence.
    int forward(int64_t b, int64_t k) const {
        Memory memory((D + W + TARGETS) * room * int64_t(sizeof(R)) + 256);
        if (!memory.fine) return NO_MEMORY;
        R *keys = memory.take<R>(D * room), *values = memory.take<R>(W * room), *weight = memory.take<R>(TARGETS * room);
        turn(head(call.key, call.key_batch, b, k * D), call.key_row, D, keys);
        turn(head(call.value, call.value_batch, b, k * W), call.value_row, W, values);
        const R* query = head(call.query, call.query_batch, b, k * D);
        R* y = static_cast<R*>(call.y) + b * call.N * call.K * W + k * W;
        for (int64_t n = 0; n < call.N; n += TARGETS) {
            const int64_t count = std::min(TARGETS, call.N - n);
            const R* rows[TARGETS];
            R* out[TARGETS];
            for (int64_t r = 0; r < TARGETS; r++) {
                rows[r] = query + (n + std::min(r, count - 1)) * call.query_row;
                out[r] = y + (n + r) * call.K * W;
            }
            products(rows, keys, D, weight);
            R stats[TARGETS][2];
            for (int64_t r = 0; r < TARGETS; r++) hide(weight + r * room, n + r);
            weigh(weight, stats);
            for (int64_t r = 0; r < count; r++) {
                const R* w = weight + r * room;
                const int64_t at = (b * call.K + k) * call.N + n + r;
                if (call.stats) std::copy(stats[r], stats[r] + 2, static_cast<R*>(call.stats) + 2 * at);
                if (!call.weight) continue;
                R* to = static_cast<R*>(call.weight) + at * M;
                for (int64_t m = 0; m < M; m++) to[m] = w[m] * stats[r][1];
            }
            sums(weight, values, W, out, count);
            for (int64_t r = 0; r < count; r++)
                for (int64_t d = 0; d < W; d++) out[r][d] *= stats[r][1];
        }
        return FINE;
    }

    int backward(int64_t b, int64_t k) const {
        const int64_t tables = D + W + rounded(D, COLUMNS) + rounded(W, COLUMNS);
        Memory memory((tables + 2 * TARGETS) * room * int64_t(sizeof(R)) + 512);
        if (!memory.fine) return NO_MEMORY;
        R *keys = memory.take<R>(D * room), *values = memory.take<R>(W * room);
        R *d_keys = memory.take<R>(rounded(D, COLUMNS) * room), *d_values = memory.take<R>(rounded(W, COLUMNS) * room);
        R *weight = memory.take<R>(TARGETS * room), *slope = memory.take<R>(TARGETS * room);
        turn(head(call.key, call.key_batch, b, k * D), call.key_row, D, keys);
        turn(head(call.value, call.value_batch, b, k * W), call.value_row, W, values);
        std::fill(d_keys, d_keys + rounded(D, COLUMNS) * room, R(0));
        std::fill(d_values, d_values + rounded(W, COLUMNS) * room, R(0));
        const R* query = head(call.query, call.query_batch, b, k * D);
        const R* grad = head(call.grad, call.N * call.K * W, b, k * W);
        R* d_query = static_cast<R*>(call.d_query) + b * call.N * call.K * D + k * D;
        for (int64_t n = 0; n < call.N; n += TARGETS) {
            const int64_t count = std::min(TARGETS, call.N - n);
            const R *rows[TARGETS], *down[TARGETS];
            R* out[TARGETS];
            for (int64_t r = 0; r < TARGETS; r++) {
                const int64_t i = n + std::min(r, count - 1);
                rows[r] = query + i * call.query_row;
                down[r] = grad + i * call.K * W;
                out[r] = d_query + i * call.K * D;
            }
            products(rows, keys, D, weight);
            products(down, values, W, slope);
            V sum[TARGETS] = {};
            for (int64_t r = 0; r < TARGETS; r++) {
                const int64_t at = (b * call.K + k) * call.N + n + std::min(r, count - 1);
                hide(weight + r * room, n + r);
                weigh_again(weight + r * room, static_cast<R*>(call.stats) + 2 * at);
                if (!call.down) continue;
                const R* own = static_cast<const R*>(call.down) + at * M;
                for (int64_t m = 0; m < M; m++) slope[r * room + m] += own[m];
            }
            for (int64_t j = 0; j < room; j += L)
#pragma GCC unroll 4
                for (int64_t r = 0; r < TARGETS; r++) sum[r] += load(weight + r * room + j) * load(slope + r * room + j);
            for (int64_t r = 0; r < TARGETS; r++) {
                R *w = weight + r * room, *d = slope + r * room;
                const R mean = total(sum[r]);
                for (int64_t j = 0; j < room; j += L) store(d + j, load(w + j) * (load(d + j) - mean));
            }
            sums(slope, keys, D, out, count);
            spread(slope, rows, D, d_keys, count);
            spread(weight, down, W, d_values, count);
        }
        turn_back(d_keys, D, call.d_key, b, k);
        turn_back(d_values, W, call.d_value, b, k);
        return FINE;
    }
};

template <typename R>
int pair_forward(const PairCall& call) {
    const Pairs<R> pairs(call);
    return each_head(call, [&](int64_t b, int64_t k) { return pairs.forward(b, k); });
}

template <typename R>
int pair_backward(const PairCall& call) {
    const Pairs<R> pairs(call);
    return each_head(call, [&](int64_t b, int64_t k) { return pairs.backward(b, k); });
}
