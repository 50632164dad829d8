// See spmm.h. The instruction set is chosen when it runs.

#include "spmm.h"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE inline __attribute__((always_inline))

#define BODY "spmm_body.h"
#include "instruction_sets.h"

namespace {

constexpr int64_t MUCH = 1 << 16;  // numbers read, from which on several threads pay

}  // namespace

bool spmm(const Spmm& call) {
  static bool (*const run)(const Spmm&, int64_t, int64_t) = CHOSEN(Rows::sums);
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
