// See spmm.h. The instruction set is chosen when it runs.

#include "spmm.h"

#include <algorithm>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE inline __attribute__((always_inline))

#define BODY "spmm_body.h"
#include "instruction_sets.h"

namespace {

constexpr int64_t MUCH = 1 << 17;  // numbers read, from which on several threads pay
constexpr int64_t SOME = 1 << 19;  // and for each of which a thread gets a run of targets

// The first target of a run, of so many that have about as many entries and targets each; N behind the last one.
template <typename T>
int64_t start_of(const Spmm<T>& call, int64_t run, int64_t runs) {
  if (run % runs == 0) return run ? call.N : 0;
  int64_t low = 0, high = call.N;
  const int64_t before = (call.E + call.N) * run / runs;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (call.ptr[middle] + middle < before)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

template <typename T>
bool spmm(const Spmm<T>& call) {
  static bool (*const run)(const Spmm<T>&, int64_t, int64_t) = CHOSEN(Rows<T>::sums);
#ifdef _OPENMP
  const int64_t numbers = (call.E + call.N) * call.W;
  if (numbers > MUCH && omp_get_max_threads() > 1 && !omp_in_parallel()) {
    // Runs of targets; each of them is summed by one thread, so that their number changes no bit.
    const int64_t threads = omp_get_max_threads();
    const int64_t runs = threads * std::clamp<int64_t>(numbers / (threads * SOME), 1, 16);
    bool fine = true;
#pragma omp parallel for schedule(dynamic) reduction(&& : fine)
    for (int64_t k = 0; k < runs; ++k) {
      const int64_t first = start_of(call, k, runs), last = start_of(call, k + 1, runs);
      fine = first <= last && run(call, first, last) && fine;  // or pointers are not in order
    }
    return fine;
  }
#endif
  return run(call, 0, call.N);
}

template <typename T>
bool Polynomials<T>::expand(const T* x, T* y, int64_t W) const {
  const int64_t stride = K * W;
  for (int64_t n = 0; n < N; ++n) std::copy_n(x + n * W, W, y + n * stride);
  for (int64_t k = 1; k < K; ++k) {
    Spmm<T> step{y + (k - 1) * W, weight, ptr, index, y + k * W, N, W, N, E, stride, stride};
    if (k > 1) {
      step.a = a, step.c = c, step.before_stride = stride;
      step.before = c == 0 ? nullptr : y + (k - 2) * W;
    }
    if (!spmm(step)) return false;
  }
  return true;
}

template <typename T>
bool Polynomials<T>::combine(const T* z, T* y, int64_t W) const {
  const int64_t stride = K * W;
  std::vector<T> room[3];  // of the last totals; the last of all is y
  const T *total = z + (K - 1) * W, *later = nullptr;
  int64_t of_total = stride, of_later = 0;
  for (int64_t k = K - 2; k >= 0; --k) {
    if (k) room[k % 3].resize(N * W);
    T* now = k ? room[k % 3].data() : y;
    Spmm<T> step{total, weight, ptr, index, now, N, W, N, E, of_total, W};
    step.a = k ? a : T(1), step.c = c;
    step.plus = z + k * W, step.plus_stride = stride;
    step.before = c == 0 ? nullptr : later, step.before_stride = of_later;
    if (!spmm(step)) return false;
    later = total, of_later = of_total, total = now, of_total = W;
  }
  return true;
}

template bool spmm(const Spmm<float>&);
template bool spmm(const Spmm<double>&);
template struct Polynomials<float>;
template struct Polynomials<double>;
