// The kernels of attend.cpp, for one instruction set; see lanes.h for how it is included.
//
// Entries are taken in blocks, of one target each or, on the way back by sources, of one source. What a block has for
// its entries and heads stands flat, entry by entry, and is computed with full vectors however many heads there are.
// The softmax is made in one go: where a block has a larger score than those before, what was summed is scaled down.

constexpr int64_t NEAR = 1 << 19;  // bytes that are in some cache anyway
constexpr int64_t KNOWN = 4;  // numbers of a target and head that passes over sources read: see `know`
constexpr int64_t AHEAD = 16;  // entries between one that is read and one whose rows are fetched

// Rows of a table, of which no number beyond `end` is read.
template <typename R>
struct Table {
    const R* data;
    int64_t stride;
    const R* end;

    Table(const void* from, int64_t rows, int64_t stride, int64_t width)
        : data(static_cast<const R*>(from)), stride(stride), end(nullptr) {
        if (data && rows) end = data + (rows - 1) * stride + width;
    }
    const R* row(int64_t i) const { return data + i * stride; }
};

// A vector from p on; zeros beyond the end, unless rows are known to be whole vectors.
template <bool whole, typename R>
INLINE typename Lanes<R>::V take(const R* p, const R* end) {
    constexpr int L = Lanes<R>::L;
    if (whole || end - p >= L) return load(p);
    R held[L] = {};
    for (int64_t j = 0; j < end - p; j++) held[j] = p[j];
    return load<R>(held);
}

// Asks for a row that is read later; of a long one for the first part, which a cache has room for.
INLINE void fetch(const void* row, int64_t bytes) {
    const char* from = static_cast<const char*>(row);
    bytes = std::min<int64_t>(bytes, 1024);
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + b);
}

