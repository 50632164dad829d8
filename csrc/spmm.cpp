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

constexpr int64_t MUCH = 1 << 16;  // numbers read, from which on several threads pay

}  // namespace

template <typename T>
bool spmm(const Spmm<T>& call) {
  static bool (*const run)(const Spmm<T>&, int64_t, int64_t) = CHOSEN(Rows<T>::sums);
#ifdef _OPENMP
  const int64_t numbers = (call.E + call.N) * call.W;
  if (numbers > MUCH && omp_get_max_threads() > 1 && !omp_in_parallel()) {
    // Runs of targets; each of them is summed by one thread, so that their number changes no bit.
    const int64_t runs = std::min<int64_t>(call.N, 16 * omp_get_max_threads());
    bool fine = true;
#pragma omp parallel for schedule(dynamic) reduction(&& : fine)
    for (int64_t k = 0; k < runs; ++k)
      fine = run(call, call.N * k / runs, call.N * (k + 1) / runs) && fine;
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
