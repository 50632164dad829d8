// Attention on edges, in one pass over the edges of each target or source; see attend_body.h, and gate_body.h for
// weights of each channel; between all pairs, see pair_body.h; and products of several matrices on one pattern, see
// shared_body.h.
//
// Plain C++17 without the headers of any other library. What is called is `basisconv_attend_forward_*`,
// `basisconv_attend_backward_*`, and the same with `gate`, with one argument, the `Call` below; with `pair`, with a
// `PairCall`; and `basisconv_shared_*` with a `SharedCall`.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

// Lanes of two vectors, by constants; and of one, by a vector of places.
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
template <typename V, typename I>
INLINE V permuted(V v, I places) {
    V found;
    for (unsigned j = 0; j < sizeof(V) / sizeof(v[0]); j++) found[j] = v[places[j]];
    return found;
}
#define PERMUTE(v, places) permuted(v, places)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (I){__VA_ARGS__})
#define PERMUTE(v, places) __builtin_shuffle(v, places)
#endif

namespace {

// What kernels return. Where it is not FINE, what was to be written is without meaning.
enum Code { FINE, OUT_OF_RANGE, NO_MEMORY };

enum Activation { NONE, LEAKY_RELU, RELU, SIGMOID, TANH, SEEN, SEEN_TANH };

// How scores are made. TERMS: of each head a term of the source, the target and the entry, added. PROJECTED: the same,
// where those of source and target are inner products of z with `vectors` and `others`. HIDDEN: terms of D numbers,
// and the inner product of their activation with `vectors`. PRODUCTS: inner products of what source and target have.
enum Kind { TERMS, PROJECTED, HIDDEN, PRODUCTS };

// As the caller packs it: integers and addresses of eight bytes each. Addresses may be zero, where nothing is there or
// nothing is wanted.
struct Call {
    int64_t N, M, E, c, W, D, kind, activation, normalised;
    double slope;
    // Entries by target, and by source; for each position by source, that by target.
    const int32_t *ptr, *index, *t_ptr, *t_index, *t_back;
    // Rows, and the step from one to the next; they may be columns of wider ones.
    const void* z;
    int64_t z_stride;
    const void* source;
    int64_t source_stride;
    const void* target;
    int64_t target_stride;
    const void* entry;
    int64_t entry_stride;
    const int32_t* entry_row;  // of each entry by target, its row in `entry`; null where it is its place; for gates alone
    const void *vectors, *others, *factor;
    int64_t factor_stride, factor_step;
    const void* values;  // of entries, added to z; for gates alone
    int64_t values_stride;
    // Features of entries, (E, F) by target, and what maps them for each head: to what is added to keys of PRODUCTS,
    // (c, F, D), and to z, (c, F, W), with the steps from one head to the next. Not for gates.
    const void* features;
    int64_t features_stride, F;
    const void* to_keys;
    int64_t to_keys_step;
    const void* to_values;
    int64_t to_values_step;
    void *y, *held;  // (N, c W) the sums, and a copy that the way back reads
    void* above;     // (N, c W) those of entries whose scores are above zero before their activation, see `pass_on_above`
    void* stats;     // (N, 4 c) terms of targets, what is taken off scores, 1 / sums, weights in `above`; see `know`. Of
                     // gates (N, c) sums of derivatives
    void* weights;   // (E, c) those of entries, by target, without factors; not of gates
    void* summed;    // (N, F c) the weighted sums of entries' features
    const void* grad;
    void* known;          // (N, 4 c) room
    void* known_entries;  // (E, 2 c) room, see `know_entries`; null where the pass over sources computes what is in it
    void *asked, *passed;  // (N, F c) room: queries and gradients of targets, as features of entries meet them
    // Gradients of rows, with steps, too. The address of `d_source` is that of `d_z` where the terms of sources are the
    // rows of z themselves.
    void* d_z;
    int64_t d_z_stride;
    void* d_source;
    int64_t d_source_stride;
    void* d_target;
    int64_t d_target_stride;
    void *d_entry, *d_vectors, *d_others, *d_factor, *d_values, *d_features, *d_to_keys, *d_to_values;
};

// Attention between all pairs of N targets and M sources, of B sequences and K heads: rows of K D or K W numbers, heads
// side by side, with steps from one sequence to the next and from one row to the next where they are read; what is
// written is contiguous.
struct PairCall {
    int64_t B, K, N, M, D, W, causal;
    const void* query;
    int64_t query_batch, query_row;
    const void* key;
    int64_t key_batch, key_row;
    const void* value;
    int64_t value_batch, value_row;
    void *y, *weight;  // (B, N, K W), and (B, K, N, M) where it is wanted
    void* stats;       // (B, K, N, 2) what is taken off scores, and 1 / sums
    const void *grad, *down;  // of y, and of the weights where there is one
    void *d_query, *d_key, *d_value;
};

// K matrices on one pattern of E entries, from M others to N rows of W columns; see shared_body.h for what is written.
struct SharedCall {
    int64_t N, M, E, K, W;
    const int32_t *ptr, *index, *place;  // `place`, the position of the weights of an entry, or null where it is in order
    const void *x, *weight, *own;
    void* y;
};

// Runs f(b, k) for each head of each sequence, on several threads where that is much; the greatest of its results.
template <typename F>
int each_head(const PairCall& call, F f) {
    const int64_t heads = call.B * call.K;
    int code = FINE;
#ifdef _OPENMP
    const bool many = heads > 1 && heads * call.N * call.M * (call.D + call.W) > 1 << 18;
    if (many && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel for schedule(dynamic) reduction(max : code)
        for (int64_t i = 0; i < heads; i++) code = std::max(code, f(i / call.K, i % call.K));
        return code;
    }
#endif
    for (int64_t i = 0; i < heads; i++) code = std::max(code, f(i / call.K, i % call.K));
    return code;
}

// Ranges of rows with about as many entries each; how many there are depends on the sizes alone, so that sums which
// are made for each of them are the same at any number of threads.
struct Ranges {
    const int32_t* ptr;
    int64_t rows, count;