INLINE int64_t rounded(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

// Memory of one range; what does not fit makes `fine` false.
struct Memory {
    char* data;
    int64_t size, used = 0;
    bool fine;

    explicit Memory(int64_t size) : data(static_cast<char*>(::operator new(size, std::nothrow))), size(size), fine(data) {}
    ~Memory() { ::operator delete(data); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    template <typename T>
    T* take(int64_t count) {
        T* found = reinterpret_cast<T*>(data + used);
        used += rounded(count * int64_t(sizeof(T)), 64);
        return found;
    }
};

// How heads lie in vectors. WHOLE: a head is some vectors. PACKED: a vector is some heads, and a row some vectors.
enum Fit { WHOLE, PACKED, LOOSE };

// c heads of W columns each, side by side.
template <typename R>
struct Heads {
    typedef typename Lanes<R>::I I;
    static constexpr int L = Lanes<R>::L;
    int64_t c, W, width, vectors;
    Fit fit;
    int32_t* first;  // the head of each vector's first column
    int32_t* lanes;  // and of each lane, from that one on
    I left;          // the columns of a head's last vector that are its own

    Heads(int64_t c, int64_t W, Memory& memory)
        : c(c), W(W), width(c * W), vectors((width + L - 1) / L),
          fit(W % L == 0 ? WHOLE : L % W == 0 && width % L == 0 ? PACKED : LOOSE), left{} {
        first = memory.take<int32_t>(vectors);
        lanes = memory.take<int32_t>(vectors * L);
        for (int64_t k = 0; k < vectors; k++) {
            first[k] = int32_t(k * L / W);
            for (int64_t j = 0; j < L; j++)
                lanes[k * L + j] = k * L + j < width ? int32_t((k * L + j) / W) - first[k] : 0;
        }
        for (int64_t j = 0; j < W % L; j++) left[j] = -1;
    }

    static int64_t room(int64_t c, int64_t W) { return (c * W / L + 2) * (L + 1) * 4 + 256; }
};

// For each entry and head the inner product of what a row and the entry's row have there, flat. The products of P pieces
// of rows at a time become a vector of sums: pieces are heads, and P is L; or vectors of L / P heads, where they are PACKED.
// `later`, which may be null, has for each entry a row that is fetched on the way.
template <Fit fit, int P, typename R>
void inner_products_by(
    const Heads<R>& heads, int64_t count, const R* row, const R* row_end, const R* const* rows, const R* end,
    const R* const* later, R* out
) {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    constexpr int L = Lanes<R>::L;
    const int64_t total = count * heads.c, full = heads.W / L, piece = fit == PACKED ? L : heads.W;
    const int64_t bytes = heads.width * int64_t(sizeof(R)), entries = (L + heads.c - 1) / heads.c;  // at a time
    int64_t i = 0, column = 0, fetched = later ? 0 : count;
    for (int64_t done = 0; done < total; done += L) {
        for (; fetched < std::min(i + entries, count); fetched++) fetch(later[fetched], bytes);
        V parts[P];
#pragma GCC unroll 16
        for (int l = 0; l < P; l++) {
            V sum{};
            if (done + l * (L / P) >= total) {  // the last lanes of all may be of no entry
                parts[l] = sum;
                continue;
            }
            const R *a = row + column, *b = rows[i] + column;
            if (fit != LOOSE || full) sum = load(a) * load(b), a += L, b += L;
            for (int64_t k = 1; k < full; k++, a += L, b += L) sum += load(a) * load(b);
            if (fit == LOOSE) sum += (V)((I)(take<false>(a, row_end) * take<false>(b, end)) & heads.left);
            parts[l] = sum;
            column += piece;
            if (column == heads.width) {
                column = 0;
                i++;
            }
        }
        store(out + done, lane_sums<P, R>(parts));
    }
}

// The same where heads are whole vectors, and their number a multiple of L; `one`: each head is one vector.
template <bool one, typename R>
void inner_products_of_whole(
    const Heads<R>& heads, int64_t count, const R* row, const R* const* rows, const R* const* later, R* out
) {
    typedef typename Lanes<R>::V V;
    constexpr int L = Lanes<R>::L;
    const int64_t c = heads.c, W = one ? L : heads.W, bytes = heads.width * int64_t(sizeof(R));
    for (int64_t i = 0; i < count; i++) {
        const R *a = row, *b = rows[i];
        if (later) fetch(later[i], bytes);
        for (int64_t h = 0; h < c; h += L, out += L) {
            V parts[L];
#pragma GCC unroll 16
            for (int l = 0; l < L; l++, a += W, b += W) {
                parts[l] = load(a) * load(b);
                for (int64_t k = L; !one && k < W; k += L) parts[l] += load(a + k) * load(b + k);
            }
            store(out, lane_sums<L, R>(parts));
        }
    }
}

template <Fit fit, typename R>
void inner_products(
    const Heads<R>& heads, int64_t count, const R* row, const R* row_end, const R* const* rows, const R* end,
    const R* const* later, R* out
) {
    constexpr int L = Lanes<R>::L;
    if (fit == WHOLE && heads.c % L == 0) {
        if (heads.W == L) return inner_products_of_whole<true>(heads, count, row, rows, later, out);
        return inner_products_of_whole<false>(heads, count, row, rows, later, out);
    }
    if constexpr (fit == PACKED) {
        switch (heads.W) {
            case 1: return inner_products_by<fit, 1>(heads, count, row, row_end, rows, end, later, out);
            case 2: return inner_products_by<fit, 2>(heads, count, row, row_end, rows, end, later, out);
            case 4: return inner_products_by<fit, std::min(L, 4)>(heads, count, row, row_end, rows, end, later, out);
            default: return inner_products_by<fit, std::min(L, 8)>(heads, count, row, row_end, rows, end, later, out);
        }
    } else {
        inner_products_by<fit, L>(heads, count, row, row_end, rows, end, later, out);
    }
}

// Some vectors of columns from `start` on: to each, the sum over entries of its head's weight times the entry's row.
// `one`: each head is one vector. `later`: see above, if `fetches`.
template <int K, Fit fit, bool one, bool fetches, typename R>
INLINE void accumulate_some(
    const Heads<R>& heads, int64_t start, int64_t count, const R* weight, const R* const* rows, const R* end,
    const R* const* later, R* out
) {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    constexpr int L = Lanes<R>::L;
    V sum[K] = {};
    const int32_t *first = heads.first + start, *lanes = heads.lanes + start * L;
    I mask[K];
    if (fit != WHOLE)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < L; j++) mask[k][j] = lanes[k * L + j];
    for (int64_t i = 0; i < count; i++, weight += heads.c) {
        const R* row = rows[i] + start * L;
        if (fetches) fetch(later[i], heads.width * int64_t(sizeof(R)));
#pragma GCC unroll 8
        for (int k = 0; k < K; k++) {
            V w;
            if (fit == WHOLE) {
                w = all<R>(weight[one ? start + k : first[k]]);
            } else {
                const V some = load(weight + first[k]);
                w = PERMUTE(some, mask[k]);
            }
            sum[k] += w * take<fit != LOOSE>(row + k * L, end);
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < K; k++) store(out + (start + k) * L, load(out + (start + k) * L) + sum[k]);
}

// The same for all columns; `out` has room for whole vectors, and the weights for one more.
template <Fit fit, bool one, typename R>
void accumulate(
    const Heads<R>& heads, int64_t count, const R* weight, const R* const* rows, const R* end, const R* const* later,
    R* out
) {
    const int64_t last = heads.vectors;
    int64_t k = 0;
    if (later && last >= 8) accumulate_some<8, fit, one, true>(heads, k, count, weight, rows, end, later, out), k = 8;
    else if (later) for (int64_t i = 0; i < count; i++) fetch(later[i], heads.width * int64_t(sizeof(R)));
    for (; k + 8 <= last; k += 8) accumulate_some<8, fit, one, false>(heads, k, count, weight, rows, end, later, out);
    if (last - k >= 4) accumulate_some<4, fit, one, false>(heads, k, count, weight, rows, end, later, out), k += 4;
    if (last - k >= 2) accumulate_some<2, fit, one, false>(heads, k, count, weight, rows, end, later, out), k += 2;
    if (last - k >= 1) accumulate_some<1, fit, one, false>(heads, k, count, weight, rows, end, later, out);
}

// Each row's columns times a number of their head, in whole vectors; the numbers have room for one vector more.
template <bool whole, typename R>
void scale(const Heads<R>& heads, const R* number, const R* row, R* out) {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    constexpr int L = Lanes<R>::L;
    for (int64_t k = 0; k < heads.vectors; k++) {
        V w;
        if (whole) {
            w = all<R>(number[heads.first[k]]);
        } else {
            I mask;
            for (int j = 0; j < L; j++) mask[j] = heads.lanes[k * L + j];
            w = PERMUTE(load(number + heads.first[k]), mask);
        }
        store(out + k * L, w * load(row + k * L));
    }
}

// Of many numbers, whole vectors of them.
template <int activation, typename R>
void activate_with(R slope, const R* in, R* out, int64_t count) {
    for (int64_t j = 0; j < count; j += Lanes<R>::L) store(out + j, activate<activation, R>(slope, load(in + j)));
}

// Writes the derivatives at u, where the function is v, over u.
template <int activation, typename R>
void derive_with(R slope, R* u, const R* v, int64_t count) {
    for (int64_t j = 0; j < count; j += Lanes<R>::L)
        store(u + j, derivative<activation, R>(slope, load(u + j), load(v + j)));
}

template <typename R>
void activate_all(int64_t activation, R slope, const R* in, R* out, int64_t count) {
    switch (activation) {
        case LEAKY_RELU: return activate_with<LEAKY_RELU>(slope, in, out, count);
        case RELU: return activate_with<RELU>(slope, in, out, count);
        case SIGMOID: return activate_with<SIGMOID>(slope, in, out, count);
        case TANH: return activate_with<TANH>(slope, in, out, count);
        case SEEN: return activate_with<SEEN>(slope, in, out, count);
        case SEEN_TANH: return activate_with<SEEN_TANH>(slope, in, out, count);
        default: return activate_with<NONE>(slope, in, out, count);
    }
}

template <typename R>
void derive_all(int64_t activation, R slope, R* u, const R* v, int64_t count) {
    switch (activation) {
        case LEAKY_RELU: return derive_with<LEAKY_RELU>(slope, u, v, count);
        case RELU: return derive_with<RELU>(slope, u, v, count);
        case SIGMOID: return derive_with<SIGMOID>(slope, u, v, count);
        case TANH: return derive_with<TANH>(slope, u, v, count);
        case SEEN: return derive_with<SEEN>(slope, u, v, count);
        case SEEN_TANH: return derive_with<SEEN_TANH>(slope, u, v, count);
        default: return derive_with<NONE>(slope, u, v, count);
    }
}

template <typename R>
struct Pass;

// Features of an entry are the same for all heads. So what they are multiplied by is summed, F times c numbers, and maps
// (c, F, W) are applied to the sums, once for each target: nothing is as wide as the heads at an entry. A map is read as
// F rows of c heads, (F, c W), and so the sums are weights of rows.
template <typename R>
struct FeatureMap {
    typedef typename Lanes<R>::V V;
    typedef typename Lanes<R>::I I;
    static constexpr int L = Lanes<R>::L;
    const R* data;
    const int64_t F, stride;  // from row to row, whole vectors
    Memory memory;
    const Heads<R> heads;
    R *table, *held;
    const R** rows;

    FeatureMap(const void* from, int64_t step, int64_t c, int64_t some, int64_t W)
        : data(static_cast<const R*>(from)), F(data ? some : 0), stride(rounded(c * W, L)),
          memory(room(data ? c : 0, W)), heads(data && memory.fine ? c : 0, W, memory) {
        if (!data || !memory.fine) return;
        table = memory.take<R>(F * stride);
        held = memory.take<R>(F * c + L);
        rows = memory.take<const R*>(F);
        std::memset(table, 0, F * stride * sizeof(R));
        for (int64_t f = 0; f < F; f++) {
            rows[f] = table + f * stride;
            for (int64_t h = 0; h < c; h++)
                std::memcpy(table + f * stride + h * W, data + h * step + f * W, W * sizeof(R));
        }
    }
    int64_t room(int64_t c, int64_t W) const {
        const int64_t numbers = F * (stride + c) + L;
        return Heads<R>::room(c, W) + numbers * int64_t(sizeof(R)) + F * int64_t(sizeof(void*)) + 64 * 6;
    }

    // The inner products of a row of c heads with what each feature is mapped to.
    void narrow(const R* row, const R* end, R* out) const {
        Pass<R>::products(heads, F, row, end, rows, table + F * stride, out);
    }

    // += what the sums are mapped to, for each head; they have room for one vector more, and the row for whole ones.
    void widen(const R* sums, R* row) const { Pass<R>::add(heads, F, sums, rows, table + F * stride, row); }

    // += the gradient of the rows, given the sums and the gradient of what they are mapped to.
    void learn(const R* sums, const R* row, const R* end, R* into) const {
        std::memcpy(held, sums, F * heads.c * sizeof(R));
        for (int64_t k = 0; k < heads.vectors; k++) {
            const V mine = take<false>(row + k * L, end);
            I mask;
            for (int j = 0; j < L; j++) mask[j] = heads.lanes[k * L + j];
            R* to = into + k * L;
            const R* by = held + heads.first[k];
            for (int64_t f = 0; f < F; f++, to += stride, by += heads.c)
                store(to, load(to) + PERMUTE(load(by), mask) * mine);
        }
    }
};

// One pass over a range of targets, or of sources: what it reads, and its memory.
template <typename R>
struct Pass {
    typedef typename Lanes<R>::V V;
    static constexpr int L = Lanes<R>::L, SOME = 32 / sizeof(R);

    const Call& call;
    const bool by_source, normalised, far;  // far: whether the rows of the other ends are more than caches hold
    const bool by_terms, knows;             // knows: whether targets' rows of `known` are read on the way back by sources
    const int64_t c, kind, activation;
    const R slope;
    // Of the entries' other ends: what scores read, and what is summed, which on the way back is of the gradient.
    const int64_t others, entries;
    const int32_t *ptr, *index, *place;
    const Table<R> own_terms, other_terms, own_rows, other_rows, entry, vectors;
    const R* factor;
    const R* known;
    R* const known_entries;
    const int64_t block, period, flat, widest;
    R *raw, *score, *weight, *dot, *top, *inverse, *delta, *factors, *nothing, *at_ends, *sums, *term_sums, *vector_sums;
    R *own, *tops, *totals, *above, *shares;
    // Of entries' features: what a target asks of them, and passes on to them, and sums of them, F times c numbers.
    const int64_t narrow;
    const Table<R> features;
    const FeatureMap<R> to_keys, to_values;
    R *asked, *passed, *summed, *asked_sums;
    const R **terms_of, **rows_of, **later_terms, **later_rows;
    const R **unseen_terms = nullptr, **unseen_rows = nullptr;  // the later rows, until they are fetched
    // Of HIDDEN, (block, layer): the hidden layer before its activation, and under it.
    const int64_t layer;
    R *before, *after;
    const R **befores, **afters;
    Memory memory;
    const Heads<R> z, d;

    static int64_t inner(const Call& k) { return k.kind == TERMS || k.kind == PROJECTED ? 1 : k.D; }
    static int64_t common(int64_t c) {  // the least common multiple with L
        int64_t found = c;
        while (found % L) found += c;
        return found;
    }
    static int64_t blocks_of(const Call& k) {
        const int64_t most = std::max(k.c * k.W, k.c * inner(k));
        return std::max<int64_t>(8, std::min<int64_t>(64, 8192 / most));
    }
    int64_t room() const {
        const int64_t pointers = 6 * (block + 8) * int64_t(sizeof(void*));
        const int64_t tables = Heads<R>::room(c, call.W) + Heads<R>::room(c, inner(call));
        const int64_t numbers = 8 * flat + 5 * widest + 5 * (period + L) + 2 * block * layer;
        return (numbers + 4 * (narrow + 1)) * int64_t(sizeof(R)) + pointers + tables + 64 * 38;
    }
    Table<R> end_terms(bool source) const {
        const int64_t width = c * inner(call);
        if (source) return Table<R>(call.source, call.M, call.source_stride, width);
        return Table<R>(call.target, call.N, call.target_stride, width);
    }
    Table<R> end_rows(bool source) const {
        const int64_t width = c * call.W;
        return source ? Table<R>(call.z, call.M, call.z_stride, width) : Table<R>(call.grad, call.N, width, width);
    }

    Pass(const Call& k, bool by_source)
        : call(k), by_source(by_source), normalised(k.normalised),
          far((by_source ? k.N : k.M) * k.c * (k.W + inner(k)) * int64_t(sizeof(R)) > NEAR),
          by_terms(k.kind == TERMS || k.kind == PROJECTED), knows(normalised || k.kind == PROJECTED), c(k.c),
          kind(k.kind), activation(k.activation), slope(R(k.slope)), others(by_source ? k.N : k.M), entries(k.E), ptr(by_source ? k.t_ptr : k.ptr),
          index(by_source ? k.t_index : k.index), place(by_source ? k.t_back : nullptr),
          own_terms(end_terms(by_source)),
          other_terms(by_source && by_terms && (knows || k.known_entries) ? Table<R>(nullptr, 0, 0, 0) : end_terms(!by_source)),
          own_rows(end_rows(by_source)),
          other_rows(end_rows(!by_source)), entry(k.entry, k.E, k.entry_stride, c * inner(k)),
          vectors(k.vectors, 1, 0, c * (kind == PROJECTED ? k.W : inner(k))), factor(static_cast<const R*>(k.factor)),
          known(static_cast<const R*>(k.known)), known_entries(static_cast<R*>(k.known_entries)), block(blocks_of(k)), period(common(c)),
          flat(rounded(block * c, period) + period), widest(rounded(c * std::max(k.W, inner(k)), L) + L),
          narrow(k.F * c), features(k.features, k.E, k.features_stride, k.F),
          to_keys(k.to_keys, k.to_keys_step, c, k.F, k.D), to_values(k.to_values, k.to_values_step, c, k.F, k.W),
          layer(k.kind == HIDDEN ? rounded(c * k.D, L) : 0), memory(room()),
          z(c, k.W, memory), d(c, inner(k), memory) {
        if (!fine()) return;
        for (R** of : {&raw, &score, &weight, &dot, &top, &inverse, &delta, &factors}) *of = memory.take<R>(flat);
        for (R** of : {&nothing, &sums, &term_sums, &vector_sums, &above}) *of = memory.take<R>(widest);
        for (R** of : {&at_ends, &own, &tops, &totals, &shares}) *of = memory.take<R>(period + L);
        for (R** of : {&asked, &passed, &summed, &asked_sums}) *of = memory.take<R>(narrow);
        terms_of = memory.take<const R*>(block);
        rows_of = memory.take<const R*>(block);
        later_terms = memory.take<const R*>(block);
        later_rows = memory.take<const R*>(block);
        befores = memory.take<const R*>(block);
        afters = memory.take<const R*>(block);
        before = memory.take<R>(block * layer);
        after = memory.take<R>(block * layer);
        for (int64_t i = 0; i < block; i++) terms_of[i] = nothing;
        for (int64_t i = 0; i < block; i++) befores[i] = before + i * layer, afters[i] = after + i * layer;
        std::memset(before, 0, block * layer * sizeof(R));
        std::memset(nothing, 0, widest * sizeof(R));
        for (R* of : {raw, score, weight, dot, top, inverse, delta, factors}) std::memset(of, 0, flat * sizeof(R));
    }

    bool fine() const { return memory.fine && to_keys.memory.fine && to_values.memory.fine; }
    int64_t at(int64_t p) const { return place ? place[p] : p; }

    static void zero(R* of, int64_t count) { fill(of, count, V{}); }
    static void fill(R* of, int64_t count, V value) {
        for (int64_t j = 0; j < count; j += L) store(of + j, value);
    }

    // The numbers of all heads, some of them at a time.
    void copy(R* to, const R* from) const {
        int64_t h = 0;
        for (; h + SOME <= c; h += SOME) std::memcpy(to + h, from + h, SOME * sizeof(R));
        for (; h < c; h++) to[h] = from[h];
    }
    void add(R* to, const R* from) const {
        int64_t h = 0;
        for (; h + SOME <= c; h += SOME)
            for (int64_t j = 0; j < SOME; j++) to[h + j] += from[h + j];
        for (; h < c; h++) to[h] += from[h];
    }

    // Finds the rows of entries p .. p + count - 1, and the later ones that are fetched; false where an index is out of its
    // range.
    bool gather(int64_t p, int64_t count) {
        const int32_t* const from = index + p;
        const int64_t bound = others, last = entries - 1 - p;
        const Table<R> terms = other_terms, rows = other_rows;
        const R **const of_terms = terms_of, **const of_rows = rows_of;
        for (int64_t i = 0; i < count; i++) {
            const int64_t o = from[i];
            if (o < 0 || o >= bound) return false;
            of_rows[i] = rows.row(o);
            if (terms.data) of_terms[i] = terms.row(o);
        }
        if (far) {
            const R **const more_terms = later_terms, **const more_rows = later_rows;
            for (int64_t i = 0; i < count; i++) {
                const int64_t o = from[std::min(i + AHEAD, last)];
                more_rows[i] = rows.row(o);
                if (terms.data) more_terms[i] = terms.row(o);
            }
            unseen_terms = terms.data ? more_terms : nullptr;
            unseen_rows = more_rows;
        }
        return true;
    }

    // The rows to fetch while those of a block are read for the first time; null from then on. Fetched all at once, before
    // the block, they would have to be waited for.
    static const R* const* first_time(const R**& unseen) {
        const R* const* found = unseen;
        unseen = nullptr;
        return found;
    }

    const R* own_of(int64_t n) const { return own_terms.data ? own_terms.row(n) : nothing; }
    const R* own_end() const { return own_terms.data ? own_terms.end : nothing + widest; }

    // Of each entry and head the inner product with a row; and += the sum of entries' rows under weights of each head.
    static void products(
        const Heads<R>& heads, int64_t count, const R* row, const R* row_end, const R* const* rows, const R* end, R* out,
        const R* const* later = nullptr
    ) {
        switch (heads.fit) {
            case WHOLE: return inner_products<WHOLE>(heads, count, row, row_end, rows, end, later, out);
            case PACKED: return inner_products<PACKED>(heads, count, row, row_end, rows, end, later, out);
            default: return inner_products<LOOSE>(heads, count, row, row_end, rows, end, later, out);
        }
    }
    static void add(
        const Heads<R>& heads, int64_t count, const R* weight, const R* const* rows, const R* end, R* out,
        const R* const* later = nullptr
    ) {
        if (heads.W == L) return accumulate<WHOLE, true>(heads, count, weight, rows, end, later, out);
        switch (heads.fit) {
            case WHOLE: return accumulate<WHOLE, false>(heads, count, weight, rows, end, later, out);
            case PACKED: return accumulate<PACKED, false>(heads, count, weight, rows, end, later, out);
            default: return accumulate<LOOSE, false>(heads, count, weight, rows, end, later, out);
        }
    }
    // The same of the rows of a block's entries; the later ones are fetched the first time.
    void products_of_rows(int64_t count, const R* row, const R* row_end, R* out) {
        products(z, count, row, row_end, rows_of, other_rows.end, out, first_time(unseen_rows));
    }
    void add_rows(int64_t count, const R* weight, R* out) {
        add(z, count, weight, rows_of, other_rows.end, out, first_time(unseen_rows));
    }

    // The terms of a row's own end, where scores are made of terms; once more for each lane of a period.
    void find_own(int64_t n) {
        if (!by_terms) return;
        if (kind == PROJECTED) {
            const Table<R> rows = end_rows(true);
            const R *row = rows.row(n), *vector = by_source ? vectors.data : static_cast<const R*>(call.others);
            products(z, 1, vector, vector + z.width, &row, rows.end, own);
        } else {
            copy(own, own_of(n));
        }
        repeat(own);
    }
    void repeat(R* of) const {
        for (int64_t known = c; known < period; known *= 2) std::memcpy(of + known, of, known * sizeof(R));
    }

    // The scores of a block, flat; before their activation too, where they are of one number.
    void make_scores(int64_t n, int64_t p, int64_t count) {
        if (kind == HIDDEN) {
            make_layer(own_of(n), p, count);
            return products(d, count, vectors.data, vectors.end, afters, after + block * layer, score);
        }
        if (kind == PRODUCTS) {
            products(d, count, own_of(n), own_end(), terms_of, other_terms.end, score, first_time(unseen_terms));
            if (to_keys.data) meet(p, count, asked, call.asked, score);
            return;
        }
        if (by_source && knows)
            copy_known(p, count);
        else if (kind == PROJECTED)  // the rows are read anyway; a table of their terms would be gathered, too
            products_of_rows(count, vectors.data, vectors.end, raw);
        else
            copy_terms(count);
        if (entry.data)
            for (int64_t i = 0; i < count; i++) add(raw + i * c, entry.row(at(p + i)));
        for (int64_t k = 0; k < period; k += L) {
            const V mine = load(own + k);
            for (int64_t j = k; j < count * c; j += period) store(raw + j, load(raw + j) + mine);
        }
        activate_all(activation, slope, raw, score, count * c);
    }

    void copy_known(int64_t p, int64_t count) {
        const int32_t* const from = index + p;
        const int64_t last = entries - 1 - p, step = KNOWN * c;
        const R* const first = known;
        R* to = raw;
        for (int64_t i = 0; i < count; i++, to += c) {
            if (far) fetch(first + from[std::min(i + AHEAD, last)] * step, step * int64_t(sizeof(R)));
            copy(to, first + from[i] * step);
        }
    }
    void copy_terms(int64_t count) {
        const R* const* later = first_time(unseen_terms);
        R* to = raw;
        for (int64_t i = 0; i < count; i++, to += c) {
            if (later) fetch(later[i], c * int64_t(sizeof(R)));
            copy(to, terms_of[i]);
        }
    }

    void make_layer(const R* own, int64_t p, int64_t count) {
        const R* const* later = first_time(unseen_terms);
        const int64_t width = d.width;
        for (int64_t i = 0; i < count; i++) {
            if (later) fetch(later[i], d.width * int64_t(sizeof(R)));
            const R *__restrict mine = own, *__restrict other = terms_of[i];
            R* __restrict u = before + i * layer;
            for (int64_t j = 0; j < width; j++) u[j] = mine[j] + other[j];
            if (entry.data) {
                const R* __restrict more = entry.row(at(p + i));
                for (int64_t j = 0; j < width; j++) u[j] += more[j];
            }
        }
        activate_all(activation, slope, before, after, count * layer);
    }

    void make_factors(int64_t p, int64_t count) {
        for (int64_t i = 0; i < count; i++) {
            const R* from = factor + at(p + i) * call.factor_stride;
            for (int64_t h = 0; h < c; h++) factors[i * c + h] = from[h * call.factor_step];
        }
    }

    // += of each entry and head the inner product of its features with what its target has for them.
    void meet(int64_t p, int64_t count, const R* mine, const void* all_targets, R* out) const {
        for (int64_t i = 0; i < count; i++, out += c) {
            const R* from = by_source ? static_cast<const R*>(all_targets) + index[p + i] * narrow : mine;
            const R* u = features.row(at(p + i));
            int64_t h = 0;
            for (; h + SOME <= c; h += SOME) add_products<SOME>(u, from + h, out + h);
            for (; h < c; h++) add_products<1>(u, from + h, out + h);
        }
    }
    // The same of some heads, whose sums stay in registers.
    template <int some>
    INLINE_MEMBER void add_products(const R* u, const R* from, R* out) const {
        R sums[some];
        std::memcpy(sums, out, sizeof(sums));
        for (int64_t f = 0; f < call.F; f++, from += c)
            for (int j = 0; j < some; j++) sums[j] += u[f] * from[j];
        std::memcpy(out, sums, sizeof(sums));
    }
    // += the sums of a block's features under weights of each head.
    void gather_features(int64_t p, int64_t count, const R* weights, R* into) const {
        for (int64_t i = 0; i < count; i++, weights += c) {
            const R* u = features.row(at(p + i));
            for (int64_t f = 0; f < call.F; f++) add_times(u[f], weights, into + f * c);
        }
    }
    // += a number times those of all heads.
    void add_times(R by, const R* from, R* to) const {
        int64_t h = 0;
        for (; h + SOME <= c; h += SOME)
            for (int64_t j = 0; j < SOME; j++) to[h + j] += by * from[h + j];
        for (; h < c; h++) to[h] += by * from[h];
    }
    void scale_features(const R* number) const {
        for (int64_t j = 0; j < narrow; j += c)
            for (int64_t h = 0; h < c; h++) summed[j + h] *= number[h];
    }
    static void clear(R* of, int64_t count) { std::fill(of, of + count, R(0)); }

    // Makes the flat array whole up to a period with what changes nothing.
    void pad(R* array, int64_t count, R value) const {
        for (int64_t j = count * c; j < rounded(count * c, period); j++) array[j] = value;
    }

    // (c) += the sums over the entries of a flat array.
    void add_up(R* array, int64_t count, R* into) const {
        pad(array, count, 0);
        for (int64_t k = 0; k < period; k += L) {
            V sum{};
            for (int64_t j = k; j < count * c; j += period) sum += load(array + j);
            store(at_ends + k, sum);
        }
        fold(into);
    }
    void fold(R* into) const {
        halve([](R a, R b) { return a + b; });
        add(into, at_ends);
    }

    // Brings a period of numbers at the ends down to one of each head. A period is c times a power of two.
    template <typename F>
    void halve(F of) const {
        for (int64_t half = period / 2; half >= c; half /= 2) {
            R *__restrict some = at_ends, *__restrict others = at_ends + half;
            for (int64_t j = 0; j < half; j++) some[j] = of(some[j], others[j]);
        }
    }

    // Weights of a block before they are divided, flat; what was summed of this target until now is scaled with them.
    void exponentials_of(int64_t count, bool first) {
        constexpr R least = -std::numeric_limits<R>::infinity();
        pad(score, count, least);
        for (int64_t k = 0; k < period; k += L) {
            V most = all<R>(least);
            for (int64_t j = k; j < count * c; j += period) {
                const V s = load(score + j);
                most = pick<R>(s > most, s, most);
            }
            store(at_ends + k, most);
        }
        halve([](R a, R b) { return a < b ? b : a; });
        for (int64_t h = 0; h < c; h += L) {
            const V before = load(tops + h), here = load(at_ends + h);
            const V top = pick<R>(here > before, here, before);
            store(delta + h, pick<R>(here > before, before - top, V{}));
            store(tops + h, top);
            store(at_ends + h, base(top));
        }
        if (!first) shrink();
        repeat(at_ends);
        for (int64_t k = 0; k < period; k += L) {
            const V top = load(at_ends + k);
            V sum{};
            for (int64_t j = k; j < count * c; j += period) {
                const V w = shrinking<R>(load(score + j) - top);
                store(weight + j, w);
                sum += w;
            }
            store(at_ends + k, sum);
        }
        fold(totals);
    }

    // What is taken off the scores: the greatest, unless it is infinite.
    static V base(V top) {
        const R most = std::numeric_limits<R>::max();
        return pick<R>((top >= -most) & (top <= most), top, V{});
    }

    void scale_heads(const R* number, const R* row, R* out) const {
        if (z.fit == WHOLE) scale<true>(z, number, row, out);
        else scale<false>(z, number, row, out);
    }

    // Multiplies what was summed by e^delta.
    void shrink() {
        for (int64_t h = 0; h < c; h += L) {
            const V by = shrinking<R>(load(delta + h));
            store(dot + h, by);
            store(totals + h, load(totals + h) * by);
            store(shares + h, load(shares + h) * by);
        }
        scale_heads(dot, sums, sums);
        if (call.above) scale_heads(dot, above, above);
        if (to_values.data) scale_features(dot);
    }

    // += the weights, and the weighted rows, of a block's entries whose scores are above zero before their activation.
    void add_above(int64_t count) {
        for (int64_t j = 0; j < count * c; j += L) store(dot + j, pick<R>(load(raw + j) > V{}, load(weight + j), V{}));
        add_up(dot, count, shares);
        if (factor) multiply(dot, count);
        add_rows(count, dot, above);
    }
    void multiply(R* weights, int64_t count) const {
        for (int64_t j = 0; j < count * c; j += L) store(weights + j, load(weights + j) * load(factors + j));
    }

    bool forward(int64_t n) {
        const int64_t start = ptr[n], end = ptr[n + 1];
        if (start < 0 || end < start || end > entries) return false;
        find_own(n);
        zero(sums, z.width);
        zero(above, z.width);
        zero(totals, c);
        zero(shares, c);
        fill(tops, c, all<R>(-std::numeric_limits<R>::infinity()));
        clear(summed, narrow);
        if (to_keys.data) to_keys.narrow(own_of(n), own_end(), asked);
        for (int64_t p = start; p < end; p += block) {
            const int64_t count = std::min(block, end - p);
            if (!gather(p, count)) return false;
            make_scores(n, p, count);
            if (normalised) exponentials_of(count, p == start);
            R* used = normalised ? weight : score;
            if (factor) make_factors(p, count);
            if (call.above) add_above(count);
            if (factor) multiply(used, count);
            add_rows(count, used, sums);
            if (to_values.data) gather_features(p, count, used, summed);
        }
        if (normalised) {
            for (int64_t h = 0; h < c; h += L) {
                const V total = load(totals + h), inverse = R(1) / pick<R>(total == V{}, all<R>(1), total);
                store(totals + h, inverse);
                store(shares + h, load(shares + h) * inverse);
                store(tops + h, base(load(tops + h)));
            }
            scale_heads(totals, sums, sums);
            if (call.above) scale_heads(totals, above, above);
            if (to_values.data) scale_features(totals);
        }
        if (to_values.data) to_values.widen(summed, sums);
        if (call.summed) std::memcpy(static_cast<R*>(call.summed) + n * narrow, summed, narrow * sizeof(R));
        for (auto [to, from] : {std::pair(call.y, sums), std::pair(call.held, sums), std::pair(call.above, above)})
            if (to) std::memcpy(static_cast<R*>(to) + n * z.width, from, z.width * sizeof(R));
        if (call.stats) {
            R* stats = static_cast<R*>(call.stats) + n * KNOWN * c;
            for (const R* of : {own, tops, totals, shares}) {
                copy(stats, of);
                stats += c;
            }
        }
        if (call.weights)
            for (int64_t p = start; p < end; p += block) write_weights(n, p, std::min(block, end - p));
        return true;
    }

    // The weights of a block, when what its target's are taken off and multiplied by is known.
    void write_weights(int64_t n, int64_t p, int64_t count) {
        gather(p, count);
        make_scores(n, p, count);
        R* out = static_cast<R*>(call.weights) + p * c;
        if (!normalised) {
            std::memcpy(out, score, count * c * sizeof(R));
            return;
        }
        for (int64_t i = 0; i < count; i++) copy(top + i * c, tops), copy(inverse + i * c, totals);
        for (int64_t j = 0; j < count * c; j += L)
            store(weight + j, shrinking<R>(load(score + j) - load(top + j)) * load(inverse + j));
        std::memcpy(out, weight, count * c * sizeof(R));
    }

    // What backward passes know of a block: weights, inner products of rows and gradients, gradients of scores, in `dot`
    // the products; `delta` is written over with the gradients.
    void gradients(int64_t n, int64_t p, int64_t count, bool of_scores) {
        make_scores(n, p, count);
        if (normalised) {
            for (int64_t i = 0; i < count; i++) {
                const R* about = known + ((by_source ? index[p + i] : n) * KNOWN + 1) * c;
                copy(top + i * c, about);
                copy(inverse + i * c, about + c);
                copy(delta + i * c, about + 2 * c);
            }
            for (int64_t j = 0; j < count * c; j += L)
                store(weight + j, shrinking<R>(load(score + j) - load(top + j)) * load(inverse + j));
        } else {
            for (int64_t j = 0; j < count * c; j += L) store(weight + j, load(score + j));
        }
        if (factor) make_factors(p, count);
        if (!of_scores) return;
        products_of_rows(count, own_rows.row(n), own_rows.end, dot);
        if (to_values.data) meet(p, count, passed, call.passed, dot);
        if (kind == HIDDEN) derive_all(activation, slope, before, after, count * layer);
        if (by_terms) derive_all(activation, slope, raw, score, count * c);
        for (int64_t j = 0; j < count * c; j += L) {
            V down = load(dot + j);
            if (factor) down *= load(factors + j);
            if (normalised) down = load(weight + j) * (down - load(delta + j));
            if (by_terms) down *= load(raw + j);
            store(delta + j, down);
        }
    }

    // Of the entries of a block, for the pass over sources: weights with their factors, and gradients of scores.
    void know_entries(int64_t p, int64_t count) {
        R* out = known_entries + p * 2 * c;
        if (factor)
            for (int64_t j = 0; j < count * c; j += L) store(top + j, load(weight + j) * load(factors + j));
        const R* weights = factor ? top : weight;
        for (int64_t j = 0; j < count * c; j += c, out += 2 * c) {
            copy(out, weights + j);
            copy(out + c, delta + j);
        }
    }

    // What `gradients` finds, where the pass over targets knew it: weights with their factors, gradients of scores.
    void recall_entries(int64_t m, int64_t p, int64_t count, bool of_scores) {
        const int64_t last = entries - 1 - p, step = 2 * c;
        for (int64_t i = 0; i < count; i++) {
            if (far) fetch(known_entries + place[p + std::min(i + AHEAD, last)] * step, step * int64_t(sizeof(R)));
            const R* from = known_entries + place[p + i] * step;
            copy(weight + i * c, from);
            copy(delta + i * c, from + c);
        }
        if (!of_scores || kind != HIDDEN) return;
        make_layer(own_of(m), p, count);
        derive_all(activation, slope, before, after, count * layer);
    }

    // += what the scores of a block pass on to their own end's terms, in `delta`; of HIDDEN without its vectors.
    void add_terms(int64_t count, R* into) {
        if (kind == PRODUCTS) add(d, count, delta, terms_of, other_terms.end, into, first_time(unseen_terms));
        else if (kind == HIDDEN) add(d, count, delta, befores, before + block * layer, into);
        else add_up(delta, count, into);
    }

    // The gradients of entries' terms of a block.
    void write_entries(int64_t p, int64_t count) {
        R* out = static_cast<R*>(call.d_entry) + p * d.width;
        if (kind == TERMS) {
            std::memcpy(out, delta, count * c * sizeof(R));
            return;
        }
        for (int64_t i = 0; i < count; i++, out += d.width)
            for (int64_t h = 0; h < c; h++)
                for (int64_t j = h * d.W; j < (h + 1) * d.W; j++)
                    out[j] = delta[i * c + h] * vectors.data[j] * befores[i][j];
    }

    // The gradients of entries' features of a block; the last to read the weights, which it multiplies by the factors.
    void write_features(int64_t p, int64_t count) {
        R* out = static_cast<R*>(call.d_features) + p * call.F;
        if (factor) multiply(weight, count);
        for (int64_t j = 0; j < count * c; j += c, out += call.F)
            for (int64_t f = 0; f < call.F; f++) {
                R sum = 0;
                if (to_values.data)
                    for (int64_t h = 0; h < c; h++) sum += passed[f * c + h] * weight[j + h];
                if (to_keys.data)
                    for (int64_t h = 0; h < c; h++) sum += asked[f * c + h] * delta[j + h];
                out[f] = sum;
            }
    }

    // What entries' features of a target meet, for this pass and for that over sources; and the gradient of `to_values`.
    void know_features(int64_t n, R* of_values) {
        const R* g = own_rows.row(n);
        if (to_keys.data) {
            to_keys.narrow(own_of(n), own_end(), asked);
            std::memcpy(static_cast<R*>(call.asked) + n * narrow, asked, narrow * sizeof(R));
        }
        if (to_values.data) {
            to_values.narrow(g, own_rows.end, passed);
            std::memcpy(static_cast<R*>(call.passed) + n * narrow, passed, narrow * sizeof(R));
            if (call.d_to_values) to_values.learn(static_cast<const R*>(call.summed) + n * narrow, g, own_rows.end, of_values);
        }
    }

    // What is known of a target: its terms, what its scores are taken off, by what they are divided, and <grad, y> of
    // each head.
    void know(int64_t n) {
        const R *g = own_rows.row(n), *y = static_cast<const R*>(call.held) + n * z.width, *end = y + (call.N - n) * z.width;
        const R* stats = static_cast<const R*>(call.stats) + n * KNOWN * c;
        R* about = static_cast<R*>(call.known) + n * KNOWN * c;
        for (int64_t k = 0; k < 3; k++) copy(about + k * c, stats + k * c);
        if (!normalised) return;
        products(z, 1, g, own_rows.end, &y, end, dot);
        copy(about + 3 * c, dot);
    }

    // The gradient of a target's terms without its entries. That of the scores, w (<grad, z> - <grad, y>), has the sum
    // zero; an activation with the slope 1 above zero, and another below, takes the part above times the difference.
    void pass_on_above(int64_t n) {
        const R *g = own_rows.row(n), *some = static_cast<const R*>(call.above) + n * z.width;
        const R *delta = known + (n * KNOWN + 3) * c, *share = static_cast<const R*>(call.stats) + (n * KNOWN + 3) * c;
        products(z, 1, g, own_rows.end, &some, some + (call.N - n) * z.width, dot);
        R* out = static_cast<R*>(call.d_target) + n * call.d_target_stride;
        const R bend = activation == RELU ? 1 : 1 - slope;
        for (int64_t h = 0; h < c; h++) out[h] = bend * (dot[h] - delta[h] * share[h]);
    }

    // The way back at a target. The gradients of vectors and of both maps of features are added to the other arguments.
    bool backward_target(int64_t n, R* partial, R* of_keys, R* of_values) {
        const int64_t start = ptr[n], end = ptr[n + 1];
        if (start < 0 || end < start || end > entries) return false;
        if (knows) know(n);
        if (narrow) know_features(n, of_values);
        const bool wanted = call.d_target, learns = kind == HIDDEN && call.d_vectors;
        const bool asks = to_keys.data && (wanted || call.d_to_keys);
        const bool visits = wanted || learns || asks || call.d_entry || call.d_factor || call.d_features || known_entries;
        if (!visits) return true;
        if (call.above) {
            pass_on_above(n);
            return true;
        }
        find_own(n);
        zero(term_sums, d.width);
        if (learns) zero(vector_sums, d.width);
        if (asks) clear(asked_sums, narrow);
        for (int64_t p = start; p < end; p += block) {
            const int64_t count = std::min(block, end - p);
            if (!gather(p, count)) return false;
            gradients(n, p, count, true);
            if (known_entries) know_entries(p, count);
            if (call.d_factor) {
                R* out = static_cast<R*>(call.d_factor) + p * c;
                for (int64_t j = 0; j < count * c; j++) out[j] = weight[j] * dot[j];
            }
            if (wanted) add_terms(count, term_sums);
            if (learns) add(d, count, delta, afters, after + block * layer, vector_sums);
            if (call.d_entry) write_entries(p, count);
            if (asks) gather_features(p, count, delta, asked_sums);
            if (call.d_features) write_features(p, count);
        }
        if (asks && wanted) to_keys.widen(asked_sums, term_sums);
        if (asks && call.d_to_keys) to_keys.learn(asked_sums, own_of(n), own_end(), of_keys);
        if (wanted) write_terms<false>(static_cast<R*>(call.d_target) + n * call.d_target_stride);
        if (learns)
            for (int64_t j = 0; j < d.width; j++) partial[j] += vector_sums[j];
        return true;
    }
    // The gradient of an end's terms; `more`: what is there is added to.
    template <bool more>
    void write_terms(R* __restrict out) const {
        const R *__restrict found = term_sums, *__restrict a = vectors.data;
        if (kind == HIDDEN)
            for (int64_t j = 0; j < d.width; j++) out[j] = (more ? out[j] : 0) + found[j] * a[j];
        else
            for (int64_t j = 0; j < d.width; j++) out[j] = (more ? out[j] : 0) + found[j];
    }

    // The way back at a source. The gradients of both vectors are added to `partial`, one behind the other.
    bool backward_source(int64_t m, R* partial) {
        const int64_t start = ptr[m], end = ptr[m + 1];
        if (start < 0 || end < start || end > entries) return false;
        const bool wanted = call.d_source || kind == PROJECTED;
        if (!known_entries) find_own(m);
        zero(sums, z.width);
        zero(term_sums, d.width);
        for (int64_t p = start; p < end; p += block) {
            const int64_t count = std::min(block, end - p);
            if (!gather(p, count)) return false;
            if (known_entries) recall_entries(m, p, count, wanted);
            else gradients(m, p, count, wanted);
            if (wanted) add_terms(count, term_sums);
            if (!call.d_z) continue;
            if (factor && !known_entries) multiply(weight, count);
            add_rows(count, weight, sums);
        }
        if (kind == PROJECTED) {
            const R *row = own_rows.row(m), *end = own_rows.end;
            R* at_target = totals;
            const R* from = static_cast<const R*>(call.d_target) + m * call.d_target_stride;
            copy(at_target, from);
            const R *a = vectors.data, *b = static_cast<const R*>(call.others);
            if (call.d_z) {
                add(z, 1, term_sums, &a, vectors.end, sums);
                add(z, 1, at_target, &b, b + z.width, sums);
            }
            if (call.d_vectors) {
                add(z, 1, term_sums, &row, end, partial);
                add(z, 1, at_target, &row, end, partial + widest);
            }
        } else if (wanted && call.d_source == call.d_z) {
            write_terms<true>(sums);
        } else if (wanted) {
            write_terms<false>(static_cast<R*>(call.d_source) + m * call.d_source_stride);
        }
        if (call.d_z) std::memcpy(static_cast<R*>(call.d_z) + m * call.d_z_stride, sums, z.width * sizeof(R));
        return true;
    }
};

// Runs f(pass, k, row) for each row of each range, and tells what went wrong.
template <typename R, typename F>
int each_row(const Call& call, const Ranges& ranges, bool by_source, F f) {
    return each_range(ranges, [&](int64_t k) -> int {
        Pass<R> pass(call, by_source);
        if (!pass.fine()) return NO_MEMORY;
        for (int64_t n = ranges.start(k), last = ranges.start(k + 1); n < last; n++)
            if (!f(pass, k, n)) return OUT_OF_RANGE;
        return FINE;
    });
}

template <typename R>
int attend_forward(const Call& call) {
    const Ranges targets(call.ptr, call.N, call.E, call.c * std::max(call.W, call.D));
    return each_row<R>(call, targets, false, [](Pass<R>& pass, int64_t, int64_t n) { return pass.forward(n); });
}

// Parts of the sums of a few vectors, one for each range, which are added in the order of the ranges.
template <typename R>
struct Parts {
    int64_t count, stride;
    Memory memory;
    R* data;

    Parts(int64_t count, int64_t vectors, int64_t width)
        : count(count), stride(vectors * (rounded(width, Lanes<R>::L) + Lanes<R>::L)), memory(count * stride * int64_t(sizeof(R))) {
        data = memory.take<R>(count * stride);
        if (memory.fine) std::memset(data, 0, count * stride * sizeof(R));
    }
    R* part(int64_t k) const { return data + k * stride; }
    void add(int64_t from, int64_t width, void* into) const {
        R* out = static_cast<R*>(into);
        for (int64_t j = 0; j < width; j++) out[j] = 0;
        for (int64_t k = 0; k < count; k++)
            for (int64_t j = 0; j < width; j++) out[j] += part(k)[from + j];
    }
};

// Parts of the gradient of a map, whose rows are `stride` apart, into (c, F, W).
template <typename R>
void add_maps(const Call& call, const Parts<R>& parts, int64_t stride, int64_t W, void* into) {
    for (int64_t h = 0; h < call.c; h++)
        for (int64_t f = 0; f < call.F; f++)
            parts.add(f * stride + h * W, W, static_cast<R*>(into) + (h * call.F + f) * W);
}

template <typename R>
int attend_backward(const Call& call) {
    const int64_t width = call.c * std::max(call.W, call.D);
    const Ranges targets(call.ptr, call.N, call.E, width);
    {
        const bool learns = call.kind == HIDDEN && call.d_vectors;
        const int64_t keys = rounded(call.c * call.D, Lanes<R>::L), values = rounded(call.c * call.W, Lanes<R>::L);
        const Parts<R> parts(learns ? targets.count : 0, 1, width);
        const Parts<R> of_keys(call.d_to_keys ? targets.count : 0, 1, call.F * keys);
        const Parts<R> of_values(call.d_to_values ? targets.count : 0, 1, call.F * values);
        if (!parts.memory.fine || !of_keys.memory.fine || !of_values.memory.fine) return NO_MEMORY;
        const int code = each_row<R>(call, targets, false, [&](Pass<R>& pass, int64_t k, int64_t n) {
            return pass.backward_target(n, parts.part(k), of_keys.part(k), of_values.part(k));
        });
        if (code) return code;
        if (learns) parts.add(0, call.c * call.D, call.d_vectors);
        if (call.d_to_keys) add_maps(call, of_keys, keys, call.D, call.d_to_keys);
        if (call.d_to_values) add_maps(call, of_values, values, call.W, call.d_to_values);
    }
    const bool learns = call.kind == PROJECTED && call.d_vectors;
    if (!call.d_z && !call.d_source && !learns) return FINE;
    const Ranges sources(call.t_ptr, call.M, call.E, width);
    const Parts<R> parts(learns ? sources.count : 0, 2, width);
    if (!parts.memory.fine) return NO_MEMORY;
    const int code = each_row<R>(call, sources, true, [&](Pass<R>& pass, int64_t k, int64_t m) {
        return pass.backward_source(m, parts.part(k));
    });
    if (code) return code;
    if (learns) {
        parts.add(0, call.c * call.W, call.d_vectors);
        parts.add(parts.stride / 2, call.c * call.W, call.d_others);
    }
    return FINE;
}
