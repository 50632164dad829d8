// See spmm.h. The instruction set is chosen when it runs.

#include "spmm.h"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE inline __attribute__((always_inline))

#define LANE_BYTES 16
namespace plain {
#include "spmm_body.h"
}  // namespace plain
#undef LANE_BYTES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(BASISCONV_PLAIN)
#define BASISCONV_X86

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANE_BYTES 32
namespace avx2 {
#include "spmm_body.h"
}  // namespace avx2
#undef LANE_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
#define LANE_BYTES 64
namespace avx512 {
#include "spmm_body.h"
}  // namespace avx512
#undef LANE_BYTES
#pragma GCC pop_options
#endif

namespace {

typedef bool (*Kernel)(const Spmm&, int64_t, int64_t);

Kernel chosen() {
#ifdef BASISCONV_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return avx512::Rows::sums;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::Rows::sums;
#endif
  return plain::Rows::sums;
}

constexpr int64_t MUCH = 1 << 16;  // numbers read, from which on several threads pay

}  // namespace

bool spmm(const Spmm& call) {
  static const Kernel run = chosen();
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