    Ranges(const int32_t* ptr, int64_t rows, int64_t entries, int64_t width) : ptr(ptr), rows(rows) {
        count = std::max<int64_t>(1, std::min<int64_t>(256, (entries + rows) * width >> 16));
    }

    int64_t start(int64_t k) const {
        if (k >= count) return rows;
        const int64_t before = ptr[0], wanted = (ptr[rows] - before + rows) / count * k;
        int64_t low = 0, high = rows;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (ptr[middle] - before + middle < wanted) low = middle + 1;
            else high = middle;
        }
        return low;
    }
};

// Runs f(k) for each range, on several threads where there are several ranges; the greatest of its results.
template <typename F>
int each_range(const Ranges& ranges, F f) {
    int code = FINE;
#ifdef _OPENMP
    if (ranges.count > 1 && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel for schedule(dynamic) reduction(max : code)
        for (int64_t k = 0; k < ranges.count; k++) code = std::max(code, f(k));
        return code;
    }
#endif
    for (int64_t k = 0; k < ranges.count; k++) code = std::max(code, f(k));
    return code;
}

}  // namespace

#define BODY "attention.h"
#include "instruction_sets.h"

// What Python finds by its name: runs the kernel for the machine.
#define EXPORTED(name, Arguments, kernel)                                                        \
    extern "C" __attribute__((visibility("default"))) int basisconv_##name(const void* packed) { \
        static int (*const run)(const Arguments&) = CHOSEN(kernel);                              \
        return run(*static_cast<const Arguments*>(packed));                                      \
    }

#define IN_BOTH(name, Arguments)                 \
    EXPORTED(name##_float, Arguments, name<float>) \
    EXPORTED(name##_double, Arguments, name<double>)

IN_BOTH(attend_forward, Call)
IN_BOTH(attend_backward, Call)
IN_BOTH(gate_forward, Call)
IN_BOTH(gate_backward, Call)
IN_BOTH(pair_forward, PairCall)
IN_BOTH(pair_backward, PairCall)
IN_BOTH(shared_expand, SharedCall)
IN_BOTH(shared_combine, SharedCall)
IN_BOTH(shared_inner, SharedCall)
IN_BOTH(shared_scatter, SharedCall)
